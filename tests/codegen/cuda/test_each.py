"""Kernels whose threads have elements of their own: wide accesses, and what they leave over."""

from __future__ import annotations

import re

import numpy as np
import pytest

from tests.codegen.cuda.emulated import agree, assemble, at_16_bytes, run
from tests.codegen.oracle import at, close, numbers
from thalweg.codegen.cuda.kernel import emit
from thalweg.codegen.cuda.loops.mapping import mapping_of
from thalweg.codegen.cuda.target import CudaTarget, emulated
from thalweg.ir.dynamic import dynamic
from thalweg.ir.expr import Load, call, converted
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
    actual, _ = at_16_bytes([numbers(size, np.float32), np.zeros(size, np.float32)])
    run(kernel, actual, [size], aligned=True)
    close(actual[1], actual[0] + 3, 0, "sum")


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
@pytest.mark.parametrize("function", ["abs", "neg"])
def test_no_instruction_makes_the_least_number_positive(dtype: str, function: str) -> None:
    x, out = Argument(0, np.dtype(dtype), 64), Argument(1, np.dtype(dtype), 64, True)
    i = Variable(64, "i")
    kernel = Loops(
        (x, out), (i,), (Store(out, (i,), Affine(0, {i: 1}), call(function, at(x, (1, i)))),)
    )
    # Their results for it are not what LLVM takes them to be.
    assert not re.search(r"(abs|neg)\.s(16|32)", assemble(kernel))


@pytest.mark.parametrize("dtype", ["bfloat16", "float32", "float64"])
def test_rows_are_added_to_by_vectors(dtype: str) -> None:
    """Hopper adds four words to memory at once; rows of a table begin at multiples of them."""
    i, c = Variable(8192, "i"), Variable(128, "c")
    ids = Argument(0, np.dtype(np.int32), 8192)
    x, table = Argument(1, np.dtype(dtype), 8192 * 128), Argument(2, np.dtype(dtype), 9 * 128, True)
    row = Load(ids, Affine(0, {i: 1}))
    place = Affine(0, {row: 128, c: 1})
    store = Store(table, (i, c), place, Load(x, Affine(0, {i: 128, c: 1})), "sum")
    kernel = Loops((ids, x, table), (i, c), (store,))
    added = re.findall(r"red\.relaxed\.gpu\.global\.add\S*", assemble(kernel))
    forms = {"bfloat16": ".noftz.v4.bf16x2", "float32": ".v4.f32"}
    assert added == ([f"red.relaxed.gpu.global.add{forms[dtype]}"] if dtype in forms else [])
    assert not re.search(r"red\.\S*v4", assemble(kernel, aligned=False))
    assert not re.search(r"red\.\S*v4", assemble(kernel, capability=80))
