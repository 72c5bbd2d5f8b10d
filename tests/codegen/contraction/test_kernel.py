"""Contraction kernels against a NumPy oracle, over odd shapes, layouts, targets and threads."""

from dataclasses import replace

import ml_dtypes
import numpy as np
import pytest

from tests.codegen.contraction.contractions import (
    SUM,
    Conv,
    Oracle,
    argument,
    at,
    call,
    check,
    compiled,
    element,
    matmul,
    random_arrays,
    variables,
)
from tests.ops.harness import NARROW_FLOATS
from thalweg.codegen.contraction.form import canonicalize, form_of
from thalweg.codegen.contraction.kernel import emit_contraction
from thalweg.codegen.contraction.plan import neighbours, schedule, schedules
from thalweg.codegen.contraction.schedule import Problem
from thalweg.codegen.machine import named
from thalweg.ir.dynamic import dynamic
from thalweg.ir.expr import Index, select
from thalweg.ir.expr import call as expr
from thalweg.ir.index import Affine
from thalweg.ir.kernel import Access, Contraction, Store
from thalweg.ir.loop import Variable


@pytest.mark.parametrize("ta", [False, True])
@pytest.mark.parametrize("tb", [False, True])
@pytest.mark.parametrize(
    "shape", [(1, 1, 1), (13, 37, 29), (8, 48, 16), (5, 10, 3), (1, 100, 70), (70, 1, 33)]
)
def test_matrix_product(target, shape, ta, tb):
    check(matmul(*shape, ta=ta, tb=tb), target, threads=2)


@pytest.mark.parametrize("seed", range(24))
def test_random_matrix_product(native, seed):
    rng = np.random.default_rng(seed)
    m, n, k = (int(2 ** rng.uniform(0, 7)) for _ in range(3))
    batch = tuple(int(x) for x in rng.integers(1, 4, rng.integers(0, 3)))
    dtype = [np.float32, np.float64][seed % 2]
    kernel = matmul(m + 1, n, k, batch, bool(rng.integers(2)), bool(rng.integers(2)), dtype)
    check(kernel, native, threads=int(rng.integers(1, 4)), seed=seed)


@pytest.mark.parametrize("shape", [(0, 5, 5), (5, 0, 5), (5, 5, 0), (40, 40, 0)])
def test_zero_extents(target, shape):
    check(matmul(*shape), target)
    check(matmul(*shape, ta=True, tb=True), target)


@pytest.mark.parametrize("k", [3000, 9001])
def test_long_sums_go_through_memory(target, k):
    check(matmul(19, 50, k), target, threads=2)
    check(matmul(19, 50, k, tb=True), target, threads=2)


@pytest.mark.parametrize("shape", [(16, 64, 256), (16, 70, 1030), (32, 130, 300), (48, 200, 256)])
@pytest.mark.parametrize("ta", [False, True])
def test_few_rows_in_the_lanes(target, shape, ta):
    """Columns whose sums run along memory stay in place: the rows are the lanes then."""
    kernel = matmul(*shape, ta=ta, tb=True)
    assert form_of(kernel).lane.extent == shape[0]
    check(kernel, target, threads=2)


def test_few_rows_in_the_lanes_with_an_epilogue(native):
    check(matmul(16, 70, 1030, tb=True, epilogue=dense_layer), native, threads=2)


@pytest.mark.parametrize("shape", [(4, 100, 70), (16, 203, 90), (17, 1029, 1040), (32, 64, 33)])
def test_few_rows_prefetch_their_columns(native, shape):
    made = schedule(matmul(*shape), native)
    assert made.prefetch_steps or made.prefetch_panels
    check(matmul(*shape), native, threads=3)


SERVER = replace(named("x86-64-v4"), l1=48 << 10, l2=2 << 20)


