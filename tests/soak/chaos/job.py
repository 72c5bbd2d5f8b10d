"""A training job under disturbances, and what it must keep to while they go on.

The tasks are kept running by Thalweg's own supervisor. Whenever all of them are well again, every
worker must make steps within some seconds.
"""

from __future__ import annotations

import asyncio
import os
import signal
import sys
import time
from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from random import Random
from typing import Any, NamedTuple

from tests.soak.chaos import trainee
from tests.soak.chaos.network import Network, Quality
from thalweg.cluster.launch.local import LocalProcess, loopback_cluster
from thalweg.cluster.launch.supervisor import Supervisor
from thalweg.cluster.launch.task import Task, environment, tasks_of
from thalweg.cluster.spec import ClusterSpec

MAX_HANG = 10.0  # seconds
STEPS_OF_PROGRESS = 3  # of each worker: the first may be one that was under way
LAST_STEPS = 100  # after the disturbances
_START = 240.0  # seconds in which a task that was started must be up
_LOSSY = Quality(delay=0.05, loss=0.2)


class Hang(AssertionError):
    """The job did not go on."""


class Disturbance(NamedTuple):
    """Something that happens to a task, for a while."""

    kind: str
    begin: Callable[[Job, Task], None]
    end: Callable[[Job, Task], None]
    max_seconds: float


class Recovery(NamedTuple):
    """How long it took until all workers went on."""

    kinds: str
    seconds: float


