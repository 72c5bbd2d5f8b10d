"""Activations: the nonlinearities between layers, and their gradients as separate ops.

Each gradient op takes the incoming gradient and the activation's input or output, whichever is
cheaper to differentiate by, and is itself differentiable, for second derivatives.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from thalweg.graph import dtypes
from thalweg.graph.convert import convert_to_tensor
from thalweg.graph.node import Node, Tensor
from thalweg.graph.scopes import name_scope
from thalweg.graph.shapes import TensorShape
from thalweg.ir.expr import Expr, call, select
from thalweg.ops.arrays import joining
from thalweg.ops.core import casting, filling
from thalweg.ops.core.elementwise import Elementwise, Unary, unary
from thalweg.ops.math import arithmetic, special, special_math, transcendental
from thalweg.platform.arrays import Array
from thalweg.public import public


class ActivationGrad(Elementwise, abstract=True):
    """dx from dy and the activation's input or output, of the same shape."""

    signature = "gradients: T, features: T -> backprops: T; T: floating"

    def shape(self, gradients: Tensor, features: Tensor) -> TensorShape:
        return gradients.shape.merge_with(features.shape)


class Relu(Unary):
    """y = max(x, 0)

    Example:
        >>> sess.run(tf.nn.relu([-1.0, 0.0, 2.0]))
        array([0., 0., 2.], dtype=float32)
    """

    signature = "features: T -> activations: T; T: real"

    def numpy(self, features: Array) -> Array:
        return np.maximum(features, _zero(features))

    def element(self, x: Expr) -> Expr:
        return x.max(0)

    def gradient(self, node: Node, dy: Tensor) -> Tensor:
        return ReluGrad()(dy, node.output)


relu = unary(Relu, "nn.relu")


def _zero(like: Array) -> Any:
    """A zero of the dtype, also for narrow floats."""
    return np.asarray(like).dtype.type(0)


class ReluGrad(ActivationGrad):
    """dx = dy where x > 0, else 0"""

    signature = "gradients: T, features: T -> backprops: T; T: real"

    def numpy(self, gradients: Array, features: Array) -> Array:
        return gradients * (features > 0)

    def element(self, dy: Expr, x: Expr) -> Expr:
        return select(x > 0, dy, dy * 0)

    def gradient(self, node: Node, ddx: Tensor) -> list[Tensor]:
        features = node.inputs[1]
        return [ReluGrad()(ddx, features), filling.zeros_like(features)]


def _either(condition: Array, chosen: float, otherwise: float, like: Array) -> Array:
    """One of two numbers by a condition; a table lookup is many times faster than `np.where`."""
    table = np.array([otherwise, chosen], np.asarray(like).dtype)
    return table[np.asarray(condition).view(np.int8)]


class Relu6(Unary):
    """y = min(max(x, 0), 6)

    Example:
        >>> sess.run(tf.nn.relu6([-1.0, 3.0, 9.0]))
        array([0., 3., 6.], dtype=float32)
    """

    signature = "features: T -> activations: T; T: real"

    def numpy(self, features: Array) -> Array:
        kind = np.asarray(features).dtype.type
        return np.minimum(np.maximum(features, kind(0)), kind(6))

    def element(self, x: Expr) -> Expr:
        return x.max(0).min(6)

    def gradient(self, node: Node, dy: Tensor) -> Tensor:
        return Relu6Grad()(dy, node.output)


relu6 = unary(Relu6, "nn.relu6")


class Relu6Grad(ActivationGrad):
    """dx = dy where 0 < x < 6, else 0"""

    signature = "gradients: T, features: T -> backprops: T; T: real"

    def numpy(self, gradients: Array, features: Array) -> Array:
        return gradients * ((features > 0) & (features < 6))

    def element(self, dy: Expr, x: Expr) -> Expr:
        return select(call("and", x > 0, x < 6), dy, dy * 0)

    def gradient(self, node: Node, ddx: Tensor) -> list[Tensor]:
        features = node.inputs[1]
        return [Relu6Grad()(ddx, features), filling.zeros_like(features)]


def _attribute(number: float) -> float:
    """A float attribute as in a GraphDef: float32, also for ops on float64."""
    return float(np.float32(number))


class LeakyRelu(Unary):
    """y = x where x > 0, else alpha x"""

    signature = "features: T -> activations: T; T: floating"
    alpha: float = 0.2

    def numpy(self, features: Array) -> Array:
        sloped = features * np.asarray(features).dtype.type(_attribute(self.alpha))
        return np.maximum(features, sloped) if self.alpha <= 1 else np.minimum(features, sloped)

    def element(self, x: Expr) -> Expr:
        return select(x > 0, x, x * _attribute(self.alpha))

    def gradient(self, node: Node, dy: Tensor) -> Tensor:
        return LeakyReluGrad(alpha=self.alpha)(dy, node.inputs[0])


