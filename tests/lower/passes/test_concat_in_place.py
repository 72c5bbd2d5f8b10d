"""Tensors that are computed in place inside their concatenation."""

from __future__ import annotations

import math
from itertools import product
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import thalweg as tf
from tests.codegen.cuda.sessions import emulated_kernels, run
from tests.codegen.oracle import close
from tests.ops.harness import on_reference_kernels
from thalweg.ir.expr import Load, Select
from thalweg.ir.index import Affine, floor_mod, index_of, total
from thalweg.ir.kernel import Store
from thalweg.ir.loop import Variable
from thalweg.lower.memory.buffers import Buffer, BufferKind
from thalweg.lower.passes.concat import Layout, layout_of
from thalweg.runtime import engine

compiled_only = pytest.mark.skipif(not engine.COMPILES, reason="nothing is compiled")


@st.composite
def layouts(draw: Any) -> Layout:
    """A dense tensor of a few axes, the strides of which go anywhere in a whole."""
    counts = draw(st.lists(st.integers(1, 6), min_size=1, max_size=4))
    axes = tuple([(count, draw(st.integers(1, 99))) for count in counts])
    return Layout(axes, draw(st.integers(0, 9)))


@given(
    layouts(),
    st.lists(st.tuples(st.integers(1, 4), st.integers(0, 3), st.integers(-1, 3)), max_size=3),
    st.sampled_from([0, 0, 1, 7, -2]),
)
def test_places_in_a_whole(layout: Layout, loops: list[Any], constant: int) -> None:
    variables = [Variable.fresh(extent) for extent, _, _ in loops]
    counts = [count for count, _ in layout.axes]
    inner = [math.prod(counts[n + 1 :]) for n in range(len(counts))]
    factors = [(times or 5) * inner[number % len(inner)] for _, number, times in loops]
    found = layout.place(Affine(constant, dict(zip(variables, factors, strict=True))))
    for values in product(*(range(v.extent) for v in variables)) if found else ():
        rest, there = constant + sum(f * v for f, v in zip(factors, values, strict=True)), 0
        for step, (_, stride) in zip(inner, layout.axes, strict=True):
            there += rest // step * stride
            rest %= step
        seen = zip(variables, values, strict=True)
        assert found.constant + sum(found.terms[v] * n for v, n in seen) == layout.start + there


def test_plain_rows_have_a_place() -> None:
    i, j = Variable.fresh(16), Variable.fresh(24)
    layout = Layout(((16, 96), (24, 1)), 48)
    assert layout.place(Affine(0, {i: 24, j: 1})) == Affine(48, {i: 96, j: 1})
    assert layout.place(Affine(1, {i: 24, j: 1})) is None
    assert layout.run == 24


@st.composite
def copies_of_parts(draw: Any) -> tuple[list[int], list[int], int]:
    """Axes of a tensor, the order in which a copy goes through them, and how many are one index."""
    shape = draw(st.lists(st.integers(1, 4), min_size=1, max_size=4))
    return shape, draw(st.permutations(range(len(shape)))), draw(st.integers(1, len(shape)))


