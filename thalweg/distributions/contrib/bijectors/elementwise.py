"""Bijectors of single numbers: each element of a tensor for itself."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

from thalweg.distributions.contrib.bijectors.base import Bijector
from thalweg.distributions.parameters import after, choose, floats
from thalweg.graph.likes import TensorLike
from thalweg.graph.node import Node, Tensor
from thalweg.graph.scopes import name_scope
from thalweg.ops.core import checks, filling
from thalweg.ops.math import arithmetic, transcendental
from thalweg.ops.nn.activation import softplus, softsign
from thalweg.public import public

_LOG_2 = math.log(2.0)


class Elementwise(Bijector):
    """A function of single numbers; subclasses write one Jacobian and both directions."""

    def __init__(
        self,
        validate_args: bool = False,
        name: str | None = None,
        parts: Sequence[Tensor] = (),
        is_constant_jacobian: bool = False,
    ) -> None:
        super().__init__(
            graph_parents=parts,
            is_constant_jacobian=is_constant_jacobian,
            validate_args=validate_args,
            dtype=parts[0].dtype if parts else None,
            forward_min_event_ndims=0,
            name=name,
        )

    def _checked(self, value: Tensor, *assertions: Callable[[Tensor], Node]) -> Tensor:
        """The value, once the assertions hold where they are asked for."""
        if not self._validate_args:
            return value
        return after([holds(value) for holds in assertions], value)


@public("contrib.distributions.bijectors.Identity")
class Identity(Elementwise):
    """y = x

    Args:
        validate_args: whether the step checks values.
        name: the scope of the nodes.
    """

    def __init__(self, validate_args: bool = False, name: str = "identity") -> None:
        super().__init__(validate_args, name, is_constant_jacobian=True)

    def _forward(self, x: Tensor) -> Tensor:
        return x

    def _inverse(self, y: Tensor) -> Tensor:
        return y

    def _forward_log_det_jacobian(self, x: Tensor) -> Any:
        return 0.0


@public("contrib.distributions.bijectors.PowerTransform")
class PowerTransform(Elementwise):
    """y = (1 + c x)^(1 / c), for x > -1 / c; exp(x) for c = 0

    Args:
        power: c, not negative.
        validate_args: whether the step checks that values are in range.
        name: the scope of the nodes.
    """

    def __init__(
        self, power: float = 0.0, validate_args: bool = False, name: str = "power_transform"
    ) -> None:
        if power < 0:
            raise ValueError("`power` must be a non-negative number.")
        self._power = power
        super().__init__(validate_args, name)

    @property
    def power(self) -> float:
        """c"""
        return self._power

    def _forward(self, x: Tensor) -> Tensor:
        if not self._power:
            return transcendental.exp(x)
        x = self._checked(x, lambda x: checks.assert_greater(1 + x * self._power, 0.0))
        # By the logarithm, whose argument may be close to 1.
        return transcendental.exp(transcendental.log1p(x * self._power) / self._power)

    def _inverse(self, y: Tensor) -> Tensor:
        y = self._checked(y, checks.assert_positive)
        if not self._power:
            return transcendental.log(y)
        return transcendental.expm1(transcendental.log(y) * self._power) / self._power

    def _forward_log_det_jacobian(self, x: Tensor) -> Tensor:
        if not self._power:
            return x
        return (1 / self._power - 1) * transcendental.log1p(x * self._power)

    def _inverse_log_det_jacobian(self, y: Tensor) -> Tensor:
        return (self._power - 1) * transcendental.log(self._checked(y, checks.assert_positive))


@public("contrib.distributions.bijectors.Exp")
class Exp(PowerTransform):
    """y = exp(x)

    Args:
        validate_args: whether the step checks that values are in range.
        name: the scope of the nodes.

    Example:
        >>> normal = tf.contrib.distributions.Normal(0.0, 1.0)
        >>> exp = tf.contrib.distributions.bijectors.Exp()
        >>> log_normal = tf.contrib.distributions.TransformedDistribution(normal, exp)
        >>> sess.run(log_normal.cdf(1.0))
        np.float32(0.5)
    """

    def __init__(self, validate_args: bool = False, name: str = "exp") -> None:
        super().__init__(0.0, validate_args, name)


@public("contrib.distributions.bijectors.AffineScalar")
class AffineScalar(Elementwise):
    """y = scale x + shift

    Args:
        shift: what is added; nothing for None.
        scale: the factor, not zero; 1 for None.
        validate_args: whether the step checks that `scale` is not zero.
        name: the scope of the nodes.
    """

    def __init__(
        self,
        shift: TensorLike | None = None,
        scale: TensorLike | None = None,
        validate_args: bool = False,
        name: str = "affine_scalar",
    ) -> None:
        self._shift = self._scale = None
        with name_scope(name, values=[shift, scale]):
            given = {key: v for key, v in (("shift", shift), ("scale", scale)) if v is not None}
            parts = floats(*given.values()) if given else []
            for key, part in zip(given, parts, strict=True):
                setattr(self, f"_{key}", part)
            if validate_args and self._scale is not None:
                fine = checks.assert_none_equal(self._scale, filling.zeros_like(self._scale))
                self._scale = after([fine], self._scale)
        super().__init__(validate_args, name, parts, is_constant_jacobian=True)

    @property
    def shift(self) -> Tensor | None:
        """What is added."""
        return self._shift

    @property
    def scale(self) -> Tensor | None:
        """The factor."""
        return self._scale

    def _forward(self, x: Tensor) -> Tensor:
        scaled = x if self._scale is None else x * self._scale
        return scaled if self._shift is None else scaled + self._shift

    def _inverse(self, y: Tensor) -> Tensor:
        centred = y if self._shift is None else y - self._shift
        return centred if self._scale is None else centred / self._scale

    def _forward_log_det_jacobian(self, x: Tensor) -> Any:
        return 0.0 if self._scale is None else transcendental.log(abs(self._scale))

    def _is_increasing(self) -> Any:
        return True if self._scale is None else self._scale > 0


@public("contrib.distributions.bijectors.Sigmoid")
class Sigmoid(Elementwise):
    """y = 1 / (1 + exp(-x))

    Args:
        validate_args: whether the step checks that values are in range.
        name: the scope of the nodes.
    """

    def __init__(self, validate_args: bool = False, name: str = "sigmoid") -> None:
        super().__init__(validate_args, name)

    def _forward(self, x: Tensor) -> Tensor:
        return transcendental.sigmoid(x)

    def _inverse(self, y: Tensor) -> Tensor:
        return transcendental.log(y) - transcendental.log1p(-y)

    def _forward_log_det_jacobian(self, x: Tensor) -> Tensor:
        return -softplus(-x) - softplus(x)

    def _inverse_log_det_jacobian(self, y: Tensor) -> Tensor:
        return -transcendental.log(y) - transcendental.log1p(-y)


@public("contrib.distributions.bijectors.Tanh")
class Tanh(Elementwise):
    """y = tanh(x)

    Args:
        validate_args: whether the step checks that values are in range.
        name: the scope of the nodes.
    """

    def __init__(self, validate_args: bool = False, name: str = "tanh") -> None:
        super().__init__(validate_args, name)

    def _forward(self, x: Tensor) -> Tensor:
        return transcendental.tanh(x)

    def _inverse(self, y: Tensor) -> Tensor:
        return transcendental.atanh(y)

    def _forward_log_det_jacobian(self, x: Tensor) -> Tensor:
        # log(1 - tanh²), also where tanh is 1 to all digits
        return 2 * (_LOG_2 - x - softplus(-2 * x))


@public("contrib.distributions.softplus_inverse")
def softplus_inverse(x: TensorLike, name: str | None = None) -> Tensor:
    """The y with softplus(y) = x, for x > 0.

    Args:
        x: positive numbers.
        name: the name of the nodes.

    Returns:
        A tensor like `x`.

    Example:
        >>> sess.run(tf.nn.softplus(tf.contrib.distributions.softplus_inverse(3.0)))
        np.float32(3.0)
    """
    with name_scope(name, "softplus_inverse", [x]):
        (given,) = floats(x)
        return given + transcendental.log(-transcendental.expm1(-given))


@public("contrib.distributions.bijectors.Softplus")
class Softplus(Elementwise):
    """y = c log(1 + exp(x / c))

    Args:
        hinge_softness: c, not zero: the smaller, the sharper the bend; 1 for None.
        validate_args: whether the step checks that `hinge_softness` is not zero.
        name: the scope of the nodes.
    """

    def __init__(
        self,
        hinge_softness: TensorLike | None = None,
        validate_args: bool = False,
        name: str = "softplus",
    ) -> None:
        self._hinge_softness = None
        parts: list[Tensor] = []
        with name_scope(name, values=[hinge_softness]):
            if hinge_softness is not None:
                parts = floats(hinge_softness)
                self._hinge_softness = parts[0]
            if validate_args and self._hinge_softness is not None:
                zero = filling.zeros_like(self._hinge_softness)
                fine = checks.assert_none_equal(self._hinge_softness, zero)
                self._hinge_softness = after([fine], self._hinge_softness)
        super().__init__(validate_args, name, parts)

    @property
    def hinge_softness(self) -> Tensor | None:
        """c"""
        return self._hinge_softness

    def _softened(self, function: Callable[[Tensor], Tensor], x: Tensor) -> Tensor:
        if self._hinge_softness is None:
            return function(x)
        return self._hinge_softness * function(x / self._hinge_softness)

    def _scaled(self, x: Tensor) -> Tensor:
        return x if self._hinge_softness is None else x / self._hinge_softness

    def _forward(self, x: Tensor) -> Tensor:
        return self._softened(softplus, x)

    def _inverse(self, y: Tensor) -> Tensor:
        return self._softened(softplus_inverse, y)

    def _forward_log_det_jacobian(self, x: Tensor) -> Tensor:
        return -softplus(-self._scaled(x))

    def _inverse_log_det_jacobian(self, y: Tensor) -> Tensor:
        return -transcendental.log(-transcendental.expm1(-self._scaled(y)))


@public("contrib.distributions.bijectors.Softsign")
class Softsign(Elementwise):
    """y = x / (1 + |x|)

    Args:
        validate_args: whether the step checks that values are in range.
        name: the scope of the nodes.
    """

    def __init__(self, validate_args: bool = False, name: str = "softsign") -> None:
        super().__init__(validate_args, name)

    def _forward(self, x: Tensor) -> Tensor:
        return softsign(x)

    def _inverse(self, y: Tensor) -> Tensor:
        y = self._checked(y, lambda y: checks.assert_less(abs(y), filling.ones_like(y)))
        return y / (1 - abs(y))

    def _forward_log_det_jacobian(self, x: Tensor) -> Tensor:
        return -2 * transcendental.log1p(abs(x))

    def _inverse_log_det_jacobian(self, y: Tensor) -> Tensor:
        return -2 * transcendental.log1p(-abs(y))


@public("contrib.distributions.bijectors.Square")
class Square(Elementwise):
    """y = x², for x >= 0

    Args:
        validate_args: whether the step checks that values are not negative.
        name: the scope of the nodes.
    """

    def __init__(self, validate_args: bool = False, name: str = "square") -> None:
        super().__init__(validate_args, name)

    def _forward(self, x: Tensor) -> Tensor:
        return arithmetic.square(self._checked(x, checks.assert_non_negative))

    def _inverse(self, y: Tensor) -> Tensor:
        return transcendental.sqrt(self._checked(y, checks.assert_non_negative))

    def _forward_log_det_jacobian(self, x: Tensor) -> Tensor:
        x = self._checked(x, checks.assert_non_negative)
        return _LOG_2 + transcendental.log(x)


class _OfDistribution(Elementwise):
    """A distribution function as a bijector, with parameters that must be positive."""

    def __init__(
        self, parts: dict[str, Any], positive: Sequence[str], validate_args: bool, name: str
    ) -> None:
        with name_scope(name, values=list(parts.values())):
            tensors = dict(zip(parts, floats(*parts.values()), strict=True))
            for key in positive if validate_args else ():
                tensors[key] = after([checks.assert_positive(tensors[key])], tensors[key])
        for key, tensor in tensors.items():
            setattr(self, f"_{key}", tensor)
        super().__init__(validate_args, name, list(tensors.values()))


@public("contrib.distributions.bijectors.Gumbel")
class Gumbel(_OfDistribution):
    """y = exp(-exp(-(x - loc) / scale)), which makes Gumbel numbers uniform

    Args:
        loc: the location.
        scale: the scale, positive.
        validate_args: whether the step checks that `scale` is positive.
        name: the scope of the nodes.
    """

    _loc: Tensor
    _scale: Tensor

    def __init__(
        self,
        loc: TensorLike = 0.0,
        scale: TensorLike = 1.0,
        validate_args: bool = False,
        name: str = "gumbel",
    ) -> None:
        super().__init__({"loc": loc, "scale": scale}, ["scale"], validate_args, name)

    @property
    def loc(self) -> Tensor:
        """The location."""
        return self._loc

    @property
    def scale(self) -> Tensor:
        """The scale."""
        return self._scale

    def _forward(self, x: Tensor) -> Tensor:
        return transcendental.exp(-transcendental.exp(-(x - self._loc) / self._scale))

    def _inverse(self, y: Tensor) -> Tensor:
        return self._loc - self._scale * transcendental.log(-transcendental.log(y))

    def _forward_log_det_jacobian(self, x: Tensor) -> Tensor:
        z = (x - self._loc) / self._scale
        return -z - transcendental.exp(-z) - transcendental.log(self._scale)

    def _inverse_log_det_jacobian(self, y: Tensor) -> Tensor:
        log = transcendental.log
        return log(self._scale) - log(-log(y) * y)


@public("contrib.distributions.bijectors.Weibull")
class Weibull(_OfDistribution):
    """y = 1 - exp(-(x / scale)^concentration), for x >= 0

    Args:
        scale: the scale, positive.
        concentration: the shape, positive.
        validate_args: whether the step checks parameters and values.
        name: the scope of the nodes.
    """

    _concentration: Tensor
    _scale: Tensor

    def __init__(
        self,
        scale: TensorLike = 1.0,
        concentration: TensorLike = 1.0,
        validate_args: bool = False,
        name: str = "weibull",
    ) -> None:
        parts = {"scale": scale, "concentration": concentration}
        super().__init__(parts, list(parts), validate_args, name)

    @property
    def scale(self) -> Tensor:
        """The scale."""
        return self._scale

    @property
    def concentration(self) -> Tensor:
        """The shape."""
        return self._concentration

    def _forward(self, x: Tensor) -> Tensor:
        x = self._checked(x, checks.assert_non_negative)
        return -transcendental.expm1(-((x / self._scale) ** self._concentration))

    def _inverse(self, y: Tensor) -> Tensor:
        return self._scale * (-transcendental.log1p(-y)) ** (1 / self._concentration)

    def _forward_log_det_jacobian(self, x: Tensor) -> Tensor:
        log = transcendental.log
        z = x / self._scale
        power = transcendental.xlogy(self._concentration - 1, z)
        return log(self._concentration / self._scale) + power - z**self._concentration

    def _inverse_log_det_jacobian(self, y: Tensor) -> Tensor:
        log, depth = transcendental.log, -transcendental.log1p(-y)
        slope = (1 / self._concentration - 1) * log(depth)
        return depth + slope + log(self._scale / self._concentration)


@public("contrib.distributions.bijectors.Kumaraswamy")
class Kumaraswamy(_OfDistribution):
    """y = (1 - (1 - x)^(1 / concentration0))^(1 / concentration1), for 0 <= x <= 1

    Args:
        concentration1, concentration0: both shapes, positive.
        validate_args: whether the step checks parameters and values.
        name: the scope of the nodes.
    """

    _concentration1: Tensor
    _concentration0: Tensor

    def __init__(
        self,
        concentration1: TensorLike | None = None,
        concentration0: TensorLike | None = None,
        validate_args: bool = False,
        name: str = "kumaraswamy",
    ) -> None:
        given = {"concentration1": concentration1, "concentration0": concentration0}
        parts = {key: 1.0 if value is None else value for key, value in given.items()}
        super().__init__(parts, list(parts), validate_args, name)

    @property
    def concentration1(self) -> Tensor:
        """The inner shape."""
        return self._concentration1

    @property
    def concentration0(self) -> Tensor:
        """The outer shape."""
        return self._concentration0

    def _forward(self, x: Tensor) -> Tensor:
        root = -transcendental.expm1(transcendental.log1p(-x) / self._concentration0)
        return root ** (1 / self._concentration1)

    def _inverse(self, y: Tensor) -> Tensor:
        depth = transcendental.log1p(-(y**self._concentration1))
        return -transcendental.expm1(depth * self._concentration0)

    def _inverse_log_det_jacobian(self, y: Tensor) -> Tensor:
        a, b = self._concentration1, self._concentration0
        inner = transcendental.xlogy(a - 1, y)
        outer = (b - 1) * transcendental.log1p(-(y**a))
        return transcendental.log(a) + transcendental.log(b) + inner + outer


@public("contrib.distributions.bijectors.SinhArcsinh")
class SinhArcsinh(_OfDistribution):
    """y = sinh((arcsinh(x) + skewness) tailweight)

    Args:
        skewness: positive leans to the right, 0 for None.
        tailweight: above 1 for heavier tails, positive, 1 for None.
        validate_args: whether the step checks that `tailweight` is positive.
        name: the scope of the nodes.
    """

    _skewness: Tensor
    _tailweight: Tensor

    def __init__(
        self,
        skewness: TensorLike | None = None,
        tailweight: TensorLike | None = None,
        validate_args: bool = False,
        name: str = "SinhArcsinh",
    ) -> None:
        parts = {
            "skewness": 0.0 if skewness is None else skewness,
            "tailweight": 1.0 if tailweight is None else tailweight,
        }
        super().__init__(parts, ["tailweight"], validate_args, name)

    @property
    def skewness(self) -> Tensor:
        """What is added to arcsinh(x)."""
        return self._skewness

    @property
    def tailweight(self) -> Tensor:
        """What the sum is multiplied with."""
        return self._tailweight

    def _angle(self, x: Tensor) -> Tensor:
        return (transcendental.asinh(x) + self._skewness) * self._tailweight

    def _forward(self, x: Tensor) -> Tensor:
        return transcendental.sinh(self._angle(x))

    def _inverse(self, y: Tensor) -> Tensor:
        return transcendental.sinh(transcendental.asinh(y) / self._tailweight - self._skewness)

    def _forward_log_det_jacobian(self, x: Tensor) -> Tensor:
        return _log_cosh(self._angle(x)) + transcendental.log(self._tailweight) - _log_hypotenuse(x)


def _log_cosh(x: Tensor) -> Tensor:
    """log cosh(x), also where cosh overflows."""
    size = abs(x)
    return size + softplus(-2 * size) - _LOG_2


def _log_hypotenuse(x: Tensor) -> Tensor:
    """log √(1 + x²), also where x² overflows."""
    large = abs(x) > 1e5
    # Each branch sees only arguments in its own range: no inf from another one spoils a gradient.
    near = 0.5 * transcendental.log1p(arithmetic.square(choose(large, x, 0.0) - x))
    return choose(large, transcendental.log(choose(large, abs(x), 1.0)), near)
