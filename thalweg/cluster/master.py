"""The master: partitions a session's steps among the tasks of a cluster and runs them there.

It lives in the client's process. A step is pruned, placed on the devices of all tasks and
partitioned. Each task registers its partitions once and then runs them by handle: a step costs one
request and one reply per task. If the session's target is a server of this process, that server's
partitions are called directly. The first error on any task aborts the step on all of them.
"""

from __future__ import annotations

import itertools
import secrets
import threading
import time
import weakref
from collections.abc import Callable, Mapping, Sequence, Set
from dataclasses import dataclass, field, replace
from functools import cached_property, partial
from queue import SimpleQueue
from typing import Any

import numpy as np

from thalweg import errors
from thalweg.cluster import failures
from thalweg.cluster.member import Member
from thalweg.cluster.partition_def import encode
from thalweg.cluster.traffic import size_of
from thalweg.cluster.transport.endpoint import Peer
from thalweg.cluster.transport.loop import Waiter
from thalweg.cluster.values import Keyed, PiggybackBuffer, by_index
from thalweg.cluster.wire import FixedFields, Kind, Message, new_tuple
from thalweg.cluster.worker import TaskSession, session_of
from thalweg.device import workers
from thalweg.device.cpu.device import cpu_device
from thalweg.device.device import Device
from thalweg.device.local import local_devices
from thalweg.graph.analysis.order import step_order
from thalweg.graph.device import DeviceSpec, task_of
from thalweg.graph.graph import Graph
from thalweg.graph.node import Node
from thalweg.ops.core.basic import NoOp
from thalweg.optimize.pipeline import PassReport
from thalweg.partition.cut import Partition, partition
from thalweg.partition.rendezvous import Key
from thalweg.partition.transfers import Receiving, Sending
from thalweg.place.placer import Placement, Placer, used_devices
from thalweg.platform import spans
from thalweg.runtime.cancellation import Cancellation
from thalweg.runtime.config import SessionOptions
from thalweg.runtime.dataflow.unfold import has_primitives
from thalweg.runtime.engine import COMPILES, Engine
from thalweg.runtime.executor import execute
from thalweg.runtime.plan import Plan, Step, optimized, plan, plan_partition, prune
from thalweg.runtime.resources import Resources

_MAX_HOLD = 500e-6  # seconds that a RUN message may wait for values to be piggybacked


class RunHistory:
    """What the last runs of a plan showed; it steers the next one."""

    has_long_calls = False  # in the part of this process, after all parts were started
    first_call: float | None = None  # running mean of the seconds of its first long call

    @property
    def has_brief_call(self) -> bool:
        """Whether RUN messages should wait for the values of the first long call."""
        return self.first_call is not None and self.first_call < _MAX_HOLD

    def time_first_call(self, call: Callable[[], None]) -> None:
        """Make the first long call."""
        started = time.perf_counter()
        call()
        seconds, mean = time.perf_counter() - started, self.first_call
        self.first_call = seconds if mean is None else mean + (seconds - mean) / 4


@dataclass(frozen=True)
class ClusterPlan(Plan):
    """A step that runs on several tasks, or on one task in another process."""

    handle: int = 0
    tasks: tuple[TaskPart, ...] = ()
    history: RunHistory = field(default_factory=RunHistory, compare=False)

    @cached_property
    def others(self) -> Sequence[TaskPart]:
        """Remote parts to which the own part sends nothing before it receives: started first."""
        return [part for part in self.tasks if part.peer is not None and part not in self.fed]

    @cached_property
    def fed(self) -> Sequence[TaskPart]:
        """Remote parts to which the own part sends a value before it receives any."""
        own_partitions = [each for part in self.own for each in part.partitions]
        tasks = {task for each in own_partitions for task in _tasks_sent_first(each)}
        return [part for part in self.tasks if part.peer is not None and part.task in tasks]

    @cached_property
    def fed_tasks(self) -> frozenset[str]:
        """The tasks of `fed`."""
        return frozenset(part.task for part in self.fed)

    @cached_property
    def own(self) -> Sequence[TaskPart]:
        """The part that runs in this process: at most one."""
        return [part for part in self.tasks if part.peer is None]


