"""What is measured: a program on so many workers, next to what it is to be compared with."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

#: How the tasks of Thalweg talk, by the environment of their processes.
TRANSPORTS: Mapping[str, Mapping[str, str]] = {
    "": {},  # as by default: shared memory within a host, CURVE
    "TCP": {"THALWEG_SHARED_MEMORY": "0"},
    "TCP, no key": {"THALWEG_SHARED_MEMORY": "0", "THALWEG_CLUSTER_KEY": "none"},
}


@dataclass(frozen=True)
class Row:
    """A line of the table."""

    name: str
    title: str
    program: str
    workers: int
    bar: float  # of TensorFlow's time / Thalweg's
    options: Mapping[str, Any] = field(default_factory=dict[str, Any])
    transport: str = ""
    steps: int = 0  # in a round; 0 for as many as fill its time
    max_seconds: float | None = None  # of what the step itself tells, its median


def _nulls() -> list[Row]:
    return [
        Row(f"null-{n}", f"null step, scalar, {n} worker{'s' * (n > 1)}", "null_step", n, 6)
        for n in (1, 2, 4, 8)
    ]


def _dense() -> list[Row]:
    size = {"megabytes": 100}
    return [
        Row(
            f"dense-{name}",
            f"null step, dense 100 MB, {title}",
            "null_step",
            1,
            bar,
            size,
            transport,
        )
        for name, title, bar, transport in (
            ("shared", "shared memory", 4, ""),
            ("tcp", "TCP, encrypted", 1.5, "TCP"),
            ("tcp-plain", "TCP, no key", 1.5, "TCP, no key"),
        )
    ]


def _sparse() -> list[Row]:
    return [
        Row(f"sparse-{size}", f"32 rows of {size} MB", "sparse_step", 1, 6, {"megabytes": size})
        for size in (256, 1024, 4096)
    ]


def _training() -> list[Row]:
    return [
        Row(f"{model}-{mode}", f"{model}, {mode}", model, 4, 3, {"is_synchronous": mode == "sync"})
        for model in ("mlp", "word2vec")
        for mode in ("async", "sync")
    ]


#: The sizes of sparse rows whose times must be the same, and by how much they may differ.
SPARSE, FLATNESS = ("sparse-256", "sparse-1024", "sparse-4096"), 1.25

ROWS = [*_nulls(), *_dense(), *_sparse(), *_training()]
START = Row(
    "start", "a step of nothing on 8 tasks, there and back", "step_start", 8, 1, max_seconds=0.3e-3
)


def choose(names: list[str]) -> list[Row]:
    """The rows with some names, or whose names begin so; all if none is named."""
    every = [*ROWS, START]
    return [row for row in every if not names or any(row.name.startswith(n) for n in names)]
