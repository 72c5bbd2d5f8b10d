"""What a task does for masters: it keeps the partitions they register and runs steps of them.

Its devices own variables, queues and the like, which all sessions share by container and name. A
step of a task has one rendezvous: values for other tasks are pushed to them, and those from other
tasks may come before the step itself. An aborted step is never taken up again.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any, Protocol

import numpy as np

from thalweg import errors
from thalweg.cluster.partition_def import Fields, decode
from thalweg.cluster.remote_calls import RemoteCalls, stays_here
from thalweg.cluster.tasks import task_of
from thalweg.cluster.traffic import Traffic
from thalweg.cluster.transport.endpoint import Peer
from thalweg.cluster.transport.lending import Lender
from thalweg.cluster.values import Held, Keyed, key_of
from thalweg.cluster.wire import FixedFields
from thalweg.device.device import Device
from thalweg.device.workers import WORKERS
from thalweg.graph.node import Node
from thalweg.partition.cut import Partition
from thalweg.partition.rendezvous import Key, Rendezvous
from thalweg.platform.caches import Bounded
from thalweg.runtime.cancellation import Cancellation
from thalweg.runtime.dataflow.scheduler import Soon
from thalweg.runtime.dataflow.straight import StraightGraph
from thalweg.runtime.engine import COMPILES
from thalweg.runtime.executor import StartablePartitions, run_partitions
from thalweg.runtime.plan import PartitionPlan, plan_partition
from thalweg.runtime.resources import Objects, Resources


class Outgoing(Protocol):
    """How the values of a task reach others."""

    def push(self, step: int, key: Key, value: Any) -> None:
        """Send a value of a step to the task that a key's destination is on."""
        ...

    def flush(self) -> None:
        """Have leave what this thread has sent."""
        ...

    def do_together(self, work: Callable[[], None]) -> None:
        """Call a function and have what it sends to one task leave in one packet."""
        ...


_MAX_ENDED = 10_000  # steps of which a value that comes late is still known to be late


