"""What arrays did in NumPy 1 and no function of NumPy's own can bring back.

Programs are changed as they are compiled: an index that is a list of slices becomes a tuple of
them (NumPy 1.23 ended that), and `x.tostring()` becomes `x.tobytes()` (NumPy 2.3 did). Comes in:
source. Goes out: code with the lines of the source, which stays as it is on disk.
"""

from __future__ import annotations

import ast
import importlib.abc
import sys
from importlib.machinery import ModuleSpec, PathFinder, SourceFileLoader
from pathlib import Path
from types import CodeType
from typing import Any, cast

_INDEX, _TOSTRING = "_thalweg_old_index", "_thalweg_old_tostring"
_IMPORT = f"from {__name__} import old_index as {_INDEX}, old_tostring as {_TOSTRING}"
#: A source without any of these needs no change.
SIGNS = ("slice(", ".tostring()")


def old_index(index: Any) -> Any:
    """An index as arrays take it today: a list with slices in it stands for a tuple."""
    if type(index) is not list:
        return index
    parts = cast("list[Any]", index)
    has_slices = any(isinstance(part, slice) or part is Ellipsis for part in parts)
    return tuple(parts) if has_slices else parts


def old_tostring(value: Any) -> Any:
    """`value.tostring()`, which arrays call `tobytes` today."""
    method = getattr(value, "tostring", None)
    return value.tobytes() if method is None else method()


def compiled(source: bytes | str, file: str, first: str = "") -> CodeType:
    """The code of a program in which arrays take what they took in NumPy 1.

    Args:
        source: the program.
        file: where it is from.
        first: statements that run before its own.
    """
    text = source if isinstance(source, str) else source.decode("utf-8", "replace")
    if not first and not any(sign in text for sign in SIGNS):
        return compile(source, file, "exec", dont_inherit=True)
    tree = ast.parse(source, file)
    rewriter = _Rewriter()
    rewriter.visit(tree)
    before = ast.parse(f"{_IMPORT}\n{first}" if rewriter.changes else first).body
    place = _after_future(tree)
    tree.body[place:place] = before
    ast.fix_missing_locations(tree)
    return compile(tree, file, "exec", dont_inherit=True)


class _Rewriter(ast.NodeTransformer):
    """Replaces indices that may be lists, and calls of `tostring`."""

    def __init__(self) -> None:
        self.changes = 0
        self.scopes: list[set[str]] = []  # names that are assigned lists, by scope

    def visit(self, node: ast.AST) -> Any:
        """Rewrite a node, within the scope that it opens if it does."""
        if not isinstance(node, ast.Module | ast.FunctionDef | ast.AsyncFunctionDef):
            return super().visit(node)
        self.scopes.append(_names_of_lists(node))
        self.generic_visit(node)
        self.scopes.pop()
        return node

    def visit_Subscript(self, node: ast.Subscript) -> ast.AST:
        self.generic_visit(node)
        if self._may_be_list(node.slice):
            node.slice = self._call(_INDEX, node.slice)
        return node

    def visit_Call(self, node: ast.Call) -> ast.AST:
        self.generic_visit(node)
        function = node.func
        if node.args or node.keywords or not isinstance(function, ast.Attribute):
            return node
        return self._call(_TOSTRING, function.value) if function.attr == "tostring" else node

    def _may_be_list(self, index: ast.expr) -> bool:
        if isinstance(index, ast.Name):
            return any(index.id in names for names in self.scopes)
        return _is_list(index)

    def _call(self, function: str, argument: ast.expr) -> ast.Call:
        self.changes += 1
        called = ast.copy_location(ast.Name(function, ast.Load()), argument)
        return ast.copy_location(ast.Call(called, [argument], []), argument)


def _names_of_lists(scope: ast.AST) -> set[str]:
    """The names that are assigned a list somewhere in a function or module."""
    return {
        target.id
        for node in ast.walk(scope)
        if isinstance(node, ast.Assign) and _is_list(node.value)
        for target in node.targets
        if isinstance(target, ast.Name)
    }


def _is_list(value: ast.expr) -> bool:
    match value:
        case ast.List() | ast.ListComp():
            return True
        case ast.Call(func=ast.Name(id="list")):
            return True
        case ast.BinOp(left=left, op=ast.Add() | ast.Mult(), right=right):
            return _is_list(left) or _is_list(right)
        case _:
            return False


def _after_future(tree: ast.Module) -> int:
    """Where a statement may come first: after the docstring and imports from the future."""
    for index, statement in enumerate(tree.body):
        is_docstring = index == 0 and ast.get_docstring(tree) is not None
        is_future = isinstance(statement, ast.ImportFrom) and statement.module == "__future__"
        if not is_docstring and not is_future:
            return index
    return len(tree.body)


def install(folder: Path) -> None:
    """Have modules below a program's folder be changed when it imports them."""
    place = sys.meta_path.index(PathFinder) if PathFinder in sys.meta_path else 0
    sys.meta_path.insert(place, OldArraysFinder(folder))


class OldArraysFinder(importlib.abc.MetaPathFinder):
    """Finds modules where Python finds them; those below a program's folder are changed too."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def find_spec(self, fullname: str, path: Any, target: Any = None) -> ModuleSpec | None:
        """The spec of a module of the program's own; None for all others."""
        spec = PathFinder.find_spec(fullname, path, target)
        if spec is None or type(spec.loader) is not SourceFileLoader:
            return None  # a loader of its own kind knows more of its modules
        if not self._is_own(Path(spec.loader.path)):
            return None
        spec.loader = OldArraysLoader(fullname, spec.loader.path)
        return spec

    def _is_own(self, file: Path) -> bool:
        installed = Path(sys.prefix).resolve()
        file = file.resolve()
        return file.is_relative_to(self.folder) and not file.is_relative_to(installed)


class OldArraysLoader(SourceFileLoader):
    """Loads a module from its changed source; compiled code is kept only of unchanged ones."""

    def get_code(self, fullname: str) -> CodeType | None:
        source = self.get_data(self.path)
        if not any(sign.encode() in source for sign in SIGNS):
            return super().get_code(fullname)
        return compiled(source, self.path)
