"""The interface between stateful kernels and the step that runs them, and variables' cells.

`ops` does not import the runtime: stateful kernels (`kernel(self, context, *inputs)`) access it
through `Context`. A resource is an object that outlives steps, stored under (container, name) on a
device of the session.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, Protocol, TypeVar, cast

import numpy as np

from thalweg import errors
from thalweg.graph.dtypes import DType
from thalweg.graph.node import Node
from thalweg.graph.shapes import TensorShape
from thalweg.ops.core.buffer import Buffer, HostBuffer, host_buffer, read_only
from thalweg.ops.state.variable_uses import USES, HostUse
from thalweg.platform.arrays import Array

Resource = TypeVar("Resource")


class Cancellation(Protocol):
    """Notifies a waiting kernel that its step was cancelled."""

    def on_cancel(self, wake: Callable[[], None]) -> Callable[[], None]:
        """Call `wake` when the step is cancelled; the result undoes the registration."""
        ...

    def check(self) -> None:
        """Raise the error the step was cancelled with, if it was."""
        ...


class Context(Protocol):
    """The step, as a kernel sees it."""

    @property
    def node(self) -> Node:
        """The node that is run."""
        ...

    @property
    def cancellation(self) -> Cancellation:
        """The step's cancellation."""
        ...

    @property
    def allocate(self) -> Allocate:
        """Allocates memory of the step's device."""
        ...

    def resource(self, name: str, container: str, make: Callable[[], Resource]) -> Resource:
        """The object stored under (container, name), created on first use."""
        ...

    def delete_resource(self, name: str, container: str) -> bool:
        """Remove an object from the resources; False if there was none."""
        ...

    def state(self, make: Callable[[], Resource]) -> Resource:
        """This node's own object in this session, created on first use."""
        ...


#: (shape, NumPy dtype) -> uninitialised memory of a device
Allocate = Callable[[tuple[int, ...], Any], Buffer]


class VariableCell:
    """A variable: the value of reference edges, and the owner of the buffer with the current value.

    Readers on the host get leases of the buffer, whose elements never change: an update writes in
    place if there is no lease, and to a copy otherwise. Native code uses the buffer's address for
    the duration of its `Use`. The updates of a resource variable are exclusive.
    """

    def __init__(
        self,
        name: str,
        dtype: DType,
        shape: TensorShape,
        is_resource: bool = False,
        allocate: Allocate = host_buffer,
    ) -> None:
        self.name = name
        self.dtype = dtype
        self.shape = shape
        self.is_resource = is_resource
        self._allocate = allocate
        self.buffer: Buffer | None = None  # native code reads and writes it directly
        if shape.num_elements() == 0:  # an empty tensor needs no initial value
            self.buffer = self.allocate(cast("tuple[int, ...]", shape.sizes))

    @property
    def is_initialized(self) -> bool:
        """Whether the variable has a value."""
        return self.buffer is not None

    def read(self) -> Array:
        """The current value, read-only."""
        buffer = self.borrow()
        leased = buffer.lease()  # from here on, writers copy
        if USES.uses or self.buffer is not buffer:
            return self._read_concurrently()
        return leased

    def _read_concurrently(self) -> Array:
        with HostUse([self]):
            with USES.mutex:
                buffer = self.borrow()
                if not USES.is_written(buffer):
                    return buffer.lease()
            # A running step writes in place: a lease would change.
            return read_only(buffer.snapshot())

    def snapshot(self) -> Array:
        """A copy of the current value."""
        buffer = self.borrow()
        if math.prod(buffer.shape) == 1:  # the read of one element is atomic
            return buffer.snapshot()
        with HostUse([self]):
            return self.borrow().snapshot()

    def assign(self, value: Array) -> None:
        """Replace the value by a copy of `value`."""
        with HostUse([self], writes=True):
            buffer = self.buffer
            if buffer is None or np.shape(value) != buffer.shape or buffer.is_leased:
                buffer = self.allocate(np.shape(value))
            buffer.fill(value)
            self.buffer = buffer

    def exchange(self, value: Array) -> Array | None:
        """Make an array without other references the value. Returns memory of the same shape and
        dtype that the caller may reuse: the former value's if nobody reads it, or the array itself
        if the device copied it."""
        value = np.require(value, self.dtype.as_numpy_dtype, ["C", "A"])
        made = self.allocate(value.shape)
        spare = made.adopt(value)
        with HostUse([self], writes=True):
            former, self.buffer = self.buffer, made
        if spare is not None:
            return spare
        # Steps may read a single element without registering a use: do not reuse its memory.
        if not isinstance(former, HostBuffer) or former.is_leased or value.size == 1:
            return None
        return former.array if (former.shape, former.dtype) == (value.shape, value.dtype) else None

    def update(self, change: Callable[[Array], None]) -> None:
        """Call `change` on the writable elements. It must check its arguments before it writes."""
        with HostUse([self], writes=True):
            self.copy_on_write().update(change)

    # For native code, which accesses the buffer itself: within a `Use`, with `USES.mutex` held

    def borrow(self) -> Buffer:
        """The buffer; there must be a value."""
        if self.buffer is None:
            raise errors.FailedPreconditionError(
                None,
                None,
                f"Attempting to use uninitialized value {self.name}: run its initializer (or "
                "tf.global_variables_initializer(), or tf.local_variables_initializer() for a "
                "local variable) in this session first",
            )
        return self.buffer

    def copy_on_write(self) -> Buffer:
        """The buffer; if a reader on the host has a lease, it is first replaced by a copy."""
        buffer = self.borrow()
        if buffer.is_leased and not USES.is_written(buffer):
            buffer = self.buffer = buffer.copy()
        return buffer

    def allocate(self, shape: tuple[int, ...]) -> Buffer:
        """Memory for a new value. The caller sets it as the buffer once it is complete, as the step
        may fail or be cancelled before."""
        return self._allocate(shape, self.dtype.as_numpy_dtype)
