"""Runtime checks: nests that test conditions on data, as early as what they read is written.

A step whose check fails runs again on the host, so no variable may be written before all checks
have passed. The nest of a check therefore counts as a reader of all variables that are updated:
whatever moves nests leaves updates behind it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from itertools import groupby

from thalweg.graph.node import Node
from thalweg.ir.expr import Expr
from thalweg.ir.kernel import Check
from thalweg.ir.rewrite import free_variables
from thalweg.lower.memory.buffers import BufferKind
from thalweg.lower.nests.loop_nest import LoopNest, NestTemplate, hoisted
from thalweg.lower.specialise import NotCompiled


def check_nest(condition: Expr, node: Node) -> LoopNest:
    """The nest that checks a condition for all values of its variables, or a node fails."""
    free = free_variables(condition)
    loops = tuple(sorted(free, key=lambda variable: int(variable.name[1:])))
    check = Check(loops, condition, 1)  # its fault code will be its number among all checks
    return LoopNest(NestTemplate(loops, (), is_sealed=True, checks=(check,)), (node,))


def hoist_checks(nests: Sequence[LoopNest]) -> list[LoopNest]:
    """The nests, each check right after the last nest that writes what it reads."""
    updated = frozenset([b for n in nests for b in n.written if b.kind is BufferKind.VARIABLE])
    result: list[LoopNest] = []
    is_updated = False
    for are_checks, group in groupby(hoisted(nests, _is_check), _is_check):
        members = list(group)
        if not are_checks:
            result += members
            is_updated = is_updated or any(updated & nest.written for nest in members)
        elif is_updated:
            reason = "it may fail when a variable has changed already"
            raise NotCompiled(members[0].nodes[0], reason)
        else:
            result += [replace(check, aliases=updated) for check in _joined(members)]
    return result


def _is_check(nest: LoopNest) -> bool:
    return bool(nest.template.checks)


def _joined(nests: Sequence[LoopNest]) -> list[LoopNest]:
    """Nests of checks, with all scalar ones in one nest."""
    scalar = [nest for nest in nests if not nest.variables]
    others = [nest for nest in nests if nest.variables]
    if not scalar:
        return others
    checks = tuple([check for nest in scalar for check in nest.template.checks])
    nodes = tuple([node for nest in scalar for node in nest.nodes])
    return [LoopNest(replace(scalar[0].template, checks=checks), nodes), *others]