@given(copies_of_parts(), st.integers(1, 3), st.integers(0, 2))
def test_layout_of_a_copy(copy: Any, parts: int, number: int) -> None:
    """A whole of some parts, each with its axes in another order, some of them as one index."""
    shape, order, joined = copy
    number = min(number, parts - 1)
    size, permuted = math.prod(shape), [shape[axis] for axis in order]
    fast = math.prod(permuted[-joined:])  # the elements of a part that lie in a row of the whole
    outer = Variable.fresh(size // fast)
    inner = Variable.fresh(parts * fast)
    limits = {outer: (0, outer.extent), inner: (number * fast, (number + 1) * fast)}
    rest = {outer: index_of(outer), inner: floor_mod(index_of(inner), 1, fast)}
    indices: dict[int, Affine] = {}
    for axis in reversed(order):
        row = inner if len(indices) < joined else outer
        indices[axis] = floor_mod(rest[row], 1, shape[axis])
        rest[row] = floor_mod(rest[row], shape[axis], 0)
    strides = [math.prod(shape[axis + 1 :]) for axis in range(len(shape))]
    place = total([indices[axis].scaled(strides[axis]) for axis in range(len(shape))])
    whole, part = (
        Buffer(BufferKind.TEMPORARY, np.dtype(np.float32), n) for n in (parts * size, size)
    )
    offset = total([index_of(outer).scaled(parts * fast), index_of(inner)])
    write = Store(whole, (outer, inner), offset, Load(part, place))
    layout = layout_of(write, write.value, limits)
    assert layout is not None
    lies = np.arange(size).reshape(shape).transpose(order).reshape(-1, fast)
    for row, column in np.ndindex(lies.shape):
        there = layout.place(Affine(int(lies[row, column]), {}))
        assert there == Affine(row * parts * fast + number * fast + column, {})


@given(
    st.lists(st.integers(2, 4), min_size=1, max_size=3),
    st.randoms(use_true_random=False),
    st.integers(0, 12),
    st.sampled_from([1, 2, 3, 4, 6, 8, 9, 12, 16, 24]),
    st.sampled_from([None, None, 1, 2, 5, 6, 8]),
)
def test_layout_of_a_copy_from_anywhere(
    counts: Any, random: Any, low: int, length: int, more: int | None
) -> None:
    """Digits of one index, in any order, and perhaps one more; from a number on that need not begin
    or end with them."""
    index = Variable.fresh(low + length)
    digits = [(math.prod(counts[:n]), count) for n, count in enumerate(counts)]
    place, value, step = [Affine(0, {})], np.zeros(low + length, int), 1
    for divisor, count in random.sample(digits, len(digits)):
        place.append(floor_mod(index_of(index), divisor, count).scaled(step))
        value += np.arange(low + length) // divisor % count * step
        step *= count
    if more is not None:
        place.append(floor_mod(index_of(index), more, 0))
        value += np.arange(low + length) // more
    begun = total([*place, Affine(-int(value[low]), {})])
    whole, part = (
        Buffer(BufferKind.TEMPORARY, np.dtype(np.float32), n) for n in (low + length, length)
    )
    write = Store(whole, (index,), index_of(index), Load(part, begun))
    layout = layout_of(write, write.value, {index: (low, low + length)})
    if layout is not None:
        for number in range(low, low + length):
            element = Affine(int(value[number] - value[low]), {})
            assert layout.place(element) == Affine(number, {})


def cells(x: Any, count: int, width: int, axis: int = 1) -> tuple[list[Any], list[Any]]:
    """Steps of an LSTM, unrolled, and its weights: the gradient of the gates' split is a concat."""
    rng = np.random.default_rng(3)
    shape = [width, 4 * width] if axis == 1 else [4 * width, width]
    weights = tf.Variable(rng.standard_normal(shape).astype(np.float32) / 5)
    h = c = x
    states: list[Any] = []
    for _ in range(count):
        sums = tf.matmul(h, weights) if axis == 1 else tf.matmul(weights, h)
        i, j, f, o = tf.split(sums, 4, axis)
        c = tf.sigmoid(f + 1.0) * c + tf.sigmoid(i) * tf.tanh(j)
        h = tf.tanh(c) * tf.sigmoid(o)
        states.append(h)
    return states, [weights]


def gradients(x: Any) -> list[Any]:
    states, (weights,) = cells(x, 6, 24)
    return [tf.reduce_sum(tf.stack(states)), *tf.gradients(tf.square(states[-1]), [weights, x])]


def a_part_that_is_asked_for(x: Any) -> list[Any]:
    states, _ = cells(x, 3, 24)
    found = tf.gradients(tf.square(states[-1]), [x])
    nodes = [node for node in x.graph.get_operations() if node.type == "ConcatV2"]
    return [*found, nodes[1].inputs[0], nodes[1].outputs[0]]


def rows_below_one_another(x: Any) -> list[Any]:
    states, (weights,) = cells(tf.transpose(x), 4, 24, axis=0)
    return tf.gradients(tf.square(states[-1]), [weights, x])


def a_part_that_is_read_twice(x: Any) -> list[Any]:
    states, _ = cells(x, 3, 24)
    found = tf.gradients(tf.square(states[-1]), [x])
    nodes = [node for node in x.graph.get_operations() if node.type == "ConcatV2"]
    return [*found, tf.reduce_max(nodes[1].inputs[2], 0)]


def the_middle_axis(x: Any) -> list[Any]:
    a = tf.matmul(x, tf.ones([24, 24]) / 7.0)
    grid = tf.reshape(a, [-1, 6, 4])
    parts = [tf.sigmoid(grid) * grid, tf.tanh(grid), grid * grid]
    whole = tf.concat(parts, 1)
    return [tf.matmul(whole, whole, transpose_b=True)]


def attention(x: Any) -> list[Any]:
    """Queries, keys and values of two heads: their gradients are stacked and transposed."""
    rng = np.random.default_rng(4)
    weights = tf.Variable(rng.standard_normal((24, 3 * 2 * 16)).astype(np.float32) / 5)
    every = tf.reshape(tf.matmul(x, weights), [1, -1, 3, 2, 16])
    q, k, v = tf.unstack(tf.transpose(every, [2, 0, 3, 1, 4]))
    mixed = tf.matmul(tf.nn.softmax(tf.matmul(q, k, transpose_b=True)), v)
    return tf.gradients(tf.reduce_mean(tf.square(mixed)), [weights, x])


def beside_one_another(x: Any) -> list[Any]:
    """Convolutions of several widths on one image, and a pool: columns of one image."""
    image = tf.reshape(x, [1, -1, 6, 4])
    rng = np.random.default_rng(5)
    parts = [tf.nn.max_pool2d(image, 3, 1, "SAME")]
    for size in (1, 3):
        kernel = rng.standard_normal((size, size, 4, 16)).astype(np.float32) / 5
        parts.append(tf.nn.conv2d(image, kernel, 1, "SAME"))
    return [tf.nn.conv2d(tf.concat(parts, 3), tf.ones([1, 1, 36, 8]), 1, "SAME")]


def with_a_copy_that_computes(x: Any) -> list[Any]:
    """An op on a part may be fused into the copy, which then stays."""
    whole = tf.concat([tf.nn.relu(tf.matmul(x, tf.ones([24, n]) / 9.0)) for n in (16, 32)], 1)
    return [tf.matmul(whole, tf.ones([48, 8]))]


PROGRAMS = [
    attention,
    beside_one_another,
    with_a_copy_that_computes,
    gradients,
    a_part_that_is_asked_for,
    rows_below_one_another,
    a_part_that_is_read_twice,
    the_middle_axis,
]


@pytest.mark.parametrize("make", PROGRAMS)
@pytest.mark.parametrize("rows", [1, 5, 16, 33])
def test_the_same_numbers(make: Any, rows: int, monkeypatch: pytest.MonkeyPatch):
    data = np.random.default_rng(2).standard_normal((rows, 24)).astype(np.float32)
    found: list[Any] = []
    for compiles in (False, True):
        monkeypatch.setattr(engine, "COMPILES", compiles)
        with tf.Graph().as_default(), tf.Session() as session:
            x = tf.placeholder(tf.float32, [rows, 24])
            fetches = make(x)
            session.run(tf.global_variables_initializer())
            found.append(session.run(fetches, {x: data}))
    for ours, theirs in zip(*reversed(found), strict=True):
        np.testing.assert_allclose(ours, theirs, rtol=2e-4, atol=2e-5)


def copies(make: Any, rows: int = 16) -> int:
    """The number of kernels that concatenate."""
    data = np.ones((rows, 24), np.float32)
    with tf.Graph().as_default(), tf.Session() as session:
        x = tf.placeholder(tf.float32, [rows, 24])
        fetches = make(x)
        session.run(tf.global_variables_initializer())
        plan = session.plan(fetches, {x: data})
        names = [kernel.name for kernel in plan.kernels]
        transposing = [{"pack", "transpose"} <= set(name.split("+")) for name in names]
        return sum("concat" in name for name in names) + sum(transposing)


@compiled_only
def test_gradients_of_gates_are_made_in_one_matrix():
    assert copies(gradients) == 0


@compiled_only
@pytest.mark.parametrize("make", [attention, beside_one_another])
def test_what_several_kernels_make_is_made_in_one_matrix(make: Any):
    assert copies(make, 64) == 0


@compiled_only
@pytest.mark.parametrize("make", [a_part_that_is_asked_for, a_part_that_is_read_twice])
def test_what_is_asked_for_or_read_elsewhere_is_copied(make: Any):
    assert copies(make) == 1  # of three


def test_other_readers_read_the_whole_where_a_target_reads_rows_apart() -> None:
    """Gradients of activations read them: a GPU finds them in the concatenation."""
    rng = np.random.default_rng(2)
    with tf.Graph().as_default():
        x = tf.placeholder(tf.float32, [12, 16])
        weights = [tf.constant(rng.standard_normal([16, n]), tf.float32) for n in (16, 8, 24)]
        branches = [tf.tanh(tf.matmul(x, w)) for w in weights]
        joined = tf.concat(branches, 1)
        y = tf.matmul(joined, tf.constant(rng.standard_normal([48, 8]), tf.float32))
        fetches = [y, *tf.gradients(y * y, [x])]
        feeds = {x: rng.standard_normal([12, 16]).astype(np.float32)}
        with on_reference_kernels() as session:
            wanted = session.run(fetches, feeds)
        with emulated_kernels() as machine:
            found = run(fetches, feeds)
    for one, other in zip(found, wanted, strict=True):
        close(one, other, 1e-4, "concat")
    stored = [store for kernel in machine.ran for store in kernel.stores]
    apart = [store for store in stored if 48 in store.offset.terms.values()]
    assert len(apart) == len(weights) + 1  # a product each, where the whole has it, and dy
    assert not any(isinstance(store.value, Select) for store in stored)
