"""Special functions as ops: error, gamma, beta, zeta and Bessel functions.

The NumPy kernels come from `special_math`; the error function also has polynomials for loops. The
others are series or recurrences, not one expression, and run on the host.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from thalweg import errors
from thalweg.graph.convert import convert_to_tensor
from thalweg.graph.node import Node, Tensor
from thalweg.graph.scopes import name_scope
from thalweg.graph.shapes import TensorShape
from thalweg.ir.expr import Expr, call, select
from thalweg.ir.functions.error import FAR, FAR_END, FAR_SCALE, FAR_SHIFT, NEAR
from thalweg.ops.core import basic, broadcast, choosing, filling
from thalweg.ops.core.elementwise import Binary, Elementwise, Unary, unary
from thalweg.ops.math import arithmetic, compare, reduce, special_math, transcendental
from thalweg.platform.arrays import Array
from thalweg.public import public


def _like(result: Array, x: Array) -> Array:
    """A result of doubles, converted to the dtype of the input."""
    return result.astype(np.asarray(x).dtype)


def _polynomial(coefficients: tuple[float, ...], x: Expr) -> Expr:
    total = x * coefficients[-1] + coefficients[-2]
    for coefficient in coefficients[-3::-1]:
        total = total * x + coefficient
    return total


def _erf_near(x: Expr) -> Expr:
    return x + x * _polynomial(NEAR, x * x)


def _erfc_far(x: Expr) -> Expr:
    """erfc of |x|, for |x| >= 1."""
    size = call("min", call("abs", x), FAR_END)
    scaled = _polynomial(FAR, FAR_SCALE / (3 + size) - FAR_SHIFT)
    return call("exp", -(x * x)) * scaled


class Erf(Unary):
    """y = 2/√π ∫₀ˣ exp(-t²) dt

    Example:
        >>> sess.run(tf.erf([0.0, 10.0]))
        array([0., 1.], dtype=float32)
    """

    signature = "x: T -> y: T; T: floating"

    def numpy(self, x: Array) -> Array:
        return _like(special_math.erf(x), x)

    def element(self, x: Expr) -> Expr:
        return call("erf", x)

    def gradient(self, node: Node, dy: Tensor) -> Tensor:
        return dy * _bell(node.inputs[0])


def _bell(x: Tensor) -> Tensor:
    """2/√π exp(-x²)"""
    return transcendental.exp(-arithmetic.square(x)) * (2 / math.sqrt(math.pi))


erf = unary(Erf, "erf", "math.erf")


class Erfc(Unary):
    """y = 1 - erf(x)

    Example:
        >>> sess.run(tf.erfc([0.0]))
        array([1.], dtype=float32)
    """

    signature = "x: T -> y: T; T: floating"

    def numpy(self, x: Array) -> Array:
        return _like(special_math.erfc(x), x)

    def element(self, x: Expr) -> Expr:
        tail = _erfc_far(x)
        far = select(x > 0, tail, 2 - tail)
        return select(call("abs", x) < 1, 1 - _erf_near(x), far)

    def gradient(self, node: Node, dy: Tensor) -> Tensor:
        return -dy * _bell(node.inputs[0])


erfc = unary(Erfc, "erfc", "math.erfc")


class Lgamma(Unary):
    """y = ln |Γ(x)|

    Example:
        >>> sess.run(tf.lgamma([1.0, 3.0]))
        array([0.       , 0.6931472], dtype=float32)
    """

    signature = "x: T -> y: T; T: floating"
    host_only = True

    def numpy(self, x: Array) -> Array:
        return _like(special_math.lgamma(x), x)

    def gradient(self, node: Node, dy: Tensor) -> Tensor:
        return dy * digamma(node.inputs[0])


lgamma = unary(Lgamma, "lgamma", "math.lgamma")


class Digamma(Unary):
    """y = the derivative of ln Γ at x"""

    signature = "x: T -> y: T; T: floating"
    host_only = True

    def numpy(self, x: Array) -> Array:
        return _like(special_math.digamma(x), x)

    def gradient(self, node: Node, dy: Tensor) -> Tensor:
        x = node.inputs[0]
        return dy * polygamma(filling.ones_like(x), x)


digamma = unary(Digamma, "digamma", "math.digamma")


class Zeta(Binary):
    """z = Σ (q + k)⁻ˣ over k = 0, 1, … (Hurwitz)"""

    signature = "x: T, q: T -> z: T; T: float32|float64"
    host_only = True

    def numpy(self, x: Array, q: Array) -> Array:
        return _like(special_math.zeta(x, q), x)

    def gradient(self, node: Node, dz: Tensor) -> list[Any]:
        x, q = node.inputs
        return broadcast.both(node.inputs, None, -dz * x * zeta(x + 1, q))


@public("zeta", "math.zeta")
def zeta(x: Any, q: Any, name: str | None = None) -> Tensor:
    """Hurwitz's zeta function: the sum of (q + k) to the -x."""
    return Zeta()(x, q, name=name)


