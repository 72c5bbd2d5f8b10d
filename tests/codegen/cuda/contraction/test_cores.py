"""Products on the cores of an emulated GPU against NumPy: layouts, edges, epilogues, windows."""

import numpy as np
import pytest

from tests.codegen.contraction.contractions import (
    SUM,
    Conv,
    argument,
    at,
    element,
    matmul,
    random_arrays,
)
from tests.codegen.cuda.contraction.emulated_launch import aligned, check, launch
from thalweg.codegen.contraction.form import NotContraction
from thalweg.codegen.cuda.contraction.kernel import emit_contraction
from thalweg.codegen.cuda.contraction.schedule import Schedule
from thalweg.codegen.cuda.target import emulated
from thalweg.ir.dynamic import dynamic
from thalweg.ir.expr import Index, call, select
from thalweg.ir.index import Affine
from thalweg.ir.kernel import Access, Contraction, Store
from thalweg.ir.loop import Variable

SMALL = Schedule("cores", 32, 32, 8, 2, 1)


@pytest.mark.parametrize("ta", [False, True])
@pytest.mark.parametrize("tb", [False, True])
@pytest.mark.parametrize("shape", [(1, 5, 3), (33, 37, 29), (64, 48, 16), (70, 4, 33)])
def test_matrix_product(shape, ta, tb):
    check(matmul(*shape, ta=ta, tb=tb), SMALL)


@pytest.mark.parametrize(
    "made",
    [
        Schedule("cores", 128, 128, 16, 8, 1),
        Schedule("cores", 64, 64, 16, 8, 1),
        Schedule("cores", 64, 128, 8, 4, 1),
        Schedule("cores", 128, 32, 8, 4, 1),
    ],
)
def test_tiles(made):
    check(matmul(150, 140, 40), made)


@pytest.mark.parametrize("ta", [False, True])
def test_float64_batches(ta):
    check(matmul(33, 70, 9, (2, 3), ta=ta, dtype=np.float64), Schedule("cores", 32, 32, 8, 2, 1))


@pytest.mark.parametrize("shape", [(0, 5, 5), (5, 0, 5), (5, 5, 0), (40, 40, 0)])
def test_zero_extents(shape):
    check(matmul(*shape), SMALL)


@pytest.mark.parametrize("seed", range(6))
def test_convolution(seed):
    rng = np.random.default_rng(seed)
    kh, kw, stride, dilation = (int(x) for x in rng.integers(1, 4, 4))
    h, w = (int(x) for x in rng.integers(9, 14, 2))
    n, ci, co = 2, int(rng.integers(1, 12)), int(rng.integers(1, 40))
    pad = int(rng.integers(0, 3)), int(rng.integers(0, 3))
    conv = Conv(n, h, w, ci, co, kh, kw, stride, dilation, pad)
    check(conv.forward(), SMALL, seed)
    check(conv.filter_gradient(), SMALL, seed)
    if stride == 1:
        check(conv.input_gradient(), SMALL, seed)


def dense_layer(i, j, outer, shape):
    """tanh(sum + bias) plus a residual."""
    bias, residual = argument(3, np.float32, shape[-1:]), argument(4, np.float32, shape)
    value = call("tanh", SUM + element(bias, at(shape[-1:], j)))
    return value + element(residual, at(shape, *outer, i, j)), [bias, residual]


@pytest.mark.parametrize("n", [32, 37])
def test_epilogue(n):
    check(matmul(40, n, 20, epilogue=dense_layer), SMALL, tolerance=1e-4)


def test_an_epilogue_that_looks_at_its_place():
    def masked(i, j, outer, shape):
        return select(Index(i) >= Index(j), SUM, -1e9), []

    check(matmul(40, 44, 20, epilogue=masked), SMALL)


def test_updates_in_place():
    kernel = matmul(24, 36, 17)
    (store,) = kernel.stores
    place = Store(store.buffer, store.variables, store.offset, SUM * np.float32(-0.1), "sum")
    check(Contraction(*_but_stores(kernel), (place,)), SMALL)


def _but_stores(kernel):
    return (
        kernel.arguments, kernel.batch, kernel.rows, kernel.columns, kernel.reduced,
        kernel.a, kernel.b, kernel.dtype,
    )  # fmt: skip


def test_operands_that_are_computed():
    kernel = matmul(36, 40, 24)
    a = Access(call("exp", kernel.a.value) + 1, kernel.a.bounds)
    parts = _but_stores(kernel)
    check(Contraction(*parts[:5], a, *parts[6:], kernel.stores), SMALL, tolerance=1e-4)


