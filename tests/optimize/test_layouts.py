"""Layouts by cost: the minimum cut against all assignments, each op's form against the op, and the
pass through whole steps and random networks."""

from __future__ import annotations

import itertools
import random
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import thalweg as tf
from tests.optimize.steps import after, changes, step
from tests.optimize.test_algorithms import both, fired
from thalweg.graph.op import REGISTRY
from thalweg.ir.target import LayoutTimes, Target
from thalweg.optimize.layouts import CHANNELS_LAST, form_of, to_first, to_last
from thalweg.optimize.minimum_cut import INFINITE, Cut
from thalweg.optimize.passes.assign_layouts import assign_layouts
from thalweg.optimize.step_graph import StepGraph


@pytest.fixture(autouse=True)
def graph():
    with tf.Graph().as_default() as graph:
        yield graph


def values(*shape: int, dtype: Any = np.float32) -> Any:
    return np.random.default_rng(sum(shape)).normal(size=shape).astype(dtype)


def assert_same(fetches: list[Any], feeds: dict[Any, Any]) -> None:
    for found, expected in zip(*both(fetches, feeds), strict=True):
        scale = float(np.max(np.abs(expected)))  # sums cancel
        np.testing.assert_allclose(found, expected, rtol=1e-4, atol=1e-4 * max(scale, 1e-3))


# The minimum cut


@pytest.mark.parametrize("seed", range(40))
def test_a_cut_is_the_cheapest_of_all(seed: int) -> None:
    rng = random.Random(seed)
    count = rng.randint(1, 7)
    sides = [
        (rng.choice([0, rng.randint(0, 9)]), rng.choice([0, 4, INFINITE])) for _ in range(count)
    ]
    pairs = [(rng.randrange(count), rng.randrange(count), rng.randint(1, 9)) for _ in range(10)]

    def cost(first: set[int]) -> float:
        own = sum(sides[n][0 if n in first else 1] for n in range(count))
        return own + sum(price for a, b, price in pairs if a in first and b not in first)

    cut = Cut()
    vertices = [cut.vertex(*side) for side in sides]
    for a, b, price in pairs:
        cut.edge(vertices[a], vertices[b], price)
    chosen = cut.first_side()
    actual = {n for n in range(count) if vertices[n] in chosen}
    every = [
        set(some)
        for size in range(count + 1)
        for some in itertools.combinations(range(count), size)
    ]
    assert cost(actual) == min(map(cost, every))


# Forms: what an op computes with channels last is what it computes, transposed

IMAGE, SMALL = (2, 3, 6, 5), (2, 3, 3, 3)
WINDOW = {"strides": (1, 1, 2, 2), "padding": "SAME", "data_format": "NCHW"}
POOL = WINDOW | {"ksize": (1, 1, 2, 2)}
VOLUME = {"strides": (1, 1, 1, 2, 1), "padding": "SAME", "data_format": "NCDHW"}
DILATED = {"dilations": (1, 1, 1, 1, 1)}
NORM = {"epsilon": 0.1, "data_format": "NCHW", "is_training": True}
CHANNELS = [(3,)] * 4
INT = np.int32