class Polygamma(Binary):
    """z = the derivative number a of digamma at x"""

    signature = "a: T, x: T -> z: T; T: float32|float64"
    host_only = True

    def numpy(self, a: Array, x: Array) -> Array:
        return _like(special_math.polygamma(a, x), x)

    def gradient(self, node: Node, dz: Tensor) -> list[Any]:
        a, x = node.inputs
        return broadcast.both(node.inputs, None, dz * polygamma(a + 1, x))


@public("polygamma", "math.polygamma")
def polygamma(a: Any, x: Any, name: str | None = None) -> Tensor:
    """The derivative number `a` of digamma."""
    return Polygamma()(a, x, name=name)


class Igamma(Binary):
    """z = P(a, x) = 1/Γ(a) ∫₀ˣ t^(a-1) e⁻ᵗ dt"""

    signature = "a: T, x: T -> z: T; T: float32|float64"
    host_only = True

    def numpy(self, a: Array, x: Array) -> Array:
        return _like(special_math.igamma(a, x), x)

    def gradient(self, node: Node, dz: Tensor) -> list[Any]:
        a, x = node.inputs
        return broadcast.both(node.inputs, dz * _slope_in_a(a, x), dz * _gamma_density(a, x))


class IgammaGradA(Binary):
    """z = ∂P(a, x)/∂a"""

    signature = "a: T, x: T -> z: T; T: float32|float64"
    host_only = True

    def numpy(self, a: Array, x: Array) -> Array:
        return _like(special_math.igamma_slope(a, x), x)

    def gradient(self, node: Node, dz: Tensor) -> list[Any]:
        a, x = node.inputs
        slope = _gamma_density(a, x) * (transcendental.log(x) - digamma(a))
        return broadcast.both(node.inputs, dz * np.nan, dz * slope)  # in a: no known formula


def _slope_in_a(a: Tensor, x: Tensor) -> Tensor:
    """∂P(a, x)/∂a. Its derivative by a has no known formula: it is an error, not zero."""
    message = "the second derivative of igamma and igammac in a is not known"
    return IgammaGradA()(basic.PreventGradient(message=message)(a), x)


def _gamma_density(a: Tensor, x: Tensor) -> Tensor:
    density = transcendental.exp(transcendental.xlogy(a - 1, x) - x - lgamma(a))
    return choosing.SelectV2()(compare.less(x, 0), filling.ones_like(x) * np.nan, density)


@public("igamma", "math.igamma")
def igamma(a: Any, x: Any, name: str | None = None) -> Tensor:
    """The lower regularized incomplete gamma function P(a, x)."""
    return Igamma()(a, x, name=name)


class Igammac(Binary):
    """z = Q(a, x) = 1 - P(a, x)"""

    signature = "a: T, x: T -> z: T; T: float32|float64"
    host_only = True

    def numpy(self, a: Array, x: Array) -> Array:
        return _like(special_math.igammac(a, x), x)

    def gradient(self, node: Node, dz: Tensor) -> list[Any]:
        a, x = node.inputs
        return broadcast.both(node.inputs, -dz * _slope_in_a(a, x), -dz * _gamma_density(a, x))


@public("igammac", "math.igammac")
def igammac(a: Any, x: Any, name: str | None = None) -> Tensor:
    """The upper regularized incomplete gamma function Q(a, x)."""
    return Igammac()(a, x, name=name)


