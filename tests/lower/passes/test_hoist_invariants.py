"""Values per channel are computed once, and a batch is read once for all its sums."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

import thalweg as tf
from tests.codegen.cuda.sessions import Machine, emulated_kernels, run
from tests.codegen.oracle import close
from tests.ops.harness import on_reference_kernels
from thalweg.codegen.cuda.target import emulated
from thalweg.ir.expr import Call, Load, Reduce
from thalweg.ir.kernel import Loops

R = np.random.default_rng(4)
SHAPE = (16, 16, 16, 16)


def _both(is_gradient: bool, shift: float = 0.0) -> Machine:
    """Compare a batch norm, or its gradient, on an emulated GPU with NumPy."""
    with tf.Graph().as_default():
        x, dy = (tf.placeholder(tf.float32, SHAPE) for _ in range(2))
        scale, offset = (tf.Variable(R.standard_normal([16]), dtype=tf.float32) for _ in range(2))
        y, mean, variance = tf.nn.fused_batch_norm(x, scale, offset)
        fetches: list[Any] = [tf.nn.relu(y), mean, variance]
        if is_gradient:
            fetches = tf.gradients(y, [x, scale, offset], [dy])
        feeds = {t: R.standard_normal(t.shape.as_list()) for t in (x, dy)}
        feeds[x] += shift
        with on_reference_kernels() as session:
            session.run(tf.global_variables_initializer())
            wanted = session.run(fetches, feeds)
        with emulated_kernels() as machine:
            found = run(fetches, feeds)
    for one, other in zip(found, wanted, strict=True):
        size = float(np.abs(other).max())
        close(np.asarray(one) / size, np.asarray(other) / size, 1e-4, "batch norm")
    return machine


def _divides(kernel: Any) -> bool:
    return any(call.function in ("div", "sqrt") for call in kernel.every(Call))


@pytest.mark.parametrize("is_gradient", [False, True])
def test_loops_over_rows_divide_nothing(is_gradient: bool) -> None:
    machine = _both(is_gradient)
    rows = [k for k in machine.ran if isinstance(k, Loops) and len(k.variables) > 1]
    assert rows
    assert not any(map(_divides, rows))


def test_a_batch_is_read_once_for_all_its_sums() -> None:
    (sums,) = [kernel for kernel in _both(is_gradient=False).ran if kernel.every(Reduce)]
    assert len(sums.every(Reduce)) == 2
    large = [load for load in sums.every(Load) if load.offset.bounds[1] > 16]
    assert len({load.buffer for load in large}) == 1


def test_a_far_mean_costs_no_digits_of_the_variance() -> None:
    _both(is_gradient=False, shift=1000.0)


def test_the_sums_of_long_rows_are_found_once_for_a_loss_and_its_gradient() -> None:
    with tf.Graph().as_default():
        logits, labels = tf.placeholder(tf.float32, [3, 600]), tf.placeholder(tf.int32, [3])
        losses = tf.nn.sparse_softmax_cross_entropy_with_logits(labels=labels, logits=logits)
        fetches = [losses, tf.gradients(losses, [logits])[0], tf.nn.softmax(logits)]
        feeds = {logits: 3 * R.standard_normal([3, 600]), labels: np.array([5, 0, 599])}
        with on_reference_kernels() as session:
            wanted = session.run(fetches, feeds)
        with emulated_kernels(replace(emulated(), max_row_at_hand=128)) as machine:
            found = run(fetches, feeds)
    for one, other in zip(found, wanted, strict=True):
        close(one, other, 2e-5, "long rows")
    reducing = [kernel for kernel in machine.ran if kernel.every(Reduce)]
    assert len(reducing) == 1


def test_a_cpu_divides_once_for_each_channel_too() -> None:
    with tf.Graph().as_default(), tf.Session() as session:
        x = tf.placeholder(tf.float32, SHAPE)
        scale, offset = (tf.Variable(R.standard_normal([16]), dtype=tf.float32) for _ in range(2))
        y = tf.nn.relu(tf.nn.fused_batch_norm(x, scale, offset)[0])
        session.run(tf.global_variables_initializer())
        programs = [region.step for region in session.plan(y, {x: np.zeros(SHAPE)}).regions]
    kernels = [
        launch.kernel
        for program in programs
        if program
        for launch in program.listing.lowered.launches
    ]
    rows = [k for k in kernels if isinstance(k, Loops) and len(k.variables) > 2]
    assert rows
    assert not any(map(_divides, rows))
