"""The notebooks of the course run, and print what they show."""

from __future__ import annotations

import contextlib
import io
import json
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

COURSE = Path(__file__).resolve().parents[1] / "docs" / "course"
NOTEBOOKS = sorted(COURSE.glob("*.ipynb"))


def test_there_are_six_notebooks() -> None:
    assert [path.stem[0] for path in NOTEBOOKS] == list("123456")


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_a_notebook_runs_as_shown(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(COURSE)
    monkeypatch.syspath_prepend(str(COURSE))
    namespace: dict[str, Any] = {"__name__": "__main__"}
    for number, cell in enumerate(code_cells(path), 1):
        printed = io.StringIO()
        with contextlib.redirect_stdout(printed):
            exec(compile("".join(cell["source"]), f"{path.stem}[{number}]", "exec"), namespace)
        if "varies" not in cell["metadata"].get("tags", ()):
            assert printed.getvalue() == shown(cell)


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_the_files_that_a_notebook_names_exist(path: Path) -> None:
    text = " ".join(
        line for cell in json.loads(path.read_text())["cells"] for line in cell["source"]
    )
    named = re.findall(r"`((?:thalweg|tests)/[\w/.]+)`", text)
    assert named and [file for file in named if not (COURSE.parents[1] / file).exists()] == []


def code_cells(path: Path) -> list[dict[str, Any]]:
    cells = json.loads(path.read_text())["cells"]
    return [cell for cell in cells if cell["cell_type"] == "code"]


def shown(cell: dict[str, Any]) -> str:
    return "".join(line for output in cell["outputs"] for line in output["text"])


def test_a_chapter_is_its_definitions_alone() -> None:
    """Nothing that a notebook tries out is in its module, or runs when it is loaded."""
    code = (
        "from chapters import chapter; one = chapter('1_graph'); print(hasattr(one, 'y'), one.Add)"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=COURSE, capture_output=True, text=True, check=True
    )
    assert done.stdout == "False <class 'chapter_1_graph.Add'>\n"
