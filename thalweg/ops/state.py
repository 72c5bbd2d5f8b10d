"""Variables: buffers that outlive steps, and the ops that read and change them.

A variable node gives a reference: its `VariableCell` flows along the edge, and a consumer that
wants a value reads it when it runs. Every change is made whole or not at all.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from thalweg import errors
from thalweg.graph.dtypes import DType
from thalweg.graph.graph import get_default_graph
from thalweg.graph.node import Tensor
from thalweg.graph.op import Op
from thalweg.graph.shapes import TensorShape, scalar
from thalweg.ops.context import Context, VariableCell
from thalweg.public import public

Array = NDArray[Any]


class VariableV2(Op):
    """A reference to a buffer kept under (container, shared_name or the node's name)."""

    signature = "-> ref: &dtype"
    stateful = True
    not_differentiable = True
    dtype: DType
    given_shape: TensorShape
    container: str = ""
    shared_name: str = ""

    def shape(self) -> TensorShape:
        return self.given_shape

    def kernel(self, context: Context) -> VariableCell:
        name = self.shared_name or context.node.name
        return context.resource(
            name, self.container, lambda: VariableCell(name, self.dtype, self.given_shape)
        )


def variable_op(
    shape: TensorShape,
    dtype: DType,
    name: str = "Variable",
    container: str = "",
    shared_name: str = "",
) -> Tensor:
    """A node that owns a buffer of this shape and dtype."""
    place = container or get_default_graph().container_name
    return VariableV2(
        dtype=dtype.base_dtype, given_shape=shape, container=place, shared_name=shared_name
    )(name=name)


class IsVariableInitialized(Op):
    """Whether a variable has a value."""

    signature = "ref: &dtype -> is_initialized: bool"
    stateful = True
    not_differentiable = True

    def shape(self, ref: Tensor) -> TensorShape:
        return scalar()

    def kernel(self, context: Context, ref: VariableCell) -> Any:
        return np.bool_(ref.is_initialized)


class Update(Op, abstract=True):
    """Changes a variable; gives its reference."""

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
        if self.validate_shape and not ref.shape.is_compatible_with(
            TensorShape.of(np.shape(value))
        ):
            raise errors.InvalidArgumentError(
                None,
                None,
                f"Assign requires shapes of both tensors to match: variable {ref.name} has "
                f"{ref.shape}, the value {np.shape(value)}",
            )
        ref.assign(value)
        return ref


@public("assign")
def assign(
    ref: Any,
    value: Any,
    validate_shape: bool | None = None,
    use_locking: bool | None = None,
    name: str | None = None,
) -> Tensor:
    """Set a variable to a value; the result reads the new one."""
    op = Assign(
        validate_shape=True if validate_shape is None else validate_shape,
        use_locking=True if use_locking is None else use_locking,
    )
    return op(ref, value, name=name)


class Accumulate(Update, abstract=True):
    """ref = ref ∘ value, elementwise"""

    signature = "ref: &T, value: T -> output_ref: &T; T: numeric"
    function: ClassVar[Callable[..., Any]]

    def shape(self, ref: Tensor, value: Tensor) -> TensorShape:
        return ref.shape.merge_with(value.shape)

    def kernel(self, context: Context, ref: VariableCell, value: Array) -> VariableCell:
        function = type(self).function

        def change(buffer: Array) -> None:
            if buffer.shape != np.shape(value):
                raise errors.InvalidArgumentError(
                    None, None, f"{ref.name} has shape {buffer.shape}, not {np.shape(value)}"
                )
            function(buffer, value, out=buffer)

        ref.update(change)
        return ref


class AssignAdd(Accumulate):
    """ref += value"""

    function = np.add


class AssignSub(Accumulate):
    """ref -= value"""

    function = np.subtract


@public("assign_add")
def assign_add(
    ref: Any, value: Any, use_locking: bool | None = None, name: str | None = None
) -> Tensor:
    """Add to a variable; the result reads the new value."""
    return AssignAdd(use_locking=bool(use_locking))(ref, value, name=name)


@public("assign_sub")
def assign_sub(
    ref: Any, value: Any, use_locking: bool | None = None, name: str | None = None
) -> Tensor:
    """Subtract from a variable; the result reads the new value."""
    return AssignSub(use_locking=bool(use_locking))(ref, value, name=name)


@public("is_variable_initialized")
def is_variable_initialized(variable: Any) -> Tensor:
    """Whether a variable has a value in the session."""
    return IsVariableInitialized()(variable)
