"""From loop nests to kernels: buffers become arguments, offsets become relative to those, and
runtime checks become kernels of their own."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from thalweg.graph.node import Node
from thalweg.ir.expr import Expr
from thalweg.ir.index import Affine
from thalweg.ir.kernel import Argument, Check, Kernel, Loops
from thalweg.ir.loop import Variable
from thalweg.ir.rewrite import free_variables, loads_in
from thalweg.lower.lowered import Launch
from thalweg.lower.memory.buffers import Buffer, BufferKind, View
from thalweg.lower.nests.inline_producers import PendingCheck
from thalweg.lower.nests.loop_nest import LoopNest, Rebinding, Span, spans_of
from thalweg.lower.specialise import NotCompiled

_Numbered = tuple[PendingCheck, int]  # a check, and its fault code


def bufferize(
    nests: Sequence[LoopNest], memory: Mapping[Buffer, Buffer]
) -> tuple[list[Launch], list[Node]]:
    """The kernel launches in order, and the node of each fault code, from 1.

    `memory` maps buffers to those whose memory they reuse. A check runs as soon as the buffers that
    it reads are written. A step whose check fails runs again on the host, so no variable may be
    written before all checks have passed.
    """
    checks_before: list[list[_Numbered]] = [[] for _ in nests]  # by the nest they run before
    checked_nodes: list[Node] = []
    written_at: dict[Buffer, int] = {}
    first_update = len(nests)
    for position, nest in enumerate(nests):
        for check in nest.checks:
            checked_nodes.append(check.node)
            loads = loads_in([check.condition])
            buffers = (memory.get(load.buffer, load.buffer) for load in loads)
            earliest = max((written_at.get(buffer, -1) for buffer in buffers), default=-1) + 1
            if earliest > first_update:
                raise NotCompiled(check.node, "it may fail when a variable has changed already")
            checks_before[earliest].append((check, len(checked_nodes)))
        written_at |= {memory.get(buffer, buffer): position for buffer in nest.written}
        if any(buffer.kind is BufferKind.VARIABLE for buffer in nest.written):
            first_update = min(first_update, position)
    launches: list[Launch] = []
    kernels: dict[Any, Kernel] = {}
    for checks, nest in zip(checks_before, nests, strict=True):
        launches += _checks(checks, memory)
        if nest.template.writes:
            launches.append(_launch(nest, memory, kernels))
    return launches, checked_nodes


class _Arguments(Rebinding):
    """The arguments of one kernel. Rewrites expressions over buffers to ones over arguments."""

    def __init__(
        self,
        spans: Mapping[Buffer, Span],
        written: frozenset[Buffer],
        memory: Mapping[Buffer, Buffer],
    ) -> None:
        roots = {buffer: memory.get(buffer, buffer) for buffer in spans}
        outputs = {roots[buffer] for buffer in written}
        touched: dict[Buffer, Span] = {}
        for buffer, (low, high) in spans.items():
            span = touched.get(roots[buffer], (low, high))
            touched[roots[buffer]] = min(span[0], low), max(span[1], high)
        arguments: dict[Buffer, tuple[Argument, int]] = {}
        for position, (buffer, (low, high)) in enumerate(touched.items()):
            start = max(low, 0)
            size = int(min(high + 1, buffer.size)) - start
            argument = Argument(position, buffer.dtype, size, buffer in outputs)
            arguments[buffer] = argument, -start
        super().__init__({buffer: arguments[root] for buffer, root in roots.items()})
        self.buffers = tuple(arguments)
        self.all = tuple([argument for argument, _ in arguments.values()])
        #: the element of its buffer at which each argument begins
        self.starts = tuple([-shift for _, shift in arguments.values()])

    def layout(self, views: Sequence[View]) -> tuple[tuple[int, int, int], ...]:
        """For each buffer of a template the position, start and size of its argument. Nests of one
        template and layout share a kernel."""
        bound = [(*self.views[buffer], shift) for buffer, shift in views]
        return tuple([(a.position, -start - shift, a.size) for a, start, shift in bound])

    def offset(self, offset: Affine) -> Affine:
        return offset.with_opaque_divisions().replaced(
            lambda term: self.of(term) if isinstance(term, Expr) else None
        )


def _launch(nest: LoopNest, memory: Mapping[Buffer, Buffer], kernels: dict[Any, Kernel]) -> Launch:
    """The launch of a nest's kernel on its buffers; `kernels` caches kernels."""
    arguments = _Arguments(nest.spans, nest.written, memory)
    # Buffers that only the checks read are arguments as well: such a kernel is not shared.
    key = (nest if nest.checks else nest.template), arguments.layout(nest.views)
    if key not in kernels:
        kernels[key] = _kernel(nest, arguments)
    return Launch(kernels[key], arguments.buffers, nest.nodes, arguments.starts)


def _kernel(nest: LoopNest, arguments: _Arguments) -> Kernel:
    stores = tuple([arguments.store(write) for write in nest.writes])
    if nest.product is None:
        return Loops(arguments.all, nest.variables, stores, (), nest.serial)
    return replace(arguments.contraction(nest.product), arguments=arguments.all, stores=stores)


def _checks(checks: Sequence[_Numbered], memory: Mapping[Buffer, Buffer]) -> list[Launch]:
    """Launches of kernels that test conditions: one for all scalar conditions, one for each
    condition with loops."""
    loops = [_variables(check.condition) for check, _ in checks]
    scalar = [check for check, variables in zip(checks, loops, strict=True) if not variables]
    launches = [_check(scalar, (), memory)] if scalar else []
    pairs = [pair for pair in zip(checks, loops, strict=True) if pair[1]]
    return [*launches, *(_check([check], variables, memory) for check, variables in pairs)]


def _variables(condition: Expr) -> tuple[Variable, ...]:
    free = free_variables(condition)
    return tuple(sorted(free, key=lambda variable: int(variable.name[1:])))


def _check(
    checks: Sequence[_Numbered], variables: tuple[Variable, ...], memory: Mapping[Buffer, Buffer]
) -> Launch:
    loads = loads_in([check.condition for check, _ in checks])
    spans = spans_of([(load.buffer, load.offset) for load in loads])
    arguments = _Arguments(spans, frozenset(), memory)
    tests = [Check(variables, arguments.of(check.condition), fault) for check, fault in checks]
    kernel = Loops(arguments.all, variables, (), tuple(tests))
    nodes = tuple(check.node for check, _ in checks)
    return Launch(kernel, arguments.buffers, nodes, arguments.starts)
