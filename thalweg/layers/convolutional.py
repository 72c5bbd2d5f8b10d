"""Convolution layers over one, two and three dimensions, and their transposes."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, ClassVar

from thalweg.graph.convert import convert_to_tensor
from thalweg.graph.likes import IntsLike, Structure
from thalweg.graph.node import Tensor
from thalweg.graph.shapes import TensorShape, as_shape
from thalweg.layers import sizes
from thalweg.layers.functional import functional
from thalweg.layers.weights import configured_weight
from thalweg.nn import convolutions
from thalweg.nn.layer import InputSpec, Layer, resolve_activation
from thalweg.ops.arrays import joining
from thalweg.ops.core import shaping
from thalweg.ops.nn import bias as bias_ops
from thalweg.public import public
from thalweg.variables.initializers import Zeros

if TYPE_CHECKING:
    from thalweg.variables.initializers import InitializerLike

Regularizer = Callable[[Any], Any]


class Conv(Layer):
    """activation(inputs ∗ kernel + bias) over `rank` spatial dimensions."""

    rank: ClassVar[int]

    def __init__(
        self,
        filters: int,
        kernel_size: IntsLike,
        strides: IntsLike = 1,
        padding: str = "valid",
        data_format: str = "channels_last",
        dilation_rate: IntsLike = 1,
        activation: Callable[[Tensor], Structure] | str | None = None,
        use_bias: bool = True,
        kernel_initializer: InitializerLike = None,
        bias_initializer: InitializerLike = Zeros(),  # noqa: B008 - holds no state
        kernel_regularizer: Regularizer | None = None,
        bias_regularizer: Regularizer | None = None,
        activity_regularizer: Regularizer | None = None,
        kernel_constraint: Regularizer | None = None,
        bias_constraint: Regularizer | None = None,
        trainable: bool = True,
        name: str | None = None,
        **kwargs: Any,
    ) -> None:
        super().__init__(trainable, name, activity_regularizer=activity_regularizer, **kwargs)
        self.filters = filters
        self.kernel_size = sizes.as_tuple(kernel_size, self.rank, "kernel_size")
        self.strides = sizes.as_tuple(strides, self.rank, "strides")
        self.padding = sizes.as_padding(padding)
        self.data_format = sizes.as_data_format(data_format)
        self.dilation_rate = sizes.as_tuple(dilation_rate, self.rank, "dilation_rate")
        self.activation = resolve_activation(activation)
        self.use_bias = use_bias
        self.kernel_initializer = kernel_initializer
        self.bias_initializer = bias_initializer
        self.kernel_regularizer = kernel_regularizer
        self.bias_regularizer = bias_regularizer
        self.kernel_constraint = kernel_constraint
        self.bias_constraint = bias_constraint
        self.input_spec = InputSpec(ndim=self.rank + 2)
        self.kernel: Any = None
        self.bias: Any = None

    @property
    def _channel_axis(self) -> int:
        return 1 if self.data_format == "channels_first" else -1

    def _input_channels(self, input_shape: Any) -> int:
        channels = as_shape(input_shape)[self._channel_axis].value
        if channels is None:
            raise ValueError("The channel dimension of the inputs should be defined. Found `None`.")
        self.input_spec = InputSpec(ndim=self.rank + 2, axes={self._channel_axis: channels})
        return channels

    def build(self, input_shape: Any) -> None:
        shape = [*self.kernel_size, self._input_channels(input_shape), self.filters]
        self.kernel = configured_weight(self, "kernel", shape)
        self._add_bias()

    def _add_bias(self) -> None:
        if self.use_bias:
            self.bias = configured_weight(self, "bias", [self.filters])

    def call(self, inputs: Any) -> Tensor:
        outputs = convolutions.convolution(
            convert_to_tensor(inputs),
            self.kernel,
            padding=self.padding.upper(),
            strides=self.strides,
            dilation_rate=self.dilation_rate,
            data_format=sizes.op_format(self.data_format, self.rank),
            name=type(self).__name__,
        )
        return self._finished(outputs)

    def _finished(self, outputs: Tensor) -> Tensor:
        """Add the bias along the channels and apply the activation."""
        if self.use_bias:
            outputs = self._with_bias(outputs)
        return outputs if self.activation is None else self.activation(outputs)

    def _with_bias(self, outputs: Tensor) -> Tensor:
        if self.data_format == "channels_last":
            return bias_ops.bias_add(outputs, self.bias)
        if self.rank == 2:
            return bias_ops.bias_add(outputs, self.bias, data_format="NCHW")
        return outputs + shaping.reshape(self.bias, [1, self.filters] + [1] * self.rank)

    def compute_output_shape(self, input_shape: Any) -> TensorShape:
        shape = as_shape(input_shape).as_list()
        space = [
            sizes.conv_length(length, window, self.padding, stride, dilation)
            for length, window, stride, dilation in zip(
                sizes.space_of(shape, self.data_format),
                self.kernel_size,
                self.strides,
                self.dilation_rate,
                strict=True,
            )
        ]
        return TensorShape(sizes.with_space(shape, space, self.filters, self.data_format))


@public("layers.Conv1D")
class Conv1D(Conv):
    """A convolution over one dimension.

    Example:
        >>> x = tf.placeholder(tf.float32, [None, 10, 4])
        >>> tf.layers.conv1d(x, 8, 3).shape.as_list()
        [None, 8, 8]
    """

    rank = 1


@public("layers.Conv2D")
class Conv2D(Conv):
    """A convolution over two dimensions.

    Example:
        >>> images = tf.placeholder(tf.float32, [None, 8, 8, 3])
        >>> y = tf.layers.conv2d(images, 16, 3, padding="same", activation=tf.nn.relu)
        >>> y.shape.as_list()
        [None, 8, 8, 16]
    """

    rank = 2


@public("layers.Conv3D")
class Conv3D(Conv):
    """A convolution over three dimensions.

    Example:
        >>> x = tf.placeholder(tf.float32, [None, 6, 6, 6, 1])
        >>> tf.layers.conv3d(x, 4, 3).shape.as_list()
        [None, 4, 4, 4, 4]
    """

    rank = 3


class ConvTranspose(Conv):
    """activation(inputs ∗ᵀ kernel + bias): what undoes the shape change of a convolution."""

    def __init__(
        self,
        filters: int,
        kernel_size: IntsLike,
        strides: IntsLike = 1,
        padding: str = "valid",
        data_format: str = "channels_last",
        activation: Callable[[Tensor], Structure] | str | None = None,
        use_bias: bool = True,
        kernel_initializer: InitializerLike = None,
        bias_initializer: InitializerLike = Zeros(),  # noqa: B008 - holds no state
        kernel_regularizer: Regularizer | None = None,
        bias_regularizer: Regularizer | None = None,
        activity_regularizer: Regularizer | None = None,
        kernel_constraint: Regularizer | None = None,
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
            1,
            activation,
            use_bias,
            kernel_initializer,
            bias_initializer,
            kernel_regularizer,
            bias_regularizer,
            activity_regularizer,
            kernel_constraint,
            bias_constraint,
            trainable,
            name,
            **kwargs,
        )

    def build(self, input_shape: Any) -> None:
        shape = [*self.kernel_size, self.filters, self._input_channels(input_shape)]
        self.kernel = configured_weight(self, "kernel", shape)
        self._add_bias()

    def call(self, inputs: Any) -> Tensor:
        inputs = convert_to_tensor(inputs)
        shape = shaping.shape(inputs)
        lengths = [
            known if known is not None else shape[axis]
            for axis, known in enumerate(inputs.shape.as_list())
        ]
        space = self._space(sizes.space_of(lengths, self.data_format))
        full = joining.stack(sizes.with_space(lengths, space, self.filters, self.data_format))
        outputs = self._transpose(inputs, full)
        outputs.set_shape(self.compute_output_shape(inputs.shape))
        return self._finished(outputs)

    def _transpose(self, inputs: Tensor, output_shape: Tensor) -> Tensor:
        transposed = (
            convolutions.conv2d_transpose if self.rank == 2 else convolutions.conv3d_transpose
        )
        return transposed(
            inputs,
            self.kernel,
            output_shape,
            sizes.with_space([1], self.strides, 1, self.data_format),
            padding=self.padding.upper(),
            data_format=sizes.op_format(self.data_format, self.rank),
        )

    def _space(self, lengths: list[Any]) -> list[Any]:
        return [
            sizes.deconv_length(length, window, self.padding, stride)
            for length, window, stride in zip(lengths, self.kernel_size, self.strides, strict=True)
        ]

    def compute_output_shape(self, input_shape: Any) -> TensorShape:
        shape = as_shape(input_shape).as_list()
        space = self._space(sizes.space_of(shape, self.data_format))
        return TensorShape(sizes.with_space(shape, space, self.filters, self.data_format))


@public("layers.Conv2DTranspose")
class Conv2DTranspose(ConvTranspose):
    """A transposed convolution over two dimensions.

    Example:
        >>> x = tf.placeholder(tf.float32, [None, 4, 4, 8])
        >>> tf.layers.conv2d_transpose(x, 3, 2, strides=2).shape.as_list()
        [None, 8, 8, 3]
    """

    rank = 2


@public("layers.Conv3DTranspose")
class Conv3DTranspose(ConvTranspose):
    """A transposed convolution over three dimensions."""

    rank = 3


conv1d = functional(Conv1D, "layers.conv1d")
conv2d = functional(Conv2D, "layers.conv2d")
conv3d = functional(Conv3D, "layers.conv3d")
conv2d_transpose = functional(Conv2DTranspose, "layers.conv2d_transpose")
conv3d_transpose = functional(Conv3DTranspose, "layers.conv3d_transpose")
