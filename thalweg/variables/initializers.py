"""Initializers: callables from a shape and a dtype to the initial value of a variable.

Each has two public names, as in `tf.zeros_initializer` and `tf.initializers.zeros`.
`partition_info` is the position of the variable in a partitioned one, for initializers whose values
depend on the whole.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar, TypeAlias, cast

import numpy as np

from thalweg.graph import dtypes
from thalweg.graph.dtypes import DType, as_dtype
from thalweg.graph.likes import DTypeLike, TensorLike
from thalweg.graph.node import Tensor
from thalweg.graph.shapes import as_shape
from thalweg.ops.arrays import diagonal, transposing
from thalweg.ops.core import basic, filling, shaping
from thalweg.ops.linalg import decomposition
from thalweg.ops.math import arithmetic
from thalweg.ops.random import random
from thalweg.platform.described import described
from thalweg.public import public

if TYPE_CHECKING:
    from thalweg.variables.partitioned import PartitionInfo

Shape = Any
#: A function of a shape and a dtype, a class of such functions, or the value itself.
InitializerLike: TypeAlias = "Callable[..., Any] | TensorLike | None"


class Initializer:
    """A callable `(shape, dtype=None, partition_info=None) -> Tensor`. A subclass defines `_value`,
    which is given a dtype."""

    dtype: Any = dtypes.float32
    _needs_floats: ClassVar[bool] = False

    def __post_init__(self) -> None:
        self.dtype = as_dtype(self.dtype)
        if self._needs_floats and not self.dtype.is_floating:
            raise ValueError(f"Expected floating point type, got {self.dtype.name}.")

    def __call__(
        self,
        shape: Shape,
        dtype: DTypeLike | None = None,
        partition_info: PartitionInfo | None = None,
    ) -> Tensor:
        """The initial value of a variable of this shape."""
        return self._value(shape, self._dtype(dtype), partition_info)

    def _value(self, shape: Shape, dtype: DType, partition: PartitionInfo | None) -> Tensor:
        raise TypeError(f"{type(self).__name__} does not say what it fills variables with")

    def get_config(self) -> dict[str, Any]:
        """The constructor arguments of an equal initializer."""
        config = {name.lstrip("_"): value for name, value in vars(self).items()}
        return {n: v.name if isinstance(v, DType) else v for n, v in config.items()}

    @classmethod
    def from_config(cls, config: dict[str, Any]) -> Initializer:
        """The initializer with the arguments of `get_config`."""
        return cls(**config)

    def __repr__(self) -> str:
        return described(self, **self.get_config())

    def _dtype(self, dtype: Any) -> DType:
        return self.dtype if dtype is None else as_dtype(dtype).base_dtype


def _sizes(shape: Shape) -> list[int]:
    return cast("list[int]", as_shape(shape).as_list())


def _whole(shape: Shape, partition: PartitionInfo | None) -> Sequence[int]:
    """The shape of the variable, of which `shape` may be that of a part."""
    return _sizes(shape) if partition is None else partition.full_shape


@public("zeros_initializer", "initializers.zeros")
@dataclass(eq=False, repr=False)
class Zeros(Initializer):
    """An initializer that fills a variable with zeros (False, empty strings).

    Args:
        dtype: the dtype, if a call has none.

    Example:
        >>> sess.run(tf.zeros_initializer()([2]))
        array([0., 0.], dtype=float32)
    """

    dtype: DTypeLike = dtypes.float32

    def _value(self, shape: Shape, dtype: DType, partition: PartitionInfo | None) -> Tensor:
        return filling.zeros(shape, dtype)


@public("ones_initializer", "initializers.ones")
@dataclass(eq=False, repr=False)
class Ones(Initializer):
    """An initializer that fills a variable with ones.

    Args:
        dtype: the dtype, if a call has none.

    Example:
        >>> sess.run(tf.ones_initializer(tf.int32)([2]))
        array([1, 1], dtype=int32)
    """

    dtype: DTypeLike = dtypes.float32

    def _value(self, shape: Shape, dtype: DType, partition: PartitionInfo | None) -> Tensor:
        return filling.ones(shape, dtype)


_VALUES = (list, tuple, np.ndarray)
_MAX_CONSTANT = 1 << 16  # elements of a constant; a larger variable of one value is a Fill


@public("constant_initializer", "initializers.constant")
class Constant(Initializer):
    """An initializer that fills a variable with a given value.

    Args:
        value: a number, or a list or array of elements in row-major order; a short list is padded
            with its last element.
        dtype: the dtype, if a call has none.
        verify_shape: whether to raise if the value does not have the shape of the variable.

    Example:
        >>> b = tf.get_variable("b", [3], initializer=tf.constant_initializer(0.1))
        >>> sess.run(b.initializer)
        >>> sess.run(b)
        array([0.1, 0.1, 0.1], dtype=float32)
    """

    def __init__(
        self, value: TensorLike = 0, dtype: Any = dtypes.float32, verify_shape: bool = False
    ) -> None:
        if not (np.isscalar(value) or isinstance(cast("object", value), _VALUES)):
            raise TypeError(
                f"Invalid type for initial value: {type(value)}. Expected Python scalar, list or "
                "tuple of values, or numpy.ndarray."
            )
        self.value = value
        self.dtype = as_dtype(dtype)
        self._verify_shape = verify_shape

    def __call__(
        self,
        shape: Shape,
        dtype: Any = None,
        partition_info: PartitionInfo | None = None,
        verify_shape: bool | None = None,
    ) -> Tensor:
        """The value; a short list is padded with its last element."""
        verify = self._verify_shape if verify_shape is None else verify_shape
        dtype, elements = self._dtype(dtype), as_shape(shape).num_elements() or 0
        if elements > _MAX_CONSTANT and np.isscalar(self.value) and not verify:
            return filling.fill(shape, basic.constant(self.value, dtype))
        return basic.constant(self.value, dtype, shape, verify_shape=verify)


@public("random_uniform_initializer", "initializers.random_uniform")
@dataclass(eq=False, repr=False)
class RandomUniform(Initializer):
    """An initializer that draws uniformly from [minval, maxval).

    Args:
        minval: the smallest value.
        maxval: the bound that values stay below; 1 for floats if None.
        seed: a number that, with the graph's seed, fixes the values.
        dtype: the dtype, if a call has none.

    Example:
        >>> values = sess.run(tf.random_uniform_initializer(-1.0, 1.0)([100]))
        >>> abs(values).max() <= 1.0
        np.True_
    """

    minval: TensorLike = 0
    maxval: TensorLike | None = None
    seed: int | None = None
    dtype: DTypeLike = dtypes.float32

    def _value(self, shape: Shape, dtype: DType, partition: PartitionInfo | None) -> Tensor:
        high = 1 if self.maxval is None and dtype.is_floating else self.maxval
        return random.random_uniform(shape, self.minval, high, dtype, seed=self.seed)


@dataclass(eq=False, repr=False)
class _Normal(Initializer):
    """The base of initializers that draw from a normal distribution."""

    _needs_floats = True
    #: (shape, mean, stddev, dtype, seed) -> Tensor
    _draw: ClassVar[Callable[..., Tensor]]

    mean: TensorLike = 0.0
    stddev: TensorLike = 1.0
    seed: int | None = None
    dtype: DTypeLike = dtypes.float32

    def _value(self, shape: Shape, dtype: DType, partition: PartitionInfo | None) -> Tensor:
        return self._draw(shape, self.mean, self.stddev, dtype, seed=self.seed)


@public("random_normal_initializer", "initializers.random_normal")
class RandomNormal(_Normal):
    """An initializer that draws from a normal distribution.

    Args:
        mean: the mean.
        stddev: the standard deviation.
        seed: a number that, with the graph's seed, fixes the values.
        dtype: the dtype, if a call has none.

    Example:
        >>> w = tf.get_variable("w", [4, 2], initializer=tf.random_normal_initializer(stddev=0.1))
        >>> w.shape.as_list()
        [4, 2]
    """

    _draw = staticmethod(random.random_normal)


@public("truncated_normal_initializer", "initializers.truncated_normal")
class TruncatedNormal(_Normal):
    """An initializer that draws from a normal distribution cut off at two standard deviations.

    Args:
        mean: the mean.
        stddev: the standard deviation before the cut.
        seed: a number that, with the graph's seed, fixes the values.
        dtype: the dtype, if a call has none.

    Example:
        >>> values = sess.run(tf.truncated_normal_initializer(stddev=0.5)([100]))
        >>> abs(values).max() <= 1.0
        np.True_
    """

    _draw = staticmethod(random.truncated_normal)


@public("uniform_unit_scaling_initializer", "initializers.uniform_unit_scaling")
@dataclass(eq=False, repr=False)
class UniformUnitScaling(Initializer):
    """Uniform in ±factor·√(3 / fan-in), where fan-in is the product of all axes but the last.

    Args:
        factor: the factor of the bound.
        seed: the seed of the random numbers.
        dtype: the dtype, if a call has none.

    Example:
        >>> bound = tf.reduce_max(tf.abs(tf.uniform_unit_scaling_initializer()([300, 10])))
        >>> bool(sess.run(bound) <= 0.1)
        True
    """

    _needs_floats = True

    factor: float = 1.0
    seed: int | None = None
    dtype: DTypeLike = dtypes.float32

    def _value(self, shape: Shape, dtype: DType, partition: PartitionInfo | None) -> Tensor:
        whole = _whole(shape, partition)
        fan_in = max(float(math.prod(whole[:-1])), 1.0)
        bound = math.sqrt(3 / fan_in) * self.factor
        return random.random_uniform(shape, -bound, bound, dtype, seed=self.seed)


#: The standard deviation of a unit normal truncated at ±2: dividing by it restores the scale.
_TRUNCATED_STDDEV = 0.87962566103423978
_DISTRIBUTIONS = ("normal", "uniform", "truncated_normal", "untruncated_normal")


@public("variance_scaling_initializer", "initializers.variance_scaling")
@dataclass(eq=False, repr=False)
class VarianceScaling(Initializer):
    """An initializer that draws numbers of variance scale / n, n being the fan of the variable.

    Args:
        scale: the numerator.
        mode: "fan_in", "fan_out" or "fan_avg": what n is.
        distribution: "truncated_normal", "untruncated_normal" or "uniform".
        seed: a number that, with the graph's seed, fixes the values.
        dtype: the dtype, if a call has none.

    Example:
        >>> he = tf.variance_scaling_initializer(2.0)
        >>> w = tf.get_variable("w", [3, 3, 16, 32], initializer=he)
        >>> w.shape.as_list()
        [3, 3, 16, 32]
    """

    _needs_floats = True

    scale: float = 1.0
    mode: str = "fan_in"
    distribution: str = "truncated_normal"
    seed: int | None = None
    dtype: DTypeLike = dtypes.float32

    def __post_init__(self) -> None:
        super().__post_init__()
        self.distribution = self.distribution.lower()
        if self.scale <= 0.0:
            raise ValueError("`scale` must be positive float.")
        if self.mode not in ("fan_in", "fan_out", "fan_avg"):
            raise ValueError(f"Invalid `mode` argument: {self.mode}")
        if self.distribution not in _DISTRIBUTIONS:
            raise ValueError(f"Invalid `distribution` argument: {self.distribution}")

    def _value(self, shape: Shape, dtype: DType, partition: PartitionInfo | None) -> Tensor:
        whole = _whole(shape, partition)
        variance = self.scale / max(1.0, self._fan(whole))
        if self.distribution == "uniform":
            bound = math.sqrt(3.0 * variance)
            return random.random_uniform(shape, -bound, bound, dtype, seed=self.seed)
        if self.distribution == "untruncated_normal":
            stddev = math.sqrt(variance)
            return random.random_normal(shape, 0.0, stddev, dtype, seed=self.seed)
        stddev = math.sqrt(variance) / _TRUNCATED_STDDEV
        return random.truncated_normal(shape, 0.0, stddev, dtype, seed=self.seed)

    def _fan(self, shape: Sequence[int]) -> float:
        fan_in, fan_out = fans(shape)
        return {"fan_in": fan_in, "fan_out": fan_out, "fan_avg": (fan_in + fan_out) / 2}[self.mode]


def fans(shape: Sequence[int]) -> tuple[float, float]:
    """The fan-in and fan-out of a weight: for a convolution, times the size of its window."""
    if not shape:
        return 1.0, 1.0
    if len(shape) == 1:
        return float(shape[0]), float(shape[0])
    window = math.prod(shape[:-2])
    return float(shape[-2] * window), float(shape[-1] * window)


class _Glorot(VarianceScaling):
    """The base of Glorot's initializers: variance 2 / (fan-in + fan-out)."""

    _distribution: ClassVar[str]

    def __init__(self, seed: int | None = None, dtype: Any = dtypes.float32) -> None:
        super().__init__(1.0, "fan_avg", self._distribution, seed, dtype)

    def get_config(self) -> dict[str, Any]:
        """The constructor arguments of an equal initializer."""
        config = super().get_config()
        return {"seed": config["seed"], "dtype": config["dtype"]}