Case = tuple[dict[str, Any], list[Any]]
#: Attributes and inputs, an input by its shape or its value.
CASES: dict[str, list[Case]] = {
    "Conv2D": [
        (WINDOW, [IMAGE, (3, 2, 3, 4)]),
        (WINDOW | {"strides": (1, 1, 1, 1), "dilations": (1, 1, 2, 1)}, [IMAGE, (2, 2, 3, 4)]),
        (
            WINDOW | {"padding": "EXPLICIT", "explicit_paddings": (0, 0, 0, 0, 1, 0, 2, 1)},
            [IMAGE, (3, 2, 3, 4)],
        ),
    ],
    "Conv2DBackpropInput": [(WINDOW, [np.array(IMAGE, INT), (3, 2, 3, 4), (2, 4, 3, 3)])],
    "Conv2DBackpropFilter": [(WINDOW, [IMAGE, np.array((3, 2, 3, 4), INT), (2, 4, 3, 3)])],
    "DepthwiseConv2dNative": [(WINDOW, [IMAGE, (3, 2, 3, 2)])],
    "DepthwiseConv2dNativeBackpropInput": [
        (WINDOW, [np.array(IMAGE, INT), (3, 2, 3, 2), (2, 6, 3, 3)])
    ],
    "DepthwiseConv2dNativeBackpropFilter": [
        (WINDOW, [IMAGE, np.array((3, 2, 3, 2), INT), (2, 6, 3, 3)])
    ],
    "Conv3D": [(VOLUME | DILATED, [(1, 2, 3, 4, 3), (2, 2, 2, 2, 3)])],
    "Conv3DBackpropInputV2": [
        (VOLUME | DILATED, [np.array((1, 2, 3, 4, 3), INT), (2, 2, 2, 2, 3), (1, 3, 3, 2, 3)])
    ],
    "Conv3DBackpropFilterV2": [
        (VOLUME | DILATED, [(1, 2, 3, 4, 3), np.array((2, 2, 2, 2, 3), INT), (1, 3, 3, 2, 3)])
    ],
    "MaxPool": [(POOL, [IMAGE])],
    "MaxPoolGrad": [(POOL, [IMAGE, SMALL, SMALL])],
    "MaxPoolGradGrad": [(POOL, [IMAGE, SMALL, IMAGE])],
    "AvgPool": [(POOL, [IMAGE])],
    "AvgPoolGrad": [(POOL, [np.array(IMAGE, INT), SMALL])],
    "MaxPool3D": [(VOLUME | {"ksize": (1, 1, 2, 2, 2)}, [(1, 2, 3, 4, 3)])],
    "MaxPool3DGrad": [
        (VOLUME | {"ksize": (1, 1, 2, 2, 2)}, [(1, 2, 3, 4, 3), (1, 2, 3, 2, 3), (1, 2, 3, 2, 3)])
    ],
    "MaxPool3DGradGrad": [
        (VOLUME | {"ksize": (1, 1, 2, 2, 2)}, [(1, 2, 3, 4, 3), (1, 2, 3, 2, 3), (1, 2, 3, 4, 3)])
    ],
    "AvgPool3D": [(VOLUME | {"ksize": (1, 1, 2, 2, 2)}, [(1, 2, 3, 4, 3)])],
    "AvgPool3DGrad": [
        (VOLUME | {"ksize": (1, 1, 2, 2, 2)}, [np.array((1, 2, 3, 4, 3), INT), (1, 2, 3, 2, 3)])
    ],
    "BiasAdd": [({"data_format": "NCHW"}, [IMAGE, (3,)])],
    "BiasAddGrad": [({"data_format": "NCHW"}, [IMAGE])],
    "FusedBatchNormV2": [(NORM, [IMAGE, *CHANNELS])],
    "FusedBatchNormGradV2": [(NORM, [IMAGE, IMAGE, *CHANNELS[:3]])],
    "Mul": [({}, [IMAGE, IMAGE]), ({}, [IMAGE, ()]), ({}, [(3, 1, 1), IMAGE]), ({}, [IMAGE, (5,)])],
    "Relu": [({}, [IMAGE])],
    "SelectV2": [({}, [np.arange(6).reshape(2, 3, 1, 1) % 2 == 0, IMAGE, (2, 3, 1, 5)])],
    "AddN": [({}, [[IMAGE, IMAGE, IMAGE]])],
    "ZerosLike": [({}, [IMAGE])],
    "ConcatV2": [({}, [[IMAGE, IMAGE], np.array(axis, INT)]) for axis in (0, 1, 2, -1)],
    "Split": [({"num_split": 3}, [np.array(1, INT), IMAGE])],
    "SplitV": [({"num_split": 2}, [IMAGE, np.array([1, 2], INT), np.array(1, INT)])],
    "Slice": [({}, [IMAGE, np.array([0, 1, 2, 3], INT), np.array([2, -1, 3, 1], INT)])],
    "Shape": [({}, [IMAGE])],
    "Pad": [({}, [IMAGE, np.arange(8, dtype=INT).reshape(4, 2)])],
    "PadV2": [({}, [IMAGE, np.arange(8, dtype=INT).reshape(4, 2), ()])],
    "BroadcastTo": [({}, [(2, 3, 1, 1), np.array(IMAGE, INT)])],
    "Tile": [({}, [(2, 3, 1, 1), np.array((1, 2, 3, 4), INT)])],
    "Sum": [
        ({"keep_dims": keep}, [IMAGE, np.array(axes, INT)])
        for keep, axes in [(False, [2, 3]), (False, [0, -1, 2]), (False, [1]), (True, [1, 3])]
    ],
    "Max": [({}, [IMAGE, np.array([2, 3], INT)])],
    "Transpose": [({}, [IMAGE, np.array(order(4), INT)]) for order in (to_first, to_last)],
}


def test_every_op_with_a_layout_has_a_case() -> None:
    assert {name for name, kind in REGISTRY.items() if kind.laid_out} <= CASES.keys()


