"""Distributions made of another one: transformed by a bijector, or with batches as events."""

from __future__ import annotations

from typing import Any

from thalweg.distributions import divergence
from thalweg.distributions.base import Distribution
from thalweg.distributions.contrib.bijectors.base import Bijector
from thalweg.distributions.contrib.bijectors.elementwise import Identity
from thalweg.distributions.divergence import RegisterKL
from thalweg.distributions.parameters import choose
from thalweg.graph import dtypes
from thalweg.graph.convert import convert_to_tensor
from thalweg.graph.known import constant_value_as_shape
from thalweg.graph.likes import ShapeLike, TensorLike
from thalweg.graph.node import Tensor
from thalweg.graph.scopes import name_scope
from thalweg.graph.shapes import TensorShape
from thalweg.ops.arrays import joining, transposing
from thalweg.ops.core import broadcast, casting, filling, shaping
from thalweg.ops.math import reduce
from thalweg.public import public


@public("contrib.distributions.TransformedDistribution")
class TransformedDistribution(Distribution):
    """The distribution of `bijector.forward(X)`, X from `distribution`

    Args:
        distribution: the distribution of X.
        bijector: the function; the identity for None.
        batch_shape: a batch of this shape of a distribution that has none.
        event_shape: events of this shape, of independent numbers of a scalar distribution.
        validate_args: whether the step checks parameters and values.
        parameters: what a subclass was made with.
        name: the scope of the nodes.

    Example:
        >>> tfd = tf.contrib.distributions
        >>> log_normal = tfd.TransformedDistribution(tfd.Normal(0.0, 1.0), tfd.bijectors.Exp())
        >>> sess.run(log_normal.quantile(0.5))
        np.float32(1.0)
    """

    def __init__(
        self,
        distribution: Distribution,
        bijector: Bijector | None = None,
        batch_shape: ShapeLike | None = None,
        event_shape: ShapeLike | None = None,
        validate_args: bool = False,
        parameters: dict[str, Any] | None = None,
        name: str | None = None,
    ) -> None:
        given = parameters or dict(locals())
        self._distribution = distribution
        self._bijector = bijector or Identity(validate_args=validate_args)
        with name_scope(name or self._bijector.name + distribution.name.strip("/")) as scope:
            self._batch_override = _override(batch_shape, distribution.batch_shape, "batch")
            self._event_override = _override(event_shape, distribution.event_shape, "event")
        super().__init__(
            dtype=distribution.dtype,
            reparameterization_type=distribution.reparameterization_type,
            validate_args=validate_args,
            allow_nan_stats=distribution.allow_nan_stats,
            parameters=given,
            name=scope,
        )

    @property
    def distribution(self) -> Distribution:
        """The distribution before the transformation."""
        return self._distribution

    @property
    def bijector(self) -> Bijector:
        """The transformation."""
        return self._bijector

    # Shapes

    def _input_event_shape(self) -> TensorShape:
        if self._event_override is None:
            return self._distribution.event_shape
        return constant_value_as_shape(self._event_override)

    def _input_event_shape_tensor(self) -> Tensor:
        if self._event_override is None:
            return self._distribution.event_shape_tensor()
        return self._event_override

    def _event_shape(self) -> TensorShape:
        return self._bijector.forward_event_shape(self._input_event_shape())

    def _event_shape_tensor(self) -> Tensor:
        return self._bijector.forward_event_shape_tensor(self._input_event_shape_tensor())

    def _batch_shape(self) -> TensorShape:
        if self._batch_override is None:
            return self._distribution.batch_shape
        return constant_value_as_shape(self._batch_override)

    def _batch_shape_tensor(self) -> Tensor:
        if self._batch_override is None:
            return self._distribution.batch_shape_tensor()
        return self._batch_override

    def _new_axes(self) -> int:
        """How many axes of an event the base distribution does not have."""
        return 0 if self._event_override is None else self._event_override.shape[0].value or 0

    def _event_axes(self) -> int:
        rank = self.event_shape.rank
        if rank is None:
            raise NotImplementedError("The rank of events must be known.")
        return rank

    # Samples and densities

    def sample(
        self, sample_shape: TensorLike = (), seed: int | None = None, name: str = "sample"
    ) -> Tensor:
        """Samples of shape `sample_shape + batch_shape + event_shape`."""
        with self._scope(name, [sample_shape]):
            wanted = convert_to_tensor(sample_shape, dtypes.int32, name="sample_shape")
            outer = shaping.reshape(wanted, [-1])
            drawn = self._sample_inputs(reduce.reduce_prod(outer), seed)
            # In shape before it is transformed: the bijector knows its results by their tensors.
            samples = self._bijector.forward(
                self._in_shape(drawn, outer, self._input_event_shape())
            )
            static = constant_value_as_shape(outer).concatenate(self.batch_shape)
            samples.set_shape(static.concatenate(self.event_shape))
            return samples

    def _sample_inputs(self, n: Tensor, seed: int | None) -> Tensor:
        outer = [shaping.reshape(n, [1])]
        if self._event_override is not None:
            outer = [self._event_override, *outer]
        if self._batch_override is not None:
            outer = [*outer, self._batch_override]
        drawn = self._distribution.sample(joining.concat(outer, 0), seed=seed)
        return self._events_last(drawn)

    def _events_last(self, drawn: Tensor) -> Tensor:
        """The new axes of events, which were drawn first, behind those of the batch."""
        new = self._new_axes()
        if not new:
            return drawn
        axes = filling.range(shaping.rank(drawn))
        moved = transposing.transpose(drawn, joining.concat([axes[new:], axes[:new]], 0))
        static = TensorShape([None]).concatenate(self.batch_shape)
        moved.set_shape(static.concatenate(self._input_event_shape()))
        return moved

    def _log_prob(self, value: Tensor) -> Tensor:
        x = self._bijector.inverse(value)
        stretch = self._bijector.inverse_log_det_jacobian(value, self._event_axes())
        return self._over_new_axes(self._distribution.log_prob(x)) + stretch

    def _over_new_axes(self, log_prob: Tensor) -> Tensor:
        new = self._new_axes()
        return reduce.reduce_sum(log_prob, axis=list(range(-new, 0))) if new else log_prob

    def _cdf(self, value: Tensor) -> Tensor:
        return self._tail(value, below=True)

    def _survival_function(self, value: Tensor) -> Tensor:
        return self._tail(value, below=False)

    def _tail(self, value: Tensor, below: bool) -> Tensor:
        increasing = self._increasing("cdf" if below else "survival_function")
        x = self._bijector.inverse(value)
        tails = [self._distribution.cdf, self._distribution.survival_function]
        same, other = tails if below else tails[::-1]
        if increasing is True:
            return same(x)
        return choose(increasing, same(x), other(x))

    def _log_cdf(self, value: Tensor) -> Tensor:
        if self._increasing("log_cdf") is True:
            return self._distribution.log_cdf(self._bijector.inverse(value))
        return super()._log_cdf(value)

    def _log_survival_function(self, value: Tensor) -> Tensor:
        if self._increasing("log_survival_function") is True:
            return self._distribution.log_survival_function(self._bijector.inverse(value))
        return super()._log_survival_function(value)

    def _quantile(self, value: Tensor) -> Tensor:
        increasing = self._increasing("quantile")
        p = value if increasing is True else choose(increasing, value, 1 - value)
        return self._bijector.forward(self._distribution.quantile(p))

    def _increasing(self, what: str) -> Any:
        """Whether the bijector of numbers increases; of vectors there are no tails."""
        if self._event_override is not None or self._event_axes():
            raise NotImplementedError(f"{what} is not implemented when overriding event_shape")
        return self._bijector.is_increasing()

    # Moments

    def _mean(self) -> Tensor:
        self._only_constant("mean")
        return self._bijector.forward(self._input_mean())

    def _input_mean(self) -> Tensor:
        """The mean of what comes in, in the shapes that were given."""
        mean = self._distribution.mean()
        for _ in range(self._new_axes()):
            mean = shaping.expand_dims(mean, -1)
        if self._batch_override is None and self._event_override is None:
            return mean
        sizes = [self._batch_shape_tensor(), self._input_event_shape_tensor()]
        return broadcast.broadcast_to(mean, joining.concat(sizes, 0))

    def _entropy(self) -> Tensor:
        self._only_constant("entropy")
        entropy = self._distribution.entropy()
        if self._event_override is not None:
            count = reduce.reduce_prod(self._event_override)
            entropy = entropy * casting.cast(count, entropy.dtype)
        if self._batch_override is not None:
            entropy = broadcast.broadcast_to(entropy, self._batch_override)
        somewhere = filling.zeros(self._input_event_shape_tensor(), self.dtype)
        axes = self._input_event_shape().rank
        return entropy + self._bijector.forward_log_det_jacobian(somewhere, axes)

    def _only_constant(self, what: str) -> None:
        if not self._bijector.is_constant_jacobian:
            raise NotImplementedError(f"{what} is only implemented for a constant Jacobian")


