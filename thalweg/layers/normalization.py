"""Batch normalization: by the statistics of the batch in training, by moving ones otherwise."""

from __future__ import annotations

from collections.abc import Callable, Generator, Mapping, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, NamedTuple, cast

from thalweg.graph import nest
from thalweg.graph.convert import convert_to_tensor
from thalweg.graph.dtypes import DType, float32
from thalweg.graph.likes import IntsLike, TensorLike
from thalweg.graph.node import Tensor
from thalweg.graph.scopes import colocate_with, control_dependencies
from thalweg.graph.shapes import TensorShape, as_shape
from thalweg.layers.core import static_bool
from thalweg.layers.weights import configured_weight
from thalweg.nn import normalisation
from thalweg.nn.layer import InputSpec, Layer
from thalweg.ops.arrays import joining
from thalweg.ops.core import basic, casting, choosing, filling, shaping
from thalweg.ops.math import arithmetic, reduce, transcendental
from thalweg.ops.nn import normalisation as fused_ops
from thalweg.ops.state import state
from thalweg.public import public
from thalweg.variables.initializers import Ones, Zeros

if TYPE_CHECKING:
    from thalweg.variables.initializers import InitializerLike
    from thalweg.variables.scope import VariableScope
    from thalweg.variables.store import ReuseMode

Function = Callable[[Any], Any]


class _Statistics(NamedTuple):
    mean: Any
    variance: Any


