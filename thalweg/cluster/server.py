"""`tf.train.Server`: a task of a cluster, in this process.

It answers masters, which register partitions and run steps, and other tasks, which push values. A
session of this process whose target it is calls it without messages.
"""

from __future__ import annotations

import os
import threading
import weakref
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from functools import partial
from threading import get_ident
from types import MappingProxyType
from typing import Any

from thalweg import errors, protos
from thalweg.cluster import failures
from thalweg.cluster.addresses import bindable, numeric, parsed
from thalweg.cluster.member import Member
from thalweg.cluster.spec import ClusterLike, ClusterSpec, server_def
from thalweg.cluster.tasks import TaskInfo, all_tasks, task_name, task_of
from thalweg.cluster.traffic import size_of
from thalweg.cluster.transport.endpoint import Peer
from thalweg.cluster.values import Held, by_key, by_place, key_of, packed, values_of
from thalweg.cluster.wire import FixedFields, Kind, Message, new_tuple
from thalweg.cluster.worker import Done, OpeningPart, Values, Worker
from thalweg.device.cpu.pool import default_threads
from thalweg.device.local import local_devices
from thalweg.device.workers import WORKERS
from thalweg.partition.rendezvous import Key
from thalweg.platform.caches import Bounded, memoized
from thalweg.platform.described import described
from thalweg.public import public
from thalweg.runtime.config import SessionOptions, session_options
from thalweg.runtime.dataflow.opening import Opening

SCHEME = "thalweg://"
_MAX_KEPT = 4096  # fields of messages that are sent in every step
_NO_PLACES = FixedFields(places=(), keys=())
_NO_FEEDS: Mapping[int, Any] = MappingProxyType({})
_NO_ROUTE: tuple[Peer | None, FixedFields] = None, FixedFields()
_TOKEN = ((),)  # what stands for the end of a node

_servers: weakref.WeakValueDictionary[str, TaskServer] = weakref.WeakValueDictionary()


def server_at(address: str) -> TaskServer | None:
    """The server of this process that listens at an address."""
    return _servers.get(numeric(address))


