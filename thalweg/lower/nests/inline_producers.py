"""From an op's loop form to an expression over buffers: producers inlined, indices in normal form.

A tensor that has a buffer is loaded from it; any other is inlined: its own loop form at the indices
that are read. Guards that follow from the ranges of indices are removed. An index that comes from
data is clamped into its range, so that no load leaves its buffer, and gets a runtime check.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from thalweg.errors import OpError
from thalweg.graph.node import Node, Tensor
from thalweg.ir.expr import (
    Const,
    Expr,
    Load,
    OperandLoad,
    Reduce,
    Select,
    as_expr,
    constant,
    converted,
)
from thalweg.ir.functions.dtypes import Unsupported
from thalweg.ir.functions.reductions import REDUCTIONS
from thalweg.ir.index import Affine, affine, expressed, flat, simplified_call
from thalweg.ir.loop import IndexTuple, Intermediate, NotLowered, Operand, Scatter, lowered
from thalweg.ir.rewrite import Rewriter
from thalweg.ir.target import Target
from thalweg.lower.memory.buffers import STREAM_WORDS, Buffer
from thalweg.lower.specialise import NotCompiled, Specialised
from thalweg.ops.core import basic

#: Adds a nest that stores a value for every element, and returns the buffer it stores to.
StoreIntermediate = Callable[[Node, IndexTuple, Expr], Buffer]


@dataclass(frozen=True, eq=False)
class PendingCheck:
    """A runtime check: a condition on data that must hold, or the node fails."""

    condition: Expr
    node: Node


def results_of(node: Node) -> Sequence[Tensor]:
    """The tensors that a node computes: its outputs, or the references that it updates."""
    return [node.inputs[place] for place in node.op.parsed.references] or node.outputs


class Operands:
    """The operands that stand for tensors in loop forms, and the tensors of operands."""

    def __init__(self, spec: Specialised, target: Target) -> None:
        self._spec, self._target = spec, target
        self.tensors: dict[Operand, Tensor] = {}
        self.streams: dict[Operand, Node] = {}
        self._made: dict[Tensor, Operand] = {}
        self._given = {*spec.region.inputs, *spec.region.references}

    def flat(self, node: Node) -> list[Operand]:
        """The operands of a node's inputs."""
        return [self._operand(tensor) for tensor in node.inputs]

    def of(self, node: Node) -> list[Any]:
        """The operands of a node as its loop form takes them: grouped, and with its stream."""
        flat = self.flat(node)
        grouped = node.op.parsed.group(flat, node.input_counts())
        if node.op.has("stream"):
            stream = Operand(len(flat), (STREAM_WORDS,), np.dtype(np.uint32))
            self.streams[stream] = node
            grouped.append(stream)
        return grouped

    def form(self, node: Node, at: IndexTuple) -> Expr | Scatter:
        """The element of a node's output at an index, over its operands."""
        if not (node.op.has("loop") or node.op.has("element")):
            raise NotCompiled(node, "it has no loop form")
        try:
            return lowered(node.op, at, self.of(node), *self._forms(node))
        except NotLowered as error:
            raise NotCompiled(node, str(error)) from error
        except (ValueError, TypeError, IndexError, OpError, Unsupported) as error:
            # An input that the op does not take: its NumPy kernel raises the error.
            raise NotCompiled(node, f"its inputs do not fit: {error}") from error

    def can_fuse(self, node: Node) -> bool:
        """Whether a node has a form that is one kernel, for target and shapes."""
        if not self._target.fuses_attention or not node.op.has("fused_loop"):
            return False
        return node.op.can_fuse(self.flat(node))

    def moved_from(self, tensor: Tensor) -> Tensor:
        """The tensor of the region, or its input, that a tensor is reshapes and transposes of."""
        while tensor not in self._given and tensor not in self._spec.values:
            at = IndexTuple.over(self._spec.shapes[tensor], tensor.value_index)
            raw = self.form(tensor.op, at)
            if not isinstance(raw, OperandLoad) or isinstance(raw.operand, Intermediate):
                break
            tensor = self.tensors[raw.operand]
        return tensor

    def _forms(self, node: Node) -> tuple[bool, int, bool]:
        """Which forms of an op the target takes."""
        target, channels = self._target, 1
        if node.op.has("packed_loop"):
            is_large = math.prod(self._spec.shapes[node.inputs[0]]) >= target.min_packed_elements
            channels = target.channels_read if is_large else 1
        return target.prefers_gathers, channels, target.prefers_relaxed

    def _operand(self, tensor: Tensor) -> Operand:
        made = self._made.get(tensor)
        if made is None:
            kind = np.dtype(tensor.dtype.base_dtype.as_numpy_dtype)
            value = self._spec.values.get(tensor)
            made = Operand(len(self._made), self._spec.shapes[tensor], kind, value)
            self._made[tensor] = made
            self.tensors[made] = tensor
        return made