@public("layers.BatchNormalization")
class BatchNormalization(Layer):
    """gamma (x - mean) / √(variance + epsilon) + beta, over all axes but `axis`.

    The ops that move the averages are in `updates` and in the collection `UPDATE_OPS`.

    Args:
        axis: the axes that keep their own statistics, mostly the channels.
        momentum: how slowly the averages move.
        epsilon: what is added to the variance.
        center, scale: whether there is a beta, a gamma.
        beta_initializer, gamma_initializer, moving_mean_initializer, moving_variance_initializer:
            what these start as.
        beta_regularizer, gamma_regularizer: functions whose results are losses.
        beta_constraint, gamma_constraint: functions that optimizers apply to them.
        renorm: whether batch renormalization is used.
        renorm_clipping: its bounds `rmax`, `rmin` and `dmax`.
        renorm_momentum: how slowly its averages move.
        fused: whether one op is used; None: where it can be.
        trainable: whether optimizers change beta and gamma.
        virtual_batch_size: normalize each so many examples on their own.
        adjustment: a function of the shape that gives (scale, bias) to apply in training.
        name: the name of the layer.
        kwargs: what every layer takes.

    Example:
        >>> layer = tf.layers.BatchNormalization()
        >>> y = layer(tf.constant([[1.0], [3.0]]), training=True)
        >>> sess.run(tf.global_variables_initializer())
        >>> sess.run(y).round(2), len(layer.updates)
        (array([[-1.],
               [ 1.]], dtype=float32), 2)
    """

    def __init__(
        self,
        axis: IntsLike = -1,
        momentum: float = 0.99,
        epsilon: float = 1e-3,
        center: bool = True,
        scale: bool = True,
        beta_initializer: InitializerLike = Zeros(),  # noqa: B008 - holds no state
        gamma_initializer: InitializerLike = Ones(),  # noqa: B008 - holds no state
        moving_mean_initializer: InitializerLike = Zeros(),  # noqa: B008 - holds no state
        moving_variance_initializer: InitializerLike = Ones(),  # noqa: B008 - holds no state
        beta_regularizer: Function | None = None,
        gamma_regularizer: Function | None = None,
        beta_constraint: Function | None = None,
        gamma_constraint: Function | None = None,
        renorm: bool = False,
        renorm_clipping: Mapping[str, TensorLike] | None = None,
        renorm_momentum: float = 0.99,
        fused: bool | None = None,
        trainable: bool = True,
        virtual_batch_size: int | None = None,
        adjustment: Callable[[Any], Any] | None = None,
        name: str | None = None,
        **kwargs: Any,
    ) -> None:
        super().__init__(trainable, name, **kwargs)
        if renorm and virtual_batch_size is not None:
            raise ValueError("renorm and virtual_batch_size cannot be used together.")
        self.axis = [int(one) for one in nest.as_list(axis)]
        self.momentum = momentum
        self.epsilon = epsilon
        self.center = center
        self.scale = scale
        self.beta_initializer = beta_initializer
        self.gamma_initializer = gamma_initializer
        self.moving_mean_initializer = moving_mean_initializer
        self.moving_variance_initializer = moving_variance_initializer
        self.beta_regularizer = beta_regularizer
        self.gamma_regularizer = gamma_regularizer
        self.beta_constraint = beta_constraint
        self.gamma_constraint = gamma_constraint
        self.renorm = renorm
        self.renorm_clipping = _checked_clipping(renorm_clipping) if renorm else {}
        self.renorm_momentum = renorm_momentum
        self.fused = fused
        self.virtual_batch_size = virtual_batch_size
        self.adjustment = adjustment
        self.gamma: Any = None
        self.beta: Any = None

    def build(self, input_shape: Any) -> None:
        shape = as_shape(input_shape)
        if shape.rank is None:
            raise ValueError(f"Input has undefined rank: {shape}")
        self.axis = _normal_axes(self.axis, shape.rank)
        self._choose_fused(shape.rank)
        sizes = {axis: shape[axis].value for axis in self.axis}
        if None in sizes.values():
            raise ValueError(f"Input has undefined `axis` dimension. Input shape: {shape}")
        self.input_spec = InputSpec(ndim=shape.rank, axes=sizes)
        self._add_parameters([size for size in sizes.values() if size is not None])

    def _choose_fused(self, rank: int) -> None:
        """The fused op normalizes images by channel, alone and over the whole batch; what it cannot
        do is composed, whether or not it was asked for."""
        plain = self.virtual_batch_size is None and self.adjustment is None and not self.renorm
        by_channel = self.axis in ([1], [3])
        if self.fused and plain and rank == 4 and not by_channel:
            raise ValueError(
                f"Unsupported axis: fused batch norm takes the axis 1 or 3, not {self.axis}"
            )
        self.fused = self.fused is not False and plain and rank == 4 and by_channel

    def _add_parameters(self, shape: list[int]) -> None:
        dtype = float32 if self._dtype is None else self._dtype.compute_dtype
        if self.scale:
            self.gamma = configured_weight(self, "gamma", shape, dtype)
        if self.center:
            self.beta = configured_weight(self, "beta", shape, dtype)
        with self._whole_variables():
            self._add_statistics(shape, dtype)

    @contextmanager
    def _whole_variables(self) -> Generator[None]:
        """New variables are not cut into parts: fused ops take statistics whole."""
        self._open_scope(None)
        scope = cast("VariableScope", self._scope)  # which is there from now on
        partitioner = scope.partitioner
        scope.set_partitioner(None)
        try:
            yield
        finally:
            scope.set_partitioner(partitioner)

    def _add_statistics(self, shape: list[int], dtype: DType) -> None:
        def add(name: str, start: InitializerLike) -> Any:
            return self.add_weight(name, shape, dtype, start, trainable=False)

        self.moving_mean = add("moving_mean", self.moving_mean_initializer)
        self.moving_variance = add("moving_variance", self.moving_variance_initializer)
        if self.renorm:
            self.renorm_mean = add("renorm_mean", self.moving_mean_initializer)
            self.renorm_stddev = add("renorm_stddev", self.moving_variance_initializer)

    def call(self, inputs: Any, training: TensorLike = False) -> Tensor:
        inputs = convert_to_tensor(inputs)
        if self.virtual_batch_size is not None:
            return self._in_virtual_batches(inputs, training)
        if self.fused and static_bool(training) is not None:
            return self._fused(inputs, bool(static_bool(training)))
        return self._composed(inputs, training)

    def _fused(self, inputs: Tensor, training: bool) -> Tensor:
        outputs, mean, variance = fused_ops.fused_batch_norm(
            inputs,
            self.gamma if self.scale else filling.ones_like(self.moving_mean),
            self.beta if self.center else filling.zeros_like(self.moving_mean),
            mean=None if training else self.moving_mean,
            variance=None if training else self.moving_variance,
            epsilon=self.epsilon,
            data_format="NHWC" if self.axis == [3] else "NCHW",
            is_training=training,
        )
        if training:
            self._move(_Statistics(mean, variance), True)
        return outputs

    def _composed(self, inputs: Tensor, training: Any) -> Tensor:
        """The same out of single ops: any rank and axes, and `training` that the step knows."""
        static = static_bool(training)
        statistics = _Statistics(self.moving_mean, self.moving_variance)
        gamma, beta = self.gamma, self.beta
        if static is not False:
            batch = self._batch_statistics(inputs)
            gamma, beta = self._adjusted(inputs, training)
            if self.renorm:
                gamma, beta = self._renormalized(batch, gamma, beta, training)
            self._move(self._for_averages(inputs, batch), training)
            statistics = batch if static else _choose(training, batch, statistics)
        mean, variance, offset, factor = (
            self._spread(part, inputs) for part in (*statistics, beta, gamma)
        )
        outputs = normalisation.batch_normalization(
            inputs, mean, variance, offset, factor, self.epsilon
        )
        outputs.set_shape(inputs.shape)
        return outputs

    def _batch_statistics(self, inputs: Tensor) -> _Statistics:
        rank = inputs.shape.rank or 0
        others = [axis for axis in range(rank) if axis not in self.axis]
        wide = casting.cast(inputs, self.moving_mean.dtype.base_dtype)
        return _Statistics(*normalisation.moments(wide, others))

    def _for_averages(self, inputs: Tensor, batch: _Statistics) -> _Statistics:
        """The fused op averages the unbiased variance; with it chosen, so does this form."""
        if not self.fused:
            return batch
        size = casting.cast(shaping.size(inputs), batch.variance.dtype)
        count = size / (batch.mean.shape.num_elements() or 1)
        return _Statistics(batch.mean, batch.variance * count / arithmetic.maximum(count - 1, 1))

    def _adjusted(self, inputs: Tensor, training: Any) -> tuple[Any, Any]:
        """Gamma and beta, randomly changed in training where an `adjustment` is given."""
        if self.adjustment is None:
            return self.gamma, self.beta
        factor, offset = self.adjustment(shaping.shape(inputs))
        if static_bool(training) is None:
            factor = choosing.where(training, factor, factor * 0 + 1)
            offset = choosing.where(training, offset, offset * 0)
        gamma = factor if self.gamma is None else self._spread(self.gamma, inputs) * factor
        if self.beta is None:
            return gamma, offset
        return gamma, self._spread(self.beta, inputs) * factor + offset

    def _renormalized(
        self, batch: _Statistics, gamma: Any, beta: Any, training: Any
    ) -> tuple[Any, Any]:
        """Gamma and beta such that, within bounds, training sees what inference will."""
        stddev = transcendental.sqrt(batch.variance + self.epsilon)
        average = arithmetic.maximum(self.renorm_stddev, self.epsilon**0.5)
        bounds = self.renorm_clipping
        factor = _clipped(stddev / average, bounds.get("rmin"), bounds.get("rmax"))
        most = bounds.get("dmax")
        offset = (batch.mean - self.renorm_mean) / average
        offset = _clipped(offset, None if most is None else -most, most)
        with control_dependencies([factor, offset]):  # they use the averages before the step
            self._move_one(self.renorm_mean, batch.mean, self.renorm_momentum, training)
            self._move_one(self.renorm_stddev, stddev, self.renorm_momentum, training)
        if static_bool(training) is None:
            factor = choosing.where(training, factor, filling.ones_like(factor))
            offset = choosing.where(training, offset, filling.zeros_like(offset))
        factor, offset = basic.stop_gradient(factor), basic.stop_gradient(offset)
        scaled = offset if gamma is None else offset * gamma
        return (
            factor if gamma is None else factor * gamma,
            scaled if beta is None else scaled + beta,
        )

    def _spread(self, parameter: Any, inputs: Tensor) -> Any:
        """A parameter in a shape that broadcasts to that of the inputs."""
        rank = inputs.shape.rank or 0
        if parameter is None or self.axis == [rank - 1] or parameter.shape.rank == rank:
            return parameter
        shape = [inputs.shape[a].value if a in self.axis else 1 for a in range(rank)]
        return shaping.reshape(parameter, shape)

    def _move(self, statistics: _Statistics, training: Any) -> None:
        """Move the averages towards the batch's statistics; not at all if not in training."""
        self._move_one(self.moving_mean, statistics.mean, self.momentum, training)
        self._move_one(self.moving_variance, statistics.variance, self.momentum, training)

    def _move_one(
        self, variable: Any, value: Tensor, momentum: float, training: TensorLike
    ) -> None:
        share: Tensor | float = 1 - momentum
        if static_bool(training) is None:
            share = share * casting.cast(training, variable.dtype.base_dtype)
        with colocate_with(variable.op):
            self.add_update(state.assign_sub(variable, (variable - value) * share))

    def _in_virtual_batches(self, inputs: Tensor, training: Any) -> Tensor:
        """Normalize each `virtual_batch_size` examples on their own, in training."""
        static = static_bool(training)
        if static is False:
            return self._composed(inputs, training)
        grouped = self._grouped(inputs)
        rank = inputs.shape.rank or 0
        others = [axis + 1 for axis in range(rank) if axis not in self.axis]
        mean, variance = normalisation.moments(grouped, others, keep_dims=True)
        self._move(_Statistics(self._over_groups(mean), self._over_groups(variance)), training)
        beta, gamma = (self._spread_over_groups(part, rank) for part in (self.beta, self.gamma))
        outputs = normalisation.batch_normalization(
            grouped, mean, variance, beta, gamma, self.epsilon
        )
        outputs = shaping.reshape(outputs, shaping.shape(inputs))
        outputs.set_shape(inputs.shape)
        return (
            outputs if static else choosing.where(training, outputs, self._composed(inputs, False))
        )

    def _grouped(self, inputs: Tensor) -> Tensor:
        """[groups, examples of a group, ...]"""
        size = self.virtual_batch_size
        shape = joining.concat([[-1, size], shaping.shape(inputs)[1:]], 0)
        grouped = shaping.reshape(inputs, shape)
        grouped.set_shape([None, size, *inputs.shape.as_list()[1:]])
        return grouped

    def _spread_over_groups(self, parameter: Any, rank: int) -> Any:
        if parameter is None:
            return None
        sizes = dict(zip(self.axis, parameter.shape.as_list(), strict=True))
        return shaping.reshape(parameter, [1, *(sizes.get(axis, 1) for axis in range(rank))])

    def _over_groups(self, statistic: Tensor) -> Tensor:
        mean = reduce.reduce_mean(statistic, 0)
        return shaping.reshape(mean, self.moving_mean.shape.as_list())

    def compute_output_shape(self, input_shape: Any) -> TensorShape:
        return as_shape(input_shape)


