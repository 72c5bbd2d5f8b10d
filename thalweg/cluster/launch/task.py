"""The identity of a task, and how it is passed to its program: TF_CONFIG and flags."""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from thalweg.cluster.spec import ClusterSpec

#: The customary flags of TensorFlow 1.x programs, with the placeholders of `expanded`.
FLAGS = (
    "--job_name={job}",
    "--task_index={index}",
    "--ps_hosts={ps_hosts}",
    "--worker_hosts={worker_hosts}",
)


class Task(NamedTuple):
    """A task, identified by its job and its index in the job."""

    job: str
    index: int

    def __str__(self) -> str:
        return f"{self.job}:{self.index}"


def tasks_of(jobs: Mapping[str, int]) -> list[Task]:
    """All tasks, given the number of tasks of each job."""
    return [Task(job, index) for job, count in jobs.items() for index in range(count)]


def environment(cluster: ClusterSpec, task: Task) -> dict[str, str]:
    """The environment variables of a task, to be added to its parent's."""
    identity = {"type": task.job, "index": task.index}
    config = json.dumps({"cluster": cluster.as_dict(), "task": identity})
    return {"TF_CONFIG": config, "PYTHONUNBUFFERED": "1"}  # no delay of output


def expanded(words: Sequence[str], cluster: ClusterSpec, task: Task) -> list[str]:
    """A command line with the placeholders {python}, {job}, {index}, {<job>_hosts} replaced."""
    substitutions = {"{python}": sys.executable, "{job}": task.job, "{index}": str(task.index)}
    for job in cluster.jobs:
        substitutions[f"{{{job}_hosts}}"] = ",".join(map(str, cluster.job_tasks(job)))
    return [_substitute(word, substitutions) for word in words]


def _substitute(word: str, substitutions: Mapping[str, str]) -> str:
    for placeholder, value in substitutions.items():
        word = word.replace(placeholder, value)
    return word
