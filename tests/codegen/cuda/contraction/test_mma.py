"""Products by mma.sync on an emulated GPU: fragments, swizzles and pipelines against NumPy."""

from dataclasses import replace

import ml_dtypes
import numpy as np
import pytest

from tests.codegen.contraction.contractions import matmul
from tests.codegen.cuda.contraction.emulated_launch import check
from tests.codegen.cuda.contraction.products import narrow_convolutions, narrow_product
from thalweg.codegen.cuda.contraction.schedule import Schedule
from thalweg.ir.expr import Cast
from thalweg.ir.kernel import Access

BFLOAT16 = np.dtype(ml_dtypes.bfloat16)
SMALL = Schedule("mma", 64, 64, 64, 4, 2, stages=3)


@pytest.mark.parametrize("ta", [False, True])
@pytest.mark.parametrize("tb", [False, True])
@pytest.mark.parametrize("shape", [(72, 80, 136), (64, 64, 64), (33, 70, 37), (5, 130, 200)])
def test_bfloat16(shape, ta, tb):
    check(narrow_product(*shape, BFLOAT16, ta, tb), SMALL, tolerance=1e-4)


@pytest.mark.parametrize("dtype", [np.float16, ml_dtypes.float8_e4m3fn, ml_dtypes.float8_e5m2])
@pytest.mark.parametrize("ta", [False, True])
def test_other_narrow_floats(dtype, ta):
    terms = 64 if np.dtype(dtype).itemsize == 2 else 128
    schedule = Schedule("mma", 64, 32, terms, 2, 1, stages=2)
    check(narrow_product(40, 48, 160, dtype, ta, not ta), schedule, tolerance=1e-4)


@pytest.mark.parametrize("ta", [False, True])
@pytest.mark.parametrize("tb", [False, True])
def test_tf32(ta, tb):
    schedule = Schedule("mma", 64, 64, 32, 4, 2, stages=3)
    check(matmul(40, 68, 72, ta=ta, tb=tb), schedule, tolerance=3e-2)


@pytest.mark.parametrize(
    "made",
    [
        Schedule("mma", 128, 128, 64, 8, 4, stages=4),
        Schedule("mma", 128, 64, 64, 4, 1, stages=2),
        Schedule("mma", 16, 64, 64, 2, 2, stages=3),
        Schedule("mma", 64, 64, 64, 4, 2, stages=3, workers=5),
    ],
)
def test_schedules(made):
    check(narrow_product(130, 136, 200, BFLOAT16, out=BFLOAT16), made, tolerance=0.2)


def test_batches():
    check(narrow_product(20, 24, 40, BFLOAT16, batch=(2, 2), tb=True), SMALL, tolerance=1e-4)


@pytest.mark.parametrize("sizes", [(2, 9, 8, 16, 24, 3, 3), (1, 8, 8, 3, 40, 3, 2)])
def test_convolutions(sizes):
    for kernel in narrow_convolutions(BFLOAT16, *sizes, pad=(1, 1)):
        check(kernel, SMALL, tolerance=0.1)


def test_a_convolution_with_strides():
    for kernel in narrow_convolutions(BFLOAT16, 2, 11, 11, 8, 24, 3, 3, pad=(1, 2), stride=2):
        check(kernel, SMALL, tolerance=0.1)


@pytest.mark.parametrize("unit", [SMALL, Schedule("wgmma", 64, 64, 64, 4, 1, 2, loaders=4)])
def test_operands_that_are_rounded_on_the_way(unit):
    """Mixed precision: float32 in memory, bfloat16 for the tensor cores."""
    kernel = matmul(40, 72, 90)
    rounded = [
        Access(Cast(Cast(side.value, BFLOAT16), np.float32), side.bounds)
        for side in (kernel.a, kernel.b)
    ]
    made = replace(kernel, a=rounded[0], b=rounded[1])
    check(made, unit, tolerance=1e-4)
