"""What a notebook adds to Python: cells instead of files, and its own way of printing errors.

IPython is never imported here: where it runs, it is loaded already.
"""

from __future__ import annotations

import importlib
import sys
from importlib.util import find_spec
from typing import Any


def shell() -> Any:
    """The IPython that this process is a kernel or a terminal of, or None."""
    ipython: Any = sys.modules.get("IPython")
    find = getattr(ipython, "get_ipython", None)  # absent while IPython itself is being imported
    return None if find is None else find()


def is_notebook() -> bool:
    """Whether output goes to a notebook, which draws what a terminal would write over."""
    return hasattr(shell(), "kernel")


def location(file: str, line: int) -> str:
    """A place in code as people call it: `train.py:12`, or `Cell In[3], line 4`."""
    cell = _cell(file)
    return f"{file}:{line}" if cell is None else f"{cell}, line {line}"


def _cell(file: str) -> str | None:
    """The cell that was compiled under a name; of equal cells, the one that ran last."""
    compiler = getattr(shell(), "compile", None)
    named = getattr(compiler, "format_code_name", None)
    label = None if named is None else named(file)
    return None if label is None else " ".join(label)


def progress_bar() -> Any:
    """The class of tqdm that draws where output goes; an ImportError if tqdm is not installed."""
    has_widgets = is_notebook() and find_spec("ipywidgets") is not None
    return importlib.import_module("tqdm.notebook" if has_widgets else "tqdm").tqdm
