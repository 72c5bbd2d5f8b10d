"""Training goes on while tasks are killed; `make chaos` has more of it, for ten minutes."""

from __future__ import annotations

import asyncio
from pathlib import Path
from random import Random

import pytest

from tests.soak import rounds
from tests.soak.chaos.checks import check_checkpoints, loss_of
from tests.soak.chaos.job import KILL, Job

pytest.importorskip("zmq")
pytestmark = pytest.mark.timeout(3600)

HITS = rounds(3, 30)
STEPS = 300  # after which the model has learnt


def test_a_cluster_trains_on_though_its_tasks_are_killed(tmp_path: Path) -> None:
    job = Job(tmp_path / "job", {"ps": 2, "worker": 2}, Random(3), max_hang=120)
    asyncio.run(job.run([KILL], lambda job: job.happened.total() >= HITS, STEPS))
    last = check_checkpoints(job.folder)
    assert last["global_step"] >= STEPS
    assert loss_of(last) < 0.05  # the noise alone is 0.01