@dataclass
class Job:
    """The tasks of a training job.

    Args:
        folder: where checkpoints and logs go.
        jobs: how many tasks each job has.
        random: what happens, and when.
        network: where the tasks run; on loopback if None.
        max_hang: seconds from when all tasks are well until all workers have made steps.
    """

    folder: Path
    jobs: dict[str, int]
    random: Random
    network: Network | None = None
    max_hang: float = MAX_HANG
    recoveries: list[Recovery] = field(default_factory=list[Recovery])
    happened: Counter[str] = field(default_factory=Counter[str])
    step: int = 0

    def __post_init__(self) -> None:
        self.tasks = tasks_of(self.jobs)
        self._numbers = {task: number for number, task in enumerate(self.tasks)}
        self._cluster = self._make_cluster()
        self._processes: dict[Task, LocalProcess] = {}
        self._up: set[Task] = set()
        self._steps = Counter[Task]()
        self._changed = asyncio.Event()
        self._logs: dict[Task, Any] = {}
        self.folder.mkdir(parents=True)

    def _make_cluster(self) -> ClusterSpec:
        if self.network is None:
            return loopback_cluster(self.jobs)
        spec: dict[str, list[str]] = {}
        for task, number in self._numbers.items():
            spec.setdefault(task.job, []).append(self.network.address(number))
        return ClusterSpec(spec)

    # Running

    async def run(
        self, disturbances: Sequence[Disturbance], is_enough: Callable[[Job], bool], min_steps: int
    ) -> None:
        """Train under disturbances until there were enough, and some steps after them."""
        supervisor = Supervisor(self.tasks, self._start, 10**9, self._tell)
        async with asyncio.TaskGroup() as group:
            running = group.create_task(supervisor.run())
            try:
                await self._go_on("start")
                while not is_enough(self):
                    await self._disturb(disturbances)
                last = max(self.step + LAST_STEPS, min_steps)
                (self.folder / "last_step").write_text(str(last))
                await self._end(running, last)
            except BaseException:
                self._dump()
                running.cancel()
                raise
        for log in self._logs.values():
            log.close()

    async def _disturb(self, disturbances: Sequence[Disturbance]) -> None:
        """One disturbance, or some in a row, before the job has recovered."""
        count = self.random.choice([1, 1, 1, 2, 3])
        kinds = " + ".join([await self._hit(disturbances) for _ in range(count)])
        await self._go_on(kinds)
        await asyncio.sleep(self.random.uniform(0, 2))

    async def _hit(self, disturbances: Sequence[Disturbance]) -> str:
        chosen, task = self.random.choice(disturbances), self.random.choice(self.tasks)
        self.note(f"{chosen.kind} {task}")
        self.happened[chosen.kind] += 1
        chosen.begin(self, task)
        try:
            await asyncio.sleep(self.random.uniform(0, chosen.max_seconds))
        finally:
            chosen.end(self, task)
        return f"{chosen.kind} {task}"

    async def _go_on(self, kinds: str) -> None:
        """Wait until all tasks are up, and then until all workers make steps."""
        await self._until(lambda: len(self._up) == len(self.tasks), _START, "are not up")
        started, before = time.monotonic(), self._steps.copy()
        workers = [task for task in self.tasks if task.job == "worker"]
        await self._until(
            lambda: all(self._steps[w] - before[w] >= STEPS_OF_PROGRESS for w in workers),
            self.max_hang,
            f"make no steps after {kinds}",
        )
        self.recoveries.append(Recovery(kinds, time.monotonic() - started))
        self.note(f"all went on after {self.recoveries[-1].seconds:.1f} s at step {self.step}")

    async def _end(self, running: asyncio.Task[None], last: int) -> None:
        """Wait for the last step; the job may not hang on its way there."""
        while not running.done():
            at = self._steps.total(), len(self._up)
            with suppress(TimeoutError):
                await asyncio.wait_for(asyncio.shield(running), self.max_hang)
            if not running.done() and at == (self._steps.total(), len(self._up)):
                raise Hang(f"step {last} is not reached: {self.step}")

    async def _until(self, is_so: Callable[[], bool], seconds: float, otherwise: str) -> None:
        try:
            async with asyncio.timeout(seconds):
                while not is_so():
                    self._changed.clear()
                    await self._changed.wait()
        except TimeoutError:
            raise Hang(f"for {seconds:g} s tasks {otherwise}") from None

    # Tasks

    async def _start(self, task: Task) -> LocalProcess:
        command = [sys.executable, trainee.__file__, str(self.folder)]
        settings = environment(self._cluster, task)
        if self.network is not None:
            command = self.network.command(self._numbers[task], command)
            settings["THALWEG_SHARED_MEMORY"] = "0"  # there is but the network between machines
        process = await LocalProcess.start(command, settings, partial(self._heard, task))
        self._processes[task] = process
        return process

    def _heard(self, task: Task, line: str) -> None:
        log = self._logs.get(task) or (self.folder / f"{task}.log").open("a")
        self._logs[task] = log
        print(f"{time.monotonic():.2f} {line}", file=log, flush=True)
        if line == "up":
            self._up.add(task)
        elif line.startswith("step "):
            self._steps[task] += 1
            self.step = int(line.removeprefix("step "))
        self._changed.set()

    def _tell(self, task: Task, what: str) -> None:
        self.note(f"{task} {what}")

    def note(self, text: str) -> None:
        """Write a line about the job."""
        with (self.folder / "job.log").open("a") as log:
            print(f"{time.monotonic():.2f} {text}", file=log)

    def signal(self, task: Task, number: signal.Signals) -> None:
        """Send a signal to a task."""
        if number is signal.SIGKILL:
            self._up.discard(task)
        with suppress(ProcessLookupError):
            os.kill(self._processes[task].pid, number)

    def link(self, task: Task, act: Callable[[Network, int], None]) -> None:
        """Do something to the link of a task."""
        if self.network is not None:
            act(self.network, self._numbers[task])

    def _dump(self) -> None:
        """Have all tasks write to their logs where their threads are."""
        for task in self.tasks:
            self.signal(task, signal.SIGUSR1)
        time.sleep(1)


def _nothing(job: Job, task: Task) -> None:
    """What is over at once."""


KILL = Disturbance("kill", lambda job, task: job.signal(task, signal.SIGKILL), _nothing, 1.0)
PAUSE = Disturbance(
    "pause",
    lambda job, task: job.signal(task, signal.SIGSTOP),
    lambda job, task: job.signal(task, signal.SIGCONT),
    8.0,
)
CUT = Disturbance(
    "cut off",
    lambda job, task: job.link(task, Network.cut),
    lambda job, task: job.link(task, Network.mend),
    8.0,
)
SPOIL = Disturbance(
    "delay and loss",
    lambda job, task: job.link(task, lambda network, at: network.spoil(at, _LOSSY)),
    lambda job, task: job.link(task, Network.mend),
    5.0,
)
