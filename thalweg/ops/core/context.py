"""What a kernel may ask of the step that runs it, and the objects that outlive steps.

`ops` does not know the runtime: stateful kernels (`kernel(self, context, *inputs)`) see it through
`Context`. A resource is any object kept under (container, name) by the session's device.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from sys import getrefcount
from typing import Any, Protocol, TypeVar, cast

import numpy as np
from numpy.typing import NDArray

from thalweg import errors
from thalweg.graph.dtypes import DType
from thalweg.graph.node import Node
from thalweg.graph.shapes import TensorShape
from thalweg.ops.state.variable_uses import USES, Held

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

    def resource(self, name: str, container: str, make: Callable[[], Resource]) -> Resource:
        """The object kept under (container, name), made on first use."""
        ...

    def delete_resource(self, name: str, container: str) -> bool:
        """Forget an object; whether there was one."""
        ...

    def state(self, make: Callable[[], Resource]) -> Resource:
        """This node's own object in this session, made on first use."""
        ...


class VariableCell:
    """A variable's buffer: what flows along reference edges.

    Readers on the host get read-only views of the buffer, which never change: an update writes in
    place when no reader holds a view, and otherwise into a fresh copy. Native code is given the
    buffer's address alone, for as long as its `Use` lasts: a buffer is contiguous in the order of
    C, and its elements are aligned. The updates of a resource variable are exclusive.
    """

    def __init__(
        self, name: str, dtype: DType, shape: TensorShape, is_resource: bool = False
    ) -> None:
        self.name = name
        self.dtype = dtype
        self.shape = shape
        self.is_resource = is_resource
        # An empty tensor has nothing to initialise.
        self.buffer: Array | None = None  # native code reads and writes it itself
        if shape.num_elements() == 0:
            self.buffer = np.empty(cast("Sequence[int]", shape.sizes), dtype.as_numpy_dtype)

    @property
    def is_initialized(self) -> bool:
        """Whether a value was ever assigned."""
        return self.buffer is not None

    def read(self) -> Array:
        """The current value, read-only."""
        view = self._require().view()  # from here on, who is about to write takes a copy
        if USES.uses:
            view = self._read_beside_others()
        view.flags.writeable = False
        return view

    def _read_beside_others(self) -> Array:
        with Held([self]):
            with USES.mutex:
                buffer = self._require()
                if not USES.is_written(buffer):
                    return buffer.view()
            return buffer.copy()  # views and steps that write in place exclude one another

    def snapshot(self) -> Array:
        """A copy of the current value."""
        buffer = self._require()
        if buffer.size == 1:  # one element is read in one operation
            return buffer.copy()
        with Held([self]):
            return self._require().copy()

    def assign(self, value: Array) -> None:
        """Replace the value by a copy of `value`."""
        with Held([self], writes=True):
            if self.buffer is None or np.shape(value) != self.buffer.shape or self._is_shared():
                self.buffer = np.array(value, dtype=self.dtype.as_numpy_dtype, order="C")
            else:
                np.copyto(self.buffer, value, casting="unsafe")

    def exchange(self, value: Array) -> Array | None:
        """Make an array the buffer; the former one, if it is like it and nobody reads it."""
        value = np.require(value, self.dtype.as_numpy_dtype, ["C", "A"])
        with Held([self], writes=True):
            is_spare = (
                self.buffer is not None
                and (self.buffer.shape, self.buffer.dtype) == (value.shape, value.dtype)
                and not self._is_shared()
            )
            former = self.buffer if is_spare else None
            self.buffer = value
            return former

    def update(self, change: Callable[[Array], None]) -> None:
        """Let `change` write into the buffer. It must check its arguments before it writes."""
        with Held([self], writes=True):
            if self._is_shared():
                self.buffer = self._require().copy()
            change(self._require())

    def replace(self, compute: Callable[[Array], Array]) -> None:
        """Set the value to a function of the current one, all or nothing."""
        with Held([self], writes=True):
            fresh = np.require(compute(self._require()), self.dtype.as_numpy_dtype, ["C", "A"])
            # A buffer owns its memory: only then do views of it count as its readers.
            self.buffer = fresh if fresh.base is None else fresh.copy()

    # For native code, which reads and writes the buffer itself: in a `Use`, `USES.mutex` held

    def lend(self) -> Array:
        """The buffer itself; there must be a value."""
        return self._require()

    def lend_to_write(self) -> Array:
        """The buffer, or a copy of it in its place where a reader on the host holds a view."""
        buffer = self._require()
        # Held by this cell, by `buffer` and by the argument of the call; then by running steps.
        if getrefcount(buffer) - 3 > USES.lent(buffer) and not USES.is_written(buffer):
            buffer = self.buffer = buffer.copy()
        return buffer

    def prepared(self, shape: tuple[int, ...]) -> Array:
        """A buffer for a value that the caller is about to write whole: its own, or a fresh one to
        make its own when that is done, for a step may fail or be stopped before."""
        buffer = self.buffer
        if buffer is None or buffer.shape != shape:
            return np.empty(shape, self.dtype.as_numpy_dtype)
        return buffer

    def _is_shared(self) -> bool:
        # Held by this cell and by the argument of the call; anything more is a reader.
        return getrefcount(self.buffer) > 2

    def _require(self) -> Array:
        if self.buffer is None:
            raise errors.FailedPreconditionError(
                None,
                None,
                f"Attempting to use uninitialized value {self.name}: run its initializer (or "
                "tf.global_variables_initializer(), or tf.local_variables_initializer() for a "
                "local variable) in this session first",
            )
        return self.buffer