class Worker:
    """The devices of one task, and what masters have them do."""

    def __init__(
        self,
        name: str,
        devices: Sequence[Device],
        outgoing: Outgoing,
        peer: Callable[[str], Peer],
    ) -> None:
        self.name, self._prefix = name, f"{name}/"  # "/job:ps/replica:0/task:0"
        self._peer = peer  # of another task
        self.devices = devices
        self._objects = [Objects() for _ in devices]
        self.traffic = Traffic()
        self.lender: Lender | None = None  # for variables that other tasks of the host can map
        self._outgoing = outgoing
        self._sessions: dict[str, TaskSession] = {}
        self._steps: dict[int, TaskStep] = {}
        self._ended = Bounded[int, None]("ended steps of a task", _MAX_ENDED)
        self._lock = threading.Lock()

    # Sessions

    def open_session(self, session: str) -> TaskSession:
        """A master begins; what it registers is forgotten when it ends."""
        with self._lock:
            calls = RemoteCalls(session, self._peer)
            made = TaskSession(self.devices, self._objects, calls, self.lender)
            return self._sessions.setdefault(session, made)

    def session(self, name: str) -> TaskSession:
        """A session that is open."""
        found = self._sessions.get(name)
        if found is None:
            raise errors.AbortedError(
                None,
                None,
                f"{self.name} does not know this session: the task was reset or started again. "
                "Make a new session; tf.train.MonitoredTrainingSession does so by itself",
            )
        return found

    def close_session(self, session: str, error: errors.OpError) -> None:
        """Forget what a master registered, and end its steps."""
        with self._lock:
            found = self._sessions.pop(session, None)
            steps = [step for step in self._steps.values() if step.session == session]
        for step in steps:
            self.abort(step.number, error)
        if found is not None and found.on_end is not None:
            found.on_end(error)

    def reset(self, containers: Sequence[str] | None) -> None:
        """Forget the objects in some containers, or all, and all sessions."""
        own = self.name.split("/")[1].removeprefix("job:")  # the default container is the job's
        named = None if not containers else {"" if each == own else each for each in containers}
        for each in self._objects:
            each.clear(named)
        for session in [*self._sessions]:
            self.close_session(session, _reset(self.name))

    # Steps

    def start(
        self,
        session: str,
        handle: int,
        number: int,
        feeds: Mapping[int, Any],
        soon: Soon,
        done: Done,
        later: Callable[[Callable[[], None]], None] = WORKERS.start,
        received: Keyed = (),
        held: Held | None = None,
        rest: StraightGraph | None = None,
    ) -> None:
        """Run this task's partitions of a step on threads that may not wait, as long as all calls
        are short, and by `later` from then on; `done` is told the fetched values by their places,
        or an error. Some values that they receive may be there, and some that they send at once
        are held. `rest`: what is left after an opening."""
        opened = self._sessions.get(session) or self.session(session)
        plan = opened.plans[handle]
        step = self._step(number, session)
        for key, value in received:
            self.deliver(number, key, value)
        ended = partial(self._ran, step, done)
        if isinstance(plan, StartablePartitions):
            step.held = held
            try:
                plan.start(feeds, step.cancellation, step, soon, later, ended, rest)
            finally:
                step.held = None
        else:  # it waits for the answers of others, which the thread reads
            about = opened.resources, step.cancellation, step
            later(lambda: _run(plan, feeds, *about, ended))

    def opening(
        self, session: str, handle: int, number: int, keys: Sequence[Sequence[str]]
    ) -> OpeningPart | None:
        """What a step's part begins with, if that can be done at once with the values that came
        with it, by a thread that may not wait."""
        opened = self._sessions.get(session)
        part = None if opened is None else opened.openings.get(handle)
        if part is None or number in self._steps:
            return None
        if part.keys != keys:
            part.take(keys)
        opening = part.opening
        return part if opening is not None and opening.is_short else None

    def end(self, number: int) -> None:
        """A step that was never begun has ended."""
        with self._lock:
            self._ended[number] = None
        self.traffic.steps += 1

    def _ran(self, step: TaskStep, done: Done, found: Values, error: BaseException | None) -> None:
        """The partitions of a step have ended."""
        if error is not None:
            step.abort(error)
        number = step.number
        with self._lock:
            self._steps.pop(number, None)
            self._ended[number] = None
        self.traffic.steps += 1
        done(found, error)

    def receive(self, number: int, keys: Sequence[Sequence[str]], values: Sequence[Any]) -> None:
        """Take values that came with another message."""
        for key, value in zip(keys, values, strict=True):
            size = value.nbytes
            self.traffic.bytes_received += size
            self.deliver(number, key_of(*key), value)

    def deliver(self, number: int, key: Key, value: Any) -> None:
        """Take a value that another task pushed."""
        step = self._steps.get(number) or self._step(number)
        if step.cancellation.error is None:
            Rendezvous.send(step, key, value)

    def abort(self, number: int, error: errors.OpError) -> None:
        """End a step, be it running or still to come."""
        self._step(number).cancel(error)

    def _step(self, number: int, session: str = "") -> TaskStep:
        """A step that somebody speaks of, for the first time or not."""
        with self._lock:
            found = self._steps.get(number)
            if found is None:
                found = TaskStep(number, self._prefix, self._outgoing)
                if number in self._ended:
                    found.cancel(_ended(number))
                else:
                    self._steps[number] = found
            if session:
                found.session = session
            return found

    def forget_steps(self, belongs: Callable[[int], bool]) -> None:
        """Drop what came for steps that will never be run: their master is gone."""
        with self._lock:
            gone = [number for number in self._steps if belongs(number)]
        for number in gone:
            self.abort(number, _ended(number))
        with self._lock:
            for number in gone:
                self._steps.pop(number, None)
                self._ended[number] = None


Values = dict[int, Any]
Done = Callable[[Values, BaseException | None], None]


