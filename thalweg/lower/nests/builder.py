"""From the nodes of a region to drafts: what is stored, what is computed where it is read.

Every output of every node is looked at in order. Reductions, scatters, products and what leaves the
region are stored; everything else follows the rule of `thalweg.lower.cost`. A tensor that reads a
variable is stored before a write to that variable that comes between it and a reader.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, NamedTuple, TypeVar

import numpy as np

from thalweg.errors import OpError
from thalweg.graph.node import Node, Tensor
from thalweg.ir.expr import Accumulated, Expr, Load, Reduce, constant, converted
from thalweg.ir.functions.dtypes import Unsupported
from thalweg.ir.index import Affine, expressed
from thalweg.ir.index import variable as index_of
from thalweg.ir.loop import IndexTuple, NotLowered, Scatter, Variable, lowered
from thalweg.ir.rewrite import Replace, free_variables
from thalweg.ir.target import Target
from thalweg.lower.cost import Costs, Form, worth_inlining
from thalweg.lower.memory.buffers import Buffer, BufferKind
from thalweg.lower.nests import reductions
from thalweg.lower.nests.inline_producers import (
    STREAM_WORDS,
    Operands,
    PendingCheck,
    Resolver,
    flat,
    is_from_data,
)
from thalweg.lower.nests.loop_nest import LoopNest, Renaming, Write, renaming
from thalweg.lower.nests.match_contraction import product_of, splits_of
from thalweg.lower.nests.output_summary import OutputSummary, look_at, own_place
from thalweg.lower.nests.scans import as_scan
from thalweg.lower.node_class import NodeClasses
from thalweg.lower.passes.outline import Cones, Templates
from thalweg.lower.passes.split_strided import is_nothing, phases, strides_of
from thalweg.lower.specialise import NotCompiled, Specialised

Key = TypeVar("Key")

#: Reshapes and transposes one behind the other that are inlined: indices may double with each.
_MOST_MOVES = 6
_MIN_PACKED_READS = 64  # of each element: fewer are read where they lie, not from a packed copy


class _Mark(NamedTuple):
    """How much was drafted up to some moment, and what had to be checked then."""

    drafts: int
    reductions: int
    buffers: int
    needed: tuple[PendingCheck, ...]


class _Drafted(NamedTuple):
    """What was drafted from some moment on."""

    drafts: list[LoopNest]
    reductions: dict[Any, Buffer]
    buffers: dict[Tensor, Buffer]
    needed: tuple[PendingCheck, ...]


class NestBuilder:
    """The drafts of a region, in the order of its nodes."""

    def __init__(self, spec: Specialised, classes: NodeClasses, target: Target) -> None:
        self._spec, self._target = spec, target
        self._classes = classes
        self._operands = Operands(spec)
        self._resolver = Resolver(spec, self._operands)
        self._costs = Costs(target)
        self._seen: dict[Tensor, OutputSummary] = {}
        self._reads: dict[Tensor, float] = defaultdict(float)
        self._readers: dict[Tensor, list[int]] = defaultdict(list)
        self._contracted: set[Tensor] = set()
        self._not_packed: set[Tensor] = set()  # that some reader does not pack first
        self._sums: set[Tensor] = set()  # of products, as the ops have them
        self._roots = spec.region.roots
        self._outputs = frozenset(spec.region.outputs)
        self._writes: dict[Tensor, list[int]] = defaultdict(list)  # of a variable: positions
        self._variables_read: dict[Tensor, frozenset[Tensor]] = {}
        self._reductions: dict[Any, Buffer] = {}
        self._moves: dict[Tensor, int] = {}  # of elements, in what is computed where it is read
        self._looks: dict[tuple[int, int], OutputSummary] = {}  # by kind of node, and output
        self._views: dict[Tensor, tuple[Tensor, int]] = {}
        self._models = Templates()
        self.drafts: list[LoopNest] = []
        self.buffers: dict[Tensor, Buffer] = self._resolver.buffers
        self.streams: dict[Node, Buffer] = self._resolver.stream_buffers
        self._cones = Cones(spec, classes, self.buffers, self._views)

    def run(self) -> None:
        """LoopNest everything."""
        self._enter()
        for position, node in enumerate(self._spec.region.nodes):
            self._look_at(position, node)
        for position, node in enumerate(self._spec.region.nodes):
            self._decide(position, node)
        self._seen.clear()
        for node in self._spec.region.nodes:
            self._draft(node)
            self._resolver.forget()
        left = self._needed()
        if left:
            self.drafts.append(LoopNest.of((), (), (left[0].node,), None, left))

    def _needed(self) -> tuple[PendingCheck, ...]:
        """What has to be checked since the last time this was asked."""
        needed = tuple(self._resolver.needed)
        self._resolver.needed.clear()
        return needed

    # What comes in

    def _enter(self) -> None:
        spec = self._spec
        for tensor in spec.region.inputs:
            if tensor not in spec.values:
                self.buffers[tensor] = self._buffer(BufferKind.INPUT, tensor, tensor)
        for tensor in spec.region.references:
            kind = BufferKind.CARRIED if tensor in spec.region.carried else BufferKind.VARIABLE
            self.buffers[tensor] = self._buffer(kind, tensor, tensor)
        for tensor, root in spec.region.roots.items():
            self.buffers[tensor] = self.buffers[root]

    def _buffer(self, kind: BufferKind, tensor: Tensor, source: Any) -> Buffer:
        dtype = np.dtype(tensor.dtype.base_dtype.as_numpy_dtype)
        return Buffer(kind, dtype, math.prod(self._spec.shapes[tensor]), source)

    def _constant(self, tensor: Tensor) -> None:
        """A buffer for a known value that is read at computed places."""
        value = self._spec.values[tensor]
        if value.dtype.kind in "OSU":
            raise NotCompiled(tensor.op, "its value is not numeric")
        self.buffers[tensor] = Buffer(BufferKind.CONSTANT, value.dtype, value.size, value)

    # What every node reads

    def _look_at(self, position: int, node: Node) -> None:
        if self._is_known(node):
            return
        references = node.op.parsed.references
        if node.op.has("stream"):
            self.streams[node] = Buffer(BufferKind.STREAM, np.dtype(np.uint32), STREAM_WORDS, node)
        for output, shape in self._places(node):
            look = self._look(node, output, shape)
            self._note_reads(position, node, look, math.prod(shape))
            if not references:
                self._seen[node.outputs[output]] = look
                if look.contracts:
                    self._sums.add(node.outputs[output])
                self._note_view(node.outputs[output], look)
        for place in references:
            self._writes[self._roots[node.inputs[place]]].append(position)

    def _is_known(self, node: Node) -> bool:
        """Whether nothing is left to compute; known values get buffers to be read from."""
        known = bool(node.outputs) and all(t in self._spec.values for t in node.outputs)
        for tensor in node.outputs if known else node.inputs:
            if tensor in self._spec.values and tensor not in self.buffers:
                self._constant(tensor)
        return known

    def _places(self, node: Node) -> list[tuple[int, tuple[int, ...]]]:
        """The outputs to compute: for an update, one for each reference it changes."""
        references = node.op.parsed.references
        if references:
            shapes = [self._spec.shapes[node.inputs[place]] for place in references]
        else:
            shapes = [self._spec.shapes[tensor] for tensor in node.outputs]
        return list(enumerate(shapes))

    def _look(self, node: Node, output: int, shape: tuple[int, ...]) -> OutputSummary:
        """What an output is like, looked at once for all nodes of a kind."""
        kind = self._classes.of(node)
        found = None if kind is None else self._looks.get((kind, output))
        if found is None:
            at = IndexTuple.over(shape, output)
            raw = self._raw(node, at)
            found = look_at(raw, at, self._operands.flat(node))
            if kind is not None:
                self._looks[kind, output] = found
        return found

    def _note_view(self, tensor: Tensor, look: OutputSummary) -> None:
        if look.view is not None:
            place, start = look.view
            self._views[tensor] = tensor.op.inputs[place], start

    def _raw(self, node: Node, at: IndexTuple) -> Any:
        if not (node.op.has("loop") or node.op.has("element")):
            raise NotCompiled(node, "it has no loop form")
        try:
            return lowered(node.op, at, self._operands.of(node))
        except NotLowered as error:
            raise NotCompiled(node, str(error)) from error
        except (ValueError, TypeError, IndexError, OpError, Unsupported) as error:
            # An input the op does not take: its NumPy kernel says so in the right words.
            raise NotCompiled(node, f"its inputs do not fit: {error}") from error

    def _note_reads(self, position: int, node: Node, look: OutputSummary, size: int) -> None:
        for tensor, count in look.reads(node):
            if tensor is None:
                continue
            self._reads[tensor] += count * size
            self._readers[tensor].append(position)
            if look.contracts:
                self._contracted.add(tensor)
            if not (look.multiplies and count * size >= _MIN_PACKED_READS * self._size(tensor)):
                self._not_packed.add(tensor)

    # What is stored

    def _decide(self, position: int, node: Node) -> None:
        if node.op.parsed.references:
            return
        for tensor in node.outputs:
            look = self._seen.get(tensor)
            if look is None:
                continue
            reads = look.reads(node)
            sources = [source for source, _ in reads if source is not None]
            self._costs.note(tensor, look.form, reads)
            read = self._directly_read(sources)
            self._variables_read[tensor] = read
            moves = max([self._moves.get(source, 0) for source in sources], default=0)
            moves += look.form.moves_only and look.view is None
            stored = tensor in self._outputs or self._must_store(tensor, look.form, moves)
            if moves and not stored:
                self._moves[tensor] = moves
            if stored or self._is_overtaken(position, tensor, read):
                self._costs.stored.add(tensor)
                self._variables_read[tensor] = frozenset()

    def _directly_read(self, sources: Sequence[Tensor]) -> frozenset[Tensor]:
        """The variables that computing a tensor reads."""
        found: frozenset[Tensor] = frozenset()
        for tensor in sources:
            if tensor in self._roots:
                found |= {self._roots[tensor]}
            elif tensor in self._variables_read:
                found |= self._variables_read[tensor]
        return found

    def _must_store(self, tensor: Tensor, form: Form, moves: int) -> bool:
        if not self._readers[tensor]:
            return False
        if moves > _MOST_MOVES:
            return True
        if form.widens and tensor not in self._not_packed:
            return False  # packing widens: no wide copy need be stored
        if form.reduces or form.scatters or (tensor in self._contracted and not form.moves_only):
            return True
        cost, parts = self._costs.of(tensor)
        if parts > self._target.max_expressions:
            return True
        size = self._size(tensor)
        return not worth_inlining(size, cost, self._reads[tensor], self._target)

    def _size(self, tensor: Tensor) -> int:
        return math.prod(self._spec.shapes[tensor])

    def _is_overtaken(self, position: int, tensor: Tensor, read: frozenset[Tensor]) -> bool:
        """Whether a variable it reads is written before its last reader has run."""
        if not read:
            return False
        last = max(self._readers[tensor], default=position)
        return any(position < write < last for root in read for write in self._writes[root])

    # Drafts

    def _draft(self, node: Node) -> None:
        if node.op.has("requires") and not self._is_known(node):
            self._resolver.need(node)
        if node.op.parsed.references:
            self._draft_update(node)
            return
        for tensor in node.outputs:
            if tensor in self._costs.stored and tensor not in self._spec.values:
                self._draft_tensor(tensor)
        for tensor in node.outputs:
            if tensor in self._spec.values and tensor in self._outputs:
                self._draft_constant(tensor)

    def _draft_constant(self, tensor: Tensor) -> None:
        """A known value that leaves the region: a copy of it."""
        size = self.buffers[tensor].size
        (index,) = variables = (Variable.fresh(size),)
        value = Load(self.buffers[tensor], index_of(index))
        buffer = self._buffer(BufferKind.OUTPUT, tensor, tensor)
        self._add(tensor.op, variables, [Write(buffer, variables, index_of(index), value)])
        self.buffers[tensor] = buffer

    def _draft_tensor(self, tensor: Tensor) -> None:
        is_output = tensor in self._outputs
        cone = None if is_output else self._cones.of(tensor)
        if cone is None:
            self._draft_best(tensor)
            return
        target = self._buffer(BufferKind.TEMPORARY, tensor, tensor)
        again = self._models.again(cone, target, tensor.op)
        if again is not None:
            self.drafts.append(again)
            self.buffers[tensor] = target
            return
        before = len(self.drafts)
        self._draft_best(tensor)
        if len(self.drafts) == before + 1:
            self._models.note(cone, self.buffers[tensor], self.drafts[before])

    def _draft_best(self, tensor: Tensor) -> None:
        """Draft a tensor; a sum of products, which its operands were shuffled out of the form of
        when they were inlined, with some of them stored first: a copy costs far less than products
        by plain loops."""
        inlined = [t for t in dict.fromkeys(tensor.op.inputs) if t not in self.buffers]
        if not inlined or tensor not in self._sums:
            self._draft_anew(tensor)
            return
        mark = self._mark()
        self._draft_anew(tensor)
        if self._are_products(mark):
            return
        plain = self._take_back(mark)
        for operands in _choices(inlined, self._spec.shapes):
            for operand in operands:
                self._draft_tensor(operand)
            self._resolver.forget()
            stored = self._mark()
            self._draft_anew(tensor)
            if self._are_products(stored):
                return
            self._take_back(mark)
        self._put_back(plain)

    def _mark(self) -> _Mark:
        sizes = len(self.drafts), len(self._reductions), len(self.buffers)
        return _Mark(*sizes, tuple(self._resolver.needed))

    def _take_back(self, mark: _Mark) -> _Drafted:
        """What was drafted since, as if it had not been."""
        taken = _Drafted(
            self.drafts[mark.drafts :],
            _taken_back(self._reductions, mark.reductions),
            _taken_back(self.buffers, mark.buffers),
            tuple(self._resolver.needed),
        )
        del self.drafts[mark.drafts :]
        self._resolver.needed[:] = mark.needed
        self._resolver.forget()
        return taken

    def _put_back(self, taken: _Drafted) -> None:
        self.drafts += taken.drafts
        self._reductions.update(taken.reductions)
        self.buffers.update(taken.buffers)
        self._resolver.needed[:] = taken.needed

    def _are_products(self, mark: _Mark) -> bool:
        """Whether all sums that were drafted since are sums of products."""
        made = self.drafts[mark.drafts :]
        return all(draft.product is not None or not draft.has_reductions for draft in made)

    def _draft_anew(self, tensor: Tensor) -> None:
        shape = self._spec.shapes[tensor]
        at = IndexTuple.over(shape, tensor.value_index)
        form = self._resolver.form(tensor.op, at)
        is_output = tensor in self._outputs
        if not is_output and self._is_alias(form, at):
            self.buffers[tensor] = form.buffer
            return
        buffer = self._buffer(
            BufferKind.OUTPUT if is_output else BufferKind.TEMPORARY, tensor, tensor
        )
        strides = strides_of(form, at, self._target)
        if strides:
            self._draft_phases(tensor.op, buffer, at, strides)
        else:
            self._write(tensor.op, buffer, at, form)
        self.buffers[tensor] = buffer

    def _draft_phases(
        self, node: Node, buffer: Buffer, at: IndexTuple, strides: dict[Variable, int]
    ) -> None:
        for place, loops in phases(at, strides):
            form = self._resolver.form(node, place)
            if is_nothing(form):
                form = constant(0, buffer.dtype)
            self._add(node, loops, [Write(buffer, loops, own_place(place), form)])

    def _is_alias(self, form: Any, at: IndexTuple) -> bool:
        """Whether a tensor is another one's memory under another shape."""
        if not isinstance(form, Load):
            return False
        buffer = form.buffer
        if buffer.kind in (BufferKind.VARIABLE, BufferKind.CARRIED):
            return False
        return buffer.size == math.prod(at.shape) and form.offset == own_place(at)

    def _draft_update(self, node: Node) -> None:
        """New values of variables. All are computed before any is written where one reads another
        elsewhere than at its own place."""
        pending: list[tuple[Buffer, IndexTuple, Any]] = []
        for (output, shape), place in zip(
            self._places(node), node.op.parsed.references, strict=True
        ):
            at = IndexTuple.over(shape, output)
            buffer = self.buffers[node.inputs[place]]
            pending.append((buffer, at, self._resolver.form(node, at)))
        (_, first, _), written = pending[0], {buffer for buffer, _, _ in pending}
        if any(isinstance(form, Scatter) for _, _, form in pending):
            for buffer, at, form in pending:
                self._write(node, buffer, at, form)
            return
        if len({at.shape for _, at, _ in pending}) > 1:
            raise NotCompiled(node, "its references differ in shape")
        writes: list[Write] = []
        for buffer, at, form in pending:
            rename = Renaming(renaming(at.variables, first.variables))
            variables = _loops(first)
            writes.append(Write(buffer, variables, own_place(first), rename.of(form)))
        self._add_update(node, _loops(first), writes, written)

    def _add_update(
        self,
        node: Node,
        variables: tuple[Variable, ...],
        writes: list[Write],
        written: set[Buffer],
    ) -> None:
        probe = LoopNest.of(variables, tuple(writes), (node,))
        places = {write.offset for write in writes}
        elsewhere = any(
            offset not in places for buffer in written for offset in probe.loads.get(buffer, ())
        )
        if not elsewhere:
            self._add(node, variables, writes)
            return
        # A new value is read from elsewhere in the old one: it is finished before it is put there.
        for write in writes:
            fresh = Buffer(BufferKind.TEMPORARY, write.buffer.dtype, write.buffer.size, node)
            self._add(node, variables, [Write(fresh, variables, write.offset, write.value)])
            copied = Load(fresh, write.offset)
            self._add(node, variables, [Write(write.buffer, variables, write.offset, copied)])

    def _write(self, node: Node, buffer: Buffer, at: IndexTuple, form: Any) -> None:
        if isinstance(form, Scatter):
            self._scatter(node, buffer, at, form)
        else:
            variables = _loops(at)
            self._add(node, variables, [Write(buffer, variables, own_place(at), form)])

    def _scatter(self, node: Node, buffer: Buffer, at: IndexTuple, form: Scatter) -> None:
        """First the initial values, unless they are there, then what is combined into them."""
        identity = own_place(at)
        initial = form.initial
        if initial is not Load(buffer, identity):
            self._write(node, buffer, at, initial)
        condition: Expr | None = None
        for place, size in zip(form.index, at.shape, strict=True):
            low, high = place.bounds
            if low < 0 or high >= size:
                if place.is_constant:
                    raise NotCompiled(node, f"the index {place.constant} is out of range")
                index = expressed(place)
                within = (index >= 0) & (index < size)
                condition = within if condition is None else condition & within
                if is_from_data(place):
                    self._resolver.need_within(place, size, node)
        variables = tuple(v for v in form.variables if v.extent != 1)
        # A variable that is one of the indices leads to places of its own.
        distinct = frozenset(v for v in variables if Affine(0, {v: 1}) in form.index)
        offset = flat(form.index, at.shape)
        write = Write(buffer, variables, offset, form.value, form.combine, condition, distinct)
        self._add(node, variables, [write])

    def _add(self, node: Node, variables: tuple[Variable, ...], writes: Sequence[Write]) -> None:
        """A draft of these writes, with reductions that do not fit its loops taken out."""
        if any(v.extent == 0 for v in variables):
            return
        needed = self._needed()
        scan = as_scan(writes[0].value, variables) if len(writes) == 1 else None
        if scan is not None:
            write, along = replace(writes[0], value=scan[0]), frozenset([scan[1]])
            self.drafts.append(LoopNest.of(variables, (write,), (node,), None, needed, along))
            return
        apart = reductions.Apart(
            variables, self._reductions, lambda n, v, w: self._add(n, v, w), self._target
        )
        taken = [_with_value(write, apart.of(node, write.value)) for write in writes]
        self.drafts.append(_contracted(variables, taken, node, needed, self._target))