class Resolver:
    """Resolves the loop forms of a region's nodes to expressions over buffers."""

    def __init__(self, spec: Specialised, operands: Operands, store: StoreIntermediate) -> None:
        self._spec, self._operands, self._store = spec, operands, store
        self.buffers: dict[Tensor, Buffer] = {}
        self.stream_buffers: dict[Node, Buffer] = {}
        self.checks: list[PendingCheck] = []
        self._elements: dict[tuple[Tensor, tuple[Affine, ...]], Expr] = {}
        self._intermediates: dict[Intermediate, Buffer] = {}
        self._node: Node | None = None
        self.guards = 0  # selects around what is resolved: a load that is not chosen needs no check

    def forget(self) -> None:
        """Clear the memo of elements: the next nest has variables of its own."""
        self._elements.clear()
        self._intermediates.clear()

    def form(self, node: Node, at: IndexTuple) -> Any:
        """The element of a node's output at an index, as an expression or a Scatter of those."""
        return self._resolved(node, at, self._operands.form(node, at))

    def fused_form(self, node: Node, at: IndexTuple) -> Expr:
        """The element of an output whose loops hold all that the node computes."""
        return self._resolved(node, at, as_expr(node.op.fused_loop(at, *self._operands.of(node))))

    def _resolved(self, node: Node, at: IndexTuple, raw: Expr | Scatter) -> Any:
        outer, self._node = self._node, node
        resolution = _Resolution(self)
        if not isinstance(raw, Scatter):
            result = _typed(resolution.of(raw), node, at.output)
        else:
            result = Scatter(
                raw.combine,
                raw.variables,
                tuple(affine(resolution.of(index)) for index in raw.index),
                resolution.of(raw.value),
                resolution.of(raw.initial),
            )
        self._node = outer
        return result

    def element(self, tensor: Tensor, indices: tuple[Affine, ...]) -> Expr:
        """The element of a tensor at an index: a constant, a load, or its inlined loop form."""
        key = (tensor, indices)
        if key not in self._elements:
            self._elements[key] = self._element(tensor, indices)
        return self._elements[key]

    def _element(self, tensor: Tensor, indices: tuple[Affine, ...]) -> Expr:
        shape = self._spec.shapes[tensor]
        value = self._spec.values.get(tensor)
        if value is not None and _is_literal(tensor, value, indices):
            return constant(value[tuple(index.constant for index in indices)])
        buffer = self.buffers.get(tensor)
        if buffer is not None:
            return Load(buffer, flat(indices, shape))
        places = [expressed(index) for index in indices]
        return self.form(tensor.op, IndexTuple.of(places, shape, tensor.value_index))

    def loaded(self, operand: Operand, places: Sequence[Affine], indices: Sequence[Expr]) -> Expr:
        """The element of an operand; `places` are its `indices` in normal form."""
        node = self._operands.streams.get(operand)
        if node is not None:
            return Load(self.stream_buffers[node], places[0])
        inside = [
            self._within(place, size, index)
            for place, size, index in zip(places, operand.shape, indices, strict=True)
        ]
        if 0 in operand.shape:  # no element is ever read
            return constant(0, operand.dtype)
        if isinstance(operand, Intermediate):
            return Load(self._intermediate(operand), flat(inside, operand.shape))
        return self.element(self._operands.tensors[operand], tuple(inside))

    def _intermediate(self, operand: Intermediate) -> Buffer:
        """The buffer of an intermediate, which a nest of its own stores."""
        if operand not in self._intermediates:
            assert operand.element is not None
            assert self._node is not None
            checks, guards, self.guards = list(self.checks), self.guards, 0
            self.checks.clear()  # they belong to the reader's loops
            value = _Resolution(self).of(operand.element)
            self._intermediates[operand] = self._store(self._node, operand.at, value)
            self.checks[:], self.guards = checks, guards
        return self._intermediates[operand]

    def _within(self, place: Affine, size: int, index: Expr) -> Affine:
        """An index that comes from data, clamped to its range; others are in range by construction,
        or under a guard that does not choose the load."""
        if not place.parts:
            outside = place.is_constant and not 0 <= place.constant < size
            if outside and not index.is_index:
                assert self._node is not None
                raise NotCompiled(self._node, f"the index {place.constant} is out of range")
            return place
        low, high = place.bounds
        if low >= 0 and high < size:
            return place
        assert self._node is not None
        if not self.guards:
            self.require_within(place, size, self._node)
        return Affine(0, {expressed(place).max(0).min(max(size - 1, 0)): 1})

    def require_within(self, place: Affine, size: int, node: Node) -> None:
        """Add the check that an index from data lies in [0, size)."""
        index = expressed(place)
        self.checks.append(PendingCheck((index >= 0) & (index < size), node))

    def require(self, node: Node) -> None:
        """Add the checks that a node's op requires of its inputs' values."""
        try:
            required = list(node.op.requires(*self._operands.of(node)))
        except (ValueError, TypeError, IndexError, NotLowered, OpError, Unsupported) as error:
            raise NotCompiled(node, f"its inputs do not fit: {error}") from error
        for check in required:
            condition = _Resolution(self).of(as_expr(check.condition))
            if not isinstance(condition, Const):
                self.checks.append(PendingCheck(condition, node))
            elif not condition.value and all(v.extent for v in check.variables):
                raise NotCompiled(node, "its inputs are not what it requires")


