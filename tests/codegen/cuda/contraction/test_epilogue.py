"""Epilogues in shared memory on an emulated GPU: what they read and write by the copy engine."""

from dataclasses import replace

import ml_dtypes
import numpy as np
import pytest

from tests.codegen.contraction.contractions import at
from tests.codegen.cuda.contraction.emulated_launch import check
from tests.codegen.cuda.contraction.products import narrow_convolutions, narrow_product, updated
from thalweg.codegen.cuda.contraction.epilogue import epilogue_of
from thalweg.codegen.cuda.contraction.problem import problem_of
from thalweg.codegen.cuda.contraction.schedule import Schedule
from thalweg.ir.dynamic import dynamic
from thalweg.ir.expr import Accumulated, Call, Cast, Const, Load, Select
from thalweg.ir.index import Affine
from thalweg.ir.kernel import Argument, Store

BFLOAT16 = np.dtype(ml_dtypes.bfloat16)
NARROW = Schedule("wgmma", 128, 64, 64, 8, 1, stages=3, loaders=1, buffers=2)
WIDE = Schedule("wgmma", 64, 256, 64, 4, 1, stages=3, loaders=1, buffers=4)
SUM = Accumulated(np.float32)


def masked(kernel, dtype=BFLOAT16):
    """The sum where another matrix is positive."""
    (store,) = kernel.stores
    mask = Argument(3, np.dtype(dtype), store.buffer.size)
    zero = Const(np.float32(0))
    positive = Call("gt", (Cast(Load(mask, store.offset), np.float32), zero))
    value = Select(positive, SUM, zero)
    return replace(
        kernel, arguments=(*kernel.arguments, mask), stores=(replace(store, value=value),)
    )


def biased(kernel):
    """The sum and one number for each column."""
    (store,) = kernel.stores
    bias = Argument(3, BFLOAT16, kernel.columns[-1].extent)
    value = Call("add", (SUM, Cast(Load(bias, Affine(0, {kernel.columns[-1]: 1})), np.float32)))
    return replace(
        kernel, arguments=(*kernel.arguments, bias), stores=(replace(store, value=value),)
    )


def with_copy(kernel):
    """Master weights: an update in float32, and what it gives in bfloat16."""
    (store,) = updated(kernel).stores
    copy = Argument(3, BFLOAT16, store.buffer.size, True)
    return replace(
        kernel, arguments=(*kernel.arguments, copy), stores=(store, replace(store, buffer=copy))
    )


def activated(kernel):
    """A long epilogue: functions that are many instructions, and what their gradient needs."""
    kernel = biased(kernel)
    (store,) = kernel.stores
    copy = Argument(4, BFLOAT16, store.buffer.size, True)
    value = Call("atan", (Call("sin", (Call("atan", (store.value,)),)),))
    stores = replace(store, buffer=copy), replace(store, value=value)
    return replace(kernel, arguments=(*kernel.arguments, copy), stores=stores)


EPILOGUES = {"plain": lambda kernel: kernel, "updated": updated, "masked": masked, "biased": biased}


@pytest.mark.parametrize(
    "made",
    [
        NARROW,
        WIDE,
        replace(WIDE, buffers=2),
        replace(NARROW, buffers=5),
        replace(NARROW, residents=2),
        replace(NARROW, chunk=16),
    ],
)
@pytest.mark.parametrize("epilogue", EPILOGUES)
def test_matrices(epilogue, made):
    kernel = EPILOGUES[epilogue](narrow_product(296, 264, 72, BFLOAT16, ta=True, out=BFLOAT16))
    actual = check(kernel, made, tolerance=0.2)
    assert len(actual.tensor_maps) == (4 if epilogue == "masked" else 3)


@pytest.mark.parametrize("made", [NARROW, WIDE])
def test_long_epilogues_are_loops(made):
    kernel = activated(narrow_product(200, 264, 72, BFLOAT16, ta=True, out=BFLOAT16))
    actual = epilogue_of(problem_of(kernel), made)
    assert actual is not None and actual.is_long
    check(kernel, made, tolerance=0.2)


@pytest.mark.parametrize("chunk", [0, 16])
@pytest.mark.parametrize("epilogue", [updated, masked, with_copy])
def test_wide_results(epilogue, chunk):
    made = replace(NARROW, chunk=chunk)
    check(epilogue(narrow_product(140, 72, 136, BFLOAT16)), made, tolerance=2e-2)


