"""Op libraries: Python files whose op blocks are registered when they are loaded."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

from thalweg import errors
from thalweg.public import public

_loaded: dict[Path, ModuleType] = {}


@public("load_op_library", "load_library")
def load_op_library(library_filename: str) -> ModuleType:
    """Run a Python file that defines op blocks, once; returns its module.

    Ops are Python classes here: a compiled library cannot be loaded.

    Args:
        library_filename: the path of a Python file.

    Returns:
        The module.

    Example:
        >>> with open("doubling.py", "w") as file:
        ...     written = file.write("def double(x):\\n    return x + x\\n")
        >>> library = tf.load_op_library("doubling.py")
        >>> sess.run(library.double(tf.constant([1.5, 2.0])))
        array([3., 4.], dtype=float32)
    """
    path = Path(library_filename).resolve()
    if path in _loaded:
        return _loaded[path]
    if path.suffix != ".py":
        raise errors.NotFoundError(
            None, None, f"{library_filename}: an op library is a Python file of op blocks (.py)"
        )
    if not path.is_file():
        raise errors.NotFoundError(None, None, f"{library_filename}: no such file")
    _loaded[path] = _run(path)
    return _loaded[path]


def _run(path: Path) -> ModuleType:
    name = f"thalweg_op_library_{path.stem}"
    specification: Any = importlib.util.spec_from_file_location(name, path)
    module = importlib.util.module_from_spec(specification)
    sys.modules[name] = module
    specification.loader.exec_module(module)
    return module