@public("glorot_uniform_initializer", "initializers.glorot_uniform")
class GlorotUniform(_Glorot):
    """Glorot's initializer: uniform in ±√(6 / (fan-in + fan-out)).

    Args:
        seed: a number that, with the graph's seed, fixes the values.
        dtype: the dtype, if a call has none.

    Example:
        >>> values = sess.run(tf.glorot_uniform_initializer()([100, 200]))
        >>> abs(values).max() <= (6 / 300) ** 0.5
        np.True_
    """

    _distribution = "uniform"


@public("glorot_normal_initializer", "initializers.glorot_normal")
class GlorotNormal(_Glorot):
    """Truncated normal with variance 2 / (fan-in + fan-out)."""

    _distribution = "truncated_normal"


@public("initializers.lecun_normal")
def lecun_normal(seed: int | None = None) -> VarianceScaling:
    """Truncated normal with variance 1 / fan-in."""
    return VarianceScaling(1.0, "fan_in", "truncated_normal", seed)


@public("initializers.lecun_uniform")
def lecun_uniform(seed: int | None = None) -> VarianceScaling:
    """Uniform in ±√(3 / fan-in)."""
    return VarianceScaling(1.0, "fan_in", "uniform", seed)


@public("initializers.he_normal")
def he_normal(seed: int | None = None) -> VarianceScaling:
    """Truncated normal with variance 2 / fan-in."""
    return VarianceScaling(2.0, "fan_in", "truncated_normal", seed)


