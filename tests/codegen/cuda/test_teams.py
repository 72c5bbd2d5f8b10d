"""Reductions that threads share: along rows and columns, in one launch and in two."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from tests.codegen.cuda.emulated import agree, assemble, run
from tests.codegen.oracle import at, close, numbers, over, place
from thalweg.codegen.cuda.kernel import emit, launch_shapes
from thalweg.codegen.cuda.loops.mapping import mapping_of
from thalweg.codegen.cuda.loops.online import sums_of_powers
from thalweg.codegen.cuda.loops.rows import kept_rows, rows_bytes
from thalweg.codegen.cuda.target import CudaTarget, emulated
from thalweg.codegen.loops.simplify import canonicalize
from thalweg.ir.dynamic import dynamic, times
from thalweg.ir.expr import Call, Cast, Expr
from thalweg.ir.index import Affine
from thalweg.ir.kernel import Argument, Loops, Store
from thalweg.ir.loop import Variable


def reduction(shape: tuple[int, int], axis: int | None, kind: str, dtype: Any) -> Loops:
    """A reduction of a matrix along an axis, or of all of it."""
    rows, columns = shape
    x = Argument(0, dtype, rows * columns)
    i, j = Variable.fresh(rows), Variable.fresh(columns)
    reduced = {0: (i,), 1: (j,), None: (i, j)}[axis]
    kept = tuple(v for v in (i, j) if v not in reduced)
    value = over(kind, reduced, at(x, (columns, i), (1, j)))
    size = 1 if not kept else int(kept[0].extent)
    out = Argument(1, value.dtype, size, True)
    return Loops((x, out), kept, (Store(out, kept, place(*((1, v) for v in kept)), value),))


def arrays_of(kernel: Loops) -> list[np.ndarray]:
    return [numbers(int(argument.size), argument.dtype, 3) for argument in kernel.arguments]


SHAPES = [(3, 4096), (4096, 3), (700, 48), (5, 40), (1, 9000), (130, 130), (33, 64)]


@pytest.mark.parametrize("shape", SHAPES, ids=str)
@pytest.mark.parametrize("axis", [0, 1, None])
@pytest.mark.parametrize("kind", ["sum", "max"])
def test_reductions_of_matrices(shape: tuple[int, int], axis: int | None, kind: str) -> None:
    kernel = reduction(shape, axis, kind, np.float32)
    agree(kernel, arrays_of(kernel), tolerance=1e-4)


@pytest.mark.parametrize("dtype", ["float64", "float16", "bfloat16", "int8", "int64", "uint16"])
@pytest.mark.parametrize("axis", [0, 1])
def test_reductions_of_each_dtype(dtype: str, axis: int) -> None:
    kernel = reduction((200, 96), axis, "max", np.dtype(dtype))
    agree(kernel, arrays_of(kernel))


@pytest.mark.parametrize("axis", [0, 1])
@pytest.mark.parametrize("kind", ["argmax", "argmin", "any", "all", "prod"])
def test_other_reductions(kind: str, axis: int) -> None:
    dtype = np.bool_ if kind in ("any", "all") else np.int32
    kernel = reduction((260, 72), axis, kind, dtype)
    agree(kernel, arrays_of(kernel))


def test_few_results_of_much_take_two_launches() -> None:
    kernel = reduction((1, 100_000), None, "sum", np.float32)
    target = CudaTarget()
    made, shapes = emit(kernel, target), launch_shapes(kernel, target)
    assert made.entries == ("parts", "kernel")
    assert made.scratch == 8 * shapes[0].grid[1]
    assert shapes[0].grid[1] > 100
    assert shapes[1].grid == (1, 1, 1)
    assemble(kernel)


@pytest.mark.parametrize("kind", ["sum", "argmax"])
@pytest.mark.parametrize("shape", [(30_000, 2), (2, 50_000), (8191, 7)], ids=str)
def test_two_launches_give_what_one_does(kind: str, shape: tuple[int, int]) -> None:
    axis = int(shape[0] < shape[1])
    kernel = reduction(shape, axis, kind, np.float32)
    assert len(emit(kernel, emulated()).entries) == 2
    agree(kernel, arrays_of(kernel), tolerance=2e-4)


@pytest.mark.parametrize("rows", [0, 1, 40, 3000])
@pytest.mark.parametrize("columns", [1, 24, 128])
def test_rows_known_at_run_time(rows: int, columns: int) -> None:
    """The sum of columns, and what is left of each row without it."""
    m = dynamic(2000, 5)
    x, sums = Argument(0, np.float32, times(m, columns)), Argument(1, np.float32, columns, True)
    out = Argument(2, np.float32, times(m, columns), True)
    i, j, k = Variable(m, "i"), Variable.fresh(columns), Variable(m, "k")
    total = over("sum", k, at(x, (columns, k), (1, j)))
    stores = (
        Store(sums, (j,), Affine(0, {j: 1}), total),
        Store(out, (j, i), Affine(0, {i: columns, j: 1}), at(x, (columns, i), (1, j)) - total),
    )
    kernel = Loops((x, sums, out), (j, i), stores)
    values = numbers((rows, columns), np.float32)
    for aligned in (False, True):
        actual = [values, np.zeros(columns, np.float32), np.zeros_like(values)]
        run(kernel, actual, [rows], aligned=aligned)
        close(actual[1], values.sum(0), 1e-4, "sums")
        close(actual[2], values - values.sum(0), 1e-4, "rest")


def test_a_column_sum_may_be_stored_in_another_dtype() -> None:
    x, out = Argument(0, np.dtype("bfloat16"), 4000 * 6), Argument(1, np.float32, 6, True)
    i, j = Variable.fresh(4000), Variable.fresh(6)
    value = over("sum", i, Cast(at(x, (6, i), (1, j)), np.dtype(np.float32)))
    kernel = Loops((x, out), (j,), (Store(out, (j,), Affine(0, {j: 1}), value),))
    agree(kernel, arrays_of(kernel), tolerance=1e-3)
    assemble(kernel)


@pytest.mark.parametrize("hint", [3, 40, 8191, 1_100_001])
def test_launches_follow_from_sizes_and_not_from_hints(hint: int) -> None:
    """Code that was made for one hint is found again for all others."""
    target = emulated()

    def made(extent: int) -> tuple[str, Any]:
        n = dynamic(extent, 4)
        x, out = Argument(0, np.float32, n), Argument(1, np.float32, 1, True)
        i = Variable(n, "i")
        total = over("sum", (i,), at(x, (1, i)))
        kernel = Loops((x, out), (), (Store(out, (), place(), total),))
        return emit(kernel, target).text, launch_shapes(kernel, target, [5000])

    assert made(hint) == made(100_000)


def softmax_sums(rows: int, columns: int, dtype: Any) -> Loops:
    """max x and Σ exp(x - max x) of each row."""
    x = Argument(0, dtype, rows * columns)
    i, j, k = (Variable.fresh(extent) for extent in (rows, columns, columns))

    def element(along: Variable) -> Expr:
        return Cast(at(x, (columns, i), (1, along)), np.float32)

    largest = over("max", (j,), element(j))
    total = over("sum", (k,), Call("exp", (Call("sub", (element(k), largest)),)))
    out = [Argument(n, np.dtype(np.float32), rows, True) for n in (1, 2)]
    stores = [Store(o, (i,), place((1, i)), v) for o, v in zip(out, (largest, total), strict=True)]
    return Loops((x, *out), (i,), tuple(stores))


@pytest.mark.parametrize(
    ("columns", "dtype", "is_online"),
    [(40_000, "bfloat16", True), (16_388, "float32", True), (4099, "float32", True),
     (4096, "float32", False)],
)  # fmt: skip
def test_long_rows_are_read_once(columns: int, dtype: str, is_online: bool) -> None:
    """What powers are less than may be anywhere in a row, or nowhere."""
    kernel = softmax_sums(9, columns, np.dtype(dtype))
    x = np.random.default_rng(0).normal(size=(9, columns)).astype(np.float32) * 5
    x[0, -1], x[1, 0], x[2, 700 % columns] = 90, 90, np.inf
    x[3], x[4, 3], x[5, : columns // 2], x[6, columns // 2 :] = -np.inf, np.nan, -np.inf, -1e30
    x[7] += np.linspace(0, 200, columns)
    target = emulated(1)
    assert bool(sums_of_powers(mapping_of(canonicalize(kernel), target, True))) is is_online
    given = x.astype(dtype)
    arrays = [given.reshape(-1), *(np.zeros(9, np.float32) for _ in range(2))]
    for aligned in (True, False):
        run(kernel, arrays, target=target, aligned=aligned)
        exact = given.astype(np.float64)
        largest = exact.max(1)
        with np.errstate(invalid="ignore"):
            total = np.exp(exact - largest[:, None]).sum(1)
        np.testing.assert_array_equal(arrays[1], largest.astype(np.float32))
        np.testing.assert_allclose(arrays[2], total, rtol=1e-5)


def softmax(rows: int, columns: int, dtype: Any) -> Loops:
    """exp(x - max x) / Σ exp(x - max x) of each row."""
    x, out = Argument(0, dtype, rows * columns), Argument(1, dtype, rows * columns, True)
    i, j = Variable.fresh(rows), Variable.fresh(columns)

    def power(along: Variable) -> Expr:
        most = Variable.fresh(columns)
        element, other = (Cast(at(x, (columns, i), (1, v)), np.float32) for v in (along, most))
        return Call("exp", (Call("sub", (element, over("max", (most,), other))),))

    k = Variable.fresh(columns)
    value = Cast(Call("div", (power(j), over("sum", (k,), power(k)))), dtype)
    return Loops((x, out), (i, j), (Store(out, (i, j), place((columns, i), (1, j)), value),))


@pytest.mark.parametrize(
    ("columns", "dtype", "is_kept"),
    [(33_288, "bfloat16", True), (16_388, "float32", True), (4099, "float32", True),
     (4096, "float32", False), (60_000, "float32", False)],
)  # fmt: skip
def test_long_rows_stay_in_shared_memory(columns: int, dtype: str, is_kept: bool) -> None:
    """Unless registers hold them, or two blocks of them are too large."""
    kernel = softmax(3, columns, np.dtype(dtype))
    mapping = mapping_of(canonicalize(kernel), emulated(1), True)
    assert bool(kept_rows(mapping)) is is_kept
    assert (rows_bytes(mapping) > columns) is is_kept
    x = (np.random.default_rng(0).normal(size=(3, columns)) * 5).astype(dtype)
    exact = np.exp(x.astype(np.float64) - x.astype(np.float64).max(1, keepdims=True))
    exact /= exact.sum(1, keepdims=True)
    for aligned in (True, False):
        actual = [x.reshape(-1), np.zeros(x.size, x.dtype)]
        run(kernel, actual, target=emulated(1), aligned=aligned)
        close(actual[1], exact.reshape(-1), 1e-5, "softmax")


@pytest.mark.parametrize(("rows", "team"), [(512, 8), (510, 32)])
@pytest.mark.parametrize("kind", ["sum", "argmax"])
def test_short_rows_have_a_part_of_a_warp(kind: str, rows: int, team: int) -> None:
    """Unless some warp would have fewer rows than others."""
    kernel = reduction((rows, 64), 1, kind, np.dtype("bfloat16"))
    assert mapping_of(canonicalize(kernel), emulated(), True).team == team
    agree(kernel, arrays_of(kernel))


def test_parts_of_columns_are_even() -> None:
    """Threads take the rows of a part several at a time, and none alone."""
    kernel = reduction((8192, 768), 0, "sum", np.dtype("bfloat16"))
    shapes = launch_shapes(kernel, CudaTarget(), aligned=True)
    assert shapes[0].grid == (3, 64, 1)  # of 16 rows at once: 8 for each thread
