"""`tf.cluster.ray`: the tasks of a cluster as Ray actors.

Ray schedules the tasks on machines (one placement group per call that adds tasks) and restarts
actors that die. A restarted task registers with the task registry, which sends its address to all
others; sessions that used its previous incarnation fail, and new ones find it.
"""

from __future__ import annotations

import secrets
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from thalweg.cluster.launch import ray_library
from thalweg.cluster.launch.ray_task import RayTask, TaskRegistry
from thalweg.cluster.launch.task import Task, tasks_of
from thalweg.cluster.spec import ClusterSpec
from thalweg.cluster.transport.security import Security
from thalweg.platform.described import described
from thalweg.public import public

_THREADS = 4  # per actor: one runs the user's function, the others serve calls meanwhile
_ONE_CPU: Mapping[str, float] = {"CPU": 1}

Resources = Mapping[str, Mapping[str, float]]


@public("cluster.ray")
def ray(
    jobs: Mapping[str, int],
    resources: Resources | None = None,
    address: str | None = None,
    strategy: str = "PACK",
    max_restarts: int = -1,
) -> RayCluster:
    """Start the tasks of a cluster as Ray actors.

    Args:
        jobs: the number of tasks of each job: `{"ps": 2, "worker": 4}`.
        resources: what Ray reserves for each task of a job: `{"worker": {"CPU": 4}}`. The default
            is one CPU.
        address: the address of a Ray cluster, such as "10.0.0.1:6379" or "ray://10.0.0.1:10001".
            By default, the cluster of RAY_ADDRESS or one on this machine is used; if there is
            none, a local Ray is started, as with "local".
        strategy: the placement strategy of Ray: "PACK", "SPREAD", "STRICT_PACK" or
            "STRICT_SPREAD".
        max_restarts: how often Ray restarts a task that died; -1 for no limit.

    Returns:
        The cluster, with all tasks up. End it with `shutdown`, or use it as a context manager.

    Raises:
        ImportError: if Ray is not installed.
        tf.errors.ResourceExhaustedError: if Ray cannot reserve the resources.
    """
    return RayCluster(jobs, resources or {}, address, strategy, max_restarts)


@public("cluster.RayCluster")
class RayCluster:
    """The tasks of a cluster on Ray; `tf.cluster.ray` starts one."""

    def __init__(
        self,
        jobs: Mapping[str, int],
        resources: Resources,
        address: str | None,
        strategy: str,
        max_restarts: int,
    ) -> None:
        self._ray = ray_library.library()
        self._resources, self._strategy, self._restarts = resources, strategy, max_restarts
        self._tasks: dict[Task, Any] = {}
        self._groups: list[Any] = []
        self._name = f"thalweg-{secrets.token_hex(4)}"
        self._key = Security.of_process().key or "none"
        self._connection = ray_library.connect(address)
        self._registry = ray_library.remote(TaskRegistry, {}, name=self._name).remote()
        try:
            self._add(tasks_of(jobs))
        except BaseException:
            self.shutdown()
            raise

    def __repr__(self) -> str:
        return described(self, self._name, tasks=", ".join(map(str, self._tasks)) or "none")

    def __enter__(self) -> RayCluster:
        return self

    def __exit__(self, *_: object) -> None:
        self.shutdown()

    @property
    def spec(self) -> ClusterSpec:
        """The tasks with their current addresses."""
        return ClusterSpec(self._ray.get(self._registry.cluster.remote())[1])

    def target(self, job: str = "worker", index: int = 0) -> str:
        """The session target of a task.

        Args:
            job: the name of a job.
            index: the index of a task in it.

        Returns:
            "thalweg://host:port" of the task.
        """
        return self._ray.get(self._actor(Task(job, index)).target.remote())

    def scale(self, job: str, count: int) -> None:
        """Add tasks to a job; all tasks know the new ones when this returns.

        Args:
            job: the name of a job, which may be new.
            count: the new number of tasks.

        Raises:
            ValueError: if the job has more tasks already.
        """
        current = sum(task.job == job for task in self._tasks)
        if count < current:
            raise ValueError(f"Job {job!r} has {current} tasks: it can grow, not shrink to {count}")
        self._add([Task(job, index) for index in range(current, count)])

    def run(
        self, function: Callable[..., Any], *given: Any, job: str = "worker", **named: Any
    ) -> list[Any]:
        """Call a function on every task of a job in parallel and wait for all results.

        If a task dies, it is restarted and its call is retried: a training loop in a
        `tf.train.MonitoredTrainingSession` continues from the current variables.

        Args:
            function: called with the `tf.train.Server` of the task, under a new default graph.
            given: further positional arguments.
            job: the name of the job.
            named: keyword arguments.

        Returns:
            The results, in task order.
        """
        tasks = [actor for task, actor in self._tasks.items() if task.job == job]
        return self._ray.get([task.run.remote(function, given, named) for task in tasks])

    def shutdown(self) -> None:
        """Kill all tasks, and disconnect from Ray if this cluster connected to it."""
        if not self._ray.is_initialized():
            return
        for actor in (*self._tasks.values(), self._registry):
            self._ray.kill(actor)
        for group in self._groups:
            ray_library.release(group)
        self._tasks.clear()
        self._groups.clear()
        if self._connection.is_new:
            self._ray.shutdown()

    def _actor(self, task: Task) -> Any:
        if task not in self._tasks:
            raise ValueError(f"There is no task {task}, but {', '.join(map(str, self._tasks))}")
        return self._tasks[task]

    def _add(self, tasks: Sequence[Task]) -> None:
        if not tasks:
            return
        name = f"{self._name}/{len(self._groups)}"
        bundles = [self._task_resources(task) for task in tasks]
        group = ray_library.reserve(bundles, self._strategy, name)
        self._groups.append(group)
        for index, task in enumerate(tasks):
            self._tasks[task] = ray_library.remote(
                RayTask,
                self._task_resources(task),
                name=f"{self._name}/{task}",
                max_concurrency=_THREADS,
                max_restarts=self._restarts,
                max_task_retries=self._restarts,
                scheduling_strategy=ray_library.bundle(group, index),
            ).remote(self._name, *task, self._key, self._connection.is_local)
        self._ray.get([self._tasks[task].target.remote() for task in tasks])
        version, jobs = self._ray.get(self._registry.cluster.remote())
        self._ray.get([actor.update.remote(version, jobs) for actor in self._tasks.values()])

    def _task_resources(self, task: Task) -> Mapping[str, float]:
        return self._resources.get(task.job, _ONE_CPU)
