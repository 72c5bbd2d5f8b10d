"""The iterators of a session: running pipelines, each used by one caller at a time.

A caller that waits, for the iterator or for an element, stops waiting when its step is cancelled;
elements that were pulled for it go to the next caller.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Generator
from contextlib import ExitStack, contextmanager
from queue import SimpleQueue
from typing import Any

from thalweg import errors
from thalweg.data.flow import Element, Flow, Interrupted, Pipeline, Puller, Run
from thalweg.data.state_code import decode, encode
from thalweg.ops.core.context import Cancellation
from thalweg.runtime.resources import Resources

_CANCELLED = errors.CancelledError(None, None, "the step was cancelled")


class FairLock:
    """A FIFO lock; a waiting caller gives up when its step is cancelled."""

    def __init__(self) -> None:
        self._lock = threading.Lock()  # guards the fields; never held while waiting
        self._is_taken = False
        self._waiters: deque[SimpleQueue[bool]] = deque()

    @contextmanager
    def acquired(self, cancellation: Cancellation) -> Generator[None]:
        """Hold the lock inside the block."""
        self._acquire(cancellation)
        try:
            yield
        finally:
            self.release()

    def _acquire(self, cancellation: Cancellation) -> None:
        with self._lock:
            if not self._is_taken:
                self._is_taken = True
                return
            ticket: SimpleQueue[bool] = SimpleQueue()
            self._waiters.append(ticket)
        unregister = cancellation.on_cancel(lambda: ticket.put(False))
        try:
            is_granted = ticket.get()
        except BaseException:  # an interrupt: remove the ticket
            self._abandon(ticket)
            raise
        finally:
            unregister()
        if not is_granted:
            self._abandon(ticket)
            cancellation.check()
            raise _CANCELLED

    def _abandon(self, ticket: SimpleQueue[bool]) -> None:
        with self._lock:
            if ticket in self._waiters:
                self._waiters.remove(ticket)
                return
        self.release()  # the lock was granted meanwhile

    def release(self) -> None:
        """Release the lock to the first waiting caller."""
        with self._lock:
            if self._waiters:
                self._waiters.popleft().put(True)
            else:
                self._is_taken = False


class NeverCancelled:
    """The cancellation of callers that are never cancelled."""

    def on_cancel(self, wake: Callable[[], None]) -> Callable[[], None]:
        """Does nothing: `wake` is never called."""
        return lambda: None

    def check(self) -> None:
        """Does nothing."""


class SessionIterator:
    """A position in a pipeline."""

    def __init__(self, name: str, kinds: Any = None) -> None:
        self.name = name
        self.kinds = kinds  # the dtypes and shapes of elements that the op declares
        self._lock = FairLock()
        self._pipeline: Pipeline | None = None
        self._flow: Flow | None = None
        self._puller: Puller | None = None
        self._restored: Any = None  # a state that was restored before the iterator was initialized

    def initialize(
        self, pipeline: Pipeline, resources: Resources, cancellation: Cancellation
    ) -> None:
        """Start at the first element, or at the position that was restored before."""
        with self._lock.acquired(cancellation):
            state, self._restored = self._restored, None
            self._start(pipeline, Run(resources), state)

    def _start(self, pipeline: Pipeline, run: Run, state: Any) -> None:
        puller = Puller(run)
        flow = pipeline.fresh().start(puller)
        if state is not None:
            _load(flow, run, state, pipeline)
        if self._flow is not None:
            self._flow.close()
        self._pipeline, self._puller, self._flow = pipeline, puller, flow

    def next(self, cancellation: Cancellation) -> Element:
        """The next element."""
        with self._lock.acquired(cancellation):
            element = self._pulled(cancellation)
        if element is None:
            raise errors.OutOfRangeError(None, None, "End of sequence")
        return element

    def _pulled(self, cancellation: Cancellation) -> Element | None:
        flow, puller = self._flow, self._puller
        if flow is None or puller is None:
            raise errors.FailedPreconditionError(
                None,
                None,
                f"GetNext() failed because the iterator '{self.name}' has not been initialized. "
                "Ensure that you have run the initializer operation for this iterator before "
                "getting the next element.",
            )
        unregister = cancellation.on_cancel(lambda: puller.interrupt(_CANCELLED))
        try:
            while True:
                try:
                    return flow.next()
                except Interrupted as stop:
                    cancellation.check()
                    puller.resume()  # the interrupt was for an earlier caller
                    del stop
        finally:
            unregister()

    # State

    def save(self, cancellation: Cancellation) -> bytes:
        """The position of the iterator, serialized."""
        with self._lock.acquired(cancellation):
            if self._flow is None or self._puller is None or self._pipeline is None:
                return encode(self._restored)
            run = self._puller.run
            with ExitStack() as run.holds:
                flow = self._flow.save()
                return encode(
                    {"stages": stages(self._pipeline), "flow": flow, "streams": run.save()}
                )

    def restore(self, state: bytes, resources: Resources, cancellation: Cancellation) -> None:
        """Continue at a saved position: now, or once the iterator is initialized."""
        tree = decode(state)
        with self._lock.acquired(cancellation):
            if self._pipeline is None:
                self._restored = tree
            elif tree is not None:
                self._start(self._pipeline, Run(resources), tree)


def _load(flow: Flow, run: Run, state: Any, pipeline: Pipeline) -> None:
    try:
        if state["stages"] != stages(pipeline):
            raise errors.InvalidArgumentError(
                None,
                None,
                f"the state is of another pipeline: {state['stages']}, not {stages(pipeline)}",
            )
        run.resources.load(state["streams"])
        flow.load(state["flow"])
    except (KeyError, ValueError, TypeError, IndexError) as error:
        raise errors.DataLossError(
            None, None, f"the state of an iterator is damaged: {error!r}"
        ) from error


def stages(pipeline: Pipeline) -> str:
    """The stages of a pipeline, as text: a state can only be loaded into equal stages."""
    return f"{pipeline.stage.type_name}({', '.join(map(stages, pipeline.sources))})"
