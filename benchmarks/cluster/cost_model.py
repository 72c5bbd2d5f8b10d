"""A cost model of null steps, calibrated on 1 to 8 tasks of this machine; for docs/scale.md.

A step with p parameter servers and w workers has a part that every worker does for itself, a part
that servers do for each worker one after the other, and bytes that share the links of servers. The
first two are fitted to measured steps; what a link carries is given.

    .venv/bin/python benchmarks/cluster/cost_model.py
"""

from __future__ import annotations

import argparse
import os
from typing import NamedTuple

import numpy as np
from driver import SERVERS, Cluster

WORKERS = (1, 2, 4, 8)
PREDICTED = (1, 10, 25, 50, 100, 200, 500, 1000)
PAPER_SERVERS = 16
LINK = 1.25e9  # bytes a second of a link of 10 Gbit/s
MEGABYTE = 1 << 20
STEPS, ROUNDS = 200, 3


class Costs(NamedTuple):
    """Seconds of CPU that a null step costs."""

    worker: float  # what a worker and its master do in a step, for each server
    server: float  # what a server does in a step, for each worker

    def step(self, servers: int, workers: int, nbytes: float = 0.0, link: float = LINK) -> float:
        """Seconds of a step on machines of their own: what a worker does, then the turn of the last
        of all workers at a server, whose link carries the bytes for each of them."""
        own = servers * self.worker + nbytes / link
        turns = workers * (self.server + nbytes / servers / link)
        return max(own + self.server, turns)


def cpu_seconds(cluster: Cluster) -> tuple[float, float]:
    """CPU time of the servers and of the workers until now."""
    times = [_cpu_of(task.process.pid) for task in cluster.all]
    return sum(times[:SERVERS]), sum(times[SERVERS:])


def _cpu_of(process: int) -> float:
    folder = f"/proc/{process}/task"
    return sum(
        int(open(f"{folder}/{thread}/schedstat").read().split()[0]) / 1e9
        for thread in os.listdir(folder)
    )


def measured(cluster: Cluster, workers: int, steps: int) -> Costs:
    """What a step on so many workers cost each side, the best of some rounds."""
    cluster.make("null_step", workers)
    cluster.run(workers, steps)
    found = list[Costs]()
    for _ in range(ROUNDS):
        before = cpu_seconds(cluster)
        cluster.run(workers, steps)
        spent = np.subtract(cpu_seconds(cluster), before) / steps / workers / SERVERS
        found.append(Costs(spent[1], spent[0]))
    cluster.close(workers)
    return Costs(min(c.worker for c in found), min(c.server for c in found))


def main() -> None:
    """Measure, fit and print the tables."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--steps", type=int, default=STEPS)
    steps = parser.parse_args().steps
    cluster = Cluster("thalweg", max(WORKERS))
    try:
        rows = {workers: measured(cluster, workers, steps) for workers in WORKERS}
    finally:
        cluster.end()
    print("| workers | worker, µs a server | server, µs a worker |\n|---:|---:|---:|")
    for workers, each in rows.items():
        print(f"| {workers} | {each.worker * 1e6:.0f} | {each.server * 1e6:.0f} |")
    costs = Costs(*(float(np.median(column)) for column in zip(*rows.values(), strict=True)))
    print("\n| workers | scalar | dense 100 MB | dense 1 GB | sparse |\n|---:|---:|---:|---:|---:|")
    for workers in PREDICTED:
        sizes = (0.0, 100 * MEGABYTE, 1024 * MEGABYTE, 32 * 1024)
        times = [costs.step(PAPER_SERVERS, workers, size) for size in sizes]
        print(f"| {workers} | " + " | ".join(f"{each * 1e3:.3g} ms" for each in times) + " |")


if __name__ == "__main__":
    main()
