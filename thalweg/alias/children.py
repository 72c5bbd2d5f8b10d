"""The processes that a program under `thalweg run` starts: `tensorflow` means Thalweg there too.

They inherit two environment variables: THALWEG_RUN, with what the command was asked for, and a
PYTHONPATH that begins with `startup/`, whose `sitecustomize` Python imports before all else. It
calls `begin` once it is needed. Nothing is written to disk, and a process that is started with
another environment or another Python is what it would be without.
"""

from __future__ import annotations

import importlib
import importlib.util
import json
import os
import sys
from importlib.machinery import ModuleSpec
from pathlib import Path
from typing import Any, Final

from thalweg.alias import legacy, old_arrays, switch
from thalweg.alias.finder import Borrowed

_STARTUP: Final = Path(__file__).with_name("startup")
_ROOT: Final = Path(__file__).parents[2]


def inherit(folder: Path, version: str, *, replace: bool) -> None:
    """Have children of this process begin as this one did, with the same arguments."""
    python = [sys.prefix, sys.version]
    given = {"folder": str(folder), "version": version, "replace": replace}
    os.environ["THALWEG_RUN"] = json.dumps(given | {"python": python, "root": str(_ROOT)})
    paths = os.environ.get("PYTHONPATH", "").split(os.pathsep)
    paths = [str(_STARTUP), *(path for path in paths if path and path != str(_STARTUP))]
    os.environ["PYTHONPATH"] = os.pathsep.join(paths)


def begin(given: dict[str, Any]) -> None:
    """Do in this process what `inherit` was told in the parent."""
    switch.install(replace=given["replace"], version=given["version"])
    legacy.restore()
    old_arrays.install(Path(given["folder"]))


def imported(name: str) -> ModuleSpec | None:
    """A spec that gives a module as it is imported now; None if there is no such module."""
    if name not in sys.modules and importlib.util.find_spec(name) is None:
        return None
    module = importlib.import_module(name)
    spec = ModuleSpec(name, Borrowed(module), is_package=True)
    module.__spec__ = spec  # the import system prefers it to what it is given; its loader undoes it
    return spec


class MainFinder:
    """Finds the main program of a process, changed for old arrays, at the path of its file."""

    def __init__(self, path: str) -> None:
        self.path = path

    def find_spec(self, fullname: str, target: Any = None) -> ModuleSpec | None:
        """The spec of `__main__`; None for all others."""
        if fullname != "__main__":
            return None
        loader = _MainLoader(fullname, self.path)
        return importlib.util.spec_from_file_location(fullname, self.path, loader=loader)


class _MainLoader(old_arrays.OldArraysLoader):
    """Loads the main program as if Python ran its file by itself.

    So it has no spec, and its folder is on the path, where Python has put the file.
    """

    def get_code(self, fullname: str) -> Any:
        folder = [] if sys.flags.safe_path else [str(Path(self.path).resolve().parent)]
        sys.path[:] = [
            kept for entry in sys.path for kept in (folder if entry == self.path else [entry])
        ]
        return old_arrays.compiled(self.get_data(self.path), self.path, "__spec__ = None")