def _override(shape: Any, own: TensorShape, what: str) -> Tensor | None:
    """The shape that is asked for, as a vector of known length; none for an empty one."""
    if shape is None:
        return None
    given = shape.as_list() if isinstance(shape, TensorShape) else shape
    sizes = convert_to_tensor(given, dtypes.int32, name=f"override_{what}_shape")
    if sizes.shape.rank != 1:
        raise ValueError("shape override must be a vector")
    if sizes.shape[0].value is None:
        raise ValueError("shape override must have a known length")
    if sizes.shape[0].value == 0:
        return None
    if own.rank != 0:
        raise ValueError(f"base distribution is not scalar: its {what} shape is {own}")
    return sizes


@public("contrib.distributions.Independent")
class Independent(Distribution):
    """A batch of independent distributions as one: the last axes of the batch are an event

    Args:
        distribution: the batch of distributions.
        reinterpreted_batch_ndims: how many axes; all but the first for None.
        validate_args: whether the step checks parameters and values.
        name: the scope of the nodes.

    Example:
        >>> tfd = tf.contrib.distributions
        >>> both = tfd.Independent(tfd.Bernoulli(probs=[0.5, 0.5]), reinterpreted_batch_ndims=1)
        >>> sess.run(both.prob([1, 0]))
        np.float32(0.25)
    """

    def __init__(
        self,
        distribution: Distribution,
        reinterpreted_batch_ndims: int | None = None,
        validate_args: bool = False,
        name: str | None = None,
    ) -> None:
        parameters = dict(locals())
        self._distribution = distribution
        rank = distribution.batch_shape.rank
        if rank is None:
            raise NotImplementedError("The rank of the batch must be known.")
        axes = max(0, rank - 1) if reinterpreted_batch_ndims is None else reinterpreted_batch_ndims
        if axes > rank:
            raise ValueError(
                f"reinterpreted_batch_ndims({axes}) cannot exceed distribution.batch_ndims({rank})"
            )
        self._axes = int(axes)
        super().__init__(
            dtype=distribution.dtype,
            reparameterization_type=distribution.reparameterization_type,
            validate_args=validate_args,
            allow_nan_stats=distribution.allow_nan_stats,
            parameters=parameters,
            name=name or f"Independent{distribution.name.strip('/').rsplit('/', 1)[-1]}",
        )

    @property
    def distribution(self) -> Distribution:
        """The batch of distributions."""
        return self._distribution

    @property
    def reinterpreted_batch_ndims(self) -> int:
        """How many axes of the batch are axes of an event."""
        return self._axes

    def _kept(self) -> int:
        return int(self._distribution.batch_shape.rank or 0) - self._axes

    def _batch_shape(self) -> TensorShape:
        return self._distribution.batch_shape[: self._kept()]

    def _event_shape(self) -> TensorShape:
        inner = self._distribution.batch_shape[self._kept() :]
        return inner.concatenate(self._distribution.event_shape)

    def _batch_shape_tensor(self) -> Tensor:
        return self._distribution.batch_shape_tensor()[: self._kept()]

    def _event_shape_tensor(self) -> Tensor:
        inner = self._distribution.batch_shape_tensor()[self._kept() :]
        return joining.concat([inner, self._distribution.event_shape_tensor()], 0)

    def _sample_n(self, n: Tensor, seed: int | None) -> Any:
        return self._distribution.sample(shaping.reshape(n, [1]), seed=seed)

    def _total(self, x: Tensor) -> Tensor:
        return reduce.reduce_sum(x, axis=list(range(-self._axes, 0))) if self._axes else x

    def _log_prob(self, value: Tensor) -> Tensor:
        return self._total(self._distribution.log_prob(value))

    def _entropy(self) -> Tensor:
        # Some classes leave a batch that is the same in some axes unspread.
        entropy = self._distribution.entropy()
        return self._total(broadcast.broadcast_to(entropy, self._distribution.batch_shape_tensor()))

    def _mean(self) -> Tensor:
        return self._distribution.mean()

    def _variance(self) -> Tensor:
        return self._distribution.variance()

    def _stddev(self) -> Tensor:
        return self._distribution.stddev()

    def _mode(self) -> Tensor:
        return self._distribution.mode()


@RegisterKL(Independent, Independent)
def kl_independent_independent(a: Independent, b: Independent, name: str | None = None) -> Tensor:
    """Σ KL of the members"""
    with name_scope(name, "kl_independent_independent"):
        if a.reinterpreted_batch_ndims != b.reinterpreted_batch_ndims:
            raise NotImplementedError("KL between Independents with different event axes")
        each = divergence.kl_divergence(a.distribution, b.distribution)
        axes = list(range(-a.reinterpreted_batch_ndims, 0))
        return reduce.reduce_sum(each, axis=axes) if axes else each
