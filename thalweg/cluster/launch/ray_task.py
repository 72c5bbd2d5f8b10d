"""The Ray actors of a cluster: its tasks, and the task registry with the address of each.

A task registers with the task registry on every start, the first one and restarts alike. The task
registry sends the new cluster to all other tasks, so a task may move to another machine.
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


class TaskRegistry:
    """The actor that holds the addresses of all tasks."""

    def __init__(self) -> None:
        self._addresses: dict[Task, str] = {}
        self._actors: dict[Task, Any] = {}
        self._version = 0

    def register(self, task: Task, offered: str, keeps: bool, actor: Any) -> tuple[int, Jobs]:
        """Register a task that starts; returns the version and the addresses of all tasks.

        Args:
            offered: a free address on the task's machine.
            keeps: whether to keep its previous address if that is on the same machine.
            actor: the task's actor, which is notified when other tasks register.
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
        """The version, which counts registrations, and the addresses of all tasks."""
        jobs: Jobs = {}
        for (job, index), address in sorted(self._addresses.items()):
            jobs.setdefault(job, {})[index] = address
        return self._version, jobs


class RayTask:
    """The actor of a task: a server in a Ray worker process."""

    def __init__(self, registry: str, job: str, index: int, key: str, is_local: bool) -> None:
        os.environ["THALWEG_CLUSTER_KEY"] = key
        self._task = Task(job, index)
        self._host = "127.0.0.1" if is_local else node_address()
        self._registry = library().get_actor(registry)  # by name: restarts pass it again
        self._version = 0
        try:
            self._server = self._listen(keeps=True)
        except errors.UnknownError:  # its previous address is in use
            self._server = self._listen(keeps=False)

    def _listen(self, keeps: bool) -> Server:
        ray = library()
        (port,) = free_ports(1, self._host)
        own_actor = ray.get_runtime_context().current_actor
        reply = self._registry.register.remote(self._task, f"{self._host}:{port}", keeps, own_actor)
        self._version, jobs = ray.get(reply)
        return Server(jobs, *self._task)

    def update(self, version: int, jobs: Jobs) -> None:
        """Adopt the addresses of all tasks; a version that is not newer is ignored."""
        if version > self._version:
            self._version = version
            self._server.update(jobs)

    def target(self) -> str:
        """The session target of this task."""
        return self._server.target

    def run(
        self, function: Callable[..., Any], given: Sequence[Any], named: Mapping[str, Any]
    ) -> Any:
        """Call the user's function with the server, under a new default graph."""
        with Graph().as_default():
            return function(self._server, *given, **named)
