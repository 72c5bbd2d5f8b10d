"""Summaries of node outputs, from which it is decided what is stored and what is inlined.

Comes in: the loop form of an output over operands. Goes out: its cost, and what it reads by the
positions of the node's inputs, so that all nodes of one class share a summary.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from thalweg.graph.node import Node, Tensor
from thalweg.ir.expr import Cast, OperandLoad, Reduce
from thalweg.ir.index import Affine, affine, flat
from thalweg.ir.loop import IndexTuple, Intermediate, Operand
from thalweg.ir.rewrite import walk
from thalweg.lower.cost import Form, analysed
from thalweg.lower.nests.match_contraction import summed_product


@dataclass(frozen=True)
class OutputSummary:
    """An output of all nodes of a class."""

    form: Form
    loads: tuple[tuple[int, float], ...]  # input (-1: a random stream) and reads per element
    contracts: bool  # a sum of products
    multiplies: bool  # a matrix product: a contraction over one axis
    view: tuple[int, int] | None  # the input that it is a view of, and the element it begins at

    def reads(self, node: Node) -> list[tuple[Tensor | None, float]]:
        """The tensors that an element of a node reads, and how often; None is a random stream."""
        inputs = node.inputs
        return [(None if place < 0 else inputs[place], count) for place, count in self.loads]


def summarize(raw: Any, at: IndexTuple, operands: Sequence[Operand]) -> OutputSummary:
    """The summary of a loop form."""
    form = analysed(raw)
    places = {operand: place for place, operand in reversed([*enumerate(operands)])}
    loads = [(places.get(operand, -1), count) for operand, count in form.loads.items()]
    view = _start(raw, at) if form.moves_only else None
    found = None if view is None or loads[0][0] < 0 else (loads[0][0], view)
    summed = _contracted_axes(raw)
    return OutputSummary(form, tuple(loads), summed > 0, summed == 1, found)


def own_place(at: IndexTuple) -> Affine:
    """The row-major offset of an element of the output."""
    return flat([affine(index) for index in at], at.shape)


def _start(raw: Any, at: IndexTuple) -> int | None:
    """The element of an operand from which on the output is a contiguous view of it."""
    if not isinstance(raw, OperandLoad) or not all(index.is_index for index in (*at, *raw.indices)):
        return None
    own, place = own_place(at), flat([affine(index) for index in raw.indices], raw.operand.shape)
    return place.constant - own.constant if place.terms == own.terms else None


def _contracted_axes(raw: Any) -> int:
    """The number of axes that a sum of products contracts; 0 for other forms."""
    while isinstance(raw, Cast):
        raw = raw.value
    if isinstance(raw, OperandLoad) and isinstance(raw.operand, Intermediate):
        return _contracted_axes(raw.operand.element)
    if not isinstance(raw, Reduce):
        return 0
    product = summed_product(raw)
    if product is None or any(isinstance(part, Reduce) for part in walk([product])):
        return 0  # a factor that is a reduction itself is no operand: nothing is contracted
    return len(raw.variables)
