"""Variables: buffers that outlive steps, and the ops that read and update them.

A variable node outputs a reference: its `VariableCell` flows along the edge, and a consumer that
needs the value reads it when it runs. Every update is all-or-nothing.
"""

from __future__ import annotations

import math
import operator
from collections.abc import Callable, Sequence
from typing import Any, ClassVar, cast
from weakref import WeakKeyDictionary

import numpy as np

from thalweg import errors
from thalweg.graph.analysis.effects import reads
from thalweg.graph.dtypes import DType, as_dtype
from thalweg.graph.graph import get_default_graph
from thalweg.graph.node import Node, Tensor
from thalweg.graph.op import Op, Source
from thalweg.graph.shapes import TensorShape, as_shape, scalar, unknown_shape
from thalweg.ir.expr import Expr
from thalweg.ir.loop import IndexTuple, NotLowered, Operand, Scatter, scatter
from thalweg.ops.core.context import Cancellation, Context, VariableCell
from thalweg.ops.state.variable_uses import HostUse
from thalweg.platform.arrays import Array
from thalweg.public import public

#: The annotation of a resource variable's node: its updates exclude each other and all reads.
RESOURCE = "_resource"


class VariableV2(Source):
    """A reference to the variable stored under (container, shared_name or the node's name)."""

    signature = "-> ref: &dtype"
    container: str = ""
    shared_name: str = ""

    def kernel(self, context: Context) -> VariableCell:
        name = self.shared_name or context.node.name
        is_resource = RESOURCE in context.node.annotations

        def make() -> VariableCell:
            shape = self.given_shape
            return VariableCell(name, self.dtype, shape, is_resource, context.allocate)

        return context.resource(name, self.container, make)


class VariableV1(VariableV2, name="Variable"):
    """VariableV2 as graphs from before TensorFlow 1.0 write it."""


def variable_op(
    shape: Any,
    dtype: Any,
    name: str = "Variable",
    set_shape: bool = True,
    container: str = "",
    shared_name: str = "",
    is_resource: bool = False,
) -> Tensor:
    """A node that owns a buffer of this dtype, and of this shape unless `set_shape` is false."""
    graph = get_default_graph()
    op = VariableV2(
        dtype=as_dtype(dtype).base_dtype,
        given_shape=as_shape(shape) if set_shape else unknown_shape(),
        container=container or graph.container_name,
        shared_name=shared_name,
    )
    with graph.attr_scope({RESOURCE: True} if is_resource else {}):
        return op(name=name)


class IsVariableInitialized(Op):
    """Whether a variable has a value."""

    signature = "ref: &dtype -> is_initialized: bool"
    effects = (reads("ref"),)
    stateful = True
    host_only = True
    not_differentiable = True

    def shape(self, ref: Tensor) -> TensorShape:
        return scalar()

    def kernel(self, context: Context, ref: VariableCell) -> Any:
        return np.bool_(ref.is_initialized)


@public("is_variable_initialized")
def is_variable_initialized(variable: Any) -> Tensor:
    """Whether a variable has a value in the session.

    Args:
        variable: a variable.

    Returns:
        A bool scalar.

    Example:
        >>> v = tf.Variable(1.0)
        >>> is_set = tf.is_variable_initialized(v)
        >>> before = sess.run(is_set)
        >>> sess.run(v.initializer)
        >>> before, sess.run(is_set)
        (np.False_, np.True_)
    """
    return IsVariableInitialized()(variable)


class ValueOrInitial(Op):
    """The value of a variable, or `initial` if it is not initialized."""

    private = True
    signature = "ref: &T, initial: T -> output: T"
    effects = (reads("ref"),)
    stateful = True
    host_only = True

    def shape(self, ref: Tensor, initial: Tensor) -> TensorShape:
        return ref.shape

    def kernel(self, context: Context, ref: VariableCell, initial: Array) -> Array:
        return ref.read() if ref.is_initialized else initial

    def gradient(self, node: Node, dy: Tensor) -> list[Tensor | None]:
        return [dy, None]


def value_or_initial(ref: Tensor, initial: Tensor, name: str | None = None) -> Tensor:
    """The value of a variable, or `initial` if it is not initialized yet."""
    return ValueOrInitial()(ref, initial, name=name or "initialized_value")


