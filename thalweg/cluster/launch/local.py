"""Tasks as processes of this machine: own ports on loopback, lines of output, signals."""

from __future__ import annotations

import asyncio
import os
import signal
from asyncio.subprocess import PIPE, STDOUT
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import suppress

from thalweg.cluster.addresses import free_ports
from thalweg.cluster.launch.task import Task, environment, expanded
from thalweg.cluster.spec import ClusterSpec

_GRACE = 5.0  # seconds from SIGTERM to SIGKILL
_LAST_LINES = 1.0  # seconds in which the output of a process that has ended is read to its end
_CHUNK = 1 << 16


def loopback_cluster(jobs: Mapping[str, int]) -> ClusterSpec:
    """A cluster of this machine, at ports that are free."""
    ports = iter(free_ports(sum(jobs.values())))
    return ClusterSpec(
        {job: [f"127.0.0.1:{next(ports)}" for _ in range(count)] for job, count in jobs.items()}
    )


class LocalSite:
    """Starts a program as the tasks of a cluster of this machine.

    Args:
        words: the command line of each task, as `expanded` takes it.
        jobs: how many tasks each job has.
    """

    def __init__(self, words: Sequence[str], jobs: Mapping[str, int]) -> None:
        self._words = words
        self.cluster = loopback_cluster(jobs)

    async def start(self, task: Task, write: Callable[[str], None]) -> LocalProcess:
        """Start a task; `write` is given its output line by line."""
        command = expanded(self._words, self.cluster, task)
        return await LocalProcess.start(command, environment(self.cluster, task), write)

    def close(self) -> None:
        """Nothing is left of a site whose tasks have ended."""


class LocalProcess:
    """A task in a process, and a group of processes, of its own."""

    def __init__(
        self, process: asyncio.subprocess.Process, write: Callable[[str], None], grace: float
    ) -> None:
        self._process = process
        self._grace = grace
        self._output = asyncio.create_task(self._pump(write))

    @classmethod
    async def start(
        cls,
        command: Sequence[str],
        settings: Mapping[str, str],
        write: Callable[[str], None],
        grace: float = _GRACE,
    ) -> LocalProcess:
        """Start a command; `write` is given its output line by line."""
        process = await asyncio.create_subprocess_exec(
            *command, stdout=PIPE, stderr=STDOUT, env=os.environ | settings, process_group=0
        )
        return cls(process, write, grace)

    @property
    def pid(self) -> int:
        """The number of the process, and of its group."""
        return self._process.pid

    async def wait(self) -> int:
        """The exit status, when all output is written."""
        status = await self._process.wait()
        await asyncio.wait([self._output], timeout=_LAST_LINES)  # a child of it may hold the pipe
        return status

    async def stop(self) -> None:
        """Ask the group to end, and kill it if it does not."""
        for number in (signal.SIGTERM, signal.SIGKILL):
            if self._process.returncode is not None:
                break
            with suppress(ProcessLookupError):
                os.killpg(self.pid, number)
            with suppress(TimeoutError):
                await asyncio.wait_for(self._process.wait(), self._grace)
        self._output.cancel()

    async def _pump(self, write: Callable[[str], None]) -> None:
        if self._process.stdout is not None:
            async for line in _lines(self._process.stdout):
                write(line.decode(errors="backslashreplace").rstrip())


async def _lines(stream: asyncio.StreamReader) -> AsyncIterator[bytes]:
    rest = b""
    while chunk := await stream.read(_CHUNK):
        *lines, rest = (rest + chunk).split(b"\n")
        for line in lines:
            yield line
    if rest:
        yield rest
