"""Pyright over what users write: every mistake of a bad program is found, none in a good one."""

from __future__ import annotations

import json
import subprocess
import sys
from functools import cache
from pathlib import Path
from typing import Any

from tests.editor.conftest import PROGRAMS, site_packages

PYRIGHT = Path(sys.executable).parent / "basedpyright"
MISTAKES = ("misspelt", "internal", "keyword", "missing", "type")


@cache
def diagnostics(project: Path) -> list[tuple[str, int, str]]:
    """File, line and text of everything that Pyright says of programs and stubs."""
    files = [*project.glob("*.py"), site_packages(project) / "thalweg-stubs"]
    ran = subprocess.run(
        [PYRIGHT, "--outputjson", "-p", project, *files], capture_output=True, text=True
    )
    found: list[dict[str, Any]] = json.loads(ran.stdout)["generalDiagnostics"]
    return [(Path(d["file"]).name, d["range"]["start"]["line"] + 1, d["message"]) for d in found]


def test_nothing_is_wrong_with_a_good_program(project: Path) -> None:
    assert [found for found in diagnostics(project) if found[0] == "good.py"] == []


def test_every_mistake_of_a_bad_program_is_found(project: Path) -> None:
    lines = (PROGRAMS / "bad.py").read_text().splitlines()
    wrong = {at for at, line in enumerate(lines, 1) if line.rpartition("# ")[2] in MISTAKES}
    actual = {line for file, line, _ in diagnostics(project) if file == "bad.py"}
    assert actual == wrong
