"""`make chaos`: a calm run, then one under disturbances for some minutes, and what they came to.

Needs root and iproute2 (`apt install iproute2`): the tasks are on a network of namespaces.
"""

from __future__ import annotations

import argparse
import asyncio
import statistics
import sys
import tempfile
import time
from pathlib import Path
from random import Random
from typing import Any

from tests.soak.chaos.checks import check_checkpoints, loss_of
from tests.soak.chaos.job import CUT, KILL, MAX_HANG, PAUSE, SPOIL, Job, Recovery
from tests.soak.chaos.network import Network, why_not

JOBS = {"ps": 2, "worker": 3}
CALM_STEPS = 800
MAX_RATIO = 1.1  # of the losses


def main() -> None:
    """Run both jobs; the exit status says whether all was kept."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--minutes", type=float, default=10.0, help="of disturbances")
    parser.add_argument("--seed", type=int, default=0, help="of what happens, and when")
    parser.add_argument("--folder", type=Path, help="for checkpoints and logs, which are kept")
    given = parser.parse_args()
    if reason := why_not():
        sys.exit(f"chaos: {reason}")
    folder = given.folder or Path(tempfile.mkdtemp(prefix="chaos-"))
    print(f"checkpoints and logs: {folder}")
    calm = trained(folder / "calm", 0.0, given.seed)
    print(f"calm: {summary(calm)}")
    chaos = trained(folder / "chaos", 60 * given.minutes, given.seed)
    print(f"chaos: {summary(chaos)}")
    if chaos["loss"] > MAX_RATIO * calm["loss"]:
        sys.exit("the loss of the calm run was not reached")


def trained(folder: Path, seconds: float, seed: int) -> dict[str, Any]:
    """Train, and check what is left."""
    network = Network(sum(JOBS.values()))
    try:
        job = Job(folder, JOBS, Random(seed), network)
        end = time.monotonic() + seconds if seconds else 0.0
        kinds = KILL, PAUSE, CUT, SPOIL
        asyncio.run(job.run(kinds, lambda _: time.monotonic() > end, CALM_STEPS))
    finally:
        network.close()
    last = check_checkpoints(folder)
    if seconds:
        print(table(job))
    return last | {"loss": loss_of(last), "fabric": type(network.fabric).__name__}


def summary(values: dict[str, Any]) -> str:
    """The result of a run in words."""
    return (
        f"step {values['global_step']}, loss {values['loss']:.5f}, {values['checkpoints']} "
        f"checkpoints, all readable, each update counted once ({values['fabric']})"
    )


def table(job: Job) -> str:
    """How often what happened, and how long the job took to go on where it happened alone."""
    rows = ["| what | times | alone: went on after, s | most |", "|---|---:|---:|---:|"]
    for kind, times in sorted(job.happened.items()):
        seconds = [each.seconds for each in _alone(job.recoveries, kind)]
        middle, most = statistics.median(seconds or [0]), max(seconds or [0])
        rows.append(f"| {kind} | {times} | {middle:.1f} | {most:.1f} |")
    most = max(each.seconds for each in job.recoveries)
    rows.append(f"| all, in a row too | {job.happened.total()} | | {most:.1f} of {MAX_HANG:g} |")
    return "\n".join(rows)


def _alone(recoveries: list[Recovery], kind: str) -> list[Recovery]:
    return [r for r in recoveries if r.kinds.startswith(kind) and " + " not in r.kinds]


if __name__ == "__main__":
    main()
