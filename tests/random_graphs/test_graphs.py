"""Random graphs: sessions agree with plain interpretation, shapes are honest, gradients are right.

The model is `interpret`: every kernel once, in order of creation, no pruning, no slots, no plan.
Sessions run the same kernels here, to the bit; `test_compiled` holds compiled steps to them.
"""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any
from unittest import mock

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import thalweg as tf
from tests.random_graphs import examples
from tests.random_graphs.generator import Array, GraphGenerator, Values, interpret
from tests.random_graphs.rules import EVERYTHING, SMOOTH
from thalweg.device.local import local_devices
from thalweg.graph.node import Node
from thalweg.runtime import engine
from thalweg.runtime.plan import Step, plan


@pytest.fixture(autouse=True, scope="module")
def on_reference_kernels() -> Iterator[None]:
    with mock.patch.object(engine, "COMPILES", False):
        yield


@st.composite
def graphs(draw: Any, most: int = 20) -> GraphGenerator:
    """A graph of about `most` ops over all dtypes."""
    generator = GraphGenerator(draw)
    with generator.graph.as_default():
        generator.grow(EVERYTHING, draw(st.integers(1, most)))
    return generator


def assert_same(actual: Any, wanted: Array) -> None:
    """Equal dtype, shape and bits: both sides ran the same kernels."""
    assert np.asarray(actual).dtype == wanted.dtype
    wide = np.float32 if wanted.dtype.name == "bfloat16" else wanted.dtype  # whose NaNs NumPy knows
    np.testing.assert_array_equal(np.asarray(actual, wide), wanted.astype(wide))


def some(draw: Any, tensors: list[tf.Tensor]) -> list[tf.Tensor]:
    """A few of the tensors, at least one where there is one."""
    return draw(st.lists(st.sampled_from(tensors), min_size=1, max_size=5)) if tensors else []


@examples(80)
@given(graphs())
def test_inferred_shapes_and_dtypes_are_those_of_the_values(generator: GraphGenerator) -> None:
    for tensor, value in generator.values.items():
        assert tensor.shape.is_compatible_with(value.shape), (tensor, value.shape)
        assert tf.as_dtype(value.dtype) == tensor.dtype.base_dtype, tensor


@examples(80)
@given(graphs())
def test_a_session_agrees_with_plain_interpretation(generator: GraphGenerator) -> None:
    everything = list(generator.values)
    with tf.Session(graph=generator.graph) as session:
        found = session.run(everything, generator.feeds)
    for value, tensor in zip(found, everything, strict=True):
        assert_same(value, generator.values[tensor])


@examples(120)
@given(graphs(), st.data())
def test_any_subset_may_be_fetched_and_any_tensor_fed(generator: GraphGenerator, data: Any) -> None:
    fetches = some(data.draw, generator.tensors)
    fed = some(data.draw, generator.tensors) if data.draw(st.booleans()) else []
    feeds = {**generator.feeds, **{t: other_value(generator.values[t]) for t in fed}}
    expected = interpret(generator.graph.nodes, feeds)
    with tf.Session(graph=generator.graph) as session:
        for value, tensor in zip(session.run(fetches, feeds), fetches, strict=True):
            assert_same(value, expected[tensor])


def other_value(value: Array) -> Array:
    """Another value of the same shape; integers stay, since indices may hang on them."""
    if value.dtype.kind in "iub":
        return value
    return value[..., ::-1] if value.ndim else value + value


@examples(80)
@given(graphs(), st.data())
def test_a_plan_runs_what_is_needed_and_nothing_else(generator: GraphGenerator, data: Any) -> None:
    fetches, fed = some(data.draw, generator.tensors), some(data.draw, generator.tensors)
    step = Step(tuple(dict.fromkeys(fetches)), (), tuple(dict.fromkeys(fed)))
    planned = plan(step, local_devices({}), compiled=False)
    ran = [instruction.node for instruction in planned.instructions]
    assert len(ran) == len(set(ran))
    assert set(ran) == needed(fetches, set(fed))
    position = {node: index for index, node in enumerate(ran)}
    for node in ran:
        inputs = [t.op for t in node.inputs if t not in fed]
        assert all(position[before] < position[node] for before in inputs)