@public("initializers.he_uniform")
def he_uniform(seed: int | None = None) -> VarianceScaling:
    """Uniform in ±√(6 / fan-in)."""
    return VarianceScaling(2.0, "fan_in", "uniform", seed)


@public("orthogonal_initializer", "initializers.orthogonal")
@dataclass(eq=False, repr=False)
class Orthogonal(Initializer):
    """An initializer that makes orthogonal matrices (of the axes but the last by the last).

    Args:
        gain: a factor.
        seed: a number that, with the graph's seed, fixes the values.
        dtype: the dtype, if a call has none.

    Example:
        >>> q = sess.run(tf.orthogonal_initializer()([3, 3]))
        >>> np.allclose(q @ q.T, np.eye(3), atol=1e-5)
        True
    """

    _needs_floats = True

    gain: float = 1.0
    seed: int | None = None
    dtype: DTypeLike = dtypes.float32

    def _value(self, shape: Shape, dtype: DType, partition: PartitionInfo | None) -> Tensor:
        sizes = _sizes(shape)
        if len(sizes) < 2:
            raise ValueError("The tensor to initialize must be at least two-dimensional")
        rows, columns = math.prod(sizes[:-1]), sizes[-1]
        tall = [max(rows, columns), min(rows, columns)]
        normal = random.random_normal(tall, dtype=dtype, seed=self.seed)
        q, r = decomposition.qr(normal, full_matrices=False)
        # The signs of R's diagonal are the factorisation's choice: undoing it makes Q uniform.
        q = q * arithmetic.sign(diagonal.diag_part(r))
        if rows < columns:
            q = transposing.transpose(q)
        return self.gain * shaping.reshape(q, sizes)