@dataclass(frozen=True)
class TaskPart:
    """The partitions of a step that run on one task."""

    task: str
    partitions: tuple[Partition, ...]
    peer: Peer | None  # None for the task of this process
    handle: int
    session: str
    master: str  # the task of this process: values for it are piggybacked on the reply

    @cached_property
    def feeds(self) -> tuple[int, ...]:
        """The indices, in the step's feeds, of the values that the part takes."""
        return tuple(sorted({place for part in self.partitions for place, _ in part.feeds}))

    @cached_property
    def run_fields(self) -> dict[tuple[Key, ...], FixedFields]:
        """Cached fields of the RUN message, by the keys of the values piggybacked on it."""
        return {}

    def new_fields(self, keys: tuple[Key, ...]) -> FixedFields:
        """Create and cache the fields of the RUN message for some piggybacked keys."""
        identity = {"session": self.session, "handle": self.handle, "task": self.master}
        fields = self.run_fields[keys] = FixedFields(**identity, feeds=self.feeds, keys=keys)
        return fields


class Master(Engine):
    """Runs the steps of one session on the tasks of a cluster."""

    def __init__(self, member: Member, graph: Graph, options: SessionOptions) -> None:
        self._member = member
        self._graph = weakref.ref(graph)
        self._number = secrets.randbits(31) << 32  # upper half of all its step numbers
        self._session = session_of(self._number)
        self._counter = itertools.count(1)
        self._handles = itertools.count(1)
        self._running: dict[int, RunningStep] = {}
        self._lock = threading.Lock()
        self._is_closed = False
        self._lost: dict[str, errors.OpError] = {}  # the first error of each lost task, by address
        self._tasks = member.open(self._session, self, options)
        self._clear_failed_connects()
        own_worker = member.worker
        self._own: TaskSession | None = own_worker and own_worker.session(self._session)
        if self._own is not None:
            self._own.on_end = lambda error: self.on_failure(error)
        self.devices = own_worker.devices if own_worker else local_devices({})
        self.resources = self._own.resources if self._own else Resources()
        names = [name for task in self._tasks.values() for name in task.devices]
        self.placer = Placer(names, options.allow_soft_placement)
        self._switches = options.optimizer

    # Planning

    def plan(self, step: Step) -> Plan:
        """Partition and register a step; one that this process runs alone is planned locally."""
        nodes = prune(step.fetches, step.targets, step.feeds)
        placement = self.placer.place(nodes)
        tasks = {*map(task_of, used_devices(placement))} or {self._member.task}
        if tasks == {self._member.task} and self._own is not None:
            return plan(step, self.devices, self.placer, COMPILES, self._switches)
        if len(tasks) > 1 and has_primitives(nodes):
            raise errors.UnimplementedError(
                None,
                next(node for node in nodes if has_primitives([node])),
                f"A step with Switch and Merge nodes cannot be cut between tasks: {sorted(tasks)}",
            )
        step = step._replace(targets=_expand_groups(step.targets))
        nodes = prune(step.fetches, step.targets, step.feeds)
        passes: tuple[PassReport, ...] = ()
        if COMPILES and self._switches.enabled:
            step, nodes, placement, passes = optimized(step, nodes, placement, self._switches)
        order = step_order(nodes, step.feeds)
        partitions = partition(nodes, *step, placement, order)
        try:
            return self._register(partitions, placement, order, passes)
        except errors.AbortedError as error:
            raise self._map_error(error) from None

    def _register(
        self,
        partitions: Sequence[Partition],
        placement: Placement,
        order: Any,
        passes: tuple[PassReport, ...],
    ) -> ClusterPlan:
        handle, own_task = next(self._handles), self._member.task if self._own else ""
        by_task: dict[str, list[Partition]] = {}
        for part in partitions:
            by_task.setdefault(task_of(part.device), []).append(part)
        parts = [
            TaskPart(task, tuple(parts), self._peer(task), handle, self._session, own_task)
            for task, parts in by_task.items()
        ]
        self._request_all(
            [
                (task_part.peer, _register_message(self._session, handle, task_part))
                for task_part in parts
                if task_part.peer is not None
            ]
        )
        for task_part in parts:
            if task_part.peer is None and self._own is not None:
                self._own.register(handle, task_part.partitions)
        cluster_plan = ClusterPlan(
            placement, order, passes=passes, handle=handle, tasks=tuple(parts)
        )
        peers = [part.peer for part in parts if part.peer is not None]
        deregister = Message(Kind.DEREGISTER, 0, {"session": self._session, "handle": handle})
        weakref.finalize(
            cluster_plan, _deregister, self._own, handle, peers, deregister
        ).atexit = False
        return cluster_plan

    def _peer(self, task: str) -> Peer | None:
        return None if task == self._member.task and self._own else self._tasks[task].peer

    def _request_all(self, requests: Sequence[tuple[Peer, Message]]) -> None:
        """Send all requests, then wait for the replies."""
        replies = SimpleQueue[tuple[Message | None, Exception | None]]()
        for peer, message in requests:
            peer.request(message, lambda reply, error: replies.put((reply, error)))
        for _ in requests:
            failures.answered(*replies.get(), self._graph())

    def explained(self, planned: Plan) -> Plan:
        """The plan with its partitions planned in this process, on CPU proxies of all devices."""
        if not isinstance(planned, ClusterPlan):
            return planned
        devices = [_proxy_device(name) for name in self.placer.devices]
        parts = [
            plan_partition(part, devices, COMPILES)
            for task in planned.tasks
            for part in task.partitions
        ]
        return replace(planned, partitions=tuple(parts))

    # Running

    def execute(self, planned: Plan, feeds: Sequence[Any], cancellation: Cancellation) -> list[Any]:
        if not isinstance(planned, ClusterPlan):
            return execute(planned, feeds, self.resources, cancellation)
        self._check_tasks(planned)
        number = self._number | (next(self._counter) & 0xFFFFFFFF)
        running = RunningStep(number, planned, self._member, self._session, self._graph())
        with self._lock:
            self._running[number] = running
        unsubscribe = cancellation.on_cancel(lambda: running.fail(cancellation.error))
        try:
            return running.run(feeds)
        except errors.AbortedError as error:
            raise self._map_error(error) from None
        finally:
            unsubscribe()
            with self._lock:
                del self._running[number]

    def _check_tasks(self, planned: ClusterPlan) -> None:
        """Raise if a task of the step is lost: its registered partitions are gone."""
        for part in planned.tasks if self._lost else ():
            if part.peer is not None and part.peer.address in self._lost:
                raise self._lost[part.peer.address]

    def _clear_failed_connects(self) -> None:
        """Drop errors of earlier connection attempts to tasks that have since replied."""
        with self._lock:
            for task in self._tasks.values():
                if task.peer is not None and task.peer.is_alive:
                    self._lost.pop(task.address, None)

    def lost(self, address: str, error: errors.OpError) -> None:
        """A task is lost: fail the running steps that use it, and all later ones."""
        with self._lock:
            self._lost.setdefault(address, error)
            running = [*self._running.values()]
        for step in running:
            if step.uses(address):
                step.fail(error)

    def disconnected(self, tasks: Set[str], error: errors.OpError) -> None:
        """Tasks have lost their connection to each other: fail the steps that use all of them."""
        with self._lock:
            running = [*self._running.values()]
        for step in running:
            if step.has_parts_of(tasks):
                step.fail(error)

    def _map_error(self, error: errors.OpError) -> errors.OpError:
        """The error to raise: after `close`, AbortedError only says that the session is gone."""
        is_closed = self._is_closed and isinstance(error, errors.AbortedError)
        return errors.CancelledError(None, None, "Session was closed.") if is_closed else error

    def close(self) -> None:
        self._is_closed = True
        if self._own is not None:
            self._own.on_end = None
        self._member.close(self._session, self._tasks.values())


