"""Which tensors of a region are stored in buffers; the others are inlined by their readers.

First every output is summarised from its loop form: its cost and its reads, by the positions of the
node's inputs, so that all nodes of one class share a summary. Then reductions, scatters, factors of
contractions and outputs of the region are stored; the rest follows the rule of
`thalweg.lower.cost`. A tensor that reads a variable is stored if that variable is written before
the tensor's last reader.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from thalweg.graph.node import Node, Tensor
from thalweg.ir.expr import OperandLoad, Reduce, uncast
from thalweg.ir.index import Affine, affine, flat
from thalweg.ir.loop import IndexTuple, Intermediate, Operand
from thalweg.ir.rewrite import walk
from thalweg.ir.target import Target
from thalweg.lower.cost import Form, analyse, worth_inlining
from thalweg.lower.fingerprint import NodeClasses
from thalweg.lower.nests.inline_producers import Operands, results_of
from thalweg.lower.nests.match_contraction import summed_product
from thalweg.lower.specialise import Specialised

#: Reshapes and transposes in a row that are inlined: indices may double in size with each.
_MAX_MOVES = 6
_MIN_PACKED_READS = 64  # of each element of a factor, for packing or a transposed copy to pay


@dataclass(frozen=True)
class OutputSummary:
    """The summary of an output, shared by all nodes of a class."""

    form: Form
    loads: tuple[tuple[int, float], ...]  # input (-1: a random stream) and reads per element
    contracted_axes: int  # of a sum of products; one of a matrix product; 0 for other forms
    view: tuple[int, int] | None  # the input that it is a view of, and the element it begins at

    def reads(self, node: Node) -> list[tuple[Tensor | None, float]]:
        """The tensors that an element of a node reads, and how often; None is a random stream."""
        inputs = node.inputs
        return [(None if n < 0 else inputs[n], count) for n, count in self.loads]


class _Read(NamedTuple):
    """What it takes to read an element of a tensor or random stream, with all that is inlined."""

    cost: float
    expr_size: int = 1
    variables: frozenset[Tensor] = frozenset()  # that are read
    moves: int = 0  # reshapes and transposes in a row


class StoredTensors:
    """The stored tensors of a region, its views, and its sums of products."""

    def __init__(
        self, spec: Specialised, classes: NodeClasses, operands: Operands, target: Target
    ) -> None:
        self._spec, self._target = spec, target
        self._classes, self._operands = classes, operands
        self._outputs = frozenset(spec.region.outputs)
        self._load = _Read(target.load_cost)
        #: of variables, and of what is inlined
        self._inlined: dict[Tensor | None, _Read] = {
            reference: self._load._replace(variables=frozenset([variable]))
            for reference, variable in spec.region.roots.items()
        }
        self._summaries: dict[Tensor, OutputSummary] = {}
        self._by_class: dict[tuple[int, int], OutputSummary] = {}  # by class of node, and output
        self._reads: dict[Tensor, float] = defaultdict(float)
        self._readers: dict[Tensor, list[int]] = defaultdict(list)
        self._factors: set[Tensor] = set()  # of contractions
        self._not_packed: set[Tensor] = set()  # read by something other than a packing product
        self._windowed: set[Tensor] = set()  # factors that are read in many windows
        self._widened: set[Tensor] = set()  # narrow floats that their readers widen
        self.tensors: set[Tensor] = set()
        self.writes: dict[Tensor, list[int]] = {}  # positions, by the variable that is written
        self.views: dict[Tensor, tuple[Tensor, int]] = {}  # of which tensor, from which element on
        self.sums: set[Tensor] = set()  # outputs whose loop form is a sum of products

    def run(self) -> None:
        """Summarise all outputs, then decide which are stored."""
        for position, node in enumerate(self._spec.region.nodes):
            if not self._spec.is_known(node):
                self._summarize(position, node)
        for position, node in enumerate(self._spec.region.nodes):
            for tensor in node.outputs:
                if tensor in self._summaries:
                    self._decide(position, tensor, self._summaries[tensor])

    # Summaries

    def _summarize(self, position: int, node: Node) -> None:
        references = node.op.parsed.references
        if self._operands.can_fuse(node):  # it reads tiles of memory
            self._factors.update(map(self._operands.source_of_moves, node.inputs))
        for output, tensor in enumerate(results_of(node)):
            summary = self._summary(node, output, self._spec.shapes[tensor])
            self._note_reads(position, node, summary, self._size(tensor))
            if references:
                self.writes.setdefault(self._spec.region.roots[tensor], []).append(position)
                continue
            self._summaries[tensor] = summary
            products = self._size(tensor) * max([count for _, count in summary.loads], default=0)
            if summary.contracted_axes and products >= self._target.min_contraction_work:
                self.sums.add(tensor)
            if summary.view is not None:
                source, start = summary.view
                self.views[tensor] = node.inputs[source], start

    def _summary(self, node: Node, output: int, shape: tuple[int, ...]) -> OutputSummary:
        """The summary of an output, computed once for all nodes of a class."""
        number = self._classes.of(node)
        summary = None if number is None else self._by_class.get((number, output))
        if summary is None:
            at = IndexTuple.over(shape, output)
            summary = _summarize_form(self._operands.form(node, at), at, self._operands.flat(node))
            if number is not None:
                self._by_class[number, output] = summary
        return summary

    def _note_reads(self, position: int, node: Node, summary: OutputSummary, size: int) -> None:
        for tensor, count in summary.reads(node):
            if tensor is None:
                continue
            self._reads[tensor] += count * size
            self._readers[tensor].append(position)
            if summary.contracted_axes:
                self._factors.add(tensor)
            often = count * size >= _MIN_PACKED_READS * self._size(tensor)
            if summary.contracted_axes > 1 and often:
                self._windowed.add(tensor)
            if not (summary.contracted_axes == 1 and often):
                self._not_packed.add(tensor)

    def _size(self, tensor: Tensor) -> int:
        return math.prod(self._spec.shapes[tensor])

    # Stored or inlined

    def _decide(self, position: int, tensor: Tensor, summary: OutputSummary) -> None:
        form, reads = summary.form, summary.reads(tensor.op)
        inner = [(count, self._inlined.get(source, self._load)) for source, count in reads]
        cost = sum([count * read.cost for count, read in inner], form.cost)
        expr_size = sum([read.expr_size for _, read in inner], form.expr_size)
        variables = frozenset[Tensor]().union(*[read.variables for _, read in inner])
        moves = max([read.moves for _, read in inner], default=0)
        moves += form.moves_only and summary.view is None
        inlined = _Read(cost, expr_size, variables, moves)
        if self._is_widened(form, [source for source, _ in reads]):
            self._widened.add(tensor)
        stored = tensor in self._outputs or self._must_store(tensor, form, inlined)
        if stored or self._is_overwritten(position, tensor, variables):
            self.tensors.add(tensor)
        else:
            self._inlined[tensor] = inlined

    def _must_store(self, tensor: Tensor, form: Form, inlined: _Read) -> bool:
        if not self._readers[tensor]:
            return False
        if inlined.moves > _MAX_MOVES:
            return True
        if tensor in self._widened or (form.widens and tensor not in self._not_packed):
            return False  # packing widens it
        if form.combines or (tensor in self._factors and not form.moves_only):
            return True
        if inlined.moves and tensor in self._windowed:
            return True  # transposed once, not in every window
        if inlined.expr_size > self._target.max_expressions:
            return True
        size, reads = self._size(tensor), self._reads[tensor]
        return not worth_inlining(size, inlined.cost, reads, self._target)

    def _is_widened(self, form: Form, sources: Sequence[Tensor | None]) -> bool:
        """Whether a tensor is a narrow one, perhaps moved, that readers widen at no cost."""
        if not self._target.widens_freely:
            return False
        return form.widens or (form.moves_only and not self._widened.isdisjoint(sources))

    def _is_overwritten(self, position: int, tensor: Tensor, variables: frozenset[Tensor]) -> bool:
        """Whether a variable that a tensor reads is written before the tensor's last reader."""
        last = max(self._readers[tensor], default=position)
        writes = [write for root in variables for write in self.writes.get(root, ())]
        return any(position < write < last for write in writes)


