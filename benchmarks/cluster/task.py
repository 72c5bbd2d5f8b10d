"""One task of a cluster, of either system, in a process of its own, driven by lines of JSON.

A parameter server only serves. A worker also answers `make` (build a program's graph, connect, run
it once), `run` (timed steps), `close`, and `reset` (forget all variables of the cluster).
"""

from __future__ import annotations

import gc
import importlib
import json
import os
import statistics
import sys
import time
from typing import Any

from programs import PROGRAMS, Place, Program


class Task:
    """The server, and the program that is made."""

    def __init__(self, system: str, cluster: dict[str, list[str]], job: str, index: int) -> None:
        self.tf: Any = importlib.import_module(system)
        if system != "thalweg":
            self.tf.disable_v2_behavior()
        self.cluster, self.index = cluster, index
        self.server = self.tf.train.Server(
            self.tf.train.ClusterSpec(cluster), job_name=job, task_index=index
        )

    def make(self, program: str, workers: int, **options: Any) -> dict[str, Any]:
        """Build, connect, and run a step, unless that waits for the other workers."""
        self.tf.reset_default_graph()
        place = Place(self.server.target, self.index, workers, len(self.cluster["ps"]))
        self.made: Program = PROGRAMS[program](self.tf, place, **options)
        self.updates = 0  # that all workers of a synchronous program were asked for
        if not self.made.is_synchronous:
            self.made.step()
        return {}

    def run(self, steps: int) -> dict[str, Any]:
        """The seconds of so many steps, or updates, and the median of what the steps returned."""
        gc.collect()
        gc.disable()
        found = list[Any]()
        start = time.perf_counter()
        if self.made.is_synchronous:
            # An update takes a gradient of every worker: all must stop at the same one.
            self.updates += steps
            while self.made.step() < self.updates:
                pass
        else:
            found = [self.made.step() for _ in range(steps)]
        seconds = time.perf_counter() - start
        gc.enable()
        numbers = [each for each in found if isinstance(each, float)]
        return {"seconds": seconds, "median": statistics.median(numbers) if numbers else None}

    def close(self) -> dict[str, Any]:
        """End the program's session."""
        self.made.close()
        return {}

    def reset(self) -> dict[str, Any]:
        """Have all tasks forget their variables."""
        self.tf.Session.reset(self.server.target)
        return {}


def main() -> None:
    """Take the pipe for replies from stdout, so that what a library prints cannot garble it."""
    out = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    task = Task(**json.loads(sys.argv[1]))
    print(json.dumps({"ready": True}), file=out, flush=True)
    for line in sys.stdin:
        request = json.loads(line)
        try:
            reply = getattr(task, request.pop("do"))(**request)
        except Exception as error:  # whatever a system raises belongs into the report
            reply = {"error": f"{type(error).__name__}: {error}"[:2000]}
        print(json.dumps(reply), file=out, flush=True)
    os._exit(0)  # a server of TensorFlow cannot be stopped


if __name__ == "__main__":
    main()
