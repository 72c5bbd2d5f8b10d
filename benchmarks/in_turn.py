"""Steps with all passes of the optimiser and without any, in one process, in turn.

    python benchmarks/in_turn.py lstm googlenet [--seconds 20] [--off remapping ...]

Processes differ by a few percent in where their memory lies, which `--ablate` cannot tell from the
passes' work. Here each round takes some steps of every kind, in an order that is reversed from one
to the next. Printed are the medians of the ratios of a round, without / with: above 1, the passes
make steps faster. `again` is a second step with all passes: what it is off 1 is noise.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Callable
from pathlib import Path
from statistics import median
from typing import Any

sys.path[:0] = [str(Path(__file__).parent), str(Path(__file__).parents[1])]

from systems import graph_net  # noqa: E402 - found on the path above
from works import WORKS, Work  # noqa: E402

import thalweg as tf  # noqa: E402

_ROUND = 0.05  # seconds of a kind of step in a round, more or less
_ALL, _AGAIN = "all", "again"


def config_without(switch: str) -> tf.ConfigProto:
    """The configuration of sessions without some passes."""
    config = tf.ConfigProto(intra_op_parallelism_threads=2)
    options = config.graph_options.rewrite_options
    if switch == _ALL:
        options.disable_meta_optimizer = True
    elif switch != _AGAIN:
        setattr(options, switch, options.OFF)
    return config


def make(work: Work, config: tf.ConfigProto) -> Callable[[int], Any]:
    """A step of a work."""
    has_weights = work.model or work.trains
    made = graph_net.session_step if has_weights else graph_net.step_without_weights
    with tf.Graph().as_default():
        return made(tf, work, config).call


def measure(work: Work, switches: list[str], seconds: float) -> dict[str, float]:
    """The medians of without / with, by what is off."""
    configs = {"": tf.ConfigProto(intra_op_parallelism_threads=2)}
    configs |= {switch: config_without(switch) for switch in switches}
    steps = {name: make(work, config) for name, config in configs.items()}
    for call in steps.values():
        taken = [seconds_of(call, 1) for _ in range(4)]
    count = max(1, int(_ROUND / taken[-1]))
    rounds: list[dict[str, float]] = []
    end, order = time.perf_counter() + seconds, list(steps)
    while time.perf_counter() < end or not rounds:
        rounds.append({name: seconds_of(steps[name], count) for name in order})
        order.reverse()
    return {name: median(each[name] / each[""] for each in rounds) for name in switches}


def seconds_of(call: Callable[[int], Any], count: int) -> float:
    """The time of some steps."""
    start = time.perf_counter()
    for step in range(count):
        call(step)
    return time.perf_counter() - start


def main() -> None:
    """Measure what is asked for."""
    names = [work.name for work in WORKS if not work.eager and not work.moves_data]
    options = argparse.ArgumentParser(description=__doc__)
    options.add_argument("works", nargs="*", default=names, choices=names, metavar="WORK")
    options.add_argument("--seconds", type=float, default=10.0, help="for each work")
    options.add_argument("--off", nargs="*", default=[], help="fields of RewriterConfig, too")
    given = options.parse_args()
    switches = [_ALL, *given.off, _AGAIN]
    print("| step | " + " | ".join(switches) + " |\n|---|" + "---|" * len(switches))
    for work in WORKS:
        if work.name in given.works:
            found = measure(work, switches, given.seconds)
            cells = [f"{found[name]:.3f}" for name in switches]
            print(f"| {work.name} | " + " | ".join(cells) + " |", flush=True)


if __name__ == "__main__":
    main()
