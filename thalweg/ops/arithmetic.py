"""Arithmetic: sums, differences, products, quotients, and their operators."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from thalweg.graph.convert import convert_all
from thalweg.graph.node import Node, Tensor, operator
from thalweg.graph.op import Op
from thalweg.graph.shapes import TensorShape
from thalweg.loops.expr import Expr
from thalweg.ops import basic, broadcast
from thalweg.ops.elementwise import Binary, Unary, binary, unary
from thalweg.public import public


class Add(Binary):
    """z = x + y"""

    signature = "x: T, y: T -> z: T; T: numeric|string"
    commutative = True

    def numpy(self, x: Any, y: Any) -> Any:
        return np.add(x, y)

    def element(self, x: Expr, y: Expr) -> Expr:
        return x + y

    def gradient(self, node: Node, dz: Tensor) -> list[Any]:
        return broadcast.both(node.inputs, dz, dz)


add = operator("add")(binary(Add, "add", "math.add"))


class Neg(Unary):
    """y = -x"""

    signature = "x: T -> y: T; T: numeric"
    numpy = staticmethod(np.negative)

    def element(self, x: Expr) -> Expr:
        return -x

    def gradient(self, node: Node, dy: Tensor) -> Tensor:
        return -dy


negative = operator("neg")(unary(Neg, "negative", "neg", "math.negative"))


class Mul(Binary):
    """z = x y"""

    signature = "x: T, y: T -> z: T; T: numeric"
    commutative = True
    numpy = staticmethod(np.multiply)

    def element(self, x: Expr, y: Expr) -> Expr:
        return x * y

    def gradient(self, node: Node, dz: Tensor) -> list[Any]:
        x, y = node.inputs
        return broadcast.both(node.inputs, dz * y, x * dz)


multiply = operator("mul")(binary(Mul, "multiply", "mul", "math.multiply"))


class AddN(Op):
    """The sum of tensors of one shape."""

    signature = "inputs: N*T -> sum: T; T: numeric"
    commutative = True

    def shape(self, inputs: list[Tensor]) -> TensorShape:
        merged = inputs[0].shape
        for tensor in inputs[1:]:
            merged = merged.merge_with(tensor.shape)
        return merged

    def numpy(self, inputs: list[Any]) -> Any:
        total = np.array(inputs[0])
        for value in inputs[1:]:
            total += value
        return total

    def gradient(self, node: Node, dy: Tensor) -> list[Tensor]:
        return [dy] * len(node.inputs)


@public("add_n", "math.add_n")
def add_n(inputs: Sequence[Any], name: str | None = None) -> Tensor:
    """The sum of tensors of one shape."""
    tensors = convert_all(inputs)
    if not tensors:
        raise ValueError(
            "inputs must be a list of at least one Tensor with the same dtype and shape"
        )
    if len(tensors) == 1:
        return basic.identity(tensors[0], name=name) if name else tensors[0]
    return AddN()(tensors, name=name)
