"""Loop kernels in machine code against a plain NumPy reading of the same kernels."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from tests.codegen.oracle import TARGETS, agree, at, close, index, native, numbers, over, place
from tests.ops.harness import NARROW_FLOATS
from thalweg.codegen.llvm.compile import object_code
from thalweg.codegen.loops.kernel import emit_loops
from thalweg.codegen.machine import named
from thalweg.ir.dynamic import dynamic
from thalweg.ir.expr import Scan, Word, as_expr, call, select
from thalweg.ir.index import Affine
from thalweg.ir.kernel import Argument, Check, Loops, Store
from thalweg.ir.loop import Variable

DTYPES = [
    *(np.dtype(f"{sign}int{bits}") for sign in ("", "u") for bits in (8, 16, 32, 64)),
    *(np.dtype(name) for name in ("bool", "float32", "float64")),
    *map(np.dtype, NARROW_FLOATS),
]


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("shape", [(7, 45), (0, 3), (3, 0), (1, 1), (2, 130)], ids=str)
def test_broadcast_sum_of_each_dtype(dtype: Any, shape: tuple[int, int]) -> None:
    rows, columns = shape
    x, y = Argument(0, dtype, rows * columns), Argument(1, dtype, columns)
    out = Argument(2, dtype, rows * columns, True)
    i, j = Variable.fresh(rows), Variable.fresh(columns)
    value = call("max", at(x, (columns, i), (1, j)), at(y, (1, j)))
    store = Store(out, (i, j), Affine(0, {i: columns, j: 1}), value)
    arrays = [numbers(shape, dtype), numbers(columns, dtype, 1), numbers(shape, dtype, 2)]
    agree(Loops((x, y, out), (i, j), (store,)), arrays, targets_for(shape, (7, 45)))


def targets_for(shape: tuple[int, int], full: tuple[int, int]) -> list[str]:
    """Every target for a shape with full vectors and a tail; of others, this machine."""
    return TARGETS if shape == full else TARGETS[:1]


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("kind", ["sum", "prod", "max", "min", "all", "any", "argmax", "argmin"])
def test_reductions_along_and_across(dtype: Any, kind: str) -> None:
    arithmetic = kind in ("sum", "prod")
    if dtype.kind == "b" and arithmetic:
        pytest.skip("booleans are not added")
    result = {"all": bool, "any": bool, "argmax": np.int64, "argmin": np.int64}.get(kind, dtype)
    for rows, columns in [(5, 37), (37, 5), (3, 0), (2, 200), (70, 33)]:
        if columns == 0 and kind[:3] == "arg":
            continue
        x = Argument(0, dtype, rows * columns)
        along, across = Argument(1, result, rows, True), Argument(2, result, columns, True)
        i, j, k, m = (Variable.fresh(n) for n in (rows, columns, columns, rows))
        first = Store(along, (i,), Affine(0, {i: 1}), over(kind, k, at(x, (columns, i), (1, k))))
        second = Store(across, (j,), Affine(0, {j: 1}), over(kind, m, at(x, (columns, m), (1, j))))
        values = numbers((rows, columns), dtype)
        values = values if kind != "prod" or dtype.kind in "iu" else values.clip(-1.2, 1.2)
        arrays = [values.astype(dtype), np.zeros(rows, result), np.zeros(columns, result)]
        targets = targets_for((rows, columns), (5, 37))
        agree(Loops((x, along, across), (i,), (first,)), arrays, targets)
        agree(Loops((x, along, across), (j,), (second,)), arrays, targets)


@pytest.mark.parametrize("kind", ["max", "min", "argmax", "argmin", "sum"])
def test_nan_wins_but_for_its_place(kind: str) -> None:
    values = numbers((6, 77), np.float32)
    values[1, 5] = values[1, 60] = values[2, 76] = values[3, 0] = np.nan
    values[4] = -np.inf
    values[5] = 2.0
    result = np.dtype(np.int64 if kind[:3] == "arg" else np.float32)
    for shape in [(6, 77), (77, 6)]:
        x, out = Argument(0, np.float32, 6 * 77), Argument(1, result, shape[0], True)
        i, k = Variable.fresh(shape[0]), Variable.fresh(shape[1])
        terms = ((77, i), (1, k)) if shape[0] == 6 else ((1, i), (77, k))
        store = Store(out, (i,), Affine(0, {i: 1}), over(kind, k, at(x, *terms)))
        agree(Loops((x, out), (i,), (store,)), [values, np.zeros(shape[0], result)])


def softmax(rows: int, columns: int) -> Loops:
    x, out = Argument(0, np.float32, rows * columns), Argument(1, np.float32, rows * columns, True)
    i, j, k, m = (Variable.fresh(n) for n in (rows, columns, columns, columns))
    most = over("max", k, at(x, (columns, i), (1, k)))
    total = over("sum", m, call("exp", at(x, (columns, i), (1, m)) - most))
    value = call("exp", at(x, (columns, i), (1, j)) - most) / total
    return Loops((x, out), (i, j), (Store(out, (i, j), Affine(0, {i: columns, j: 1}), value),))


@pytest.mark.parametrize("shape", [(5, 3), (4, 384), (9, 10), (130, 17), (3, 1)], ids=str)
def test_softmax(shape: tuple[int, int]) -> None:
    agree(softmax(*shape), [numbers(shape, np.float32), np.zeros(shape, np.float32)])


def test_layer_norm_stores_at_two_levels() -> None:
    rows, columns = 6, 53
    x = Argument(0, np.float32, rows * columns)
    means, out = Argument(1, np.float32, rows, True), Argument(2, np.float32, x.size, True)
    i, j, k, m = (Variable.fresh(n) for n in (rows, columns, columns, columns))
    mean = over("sum", k, at(x, (columns, i), (1, k))) / columns
    centred = at(x, (columns, i), (1, m)) - mean
    scale = call("sqrt", over("sum", m, centred * centred) / columns + 1e-3)
    stores = (
        Store(means, (i,), Affine(0, {i: 1}), mean),
        Store(
            out,
            (i, j),
            Affine(0, {i: columns, j: 1}),
            (at(x, (columns, i), (1, j)) - mean) / scale,
        ),
    )
    arrays = [numbers((rows, columns), np.float32), np.zeros(rows, np.float32)]
    agree(Loops((x, means, out), (i, j), stores), [*arrays, np.zeros((rows, columns), np.float32)])


def test_moments_share_a_loop() -> None:
    rows, columns = 4, 100
    x, out = Argument(0, np.float32, rows * columns), Argument(1, np.float32, rows, True)
    i, k, m = Variable.fresh(rows), Variable.fresh(columns), Variable.fresh(columns)
    first = over("sum", k, at(x, (columns, i), (1, k)))
    second = over("sum", m, at(x, (columns, i), (1, m)) * at(x, (columns, i), (1, m)))
    kernel = Loops((x, out), (i,), (Store(out, (i,), Affine(0, {i: 1}), second - first),))
    assert emit_loops(kernel, named("x86-64-v4")).text.count("load <16 x float>") <= 3
    agree(kernel, [numbers((rows, columns), np.float32), np.zeros(rows, np.float32)])


def test_nested_reductions() -> None:
    a, c, d = 5, 19, 23
    x, out = Argument(0, np.float32, a * c * d), Argument(1, np.float32, a, True)
    i, k, m = (Variable.fresh(n) for n in (a, c, d))
    inner = over("max", m, at(x, (c * d, i), (d, k), (1, m)))
    kernel = Loops(
        (x, out), (i,), (Store(out, (i,), Affine(0, {i: 1}), over("sum", k, inner * inner)),)
    )
    agree(kernel, [numbers((a, c, d), np.float32), np.zeros(a, np.float32)])


@pytest.mark.parametrize("exclusive", [False, True])
@pytest.mark.parametrize("reverse", [False, True])
@pytest.mark.parametrize("serial_first", [False, True])
def test_scans(exclusive: bool, reverse: bool, serial_first: bool) -> None:
    rows, columns = 21, 34
    for kind, dtype in [("sum", np.float32), ("max", np.int32), ("prod", np.float64)]:
        x, out = Argument(0, dtype, rows * columns), Argument(1, dtype, rows * columns, True)
        for along in (0, 1):
            i, j = Variable.fresh(rows), Variable.fresh(columns)
            scanned = (i, j)[along]
            terms = ((columns, i), (1, j))
            value = Scan(kind, scanned, at(x, *terms), exclusive, reverse)
            order = (i, j) if serial_first == (along == 0) else (j, i)
            kernel = Loops(
                (x, out),
                order,
                (Store(out, order, place(*terms), value),),
                serial=frozenset({scanned}),
            )
            agree(kernel, [numbers((rows, columns), dtype), np.zeros((rows, columns), dtype)])


def test_scans_in_both_directions() -> None:
    size = 40
    x, out = Argument(0, np.float32, size), Argument(1, np.float32, size, True)
    (i,) = (Variable.fresh(size),)
    ahead = Scan("sum", i, at(x, (1, i)), False, False)
    back = Scan("sum", i, at(x, (1, i)) * 2, True, True)
    store = Store(out, (i,), Affine(0, {i: 1}), ahead * back)
    kernel = Loops((x, out), (i,), (store,), serial=frozenset({i}))
    agree(kernel, [numbers(size, np.float32), np.zeros(size, np.float32)])


@pytest.mark.parametrize("combine", ["sum", "max", "min", "prod", "set"])
@pytest.mark.parametrize("columns", [1, 5, 70])
def test_scatter_of_rows(combine: str, columns: int) -> None:
    rows, places = 50, 7
    table = Argument(0, np.float32, places * columns, True)
    where, update = Argument(1, np.int32, rows), Argument(2, np.float32, rows * columns)
    r, c = Variable.fresh(rows), Variable.fresh(columns)
    row = at(where, (1, r))
    store = Store(
        table,
        (r, c),
        Affine(0, {row: columns, c: 1}),
        at(update, (columns, r), (1, c)),
        combine,
        (row >= 0) & (row < places),
    )
    kernel = Loops((table, where, update), (r, c), (store,), serial=frozenset({r}))
    chosen = np.random.default_rng(3).integers(-1, places + 1, rows).astype(np.int32)
    arrays = [numbers((places, columns), np.float32), chosen]
    agree(kernel, [*arrays, numbers((rows, columns), np.float32, 2) * np.float32(0.5)])


def test_overlapping_places_are_combined_in_order() -> None:
    out, x = Argument(0, np.float32, 40, True), Argument(1, np.float32, 30 * 8)
    i, j = Variable.fresh(30), Variable.fresh(8)
    store = Store(out, (i, j), Affine(0, {i: 1, j: 1}), at(x, (8, i), (1, j)), "sum")
    arrays = [np.zeros(40, np.float32), numbers((30, 8), np.float32)]
    agree(Loops((out, x), (i, j), (store,)), arrays)


def test_what_is_stored_last_at_one_place_stays() -> None:
    out, x = Argument(0, np.int32, 30, True), Argument(1, np.int32, 30 * 20)
    i, j = Variable.fresh(30), Variable.fresh(20)
    store = Store(out, (i, j), Affine(0, {i: 1}), at(x, (20, i), (1, j)))
    agree(
        Loops((out, x), (i, j), (store,), serial=frozenset({j})),
        [np.zeros(30, np.int32), numbers((30, 20), np.int32)],
    )


@pytest.mark.parametrize("kind", [np.int32, np.int64, np.uint8])
def test_gather_with_a_check(kind: Any) -> None:
    rows, columns, places = 23, 37, 9
    x, where = Argument(0, np.float32, places * columns), Argument(1, kind, rows)
    out = Argument(2, np.float32, rows * columns, True)
    for good in (True, False):
        r, c = Variable.fresh(rows), Variable.fresh(columns)
        row = at(where, (1, r))
        inside = (row >= 0) & (row < places)
        value = select(inside, at(x, (columns, row), (1, c)), 0)
        kernel = Loops(
            (x, where, out),
            (r, c),
            (Store(out, (r, c), Affine(0, {r: columns, c: 1}), value),),
            (Check((r,), inside, 5),),
        )
        chosen = np.random.default_rng(0).integers(0, places, rows).astype(kind)
        chosen[11] = chosen[11] if good else places
        arrays = [numbers((places, columns), np.float32), chosen]
        fault = agree(kernel, [*arrays, np.zeros((rows, columns), np.float32)])
        assert fault == (0 if good else 5)


@pytest.mark.parametrize("columns", [1, 3, 40])
def test_gather_of_elements_in_lanes(columns: int) -> None:
    rows, size = 70, 55
    x, where = Argument(0, np.float32, size), Argument(1, np.int64, rows * columns)
    out = Argument(2, np.float32, rows * columns, True)
    i, j = Variable.fresh(rows), Variable.fresh(columns)
    terms = ((columns, i), (1, j))
    store = Store(out, (i, j), place(*terms), at(x, (1, at(where, *terms))))
    chosen = np.random.default_rng(0).integers(0, size, (rows, columns))
    arrays = [numbers(size, np.float32), chosen, np.zeros((rows, columns), np.float32)]
    agree(Loops((x, where, out), (i, j), (store,)), arrays)


def test_padding_reads_nothing_outside() -> None:
    rows, columns, width = 5, 33, 3
    x = Argument(0, np.float32, rows * columns)
    out = Argument(1, np.float32, rows * columns, True)
    i, j, k, m = (Variable.fresh(n) for n in (rows, columns, width, width))
    up, left = index(i) + index(k) - 1, index(j) + index(m) - 1
    inside = (up >= 0) & (up < rows) & (left >= 0) & (left < columns)
    element = select(inside, at(x, (columns, up), (1, left)), -np.inf)
    value = over("max", (k, m), element)
    store = Store(out, (i, j), Affine(0, {i: columns, j: 1}), value)
    arrays = [numbers((rows, columns), np.float32), np.zeros((rows, columns), np.float32)]
    agree(Loops((x, out), (i, j), (store,)), arrays)


def test_pooling_with_channels_in_lanes() -> None:
    size, channels = 9, 21
    x, out = (
        Argument(0, np.float32, size * size * channels),
        Argument(1, np.float32, size * size * channels, True),
    )
    i, j, c, k, m = (Variable.fresh(n) for n in (size, size, channels, 3, 3))
    up, left = index(i) + index(k) - 1, index(j) + index(m) - 1
    inside = (up >= 0) & (up < size) & (left >= 0) & (left < size)
    element = at(x, (size * channels, up), (channels, left), (1, c))
    value = over("sum", (k, m), select(inside, element, 0.0))
    terms = ((size * channels, i), (channels, j), (1, c))
    arrays = [numbers((size, size, channels), np.float32), np.zeros((size, size, channels), "f")]
    agree(Loops((x, out), (i, j, c), (Store(out, (i, j, c), place(*terms), value),)), arrays)


def test_reduction_under_a_select() -> None:
    rows, columns = 20, 18
    x, out = Argument(0, np.float32, 10 * columns), Argument(1, np.float32, rows, True)
    i, k = Variable.fresh(rows), Variable.fresh(columns)
    for terms in (((columns, i), (1, k)), ((1, i), (10, k))):
        value = select(index(i) < 10, over("sum", k, at(x, *terms)), 7.0)
        kernel = Loops((x, out), (i,), (Store(out, (i,), Affine(0, {i: 1}), value),))
        agree(kernel, [numbers((10, columns), np.float32), np.zeros(rows, np.float32)])


def test_transpose_and_reverse() -> None:
    rows, columns = 19, 35
    x, out = Argument(0, np.int16, rows * columns), Argument(1, np.int16, rows * columns, True)
    i, j = Variable.fresh(columns), Variable.fresh(rows)
    value = at(x, (columns, j), (-1, i), constant=columns - 1)
    kernel = Loops((x, out), (i, j), (Store(out, (i, j), Affine(0, {i: rows, j: 1}), value),))
    agree(kernel, [numbers((rows, columns), np.int16), np.zeros((columns, rows), np.int16)])


def test_reshaped_places_are_affine() -> None:
    size = 6 * 35
    x, out = Argument(0, np.float32, size), Argument(1, np.float32, size, True)
    i, j = Variable.fresh(6), Variable.fresh(35)
    number = index(i) * 35 + index(j)
    place = (number // 35) * 35 + number % 35
    store = Store(out, (i, j), Affine(0, {i: 35, j: 1}), at(x, (1, place)) + 1)
    kernel = Loops((x, out), (i, j), (store,))
    assert "gather" not in emit_loops(kernel, named("x86-64-v4")).text
    agree(kernel, [numbers(size, np.float32), np.zeros(size, np.float32)])


def test_reshape_that_is_not_affine() -> None:
    x, out = Argument(0, np.float32, 60), Argument(1, np.float32, 60, True)
    i, j = Variable.fresh(5), Variable.fresh(12)
    number = index(i) * 12 + index(j)
    value = at(x, (1, number // 4), (15, number % 4))
    store = Store(out, (i, j), Affine(0, {i: 12, j: 1}), value)
    agree(Loops((x, out), (i, j), (store,)), [numbers(60, np.float32), np.zeros(60, np.float32)])


def test_division_by_zero_faults() -> None:
    for divisor, expected in [(3, 0), (0, 1)]:
        x, y = Argument(0, np.int32, 37), Argument(1, np.int32, 37)
        out = Argument(2, np.int32, 37, True)
        i = Variable.fresh(37)
        value = call("floor_div", at(x, (1, i)), at(y, (1, i)))
        kernel = Loops((x, y, out), (i,), (Store(out, (i,), Affine(0, {i: 1}), value),))
        below = np.full(37, 2, np.int32)
        below[36] = divisor
        for target in TARGETS:
            result = np.zeros(37, np.int32)
            above = numbers(37, np.int32)
            assert native(kernel, [above, below, result], target, 2) == expected
            assert (result[:36] == above[:36] // 2).all()


@pytest.mark.parametrize("size", [1, 5, 37])
def test_a_division_faults_only_where_it_is_chosen(size: int) -> None:
    x, out = Argument(0, np.int32, size), Argument(1, np.int32, size, True)
    i = Variable.fresh(size)
    below = at(x, (1, i))
    for function in ("floor_div", "remainder"):
        value = select(below.eq(0), -1, call(function, as_expr(np.int32(7)), below))
        kernel = Loops((x, out), (i,), (Store(out, (i,), Affine(0, {i: 1}), value),))
        given = np.arange(size, dtype=np.int32) % 4
        assert agree(kernel, [given, np.zeros(size, np.int32)]) == 0


@pytest.mark.parametrize("rows", [0, 1, 5, 33])
@pytest.mark.parametrize("columns", [0, 1, 4, 67])
def test_extents_known_at_run_time(rows: int, columns: int) -> None:
    m, n, size = dynamic(8, 3 + 1), dynamic(16, 3 + 2), dynamic(128, 3 + 3)
    x, out = Argument(0, np.float32, size), Argument(1, np.float32, size, True)
    sums = Argument(2, np.float32, m, True)
    i, j, k = Variable(m, "i"), Variable(n, "j"), Variable(n, "k")
    total = over("sum", k, at(x, (n, i), (1, k)))
    kernel = Loops(
        (x, out, sums),
        (i, j),
        (
            Store(sums, (i,), Affine(0, {i: 1}), total),
            Store(
                out,
                (i, j),
                Affine(0, {i: n, j: 1}),
                select(index(j) < Word(n), at(x, (n, i), (1, j)) - total, 0),
            ),
        ),
    )
    values = numbers((rows, columns), np.float32)
    words = [rows, columns, rows * columns]
    for target in TARGETS:
        for threads in (1, 3):
            actual = [values, np.zeros_like(values), np.zeros(rows, np.float32)]
            native(kernel, actual, target, threads, words)
            close(actual[2], values.sum(1), 2e-5, target)
            close(actual[1], values - values.sum(1, keepdims=True), 2e-5, target)


@pytest.mark.parametrize("rows", [0, 1, 7, 40])
def test_batch_known_at_run_time_is_one_loop(rows: int) -> None:
    m = dynamic(8, 3)
    x, out = Argument(0, np.float32, dynamic(8, 4)), Argument(1, np.float32, dynamic(8, 4), True)
    i, j, k = Variable(m, "i"), Variable.fresh(5), Variable.fresh(3)
    terms = ((15, i), (3, j), (1, k))
    store = Store(out, (i, j, k), place(*terms), at(x, *terms) * 2)
    values = numbers((rows, 5, 3), np.float32)
    for target in TARGETS:
        result = np.zeros_like(values)
        native(Loops((x, out), (i, j, k), (store,)), [values, result], target, 2, [rows, rows * 15])
        close(result, values * 2, 1e-6, target)


def test_update_in_place() -> None:
    variable, gradient = Argument(0, np.float32, 99, True), Argument(1, np.float32, 99)
    slot = Argument(2, np.float32, 99, True)
    i = Variable.fresh(99)
    place = Affine(0, {i: 1})
    faster = at(slot, (1, i)) * 0.9 + at(gradient, (1, i))
    stores = (
        Store(slot, (i,), place, faster),
        Store(variable, (i,), place, at(variable, (1, i)) - faster * 0.1),
    )
    arrays = [numbers(99, np.float32, seed) for seed in range(3)]
    agree(Loops((variable, gradient, slot), (i,), stores), arrays)


def test_a_kernel_of_one_element() -> None:
    x, out = Argument(0, np.float64, 1000), Argument(1, np.float64, 1, True)
    i, j = Variable.fresh(50), Variable.fresh(20)
    total = over("sum", (i, j), at(x, (20, i), (1, j)))
    kernel = Loops((x, out), (), (Store(out, (), Affine(0), total),))
    agree(kernel, [numbers(1000, np.float64), np.zeros(1)])


def test_constants_are_stored() -> None:
    out = Argument(0, np.float16, 77, True)
    i = Variable.fresh(77)
    kernel = Loops((out,), (i,), (Store(out, (i,), Affine(0, {i: 1}), as_expr(1.5)),))
    agree(kernel, [np.zeros(77, np.float16)])


def test_long_parts_are_computed_once() -> None:
    """What a reduction and a store both need at length is kept between them."""
    texts = [emit_loops(softmax(64, n), named("x86-64-v4")).text for n in (384, 3)]
    assert all("alloca" in text for text in texts)


@pytest.mark.parametrize("shape", [(40, 3), (33, 2), (200, 4)], ids=str)
def test_rows_in_lanes(shape: tuple[int, int]) -> None:
    agree(softmax(*shape), [numbers(shape, np.float32), np.zeros(shape, np.float32)])


@pytest.mark.parametrize("shape", [(100, 70), (32, 33), (17, 200)], ids=str)
@pytest.mark.parametrize("dtype", [np.float32, np.int8])
def test_transpose_in_blocks(shape: tuple[int, int], dtype: Any) -> None:
    rows, columns = shape
    x, out = Argument(0, dtype, rows * columns), Argument(1, dtype, rows * columns, True)
    i, j = Variable.fresh(columns), Variable.fresh(rows)
    store = Store(out, (i, j), Affine(0, {i: rows, j: 1}), at(x, (1, i), (columns, j)))
    agree(Loops((x, out), (i, j), (store,)), [numbers(shape, dtype), np.zeros(shape[::-1], dtype)])


def test_code_for_another_processor() -> None:
    for kernel in (softmax(5, 70), softmax(64, 3)):
        for name in ("aarch64", "x86-64"):
            assert object_code(emit_loops(kernel, named(name)).text, named(name))


@pytest.mark.parametrize("columns", [1, 3, 8, 20])
def test_sums_in_rows_that_collide(columns: int) -> None:
    """Columns go to distinct elements and rows may not: these are not one loop of both."""
    rows = 6
    x, chosen = Argument(0, np.float32, rows * columns), Argument(1, np.int64, rows * columns)
    out = Argument(2, np.float32, (rows + 1) * columns, True)
    i, j = Variable.fresh(rows), Variable.fresh(columns)
    offset = Affine(0, {i: columns, j: 1, at(chosen, (columns, i), (1, j)): columns})
    value = at(x, (columns, i), (1, j))
    store = Store(out, (i, j), offset, value, "sum", distinct=frozenset({j}))
    places = np.random.default_rng(0).integers(0, 2, (rows, columns))
    arrays = [numbers((rows, columns), np.float32), places, np.zeros((rows + 1, columns), "f4")]
    agree(Loops((x, chosen, out), (i, j), (store,)), arrays, targets_for((rows, columns), (6, 3)))
