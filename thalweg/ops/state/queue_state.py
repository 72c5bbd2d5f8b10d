"""The queues a session keeps: bounded, shared by any number of threads, and closed at the end.

A request that cannot be met at once waits in line. Whoever changes a queue meets the requests that
now can be, in the order they came, and tells each waiter, outside of the queue's lock: a thread
that sleeps on a lock of its own, or a function that goes on with a step.
"""

from __future__ import annotations

import heapq
import random
import threading
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from itertools import count
from typing import Any, ClassVar

from thalweg import errors
from thalweg.ops.core.context import Cancellation
from thalweg.ops.state.queue_elements import Components, Element, invalid, sizes_text
from thalweg.platform import spans
from thalweg.platform.forks import renewed_after_fork

UNBOUNDED = 2**31 - 1

#: (why a request was not met, or None)
DoneCallback = Callable[[errors.OpError | None], None]

#: How far a request got when it was tried: nowhere, part of its way, to its end.
STUCK, MOVED, DONE = range(3)


class Request:
    """What a step asks of a queue, and who is told when it is met."""

    what: ClassVar[str] = ""
    awaits: ClassVar[str] = ""

    def __init__(self) -> None:
        self.error: errors.OpError | None = None
        self.is_over = False
        self.on_done: Callable[[], None] | None = None  # of one that waits
        self.forget: Callable[[], None] | None = None  # that the step may be cancelled

    def advance(self, queue: Queue) -> int:
        """Go on as far as the queue allows. The queue is locked."""
        raise TypeError(f"{type(self).__name__} must define advance")

    def give_up(self, queue: Queue) -> None:
        """Undo what a request that is withdrawn must not keep. The queue is locked."""


