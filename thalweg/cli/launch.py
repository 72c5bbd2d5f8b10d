"""`thalweg launch`: a distributed program with all its tasks, started by one command."""

from __future__ import annotations

import argparse
import asyncio
import os
import signal
from collections.abc import Mapping, Sequence

from thalweg.cli.arguments import Subparsers, subcommand
from thalweg.cli.live_table import Display, Row, display
from thalweg.cli.problem import Problem
from thalweg.cluster.launch.local import LocalSite
from thalweg.cluster.launch.ray_script import RaySite
from thalweg.cluster.launch.supervisor import Process, Site, Supervisor, TaskFailed
from thalweg.cluster.launch.task import FLAGS, Task, tasks_of
from thalweg.cluster.launch.watch import Watch

_ABOUT = """\
Start a program as all tasks of a cluster: parameter servers and workers, each a process
with a port of its own. It learns which task it is from TF_CONFIG in its environment, from
{job}, {index}, {ps_hosts} and {worker_hosts} in its arguments, or, with --flags, from the
flags --job_name, --task_index, --ps_hosts and --worker_hosts. Its lines are printed behind
the name of the task, above a table of the tasks with their steps and bytes in a second.

All ends when the workers have ended, on Ctrl-C or SIGTERM, or when a task fails that may
not be started again; then the exit status is 1.

With --ray, Ray finds machines for the tasks, one CPU each. The folder of the program is
copied there: what it writes beside itself is lost."""

_EXAMPLES = """\
examples:
  thalweg launch --ps 1 --workers 2 train.py --steps 1000
  thalweg launch --ps 1 --workers 2 --flags thalweg run mnist_replica.py --sync_replicas
  thalweg launch --workers 3 --restarts 2 train.py --index={index}
  thalweg launch --ray auto --ps 2 --workers 8 train.py"""

_INTERVAL = 1.0  # seconds between two looks at the tasks
_TERMINATED = 128 + signal.SIGTERM


def add(commands: Subparsers) -> None:
    """Add the command to the command line."""
    command = subcommand(
        commands, "launch", "start a distributed program with all its tasks", _ABOUT, _EXAMPLES
    )
    command.add_argument("--ps", type=_count, default=1, metavar="N", help="parameter servers (1)")
    command.add_argument("--workers", type=_count, default=1, metavar="N", help="workers (1)")
    command.add_argument(
        "--restarts",
        type=_count,
        default=0,
        metavar="N",
        help="how often a task that fails is started again (0)",
    )
    command.add_argument(
        "--flags", action="store_true", help="tell the program by flags of old which task it is"
    )
    command.add_argument(
        "--ray",
        metavar="ADDRESS",
        help="run the tasks on Ray: host:port, ray://host:port, auto for the one of this machine",
    )
    command.add_argument("script", help="a Python file, or another command")
    command.add_argument("arguments", nargs=argparse.REMAINDER, help="its own arguments")
    command.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    """Run the command."""
    script = _script(args.script)
    jobs = {"ps": args.ps, "worker": args.workers}
    jobs = {job: count for job, count in jobs.items() if count}
    words = [*args.arguments, *(FLAGS if args.flags else ())]
    site = _site(args.ray, script, words, jobs)
    try:
        with display() as shown:
            return asyncio.run(Launch(site, args.restarts, shown).run())
    except TaskFailed as failure:
        raise Problem(f"{args.script}: {failure}") from None
    finally:
        site.close()


def _site(ray: str | None, script: str, words: Sequence[str], jobs: Mapping[str, int]) -> Site:
    """Where the tasks are to run."""
    if ray is None:
        return LocalSite([*_call(script), *words], jobs)
    folder, name = os.path.split(os.path.abspath(script))
    address = None if ray == "auto" else ray
    return RaySite([*_call(name), *words], jobs, address, folder)


def _count(text: str) -> int:
    if not text.isdecimal():
        raise argparse.ArgumentTypeError(f"{text!r} is not a number of tasks")
    return int(text)


def _script(path: str) -> str:
    if path.endswith(".py") and not os.path.isfile(path):
        raise Problem(f"{path}: no such file")
    return path


def _call(script: str) -> list[str]:
    """How a script is called."""
    return ["{python}", script] if script.endswith(".py") else [script]


class Launch:
    """One run of a program as all tasks of a cluster."""

    def __init__(self, site: Site, restarts: int, shown: Display) -> None:
        self._site, self._shown = site, shown
        cluster = site.cluster
        tasks = tasks_of({job: cluster.num_tasks(job) for job in cluster.jobs})
        self._supervisor = Supervisor(tasks, self._start, restarts, self._tell)
        self._watch = Watch({task: cluster.task_address(*task) for task in tasks})

    async def run(self) -> int:
        """Run to the end; the exit status."""
        running = asyncio.create_task(self._supervisor.run())
        table = asyncio.create_task(self._show())
        asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, running.cancel)
        try:
            await running
        except asyncio.CancelledError:
            if _is_cancelled():  # by Ctrl-C, for which asyncio raises KeyboardInterrupt
                raise
            return _TERMINATED
        finally:
            table.cancel()
            self._watch.close()
        return 0

    async def _start(self, task: Task) -> Process:
        return await self._site.start(task, lambda text: self._shown.line(str(task), text))

    def _tell(self, task: Task, text: str) -> None:
        self._shown.line("launch", f"{task} {text}")

    async def _show(self) -> None:
        while True:
            self._watch.poll()
            await asyncio.sleep(_INTERVAL)
            self._shown.table([self._row(task) for task in self._supervisor.tasks])

    def _row(self, task: Task) -> Row:
        counted = self._watch.statistics(task)
        steps = counted and counted.steps
        return Row(str(task), self._supervisor.states[task], steps, self._watch.rates(task))


def _is_cancelled() -> bool:
    """Whether this very coroutine is asked to end, not one that it waits for."""
    current = asyncio.current_task()
    return current is not None and current.cancelling() > 0