class Update(Op, abstract=True):
    """Updates a variable and outputs its reference."""

    stateful = True
    not_differentiable = True
    use_locking: bool = False

    def shape(self, ref: Tensor, *others: Tensor) -> TensorShape:
        return ref.shape


class Assign(Update):
    """ref = value"""

    signature = "ref: &T, value: T -> output_ref: &T"
    validate_shape: bool = True
    use_locking: bool = True

    def shape(self, ref: Tensor, value: Tensor) -> TensorShape:
        if self.validate_shape:
            return ref.shape.merge_with(value.shape)
        return value.shape

    def kernel(self, context: Context, ref: VariableCell, value: Array) -> VariableCell:
        self.check(ref, np.shape(value))
        ref.assign(value)
        return ref

    def check(self, ref: VariableCell, shape: tuple[int, ...]) -> None:
        """Raise unless a value of this shape can be assigned to the variable."""
        if self.validate_shape and not ref.shape.is_compatible_with(TensorShape.of(shape)):
            raise errors.invalid(
                f"Assign requires shapes of both tensors to match: variable {ref.name} has "
                f"{ref.shape}, the value {shape}"
            )

    def loop(self, at: IndexTuple, ref: Operand, value: Operand) -> Expr:
        if ref.shape != value.shape:
            raise NotLowered("the variable gets another shape")
        return value[at]


@public("assign")
def assign(
    ref: Any,
    value: Any,
    validate_shape: bool | None = None,
    use_locking: bool | None = None,
    name: str | None = None,
) -> Tensor:
    """Set a variable to a value.

    Args:
        ref: a variable, or a part of one, such as `v[:2]`.
        value: a tensor of its dtype and shape.
        validate_shape: False lets the variable take the shape of the value.
        use_locking: taken for old programs; updates are always whole.
        name: the name of the node.

    Returns:
        A tensor that reads the new value.

    Example:
        >>> v = tf.Variable([1.0, 2.0])
        >>> sess.run(v.initializer)
        >>> sess.run(tf.assign(v, [3.0, 4.0]))
        array([3., 4.], dtype=float32)
        >>> sess.run(tf.assign(v[:1], [0.0]))
        array([0., 4.], dtype=float32)
    """
    if isinstance(ref, Tensor) and ref.op.type == "StridedSlice":
        return Tensor.assign(ref, value, name=name)
    op = Assign(
        validate_shape=True if validate_shape is None else validate_shape,
        use_locking=True if use_locking is None else use_locking,
    )
    return op(ref, value, name=name)


class Accumulate(Update, abstract=True):
    """ref = ref ∘ value, elementwise"""

    signature = "ref: &T, value: T -> output_ref: &T; T: numeric"
    function: ClassVar[Callable[..., Any]]
    combine: ClassVar[Callable[[Expr, Expr], Expr]]

    def delta(self, value: Expr) -> Expr:
        """The addend."""
        return value

    def shape(self, ref: Tensor, value: Tensor) -> TensorShape:
        return ref.shape.merge_with(value.shape)

    def kernel(self, context: Context, ref: VariableCell, value: Array) -> VariableCell:
        function = type(self).function

        def change(buffer: Array) -> None:
            if buffer.shape != np.shape(value):
                raise errors.invalid(f"{ref.name} has shape {buffer.shape}, not {np.shape(value)}")
            function(buffer, value, out=buffer)

        ref.update(change)
        return ref

    def loop(self, at: IndexTuple, ref: Operand, value: Operand) -> Expr | Scatter:
        if math.prod(ref.shape) == 1:  # a counter: an atomic addition is never lost
            delta = self.delta(value[at])
            return scatter("sum", (), lambda: ([0] * ref.rank, delta), ref[at])
        return type(self).combine(ref[at], value[at])


class AssignAdd(Accumulate):
    """ref += value"""

    function = np.add
    combine = staticmethod(operator.add)


class AssignSub(Accumulate):
    """ref -= value"""

    function = np.subtract
    combine = staticmethod(operator.sub)

    def delta(self, value: Expr) -> Expr:
        return -value