# Summaries


def _summarize_form(raw: Any, at: IndexTuple, operands: Sequence[Operand]) -> OutputSummary:
    """The summary of a loop form."""
    form = analyse(raw)
    positions = {operand: position for position, operand in reversed([*enumerate(operands)])}
    loads = [(positions.get(operand, -1), count) for operand, count in form.loads.items()]
    start = _view_start(raw, at) if form.moves_only else None
    view = None if start is None or loads[0][0] < 0 else (loads[0][0], start)
    return OutputSummary(form, tuple(loads), _contracted_axes(raw), view)


def output_offset(at: IndexTuple) -> Affine:
    """The row-major offset of an element of the output."""
    return flat([affine(index) for index in at], at.shape)


def _view_start(raw: Any, at: IndexTuple) -> int | None:
    """The element of an operand that the output is a contiguous view from, if it is one."""
    if not isinstance(raw, OperandLoad) or not all(index.is_index for index in (*at, *raw.indices)):
        return None
    written = output_offset(at)
    read = flat([affine(index) for index in raw.indices], raw.operand.shape)
    return read.constant - written.constant if read.terms == written.terms else None


def _contracted_axes(raw: Any) -> int:
    """The number of axes that a sum of products contracts; 0 for other forms."""
    raw = uncast(raw)
    if isinstance(raw, OperandLoad) and isinstance(raw.operand, Intermediate):
        return _contracted_axes(raw.operand.element)
    if not isinstance(raw, Reduce):
        return 0
    product = summed_product(raw)
    if product is None or any(isinstance(part, Reduce) for part in walk([product])):
        return 0  # a factor that is itself a reduction is no operand
    return len(raw.variables)
