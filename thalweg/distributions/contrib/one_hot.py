"""Classes as vectors: one of k classes as a one, and its relaxations to numbers between."""

from __future__ import annotations

from typing import Any

import numpy as np

from thalweg.distributions.base import FULLY_REPARAMETERIZED, NOT_REPARAMETERIZED
from thalweg.distributions.contrib.bijectors.elementwise import Exp, Sigmoid
from thalweg.distributions.contrib.location_scale import Logistic
from thalweg.distributions.contrib.transformed import TransformedDistribution
from thalweg.distributions.divergence import RegisterKL
from thalweg.distributions.parameters import after, floats, logits_and_probs
from thalweg.distributions.vector import VectorDistribution, column, covariance, rows, total
from thalweg.graph import dtypes
from thalweg.graph.likes import DTypeLike, TensorLike
from thalweg.graph.node import Node, Tensor
from thalweg.graph.scopes import name_scope
from thalweg.ops.arrays import marking, searching, transposing
from thalweg.ops.core import casting, checks, filling, shaping
from thalweg.ops.math import reduce, transcendental
from thalweg.ops.math.special import lgamma
from thalweg.ops.math.transcendental import multiply_no_nan
from thalweg.ops.nn import softmax
from thalweg.ops.random import random
from thalweg.public import public


@public("contrib.distributions.OneHotCategorical")
class OneHotCategorical(VectorDistribution):
    """One of k classes, as a vector with a one in its place

    Args:
        logits: log-probabilities [..., k], which need not be normalized.
        probs: probabilities; give one of the two.
        dtype: the dtype of samples.
        validate_args: whether the step checks parameters and values.
        allow_nan_stats: give NaN for statistics that are not defined, instead of raising.
        name: the scope of the nodes.

    Example:
        >>> sess.run(tf.contrib.distributions.OneHotCategorical(probs=[0.25, 0.75]).mode())
        array([0, 1], dtype=int32)
    """

    def __init__(
        self,
        logits: TensorLike | None = None,
        probs: TensorLike | None = None,
        dtype: DTypeLike = dtypes.int32,
        validate_args: bool = False,
        allow_nan_stats: bool = True,
        name: str = "OneHotCategorical",
    ) -> None:
        parameters = dict(locals())
        with name_scope(name, values=[logits, probs]) as scope:
            self._logits, self._probs = logits_and_probs(
                logits, probs, True, validate_args, "logits_and_probs"
            )
            parts = [self._logits, self._probs]
            super().__init__(self._logits, parts, NOT_REPARAMETERIZED, parameters, scope, dtype)

    @property
    def logits(self) -> Tensor:
        """The logarithms of the classes' weights."""
        return self._logits

    @property
    def probs(self) -> Tensor:
        """The probabilities of the classes."""
        return self._probs

    @property
    def event_size(self) -> Tensor:
        """The number of classes."""
        return shaping.shape(self._logits)[-1]

    def _sample_n(self, n: Tensor, seed: int | None) -> Tensor:
        drawn = random.multinomial(rows(self._logits), n, seed=seed)
        hot = marking.one_hot(transposing.transpose(drawn), self.event_size, dtype=self.dtype)
        return shaping.reshape(hot, self._sizes(n))

    def _log_prob(self, value: Tensor) -> Tensor:
        x = after(_hot_checks(value), value) if self.validate_args else value
        hot = casting.cast(x, self._logits.dtype)
        return total(multiply_no_nan(softmax.log_softmax(self._logits), hot))

    def _entropy(self) -> Tensor:
        return -total(multiply_no_nan(softmax.log_softmax(self._logits), self._probs))

    def _mean(self) -> Tensor:
        return self._probs

    def _variance(self) -> Tensor:
        return self._probs * (1 - self._probs)

    def _covariance(self) -> Tensor:
        return covariance(self._probs, self._variance(), filling.ones_like(self._probs[..., 0]))

    def _mode(self) -> Tensor:
        best = searching.argmax(self._logits, axis=-1)
        return marking.one_hot(best, self.event_size, dtype=self.dtype)


def _hot_checks(x: Tensor) -> list[Node]:
    one = filling.ones_like(x)
    return [
        checks.assert_non_negative(x),
        checks.assert_equal(reduce.reduce_sum(x, axis=-1), one[..., 0], message="not one-hot"),
        checks.assert_equal(reduce.reduce_max(x, axis=-1), one[..., 0], message="not one-hot"),
    ]


@RegisterKL(OneHotCategorical, OneHotCategorical)
def kl_one_hot(a: OneHotCategorical, b: OneHotCategorical, name: str | None = None) -> Tensor:
    """Σ p log p/q"""
    with name_scope(name, "kl_one_hot_categorical", [a.logits, b.logits]):
        difference = softmax.log_softmax(a.logits) - softmax.log_softmax(b.logits)
        return total(multiply_no_nan(difference, softmax.softmax(a.logits)))


