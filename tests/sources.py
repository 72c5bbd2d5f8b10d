"""The sources of the package, as texts and as trees that are parsed once."""

from __future__ import annotations

import ast
from functools import cache
from pathlib import Path

import thalweg

PACKAGE = Path(thalweg.__file__).parent


@cache
def texts() -> dict[str, str]:
    """The text of each module by its path in the package."""
    return {str(p.relative_to(PACKAGE)): p.read_text() for p in sorted(PACKAGE.rglob("*.py"))}


@cache
def tree(name: str) -> ast.Module:
    """A module parsed."""
    return ast.parse(texts()[name])
