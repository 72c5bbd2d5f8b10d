"""Pooling layers: the maximum or the mean of windows over one, two and three dimensions."""

from __future__ import annotations

from typing import Any, ClassVar

from thalweg.graph.convert import convert_to_tensor
from thalweg.graph.likes import IntsLike
from thalweg.graph.node import Tensor
from thalweg.graph.shapes import TensorShape, as_shape
from thalweg.layers import sizes
from thalweg.layers.functional import functional
from thalweg.nn.layer import InputSpec, Layer
from thalweg.ops.arrays import transposing
from thalweg.ops.core import shaping
from thalweg.ops.nn import pooling, pooling3d
from thalweg.public import public


class Pooling(Layer):
    """A reduction over the windows of `rank` spatial dimensions."""

    rank: ClassVar[int]
    pooling_type: ClassVar[str]

    def __init__(
        self,
        pool_size: IntsLike,
        strides: IntsLike,
        padding: str = "valid",
        data_format: str = "channels_last",
        name: str | None = None,
        **kwargs: Any,
    ) -> None:
        super().__init__(name=name, **kwargs)
        self.pool_size = sizes.as_tuple(pool_size, self.rank, "pool_size")
        self.strides = sizes.as_tuple(strides, self.rank, "strides")
        self.padding = sizes.as_padding(padding)
        self.data_format = sizes.as_data_format(data_format)
        self.input_spec = InputSpec(ndim=self.rank + 2)

    def call(self, inputs: Any) -> Tensor:
        x = convert_to_tensor(inputs)
        is_last = self.data_format == "channels_last"
        if self.rank == 1:
            axis = 2 if is_last else 3
            pooled = self._pool2d(shaping.expand_dims(x, axis), (1,))
            return shaping.squeeze(pooled, [axis])
        if self.rank == 2:
            return self._pool2d(x, ())
        if is_last:
            return self._pool3d(x)
        # The op takes channels last alone.
        moved = self._pool3d(transposing.transpose(x, [0, 2, 3, 4, 1]))
        return transposing.transpose(moved, [0, 4, 1, 2, 3])

    def _pool2d(self, x: Tensor, width: tuple[int, ...]) -> Tensor:
        """Pool images; `width` is added to the window where there is one spatial axis."""
        pool = pooling.max_pool if self.pooling_type == "MAX" else pooling.avg_pool
        window, strides = (self._around((*n, *width)) for n in (self.pool_size, self.strides))
        data_format = sizes.op_format(self.data_format, 2)
        return pool(x, window, strides, self.padding.upper(), data_format=data_format)

    def _pool3d(self, x: Tensor) -> Tensor:
        is_max = self.pooling_type == "MAX"
        pool = pooling3d.max_pool3d if is_max else pooling3d.avg_pool3d
        window, strides = ([1, *n, 1] for n in (self.pool_size, self.strides))
        name = "MaxPool3D" if is_max else "AvgPool3D"
        return pool(x, window, strides, self.padding.upper(), name=name)

    def _around(self, space: tuple[int, ...]) -> list[int]:
        """Numbers for all axes: 1 for batch and channels."""
        return [1, *space, 1] if self.data_format == "channels_last" else [1, 1, *space]

    def compute_output_shape(self, input_shape: Any) -> TensorShape:
        shape = as_shape(input_shape).as_list()
        space = [
            sizes.conv_length(length, window, self.padding, stride)
            for length, window, stride in zip(
                sizes.space_of(shape, self.data_format), self.pool_size, self.strides, strict=True
            )
        ]
        channels = shape[1] if self.data_format == "channels_first" else shape[-1]
        return TensorShape(sizes.with_space(shape, space, channels, self.data_format))


@public("layers.MaxPooling1D")
class MaxPooling1D(Pooling):
    """The maximum of windows over one dimension."""

    rank = 1
    pooling_type = "MAX"


@public("layers.MaxPooling2D")
class MaxPooling2D(Pooling):
    """The maximum of windows over two dimensions.

    Example:
        >>> x = tf.reshape(tf.range(16.0), [1, 4, 4, 1])
        >>> sess.run(tf.layers.max_pooling2d(x, 2, 2))[0, :, :, 0]
        array([[ 5.,  7.],
               [13., 15.]], dtype=float32)
    """

    rank = 2
    pooling_type = "MAX"


@public("layers.MaxPooling3D")
class MaxPooling3D(Pooling):
    """The maximum of windows over three dimensions."""

    rank = 3
    pooling_type = "MAX"


@public("layers.AveragePooling1D")
class AveragePooling1D(Pooling):
    """The mean of windows over one dimension."""

    rank = 1
    pooling_type = "AVG"


@public("layers.AveragePooling2D")
class AveragePooling2D(Pooling):
    """The mean of windows over two dimensions.

    Example:
        >>> x = tf.reshape(tf.range(16.0), [1, 4, 4, 1])
        >>> sess.run(tf.layers.average_pooling2d(x, 2, 2))[0, :, :, 0]
        array([[ 2.5,  4.5],
               [10.5, 12.5]], dtype=float32)
    """

    rank = 2
    pooling_type = "AVG"


@public("layers.AveragePooling3D")
class AveragePooling3D(Pooling):
    """The mean of windows over three dimensions."""

    rank = 3
    pooling_type = "AVG"


max_pooling1d = functional(MaxPooling1D, "layers.max_pooling1d", reuses=False)
max_pooling2d = functional(MaxPooling2D, "layers.max_pooling2d", reuses=False)
max_pooling3d = functional(MaxPooling3D, "layers.max_pooling3d", reuses=False)
average_pooling1d = functional(AveragePooling1D, "layers.average_pooling1d", reuses=False)
average_pooling2d = functional(AveragePooling2D, "layers.average_pooling2d", reuses=False)
average_pooling3d = functional(AveragePooling3D, "layers.average_pooling3d", reuses=False)
