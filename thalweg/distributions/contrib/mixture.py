"""Mixtures: one of several distributions, drawn first, gives the sample."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from thalweg.distributions.base import NOT_REPARAMETERIZED, Distribution
from thalweg.distributions.categorical import Categorical
from thalweg.distributions.parameters import broadcast_all, new_seed
from thalweg.distributions.vector import column
from thalweg.graph.node import Tensor
from thalweg.graph.shapes import TensorShape
from thalweg.ops.arrays import diagonal, joining, marking
from thalweg.ops.core import choosing, filling, shaping
from thalweg.ops.math import arithmetic, reduce
from thalweg.ops.nn import softmax
from thalweg.public import public


class _OfComponents(Distribution):
    """What both mixtures do with their components' values stacked behind the axes of the batch."""

    _chooser: Categorical

    def _stacked(self, of: Callable[[Distribution], Tensor]) -> Tensor:
        """A moment of all components: [batch, components, event]."""
        raise NotImplementedError

    def _stacked_at(self, method: str, value: Tensor) -> Tensor:
        """A density or tail of all components at a value: [..., batch, components]."""
        raise NotImplementedError

    def _log_weights(self) -> Tensor:
        return softmax.log_softmax(self._chooser.logits)

    def _weights(self) -> Tensor:
        return self._chooser.probs

    def _event_axes(self) -> int:
        rank = self.event_shape.rank
        if rank is None:
            raise NotImplementedError("The rank of events must be known.")
        return rank

    def _average(self, stacked: Tensor, axes: int) -> Tensor:
        """The components' values, weighted, where an event has `axes` axes."""
        weights = self._weights()
        for _ in range(axes):
            weights = column(weights)
        return reduce.reduce_sum(weights * stacked, axis=-1 - axes)

    def _log_prob(self, value: Tensor) -> Tensor:
        logs = self._stacked_at("log_prob", value) + self._log_weights()
        return reduce.reduce_logsumexp(logs, axis=-1)

    def _cdf(self, value: Tensor) -> Tensor:
        return self._average(self._stacked_at("cdf", value), 0)

    def _log_cdf(self, value: Tensor) -> Tensor:
        logs = self._stacked_at("log_cdf", value) + self._log_weights()
        return reduce.reduce_logsumexp(logs, axis=-1)

    def _mean(self) -> Tensor:
        return self._average(self._stacked(lambda one: one.mean()), self._event_axes())

    def _variance(self) -> Tensor:
        """E Var + Var E, over the components"""
        axes = self._event_axes()
        within = self._average(self._stacked(lambda one: one.variance()), axes)
        between = self._average(arithmetic.square(self._centred()), axes)
        return within + between

    def _centred(self) -> Tensor:
        means = self._stacked(lambda one: one.mean())
        return means - shaping.expand_dims(self._mean(), -1 - self._event_axes())

    def _covariance(self) -> Tensor:
        if self._event_axes() != 1:
            raise self._missing("covariance")
        within = self._average(self._stacked(_covariance), 2)
        centred = self._centred()
        products = column(centred) * shaping.expand_dims(centred, -2)
        return within + self._average(products, 2)

    def _chosen(self, stacked: Tensor, n: Tensor, seed: int | None) -> Tensor:
        """Of `n` samples of all components, [n, batch, components, event], those drawn."""
        logits = self._log_weights()
        count = shaping.shape(logits)[-1:]
        sizes = [shaping.reshape(n, [1]), self.batch_shape_tensor(), count]
        # One categorical distribution may stand for the whole batch, which draws for itself.
        spread = Categorical(logits=logits + filling.zeros(joining.concat(sizes, 0), logits.dtype))
        drawn = spread.sample(seed=new_seed(seed, "mixture"))
        mask = marking.one_hot(drawn, count[0], on_value=True, off_value=False)
        for _ in range(self._event_axes()):
            mask = column(mask)
        # Not a product: what was not drawn may be infinite.
        kept = choosing.where_v2(mask, stacked, filling.zeros_like(stacked))
        return reduce.reduce_sum(kept, axis=-1 - self._event_axes())


def _covariance(one: Distribution) -> Tensor:
    try:
        return one.covariance()
    except NotImplementedError:  # of independent elements
        return diagonal.matrix_diag(one.variance())


