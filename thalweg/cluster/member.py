"""A process's place in a cluster: its endpoint, and the masters of its sessions.

A client knows one task, whom it asks for the others. A server is a task itself. Both open sessions
on all tasks that they use, wait for those that are not up yet, and hear of tasks that are lost.
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
from thalweg.cluster.values import Held
from thalweg.cluster.wire import Kind, Message
from thalweg.cluster.worker import Done, Worker
from thalweg.platform import tf_logging
from thalweg.runtime.config import SessionOptions

_PATIENCE = 10.0  # seconds between two lines about a task that does not answer
_PAUSE = 0.1  # seconds until a task that refused is asked again


class Losing(Protocol):
    """Who is told of lost tasks."""

    def lost(self, address: str, error: errors.OpError) -> None:
        """A task is gone."""
        ...


class Member:
    """What a client and a server have in common."""

    worker: Worker | None = None  # the task of this process
    task: str  # the one that sessions use where nothing else is asked for

    def __init__(self, bind: str | None) -> None:
        self._masters: weakref.WeakSet[Any] = weakref.WeakSet()
        self.endpoint = Endpoint(self, bind)

    # Messages

    def received(self, peer: Peer, message: Message) -> None:
        """A message that answers none of ours."""
        if message.kind is Kind.LOST:
            error, pair = failures.decode(message.fields), set(message.fields["tasks"])
            for master in list(self._masters):
                master.parted(pair, error)

    def lost(self, peer: Peer, error: errors.OpError) -> None:
        """A peer is gone."""
        for master in list(self._masters):
            master.lost(peer.address, error)

    @staticmethod
    def send(peer: Peer, message: Message) -> None:
        """Send a message to a task that may be lost."""
        try:
            peer.send(message)
        except errors.OpError:
            tf_logging.debug("%s is lost: no message", peer.address)

    # Sessions

    def open(self, session: str, master: Losing, options: SessionOptions) -> dict[str, TaskInfo]:
        """Open a session on all tasks; those that answered, the own one first."""
        self._masters.add(master)
        tasks = dict(all_tasks(self._cluster(options)))
        own = [self.task] if self.task in tasks else []
        used = {
            task: tasks[task]
            for task in [*own, *sorted(tasks.keys() - own)]
            if task in own or passes(task, options.device_filters)
        }
        answers = {} if self.worker is None else {self.task: self._open_own(session)}
        asked = {task: address for task, address in used.items() if task not in answers}
        message = Message(Kind.STATUS, 0, {"session": session})
        found = _Asking(self.endpoint, asked, message, options.timeout_in_ms).answers()
        answers |= {task: _info(task, *answer) for task, answer in found.items()}
        return {task: answers[task] for task in used}

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
        later: Callable[[Callable[[], None]], None],
        held: Held | None = None,
    ) -> None:
        """Begin the part of this process in a step, as `Worker.start` does."""
        raise NotImplementedError

    def close(self, session: str, tasks: Iterable[TaskInfo]) -> None:
        """End a session on all tasks."""
        closed = errors.CancelledError(None, None, "Session was closed.")
        if self.worker is not None:
            self.worker.close_session(session, closed)
        for task in tasks:
            if task.peer is not None:
                self.send(task.peer, Message(Kind.CLOSE, 0, {"session": session}))

    def reset(self, containers: Iterable[str] | None, options: SessionOptions) -> None:
        """Have all tasks forget containers, or all they have, and their sessions."""
        named = [*containers] if containers else None
        tasks = {
            task: address
            for task, address in all_tasks(self._cluster(options))
            if passes(task, options.device_filters) and (self.worker is None or task != self.task)
        }
        if self.worker is not None:
            self.worker.reset(named)
        message = Message(Kind.RESET, 0, {"containers": named})
        _Asking(self.endpoint, tasks, message, options.timeout_in_ms).answers()


class Client(Member):
    """A process that is no task: it knows the address of one."""

    def __init__(self, address: str) -> None:
        super().__init__(None)
        self._address = address
        self.task = ""

    def _cluster(self, options: SessionOptions) -> ClusterSpec:
        asking = {"": self._address}
        message = Message(Kind.STATUS)
        found = _Asking(self.endpoint, asking, message, options.timeout_in_ms).answers()
        _, answer = found[""]
        self.task = answer.fields["task"]
        jobs: Mapping[str, Mapping[str, str]] = answer.fields["cluster"]
        return ClusterSpec({job: {int(i): a for i, a in jobs[job].items()} for job in jobs})

    def close(self, session: str, tasks: Iterable[TaskInfo]) -> None:
        super().close(session, tasks)
        self.endpoint.close()


class _Asking:
    """One question to several tasks, put again to those that are not up yet."""

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
        """The answers of all tasks, however long they take to come up."""
        started = said = time.monotonic()
        found: dict[str, tuple[Peer, Message]] = {}
        for task in self._tasks:
            self._ask(task)
        while len(found) < len(self._tasks):
            answer = self._next()
            now = time.monotonic()
            missing = [task for task in self._tasks if task not in found]
            if answer is not None:
                task, peer, message, _ = answer
                if message is None:
                    self._ask(task)
                elif message.kind is Kind.FAILED:
                    raise failures.decode(message.fields)
                else:
                    found[task] = peer, message
            if self._limit is not None and now - started > self._limit:
                raise errors.DeadlineExceededError(None, None, _waiting(missing, self._tasks))
            if now - said > _PATIENCE:
                said = now
                tf_logging.warning("%s", _waiting(missing, self._tasks))
        return found

    def _next(self) -> Any:
        patience = _PATIENCE if self._limit is None else min(_PATIENCE, self._limit)
        try:
            return self._answers.get(timeout=patience)
        except Empty:
            return None

    def _ask(self, task: str) -> None:
        peer = self._endpoint.peer(self._tasks[task])

        def done(message: Message | None, error: Exception | None) -> None:
            if isinstance(error, errors.UnauthenticatedError | errors.FailedPreconditionError):
                message = Message(Kind.FAILED, 0, failures.encode(error, task))
            self._answers.put((task, peer, message, error))

        peer.request(self._message, done)


def _waiting(missing: Iterable[str], tasks: Mapping[str, str]) -> str:
    named = ", ".join(f"{task or 'the target'} ({tasks[task]})" for task in missing)
    return (
        f"Waiting for tasks that do not answer: {named}. "
        "tf.ConfigProto(operation_timeout_in_ms=...) limits how long, device_filters for which"
    )


def _info(task: str, peer: Peer, answer: Message) -> TaskInfo:
    return TaskInfo(task, peer.address, answer.fields["devices"], peer)
