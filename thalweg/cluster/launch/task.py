"""Which task of a cluster a process is, and how its program is told: TF_CONFIG and flags."""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from thalweg.cluster.spec import ClusterSpec

#: What old programs call their flags, filled in as `expanded` does.
FLAGS = (
    "--job_name={job}",
    "--task_index={index}",
    "--ps_hosts={ps_hosts}",
    "--worker_hosts={worker_hosts}",
)


class Task(NamedTuple):
    """A task, by its job and its index there."""

    job: str
    index: int

    def __str__(self) -> str:
        return f"{self.job}:{self.index}"


def tasks_of(jobs: Mapping[str, int]) -> list[Task]:
    """The tasks of jobs, given how many each has."""
    return [Task(job, index) for job, count in jobs.items() for index in range(count)]


def environment(cluster: ClusterSpec, task: Task) -> dict[str, str]:
    """What the environment of a task tells it, besides what its parent's does."""
    about = {"type": task.job, "index": task.index}
    config = json.dumps({"cluster": cluster.as_dict(), "task": about})
    return {"TF_CONFIG": config, "PYTHONUNBUFFERED": "1"}  # lines are shown when they are printed


def expanded(words: Sequence[str], cluster: ClusterSpec, task: Task) -> list[str]:
    """Words of a command line with {python}, {job}, {index} and {<job>_hosts} replaced."""
    names = {"{python}": sys.executable, "{job}": task.job, "{index}": str(task.index)}
    for job in cluster.jobs:
        names[f"{{{job}_hosts}}"] = ",".join(map(str, cluster.job_tasks(job)))
    return [_replaced(word, names) for word in words]


def _replaced(word: str, names: Mapping[str, str]) -> str:
    for name, value in names.items():
        word = word.replace(name, value)
    return word