@public("nn.leaky_relu")
def leaky_relu(features: Any, alpha: float = 0.2, name: str | None = None) -> Tensor:
    """`features` where they are positive, `alpha * features` elsewhere."""
    with name_scope(name, "LeakyRelu", [features, alpha]) as scope:
        x = convert_to_tensor(features, name="features")
        if x.dtype.is_integer:
            x = casting.cast(x, dtypes.float32)
        return LeakyRelu(alpha=float(alpha))(x, name=scope)


class LeakyReluGrad(ActivationGrad):
    """dx = dy where x > 0, else alpha dy"""

    alpha: float = 0.2

    def numpy(self, gradients: Array, features: Array) -> Array:
        return gradients * _either(features > 0, 1, _attribute(self.alpha), gradients)

    def element(self, dy: Expr, x: Expr) -> Expr:
        return select(x > 0, dy, dy * _attribute(self.alpha))

    def gradient(self, node: Node, ddx: Tensor) -> list[Tensor]:
        features = node.inputs[1]
        return [LeakyReluGrad(alpha=self.alpha)(ddx, features), filling.zeros_like(features)]


class Elu(Unary):
    """y = x where x > 0, else exp(x) - 1

    Example:
        >>> sess.run(tf.nn.elu([-100.0, 2.0]))
        array([-1.,  2.], dtype=float32)
    """

    signature = "features: T -> activations: T; T: floating"

    def numpy(self, features: Array) -> Array:
        zero = _zero(features)
        return np.maximum(features, zero) + np.expm1(np.minimum(features, zero))

    def element(self, x: Expr) -> Expr:
        return select(x > 0, x, x.min(0).expm1())

    def gradient(self, node: Node, dy: Tensor) -> Tensor:
        return EluGrad()(dy, node.output)


elu = unary(Elu, "nn.elu")


class EluGrad(ActivationGrad):
    """dx = dy (y + 1) where y < 0, else dy, also for NaN"""

    signature = "gradients: T, outputs: T -> backprops: T; T: floating"

    def numpy(self, gradients: Array, outputs: Array) -> Array:
        one = np.asarray(outputs).dtype.type(1)
        return gradients * (np.fmin(outputs, _zero(outputs)) + one)

    def element(self, dy: Expr, y: Expr) -> Expr:
        return select(y < 0, dy * (y + 1), dy)

    def gradient(self, node: Node, ddx: Tensor) -> list[Tensor]:
        dy, y = node.inputs
        return [EluGrad()(ddx, y), _where_negative(ddx * dy, y)]


def _where_negative(x: Tensor, features: Tensor) -> Tensor:
    return x - ReluGrad()(x, features)


#: The slope that preserves mean 0 and variance 1 of activations (Klambauer et al., 2017).
_SELU_SCALE = 1.0507009873554804934193349852946
_SELU_SCALED_ALPHA = _SELU_SCALE * 1.6732632423543772848170429916717


class Selu(Unary):
    """y = scale x where x > 0, else scale alpha (exp(x) - 1)

    Example:
        >>> sess.run(tf.nn.selu([0.0, 1.0]))
        array([0.      , 1.050701], dtype=float32)
    """

    signature = "features: T -> activations: T; T: floating"

    def numpy(self, features: Array) -> Array:
        kind = np.asarray(features).dtype.type
        below = np.expm1(np.minimum(features, kind(0))) * kind(_SELU_SCALED_ALPHA)
        return np.maximum(features, kind(0)) * kind(_SELU_SCALE) + below

    def element(self, x: Expr) -> Expr:
        return x.max(0) * _SELU_SCALE + x.min(0).expm1() * _SELU_SCALED_ALPHA

    def gradient(self, node: Node, dy: Tensor) -> Tensor:
        return SeluGrad()(dy, node.output)


selu = unary(Selu, "nn.selu")


class SeluGrad(ActivationGrad):
    """dx = dy (y + scale alpha) where y < 0, else scale dy, also for NaN"""

    signature = "gradients: T, outputs: T -> backprops: T; T: floating"

    def numpy(self, gradients: Array, outputs: Array) -> Array:
        slope = _either(outputs < 0, _SELU_SCALED_ALPHA, _SELU_SCALE, outputs)
        return gradients * (np.fmin(outputs, _zero(outputs)) + slope)

    def element(self, dy: Expr, y: Expr) -> Expr:
        return select(y < 0, dy * (y + _SELU_SCALED_ALPHA), dy * _SELU_SCALE)

    def gradient(self, node: Node, ddx: Tensor) -> list[Tensor]:
        dy, y = node.inputs
        return [SeluGrad()(ddx, y), _where_negative(ddx * dy, y)]


