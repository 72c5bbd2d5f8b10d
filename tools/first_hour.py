"""Does what the README tells a newcomer to do, in clean folders, and prints how long it took.

    python tools/first_hour.py [FOLDER]     # needs git, make, and what pip can reach

It clones the repository (as committed), runs the README's commands for installing, its first model
and the demo, and keeps nothing. Where a line fails, so does this. Any Python 3.11 will do.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
_MARK = "@@ done"


def fenced(text: str, language: str) -> list[str]:
    """The blocks of a page in one language."""
    return re.findall(rf"^```{language}\n(.*?)^```$", text, re.MULTILINE | re.DOTALL)


def commands(block: str) -> list[str]:
    """The lines of a shell block, without comments."""
    lines = (line.partition(" #")[0].strip() for line in block.splitlines())
    return [line for line in lines if line]


def timed(lines: list[str], folder: Path, caches: Path) -> Iterator[tuple[str, float]]:
    """Run lines in one shell that stops at the first failure; each line and its seconds."""
    script = "set -e\n" + "".join(f"{line}\necho '{_MARK}'\n" for line in lines)
    hidden = {"PYTHONPATH", "VIRTUAL_ENV", "THALWEG_CACHE"}
    clean = {name: value for name, value in os.environ.items() if name not in hidden}
    shell = subprocess.Popen(
        ["bash", "-c", script],
        cwd=folder,
        env=clean | {"XDG_CACHE_HOME": str(caches), "THALWEG_CACHE": str(caches / "thalweg")},
        stdout=subprocess.PIPE,
        text=True,
    )
    assert shell.stdout
    left, started = iter(lines), time.monotonic()
    for said in shell.stdout:
        if said.rstrip() != _MARK:
            print(f"    {said}", end="")
            continue
        yield next(left), time.monotonic() - started
        started = time.monotonic()
    if shell.wait():
        raise SystemExit(f"this failed: {next(left)}")


def walk(title: str, lines: list[str], folder: Path, caches: Path) -> None:
    """Run lines, and print what each took and all together."""
    print(f"\n{title}")
    whole = 0.0
    for line, seconds in timed(lines, folder, caches):
        whole += seconds
        print(f"{seconds:8.1f} s  {line}", flush=True)
    print(f"{whole:8.1f} s  in all")


def main() -> None:
    """Clone, then install and train as the README says, then the demo."""
    with tempfile.TemporaryDirectory(dir=sys.argv[1] if len(sys.argv) > 1 else None) as name:
        folder = Path(name)
        clone, caches = folder / "thalweg", folder / "caches"
        walk("Clone", [f"git clone --quiet {ROOT} thalweg"], folder, caches)
        readme = (clone / "README.md").read_text()
        (folder / "first_model.py").write_text(fenced(readme, "python")[0])
        install, develop = (commands(block) for block in fenced(readme, "sh")[:2])
        walk("From pip install to a saved model", install, folder, caches / "user")
        walk("From the clone to a trained model", develop[:1], clone, caches / "developer")


if __name__ == "__main__":
    main()
