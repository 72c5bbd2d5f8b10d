"""Transposes: permuted axes of odd sizes, against a plain NumPy reading."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from tests.codegen.oracle import BFLOAT16, TARGETS, agree, at, native, numbers, place
from thalweg.codegen.loops.simplify import canonicalize
from thalweg.codegen.loops.transpose_kernel import transpose_of
from thalweg.codegen.machine import CpuTarget, named
from thalweg.ir.dynamic import dynamic
from thalweg.ir.expr import Load
from thalweg.ir.index import Affine
from thalweg.ir.kernel import Argument, Loops, Store
from thalweg.ir.loop import Variable

WIDE = named("x86-64-v4")


def permuted(shape: tuple[int, ...], order: tuple[int, ...], dtype: Any, start: int = 0) -> Loops:
    """The axes of an array in another order; the array begins after some elements."""
    size = int(np.prod(shape))
    x, out = Argument(0, dtype, size + start), Argument(1, dtype, size, True)
    loops = [Variable.fresh(extent) for extent in shape]
    strides = [int(np.prod(shape[i + 1 :])) for i in range(len(shape))]
    permuted_shape = [shape[axis] for axis in order]
    steps = [int(np.prod(permuted_shape[i + 1 :])) for i in range(len(shape))]
    source = tuple(zip(strides, loops, strict=True))
    sink = tuple((step, loops[axis]) for step, axis in zip(steps, order, strict=True))
    variables = tuple(loops[axis] for axis in order)
    store = Store(out, variables, place(*sink), at(x, *source, constant=start))
    return Loops((x, out), variables, (store,))


def is_transpose(kernel: Loops, target: CpuTarget = WIDE) -> bool:
    return transpose_of(canonicalize(kernel), target) is not None


@pytest.mark.parametrize("dtype", [np.float32, np.float64, np.int16, np.int64, BFLOAT16], ids=str)
@pytest.mark.parametrize(
    ("shape", "order"),
    [
        ((64, 64), (1, 0)),
        ((131, 192), (1, 0)),
        ((17, 320), (1, 0)),
        ((35, 1024), (1, 0)),
        ((3, 41, 128), (0, 2, 1)),
        ((20, 3, 64), (2, 1, 0)),
        ((2, 5, 7, 64), (0, 3, 1, 2)),
        ((2, 37, 8, 16), (0, 2, 3, 1)),
    ],
)
def test_axes_in_another_order(dtype: Any, shape: tuple[int, ...], order: tuple[int, ...]) -> None:
    kernel = permuted(shape, order, dtype)
    assert is_transpose(kernel)
    agree(kernel, [numbers(shape, dtype), np.zeros([shape[axis] for axis in order], dtype)])


def test_part_of_an_array() -> None:
    kernel = permuted((45, 64), (1, 0), np.float32, start=7)
    assert is_transpose(kernel)
    agree(kernel, [numbers(45 * 64 + 7, np.float32), np.zeros((64, 45), np.float32)])


@pytest.mark.parametrize("rows", [0, 1, 16, 45])
@pytest.mark.parametrize("columns", [0, 3, 32, 70])
def test_sizes_known_at_run_time(rows: int, columns: int) -> None:
    m, n, size = dynamic(64, 3), dynamic(64, 4), dynamic(4096, 5)
    x, out = Argument(0, np.float32, size), Argument(1, np.float32, size, True)
    i, j = Variable(m, "i"), Variable(n, "j")
    store = Store(out, (j, i), Affine(0, {j: m, i: 1}), at(x, (n, i), (1, j)))
    kernel = Loops((x, out), (j, i), (store,))
    assert is_transpose(kernel)
    values = numbers((rows, columns), np.float32)
    for target in TARGETS:
        for threads in (1, 3):
            actual = np.zeros((columns, rows), np.float32)
            native(kernel, [values, actual], target, threads, [rows, columns, rows * columns])
            np.testing.assert_array_equal(actual, values.T)


def test_what_is_no_turn() -> None:
    assert not is_transpose(permuted((8, 40, 32), (1, 0, 2), np.float32))  # rows stay rows
    assert not is_transpose(permuted((40, 8), (1, 0), np.float32))  # less than a tile
    assert not is_transpose(permuted((64, 64), (1, 0), np.int8))
    assert not is_transpose(permuted((64, 500), (1, 0), np.float32))  # gathered as fast
    assert is_transpose(permuted((64, 500), (1, 0), np.int16))
    plain = permuted((64, 64), (1, 0), np.float32)
    (store,) = plain.stores
    more = Store(store.buffer, store.variables, store.offset, store.value * 2.0)
    assert not is_transpose(Loops(plain.arguments, plain.variables, (more,)))
    x = store.buffer
    inside = Store(x, store.variables, store.offset, Load(x, store.value.offset))
    assert not is_transpose(Loops((x,), plain.variables, (inside,)))
