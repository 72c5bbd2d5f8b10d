"""Stacks of tensors, in which programs save values of iterations for hand-written gradients.

A stack lives for one step. Control dependencies order its pushes and pops.
"""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np

from thalweg import errors
from thalweg.graph.dtypes import DType, string
from thalweg.graph.node import Tensor
from thalweg.graph.op import Op
from thalweg.graph.shapes import TensorShape, unknown_shape, vector
from thalweg.ops.core.context import Context, VariableCell
from thalweg.platform.arrays import Array

_numbers = itertools.count()


class StackCell(VariableCell):
    """A stack; its name is the value of a reference to it."""

    def __init__(self, name: str, dtype: DType) -> None:
        super().__init__(f"{name}_{next(_numbers)}", string, TensorShape([2]))
        self.assign(np.array([b"_stacks", self.name.encode()], object))
        self.element_type = dtype
        self.is_closed = False
        self.values: list[Any] = []

    def push(self, value: Any) -> None:
        """Push a value."""
        self._check_open()
        self.values.append(value)

    def pop(self, dtype: DType) -> Any:
        """Pop the top value."""
        self._check_open()
        if dtype is not self.element_type:
            raise errors.invalid(
                f"Stack {self.name} holds {self.element_type.name}, not {dtype.name}"
            )
        if not self.values:
            raise errors.invalid(f"Stack {self.name} is empty when calling Pop().")
        return self.values.pop()

    def close(self) -> None:
        """Free the values."""
        self.values, self.is_closed = [], True

    def _check_open(self) -> None:
        if self.is_closed:
            raise errors.invalid(f"Stack {self.name} has already been closed.")


class StackOp(Op, abstract=True):
    """The base of ops on stacks."""

    stateful = True
    host_only = True
    step_local = True
    not_differentiable = True


class Stack(StackOp):
    """A reference to a new stack."""

    signature = "-> handle: &string"
    elem_type: DType
    stack_name: str = ""

    def shape(self) -> TensorShape:
        return vector(2)

    def kernel(self, context: Context) -> StackCell:
        return StackCell(self.stack_name or context.node.name, self.elem_type)


class StackPush(StackOp):
    """Pushes a value and returns it."""

    signature = "handle: &string, elem: T -> output: T"
    swap_memory: bool = False

    def shape(self, handle: Tensor, elem: Tensor) -> TensorShape:
        return elem.shape

    def kernel(self, context: Context, handle: StackCell, elem: Array) -> Array:
        handle.push(elem)
        return elem


class StackPop(StackOp):
    """Pops the top value of a stack."""

    signature = "handle: &string -> elem: elem_type"
    elem_type: DType

    def shape(self, handle: Tensor) -> TensorShape:
        return unknown_shape()

    def kernel(self, context: Context, handle: StackCell) -> Any:
        return handle.pop(self.elem_type)


class StackClose(StackOp):
    """Frees the values of a stack."""

    signature = "handle: &string ->"

    def shape(self, handle: Tensor) -> Any:
        return []

    def kernel(self, context: Context, handle: StackCell) -> Any:
        handle.close()
        return ()
