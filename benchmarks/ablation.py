"""What each pass of the optimiser is worth: the works with it and without it, in turn.

`make bench BENCH="--ablate"` prints, for each work, without / with: above 1, the pass makes steps
faster, the first call sooner or memory smaller. The first row of a work is that without any pass.
Passes that do nothing to a work have no row.
"""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from pathlib import Path

from against import COLUMNS, ratios
from measure import LOG, Measurement, Settings
from remote import Remote, WorkerError
from works import Work


def ablate(works: list[Work], how: Settings) -> None:
    """Measure the works and print a table, row by row."""
    print("| work | off | fired | " + " | ".join(f"{n}, without / with" for n in COLUMNS) + " |")
    print("|---|---|---|" + "---|" * len(COLUMNS))
    for work in works:
        if not work.own.startswith("thalweg"):
            continue
        for row in _rows(work, how):
            print(row, flush=True)


def _rows(work: Work, how: Settings) -> Iterator[str]:
    """A line for each pass that did something, all measured in turn."""
    fired = _fired(work, how)
    off = {"all": "0"} | {name: f"-{name}" for name in fired}
    systems = {name: f"{work.own}!{option}" for name, option in off.items()}
    figures = Measurement(work, [work.own, *systems.values()], how).run()
    for name, system in systems.items():
        new, old = figures[work.own], figures[system]
        found = ratios(old, new)
        cells = [f"{found[column]:.3f}" if column in found else "" for column in COLUMNS]
        count = fired.get(name, sum(fired.values()))
        problem = new["error"] or old["error"]
        yield f"| {work.name} | {name} | {count} | {' | '.join(cells)} | {problem}".rstrip()


def _fired(work: Work, how: Settings) -> dict[str, int]:
    """How often the rules of each pass fired in a work's step, where it is one of a session."""
    with LOG.open("a") as log, tempfile.TemporaryDirectory() as caches:
        remote = Remote(work.own, work.name, how.cpus, Path(caches), how.batch, log)
        try:
            remote.ask("make")
            return remote.ask("passes")["fired"]
        except WorkerError:
            return {}
        finally:
            remote.close()
