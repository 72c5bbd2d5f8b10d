"""From drafts to kernels: buffers become arguments, sums become offsets, indices get checked."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from thalweg.graph.node import Node
from thalweg.ir.expr import Expr, Load
from thalweg.ir.index import Affine, number
from thalweg.ir.kernel import Access, Argument, Check, Contraction, Kernel, Loops, Store
from thalweg.ir.loop import Variable
from thalweg.ir.rewrite import Rewriter, free_variables, walk
from thalweg.lower.memory.buffers import Buffer, BufferKind
from thalweg.lower.nests.inline_producers import PendingCheck
from thalweg.lower.nests.loop_nest import (
    Factor,
    Home,
    LoopNest,
    Product,
    Span,
    spans_of,
)
from thalweg.lower.specialise import NotCompiled

_Numbered = tuple[PendingCheck, int]  # a condition, and the fault that it is when it does not hold


@dataclass(frozen=True, eq=False)
class Launch:
    """A kernel and the buffers it is called on, one for each of its arguments.

    An argument begins at an element of its buffer: kernels that differ only in where they begin
    (the steps of an unrolled loop) are one kernel.
    """

    kernel: Kernel
    buffers: tuple[Buffer, ...]
    nodes: tuple[Node, ...]
    starts: tuple[int, ...]

    @property
    def written(self) -> list[Buffer]:
        """The buffers it writes."""
        pairs = zip(self.buffers, self.kernel.arguments, strict=True)
        return [buffer for buffer, argument in pairs if argument.written]


def finish(
    drafts: Sequence[LoopNest], memory: Mapping[Buffer, Buffer]
) -> tuple[list[Launch], list[Node]]:
    """The kernels in order, and the node behind each check, numbered from 1.

    `memory` says which buffers live in the memory of another one. A check runs as soon as what it
    looks at is there: a step whose check fails is run again, so no variable may be written before.
    """
    before: list[list[_Numbered]] = [[] for _ in drafts]  # what to check before each draft
    checked: list[Node] = []
    made_at: dict[Buffer, int] = {}
    first_update = len(drafts)
    for position, draft in enumerate(drafts):
        for need in draft.needed:
            checked.append(need.node)
            looked_at = (memory.get(buffer, buffer) for buffer, _ in _loads([need.condition]))
            place = max((made_at.get(buffer, -1) for buffer in looked_at), default=-1) + 1
            if place > first_update:
                raise NotCompiled(need.node, "it may fail when a variable has changed already")
            before[place].append((need, len(checked)))
        made_at |= {memory.get(buffer, buffer): position for buffer in draft.written}
        if any(buffer.kind is BufferKind.VARIABLE for buffer in draft.written):
            first_update = min(first_update, position)
    launches: list[Launch] = []
    kernels: dict[Any, Kernel] = {}
    for needed, draft in zip(before, drafts, strict=True):
        launches += _checks(needed, memory)
        if draft.nest.writes:
            launches.append(_finished(draft, memory, kernels))
    return launches, checked


class _Arguments(Rewriter):
    """Buffers as the arguments of one kernel, and expressions over them."""

    def __init__(
        self,
        spans: Mapping[Buffer, Span],
        written: frozenset[Buffer],
        memory: Mapping[Buffer, Buffer],
    ) -> None:
        super().__init__()
        self._memory = memory
        homes = {memory.get(buffer, buffer) for buffer in written}
        touched: dict[Buffer, Span] = {}
        for buffer, (low, high) in spans.items():
            home = memory.get(buffer, buffer)
            before = touched.get(home, (low, high))
            touched[home] = min(before[0], low), max(before[1], high)
        self.buffers = tuple(touched)
        self._starts = {buffer: max(low, 0) for buffer, (low, _) in touched.items()}
        self._of = {
            buffer: Argument(place, buffer.dtype, self._reach(buffer, high), buffer in homes)
            for place, (buffer, (_, high)) in enumerate(touched.items())
        }

    def _reach(self, buffer: Buffer, last: float) -> int:
        """How many elements of a buffer the kernel may touch, from where its argument begins."""
        return int(min(last + 1, buffer.size)) - self._starts[buffer]

    @property
    def all(self) -> tuple[Argument, ...]:
        """In the order of their positions."""
        return tuple(self._of.values())

    @property
    def starts(self) -> tuple[int, ...]:
        """The element of its buffer at which each argument begins."""
        return tuple(self._starts.values())

    def told(self, homes: Sequence[Home]) -> tuple[tuple[int, int, int], ...]:
        """What tells kernels of one nest apart: which argument each of its buffers is, where that
        begins and how far it reaches."""
        found: list[tuple[int, int, int]] = []
        for buffer, shift in homes:
            home = self._memory.get(buffer, buffer)
            argument = self._of[home]
            found.append((argument.position, self._starts[home] - shift, argument.size))
        return tuple(found)

    def argument(self, buffer: Buffer) -> Argument:
        """The argument that stands for a buffer."""
        return self._of[self._memory.get(buffer, buffer)]

    def load(self, buffer: Buffer, offset: Affine) -> Expr:
        start = self._starts[self._memory.get(buffer, buffer)]
        return Load(self.argument(buffer), Affine(offset.constant - start, offset.terms))

    def place(self, buffer: Buffer, offset: Affine) -> Affine:
        """An element of a buffer, counted from where the argument begins."""
        start = self._starts[self._memory.get(buffer, buffer)]
        return self.bound(offset + number(-start))

    def bound(self, place: Affine) -> Affine:
        """A sum of a kernel."""
        for part in place.parts:
            self.of(part)
        return self.offset(place)

    def offset(self, offset: Affine) -> Affine:
        return offset.with_opaque_divisions().replaced(
            lambda term: self.of(term) if isinstance(term, Expr) else None
        )


def _finished(
    draft: LoopNest, memory: Mapping[Buffer, Buffer], kernels: dict[Any, Kernel]
) -> Launch:
    """A draft's kernel on its buffers; `kernels` are those that were made before."""
    arguments = _Arguments(draft.spans, draft.written, memory)
    # What is looked at by a check alone is an argument as well: such a kernel is nobody else's.
    key = (draft if draft.needed else draft.nest), arguments.told(draft.homes)
    if key not in kernels:
        kernels[key] = _kernel(draft, arguments)
    return Launch(kernels[key], arguments.buffers, draft.nodes, arguments.starts)