def test_no_other_op_has_the_attribute_unseen() -> None:
    with_format = {name for name, kind in REGISTRY.items() if "data_format" in kind.fields}
    without = {name for name in with_format if not REGISTRY[name].laid_out}
    assert {name for name in without if "Argmax" not in name and "Quantized" not in name} == {
        "DepthToSpace",
        "SpaceToDepth",
    }


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize(
    ("name", "case"), [(name, case) for name, cases in CASES.items() for case in cases]
)
def test_a_form_computes_the_same(name: str, case: Case, dtype: Any) -> None:
    attributes, given = case
    inputs = [_tensor(each, dtype) for each in given]
    result = REGISTRY[name](**attributes)(*inputs)
    node = (result if isinstance(result, tf.Tensor) else result[0]).op
    form = form_of(node, LayoutTimes())
    assert form is not None
    assert form.gain >= 0
    moved = list(node.inputs)
    for place in form.inputs:
        moved[place] = tf.transpose(moved[place], to_last(moved[place].shape.rank))
    built = form.build(moved)
    outputs = [built] if isinstance(built, tf.Tensor) else list(built)
    back = [
        tf.transpose(t, to_first(t.shape.rank)) if n in form.outputs else t
        for n, t in enumerate(outputs)
    ]
    with tf.Session() as session:
        found, wanted = session.run([back, list(node.outputs)])
    assert form.outputs or form.inputs
    for one, other in zip(found, wanted, strict=True):
        np.testing.assert_allclose(
            one, other, rtol=1e-4 if dtype == np.float32 else 1e-9, atol=1e-5
        )


def _tensor(given: Any, dtype: Any) -> Any:
    if isinstance(given, list):
        return [_tensor(each, dtype) for each in given]
    if isinstance(given, np.ndarray):
        return tf.constant(given)
    return tf.constant(np.abs(values(*given, dtype=dtype)))


def test_what_is_left_of_a_reduction_must_be_in_order() -> None:
    image = tf.placeholder(tf.float32, IMAGE)
    times = LayoutTimes()  # channels and rows would swap
    assert form_of(tf.reduce_sum(image, [0, 3]).op, times) is None
    assert form_of(tf.reduce_sum(image, [0, 3], keepdims=True).op, times) is not None


def test_channels_last_has_no_other_form() -> None:
    image = tf.placeholder(tf.float32, [2, 6, 5, 3])
    assert form_of(tf.nn.max_pool(image, 2, 2, "SAME").op, LayoutTimes()) is None


# The pass


def convolution(x: Any, channels: int, size: int = 3, stride: int = 1) -> Any:
    weights = tf.Variable(values(size, size, int(x.shape[1]), channels) / 10)
    return tf.nn.conv2d(x, weights, [1, 1, stride, stride], "SAME", data_format="NCHW")


def pooled(x: Any) -> Any:
    return tf.nn.max_pool(x, [1, 1, 2, 2], [1, 1, 2, 2], "SAME", data_format="NCHW")


def normed(x: Any) -> Any:
    channels = int(x.shape[1])
    scale, offset = tf.Variable(tf.ones(channels)), tf.Variable(tf.zeros(channels))
    return tf.nn.fused_batch_norm(x, scale, offset, data_format="NCHW")[0]


def test_a_network_is_transposed_at_its_ends_alone() -> None:
    x = tf.placeholder(tf.float32, [8, 16, 24, 24], name="x")
    h = tf.nn.relu(normed(convolution(x, 32)))
    h = pooled(tf.nn.bias_add(convolution(h, 32), tf.zeros(32), "NCHW") + h)
    y = tf.reduce_mean(tf.concat([h, convolution(h, 32)], 1), [2, 3])
    slopes = tf.gradients(y, tf.trainable_variables())
    done = after(assign_layouts, step([y, *slopes], feeds=[x]))
    assert "NCHW" not in done
    assert done.count(" = Transpose(") == 2  # of x, and of the mean's gradient: [8, 64, 1, 1]
    assert_same([y, *slopes], {x: values(8, 16, 24, 24)})


def test_transposes_of_the_users_go() -> None:
    x = tf.placeholder(tf.float32, [8, 24, 24, 16], name="x")
    y = tf.transpose(tf.nn.relu(convolution(tf.transpose(x, [0, 3, 1, 2]), 16)), [0, 2, 3, 1])
    assert " = Transpose(" not in after(assign_layouts, step([y], feeds=[x]))
    assert_same([y], {x: values(8, 24, 24, 16)})


