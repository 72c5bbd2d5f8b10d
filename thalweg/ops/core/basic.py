"""The most basic ops: constants, placeholders, identities and grouping."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import nullcontext
from typing import Any, cast

import numpy as np

from thalweg import errors
from thalweg.graph import dtypes
from thalweg.graph.build import graph_of
from thalweg.graph.convert import convert_to_tensor, register_tensor_conversion_function
from thalweg.graph.dtypes import DType, as_dtype
from thalweg.graph.graph import get_default_graph
from thalweg.graph.known import constant_elements
from thalweg.graph.likes import NodeLike, TensorLike
from thalweg.graph.literal import make_array, plain_integers
from thalweg.graph.node import Node, Tensor
from thalweg.graph.op import Op, Source
from thalweg.graph.origin import user_line
from thalweg.graph.shapes import Dimension, TensorShape, as_shape
from thalweg.ir.expr import Expr
from thalweg.ir.loop import IndexTuple, Operand
from thalweg.platform.arrays import Array
from thalweg.public import public

_MAX_BYTES = 1 << 31  # of a constant: the limit of a GraphDef


class Const(Op):
    """A value known when the graph is built."""

    signature = "-> output: dtype"
    of_shapes = True  # it has no inputs
    value: Array
    dtype: DType

    def __hash__(self) -> int:
        return id(self)

    def __eq__(self, other: object) -> bool:
        return self is other

    def shape(self) -> TensorShape:
        return TensorShape.of(self.value.shape)

    def known_value(self) -> Array:
        return self.value

    def numpy(self) -> Array:
        return plain_integers(self.value) if self.dtype.is_quantized else self.value


@public("constant")
def constant(
    value: TensorLike,
    dtype: Any = None,
    shape: Any = None,
    name: str = "Const",
    verify_shape: bool = False,
) -> Tensor:
    """A tensor of a Python or NumPy value.

    Args:
        value: a number, string, array, or nesting of lists of them.
        dtype: the dtype; by default float32 for floats, int32 for integers, that of an array.
        shape: the shape; a value with too few elements is extended by repeating its last one.
        name: the name of the node.
        verify_shape: raise if the shape of `value` is not `shape`, instead of extending it.

    Returns:
        A tensor whose value is part of the graph.

    Example:
        >>> sess.run(tf.constant([1, 2, 3, 4], shape=[2, 2]))
        array([[1, 2],
               [3, 4]], dtype=int32)
        >>> sess.run(tf.constant(7.0, shape=[2]))
        array([7., 7.], dtype=float32)
    """
    array = make_array(value, None if dtype is None else as_dtype(dtype), shape, verify_shape)
    if shape is None and array.nbytes >= _MAX_BYTES and not get_default_graph().is_eager:
        raise ValueError(
            "Cannot create a tensor proto whose content is larger than 2GB. 'Const' Op "
            f"'{name}' has {array.dtype}{list(array.shape)}: feed the value to a placeholder, or "
            f"initialize a variable by one (at {user_line()})"
        )
    return _const(array, name)


def _const(array: Array, name: str) -> Tensor:
    array = np.array(array)  # a copy: the caller may write to the original
    array.flags.writeable = False  # arrays that outlive a step are read-only
    kind = as_dtype(array.dtype)
    return Const(value=array, dtype=kind)(name=name)


def _constant_conversion(
    value: Any, dtype: DType | None = None, name: str | None = None, as_ref: bool = False
) -> Tensor:
    return constant(value, dtype, name=name or "Const")


register_tensor_conversion_function(object, _constant_conversion, priority=200)


def _shape_conversion(
    value: TensorShape, dtype: DType | None = None, name: str | None = None, as_ref: bool = False
) -> Tensor:
    if not value.is_fully_defined():
        raise ValueError(f"Cannot convert a partially known TensorShape to a Tensor: {value}")
    return _sizes(value.as_list(), dtype, name or "shape_as_tensor")


def _dimension_conversion(
    value: Dimension, dtype: DType | None = None, name: str | None = None, as_ref: bool = False
) -> Tensor:
    if value.value is None:
        raise ValueError(f"Cannot convert an unknown Dimension to a Tensor: {value}")
    return _sizes(value.value, dtype, name or "shape_as_tensor")


def _sizes(value: Any, dtype: DType | None, name: str) -> Tensor:
    if dtype not in (None, dtypes.int32, dtypes.int64):
        raise TypeError(f"Cannot convert sizes to dtype {dtype.name}: they are int32 or int64")
    wide = dtype is None and bool(np.any(np.array(value, np.int64) > dtypes.int32.max))
    return constant(value, dtypes.int64 if wide else dtype or dtypes.int32, name=name)


register_tensor_conversion_function(TensorShape, _shape_conversion, priority=100)
register_tensor_conversion_function(Dimension, _dimension_conversion, priority=100)


class Placeholder(Source):
    """A value that every step must feed."""

    def kernel(self, context: Any) -> Array:
        raise errors.invalid(
            f"You must feed a value for placeholder tensor '{context.node.name}' with dtype "
            f"{self.dtype.traits.short_name}{_brief_shape(self.given_shape)}: "
            "pass feed_dict={...} to run()"
        )


def _brief_shape(shape: TensorShape) -> str:
    if shape.sizes is None:
        return ""
    return f" and shape [{','.join('?' if size is None else str(size) for size in shape.sizes)}]"


@public("placeholder")
def placeholder(dtype: Any, shape: Any = None, name: str | None = None) -> Tensor:
    """A tensor whose value is fed to each step by `feed_dict`.

    Args:
        dtype: the dtype of the values that will be fed.
        shape: their static shape, with None for sizes that vary; None if the rank varies.
        name: the name of the node.

    Returns:
        A tensor of that dtype and static shape.

    Raises:
        InvalidArgumentError: if a step needs the value and does not feed it.

    Example:
        >>> x = tf.placeholder(tf.float32, [None, 2])
        >>> sess.run(tf.reduce_sum(x, axis=1), {x: [[1, 2], [3, 4], [5, 6]]})
        array([ 3.,  7., 11.], dtype=float32)
    """
    return Placeholder(dtype=as_dtype(dtype), given_shape=as_shape(shape))(name=name)


class PlaceholderWithDefault(Op):
    """y = input, unless the step feeds another value"""

    signature = "input: T -> output: T"
    effects = ()
    stateful = True
    given_shape: TensorShape

    def shape(self, input: Tensor) -> TensorShape:
        input.shape.assert_is_compatible_with(self.given_shape)
        return self.given_shape

    def kernel(self, context: Any, input: Array) -> Array:
        return input

    def loop(self, at: IndexTuple, input: Operand) -> Expr:
        return input[at]

    def gradient(self, node: Node, dy: Tensor) -> Tensor:
        return dy


@public("placeholder_with_default")
def placeholder_with_default(input: Any, shape: Any, name: str | None = None) -> Tensor:
    """A placeholder with the value `input` in steps that do not feed it.

    Args:
        input: the default, a value or a tensor.
        shape: the static shape of values, with None for sizes that vary.
        name: the name of the node.

    Returns:
        A tensor of the dtype of `input` and that static shape.

    Example:
        >>> rate = tf.placeholder_with_default(0.1, [])
        >>> sess.run(rate), sess.run(rate, {rate: 0.5})
        (np.float32(0.1), np.float32(0.5))
    """
    return PlaceholderWithDefault(given_shape=as_shape(shape))(input, name=name)


class Identity(Op):
    """y = x"""

    signature = "input: T -> output: T"
    inexpensive = True
    passes_slices = True

    def shape(self, input: Tensor) -> TensorShape:
        return input.shape

    def numpy(self, input: Array) -> Array:
        return input

    def dimensions(self, input: Tensor) -> TensorShape:
        return TensorShape.of(constant_elements(input))

    def loop(self, at: IndexTuple, input: Operand) -> Expr:
        return input[at]

    def gradient(self, node: Node, dy: Tensor) -> Tensor:
        return dy


@public("identity")
def identity(input: Any, name: str | None = None) -> Tensor:
    """The same value under another name; of a variable, its value at this point of the step.

    Args:
        input: a tensor or variable.
        name: the name of the node.

    Returns:
        A tensor of the same shape and dtype.

    Example:
        >>> y = tf.identity(tf.constant([1, 2]), name="y")
        >>> y.name, sess.run(y)
        ('y:0', array([1, 2], dtype=int32))
    """
    return Identity()(input, name=name)


class IdentityN(Op):
    """y = x, for several tensors that become available together."""

    signature = "input: [T] -> output: [T]"

    def shape(self, input: list[Tensor]) -> list[TensorShape]:
        return [tensor.shape for tensor in input]

    def numpy(self, input: list[Array]) -> list[Array]:
        return input

    def loop(self, at: IndexTuple, input: list[Operand]) -> Expr:
        return input[at.output][at]

    def gradient(self, node: Node, *dy: Tensor) -> list[Tensor]:
        return list(dy)


@public("identity_n")
def identity_n(input: Sequence[Any], name: str | None = None) -> list[Tensor]:
    """The same values under other names, available only after all have been computed."""
    return IdentityN()(list(input), name=name)


class GuaranteeConst(Identity, name="GuaranteeConst"):
    """y = x; the program guarantees that x is constant."""

    not_differentiable = True

    def gradient(self, node: Node, dy: Tensor) -> None:
        return None


@public("guarantee_const")
def guarantee_const(input: Any, name: str | None = None) -> Tensor:
    """The value of `input`, which the caller guarantees is the same in every step."""
    return GuaranteeConst()(input, name=name)


class StopGradient(Identity, name="StopGradient"):
    """y = x, without a gradient"""

    not_differentiable = True

    def gradient(self, node: Node, dy: Tensor) -> None:
        return None


@public("stop_gradient")
def stop_gradient(input: Any, name: str | None = None) -> Tensor:
    """The value of `input`, which is treated as a constant in gradients.

    Args:
        input: a tensor.
        name: the name of the node.

    Returns:
        A tensor of the same shape and dtype.

    Example:
        >>> x = tf.constant(3.0)
        >>> sess.run(tf.gradients(x * tf.stop_gradient(x), [x]))
        [np.float32(3.0)]
    """
    return StopGradient()(input, name=name)


class PreventGradient(Identity, name="PreventGradient"):
    """y = x; its gradient is an error."""

    message: str = ""

    def gradient(self, node: Node, dy: Tensor) -> Tensor:
        raise LookupError(
            f"No gradient defined through {node.name} (PreventGradient): {self.message}"
        )


class NoOp(Op):
    """Does nothing, but can have control dependencies."""

    signature = "->"
    stateful = True
    host_only = True
    step_local = True  # it has no state
    not_differentiable = True

    def shape(self) -> list[TensorShape]:
        return []

    def numpy(self) -> tuple[()]:
        return ()


@public("no_op")
def no_op(name: str | None = None) -> Node:
    """A node that does nothing, for control dependencies.

    Args:
        name: the name of the node.

    Returns:
        A node; it fetches as None.

    Example:
        >>> v = tf.Variable(1)
        >>> with tf.control_dependencies([v.initializer]):
        ...     ready = tf.no_op(name="ready")
        >>> sess.run(ready)
    """
    return NoOp()(name=name)


@public("group")
def group(*inputs: NodeLike | Sequence[NodeLike] | None, name: str | None = None) -> Node:
    """A node that runs after all `inputs`.

    If these are requested on several devices, each device has a NoOp that follows its own inputs.

    Args:
        inputs: nodes and tensors, or nestings of them.
        name: the name of the node.

    Returns:
        A node; it fetches as None.

    Example:
        >>> v, w = tf.Variable(1), tf.Variable(2)
        >>> sess.run(tf.group(v.initializer, w.initializer))
        >>> sess.run([v, w])
        [np.int32(1), np.int32(2)]
    """
    flat = _flat(inputs)
    graph = graph_of(flat)
    on_device: dict[str, list[Any]] = {}
    for each in [] if graph.is_eager else flat:
        on_device.setdefault(getattr(each, "device", None) or "", []).append(each)
    with graph.as_default():
        if len(on_device) <= 1:
            return _gate(flat, next(iter(on_device), ""), name or "group_deps")
        with graph.name_scope(name or "group_deps") as scope:
            gates = [_gate(each, device) for device, each in sorted(on_device.items())]
            return _gate(gates, "", scope)


def _gate(inputs: Sequence[Any], device: str, name: str | None = None) -> Node:
    graph = get_default_graph()
    with graph.control_dependencies(inputs), graph.device(device) if device else nullcontext():
        return no_op(name=name)


@public("tuple")
def tuple_(
    tensors: Sequence[Any], name: str | None = None, control_inputs: Sequence[Any] | None = None
) -> list[Any]:
    """The tensors, each available only after all have been computed."""
    graph = graph_of(_flat(tensors))
    with graph.as_default(), graph.name_scope(name or "tuple"):
        gates = [t for t in tensors if t is not None] + list(control_inputs or ())
        gate = group(*gates)
        return [None if t is None else with_dependencies([gate], t) for t in tensors]


def with_dependencies(
    dependencies: Sequence[Any], output_tensor: Any, name: str | None = None
) -> Any:
    """`output_tensor`, available only after `dependencies` ran."""
    is_whole = hasattr(output_tensor, "components")
    whole: Any = output_tensor if is_whole else convert_to_tensor(output_tensor)
    graph = graph_of([whole])
    colocated = None if graph.is_eager else whole
    with (
        graph.as_default(),
        graph.colocate_with(colocated),
        graph.control_dependencies(dependencies),
    ):
        if not is_whole:
            return identity(whole, name=name)
        return type(whole)(*[identity(part) for part in whole.components()])


def _flat(values: Sequence[Any]) -> list[Any]:
    flat: list[Any] = []
    for value in values:
        if isinstance(value, list | tuple):
            flat += _flat(cast("Sequence[Any]", value))
        elif value is not None:
            flat.append(value)
    return flat


def zeros_constant(like: Tensor) -> Tensor:
    """A scalar zero of the dtype of `like`."""
    return convert_to_tensor(np.zeros((), like.dtype.base_dtype.as_numpy_dtype))
