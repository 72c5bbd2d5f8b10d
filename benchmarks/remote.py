"""The driver's end of a worker: starts it, asks it, watches its CPU time, ends it."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent
PEERS_PYTHON = HERE.parent / ".bench-venv" / "bin" / "python"
TICKS = os.sysconf("SC_CLK_TCK")


class WorkerError(Exception):
    """A worker that raised, or died."""


def environment(threads: int, caches: Path) -> dict[str, str]:
    """The same for every worker: thread counts, no GPU, caches in a folder of this run."""
    pools = ("OMP", "MKL", "OPENBLAS")
    return os.environ | {
        **{f"{pool}_NUM_THREADS": str(threads) for pool in pools},
        "THALWEG_THREADS": str(threads),
        "BENCH_FOLDER": str(caches),
        "THALWEG_CACHE": str(caches / "thalweg"),
        "TORCHINDUCTOR_CACHE_DIR": str(caches / "torch"),
        "CUDA_VISIBLE_DEVICES": "",
        "JAX_PLATFORMS": "cpu",
        "TF_CPP_MIN_LOG_LEVEL": "3",
    }


def busy_seconds() -> float:
    """CPU seconds that the whole machine has spent on anything but idling."""
    user, nice, system, _, _, irq, softirq, *_ = map(
        int, Path("/proc/stat").read_text().split("\n", 1)[0].split()[1:]
    )
    return (user + nice + system + irq + softirq) / TICKS


class Remote:
    """A worker process: one system on one work."""

    def __init__(
        self, system: str, work: str, cpus: list[int], caches: Path, batch: int | None, log: Any
    ) -> None:
        self.system = system
        system, _, checkout = system.partition("@")  # Thalweg of another checkout
        system, _, optimizer = system.partition("!")  # with other passes of its optimiser
        python = sys.executable if system.startswith("thalweg") else str(PEERS_PYTHON)
        options = {"system": system, "work": work, "cpus": cpus, "batch": batch}
        self.process = subprocess.Popen(
            [python, str(HERE / "worker.py"), json.dumps(options)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=log,
            text=True,
            env=environment(len(cpus), caches)
            | ({"PYTHONPATH": checkout} if checkout else {})
            | ({"THALWEG_OPTIMIZE": optimizer} if optimizer else {}),
        )
        self.reply()

    def ask(self, do: str, **request: Any) -> dict[str, Any]:
        """Send a command, wait for its answer."""
        self.process.stdin.write(json.dumps({"do": do, **request}) + "\n")
        self.process.stdin.flush()
        return self.reply()

    def reply(self) -> dict[str, Any]:
        """The next line of the worker."""
        line = self.process.stdout.readline()
        if not line:
            raise WorkerError(f"{self.system} ended with status {self.process.wait()}")
        answer = json.loads(line)
        if "error" in answer:
            raise WorkerError(f"{self.system}: {answer['error']}")
        return answer

    def busy(self) -> float:
        """CPU seconds that the process has used so far."""
        fields = Path(f"/proc/{self.process.pid}/stat").read_text().rsplit(")", 1)[1].split()
        return (int(fields[11]) + int(fields[12])) / TICKS

    def close(self) -> None:
        """End the process."""
        if self.process.poll() is None:
            self.process.stdin.close()
            self.process.wait()
