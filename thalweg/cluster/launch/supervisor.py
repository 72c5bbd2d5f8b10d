"""Supervises the tasks of a program: starts them, restarts failed ones, stops them together.

Parameter servers run until all other tasks have ended. A task that exceeds its restarts stops all
others; so does the cancellation of `Supervisor.run`, for example by a signal handler.
"""

from __future__ import annotations

import asyncio
import signal
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from thalweg.cluster.launch.task import Task
from thalweg.cluster.spec import ClusterSpec

SERVING_JOBS = ("ps",)  # jobs whose tasks never exit by themselves


class Process(Protocol):
    """A started task."""

    async def wait(self) -> int:
        """Wait for the exit status; the negated signal number if a signal killed it."""
        ...

    async def stop(self) -> None:
        """Terminate it if it is running."""
        ...


class Site(Protocol):
    """A place to run tasks: this machine or Ray."""

    cluster: ClusterSpec

    async def start(self, task: Task, write: Callable[[str], None]) -> Process:
        """Start or restart a task; `write` is called with each line of its output."""
        ...

    def close(self) -> None:
        """Release the resources of the site."""
        ...


class TaskFailed(Exception):
    """A task failed and has no restarts left."""


@dataclass
class Supervisor:
    """Runs tasks until all have succeeded or one has failed for good.

    Args:
        tasks: all tasks.
        start: starts one task.
        restarts: how often each task may be restarted after a failure.
        tell: reports an event of a task as text.
    """

    tasks: Sequence[Task]
    start: Callable[[Task], Awaitable[Process]]
    restarts: int
    tell: Callable[[Task, str], None]
    states: dict[Task, str] = field(default_factory=dict[Task, str])

    async def run(self) -> None:
        """Run all tasks; raises the first error, TaskFailed if a task failed for good."""
        self.states = dict.fromkeys(self.tasks, "waiting")
        try:
            async with asyncio.TaskGroup() as group:
                supervised = {
                    task: group.create_task(self._run_with_restarts(task)) for task in self.tasks
                }
                group.create_task(self._stop_serving_tasks(supervised))
        except ExceptionGroup as failures:  # except* of Python 3.11.2 wraps what it raises
            raise failures.exceptions[0] from None

    async def _stop_serving_tasks(self, supervised: dict[Task, asyncio.Task[None]]) -> None:
        """Cancel serving tasks once all others have ended."""
        working = [supervised[task] for task in self.tasks if task.job not in SERVING_JOBS]
        await asyncio.wait(working or supervised.values())
        for task in self.tasks:
            supervised[task].cancel()

    async def _run_with_restarts(self, task: Task) -> None:
        for remaining in range(self.restarts, -1, -1):
            status = await self._run_once(task)
            if status == 0:
                return
            if remaining == 0:
                raise TaskFailed(f"{task} {ending(status)}")
            self.tell(
                task, f"{ending(status)} and is started again, {remaining} of {self.restarts} left"
            )

    async def _run_once(self, task: Task) -> int:
        process = await self.start(task)
        self.states[task], end_state = "running", "stopped"
        try:
            status = await process.wait()
            end_state = "failed" if status else "done"
        finally:
            await process.stop()
            self.states[task] = end_state
        return status


def ending(status: int) -> str:
    """A description of how a process ended."""
    if status >= 0:
        return f"ended with status {status}"
    try:
        return f"was killed by {signal.Signals(-status).name}"
    except ValueError:
        return f"was killed by signal {-status}"