@pytest.mark.parametrize("shape", [(256, 1536, 384), (201, 700, 770), (300, 900, 600)])
def test_some_hundred_rows_leave_their_columns_in_place(native, shape):
    made = schedule(matmul(*shape), SERVER)
    assert not made.copy_b
    assert made.prefetch_steps
    if native.has_masks:
        check(matmul(*shape, epilogue=dense_layer), native, threads=2, schedule=made)


@pytest.mark.parametrize("shape", [(2048, 1152, 384), (256, 1024, 1024), (64, 1024, 64)])
def test_more_rows_crowded_columns_and_few_columns_do_not(shape):
    made = schedule(matmul(*shape), SERVER)
    assert made.copy_b or not made.split


@pytest.mark.parametrize("shape", [(70, 90, 300), (31, 16, 1100), (200, 40, 64)])
@pytest.mark.parametrize("copy_b", ["", "shared", "block"])
@pytest.mark.parametrize("split", [0, 37])
def test_rows_packed_in_tiles(native, shape, copy_b, split):
    kernel = matmul(*shape, ta=True)
    made = replace(schedules(kernel, native)[0], copy_a="tiles", copy_b=copy_b, split=split)
    check(kernel, native, threads=2, schedule=replace(made, tile=6, block=12))


def conv(seed):
    rng = np.random.default_rng(seed)
    kh, kw = (int(x) for x in rng.integers(1, 5, 2))
    stride, dilation = int(rng.integers(1, 4)), int(rng.integers(1, 3))
    low = int(rng.integers(0, 3))
    h, w = (int(x) for x in rng.integers(9, 18, 2))
    n, ci, co = (int(x) for x in (*rng.integers(1, 4, 1), *rng.integers(1, 40, 2)))
    return n, h, w, ci, co, kh, kw, stride, dilation, (low, int(rng.integers(0, 3)))


@pytest.mark.parametrize("seed", range(16))
def test_convolution(native, seed):
    made = Conv(*conv(seed))
    check(made.forward(), native, threads=2, seed=seed)
    check(made.filter_gradient(), native, threads=2, seed=seed)


@pytest.mark.parametrize("seed", range(8))
def test_input_gradient(native, seed):
    n, h, w, ci, co, kh, kw, _, dilation, pad = conv(seed)
    made = Conv(n, h, w, ci, co, kh, kw, 1, dilation, pad)
    check(made.input_gradient(), native, threads=3, seed=seed)


def test_convolution_on_every_target(target):
    made = Conv(2, 14, 13, 24, 20, 3, 3, pad=(1, 1))
    check(made.forward(), target)
    check(made.filter_gradient(), target)
    check(made.input_gradient(), target)
    check(Conv(2, 15, 15, 3, 16, 7, 7, 2, pad=(2, 3)).forward(), target)


@pytest.mark.parametrize("stride", [1, 2])
def test_pointwise_convolution(native, stride):
    made = Conv(3, 7, 7, 32, 40, 1, 1, stride)
    check(made.forward(), native)
    check(made.filter_gradient(), native)


def phase(conv_stride, py, px):
    """The contraction of one phase of a strided input gradient, with strided stores."""
    n, oh, ow, ci, co, k = 2, 5, 6, 7, 18, 3
    s = conv_stride
    taps_y, taps_x = (len(range(p, k, s)) for p in (py, px))
    v = {name: Variable(extent, name) for name, extent in (
        ("n", n), ("h", oh), ("w", ow), ("c", ci), ("o", co), ("r", taps_y),
        ("s", taps_x))}  # fmt: skip
    dy, f = argument(0, np.float32, (n, oh, ow, co)), argument(1, np.float32, (k, k, ci, co))
    dx = argument(2, np.float32, (n, oh * s, ow * s, ci), True)
    windows = [[v["h"], (-1, v["r"])], [v["w"], (-1, v["s"])]]
    bounds = tuple((0, at((1,), w), e) for w, e in zip(windows, (oh, ow), strict=True))
    rows = v["n"], v["h"], v["w"]
    taps = [[(s, v["r"]), (py, 1)], [(s, v["s"]), (px, 1)]]
    places = [v["n"], [(s, v["h"]), (py, 1)], [(s, v["w"]), (px, 1)], v["c"]]
    return Contraction(
        (dy, f, dx), (), rows, (v["c"],), (v["r"], v["s"], v["o"]),
        Access(element(dy, at((n, oh, ow, co), v["n"], *windows, v["o"])), bounds),
        Access(element(f, at((k, k, ci, co), *taps, v["c"], v["o"]))), np.dtype(np.float32),
        (Store(dx, (*rows, v["c"]), at((n, oh * s, ow * s, ci), *places), SUM),),
    )  # fmt: skip


