"""What runs on Ray: the tasks of a cluster, and the roster that knows where each of them is.

A task enters the roster whenever it starts: for the first time, because its job grows, or again
after it died. The roster tells all others, so that tasks may move between machines.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from thalweg import errors
from thalweg.cluster.addresses import free_ports, parsed
from thalweg.cluster.launch.ray_library import library, node_address
from thalweg.cluster.launch.task import Task
from thalweg.cluster.server import Server
from thalweg.graph.graph import Graph

Jobs = dict[str, dict[int, str]]


class Roster:
    """The actor that knows where the tasks are."""

    def __init__(self) -> None:
        self._addresses: dict[Task, str] = {}
        self._actors: dict[Task, Any] = {}
        self._version = 0

    def enter(self, task: Task, offered: str, keeps: bool, actor: Any) -> tuple[int, Jobs]:
        """A task starts; where it and all others are.

        Args:
            offered: an address of the task's machine that is free.
            keeps: whether to have its old address rather, if that is on the same machine.
            actor: who is told of others.
        """
        old = self._addresses.get(task)
        if old is None or not keeps or parsed(old)[0] != parsed(offered)[0]:
            self._addresses[task] = offered
        self._actors[task] = actor
        self._version += 1
        for other, each in self._actors.items():
            if other != task:
                each.update.remote(*self.cluster())
        return self.cluster()

    def cluster(self) -> tuple[int, Jobs]:
        """All tasks, and how many times somebody has entered."""
        jobs: Jobs = {}
        for (job, index), address in sorted(self._addresses.items()):
            jobs.setdefault(job, {})[index] = address
        return self._version, jobs


class RayTask:
    """The actor that is a task: a server in a process of Ray's."""

    def __init__(self, roster: str, job: str, index: int, key: str, is_local: bool) -> None:
        os.environ["THALWEG_CLUSTER_KEY"] = key
        self._task = Task(job, index)
        self._host = "127.0.0.1" if is_local else node_address()
        self._roster = library().get_actor(roster)  # by its name: Ray keeps that for restarts
        self._version = 0
        try:
            self._server = self._listen(keeps=True)
        except errors.UnknownError:  # somebody else is at its old address
            self._server = self._listen(keeps=False)

    def _listen(self, keeps: bool) -> Server:
        ray = library()
        (port,) = free_ports(1, self._host)
        itself = ray.get_runtime_context().current_actor
        entered = self._roster.enter.remote(self._task, f"{self._host}:{port}", keeps, itself)
        self._version, jobs = ray.get(entered)
        return Server(jobs, *self._task)

    def update(self, version: int, jobs: Jobs) -> None:
        """Hear where all tasks are; what is older than what is known is passed over."""
        if version > self._version:
            self._version = version
            self._server.update(jobs)

    def target(self) -> str:
        """What sessions connect to."""
        return self._server.target

    def run(
        self, function: Callable[..., Any], given: Sequence[Any], named: Mapping[str, Any]
    ) -> Any:
        """Call a user's function with the server, in a graph of its own."""
        with Graph().as_default():
            return function(self._server, *given, **named)