class TaskServer(Member):
    """A task: what it has, and what it does for masters and other tasks."""

    def __init__(self, cluster: ClusterSpec, job: str, index: int, config: Any) -> None:
        options = session_options(config)
        self.task = task_name(job, index)
        threads = options.threads or _threads(cluster, job, index)
        devices = local_devices(options.device_count, threads, self.task)
        self._worker = self.worker = Worker(self.task, devices, self, self._peer)
        self._by_task = dict(all_tasks(cluster))
        self._sessions: dict[Peer, set[str]] = {}
        self._routes = Bounded[Key, tuple[Peer | None, FixedFields]](
            "keys of sent values", _MAX_KEPT
        )
        self._acts: dict[Kind, Callable[[Peer, Message], None]] = {
            Kind.TENSOR: self._take,
            Kind.RUN: self._run,
            Kind.ABORT: self._abort,
            Kind.STATUS: lambda peer, message: self._answer(
                peer, message, lambda request: self._status(peer, request)
            ),
            Kind.REGISTER: self._answer_later(self._register),
            Kind.DEREGISTER: self._deregister,
            Kind.CLOSE: self._close,
            Kind.RESET: self._answer_later(self._reset),
            Kind.LOST: super().received,
        }
        self._job, self._index = job, index
        self._made, self._is_made = threading.Event(), False
        try:
            super().__init__(bindable(self._by_task[self.task]))
            self._worker.lender = self.endpoint.lender
            self.update(cluster)
        finally:
            self._is_made = True
            self._made.set()
        _servers[self.endpoint.address] = self

    def update(self, cluster: ClusterSpec) -> None:
        """Take over where the tasks are now; this one stays where it listens."""
        self._spec = _with_address(cluster, self._job, self._index, self.endpoint.address)
        self._by_task = dict(all_tasks(self._spec))
        self._routes.clear()

    def stop(self) -> None:
        """Answer nobody any more."""
        _servers.pop(self.endpoint.address, None)
        self.endpoint.close()

    # As the target of sessions in this process

    def _cluster(self, options: SessionOptions) -> ClusterSpec:
        return self._spec

    def _open_own(self, session: str) -> TaskInfo:
        self._worker.open_session(session)
        names = [device.name for device in self._worker.devices]
        return TaskInfo(self.task, self.endpoint.address, names, None)

    def start_own(
        self,
        session: str,
        handle: int,
        number: int,
        feeds: Mapping[int, Any],
        done: Done,
        later: Callable[[Callable[[], None]], None],
        held: Held | None = None,
    ) -> None:
        """Begin the part of this process in a step of a session whose target it is."""
        about = session, handle, number
        self._worker.start(*about, feeds, self._soon, done, later, held=held)

    # As a task

    def received(self, peer: Peer, message: Message) -> None:
        """Do what a message asks for: what is short, at once; what is not, on another thread. The
        first ones may come as soon as there is an endpoint."""
        if not self._is_made:
            self._made.wait()
        act = self._acts.get(message.kind)
        if act is not None:
            act(peer, message)

    def _take(self, peer: Peer, message: Message) -> None:
        """A value for a step."""
        _, step, fields, given, _ = message
        value: Any = given[0] if given else (values_of(message) or _TOKEN)[0]
        size = getattr(value, "nbytes", 0)
        self._worker.traffic.bytes_received += size
        self._worker.deliver(step, key_of(*fields["key"]), value)

    def _abort(self, _: Peer, message: Message) -> None:
        self._worker.abort(message.step, failures.decode(message.fields))

    def _deregister(self, _: Peer, message: Message) -> None:
        with suppress(errors.AbortedError):  # the session may be gone as well
            session = self._worker.session(message.fields["session"])
            session.deregister(message.fields["handle"])

    def _answer(self, peer: Peer, message: Message, act: Callable[[Message], Message]) -> None:
        try:
            answer = act(message)
        except Exception as error:
            answer = Message(Kind.FAILED, message.step, failures.encode(error, self.task))
        with suppress(errors.OpError):  # who asked may be gone
            peer.reply(message, answer)

    def _answer_later(self, act: Callable[[Message], Message]) -> Callable[[Peer, Message], None]:
        return lambda peer, message: WORKERS.start(lambda: self._answer(peer, message, act))

    def _run(self, peer: Peer, message: Message) -> None:
        done = partial(self._ran, peer, message)
        try:
            _, number, fields, values, _ = message
            session, handle = fields["session"], fields["handle"]
            keys, places = fields["keys"], fields["feeds"]
            if values:
                size = size_of(values)
                self._worker.traffic.bytes_received += size
            part = None if places else self._worker.opening(session, handle, number, keys)
            if part is not None and part.opening is not None:
                self._open(peer, message, part, part.opening)
                return
            feeds = by_place(places, message) if places else _NO_FEEDS
            received = by_key(keys, message) if keys else ()
            about = session, handle, number
            self._worker.start(*about, feeds, self._soon, done, received=received)
        except Exception as error:
            done({}, error)

    def _open(self, peer: Peer, message: Message, part: OpeningPart, opening: Opening) -> None:
        """Do what a part begins with, and then run the rest. What goes to who asked goes with the
        answer, where there is no rest; else it leaves before that begins."""
        _, number, fields, values, _ = message
        rest, worker, sent = opening.rest, self._worker, list[Any]()
        is_answer = rest is None and part.tasks <= {fields["task"]}
        try:
            if opening.calls:
                sent = opening(part.context, values)
            if not is_answer:
                for key, value in zip(opening.sends, sent, strict=True):
                    self.push(number, key, value)
        except Exception:
            worker.end(number)
            raise
        if is_answer:
            if sent:
                size = size_of(sent)
                worker.traffic.bytes_sent += size
            self._reply(peer, message, part.fields, sent)
            worker.end(number)
            return
        if rest is None:
            self._reply(peer, message, _NO_PLACES, ())
            worker.end(number)
            return
        self.flush()
        done = partial(self._ran, peer, message)
        about = fields["session"], fields["handle"], number
        worker.start(*about, _NO_FEEDS, self._soon, done, rest=rest)

    def _ran(
        self, peer: Peer, message: Message, found: Values, error: BaseException | None
    ) -> None:
        if found or error is not None:
            self._answer(peer, message, lambda request: self._fetched(request, found, error))
        else:
            self._reply(peer, message, _NO_PLACES, ())

    @staticmethod
    def _reply(peer: Peer, message: Message, fields: FixedFields, values: Sequence[Any]) -> None:
        try:
            peer.reply(message, new_tuple(Message, (Kind.DONE, message.step, fields, values, 0)))
        except errors.OpError:
            return  # who asked may be gone

    def flush(self) -> None:
        """Have leave what this thread has sent."""
        self.endpoint.loop.flush()

    def do_together(self, work: Callable[[], None]) -> None:
        """Call a function and have what it sends to one task leave in one packet."""
        self.endpoint.loop.do_together(work)

    def _soon(self, function: Callable[[], None]) -> None:
        """Call a function on the I/O thread: at once, if it is this one."""
        loop = self.endpoint.loop
        if get_ident() == loop.ident:
            function()
        else:
            loop.call(function)

    def _fetched(self, message: Message, found: Values, error: BaseException | None) -> Message:
        if error is not None:
            raise error
        places = _place_fields(tuple(found))
        answer = packed(Message(Kind.DONE, message.step, places, [*found.values()]))
        size = size_of(answer.values)
        self._worker.traffic.bytes_sent += size
        return answer

    def _register(self, message: Message) -> Message:
        session = self._worker.session(message.fields["session"])
        pairs = zip(message.fields["partitions"], message.values, strict=True)
        session.register(message.fields["handle"], session.decoded([*pairs]))
        return Message(Kind.DONE)

    def _status(self, peer: Peer, message: Message) -> Message:
        session = message.fields.get("session")
        if session:
            self._sessions.setdefault(peer, set()).add(session)
            self._worker.open_session(session)
        jobs = {job: dict[str, str]() for job in self._spec.jobs}
        for job, tasks in jobs.items():
            for index in self._spec.task_indices(job):
                tasks[str(index)] = self._spec.task_address(job, index)
        devices = [device.name for device in self._worker.devices]
        about = {"task": self.task, "devices": devices, "cluster": jobs}
        return Message(Kind.DONE, 0, about | self._worker.traffic.snapshot()._asdict())

    def _reset(self, message: Message) -> Message:
        self._worker.reset(message.fields["containers"])
        return Message(Kind.DONE)

    def _close(self, peer: Peer, message: Message) -> None:
        session = message.fields["session"]
        self._sessions.get(peer, set()).discard(session)
        self._end(session, errors.CancelledError(None, None, "Session was closed."))

    def _end(self, session: str, error: errors.OpError) -> None:
        master = int(session, 16) >> 32
        self._worker.close_session(session, error)
        self._worker.forget_steps(lambda number: number >> 32 == master)

    def lost(self, peer: Peer, error: errors.OpError) -> None:
        """A master or another task is gone."""
        super().lost(peer, error)
        for session in self._sessions.pop(peer, ()):
            self._end(session, error)
        for task, address in self._by_task.items():
            if address == peer.address and self.endpoint.has_made(peer):
                self._tell_lost(task, error)

    def _tell_lost(self, task: str, error: errors.OpError) -> None:
        """Tell masters that values for another task may be gone: who waits for them does so on
        connections that may be as good as ever."""
        fields = failures.encode(error, self.task) | {"tasks": [self.task, task]}
        for master in [*self._sessions]:
            self.send(master, Message(Kind.LOST, 0, fields))

    def _peer(self, task: str) -> Peer:
        return self.endpoint.peer(self._by_task[task])

    def push(self, step: int, key: Key, value: Any) -> None:
        """Send a value of a step to the task that a key's destination is on."""
        peer, fields = self._routes.get(key, _NO_ROUTE)
        if peer is None or not peer.is_alive:
            peer, fields = self._peer(task_of(key.destination)), FixedFields(key=key)
            self._routes[key] = peer, fields
        if isinstance(value, tuple):
            peer.send(Message(Kind.TENSOR, step, fields))
        elif value is None:
            peer.send(packed(Message(Kind.TENSOR, step, fields, (None,))))
        else:
            size = getattr(value, "nbytes", 0)
            self._worker.traffic.bytes_sent += size
            peer.push(Kind.TENSOR, step, fields, value)