@pytest.mark.parametrize("py", [0, 1])
@pytest.mark.parametrize("px", [0, 1])
def test_phase_of_strided_input_gradient(native, py, px):
    check(phase(2, py, px), native, threads=2)


def depthwise(n, h, c, k, gradient=False, pad=1):
    v = {name: Variable(extent, name) for name, extent in (
        ("n", n), ("p", h + 2 * pad - k + 1), ("q", h + 2 * pad - k + 1), ("c", c), ("r", k),
        ("s", k))}  # fmt: skip
    y = (n, v["p"].extent, v["q"].extent, c)
    windows = [[v["p"], v["r"], (-pad, 1)], [v["q"], v["s"], (-pad, 1)]]
    bounds = tuple((0, at((1,), window), h) for window in windows)
    x = argument(0, np.float32, (n, h, h, c))
    a = Access(element(x, at((n, h, h, c), v["n"], *windows, v["c"])), bounds)
    spatial, taps = (v["n"], v["p"], v["q"]), (v["r"], v["s"])
    places = at(y, *spatial, v["c"]), at((k, k, c), *taps, v["c"])
    rows, reduced = (taps, spatial) if gradient else (spatial, taps)
    given, made = places if gradient else places[::-1]
    shapes = (y, (k, k, c)) if gradient else ((k, k, c), y)
    other = argument(1, np.float32, shapes[0])
    result = argument(2, np.float32, shapes[1], True)
    return Contraction(
        (x, other, result), (v["c"],), rows, (), reduced, a, Access(element(other, given)),
        np.dtype(np.float32), (Store(result, (v["c"], *rows), made, SUM),),
    )  # fmt: skip


@pytest.mark.parametrize("gradient", [False, True])
@pytest.mark.parametrize("c", [3, 16, 45, 200])
def test_depthwise(target, gradient, c):
    check(depthwise(2, 9, c, 3, gradient), target, threads=2)


def grouped(groups, pad):
    n, h, ci, co, k = 2, 8, 5, 6, 3
    size = h + 2 * pad - k + 1
    v = {name: Variable(extent, name) for name, extent in (
        ("g", groups), ("n", n), ("p", size), ("q", size), ("c", ci), ("o", co), ("r", k),
        ("s", k))}  # fmt: skip
    shape, kernel, result = (
        (n, h, h, groups, ci),
        (k, k, ci, groups, co),
        (n, size, size, groups, co),
    )
    windows = [[v["p"], v["r"], (-pad, 1)], [v["q"], v["s"], (-pad, 1)]]
    bounds = tuple((0, at((1,), window), h) for window in windows) if pad else ()
    x, f = argument(0, np.float32, shape), argument(1, np.float32, kernel)
    y = argument(2, np.float32, result, True)
    rows = v["n"], v["p"], v["q"]
    return Contraction(
        (x, f, y), (v["g"],), rows, (v["o"],), (v["r"], v["s"], v["c"]),
        Access(element(x, at(shape, v["n"], *windows, v["g"], v["c"])), bounds),
        Access(element(f, at(kernel, v["r"], v["s"], v["c"], v["g"], v["o"]))),
        np.dtype(np.float32),
        (Store(y, (v["g"], *rows, v["o"]), at(result, *rows, v["g"], v["o"]), SUM),),
    )  # fmt: skip