def test_rows_that_are_gathered():
    i, j, k = Variable(30, "i"), Variable(36, "j"), Variable(16, "k")
    table, rows = argument(0, np.float32, (100, 16)), argument(1, np.int32, (30,))
    b, y = argument(2, np.float32, (16, 36)), argument(3, np.float32, (30, 36), True)
    picked = Affine(0, {element(rows, at((30,), i)): 16, k: 1})
    kernel = Contraction(
        (table, rows, b, y), (), (i,), (j,), (k,), Access(element(table, picked)),
        Access(element(b, at((16, 36), k, j))), np.dtype(np.float32),
        (Store(y, (i, j), at((30, 36), i, j), SUM),),
    )  # fmt: skip
    check(kernel, SMALL)


@pytest.mark.parametrize("workers", [1, 3, 7, 40])
@pytest.mark.parametrize("k", [5, 90])
def test_shares_of_workers(workers, k):
    schedule = Schedule("cores", 32, 32, 8, 2, 1, workers=workers)
    check(matmul(70, 36, k, epilogue=dense_layer), schedule, tolerance=1e-4)
    check(Conv(2, 9, 9, 5, 36, 3, 3, pad=(1, 1)).filter_gradient(), schedule)


@pytest.mark.parametrize("sizes", [(33, 20), (64, 7), (1, 1), (0, 9), (20, 0)])
@pytest.mark.parametrize("workers", [0, 5])
def test_sizes_known_at_run_time(sizes, workers):
    m, k = sizes
    kernel = matmul(dynamic(m, 5), 36, dynamic(k, 6))
    # The strides of `a` vary with the terms.
    i, kk = kernel.rows[0], kernel.reduced[0]
    offset = Affine(0, {i: dynamic(k, 6), kk: 1})
    a, y = (
        type(p)(p.position, p.dtype, size, p.written)
        for p, size in zip((kernel.arguments[0], kernel.arguments[2]), (m * k, m * 36), strict=True)
    )
    b = type(a)(1, a.dtype, k * 36, False)
    place = Affine(0, {i: 36, kernel.columns[0]: 1})
    columns = Affine(0, {kk: 36, kernel.columns[0]: 1})
    contraction = Contraction(
        (a, b, y), (), kernel.rows, kernel.columns, kernel.reduced, Access(element(a, offset)),
        Access(element(b, columns)), kernel.dtype,
        (Store(y, (i, kernel.columns[0]), place, SUM),),
    )  # fmt: skip
    check(contraction, Schedule("cores", 32, 32, 8, 2, 1, workers=workers), words=(m, k))


def test_a_guarded_kernel_does_nothing_after_a_fault():
    kernel = matmul(10, 12, 8)
    arrays = [aligned(a)[-1] for a in random_arrays(kernel, np.random.default_rng(0))]
    before = arrays[2].copy()
    launch(kernel, arrays, SMALL, guarded=True, fault=3)
    np.testing.assert_array_equal(arrays[2], before)
    launch(kernel, arrays, SMALL, guarded=True)
    assert (arrays[2] != before).all()


def test_products_of_channels_are_loops():
    c, i, k = Variable(8, "c"), Variable(5, "i"), Variable(3, "k")
    x, f = argument(0, np.float32, (8, 8)), argument(1, np.float32, (3, 8))
    y = argument(2, np.float32, (5, 8), True)
    kernel = Contraction(
        (x, f, y), (c,), (i,), (), (k,), Access(element(x, at((8, 8), [i, k], c))),
        Access(element(f, at((3, 8), k, c))), np.dtype(np.float32),
        (Store(y, (c, i), at((5, 8), i, c), SUM),),
    )  # fmt: skip
    with pytest.raises(NotContraction):
        emit_contraction(kernel, emulated())


def test_long_sums_lose_no_more_than_short_ones_and_stay_infinite():
    count = 5000
    kernel = matmul(8, 8, count)
    schedule = Schedule("cores", 32, 32, 16, 2, 1)
    a, b = np.full((8, count), 0.1, np.float32), np.ones((count, 8), np.float32)
    a[1, 700] = np.inf
    held = [aligned(array) for array in (a, b, np.zeros((8, 8), np.float32))]
    launch(kernel, [inner for *_, inner in held], schedule)
    out = held[2][2].reshape(8, 8)
    exact = float(np.float32(0.1)) * count
    np.testing.assert_allclose(out[0], exact, rtol=3e-6)
    assert np.isposinf(out[1]).all()
