"""From the nodes of a region to loop nests: one or several for each stored tensor and each update.

Tensors that are not stored (`thalweg.lower.nests.stored`) are inlined. Reductions that do not fit
the loops of their nest get a nest of their own, sums of products become contractions, and tensors
of identical subgraphs are instances of one template.
"""

from __future__ import annotations

import math
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np

from thalweg.graph.node import Node, Tensor
from thalweg.ir.expr import Accumulated, Expr, Load, Reduce, Variable, constant, converted
from thalweg.ir.fingerprint import structure
from thalweg.ir.index import Affine, expressed, flat, index_of, row_major
from thalweg.ir.kernel import Store
from thalweg.ir.loop import IndexTuple, Scatter, within
from thalweg.ir.rewrite import Replace, loads_in
from thalweg.ir.target import Target
from thalweg.lower.fingerprint import NodeClasses
from thalweg.lower.memory.buffers import STREAM_WORDS, Buffer, BufferKind, View
from thalweg.lower.nests.checks import check_nest, hoist_checks
from thalweg.lower.nests.inline_producers import (
    Operands,
    Resolver,
    is_from_data,
    results_of,
)
from thalweg.lower.nests.loop_nest import (
    LoopNest,
    NestTemplate,
    Renaming,
    digits_of,
    renaming,
    stored,
)
from thalweg.lower.nests.match_contraction import (
    floor_mods,
    is_zero_form,
    phases,
    product_of,
    strides_of,
)
from thalweg.lower.nests.reductions import HoistReductions, as_scan, outermost
from thalweg.lower.nests.stored import StoredTensors, output_offset
from thalweg.lower.passes.outline import Subgraphs
from thalweg.lower.specialise import NotCompiled, Specialised


class _Mark(NamedTuple):
    """A point to undo to: how much was built, and the pending checks."""

    nests: int
    reductions: int
    buffers: int
    checks: tuple[tuple[Expr, Node], ...]