@memoized(_MAX_KEPT)
def _place_fields(places: tuple[int, ...]) -> FixedFields:
    return FixedFields(places=places, keys=())


def _threads(cluster: ClusterSpec, job: str, index: int) -> int:
    """How many threads a step of a task uses; 0 for as many as one of any process. Tasks of a job
    work at the same time, so those of one host share its cores: their threads meet at barriers,
    where one that has lost its core keeps the others waiting."""
    hosts = [parsed(cluster.task_address(job, i))[0] for i in cluster.task_indices(job)]
    sharing = hosts.count(parsed(cluster.task_address(job, index))[0])
    if sharing == 1 or "THALWEG_THREADS" in os.environ:
        return 0
    return max(1, default_threads() // sharing)


def _with_address(cluster: ClusterSpec, job: str, index: int, address: str) -> ClusterSpec:
    """A cluster with where a task really listens: a port of 0 is any that is free."""
    jobs = {
        name: {i: cluster.task_address(name, i) for i in cluster.task_indices(name)}
        for name in cluster.jobs
    }
    jobs[job][index] = address
    return ClusterSpec(jobs)


@public("train.Server")
class Server:
    """A task of a cluster: its devices run steps for every session that asks.

    Args:
        server_or_cluster_def: a `tf.train.ClusterSpec`, `ClusterDef`, `ServerDef`, or a dict from
            jobs to addresses.
        job_name: the job that this task belongs to; may be left out where there is but one.
        task_index: its index in the job; may be left out where there is but one.
        protocol: any name: all servers speak Thalweg's own.
        config: a `tf.ConfigProto` for the task's devices.
        start: whether to listen at once.

    Raises:
        tf.errors.InvalidArgumentError: where an address is no "host:port".

    Example:
        >>> server = tf.train.Server.create_local_server()
        >>> with tf.Session(server.target) as session:
        ...     session.run(tf.constant(2) * 21)
        np.int32(42)
    """

    def __init__(
        self,
        server_or_cluster_def: ClusterLike | protos.ServerDef,
        job_name: str | None = None,
        task_index: int | None = None,
        protocol: str | None = None,
        config: protos.ConfigProto | None = None,
        start: bool = True,
    ) -> None:
        self._def = server_def(server_or_cluster_def, job_name, task_index, protocol, config)
        self._cluster = ClusterSpec(self._def.cluster)
        for _, address in all_tasks(self._cluster):
            numeric(address)
        self._task: TaskServer | None = None
        self._stopped = threading.Event()
        if start:
            self.start()

    def __repr__(self) -> str:
        state = "new" if self._task is None else f"at {self._task.endpoint.address}"
        return described(self, task=f"{self._def.job_name}:{self._def.task_index}", state=state)

    def start(self) -> None:
        """Begin to listen; sessions may connect from now on."""
        if self._task is None:
            definition = self._def
            self._task = TaskServer(
                self._cluster,
                definition.job_name,
                definition.task_index,
                definition.default_session_config,
            )

    def join(self) -> None:
        """Wait until the server is stopped; a parameter server does nothing else."""
        while not self._stopped.wait(3600):
            pass

    def stop(self) -> None:
        """End: steps that use this task fail, and it answers nobody any more."""
        if self._task is not None:
            self._task.stop()
        self._stopped.set()

    def update(self, cluster: ClusterLike) -> None:
        """Hear that tasks have come or moved; sessions that begin from now on use them.

        Args:
            cluster: all tasks, this one among them, as a `tf.train.ClusterSpec` or what makes one.
        """
        self._cluster = ClusterSpec(cluster)
        self._def.cluster.CopyFrom(self._cluster.as_cluster_def())
        if self._task is not None:
            self._task.update(self._cluster)

    @property
    def server_def(self) -> protos.ServerDef:
        """Which task of which cluster this server is, as a `tf.train.ServerDef`."""
        return self._def

    @property
    def target(self) -> str:
        """What sessions are given to connect: `tf.Session(server.target)`."""
        if self._task is None:
            raise errors.FailedPreconditionError(None, None, "The server was not started")
        return f"{SCHEME}{self._task.endpoint.address}"

    @staticmethod
    def create_local_server(config: protos.ConfigProto | None = None, start: bool = True) -> Server:
        """A server that is a cluster of its own, whose job is `local`, at a port that is free."""
        return Server({"local": ["localhost:0"]}, protocol="grpc", config=config, start=start)