class RunningStep:
    """One execution of a step on its tasks."""

    def __init__(
        self, number: int, planned: ClusterPlan, member: Member, session: str, graph: Graph | None
    ) -> None:
        self._number, self._plan = number, planned
        self._member, self._session, self._graph = member, session, graph
        self._work = Waiter(member.endpoint.loop)  # queue of long calls; None ends the step
        self._ended = itertools.count(1)  # parts that have ended; next() is atomic
        self._lock = threading.Lock()
        self._error: errors.OpError | None = None
        self._interrupt: BaseException | None = None
        self._fetched: dict[int, Any] = {}
        self._started = time.perf_counter_ns()
        self._has_made_call = False  # a long one

    def run(self, feeds: Sequence[Any]) -> list[Any]:
        """Start the step on all tasks and return the fetched values.

        The own part's short calls run on the thread that reads messages, as these arrive; its long
        calls run on the calling thread.
        """
        try:
            for part in self._plan.others:
                self._start(part, feeds)
            with np.errstate(all="ignore"):
                self._start_own_and_fed(feeds)
                self._run_long_calls()
        except BaseException as error:  # KeyboardInterrupt, for example
            self.fail(errors.CancelledError(None, None, f"The step was stopped: {error!r}"))
            workers.start(self._drain)
            raise
        if self._interrupt is not None:
            raise self._interrupt
        if self._error is not None:
            raise self._error
        return [self._fetched[index] for index in range(len(self._fetched))]

    def _run_long_calls(self) -> None:
        """Run long calls until the step ends. If the plan's last run had any, this thread does not
        take over the I/O loop while it waits: the I/O thread keeps reading messages."""
        history = self._plan.history
        get = self._work.get_elsewhere if history.has_long_calls else self._work.get
        history.has_long_calls = False
        while (call := get()) is not None:
            history.has_long_calls = True
            self._member.endpoint.loop.resume()
            if self._has_made_call:
                call()
            else:
                self._make_first_call(call)

    def _start_own_and_fed(self, feeds: Sequence[Any]) -> None:
        """Start the own part, then the parts it feeds, with the values that it sent to them so far
        piggybacked on their RUN messages: a message costs more than a small value."""
        piggyback = PiggybackBuffer(self._plan.fed_tasks) if self._plan.fed else None
        try:
            for part in self._plan.own:
                never_blocks = self._start_own(part, feeds, piggyback)
                if piggyback is not None and never_blocks and self._plan.history.has_brief_call:
                    self._make_call_if_ready()
        finally:  # even after an interrupt: `_drain` waits for a reply from every task
            if piggyback is not None:
                piggyback.close()
                for part in self._plan.fed:
                    self._start(part, feeds, piggyback.values_for(part.task))

    def _make_call_if_ready(self) -> None:
        """Make the first long call now, if there is one, so that the values that it sends travel
        with RUN messages."""
        if not self._work.is_empty():
            call = self._work.get_elsewhere()
            if call is None:
                self._work.put(None)  # the step has ended
            else:
                self._make_first_call(call)

    def _make_first_call(self, call: Callable[[], None]) -> None:
        self._has_made_call = True
        self._plan.history.time_first_call(call)

    def _drain(self) -> None:
        """Finish an interrupted step on another thread: run its long calls until it ends."""
        while (call := self._work.get_elsewhere()) is not None:
            call()

    def _start(self, part: TaskPart, feeds: Sequence[Any], sent: Keyed = ()) -> None:
        values = [feeds[place] for place in part.feeds] if part.feeds else []
        keys: tuple[Key, ...] = ()
        if sent and self._member.worker is not None:
            keys, piggybacked = zip(*sent, strict=True)
            size = size_of(piggybacked)
            self._member.worker.traffic.bytes_sent += size
            values += piggybacked
        fields = part.run_fields.get(keys) or part.new_fields(keys)
        message = new_tuple(Message, (Kind.RUN, self._number, fields, values, 0))
        try:
            part.peer.request(message, partial(self._on_reply, part))  # pyright: ignore[reportOptionalMemberAccess] - never the own part
        except errors.OpError as error:
            self._on_reply(part, None, error)

    def _on_reply(self, part: TaskPart, message: Message | None, error: Exception | None) -> None:
        """Handle a task's reply to RUN, on the thread that received it."""
        try:
            if spans.is_on():
                spans.record_span(f"run on {part.task}", part.partitions[0].nodes[0], self._started)
            reply = failures.answered(message, error, self._graph)
            if places := reply.fields["places"]:
                self._fetched.update(by_index(places, reply))
            if (keys := reply.fields["keys"]) and self._member.worker is not None:
                values = reply.values[-len(keys) :]
                self._member.worker.receive(self._number, keys, values)
        except errors.OpError as failure:
            self.fail(failure)
        finally:
            self._count_down()

    def _count_down(self) -> None:
        """One part has ended; the last one ends the step."""
        if next(self._ended) == len(self._plan.tasks):
            self._work.put(None)

    def _start_own(
        self, part: TaskPart, feeds: Sequence[Any], piggyback: PiggybackBuffer | None
    ) -> bool:
        """Start the part of this process; returns whether its long calls never wait."""
        part_feeds = {place: feeds[place] for place in part.feeds}
        try:
            return self._member.start_own(
                self._session,
                self._plan.handle,
                self._number,
                part_feeds,
                self._on_own_done,
                self._work.put,
                piggyback,
            )
        except errors.OpError as error:
            self._on_own_done({}, error)
            return False

    def _on_own_done(self, fetched: Mapping[int, Any], error: BaseException | None) -> None:
        self._fetched.update(fetched)
        if isinstance(error, errors.OpError):
            self.fail(error)
        elif error is not None:
            self._interrupt = error
            self.fail(errors.CancelledError(None, None, f"The step was stopped: {error!r}"))
        self._count_down()

    def uses(self, address: str) -> bool:
        """Whether the step has a part on the task at an address."""
        return any(part.peer and part.peer.address == address for part in self._plan.tasks)

    def has_parts_of(self, tasks: Set[str]) -> bool:
        """Whether the step has parts on all of the given tasks."""
        return tasks <= {part.task for part in self._plan.tasks}

    def fail(self, error: errors.OpError | None) -> None:
        """Abort the step on all tasks. Only the first error counts; None is ignored."""
        with self._lock:
            if self._error is not None or error is None:
                return
            self._error = error
        if self._member.worker is not None and self._plan.own:
            self._member.worker.abort(self._number, error)
        fields = failures.encode(error, "")
        for part in self._plan.tasks:
            if part.peer is not None and part.peer.is_alive:
                self._member.send(part.peer, Message(Kind.ABORT, self._number, fields))


