"""Distributions of counts: binomial, negative binomial, geometric, Poisson."""

from __future__ import annotations

from typing import Any, ClassVar

import numpy as np

from thalweg.distributions import vector
from thalweg.distributions.base import NOT_REPARAMETERIZED
from thalweg.distributions.parameters import (
    after,
    broadcast_all,
    choose,
    floats,
    is_count,
    logits_and_probs,
    new_seed,
)
from thalweg.distributions.scalar import ScalarDistribution
from thalweg.graph.likes import TensorLike
from thalweg.graph.node import Tensor
from thalweg.graph.scopes import name_scope
from thalweg.ops.arrays import joining, transposing
from thalweg.ops.core import checks, filling, shaping
from thalweg.ops.math import arithmetic, rounding, transcendental
from thalweg.ops.math.special import betainc, igammac, lgamma
from thalweg.ops.math.transcendental import multiply_no_nan
from thalweg.ops.nn.activation import softplus
from thalweg.ops.random import random, random_parametric
from thalweg.public import public


class _Counts(ScalarDistribution):
    """A distribution over integers from 0, in floats."""

    def _count(self, value: Tensor) -> Tensor:
        return after(is_count(value, "counts"), value) if self.validate_args else value

    def _as_float(self, value: Tensor) -> Tensor:
        return self._count(floats(value, self._parts[0])[0])


@public("contrib.distributions.Binomial")
class Binomial(_Counts):
    """How many of `total_count` draws succeed, each with probability `probs` = sigmoid(`logits`)

    Args:
        total_count: the numbers of draws.
        logits: log(probs / (1 - probs)).
        probs: the probabilities of success; one of the two is given.
        validate_args: whether the step checks parameters and values.
        allow_nan_stats: give NaN for statistics that are not defined, instead of raising.
        name: the scope of the nodes.

    Example:
        >>> sess.run(tf.contrib.distributions.Binomial(2.0, probs=0.5).prob(1.0))
        np.float32(0.5)
    """

    def __init__(
        self,
        total_count: TensorLike,
        logits: TensorLike | None = None,
        probs: TensorLike | None = None,
        validate_args: bool = False,
        allow_nan_stats: bool = True,
        name: str = "Binomial",
    ) -> None:
        parameters = dict(locals())
        with name_scope(name, values=[total_count, logits, probs]) as scope:
            self._logits, self._probs = logits_and_probs(
                logits, probs, False, validate_args, "logits_and_probs"
            )
            count, _ = floats(total_count, self._logits)
            assertions = is_count(count, "total_count") if validate_args else []
            self._total_count = after(assertions, count, name="total_count")
            parts = [self._total_count, self._logits]
            super().__init__(parts, NOT_REPARAMETERIZED, parameters, scope)

    @property
    def total_count(self) -> Tensor:
        """The number of draws."""
        return self._total_count

    @property
    def logits(self) -> Tensor:
        """The log-odds of success."""
        return self._logits

    @property
    def probs(self) -> Tensor:
        """The probability of success."""
        return self._probs

    def _count(self, value: Tensor) -> Tensor:
        if not self.validate_args:
            return value
        message = "counts are not less than or equal to n."
        most = checks.assert_less_equal(value, self._total_count, message=message)
        return after([*is_count(value, "counts"), most], value)

    def _sample_n(self, n: Tensor, seed: int | None) -> Tensor:
        count, logits = broadcast_all(self._total_count, self._logits)
        sides = joining.stack([logits, filling.zeros_like(logits)], axis=-1)
        draws = vector.as_draws(count)
        counts = vector.tallies(vector.rows(sides), draws, n, self.dtype, seed)
        return shaping.reshape(transposing.transpose(counts[..., 0]), self._sizes(n))

    def _log_prob(self, value: Tensor) -> Tensor:
        k, n = self._as_float(value), self._total_count
        orders = lgamma(n + 1) - lgamma(k + 1) - lgamma(n - k + 1)
        hits = multiply_no_nan(softplus(-self._logits), k)
        return orders - hits - multiply_no_nan(softplus(self._logits), n - k)

    def _cdf(self, value: Tensor) -> Tensor:
        k, n, p = broadcast_all(
            rounding.floor(self._as_float(value)), self._total_count, self._probs
        )
        one = filling.ones_like(k)
        # The beta function wants arguments above zero, also where the answer is known.
        inner = betainc(arithmetic.maximum(n - k, one), arithmetic.maximum(k, 0) + 1, 1 - p)
        return choose(k >= n, one, choose(k < 0, filling.zeros_like(k), inner))

    def _mean(self) -> Tensor:
        return self._total_count * self._probs

    def _variance(self) -> Tensor:
        return self._mean() * (1 - self._probs)

    def _mode(self) -> Tensor:
        most = rounding.floor((self._total_count + 1) * self._probs)
        return arithmetic.minimum(most, self._total_count)


