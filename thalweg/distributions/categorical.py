"""The categorical distribution: one of k classes."""

from __future__ import annotations

from typing import Any

from thalweg.distributions.base import NOT_REPARAMETERIZED, Distribution
from thalweg.distributions.divergence import RegisterKL
from thalweg.distributions.parameters import after, is_integer, logits_and_probs
from thalweg.distributions.vector import column, rows, total
from thalweg.graph import dtypes
from thalweg.graph.convert import convert_to_tensor
from thalweg.graph.likes import TensorLike
from thalweg.graph.node import Tensor
from thalweg.graph.scopes import name_scope
from thalweg.graph.shapes import TensorShape, scalar
from thalweg.ops.arrays import joining, marking, searching, transposing
from thalweg.ops.core import casting, checks, filling, shaping
from thalweg.ops.math.transcendental import multiply_no_nan
from thalweg.ops.nn import softmax
from thalweg.ops.random import random
from thalweg.public import public


@public("distributions.Categorical")
class Categorical(Distribution):
    """Class i with probability `probs[..., i]` = softmax(`logits`)[..., i].

    Args:
        logits: log-probabilities [..., classes], which need not be normalized.
        probs: probabilities; give one of the two.
        dtype: the dtype of samples.
        validate_args: check in the step what values must fulfil.
        allow_nan_stats: give NaN for statistics that are not defined, instead of raising.
        name: the scope of the nodes.

    Example:
        >>> coin = tf.distributions.Categorical(probs=[0.25, 0.75])
        >>> sess.run([coin.prob(1), coin.mode()])
        [np.float32(0.75), np.int32(1)]
    """

    def __init__(
        self,
        logits: TensorLike | None = None,
        probs: TensorLike | None = None,
        dtype: Any = dtypes.int32,
        validate_args: bool = False,
        allow_nan_stats: bool = True,
        name: str = "Categorical",
    ) -> None:
        parameters = dict(locals())
        with name_scope(name, values=[logits, probs]) as scope:
            self._logits, self._probs = logits_and_probs(
                logits, probs, True, validate_args, "logits_and_probs"
            )
            self._logits.shape.with_rank_at_least(1)
        super().__init__(
            dtype=dtype,
            reparameterization_type=NOT_REPARAMETERIZED,
            validate_args=validate_args,
            allow_nan_stats=allow_nan_stats,
            parameters=parameters,
            graph_parents=[self._logits, self._probs],
            name=scope,
        )

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

    def _batch_shape(self) -> TensorShape:
        return self._logits.shape.with_rank_at_least(1)[:-1]

    def _batch_shape_tensor(self) -> Tensor:
        return shaping.shape(self._logits)[:-1]

    def _event_shape(self) -> TensorShape:
        return scalar()

    def _event_shape_tensor(self) -> Tensor:
        return convert_to_tensor([], dtypes.int32)

    def _sample_n(self, n: Tensor, seed: int | None) -> Tensor:
        wide = dtypes.int64 if self.dtype.size > 4 else dtypes.int32
        drawn = random.multinomial(rows(self._logits), n, seed=seed, output_dtype=wide)
        sizes = joining.concat([shaping.reshape(n, [1]), self.batch_shape_tensor()], 0)
        return casting.cast(shaping.reshape(transposing.transpose(drawn), sizes), self.dtype)

    def _chosen(self, k: Tensor, by_class: Tensor) -> Tensor:
        """The element of `by_class` that each `k` names."""
        checked = after(is_integer(k, "k must be integers."), k) if self.validate_args else k
        hot = marking.one_hot(
            casting.cast(checked, dtypes.int32), self.event_size, dtype=by_class.dtype
        )
        # The other classes may be impossible: their -inf must not count.
        return total(multiply_no_nan(by_class, hot))

    def _log_prob(self, value: Tensor) -> Tensor:
        if self.validate_args:
            last = casting.cast(self.event_size - 1, value.dtype)
            assertions = [checks.assert_non_negative(value), checks.assert_less_equal(value, last)]
            value = after(assertions, value)
        return self._chosen(value, softmax.log_softmax(self._logits))

    def _cdf(self, value: Tensor) -> Tensor:
        classes = casting.cast(filling.range(self.event_size), value.dtype)
        reached = casting.cast(classes <= column(value), self._probs.dtype)
        return total(self._probs * reached)

    def _entropy(self) -> Tensor:
        return -total(multiply_no_nan(softmax.log_softmax(self._logits), self._probs))

    def _mode(self) -> Tensor:
        return casting.cast(searching.argmax(self._logits, axis=-1), self.dtype)


@RegisterKL(Categorical, Categorical)
def kl_categorical_categorical(a: Categorical, b: Categorical, name: str | None = None) -> Tensor:
    """Σ p log p/q"""
    with name_scope(name, "kl_categorical_categorical", [a.logits, b.logits]):
        difference = softmax.log_softmax(a.logits) - softmax.log_softmax(b.logits)
        return total(multiply_no_nan(difference, softmax.softmax(a.logits)))