class Sleeper:
    """A thread that waits for a request."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._lock.acquire()
        self.wake = self._lock.release

    def sleep(self, seconds: float) -> bool:
        """Wait for the end, for ever if `seconds` is negative; whether it came."""
        return self._lock.acquire(timeout=max(seconds, -1))


class Put(Request):
    """Elements to be added, as room is made."""

    what = "Enqueue"
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
            return STUCK
        part = self._elements[self._done : self._done + room]
        queue.add(part)
        self._done += len(part)
        return DONE if self._done == len(self._elements) else MOVED


class Take(Request):
    """A number of elements to be removed; from a closed queue perhaps fewer."""

    what = "Dequeue"
    awaits = "waits for an element"

    def __init__(self, wanted: int, allows_fewer: bool = False) -> None:
        super().__init__()
        self.taken: list[Element] = []
        self._wanted = wanted
        self._allows_fewer = allows_fewer

    def advance(self, queue: Queue) -> int:
        missing = self._wanted - len(self.taken)
        if queue.is_closed and len(queue) < missing:
            self.give_up(queue)
            if not self._allows_fewer or not len(queue):
                self.error = queue.exhausted(self._wanted)
                return DONE
            self._wanted = missing = len(queue)
        found = queue.available(missing)
        if found <= 0:
            return STUCK
        self.taken += queue.remove(min(found, missing))
        return DONE if len(self.taken) == self._wanted else MOVED

    def give_up(self, queue: Queue) -> None:
        queue.restore(self.taken)
        self.taken = []


class Close(Request):
    """The end of a queue, behind the elements that were to be added before."""

    what = "Close"
    awaits = "waits for what is to be added before"

    def advance(self, queue: Queue) -> int:
        if queue.is_closed:
            self.error = errors.CancelledError(
                None, None, f"Queue '{queue.name}' is already closed."
            )
        queue.is_closed = True
        return DONE


class Queue:
    """What all queues share; a kind of queue says how it stores its elements."""

    kind: ClassVar[str] = ""
    made_by: object = None  # the op it is sure to be described by
    origin = ""  # the user's line that made it

    def __init__(self, name: str, components: Components, capacity: int) -> None:
        self.name = name
        self.components = components
        self.capacity = UNBOUNDED if capacity < 0 else capacity
        self.is_closed = False
        self.renew_locks()
        renewed_after_fork(self)

    @property
    def type(self) -> str:
        """What kind of queue this is."""
        return self.kind

    def renew_locks(self) -> None:
        """Have a lock that nobody holds, and nobody waiting."""
        self._lock = threading.Lock()
        self._puts: deque[Request] = deque()
        self._takes: deque[Request] = deque()
        self._ended: deque[Request] = deque()  # that are to be told

    # How elements are stored

    def __len__(self) -> int:
        raise TypeError(f"{type(self).__name__} must define __len__")

    def add(self, elements: Iterable[Element]) -> None:
        """Store elements, for which there is room."""
        raise TypeError(f"{type(self).__name__} must define add")

    def remove(self, number: int) -> list[Element]:
        """The next elements, of which there are enough."""
        raise TypeError(f"{type(self).__name__} must define remove")

    def restore(self, elements: list[Element]) -> None:
        """Store elements again that were removed, as if they never had been."""
        self.add(elements)

    def available(self, wanted: int) -> int:
        """How many elements a request for so many may have now."""
        return len(self)

    # What steps do

    def enqueue(self, values: Sequence[Any], cancellation: Cancellation, limit: float) -> None:
        """Add an element, waiting for room."""
        self._submit(Put([self.components.element(values)]), self._puts, cancellation, limit)

    def enqueue_many(self, values: Sequence[Any], cancellation: Cancellation, limit: float) -> None:
        """Add the rows of `values` one after the other, waiting for room."""
        elements = self.components.elements(values)
        if elements:
            self._submit(Put(elements), self._puts, cancellation, limit)

    def dequeue(self, cancellation: Cancellation, limit: float) -> Element:
        """Remove an element, waiting for one."""
        request = Take(1)
        self._submit(request, self._takes, cancellation, limit)
        return request.taken[0]

    def dequeue_many(
        self, wanted: int, allows_fewer: bool, cancellation: Cancellation, limit: float
    ) -> tuple[Any, ...]:
        """Remove elements, waiting for enough of them, and join them to a batch."""
        if not self.components.has_shapes:
            raise invalid(
                f"{self.kind}'s DequeueMany and DequeueUpTo require the components to have "
                "specified shapes."
            )
        request = Take(wanted, allows_fewer)
        if wanted:
            self._submit(request, self._takes, cancellation, limit)
        return self.components.batch(request.taken)

    def close(self, cancels_pending: bool, cancellation: Cancellation) -> None:
        """Let nothing more in: now, or once everything that already waits is in."""
        if cancels_pending:
            self.end()
        else:
            self._submit(Close(), self._puts, cancellation, -1)

    def end(self) -> None:
        """Let nothing more in from now on."""
        with self._lock:
            self.is_closed = True
            while self._puts:
                self._end(self._puts.popleft(), _cancelled(Put.what))
            self._serve()
        self._notify()

    def put(self, elements: Sequence[Element]) -> None:
        """Add elements to a queue that has no bound: nothing waits."""
        with self._lock:
            self.add(elements)
            self._serve()
        self._notify()

    # Waiting

    def start(self, request: Request, cancellation: Cancellation, done: DoneCallback) -> None:
        """Tell when a request is met, or why it is not; no thread waits for that."""
        waiters = self._takes if isinstance(request, Take) else self._puts
        waiting = spans.BlockSpan(request.awaits, self)
        waiting.__enter__()

        def on_done() -> None:
            waiting.__exit__()
            if request.forget is not None:
                request.forget()
            done(_reason(request, cancellation))

        if not self._enqueue(request, waiters, on_done):
            on_done()
        elif not request.is_over:
            stop = partial(self._withdraw, request, waiters, _cancelled(request.what))
            request.forget = cancellation.on_cancel(stop)
            if request.is_over:  # by now
                request.forget()

    def _enqueue(
        self, request: Request, waiters: deque[Request], on_done: Callable[[], None]
    ) -> bool:
        """Meet a request now, or have it wait; whether it waits, or did."""
        with self._lock:
            request.is_over = not waiters and request.advance(self) == DONE
            waits = not request.is_over
            if waits:
                request.on_done = on_done
                waiters.append(request)
            if self._puts or self._takes:
                self._serve()
        self._notify()
        return waits

    def _submit(
        self, request: Request, waiters: deque[Request], cancellation: Cancellation, limit: float
    ) -> None:
        sleeper = Sleeper()
        if self._enqueue(request, waiters, sleeper.wake):
            self._wait(request, waiters, sleeper, cancellation, limit)
        if request.error is not None:
            raise request.error

    def _wait(
        self,
        request: Request,
        waiters: deque[Request],
        sleeper: Sleeper,
        cancellation: Cancellation,
        limit: float,
    ) -> None:
        def stop() -> None:
            self._withdraw(request, waiters, _cancelled(request.what))

        forget = cancellation.on_cancel(stop)
        try:
            with spans.BlockSpan(request.awaits, self):
                is_met = sleeper.sleep(limit)
            if not is_met:
                self._withdraw(request, waiters, _late(request.what, limit))
        except BaseException:  # an interrupt: the waiter goes, so must its request
            stop()
            raise
        finally:
            forget()
        if isinstance(request.error, errors.CancelledError):
            _check(cancellation, request.error)

    def _withdraw(self, request: Request, waiters: deque[Request], error: errors.OpError) -> None:
        with self._lock:
            if request.is_over:
                return
            waiters.remove(request)
            request.give_up(self)
            self._end(request, error)
            self._serve()
        self._notify()

    def _end(self, request: Request, error: errors.OpError | None = None) -> None:
        """A request that waited need not do so any longer."""
        request.is_over = True
        request.error = request.error or error
        self._ended.append(request)

    def _notify(self) -> None:
        """Tell those whose requests have ended; without the lock, as they go on at once."""
        while self._ended:
            try:
                request = self._ended.popleft()
            except IndexError:  # another thread was faster
                return
            on_done, request.on_done = (
                request.on_done,
                None,
            )  # it refers to the request: end the cycle
            if on_done is not None:
                on_done()

    def _serve(self) -> None:
        """Meet waiting requests until none can go on."""
        while self._serve_waiters(self._puts) | self._serve_waiters(self._takes):
            pass

    def _serve_waiters(self, waiters: deque[Request]) -> bool:
        """Meet requests from the head of a line; whether anything moved."""
        moved = False
        while waiters:
            progress = waiters[0].advance(self)
            if progress != DONE:
                return moved or progress == MOVED
            self._end(waiters.popleft())
            moved = True
        return moved

    # What is said

    def closed(self) -> errors.OpError:
        """The error of adding to a closed queue."""
        return errors.CancelledError(None, None, f"{self.kind} '{self.name}' is closed.")

    def exhausted(self, wanted: int) -> errors.OpError:
        """The error of taking more than a closed queue has."""
        return errors.OutOfRangeError(
            None,
            None,
            f"{self.kind} '{self.name}' is closed and has insufficient elements "
            f"(requested {wanted}, current size {len(self)})",
        )

    def check_same(self, other: Queue) -> None:
        """Raise unless a queue described like `other` may share this one."""
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
        return invalid(f"Shared queue '{self.name}' has {what} {mine} but requested was {theirs}")


def _types(components: Components) -> str:
    return ", ".join(dtype.name for dtype in components.dtypes)


def _shapes(components: Components) -> str:
    return f"[{','.join(sizes_text(shape.sizes) for shape in components.shapes)}]"


def _cancelled(what: str) -> errors.OpError:
    return errors.CancelledError(None, None, f"{what} operation was cancelled")


def _late(what: str, limit: float) -> errors.OpError:
    return errors.DeadlineExceededError(
        None, None, f"{what} operation timed out after {limit * 1000:g} ms"
    )


def _reason(request: Request, cancellation: Cancellation) -> errors.OpError | None:
    """Why a request was not met, if it was not."""
    try:
        if isinstance(request.error, errors.CancelledError):
            _check(cancellation, request.error)
    except errors.OpError as error:
        return error
    return request.error


def _check(cancellation: Cancellation, error: errors.OpError) -> None:
    """A step that was stopped for a reason of its own says that reason."""
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
    """First in, first out; a batch is filled up with zeros where the sizes of elements vary."""

    kind = "PaddingFIFOQueue"


class RandomShuffleQueue(Queue):
    """In any order: each element is drawn from all that are there, of which some always stay."""

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
            raise invalid(f"min_after_dequeue {min_after_dequeue} must be >= 0")
        if min_after_dequeue >= self.capacity:
            raise invalid(
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
        return [self._drawn() for _ in range(number)]

    def _drawn(self) -> Element:
        """An element; the last one takes its place."""
        elements = self._elements
        place = int(self._random() * len(elements))
        elements[place], elements[-1] = elements[-1], elements[place]
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
    """The smallest first component first; of equal ones, the first that came."""

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
        """All at once or nothing: what comes later may have to go before."""
        return len(self) if len(self) >= wanted else 0