@public("initializers.identity")
@dataclass(eq=False, repr=False)
class Identity(Initializer):
    """The identity matrix, times `gain`."""

    _needs_floats = True

    gain: float = 1.0
    dtype: DTypeLike = dtypes.float32

    def _value(self, shape: Shape, dtype: DType, partition: PartitionInfo | None) -> Tensor:
        whole = _whole(shape, partition)
        if len(whole) != 2:
            raise ValueError("Identity matrix initializer can only be used for 2D matrices.")
        rows, columns = _sizes(shape)
        first = (0, 0) if partition is None else tuple(partition.var_offset)
        eye = np.eye(whole[0], whole[1], dtype=dtype.as_numpy_dtype)
        part = eye[first[0] : first[0] + rows, first[1] : first[1] + columns]
        return basic.constant(self.gain * part, dtype)


def _contrib_scaling(
    uniform: bool, seed: int | None, dtype: Any, factor: float, mode: str
) -> VarianceScaling:
    """contrib's convention: its normal has 1.3 times the deviation before it is truncated."""
    scale = factor if uniform else factor * 1.3 * _TRUNCATED_STDDEV**2
    distribution = "uniform" if uniform else "truncated_normal"
    return VarianceScaling(scale, mode, distribution, seed, dtype)


@public(
    "contrib.layers.xavier_initializer",
    "contrib.layers.xavier_initializer_conv2d",
    "contrib.slim.xavier_initializer",
    "contrib.slim.xavier_initializer_conv2d",
)
def xavier_initializer(
    uniform: bool = True, seed: int | None = None, dtype: Any = dtypes.float32
) -> VarianceScaling:
    """Glorot's initializer: random, with variance 2 / (fan-in + fan-out).

    Signals keep their scale through layers that begin like this.

    Args:
        uniform: uniform numbers, else truncated normal ones.
        seed: a number that, with the graph's seed, fixes the values.
        dtype: a floating dtype.

    Returns:
        An initializer, for layers and `tf.get_variable`.

    Example:
        >>> values = sess.run(tf.contrib.layers.xavier_initializer()([100, 200]))
        >>> abs(values).max() <= (6 / 300) ** 0.5
        np.True_
    """
    return _contrib_scaling(uniform, seed, dtype, 1.0, "fan_avg")


@public("contrib.layers.variance_scaling_initializer", "contrib.slim.variance_scaling_initializer")
def contrib_variance_scaling(
    factor: float = 2.0,
    mode: str = "FAN_IN",
    uniform: bool = False,
    seed: int | None = None,
    dtype: Any = dtypes.float32,
) -> Callable[..., Tensor]:
    """Random with variance factor / n, where n is the fan-in, the fan-out or their mean.

    Args:
        factor: the factor of the variance.
        mode: "FAN_IN", "FAN_OUT" or "FAN_AVG".
        uniform: whether numbers are uniform, or normal and truncated.
        seed: the seed of the random numbers.
        dtype: the dtype, if a call has none.

    Returns:
        An initializer.

    Example:
        >>> start = tf.contrib.layers.variance_scaling_initializer(uniform=True)
        >>> bool(abs(sess.run(start([600, 10]))).max() <= 0.1)
        True
    """
    if mode not in ("FAN_IN", "FAN_OUT", "FAN_AVG"):
        raise TypeError(f"Unknown mode {mode} [FAN_IN, FAN_OUT, FAN_AVG]")
    return _contrib_scaling(uniform, seed, dtype, factor, mode.lower())
