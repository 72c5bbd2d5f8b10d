"""Where a function uses, assigns and returns its names, in its syntax tree."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from tools.stubs.sources import Function

#: A use, and the nodes above it from the function down.
Use = tuple[ast.AST, list[ast.AST]]

_NEVER = 1 << 30


def uses(definition: Function | None, name: str, after: int = 0) -> Iterator[Use]:
    """The uses of a name up to where it is assigned anew, or those after a line that did so."""
    if definition is None:
        return
    last = _NEVER if after else _reassigned(definition, name)
    for node, parents in _below(definition):
        is_read = isinstance(node, ast.Name) and node.id == name and isinstance(node.ctx, ast.Load)
        if is_read and after < node.lineno <= last:
            yield node, parents


def attribute_uses(definition: Function | None, attribute: str) -> Iterator[Use]:
    """Where a method reads `self.attribute`."""
    for node, parents in _below(definition):
        match node:
            case ast.Attribute(ast.Name("self"), name, ast.Load()) if name == attribute:
                yield node, parents


def _below(definition: Function | None) -> Iterator[Use]:
    def walk(node: ast.AST, parents: list[ast.AST]) -> Iterator[Use]:
        for child in ast.iter_child_nodes(node):
            yield child, parents
            yield from walk(child, [*parents, child])

    for statement in [] if definition is None else definition.body:
        yield from walk(statement, [statement])


def _reassigned(definition: Function, name: str) -> int:
    """The last line on which a parameter still has the value that it was given."""
    ends = [
        node.end_lineno or node.lineno
        for node in definition.body
        if isinstance(node, ast.Assign)
        for target in node.targets
        if name in {n.id for n in ast.walk(target) if isinstance(n, ast.Name)}
    ]
    return min(ends) if ends and name in arguments(definition) else _NEVER


def arguments(definition: Function) -> set[str]:
    """The names of a function's parameters."""
    found = definition.args
    return {a.arg for a in [*found.posonlyargs, *found.args, *found.kwonlyargs]}


def assignments(definition: Function, name: str) -> list[ast.expr]:
    """The expressions that are assigned to a local name."""
    return [
        node.value
        for node in ast.walk(definition)
        if isinstance(node, ast.Assign)
        for target in node.targets
        if isinstance(target, ast.Name) and target.id == name
    ]


def returns(definition: Function) -> Iterator[ast.expr]:
    """What a function returns, and not what functions inside it do."""
    pending: list[ast.AST] = list(definition.body)
    while pending:
        node = pending.pop()
        if isinstance(node, ast.Return) and node.value is not None:
            yield node.value
        elif not isinstance(node, Function | ast.Lambda | ast.ClassDef):
            pending += ast.iter_child_nodes(node)
