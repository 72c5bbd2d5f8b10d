"""One work on one system, in a process of its own, driven by lines of JSON.

The process sees only the CPUs given, starts the system, wakes it with one training step of a tiny
perceptron, notes its resident memory, then answers commands: `make` (weights, data, first step),
`check` (the next results), `run` (timed steps), `reset` and `peak` (high-water mark of resident
memory), `plan`, `passes`, `quit`.
"""

from __future__ import annotations

import ctypes
import gc
import importlib
import json
import os
import sys
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

# Module, how it starts, how it makes the tiny step that wakes it, how it makes the work's.
MAKERS = {
    "thalweg": ("on_thalweg", "start", "make", "make"),
    "thalweg-saving": ("on_thalweg", "start", "make", "make_saving"),
    "tensorflow": ("on_tensorflow", "start", "make", "make"),
    "tensorflow-session": ("on_tensorflow", "start", "make_session", "make_session"),
    "torch": ("on_torch", "start", "make", "make"),
    "torch-compile": ("on_torch", "start_compiled", "make", "make_compiled"),
    "jax": ("on_jax", "start", "make", "make"),
    "jax-ahead": ("on_jax", "start", "make", "make_ahead"),
}


def memory(field: str) -> int:
    """A field of /proc/self/status in bytes."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) * 1024 for line in lines if line.startswith(field + ":"))


def tidy() -> None:
    """Hand garbage and free heap pages back, the same on every system."""
    gc.collect()
    ctypes.CDLL("libc.so.6").malloc_trim(0)


class Worker:
    """The state of the process: the system's step and how many have run."""

    def __init__(self, system: str, name: str, threads: int, batch: int | None) -> None:
        from works import TINY, named

        module, start, make_tiny, make = MAKERS[system]
        module = importlib.import_module(f"systems.{module}")
        self.maker, self.threads = getattr(module, make), threads
        self.work = named(name)
        if batch:
            self.work = replace(self.work, batch=batch)
        self.version = getattr(module, start)(threads)
        getattr(module, make_tiny)(TINY, threads).call(0)
        tidy()
        self.idle = memory("VmRSS")
        self.count = 0

    def step(self) -> Any:
        """The next step."""
        result = self.made.call(self.count)
        self.count += 1
        return result

    def make(self) -> dict[str, Any]:
        """Build the step and run it once: `first` is the time of making a graph and that run."""
        self.made = self.maker(self.work, self.threads)
        start = time.perf_counter()
        result = self.step()
        self.made.finish()
        first = time.perf_counter() - start + self.made.building
        return {"version": self.version, "first": first, "result": sample(result)}

    def check(self, steps: int) -> dict[str, Any]:
        """The results of the next steps."""
        return {"results": [sample(self.step()) for _ in range(steps)]}

    def run(self, steps: int) -> dict[str, Any]:
        """Seconds per step, over this many; a tenth as many untimed ones wake the threads."""
        gc.collect()
        gc.disable()
        for _ in range(steps // 10):
            self.step()
        self.made.finish()
        self.made.settle()
        start = time.perf_counter()
        for _ in range(steps):
            self.step()
        self.made.finish()
        seconds = (time.perf_counter() - start) / steps
        self.made.settle()
        gc.enable()
        return {"seconds": seconds}

    def reset(self) -> dict[str, Any]:
        """Begin a new high-water mark."""
        tidy()
        Path("/proc/self/clear_refs").write_text("5")
        return {}

    def peak(self) -> dict[str, Any]:
        """The high-water mark above what the idle system took before the work was made."""
        return {"peak": memory("VmHWM") - self.idle}

    def plan(self) -> dict[str, Any]:
        """The printed plan and profile of the step, where the system has them."""
        plan = self.made.plan()
        return {"plan": f"{plan}\n\n{plan.profile(10)}"}

    def passes(self) -> dict[str, Any]:
        """How often the rules of each pass of the optimiser fired, where the system has one, and
        the passes without which other code would run."""
        from systems.on_thalweg import code_of, planned_by

        from thalweg.optimize.options import OptimizerSwitches

        plan = self.made.plan()
        fired = {passe.name: sum(passe.fired.values()) for passe in plan.plan.passes if passe.fired}
        own, session = code_of(plan), self.made.session
        off = {"all": OptimizerSwitches(enabled=False)}
        off |= {name: OptimizerSwitches(without=frozenset({name})) for name in fired}
        others = {name: code_of(planned_by(session, plan, how)) for name, how in off.items()}
        return {"fired": fired, "changing": [n for n in others if not own or others[n] != own]}


def sample(result: Any) -> list[float]:
    """At most 256 numbers of a result, evenly spaced."""
    import numpy as np

    flat = np.asarray(result).reshape(-1)
    return [float(x) for x in flat[:: -(-flat.size // 256)]]


def serve(answer: Callable[[dict[str, Any]], dict[str, Any]], out: Any) -> None:
    """Answer each line until `quit`."""
    for line in sys.stdin:
        request = json.loads(line)
        if request["do"] == "quit":
            return
        try:
            reply = answer(request)
        except Exception as error:  # whatever a system raises belongs into the report
            reply = {"error": f"{type(error).__name__}: {error}"[:2000]}
        print(json.dumps(reply), file=out, flush=True)


def main() -> None:
    """Take the pipe for replies from stdout, so that what a library prints cannot garble it."""
    out = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    options = json.loads(sys.argv[1])
    os.sched_setaffinity(0, options["cpus"])
    worker = Worker(options["system"], options["work"], len(options["cpus"]), options.get("batch"))

    def answer(request: dict[str, Any]) -> dict[str, Any]:
        return getattr(worker, request.pop("do"))(**request)

    print(json.dumps({"ready": True}), file=out, flush=True)
    serve(answer, out)


if __name__ == "__main__":
    main()