class Betainc(Elementwise):
    """z = 1/B(a, b) ∫₀ˣ t^(a-1) (1 - t)^(b-1) dt; inputs of one shape, or scalars"""

    signature = "a: T, b: T, x: T -> z: T; T: float32|float64"
    host_only = True

    def shape(self, *inputs: Tensor) -> TensorShape:
        if any(tensor.shape.rank is None for tensor in inputs):
            return TensorShape(None)
        merged = TensorShape.of(())
        for shape in (tensor.shape for tensor in inputs if tensor.shape.rank):
            if merged.rank and not merged.is_compatible_with(shape):
                raise ValueError(f"Shapes {merged} and {shape} must be equal, or scalar")
            merged = merged.merge_with(shape) if merged.rank else shape
        return merged

    def numpy(self, a: Array, b: Array, x: Array) -> Array:
        sizes = {np.shape(value) for value in (a, b, x) if np.ndim(value)}
        if len(sizes) > 1:
            shapes = ", ".join(str(list(np.shape(value))) for value in (a, b, x))
            raise errors.invalid(f"Shapes of a, b and x are inconsistent: {shapes}")
        return _like(special_math.betainc(a, b, x), x)

    def gradient(self, node: Node, dz: Tensor) -> list[Any]:
        a, b, x = node.inputs
        log_beta = lgamma(a) + lgamma(b) - lgamma(a + b)
        density = transcendental.xlogy(a - 1, x) + transcendental.xlogy(b - 1, 1 - x) - log_beta
        slope = dz * transcendental.exp(density)
        return [None, None, broadcast.reduce_to(slope, x, node.output)]


@public("betainc", "math.betainc")
def betainc(a: Any, b: Any, x: Any, name: str | None = None) -> Tensor:
    """The regularized incomplete beta function."""
    return Betainc()(a, b, x, name=name)


@public("lbeta", "math.lbeta")
def lbeta(x: Any, name: str | None = None) -> Tensor:
    """ln |B(x)|, of the vectors along the last axis: Σ ln Γ(xᵢ) - ln Γ(Σ xᵢ)."""
    with name_scope(name, "lbeta", [x]) as scope:
        tensor = convert_to_tensor(x, name="x")
        logs = reduce.reduce_sum(lgamma(tensor), [-1])
        return arithmetic.subtract(logs, lgamma(reduce.reduce_sum(tensor, [-1])), name=scope)


class BesselI0e(Unary):
    """y = exp(-|x|) I₀(x)"""

    signature = "x: T -> y: T; T: floating"
    host_only = True

    def numpy(self, x: Array) -> Array:
        return _like(special_math.bessel_i0e(x), x)

    def gradient(self, node: Node, dy: Tensor) -> Tensor:
        x = node.inputs[0]
        return dy * (bessel_i1e(x) - arithmetic.sign(x) * node.output)


bessel_i0e = unary(BesselI0e, "math.bessel_i0e")


class BesselI1e(Unary):
    """y = exp(-|x|) I₁(x)"""

    signature = "x: T -> y: T; T: floating"
    host_only = True

    def numpy(self, x: Array) -> Array:
        return _like(special_math.bessel_i1e(x), x)

    def gradient(self, node: Node, dy: Tensor) -> Tensor:
        x, y = node.inputs[0], node.output
        # I₁(x) / x tends to 1/2 at 0.
        at_zero = compare.equal(x, 0)
        safe = choosing.SelectV2()(at_zero, filling.ones_like(x), x)
        half = filling.ones_like(x) * 0.5
        ratio = choosing.SelectV2()(at_zero, half, y / safe)
        return dy * (bessel_i0e(x) - y * arithmetic.sign(x) - ratio)


bessel_i1e = unary(BesselI1e, "math.bessel_i1e")


@public("math.bessel_i0")
def bessel_i0(x: Any, name: str | None = None) -> Tensor:
    """The modified Bessel function of order 0."""
    with name_scope(name, "bessel_i0", [x]) as scope:
        return _unscaled(bessel_i0e, x, scope)


@public("math.bessel_i1")
def bessel_i1(x: Any, name: str | None = None) -> Tensor:
    """The modified Bessel function of order 1."""
    with name_scope(name, "bessel_i1", [x]) as scope:
        return _unscaled(bessel_i1e, x, scope)


def _unscaled(scaled: Any, x: Any, name: str) -> Tensor:
    tensor = convert_to_tensor(x, name="x")
    growth = transcendental.exp(arithmetic.absolute(tensor))
    return arithmetic.multiply(growth, scaled(tensor), name=name)
