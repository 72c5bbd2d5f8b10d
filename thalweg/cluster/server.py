"""`tf.train.Server`: a task of a cluster, in this process.

It serves masters, which register partitions and run steps, and other tasks, which push values. A
session in the same process with this server as its target calls it directly, without messages.
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
from thalweg.cluster.tasks import TaskInfo, all_tasks, task_name
from thalweg.cluster.traffic import size_of
from thalweg.cluster.transport.endpoint import Peer
from thalweg.cluster.values import (
    Keyed,
    PiggybackBuffer,
    by_index,
    by_key,
    key_of,
    packed,
    values_of,
)
from thalweg.cluster.wire import FixedFields, Kind, Message, new_tuple
from thalweg.cluster.worker import CachedPrologue, Done, Values, Worker
from thalweg.device import workers
from thalweg.device.cpu.pool import default_threads
from thalweg.device.local import local_devices
from thalweg.graph.device import task_of
from thalweg.partition.rendezvous import Key
from thalweg.platform.caches import Bounded, memoized
from thalweg.platform.described import described
from thalweg.public import public
from thalweg.runtime.config import SessionOptions, session_options
from thalweg.runtime.dataflow.prologue import Prologue
from thalweg.runtime.dataflow.run import Dataflow

SCHEME = "thalweg://"
_MAX_KEPT = 4096  # cached message fields: the same ones recur in every step
_NO_PLACES = FixedFields(places=(), keys=())
_NO_FEEDS: Mapping[int, Any] = MappingProxyType({})
_NO_ROUTE: tuple[Peer | None, FixedFields] = None, FixedFields()
_TOKEN = ((),)  # the value of a control edge between tasks

_servers: weakref.WeakValueDictionary[str, TaskServer] = weakref.WeakValueDictionary()


def server_at(address: str) -> TaskServer | None:
    """The server of this process that listens on an address, if any."""
    return _servers.get(numeric(address))


class TaskServer(Member):
    """The message handlers of a task: for masters, and for other tasks."""

    def __init__(self, cluster: ClusterSpec, job: str, index: int, config: Any) -> None:
        options = session_options(config)
        self.task = task_name(job, index)
        threads = options.threads or _threads_per_step(cluster, job, index)
        devices = local_devices(options.device_count, threads, self.task)
        self._worker = self.worker = Worker(self.task, devices, self, self._peer)
        self._by_task = dict(all_tasks(cluster))
        self._sessions: dict[Peer, set[str]] = {}
        self._routes = Bounded[Key, tuple[Peer | None, FixedFields]](
            "keys of sent values", _MAX_KEPT
        )
        self._handlers: dict[Kind, Callable[[Peer, Message], None]] = {
            Kind.TENSOR: self._on_tensor,
            Kind.RUN: self._on_run,
            Kind.ABORT: self._on_abort,
            Kind.STATUS: lambda peer, message: self._reply_with(
                peer, message, lambda request: self._status(peer, request)
            ),
            Kind.REGISTER: self._reply_from_worker_thread(self._register),
            Kind.DEREGISTER: self._on_deregister,
            Kind.CLOSE: self._on_close,
            Kind.RESET: self._reply_from_worker_thread(self._reset),
            Kind.LOST: super().received,
        }
        self._job, self._index = job, index
        self._created, self._is_created = threading.Event(), False
        try:
            super().__init__(bindable(self._by_task[self.task]))
            self._worker.allocator = self.endpoint.allocator
            self.update(cluster)
        finally:
            self._is_created = True
            self._created.set()
        _servers[self.endpoint.address] = self

    def update(self, cluster: ClusterSpec) -> None:
        """Adopt new addresses of the other tasks; this one keeps its own."""
        self._spec = _with_address(cluster, self._job, self._index, self.endpoint.address)
        self._by_task = dict(all_tasks(self._spec))
        self._routes.clear()

    def stop(self) -> None:
        """Close the endpoint; later requests get no reply."""
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
        submit_long: Callable[[Callable[[], None]], None],
        piggyback: PiggybackBuffer | None = None,
    ) -> bool:
        """Start this task's part of a step for a session in the same process."""
        step_id = session, handle, number
        return self._worker.start(
            *step_id, feeds, self._call_on_io_thread, done, submit_long, piggyback=piggyback
        )

    # As a task

    def received(self, peer: Peer, message: Message) -> None:
        """Dispatch a message: short handlers run on this thread, long ones on a worker thread.
        Messages may arrive while the constructor still runs; they wait for it."""
        if not self._is_created:
            self._created.wait()
        handler = self._handlers.get(message.kind)
        if handler is not None:
            handler(peer, message)

    def _on_tensor(self, peer: Peer, message: Message) -> None:
        """Deliver a pushed value to its step."""
        _, step, fields, values, _ = message
        value: Any = values[0] if values else (values_of(message) or _TOKEN)[0]
        size = getattr(value, "nbytes", 0)
        self._worker.traffic.bytes_received += size
        self._worker.deliver(step, key_of(*fields["key"]), value)

    def _on_abort(self, _: Peer, message: Message) -> None:
        self._worker.abort(message.step, failures.decode(message.fields))

    def _on_deregister(self, _: Peer, message: Message) -> None:
        self._worker.deregister(message.fields["session"], message.fields["handle"])

    def _reply_with(
        self, peer: Peer, message: Message, handler: Callable[[Message], Message]
    ) -> None:
        try:
            reply = handler(message)
        except Exception as error:
            reply = self._failure(message, error)
        with suppress(errors.OpError):  # the requester may be gone
            try:
                peer.reply(message, reply)
            except (TypeError, ValueError) as error:  # the values cannot be sent
                peer.reply(message, self._failure(message, error))

    def _failure(self, request: Message, error: Exception) -> Message:
        return Message(Kind.FAILED, request.step, failures.encode(error, self.task))

    def _reply_from_worker_thread(
        self, handler: Callable[[Message], Message]
    ) -> Callable[[Peer, Message], None]:
        return lambda peer, message: workers.start(lambda: self._reply_with(peer, message, handler))

    def _on_run(self, peer: Peer, message: Message) -> None:
        """Run a part of a step: its prologue at once, if that is short, and start the rest."""
        try:
            _, number, fields, values, _ = message
            if values:
                size = size_of(values)
                self._worker.traffic.bytes_received += size
            found = self._worker.prologues.get(id(fields))
            part = self._worker.find_prologue(fields) if found is None else found[1]
            prologue = part.prologue
            if prologue is None or self._worker.has_step(number) or not prologue.is_short:
                self._start_part(peer, message)
            else:
                self._run_prologue(peer, message, part, prologue)
        except Exception as error:
            self._worker.end(message.step)
            self._on_part_done(peer, message, {}, error)

    def _start_part(self, peer: Peer, message: Message) -> None:
        """Start all of a part."""
        keys, places = message.fields["keys"], message.fields["feeds"]
        feeds = by_index(places, message) if places else _NO_FEEDS
        received = by_key(keys, message) if keys else ()
        self._start_rest(peer, message, feeds, received)

    def _start_rest(
        self,
        peer: Peer,
        message: Message,
        feeds: Mapping[int, Any],
        received: Keyed = (),
        rest: Dataflow | None = None,
    ) -> None:
        step_id = message.fields["session"], message.fields["handle"], message.step
        done = partial(self._on_part_done, peer, message)
        soon = self._call_on_io_thread
        self._worker.start(*step_id, feeds, soon, done, received=received, rest=rest)

    def _run_prologue(
        self, peer: Peer, message: Message, part: CachedPrologue, prologue: Prologue
    ) -> None:
        """Run the prologue of a part, then start the rest of it. If there is no rest and all values
        go to the master's task, they are piggybacked on the reply; otherwise they are pushed and
        flushed before the rest starts."""
        worker, number = self._worker, message.step
        sent = prologue(message.values)
        if not part.is_whole:
            for key, value in zip(prologue.sends, sent, strict=True):
                self.push(number, key, value)
        if part.is_whole:
            if sent:
                size = size_of(sent)
                worker.traffic.bytes_sent += size
            self._reply_done(peer, message, part.reply_fields, sent)
        elif prologue.rest is None:
            self._reply_done(peer, message, _NO_PLACES, ())
        else:
            self.flush()
            epilogue = prologue.epilogue
            if epilogue is None or not epilogue.is_short:
                self._start_rest(peer, message, _NO_FEEDS, rest=prologue.rest)
            else:
                complete = partial(self._run_epilogue, peer, message, epilogue)
                worker.wait(message.fields["session"], number, epilogue.keys, complete)
            return
        worker.end(number)

    def _run_epilogue(
        self,
        peer: Peer,
        message: Message,
        epilogue: Prologue,
        values: Sequence[Any],
        error: BaseException | None,
    ) -> None:
        """Make the last calls of a part, or report its error."""
        try:
            if error is not None:
                raise error
            sent = epilogue(values)
            for key, value in zip(epilogue.sends, sent, strict=True):
                self.push(message.step, key, value)
        except Exception as failure:
            self._on_part_done(peer, message, {}, failure)
        else:
            self._reply_done(peer, message, _NO_PLACES, ())

    def _on_part_done(
        self, peer: Peer, message: Message, fetched: Values, error: BaseException | None
    ) -> None:
        if fetched or error is not None:
            self._reply_with(
                peer, message, lambda request: self._fetch_reply(request, fetched, error)
            )
        else:
            self._reply_done(peer, message, _NO_PLACES, ())

    @staticmethod
    def _reply_done(
        peer: Peer, message: Message, fields: FixedFields, values: Sequence[Any]
    ) -> None:
        try:
            peer.reply(message, new_tuple(Message, (Kind.DONE, message.step, fields, values, 0)))
        except errors.OpError:
            return  # the requester may be gone

    def flush(self) -> None:
        """Send the messages that this thread has buffered."""
        self.endpoint.loop.flush()

    def run_batched(self, work: Callable[[], None]) -> None:
        """Call a function and batch what it sends to each task into one packet."""
        self.endpoint.loop.run_batched(work)

    def _call_on_io_thread(self, function: Callable[[], None]) -> None:
        """Call a function on the I/O thread; directly, if this is that thread."""
        loop = self.endpoint.loop
        if get_ident() == loop.ident:
            function()
        else:
            loop.call(function)

    def _fetch_reply(
        self, message: Message, fetched: Values, error: BaseException | None
    ) -> Message:
        if error is not None:
            raise error
        places = _place_fields(tuple(fetched))
        reply = packed(Message(Kind.DONE, message.step, places, [*fetched.values()]))
        size = size_of(reply.values)
        self._worker.traffic.bytes_sent += size
        return reply

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
        description = {"task": self.task, "devices": devices, "cluster": jobs}
        return Message(Kind.DONE, 0, description | self._worker.traffic.snapshot()._asdict())

    def _reset(self, message: Message) -> Message:
        self._worker.reset(message.fields["containers"])
        return Message(Kind.DONE)

    def _on_close(self, peer: Peer, message: Message) -> None:
        session = message.fields["session"]
        self._sessions.get(peer, set()).discard(session)
        error = errors.CancelledError(None, None, "Session was closed.")
        self._worker.close_session(session, error)

    def lost(self, peer: Peer, error: errors.OpError) -> None:
        """A peer is lost: end a master's sessions, or notify masters of a lost task."""
        super().lost(peer, error)
        for session in self._sessions.pop(peer, ()):
            self._worker.close_session(session, error)
        for task, address in self._by_task.items():
            if address == peer.address and self.endpoint.initiated(peer):
                self._notify_lost(task, error)

    def _notify_lost(self, task: str, error: errors.OpError) -> None:
        """Notify masters that values sent to another task may be lost: the receiver may wait for
        them forever, as all of the master's own connections can be intact."""
        fields = failures.encode(error, self.task) | {"tasks": [self.task, task]}
        for master in [*self._sessions]:
            self.send(master, Message(Kind.LOST, 0, fields))

    def _peer(self, task: str) -> Peer:
        return self.endpoint.peer(self._by_task[task])

    def push(self, step: int, key: Key, value: Any) -> None:
        """Send a value of a step to the task of the key's destination device."""
        peer, fields = self._routes.get(key, _NO_ROUTE)
        if peer is None or not peer.is_alive:
            peer, fields = self._peer(task_of(key.recv_device)), FixedFields(key=key)
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


