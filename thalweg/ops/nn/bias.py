"""Addition of a bias per channel, and its gradient, the sum over all other axes."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from thalweg import errors
from thalweg.graph.convert import convert_to_tensor
from thalweg.graph.node import Node, Tensor
from thalweg.graph.op import Op
from thalweg.graph.scopes import name_scope
from thalweg.graph.shapes import TensorShape, vector
from thalweg.ir import loop
from thalweg.ir.expr import Expr
from thalweg.ir.loop import IndexTuple, Operand
from thalweg.ops.core import filling
from thalweg.ops.linalg import matmul
from thalweg.ops.math.summing import summed
from thalweg.ops.nn import activation
from thalweg.platform.arrays import Array
from thalweg.public import public


def channel_axis(data_format: str) -> int:
    """The axis of the channels: 1 in formats that begin with "NC", else the last."""
    return 1 if data_format.startswith("NC") else -1


class BiasAdd(Op):
    """y[…, c] = value[…, c] + bias[c]"""

    signature = "value: T, bias: T -> output: T; T: numeric"
    laid_out = frozenset({"value", "output"})
    data_format: str = "NHWC"

    def shape(self, value: Tensor, bias: Tensor) -> TensorShape:
        bias.shape.assert_has_rank(1)
        sizes = value.shape.with_rank_at_least(3 if self.data_format == "NCHW" else 2).sizes
        if sizes is None:
            return value.shape
        axis = channel_axis(self.data_format) % len(sizes)
        channels = value.shape[axis].merge_with(bias.shape[0]).value
        return TensorShape.of((*sizes[:axis], channels, *sizes[axis + 1 :]))

    def numpy(self, value: Array, bias: Array) -> Array:
        axis = channel_axis(self.data_format)
        if np.ndim(bias) != 1 or value.ndim < 2 or value.shape[axis] != len(bias):
            raise errors.invalid(
                f"Must provide as many biases as the channel dimension of the input: "
                f"{list(np.shape(bias))} biases for an input of shape {list(value.shape)} "
                f"in {self.data_format}"
            )
        return value + bias.reshape(_column(value.ndim, axis))

    def loop(self, at: IndexTuple, value: Operand, bias: Operand) -> Expr:
        return value[at] + bias[at[channel_axis(self.data_format)]]

    def gradient(self, node: Node, dy: Tensor) -> list[Tensor]:
        return [dy, BiasAddGrad(data_format=self.data_format)(dy)]


def _column(rank: int, axis: int) -> list[int]:
    """The shape of a vector that broadcasts along `axis`."""
    sizes = [1] * rank
    sizes[axis] = -1
    return sizes


@public("nn.bias_add")
def bias_add(
    value: Any, bias: Any, data_format: str | None = None, name: str | None = None
) -> Tensor:
    """`value` with a vector added along its channels.

    Args:
        value: a numeric tensor [..., channels], or [batch, channels, ...] as "NCHW".
        bias: a vector [channels] of the same dtype.
        data_format: "NHWC" or "NCHW"; "NHWC" if None.
        name: the name of the node.

    Returns:
        A tensor of the shape and dtype of `value`.

    Example:
        >>> sess.run(tf.nn.bias_add([[1.0, 2.0], [3.0, 4.0]], [10.0, 20.0]))
        array([[11., 22.],
               [13., 24.]], dtype=float32)
    """
    layout = _layout(data_format)
    with name_scope(name, "BiasAdd", [value, bias]) as scope:
        tensor = convert_to_tensor(value, name="input")
        vector_ = convert_to_tensor(bias, tensor.dtype.base_dtype, name="bias")
        return BiasAdd(data_format=layout)(tensor, vector_, name=scope)


def _layout(data_format: str | None) -> str:
    layout = data_format or "NHWC"
    if not layout.startswith("N") or "C" not in (layout[1:2], layout[-1]):
        raise ValueError(f"data_format must be of the form N...C or NC..., not {data_format!r}")
    return "NCHW" if channel_axis(layout) == 1 else "NHWC"


@public("nn.bias_add_v1")
def bias_add_v1(value: Any, bias: Any, name: str | None = None) -> Tensor:
    """`value` with `bias` added along its last axis."""
    return bias_add(value, bias, name=name or "BiasAddV1")


class BiasAddGrad(Op):
    """db[c] = sum of dy[…, c]"""

    signature = "out_backprop: T -> output: T; T: numeric"
    laid_out = frozenset({"out_backprop"})
    data_format: str = "NHWC"

    def shape(self, out_backprop: Tensor) -> TensorShape:
        sizes = out_backprop.shape.with_rank_at_least(2).sizes
        return vector(None if sizes is None else sizes[channel_axis(self.data_format)])

    def numpy(self, out_backprop: Array) -> Array:
        axis = channel_axis(self.data_format) % out_backprop.ndim
        others = tuple(i for i in range(out_backprop.ndim) if i != axis)
        return summed(out_backprop, others)

    def loop(self, at: IndexTuple, out_backprop: Operand) -> Expr:
        sizes, axis = out_backprop.shape, channel_axis(self.data_format)

        def element(*others: Expr) -> Expr:
            return out_backprop[joined(others, at[0], axis % len(sizes))]

        return loop.reduce("sum", without(sizes, axis % len(sizes)), element)

    def gradient(self, node: Node, ddb: Tensor) -> Tensor:
        zeros = filling.zeros_like(node.inputs[0])
        return BiasAdd(data_format=self.data_format)(zeros, ddb)


def without(values: Sequence[Any], axis: int) -> tuple[Any, ...]:
    """The entries of all axes but one."""
    return (*values[:axis], *values[axis + 1 :])


def joined(others: Sequence[Any], channel: Any, axis: int) -> tuple[Any, ...]:
    """The inverse of `without`: all indices, from those of the other axes and that of `axis`."""
    return (*others[:axis], channel, *others[axis:])


# Composites


@public("nn.xw_plus_b")
def xw_plus_b(x: Any, weights: Any, biases: Any, name: str | None = None) -> Tensor:
    """The matrix product of `x` and `weights`, plus `biases` in each row.

    Args:
        x: a matrix [batch, in].
        weights: a matrix [in, out] of the same dtype.
        biases: a vector [out].
        name: the name of the node.

    Returns:
        A matrix [batch, out].

    Example:
        >>> sess.run(tf.nn.xw_plus_b([[1.0, 2.0]], [[1.0], [1.0]], [0.5]))
        array([[3.5]], dtype=float32)
    """
    with name_scope(name, "xw_plus_b", [x, weights, biases]) as scope:
        product = matmul.matmul(convert_to_tensor(x), convert_to_tensor(weights))
        return bias_add(product, biases, name=scope)


@public("nn.xw_plus_b_v1")
def xw_plus_b_v1(x: Any, weights: Any, biases: Any, name: str | None = None) -> Tensor:
    """x weights + biases"""
    return xw_plus_b(x, weights, biases, name=name or "xw_plus_b_v1")


@public("nn.relu_layer")
def relu_layer(x: Any, weights: Any, biases: Any, name: str | None = None) -> Tensor:
    """relu of the matrix product of `x` and `weights`, plus `biases` in each row.

    Args:
        x: a matrix [batch, in].
        weights: a matrix [in, out] of the same dtype.
        biases: a vector [out].
        name: the name of the nodes.

    Returns:
        A matrix [batch, out].

    Example:
        >>> sess.run(tf.nn.relu_layer([[1.0, 2.0]], [[1.0, -1.0], [1.0, -1.0]], [0.5, 0.5]))
        array([[3.5, 0. ]], dtype=float32)
    """
    with name_scope(name, "relu_layer", [x, weights, biases]) as scope:
        product = matmul.matmul(convert_to_tensor(x), convert_to_tensor(weights))
        return activation.relu(bias_add(product, biases), name=scope)
