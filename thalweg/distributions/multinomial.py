"""The multinomial distribution: how often each class comes up in a number of draws."""

from __future__ import annotations

from thalweg.distributions import vector
from thalweg.distributions.base import NOT_REPARAMETERIZED
from thalweg.distributions.parameters import after, floats, is_count, logits_and_probs
from thalweg.distributions.vector import VectorDistribution, column
from thalweg.graph.likes import TensorLike
from thalweg.graph.node import Tensor
from thalweg.graph.scopes import name_scope
from thalweg.ops.arrays import transposing
from thalweg.ops.core import filling, shaping
from thalweg.ops.math.transcendental import multiply_no_nan
from thalweg.ops.nn import softmax
from thalweg.public import public


@public("distributions.Multinomial")
class Multinomial(VectorDistribution):
    """Counts of `total_count` draws of classes with probabilities `probs` = softmax(`logits`)"""

    def __init__(
        self,
        total_count: TensorLike,
        logits: TensorLike | None = None,
        probs: TensorLike | None = None,
        validate_args: bool = False,
        allow_nan_stats: bool = True,
        name: str = "Multinomial",
    ) -> None:
        parameters = dict(locals())
        with name_scope(name, values=[total_count, logits, probs]) as scope:
            (count,) = floats(total_count)
            assertions = is_count(count, "total_count") if validate_args else []
            self._total_count = after(assertions, count, name="total_count")
            self._logits, self._probs = logits_and_probs(
                logits, probs, True, validate_args, "logits_and_probs"
            )
            self._mean_value = column(self._total_count) * self._probs
            parts = [self._total_count, self._logits, self._probs, self._mean_value]
            super().__init__(self._mean_value, parts, NOT_REPARAMETERIZED, parameters, scope)

    @property
    def total_count(self) -> Tensor:
        """The number of draws."""
        return self._total_count

    @property
    def logits(self) -> Tensor:
        """The logarithms of the classes' weights."""
        return self._logits

    @property
    def probs(self) -> Tensor:
        """The probabilities of the classes."""
        return self._probs

    def _sample_n(self, n: Tensor, seed: int | None) -> Tensor:
        logits = vector.rows(self._logits + filling.zeros_like(self._mean_value))
        spread = filling.zeros_like(self._mean_value[..., 0])
        draws = vector.as_draws(self._total_count + spread)
        counts = vector.tallies(logits, draws, n, self.dtype, seed)
        return shaping.reshape(transposing.transpose(counts, [1, 0, 2]), self._sizes(n))

    def _log_prob(self, value: Tensor) -> Tensor:
        counts = vector.checked_counts(value, self._total_count, self.validate_args)
        log_probs = softmax.log_softmax(self._logits)
        weights = vector.total(multiply_no_nan(log_probs, counts))
        return weights + vector.log_combinations(self._total_count, counts)

    def _mean(self) -> Tensor:
        return self._mean_value

    def _variance(self) -> Tensor:
        return self._mean_value * (1 - self._probs)

    def _covariance(self) -> Tensor:
        probs = self._probs + filling.zeros_like(self._mean_value)
        count = self._total_count + filling.zeros_like(probs[..., 0])
        return vector.covariance(probs, self._variance(), count)
