"""The kernels of small graphs: which ops are fused, and which tensors are stored."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import thalweg as tf
from tests.lower.programs import kernels, lowered, native
from thalweg.ir.expr import Reduce
from thalweg.ir.kernel import Contraction, Loops
from thalweg.ir.rewrite import walk
from thalweg.lower.memory.buffers import BufferKind


def given(*shape: int, dtype: Any = tf.float32) -> Any:
    return tf.placeholder(dtype, shape)


def variable(*shape: int) -> Any:
    return tf.Variable(np.ones(shape, np.float32))


def dense(x: Any, width: int) -> Any:
    return tf.nn.bias_add(tf.matmul(x, variable(int(x.shape[-1]), width)), variable(width))


def residual() -> Any:
    x = given(64, 64)
    return tf.nn.relu(x + tf.matmul(x, variable(64, 64)))


def convolution() -> Any:
    y = tf.nn.conv2d(given(4, 16, 16, 8), variable(3, 3, 8, 16), [1, 1, 1, 1], "SAME")
    return tf.nn.relu(tf.nn.bias_add(y, variable(16)))


def layer_norm() -> Any:
    x = given(64, 32)
    mean, variance = tf.nn.moments(x, [1], keep_dims=True)
    return (x - mean) * tf.rsqrt(variance + 1e-5) * variable(32)


def kept_and_squashed(shape: list[int]) -> Any:
    """A product that is fetched, and its reshaped activation."""
    y = dense(given(64, 100), 50)
    return [y, tf.tanh(tf.reshape(y, shape))]


def expensive_with_two_readers() -> Any:
    y = tf.exp(tf.sin(given(1000)))
    return [tf.reduce_sum(y * 2), tf.reverse(y, [0]) + y]


def cheap_with_two_readers() -> Any:
    y = given(1000) + 1
    return [y * 2, tf.reverse(y, [0])]


def reductions_of_one_input() -> Any:
    x = given(64, 100)
    return [tf.reduce_sum(x, 1), tf.reduce_max(x, 1), tf.reduce_sum(tf.square(x), 1)]


# A graph, and its kernels in order.
BECOMES: dict[str, tuple[Callable[[], Any], list[str]]] = {
    "a chain of elements": (
        lambda: tf.tanh(tf.exp(given(50, 20)) * 2 + 1),
        ["loops exp+mul+add+tanh"],
    ),
    "bias and activation": (
        lambda: tf.nn.relu(dense(given(64, 100), 50)),
        ["contraction matmul+bias_add+relu"],
    ),
    "a residual": (residual, ["contraction matmul+add+relu"]),
    "a convolution's epilogue": (convolution, ["contraction conv2d+bias_add+relu"]),
    "a product too small to pack": (
        lambda: tf.nn.relu(tf.matmul(given(3, 4), given(4, 5))),
        ["loops matmul+relu"],
    ),
    "a cast after a product": (
        lambda: tf.cast(tf.matmul(given(64, 64), given(64, 64)), tf.float16),
        ["contraction matmul+cast"],
    ),
    "a product with float8 weights: no float32 copy of them is stored": (
        lambda: tf.matmul(
            given(64, 99), tf.cast(given(99, 50, dtype=tf.float8_e4m3fn), tf.float32)
        ),
        ["contraction cast+matmul"],
    ),
    "a product of float8 numbers, rounded once from the float32 sum": (
        lambda: tf.matmul(
            given(64, 99, dtype=tf.float8_e4m3fn), given(99, 50, dtype=tf.float8_e4m3fn)
        ),
        ["contraction matmul"],
    ),
    "a product of narrow floats": (
        lambda: tf.matmul(given(64, 99, dtype=tf.bfloat16), given(99, 50, dtype=tf.bfloat16)) * 2,
        ["contraction matmul+mul"],
    ),
    "a product of so few narrow floats that widening them does not pay": (
        lambda: tf.matmul(given(3, 99, dtype=tf.float16), given(99, 50, dtype=tf.float16)),
        ["loops matmul"],
    ),
    "activations under another shape": (
        lambda: kept_and_squashed([4, 16, 50]),
        ["contraction matmul+bias_add+tanh"],
    ),
    "activations under a flat shape": (
        lambda: kept_and_squashed([3200]),
        ["contraction matmul+bias_add+tanh"],
    ),
    "activations under a shape that cuts rows elsewhere": (
        lambda: kept_and_squashed([40, 80]),
        ["contraction matmul+bias_add+tanh"],
    ),
    "a softmax": (lambda: tf.nn.softmax(given(64, 100)), ["loops softmax"]),
    "rows normalised": (
        layer_norm,
        ["loops mean×2+squared_difference+add+rsqrt", "loops sub+mul×2"],
    ),
    "several reductions of one input": (
        reductions_of_one_input,
        ["loops sum×2+max+square"],
    ),
    "what only moves": (
        lambda: tf.transpose(tf.reshape(given(10, 20, 30), [200, 30])),
        ["loops transpose"],
    ),
    "cheap, with two readers": (cheap_with_two_readers, ["loops add+mul+reverse_v2"]),
    "expensive, with two readers": (
        expensive_with_two_readers,
        ["loops sin+exp", "loops mul+sum", "loops reverse_v2+add"],
    ),
    "expensive, broadcast": (
        lambda: tf.expand_dims(tf.exp(given(100)), 0) * given(50, 100),
        ["loops exp", "loops mul"],
    ),
    "cheap, broadcast over a few rows": (
        lambda: tf.expand_dims(tf.abs(given(100)), 0) * given(3, 100),
        ["loops abs+mul"],
    ),
    "cheap, broadcast over many rows": (
        lambda: tf.expand_dims(tf.abs(given(100)), 0) * given(50, 100),
        ["loops abs", "loops mul"],
    ),
    "indices are checked first": (
        lambda: tf.gather(given(100, 10), given(5, dtype=tf.int32)),
        ["check check_gather_v2", "loops gather_v2"],
    ),
    "indices brought into range need no check": (
        lambda: tf.one_hot(given(5, dtype=tf.int32), 7),
        ["loops one_hot"],
    ),
    "what is all of one value": (
        lambda: tf.logical_not(tf.reduce_all(given(dtype=tf.bool))),
        ["loops logical_not"],
    ),
    "a known divisor needs no check": (
        lambda: tf.floordiv(given(5, dtype=tf.int16), tf.constant(3, tf.int16)),
        ["loops floor_div"],
    ),
    "what only shapes decide": (
        lambda: given(5, 6) * tf.cast(tf.size(given(5, 6)), tf.float32),
        ["loops mul"],
    ),
    "a mean of products is one contraction": (
        lambda: tf.einsum("bij,bjk->bik", given(4, 16, 32), given(4, 32, 16)),
        ["contraction batch_matmul_v2"],
    ),
}


@pytest.mark.parametrize("case", BECOMES)
def test_a_graph_becomes_these_kernels(case: str) -> None:
    build, expected = BECOMES[case]
    with tf.Graph().as_default():
        fetches = build()
        assert kernels(*(fetches if isinstance(fetches, list) else [fetches])) == expected


def training(optimizer: Any) -> list[str]:
    """The kernels of a step that trains one layer."""
    with tf.Graph().as_default():
        logits = dense(given(64, 100), 50)
        labels = given(64, dtype=tf.int32)
        losses = tf.nn.sparse_softmax_cross_entropy_with_logits(labels=labels, logits=logits)
        return kernels(optimizer().minimize(tf.reduce_mean(losses)))


def test_descent_is_part_of_the_gradients_product() -> None:
    actual = training(lambda: tf.train.GradientDescentOptimizer(0.1))
    assert actual[:2] == [
        "check check_sparse_softmax_cross_entropy_with_logits",
        "contraction matmul+bias_add",
    ]
    assert actual[-1] == "contraction matmul+mul+assign_sub"
    assert sum("assign" in kernel for kernel in actual) == 2  # the weights, the bias


def test_momentum_is_part_of_the_gradients_product() -> None:
    actual = training(lambda: tf.train.MomentumOptimizer(0.1, 0.9))
    assert actual[-1] == "contraction matmul+mul×2+add+assign+assign_sub"


def test_adam_is_part_of_the_gradients_product() -> None:
    with tf.Graph().as_default():
        w = variable(100, 50)
        loss = tf.reduce_mean(tf.matmul(given(64, 100), w) * given(64, 50))
        step = native(tf.train.AdamOptimizer(0.1).minimize(loss))
        updates = [
            call.launch
            for call in step.listing.calls
            if isinstance(call.launch.kernel, Contraction)
        ]
        (update,) = [u for u in updates if any(b.kind is BufferKind.VARIABLE for b in u.written)]
        assert (
            sum(b.kind is BufferKind.VARIABLE for b in update.written) == 3
        )  # the weights, two moments


def test_a_loss_and_its_gradient_come_from_one_read_of_the_logits() -> None:
    with tf.Graph().as_default():
        logits, labels = given(64, 10), tf.nn.softmax(given(64, 10))
        loss = tf.nn.softmax_cross_entropy_with_logits(labels=labels, logits=logits)
        (slope,) = tf.gradients(loss, logits)
        assert len(kernels(loss, slope)) <= 3


def test_a_reduction_that_many_read_is_computed_once() -> None:
    with tf.Graph().as_default():
        x = given(64, 32)
        mean = tf.reduce_mean(tf.exp(x), 0)
        made = lowered(x - mean, x * mean)
        reducing = [launch for launch in made.launches if reductions(launch.kernel)]
        assert len(reducing) == 1


def reductions(kernel: Any) -> int:
    """The number of reductions in the stores of loops."""
    assert isinstance(kernel, Loops)
    values = [store.value for store in kernel.stores]
    return sum(isinstance(part, Reduce) for part in walk(values))


def test_long_reductions_are_cut_into_parts_that_do_not_depend_on_threads() -> None:
    with tf.Graph().as_default():
        total = tf.reduce_sum(given(1 << 17))
        steps = [native(total, threads=threads) for threads in (1, 2, 8)]
        first, *others = [[int(v.extent) for v in parts_of(step)] for step in steps]
        assert first and all(other == first for other in others)


def parts_of(step: Any) -> Any:
    kernel = step.listing.calls[0].launch.kernel
    return kernel.variables


def test_short_reductions_are_not_cut() -> None:
    with tf.Graph().as_default():
        assert kernels(tf.reduce_sum(given(1 << 10))) == ["loops sum"]
    with tf.Graph().as_default():
        assert kernels(tf.reduce_sum(given(1 << 12, 64), 1)) == ["loops sum"]


def test_rows_that_threads_can_share_are_not_cut() -> None:
    with tf.Graph().as_default():
        assert kernels(tf.reduce_sum(given(256, 384), 1)) == ["loops sum"]
    with tf.Graph().as_default():
        assert len(kernels(tf.reduce_sum(given(16, 3840), 1))) == 2
    with tf.Graph().as_default():
        assert len(kernels(tf.reduce_sum(given(384, 256), 0))) == 2


def test_results_that_nobody_wants_are_not_written() -> None:
    with tf.Graph().as_default():
        first, *_ = tf.split(tf.exp(given(10, 30)), 3, 1)
        (launch,) = lowered(first).launches
        assert [buffer.size for buffer in launch.written] == [100]


def test_a_tensor_under_another_shape_is_the_same_memory() -> None:
    with tf.Graph().as_default():
        stored = tf.matmul(given(64, 64), given(64, 64))
        again = tf.reshape(stored, [16, 256])
        (first, second) = lowered(tf.matmul(again, given(256, 32))).launches
        assert first.written[0] in second.buffers


@pytest.mark.parametrize("shape", [[4, 16, 50], [3200], [40, 80], [2, 32, 5, 10], [64, 1, 50]])
def test_values_under_other_shapes_are_numpys(shape: list[int]) -> None:
    with tf.Graph().as_default(), tf.Session() as session:
        x, w = given(64, 100), tf.Variable(np.random.RandomState(0).randn(100, 50).astype("f"))
        y = tf.matmul(x, w)
        fetches = [y, tf.tanh(tf.reshape(y, shape)) * 2 + tf.reshape(y, shape)]
        session.run(tf.global_variables_initializer())
        fed = np.random.RandomState(1).randn(64, 100).astype("f")
        actual, squashed = session.run(fetches, {x: fed})
        expected = fed @ session.run(w)
    np.testing.assert_allclose(actual, expected, rtol=1e-4, atol=1e-4)
    np.testing.assert_allclose(
        squashed, (np.tanh(expected) * 2 + expected).reshape(shape), atol=2e-4
    )
