"""Runtime checks: nests that test conditions on data, as early as what they read is written.

A step whose check fails runs again on the host, so no variable may be written before all checks
have passed. The nest of a check therefore counts as a reader of all variables that are updated:
whatever moves nests leaves updates behind it.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace

from thalweg.graph.node import Node
from thalweg.ir.expr import Expr
from thalweg.ir.kernel import Check
from thalweg.ir.rewrite import free_variables
from thalweg.lower.memory.buffers import Buffer, BufferKind
from thalweg.lower.nests.loop_nest import LoopNest, NestTemplate
from thalweg.lower.specialise import NotCompiled


def check_nest(condition: Expr, node: Node) -> LoopNest:
    """The nest that checks a condition for all values of its variables, or a node fails."""
    free = free_variables(condition)
    loops = tuple(sorted(free, key=lambda variable: int(variable.name[1:])))
    check = Check(loops, condition, 1)  # its fault code will be its number among all checks
    return LoopNest(NestTemplate(loops, (), is_sealed=True, checks=(check,)), (node,))


def hoist_checks(nests: Sequence[LoopNest]) -> list[LoopNest]:
    """The nests, each check right after the last nest that writes what it reads."""
    checks_before: list[list[LoopNest]] = [[] for _ in nests]  # by the nest they run before
    written_at: dict[Buffer, int] = {}
    updated: dict[Buffer, int] = {}  # the variables, and the first update of each
    for position, nest in enumerate(nests):
        if nest.template.checks:
            earliest = max([written_at.get(buffer, -1) for buffer in nest.reads], default=-1) + 1
            if any(first < earliest for first in updated.values()):
                raise NotCompiled(nest.nodes[0], "it may fail when a variable has changed already")
            checks_before[earliest].append(nest)
        for buffer in nest.written:
            written_at[buffer] = position
            if buffer.kind is BufferKind.VARIABLE:
                updated.setdefault(buffer, position)
    result: list[LoopNest] = []
    for checks, nest in zip(checks_before, nests, strict=True):
        result += [replace(check, aliases=frozenset(updated)) for check in _joined(checks)]
        if not nest.template.checks:
            result.append(nest)
    return result


def _joined(nests: Iterable[LoopNest]) -> list[LoopNest]:
    """Nests of checks, with all scalar ones in one nest."""
    scalar = [nest for nest in nests if not nest.variables]
    others = [nest for nest in nests if nest.variables]
    if not scalar:
        return others
    checks = tuple([check for nest in scalar for check in nest.template.checks])
    nodes = tuple([node for nest in scalar for node in nest.nodes])
    return [LoopNest(replace(scalar[0].template, checks=checks), nodes), *others]
