"""What Python imports first in the children of a program under `thalweg run`.

`children.py` put the folder of this file on their path. Nothing of Thalweg is imported here before
a child imports what a program for TensorFlow does: most children of programs are something else.
A child may be of any version of Python 3.
"""

from __future__ import annotations

import importlib
import importlib.machinery
import importlib.util
import json
import os
import sys
from importlib.machinery import ModuleSpec
from typing import Any

FOLDER = os.path.dirname(os.path.abspath(__file__))
CHILDREN = "thalweg.alias.children"
#: Imports before which a child is made ready, as its parent was.
AWAITED = (
    "tensorflow",
    "numpy",
    "six",
    "keras",
    "tf_slim",
    "tensorflow_estimator",
    "sonnet",
    "edward",
)
#: What stands in each program that is changed as it is compiled (`old_arrays.py`).
OLD_ARRAYS = (b"slice(", b".tostring()")


class Awaiting:
    """Makes the process ready when it first imports a module that is awaited."""

    def __init__(self, given: dict[str, Any]) -> None:
        self.given = given

    def find_spec(self, fullname: str, path: Any = None, target: Any = None) -> ModuleSpec | None:
        """None, but for the first module that is awaited: that one, imported by then."""
        if fullname not in AWAITED or _is_beginning("thalweg"):
            return None  # Thalweg itself imports some of them, and is not whole until it has
        return self.ready().imported(fullname)

    def main_program(self, path: str) -> Any:
        """A hook of `sys.path_hooks`: finds the main program of the process if it has old arrays.

        Python asks these hooks for the file that it is to run, which may be a zip file.
        """
        if not path.endswith(".py") or not os.path.isfile(path):
            raise ImportError(path)
        with open(path, "rb") as file:
            source = file.read()
        if not any(sign in source for sign in OLD_ARRAYS):
            raise ImportError(path)
        return self.ready().MainFinder(path)

    def ready(self) -> Any:
        """The module that makes the process ready, which it has done."""
        if self in sys.meta_path:
            sys.meta_path.remove(self)
            if importlib.util.find_spec("thalweg") is None:
                sys.path.append(self.given["root"])
            importlib.import_module(CHILDREN).begin(self.given)
        return sys.modules[CHILDREN]


def _is_beginning(name: str) -> bool:
    """Whether a module is being imported."""
    spec = getattr(sys.modules.get(name), "__spec__", None)
    return bool(getattr(spec, "_initializing", False))


def begin() -> None:
    """Await the imports, if this is the Python that ran the parent."""
    given: dict[str, Any] = json.loads(os.environ.get("THALWEG_RUN") or "{}")
    if given.get("python") == [sys.prefix, sys.version]:
        awaiting = Awaiting(given)
        sys.meta_path.insert(0, awaiting)
        sys.path_hooks.append(awaiting.main_program)


def shadowed() -> None:
    """Run the module of this name that Python would have imported, had ours not come first."""
    sys.path[:] = [entry for entry in sys.path if os.path.abspath(entry) != FOLDER]
    spec = importlib.machinery.PathFinder.find_spec("sitecustomize", sys.path)
    if spec is not None and spec.loader is not None:
        module = importlib.util.module_from_spec(spec)
        sys.modules["sitecustomize"] = module
        spec.loader.exec_module(module)


if __name__ == "sitecustomize":
    begin()
    shadowed()