@public("contrib.distributions.ExpRelaxedOneHotCategorical")
class ExpRelaxedOneHotCategorical(VectorDistribution):
    """The logarithm of a `RelaxedOneHotCategorical` sample, which does not underflow

    Args:
        temperature: how far from one-hot samples are, [...], positive.
        logits: log-probabilities [..., k], which need not be normalized.
        probs: probabilities; give one of the two.
        dtype: accepted; samples have the dtype of `logits` or `probs`.
        validate_args: whether the step checks parameters and values.
        allow_nan_stats: give NaN for statistics that are not defined, instead of raising.
        name: the scope of the nodes.
    """

    def __init__(
        self,
        temperature: TensorLike,
        logits: TensorLike | None = None,
        probs: TensorLike | None = None,
        dtype: DTypeLike | None = None,
        validate_args: bool = False,
        allow_nan_stats: bool = True,
        name: str = "ExpRelaxedOneHotCategorical",
    ) -> None:
        parameters = dict(locals())
        with name_scope(name, values=[temperature, logits, probs]) as scope:
            self._logits, self._probs = logits_and_probs(
                logits, probs, True, validate_args, "logits_and_probs"
            )
            heat, _ = floats(temperature, self._logits)
            assertions = [checks.assert_positive(heat)] if validate_args else []
            self._temperature = after(assertions, heat, name="temperature")
            self._heat = column(self._temperature)
            like = self._logits + filling.zeros_like(self._heat)
            parts = [like, self._temperature]
            super().__init__(like, parts, FULLY_REPARAMETERIZED, parameters, scope)

    @property
    def temperature(self) -> Tensor:
        """How far from one-hot samples are."""
        return self._temperature

    @property
    def logits(self) -> Tensor:
        """The logarithms of the classes' weights."""
        return self._logits

    @property
    def probs(self) -> Tensor:
        """The probabilities of the classes."""
        return self._probs

    @property
    def event_size(self) -> Tensor:
        """The number of classes."""
        return shaping.shape(self._logits)[-1]

    def _sample_n(self, n: Tensor, seed: int | None) -> Tensor:
        tiny = np.finfo(self.dtype.as_numpy_dtype).tiny  # its logarithm is finite
        drawn = random.random_uniform(self._sizes(n), tiny, 1.0, self.dtype, seed=seed)
        gumbel = -transcendental.log(-transcendental.log(drawn))
        return softmax.log_softmax((self._logits + gumbel) / self._heat)

    def _log_prob(self, value: Tensor) -> Tensor:
        x = after(_log_simplex_checks(value), value) if self.validate_args else value
        size = casting.cast(self.event_size, self.dtype)
        normalization = lgamma(size) + (size - 1) * transcendental.log(self._temperature)
        weights = softmax.log_softmax(self._logits - x * self._heat)
        return normalization + total(weights)


def _log_simplex_checks(x: Tensor) -> list[Node]:
    sums = reduce.reduce_logsumexp(x, axis=-1)
    return [checks.assert_near(sums, filling.zeros_like(sums), message="exp(x) must sum to 1")]


@public("contrib.distributions.RelaxedOneHotCategorical")
class RelaxedOneHotCategorical(TransformedDistribution):
    """Probabilities of k classes near one-hot ones, through which gradients flow

    Args:
        temperature: how far from one-hot samples are, [...], positive.
        logits: log-probabilities [..., k], which need not be normalized.
        probs: probabilities; give one of the two.
        dtype: accepted; samples have the dtype of `logits` or `probs`.
        validate_args: whether the step checks parameters and values.
        allow_nan_stats: give NaN for statistics that are not defined, instead of raising.
        name: the scope of the nodes.
    """

    _distribution: ExpRelaxedOneHotCategorical

    def __init__(
        self,
        temperature: TensorLike,
        logits: TensorLike | None = None,
        probs: TensorLike | None = None,
        dtype: DTypeLike | None = None,
        validate_args: bool = False,
        allow_nan_stats: bool = True,
        name: str = "RelaxedOneHotCategorical",
    ) -> None:
        parameters = dict(locals())
        inner = ExpRelaxedOneHotCategorical(
            temperature,
            logits,
            probs,
            validate_args=validate_args,
            allow_nan_stats=allow_nan_stats,
        )
        super().__init__(
            inner, Exp(), validate_args=validate_args, parameters=parameters, name=name
        )

    @property
    def temperature(self) -> Tensor:
        """How far from one-hot samples are."""
        return self._distribution.temperature

    @property
    def logits(self) -> Tensor:
        """The logarithms of the classes' weights."""
        return self._distribution.logits

    @property
    def probs(self) -> Tensor:
        """The probabilities of the classes."""
        return self._distribution.probs

    @property
    def event_size(self) -> Tensor:
        """The number of classes."""
        return self._distribution.event_size


@public("contrib.distributions.RelaxedBernoulli")
class RelaxedBernoulli(TransformedDistribution):
    """A number near 0 or 1, through which gradients flow

    Args:
        temperature: how far from 0 and 1 samples are, positive.
        logits: log(probs / (1 - probs)).
        probs: the probabilities of 1; one of the two is given.
        validate_args: whether the step checks parameters and values.
        allow_nan_stats: give NaN for statistics that are not defined, instead of raising.
        name: the scope of the nodes.
    """

    def __init__(
        self,
        temperature: TensorLike,
        logits: TensorLike | None = None,
        probs: TensorLike | None = None,
        validate_args: bool = False,
        allow_nan_stats: bool = True,
        name: str = "RelaxedBernoulli",
    ) -> None:
        parameters: dict[str, Any] = dict(locals())
        with name_scope(name, values=[temperature, logits, probs]) as scope:
            self._logits, self._probs = logits_and_probs(
                logits, probs, False, validate_args, "logits_and_probs"
            )
            heat, _ = floats(temperature, self._logits)
            assertions = [checks.assert_positive(heat)] if validate_args else []
            self._temperature = after(assertions, heat, name="temperature")
            inner = Logistic(
                self._logits / self._temperature,
                1 / self._temperature,
                allow_nan_stats=allow_nan_stats,
            )
            bijector = Sigmoid(validate_args=validate_args)
            super().__init__(
                inner, bijector, validate_args=validate_args, parameters=parameters, name=scope
            )

    @property
    def temperature(self) -> Tensor:
        """How far from 0 and 1 samples are."""
        return self._temperature

    @property
    def logits(self) -> Tensor:
        """The log-odds of 1."""
        return self._logits

    @property
    def probs(self) -> Tensor:
        """The probability of 1."""
        return self._probs
