"""The queues of a session: bounded, closable, and safe for any number of threads.

A request that cannot complete at once is appended to a FIFO of pending requests. Each change of a
queue advances its pending requests in order and, after the queue's lock is released, calls the
callbacks of those that completed: a callback wakes a sleeping thread or continues a step.
"""

from __future__ import annotations

import heapq
import random
import threading
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from itertools import count
from typing import Any, ClassVar, TypeVar

from thalweg import errors
from thalweg.ops.core.context import Cancellation
from thalweg.ops.state.queue_elements import Components, Element, sizes_text
from thalweg.platform import spans
from thalweg.platform.forks import renewed_after_fork

UNBOUNDED = 2**31 - 1

#: (the error of a request that failed, or None)
DoneCallback = Callable[[errors.OpError | None], None]
CallbackT = TypeVar("CallbackT", bound=Callable[[], None])

#: The progress of a request in `advance`: none, some, completed.
BLOCKED, PROGRESSED, DONE = range(3)


class Request:
    """An operation on a queue, which may be pending, and the callback for its completion."""

    operation: ClassVar[str] = ""  # its name in error messages
    awaits: ClassVar[str] = ""  # its name in traces while it is pending

    def __init__(self) -> None:
        self.error: errors.OpError | None = None
        self.is_over = False
        self.on_done: Callable[[], None] | None = None  # set while it is pending
        self.unregister: Callable[[], None] | None = None  # from the step's cancellation

    def advance(self, queue: Queue) -> int:
        """Progress as far as the queue's state allows. The queue is locked."""
        raise TypeError(f"{type(self).__name__} must define advance")

    def roll_back(self, queue: Queue) -> None:
        """Undo the partial progress of a request that is withdrawn. The queue is locked."""


