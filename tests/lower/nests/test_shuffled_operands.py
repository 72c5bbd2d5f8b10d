"""A sum of products is a contraction before and after ops that only move elements."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import thalweg as tf
from tests.lower.programs import lowered
from tests.ops.harness import on_reference_kernels
from tests.soak import SOAKING
from thalweg.ir.kernel import Contraction

#: What moves elements: the shape of its input, by the shape that is wanted of it, and the call.
Mover = tuple[Callable[[tuple[int, ...]], tuple[int, ...]], Callable[[Any, tuple[int, ...]], Any]]


def _merged(shape: tuple[int, ...]) -> tuple[int, ...]:
    return (shape[0], int(np.prod(shape[1:])))


def _reversed(shape: tuple[int, ...]) -> tuple[int, ...]:
    return shape[::-1]


def _doubled(shape: tuple[int, ...]) -> tuple[int, ...]:
    return (shape[0], *(2 * size for size in shape[1:]))


def _blocks(shape: tuple[int, ...]) -> tuple[int, ...]:
    """A picture whose 2x2 blocks are the channels of one of a shape."""
    batch, height, width, channels = shape
    return (batch, 2 * height, 2 * width, channels // 4)


def _halves(shape: tuple[int, ...]) -> tuple[int, ...]:
    return (shape[0], *shape[1:-1], shape[-1] // 2)


MOVERS: dict[str, Mover] = {
    "reshape": (_merged, lambda x, shape: tf.reshape(x, shape)),
    "flat": (lambda s: (int(np.prod(s)),), lambda x, shape: tf.reshape(x, shape)),
    "transpose": (_reversed, lambda x, _: tf.transpose(x)),
    "slice": (
        lambda s: tuple(size + 3 for size in s),
        lambda x, shape: tf.slice(x, [1] * len(shape), shape),
    ),
    "strided_slice": (
        lambda s: (2 * s[0], *s[1:-1], s[-1] + 2),
        lambda x, _: x[::2, ..., 1:-1],
    ),
    "expand_dims": (
        lambda s: s[:-1] if s[-1] == 1 else (*s, 1),
        lambda x, shape: tf.expand_dims(x, -1) if shape[-1] == 1 else tf.squeeze(x, [-1]),
    ),
    "pad": (
        lambda s: (*s[:-1], s[-1] - 2),
        lambda x, shape: tf.pad(x, [[0, 0]] * (len(shape) - 1) + [[1, 1]]),
    ),
    "concat": (_halves, lambda x, shape: tf.concat([x, 2.0 * x], len(shape) - 1)),
    "stack": (
        lambda s: (*s[:-1], s[-1] // 2),
        lambda x, shape: tf.reshape(tf.stack([x, x + 1.0], -1), shape),
    ),
    "tile": (_halves, lambda x, shape: tf.tile(x, [1] * (len(shape) - 1) + [2])),
    "broadcast": (
        lambda s: (1, *s[1:]),
        lambda x, shape: tf.tile(x, [shape[0]] + [1] * (len(shape) - 1)),
    ),
    "reverse": (lambda s: s, lambda x, shape: tf.reverse(x, [len(shape) - 1])),
    "gather": (
        lambda s: s,
        lambda x, shape: tf.gather(x, tf.constant(np.arange(shape[0])[::-1].copy())),
    ),
    "transpose of reshape": (
        lambda s: (int(np.prod(s)),),
        lambda x, shape: tf.transpose(tf.reshape(x, shape[::-1])),
    ),
    "reshape of relu": (_merged, lambda x, shape: tf.reshape(tf.nn.relu(x), shape)),
    "reshape of pad": (
        lambda s: (int(np.prod(s)) - 2,),
        lambda x, shape: tf.reshape(tf.pad(x, [[1, 1]]), shape),
    ),
    "space_to_depth": (_blocks, lambda x, _: tf.space_to_depth(x, 2)),
    "depth_to_space": (
        lambda s: (s[0], s[1] // 2, s[2] // 2, 4 * s[3]),
        lambda x, _: tf.depth_to_space(x, 2),
    ),
}
PICTURES = {"space_to_depth", "depth_to_space"}  # which move pictures alone


def _conv2d_input_gradient(x: Any, w: Any) -> Any:
    return tf.nn.conv2d_backprop_input([2, 8, 8, 8], w, x, [1, 1, 1, 1], "SAME")


def _conv2d_filter_gradient(x: Any, dy: Any) -> Any:
    return tf.nn.conv2d_backprop_filter(x, [3, 3, 8, 12], dy, [1, 1, 1, 1], "SAME")


def _strided_filter_gradient(x: Any, dy: Any) -> Any:
    return tf.nn.conv2d_backprop_filter(x, [3, 3, 8, 12], dy, [1, 2, 2, 1], "SAME")


def _transposed(x: Any, w: Any) -> Any:
    return tf.nn.conv2d_transpose(x, w, [2, 16, 16, 12], [1, 2, 2, 1], "SAME")


#: By name: a contraction, and the shapes of its operands.
CONTRACTIONS: dict[str, tuple[Callable[[Any, Any], Any], tuple[int, ...], tuple[int, ...]]] = {
    "matmul": (tf.matmul, (16, 24), (24, 32)),
    "matmul, a": (lambda a, b: tf.matmul(a, b, transpose_a=True), (24, 16), (24, 32)),
    "matmul, b": (lambda a, b: tf.matmul(a, b, transpose_b=True), (16, 24), (32, 24)),
    "matmul, ab": (
        lambda a, b: tf.matmul(a, b, transpose_a=True, transpose_b=True),
        (24, 16),
        (32, 24),
    ),
    "batch_matmul": (tf.matmul, (4, 16, 24), (4, 24, 32)),
    "conv2d": (
        lambda x, w: tf.nn.conv2d(x, w, [1, 1, 1, 1], "SAME"),
        (2, 8, 8, 8),
        (3, 3, 8, 12),
    ),
    "strided conv2d": (
        lambda x, w: tf.nn.conv2d(x, w, [1, 2, 2, 1], "SAME"),
        (2, 8, 8, 8),
        (3, 3, 8, 12),
    ),
    "conv2d_transpose": (_transposed, (2, 8, 8, 8), (4, 4, 12, 8)),
    "conv2d, input gradient": (_conv2d_input_gradient, (2, 8, 8, 12), (3, 3, 8, 12)),
    "conv2d, filter gradient": (_conv2d_filter_gradient, (2, 8, 8, 8), (2, 8, 8, 12)),
    "strided filter gradient": (_strided_filter_gradient, (2, 8, 8, 8), (2, 4, 4, 12)),
    "depthwise": (
        lambda x, w: tf.nn.depthwise_conv2d(x, w, [1, 1, 1, 1], "SAME"),
        (2, 8, 8, 8),
        (3, 3, 8, 2),
    ),
    "conv3d": (
        lambda x, w: tf.nn.conv3d(x, w, [1, 1, 1, 1, 1], "SAME"),
        (2, 4, 6, 6, 8),
        (3, 3, 3, 8, 12),
    ),
    "tensordot": (lambda a, b: tf.tensordot(a, b, [[1], [0]]), (8, 24, 6), (24, 32)),
    "einsum": (lambda a, b: tf.einsum("bij,bjk->bik", a, b), (4, 16, 24), (4, 24, 32)),
}


#: What is a sum over few taps for each channel apart is as quick by plain loops.
LOOPS = {"depthwise"}


def _is_contracted(fetch: Any) -> bool:
    kernels = [launch.kernel for launch in lowered(fetch).launches]
    return any(isinstance(kernel, Contraction) for kernel in kernels)


def _fits(mover: str, shape: tuple[int, ...]) -> bool:
    return mover not in PICTURES or (len(shape) == 4 and shape[1] % 2 == 0)


def _fed(shape: tuple[int, ...]) -> Any:
    return tf.placeholder(tf.float32, shape)


def _before(mover: str, contraction: str, side: int) -> Any:
    """A contraction with an operand whose elements were moved."""
    contract, *shapes = CONTRACTIONS[contraction]
    operands = [_fed(shape) for shape in shapes]
    operands[side] = MOVERS[mover][1](_fed(MOVERS[mover][0](shapes[side])), shapes[side])
    return contract(*operands)


BEFORE = [
    (mover, contraction, side)
    for contraction, (_, *shapes) in CONTRACTIONS.items()
    for mover in MOVERS
    for side in (0, 1)
    if _fits(mover, shapes[side])
]


@pytest.mark.parametrize("contraction", CONTRACTIONS)
def test_it_is_one_by_itself(contraction: str) -> None:
    contract, *shapes = CONTRACTIONS[contraction]
    with tf.Graph().as_default():
        assert _is_contracted(contract(*map(_fed, shapes))) == (contraction not in LOOPS)


@pytest.mark.parametrize("contraction", [name for name in CONTRACTIONS if name not in LOOPS])
def test_it_stays_one_behind_what_moves_elements(contraction: str) -> None:
    failed: list[tuple[str, int]] = []
    for mover, name, side in BEFORE:
        if name == contraction:
            with tf.Graph().as_default():
                if not _is_contracted(_before(mover, name, side)):
                    failed.append((mover, side))
    assert not failed


#: What takes a tensor of any shape and only moves its elements.
AFTER: dict[str, Callable[[Any], Any]] = {
    "reshape": lambda y: tf.reshape(y, [-1]),
    "transpose": tf.transpose,
    "slice": lambda y: y[1:, ..., :-1],
    "strided_slice": lambda y: y[..., ::2],
    "expand_dims": lambda y: tf.expand_dims(y, 1),
    "pad": lambda y: tf.pad(y, [[1, 1]] * y.shape.ndims),
    "concat": lambda y: tf.concat([y, y], 0),
    "tile": lambda y: tf.tile(y, [2] * y.shape.ndims),
    "reverse": lambda y: tf.reverse(y, [0]),
    "gather": lambda y: tf.gather(y, [1, 0]),
    "reshape and relu": lambda y: tf.nn.relu(tf.reshape(y, [-1])),
}


@pytest.mark.parametrize("contraction", [name for name in CONTRACTIONS if name not in LOOPS])
def test_it_stays_one_before_what_moves_elements(contraction: str) -> None:
    contract, *shapes = CONTRACTIONS[contraction]
    failed: list[str] = []
    for name, after in AFTER.items():
        with tf.Graph().as_default():
            if not _is_contracted(after(contract(*map(_fed, shapes)))):
                failed.append(name)
    assert not failed


@pytest.mark.parametrize(
    ("mover", "contraction", "side"), BEFORE if SOAKING else BEFORE[:: len(BEFORE) // 23]
)
def test_values(mover: str, contraction: str, side: int) -> None:
    rng = np.random.default_rng(5)
    actual: list[Any] = []
    with tf.Graph().as_default() as graph:
        y = _before(mover, contraction, side)
        fed = [node.outputs[0] for node in graph.nodes if node.type == "Placeholder"]
        feeds = {x: rng.uniform(-1, 1, x.shape.as_list()).astype(np.float32) for x in fed}
        for opened in (tf.Session, on_reference_kernels):
            with opened() as session:
                actual.append(session.run(y, feeds))
    np.testing.assert_allclose(*actual, rtol=1e-4, atol=1e-4)


def test_the_gradients_of_a_generator() -> None:
    """A vector, reshaped to a picture and upsampled: every DCGAN."""
    with tf.Graph().as_default():
        z, w = _fed((8, 4 * 4 * 16)), _fed((5, 5, 8, 16))
        picture = tf.reshape(z, [8, 4, 4, 16])
        y = tf.nn.conv2d_transpose(picture, w, [8, 8, 8, 8], [1, 2, 2, 1], "SAME")
        assert _is_contracted(y)
        for gradient in tf.gradients(tf.nn.tanh(tf.reshape(y, [8, -1])), [z, w]):
            kernels = [launch.kernel for launch in lowered(gradient).launches]
            sums = [kernel for kernel in kernels if isinstance(kernel, Contraction)]
            assert len(sums) >= 2  # of the picture, and of the gradient
