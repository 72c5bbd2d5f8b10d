"""Which tensors are stored, by the kernels of whole steps."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import thalweg as tf
from thalweg.runtime import engine

pytestmark = pytest.mark.skipif(not engine.COMPILES, reason="nothing is compiled")


def kernels(fetch: tf.Tensor, feeds: dict[tf.Tensor, Any]) -> list[str]:
    with tf.Session() as session:
        session.run(tf.global_variables_initializer())
        return [kernel.name for kernel in session.plan(fetch, feeds).kernels]


def test_an_image_is_transposed_once_for_all_windows() -> None:
    with tf.Graph().as_default():
        x = tf.placeholder(tf.float32, [2, 16, 12, 12])
        weights = tf.Variable(tf.ones([3, 3, 16, 32]))
        y = tf.nn.conv2d(tf.transpose(x, [0, 2, 3, 1]), weights, 1, "SAME")
        assert kernels(y, {x: np.ones(x.shape)}) == ["transpose", "conv2d"]


def test_a_product_transposes_as_it_packs() -> None:
    with tf.Graph().as_default():
        x = tf.placeholder(tf.float32, [64, 48])
        y = tf.matmul(tf.transpose(x), tf.ones([64, 80]) * x[0, 0])
        assert not [name for name in kernels(y, {x: np.ones(x.shape)}) if name == "transpose"]