def _threads_per_step(cluster: ClusterSpec, job: str, index: int) -> int:
    """The threads that a step of a task uses; 0 for the process default. Tasks of a job run at the
    same time, so tasks on one host divide its cores: with more threads than cores, a preempted
    thread stalls the others at the next barrier."""
    hosts = [parsed(cluster.task_address(job, i))[0] for i in cluster.task_indices(job)]
    tasks_on_host = hosts.count(parsed(cluster.task_address(job, index))[0])
    if tasks_on_host == 1 or "THALWEG_THREADS" in os.environ:
        return 0
    return max(1, default_threads() // tasks_on_host)


def _with_address(cluster: ClusterSpec, job: str, index: int, address: str) -> ClusterSpec:
    """The cluster with a task's bound address: port 0 was replaced by a free port."""
    jobs = {
        name: {i: cluster.task_address(name, i) for i in cluster.task_indices(name)}
        for name in cluster.jobs
    }
    jobs[job][index] = address
    return ClusterSpec(jobs)


@public("train.Server")
class Server:
    """A task of a cluster, whose devices run steps for any session that connects.

    Args:
        server_or_cluster_def: a `tf.train.ClusterSpec`, `ClusterDef`, `ServerDef`, or a dict from
            jobs to addresses.
        job_name: the job that this task belongs to; may be omitted if there is only one.
        task_index: its index in the job; may be omitted if the job has only one task.
        protocol: any name; all servers speak Thalweg's own protocol.
        config: a `tf.ConfigProto` for the task's devices.
        start: whether to start listening immediately.

    Raises:
        tf.errors.InvalidArgumentError: if an address is not "host:port".

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
        """Start listening for sessions and other tasks; does nothing if started."""
        if self._task is None:
            definition = self._def
            self._task = TaskServer(
                self._cluster,
                definition.job_name,
                definition.task_index,
                definition.default_session_config,
            )

    def join(self) -> None:
        """Block until the server is stopped, as the main thread of a parameter server does."""
        while not self._stopped.wait(3600):
            pass

    def stop(self) -> None:
        """Stop serving: running steps that use this task fail."""
        if self._task is not None:
            self._task.stop()
        self._stopped.set()

    def update(self, cluster: ClusterLike) -> None:
        """Replace the cluster after tasks were added or moved; new sessions use it.

        Args:
            cluster: all tasks, including this one: a `tf.train.ClusterSpec` or its argument.
        """
        self._cluster = ClusterSpec(cluster)
        self._def.cluster.CopyFrom(self._cluster.as_cluster_def())
        if self._task is not None:
            self._task.update(self._cluster)

    @property
    def server_def(self) -> protos.ServerDef:
        """The cluster and this server's task in it, as a `tf.train.ServerDef`."""
        return self._def

    @property
    def target(self) -> str:
        """The target for sessions that connect to this server: `tf.Session(server.target)`."""
        if self._task is None:
            raise errors.FailedPreconditionError(None, None, "The server was not started")
        return f"{SCHEME}{self._task.endpoint.address}"

    @staticmethod
    def create_local_server(config: protos.ConfigProto | None = None, start: bool = True) -> Server:
        """A server for a single-task cluster with the job `local`, on a free port."""
        return Server({"local": ["localhost:0"]}, protocol="grpc", config=config, start=start)
