"""The driver's end of a cluster: starts its tasks, asks its workers, ends them."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from thalweg.cluster.addresses import free_ports

HERE = Path(__file__).parent
PEERS_PYTHON = HERE.parents[1] / ".bench-venv" / "bin" / "python"
LOG = HERE.parent / "workers.log"
SERVERS = 2
LOOPBACK = "127.0.0.1"


class TaskError(Exception):
    """A task that raised, or died."""


class TaskProcess:
    """A task of a cluster."""

    def __init__(self, options: Mapping[str, Any], environment: Mapping[str, str]) -> None:
        self.name = f"{options['system']} {options['job']} {options['index']}"
        own = options["system"] == "thalweg"
        python = sys.executable if own else str(PEERS_PYTHON)
        with LOG.open("a") as log:
            self.process = subprocess.Popen(
                [python, str(HERE / "task.py"), json.dumps(options)],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=log,
                text=True,
                env=os.environ | environment,
            )

    def tell(self, do: str, **request: Any) -> None:
        """Send a command."""
        assert self.process.stdin
        self.process.stdin.write(json.dumps({"do": do, **request}) + "\n")
        self.process.stdin.flush()

    def reply(self) -> dict[str, Any]:
        """The answer to a command."""
        assert self.process.stdout
        line = self.process.stdout.readline()
        if not line:
            raise TaskError(f"{self.name} ended with status {self.process.wait()}")
        answer = json.loads(line)
        if "error" in answer:
            raise TaskError(f"{self.name}: {answer['error']}")
        return answer

    def end(self) -> None:
        """Kill the process: no row leaves anything behind that is worth its time."""
        self.process.kill()
        self.process.communicate()


class Cluster:
    """Parameter servers and workers of one system."""

    def __init__(self, system: str, workers: int, environment: Mapping[str, str] = {}) -> None:
        jobs = {"ps": addresses(SERVERS), "worker": addresses(workers)}
        quiet = {"TF_CPP_MIN_LOG_LEVEL": "3", "CUDA_VISIBLE_DEVICES": "", **environment}
        tasks = {
            job: [
                TaskProcess({"system": system, "cluster": jobs, "job": job, "index": i}, quiet)
                for i in range(len(addresses))
            ]
            for job, addresses in jobs.items()
        }
        self.all = [*tasks["ps"], *tasks["worker"]]
        self.workers = tasks["worker"]
        for task in self.all:
            task.reply()

    def make(self, program: str, workers: int, **options: Any) -> None:
        """Have workers build a program: the chief, which initialises, before the others."""
        self.workers[0].tell("reset")
        self.workers[0].reply()
        for group in (self.workers[:1], self.workers[1:workers]):
            ask(group, "make", program=program, workers=workers, **options)

    def run(self, workers: int, steps: int) -> list[dict[str, Any]]:
        """What each worker says of so many steps, which all take at the same time."""
        return ask(self.workers[:workers], "run", steps=steps)

    def close(self, workers: int) -> None:
        """End the program, the chief last."""
        for worker in reversed(self.workers[:workers]):
            ask([worker], "close")

    def end(self) -> None:
        """End all tasks."""
        for task in self.all:
            task.end()


def ask(tasks: Sequence[TaskProcess], do: str, **request: Any) -> list[dict[str, Any]]:
    """The answers of several tasks, which are asked at once."""
    for task in tasks:
        task.tell(do, **request)
    return [task.reply() for task in tasks]


def addresses(count: int) -> list[str]:
    """Ports that are free now."""
    return [f"{LOOPBACK}:{port}" for port in free_ports(count)]
