"""The master: cuts a session's steps for the tasks of a cluster and runs them there.

It lives in the client's process. A step is pruned, placed on the devices of all tasks and cut; each
task is sent its partitions once and runs them by handle from then on: a step costs one message to
each task and one back. Where the target is a server of this process, its partitions are called
without a message. The first error of any task ends the step on all of them.
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
from thalweg.cluster.tasks import task_of
from thalweg.cluster.traffic import size_of
from thalweg.cluster.transport.endpoint import Peer
from thalweg.cluster.transport.loop import Waiter
from thalweg.cluster.values import Held, Keyed, by_place
from thalweg.cluster.wire import FixedFields, Kind, Message, new_tuple
from thalweg.cluster.worker import TaskSession
from thalweg.device.cpu.device import cpu_device
from thalweg.device.device import Device
from thalweg.device.local import local_devices
from thalweg.device.workers import WORKERS
from thalweg.graph.analysis.order import step_order
from thalweg.graph.device import DeviceSpec
from thalweg.graph.graph import Graph
from thalweg.graph.node import Node
from thalweg.ops.core.basic import NoOp
from thalweg.optimize.pipeline import PassReport
from thalweg.partition.cut import Partition, partition
from thalweg.partition.rendezvous import Key
from thalweg.partition.transfers import Receiving, Sending
from thalweg.place.placer import Placement, Placer, is_replicated
from thalweg.platform import spans
from thalweg.runtime.cancellation import Cancellation
from thalweg.runtime.config import SessionOptions
from thalweg.runtime.dataflow.unfold import has_primitives
from thalweg.runtime.engine import COMPILES, Engine
from thalweg.runtime.executor import execute
from thalweg.runtime.plan import Plan, Step, optimized, plan, plan_partition, prune
from thalweg.runtime.resources import Resources


class Course:
    """What is known of the steps of a plan from those that ran."""

    has_long_calls = False  # of the own part


@dataclass(frozen=True)
class ClusterPlan(Plan):
    """A step on several tasks, or on one of another process."""

    handle: int = 0
    tasks: tuple[TaskPart, ...] = ()
    course: Course = field(default_factory=Course, compare=False)

    @cached_property
    def others(self) -> Sequence[TaskPart]:
        """The parts of other processes to which the own one sends nothing before it receives."""
        return [part for part in self.tasks if part.peer is not None and part not in self.fed]

    @cached_property
    def fed(self) -> Sequence[TaskPart]:
        """The parts of other processes to which the own one sends something at once."""
        own = [each for part in self.own for each in part.partitions]
        tasks = {task for each in own for task in _sent_first(each)}
        return [part for part in self.tasks if part.peer is not None and part.task in tasks]

    @cached_property
    def fed_tasks(self) -> frozenset[str]:
        """The tasks of these."""
        return frozenset(part.task for part in self.fed)

    @cached_property
    def own(self) -> Sequence[TaskPart]:
        """The part of this process, if it has one."""
        return [part for part in self.tasks if part.peer is None]


@dataclass(frozen=True)
class TaskPart:
    """What one task does in a step."""

    task: str
    partitions: tuple[Partition, ...]
    peer: Peer | None  # None for the task of this process
    handle: int
    session: str
    master: str  # the task of this process, which hears of values with the end of the part

    @cached_property
    def feeds(self) -> tuple[int, ...]:
        """The places of the values it takes."""
        return tuple(sorted({place for part in self.partitions for place, _ in part.feeds}))

    @cached_property
    def run_fields(self) -> dict[tuple[Key, ...], FixedFields]:
        """The fields of the message that runs it, by the keys of what it receives with that."""
        return {}

    def new_fields(self, keys: tuple[Key, ...]) -> FixedFields:
        """The fields of a message that runs it, which are written once."""
        about = {"session": self.session, "handle": self.handle, "task": self.master}
        made = self.run_fields[keys] = FixedFields(**about, feeds=self.feeds, keys=keys)
        return made


class Master(Engine):
    """Runs the steps of one session on the tasks of a cluster."""

    def __init__(self, member: Member, graph: Graph, options: SessionOptions) -> None:
        self._member = member
        self._graph = weakref.ref(graph)
        self._number = secrets.randbits(31) << 32  # of its steps, which are counted from there
        self._session = f"{self._number:x}"
        self._counter = itertools.count(1)
        self._handles = itertools.count(1)
        self._running: dict[int, RunningStep] = {}
        self._lock = threading.Lock()
        self._is_closed = False
        self._lost: dict[str, errors.OpError] = {}  # by address
        self._tasks = member.open(self._session, self, options)
        self._forget_attempts()
        own = member.worker
        self._own: TaskSession | None = own and own.session(self._session)
        if self._own is not None:
            self._own.on_end = lambda error: self.on_failure(error)
        self.devices = own.devices if own else local_devices({})
        self.resources = self._own.resources if self._own else Resources()
        names = [name for task in self._tasks.values() for name in task.devices]
        self.placer = Placer(names, options.allow_soft_placement)
        self._switches = options.optimizer

    # Planning

    def plan(self, step: Step) -> Plan:
        """Cut a step for the tasks; one for this process alone is planned as without a cluster."""
        nodes = prune(step.fetches, step.targets, step.feeds)
        placement = self.placer.place(nodes)
        used = _used(placement) or {self._member.task}
        if used == {self._member.task} and self._own is not None:
            return plan(step, self.devices, self.placer, COMPILES, self._switches)
        if len(used) > 1 and has_primitives(nodes):
            raise errors.UnimplementedError(
                None,
                next(node for node in nodes if has_primitives([node])),
                f"A step with Switch and Merge nodes cannot be cut between tasks: {sorted(used)}",
            )
        step = step._replace(targets=_without_groups(step.targets))
        nodes = prune(step.fetches, step.targets, step.feeds)
        passes: tuple[PassReport, ...] = ()
        if COMPILES and self._switches.enabled:
            step, nodes, placement, passes = optimized(step, nodes, placement, self._switches)
        order = step_order(nodes, step.feeds)
        cut = partition(nodes, *step, placement, order)
        try:
            return self._register(cut, placement, order, passes)
        except errors.AbortedError as error:
            raise self._error(error) from None

    def _register(
        self,
        cut: Sequence[Partition],
        placement: Placement,
        order: Any,
        passes: tuple[PassReport, ...],
    ) -> ClusterPlan:
        handle, own = next(self._handles), self._member.task if self._own else ""
        by_task: dict[str, list[Partition]] = {}
        for part in cut:
            by_task.setdefault(task_of(part.device), []).append(part)
        parts = [
            TaskPart(task, tuple(parts), self._peer(task), handle, self._session, own)
            for task, parts in by_task.items()
        ]
        self._ask(
            [
                (each.peer, _registration(self._session, handle, each))
                for each in parts
                if each.peer is not None
            ]
        )
        for each in parts:
            if each.peer is None and self._own is not None:
                self._own.register(handle, each.partitions)
        made = ClusterPlan(
            (), 0, (), (), placement, order, passes=passes, handle=handle, tasks=tuple(parts)
        )
        peers = [part.peer for part in parts if part.peer is not None]
        forget = Message(Kind.DEREGISTER, 0, {"session": self._session, "handle": handle})
        weakref.finalize(made, _forget, self._own, handle, peers, forget).atexit = False
        return made

    def _peer(self, task: str) -> Peer | None:
        return None if task == self._member.task and self._own else self._tasks[task].peer

    def _ask(self, requests: Sequence[tuple[Peer, Message]]) -> list[Message]:
        """The answers to messages, all sent at once."""
        answers = SimpleQueue[tuple[int, Message | None, Exception | None]]()
        for place, (peer, message) in enumerate(requests):
            peer.request(message, _collect(answers, place))
        found: dict[int, Message] = {}
        for _ in requests:
            place, answer, error = answers.get()
            if answer is None or error is not None:
                raise error or errors.InternalError(None, None, "No answer")
            found[place] = _checked(answer, self._graph())
        return [found[place] for place in range(len(found))]

    def explained(self, planned: Plan) -> Plan:
        """A plan whose partitions are planned here, for devices like this process's."""
        if not isinstance(planned, ClusterPlan):
            return planned
        devices = [_stand_in(name) for name in self.placer.devices]
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
        undo = cancellation.on_cancel(lambda: running.fail(cancellation.error))
        try:
            return running.run(feeds)
        except errors.AbortedError as error:
            raise self._error(error) from None
        finally:
            undo()
            with self._lock:
                del self._running[number]

    def _check_tasks(self, planned: ClusterPlan) -> None:
        """Raise where a task of a step is lost: what was registered there is gone."""
        for part in planned.tasks if self._lost else ():
            if part.peer is not None and part.peer.address in self._lost:
                raise self._lost[part.peer.address]

    def _forget_attempts(self) -> None:
        """Take tasks that answered for found, though earlier attempts to reach them failed."""
        with self._lock:
            for task in self._tasks.values():
                if task.peer is not None and task.peer.is_alive:
                    self._lost.pop(task.address, None)

    def lost(self, address: str, error: errors.OpError) -> None:
        """A task is gone: the steps that it has a part in end, and no others begin."""
        with self._lock:
            self._lost.setdefault(address, error)
            running = [*self._running.values()]
        for step in running:
            if step.uses(address):
                step.fail(error)

    def parted(self, tasks: Set[str], error: errors.OpError) -> None:
        """Tasks have lost their way to each other: the steps in which they have parts end."""
        with self._lock:
            running = [*self._running.values()]
        for step in running:
            if step.has_parts_of(tasks):
                step.fail(error)

    def _error(self, error: errors.OpError) -> errors.OpError:
        """What is told of an error: a task that has forgotten a closed session is no news."""
        is_closed = self._is_closed and isinstance(error, errors.AbortedError)
        return errors.CancelledError(None, None, "Session was closed.") if is_closed else error

    def close(self) -> None:
        self._is_closed = True
        if self._own is not None:
            self._own.on_end = None
        self._member.close(self._session, self._tasks.values())


