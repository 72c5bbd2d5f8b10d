"""Which products around a softmax become attention, and which stay what they are."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest

import thalweg as tf
from thalweg.control.liveness import needed
from thalweg.optimize.options import OptimizerSwitches, Toggle
from thalweg.optimize.pipeline import optimize

GPU = "/job:localhost/replica:0/task:0/device:GPU:0"
LENGTH = 20


@pytest.fixture(autouse=True)
def graph():
    with tf.Graph().as_default() as graph:
        yield graph


def heads(size: int = 16, dtype: Any = tf.bfloat16) -> list[Any]:
    return [tf.placeholder(dtype, [2, 3, LENGTH, size], name=name) for name in "qkv"]


def causal(dtype: Any = tf.bfloat16) -> Any:
    return np.triu(np.full((LENGTH, LENGTH), -1e9), 1).astype(dtype.as_numpy_dtype)


def attention(q: Any, k: Any, v: Any, scale: float = 0.25, mask: Any = None) -> Any:
    scores = tf.matmul(q, k, transpose_b=True) * scale
    return tf.matmul(tf.nn.softmax(scores if mask is None else scores + mask), v)


def ops(fetches: Sequence[Any], feeds: Sequence[Any], device: str = GPU, **toggles: Toggle) -> list:
    """The ops of a step on a device, after all passes."""
    nodes = needed(fetches, (), dict.fromkeys(feeds))
    switches = OptimizerSwitches(toggles=toggles)
    done = optimize(nodes, tuple(fetches), (), tuple(feeds), dict.fromkeys(nodes, device), switches)
    return [node.op for node in done.nodes]


def fused(found: Sequence[Any]) -> list[Any]:
    return [op for op in found if op.type_name.startswith("FusedAttention")]


def count(found: Sequence[Any], kind: str) -> int:
    return sum(op.type_name == kind for op in found)


def test_the_output() -> None:
    given = heads()
    found = ops([attention(*given)], given)
    (op,) = fused(found)
    assert (op.scale, op.causal) == (0.25, False)
    assert count(found, "Softmax") == count(found, "BatchMatMulV2") == 0


def test_the_output_and_its_gradient() -> None:
    given = heads()
    y = attention(*given, mask=causal())
    found = ops([y, *tf.gradients(tf.square(y), given)], given)
    assert [(op.type_name, op.causal) for op in fused(found)] == [
        ("FusedAttention", True),
        ("FusedAttentionGrad", True),
    ]
    assert count(found, "Softmax") == count(found, "BatchMatMulV2") == 0


@pytest.mark.parametrize("wanted", ["q", "k", "v", "qk", "kv"])
def test_some_gradients(wanted: str) -> None:
    given = heads()
    y = attention(*given)
    slopes = tf.gradients(tf.square(y), [x for x in given if x.op.name in wanted])
    actual = ops([y, *slopes], given)
    assert len(fused(actual)) == 2
    assert count(actual, "BatchMatMulV2") == 0


def test_mixed_precision() -> None:
    given = heads(dtype=tf.float32)
    y = attention(*given, mask=causal(tf.float32))
    fetches = [y, *tf.gradients(tf.square(y), given)]
    assert not fused(ops(fetches, given))
    actual = ops(fetches, given, auto_mixed_precision=Toggle.ON)
    assert len(fused(actual)) == 2
    assert count(actual, "BatchMatMulV2") == 0


def test_forms_of_scale_and_mask() -> None:
    q, k, v = given = heads()
    mask = tf.placeholder(tf.bfloat16, [2, 1, 1, LENGTH])
    for scores in (
        tf.matmul(q, k, transpose_b=True) / 4.0,
        mask + 0.25 * tf.matmul(q, k, transpose_b=True),
        tf.matmul(q, k, transpose_b=True) * 0.25 + causal() * np.float32(1e-9),
    ):
        (op,) = fused(ops([tf.matmul(tf.nn.softmax(scores), v)], [*given, mask]))
        assert (op.scale, op.causal) == (0.25, False)


def test_the_function() -> None:
    given = [*heads(), tf.placeholder(tf.bool, [2, 1, 1, LENGTH])]
    y = tf.nn.scaled_dot_product_attention(*given, is_causal=True)
    found = ops([y, *tf.gradients(tf.square(y), given[:3])], given)
    assert [(op.scale, op.causal) for op in fused(found)] == [(0.25, True)] * 2
    assert count(found, "BatchMatMulV2") == 0


def test_dtypes_sizes_and_devices_that_have_no_kernel() -> None:
    given = heads()
    assert not fused(ops([attention(*given)], given, GPU.replace("GPU", "CPU")))
    for other in (heads(24), heads(144), heads(dtype=tf.float32)):
        assert not fused(ops([attention(*other)], other))


def test_what_something_else_reads_stays() -> None:
    q, k, v = given = heads()
    scores = tf.matmul(q, k, transpose_b=True) * 0.25
    p = tf.nn.softmax(scores)
    y = tf.matmul(p, v)
    for fetches in ([y, p], [y, scores], [y, tf.reduce_sum(p, -2)], [y, tf.matmul(p, k)]):
        assert not fused(ops(fetches, given))
    assert not fused(ops([y], [*given, scores]))  # fed in the place of the product


def test_a_mask_that_is_trained_stays() -> None:
    given = [*heads(), tf.placeholder(tf.bfloat16, [3, LENGTH, LENGTH], name="bias")]
    y = attention(*given[:3], mask=given[3])
    assert len(fused(ops([y], given))) == 1
    assert not fused(ops(tf.gradients(tf.square(y), given), given))


def test_a_gradient_of_other_probabilities_stays() -> None:
    given = heads()
    y = attention(*given)
    p = next(op for op in y.graph.get_operations() if op.type == "Softmax").outputs[0]
    slopes = tf.gradients([y, p * p], given)
    assert not fused(ops([y, *slopes], given))
