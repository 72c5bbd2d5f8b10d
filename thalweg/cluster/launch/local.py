"""Tasks as local processes: loopback ports, line-by-line output, termination by signals."""

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
_LAST_LINES = 1.0  # seconds to drain the output of a process that has exited
_CHUNK = 1 << 16


def loopback_cluster(jobs: Mapping[str, int]) -> ClusterSpec:
    """A cluster on this machine, on free loopback ports."""
    ports = iter(free_ports(sum(jobs.values())))
    return ClusterSpec(
        {job: [f"127.0.0.1:{next(ports)}" for _ in range(count)] for job, count in jobs.items()}
    )


class LocalSite:
    """Starts a program as the tasks of a cluster on this machine.

    Args:
        words: the command line of every task, with the placeholders of `expanded`.
        jobs: the number of tasks of each job.
    """

    def __init__(self, words: Sequence[str], jobs: Mapping[str, int]) -> None:
        self._words = words
        self.cluster = loopback_cluster(jobs)

    async def start(self, task: Task, write: Callable[[str], None]) -> LocalProcess:
        """Start a task; `write` is called with each line of its output."""
        command = expanded(self._words, self.cluster, task)
        return await LocalProcess.start(command, environment(self.cluster, task), write)

    def close(self) -> None:
        """Does nothing: a local site holds no resources beyond its processes."""


class LocalProcess:
    """A task in its own process and process group."""

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
        """Start a command; `write` is called with each line of its output."""
        process = await asyncio.create_subprocess_exec(
            *command, stdout=PIPE, stderr=STDOUT, env=os.environ | settings, process_group=0
        )
        return cls(process, write, grace)

    @property
    def pid(self) -> int:
        """The id of the process and of its group."""
        return self._process.pid

    async def wait(self) -> int:
        """Wait for the exit status and the end of the output."""
        status = await self._process.wait()
        await asyncio.wait([self._output], timeout=_LAST_LINES)  # children may hold the pipe
        return status

    async def stop(self) -> None:
        """Terminate the process group: SIGTERM, then SIGKILL after the grace period."""
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
