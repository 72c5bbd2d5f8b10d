"""Task names, such as `/job:ps/replica:0/task:1`: the prefix of their devices' names."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from thalweg.cluster.spec import ClusterSpec
from thalweg.cluster.transport.endpoint import Peer
from thalweg.graph.device import DeviceSpec


@dataclass(frozen=True)
class TaskInfo:
    """A task that replied to STATUS: its devices and its connection."""

    name: str
    address: str
    devices: Sequence[str]
    peer: Peer | None  # None for the task of this process


def task_name(job: str, index: int) -> str:
    """The name of a task."""
    return f"/job:{job}/replica:0/task:{index}"


def all_tasks(cluster: ClusterSpec) -> Iterator[tuple[str, str]]:
    """The names and addresses of the tasks of a cluster."""
    for job in cluster.jobs:
        for index in cluster.task_indices(job):
            yield task_name(job, index), cluster.task_address(job, index)


def passes(task: str, filters: Sequence[str]) -> bool:
    """Whether a session's device filters select a task; no filters select all."""
    patterns = [DeviceSpec.from_string(pattern) for pattern in filters]
    spec = DeviceSpec.from_string(task)
    return not patterns or any(_matches(pattern, spec) for pattern in patterns)


def _matches(pattern: DeviceSpec, task: DeviceSpec) -> bool:
    fields = ("job", "replica", "task")
    return all(getattr(pattern, field) in (None, getattr(task, field)) for field in fields)
