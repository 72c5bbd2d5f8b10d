"""What every distribution has: names, shapes, samples, densities, tails and moments.

A subclass says what it knows in hooks (`_log_prob` or `_prob`, `_sample_n`, `_mean`…); the public
methods open the name scope, convert the value and derive what has no hook of its own.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, ClassVar, Self

from thalweg.distributions import divergence
from thalweg.graph import dtypes
from thalweg.graph.convert import convert_to_tensor
from thalweg.graph.dtypes import DType, as_dtype
from thalweg.graph.known import constant_value_as_shape
from thalweg.graph.node import Tensor
from thalweg.graph.scopes import name_scope
from thalweg.graph.shapes import TensorShape, as_shape
from thalweg.ops.arrays import joining
from thalweg.ops.core import basic, shaping
from thalweg.ops.math import arithmetic, reduce, transcendental
from thalweg.public import public, publish_value


@public("distributions.ReparameterizationType", "contrib.distributions.ReparameterizationType")
class ReparameterizationType:
    """Whether gradients flow from samples to parameters; compare with the two constants."""

    def __init__(self, rep_type: str) -> None:
        self._name = rep_type

    def __repr__(self) -> str:
        return f"<Reparameterization Type: {self._name}>"


FULLY_REPARAMETERIZED = ReparameterizationType("FULLY_REPARAMETERIZED")
NOT_REPARAMETERIZED = ReparameterizationType("NOT_REPARAMETERIZED")

for _constant in ("FULLY_REPARAMETERIZED", "NOT_REPARAMETERIZED"):
    publish_value(f"distributions.{_constant}", globals()[_constant])
    publish_value(f"contrib.distributions.{_constant}", globals()[_constant])


@public("distributions.Distribution", "contrib.distributions.Distribution")
class Distribution:
    """A batch of distributions of one kind; the base class of them all."""

    #: Parameters that a sample of a given shape needs in just that shape.
    sized_parameters: ClassVar[tuple[str, ...]] = ()

    def __init__(
        self,
        dtype: Any,
        reparameterization_type: ReparameterizationType,
        validate_args: bool,
        allow_nan_stats: bool,
        parameters: Mapping[str, Any] | None = None,
        graph_parents: Sequence[Any] | None = None,
        name: str | None = None,
    ) -> None:
        for number, parent in enumerate(graph_parents or ()):
            if not isinstance(parent, Tensor):
                raise ValueError(f"Graph parent item {number} is not a Tensor; {parent!r}.")
        self._dtype = as_dtype(dtype).base_dtype
        self._reparameterization_type = reparameterization_type
        self._validate_args = validate_args
        self._allow_nan_stats = allow_nan_stats
        self._parameters = dict(parameters or {})
        self._graph_parents = list(graph_parents or ())
        self._name = _scope_of(name or type(self).__name__)

    # What it was made of

    @property
    def name(self) -> str:
        """The name scope of its nodes, with a slash at the end."""
        return self._name

    @property
    def dtype(self) -> DType:
        """The dtype of samples."""
        return self._dtype

    @property
    def parameters(self) -> dict[str, Any]:
        """The arguments it was made with."""
        return {
            key: value
            for key, value in self._parameters.items()
            if key != "self" and not key.startswith("__")
        }

    @property
    def reparameterization_type(self) -> ReparameterizationType:
        """Whether gradients flow from samples to parameters."""
        return self._reparameterization_type

    @property
    def allow_nan_stats(self) -> bool:
        """Whether an undefined moment is nan; otherwise asking for it fails the step."""
        return self._allow_nan_stats

    @property
    def validate_args(self) -> bool:
        """Whether parameters and values are checked when they are computed."""
        return self._validate_args

    def copy(self, **override_parameters_kwargs: Any) -> Self:
        """The same kind of distribution, with some parameters changed."""
        return type(self)(**(self.parameters | override_parameters_kwargs))

    @classmethod
    def param_shapes(
        cls, sample_shape: Any, name: str = "DistributionParamShapes"
    ) -> dict[str, Tensor]:
        """The shapes that parameters must have so that `sample()` has `sample_shape`."""
        with name_scope(name, values=[sample_shape]):
            shape = convert_to_tensor(sample_shape, dtypes.int32)
            return {parameter: basic.identity(shape) for parameter in cls._sized()}

    @classmethod
    def param_static_shapes(cls, sample_shape: Any) -> dict[str, TensorShape]:
        """As `param_shapes`, for a shape known now."""
        shape = as_shape(sample_shape)
        if not shape.is_fully_defined():
            raise ValueError(f"sample_shape must be fully defined, got {shape}")
        return dict.fromkeys(cls._sized(), shape)

    @classmethod
    def _sized(cls) -> tuple[str, ...]:
        if not cls.sized_parameters:
            raise NotImplementedError(f"param_shapes is not implemented: {cls.__name__}")
        return cls.sized_parameters

    # Shapes

    @property
    def batch_shape(self) -> TensorShape:
        """The shape of the batch of distributions, as far as it is known."""
        return self._batch_shape()

    @property
    def event_shape(self) -> TensorShape:
        """The shape of one sample of one distribution, as far as it is known."""
        return self._event_shape()

    def batch_shape_tensor(self, name: str = "batch_shape_tensor") -> Tensor:
        """The shape of the batch of distributions, as a tensor."""
        with self._scope(name):
            return _shape_tensor(self.batch_shape, self._batch_shape_tensor)

    def event_shape_tensor(self, name: str = "event_shape_tensor") -> Tensor:
        """The shape of one sample of one distribution, as a tensor."""
        with self._scope(name):
            return _shape_tensor(self.event_shape, self._event_shape_tensor)

    def is_scalar_batch(self, name: str = "is_scalar_batch") -> Tensor:
        """Whether this is one distribution."""
        with self._scope(name):
            return _is_scalar(self.batch_shape, self.batch_shape_tensor)

    def is_scalar_event(self, name: str = "is_scalar_event") -> Tensor:
        """Whether one sample is one number."""
        with self._scope(name):
            return _is_scalar(self.event_shape, self.event_shape_tensor)

    # Samples

    def sample(self, sample_shape: Any = (), seed: int | None = None, name: str = "sample") -> Any:
        """Samples of shape `sample_shape + batch_shape + event_shape`."""
        with self._scope(name, [sample_shape]):
            wanted = convert_to_tensor(sample_shape, dtypes.int32, name="sample_shape")
            outer = shaping.reshape(wanted, [-1])
            drawn = self._sample_n(reduce.reduce_prod(outer), seed)
            return self._in_shape(drawn, outer, self.event_shape)

    def _in_shape(self, drawn: Tensor, outer: Tensor, event_shape: TensorShape) -> Tensor:
        """Samples in a row as a block of the shape that was asked for."""
        sizes = joining.concat([outer, shaping.shape(drawn)[1:]], 0)
        samples = shaping.reshape(drawn, sizes)
        static = constant_value_as_shape(outer).concatenate(self.batch_shape)
        samples.set_shape(static.concatenate(event_shape))
        return samples

    # Densities and tails

    def log_prob(self, value: Any, name: str = "log_prob") -> Tensor:
        """The logarithm of the density (or mass) at `value`."""
        return self._of_value(self._log_prob, value, name)

    def prob(self, value: Any, name: str = "prob") -> Tensor:
        """The density (or mass) at `value`."""
        return self._of_value(self._prob, value, name)

    def log_cdf(self, value: Any, name: str = "log_cdf") -> Tensor:
        """log P(X <= value)."""
        return self._of_value(self._log_cdf, value, name)

    def cdf(self, value: Any, name: str = "cdf") -> Tensor:
        """P(X <= value)."""
        return self._of_value(self._cdf, value, name)

    def log_survival_function(self, value: Any, name: str = "log_survival_function") -> Tensor:
        """log P(X > value)."""
        return self._of_value(self._log_survival_function, value, name)

    def survival_function(self, value: Any, name: str = "survival_function") -> Tensor:
        """P(X > value)."""
        return self._of_value(self._survival_function, value, name)

    def quantile(self, value: Any, name: str = "quantile") -> Tensor:
        """The x with P(X <= x) = value."""
        return self._of_value(self._quantile, value, name)

    # Moments

    def entropy(self, name: str = "entropy") -> Tensor:
        """The Shannon entropy, in nats."""
        with self._scope(name):
            return self._entropy()

    def mean(self, name: str = "mean") -> Tensor:
        """The mean."""
        with self._scope(name):
            return self._mean()

    def variance(self, name: str = "variance") -> Tensor:
        """The variance, by element."""
        with self._scope(name):
            return self._variance()

    def stddev(self, name: str = "stddev") -> Tensor:
        """The standard deviation, by element."""
        with self._scope(name):
            return self._stddev()

    def covariance(self, name: str = "covariance") -> Tensor:
        """The covariance matrices of vector-valued samples."""
        with self._scope(name):
            return self._covariance()

    def mode(self, name: str = "mode") -> Tensor:
        """The most probable value."""
        with self._scope(name):
            return self._mode()

    def cross_entropy(self, other: Distribution, name: str = "cross_entropy") -> Tensor:
        """-E log other(X), X from this distribution."""
        with self._scope(name):
            return self._cross_entropy(other)

    def kl_divergence(self, other: Distribution, name: str = "kl_divergence") -> Tensor:
        """E log (this(X) / other(X)), X from this distribution."""
        with self._scope(name):
            return self._kl_divergence(other)

    def __str__(self) -> str:
        return f"tf.distributions.{type(self).__name__}({self._name!r}, {', '.join(self._facts())})"

    def __repr__(self) -> str:
        return f"<tf.distributions.{type(self).__name__} {self._name!r} {' '.join(self._facts())}>"

    def _facts(self) -> list[str]:
        facts = [f"batch_shape={self.batch_shape}", f"event_shape={self.event_shape}"]
        return [*facts, f"dtype={self._dtype.name}"]

    # Hooks, with what can be derived from another one

    def _log_prob(self, value: Any) -> Any:
        return transcendental.log(self._hook("_prob", "log_prob")(value))

    def _prob(self, value: Any) -> Any:
        return transcendental.exp(self._hook("_log_prob", "prob")(value))

    def _log_cdf(self, value: Any) -> Any:
        return transcendental.log(self._hook("_cdf", "log_cdf")(value))

    def _cdf(self, value: Any) -> Any:
        return transcendental.exp(self._hook("_log_cdf", "cdf")(value))

    def _log_survival_function(self, value: Any) -> Any:
        return transcendental.log1p(-self._cdf(value))

    def _survival_function(self, value: Any) -> Any:
        return 1 - self._cdf(value)

    def _variance(self) -> Any:
        return arithmetic.square(self._hook("_stddev", "variance")())

    def _stddev(self) -> Any:
        return transcendental.sqrt(self._hook("_variance", "stddev")())

    def _cross_entropy(self, other: Distribution) -> Any:
        return self._kl_divergence(other) + self.entropy()

    def _kl_divergence(self, other: Distribution) -> Any:
        return divergence.kl_divergence(self, other, allow_nan_stats=self._allow_nan_stats)

    # Hooks that nothing can stand in for

    def _batch_shape(self) -> TensorShape:
        raise self._missing("batch_shape")

    def _event_shape(self) -> TensorShape:
        raise self._missing("event_shape")

    def _batch_shape_tensor(self) -> Tensor:
        raise self._missing("batch_shape_tensor")

    def _event_shape_tensor(self) -> Tensor:
        raise self._missing("event_shape_tensor")

    def _sample_n(self, n: Tensor, seed: int | None) -> Any:
        raise self._missing("sample_n")

    def _quantile(self, value: Any) -> Any:
        raise self._missing("quantile")

    def _entropy(self) -> Any:
        raise self._missing("entropy")

    def _mean(self) -> Any:
        raise self._missing("mean")

    def _covariance(self) -> Any:
        raise self._missing("covariance")

    def _mode(self) -> Any:
        raise self._missing("mode")

    def _missing(self, what: str) -> NotImplementedError:
        return NotImplementedError(f"{what} is not implemented: {type(self).__name__}")

    def _hook(self, hook: str, wanted: str) -> Callable[..., Any]:
        """A hook that the subclass wrote itself: the base's own would come back for this one."""
        if getattr(type(self), hook) is getattr(Distribution, hook):
            raise self._missing(wanted)
        return getattr(self, hook)

    def _of_value(self, function: Callable[[Tensor], Tensor], value: Any, name: str) -> Tensor:
        with self._scope(name, [value]):
            return function(convert_to_tensor(value, name="value", preferred_dtype=self._dtype))

    @contextmanager
    def _scope(self, name: str, values: Sequence[Any] = ()) -> Generator[str]:
        inside = [*values, *self._graph_parents]
        with name_scope(self._name, values=inside), name_scope(name, values=inside) as scope:
            yield scope


def _scope_of(name: str) -> str:
    """A name scope of its own, unless it is one already."""
    if name.endswith("/"):
        return name
    with name_scope(name) as scope:
        return scope


def _shape_tensor(static: TensorShape, compute: Callable[[], Tensor]) -> Tensor:
    if static.is_fully_defined():
        return convert_to_tensor(static.as_list(), dtypes.int32, name="shape")
    return compute()


def _is_scalar(static: TensorShape, compute: Callable[[], Tensor]) -> Tensor:
    if static.rank is not None:
        return convert_to_tensor(static.rank == 0)
    return shaping.size(compute()) < 1