@pytest.mark.parametrize("pad", [0, 1])
def test_grouped(target, pad):
    check(grouped(3, pad), target, threads=2)


def split_heads(transposed):
    """Attention over heads that lie side by side: scores or values."""
    n, t, heads, d = 2, 19, 3, 8
    b, h, i = Variable(n, "b"), Variable(heads, "h"), Variable(t, "i")
    j, k = (
        (Variable(t, "j"), Variable(d, "k")) if transposed else (Variable(d, "j"), Variable(t, "k"))
    )
    model, scores = (n, t, heads, d), (n, heads, t, t)
    shape, result = (model, scores) if transposed else (scores, model)
    first, second = argument(0, np.float32, shape), argument(1, np.float32, model)
    y = argument(2, np.float32, result, True)
    place = at(model, b, i, h, k) if transposed else at(scores, b, h, i, k)
    other = at(model, b, j, h, k) if transposed else at(model, b, k, h, j)
    stored = at(scores, b, h, i, j) if transposed else at(model, b, i, h, j)
    return Contraction(
        (first, second, y), (b, h), (i,), (j,), (k,), Access(element(first, place)),
        Access(element(second, other)), np.dtype(np.float32),
        (Store(y, (b, h, i, j), stored, SUM),),
    )  # fmt: skip


@pytest.mark.parametrize("transposed", [False, True])
def test_attention(target, transposed):
    check(split_heads(transposed), target, threads=2)


# Epilogues and prologues


def dense_layer(i, j, _outer, shape):
    m, n = shape
    bias, residual = argument(3, np.float32, (n,)), argument(4, np.float32, (m, n))
    scale = argument(5, np.float32, (m,))
    value = (SUM * element(scale, at((m,), i)) + element(bias, at((n,), j))).max(0.0)
    return value + element(residual, at((m, n), i, j)), [bias, residual, scale]


@pytest.mark.parametrize(
    "shape", [(13, 37, 29), (32, 48, 10), (1, 10, 40), (7, 100, 6000), (29, 37, 150)]
)
def test_epilogue(target, shape):
    check(matmul(*shape, epilogue=dense_layer), target, threads=2)


@pytest.mark.parametrize("terms", [9, 150])
def test_epilogue_reads_a_transposed_operand_and_indices(native, terms):
    def epilogue(i, j, _outer, shape):
        m, n = shape
        other = argument(3, np.float32, (n, m))
        index = Index(j) + Index(i)
        masked = select(index < 20, element(other, at((n, m), j, i)), 0.5)
        return SUM * masked + index.cast(np.float32), [other]

    check(matmul(21, 35, terms, epilogue=epilogue), native)


def test_several_stores_in_several_types(native):
    kernel = matmul(21, 35, 9)
    (store,) = kernel.stores
    narrow = argument(3, ml_dtypes.bfloat16, (21, 35), True)
    flags = argument(4, np.bool_, (21, 35), True)
    i, j = kernel.rows[0], kernel.columns[0]
    swapped = at((35, 21), j, i)
    transposed = argument(5, np.float32, (35, 21), True)
    stores = (
        store,
        Store(narrow, (i, j), store.offset, SUM.cast(ml_dtypes.bfloat16)),
        Store(flags, (i, j), store.offset, SUM > 0),
        Store(transposed, (i, j), swapped, SUM * 2.0),
    )
    contraction = Contraction(
        (*kernel.arguments, narrow, flags, transposed),
        (), kernel.rows, kernel.columns, kernel.reduced,
        kernel.a, kernel.b, kernel.dtype, stores,
    )  # fmt: skip
    arrays = random_arrays(contraction, np.random.default_rng(1))
    arrays[4][:] = False
    expected = [array.copy() for array in arrays]
    Oracle(contraction, expected).run()
    code, addresses = compiled(contraction, native)
    call(code, addresses, arrays)
    for got, want in zip(arrays, expected, strict=True):
        np.testing.assert_allclose(
            got.astype(np.float32), want.astype(np.float32), rtol=1e-2, atol=1e-5
        )


