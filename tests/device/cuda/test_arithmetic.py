"""The exactness of GPUs: deterministic sums, and products of float32 rounded to TF32."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import thalweg as tf
from thalweg.device import gpu_options
from thalweg.device.gpu_options import Arithmetic


@pytest.fixture(autouse=True)
def arithmetic(monkeypatch: pytest.MonkeyPatch) -> Any:
    for name, value in vars(Arithmetic()).items():
        monkeypatch.setattr(gpu_options.ARITHMETIC, name, value)
    with tf.Graph().as_default():
        yield


def plan_of(fetch: tf.Tensor, feeds: dict[Any, Any]) -> Any:
    with tf.Session() as session:
        return session.plan(fetch, feeds).kernels


def test_deterministic_sums() -> None:
    x = tf.placeholder(tf.float32, [100, 8])
    rows = tf.placeholder(tf.int32, [100])
    summed = tf.unsorted_segment_sum(x, rows, 5)
    rng = np.random.default_rng(0)
    feeds = {x: rng.normal(size=(100, 8)).astype(np.float32), rows: rng.integers(0, 5, 100)}
    assert any("atomicrmw fadd" in kernel.llvm for kernel in plan_of(summed, feeds))
    tf.config.experimental.enable_op_determinism()
    assert not any("atomicrmw fadd" in kernel.llvm for kernel in plan_of(summed, feeds))
    with tf.Session() as session:
        expected = np.zeros((5, 8), np.float32)
        np.add.at(expected, feeds[rows], feeds[x])
        np.testing.assert_array_equal(session.run(summed, feeds), expected)


def test_caches_distinguish_deterministic_programs() -> None:
    with tf.Session() as session:
        before = [device.key for device in session._engine.devices]
    tf.config.experimental.enable_op_determinism()
    with tf.Session() as session:
        after = [device.key for device in session._engine.devices]
        targets = {device.target.key for device in session._engine.devices}
    assert before[0] == after[0] and before[1] != after[1]
    assert any("deterministic" in key for key in targets)


def test_products_in_tf32() -> None:
    config = tf.config.experimental
    a, b = (tf.placeholder(tf.float32, [256, 256]) for _ in range(2))
    product, rng = tf.matmul(a, b), np.random.default_rng(1)
    feeds = {each: rng.normal(size=(256, 256)).astype(np.float32) for each in (a, b)}
    exact = feeds[a].astype(np.float64) @ feeds[b]
    errors = []
    for enabled in (False, True):
        config.enable_tensor_float_32_execution(enabled)
        assert config.tensor_float_32_execution_enabled() is enabled
        with tf.Session() as session:
            errors.append(np.abs(session.run(product, feeds) - exact).max())
    assert errors[0] < 1e-4 < errors[1] < 0.2
