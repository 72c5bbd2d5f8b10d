"""What a loop keeps of its iterations: the traces that gradients read.

A trace is a list with a row for each iteration; a trace of lists holds the rows that these start
at. Where an outer loop keeps the traces of an inner one, those of all its iterations follow one
another, and the inner loop counts on.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import cast

import numpy as np

from thalweg.graph.dtypes import DType, variant
from thalweg.graph.known import constant_value
from thalweg.graph.node import Node, Tensor
from thalweg.lower.control.program import BufferView, ListBuffer, Storage
from thalweg.lower.control.scratch import Scratch
from thalweg.lower.specialise import NotCompiled, Shape
from thalweg.ops.math.arithmetic import Mul


@dataclass(eq=False)
class LoopTraces:
    """The traces that a loop keeps: values of every iteration, one row each."""

    capacity: int
    where: Storage
    traces: dict[Tensor, ListBuffer | None]
    count: BufferView | None = None  # the number of iterations
    next: BufferView | None = None  # the row that this iteration's values go to
    start: BufferView | None = None  # the row of the first iteration, if an outer loop keeps them

    def new_list(
        self, scratch: Scratch, dtype: DType, count: int, element: Shape, node: Node
    ) -> ListBuffer:
        """A list that this iteration makes and the loop keeps, after those of earlier ones."""
        rows = ListBuffer(dtype, self.capacity * count, element, self.where, each=count)
        rows.view = BufferView(self.where, np.dtype(dtype.as_numpy_dtype), rows.shape)
        number = scratch.reference(cast("BufferView", self.next))
        start = scratch.tensor(Mul(), (number, np.int32(count)), node)
        return scratch.seen_from(rows, start, node)

    def keep(self, scratch: Scratch, tensor: Tensor, value: Tensor | ListBuffer) -> ListBuffer:
        """Write a value of this iteration (of a list, the row it starts at) into a new trace."""
        assert self.next is not None
        if isinstance(value, ListBuffer):
            rows = self._list_of_lists()
            rows.entries = lasting(value, tensor.op)
            scratch.write(rows, scratch.reference(self.next), scratch.offset(value), tensor.op)
            return rows
        if value.dtype.base_dtype is variant:
            scratch.kept[value] = self  # an inner loop or branch makes it
            return self._list_of_lists()
        rows = ListBuffer(tensor.dtype.base_dtype, self.capacity, None, self.where)
        if not tensor.dtype.is_floating:
            rows.value = constant_value(value)
        if rows.value is None:
            scratch.write(rows, scratch.reference(self.next), value, tensor.op)
        return rows

    def _list_of_lists(self) -> ListBuffer:
        rows = ListBuffer(variant, self.capacity + 1, (), self.where)
        rows.view = BufferView(self.where, np.dtype(np.int32), rows.shape)
        return rows


def lasting(rows: ListBuffer, node: Node) -> ListBuffer:
    """The whole of a list that is kept, which must outlive the iteration."""
    if rows.root.is_new:
        raise NotCompiled(node, "a list that was made in the iteration is kept")
    return rows.root
