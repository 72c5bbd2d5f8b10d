"""Which tasks are started, started again and ended, when others end in this way or that."""

from __future__ import annotations

import asyncio

import pytest

from thalweg.cluster.launch.supervisor import Supervisor, TaskFailed, ending
from thalweg.cluster.launch.task import Task, tasks_of

PS, CHIEF, WORKER = Task("ps", 0), Task("worker", 0), Task("worker", 1)
FOR_EVER = None


class Fake:
    """A process that ends with a status at once, or never."""

    def __init__(self, log, task, status):
        self.log, self.task, self.status = log, task, status

    async def wait(self):
        if self.status is FOR_EVER:
            await asyncio.Event().wait()
        return self.status

    async def stop(self):
        self.log.append(f"{self.task} stopped")


def supervised(scripts, restarts=0):
    """A supervisor of processes that end as their scripts say, and what it does."""
    log = []
    left = {task: list(statuses) for task, statuses in scripts.items()}

    async def start(task):
        log.append(f"{task} started")
        return Fake(log, task, left[task].pop(0))

    def tell(task, text):
        log.append(f"{task} {text}")

    return Supervisor(list(scripts), start, restarts, tell), log


def test_servers_end_with_the_workers():
    supervisor, log = supervised({PS: [FOR_EVER], CHIEF: [0], WORKER: [0]})
    asyncio.run(supervisor.run())
    assert supervisor.states == {PS: "stopped", CHIEF: "done", WORKER: "done"}
    assert log.count("ps:0 stopped") == 1


def test_servers_alone_run_until_they_end():
    supervisor, _ = supervised({PS: [0], Task("ps", 1): [0]})
    asyncio.run(supervisor.run())
    assert set(supervisor.states.values()) == {"done"}


def test_the_first_failure_ends_all():
    supervisor, log = supervised({PS: [FOR_EVER], CHIEF: [FOR_EVER], WORKER: [3]})
    with pytest.raises(TaskFailed, match="worker:1 ended with status 3"):
        asyncio.run(supervisor.run())
    assert supervisor.states == {PS: "stopped", CHIEF: "stopped", WORKER: "failed"}
    assert {"ps:0 stopped", "worker:0 stopped"} <= set(log)


def test_a_task_that_cannot_be_started_ends_all():
    supervisor, log = supervised({PS: [FOR_EVER], CHIEF: []})
    with pytest.raises(IndexError):
        asyncio.run(supervisor.run())
    assert log.count("ps:0 stopped") == 1


def test_the_dead_are_started_again_as_often_as_they_may():
    supervisor, log = supervised({PS: [-9, FOR_EVER], CHIEF: [1, 1, 0]}, restarts=2)
    asyncio.run(supervisor.run())
    assert log.count("worker:0 started") == 3
    assert log.count("ps:0 started") == 2
    assert "ps:0 was killed by SIGKILL and is started again, 2 of 2 left" in log
    supervisor, log = supervised({CHIEF: [1, 1, 1, 0]}, restarts=2)
    with pytest.raises(TaskFailed):
        asyncio.run(supervisor.run())
    assert log.count("worker:0 started") == 3


def test_cancelling_ends_all():
    supervisor, _ = supervised({PS: [FOR_EVER], CHIEF: [FOR_EVER]})

    async def cancelled():
        running = asyncio.create_task(supervisor.run())
        while set(supervisor.states.values()) != {"running"}:
            await asyncio.sleep(0)
        running.cancel()
        await asyncio.wait([running])
        assert running.cancelled()

    asyncio.run(cancelled())
    assert set(supervisor.states.values()) == {"stopped"}


def test_endings_are_named():
    assert ending(-15) == "was killed by SIGTERM"
    assert ending(-200) == "was killed by signal 200"


def test_tasks_of_jobs():
    assert tasks_of({"ps": 1, "worker": 2}) == [PS, CHIEF, WORKER]
