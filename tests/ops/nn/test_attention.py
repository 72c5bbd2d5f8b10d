"""Attention as one op: its kernels, its loops and its gradients next to plain products'."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import thalweg as tf
from tests.ops.harness import on_reference_kernels
from thalweg.ops.nn.attention import FusedAttention, FusedAttentionGrad

R = np.random.default_rng(4)

#: the shapes of q, k, v and the mask; causal
CASES: dict[str, tuple[list[tuple[int, ...]], bool]] = {
    "plain": ([(2, 3, 5, 4), (2, 3, 6, 4), (2, 3, 6, 7), ()], False),
    "causal": ([(2, 5, 4), (2, 7, 4), (2, 7, 4), ()], True),
    "masked": ([(2, 3, 5, 4), (2, 3, 6, 4), (2, 3, 6, 4), (2, 1, 1, 6)], False),
    "batches that broadcast": ([(3, 5, 4), (2, 1, 6, 4), (3, 6, 2), (5, 6)], True),
}


def naive(q: Any, k: Any, v: Any, mask: Any, scale: float, causal: bool) -> Any:
    """The same by products and a softmax."""
    scores = tf.matmul(q, k, transpose_b=True) * scale + mask
    if causal:
        rows, columns = int(q.shape[-2]), int(k.shape[-2])
        scores += np.triu(np.full((rows, columns), -1e30), 1)
    return tf.matmul(tf.nn.softmax(scores), v)


@pytest.mark.parametrize("name", CASES)
def test_as_products_and_a_softmax(name: str) -> None:
    shapes, causal = CASES[name]
    values = [R.normal(size=shape) for shape in shapes]
    attributes: Any = {"scale": 0.3, "causal": causal}
    with tf.Graph().as_default():
        given = [tf.constant(value) for value in values]
        batch = np.broadcast_shapes(*(shape[:-2] for shape in shapes[:3]))
        whole = [tf.broadcast_to(x, [*batch, *x.shape[-2:]]) for x in given[:3]]
        plain = naive(*whole, given[3], **attributes)
        dy = tf.constant(R.normal(size=[int(size) for size in plain.shape]))
        wanted = [plain, *tf.gradients(plain, whole, dy)]
        output, lse = FusedAttention(**attributes)(*given)
        delta = tf.reduce_sum(output * dy, -1)
        slopes = FusedAttentionGrad(**attributes)(*given, dy, lse, tf.cast(delta, tf.float32))
        for session in (tf.Session(), None):
            if session is None:
                with on_reference_kernels() as session:
                    found = session.run([[output, *slopes], wanted])
            else:
                found = session.run([[output, *slopes], wanted])
            for one, other in zip(*found, strict=True):
                assert one.shape == other.shape
                np.testing.assert_allclose(one, other, rtol=2e-5, atol=2e-6)


def test_static_shapes() -> None:
    with tf.Graph().as_default():
        q, k = tf.placeholder(tf.float32, [None, 2, 5, 4]), tf.placeholder(tf.float32, [2, None, 4])
        output, lse = FusedAttention()(q, k, k, tf.constant(0.0))
        assert output.shape.as_list() == [None, 2, 5, 4]
        assert lse.shape.as_list() == [None, 2, 5]
        assert lse.dtype == tf.float32