def test_accumulates_into_its_target(target):
    kernel = matmul(21, 35, 9)
    (store,) = kernel.stores
    added = Store(store.buffer, store.variables, store.offset, SUM * 0.5, "sum")
    contraction = Contraction(
        kernel.arguments, (), kernel.rows, kernel.columns, kernel.reduced, kernel.a, kernel.b,
        kernel.dtype, (added,),
    )  # fmt: skip
    check(contraction, target)


def with_sides(kernel, a=None, b=None, arguments=None):
    return Contraction(
        arguments or kernel.arguments, kernel.batch, kernel.rows, kernel.columns, kernel.reduced,
        a or kernel.a, b or kernel.b, kernel.dtype, kernel.stores,
    )  # fmt: skip


@pytest.mark.parametrize("ta", [False, True])
@pytest.mark.parametrize("tb", [False, True])
def test_expressions_for_factors(target, ta, tb):
    kernel = matmul(21, 35, 19, ta=ta, tb=tb)
    a = Access((kernel.a.value * 2.0).max(0.0))
    b = Access(expr("tanh", kernel.b.value))
    check(with_sides(kernel, a, b), target, threads=2)


@pytest.mark.parametrize("dtype", NARROW_FLOATS)
def test_narrow_floats(native, dtype):
    kernel = matmul(21, 35, 19)
    short = [argument(p, dtype, (kernel.arguments[p].size,)) for p in range(2)]
    sides = [
        Access(element(new, side.value.offset).cast(np.float32))
        for new, side in zip(short, (kernel.a, kernel.b), strict=True)
    ]
    check(with_sides(kernel, *sides, (*short, kernel.arguments[2])), native)


def test_expression_under_padding(native):
    kernel = Conv(2, 9, 8, 12, 20, 3, 3, pad=(1, 1)).forward()
    access = kernel.a
    check(with_sides(kernel, Access(access.value + 1.0, access.bounds)), native)


def test_gathered_rows(native):
    """Rows of a table, chosen by an index: the place of an element is computed."""
    kernel = matmul(9, 35, 19)
    i, k = kernel.rows[0], kernel.reduced[0]
    table = argument(0, np.float32, (101, 19))
    chosen = argument(3, np.int32, (9,))
    place = Affine(0, {element(chosen, at((9,), i)): 19, k: 1})
    made = with_sides(
        kernel, Access(element(table, place)), arguments=(table, *kernel.arguments[1:], chosen)
    )
    check(made, native)


def test_merged_variables_are_replaced_in_the_places_of_stores():
    """Rows that go where an index says: what it is loaded from follows the merged variable."""
    (i, j), c, k = variables(i=3, j=5), Variable(35, "c"), Variable(19, "k")
    x, w = argument(0, np.float32, (15, 19)), argument(1, np.float32, (19, 35))
    y, rows = argument(2, np.float32, (15, 35), True), argument(3, np.int64, (15,))
    place = Affine(0, {element(rows, at((3, 5), i, j)): 35, c: 1})
    made = canonicalize(
        Contraction(
            (x, w, y, rows), (), (i, j), (c,), (k,), Access(element(x, at((3, 5, 19), i, j, k))),
            Access(element(w, at((19, 35), k, c))), np.dtype(np.float32),
            (Store(y, (i, j, c), place, SUM),),
        )
    )  # fmt: skip
    assert [row.extent for row in made.rows] == [15]
    assert place.parts[0] not in made.stores[0].offset.terms
    assert made.stores[0].offset.parts[0].offset == Affine(0, {made.rows[0]: 1})


