"""A process as a member of a cluster: its endpoint and the masters of its sessions.

A client knows the address of one task and gets the cluster from it. A server is a task itself. Both
open sessions on all tasks they use, wait for tasks that are not up yet, and detect lost tasks.
"""

from __future__ import annotations

import time
import weakref
from collections.abc import Callable, Iterable, Mapping
from queue import Empty, SimpleQueue
from typing import Any, Protocol

from thalweg import errors
from thalweg.cluster import failures
from thalweg.cluster.spec import ClusterSpec
from thalweg.cluster.tasks import TaskInfo, all_tasks, passes
from thalweg.cluster.transport.endpoint import Endpoint, Peer
from thalweg.cluster.values import PiggybackBuffer
from thalweg.cluster.wire import Kind, Message
from thalweg.cluster.worker import Done, Worker
from thalweg.platform import tf_logging
from thalweg.runtime.config import SessionOptions

_PATIENCE = 10.0  # seconds between warnings about tasks that do not reply


class LossListener(Protocol):
    """A listener for lost tasks."""

    def lost(self, address: str, error: errors.OpError) -> None:
        """The task at an address is lost."""
        ...


class Member:
    """The common base of clients and servers."""

    worker: Worker | None = None  # the task of this process
    task: str  # the default task for nodes without a device

    def __init__(self, bind: str | None) -> None:
        self._masters: weakref.WeakSet[Any] = weakref.WeakSet()
        self.endpoint = Endpoint(self, bind)

    # Messages

    def received(self, peer: Peer, message: Message) -> None:
        """Handle a message that is not a reply: LOST is passed on to the masters."""
        if message.kind is Kind.LOST:
            error, pair = failures.decode(message.fields), set(message.fields["tasks"])
            for master in list(self._masters):
                master.disconnected(pair, error)

    def lost(self, peer: Peer, error: errors.OpError) -> None:
        """A peer is lost: notify the masters."""
        for master in list(self._masters):
            master.lost(peer.address, error)

    @staticmethod
    def send(peer: Peer, message: Message) -> None:
        """Send a message; dropped if the peer is lost."""
        try:
            peer.send(message)
        except errors.OpError:
            tf_logging.debug("%s is lost: no message", peer.address)

    # Sessions

    def open(
        self, session: str, master: LossListener, options: SessionOptions
    ) -> dict[str, TaskInfo]:
        """Open a session on all tasks that its device filters select; the own task comes first."""
        self._masters.add(master)
        tasks = dict(all_tasks(self._cluster(options)))
        own_task = [self.task] if self.task in tasks else []
        used = {
            task: tasks[task]
            for task in [*own_task, *sorted(tasks.keys() - own_task)]
            if task in own_task or passes(task, options.device_filters)
        }
        infos = {} if self.worker is None else {self.task: self._open_own(session)}
        remote = {task: address for task, address in used.items() if task not in infos}
        message = Message(Kind.STATUS, 0, {"session": session})
        replies = _RetryingBroadcast(
            self.endpoint, remote, message, options.timeout_in_ms
        ).answers()
        for task, (peer, reply) in replies.items():
            infos[task] = TaskInfo(task, peer.address, reply.fields["devices"], peer)
        return {task: infos[task] for task in used}

    def _cluster(self, options: SessionOptions) -> ClusterSpec:
        raise NotImplementedError

    def _open_own(self, session: str) -> TaskInfo:
        raise NotImplementedError

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
        """Start the part of a step that runs in this process, as `Worker.start` does."""
        raise NotImplementedError

    def close(self, session: str, tasks: Iterable[TaskInfo]) -> None:
        """Close a session on all tasks."""
        error = errors.CancelledError(None, None, "Session was closed.")
        if self.worker is not None:
            self.worker.close_session(session, error)
        for task in tasks:
            if task.peer is not None:
                self.send(task.peer, Message(Kind.CLOSE, 0, {"session": session}))

    def reset(self, containers: Iterable[str] | None, options: SessionOptions) -> None:
        """Clear containers (None: all) on all selected tasks and close the tasks' sessions."""
        names = [*containers] if containers else None
        tasks = {
            task: address
            for task, address in all_tasks(self._cluster(options))
            if passes(task, options.device_filters) and (self.worker is None or task != self.task)
        }
        if self.worker is not None:
            self.worker.reset(names)
        message = Message(Kind.RESET, 0, {"containers": names})
        _RetryingBroadcast(self.endpoint, tasks, message, options.timeout_in_ms).answers()


class Client(Member):
    """A process that is not a task itself and knows the address of one."""

    def __init__(self, address: str) -> None:
        super().__init__(None)
        self._address = address
        self.task = ""

    def _cluster(self, options: SessionOptions) -> ClusterSpec:
        tasks = {"": self._address}
        message = Message(Kind.STATUS)
        replies = _RetryingBroadcast(self.endpoint, tasks, message, options.timeout_in_ms).answers()
        _, reply = replies[""]
        self.task = reply.fields["task"]
        return ClusterSpec(reply.fields["cluster"])

    def close(self, session: str, tasks: Iterable[TaskInfo]) -> None:
        super().close(session, tasks)
        self.endpoint.close()


class _RetryingBroadcast:
    """One request to several tasks, retried on those that are not up yet."""

    def __init__(
        self,
        endpoint: Endpoint,
        tasks: Mapping[str, str],
        message: Message,
        timeout_in_ms: int,
    ) -> None:
        self._endpoint, self._tasks, self._message = endpoint, tasks, message
        self._answers = SimpleQueue[tuple[str, Peer, Message | None, Exception | None]]()
        self._limit = timeout_in_ms / 1000 if timeout_in_ms else None

    def answers(self) -> dict[str, tuple[Peer, Message]]:
        """The replies of all tasks; waits for tasks to come up until the timeout, if any."""
        started = last_warning = time.monotonic()
        replies: dict[str, tuple[Peer, Message]] = {}
        for task in self._tasks:
            self._request(task)
        while len(replies) < len(self._tasks):
            reply = self._next_reply()
            now = time.monotonic()
            missing = [task for task in self._tasks if task not in replies]
            if reply is not None:
                task, peer, message, _ = reply
                if message is None:
                    self._request(task)
                elif message.kind is Kind.FAILED:
                    raise failures.decode(message.fields)
                else:
                    replies[task] = peer, message
            if self._limit is not None and now - started > self._limit:
                raise errors.DeadlineExceededError(None, None, _waiting_text(missing, self._tasks))
            if now - last_warning > _PATIENCE:
                last_warning = now
                tf_logging.warning("%s", _waiting_text(missing, self._tasks))
        return replies

    def _next_reply(self) -> Any:
        timeout = _PATIENCE if self._limit is None else min(_PATIENCE, self._limit)
        try:
            return self._answers.get(timeout=timeout)
        except Empty:
            return None

    def _request(self, task: str) -> None:
        peer = self._endpoint.peer(self._tasks[task])

        def done(message: Message | None, error: Exception | None) -> None:
            if isinstance(error, errors.UnauthenticatedError | errors.FailedPreconditionError):
                message = Message(Kind.FAILED, 0, failures.encode(error, task))
            self._answers.put((task, peer, message, error))

        peer.request(self._message, done)


def _waiting_text(missing: Iterable[str], tasks: Mapping[str, str]) -> str:
    named = ", ".join(f"{task or 'the target'} ({tasks[task]})" for task in missing)
    return (
        f"Waiting for tasks that do not answer: {named}. "
        "tf.ConfigProto(operation_timeout_in_ms=...) limits how long, device_filters for which"
    )
