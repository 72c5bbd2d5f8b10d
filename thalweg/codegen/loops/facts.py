"""Static facts about the expressions of loop kernels: extents, strides, speculation safety."""

from __future__ import annotations

from collections.abc import Iterable

from thalweg.ir.dynamic import Dynamic
from thalweg.ir.expr import Call, Const, Expr, Load, Reduce, Variable
from thalweg.ir.functions.table import FUNCTIONS
from thalweg.ir.index import Affine
from thalweg.ir.rewrite import Fold, walk


def outside_reductions(roots: Iterable[Expr]) -> set[Expr]:
    """All expressions under some roots that are not part of the body of a reduction."""
    return set(walk(roots, lambda part: () if isinstance(part, Reduce) else part.parts))


def extent_of(variable: Variable) -> int | None:
    """How many values a variable has, where that is known now."""
    return None if isinstance(variable.extent, Dynamic) else variable.extent


def stride(offset: Affine, variable: Variable) -> int | None:
    """By how much a place moves with a variable by its plain terms; None if that is not known."""
    factor = offset.factor(variable)
    return None if isinstance(factor, Dynamic) else factor


def safety() -> Fold[bool]:
    """Whether computing an expression where it is not wanted does no harm."""
    return Fold(lambda part, known: harmless(part) and all(known.parts(part)))


def harmless(expr: Expr) -> bool:
    """Whether an expression by itself neither reads outside a buffer nor faults."""
    if isinstance(expr, Load):
        return expr.buffer.contains(expr.offset)
    if isinstance(expr, Call) and FUNCTIONS[expr.function].divides:
        return isinstance(expr.arguments[1], Const) or expr.dtype.kind not in "iub"
    return True