def test_taps_that_bounds_leave_out_are_no_terms():
    """Of a window over every second element, a phase has the taps of one parity."""
    i, c, j, k = (
        Variable(extent, name) for extent, name in zip((9, 8, 2, 16), "icjk", strict=True)
    )
    x, w = argument(0, np.float32, (9, 16)), argument(1, np.float32, (3, 16, 8))
    y = argument(2, np.float32, (9, 8), True)
    places = Affine(0, {i: 16, j: -16, k: 1}), Affine(0, {j: 2 * 128, k: 8, c: 1})
    bounds = (0, Affine(0, {i: 1, j: -1}), 9), (0, Affine(0, {j: 2}), 2)
    made = canonicalize(
        Contraction(
            (x, w, y), (), (i,), (c,), (j, k), Access(element(x, places[0]), bounds),
            Access(element(w, places[1]), bounds[1:]), np.dtype(np.float32),
            (Store(y, (i, c), Affine(0, {i: 8, c: 1}), SUM),),
        )
    )  # fmt: skip
    assert [v.extent for v in made.reduced] == [16]
    assert not made.a.bounds and not made.b.bounds


# Dynamic extents


@pytest.mark.parametrize("m", [0, 1, 5, 13, 64, 129])
def test_dynamic_rows(native, m):
    hint = dynamic(16, 5)
    kernel = matmul(16, 35, 19, rows=hint)
    made, addresses = compiled(kernel, native)
    rng = np.random.default_rng(0)
    a, b = (rng.standard_normal(s).astype(np.float32) for s in ((m, 19), (19, 35)))
    y = np.full((m + 1, 35), 7, np.float32)
    call(made, addresses, [a, b, y], threads=2, words=[m])
    np.testing.assert_allclose(y[:m], a @ b, rtol=1e-4, atol=1e-5)
    assert (y[m] == 7).all()


def dynamic_matmul(which, hint, size):
    """A matrix product one of whose extents (m, n or k) is read at run time."""
    sizes = {"i": 16, "j": 35, "k": 19}
    known = {
        name: Variable(hint if name == which else extent, name) for name, extent in sizes.items()
    }
    i, j, k = known.values()
    stride_a = hint if which == "k" else 19
    stride_b = hint if which == "j" else 35
    a, b, y = (argument(p, np.float32, (1,), p == 2) for p in range(3))
    return Contraction(
        (a, b, y), (), (i,), (j,), (k,),
        Access(element(a, Affine(0, {i: stride_a, k: 1}))),
        Access(element(b, Affine(0, {k: stride_b, j: 1}))), np.dtype(np.float32),
        (Store(y, (i, j), Affine(0, {i: stride_b, j: 1}), SUM),),
    )  # fmt: skip


@pytest.mark.parametrize("which", "ijk")
@pytest.mark.parametrize("size", [0, 1, 17, 70, 5000])
def test_any_dynamic_extent(target, which, size):
    made, addresses = compiled(dynamic_matmul(which, dynamic(16, 5), size), target)
    m, n, k = (
        size if which == name else extent for name, extent in zip("ijk", (16, 35, 19), strict=True)
    )
    rng = np.random.default_rng(0)
    a, b = (rng.standard_normal(s).astype(np.float32) for s in ((m, k), (k, n)))
    y = np.full((m, n), np.nan, np.float32)
    call(made, addresses, [a, b, y], threads=2, words=[size])
    np.testing.assert_allclose(y, a @ b, rtol=1e-3, atol=1e-3)


@pytest.mark.parametrize("n", [0, 1, 3])
@pytest.mark.parametrize("size", [9, 50])
def test_dynamic_batch_of_images(native, n, size):
    made = Conv(2, size, 8, 12, 20, 3, 3, pad=(1, 1))
    made.v["n"] = Variable(dynamic(2, 5), "n")
    kernels = [made.forward(), made.filter_gradient(), made.input_gradient()]
    fixed = Conv(n, size, 8, 12, 20, 3, 3, pad=(1, 1))
    known = [fixed.forward(), fixed.filter_gradient(), fixed.input_gradient()]
    for kernel, oracle in zip(kernels, known, strict=True):
        arrays = random_arrays(oracle, np.random.default_rng(0))
        expected = [array.copy() for array in arrays]
        Oracle(oracle, expected).run()
        code, addresses = compiled(kernel, native)
        call(code, addresses, arrays, threads=2, words=[n])
        np.testing.assert_allclose(arrays[2], expected[2], rtol=1e-4, atol=1e-4)


