"""Transposes through shared memory: by tiles, with whatever is computed on the way."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from tests.codegen.cuda.emulated import TARGETS, agree, assemble, run
from tests.codegen.oracle import at, close, numbers, place
from thalweg.codegen.cuda.kernel import launch_shapes
from thalweg.codegen.cuda.loops.mapping import mapping_of
from thalweg.codegen.cuda.target import CudaTarget
from thalweg.codegen.loops.simplify import canonicalize
from thalweg.ir.dynamic import dynamic, times
from thalweg.ir.expr import Expr, call
from thalweg.ir.kernel import Argument, Loops, Store
from thalweg.ir.loop import Variable


def transpose(batch: int, rows: int, columns: int, dtype: Any, scaled: bool = False) -> Loops:
    size = batch * rows * columns
    x, y = Argument(0, dtype, size), Argument(1, dtype, columns)
    out = Argument(2, dtype, size, True)
    n, i, j = (Variable.fresh(extent) for extent in (batch, rows, columns))
    value: Expr = at(x, (rows * columns, n), (columns, i), (1, j))
    if scaled:
        value = call("max", value * at(y, (1, j)), 0)
    to = place((rows * columns, n), (rows, j), (1, i))
    return Loops((x, y, out), (n, j, i), (Store(out, (n, j, i), to, value),))


SHAPES = [(1, 64, 64), (3, 33, 70), (2, 17, 200), (1, 100, 31)]


@pytest.mark.parametrize("shape", SHAPES, ids=str)
@pytest.mark.parametrize("dtype", ["float32", "int8", "bfloat16", "float64", "bool"])
def test_transposes(shape: tuple[int, int, int], dtype: str) -> None:
    kernel = transpose(*shape, np.dtype(dtype))
    assert launch_shapes(kernel, TARGETS[0])[0].shared_bytes > 0
    agree(kernel, [numbers(int(a.size), a.dtype, 3) for a in kernel.arguments])


WIDE = [(2, 64, 128), (1, 66, 70), (1, 130, 64)]


@pytest.mark.parametrize("shape", WIDE, ids=str)
@pytest.mark.parametrize("dtype", ["bfloat16", "int8", "float16"])
def test_threads_take_pairs_of_narrow_elements(shape: tuple[int, int, int], dtype: str) -> None:
    kernel = transpose(*shape, np.dtype(dtype), scaled=dtype != "int8")
    assert mapping_of(canonicalize(kernel), TARGETS[0], aligned=True).width == 2
    agree(kernel, [numbers(int(a.size), a.dtype, 3) for a in kernel.arguments], tolerance=1e-2)
    if dtype == "bfloat16":
        ptx = assemble(kernel)
        assert "ld.global.nc.v2.b16" in ptx
        assert "st.global.b32" in ptx


def test_what_is_computed_on_the_way() -> None:
    kernel = transpose(2, 40, 50, np.float32, scaled=True)
    agree(kernel, [numbers(int(a.size), a.dtype, 3) for a in kernel.arguments])
    assert "st.shared" in assemble(kernel)


@pytest.mark.parametrize("rows", [0, 1, 32, 75])
def test_extents_known_at_run_time(rows: int) -> None:
    m = dynamic(64, 4)
    x, out = Argument(0, np.float32, times(m, 40)), Argument(1, np.float32, times(m, 40), True)
    i, j = Variable(m, "i"), Variable.fresh(40)
    stored = Store(out, (j, i), place((m, j), (1, i)), at(x, (40, i), (1, j)))
    values = numbers((rows, 40), np.float32)
    actual = [values, np.zeros((40, rows), np.float32)]
    run(Loops((x, out), (j, i), (stored,)), actual, [rows])
    close(actual[1], values.T, 0, "transposed")


def test_rows_of_a_grid_are_whole_tiles() -> None:
    kernel = transpose(4, 64, 96, np.float32)
    (shape,) = launch_shapes(kernel, CudaTarget())
    assert shape.grid == (4 * 2 * 3, 1, 1)
    assert shape.block == (256, 1, 1)