class NestBuilder:
    """Builds the nests of a region, in the order of its nodes."""

    def __init__(self, spec: Specialised, classes: NodeClasses, target: Target) -> None:
        self._spec, self._target = spec, target
        operands = self._operands = Operands(spec, target)
        self._resolver = Resolver(spec, operands, self._store_intermediate)
        self._stored = StoredTensors(spec, classes, operands, target)
        self._outputs = frozenset(spec.region.outputs)
        self._reductions: dict[Any, Buffer] = {}  # those that have nests of their own
        #: by the keys of subgraphs: the nest that computes one, and the views that it accesses
        self._outlined: dict[Hashable, tuple[LoopNest, Sequence[View]]] = {}
        self.nests: list[LoopNest] = []
        self.buffers: dict[Tensor, Buffer] = self._resolver.buffers
        self.streams: dict[Node, Buffer] = self._resolver.stream_buffers
        self._subgraphs = Subgraphs(spec, classes, self.buffers, self._stored.views)

    def run(self) -> None:
        """Build everything."""
        self._add_buffers()
        self._stored.run()
        for node in self._spec.region.nodes:
            self._build(node)
            self._resolver.clear_memo()
        self._build_checks()
        self.nests[:] = hoist_checks(self.nests)

    def _build_checks(self) -> None:
        """Build nests of the checks that were added since the last call."""
        self.nests += [check_nest(*check) for check in self._resolver.checks]
        self._resolver.checks.clear()

    # Inputs

    def _add_buffers(self) -> None:
        spec = self._spec
        for tensor in spec.region.inputs:
            self.buffers[tensor] = self._buffer(BufferKind.INPUT, tensor)
        for tensor in spec.region.references:
            kind = BufferKind.CARRIED if tensor in spec.region.carried else BufferKind.VARIABLE
            self.buffers[tensor] = self._buffer(kind, tensor)
        for tensor, root in spec.region.roots.items():
            self.buffers[tensor] = self.buffers[root]
        for node in spec.region.nodes:
            for tensor in node.outputs if spec.is_known(node) else node.inputs:
                if tensor in spec.values and tensor not in self.buffers:
                    self._constant(tensor)
            if node.op.has("stream"):
                words = np.dtype(np.uint32)
                self.streams[node] = Buffer(BufferKind.STREAM, words, STREAM_WORDS, node)

    def _buffer(self, kind: BufferKind, tensor: Tensor) -> Buffer:
        dtype = np.dtype(tensor.dtype.base_dtype.as_numpy_dtype)
        return Buffer(kind, dtype, math.prod(self._spec.shapes[tensor]), tensor)

    def _result(self, tensor: Tensor) -> Buffer:
        """The buffer of a tensor that is computed here."""
        is_output = tensor in self._outputs
        return self._buffer(BufferKind.OUTPUT if is_output else BufferKind.TEMPORARY, tensor)

    def _constant(self, tensor: Tensor) -> None:
        """Make a buffer for a known value."""
        value = self._spec.values[tensor]
        if value.dtype.kind in "OSU":
            raise NotCompiled(tensor.op, "its value is not numeric")
        self.buffers[tensor] = Buffer(BufferKind.CONSTANT, value.dtype, value.size, value)

    # Nests

    def _build(self, node: Node) -> None:
        if node.op.has("requires") and not self._spec.is_known(node):
            self._resolver.require(node)
        if node.op.parsed.references:
            self._build_update(node)
            return
        if self._operands.can_fuse(node):
            self._build_fused(node)
            return
        for tensor in node.outputs:
            if tensor in self._spec.values:
                if tensor in self._outputs:
                    self._build_constant(tensor)
            elif tensor in self._stored.tensors:
                self._build_tensor(tensor)

    def _build_fused(self, node: Node) -> None:
        """Build the nests of a node in its fused form. Some outputs share a nest. The inputs are
        read by tiles: each is stored, unless it is a strided view of a buffer."""
        for tensor in node.inputs:
            if tensor not in self.buffers and not self._is_strided(tensor):
                self._build_tensor(tensor)
        for first, *others in node.op.fused_outputs:
            read = [n for n in others if node.outputs[n] in self._stored.tensors]
            if read or node.outputs[first] in self._stored.tensors:
                self._build_joint(node, [first, *read])

    def _is_strided(self, tensor: Tensor) -> bool:
        """Whether an inlined tensor is a strided view of a buffer, with contiguous rows."""
        at = IndexTuple.over(self._spec.shapes[tensor], tensor.value_index)
        form = self._resolver.form(tensor.op, at)
        self._resolver.clear_memo()
        if not isinstance(form, Load) or not form.offset.is_plain:
            return False
        return not at or form.offset.factor(at.variables[-1]) == 1

    def _build_joint(self, node: Node, outputs: Sequence[int]) -> None:
        """Build one sealed nest for some outputs, over the loops of the first or an outer part of
        them."""
        shape = self._spec.shapes[node.outputs[outputs[0]]]
        at, writes = IndexTuple.over(shape, outputs[0]), list[Store]()
        for output in outputs:
            tensor = node.outputs[output]
            rank = len(self._spec.shapes[tensor])
            output_at = IndexTuple.of(at[:rank], shape[:rank], output)
            output_at.variables = at.variables[:rank]
            form = self._resolver.fused_form(node, output_at)
            self.buffers[tensor] = self._result(tensor)
            offset = output_offset(output_at)
            writes.append(Store(self.buffers[tensor], _loops(output_at), offset, form))
        template = NestTemplate(_loops(at), tuple(writes), is_sealed=True)
        self._build_checks()
        self.nests.append(LoopNest(template, (node,)))

    def _build_constant(self, tensor: Tensor) -> None:
        """Copy a known value that is an output of the region."""
        size = self.buffers[tensor].size
        (index,) = variables = (Variable.fresh(size),)
        value = Load(self.buffers[tensor], index_of(index))
        buffer = self._buffer(BufferKind.OUTPUT, tensor)
        self._add(tensor.op, variables, [Store(buffer, variables, index_of(index), value)])
        self.buffers[tensor] = buffer

    def _build_tensor(self, tensor: Tensor) -> None:
        subgraph = None if tensor in self._outputs else self._subgraphs.of(tensor)
        if subgraph is None:
            self._build_best(tensor)
            return
        target = self._buffer(BufferKind.TEMPORARY, tensor)
        if subgraph.key in self._outlined:
            nest, views = self._outlined[subgraph.key]
            self.nests.append(nest.rebound(views, (*subgraph.views, (target, 0)), (tensor.op,)))
            self.buffers[tensor] = target
            return
        before = len(self.nests)
        self._build_best(tensor)
        views = *subgraph.views, (self.buffers[tensor], 0)
        if len(self.nests) == before + 1 and self.nests[before].can_rebind(views):
            self._outlined[subgraph.key] = self.nests[before], views

    def _build_best(self, tensor: Tensor) -> None:
        """Build the nests of a tensor. Where inlined operands keep a sum of products from being a
        contraction, some of them are stored: a copy costs far less than plain loops."""
        inlined = [t for t in dict.fromkeys(tensor.op.inputs) if t not in self.buffers]
        if not inlined or tensor not in self._stored.sums:
            self._build_nests(tensor)
            return
        mark = self._mark()
        self._build_nests(tensor)
        if self._are_contractions(mark):
            return
        self._undo(mark)
        for operands in _choices(inlined, self._spec.shapes):
            for operand in operands:
                self._build_tensor(operand)
            self._resolver.clear_memo()
            stored = self._mark()
            self._build_nests(tensor)
            if self._are_contractions(stored):
                return
            self._undo(mark)
        self._build_nests(tensor)

    def _mark(self) -> _Mark:
        sizes = len(self.nests), len(self._reductions), len(self.buffers)
        return _Mark(*sizes, tuple(self._resolver.checks))

    def _undo(self, mark: _Mark) -> None:
        """Remove what was built since a mark."""
        del self.nests[mark.nests :]
        while len(self._reductions) > mark.reductions:
            self._reductions.popitem()
        while len(self.buffers) > mark.buffers:
            self.buffers.popitem()
        self._resolver.checks[:] = mark.checks
        self._resolver.clear_memo()

    def _are_contractions(self, mark: _Mark) -> bool:
        """Whether all reductions of the nests since a mark are contractions."""
        nests = self.nests[mark.nests :]
        return all(nest.product is not None or not nest.template.has_reductions for nest in nests)

    def _build_nests(self, tensor: Tensor) -> None:
        shape = self._spec.shapes[tensor]
        at = IndexTuple.over(shape, tensor.value_index)
        form = self._resolver.form(tensor.op, at)
        if tensor not in self._outputs and self._is_alias(form, at):
            self.buffers[tensor] = form.buffer
            return
        buffer = self._result(tensor)
        strides = strides_of(form, at, self._target)
        if strides:
            self._build_phases(tensor.op, buffer, at, strides)
        else:
            self._write(tensor.op, buffer, at, form)
        self.buffers[tensor] = buffer

    def _build_phases(
        self, node: Node, buffer: Buffer, at: IndexTuple, strides: dict[Variable, int]
    ) -> None:
        for phase_at, loops in phases(at, strides):
            form = self._resolver.form(node, phase_at)
            if is_zero_form(form):
                form = constant(0, buffer.dtype)
            self._add(node, loops, [Store(buffer, loops, output_offset(phase_at), form)])

    def _is_alias(self, form: Any, at: IndexTuple) -> bool:
        """Whether a tensor is a reshape of a buffer that does not change."""
        if not isinstance(form, Load) or form.buffer.is_variable:
            return False
        return form.buffer.size == math.prod(at.shape) and form.offset == output_offset(at)

    def _build_update(self, node: Node) -> None:
        """Build the nests that write an update's variables. Where a new value reads one of them at
        other offsets than it is written at, all new values are computed before any is written."""
        pending: list[tuple[Buffer, IndexTuple, Any]] = []
        for output, reference in enumerate(results_of(node)):
            at = IndexTuple.over(self._spec.shapes[reference], output)
            pending.append((self.buffers[reference], at, self._resolver.form(node, at)))
        first = pending[0][1]
        if any(isinstance(form, Scatter) for _, _, form in pending):
            for buffer, at, form in pending:
                self._write(node, buffer, at, form)
            return
        if len({at.shape for _, at, _ in pending}) > 1:
            raise NotCompiled(node, "its references differ in shape")
        variables = _loops(first)
        writes: list[Store] = []
        for buffer, at, form in pending:
            rename = Renaming(renaming(at.variables, first.variables))
            writes.append(Store(buffer, variables, output_offset(first), rename.of(form)))
        self._add_update(node, variables, writes)

    def _add_update(self, node: Node, variables: tuple[Variable, ...], writes: list[Store]) -> None:
        loads = NestTemplate(variables, tuple(writes)).loads
        write_offsets = {write.offset for write in writes}
        read = [offset for write in writes for offset in loads.get(write.buffer, ())]
        if write_offsets.issuperset(read):
            self._add(node, variables, writes)
            return
        # A new value depends on other elements of the old one: it is computed as a whole first.
        for write in writes:
            fresh = Buffer.temporary(write.buffer.dtype, write.buffer.size, node)
            self._add(node, variables, [Store(fresh, variables, write.offset, write.value)])
            copied = Load(fresh, write.offset)
            self._add(node, variables, [Store(write.buffer, variables, write.offset, copied)])

    def _write(self, node: Node, buffer: Buffer, at: IndexTuple, form: Any) -> None:
        if isinstance(form, Scatter):
            self._scatter(node, buffer, at, form)
        else:
            variables = _loops(at)
            self._add(node, variables, [Store(buffer, variables, output_offset(at), form)])

    def _store_intermediate(self, node: Node, at: IndexTuple, value: Expr) -> Buffer:
        """The buffer of an intermediate. Equal ones share a buffer if they read no variable that
        the region updates."""
        key = "intermediate", at.shape, structure([value], at.variables)
        updated = {self.buffers[variable] for variable in self._stored.writes}
        is_shared = updated.isdisjoint([load.buffer for load in loads_in([value])])
        if is_shared and key in self._reductions:
            return self._reductions[key]
        buffer = Buffer.temporary(value.dtype, math.prod(at.shape), node)
        self._write(node, buffer, at, value)
        if is_shared:
            self._reductions[key] = buffer
        return buffer

    def _scatter(self, node: Node, buffer: Buffer, at: IndexTuple, form: Scatter) -> None:
        """Store the initial values, unless the buffer holds them, then combine the updates."""
        if form.initial is not Load(buffer, output_offset(at)):
            self._write(node, buffer, at, form.initial)
        outside: list[tuple[Expr, int]] = []
        for index, size in zip(form.index, at.shape, strict=True):
            if index.is_within(size):
                continue
            if index.is_constant:
                raise NotCompiled(node, f"the index {index.constant} is out of range")
            outside.append((expressed(index), size))
            if is_from_data(index):
                self._resolver.require_within(index, size, node)
        condition = within(*zip(*outside, strict=True)) if outside else None
        variables = tuple(v for v in form.variables if v.extent != 1)
        # Iterations of a variable that is one of the indices write distinct elements.
        distinct = frozenset(v for v in variables if Affine(0, {v: 1}) in form.index)
        offset = flat(form.index, at.shape)
        value = form.value
        read = {load.offset for load in loads_in([value]) if load.buffer is buffer}
        if read and (read != {offset} or distinct != frozenset(variables)):
            # All values are computed before the first element is scattered.
            first, value = stored(converted(value, buffer.dtype), variables, node)
            self._add(node, variables, [first])
        write = Store(buffer, variables, offset, value, form.combine, condition, distinct)
        self._add(node, variables, [write])

    def _add(self, node: Node, variables: tuple[Variable, ...], writes: Sequence[Store]) -> None:
        """Add a nest of these writes, after nests for the reductions that do not fit its loops."""
        if any(v.extent == 0 for v in variables):
            return
        self._build_checks()
        scan = as_scan(writes[0].value, variables) if len(writes) == 1 else None
        if scan is not None:
            write, along = replace(writes[0], value=scan[0]), frozenset([scan[1]])
            template = NestTemplate(variables, (write,), serial=along)
            self.nests.append(LoopNest(template, (node,)))
            return
        hoist = HoistReductions(variables, self._reductions, self._add, self._target)
        hoisted = [replace(write, value=hoist.of(node, write.value)) for write in writes]
        self.nests.append(_contracted(variables, hoisted, node, self._target))