# Schedules and threads


@pytest.mark.parametrize(
    "kernel",
    [
        matmul(100, 130, 300),
        matmul(30, 70, 5000, tb=True),
        matmul(16, 70, 1030, tb=True),
        matmul(16, 300, 400),
        matmul(90, 70, 1030, ta=True),
        Conv(3, 14, 14, 32, 48, 3, 3, pad=(1, 1)).forward(),
        Conv(3, 14, 14, 32, 48, 3, 3, pad=(1, 1)).filter_gradient(),
        depthwise(2, 12, 70, 3),
    ],
)
def test_threads_do_not_change_the_result(native, kernel):
    results = [check(kernel, native, threads)[0] for threads in (1, 2, 3, 5, 20)]
    for other in results[1:]:
        np.testing.assert_array_equal(results[0], other)


@pytest.mark.parametrize(
    "kernel",
    [
        matmul(50, 70, 60),
        matmul(50, 70, 60, tb=True),
        Conv(2, 10, 10, 8, 40, 3, 3, pad=(1, 1)).forward(),
        Conv(2, 10, 10, 8, 40, 3, 3, pad=(1, 1)).filter_gradient(),
    ],
)
def test_every_schedule_gives_the_sums(native, kernel):
    listed = schedules(kernel, native)
    assert len(listed) > 1
    for made in listed:
        check(kernel, native, schedule=made)


VARIED = [
    matmul(37, 70, 130),
    matmul(37, 70, 130, ta=True, tb=True, batch=(2,)),
    Conv(2, 11, 9, 5, 40, 3, 3, pad=(1, 1)).forward(),
    Conv(2, 11, 9, 5, 40, 3, 2, 2, pad=(1, 0)).filter_gradient(),
    Conv(2, 11, 9, 5, 40, 3, 3, 1, 2, pad=(2, 1)).input_gradient(),
    depthwise(2, 9, 40, 3),
]


@pytest.mark.parametrize("seed", range(24))
def test_odd_schedules(native, seed):
    """Blocks, splits and copies that the cost model would not choose."""
    rng = np.random.default_rng(seed)
    kernel = VARIED[seed % len(VARIED)]
    setting = Problem(form_of(kernel), native)
    listed = schedules(kernel, native)
    made = listed[rng.integers(len(listed))]
    at = int(rng.integers(made.tile_at + 1))
    step = made.tile if at == made.tile_at else 1
    made = replace(
        made,
        block_at=at,
        block=step * int(rng.integers(1, 4)),
        panels=int(rng.integers(1, 4)),
        split_at=int(rng.integers(len(setting.form.reduced))),
        split=int(rng.choice([0, 1, 2, 5, 100])),
        copy_b=str(rng.choice(["shared", "block"])),
        unroll=int(rng.integers(1, 4)),
        prefetch_steps=int(rng.choice([0, 8])),
        prefetch_panels=int(rng.choice([0, 2])),
    )
    check(kernel, native, threads=int(rng.integers(1, 6)), schedule=made)


@pytest.mark.parametrize(
    "kernel", [*VARIED, matmul(16, 300, 400), matmul(16, 70, 300, tb=True), matmul(3, 40, 70)]
)
def test_neighbours_give_the_sums(native, kernel):
    """A sequence of schedules that differ in one respect from the one before."""
    made = schedule(kernel, native)
    for step in range(6):
        near = neighbours(kernel, native, made)
        assert made not in near
        made = near[(7 * step) % len(near)]
        check(kernel, native, threads=2, schedule=made)


def test_code_for_another_processor():
    assert "multiply" in emit_contraction(matmul(20, 30, 40), named("aarch64")).functions


def test_single_sum(target):
    check(matmul(1, 1, 100), target)
