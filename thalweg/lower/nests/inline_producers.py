"""From an op's loop form to an expression over buffers: producers inlined, indices in normal form.

A tensor that has a buffer is loaded from it. Any other is inlined: its loop form is evaluated at
the indices that are read. Guards that follow from the ranges of indices are removed. An index from
data is clamped to its range, so that no load is out of bounds, and gets a runtime check.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
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
from thalweg.ir.loop import IndexTuple, Intermediate, NotLowered, Operand, Scatter, lowered, within
from thalweg.ir.rewrite import Rewriter
from thalweg.ir.target import Target
from thalweg.lower.memory.buffers import STREAM_WORDS, Buffer
from thalweg.lower.specialise import NotCompiled, Specialised
from thalweg.ops.core import basic

#: Adds a nest that stores a value for every element, and returns the buffer it stores to.
StoreIntermediate = Callable[[Node, IndexTuple, Expr], Buffer]


def results_of(node: Node) -> Sequence[Tensor]:
    """The tensors that a node computes: its outputs, or the references that it updates."""
    return [node.inputs[index] for index in node.op.parsed.references] or node.outputs


class Operands:
    """Maps tensors to the operands that stand for them in loop forms, and back."""

    def __init__(self, spec: Specialised, target: Target) -> None:
        self._spec, self._target = spec, target
        self.tensors: dict[Operand, Tensor] = {}
        self.streams: dict[Operand, Node] = {}
        self._operands: dict[Tensor, Operand] = {}
        self._sources = {*spec.region.inputs, *spec.region.references}

    def flat(self, node: Node) -> list[Operand]:
        """The operands of a node's inputs."""
        return [self._operand(tensor) for tensor in node.inputs]

    def of(self, node: Node) -> list[Any]:
        """The arguments of a node's loop form: its operands, grouped, and its random stream."""
        operands = self.flat(node)
        grouped = node.grouped(operands)
        if node.op.has("stream"):
            stream = Operand(len(operands), (STREAM_WORDS,), np.dtype(np.uint32))
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
        """Whether a node has a fused form for this target and these shapes."""
        if not self._target.fuses_attention or not node.op.has("fused_loop"):
            return False
        return node.op.can_fuse(self.flat(node))

    def source_of_moves(self, tensor: Tensor) -> Tensor:
        """The tensor that a tensor is a chain of reshapes and transposes of."""
        while tensor not in self._sources and tensor not in self._spec.values:
            at = IndexTuple.over(self._spec.shapes[tensor], tensor.value_index)
            raw = self.form(tensor.op, at)
            if not isinstance(raw, OperandLoad) or isinstance(raw.operand, Intermediate):
                break
            tensor = self.tensors[raw.operand]
        return tensor

    def _forms(self, node: Node) -> tuple[int, bool]:
        """Which forms of an op the target prefers, as arguments of `lowered`."""
        target, channels = self._target, 1
        if node.op.has("packed_loop"):
            is_large = math.prod(self._spec.shapes[node.inputs[0]]) >= target.min_packed_elements
            channels = target.channels_read if is_large else 1
        return channels, target.prefers_relaxed

    def _operand(self, tensor: Tensor) -> Operand:
        if tensor not in self._operands:
            dtype = np.dtype(tensor.dtype.base_dtype.as_numpy_dtype)
            value = self._spec.values.get(tensor)
            operand = Operand(len(self._operands), self._spec.shapes[tensor], dtype, value)
            self._operands[tensor], self.tensors[operand] = operand, tensor
        return self._operands[tensor]


