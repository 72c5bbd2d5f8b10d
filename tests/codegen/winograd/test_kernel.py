"""Convolutions by Winograd's algorithm against a NumPy oracle: odd sizes, paddings, targets.

Errors are held to 1e-5 of the largest result for tiles of four outputs a side and to 2e-6 for two,
as float32 sums of 9·C products of numbers of size 1 have them; filters of five taps to 1e-5.
"""

from dataclasses import replace

import numpy as np
import pytest

from tests.codegen.contraction.contractions import (
    SUM,
    Conv,
    Oracle,
    argument,
    call,
    check,
    element,
    guarded,
    random_arrays,
)
from thalweg.codegen.cache import as_request, load_all
from thalweg.codegen.contraction.kernel import emit_contraction
from thalweg.codegen.contraction.plan import neighbours, schedule, schedules
from thalweg.codegen.contraction.schedule import Schedule
from thalweg.codegen.llvm.compile import assembly
from thalweg.codegen.machine import named
from thalweg.codegen.winograd.algorithm import algorithm
from thalweg.codegen.winograd.form import match_convolution
from thalweg.codegen.winograd.kernel import emit_winograd
from thalweg.ir.dynamic import dynamic
from thalweg.ir.expr import Index, select
from thalweg.ir.expr import call as expr
from thalweg.ir.index import Affine
from thalweg.ir.kernel import Access, Store
from thalweg.ir.loop import Variable

ERRORS = {2: 2e-6, 4: 1e-5}


def blocks(target, outputs=4, tiles=7, panels=2, depth=2, rows=3, vectors=2):
    """Small blocks, so that small convolutions have several."""
    depth *= target.lanes
    return Schedule(vectors, 0, rows, block=tiles, panels=panels, split=depth, outputs=outputs)


def held(kernel, target, cut, threads=1, seed=0, bound=0):
    """The results of a kernel in some blocks, held to the oracle."""
    given = random_arrays(kernel, np.random.default_rng(seed))
    expected = [array.copy() for array in given]
    Oracle(kernel, expected).run()
    wholes, inners = zip(*(guarded(array, None) for array in given), strict=True)
    made = emit_winograd(kernel, target, cut)
    call(made, load_all([as_request(made)], target)[0].functions, inners, threads)
    for which, got, want, whole in zip(kernel.arguments, inners, expected, wholes, strict=True):
        largest = max(np.abs(want).max(), 1)
        assert np.abs(got - want).max() <= (bound or ERRORS[cut.outputs]) * largest
        assert np.isnan(whole[:33]).all() and np.isnan(whole[33 + which.size :]).all()
    return [got.copy() for a, got in zip(kernel.arguments, inners, strict=True) if a.written]


@pytest.mark.parametrize(("taps", "outputs"), [(3, 2), (3, 4), (5, 2)])
def test_transforms_filter_a_line_exactly(taps, outputs):
    made = algorithm(outputs, taps)
    rng = np.random.default_rng(outputs)
    elements, taps = rng.standard_normal(made.size), rng.standard_normal(taps)
    inputs, filters, results = (
        np.array(matrix, np.float64)
        for matrix in (made.input_transform, made.filter_transform, made.output_transform)
    )
    want = np.convolve(elements, taps[::-1], "valid")
    np.testing.assert_allclose(results @ ((filters @ taps) * (inputs @ elements)), want, rtol=1e-9)


@pytest.mark.parametrize("taps", [3, 5])
def test_two_outputs_take_no_product_of_an_input_that_they_do_not_see(taps):
    made = algorithm(2, taps)  # which is why such tiles need no guard against large inputs
    inputs, results = (
        np.array(m, float) != 0 for m in (made.input_transform, made.output_transform)
    )
    seen = [[i <= element < i + taps for element in range(made.size)] for i in range(2)]
    np.testing.assert_array_equal(results @ inputs, seen)


@pytest.mark.parametrize("outputs", [2, 4])
@pytest.mark.parametrize("pad", [(0, 0), (1, 1), (2, 1), (0, 2)])
@pytest.mark.parametrize(
    "shape", [(1, 8, 8, 16, 32), (2, 9, 7, 40, 33), (1, 13, 11, 20, 37), (3, 5, 4, 70, 50)]
)
def test_convolution(native, shape, pad, outputs):
    conv = Conv(*shape, 3, 3, pad=pad)
    for kernel in (conv.forward(), conv.input_gradient()):
        held(kernel, native, blocks(native, outputs), threads=2)


@pytest.mark.parametrize("pad", [(0, 0), (2, 2), (3, 1)])
@pytest.mark.parametrize("shape", [(1, 8, 8, 16, 32), (2, 9, 7, 40, 33), (3, 7, 6, 70, 50)])
def test_filters_of_five_taps(target, shape, pad):
    conv = Conv(*shape, 5, 5, pad=pad)
    for kernel in (conv.forward(layer), conv.input_gradient()):
        held(kernel, target, blocks(target, 2), threads=2, bound=1e-5)