class Sleeper:
    """Blocks a thread until its request has completed."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._lock.acquire()

    def __call__(self) -> None:
        """Wake the thread."""
        self._lock.release()

    def sleep(self, seconds: float) -> bool:
        """Block until this object is called, without a limit if `seconds` is negative. False on a
        timeout."""
        return self._lock.acquire(timeout=max(seconds, -1))


class Put(Request):
    """Adds elements, as room becomes available."""

    operation = "Enqueue"
    awaits = "waits for room"

    def __init__(self, elements: Sequence[Element]) -> None:
        super().__init__()
        self._elements = elements
        self._done = 0

    def advance(self, queue: Queue) -> int:
        if queue.is_closed:
            self.error = queue.closed()
            return DONE
        room = queue.capacity - len(queue)
        if room <= 0:
            return BLOCKED
        part = self._elements[self._done : self._done + room]
        queue.add(part)
        self._done += len(part)
        return DONE if self._done == len(self._elements) else PROGRESSED


class Take(Request):
    """Removes a number of elements; if `allows_fewer`, those that a closed queue still has."""

    operation = "Dequeue"
    awaits = "waits for an element"

    def __init__(self, wanted: int, allows_fewer: bool = False) -> None:
        super().__init__()
        self.taken: list[Element] = []
        self._wanted = wanted
        self._allows_fewer = allows_fewer

    def advance(self, queue: Queue) -> int:
        missing = self._wanted - len(self.taken)
        if queue.is_closed and len(queue) < missing:
            self.roll_back(queue)
            if not self._allows_fewer or not len(queue):
                self.error = queue.exhausted(self._wanted)
                return DONE
            self._wanted = missing = len(queue)
        found = queue.available(missing)
        if found <= 0:
            return BLOCKED
        self.taken += queue.remove(min(found, missing))
        return DONE if len(self.taken) == self._wanted else PROGRESSED

    def roll_back(self, queue: Queue) -> None:
        queue.restore(self.taken)
        self.taken = []


class Close(Request):
    """Closes the queue, after the enqueues that were pending before it."""

    operation = "Close"
    awaits = "waits for pending enqueues"

    def advance(self, queue: Queue) -> int:
        if queue.is_closed:
            self.error = errors.CancelledError(
                None, None, f"Queue '{queue.name}' is already closed."
            )
        queue.is_closed = True
        return DONE


class Queue:
    """The pending requests and the protocol of all queues; subclasses store the elements."""

    kind: ClassVar[str] = ""
    made_by: object = None  # the op that created it: its attributes need no check
    origin = ""  # the user's line that created it

    def __init__(self, name: str, components: Components, capacity: int) -> None:
        self.name = name
        self.components = components
        self.capacity = UNBOUNDED if capacity < 0 else capacity
        self.is_closed = False
        self.renew_locks()
        renewed_after_fork(self)

    @property
    def type(self) -> str:
        """The name of the queue's class in TensorFlow."""
        return self.kind

    def renew_locks(self) -> None:
        """Replace the lock by one that is not held, and drop all pending requests."""
        self._lock = threading.Lock()
        self._puts: deque[Request] = deque()
        self._takes: deque[Request] = deque()
        self._completed: deque[Request] = deque()  # whose callbacks have not been called yet

    # Storage of elements

    def __len__(self) -> int:
        raise TypeError(f"{type(self).__name__} must define __len__")

    def add(self, elements: Iterable[Element]) -> None:
        """Store elements. There must be room for them."""
        raise TypeError(f"{type(self).__name__} must define add")

    def remove(self, number: int) -> list[Element]:
        """Remove the next elements. There must be enough."""
        raise TypeError(f"{type(self).__name__} must define remove")

    def restore(self, elements: list[Element]) -> None:
        """Undo the removal of elements."""
        self.add(elements)

    def available(self, wanted: int) -> int:
        """The number of elements that a request for `wanted` may remove now."""
        return len(self)

    # Operations of steps

    def enqueue(self, values: Sequence[Any], cancellation: Cancellation, limit: float) -> None:
        """Add an element; blocks until there is room."""
        self._submit(Put([self.components.element(values)]), self._puts, cancellation, limit)

    def enqueue_many(self, values: Sequence[Any], cancellation: Cancellation, limit: float) -> None:
        """Add the rows of `values` in order; blocks until there is room for all."""
        elements = self.components.elements(values)
        if elements:
            self._submit(Put(elements), self._puts, cancellation, limit)

    def dequeue(self, cancellation: Cancellation, limit: float) -> Element:
        """Remove an element; blocks until there is one."""
        request = Take(1)
        self._submit(request, self._takes, cancellation, limit)
        return request.taken[0]

    def dequeue_many(
        self, wanted: int, allows_fewer: bool, cancellation: Cancellation, limit: float
    ) -> tuple[Any, ...]:
        """Remove elements and batch them; blocks until there are enough."""
        if not self.components.has_shapes:
            raise errors.invalid(
                f"{self.kind}'s DequeueMany and DequeueUpTo require the components to have "
                "specified shapes."
            )
        request = Take(wanted, allows_fewer)
        if wanted:
            self._submit(request, self._takes, cancellation, limit)
        return self.components.batch(request.taken)

    def close(self, cancels_pending: bool, cancellation: Cancellation) -> None:
        """Reject later enqueues. Pending enqueues are cancelled if `cancels_pending`; otherwise the
        queue closes after they complete."""
        if cancels_pending:
            self.close_now()
        else:
            self._submit(Close(), self._puts, cancellation, -1)

    def close_now(self) -> None:
        """Close the queue and cancel its pending enqueues."""
        with self._lock:
            self.is_closed = True
            while self._puts:
                self._complete(self._puts.popleft(), _cancelled(Put.operation))
            self._advance_pending()
        self._notify()

    def put(self, elements: Sequence[Element]) -> None:
        """Add elements to an unbounded queue; never blocks."""
        with self._lock:
            self.add(elements)
            self._advance_pending()
        self._notify()

    # Pending requests

    def start(self, request: Request, cancellation: Cancellation, done: DoneCallback) -> None:
        """Start a request without blocking; `done` is called when it completes or fails."""
        pending = self._takes if isinstance(request, Take) else self._puts
        span = spans.BlockSpan(request.awaits, self)
        span.__enter__()

        def on_done() -> None:
            span.__exit__()
            if request.unregister is not None:
                request.unregister()
            done(_reason(request, cancellation))

        if self._advance_or_append(request, pending, lambda: on_done) is None:
            on_done()
        elif not request.is_over:
            stop = partial(self._withdraw, request, pending, _cancelled(request.operation))
            request.unregister = cancellation.on_cancel(stop)
            if request.is_over:  # completed meanwhile, before `unregister` was set
                request.unregister()

    def _advance_or_append(
        self, request: Request, pending: deque[Request], make_callback: Callable[[], CallbackT]
    ) -> CallbackT | None:
        """Complete a request now, or append it to the pending ones. The callback of one that was
        appended: it is called once the request completes, perhaps before this returns."""
        callback: CallbackT | None = None
        with self._lock:
            request.is_over = not pending and request.advance(self) == DONE
            if not request.is_over:
                request.on_done = callback = make_callback()
                pending.append(request)
            if self._puts or self._takes:
                self._advance_pending()
        if self._completed:
            self._notify()
        return callback

    def _submit(
        self, request: Request, pending: deque[Request], cancellation: Cancellation, limit: float
    ) -> None:
        sleeper = self._advance_or_append(request, pending, Sleeper)
        if sleeper is not None:
            self._wait(request, pending, sleeper, cancellation, limit)
        if request.error is not None:
            raise request.error

    def _wait(
        self,
        request: Request,
        pending: deque[Request],
        sleeper: Sleeper,
        cancellation: Cancellation,
        limit: float,
    ) -> None:
        def stop() -> None:
            self._withdraw(request, pending, _cancelled(request.operation))

        unregister = cancellation.on_cancel(stop)
        try:
            with spans.BlockSpan(request.awaits, self):
                is_completed = sleeper.sleep(limit)
            if not is_completed:
                self._withdraw(request, pending, _timed_out(request.operation, limit))
        except BaseException:  # an interrupt: no thread waits for the request any more
            stop()
            raise
        finally:
            unregister()
        if isinstance(request.error, errors.CancelledError):
            _check(cancellation, request.error)

    def _withdraw(self, request: Request, pending: deque[Request], error: errors.OpError) -> None:
        """Fail a request with an error, unless it is over."""
        with self._lock:
            if request.is_over:
                return
            pending.remove(request)
            request.roll_back(self)
            self._complete(request, error)
            self._advance_pending()
        self._notify()

    def _complete(self, request: Request, error: errors.OpError | None = None) -> None:
        """Mark a pending request as over; `_notify` calls its callback."""
        request.is_over = True
        request.error = request.error or error
        self._completed.append(request)

    def _notify(self) -> None:
        """Call the callbacks of completed requests. Not under the lock: they continue steps."""
        while self._completed:
            try:
                request = self._completed.popleft()
            except IndexError:  # another thread was faster
                return
            # The callback refers to the request: break the cycle.
            on_done, request.on_done = request.on_done, None
            if on_done is not None:
                on_done()

    def _advance_pending(self) -> None:
        """Advance pending requests until none can progress."""
        while self._advance_heads(self._puts) | self._advance_heads(self._takes):
            pass

    def _advance_heads(self, pending: deque[Request]) -> bool:
        """Advance pending requests in order, up to the first that does not complete. Whether any
        progressed."""
        any_progress = False
        while pending:
            progress = pending[0].advance(self)
            if progress != DONE:
                return any_progress or progress == PROGRESSED
            self._complete(pending.popleft())
            any_progress = True
        return any_progress

    # Errors

    def closed(self) -> errors.OpError:
        """The error of adding to a closed queue."""
        return errors.CancelledError(None, None, f"{self.kind} '{self.name}' is closed.")

    def exhausted(self, wanted: int) -> errors.OpError:
        """The error of removing more elements than a closed queue has."""
        return errors.OutOfRangeError(
            None,
            None,
            f"{self.kind} '{self.name}' is closed and has insufficient elements "
            f"(requested {wanted}, current size {len(self)})",
        )

    def check_same(self, other: Queue) -> None:
        """Raise unless this queue has the attributes of `other`: ops with other attributes cannot
        share it."""
        if self.kind != other.kind:
            raise self._differs("type", self.kind, other.kind)
        mine, theirs = self.components, other.components
        if self.capacity != other.capacity:
            raise self._differs("capacity", self.capacity, other.capacity)
        if mine.dtypes != theirs.dtypes:
            raise self._differs("component types", _types(mine), _types(theirs))
        if [s.sizes for s in mine.shapes] != [s.sizes for s in theirs.shapes]:
            raise self._differs("component shapes", _shapes(mine), _shapes(theirs))

    def _differs(self, what: str, mine: object, theirs: object) -> errors.OpError:
        return errors.invalid(
            f"Shared queue '{self.name}' has {what} {mine} but requested was {theirs}"
        )