class RunningStep:
    """One step on its tasks."""

    def __init__(
        self, number: int, planned: ClusterPlan, member: Member, session: str, graph: Graph | None
    ) -> None:
        self._number, self._plan = number, planned
        self._member, self._session, self._graph = member, session, graph
        self._work = Waiter(member.endpoint.loop)  # functions to call; None at the end
        self._ended = itertools.count(1)  # tasks that have done their part
        self._lock = threading.Lock()
        self._error: errors.OpError | None = None
        self._interrupt: BaseException | None = None
        self._found: dict[int, Any] = {}
        self._started = time.perf_counter_ns()

    def run(self, feeds: Sequence[Any]) -> list[Any]:
        """Start all tasks, the own one last, and collect what is fetched. Of the own part, this
        thread does what takes long; the rest is done as messages come."""
        try:
            for part in self._plan.others:
                self._start(part, feeds)
            with np.errstate(all="ignore"):
                self._start_own_part(feeds)
                self._do_work()
        except BaseException as error:  # an interrupt, say
            self.fail(errors.CancelledError(None, None, f"The step was stopped: {error!r}"))
            WORKERS.start(self._finish)
            raise
        if self._interrupt is not None:
            raise self._interrupt
        if self._error is not None:
            raise self._error
        return [self._found[place] for place in range(len(self._found))]

    def _do_work(self) -> None:
        """Do what takes long until the step is over. Where there was such work in the last step of
        the plan, the I/O thread stays what it is: it reads messages meanwhile."""
        course = self._plan.course
        get = self._work.get_elsewhere if course.has_long_calls else self._work.get
        course.has_long_calls = False
        while (work := get()) is not None:
            course.has_long_calls = True
            self._member.endpoint.loop.resume()
            work()

    def _start_own_part(self, feeds: Sequence[Any]) -> None:
        """Start the own part, and have those that it sends values to hear of the step with them:
        messages cost more than values."""
        held = Held(self._plan.fed_tasks) if self._plan.fed else None
        try:
            for part in self._plan.own:
                self._start_own(part, feeds, held)
        finally:  # who leaves the step here waits for the answers elsewhere
            if held is not None:
                for part in self._plan.fed:
                    self._start(part, feeds, held.of(part.task))

    def _finish(self) -> None:
        """Do what is left of a step that its own thread has left."""
        while (work := self._work.get_elsewhere()) is not None:
            work()

    def _start(self, part: TaskPart, feeds: Sequence[Any], sent: Keyed = ()) -> None:
        values = [feeds[place] for place in part.feeds] if part.feeds else []
        keys: tuple[Key, ...] = ()
        if sent and self._member.worker is not None:
            keys, given = zip(*sent, strict=True)
            size = size_of(given)
            self._member.worker.traffic.bytes_sent += size
            values += given
        fields = part.run_fields.get(keys) or part.new_fields(keys)
        message = new_tuple(Message, (Kind.RUN, self._number, fields, values, 0))
        try:
            part.peer.request(message, partial(self._answered, part))  # pyright: ignore[reportOptionalMemberAccess] - not the own
        except errors.OpError as error:
            self._answered(part, None, error)

    def _answered(self, part: TaskPart, message: Message | None, error: Exception | None) -> None:
        """Take a task's answer, on the thread that it came on."""
        try:
            if spans.is_on():
                spans.note(f"run on {part.task}", part.partitions[0].nodes[0], self._started)
            if message is None:
                raise error or errors.UnavailableError(None, None, "A task did not answer")
            if message.kind is Kind.FAILED:
                raise failures.decode(message.fields, self._graph)
            if places := message.fields["places"]:
                self._found.update(by_place(places, message))
            if (keys := message.fields["keys"]) and self._member.worker is not None:
                values = message.values[-len(keys) :]
                self._member.worker.receive(self._number, keys, values)
        except errors.OpError as failure:
            self.fail(failure)
        finally:
            self._count_down()

    def _count_down(self) -> None:
        """A task has done its part."""
        if next(self._ended) == len(self._plan.tasks):
            self._work.put(None)

    def _start_own(self, part: TaskPart, feeds: Sequence[Any], held: Held | None = None) -> None:
        given = {place: feeds[place] for place in part.feeds}
        try:
            self._member.start_own(
                self._session,
                self._plan.handle,
                self._number,
                given,
                self._own_done,
                self._work.put,
                held,
            )
        except errors.OpError as error:
            self._own_done({}, error)

    def _own_done(self, found: Mapping[int, Any], error: BaseException | None) -> None:
        self._found.update(found)
        if isinstance(error, errors.OpError):
            self.fail(error)
        elif error is not None:
            self._interrupt = error
            self.fail(errors.CancelledError(None, None, f"The step was stopped: {error!r}"))
        self._count_down()

    def uses(self, address: str) -> bool:
        """Whether the task at an address has a part in the step."""
        return any(part.peer and part.peer.address == address for part in self._plan.tasks)

    def has_parts_of(self, tasks: Set[str]) -> bool:
        """Whether all of some tasks have parts in the step."""
        return tasks <= {part.task for part in self._plan.tasks}

    def fail(self, error: errors.OpError | None) -> None:
        """End the step everywhere; the first error is the one that is raised."""
        with self._lock:
            if self._error is not None or error is None:
                return
            self._error = error
        if self._member.worker is not None:
            self._member.worker.abort(self._number, error)
        fields = failures.encode(error, "")
        for part in self._plan.tasks:
            if part.peer is not None and part.peer.is_alive:
                self._member.send(part.peer, Message(Kind.ABORT, self._number, fields))