@public("contrib.distributions.NegativeBinomial")
class NegativeBinomial(_Counts):
    """How many draws succeed before `total_count` failed

    Args:
        total_count: the numbers of failures, positive.
        logits: log(probs / (1 - probs)).
        probs: the probabilities of success; one of the two is given.
        validate_args: whether the step checks parameters and values.
        allow_nan_stats: give NaN for statistics that are not defined, instead of raising.
        name: the scope of the nodes.
    """

    def __init__(
        self,
        total_count: TensorLike,
        logits: TensorLike | None = None,
        probs: TensorLike | None = None,
        validate_args: bool = False,
        allow_nan_stats: bool = True,
        name: str = "NegativeBinomial",
    ) -> None:
        parameters = dict(locals())
        with name_scope(name, values=[total_count, logits, probs]) as scope:
            self._logits, self._probs = logits_and_probs(
                logits, probs, False, validate_args, "logits_and_probs"
            )
            count, _ = floats(total_count, self._logits)
            assertions = [checks.assert_positive(count)] if validate_args else []
            self._total_count = after(assertions, count, name="total_count")
            parts = [self._total_count, self._logits]
            super().__init__(parts, NOT_REPARAMETERIZED, parameters, scope)

    @property
    def total_count(self) -> Tensor:
        """The number of failures."""
        return self._total_count

    @property
    def logits(self) -> Tensor:
        """The log-odds of success."""
        return self._logits

    @property
    def probs(self) -> Tensor:
        """The probability of success."""
        return self._probs

    def _sample_n(self, n: Tensor, seed: int | None) -> Tensor:
        count, logits = broadcast_all(self._total_count, self._logits)
        rate = random_parametric.random_gamma(
            [n], count, transcendental.exp(-logits), dtype=self.dtype, seed=seed
        )
        return random_parametric.random_poisson(
            rate, [], dtype=self.dtype, seed=new_seed(seed, "negative_binomial")
        )

    def _log_prob(self, value: Tensor) -> Tensor:
        k, n = self._as_float(value), self._total_count
        orders = lgamma(n + k) - lgamma(k + 1) - lgamma(n)
        hits = multiply_no_nan(softplus(-self._logits), k)
        return orders - hits - multiply_no_nan(softplus(self._logits), n)

    def _cdf(self, value: Tensor) -> Tensor:
        k, n, p = broadcast_all(
            rounding.floor(self._as_float(value)), self._total_count, self._probs
        )
        inner = betainc(n, 1 + arithmetic.maximum(k, 0), 1 - p)
        return choose(k < 0, filling.zeros_like(k), inner)

    def _mean(self) -> Tensor:
        return self._total_count * transcendental.exp(self._logits)

    def _variance(self) -> Tensor:
        return self._mean() / transcendental.sigmoid(-self._logits)

    def _mode(self) -> Tensor:
        most = rounding.floor((self._total_count - 1) * transcendental.exp(self._logits))
        return choose(self._total_count > 1, most, 0.0)


