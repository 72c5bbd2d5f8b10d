"""Writes the figures as Markdown: times, and each ratio next to its bar."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from measure import Figures, Settings
from raw import Comparison
from rows import FLATNESS, SPARSE, Row

Found = Sequence[tuple[Row, dict[str, Figures]]]

NOTES = Path(__file__).with_name("NOTES.md")  # what was found out about these figures
METHOD = """\
Every task is a process of its own on this machine: 2 parameter servers and the workers, each with
its session. The clusters of both systems live at the same time and take turns, round by round;
{rounds} rounds of about {seconds:g} s, of which the best counts. A step's time is that of the
worker who is last, divided by the steps of each; in synchronous training, by the updates. The
graphs come from one file for both systems, `benchmarks/cluster/programs.py`.

- **Null step**: the worker fetches a value of each server, takes the cosine of one number, and
  sends each server a number. Dense: the values are 100 MB together.
- **Rows**: the worker looks up 32 random rows of 1 KB in a table that is sharded over the servers.
- **Training**: a perceptron 784-100-10, batch 64; word2vec with a vocabulary of 50,000, 128 numbers
  a word, batch 128, 64 samples. 4 workers, gradient descent, each worker on its own or all together
  by `SyncReplicasOptimizer`.
- **A step of nothing**: one node without work on each of 8 tasks, until all have answered; median.
"""


def document(header: str, found: Found, pairs: Sequence[Comparison], settings: Settings) -> str:
    """All results."""
    method = METHOD.format(rounds=settings.rounds, seconds=settings.round_seconds)
    parts = ["# Clusters\n", header, method, _steps(found)]
    if pairs:
        parts += ["## Send and receive\n", _pairs(pairs)]
    return "\n".join([*parts, NOTES.read_text()])


def line(row: Row, figures: dict[str, Figures]) -> str:
    """A row as it is measured."""
    return " | ".join(_cells(row, figures))


def _steps(found: Found) -> str:
    head = "| step | Thalweg | TensorFlow | ratio | bar |\n|---|---:|---:|---:|---:|\n"
    rows = "".join(f"| {line(row, figures)} |\n" for row, figures in found)
    return head + rows + _flatness(found)


def _cells(row: Row, figures: dict[str, Figures]) -> list[str]:
    ours, theirs = figures["thalweg"].best, figures["tensorflow"].best
    ratio = theirs / ours if ours and theirs else None
    bar = f"under {_time(row.max_seconds)}" if row.max_seconds else f"{row.bar:g}"
    return [row.title, _time(ours), _time(theirs), f"{ratio:.2f}" if ratio else "-", bar]


def _time(seconds: float | None) -> str:
    return "failed" if seconds is None else f"{seconds * 1e3:.3g} ms"


def _flatness(found: Found) -> str:
    """Whether the time of a lookup depends on the size of the table."""
    best = [f["thalweg"].best for row, f in found if row.name in SPARSE]
    times = [each for each in best if each]
    if len(times) < len(SPARSE):
        return ""
    spread = max(times) / min(times)
    return f"\nTables of all sizes: within a factor of {spread:.2f} (bar {FLATNESS}).\n"


def _pairs(pairs: Sequence[Comparison]) -> str:
    head = "| transfer | Thalweg | base | Thalweg / base | bar |\n|---|---:|---:|---:|---:|\n"
    return head + "".join(
        f"| {pair.title} | {_time(pair.ours)} | {_time(pair.base)} "
        f"| {pair.ours / pair.base:.2f} | {pair.bar} |\n"
        for pair in pairs
    )