def needed(tensors: list[tf.Tensor], fed: set[tf.Tensor]) -> set[Node]:
    """The nodes behind tensors, by the definition: not beyond what is fed."""
    nodes: set[Node] = set()
    for tensor in tensors:
        if tensor not in fed and tensor.op not in nodes:
            nodes |= {tensor.op} | needed(list(tensor.op.inputs), fed)
    return nodes


@examples(40, soak=1000)
@given(graphs(), st.data())
def test_threads_do_not_disturb_each_other(generator: GraphGenerator, data: Any) -> None:
    subsets = [some(data.draw, generator.tensors) for _ in range(4)]
    with tf.Session(graph=generator.graph) as session, ThreadPoolExecutor(4) as pool:
        steps = [pool.submit(session.run, subset, generator.feeds) for subset in subsets * 3]
        for step, subset in zip(steps, subsets * 3, strict=True):
            for value, tensor in zip(step.result(), subset, strict=True):
                assert_same(value, generator.values[tensor])


@examples(40, soak=1000)
@given(graphs())
def test_a_graph_read_back_gives_the_same(generator: GraphGenerator) -> None:
    written = generator.graph.as_graph_def().SerializeToString()
    with tf.Graph().as_default() as graph, tf.Session() as session:
        tf.import_graph_def(tf.GraphDef.FromString(written), name="")
        fetches = [graph.get_tensor_by_name(tensor.name) for tensor in generator.values]
        feeds = {tensor.name: value for tensor, value in generator.feeds.items()}
        found = session.run(fetches, feeds) if fetches else []
    for value, expected in zip(found, generator.values.values(), strict=True):
        assert_same(value, expected)


# Gradients


@st.composite
def smooth_graphs(draw: Any) -> GraphGenerator:
    """A graph of smooth functions in float64 whose values stay small."""
    generator = GraphGenerator(draw, (np.float64,))
    with generator.graph.as_default():
        generator.placeholder(np.float64, draw(st.sampled_from([(), (3,), (2, 3), (1, 5), (0, 2)])))
        for _ in range(draw(st.integers(1, 12))):
            generator.grow(SMOOTH, 1)
            last = generator.tensors[-1]
            if np.abs(generator.values[last]).max(initial=0) > 3:
                generator.tensors.remove(last)
                generator.note(tf.tanh(last))
    return generator


@pytest.mark.filterwarnings("ignore:Converting sparse IndexedSlices")
@examples(80)
@given(smooth_graphs())
def test_gradients_agree_with_central_differences(generator: GraphGenerator) -> None:
    x = generator.tensors[0]
    with generator.graph.as_default(), tf.Session() as session:
        y = tf.add_n([tf.reduce_sum(tf.sin(t)) for t in generator.tensors[-3:]])
        (dx,) = tf.gradients(y, x)
        slope = np.zeros_like(generator.values[x])
        if dx is not None:
            dense = tf.convert_to_tensor(dx)
            assert dense.shape.is_compatible_with(slope.shape)
            slope = session.run(dense, generator.feeds)
    nodes = generator.graph.nodes[: y.op.index + 1]
    expected = differences(nodes, generator.feeds, x, y)
    np.testing.assert_allclose(slope, expected, rtol=1e-4, atol=1e-6)


def differences(nodes: list[Node], feeds: Values, x: tf.Tensor, y: tf.Tensor) -> Array:
    """The slope of y by each element of x."""
    slope, step = np.zeros_like(feeds[x]), 1e-5
    for index in np.ndindex(slope.shape):
        shift = np.zeros_like(slope)
        shift[index] = step
        above = interpret(nodes, {**feeds, x: feeds[x] + shift})[y]
        below = interpret(nodes, {**feeds, x: feeds[x] - shift})[y]
        slope[index] = (above - below) / (2 * step)
    return slope