def _choices(
    operands: Sequence[Tensor], shapes: Mapping[Tensor, tuple[int, ...]]
) -> list[tuple[Tensor, ...]]:
    """The sets of operands to try storing for a contraction, the smallest first."""
    ordered = sorted(operands, key=lambda tensor: math.prod(shapes[tensor]))
    singles = [(tensor,) for tensor in ordered]
    return singles if len(ordered) < 2 else [*singles, tuple(ordered)]


def _contracted(
    variables: tuple[Variable, ...],
    writes: Sequence[Store],
    node: Node,
    target: Target,
) -> LoopNest:
    """The nest of some writes. If their one reduction is a contraction, it is the nest's
    product."""
    plain = LoopNest(NestTemplate(variables, tuple(writes)), (node,))
    reductions = outermost([write.value for write in writes])
    if len(reductions) != 1:
        return plain
    product = product_of(reductions[0], variables, target)
    if product is None:
        split = _split(variables, writes, reductions[0], target)
        return plain if split is None else _contracted(*split, node, target)
    total = converted(Accumulated(product.dtype), reductions[0].dtype)
    replaced = Replace(lambda part: total if part is reductions[0] else None)
    contracted = tuple(replace(write, value=replaced.of(write.value)) for write in writes)
    return LoopNest(NestTemplate(variables, contracted, product), (node,))