def test_a_cheap_node_between_ends_stays_as_it_is_written() -> None:
    x = tf.placeholder(tf.float32, [8, 64, 28, 28], name="x")
    y = convolution(x, 64, size=1)  # two transposes would take longer than what is gained
    assert not changes(assign_layouts, step([y], feeds=[x]))


def test_a_fed_image_is_what_is_fed() -> None:
    x = tf.placeholder(tf.float32, [8, 16, 24, 24], name="x")
    h = tf.nn.relu(convolution(x, 32))
    y = convolution(h, 32)
    assert_same([y], {h: values(8, 32, 24, 24)})
    assert_same([h, y], {x: values(8, 16, 24, 24)})


def test_sizes_need_not_be_known() -> None:
    x = tf.placeholder(tf.float32, [None, 16, None, 24], name="x")
    y = tf.reduce_sum(pooled(tf.nn.relu(convolution(convolution(x, 32), 16))), [1, 2, 3])
    slopes = tf.gradients(y, [x, *tf.trainable_variables()])
    assert fired([y, *slopes], [x])["channels last"] > 3
    assert_same([y, *slopes], {x: values(4, 16, 12, 24)})


@pytest.mark.parametrize("times", [None, LayoutTimes()])
def test_the_times_of_the_device_decide(times: LayoutTimes | None) -> None:
    x = tf.placeholder(tf.float32, [8, 16, 24, 24], name="x")
    y = convolution(x, 32)
    nodes, device = step([y], feeds=[x]).nodes, "/device:GPU:0"
    devices = dict.fromkeys([node.original for node in nodes], device)
    assert not changes(assign_layouts, StepGraph(nodes, [y], (), frozenset([x]), devices))
    known = {device: Target(name="known", layout_times=times)}
    given = StepGraph(nodes, [y], (), frozenset([x]), devices, known)
    assert changes(assign_layouts, given) is (times is not None)


def test_a_second_run_finds_nothing() -> None:
    x = tf.placeholder(tf.float32, [8, 16, 24, 24], name="x")
    before = step([tf.nn.relu(convolution(x, 32))], feeds=[x])
    assign_layouts(before)
    count = len(before.changes)
    assign_layouts(before)
    assert len(before.changes) == count


def random_network(rng: random.Random) -> tuple[Any, list[Any]]:
    """A network of both layouts, with branches and what moves between them."""
    x = tf.placeholder(tf.float32, [2, 4, 8, 8], name="x")
    live = [x]
    steps: list[Callable[[Any], Any]] = [
        lambda h: convolution(h, 4, rng.choice([1, 3])),
        normed,
        tf.nn.relu,
        lambda h: h * values(4, 1, 1) + values(1, 4, 1, 1),
        lambda h: h + rng.choice(live),
        lambda h: tf.add_n([h, rng.choice(live), h]),
        lambda h: tf.concat([h, rng.choice(live)], rng.choice([1, 2]))[:, :4, :8],
        lambda h: tf.pad(h, [[0, 0], [0, 0], [1, 0], [0, 1]])[:, :, :8, :8],
        lambda h: h - tf.reduce_mean(h, rng.choice([[2, 3], [1], [0, 2]]), keepdims=True),
        lambda h: tf.transpose(
            tf.nn.max_pool(tf.transpose(h, [0, 2, 3, 1]), 3, 1, "SAME"), [0, 3, 1, 2]
        ),
        lambda h: tf.concat(tf.split(h, 2, axis=1)[::-1], 1),
        lambda h: tf.nn.avg_pool(h, [1, 1, 2, 2], [1, 1, 1, 1], "SAME", data_format="NCHW"),
    ]
    for _ in range(rng.randint(3, 9)):
        live.append(rng.choice(steps)(rng.choice(live[-3:])))
    sums = [tf.reduce_sum(h * h, rng.choice([[2, 3], [0, 1], [1, 2, 3]])) for h in live[-2:]]
    return x, [*sums, *tf.gradients(sums[0], [x]), live[-1]]


@pytest.mark.parametrize("seed", range(12))
def test_random_networks_give_the_same(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    slow = Target(name="slow", layout_times=LayoutTimes(window=0.1))  # small images, as if large
    monkeypatch.setattr(StepGraph, "target", lambda *_: slow)
    x, fetches = random_network(random.Random(seed))
    after(assign_layouts, step(fetches, feeds=[x]))
    assert_same(fetches, {x: values(2, 4, 8, 8)})


def test_layouts_have_names() -> None:
    assert {len(name) for name in CHANNELS_LAST} == {4, 5}
