"""Keeps the tasks of a program running: starts them, starts the dead again, ends them together.

Parameter servers serve for as long as other tasks run. A task that fails more often than it may
ends all; so does a cancellation of `Supervisor.run`, which comes from a signal.
"""

from __future__ import annotations

import asyncio
import signal
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from thalweg.cluster.launch.task import Task
from thalweg.cluster.spec import ClusterSpec

SERVING_JOBS = ("ps",)  # whose tasks do not end by themselves


class Process(Protocol):
    """A task that was started."""

    async def wait(self) -> int:
        """Its exit status; minus the number of the signal that ended it."""
        ...

    async def stop(self) -> None:
        """End it, if it has not ended."""
        ...


class Site(Protocol):
    """Where tasks run."""

    cluster: ClusterSpec

    async def start(self, task: Task, write: Callable[[str], None]) -> Process:
        """Start a task, for the first time or again; `write` is given its output line by line."""
        ...

    def close(self) -> None:
        """Give back what was taken for the tasks."""
        ...


class TaskFailed(Exception):
    """A task ended with an error, more often than it may."""


@dataclass
class Supervisor:
    """Runs tasks until all have done their work, or one has failed.

    Args:
        tasks: all tasks.
        start: starts one of them.
        restarts: how often each may be started again after it failed.
        tell: is told in words of what happens to a task.
    """

    tasks: Sequence[Task]
    start: Callable[[Task], Awaitable[Process]]
    restarts: int
    tell: Callable[[Task, str], None]
    states: dict[Task, str] = field(default_factory=dict[Task, str])

    async def run(self) -> None:
        """Run all; raises what went wrong first, TaskFailed where a task did."""
        self.states = dict.fromkeys(self.tasks, "waiting")
        try:
            async with asyncio.TaskGroup() as group:
                kept = {task: group.create_task(self._keep(task)) for task in self.tasks}
                group.create_task(self._dismiss(kept))
        except* Exception as failures:
            raise failures.exceptions[0] from None

    async def _dismiss(self, kept: dict[Task, asyncio.Task[None]]) -> None:
        """End the tasks that only serve when the others have ended."""
        working = [kept[task] for task in self.tasks if task.job not in SERVING_JOBS]
        await asyncio.wait(working or kept.values())
        for task in self.tasks:
            kept[task].cancel()

    async def _keep(self, task: Task) -> None:
        for left in range(self.restarts, -1, -1):
            status = await self._run_once(task)
            if status == 0:
                return
            if left == 0:
                raise TaskFailed(f"{task} {ending(status)}")
            self.tell(
                task, f"{ending(status)} and is started again, {left} of {self.restarts} left"
            )

    async def _run_once(self, task: Task) -> int:
        process = await self.start(task)
        self.states[task], ended = "running", "stopped"
        try:
            status = await process.wait()
            ended = "failed" if status else "done"
        finally:
            await process.stop()
            self.states[task] = ended
        return status


def ending(status: int) -> str:
    """How a process ended, in words."""
    if status >= 0:
        return f"ended with status {status}"
    try:
        return f"was killed by {signal.Signals(-status).name}"
    except ValueError:
        return f"was killed by signal {-status}"