@pytest.mark.parametrize("outputs", [2, 4])
@pytest.mark.parametrize("shape", [(1, 6, 7, 9, 21), (2, 9, 8, 16, 16)])
def test_targets(target, shape, outputs):
    conv = Conv(*shape, 3, 3, pad=(1, 1))
    for kernel in (conv.forward(), conv.input_gradient()):
        held(kernel, target, blocks(target, outputs))


@pytest.mark.parametrize("seed", range(12))
def test_random_convolution(native, seed):
    rng = np.random.default_rng(seed)
    n, h, w = (int(x) for x in rng.integers(1, 5, 3) * (1, 4, 4) + (0, 0, 3))
    ci, co = (int(x) for x in rng.integers(1, 80, 2))
    conv = Conv(n, h, w, ci, co, 3, 3, pad=(int(rng.integers(1, 3)), int(rng.integers(0, 3))))
    tiles, panels, depth, vectors = (int(x) for x in rng.integers(1, (12, 4, 4, 5)))
    cut = blocks(native, 2 + 2 * (seed % 2), tiles, panels, depth, 1 + seed % 6, vectors)
    for kernel in (conv.forward(), conv.input_gradient()):
        held(kernel, native, cut, threads=int(rng.integers(1, 4)), seed=seed)


def layer(rows, column, place):
    """Bias, residual, ReLU."""
    shape = [v.extent for v in (*rows, column)]
    bias = argument(3, np.float32, (column.extent,))
    other = argument(4, np.float32, shape)
    value = expr("add", expr("add", SUM, element(bias, Affine(0, {column: 1}))), 0.5)
    return expr("max", expr("add", value, element(other, place)), 0), [bias, other]


def gated(rows, column, place):
    """What stands where a product of gates does, as in gradients of activations."""
    gate = argument(3, np.float32, [v.extent for v in (*rows, column)])
    there = expr("gt", element(gate, place), 0)
    return select(there, SUM, expr("mul", SUM, 0.25)), [gate]


@pytest.mark.parametrize("outputs", [2, 4])
@pytest.mark.parametrize("epilogue", [layer, gated])
def test_what_becomes_of_the_sums(target, epilogue, outputs):
    kernel = Conv(2, 7, 6, 16, 40, 3, 3, pad=(1, 1)).forward(epilogue)
    held(kernel, target, blocks(target, outputs), threads=2)


def test_stores_that_fold_and_stores_with_a_condition(native):
    kernel = Conv(1, 9, 9, 24, 30, 3, 3, pad=(1, 1)).forward()
    (store,) = kernel.stores
    rows = [Index(variable) < 5 for variable in kernel.rows[1:2]]
    folded = replace(kernel, stores=(replace(store, combine="sum", inside=rows[0]),))
    held(folded, native, blocks(native))


def test_several_results(native):
    kernel = Conv(1, 9, 9, 24, 30, 3, 3, pad=(1, 1)).forward()
    (store,) = kernel.stores
    again = argument(3, np.float32, (store.buffer.size,), True)
    value = expr("mul", SUM, 2.0)
    both = (store, Store(again, store.variables, store.offset, value))
    two = replace(kernel, arguments=(*kernel.arguments, again), stores=both)
    held(two, native, blocks(native))


@pytest.mark.parametrize("outputs", [2, 4])
def test_results_do_not_depend_on_threads(native, outputs):
    kernel = Conv(2, 14, 13, 48, 70, 3, 3, pad=(1, 1)).forward(layer)
    cut = blocks(native, outputs)
    one, *others = (held(kernel, native, cut, threads)[0] for threads in (1, 2, 3, 5, 20))
    assert all((one == other).all() for other in others)


STRANGE = {
    "infinite": [(0, np.inf)],
    "no number": [(0, np.nan)],
    "both infinities": [(0, np.inf), (0, -np.inf)],
    "filter": [(1, np.inf)],
    "all but overflowing": [(0, 3e38), (0, 3e38)],
}