class TaskSession:
    """What one master has registered with a task."""

    def __init__(
        self,
        devices: Sequence[Device],
        objects: Sequence[Objects],
        calls: RemoteCalls,
        lender: Lender | None = None,
    ) -> None:
        self._devices, self._calls = devices, calls
        every = Resources.of_devices(devices, objects)
        self.resources, *self._others = every
        for device, each in zip(devices, every, strict=True):
            if lender is not None and device.is_host:
                each.allocate = partial(lender.allocate, device=device.name)
        self._originals: dict[str, Node] = {}
        #: By handle; plain partitions where they have control nodes that span tasks.
        self.plans: dict[int, StartablePartitions | Sequence[PartitionPlan]] = {}
        self.openings: dict[int, OpeningPart] = {}
        self.on_end: Callable[[errors.OpError], None] | None = None

    def register(self, handle: int, parts: Sequence[Partition]) -> None:
        """Plan the partitions of a step, which runs under a handle from now on."""
        own = {device.name for device in self._devices}
        plans = [self._planned(part) for part in parts]
        is_own = all(own.issuperset(part.placement.values()) for part in parts)
        made = StartablePartitions(plans, self.resources) if is_own else plans
        self.plans[handle] = made
        if isinstance(made, StartablePartitions):
            self.openings[handle] = OpeningPart(made)

    def deregister(self, handle: int) -> None:
        """Forget what ran under a handle."""
        self.plans.pop(handle, None)
        self.openings.pop(handle, None)

    def _planned(self, part: Partition) -> PartitionPlan:
        placement = {
            node: part.device if stays_here(node) else device
            for node, device in part.placement.items()
        }
        part = replace(part, placement=placement)
        elsewhere = partial(self._calls.elsewhere, placement=placement)
        return plan_partition(part, self._devices, COMPILES, elsewhere)

    def decoded(self, parts: Sequence[tuple[Fields, bytes]]) -> list[Partition]:
        """Partitions that came as messages: nodes of one name share one state."""
        return [decode(fields, graph, self._original) for fields, graph in parts]

    def _original(self, node: Node) -> Node:
        return self._originals.setdefault(node.name, node)


class OpeningPart:
    """What a part of a step does with the values that come with the order to run it; the same ones
    come in every step."""

    def __init__(self, plan: StartablePartitions) -> None:
        self._plan, self.context = plan, plan.context
        self.take(())

    def take(self, keys: Sequence[Sequence[str]]) -> None:
        """Values under some keys come from now on, in their order."""
        self.keys = [list(key) for key in keys]  # as messages have them
        self.opening = self._plan.opening([Key(*key) for key in keys])
        sends = self.opening.sends if self.opening else ()
        self.tasks = {task_of(key.destination) for key in sends}
        self.fields = FixedFields(places=(), keys=sends)  # of the answer


class TaskStep(Rendezvous):
    """One step, as far as a task has a part in it: where its partitions meet those of others."""

    def __init__(self, number: int, prefix: str, outgoing: Outgoing) -> None:
        super().__init__()
        self.number, self.session = number, ""
        self._prefix, self._outgoing = prefix, outgoing  # of the names of this task's devices
        self.cancellation = Cancellation()
        self.held: Held | None = None  # what leaves with another message

    def send(self, key: Key, value: Any) -> None:
        """Give a value to who receives it, here or on another task."""
        if key.destination.startswith(self._prefix):
            super().send(key, value)
        elif self.error is not None:
            raise self.error
        elif self.held is None or not self.held.keep(key, value):
            self._outgoing.push(self.number, key, value)

    def flush(self) -> None:
        """Have leave what this thread has sent."""
        self._outgoing.flush()

    def do_together(self, work: Callable[[], None]) -> None:
        """Call a function and have what it sends to one task leave in one packet."""
        self._outgoing.do_together(work)

    def cancel(self, error: errors.OpError) -> None:
        """End the step; whoever waits for a value of it is told."""
        self.cancellation.cancel(error)
        self.abort(error)


def _run(
    parts: Sequence[PartitionPlan],
    feeds: Mapping[int, Any],
    resources: Resources,
    cancellation: Cancellation,
    rendezvous: Rendezvous,
    ended: Done,
) -> None:
    """Run partitions on this thread, which may wait."""
    try:
        with np.errstate(all="ignore"):
            found = run_partitions(parts, feeds, resources, cancellation, rendezvous)
    except BaseException as error:
        ended({}, error)
    else:
        ended(found, None)


def _reset(task: str) -> errors.AbortedError:
    return errors.AbortedError(None, None, f"{task} was reset: its sessions have ended")


def _ended(number: int) -> errors.AbortedError:
    return errors.AbortedError(None, None, f"Step {number:x} has ended")
