"""A program as the tasks of a cluster on Ray: each is a child process of a Ray actor.

The program's folder is copied to the machines. A task keeps the address that its actor chose at
first, so it can be restarted if its process dies, but not if its machine does.
"""

from __future__ import annotations

import os
import secrets
import signal
import subprocess
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from thalweg.cluster.addresses import free_ports
from thalweg.cluster.launch import ray_library
from thalweg.cluster.launch.task import Task, environment, expanded, tasks_of
from thalweg.cluster.spec import ClusterSpec
from thalweg.cluster.transport.security import Security

_GRACE = 5.0  # seconds from SIGTERM to SIGKILL
_ONE_CPU = {"CPU": 1.0}


class Script:
    """The actor that runs a program as a task."""

    def __init__(self, task: Task, is_local: bool) -> None:
        self._task = task
        self._host = "127.0.0.1" if is_local else ray_library.node_address()
        (self._port,) = free_ports(1, self._host)
        self._process: subprocess.Popen[str] | None = None

    def address(self) -> str:
        """The address that the task has to listen on."""
        return f"{self._host}:{self._port}"

    def run(self, words: Sequence[str], jobs: Mapping[str, Any], key: str) -> Iterator[str | int]:
        """Run the program; yields its lines of output, then its exit status."""
        cluster = ClusterSpec(jobs)
        settings = environment(cluster, self._task) | {"THALWEG_CLUSTER_KEY": key}
        self._process = subprocess.Popen(
            expanded(words, cluster, self._task),
            env=os.environ | settings,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            errors="backslashreplace",
            process_group=0,
        )
        for line in self._process.stdout or ():  # noqa: UP028 - Ray sends None, which files do not take
            yield line
        yield self._process.wait()

    def stop(self) -> None:
        """Terminate the program if it is running."""
        process = self._process
        for number in (signal.SIGTERM, signal.SIGKILL):
            if process is None or process.poll() is not None:
                return
            os.killpg(process.pid, number)
            try:
                process.wait(_GRACE)
            except subprocess.TimeoutExpired:
                continue


class RaySite:
    """Starts a program as the tasks of a cluster on Ray.

    Args:
        words: the command line of every task, with the placeholders of `expanded`.
        jobs: the number of tasks of each job.
        address: the address of the Ray cluster, as for `tf.cluster.ray`.
        folder: the working directory of the tasks; copied to their machines.
    """

    def __init__(
        self, words: Sequence[str], jobs: Mapping[str, int], address: str | None, folder: str
    ) -> None:
        self._ray = ray_library.library()
        self._words, tasks = words, tasks_of(jobs)
        self._connection = ray_library.connect(address, {"working_dir": folder})
        name = f"thalweg-{secrets.token_hex(4)}"
        self._group = ray_library.reserve([_ONE_CPU] * len(tasks), "PACK", name)
        self._actors = {
            task: ray_library.remote(
                Script,
                _ONE_CPU,
                name=f"{name}/{task}",
                max_concurrency=2,  # `stop` is called while `run` runs
                scheduling_strategy=ray_library.bundle(self._group, index),
            ).remote(task, self._connection.is_local)
            for index, task in enumerate(tasks)
        }
        self.cluster = self._collect_addresses()

    def _collect_addresses(self) -> ClusterSpec:
        addresses = self._ray.get([actor.address.remote() for actor in self._actors.values()])
        jobs: dict[str, list[str]] = {}
        for task, address in zip(self._actors, addresses, strict=True):
            jobs.setdefault(task.job, []).append(address)
        return ClusterSpec(jobs)

    async def start(self, task: Task, write: Callable[[str], None]) -> RayProcess:
        """Start a task; `write` is called with each line of its output."""
        key = Security.of_process().key or "none"
        run = self._actors[task].run.options(num_returns="streaming")
        lines = run.remote(self._words, self.cluster.as_dict(), key)
        return RayProcess(self._actors[task], lines, write)

    def close(self) -> None:
        """Kill the actors, and disconnect from Ray if this site connected to it."""
        ray_library.release(self._group)
        if self._connection.is_new:
            self._ray.shutdown()


class RayProcess:
    """The program that runs under one actor."""

    def __init__(self, actor: Any, lines: Any, write: Callable[[str], None]) -> None:
        self._actor, self._lines, self._write = actor, lines, write

    async def wait(self) -> int:
        """Wait for the end of the output and the exit status."""
        status = 0
        async for reference in self._lines:
            item = await reference
            if isinstance(item, int):
                status = item
            else:
                self._write(item.rstrip())
        return status

    async def stop(self) -> None:
        """Terminate the program if it is running."""
        await self._actor.stop.remote()