class Resolver:
    """Resolves the loop forms of a region's nodes to expressions over buffers."""

    def __init__(self, spec: Specialised, operands: Operands, store: StoreIntermediate) -> None:
        self._spec, self._operands, self._store = spec, operands, store
        self.buffers: dict[Tensor, Buffer] = {}
        self.stream_buffers: dict[Node, Buffer] = {}
        #: runtime checks: conditions on data that must hold, or the node fails
        self.checks: list[tuple[Expr, Node]] = []
        self._elements: dict[tuple[Tensor, tuple[Affine, ...]], Expr] = {}
        self._intermediates: dict[Intermediate, Buffer] = {}
        self.guards = 0  # selects around the current expression: a guarded load needs no check

    def clear_memo(self) -> None:
        """Clear the memo of elements: the next nest has other variables."""
        self._elements.clear()
        self._intermediates.clear()

    def form(self, node: Node, at: IndexTuple) -> Any:
        """The element of a node's output at an index, as an expression or a Scatter of those."""
        return self._resolved(node, at, self._operands.form(node, at))

    def fused_form(self, node: Node, at: IndexTuple) -> Expr:
        """The element of an output in the fused form of a node."""
        return self._resolved(node, at, as_expr(node.op.fused_loop(at, *self._operands.of(node))))

    def _resolved(self, node: Node, at: IndexTuple, raw: Expr | Scatter) -> Any:
        resolution = _Resolution(self, node)
        if not isinstance(raw, Scatter):
            return _typed(resolution.of(raw), node, at.output)
        index = tuple(affine(resolution.of(index)) for index in raw.index)
        value, initial = resolution.of(raw.value), resolution.of(raw.initial)
        return replace(raw, index=index, value=value, initial=initial)

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
        index_exprs = [expressed(index) for index in indices]
        return self.form(tensor.op, IndexTuple.of(index_exprs, shape, tensor.value_index))

    def loaded(self, node: Node, load: OperandLoad, offsets: Sequence[Affine]) -> Expr:
        """The element that a node loads; `offsets` are the load's indices in normal form."""
        operand = load.operand
        stream = self._operands.streams.get(operand)
        if stream is not None:
            return Load(self.stream_buffers[stream], offsets[0])
        parts = zip(offsets, operand.shape, load.indices, strict=True)
        clamped = [self._within(node, *part) for part in parts]
        if 0 in operand.shape:  # no element is ever read
            return constant(0, operand.dtype)
        if isinstance(operand, Intermediate):
            return Load(self._intermediate(node, operand), flat(clamped, operand.shape))
        return self.element(self._operands.tensors[operand], tuple(clamped))

    def _intermediate(self, node: Node, operand: Intermediate) -> Buffer:
        """The buffer of a node's intermediate, stored by a nest of its own."""
        if operand not in self._intermediates:
            guards, self.guards = self.guards, 0
            value = _Resolution(self, node).of(operand.element)
            self._intermediates[operand] = self._store(node, operand.at, value)
            self.guards = guards
        return self._intermediates[operand]

    def _within(self, node: Node, index: Affine, size: int, raw: Expr) -> Affine:
        """An index, clamped to its range if it comes from data. Other indices are in range by
        construction, or their load is under a guard."""
        if not index.parts:
            outside = index.is_constant and not 0 <= index.constant < size
            if outside and not raw.is_index:
                raise NotCompiled(node, f"the index {index.constant} is out of range")
            return index
        if index.is_within(size):
            return index
        if not self.guards:
            self.require_within(index, size, node)
        return Affine(0, {expressed(index).max(0).min(max(size - 1, 0)): 1})

    def require_within(self, index: Affine, size: int, node: Node) -> None:
        """Add the check that an index from data lies in [0, size)."""
        self.checks.append((within([expressed(index)], [size]), node))

    def require(self, node: Node) -> None:
        """Add the checks that a node's op requires of its inputs' values."""
        try:
            required = list(node.op.requires(*self._operands.of(node)))
        except (ValueError, TypeError, IndexError, NotLowered, OpError, Unsupported) as error:
            raise NotCompiled(node, f"its inputs do not fit: {error}") from error
        for check in required:
            condition = _Resolution(self, node).of(as_expr(check.condition))
            if not isinstance(condition, Const):
                self.checks.append((condition, node))
            elif not condition.value and all(v.extent for v in check.variables):
                raise NotCompiled(node, "its inputs are not what it requires")


class _Resolution(Rewriter):
    """Rewrites the loop form of a node's op to an expression over buffers."""

    def __init__(self, resolver: Resolver, node: Node) -> None:
        super().__init__()
        self._resolver, self._node = resolver, node

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
                indices = [affine(i if i.is_index else self.new(i)) for i in node.indices]
                return self._resolver.loaded(self._node, node, indices)
            case Reduce():
                return _reduced(node, self.new(node.body))
            case _:
                return super().rebuilt(node)

    def call(self, function: str, arguments: tuple[Expr, ...]) -> Expr:
        return simplified_call(function, arguments)

    def _selected(self, node: Select) -> Expr:
        condition = self.new(node.condition)
        if isinstance(condition, Const):
            selected = node.chosen if condition.value else node.otherwise
            return converted(self.of(selected), node.dtype)
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
    variables = tuple(variable for variable in node.variables if variable.extent != 1)
    if not variables and REDUCTIONS[node.combine].gives_position:
        return constant(0)
    if not variables and body.dtype == node.dtype:
        return body
    return Reduce(node.combine, variables or node.variables[:1], body)


def is_from_data(index: Affine) -> bool:
    """Whether an index was loaded from memory; the result of an argmax was not."""
    return any(not isinstance(part, Reduce) for part in index.parts)


def _is_literal(tensor: Tensor, value: Any, indices: tuple[Affine, ...]) -> bool:
    """Whether a known element is a constant of the kernel. A float that follows from sizes is
    loaded, so that other sizes have the same kernel."""
    fixed = isinstance(tensor.op.op, basic.Const) or value.dtype.kind in "iub"
    return fixed and all(index.is_constant for index in indices)
