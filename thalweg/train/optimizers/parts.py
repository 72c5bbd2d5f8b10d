"""What a gradient changes: a whole variable, or the rows its indices name.

An optimizer that treats all elements equally is one formula over a `Part`: it reads, sets and adds
to variables of one shape (the trained one and its slots) without knowing which of the two it has.
"""

from __future__ import annotations

from typing import Any

from thalweg.graph.likes import TensorLike
from thalweg.graph.node import Tensor
from thalweg.ops.arrays import indexing
from thalweg.ops.core import basic, casting
from thalweg.ops.state import scatter, state


class Part:
    """A whole variable and its slots."""

    def __init__(self, var: Any, use_locking: bool) -> None:
        self.var = var
        self._use_locking = use_locking
        self._updates: list[Any] = []

    def cast(self, parameter: TensorLike) -> Tensor:
        """A hyperparameter in the dtype of the variable."""
        return casting.cast(parameter, self.var.dtype.base_dtype)

    def read(self, variable: Any) -> Tensor:
        """The value before this step."""
        return variable.value()

    def set(self, variable: Any, value: Tensor) -> Tensor:
        """Set the value; the result is the new one."""
        return self._changed(state.assign(variable, value, use_locking=self._use_locking))

    def add(self, variable: Any, value: Tensor) -> Tensor:
        """Add to the value; the result is the new one."""
        return self._changed(state.assign_add(variable, value, self._use_locking))

    def subtract(self, variable: Any, value: Tensor) -> Tensor:
        """Subtract from the value; the result is the new one."""
        return self._changed(state.assign_sub(variable, value, self._use_locking))

    def _changed(self, update: Tensor) -> Tensor:
        self._updates.append(update)
        return update

    def finish(self) -> Any:
        """What is done when all changes are."""
        return self._updates[0] if len(self._updates) == 1 else basic.group(*self._updates)


class Rows(Part):
    """The rows of a variable and its slots that a sparse gradient names."""

    def __init__(self, var: Any, indices: Tensor, use_locking: bool) -> None:
        super().__init__(var, use_locking)
        self._indices = indices

    def read(self, variable: Any) -> Tensor:
        """The rows before this step."""
        return indexing.gather(variable.value(), self._indices)

    def set(self, variable: Any, value: Tensor) -> Tensor:
        """Set the rows; the result is the new ones."""
        self._changed(
            scatter.scatter_update(variable, self._indices, value, use_locking=self._use_locking)
        )
        return value

    def add(self, variable: Any, value: Tensor) -> Tensor:
        """Add to the rows; the result is the new ones."""
        return self.set(variable, self.read(variable) + value)

    def subtract(self, variable: Any, value: Tensor) -> Tensor:
        """Subtract from the rows; the result is the new ones."""
        return self.set(variable, self.read(variable) - value)
