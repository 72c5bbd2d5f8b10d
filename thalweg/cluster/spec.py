"""`ClusterSpec`: the jobs of a cluster, their tasks, and the address of each.

A program writes it down as a dict, files and other tasks as a `ClusterDef` message; a `ServerDef`
says besides which of the tasks somebody is.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final, TypeAlias, TypeVar, cast

from thalweg import protos
from thalweg.public import public

protos.publish("ClusterDef", "JobDef", "ServerDef", below="train")

#: What `ServerDef.protocol` is called where a program does not say.
PROTOCOL: Final = "thalweg"

Tasks = dict[int, str]  # addresses, by the index of the task
#: What describes a cluster: jobs with the addresses of their tasks, all of them or by index.
ClusterLike: TypeAlias = (
    "ClusterSpec | protos.ClusterDef | Mapping[str, Sequence[str] | Mapping[int, str]]"
)
Item = TypeVar("Item")


@public("train.ClusterSpec")
class ClusterSpec:
    """The tasks of a cluster, by job.

    Args:
        cluster: a dict from the names of jobs to the addresses of their tasks, "host:port" each: a
            list, or a dict from task indices where only some of the tasks are known. A
            `tf.train.ClusterDef` or another ClusterSpec will do too.

    Raises:
        TypeError: where `cluster` is something else.

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
        """The addresses of each job: a list, or a dict by index where indices are left out."""
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
        """How many tasks of a job are known."""
        return len(self._tasks(job_name))

    def task_indices(self, job_name: str) -> list[int]:
        """The indices of the tasks of a job that are known."""
        return sorted(self._tasks(job_name))

    def task_address(self, job_name: str, task_index: int) -> str:
        """The address of a task.

        Args:
            job_name: the name of the job.
            task_index: the index of the task in it.

        Returns:
            "host:port".

        Raises:
            ValueError: where there is no such job or task.
        """
        tasks = self._tasks(job_name)
        if task_index not in tasks:
            raise ValueError(f"No task with index {task_index!r} in job {job_name!r}")
        return tasks[task_index]

    def job_tasks(self, job_name: str) -> list[str | None]:
        """The addresses of a job's tasks, by index; None for a task that is not known."""
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
    given = cast("Mapping[Any, Any]", cluster)
    return {_text(job, "Job name"): _addresses(job, tasks) for job, tasks in given.items()}


def _addresses(job: Any, tasks: Any) -> Tasks:
    if isinstance(tasks, list | tuple):
        tasks = dict(enumerate(cast("list[Any]", tasks)))
    if not isinstance(tasks, Mapping):
        raise TypeError(
            f"The tasks for job {job!r} must be a list or a dictionary from integers to strings."
        )
    given = cast("Mapping[Any, Any]", tasks)
    return {int(index): _text(address, "Task address") for index, address in given.items()}


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
    """The `ServerDef` of one task: what is given, and what can be told from the cluster.

    A job that is the only one, and a task that is the only one of its job, need not be named.
    """
    made: Any = protos.ServerDef(protocol=PROTOCOL)
    if protos.is_message(server_or_cluster_def, protos.ServerDef):
        made = protos.ServerDef.FromString(server_or_cluster_def.SerializeToString())
    else:
        cluster = _as_cluster(server_or_cluster_def)
        made.cluster.CopyFrom(cluster.as_cluster_def())
        job = _only(cluster.jobs, "job_name") if job_name is None else job_name
        if task_index is None:
            task_index = _only(cluster.task_indices(job), "task_index")
        job_name = job
    given = {"job_name": job_name, "task_index": task_index, "protocol": protocol}
    for name, value in given.items():
        if value is not None:
            setattr(made, name, value)
    if config is not None:
        made.default_session_config.MergeFromString(config.SerializeToString())
    return made


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
