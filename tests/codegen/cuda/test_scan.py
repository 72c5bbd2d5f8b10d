"""Scans that blocks of threads do together, and those that every thread does alone."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from tests.codegen.cuda.emulated import TARGETS, agree, assemble, run
from tests.codegen.oracle import at, close, numbers, place
from thalweg.codegen.cuda.kernel import launch_shapes
from thalweg.codegen.cuda.loops.mapping import mapping_of
from thalweg.codegen.loops.simplify import canonicalize
from thalweg.ir.dynamic import dynamic
from thalweg.ir.expr import Scan
from thalweg.ir.index import Affine
from thalweg.ir.kernel import Argument, Loops, Store
from thalweg.ir.loop import Variable


def scan(rows: int, length: int, combine: str, exclusive: bool, reverse: bool, dtype: Any) -> Loops:
    x, out = Argument(0, dtype, rows * length), Argument(1, dtype, rows * length, True)
    i, j = Variable.fresh(rows), Variable.fresh(length)
    element = at(x, (length, i), (1, j))
    value = Scan(combine, j, element, exclusive, reverse) + element
    return Loops((x, out), (i, j), (Store(out, (i, j), place((length, i), (1, j)), value),))


@pytest.mark.parametrize("exclusive", [False, True])
@pytest.mark.parametrize("reverse", [False, True])
@pytest.mark.parametrize("shape", [(1, 1000), (3, 256), (2, 65), (5, 300), (2, 20)], ids=str)
def test_scans_by_blocks(shape: tuple[int, int], exclusive: bool, reverse: bool) -> None:
    kernel = scan(*shape, "sum", exclusive, reverse, np.float32)
    together = launch_shapes(kernel, TARGETS[0])[0].shared_bytes > 0
    assert together == (shape[1] >= 64)
    agree(kernel, [numbers(int(a.size), a.dtype, 3) for a in kernel.arguments], tolerance=1e-4)


@pytest.mark.parametrize("combine", ["sum", "max", "min", "prod"])
@pytest.mark.parametrize("dtype", ["int32", "float64", "int64", "int8", "bfloat16"])
def test_scans_of_each_dtype(combine: str, dtype: str) -> None:
    kernel = scan(2, 300, combine, False, False, np.dtype(dtype))
    arrays = [numbers(int(a.size), a.dtype, 3) for a in kernel.arguments]
    if dtype == "bfloat16":
        arrays[0] = np.ones_like(arrays[0])  # sums that are exact in any order
    agree(kernel, arrays)
    assemble(kernel)


@pytest.mark.parametrize("length", [0, 1, 200, 700])
def test_length_known_at_run_time(length: int) -> None:
    n = dynamic(500, 4)
    x, out = Argument(0, np.float32, n), Argument(1, np.float32, n, True)
    i = Variable(n, "i")
    stored = Store(out, (i,), Affine(0, {i: 1}), Scan("sum", i, at(x, (1, i)), False, False))
    values = numbers(length, np.float32)
    actual = [values, np.zeros_like(values)]
    run(Loops((x, out), (i,), (stored,)), actual, [length])
    close(actual[1], values.cumsum(), 1e-4, "scan")


@pytest.mark.parametrize("exclusive", [False, True])
@pytest.mark.parametrize("reverse", [False, True])
@pytest.mark.parametrize(("dtype", "width"), [("float32", 4), ("int8", 8), ("float64", 2)])
def test_threads_scan_neighbours(dtype: str, width: int, exclusive: bool, reverse: bool) -> None:
    kernel = scan(2, 256 * width + 8, "sum", exclusive, reverse, np.dtype(dtype))
    mapping = mapping_of(canonicalize(kernel), TARGETS[0], aligned=True)
    assert (mapping.kind, mapping.width) == ("scan", width)
    agree(kernel, [numbers(int(a.size), a.dtype, 3) for a in kernel.arguments], tolerance=1e-4)


def test_scans_of_a_kernel_have_totals_of_their_own() -> None:
    x, out = Argument(0, np.int64, 1200), Argument(1, np.int64, 1200, True)
    j = Variable.fresh(1200)
    element = at(x, (1, j))
    value = Scan("sum", j, element, False, False) * 3 + Scan("max", j, element, True, False)
    kernel = Loops((x, out), (j,), (Store(out, (j,), place((1, j)), value),))
    agree(kernel, [numbers(1200, np.int64, 3), np.zeros(1200, np.int64)])


def test_scans_of_steps_are_done_by_blocks() -> None:
    """Lowering says that the loop of a scan is serial: a scan may be done in parts all the same."""
    kernel = scan(2, 400, "sum", False, False, np.float32)
    kernel = replace(kernel, serial=frozenset(kernel.variables[1:]))
    assert launch_shapes(kernel, TARGETS[0])[0].shared_bytes > 0
    agree(kernel, [numbers(int(a.size), a.dtype, 3) for a in kernel.arguments], tolerance=1e-4)