def _checked_clipping(clipping: Any) -> dict[str, Any]:
    bounds = dict(clipping or {})
    unknown = set(bounds) - {"rmax", "rmin", "dmax"}
    if unknown:
        raise ValueError(f"renorm_clipping {bounds} contains keys not in rmax, rmin, dmax")
    return bounds


def _clipped(values: Tensor, low: Any, high: Any) -> Tensor:
    if low is not None:
        values = arithmetic.maximum(values, low)
    return values if high is None else arithmetic.minimum(values, high)


def _normal_axes(axes: Sequence[int], rank: int) -> list[int]:
    result = [axis + rank if axis < 0 else axis for axis in axes]
    for axis in result:
        if not 0 <= axis < rank:
            raise ValueError(f"Invalid axis: {axis} for inputs of rank {rank}")
    if len(set(result)) != len(result):
        raise ValueError(f"Duplicate axis: {tuple(axes)}")
    return result


def _choose(training: Any, batch: _Statistics, moving: _Statistics) -> _Statistics:
    pairs = zip(batch, moving, strict=True)
    return _Statistics(*(choosing.where(training, now, average) for now, average in pairs))


@public("layers.batch_normalization")
def batch_normalization(
    inputs: TensorLike,
    axis: IntsLike = -1,
    momentum: float = 0.99,
    epsilon: float = 1e-3,
    center: bool = True,
    scale: bool = True,
    beta_initializer: InitializerLike = Zeros(),  # noqa: B008 - holds no state
    gamma_initializer: InitializerLike = Ones(),  # noqa: B008 - holds no state
    moving_mean_initializer: InitializerLike = Zeros(),  # noqa: B008 - holds no state
    moving_variance_initializer: InitializerLike = Ones(),  # noqa: B008 - holds no state
    beta_regularizer: Function | None = None,
    gamma_regularizer: Function | None = None,
    beta_constraint: Function | None = None,
    gamma_constraint: Function | None = None,
    training: TensorLike = False,
    trainable: bool = True,
    name: str | None = None,
    reuse: bool | ReuseMode | None = None,
    renorm: bool = False,
    renorm_clipping: Mapping[str, TensorLike] | None = None,
    renorm_momentum: float = 0.99,
    fused: bool | None = None,
    virtual_batch_size: int | None = None,
    adjustment: Callable[[Any], Any] | None = None,
) -> Tensor:
    """Normalize by the batch in training, by moving averages otherwise.

    The averages move when their updates run: let the training step depend on
    `tf.get_collection(tf.GraphKeys.UPDATE_OPS)`.

    Args:
        inputs: a floating tensor.
        axis: the axis, or axes, whose slices are normalized each on its own: the channels.
        momentum: how much of the moving averages stays in a step.
        epsilon: what is added to the variance.
        center, scale: whether an offset (beta) is added, a factor (gamma) multiplied.
        beta_initializer, gamma_initializer, moving_mean_initializer, moving_variance_initializer:
            how the variables begin.
        beta_regularizer, gamma_regularizer: functions of the variables that give losses.
        beta_constraint, gamma_constraint: functions that optimizers apply to the variables.
        training: whether to use the batch: a Python or tensor truth value.
        trainable: whether optimizers change the variables by default.
        name: the name of the layer.
        reuse: whether variables of that name are shared.
        renorm, renorm_clipping, renorm_momentum: batch renormalization and its bounds.
        fused: whether one op normalizes, which takes images by channel; None: where that fits.
        virtual_batch_size: normalize parts of the batch of this size.
        adjustment: a function of the shape that gives a random (scale, bias) in training.

    Returns:
        A tensor of the shape and dtype of `inputs`.

    Example:
        >>> x = tf.constant([[1.0], [3.0]])
        >>> y = tf.layers.batch_normalization(x, training=True, epsilon=0.0)
        >>> updates = tf.get_collection(tf.GraphKeys.UPDATE_OPS)
        >>> sess.run(tf.global_variables_initializer())
        >>> sess.run(y), len(updates)
        (array([[-1.],
               [ 1.]], dtype=float32), 2)
    """
    layer = BatchNormalization(
        axis,
        momentum,
        epsilon,
        center,
        scale,
        beta_initializer,
        gamma_initializer,
        moving_mean_initializer,
        moving_variance_initializer,
        beta_regularizer,
        gamma_regularizer,
        beta_constraint,
        gamma_constraint,
        renorm,
        renorm_clipping,
        renorm_momentum,
        fused,
        trainable,
        virtual_batch_size,
        adjustment,
        name,
        _reuse=reuse,
        _scope=name,
    )
    return layer(inputs, training=training)
