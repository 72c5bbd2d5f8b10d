"""Python sources to check: files, notebooks and folders of them, as pieces of code with places."""

from __future__ import annotations

import io
import json
import os
import stat
import tokenize
from collections.abc import Iterator
from typing import Any, NamedTuple, cast

from thalweg.cli.problem import Problem

_SUFFIXES = (".py", ".pyw", ".ipynb")
_PASSED_OVER = {"__pycache__", "node_modules", "site-packages", "venv"}
_MAX_SOURCE = 32 << 20  # bytes: no program is that long


class Source(NamedTuple):
    """A piece of code, and what places in it are called: a file, or a cell of a notebook."""

    place: str
    text: str


def files(path: str) -> Iterator[str]:
    """The sources at a path: itself, or all below a folder."""
    if not os.path.isdir(path):
        yield path
        return
    found = sorted(_below(path))
    if not found:
        raise Problem(f"{path}: a folder without Python files or notebooks")
    yield from found


def _below(folder: str) -> Iterator[str]:
    for inner, folders, names in os.walk(folder):
        folders[:] = [f for f in folders if not f.startswith(".") and f not in _PASSED_OVER]
        yield from (os.path.join(inner, name) for name in names if name.endswith(_SUFFIXES))


def read(path: str) -> list[Source]:
    """The code of a file, or of each cell of a notebook."""
    status = os.stat(path)
    if not stat.S_ISREG(status.st_mode):
        raise Problem(f"{path}: neither a file nor a folder")
    if status.st_size > _MAX_SOURCE:
        raise Problem(f"{path}: {status.st_size:,} bytes are too many for a program")
    with open(path, "rb") as file:
        content = file.read(_MAX_SOURCE)
    if path.endswith(".ipynb"):
        return list(_cells(path, content))
    return [Source(path, _decoded(path, content))]


def _decoded(path: str, content: bytes) -> str:
    """The text of a source, in the encoding that it says."""
    try:
        encoding, _ = tokenize.detect_encoding(io.BytesIO(content).readline)
        return content.decode(encoding)
    except (SyntaxError, UnicodeDecodeError) as error:
        raise Problem(f"{path}: no text of a program: {error}") from error


def _cells(path: str, content: bytes) -> Iterator[Source]:
    try:
        notebook = json.loads(content)
    except ValueError as error:
        raise Problem(f"{path}: no notebook: {error}") from error
    cells = _get(notebook, "cells", list)
    if cells is None:
        raise Problem(f"{path}: no notebook of version 4: it has no cells")
    for number, cell in enumerate(cells, 1):
        if _get(cell, "cell_type", str) == "code":
            yield Source(f"{path}:cell {number}", _without_magics(cell.get("source", "")))


def _get(value: Any, key: str, kind: type) -> Any:
    if not isinstance(value, dict):
        return None
    found = cast("dict[str, Any]", value).get(key)
    return found if isinstance(found, kind) else None


def _without_magics(source: Any) -> str:
    """A cell as Python, commands to the notebook replaced by nothing."""
    text = "".join(map(str, cast("list[Any]", source))) if isinstance(source, list) else str(source)
    if text.startswith("%%"):
        return ""
    return "\n".join(map(_python, text.split("\n")))


def _python(line: str) -> str:
    bare = line.lstrip()
    is_command = bare.startswith(("%", "!"))
    return f"{line[: len(line) - len(bare)]}pass" if is_command else line
