"""The dataflow executor: runs token graphs, and decides which thread makes their calls, and when.

One run has the token graphs of one or more partitions of a step. Any thread may deliver the result
of a call; it then continues the run, unless another thread is doing so, and fires the ready
vertices one by one. Blocking calls, and long calls in steps of several partitions, are deferred
until nothing else is ready. Several deferred calls then run on worker threads; a single one runs on
the thread for long calls. The thread that made a call continues the run. All these threads have
NumPy's floating-point warnings ignored.
"""

from __future__ import annotations

import operator
from collections import deque
from collections.abc import Callable, Sequence
from functools import partial
from queue import Empty, SimpleQueue
from threading import Lock
from typing import Any, cast

from thalweg import errors
from thalweg.device import workers
from thalweg.graph.node import Node
from thalweg.partition.transfers import send
from thalweg.runtime.cancellation import Cancellation
from thalweg.runtime.dataflow.frames import FIRES, Iteration
from thalweg.runtime.dataflow.tokens import Source, TokenGraph, VertexKind
from thalweg.runtime.dataflow.wiring import EMPTY, WiredVertex, Wiring
from thalweg.runtime.kernels import Call, Context, outputs_of, raise_at
from thalweg.runtime.sending import SendingExecutable

#: Runs a function on one particular thread: synchronously if that is the caller's thread.
Submit = Callable[[Callable[[], None]], None]
#: The threads that continue a run: when a value arrives, on a thread that must not block; to make a
#: long call, and after it; and a function that continues there and batches what is sent meanwhile.
Threads = tuple[Submit, Submit, Submit]
#: A token graph, its feeds and the context of its nodes.
Graph = tuple[Wiring, Sequence[Any], Context]
#: A call to make when nothing else is ready: its vertex and inputs.
Deferred = tuple[Iteration, WiredVertex, list[Any]]
#: (fetched values of each graph, error)
Ended = Callable[[list[list[Any]], BaseException | None], None]

_MAX_WAIT = 0.1  # seconds; signals are handled between waits
_MAX_SHORT_BYTES = 1 << 20  # inputs of an inexpensive call that is short
_SEQUENCES = (list, tuple)


class Dataflow(Wiring):
    """A wired token graph that can be run, by any number of threads concurrently."""

    def __call__(self, context: Context, *feeds: Any) -> list[Any]:
        """Run the graph, as a kernel is called, and return the fetched values."""
        return run_all([(self, feeds, context)], context.cancellation, defers=False)[0]


def run_all(
    graphs: Sequence[Graph],
    cancellation: Cancellation,
    defers: bool = True,
) -> list[list[Any]]:
    """Run token graphs together, each with its feeds, and return the fetched values of each.
    `defers`: long calls are deferred, so that they can run in parallel."""
    tasks = SimpleQueue[Callable[[], None] | None]()  # of this thread; None ends the run
    outcomes: list[tuple[list[list[Any]], BaseException | None]] = []

    def ended(results: list[list[Any]], error: BaseException | None) -> None:
        outcomes.append((results, error))
        tasks.put(None)

    run = Run(graphs, cancellation, (tasks.put, tasks.put, operator.call), ended, defers)
    try:
        run.begin()
        while (task := _next(tasks)) is not None:
            task()
    except BaseException as error:  # an interrupt
        run.cancel(error)
        raise
    results, error = outcomes.pop()
    try:
        if error is not None:
            raise error
    finally:
        del error  # its traceback refers to this frame
    return results


def _next(tasks: SimpleQueue[Callable[[], None] | None]) -> Callable[[], None] | None:
    """Wait for the next task. The wait is divided into short ones, since a signal that arrives just
    before a wait does not interrupt it."""
    while True:
        try:
            return tasks.get(timeout=_MAX_WAIT)
        except Empty:
            continue


