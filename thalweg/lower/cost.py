"""What computing and moving elements costs, and the rule that decides what is stored.

The unit is one vector instruction per element. A tensor is computed anew at each place that reads
it, instead of being stored once and loaded, exactly where that costs no more:

    reads · cost  <=  size · (cost + STORE) + reads · LOAD

A tensor that is read again only when FAR_BYTES of others were made since is no longer near: storing
and loading its element costs FAR. What follows element by element from tensors that are kept until
then anyway is computed again by those late readers where that costs no more (and its memory serves
others meanwhile):

    late readers · cost  <=  FAR
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from thalweg.graph.node import Tensor
from thalweg.ir.expr import Call, Cast, Const, Expr, Index, Load, OperandLoad, Reduce, Word
from thalweg.ir.loop import Operand, Scatter
from thalweg.ir.rewrite import Fold, walk

LOAD = 2.0
STORE = 3.0
FAR = 40.0
FAR_BYTES = 4 << 20
_FUNCTIONS: dict[str, float] = {
    "div": 4,
    "floor_div": 8,
    "remainder": 8,
    "truncated_remainder": 8,
    "sqrt": 5,
    "exp": 12,
    "expm1": 20,
    "log": 14,
    "log1p": 20,
    "sin": 20,
    "cos": 20,
    "tan": 25,
    "tanh": 18,
    "sinh": 25,
    "cosh": 25,
    "pow": 40,
    "atan2": 30,
    "asin": 25,
    "acos": 25,
    "atan": 25,
    "asinh": 30,
    "acosh": 30,
    "atanh": 30,
    "bit_and": 0.5,
}
_FREE = Const | Word | Index | OperandLoad

# How large a kernel gets. What compiling a part takes is the same up to some 400 of them, and more
# from there on. Adding up 400 tensors of a megabyte takes 37 ms by kernels that read 10 of them at
# a time, 50 ms by 20, 120 ms by 80, 210 ms by 200.
MOST_PARTS = 400
MOST_STREAMS = 20  # buffers that are read and written
MOST_WRITES = 8


@dataclass(frozen=True)
class Form:
    """One output element of an op: what it costs, what it reads, what it is like."""

    cost: float  # arithmetic alone
    loads: Mapping[Operand, float]  # reads per element
    parts: int
    reduces: bool
    scatters: bool

    @property
    def moves_only(self) -> bool:
        """Whether it is another tensor's element at another place."""
        return self.cost == 0 and len(self.loads) == 1 and not self.reduces and not self.scatters


def analysed(raw: Any) -> Form:
    """The cost of a loop form, each part counted once per value of the variables around it."""
    scatters = isinstance(raw, Scatter)
    roots = [raw.value, raw.initial, *raw.index] if isinstance(raw, Scatter) else [raw]
    found = _Count()
    for root in roots:
        found.add(root, 1.0)
    return Form(found.cost, found.loads, found.parts, found.reduces, scatters)


class _Count:
    def __init__(self) -> None:
        self.cost = 0.0
        self.loads: dict[Operand, float] = {}
        self.parts = 0
        self.reduces = False
        self._seen: set[Expr] = set()
        self._data = Fold(_is_data)

    def add(self, root: Expr, times: float) -> None:
        pending = [(root, times)]
        while pending:
            part, count = pending.pop()
            if part in self._seen or isinstance(part, Const):
                continue
            self._seen.add(part)
            self.parts += 1
            pending += self._visit(part, count)

    def _visit(self, part: Expr, count: float) -> list[tuple[Expr, float]]:
        match part:
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
        return _FUNCTIONS.get(part.function, 1.0)
    return 0.0 if isinstance(part, _FREE) else 1.0


def _is_data(part: Expr, known: Fold[bool]) -> bool:
    """Whether it is more than arithmetic on indices, which is done once per row or not at all: it
    reads memory, or makes numbers of indices."""
    return isinstance(part, OperandLoad | Reduce | Cast) or any(known.parts(part))


def worth_inlining(size: int, cost: float, reads: float) -> bool:
    """The rule above."""
    return reads * cost <= size * (cost + STORE) + reads * LOAD


def worth_recomputing(cost: float, readers: int) -> bool:
    """The second rule above."""
    return readers * cost <= FAR


def element_cost(value: Expr) -> float:
    """What an expression over buffers costs, each of its parts once."""
    return sum([LOAD if isinstance(part, Load) else _cost(part) for part in walk([value])], 0.0)


class Costs:
    """The full cost of tensors' elements, with what is inlined into them."""

    def __init__(self) -> None:
        self._costs: dict[Tensor, tuple[float, int]] = {}
        self.stored: set[Tensor] = set()

    def of(self, tensor: Tensor) -> tuple[float, int]:
        """What reading an element costs, and how many parts it adds to an expression."""
        if tensor in self.stored or tensor not in self._costs:
            return LOAD, 1
        return self._costs[tensor]

    def note(
        self, tensor: Tensor, form: Form, reads: Iterable[tuple[Tensor | None, float]]
    ) -> None:
        """Work out the cost of a tensor from those of what it reads; None is no tensor."""
        cost, parts = form.cost, form.parts
        for source, count in reads:
            each, more = (LOAD, 1) if source is None else self.of(source)
            cost += count * each
            parts += more
        self._costs[tensor] = cost, parts