def _stand_in(device: str) -> Device:
    """A device of this process with the name of another task's."""
    return cpu_device(DeviceSpec.from_string(device).device_index or 0, task=task_of(device))


def _used(placement: Placement) -> set[str]:
    return {task_of(device) for node, device in placement.items() if not is_replicated(node)}


def _sent_first(part: Partition) -> set[str]:
    """The tasks that a partition sends something to before it receives anything."""
    late, found = set[Node](), set[str]()
    for node in part.nodes:
        if isinstance(node.op, Receiving) or not late.isdisjoint(part.order[node]):
            late.add(node)
        elif isinstance(node.op, Sending):
            found.add(task_of(node.op.recv_device))
    return found


def _without_groups(targets: Sequence[Node]) -> tuple[Node, ...]:
    """What has to be run for some targets: for a group, its parts, so that no task waits for the
    parts on others only to say that all are done. The master hears of each anyway."""
    found = dict[Node, None]()
    left = [*reversed(targets)]
    while left:
        node = left.pop()
        if isinstance(node.op, NoOp) and node.control_inputs:
            left += reversed(node.control_inputs)
        else:
            found[node] = None
    return tuple(found)


def _registration(session: str, handle: int, part: TaskPart) -> Message:
    fields, graphs = zip(*map(encode, part.partitions), strict=True)
    body = {"session": session, "handle": handle, "partitions": list(fields)}
    return Message(Kind.REGISTER, 0, body, list(graphs))


def _forget(own: TaskSession | None, handle: int, peers: Sequence[Peer], message: Message) -> None:
    """Have tasks drop a plan that its session has dropped."""
    if own is not None:
        own.deregister(handle)
    for peer in peers:
        if peer.is_alive:
            Member.send(peer, message)


def _collect(
    answers: SimpleQueue[tuple[int, Message | None, Exception | None]], place: int
) -> Callable[[Message | None, Exception | None], None]:
    return lambda message, error: answers.put((place, message, error))


def _checked(answer: Message, graph: Graph | None) -> Message:
    """An answer that tells of no failure."""
    if answer.kind is Kind.FAILED:
        raise failures.decode(answer.fields, graph)
    return answer
