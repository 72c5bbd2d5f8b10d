"""What an output of a node is like before it is decided where it is computed.

Comes in: its loop form over operands. Goes out: what it costs and reads, by the positions of the
node's inputs, so that nodes of one kind are looked at once.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from thalweg.graph.node import Node, Tensor
from thalweg.ir.expr import Cast, OperandLoad, Reduce
from thalweg.ir.index import Affine, affine
from thalweg.ir.loop import IndexTuple, Operand
from thalweg.lower.cost import Form, analysed
from thalweg.lower.nests.inline_producers import flat
from thalweg.lower.nests.match_contraction import summed_product


@dataclass(frozen=True)
class OutputSummary:
    """An output of all nodes of a kind."""

    form: Form
    loads: tuple[tuple[int, float], ...]  # which inputs are read, -1 for none: how often
    contracts: bool
    multiplies: bool  # matrices: a contraction over one axis
    view: tuple[int, int] | None  # the input that it is a piece of, and from which element on

    def reads(self, node: Node) -> list[tuple[Tensor | None, float]]:
        """The tensors that a node reads for an element, and how often; a random stream is none."""
        inputs = node.inputs
        return [(None if place < 0 else inputs[place], count) for place, count in self.loads]


def look_at(raw: Any, at: IndexTuple, operands: Sequence[Operand]) -> OutputSummary:
    """What a loop form is like."""
    form = analysed(raw)
    places = {operand: place for place, operand in reversed([*enumerate(operands)])}
    loads = [(places.get(operand, -1), count) for operand, count in form.loads.items()]
    view = _start(raw, at) if form.moves_only else None
    found = None if view is None or loads[0][0] < 0 else (loads[0][0], view)
    summed = _contracted_axes(raw)
    return OutputSummary(form, tuple(loads), summed > 0, summed == 1, found)


def own_place(at: IndexTuple) -> Affine:
    """The flat place of an element of the output itself."""
    return flat([affine(index) for index in at], at.shape)


def _start(raw: Any, at: IndexTuple) -> int | None:
    """From which element on an operand is the output, element by element."""
    if not isinstance(raw, OperandLoad) or not all(index.is_index for index in (*at, *raw.indices)):
        return None
    own, place = own_place(at), flat([affine(index) for index in raw.indices], raw.operand.shape)
    return place.constant - own.constant if place.terms == own.terms else None


def _contracted_axes(raw: Any) -> int:
    """Over how many axes a sum of products goes, whose factors are best read from memory; or 0."""
    while isinstance(raw, Cast):
        raw = raw.value
    is_sum = isinstance(raw, Reduce) and summed_product(raw) is not None
    return len(raw.variables) if isinstance(raw, Reduce) and is_sum else 0