class Softplus(Unary):
    """y = log(1 + exp(x))

    Example:
        >>> sess.run(tf.nn.softplus([0.0, 100.0]))
        array([  0.6931472, 100.       ], dtype=float32)
    """

    signature = "features: T -> activations: T; T: floating"

    def numpy(self, features: Array) -> Array:
        small = np.log1p(np.exp(-np.abs(features)))
        return np.maximum(features, _zero(features)) + small

    def element(self, x: Expr) -> Expr:
        return x.max(0) + (-x.abs()).exp().log1p()

    def gradient(self, node: Node, dy: Tensor) -> Tensor:
        return SoftplusGrad()(dy, node.inputs[0])


softplus = unary(Softplus, "nn.softplus", "math.softplus")


class SoftplusGrad(ActivationGrad):
    """dx = dy / (1 + exp(-x))"""

    def numpy(self, gradients: Array, features: Array) -> Array:
        return gradients / (np.exp(-features) + np.asarray(features).dtype.type(1))

    def element(self, dy: Expr, x: Expr) -> Expr:
        return dy / ((-x).exp() + 1)

    def gradient(self, node: Node, ddx: Tensor) -> list[Tensor]:
        dy, x = node.inputs
        # sigmoid(-x) = 1 - sigmoid(x), without cancellation.
        return [SoftplusGrad()(ddx, x), SoftplusGrad()(ddx * dy, x) * transcendental.sigmoid(-x)]


class Softsign(Unary):
    """y = x / (1 + |x|)

    Example:
        >>> sess.run(tf.nn.softsign([1.0, -3.0]))
        array([ 0.5 , -0.75], dtype=float32)
    """

    signature = "features: T -> activations: T; T: floating"

    def numpy(self, features: Array) -> Array:
        return features / (np.abs(features) + np.asarray(features).dtype.type(1))

    def element(self, x: Expr) -> Expr:
        return x / (x.abs() + 1)

    def gradient(self, node: Node, dy: Tensor) -> Tensor:
        return SoftsignGrad()(dy, node.inputs[0])


softsign = unary(Softsign, "nn.softsign", "math.softsign")


class SoftsignGrad(ActivationGrad):
    """dx = dy / (1 + |x|)²"""

    def numpy(self, gradients: Array, features: Array) -> Array:
        root = np.abs(features) + np.asarray(features).dtype.type(1)
        return gradients / (root * root)

    def element(self, dy: Expr, x: Expr) -> Expr:
        root = x.abs() + 1
        return dy / (root * root)

    def gradient(self, node: Node, ddx: Tensor) -> list[Tensor]:
        dy, x = node.inputs
        # The second derivative is -2 sign(x) / (1 + |x|)³, and y - sign(x) = -sign(x) / (1 + |x|).
        bend = softsign(x) - arithmetic.sign(x)
        return [SoftsignGrad()(ddx, x), 2.0 * SoftsignGrad()(ddx * dy, x) * bend]


class Gelu(Unary):
    """y = x Φ(x), Φ being the distribution function of the standard normal distribution"""

    private = True
    signature = "features: T -> activations: T; T: floating"

    def numpy(self, features: Array) -> Array:
        wide = np.asarray(features, np.float64)
        return (wide * ((1 + special_math.erf(wide * _ROOT_HALF)) / 2)).astype(features.dtype)

    def element(self, x: Expr) -> Expr:
        return x * ((1 + special.Erf().element(x * _ROOT_HALF)) / 2)

    def gradient(self, node: Node, dy: Tensor) -> Tensor:
        x = node.inputs[0]
        density = transcendental.exp(-0.5 * arithmetic.square(x)) * 0.3989422804014327
        return dy * (0.5 * (1.0 + special.erf(x * _ROOT_HALF)) + x * density)


_ROOT_HALF = 0.7071067811865476

gelu = unary(Gelu, "nn.gelu")


# Composites


@public("nn.crelu")
def crelu(features: Any, name: str | None = None, axis: int = -1) -> Tensor:
    """The positive and the negative parts of `features`, concatenated along `axis`."""
    with name_scope(name, "CRelu", [features]) as scope:
        x = convert_to_tensor(features, name="features")
        return relu(joining.concat([x, -x], axis), name=scope)


@public("nn.swish")
def swish(features: Any, name: str | None = None) -> Tensor:
    """x sigmoid(x)"""
    with name_scope(name, "swish", [features]) as scope:
        x = convert_to_tensor(features, name="features")
        return arithmetic.multiply(x, transcendental.sigmoid(x), name=scope)


@public("log_sigmoid", "math.log_sigmoid", "nn.log_sigmoid")
def log_sigmoid(x: Any, name: str | None = None) -> Tensor:
    """log(1 / (1 + exp(-x))), exact where x is very negative."""
    with name_scope(name, "LogSigmoid", [x]) as scope:
        tensor = convert_to_tensor(x, name="x")
        return arithmetic.negative(softplus(-tensor), name=scope)
