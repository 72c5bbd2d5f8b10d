"""The worker of a task: holds the partitions that masters register and runs steps of them.

Its devices own variables, queues and other resources, which all sessions share by container and
name. Each step has one rendezvous per task. Values for other tasks are pushed to them; values from
other tasks may arrive before the step's RUN message. An ended or aborted step never restarts, and
messages that arrive after the end of a step or of its session leave nothing behind.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any, Protocol

from thalweg import errors
from thalweg.cluster.partition_def import Fields, decode
from thalweg.cluster.remote_calls import RemoteCalls, runs_on_control_device
from thalweg.cluster.traffic import Traffic
from thalweg.cluster.transport.endpoint import Peer
from thalweg.cluster.transport.shared_buffers import SharedAllocator
from thalweg.cluster.values import Keyed, PiggybackBuffer, key_of
from thalweg.cluster.wire import FixedFields
from thalweg.device import workers
from thalweg.device.device import Device
from thalweg.graph.device import task_of
from thalweg.graph.node import Node
from thalweg.partition.cut import Partition
from thalweg.partition.rendezvous import Key, Rendezvous
from thalweg.platform.caches import Bounded
from thalweg.runtime.cancellation import Cancellation
from thalweg.runtime.dataflow.prologue import Prologue
from thalweg.runtime.dataflow.run import Dataflow, Submit
from thalweg.runtime.engine import COMPILES
from thalweg.runtime.executor import StartablePartitions
from thalweg.runtime.plan import PartitionPlan, plan_partition
from thalweg.runtime.resources import Objects, Resources, linked


class Outgoing(Protocol):
    """The sending side of a task, as its steps use it."""

    def push(self, step: int, key: Key, value: Any) -> None:
        """Send a value of a step to the task of the key's destination device."""
        ...

    def run_batched(self, work: Callable[[], None]) -> None:
        """Call a function and batch what it sends to each task into one packet."""
        ...


_MAX_ENDED = 10_000  # ended steps remembered, so that their late values are dropped
_MAX_PROLOGUES = 512  # cached prologues
_MAX_KEYS = 16  # of a prologue: the fields of messages with many more are not shared


