"""The cost of computing and moving elements, and the rules that decide what is stored.

The unit is one vector instruction per element; the target says what loads and stores cost. A
tensor is inlined where it is read, instead of being stored once and loaded, where that costs no
more:

    reads · cost  <=  size · (cost + store) + reads · load

A tensor that is read again only after `far_bytes` of others were written has left the caches:
storing and loading an element of it costs `far_cost`. One that is computed element by element from
tensors that are live until then anyway is rematerialized by its late readers where that costs no
more:

    late readers · cost  <=  far
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from thalweg.ir.expr import Call, Cast, Const, Expr, Index, Load, OperandLoad, Reduce, Word
from thalweg.ir.functions.table import FUNCTIONS
from thalweg.ir.loop import Intermediate, Operand, Scatter
from thalweg.ir.rewrite import Fold, walk
from thalweg.ir.target import Target
from thalweg.platform.dtype_traits import compute_dtype, is_narrow_float

_FREE = Const | Word | Index | OperandLoad


@dataclass(frozen=True)
class Form:
    """The cost of one output element of an op, its reads, and the structure of its loop form."""

    cost: float  # arithmetic alone
    loads: Mapping[Operand, float]  # reads per element
    expr_size: int
    combines: bool  # it reduces or scatters
    widens: bool  # a conversion of a narrow float to its compute dtype

    @property
    def moves_only(self) -> bool:
        """Whether it copies an element of another tensor."""
        return self.cost == 0 and len(self.loads) == 1 and not self.combines


def analyse(raw: Any) -> Form:
    """The cost of a loop form. An expression counts once per iteration of the loops around it."""
    roots: list[Expr] = [raw]
    if isinstance(raw, Scatter):
        roots = [*raw.index[::-1], raw.initial, raw.value]
    pending, seen, is_data = [(root, 1.0) for root in roots], set[Expr](), Fold(_is_data).of
    cost, loads = 0.0, defaultdict[Operand, float](float)
    while pending:
        part, count = pending.pop()
        if part in seen or isinstance(part, Const):
            continue
        seen.add(part)
        parts: Iterable[Expr] = part.parts
        match part:
            case OperandLoad(operand=Intermediate() as stored):
                parts = stored.element, *parts
            case OperandLoad():
                loads[part.operand] += count
                parts = filter(is_data, parts)
            case Reduce():
                count *= math.prod([max(variable.extent, 1) for variable in part.variables])
            case _:
                pass
        if is_data(part):
            cost += _cost(part) * count
        pending += [(inner, count) for inner in parts]
    combines = any(isinstance(part, Scatter | Reduce) for part in (raw, *seen))
    return Form(cost, loads, len(seen), combines, _widens(raw))


def _widens(raw: Any) -> bool:
    match raw:
        case Cast(value=OperandLoad(dtype=narrow), dtype=target):
            return is_narrow_float(narrow) and compute_dtype(narrow) == target
        case _:
            return False


def _cost(part: Expr) -> float:
    if isinstance(part, Call):
        return FUNCTIONS[part.function].cost
    return 0.0 if isinstance(part, _FREE) else 1.0


def _is_data(part: Expr, known: Fold[bool]) -> bool:
    """Whether an expression reads memory or converts indices to data. Pure index arithmetic is
    free: it runs once per row or not at all."""
    return isinstance(part, OperandLoad | Reduce | Cast) or any(known.parts(part))


def worth_inlining(size: int, cost: float, reads: float, target: Target) -> bool:
    """The rule for inlining, above."""
    return reads * cost <= size * (cost + target.store_cost) + reads * target.load_cost


def worth_rematerializing(cost: float, readers: int, target: Target) -> bool:
    """The rule for rematerializing, above."""
    return readers * cost <= target.far_cost


def element_cost(value: Expr, target: Target) -> float:
    """The cost of an expression over buffers, each subexpression counted once."""
    load = target.load_cost
    return sum([load if isinstance(part, Load) else _cost(part) for part in walk([value])], 0.0)
