"""Dense, dropout and flatten layers, and inputs."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any, Literal, SupportsIndex, overload

from thalweg.graph.composite import SparseTensor
from thalweg.graph.convert import convert_to_tensor
from thalweg.graph.dtypes import float32
from thalweg.graph.known import constant_value
from thalweg.graph.likes import DTypeLike, Structure, TensorLike
from thalweg.graph.node import Tensor
from thalweg.graph.shapes import TensorShape, as_shape
from thalweg.layers.functional import functional
from thalweg.layers.weights import configured_weight
from thalweg.nn.layer import InputSpec, Layer, resolve_activation
from thalweg.ops.arrays import transposing
from thalweg.ops.core import basic, choosing, shaping
from thalweg.ops.linalg import matmul, tensordot
from thalweg.ops.nn import bias
from thalweg.ops.nn import dropout as dropout_ops
from thalweg.ops.sparse import sparse as sparse_ops
from thalweg.public import public
from thalweg.variables.initializers import Zeros

if TYPE_CHECKING:
    from thalweg.variables.initializers import InitializerLike

Regularizer = Callable[[Any], Any]


def static_bool(value: Any) -> bool | None:
    """A Python truth value of a flag, or None if only the step knows it."""
    if not isinstance(value, Tensor):
        return bool(value)
    known = constant_value(value)
    return None if known is None else bool(known)


@public("layers.Dense")
class Dense(Layer):
    """activation(inputs kernel + bias), over the last dimension.

    Example:
        >>> x = tf.placeholder(tf.float32, [None, 4])
        >>> y = tf.layers.dense(x, 3, activation=tf.nn.relu)
        >>> y.shape.as_list(), [v.name for v in tf.trainable_variables()]
        ([None, 3], ['dense/kernel:0', 'dense/bias:0'])
    """

    def __init__(
        self,
        units: int,
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
        self.units = int(units)
        self.activation = resolve_activation(activation)
        self.use_bias = use_bias
        self.kernel_initializer = kernel_initializer
        self.bias_initializer = bias_initializer
        self.kernel_regularizer = kernel_regularizer
        self.bias_regularizer = bias_regularizer
        self.kernel_constraint = kernel_constraint
        self.bias_constraint = bias_constraint
        self.input_spec = InputSpec(min_ndim=2)
        self.kernel: Any = None
        self.bias: Any = None

    def build(self, input_shape: Any) -> None:
        depth = as_shape(input_shape)[-1].value
        if depth is None:
            raise ValueError(
                "The last dimension of the inputs to `Dense` should be defined. Found `None`."
            )
        self.input_spec = InputSpec(min_ndim=2, axes={-1: depth})
        self.kernel = configured_weight(self, "kernel", [depth, self.units])
        if self.use_bias:
            self.bias = configured_weight(self, "bias", [self.units])

    def call(self, inputs: Any) -> Tensor:
        inputs = convert_to_tensor(inputs)
        rank = inputs.shape.rank or 0
        if rank > 2:
            outputs = tensordot.tensordot(inputs, self.kernel, [[rank - 1], [0]])
            outputs.set_shape(self.compute_output_shape(inputs.shape))
        else:
            outputs = matmul.matmul(inputs, self.kernel)
        if self.use_bias:
            outputs = bias.bias_add(outputs, self.bias)
        return outputs if self.activation is None else self.activation(outputs)

    def compute_output_shape(self, input_shape: Any) -> TensorShape:
        shape = as_shape(input_shape).with_rank_at_least(2)
        if shape[-1].value is None:
            raise ValueError(f"The innermost dimension of input_shape must be defined: {shape}")
        return shape[:-1].concatenate(self.units)


dense = functional(Dense, "layers.dense")


@public("layers.Dropout")
class Dropout(Layer):
    """In training, sets a share `rate` of the inputs to 0 and scales the others up."""

    def __init__(
        self,
        rate: Any = 0.5,
        noise_shape: Any = None,
        seed: int | None = None,
        name: str | None = None,
        **kwargs: Any,
    ) -> None:
        super().__init__(name=name, **kwargs)
        self.rate = rate
        self.noise_shape = noise_shape
        self.seed = seed

    def call(self, inputs: Any, training: TensorLike = False) -> Tensor:
        inputs = convert_to_tensor(inputs)
        static = static_bool(training)
        if static is False:
            return basic.identity(inputs)
        dropped = dropout_ops.dropout(
            inputs, noise_shape=self.noise_shape, seed=self.seed, rate=self.rate
        )
        return dropped if static else choosing.where(training, dropped, inputs)

    def compute_output_shape(self, input_shape: Any) -> TensorShape:
        return as_shape(input_shape)


@public("layers.dropout")
def dropout(
    inputs: TensorLike,
    rate: Any = 0.5,
    noise_shape: Any = None,
    seed: int | None = None,
    training: TensorLike = False,
    name: str | None = None,
) -> Tensor:
    """In training, set a share `rate` of the inputs to 0 and scale the others up by 1 / (1 - rate).

    Args:
        inputs: a floating tensor.
        rate: the probability that an element is dropped; a number or a scalar tensor.
        noise_shape: a shape that broadcasts to that of `inputs`: where it has a 1, elements along
            that axis are kept or dropped together.
        seed: a number that fixes the sequence of values.
        training: whether elements are dropped: a Python or a tensor truth value.
        name: the name of the layer.

    Returns:
        A tensor of the shape and dtype of `inputs`.

    Example:
        >>> training = tf.placeholder_with_default(False, [])
        >>> y = tf.layers.dropout(tf.ones([4]), rate=0.5, training=training)
        >>> sess.run(y)
        array([1., 1., 1., 1.], dtype=float32)
        >>> set(sess.run(y, {training: True}).tolist()) <= {0.0, 2.0}
        True
    """
    return Dropout(rate, noise_shape, seed, name)(inputs, training=training)


@public("layers.Flatten")
class Flatten(Layer):
    """All dimensions but the first as one."""

    def __init__(self, data_format: str | None = None, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.data_format = data_format or "channels_last"
        self.input_spec = InputSpec(min_ndim=1)

    def call(self, inputs: Any) -> Tensor:
        inputs = convert_to_tensor(inputs)
        rank = inputs.shape.rank
        if self.data_format == "channels_first" and rank is not None and rank > 2:
            inputs = transposing.transpose(inputs, [0, *range(2, rank), 1])
        size = self.compute_output_shape(inputs.shape).as_list()[1]
        batch = inputs.shape[0].value if rank else None
        if batch is not None:
            shape = [batch, -1 if size is None else size]
        else:
            shape = [shaping.shape(inputs)[0], -1] if size is None else [-1, size]
        outputs = shaping.reshape(inputs, shape)
        outputs.set_shape(self.compute_output_shape(inputs.shape))
        return outputs

    def compute_output_shape(self, input_shape: Any) -> TensorShape:
        shape = as_shape(input_shape)
        if shape.rank is None:
            return TensorShape([None, None])
        return TensorShape([shape[0], shape[1:].num_elements()])


@public("layers.flatten")
def flatten(
    inputs: TensorLike, name: str | None = None, data_format: str = "channels_last"
) -> Tensor:
    """All axes but the first as one.

    Args:
        inputs: a tensor [batch, ...].
        name: the name of the layer.
        data_format: "channels_first" moves channels to the end before.

    Returns:
        A tensor [batch, size].

    Example:
        >>> x = tf.placeholder(tf.float32, [None, 4, 4, 3])
        >>> tf.layers.flatten(x).shape.as_list()
        [None, 48]
    """
    return Flatten(name=name, data_format=data_format)(inputs)


@overload
def make_input(  # pyright: ignore[reportOverlappingOverload] - the second is for a value not known
    shape: Iterable[SupportsIndex | None] | TensorShape | None = None,
    batch_size: int | None = None,
    name: str | None = None,
    dtype: DTypeLike = float32,
    *,
    sparse: Literal[True],
    tensor: TensorLike | None = None,
) -> SparseTensor: ...
@overload
def make_input(
    shape: Iterable[SupportsIndex | None] | TensorShape | None = None,
    batch_size: int | None = None,
    name: str | None = None,
    dtype: DTypeLike = float32,
    sparse: bool = False,
    tensor: TensorLike | None = None,
) -> Tensor: ...
@public("layers.Input")
def make_input(
    shape: Iterable[SupportsIndex | None] | TensorShape | None = None,
    batch_size: int | None = None,
    name: str | None = None,
    dtype: DTypeLike = float32,
    sparse: bool = False,
    tensor: TensorLike | None = None,
) -> Tensor | SparseTensor:
    """A placeholder for a batch of examples of a shape (or the tensor given)."""
    if tensor is not None:
        return convert_to_tensor(tensor)
    if shape is None:
        raise ValueError("Please provide to Input either a `shape` or a `tensor` argument")
    sizes = (batch_size, *shape)
    if sparse:
        return sparse_ops.sparse_placeholder(dtype, sizes, name=name)
    return basic.placeholder(dtype, sizes, name=name)
