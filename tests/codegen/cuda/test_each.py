"""Kernels whose threads have elements of their own: wide accesses, and what they leave over."""

from __future__ import annotations

import numpy as np
import pytest

from tests.codegen.cuda.emulated import agree, assemble, at_16_bytes, run
from tests.codegen.oracle import at, close, numbers
from thalweg.codegen.cuda.kernel import emit
from thalweg.codegen.cuda.loops.mapping import mapping_of
from thalweg.codegen.cuda.target import CudaTarget, emulated
from thalweg.ir.dynamic import dynamic
from thalweg.ir.expr import call, converted
from thalweg.ir.index import Affine
from thalweg.ir.kernel import Argument, Loops, Store
from thalweg.ir.loop import Variable


def doubled(size: int, dtype: str = "float32") -> Loops:
    x, out = Argument(0, np.dtype(dtype), size), Argument(1, np.dtype(dtype), size, True)
    i = Variable(size, "i")
    return Loops((x, out), (i,), (Store(out, (i,), Affine(0, {i: 1}), at(x, (1, i)) + 3),))


@pytest.mark.parametrize("size", [4096, 4097, 8191, 5000])
@pytest.mark.parametrize("dtype", ["float32", "int8", "bfloat16", "int64"])
def test_sizes_that_no_vector_divides(size: int, dtype: str) -> None:
    kernel = doubled(size, dtype)
    wide = emit(kernel, emulated(), aligned=True).text
    assert "load <" in wide
    assert "load <" not in emit(kernel, emulated()).text
    agree(kernel, [numbers(size, dtype, n) for n in range(2)])


@pytest.mark.parametrize("size", [0, 1, 3, 4, 4099])
def test_sizes_known_at_run_time(size: int) -> None:
    kernel = doubled(dynamic(1 << 14, 4))
    found, _ = at_16_bytes([numbers(size, np.float32), np.zeros(size, np.float32)])
    run(kernel, found, [size], aligned=True)
    close(found[1], found[0] + 3, 0, "sum")


def test_wide_accesses_are_instructions() -> None:
    ptx = assemble(doubled(1 << 20))
    assert "ld.global.nc.v4.b32" in ptx
    assert "st.global.v4.b32" in ptx


def test_a_thread_stores_once_along_a_row() -> None:
    """Two stores, each of half a sector, take twice as long, whatever narrow numbers are read."""
    size, i = 1 << 20, Variable(1 << 20, "i")
    x, out = Argument(0, np.dtype("int8"), size), Argument(1, np.dtype("float32"), size, True)
    value = converted(at(x, (1, i)), np.dtype("float32"))
    kernel = Loops((x, out), (i,), (Store(out, (i,), Affine(0, {i: 1}), value),))
    assert mapping_of(kernel, CudaTarget(), aligned=True).width == 4


def test_a_bfloat16_is_rounded_by_an_instruction() -> None:
    assert "cvt.rn.bf16" in assemble(doubled(1 << 20, "bfloat16"))
    target = CudaTarget(capability=75)
    assert "fptrunc" not in emit(doubled(64, "bfloat16"), target).text


@pytest.mark.parametrize("dtype", ["int8", "int16", "int32"])
def test_no_instruction_makes_the_least_number_positive(dtype: str) -> None:
    x, out = Argument(0, np.dtype(dtype), 64), Argument(1, np.dtype(dtype), 64, True)
    i = Variable(64, "i")
    kernel = Loops(
        (x, out), (i,), (Store(out, (i,), Affine(0, {i: 1}), call("abs", at(x, (1, i)))),)
    )
    assert "abs.s16" not in assemble(kernel)  # whose result for it is not what LLVM takes it to be