@public("assign_add")
def assign_add(
    ref: Any, value: Any, use_locking: bool | None = None, name: str | None = None
) -> Tensor:
    """Add to a variable.

    Args:
        ref: a variable.
        value: a tensor of its dtype and shape.
        use_locking: taken for old programs; updates are always whole.
        name: the name of the node.

    Returns:
        A tensor that reads the new value.

    Example:
        >>> v = tf.Variable(1)
        >>> sess.run(v.initializer)
        >>> sess.run(tf.assign_add(v, 2))
        np.int32(3)
    """
    return AssignAdd(use_locking=bool(use_locking))(ref, value, name=name)


@public("assign_sub")
def assign_sub(
    ref: Any, value: Any, use_locking: bool | None = None, name: str | None = None
) -> Tensor:
    """Subtract from a variable.

    Args:
        ref: a variable.
        value: a tensor of its dtype and shape.
        use_locking: taken for old programs; updates are always whole.
        name: the name of the node.

    Returns:
        A tensor that reads the new value.

    Example:
        >>> v = tf.Variable(5)
        >>> sess.run(v.initializer)
        >>> sess.run(tf.assign_sub(v, 2))
        np.int32(3)
    """
    return AssignSub(use_locking=bool(use_locking))(ref, value, name=name)


class CountUpTo(Op):
    """The value of ref, which must be below `limit`, before ref += 1."""

    signature = "ref: &T -> output: T; T: index"
    stateful = True
    host_only = True
    not_differentiable = True
    limit: int

    def shape(self, ref: Tensor) -> TensorShape:
        return ref.shape.merge_with(scalar())

    def kernel(self, context: Context, ref: VariableCell) -> Array:
        with HostUse([ref], writes=True):
            before = ref.snapshot()
            if before >= self.limit:
                raise errors.OutOfRangeError(None, None, f"Reached limit of {self.limit}")
            ref.assign(before + 1)
        return before


@public("count_up_to")
def count_up_to(ref: Any, limit: int, name: str | None = None) -> Tensor:
    """The value of a counter before the step increments it; OutOfRangeError once it is `limit`."""
    return CountUpTo(limit=int(limit))(ref, name=name)


#: The temporary variables of each running step, keyed by the step's cancellation.
_temporaries: WeakKeyDictionary[Cancellation, dict[str, VariableCell]] = WeakKeyDictionary()


class TemporaryVariable(Op):
    """A buffer that lives until the `DestroyTemporaryVariable` of the same name."""

    signature = "-> ref: &dtype"
    stateful = True
    host_only = True
    not_differentiable = True
    given_shape: TensorShape
    dtype: DType
    var_name: str = ""

    def shape(self) -> TensorShape:
        return as_shape(self.given_shape)

    def kernel(self, context: Context) -> VariableCell:
        name = self.var_name or context.node.name
        temporaries = _temporaries.setdefault(context.cancellation, {})
        if name in temporaries:
            raise errors.AlreadyExistsError(None, None, f"Temporary variable {name} exists already")
        temporaries[name] = cell = VariableCell(name, self.dtype, self.shape())
        cell.assign(np.zeros(cast("Sequence[int]", cell.shape.sizes), self.dtype.as_numpy_dtype))
        return cell


class DestroyTemporaryVariable(Op):
    """The last value of a temporary variable."""

    signature = "ref: &T -> value: T"
    stateful = True
    host_only = True
    not_differentiable = True
    var_name: str

    def shape(self, ref: Tensor) -> TensorShape:
        return ref.shape

    def kernel(self, context: Context, ref: VariableCell) -> Array:
        temporaries = _temporaries.get(context.cancellation, {})
        if temporaries.pop(self.var_name, None) is None:
            raise errors.NotFoundError(None, None, f"No temporary variable {self.var_name}")
        return ref.read()


def temporary_variable(
    shape: Any, dtype: Any, var_name: str = "", name: str | None = None
) -> Tensor:
    """A reference to a new buffer of zeros in every step."""
    op = TemporaryVariable(dtype=as_dtype(dtype), given_shape=as_shape(shape), var_name=var_name)
    return op(name=name)


def destroy_temporary_variable(ref: Any, var_name: str, name: str | None = None) -> Tensor:
    """The final value of a temporary variable."""
    return DestroyTemporaryVariable(var_name=var_name)(ref, name=name)
