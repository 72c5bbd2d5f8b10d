"""Notebooks: the IPython shell, cells in place of files, and progress bars.

IPython is never imported here: if the process runs in it, it is loaded already.
"""

from __future__ import annotations

import importlib
import sys
from importlib.util import find_spec
from typing import Any


def shell() -> Any:
    """The IPython shell of this process, or None."""
    ipython: Any = sys.modules.get("IPython")
    find = getattr(ipython, "get_ipython", None)  # absent while IPython itself is being imported
    return None if find is None else find()


def is_notebook() -> bool:
    """Whether output goes to a notebook, not a terminal."""
    return hasattr(shell(), "kernel")


def location(file: str, line: int) -> str:
    """A code location for people: `train.py:12`, or `Cell In[3], line 4`."""
    cell = _cell(file)
    return f"{file}:{line}" if cell is None else f"{cell}, line {line}"


def _cell(file: str) -> str | None:
    """The label of the cell with a file name; of equal cells, the one that ran last."""
    compiler = getattr(shell(), "compile", None)
    format_name = getattr(compiler, "format_code_name", None)
    label = None if format_name is None else format_name(file)
    return None if label is None else " ".join(label)


def progress_bar() -> Any:
    """The tqdm class for this notebook or terminal; an ImportError if tqdm is not installed."""
    has_widgets = is_notebook() and find_spec("ipywidgets") is not None
    return importlib.import_module("tqdm.notebook" if has_widgets else "tqdm").tqdm