class _Resolution(Rewriter):
    """Rewrites an op's loop form to an expression over buffers."""

    def __init__(self, resolver: Resolver) -> None:
        super().__init__()
        self._resolver = resolver

    def early(self, node: Expr) -> Expr | None:
        return expressed(affine(node)) if node.is_index and not isinstance(node, Const) else None

    def needed(self, node: Expr) -> Iterable[Expr]:
        if isinstance(node, Select):
            return (node.condition,)
        if isinstance(node, OperandLoad):
            return [index for index in node.indices if not index.is_index]
        return node.parts

    def rebuilt(self, node: Expr) -> Expr:
        match node:
            case Select():
                return self._selected(node)
            case OperandLoad():
                places = [affine(i if i.is_index else self.new(i)) for i in node.indices]
                return self._resolver.loaded(node.operand, places, node.indices)
            case Reduce():
                return _reduced(node, self.new(node.body))
            case _:
                return super().rebuilt(node)

    def call(self, function: str, arguments: tuple[Expr, ...]) -> Expr:
        simple = simplified_call(function, arguments)
        return super().call(function, arguments) if simple is None else simple

    def _selected(self, node: Select) -> Expr:
        condition = self.new(node.condition)
        if isinstance(condition, Const):
            return converted(
                self.of(node.chosen if condition.value else node.otherwise), node.dtype
            )
        self._resolver.guards += 1
        chosen, otherwise = self.of(node.chosen), self.of(node.otherwise)
        self._resolver.guards -= 1
        return Select(condition, chosen, otherwise)


def _typed(result: Expr, node: Node, output: int) -> Expr:
    """A constant converted to the dtype of the output that it is."""
    if not isinstance(result, Const):
        return result
    tensor = results_of(node)[output]
    return constant(result.value, tensor.dtype.base_dtype.as_numpy_dtype)


def _reduced(node: Reduce, body: Expr) -> Expr:
    kept = tuple(variable for variable in node.variables if variable.extent != 1)
    if not kept and REDUCTIONS[node.combine].gives_position:
        return constant(0)
    if not kept and REDUCTIONS[node.combine].keeps_dtype:
        return body
    return Reduce(node.combine, kept or node.variables[:1], body)


def is_from_data(place: Affine) -> bool:
    """Whether an index was loaded from memory; the result of an argmax was not."""
    return any(not isinstance(part, Reduce) for part in place.parts)


def _is_literal(tensor: Tensor, value: Any, indices: tuple[Affine, ...]) -> bool:
    """Whether a known element is a constant of the kernel. A float that follows from sizes is
    loaded, so that other sizes have the same kernel."""
    fixed = isinstance(tensor.op.op, basic.Const) or value.dtype.kind in "iub"
    return fixed and all(index.is_constant for index in indices)