class Run:
    """One run of the token graphs of a step."""

    def __init__(
        self,
        graphs: Sequence[Graph],
        cancellation: Cancellation,
        threads: Threads,
        ended: Ended,
        defers: bool = True,
    ) -> None:
        self._graphs, self._cancellation = graphs, cancellation
        self._submit_short, self._submit_long, self._run_batched = threads
        self._ended, self._defers = ended, defers
        self._contexts: dict[Node, Context] = {}
        self._roots: list[Iteration] = []
        for wiring, _, context in graphs:
            root = Iteration(wiring.start(context), wiring.frames[0].vertices, context)
            root.queued = True
            self._roots.append(root)
        self._active = deque(self._roots)  # iterations that may have ready vertices
        #: The results, or the errors, of calls that were deferred or started.
        self._arrived: deque[tuple[Iteration, WiredVertex, Any, BaseException | None]] = deque()
        self._deferred: list[Deferred] = []
        self._unstarted: deque[Deferred] = deque()  # to be started when nothing else is ready
        self._in_flight = 0  # calls that were deferred or started and have not arrived
        self._running: set[Lock] = set()  # of calls on other threads, each held during its call
        self._turn = Lock()  # held by the thread that runs, and forever after the end

    def begin(self) -> None:
        """Start the receives that wait for nothing, and fire all that is ready."""
        for (wiring, feeds, context), root in zip(self._graphs, self._roots, strict=True):
            for vertex, value in zip(wiring.feeds, feeds, strict=True) if feeds else ():
                root.send(vertex.edges[0], value)
            if not wiring.expected:
                continue
            rendezvous = context.rendezvous
            if len(self._roots) > 1 or rendezvous is None:
                root.ready += [vertex.place for vertex in wiring.expected.values()]
                continue
            self._in_flight += len(wiring.expected)
            with self._turn:
                for key, vertex in wiring.expected.items():
                    rendezvous.receive(key, partial(self._arrive, root, vertex))
        self.resume()

    def _fire(self) -> None:  # noqa: C901 - functions of its parts would cost a third more
        """Accept what has arrived and fire ready vertices until there are none."""
        arrived, active, cancellation = self._arrived, self._active, self._cancellation
        flat: Any
        while True:
            if arrived:
                iteration, vertex, flat, error = arrived.popleft()
                self._in_flight -= 1
                iteration.out -= 1
                if error is not None:
                    raise error
            elif not active:
                if not self._unstarted:
                    return
                self._start(*self._unstarted.popleft())
                continue
            elif not active[0].ready:
                iteration = active.popleft()
                iteration.queued = False
                if iteration.frame is not None:
                    iteration.frame.end_iterations(active)
                continue
            elif cancellation.error is not None:
                raise cancellation.error
            else:
                iteration = active[0]
                place = iteration.ready.pop()
                vertex = iteration.vertices[place]
                if iteration.dead[place] and vertex.kind != VertexKind.TRIGGER:
                    iteration.propagate_dead(vertex, active)
                    continue
                if vertex.call is None:
                    FIRES[vertex.kind](iteration, vertex, active)
                    continue
                inputs = iteration.values[vertex.first : vertex.last]
                # Release values after their last use.
                iteration.values[vertex.first : vertex.last] = vertex.empty
                executable = vertex.executable
                holds_gil = executable is not None and executable.holds_gil
                if vertex.is_limited and not holds_gil and self._leave(iteration, vertex, inputs):
                    continue
                flat = self.result(iteration, vertex, inputs)
            outputs = vertex.edges
            if vertex.executable is None and (outputs or flat):  # regions return a flat list
                is_single = len(outputs) == 1 and not isinstance(flat, _SEQUENCES)
                node: Node = vertex.spec.node  # pyright: ignore[reportAssignmentType] - of a call
                flat = (flat,) if is_single else outputs_of(flat, len(outputs), node)
            values, pending, ready = iteration.values, iteration.pending, iteration.ready
            for edges, value in zip(outputs, flat or (), strict=True):
                for place, slot in edges.plain:
                    values[slot] = value
                    count = pending[place] = pending[place] - 1
                    if not count:
                        ready.append(place)
                if edges.merges:
                    iteration.send_merges(edges, value)
            for place in vertex.controls:
                count = pending[place] = pending[place] - 1
                if not count:
                    ready.append(place)
            if not iteration.queued and (ready or iteration.frame is not None):
                iteration.queue(active)

    def end(self, error: BaseException | None) -> None:
        """Tell that the run has ended. Called once."""
        results: list[list[Any]] = []
        if error is None:
            try:
                for graph, root in zip(self._graphs, self._roots, strict=True):
                    results.append(_fetched(graph[0], root.values) if graph[0].fetches else [])
            except errors.OpError as failure:
                error = failure
        self._ended(results, error)

    def _arrive(
        self, iteration: Iteration, vertex: WiredVertex, value: Any, error: BaseException | None
    ) -> None:
        """Accept the result of a call that was started. Called on any thread."""
        self._arrived.append((iteration, vertex, value, error))
        if not self._turn.locked():  # else the thread that holds it will see what arrived
            self._submit_short(self.resume)

    # Calls

    def _leave(self, iteration: Iteration, vertex: WiredVertex, inputs: list[Any]) -> bool:
        """Start a call, or leave it until nothing else is ready; False for one to be made now. What
        takes an element of a queue is left: a step that fails before takes none."""
        call: Call = vertex.call  # pyright: ignore[reportAssignmentType] - it is a call
        if vertex.key is not None or call.is_async:
            self._start(iteration, vertex, inputs)
        elif vertex.starter is not None:
            self._unstarted.append((iteration, vertex, inputs))
        elif vertex.blocks or (self._defers and not is_short(vertex, inputs)):
            self._deferred.append((iteration, vertex, inputs))
            self._in_flight += 1
        else:
            return False
        iteration.out += 1
        return True

    def _start(self, iteration: Iteration, vertex: WiredVertex, inputs: list[Any]) -> None:
        """Start a receive, or a call that may wait for another."""
        call: Call = vertex.call  # pyright: ignore[reportAssignmentType] - it is a call
        arrive = partial(self._arrive, iteration, vertex)
        try:
            start = vertex.starter or call.function
            start(self._context_of(iteration, call), arrive, *inputs)
        except Exception as error:
            raise_at(error, call.node)
        self._in_flight += 1

    def result(self, iteration: Iteration, vertex: WiredVertex, inputs: list[Any]) -> Any:
        """Make a call and return its result; an error is attributed to the call's node."""
        call: Any = vertex.call
        executable, context = vertex.executable, iteration.context
        try:
            if executable is not None:
                if vertex.is_empty:
                    return ()
                if call.device:
                    context = self._context_of(iteration, call)
                count = vertex.inputs
                if count == len(inputs):
                    return executable.run(context, inputs, ())
                return executable.run(context, inputs[:count], inputs[count:])
            for position in call.references:
                inputs[position] = inputs[position].read()
            if vertex.sent is not None and context.rendezvous is not None:
                send(context.rendezvous, vertex.sent, inputs[0] if inputs else ())
                return ()
            if call.takes_context:
                inputs.insert(0, self._context_of(iteration, call))
            return call.function(*inputs)
        except Exception as error:
            raise_at(error, call.node)

    def _context_of(self, iteration: Iteration, call: Call) -> Context:
        context = self._contexts.get(call.node)
        if context is None:
            context = self._contexts[call.node] = iteration.context.at(call.node, call.device)
        return context

    # Threads

    def resume(self, own: Lock | None = None) -> None:
        """Continue the run, unless another thread is doing so: it then sees what arrived. `own`:
        this thread's lock in `_running`."""
        while self._turn.acquire(blocking=False):
            try:
                self._fire()
            except BaseException as error:
                self._fail(error, own)
                return
            if not self._in_flight:
                self.end(None)
                return
            if self._deferred:
                self._release(own)
            self._turn.release()
            if not self._arrived:
                return

    def _release(self, own: Lock | None) -> None:
        """Have the deferred calls made: several on workers. One that sends values during its run
        leaves the caller's thread to the calls that wait for them."""
        deferred, self._deferred = self._deferred, []
        short, long = self._submit_short, self._submit_long
        is_sending = isinstance(deferred[0][1].executable, SendingExecutable)
        is_awaited = short == long and is_sending and self._in_flight > 1
        is_single = len(deferred) == 1 and not self._running - {own}
        submit = long if is_single and not is_awaited else workers.start
        for each in deferred:
            running = Lock()
            self._running.add(running)
            submit(partial(self._call_elsewhere, running, each))

    def _call_elsewhere(self, running: Lock, deferred: Deferred) -> None:
        """Make a call, then continue the run. A call that may wait sends its values at once."""
        run_batched = self._run_batched
        with running:
            if deferred[1].executable is None:
                self._make(deferred)
                run_batched(partial(self.resume, running))
            else:
                run_batched(partial(self._make_and_resume, deferred, running))
        self._running.discard(running)

    def _make_and_resume(self, deferred: Deferred, running: Lock) -> None:
        self._make(deferred)
        self.resume(running)

    def _make(self, deferred: Deferred) -> None:
        iteration, vertex, _ = deferred
        try:
            self._cancellation.check()
            self._arrived.append((iteration, vertex, self.result(*deferred), None))
        except BaseException as error:  # raised again by the thread that continues the run
            self._arrived.append((iteration, vertex, None, error))

    def _fail(self, error: BaseException, own: Lock | None) -> None:
        """End the run with an error, after the calls on other threads have ended."""
        if self._running - {own}:
            workers.start(partial(self._end_after_calls, error))
        else:
            self._end_after_calls(error, own)

    def _end_after_calls(self, error: BaseException, own: Lock | None = None) -> None:
        if self._in_flight > len(self._deferred):
            self.cancel(error, own)
        self.end(error)

    def cancel(self, error: BaseException, own: Lock | None = None) -> None:
        """Cancel the run and wait for the calls that other threads are making, and for those that
        continue the run. A call that is made later sees the cancellation."""
        reason = error if isinstance(error, errors.OpError) else None
        self._cancellation.cancel(
            reason or errors.CancelledError(None, None, "another node of the step failed")
        )
        for running in self._running - {own}:
            with running:
                pass