def _types(components: Components) -> str:
    return ", ".join(dtype.name for dtype in components.dtypes)


def _shapes(components: Components) -> str:
    return f"[{','.join(sizes_text(shape.sizes) for shape in components.shapes)}]"


def _cancelled(operation: str) -> errors.OpError:
    return errors.CancelledError(None, None, f"{operation} operation was cancelled")


def _timed_out(operation: str, limit: float) -> errors.OpError:
    return errors.DeadlineExceededError(
        None, None, f"{operation} operation timed out after {limit * 1000:g} ms"
    )


def _reason(request: Request, cancellation: Cancellation) -> errors.OpError | None:
    """The error of a request that is over, or None."""
    try:
        if isinstance(request.error, errors.CancelledError):
            _check(cancellation, request.error)
    except errors.OpError as error:
        return error
    return request.error


def _check(cancellation: Cancellation, error: errors.OpError) -> None:
    """Raise `error` with the reason for which the step was cancelled as its cause, if it was."""
    try:
        cancellation.check()
    except errors.CancelledError as cause:
        raise error from cause


# The kinds of queues


class FIFOQueue(Queue):
    """First in, first out."""

    kind = "FIFOQueue"

    def __init__(self, name: str, components: Components, capacity: int) -> None:
        super().__init__(name, components, capacity)
        self._elements: deque[Element] = deque()

    def __len__(self) -> int:
        return len(self._elements)

    def add(self, elements: Iterable[Element]) -> None:
        self._elements.extend(elements)

    def remove(self, number: int) -> list[Element]:
        return [self._elements.popleft() for _ in range(number)]

    def restore(self, elements: list[Element]) -> None:
        self._elements.extendleft(reversed(elements))


