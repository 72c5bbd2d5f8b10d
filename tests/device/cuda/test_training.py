"""Training on a GPU: losses compared with the CPU's."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import thalweg as tf

sys.path.insert(0, str(Path(__file__).parents[3] / "examples"))

import gpt

_ON = 1  # of a switch of `rewrite_options`


def losses(
    make: Callable[[], Any], device: str, mixed: bool = False, steps: int = 3
) -> list[float]:
    """The losses of a few steps; `make` returns the loss, a training op and a batch generator."""
    config = tf.ConfigProto()
    if mixed:
        config.graph_options.rewrite_options.auto_mixed_precision = _ON
    with tf.Graph().as_default(), tf.Session(config=config) as session:
        tf.set_random_seed(0)
        with tf.device(device):
            loss, train, feeds = make()
        session.run(tf.global_variables_initializer())
        result = [float(session.run([loss, train], feeds())[0]) for _ in range(steps)]
        dtypes = {v.dtype.base_dtype for v in tf.trainable_variables()}
        assert not mixed or dtypes == {tf.float32}  # the master weights are float32
        return result


def small_gpt() -> Any:
    text = gpt.Text("to be or not to be, that is the question: " * 8)
    model = gpt.Gpt(len(text.characters))

    def feeds() -> dict[Any, Any]:
        return dict(zip((model.ids, model.labels), text.batch(), strict=True))

    return model.loss, model.step, feeds


def test_a_gpt_in_mixed_precision(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, size in {"LAYERS": 1, "WIDTH": 32, "HEADS": 2, "LENGTH": 17, "BATCH": 2}.items():
        monkeypatch.setattr(gpt, name, size)
    cpu, gpu = (losses(small_gpt, device, mixed=True) for device in ("/cpu:0", "/gpu:0"))
    np.testing.assert_allclose(gpu, cpu, rtol=0.01)


def test_an_lstm() -> None:
    def make() -> Any:
        x = tf.placeholder(tf.float32, [4, 3, 8])
        cell = tf.nn.rnn_cell.BasicLSTMCell(16)
        outputs, _ = tf.nn.static_rnn(cell, tf.unstack(x), dtype=tf.float32)
        loss = tf.reduce_mean(tf.square(tf.stack(outputs) - 0.5))
        value = np.random.default_rng(0).normal(size=[4, 3, 8])
        return loss, tf.train.AdamOptimizer(0.05).minimize(loss), lambda: {x: value}

    np.testing.assert_allclose(losses(make, "/gpu:0"), losses(make, "/cpu:0"), rtol=1e-4)