def is_short(vertex: WiredVertex, inputs: Sequence[Any]) -> bool:
    """Whether a call takes less time than handing it to another thread."""
    executable = vertex.executable
    if executable is None:
        is_inexpensive = vertex.call.node.op.inexpensive  # pyright: ignore[reportOptionalMemberAccess] - a call
    elif executable.holds_gil:
        return True
    else:
        is_inexpensive = executable.is_inexpensive
    return is_inexpensive and sum([getattr(i, "nbytes", 0) for i in inputs]) <= _MAX_SHORT_BYTES


def _fetched(wiring: Wiring, values: Sequence[Any]) -> list[Any]:
    """The fetched values of a graph, once nothing can fire any more."""
    fetched = [values[slot] for slot in wiring.fetches]
    for place, value in enumerate(fetched):
        if value is EMPTY:
            fetched[place] = _dead_value(wiring.graph, place)
    return fetched


def _dead_value(graph: TokenGraph, place: int) -> None:
    """The value of a fetch without a live token: None if that may be; an error otherwise."""
    if place in graph.may_be_dead:
        return
    source = cast("Source", graph.fetches[place])  # a Known input always has a value
    node = graph.vertices[source.vertex].node
    name = "a value" if node is None else f"{node.name}:{source.output}"
    raise errors.InvalidArgumentError(
        None,
        node,
        f"The tensor returned for {name} was not valid: it is computed in a branch that was "
        "not taken",
    )