def _proxy_device(device: str) -> Device:
    """A local CPU device under the name of another task's device."""
    return cpu_device(DeviceSpec.from_string(device).device_index or 0, task=task_of(device))


def _tasks_sent_first(part: Partition) -> set[str]:
    """The tasks to which a partition sends a value that depends on no received one."""
    after_receive, tasks = set[Node](), set[str]()
    for node in part.nodes:
        if isinstance(node.op, Receiving) or not after_receive.isdisjoint(part.order[node]):
            after_receive.add(node)
        elif isinstance(node.op, Sending):
            tasks.add(task_of(node.op.recv_device))
    return tasks


def _expand_groups(targets: Sequence[Node]) -> tuple[Node, ...]:
    """The targets with groups (NoOps with control inputs) replaced by their members, so that no
    task waits for members on other tasks: the master waits for every part anyway."""
    expanded = dict[Node, None]()
    stack = [*reversed(targets)]
    while stack:
        node = stack.pop()
        if isinstance(node.op, NoOp) and node.control_inputs:
            stack += reversed(node.control_inputs)
        else:
            expanded[node] = None
    return tuple(expanded)


def _register_message(session: str, handle: int, part: TaskPart) -> Message:
    fields, graphs = zip(*map(encode, part.partitions), strict=True)
    body = {"session": session, "handle": handle, "partitions": list(fields)}
    return Message(Kind.REGISTER, 0, body, list(graphs))


def _deregister(
    own_session: TaskSession | None, handle: int, peers: Sequence[Peer], message: Message
) -> None:
    """Deregister a plan on its tasks after the session has dropped it."""
    if own_session is not None:
        own_session.deregister(handle)
    for peer in peers:
        if peer.is_alive:
            Member.send(peer, message)