class Worker:
    """The devices of one task, its open sessions and its steps."""

    def __init__(
        self,
        name: str,
        devices: Sequence[Device],
        outgoing: Outgoing,
        peer: Callable[[str], Peer],
    ) -> None:
        self.name, self._prefix = name, f"{name}/"  # "/job:ps/replica:0/task:0"
        self._peer = peer  # the connection to another task, by name
        self.devices = devices
        self._objects = [Objects() for _ in devices]
        self.traffic = Traffic()
        #: allocates variables that the host's tasks can map
        self.allocator: SharedAllocator | None = None
        self._outgoing = outgoing
        self._sessions: dict[str, TaskSession] = {}
        self._steps: dict[int, TaskStep | WaitingStep] = {}
        #: The prologues of parts, by the identity of the fields of RUN, which equal messages share;
        #: these are kept so that no others can have their identity. Empty after a part is dropped.
        self.prologues = Bounded[int, tuple[Any, CachedPrologue]](
            "prologues of parts", _MAX_PROLOGUES
        )
        #: number -> whether that step runs, or values or an error arrived for it
        self.has_step = self._steps.__contains__
        self._ended = Bounded[int, None]("ended steps of a task", _MAX_ENDED)
        self._lock = threading.Lock()

    # Sessions

    def open_session(self, session: str) -> TaskSession:
        """Open a master's session, or return it if it is open."""
        with self._lock:
            calls = RemoteCalls(session, self._peer)
            new_session = TaskSession(self.devices, self._objects, calls, self.allocator)
            return self._sessions.setdefault(session, new_session)

    def session(self, name: str) -> TaskSession:
        """An open session; raises AbortedError if there is none of that name."""
        task_session = self._sessions.get(name)
        if task_session is None:
            raise errors.AbortedError(
                None,
                None,
                f"{self.name} does not know this session: the task was reset or started again. "
                "Make a new session; tf.train.MonitoredTrainingSession does so by itself",
            )
        return task_session

    def close_session(self, session: str, error: errors.OpError) -> None:
        """Drop a master's registered partitions; abort and remove its steps, also those of which
        only values or errors of other tasks have arrived."""
        with self._lock:
            task_session = self._sessions.pop(session, None)
            self.prologues.clear()
            steps = [number for number, step in self._steps.items() if step.session == session]
        for number in steps:
            self.abort(number, error)
        with self._lock:
            for number in steps:
                self._steps.pop(number, None)
                self._ended[number] = None
        if task_session is not None and task_session.on_end is not None:
            task_session.on_end(error)

    def deregister(self, session: str, handle: int) -> None:
        """Drop the partitions that a master registered under a handle, if it has a session."""
        task_session = self._sessions.get(session)
        if task_session is not None:
            task_session.deregister(handle)
            self.prologues.clear()

    def reset(self, containers: Sequence[str] | None) -> None:
        """Clear the given containers, or all of them, and close all sessions."""
        own_job = self.name.split("/")[1].removeprefix("job:")  # names the default container
        names = None if not containers else {"" if item == own_job else item for item in containers}
        for item in self._objects:
            item.clear(names)
        for session in [*self._sessions]:
            self.close_session(session, _reset_error(self.name))

    # Steps

    def start(
        self,
        session: str,
        handle: int,
        number: int,
        feeds: Mapping[int, Any],
        submit_short: Submit,
        done: Done,
        submit_long: Callable[[Callable[[], None]], None] = workers.start,
        received: Keyed = (),
        piggyback: PiggybackBuffer | None = None,
        rest: Dataflow | None = None,
    ) -> bool:
        """Start this task's partitions of a step; does not block. Returns whether calls passed to
        `submit_long` return where they would have to wait for values of other tasks.

        Args:
            submit_short: runs a continuation on a thread that must not block. Used while calls are
                short.
            done: is called once with the fetched values by fetch index, or with an error.
            submit_long: makes a long call, and continues the step after it.
            received: values that arrived with the RUN message.
            piggyback: collects values sent until it is closed, to be piggybacked on messages.
            rest: the graph that remains after the prologue; all of it if None.
        """
        task_session = self._sessions.get(session) or self.session(session)
        plan = task_session.plans[handle]
        step = self._get_or_create_step(number, session)
        if not isinstance(step, TaskStep):
            raise errors.InternalError(None, None, f"Step {number:x} runs already")
        for key, value in received:
            self.deliver(number, key, value)
        on_done = partial(self._on_partitions_done, step, done)
        step.piggyback = piggyback
        return plan.start(feeds, step.cancellation, step, submit_short, submit_long, on_done, rest)

    def find_prologue(self, fields: Mapping[str, Any]) -> CachedPrologue:
        """The prologue of a registered part, by the fields of its RUN message."""
        session = fields["session"]
        task_session = self.session(session)
        plan, keys = task_session.plans[fields["handle"]], [Key(*key) for key in fields["keys"]]
        if len(keys) > _MAX_KEYS:
            return CachedPrologue(None, "")
        part = CachedPrologue(plan.prologue(keys), fields["task"])
        self.prologues[id(fields)] = fields, part
        if self._sessions.get(session) is not task_session:  # closed meanwhile
            self.prologues.clear()
        return part

    def end(self, number: int) -> None:
        """Record the end of a step that ended in its prologue, or that was refused."""
        self._ended[number] = None
        self.traffic.steps += 1

    def _on_partitions_done(
        self, step: TaskStep, done: Done, fetched: Values, error: BaseException | None
    ) -> None:
        """Remove a step whose partitions have ended, and call `done`."""
        if error is not None:
            step.abort(error)
        number = step.number
        with self._lock:
            self._steps.pop(number, None)
            self._ended[number] = None
        self.traffic.steps += 1
        done(fetched, error)

    def receive(self, number: int, keys: Sequence[Sequence[str]], values: Sequence[Any]) -> None:
        """Deliver values that were piggybacked on another message."""
        for key, value in zip(keys, values, strict=True):
            size = value.nbytes
            self.traffic.bytes_received += size
            self.deliver(number, key_of(*key), value)

    def deliver(self, number: int, key: Key, value: Any) -> None:
        """Put a value from another task into the step's rendezvous; dropped if that is aborted."""
        step = self._steps.get(number) or self._get_or_create_step(number)
        step.deliver(key, value)

    def abort(self, number: int, error: errors.OpError) -> None:
        """Abort a step, whether it runs or has yet to start here."""
        self._get_or_create_step(number).cancel(error)

    def wait(self, session: str, number: int, keys: Sequence[Key], complete: Complete) -> None:
        """Wait for the values of a step under some keys, the last that it needs; `complete` is
        called once, with them or with the error that the step was aborted with."""
        self._steps[number] = WaitingStep(session, keys, partial(self._complete, number, complete))
        if session not in self._sessions:  # closed meanwhile
            self.abort(number, _reset_error(self.name))

    def _complete(
        self, number: int, complete: Complete, values: Sequence[Any], error: errors.OpError | None
    ) -> None:
        """End a waiting step, unless another thread does."""
        self._ended[number] = None
        if self._steps.pop(number, None) is not None:
            self.traffic.steps += 1
            complete(values, error)

    def _get_or_create_step(self, number: int, session: str = "") -> TaskStep | WaitingStep:
        """The step of a number, created on first mention. One that has ended, or whose session has,
        is returned aborted and is not kept: the last messages of a session may arrive after it."""
        with self._lock:
            step = self._steps.get(number)
            if step is None:
                session = session or session_of(number)
                step = TaskStep(number, session, self._prefix, self._outgoing)
                if number in self._ended or session not in self._sessions:
                    text = f"Step {number:x} has ended"
                    step.cancel(errors.AbortedError(None, None, text))
                else:
                    self._steps[number] = step
            return step