@public("contrib.distributions.MixtureSameFamily")
class MixtureSameFamily(_OfComponents):
    """A mixture of distributions of one class: the last axis of a batch is the components

    Args:
        mixture_distribution: the probabilities of the components, a `Categorical`.
        components_distribution: the components, along the last axis of its batch.
        validate_args: whether the step checks values.
        allow_nan_stats: give NaN for statistics that are not defined, instead of raising.
        name: the scope of the nodes.

    Example:
        >>> tfd = tf.contrib.distributions
        >>> two = tfd.MixtureSameFamily(
        ...     tfd.Categorical(probs=[0.25, 0.75]), tfd.Normal([0.0, 4.0], [1.0, 1.0]))
        >>> sess.run(two.mean())
        np.float32(3.0)
    """

    def __init__(
        self,
        mixture_distribution: Categorical,
        components_distribution: Distribution,
        validate_args: bool = False,
        allow_nan_stats: bool = True,
        name: str = "MixtureSameFamily",
    ) -> None:
        parameters = dict(locals())
        if not mixture_distribution.dtype.is_integer:
            raise ValueError(
                "`mixture_distribution.dtype` must be an integer type, not "
                f"{mixture_distribution.dtype.name}"
            )
        self._chooser, self._components = mixture_distribution, components_distribution
        self._check_sizes()
        super().__init__(
            dtype=components_distribution.dtype,
            reparameterization_type=NOT_REPARAMETERIZED,
            validate_args=validate_args,
            allow_nan_stats=allow_nan_stats,
            parameters=parameters,
            name=name,
        )

    def _check_sizes(self) -> None:
        batch = self._components.batch_shape.with_rank_at_least(1)
        weights = self._weights().shape
        if weights.rank is None or batch.rank is None:
            return
        if not weights[-1].is_compatible_with(batch[-1]):
            raise ValueError(
                f"`mixture_distribution` has {weights[-1]} components, the batch of "
                f"`components_distribution` {batch[-1]}"
            )
        if weights.rank > 1 and not weights[:-1].is_compatible_with(batch[:-1]):
            raise ValueError(
                f"`mixture_distribution.batch_shape` {weights[:-1]} is not compatible with "
                f"`components_distribution.batch_shape[:-1]` {batch[:-1]}"
            )

    @property
    def mixture_distribution(self) -> Categorical:
        """The probabilities of the components."""
        return self._chooser

    @property
    def components_distribution(self) -> Distribution:
        """The components."""
        return self._components

    def _batch_shape(self) -> TensorShape:
        return self._components.batch_shape.with_rank_at_least(1)[:-1]

    def _batch_shape_tensor(self) -> Tensor:
        return self._components.batch_shape_tensor()[:-1]

    def _event_shape(self) -> TensorShape:
        return self._components.event_shape

    def _event_shape_tensor(self) -> Tensor:
        return self._components.event_shape_tensor()

    def _stacked(self, of: Callable[[Distribution], Tensor]) -> Tensor:
        return of(self._components)

    def _stacked_at(self, method: str, value: Tensor) -> Tensor:
        spread = shaping.expand_dims(value, -1 - self._event_axes())
        return getattr(self._components, method)(spread)

    def _sample_n(self, n: Tensor, seed: int | None) -> Tensor:
        stacked = self._components.sample(shaping.reshape(n, [1]), seed=seed)
        return self._chosen(stacked, n, seed)


@public("contrib.distributions.Mixture")
class Mixture(_OfComponents):
    """A mixture of distributions of any classes with the same shapes

    Args:
        cat: the probabilities of the components, a `Categorical`.
        components: a list of distributions.
        validate_args: whether the step checks values.
        allow_nan_stats: give NaN for statistics that are not defined, instead of raising.
        use_static_graph: accepted; graphs are static.
        name: the scope of the nodes.
    """

    def __init__(
        self,
        cat: Categorical,
        components: Sequence[Distribution],
        validate_args: bool = False,
        allow_nan_stats: bool = True,
        use_static_graph: bool = False,
        name: str = "Mixture",
    ) -> None:
        parameters = dict(locals())
        _check_components(cat, components)
        self._chooser, self._components = cat, list(components)
        super().__init__(
            dtype=components[0].dtype,
            reparameterization_type=NOT_REPARAMETERIZED,
            validate_args=validate_args,
            allow_nan_stats=allow_nan_stats,
            parameters=parameters,
            name=name,
        )

    @property
    def cat(self) -> Categorical:
        """The probabilities of the components."""
        return self._chooser

    @property
    def components(self) -> list[Distribution]:
        """The components."""
        return self._components

    @property
    def num_components(self) -> int:
        """How many components there are."""
        return len(self._components)

    def _batch_shape(self) -> TensorShape:
        return self._chooser.batch_shape

    def _batch_shape_tensor(self) -> Tensor:
        return self._chooser.batch_shape_tensor()

    def _event_shape(self) -> TensorShape:
        return self._components[0].event_shape

    def _event_shape_tensor(self) -> Tensor:
        return self._components[0].event_shape_tensor()

    def _stacked(self, of: Callable[[Distribution], Tensor]) -> Tensor:
        batch = self.batch_shape.rank
        if batch is None:
            raise NotImplementedError("The rank of the batch must be known.")
        return joining.stack([of(one) for one in self._components], axis=batch)

    def _stacked_at(self, method: str, value: Tensor) -> Tensor:
        each = [getattr(one, method)(value) for one in self._components]
        return joining.stack(broadcast_all(*each), axis=-1)

    def _sample_n(self, n: Tensor, seed: int | None) -> Tensor:
        each: list[Tensor] = []
        for one in self._components:
            seed = new_seed(seed, "component")
            each.append(one.sample(shaping.reshape(n, [1]), seed=seed))
        return self._chosen(joining.stack(each, axis=-1 - self._event_axes()), n, seed)

    def entropy_lower_bound(self, name: str = "entropy_lower_bound") -> Tensor:
        """The mean of the components' entropies: the mixture's is not less."""
        with self._scope(name):
            return self._average(self._stacked(lambda one: one.entropy()), 0)


def _check_components(cat: Any, components: Sequence[Any]) -> None:
    if not isinstance(cat, Categorical):
        raise TypeError(f"cat must be a Categorical distribution, but saw: {cat}")
    if not components:
        raise ValueError("components must be a non-empty list or tuple")
    for one in components:
        if not isinstance(one, Distribution):
            raise TypeError(f"all entries in components must be Distribution instances, saw: {one}")
    first = components[0]
    if any(one.dtype != first.dtype for one in components):
        raise TypeError("All components must have the same dtype")
    for one in components:
        if not one.event_shape.is_compatible_with(first.event_shape):
            raise ValueError("All components must have the same event shape")
        if not one.batch_shape.is_compatible_with(cat.batch_shape):
            raise ValueError(
                f"The batch shape {one.batch_shape} of a component is not that of cat, "
                f"{cat.batch_shape}"
            )
    count = cat.probs.shape[-1].value
    if count is not None and count != len(components):
        raise ValueError(f"cat.num_classes is {count}, but there are {len(components)} components")