@pytest.mark.parametrize("outputs", [2, 4])
@pytest.mark.parametrize("name", STRANGE)
def test_what_is_no_plain_number_stays_where_it_belongs(target, name, outputs):
    conv = Conv(2, 9, 10, 20, 24, 3, 3, pad=(1, 1))
    for kernel in (conv.forward(layer), conv.input_gradient()):
        rng = np.random.default_rng(outputs)
        given = random_arrays(kernel, rng)
        for side, value in STRANGE[name]:
            factor = given[kernel.arguments.index((kernel.a, kernel.b)[side].load.buffer)]
            factor[rng.integers(factor.size)] = value
        expected = [array.copy() for array in given]
        with np.errstate(all="ignore"):
            Oracle(kernel, expected).run()
        made = emit_winograd(kernel, target, blocks(target, outputs))
        call(made, load_all([as_request(made)], target)[0].functions, given, 2)
        for got, want in zip(given, expected, strict=True):
            plain = np.isfinite(want)
            np.testing.assert_array_equal(got[~plain], want[~plain])
            largest = max(np.abs(want[plain & (np.abs(want) < 1e30)]).max(), 1)
            usual = plain & (np.abs(want) < 1e30)
            assert np.abs(got[usual] - want[usual]).max() <= 1e-5 * largest


@pytest.mark.parametrize("outputs", [2, 4])
def test_code_for_aarch64(outputs):
    target = named("aarch64")
    conv = Conv(2, 9, 7, 20, 24, 3, 3, pad=(1, 1))
    for kernel in (conv.forward(layer), conv.input_gradient()):
        made = emit_winograd(kernel, target, blocks(target, outputs))
        assert "fmla" in assembly(made.text, target, made.passes)


@pytest.fixture
def two_cores(native):
    """This machine as if it had two cores: transforms of small images do not pay on many, which
    have too few pieces of them."""
    return replace(native, cores=2)


def test_large_convolutions_are_filtered(two_cores):
    conv = Conv(1, 30, 29, 64, 96, 3, 3, pad=(1, 1))
    for kernel in (conv.forward(layer), conv.input_gradient()):
        assert "@results" in emit_contraction(kernel, two_cores).text
        check(kernel, two_cores, threads=2)


@pytest.mark.parametrize("cores", [2, 16, 64])
def test_convolutions_of_batches_are_filtered_on_any_number_of_cores(native, cores):
    kernel = Conv(64, 28, 28, 64, 96, 3, 3, pad=(1, 1)).forward()
    assert schedule(kernel, replace(native, cores=cores)).outputs


def test_a_schedule_that_is_given_is_kept(two_cores):
    kernel = Conv(1, 30, 29, 64, 96, 3, 3, pad=(1, 1)).forward()
    likely, other, *_ = schedules(kernel, two_cores)
    assert likely == schedule(kernel, two_cores) and likely.outputs and not other.outputs
    assert "@results" not in emit_contraction(kernel, two_cores, other).text


def test_schedules_that_are_near_are_right(native):
    kernel = Conv(1, 30, 29, 64, 96, 3, 3, pad=(1, 1)).forward()
    likely = schedule(kernel, native)
    others = neighbours(kernel, native, likely)
    assert others and likely not in others
    for other in others[:3]:
        check(kernel, native, threads=2, schedule=other)


@pytest.mark.parametrize(
    "conv",
    [
        Conv(1, 20, 20, 64, 64, 3, 3, stride=2, pad=(1, 1)),
        Conv(1, 20, 20, 64, 64, 3, 3, dilation=2, pad=(2, 2)),
        Conv(1, 20, 20, 64, 64, 7, 7, pad=(3, 3)),
        Conv(1, 20, 20, 64, 64, 3, 5, pad=(1, 2)),
        Conv(1, 20, 20, 64, 64, 3, 1),
        Conv(1, 20, 20, 64, 64, 3, 3, pad=(1, 1), dtype=np.float64),
    ],
    ids=["stride", "dilation", "7x7", "3x5", "3x1", "float64"],
)
def test_other_convolutions_are_not(conv):
    assert match_convolution(conv.forward()) is None


def test_factors_that_are_computed_are_not(native):
    kernel = Conv(1, 20, 20, 64, 64, 3, 3, pad=(1, 1)).forward()
    computed = Access(expr("max", kernel.a.value, 0), kernel.a.bounds)
    assert match_convolution(replace(kernel, a=computed)) is None


def test_filter_gradients_are_not():
    assert match_convolution(Conv(2, 20, 20, 64, 64, 3, 3, pad=(1, 1)).filter_gradient()) is None


def test_batches_that_vary_are_not():
    kernel = Conv(4, 20, 20, 64, 64, 3, 3, pad=(1, 1)).forward()
    image, *rest = kernel.rows
    varying = Variable(dynamic(4, 4), image.name)
    assert match_convolution(replace(kernel, rows=(varying, *rest))) is None


@pytest.mark.parametrize("shape", [(1, 8, 8, 8, 8), (1, 7, 7, 160, 320), (1, 4, 4, 64, 64)])
def test_small_convolutions_are_left_alone(native, shape):
    kernel = Conv(*shape, 3, 3, pad=(1, 1)).forward()
    assert match_convolution(kernel) and not schedule(kernel, native).outputs
