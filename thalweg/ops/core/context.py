"""What a kernel may ask of the step that runs it, and the objects that outlive steps.

`ops` does not know the runtime: stateful kernels (`kernel(self, context, *inputs)`) see it through
`Context`. A resource is any object kept under (container, name) by the session's device.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, Protocol, TypeVar, cast

import numpy as np
from numpy.typing import NDArray

from thalweg import errors
from thalweg.graph.dtypes import DType
from thalweg.graph.node import Node
from thalweg.graph.shapes import TensorShape
from thalweg.ops.core.buffer import Buffer, HostBuffer, host_buffer, read_only
from thalweg.ops.state.variable_uses import USES, HostUse

Array = NDArray[Any]
Resource = TypeVar("Resource")


class Cancellation(Protocol):
    """How a waiting kernel learns that its step is to stop."""

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
        """The node being run."""
        ...

    @property
    def cancellation(self) -> Cancellation:
        """The step's cancellation."""
        ...

    @property
    def allocate(self) -> Allocate:
        """How the step's device allocates memory."""
        ...

    def resource(self, name: str, container: str, make: Callable[[], Resource]) -> Resource:
        """The object kept under (container, name), made on first use."""
        ...

    def delete_resource(self, name: str, container: str) -> bool:
        """Forget an object; whether there was one."""
        ...

    def state(self, make: Callable[[], Resource]) -> Resource:
        """This node's own object in this session, made on first use."""
        ...


#: (shape, NumPy dtype) -> uninitialised memory of a device
Allocate = Callable[[tuple[int, ...], Any], Buffer]


class VariableCell:
    """A variable: what flows along reference edges, and owns the buffer of the current value.

    Readers on the host get leases of the buffer, whose elements never change: an update writes in
    place while no lease is out, and to a copy otherwise. Native code is given the buffer's address
    for as long as its `Use` lasts. The updates of a resource variable are exclusive.
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
        self.buffer: Buffer | None = None  # native code reads and writes it itself
        if shape.num_elements() == 0:  # an empty tensor has nothing to initialise
            self.buffer = self.allocate(cast("tuple[int, ...]", shape.sizes))

    @property
    def is_initialized(self) -> bool:
        """Whether a value was ever assigned."""
        return self.buffer is not None

    def read(self) -> Array:
        """The current value, read-only."""
        buffer = self._require()
        leased = buffer.lease()  # from here on, a writer copies
        if USES.uses or self.buffer is not buffer:
            return self._read_beside_others()
        return leased

    def _read_beside_others(self) -> Array:
        with HostUse([self]):
            with USES.mutex:
                buffer = self._require()
                if not USES.is_written(buffer):
                    return buffer.lease()
            # Leases and steps that write in place exclude one another.
            return read_only(buffer.snapshot())

    def snapshot(self) -> Array:
        """A copy of the current value."""
        buffer = self._require()
        if math.prod(buffer.shape) == 1:  # one element is read in one operation
            return buffer.snapshot()
        with HostUse([self]):
            return self._require().snapshot()

    def assign(self, value: Array) -> None:
        """Replace the value by a copy of `value`."""
        with HostUse([self], writes=True):
            buffer = self.buffer
            if buffer is None or np.shape(value) != buffer.shape or buffer.is_leased:
                buffer = self.allocate(np.shape(value))
            buffer.fill(value)
            self.buffer = buffer

    def exchange(self, value: Array) -> Array | None:
        """Make an array that nobody else holds the value; the memory of the former one, if it is
        like it and nobody reads it."""
        value = np.require(value, self.dtype.as_numpy_dtype, ["C", "A"])
        made = self.allocate(value.shape)
        spare = made.adopt(value)
        with HostUse([self], writes=True):
            former, self.buffer = self.buffer, made
        if spare is not None:
            return spare
        # A step that reads one element does so unregistered: its memory is not used again.
        if not isinstance(former, HostBuffer) or former.is_leased or value.size == 1:
            return None
        return former.array if (former.shape, former.dtype) == (value.shape, value.dtype) else None

    def update(self, change: Callable[[Array], None]) -> None:
        """Let `change` write into the memory. It must check its arguments before it writes."""
        with HostUse([self], writes=True):
            self.copy_on_write().update(change)

    # For native code, which reads and writes the buffer itself: in a `Use`, `USES.mutex` held

    def borrow(self) -> Buffer:
        """The buffer; there must be a value."""
        return self._require()

    def copy_on_write(self) -> Buffer:
        """The buffer, or a copy of it in its place where a reader on the host has a lease."""
        buffer = self._require()
        if buffer.is_leased and not USES.is_written(buffer):
            buffer = self.buffer = buffer.copy()
        return buffer

    def allocate(self, shape: tuple[int, ...]) -> Buffer:
        """Memory for a whole new value, which is the variable's once the caller makes it its
        buffer: a step may fail or be stopped before."""
        return self._allocate(shape, self.dtype.as_numpy_dtype)

    def _require(self) -> Buffer:
        if self.buffer is None:
            raise errors.FailedPreconditionError(
                None,
                None,
                f"Attempting to use uninitialized value {self.name}: run its initializer (or "
                "tf.global_variables_initializer(), or tf.local_variables_initializer() for a "
                "local variable) in this session first",
            )
        return self.buffer
