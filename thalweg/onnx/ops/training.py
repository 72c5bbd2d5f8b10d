"""Steps of optimizers, as ONNX's preview of training has them."""

from __future__ import annotations

from typing import Any

from thalweg.graph import dtypes
from thalweg.graph.node import Tensor
from thalweg.onnx.registry import TRAINING, NodeView, operator
from thalweg.onnx.values import like
from thalweg.ops.core import casting, choosing
from thalweg.ops.math import arithmetic, compare, transcendental


def _groups(inputs: tuple[Any, ...], parts: int) -> list[tuple[Any, ...]]:
    """All first parts, then all second ones, …, as one tuple for each tensor."""
    count = len(inputs) // parts
    return [tuple(inputs[k * count + index] for k in range(parts)) for index in range(count)]


def _transposed(found: list[tuple[Tensor, ...]]) -> Any:
    return tuple(each for part in zip(*found, strict=True) for each in part)


@operator("Adagrad", domain=TRAINING)
def adagrad(node: NodeView, rate: Tensor, step: Tensor, *inputs: Tensor) -> Any:
    decay = node.get("decay_factor", 0.0)
    count = casting.cast(step, dtypes.float32)
    slowed = rate / (1 + count * like(decay, count))
    found: list[tuple[Tensor, ...]] = []
    for x, gradient, total in _groups(inputs, 3):
        regular = like(node.get("norm_coefficient", 0.0), x) * x + gradient
        total = total + regular * regular
        root = transcendental.sqrt(total) + like(node.get("epsilon", 1e-6), x)
        found.append((x - slowed * regular / root, total))
    return _transposed(found)


@operator("Momentum", domain=TRAINING)
def momentum(node: NodeView, rate: Tensor, step: Tensor, *inputs: Tensor) -> Any:
    alpha, beta = node.get("alpha"), node.get("beta")
    is_first = compare.less_equal(
        casting.cast(step, dtypes.int64), like(0, casting.cast(step, dtypes.int64))
    )
    found: list[tuple[Tensor, ...]] = []
    for x, gradient, speed in _groups(inputs, 3):
        regular = like(node.get("norm_coefficient", 0.0), x) * x + gradient
        weight = choosing.where_v2(is_first, like(1.0, x), like(beta, x))
        speed = like(alpha, x) * speed + weight * regular
        if node.get("mode") == "nesterov":
            found.append((x - rate * (regular + like(alpha, x) * speed), speed))
        else:
            found.append((x - rate * speed, speed))
    return _transposed(found)


@operator("Adam", domain=TRAINING)
def adam(node: NodeView, rate: Tensor, step: Tensor, *inputs: Tensor) -> Any:
    alpha, beta = node.get("alpha", 0.9), node.get("beta", 0.999)
    found: list[tuple[Tensor, ...]] = []
    for x, gradient, mean, square in _groups(inputs, 4):
        regular = like(node.get("norm_coefficient", 0.0), x) * x + gradient
        mean = like(alpha, x) * mean + like(1 - alpha, x) * regular
        square = like(beta, x) * square + like(1 - beta, x) * regular * regular
        count = casting.cast(step, x.dtype.base_dtype)
        root = transcendental.sqrt(square) + like(node.get("epsilon", 0.0), x)
        one = like(1, x)
        scaled = rate * transcendental.sqrt(one - arithmetic.power(like(beta, x), count))
        scaled = scaled / (one - arithmetic.power(like(alpha, x), count))
        scaled = choosing.where_v2(compare.greater(count, like(0, x)), scaled, rate)
        new = x - scaled * mean / root
        after = like(1 - node.get("norm_coefficient_post", 0.0), x)
        found.append((after * new, mean, square))
    return _transposed(found)