def _kernel(draft: LoopNest, arguments: _Arguments) -> Kernel:
    stores = tuple(
        Store(
            arguments.argument(write.buffer),
            write.variables,
            arguments.place(write.buffer, write.offset),
            arguments.of(write.value),
            write.combine,
            arguments.unless_none(write.inside),
            write.distinct,
        )
        for write in draft.writes
    )
    if draft.product is None:
        return Loops(arguments.all, draft.variables, stores, (), draft.serial)
    return _contraction(draft.product, arguments, stores)


def _contraction(product: Product, arguments: _Arguments, stores: tuple[Store, ...]) -> Contraction:
    def access(factor: Factor) -> Access:
        bounds = [(low, arguments.bound(place), high) for low, place, high in factor.bounds]
        return Access(arguments.of(factor.value), tuple(bounds))

    return Contraction(
        arguments.all,
        product.batch,
        product.rows,
        product.columns,
        product.reduced,
        access(product.a),
        access(product.b),
        product.dtype,
        stores,
    )


def _loads(conditions: Sequence[Expr]) -> list[tuple[Buffer, Affine]]:
    """What conditions look at."""
    return [(part.buffer, part.offset) for part in walk(conditions) if isinstance(part, Load)]


def _checks(needed: Sequence[_Numbered], memory: Mapping[Buffer, Buffer]) -> list[Launch]:
    """Kernels that look whether conditions on data hold: one for all that loop over nothing."""
    variables = [_variables(need.condition) for need, _ in needed]
    single = [one for one, over in zip(needed, variables, strict=True) if not over]
    found = [_check(single, (), memory)] if single else []
    looping = [pair for pair in zip(needed, variables, strict=True) if pair[1]]
    return [*found, *(_check([one], over, memory) for one, over in looping)]


def _variables(condition: Expr) -> tuple[Variable, ...]:
    free = free_variables(condition)
    return tuple(sorted(free, key=lambda variable: int(variable.name[1:])))


def _check(
    needed: Sequence[_Numbered], variables: tuple[Variable, ...], memory: Mapping[Buffer, Buffer]
) -> Launch:
    used = _loads([need.condition for need, _ in needed])
    arguments = _Arguments(spans_of(used), frozenset(), memory)
    checks = tuple(Check(variables, arguments.of(need.condition), fault) for need, fault in needed)
    kernel = Loops(arguments.all, variables, (), checks)
    nodes = tuple(need.node for need, _ in needed)
    return Launch(kernel, arguments.buffers, nodes, arguments.starts)
