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

from collections.abc import Mapping
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
    reduces: bool
    scatters: bool
    widens: bool  # a conversion of a narrow float to its compute dtype

    @property
    def moves_only(self) -> bool:
        """Whether it copies an element of another tensor."""
        return self.cost == 0 and len(self.loads) == 1 and not self.reduces and not self.scatters


def analyse(raw: Any) -> Form:
    """The cost of a loop form. An expression counts once per iteration of the loops around it."""
    scatters = isinstance(raw, Scatter)
    roots = [raw.value, raw.initial, *raw.index] if isinstance(raw, Scatter) else [raw]
    count = _Count()
    for root in roots:
        count.add(root)
    return Form(count.cost, count.loads, count.expr_size, count.reduces, scatters, _widens(raw))


def _widens(raw: Any) -> bool:
    match raw:
        case Cast(value=OperandLoad(dtype=narrow), dtype=target):
            return is_narrow_float(narrow) and compute_dtype(narrow) == target
        case _:
            return False


class _Count:
    def __init__(self) -> None:
        self.cost = 0.0
        self.loads: dict[Operand, float] = {}
        self.expr_size = 0
        self.reduces = False
        self._seen: set[Expr] = set()
        self._data = Fold(_is_data)

    def add(self, root: Expr) -> None:
        pending = [(root, 1.0)]
        while pending:
            part, count = pending.pop()
            if part in self._seen or isinstance(part, Const):
                continue
            self._seen.add(part)
            self.expr_size += 1
            pending += self._visit(part, count)

    def _visit(self, part: Expr, count: float) -> list[tuple[Expr, float]]:
        match part:
            case OperandLoad(operand=Intermediate(element=Expr() as element)):
                return [(inner, count) for inner in (element, *part.indices)]
            case OperandLoad():
                self.loads[part.operand] = self.loads.get(part.operand, 0.0) + count
                return [(index, count) for index in part.indices if self._data.of(index)]
            case Reduce():
                self.reduces = True
                for variable in part.variables:
                    count *= max(variable.extent, 1)
            case _:
                pass
        if self._data.of(part):
            self.cost += _cost(part) * count
        return [(inner, count) for inner in part.parts]


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
