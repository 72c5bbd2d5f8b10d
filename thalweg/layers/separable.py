"""Separable convolution layers: one filter per channel, then a 1×1 mix of the channels."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from thalweg.graph.convert import convert_to_tensor
from thalweg.graph.likes import IntsLike, Structure
from thalweg.graph.node import Tensor
from thalweg.layers import sizes
from thalweg.layers.convolutional import Conv
from thalweg.layers.functional import functional
from thalweg.layers.weights import configured_weight
from thalweg.nn import convolutions
from thalweg.ops.core import shaping
from thalweg.public import public
from thalweg.variables.initializers import Zeros

if TYPE_CHECKING:
    from thalweg.variables.initializers import InitializerLike

Regularizer = Callable[[Any], Any]


class SeparableConv(Conv):
    """activation((inputs ∗ depthwise kernel) pointwise kernel + bias)."""

    def __init__(
        self,
        filters: int,
        kernel_size: IntsLike,
        strides: IntsLike = 1,
        padding: str = "valid",
        data_format: str = "channels_last",
        dilation_rate: IntsLike = 1,
        depth_multiplier: int = 1,
        activation: Callable[[Tensor], Structure] | str | None = None,
        use_bias: bool = True,
        depthwise_initializer: InitializerLike = None,
        pointwise_initializer: InitializerLike = None,
        bias_initializer: InitializerLike = Zeros(),  # noqa: B008 - holds no state
        depthwise_regularizer: Regularizer | None = None,
        pointwise_regularizer: Regularizer | None = None,
        bias_regularizer: Regularizer | None = None,
        activity_regularizer: Regularizer | None = None,
        depthwise_constraint: Regularizer | None = None,
        pointwise_constraint: Regularizer | None = None,
        bias_constraint: Regularizer | None = None,
        trainable: bool = True,
        name: str | None = None,
        **kwargs: Any,
    ) -> None:
        super().__init__(
            filters,
            kernel_size,
            strides,
            padding,
            data_format,
            dilation_rate,
            activation,
            use_bias,
            bias_initializer=bias_initializer,
            bias_regularizer=bias_regularizer,
            activity_regularizer=activity_regularizer,
            bias_constraint=bias_constraint,
            trainable=trainable,
            name=name,
            **kwargs,
        )
        self.depth_multiplier = depth_multiplier
        self.depthwise_initializer = depthwise_initializer
        self.pointwise_initializer = pointwise_initializer
        self.depthwise_regularizer = depthwise_regularizer
        self.pointwise_regularizer = pointwise_regularizer
        self.depthwise_constraint = depthwise_constraint
        self.pointwise_constraint = pointwise_constraint
        self.depthwise_kernel: Any = None
        self.pointwise_kernel: Any = None

    def build(self, input_shape: Any) -> None:
        channels = self._input_channels(input_shape)
        across = [*self.kernel_size, channels, self.depth_multiplier]
        self.depthwise_kernel = configured_weight(self, "depthwise_kernel", across)
        mixed = [*(1 for _ in self.kernel_size), self.depth_multiplier * channels, self.filters]
        self.pointwise_kernel = configured_weight(self, "pointwise_kernel", mixed)
        self._add_bias()

    def _separable(
        self,
        inputs: Any,
        kernels: tuple[Any, Any],
        strides: tuple[int, ...],
        rate: tuple[int, ...],
    ) -> Tensor:
        return convolutions.separable_conv2d(
            inputs,
            *kernels,
            strides=sizes.with_space([1], strides, 1, self.data_format),
            padding=self.padding.upper(),
            rate=rate,
            data_format=sizes.op_format(self.data_format, 2),
        )


@public("layers.SeparableConv2D", "layers.SeparableConvolution2D")
class SeparableConv2D(SeparableConv):
    """A separable convolution over two dimensions.

    Example:
        >>> x = tf.placeholder(tf.float32, [None, 8, 8, 3])
        >>> tf.layers.separable_conv2d(x, 16, 3, padding="same").shape.as_list()
        [None, 8, 8, 16]
    """

    rank = 2

    def call(self, inputs: Any) -> Tensor:
        kernels = self.depthwise_kernel, self.pointwise_kernel
        return self._finished(self._separable(inputs, kernels, self.strides, self.dilation_rate))


@public("layers.SeparableConv1D")
class SeparableConv1D(SeparableConv):
    """A separable convolution over one dimension."""

    rank = 1

    def call(self, inputs: Any) -> Tensor:
        axis = 1 if self.data_format == "channels_last" else 2
        flat = shaping.expand_dims(convert_to_tensor(inputs), axis)
        kernels = (
            shaping.expand_dims(self.depthwise_kernel, 0),
            shaping.expand_dims(self.pointwise_kernel, 0),
        )
        # Ops want equal strides; along the dimension of size 1 any stride is right.
        outputs = self._separable(flat, kernels, self.strides * 2, (1, *self.dilation_rate))
        return self._finished(shaping.squeeze(outputs, [axis]))


separable_conv1d = functional(SeparableConv1D, "layers.separable_conv1d")
separable_conv2d = functional(SeparableConv2D, "layers.separable_conv2d")
