"""Random graphs, compiled: steps agree with the NumPy kernels, to the bit with themselves.

Fetched are any tensors, so that what lies between may be fused, inlined and computed in place.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import Any
from unittest import mock

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import thalweg as tf
from tests.random_graphs import examples
from tests.random_graphs.agreement import assert_agree, bits, perturbed, widened
from tests.random_graphs.generator import GraphGenerator, SeededGenerator, interpret
from tests.random_graphs.layers import COMPILED
from tests.random_graphs.redzones import with_redzones
from thalweg.device.cpu import loading
from thalweg.lower.memory import barriers


@st.composite
def graphs(draw: Any, most: int = 30) -> GraphGenerator:
    """A graph of some ops that are mostly compiled, with at least one tensor."""
    generator = SeededGenerator(draw(st.integers(0, 2**63)))
    with generator.graph.as_default():
        generator.placeholder(np.float32, generator.shape())
        generator.grow(COMPILED, draw(st.sampled_from(range(1, most + 1))))
    return generator


def some(generator: GraphGenerator, tensors: list[tf.Tensor]) -> list[tf.Tensor]:
    """A few of the tensors, mostly late ones."""
    computed = [tensor for tensor in tensors if tensor.op.inputs] or tensors
    return list(dict.fromkeys(generator.choose(computed[-6:]) for _ in range(3)))


def on_threads(count: int) -> tf.ConfigProto:
    return tf.ConfigProto(intra_op_parallelism_threads=count)


@contextmanager
def sharing_everything() -> Iterator[None]:
    """Kernels are shared by all threads, however small they are."""
    with ExitStack() as stack:
        stack.enter_context(
            mock.patch.object(loading, "threads_for", lambda _, threads, __: threads)
        )
        stack.enter_context(mock.patch.object(barriers, "is_small", lambda *_: False))
        yield


@examples(80)
@given(graphs())
def test_a_compiled_step_agrees_with_the_numpy_kernels(generator: GraphGenerator) -> None:
    fetches = some(generator, generator.tensors)
    nearby = perturbed(generator.graph.nodes, generator.feeds)
    with with_redzones(), tf.Session(graph=generator.graph) as session:
        found = session.run(fetches, generator.feeds)
    for value, tensor in zip(found, fetches, strict=True):
        assert_agree(value, generator.values[tensor], [values[tensor] for values in nearby])


@examples(40, soak=2000)
@given(graphs())
def test_steps_are_equal_to_the_bit_again_and_on_any_threads(generator: GraphGenerator) -> None:
    fetches = some(generator, generator.tensors)
    results: list[list[bytes]] = []
    with with_redzones(), sharing_everything():
        for threads in (1, 2, 3):
            with tf.Session(graph=generator.graph, config=on_threads(threads)) as session:
                for _ in range(2):
                    found = session.run(fetches, generator.feeds)
                    results.append([bits(value) for value in found])
    assert all(result == results[0] for result in results)


@pytest.mark.filterwarnings("ignore:Converting sparse IndexedSlices")
@examples(30, soak=3000)
@given(graphs(most=20))
def test_gradients_agree_with_the_numpy_kernels(generator: GraphGenerator) -> None:
    with generator.graph.as_default():
        gradients = gradients_of(generator)
    if not gradients:
        return
    nodes = generator.graph.nodes
    expected = interpret(nodes, generator.feeds)
    if not all(np.isfinite(widened(value)).all() for value in expected.values()):
        return  # infinity times the zeros of padding: it matters which zeros are really there
    nearby = perturbed(nodes, generator.feeds)
    with with_redzones(), tf.Session(graph=generator.graph) as session:
        found = session.run(gradients, generator.feeds)
    for value, tensor in zip(found, gradients, strict=True):
        assert_agree(value, expected[tensor], [values[tensor] for values in nearby])


def gradients_of(generator: GraphGenerator) -> list[tf.Tensor]:
    """The slopes of some tensors by the inputs of their dtypes, as far as there are any."""
    smooth = [t for t in generator.tensors if t.dtype.is_floating]
    inputs = [t for t in generator.feeds if t.dtype.is_floating]
    if not smooth or not inputs:
        return []
    outputs = [tf.tanh(tensor) for tensor in some(generator, smooth)]
    try:
        slopes = tf.gradients(outputs, inputs)
    except LookupError:  # an op without a gradient
        return []
    return [tf.convert_to_tensor(slope) for slope in slopes if slope is not None]


@examples(20, soak=500)
@given(st.integers(1, 3), st.integers(1, 40_001), st.sampled_from(["f4", "f8", "i4", "i8"]))
def test_long_reductions_agree(rows: int, length: int, dtype: str) -> None:
    values = (np.arange(rows * length) % 23 - 11).reshape(rows, length).astype(dtype)
    with tf.Graph().as_default():
        x = tf.placeholder(values.dtype, [None, None])
        fetches = [tf.reduce_sum(x, 1), tf.reduce_max(x, 0), tf.reduce_min(x), tf.reduce_sum(x)]
        with tf.Session() as session:
            found = session.run(fetches, {x: values})
    wanted = [values.sum(1), values.max(0), values.min(), values.sum()]
    for value, right in zip(found, wanted, strict=True):
        np.testing.assert_array_equal(value, right)


@pytest.mark.parametrize(
    "dtype", [tf.float16, tf.bfloat16, tf.int8, tf.int16, tf.uint8, tf.float32]
)
@pytest.mark.parametrize("columns", [1, 2, 15, 17, 31, 33, 49, 65])
def test_what_is_left_of_a_row_ends_with_its_buffer(dtype: Any, columns: int) -> None:
    """One element beyond whole vectors: it is stored alone, as short as it is."""
    array = np.ones((3, columns), dtype.as_numpy_dtype)
    with tf.Graph().as_default(), with_redzones(), tf.Session() as session:
        x = tf.placeholder(dtype, [3, columns])
        y = tf.stack([x, x + x, x], 1)
        actual = session.run([y, tf.equal(y, y)], {x: array})
    np.testing.assert_array_equal(actual[0], np.stack([array, array + array, array], 1))
    assert actual[1].all()


@pytest.mark.parametrize("dtype", [tf.float16, tf.bfloat16])
@pytest.mark.parametrize("shape", [(64, 70, 90), (5, 33, 65), (2, 40, 300), (130, 3, 17)])
@pytest.mark.parametrize("flips", [(False, False), (True, False), (False, True), (True, True)])
def test_short_floats_are_summed_as_long_ones(
    dtype: Any, shape: tuple[int, int, int], flips: tuple[bool, bool]
) -> None:
    """The sum is rounded once, and what follows sees it rounded."""
    rng, (m, n, k) = np.random.default_rng(0), shape
    a = rng.normal(size=(k, m) if flips[0] else (m, k)).astype(dtype.as_numpy_dtype)
    b = rng.normal(size=(n, k) if flips[1] else (k, n)).astype(dtype.as_numpy_dtype)
    with tf.Graph().as_default(), with_redzones(), tf.Session() as session:
        x, y = (tf.placeholder(dtype, side.shape) for side in (a, b))
        product = tf.matmul(x, y, transpose_a=flips[0], transpose_b=flips[1])
        actual = session.run([product, tf.cast(product, tf.float32)], {x: a, y: b})
    wide = [side.astype(np.float32) for side in (a, b)]
    exact = (wide[0].T if flips[0] else wide[0]) @ (wide[1].T if flips[1] else wide[1])
    step = 2.0 ** -(11 if dtype is tf.float16 else 8)
    np.testing.assert_allclose(actual[0].astype(np.float32), exact, rtol=1.01 * step, atol=1e-3)
    np.testing.assert_array_equal(actual[1], actual[0].astype(np.float32))


@pytest.mark.parametrize("padding", ["SAME", "VALID"])
@pytest.mark.parametrize("stride", [1, 2])
def test_short_convolutions_and_their_gradients(padding: str, stride: int) -> None:
    rng = np.random.default_rng(0)
    image, kernel = rng.normal(size=(2, 9, 8, 12)), rng.normal(size=(3, 3, 12, 20)) / 10
    results = []
    for dtype in (tf.float16, tf.float32):
        with tf.Graph().as_default(), with_redzones(), tf.Session() as session:
            x = tf.cast(tf.constant(image.astype(np.float16)), dtype)
            w = tf.cast(tf.constant(kernel.astype(np.float16)), dtype)
            y = tf.nn.conv2d(x, w, [1, stride, stride, 1], padding)
            fetches = [tf.cast(t, tf.float32) for t in (y, *tf.gradients(y, [x, w]))]
            results.append(session.run(fetches))
    for short, long in zip(*results, strict=True):
        np.testing.assert_allclose(short, long, rtol=2e-3, atol=2e-3)
