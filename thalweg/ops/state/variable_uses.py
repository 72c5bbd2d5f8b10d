"""Shared and exclusive locking of variables, for all threads of the process.

Native code reads and writes the buffers of variables while a step runs, outside the interpreter. A
`Use` lists these variables, those that are written, and those whose writes are exclusive: the
update asks for locking, the variable is a resource variable, or a kernel on the host writes it. The
rules:

- While a use writes a variable exclusively, no other use of that variable runs. Conflicting uses
  run in order of arrival; a use that a thread begins inside another one overtakes those that wait,
  since they may wait for the outer one.
- All others run concurrently. Updates without locking write one buffer, element by element
  (Hogwild).
- The buffer of a variable is replaced only while no running step writes to it: an update is never
  written to a buffer that is no longer read.

A step that runs alone only appends to a list, takes an uncontended lock, and removes itself.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Collection, Sequence
from typing import Any, Generic, Protocol, TypeVar

from thalweg.ops.core.buffer import Buffer
from thalweg.platform.forks import renewed_after_fork


class Cell(Protocol):
    """The property of a variable that exclusion depends on."""

    is_resource: bool


CellT = TypeVar("CellT", bound=Cell)


class Cancellation(Protocol):
    """Notifies a waiting use that its step was cancelled."""

    def on_cancel(self, wake: Callable[[], None]) -> Callable[[], None]:
        """Call `wake` when the step is cancelled; the result undoes the registration."""
        ...

    def check(self) -> None:
        """Raise the error the step was cancelled with, if it was."""
        ...


class Use(Generic[CellT]):
    """The use of some variables by a step; it begins before their buffers are borrowed."""

    __slots__ = ("buffers", "cells", "exclusive", "is_nested", "thread", "waits", "written")

    def __init__(
        self,
        cells: Sequence[CellT] = (),
        written: Collection[int] = (),
        exclusive: Collection[int] = (),
        thread: int = 0,
    ) -> None:
        self.cells = cells
        self.written = written  # numbers of the cells that are written
        self.exclusive = exclusive  # of those, the ones that updates with locking write
        self.buffers: Sequence[Buffer | None] = ()  # of each cell, the one that native code borrows
        self.thread = thread  # of a use on the host: uses nested in it are not excluded; else 0
        self.is_nested = False  # inside another use of its thread
        self.waits = False  # it has not begun; protected by the condition of `Uses`

    def excluded(self) -> set[int]:
        """The identities of the cells that this use excludes others from."""
        cells = self.cells
        if not cells:  # it has ended
            return set()
        return {id(cells[n]) for n in self.written if n in self.exclusive or cells[n].is_resource}

    def writes_to(self, buffer: Buffer) -> bool:
        """Whether native code borrows a buffer to write to it."""
        buffers = self.buffers
        return any(n < len(buffers) and buffers[n] is buffer for n in self.written)


def _exclude(one: Use[Any], other: Use[Any]) -> bool:
    """Whether two uses must not run concurrently."""
    if one.thread and one.thread == other.thread:
        return False
    mine, others = one.excluded(), other.excluded()
    return any(id(cell) in mine for cell in other.cells) or any(
        id(cell) in others for cell in one.cells
    )


class Uses:
    """The running and waiting uses, in order of arrival.

    Appending to the list and removing from it are atomic and take no lock; iteration is over a
    copy. `mutex` is held while buffers are borrowed, so that `Use.buffers` is consistent.
    """

    def __init__(self) -> None:
        self.renew_locks()
        renewed_after_fork(self)

    def renew_locks(self) -> None:
        """Replace the locks and drop all uses: the child of a fork runs no step of its parent."""
        self.mutex = threading.Lock()
        self._ended = threading.Condition()
        self.waiting = 0
        self.uses: list[Use[Any]] = []

    @property
    def is_contended(self) -> bool:
        """Whether a use waits for another to end."""
        return self.waiting > 0

    def begin(self, use: Use[Any], cancellation: Cancellation | None = None) -> None:
        """Register a use and wait until no earlier one excludes it. Call `end` even if this
        raises."""
        thread = use.thread
        if thread and any(other.thread == thread for other in self.uses[:]):
            use.is_nested = True
        self.uses.append(use)
        if self.uses[0] is not use:
            self.wait(use, cancellation)

    def requeue(self, use: Use[Any], cancellation: Cancellation) -> None:
        """Let a use that runs wait behind all that have come since."""
        use.buffers = ()
        self.uses.append(use)  # before the earlier place goes: it is never absent
        self.uses.remove(use)
        self.wake()
        self.wait(use, cancellation)

    def end(self, use: Use[Any]) -> None:
        """Unregister a use that is over or was cancelled while it waited; idempotent."""
        try:
            self.uses.remove(use)
        except ValueError:
            return
        use.cells = use.buffers = ()
        if self.waiting:
            self.wake()

    def is_written(self, buffer: Buffer) -> bool:
        """Whether a running step borrows a buffer to write to it. The mutex is held."""
        return any(use.writes_to(buffer) for use in self.uses[:])

    def wait(self, use: Use[Any], cancellation: Cancellation | None) -> None:
        if not use.is_nested and not self._is_excluded(use):
            return
        undo = None if cancellation is None else cancellation.on_cancel(self.wake)
        with self._ended:
            self.waiting += 1  # from here on, a use that ends notifies this one
            use.waits = True
            self._ended.notify_all()  # a nested use may have counted this one as running
            try:
                while self._is_excluded(use):
                    if cancellation is not None:
                        cancellation.check()
                    self._ended.wait()
            finally:
                use.waits = False
                self.waiting -= 1
                if undo is not None:
                    undo()

    def _is_excluded(self, use: Use[Any]) -> bool:
        """Whether an earlier use or a nested one, early or late, excludes a use; a nested use is
        excluded only by running ones."""
        uses = self.uses[:]
        if use.is_nested:
            before = [other for other in uses if not other.waits and other is not use]
        else:
            place = uses.index(use)
            before = [*uses[:place], *(other for other in uses[place + 1 :] if other.is_nested)]
        return any(_exclude(use, other) for other in before)

    def wake(self) -> None:
        with self._ended:
            self._ended.notify_all()


#: The uses of this process: steps of several sessions and eager code may share a variable.
USES = Uses()


class HostUse:
    """A context manager for the use of variables on the host; writes are exclusive.

    ```
    with HostUse([cell], writes=True):
        cell.buffer += 1
    ```
    """

    __slots__ = ("_use",)

    def __init__(self, cells: Sequence[Cell], writes: bool = False) -> None:
        places = range(len(cells)) if writes else ()
        self._use = Use(cells, places, places, threading.get_ident())

    def __enter__(self) -> None:
        try:
            USES.begin(self._use)
        except BaseException:  # interrupted while it waited
            USES.end(self._use)
            raise

    def __exit__(self, *_: object) -> None:
        USES.end(self._use)