def _choices(
    operands: Sequence[Tensor], shapes: Mapping[Tensor, tuple[int, ...]]
) -> list[tuple[Tensor, ...]]:
    """Which operands of a product may be stored, those that take less to store first."""
    ordered = sorted(operands, key=lambda tensor: math.prod(shapes[tensor]))
    singles = [(tensor,) for tensor in ordered]
    return singles if len(ordered) < 2 else [*singles, tuple(ordered)]


def _taken_back(made: dict[Key, Buffer], count: int) -> dict[Key, Buffer]:
    """What was noted after the first so many, which alone stay."""
    taken = [made.popitem() for _ in range(len(made) - count)]
    return dict(reversed(taken))


def _with_value(write: Write, value: Expr) -> Write:
    if value is write.value:
        return write
    return replace(write, value=value)


def _contracted(
    variables: tuple[Variable, ...],
    writes: Sequence[Write],
    node: Node,
    needed: tuple[PendingCheck, ...],
    target: Target,
) -> LoopNest:
    """A draft whose one reduction, where it is a sum of products, is taken out as such."""
    plain = LoopNest.of(variables, tuple(writes), (node,), None, needed)
    found = reductions.outermost([write.value for write in writes])
    if len(found) != 1:
        return plain
    if free_variables(found[0]) - frozenset(variables):
        return plain
    product = product_of(found[0], variables, target)
    if product is None:
        again = _split(variables, writes, found[0], target)
        return plain if again is None else _contracted(*again, node, needed, target)
    total = converted(Accumulated(product.dtype), found[0].dtype)
    taken = Replace(lambda part: total if part is found[0] else None)
    kept = tuple(_with_value(write, taken.of(write.value)) for write in writes)
    return LoopNest.of(variables, kept, (node,), product, needed)


