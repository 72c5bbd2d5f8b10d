"""The TensorFlow names that a program uses, found in its syntax tree.

Comes in: Python source. Goes out: each use of a name of the package `tensorflow`, whatever the
program calls it: `import tensorflow.compat.v1 as tf`, `from tensorflow.contrib import slim`,
`layers = tf.layers`. A parameter of a function hides a module of the same name.
"""

from __future__ import annotations

import ast
import warnings
from collections.abc import Iterable
from typing import NamedTuple

_PACKAGES = ("tensorflow", "tensorflow_core", "thalweg")
_VERSIONS = ("compat.v1", "compat.v2", "_api.v1", "_api.v2")
_Function = ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda


class Use(NamedTuple):
    """A name below `tensorflow.` in a program, and the keywords it is called with."""

    name: str
    line: int
    column: int
    keywords: tuple[str, ...] = ()


def uses(text: str) -> list[Use]:
    """All uses in a program, in order; a SyntaxError if it is none."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # about the program, not about us
        tree = ast.parse(text)
    visitor = _Visitor()
    visitor.visit(tree)  # once for the names of modules, which functions above them use as well
    visitor.found.clear()
    visitor.visit(tree)
    return sorted(set(visitor.found), key=lambda use: (use.line, use.column))


class _Visitor(ast.NodeVisitor):
    """Walks a tree with the names that stand for modules of TensorFlow, by scope."""

    def __init__(self) -> None:
        self.found: list[Use] = []
        self._scopes: list[dict[str, str | None]] = [{}]

    def visit_Import(self, node: ast.Import) -> None:
        for alias in node.names:
            below = _below(alias.name)
            if below is None:
                continue
            self._note(below, alias)
            if alias.asname:
                self._bind(alias.asname, below)
            else:
                self._bind(alias.name.partition(".")[0], "")

    def visit_ImportFrom(self, node: ast.ImportFrom) -> None:
        below = _below(node.module or "") if not node.level else None
        if below is None:
            return
        for alias in node.names:
            if alias.name == "*":
                self._note(below, alias)
                continue
            name = _normal(_joined(below, alias.name))
            self._note(name, alias)
            self._bind(alias.asname or alias.name, name)

    def visit_Assign(self, node: ast.Assign) -> None:
        name = self._name(node.value)
        if name is not None:
            for target in node.targets:
                if isinstance(target, ast.Name):
                    self._bind(target.id, name)
        self.generic_visit(node)

    def visit_Call(self, node: ast.Call) -> None:
        name = self._name(node.func)
        if name:
            keywords = tuple(sorted(k.arg for k in node.keywords if k.arg is not None))
            self._note(name, node.func, keywords)
            self._visit_all([*node.args, *node.keywords])
        else:
            self.generic_visit(node)

    def visit_Attribute(self, node: ast.Attribute) -> None:
        name = self._name(node)
        if name is None:
            self.generic_visit(node)
        else:
            self._note(name, node)

    def visit_FunctionDef(self, node: ast.FunctionDef) -> None:
        self._function(node, [*node.decorator_list, *filter(None, [node.returns])], node.body)

    def visit_AsyncFunctionDef(self, node: ast.AsyncFunctionDef) -> None:
        self._function(node, [*node.decorator_list, *filter(None, [node.returns])], node.body)

    def visit_Lambda(self, node: ast.Lambda) -> None:
        self._function(node, [], [node.body])

    def _function(
        self, node: _Function, outside: Iterable[ast.AST], body: Iterable[ast.AST]
    ) -> None:
        """Visit the body in a scope of its own, defaults and annotations outside of it."""
        arguments = node.args
        self._visit_all(outside)
        self.visit(arguments)
        every = (*arguments.posonlyargs, *arguments.args, *arguments.kwonlyargs)
        extra = filter(None, (arguments.vararg, arguments.kwarg))
        self._scopes.append({argument.arg: None for argument in (*every, *extra)})
        self._visit_all(body)
        self._scopes.pop()

    def _visit_all(self, nodes: Iterable[ast.AST]) -> None:
        for node in nodes:
            self.visit(node)

    def _bind(self, local: str, name: str) -> None:
        self._scopes[-1][local] = name

    def _name(self, node: ast.AST) -> str | None:
        """The name below `tensorflow` that an expression stands for; None if it is another."""
        parts: list[str] = []
        while isinstance(node, ast.Attribute):
            parts.append(node.attr)
            node = node.value
        if not isinstance(node, ast.Name):
            return None
        bound = next((scope[node.id] for scope in reversed(self._scopes) if node.id in scope), None)
        return None if bound is None else _normal(_joined(bound, *reversed(parts)))

    def _note(self, name: str, node: ast.expr | ast.alias, keywords: tuple[str, ...] = ()) -> None:
        if name:
            self.found.append(Use(name, node.lineno, node.col_offset + 1, keywords))


def _below(module: str) -> str | None:
    """A module as a name below the package; None if it is of another package."""
    package, _, rest = module.partition(".")
    return _normal(rest) if package in _PACKAGES else None


def _joined(*parts: str) -> str:
    return ".".join(filter(None, parts))


def _normal(name: str) -> str:
    """A name without what says which version of the API it is of."""
    for version in _VERSIONS:
        if name == version or name.startswith(f"{version}."):
            return _normal(name[len(version) + 1 :])
    return name