#: (values in the order of their keys, error)
Complete = Callable[[Sequence[Any], errors.OpError | None], None]
Values = dict[int, Any]
Done = Callable[[Values, BaseException | None], None]


def session_of(number: int) -> str:
    """The name of the session that a master's step belongs to: the upper half of its number."""
    return f"{number >> 32 << 32:x}"


class TaskSession:
    """One master's session on a task: its registered partitions, by handle."""

    def __init__(
        self,
        devices: Sequence[Device],
        objects: Sequence[Objects],
        calls: RemoteCalls,
        allocator: SharedAllocator | None = None,
    ) -> None:
        self._devices, self._calls = devices, calls
        resources_by_device = linked([Resources(each) for each in objects], devices)
        self.resources, *self._others = resources_by_device
        for device, resources in zip(devices, resources_by_device, strict=True):
            if allocator is not None and device.is_host:
                resources.allocate = partial(allocator.allocate, device=device.name)
        self._originals: dict[str, Node] = {}
        self.plans: dict[int, StartablePartitions] = {}  # by handle
        self.on_end: Callable[[errors.OpError], None] | None = None

    def register(self, handle: int, parts: Sequence[Partition]) -> None:
        """Plan the partitions of a step and make it runnable by its handle."""
        own_devices = {device.name for device in self._devices}
        plans = [self._plan_partition(part) for part in parts]
        is_local = all(own_devices.issuperset(part.placement.values()) for part in parts)
        self.plans[handle] = StartablePartitions(plans, self.resources, is_local)

    def deregister(self, handle: int) -> None:
        """Drop the partitions registered under a handle."""
        self.plans.pop(handle, None)

    def _plan_partition(self, part: Partition) -> PartitionPlan:
        placement = {
            node: part.device if runs_on_control_device(node) else device
            for node, device in part.placement.items()
        }
        part = replace(part, placement=placement)
        remote = partial(self._calls.remote_device, placement=placement)
        return plan_partition(part, self._devices, COMPILES, remote)

    def decoded(self, parts: Sequence[tuple[Fields, bytes]]) -> list[Partition]:
        """Decode partitions from a REGISTER message. Nodes of one name share their state."""
        return [decode(fields, graph, self._state_owner) for fields, graph in parts]

    def _state_owner(self, node: Node) -> Node:
        return self._originals.setdefault(node.name, node)


class CachedPrologue:
    """The prologue of a step's part: the calls that run at once with the values piggybacked on RUN
    under some keys, in this order."""

    def __init__(self, prologue: Prologue | None, master: str) -> None:
        self.prologue = prologue  # None if all of the part has to be started
        sends = self.prologue.sends if self.prologue else ()
        tasks = {task_of(key.recv_device) for key in sends}
        has_rest = self.prologue is not None and self.prologue.rest is not None
        #: Whether the prologue is the whole part, and all values go to the master's task.
        self.is_whole = not has_rest and tasks <= {master}
        self.reply_fields = FixedFields(places=(), keys=sends)


class WaitingStep:
    """A step on this task that waits for its last values; its calls need no run."""

    def __init__(self, session: str, keys: Sequence[Key], complete: Complete) -> None:
        self.session = session
        self._keys, self._complete = keys, complete
        self._values: dict[Key, Any] = {}

    def deliver(self, key: Key, value: Any) -> None:
        """Take a value from another task; on the I/O thread."""
        if key in self._keys:
            self._values[key] = value
            if len(self._values) == len(self._keys):
                self._complete([self._values[each] for each in self._keys], None)

    def cancel(self, error: errors.OpError) -> None:
        """Abort the step."""
        self._complete((), error)


class TaskStep(Rendezvous):
    """One step on this task: the rendezvous of its partitions with those of other tasks."""

    def __init__(self, number: int, session: str, prefix: str, outgoing: Outgoing) -> None:
        super().__init__()
        self.number, self.session = number, session
        self._prefix, self._outgoing = prefix, outgoing  # prefix of this task's device names
        self.cancellation = Cancellation()
        self.piggyback: PiggybackBuffer | None = None  # values to be piggybacked on another message

    def send(self, key: Key, value: Any) -> None:
        """Send a value to its receiver, on this task or another."""
        if key.recv_device.startswith(self._prefix):
            super().send(key, value)
        elif self.error is not None:
            raise self.error
        elif self.piggyback is None or not self.piggyback.add(key, value):
            self._outgoing.push(self.number, key, value)

    def deliver(self, key: Key, value: Any) -> None:
        """Take a value from another task; dropped if the step is aborted."""
        if self.cancellation.error is None:
            super().send(key, value)

    def run_batched(self, work: Callable[[], None]) -> None:
        """Call a function and batch what it sends to each task into one packet."""
        self._outgoing.run_batched(work)

    def cancel(self, error: errors.OpError) -> None:
        """Abort the step: pending receives and cancellable calls get the error."""
        self.cancellation.cancel(error)
        self.abort(error)


def _reset_error(task: str) -> errors.AbortedError:
    return errors.AbortedError(None, None, f"{task} was reset: its sessions have ended")
