"""The source of modules as syntax trees: what a name in an annotation refers to.

Names are resolved to dotted names without running anything, so those that are imported for type
checkers only are found like all others.
"""

from __future__ import annotations

import ast
import functools
import importlib
import sys
from collections.abc import Iterator
from pathlib import Path
from types import FunctionType

Function = ast.FunctionDef | ast.AsyncFunctionDef


@functools.cache
def tree_of(path: str) -> ast.Module:
    """A file as a syntax tree."""
    return ast.parse(Path(path).read_text())


@functools.cache
def functions_of(path: str) -> dict[int, Function]:
    """The functions of a file by their first line, which is the first decorator's."""
    found = [node for node in ast.walk(tree_of(path)) if isinstance(node, Function)]
    return {min([f.lineno, *(d.lineno for d in f.decorator_list)]): f for f in found}


def definition_of(function: FunctionType) -> Function | None:
    """Where a function is written, if that is a file."""
    code = function.__code__
    if not Path(code.co_filename).is_file():
        return None
    return functions_of(code.co_filename).get(code.co_firstlineno)


@functools.cache
def names_of(module: str) -> dict[str, str]:
    """The dotted name that each name of a module stands for."""
    path = getattr(importlib.import_module(module), "__file__", None)
    if path is None:
        return {}
    return dict(_bindings(tree_of(path).body, module))


def _bindings(body: list[ast.stmt], module: str) -> Iterator[tuple[str, str]]:
    for node in body:
        if isinstance(node, ast.Import):
            for alias in node.names:
                yield _imported(alias)
        elif isinstance(node, ast.ImportFrom):
            for alias in node.names:
                yield alias.asname or alias.name, f"{node.module}.{alias.name}"
        elif isinstance(node, Function | ast.ClassDef):
            yield node.name, f"{module}.{node.name}"
        elif isinstance(node, ast.Assign | ast.AnnAssign):
            is_root = node.value is not None and ast.unparse(node.value) == "names.root()"
            for name in _targets(node):
                yield name, "thalweg" if is_root else f"{module}.{name}"
        elif isinstance(node, ast.If):
            yield from _bindings(node.body, module)


def _imported(alias: ast.alias) -> tuple[str, str]:
    if alias.asname:
        return alias.asname, alias.name
    top = alias.name.partition(".")[0]
    return top, top


def _targets(node: ast.Assign | ast.AnnAssign) -> Iterator[str]:
    targets = node.targets if isinstance(node, ast.Assign) else [node.target]
    yield from (target.id for target in targets if isinstance(target, ast.Name))


@functools.cache
def assigned(module: str, name: str) -> ast.expr | None:
    """What a module assigns to a name at its top level."""
    path = importlib.import_module(module).__file__
    for node in tree_of(path or "").body:
        if isinstance(node, ast.Assign | ast.AnnAssign) and name in _targets(node):
            return node.value
    return None


def found(dotted: str) -> object:
    """The object of a dotted name: the module that is its longest prefix, then attributes."""
    module, _, rest = dotted.rpartition(".")
    while module and module not in sys.modules and not _imports(module):
        module, _, more = module.rpartition(".")
        rest = f"{more}.{rest}"
    value: object = importlib.import_module(module or rest)
    for part in rest.split(".") if module else []:
        value = getattr(value, part)
    return value


def _imports(module: str) -> bool:
    try:
        importlib.import_module(module)
    except ImportError:
        return False
    return True
