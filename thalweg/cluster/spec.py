"""`ClusterSpec`: the jobs of a cluster, their tasks, and the address of each.

Programs write it as a dict; files and messages carry it as a `ClusterDef`. A `ServerDef` adds which
of the tasks a server is.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final, TypeAlias, TypeVar, cast

from thalweg import protos
from thalweg.public import public

protos.publish("ClusterDef", "JobDef", "ServerDef", below="train")

#: The default of `ServerDef.protocol`.
PROTOCOL: Final = "thalweg"

Tasks = dict[int, str]  # addresses, by the index of the task
#: Whatever describes a cluster: task addresses by job, as a list or by task index.
ClusterLike: TypeAlias = (
    "ClusterSpec | protos.ClusterDef | Mapping[str, Sequence[str] | Mapping[int, str]]"
)
Item = TypeVar("Item")


@public("train.ClusterSpec")
class ClusterSpec:
    """The tasks of a cluster, by job.

    Args:
        cluster: a dict from the names of jobs to the addresses of their tasks, "host:port" each: a
            list, or a dict by task index if only some of the tasks are known. Also accepts a
            `tf.train.ClusterDef` or another ClusterSpec.

    Raises:
        TypeError: if `cluster` is anything else.

    Example:
        >>> cluster = tf.train.ClusterSpec({
        ...     "ps": ["ps0:2222"], "worker": ["worker0:2222", "worker1:2222"]
        ... })
        >>> cluster.num_tasks("worker"), cluster.task_address("worker", 1)
        (2, 'worker1:2222')
    """

    def __init__(self, cluster: ClusterLike) -> None:
        self._jobs: dict[str, Tasks] = _jobs(cluster)

    def __bool__(self) -> bool:
        return bool(self._jobs)

    def __eq__(self, other: object) -> bool:
        return self._jobs == (other._jobs if isinstance(other, ClusterSpec) else other)

    def __repr__(self) -> str:
        return f"ClusterSpec({dict(sorted(self.as_dict().items()))!r})"

    @property
    def jobs(self) -> list[str]:
        """The names of the jobs."""
        return list(self._jobs)

    def as_dict(self) -> dict[str, Any]:
        """The addresses of each job: a list, or a dict by index if indices are missing."""
        return {
            job: self.job_tasks(job) if sorted(tasks) == list(range(len(tasks))) else dict(tasks)
            for job, tasks in self._jobs.items()
        }

    def as_cluster_def(self) -> Any:
        """The same as a `tf.train.ClusterDef`."""
        definition = protos.ClusterDef()
        for name, tasks in sorted(self._jobs.items()):
            definition.job.add(name=name).tasks.update(sorted(tasks.items()))
        return definition

    def num_tasks(self, job_name: str) -> int:
        """The number of known tasks of a job."""
        return len(self._tasks(job_name))

    def task_indices(self, job_name: str) -> list[int]:
        """The indices of the known tasks of a job, in ascending order."""
        return sorted(self._tasks(job_name))

    def task_address(self, job_name: str, task_index: int) -> str:
        """The address of a task.

        Args:
            job_name: the name of the job.
            task_index: the index of the task in it.

        Returns:
            "host:port".

        Raises:
            ValueError: if there is no such job or task.
        """
        tasks = self._tasks(job_name)
        if task_index not in tasks:
            raise ValueError(f"No task with index {task_index!r} in job {job_name!r}")
        return tasks[task_index]

    def job_tasks(self, job_name: str) -> list[str | None]:
        """The addresses of a job's tasks, by index; None for an unknown task."""
        tasks = self._tasks(job_name)
        return [tasks.get(index) for index in range(max(tasks, default=-1) + 1)]

    def _tasks(self, job_name: str) -> Tasks:
        if job_name not in self._jobs:
            raise ValueError(f"No such job in cluster: {job_name!r}")
        return self._jobs[job_name]


def _jobs(cluster: Any) -> dict[str, Tasks]:
    if isinstance(cluster, ClusterSpec):
        cluster = cluster.as_dict()
    elif not isinstance(cluster, Mapping) and protos.is_message(cluster, protos.ClusterDef):
        cluster = {job.name: dict(job.tasks) for job in cluster.job}
    if not isinstance(cluster, Mapping):
        raise TypeError(
            "`cluster` must be a dictionary mapping one or more job names to lists of network "
            f"addresses, or a `ClusterDef` protocol buffer, not {cluster!r}"
        )
    mapping = cast("Mapping[Any, Any]", cluster)
    return {_text(job, "Job name"): _addresses(job, tasks) for job, tasks in mapping.items()}


def _addresses(job: Any, tasks: Any) -> Tasks:
    if isinstance(tasks, list | tuple):
        tasks = dict(enumerate(cast("list[Any]", tasks)))
    if not isinstance(tasks, Mapping):
        raise TypeError(
            f"The tasks for job {job!r} must be a list or a dictionary from integers to strings."
        )
    mapping = cast("Mapping[Any, Any]", tasks)
    return {int(index): _text(address, "Task address") for index, address in mapping.items()}


def _text(value: Any, what: str) -> str:
    if isinstance(value, bytes):
        return value.decode()
    if not isinstance(value, str):
        raise TypeError(f"{what} {value!r} must be bytes or unicode")
    return value


def server_def(
    server_or_cluster_def: Any,
    job_name: str | None = None,
    task_index: int | None = None,
    protocol: str | None = None,
    config: Any = None,
) -> Any:
    """The `ServerDef` of one task: the given one with overrides, or a new one for a cluster.

    The job may be omitted if the cluster has only one, the task if its job has only one.
    """
    definition: Any = protos.ServerDef(protocol=PROTOCOL)
    if protos.is_message(server_or_cluster_def, protos.ServerDef):
        definition = protos.ServerDef.FromString(server_or_cluster_def.SerializeToString())
    else:
        cluster = _as_cluster(server_or_cluster_def)
        definition.cluster.CopyFrom(cluster.as_cluster_def())
        job = _only(cluster.jobs, "job_name") if job_name is None else job_name
        if task_index is None:
            task_index = _only(cluster.task_indices(job), "task_index")
        job_name = job
    overrides = {"job_name": job_name, "task_index": task_index, "protocol": protocol}
    for name, value in overrides.items():
        if value is not None:
            setattr(definition, name, value)
    if config is not None:
        definition.default_session_config.MergeFromString(config.SerializeToString())
    return definition


def _as_cluster(value: Any) -> ClusterSpec:
    try:
        return ClusterSpec(value)
    except TypeError as error:
        raise TypeError(
            "Could not convert `server_or_cluster_def` to a `tf.train.ServerDef` or "
            "`tf.train.ClusterSpec`."
        ) from error


def _only(items: list[Item], what: str) -> Item:
    if len(items) != 1:
        raise ValueError(f"Must specify an explicit `{what}`.")
    return items[0]
