"""What a target that converts and checks for nothing keeps less of, or not for as long.

The rules look at megabytes; here they look at kilobytes, so that small steps show them.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import ml_dtypes
import numpy as np
import pytest

import thalweg as tf
from tests.codegen.cuda.sessions import emulated_kernels, run
from tests.lower.programs import lowered, use_target
from thalweg.codegen.cuda.target import emulated
from thalweg.ir.kernel import Contraction, Loops

ROWS, WIDTH = 64, 96
SMALL = {"far_bytes": 1 << 12, "min_rematerialized_bytes": 256, "min_hoisted_bytes": 256}


@pytest.fixture(autouse=True)
def graph() -> Any:
    with tf.Graph().as_default() as graph:
        yield graph


def weight(name: str, *shape: int) -> Any:
    values = np.random.default_rng(len(name)).standard_normal(shape) / shape[0] ** 0.5
    return tf.Variable(values.astype(ml_dtypes.bfloat16), name=name)


def layers() -> tuple[Any, Any]:
    """Layers whose activation has parts that its gradient reads, too; their loss and gradients."""
    x = tf.placeholder(tf.bfloat16, [ROWS, WIDTH])
    h = x
    for number in range(3):
        u = tf.matmul(h, weight(f"w{number}", WIDTH, WIDTH))
        h = 0.5 * u * (1.0 + tf.tanh(0.8 * (u + 0.04 * u * u * u)))
    loss = tf.reduce_sum(tf.cast(h, tf.float32))
    return x, [loss, *tf.gradients(loss, tf.trainable_variables())]


def test_narrow_values_are_computed_again() -> None:
    x, fetches = layers()
    given = np.random.default_rng(0).standard_normal((ROWS, WIDTH)).astype(ml_dtypes.bfloat16)
    found, counts = [], []
    for far in (1 << 60, 1 << 12):
        target = replace(emulated(), **{**SMALL, "far_bytes": far})
        with emulated_kernels(target) as machine:
            found.append(run(fetches, {x: given}))
        kernels = [kernel for kernel in machine.ran if isinstance(kernel, Contraction)]
        counts.append(max(len(kernel.stores) for kernel in kernels))
    assert counts[1] < counts[0]
    for one, other in zip(*found, strict=True):
        wide = one.astype(np.float32), other.astype(np.float32)  # rounded at other places
        assert np.abs(wide[0] - wide[1]).max() <= 0.02 * np.abs(wide[1]).max()


def updates() -> Any:
    """Updates of three layers, and of an embedding whose gradient checks its indices."""
    ids = tf.placeholder(tf.int32, [ROWS])
    table = weight("table", 50, WIDTH)
    h = tf.nn.embedding_lookup(table, ids)
    for number in range(3):
        h = tf.nn.relu(tf.matmul(h, weight(f"w{number}", WIDTH, WIDTH)))
    loss = tf.reduce_sum(tf.cast(tf.matmul(h, table, transpose_b=True), tf.float32))
    return tf.train.AdamOptimizer(0.1).minimize(loss)


def test_updates_come_after_all_checks_and_before_later_nests(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    use_target(monkeypatch, **SMALL)
    made = lowered(updates())
    writes = [any(b.is_variable for b in launch.written) for launch in made.launches]
    checks = [n for n, each in enumerate(made.launches) if getattr(each.kernel, "checks", ())]
    assert len(made.checked) > 0
    first_update = writes.index(True)
    assert max(checks) < first_update
    assert not all(writes[first_update:])  # it does not wait for the last gradient


def test_a_row_of_a_layer_norms_gradient_is_read_once() -> None:
    """What is reduced of a row is computed where it is reduced, and stored nowhere."""
    x = tf.placeholder(tf.bfloat16, [256, WIDTH])
    mean, variance = tf.nn.moments(x, [-1], keep_dims=True)
    scale, offset = weight("scale", WIDTH), weight("offset", WIDTH)
    y = tf.nn.batch_normalization(x, mean, variance, offset, scale, 1e-5)
    (slope,) = tf.gradients(tf.reduce_sum(tf.cast(tf.sin(y), tf.float32)), [x])
    given = np.random.default_rng(0).standard_normal((256, WIDTH)).astype(ml_dtypes.bfloat16)
    with emulated_kernels() as machine:
        found = run(slope, {x: given}).astype(np.float32)
    stored = [
        s.buffer for kernel in machine.ran for s in kernel.stores if isinstance(kernel, Loops)
    ]
    assert not any(b.size == given.size and b.dtype == np.float32 for b in stored)
    wanted = run(slope, {x: given}).astype(np.float32)
    assert np.abs(found - wanted).max() <= 0.02 * np.abs(wanted).max()


def test_two_sums_of_columns_are_one_kernel() -> None:
    """Of matrices of one shape, though they have nothing else in common; a third is left alone."""
    rng = np.random.default_rng(0)
    places = [tf.placeholder(tf.float32, [2048, WIDTH]) for _ in range(3)]
    feeds = {x: rng.standard_normal((2048, WIDTH)).astype(np.float32) for x in places}
    counts = []
    for pairs in (False, True):
        with emulated_kernels(replace(emulated(), pairs_sums=pairs)) as machine:
            found = run([tf.reduce_sum(x, 0) for x in places], feeds)
        counts.append(len(machine.ran))
        for one, x in zip(found, places, strict=True):
            np.testing.assert_allclose(one, feeds[x].sum(0), rtol=1e-3, atol=1e-3)
    assert counts[1] == counts[0] + 1  # of one form before, of two now
    assert sorted(len(kernel.stores) for kernel in machine.ran) == [1, 2]
