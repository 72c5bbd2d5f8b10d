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
from tests.random_graphs.rules import EVERYTHING, SMOOTH
from tests.random_graphs.sketch import Array, Sketch, Values, interpret
from thalweg.device.local import local_devices
from thalweg.graph.node import Node
from thalweg.runtime import session as sessions
from thalweg.runtime.plan import Step, plan


@pytest.fixture(autouse=True, scope="module")
def on_reference_kernels() -> Iterator[None]:
    with mock.patch.object(sessions, "COMPILES", False):
        yield


@st.composite
def sketches(draw: Any, most: int = 20) -> Sketch:
    """A graph of about `most` ops over all dtypes."""
    sketch = Sketch(draw)
    with sketch.graph.as_default():
        sketch.grow(EVERYTHING, draw(st.integers(1, most)))
    return sketch


def assert_same(actual: Any, wanted: Array) -> None:
    """Equal dtype, shape and bits: both sides ran the same kernels."""
    assert np.asarray(actual).dtype == wanted.dtype
    wide = np.float32 if wanted.dtype.name == "bfloat16" else wanted.dtype  # whose NaNs NumPy knows
    np.testing.assert_array_equal(np.asarray(actual, wide), wanted.astype(wide))


def some(draw: Any, tensors: list[tf.Tensor]) -> list[tf.Tensor]:
    """A few of the tensors, at least one where there is one."""
    return draw(st.lists(st.sampled_from(tensors), min_size=1, max_size=5)) if tensors else []


@examples(150)
@given(sketches())
def test_inferred_shapes_and_dtypes_are_those_of_the_values(sketch: Sketch) -> None:
    for tensor, value in sketch.values.items():
        assert tensor.shape.is_compatible_with(value.shape), (tensor, value.shape)
        assert tf.as_dtype(value.dtype) == tensor.dtype.base_dtype, tensor


@examples(150)
@given(sketches())
def test_a_session_agrees_with_plain_interpretation(sketch: Sketch) -> None:
    everything = list(sketch.values)
    with tf.Session(graph=sketch.graph) as session:
        found = session.run(everything, sketch.feeds)
    for value, tensor in zip(found, everything, strict=True):
        assert_same(value, sketch.values[tensor])


@examples(300)
@given(sketches(), st.data())
def test_any_subset_may_be_fetched_and_any_tensor_fed(sketch: Sketch, data: Any) -> None:
    fetches = some(data.draw, sketch.tensors)
    fed = some(data.draw, sketch.tensors) if data.draw(st.booleans()) else []
    feeds = {**sketch.feeds, **{t: other_value(sketch.values[t]) for t in fed}}
    wanted = interpret(sketch.graph.nodes, feeds)
    with tf.Session(graph=sketch.graph) as session:
        for value, tensor in zip(session.run(fetches, feeds), fetches, strict=True):
            assert_same(value, wanted[tensor])


def other_value(value: Array) -> Array:
    """Another value of the same shape; integers stay, since indices may hang on them."""
    if value.dtype.kind in "iub":
        return value
    return value[..., ::-1] if value.ndim else value + value


@examples(150)
@given(sketches(), st.data())
def test_a_plan_runs_what_is_needed_and_nothing_else(sketch: Sketch, data: Any) -> None:
    fetches, fed = some(data.draw, sketch.tensors), some(data.draw, sketch.tensors)
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


@examples(60, soak=1000)
@given(sketches(), st.data())
def test_threads_do_not_disturb_each_other(sketch: Sketch, data: Any) -> None:
    subsets = [some(data.draw, sketch.tensors) for _ in range(4)]
    with tf.Session(graph=sketch.graph) as session, ThreadPoolExecutor(4) as pool:
        steps = [pool.submit(session.run, subset, sketch.feeds) for subset in subsets * 3]
        for step, subset in zip(steps, subsets * 3, strict=True):
            for value, tensor in zip(step.result(), subset, strict=True):
                assert_same(value, sketch.values[tensor])


@examples(60, soak=1000)
@given(sketches())
def test_a_graph_read_back_gives_the_same(sketch: Sketch) -> None:
    written = sketch.graph.as_graph_def().SerializeToString()
    with tf.Graph().as_default() as graph, tf.Session() as session:
        tf.import_graph_def(tf.GraphDef.FromString(written), name="")
        fetches = [graph.get_tensor_by_name(tensor.name) for tensor in sketch.values]
        feeds = {tensor.name: value for tensor, value in sketch.feeds.items()}
        found = session.run(fetches, feeds) if fetches else []
    for value, wanted in zip(found, sketch.values.values(), strict=True):
        assert_same(value, wanted)


# Gradients


@st.composite
def smooth_sketches(draw: Any) -> Sketch:
    """A graph of smooth functions in float64 whose values stay small."""
    sketch = Sketch(draw, (np.float64,))
    with sketch.graph.as_default():
        sketch.placeholder(np.float64, draw(st.sampled_from([(), (3,), (2, 3), (1, 5), (0, 2)])))
        for _ in range(draw(st.integers(1, 12))):
            sketch.grow(SMOOTH, 1)
            last = sketch.tensors[-1]
            if np.abs(sketch.values[last]).max(initial=0) > 3:
                sketch.tensors.remove(last)
                sketch.note(tf.tanh(last))
    return sketch


@pytest.mark.filterwarnings("ignore:Converting sparse IndexedSlices")
@examples(150)
@given(smooth_sketches())
def test_gradients_agree_with_central_differences(sketch: Sketch) -> None:
    x = sketch.tensors[0]
    with sketch.graph.as_default(), tf.Session() as session:
        y = tf.add_n([tf.reduce_sum(tf.sin(t)) for t in sketch.tensors[-3:]])
        (dx,) = tf.gradients(y, x)
        slope = np.zeros_like(sketch.values[x])
        if dx is not None:
            dense = tf.convert_to_tensor(dx)
            assert dense.shape.is_compatible_with(slope.shape)
            slope = session.run(dense, sketch.feeds)
    nodes = sketch.graph.nodes[: y.op.index + 1]
    wanted = differences(nodes, sketch.feeds, x, y)
    np.testing.assert_allclose(slope, wanted, rtol=1e-4, atol=1e-6)


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