class PaddingFIFOQueue(FIFOQueue):
    """First in, first out; batches of elements of varying sizes are padded with zeros."""

    kind = "PaddingFIFOQueue"


class RandomShuffleQueue(Queue):
    """Removes elements at random, and keeps a minimum number of them until it is closed."""

    kind = "RandomShuffleQueue"

    def __init__(
        self,
        name: str,
        components: Components,
        capacity: int,
        min_after_dequeue: int,
        seeds: tuple[int, int],
    ) -> None:
        super().__init__(name, components, capacity)
        if min_after_dequeue < 0:
            raise errors.invalid(f"min_after_dequeue {min_after_dequeue} must be >= 0")
        if min_after_dequeue >= self.capacity:
            raise errors.invalid(
                f"min_after_dequeue {min_after_dequeue} must be < capacity {self.capacity}"
            )
        self._elements: list[Element] = []
        self._reserve = min_after_dequeue
        self._seeds = seeds
        self._random = random.Random(f"{seeds}" if any(seeds) else None).random

    def __len__(self) -> int:
        return len(self._elements)

    def add(self, elements: Iterable[Element]) -> None:
        self._elements.extend(elements)

    def remove(self, number: int) -> list[Element]:
        return [self._draw() for _ in range(number)]

    def _draw(self) -> Element:
        """Remove a random element; the last one fills its position."""
        elements = self._elements
        index = int(self._random() * len(elements))
        elements[index], elements[-1] = elements[-1], elements[index]
        return elements.pop()

    def available(self, wanted: int) -> int:
        return len(self) - (0 if self.is_closed else self._reserve)

    def check_same(self, other: Queue) -> None:
        super().check_same(other)
        if not isinstance(other, RandomShuffleQueue):
            return
        if self._reserve != other._reserve:
            raise self._differs("min_after_dequeue", self._reserve, other._reserve)
        if any(other._seeds) and self._seeds != other._seeds:
            raise self._differs("random seeds", self._seeds, other._seeds)


class PriorityQueue(Queue):
    """Ordered by the first component, ascending; equal ones are first in, first out."""

    kind = "PriorityQueue"

    def __init__(self, name: str, components: Components, capacity: int) -> None:
        super().__init__(name, components, capacity)
        self._elements: list[tuple[int, int, Element]] = []
        self._arrivals = count()

    def __len__(self) -> int:
        return len(self._elements)

    def add(self, elements: Iterable[Element]) -> None:
        for element in elements:
            heapq.heappush(self._elements, (int(element[0]), next(self._arrivals), element))

    def remove(self, number: int) -> list[Element]:
        return [heapq.heappop(self._elements)[2] for _ in range(number)]

    def available(self, wanted: int) -> int:
        """All of `wanted` or none: a later element may have to come before the present ones."""
        return len(self) if len(self) >= wanted else 0