@public("contrib.distributions.Geometric")
class Geometric(_Counts):
    """How many draws fail before the first one that succeeds

    Args:
        logits: log(probs / (1 - probs)).
        probs: the probabilities of success; one of the two is given.
        validate_args: whether the step checks parameters and values.
        allow_nan_stats: give NaN for statistics that are not defined, instead of raising.
        name: the scope of the nodes.
    """

    sized_parameters: ClassVar[tuple[str, ...]] = ("logits",)

    def __init__(
        self,
        logits: TensorLike | None = None,
        probs: TensorLike | None = None,
        validate_args: bool = False,
        allow_nan_stats: bool = True,
        name: str = "Geometric",
    ) -> None:
        parameters = dict(locals())
        with name_scope(name, values=[logits, probs]) as scope:
            self._logits, self._probs = logits_and_probs(
                logits, probs, False, validate_args, "logits_and_probs"
            )
            super().__init__([self._probs], NOT_REPARAMETERIZED, parameters, scope)

    @property
    def logits(self) -> Tensor:
        """The log-odds of success."""
        return self._logits

    @property
    def probs(self) -> Tensor:
        """The probability of success."""
        return self._probs

    def _sample_n(self, n: Tensor, seed: int | None) -> Tensor:
        tiny = np.finfo(self.dtype.as_numpy_dtype).tiny  # its logarithm is finite
        drawn = random.random_uniform(self._sizes(n), tiny, 1.0, self.dtype, seed=seed)
        return rounding.floor(transcendental.log(drawn) / transcendental.log1p(-self._probs))

    def _log_prob(self, value: Tensor) -> Tensor:
        k = self._as_float(value)
        misses = multiply_no_nan(transcendental.log1p(-self._probs), k)
        return misses + transcendental.log(self._probs)

    def _cdf(self, value: Tensor) -> Tensor:
        k = rounding.floor(self._as_float(value))
        inner = -transcendental.expm1((k + 1) * transcendental.log1p(-self._probs))
        return choose(k < 0, filling.zeros_like(inner), inner)

    def _entropy(self) -> Tensor:
        p, q = self._probs, 1 - self._probs
        return -(transcendental.xlogy(p, p) + transcendental.xlogy(q, q)) / p

    def _mean(self) -> Tensor:
        return transcendental.exp(-self._logits)

    def _variance(self) -> Tensor:
        return self._mean() / self._probs

    def _mode(self) -> Tensor:
        return filling.zeros_like(self._probs)


@public("contrib.distributions.Poisson")
class Poisson(_Counts):
    """exp(-rate) rate^k / k!

    Args:
        rate: the means, positive.
        log_rate: their logarithms; one of the two is given.
        interpolate_nondiscrete: whether the formula also holds between integers, where the mass
            is zero otherwise.
        validate_args: whether the step checks parameters and values.
        allow_nan_stats: give NaN for statistics that are not defined, instead of raising.
        name: the scope of the nodes.

    Example:
        >>> sess.run(tf.contrib.distributions.Poisson(rate=2.0).variance())
        np.float32(2.0)
    """

    def __init__(
        self,
        rate: TensorLike | None = None,
        log_rate: TensorLike | None = None,
        interpolate_nondiscrete: bool = True,
        validate_args: bool = False,
        allow_nan_stats: bool = True,
        name: str = "Poisson",
    ) -> None:
        parameters = dict(locals())
        if (rate is None) == (log_rate is None):
            raise ValueError("Must specify exactly one of `rate` and `log_rate`.")
        with name_scope(name, values=[rate, log_rate]) as scope:
            if log_rate is None:
                (given,) = floats(rate)
                assertions = [checks.assert_positive(given)] if validate_args else []
                self._rate = after(assertions, given, name="rate")
                self._log_rate = transcendental.log(self._rate)
            else:
                (self._log_rate,) = floats(log_rate)
                self._rate = transcendental.exp(self._log_rate)
            self._interpolates = interpolate_nondiscrete
            super().__init__([self._rate], NOT_REPARAMETERIZED, parameters, scope)

    @property
    def rate(self) -> Tensor:
        """The mean."""
        return self._rate

    @property
    def log_rate(self) -> Tensor:
        """The mean's logarithm."""
        return self._log_rate

    @property
    def interpolate_nondiscrete(self) -> bool:
        """Whether the formula also holds between integers."""
        return self._interpolates

    def _count(self, value: Tensor) -> Tensor:
        if not (self.validate_args and self._interpolates):
            return super()._count(value)
        return after([checks.assert_non_negative(value)], value)

    def _sample_n(self, n: Tensor, seed: int | None) -> Tensor:
        return random_parametric.random_poisson(self._rate, [n], dtype=self.dtype, seed=seed)

    def _log_prob(self, value: Tensor) -> Tensor:
        k = self._as_float(value)
        powers = multiply_no_nan(self._log_rate, k)
        inside = k >= 0 if self._interpolates else (k >= 0) & self._is_integer(k)
        safe = choose(inside, k, 0.0)
        return choose(inside, powers - lgamma(safe + 1) - self._rate, -np.inf)

    def _is_integer(self, k: Tensor) -> Any:
        return rounding.floor(k) >= k

    def _cdf(self, value: Tensor) -> Tensor:
        given = self._as_float(value)
        k, rate = broadcast_all(given if self._interpolates else rounding.floor(given), self._rate)
        inner = igammac(1 + arithmetic.maximum(k, 0), rate)
        return choose(k < 0, filling.zeros_like(k), inner)

    def _mean(self) -> Tensor:
        return self._rate

    def _variance(self) -> Tensor:
        return self._rate

    def _mode(self) -> Tensor:
        return rounding.floor(self._rate)