def _split(
    variables: tuple[Variable, ...], writes: Sequence[Store], total: Reduce, target: Target
) -> tuple[tuple[Variable, ...], list[Store]] | None:
    """The loops and writes with some variables split, if that makes the sum a contraction.

    Heads of attention that were merged into one axis are read at `k // 64` and `k % 64`: split at
    64, both are variables.
    """
    terms = floor_mods(total.body)
    if total.combine != "sum" or not terms:
        return None
    digits = {v: digits_of(v, v.extent, terms) for v in (*variables, *total.variables)}
    indices = {v: row_major(loops) for v, loops in digits.items()}
    summed, loops = _expanded(total.variables, digits), _expanded(variables, digits)
    split_total = Reduce("sum", summed, Renaming(indices).of(total.body))
    if product_of(split_total, loops, target) is None:
        return None
    renamed = Renaming(indices, lambda part: split_total if part is total else None)
    return loops, [
        replace(renamed.store(write), variables=_expanded(write.variables, digits))
        for write in writes
    ]


def _expanded(
    variables: tuple[Variable, ...], digits: dict[Variable, tuple[Variable, ...]]
) -> tuple[Variable, ...]:
    return tuple(digit for v in variables for digit in digits[v] if digit.extent != 1)


def _loops(at: IndexTuple) -> tuple[Variable, ...]:
    return tuple(variable for variable in at.variables if variable.extent != 1)