@pytest.mark.parametrize("epilogue", EPILOGUES)
def test_operands_that_threads_bring(epilogue):
    """The epilogue is moved by the copy engine all the same, as that of tf32 is."""
    kernel = narrow_product(130, 72, 100, BFLOAT16, tb=True, out=BFLOAT16)
    actual = check(EPILOGUES[epilogue](kernel), replace(NARROW, loaders=4), tolerance=0.2)
    assert len(actual.tensor_maps) == (2 if epilogue == "masked" else 1)


@pytest.mark.parametrize("epilogue", [masked, updated])
def test_images(epilogue):
    for kernel in narrow_convolutions(BFLOAT16, 2, 9, 10, 64, 56, 3, 3, pad=(1, 1)):
        check(epilogue(kernel), NARROW, tolerance=0.3)


@pytest.mark.parametrize("epilogue", EPILOGUES)
def test_batches(epilogue):
    kernel = narrow_product(72, 64, 64, BFLOAT16, batch=(2, 3), tb=True, out=BFLOAT16)
    check(EPILOGUES[epilogue](kernel), NARROW, tolerance=0.2)


@pytest.mark.parametrize("rows", [1, 130, 300])
def test_rows_known_at_run_time(rows):
    kernel = narrow_product(dynamic(rows, 5), 72, 136, BFLOAT16)
    check(kernel, NARROW, words=(rows,), tolerance=1e-4)


def test_columns_of_a_wider_matrix():
    """As a concatenation in place has them: what lies beside them stays."""
    kernel = narrow_product(70, 40, 72, BFLOAT16, out=BFLOAT16)
    (store,) = kernel.stores
    whole = Argument(2, BFLOAT16, 70 * 96, True)
    place = at((70, 96), kernel.rows[0], [kernel.columns[0], (1, 16)])
    moved = replace(store, buffer=whole, offset=place)
    kernel = replace(kernel, arguments=(*kernel.arguments[:2], whole), stores=(moved,))
    check(kernel, NARROW, tolerance=0.2)


@pytest.mark.parametrize("made", [NARROW, replace(NARROW, splits=2), replace(NARROW, workers=3)])
def test_what_the_copy_engine_cannot_move_goes_through_registers(made):
    odd = narrow_product(130, 71, 200, BFLOAT16, tb=True, ta=False)
    assert epilogue_of(problem_of(odd), made) is None
    check(odd, made, tolerance=1e-4)


def test_rows_of_another_order_go_through_registers():
    kernel = narrow_product(64, 64, 64, BFLOAT16)
    i, j = kernel.rows[0], kernel.columns[0]
    (store,) = kernel.stores
    other = Argument(3, np.dtype(np.float32), 64 * 64)
    transposed = Call("add", (SUM, Load(other, at((64, 64), j, i))))
    kernel = replace(
        kernel, arguments=(*kernel.arguments, other), stores=(replace(store, value=transposed),)
    )
    assert epilogue_of(problem_of(kernel), NARROW) is None
    check(kernel, NARROW, tolerance=1e-4)


def test_a_result_lies_where_its_operand_was():
    kernel = updated(narrow_product(128, 64, 64, BFLOAT16, out=BFLOAT16))
    actual = epilogue_of(problem_of(kernel), NARROW)
    assert actual is not None and actual.warp_bytes == 2048 and len(actual.tensor_maps) == 1


def test_stores_and_loads_of_one_size_share_memory():
    kernel = masked(narrow_product(128, 64, 64, BFLOAT16, out=np.float32), np.float32)
    actual = epilogue_of(problem_of(kernel), NARROW)
    assert actual is not None and actual.warp_bytes == 4096 and len(actual.tensor_maps) == 2


def test_a_store_is_kept_whole():
    """A store of a constant writes both columns of a pair."""
    kernel = narrow_product(64, 64, 64, BFLOAT16)
    (store,) = kernel.stores
    more = Argument(3, BFLOAT16, store.buffer.size, True)
    constant = Store(more, store.variables, store.offset, Const(BFLOAT16.type(2)))
    kernel = replace(kernel, arguments=(*kernel.arguments, more), stores=(store, constant))
    check(kernel, NARROW, tolerance=1e-4)