def _split(
    variables: tuple[Variable, ...], writes: Sequence[Write], total: Reduce, target: Target
) -> tuple[tuple[Variable, ...], list[Write]] | None:
    """The same writes with some variables split, if that makes a contraction of them."""
    if total.combine != "sum":
        return None
    places = splits_of(total, variables)
    if not places:
        return None
    parts = {v: (Variable.fresh(v.extent // at), Variable.fresh(at)) for v, at in places.items()}
    sums = {
        v: index_of(outer).scaled(places[v]) + index_of(inner)
        for v, (outer, inner) in parts.items()
    }
    again = Reduce("sum", _opened(total.variables, parts), Renaming(sums).of(total.body))
    loops = _opened(variables, parts)
    if product_of(again, loops, target) is None:
        return None
    moved = Renaming(sums, lambda part: again if part is total else None)
    return loops, [
        replace(
            write,
            variables=_opened(write.variables, parts),
            offset=moved.affine(write.offset),
            value=moved.of(write.value),
        )
        for write in writes
    ]


def _opened(
    variables: tuple[Variable, ...], parts: dict[Variable, tuple[Variable, Variable]]
) -> tuple[Variable, ...]:
    pairs = [parts.get(variable, (variable,)) for variable in variables]
    return tuple(part for pair in pairs for part in pair if part.extent != 1)


def _loops(at: IndexTuple) -> tuple[Variable, ...]:
    return tuple(variable for variable in at.variables if variable.extent != 1)
