"""What each pass of the optimiser is worth: the works with it and without it, in turn.

`make bench BENCH="--ablate"` prints, for each work, without / with: above 1, the pass makes steps
faster, the first call sooner or memory smaller. The first row of a work is that without any pass.
Passes that do nothing to a work have no row. One without which the same machine code would run on
the same memory is not measured: its row says so. The others are measured in turn, in `--processes`
processes each, of which the best counts: a process may be slow for its whole life by where its
memory lies. The row `nothing` is all passes, once more: what it is off 1 is noise.
"""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

from against import merged, ratios
from measure import LOG, Measurement, Settings
from remote import Remote, WorkerError
from works import Work

COLUMNS = ("best", "median", "first", "peak")
NOTHING = "nothing"  # as a pass to leave out
SAME = " | ".join(["the same code", *[""] * (len(COLUMNS) - 1)])


def ablate(works: list[Work], how: Settings) -> None:
    """Measure the works and print a table, row by row."""
    print("| work | off | fired | " + " | ".join(f"{n}, without / with" for n in COLUMNS) + " |")
    print("|---|---|---|" + "---|" * len(COLUMNS))
    for work in works:
        if work.own.startswith("thalweg") and not work.eager and not work.moves_data:
            for row in _rows(work, replace(how, warm_calls=0)):
                print(row, flush=True)


def _rows(work: Work, how: Settings) -> Iterator[str]:
    """A line for each pass that did something."""
    fired, changing = _fired(work, how)
    off = {name: f"{work.own}!{'0' if name == 'all' else f'-{name}'}" for name in changing}
    if off:
        off[NOTHING] = f"{work.own}!-{NOTHING}"
    figures = _measured(work, [work.own, *off.values()], how) if off else {}
    counts = {"all": sum(fired.values())} | fired | ({NOTHING: 0} if off else {})
    for name, count in counts.items():
        cells = _cells(figures[off[name]], figures[work.own]) if name in off else SAME
        yield f"| {work.name} | {name} | {count} | {cells} |"


def _measured(work: Work, systems: list[str], how: Settings) -> dict[str, dict[str, Any]]:
    runs = [Measurement(work, systems, how).run() for _ in range(how.processes)]
    return {system: merged([run[system] for run in runs]) for system in systems}


def _cells(old: dict[str, Any], new: dict[str, Any]) -> str:
    if problem := new["error"] or old["error"]:
        return problem
    found = ratios(old, new)
    return " | ".join(f"{found[column]:.3f}" if column in found else "" for column in COLUMNS)


def _fired(work: Work, how: Settings) -> tuple[dict[str, int], list[str]]:
    """How often the rules of each pass fired in a work's step, where it is one of a session, and
    the passes without which other code would run."""
    with LOG.open("a") as log, tempfile.TemporaryDirectory() as caches:
        remote = Remote(work.own, work.name, how.cpus, Path(caches), how.batch, log)
        try:
            remote.ask("make")
            found = remote.ask("passes")
            return found["fired"], found["changing"]
        except WorkerError:
            return {}, []
        finally:
            remote.close()
