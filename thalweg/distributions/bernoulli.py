"""The Bernoulli distribution."""

from __future__ import annotations

from typing import Any, ClassVar

from thalweg.distributions.base import NOT_REPARAMETERIZED
from thalweg.distributions.divergence import RegisterKL
from thalweg.distributions.parameters import after, choose, is_count, logits_and_probs
from thalweg.distributions.scalar import ScalarDistribution
from thalweg.graph import dtypes
from thalweg.graph.likes import DTypeLike, TensorLike
from thalweg.graph.node import Tensor
from thalweg.graph.scopes import name_scope
from thalweg.ops.core import casting, checks, filling
from thalweg.ops.math import transcendental
from thalweg.ops.nn.activation import softplus
from thalweg.ops.random import random
from thalweg.public import public


@public("distributions.Bernoulli")
class Bernoulli(ScalarDistribution):
    """1 with probability `probs` = sigmoid(`logits`), else 0

    Args:
        logits: log(probs / (1 - probs)).
        probs: the probabilities of 1; one of the two is given.
        dtype: the dtype of samples.
        validate_args: whether the step checks the parameters.
        allow_nan_stats: whether undefined statistics are nan, or an error.
        name: the name of the nodes.

    Example:
        >>> coin = tf.distributions.Bernoulli(probs=[0.25, 0.5])
        >>> sess.run(coin.prob([1, 1]))
        array([0.25, 0.5 ], dtype=float32)
    """

    sized_parameters: ClassVar[tuple[str, ...]] = ("logits",)

    def __init__(
        self,
        logits: TensorLike | None = None,
        probs: TensorLike | None = None,
        dtype: DTypeLike = dtypes.int32,
        validate_args: bool = False,
        allow_nan_stats: bool = True,
        name: str = "Bernoulli",
    ) -> None:
        parameters = dict(locals())
        with name_scope(name, values=[logits, probs]) as scope:
            self._logits, self._probs = logits_and_probs(
                logits, probs, False, validate_args, "logits_and_probs"
            )
        super().__init__([self._logits], NOT_REPARAMETERIZED, parameters, scope, dtype)

    @property
    def logits(self) -> Tensor:
        """The log-odds of 1."""
        return self._logits

    @property
    def probs(self) -> Tensor:
        """The probability of 1."""
        return self._probs

    def _sample_n(self, n: Tensor, seed: int | None) -> Tensor:
        drawn = random.random_uniform(self._sizes(n), dtype=self._probs.dtype, seed=seed)
        return casting.cast(drawn < self._probs, self.dtype)

    def _log_prob(self, value: Tensor) -> Tensor:
        checked = after(self._checks(value), value) if self.validate_args else value
        event = casting.cast(checked, self._logits.dtype)
        # An impossible event must not make a nan of the other one's infinite logit.
        ones = transcendental.multiply_no_nan(softplus(-self._logits), event)
        return -ones - transcendental.multiply_no_nan(softplus(self._logits), 1 - event)

    def _checks(self, event: Tensor) -> list[Any]:
        one = filling.ones_like(event)
        return [
            *is_count(event, "event"),
            checks.assert_less_equal(event, one, message="event is not less than or equal to 1."),
        ]

    def _cdf(self, value: Tensor) -> Tensor:
        x = casting.cast(value, self._probs.dtype)
        below_one = choose(x < 0, filling.zeros_like(self._probs), 1 - self._probs)
        return choose(x < 1, below_one, 1.0)

    def _entropy(self) -> Tensor:
        none = transcendental.multiply_no_nan(softplus(self._logits), 1 - self._probs)
        return none + transcendental.multiply_no_nan(softplus(-self._logits), self._probs)

    def _mean(self) -> Tensor:
        return self._probs

    def _variance(self) -> Tensor:
        return self._probs * (1 - self._probs)

    def _mode(self) -> Tensor:
        return casting.cast(self._probs > 0.5, self.dtype)


@RegisterKL(Bernoulli, Bernoulli)
def kl_bernoulli_bernoulli(a: Bernoulli, b: Bernoulli, name: str | None = None) -> Tensor:
    """p log p/q + (1 - p) log (1 - p)/(1 - q), by logits"""
    with name_scope(name, "kl_bernoulli_bernoulli", [a.logits, b.logits]):
        zeros = softplus(b.logits) - softplus(a.logits)
        ones = softplus(-b.logits) - softplus(-a.logits)
        return transcendental.sigmoid(a.logits) * ones + transcendental.sigmoid(-a.logits) * zeros
