"""Rows that are reduced and then used are read once."""

from __future__ import annotations

import re
from typing import Any

import numpy as np

import thalweg as tf
from tests.codegen.cuda.sessions import Machine, emulated_kernels, run
from tests.codegen.oracle import close
from tests.ops.harness import on_reference_kernels
from thalweg.codegen.cuda.kernel import emit
from thalweg.codegen.cuda.target import emulated
from thalweg.ir.expr import Load, Reduce
from thalweg.ir.kernel import Loops

R = np.random.default_rng(4)


def held(fetches: Any, feeds: Any) -> Machine:
    """Compare fetches on an emulated GPU with NumPy."""
    with on_reference_kernels() as session:
        wanted = session.run(fetches, feeds)
    with emulated_kernels() as machine:
        found = run(fetches, feeds)
    for one, other in zip(found, wanted, strict=True):
        size = float(np.abs(other).max())
        close(np.asarray(one) / size, np.asarray(other) / size, 1e-4, "rows")
    return machine


def readers(machine: Machine, size: int) -> list[Loops]:
    """The kernels that read so large a buffer."""
    loops = [kernel for kernel in machine.ran if isinstance(kernel, Loops)]
    return [k for k in loops if any(load.buffer.size == size for load in k.every(Load))]


def test_the_gradient_of_a_layer_norm_is_one_kernel() -> None:
    """The sum that the mean's gradient is made of goes through a sum of its own rows."""
    with tf.Graph().as_default():
        x, dy = (tf.placeholder(tf.float32, [130, 256]) for _ in range(2))
        scale = tf.placeholder(tf.float32, [256])
        mean, variance = tf.nn.moments(x, [1], keep_dims=True)
        y = (x - mean) * tf.rsqrt(variance + 1e-5) * scale
        feeds = {t: R.standard_normal(t.shape.as_list()) for t in (x, dy, scale)}
        machine = held(tf.gradients(y, [x], [dy]), feeds)
    (kernel,) = readers(machine, 130 * 256)
    assert len(kernel.stores) == 1


def test_a_loss_between_sums_and_gradient_is_found_with_them() -> None:
    """Labels are checked before, and what reads the losses comes after."""
    with tf.Graph().as_default():
        logits, labels = tf.placeholder(tf.float32, [3, 16640]), tf.placeholder(tf.int32, [3])
        losses = tf.nn.sparse_softmax_cross_entropy_with_logits(labels=labels, logits=logits)
        loss = tf.reduce_mean(losses)
        fetches = [loss, tf.gradients(loss, [logits])[0]]
        feeds = {logits: 3 * R.standard_normal([3, 16640]), labels: np.array([5, 0, 16639])}
        machine = held(fetches, feeds)
    (kernel,) = readers(machine, 3 * 16640)
    assert kernel.every(Reduce)
    assert len(kernel.stores) == 2


def test_a_gradient_takes_the_place_of_long_rows() -> None:
    """The logit of each label, which the loss wants, is read before its place is written."""
    with tf.Graph().as_default():
        x, w = tf.placeholder(tf.float32, [3, 4]), tf.placeholder(tf.float32, [4, 16640])
        labels = tf.placeholder(tf.int32, [3])
        logits = tf.matmul(x, w)
        losses = tf.nn.sparse_softmax_cross_entropy_with_logits(labels=labels, logits=logits)
        fetches = [losses, tf.gradients(losses, [w])[0]]
        feeds = {x: R.standard_normal([3, 4]), w: R.standard_normal([4, 16640])}
        machine = held(fetches, feeds | {labels: np.array([16639, 0, 700])})
    (kernel,) = [k for k in readers(machine, 3 * 16640) if k.every(Reduce)]
    written = {store.buffer for store in kernel.stores}
    assert any(load.buffer in written for load in kernel.every(Load))
    emitted = emit(kernel, emulated()).text
    barriers = len(re.findall("call void @grid.barrier", emitted))
    assert barriers == 5  # two for each reduction, and one before any logit is overwritten
