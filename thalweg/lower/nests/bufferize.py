"""From loop nests to kernels: buffers become arguments, and offsets become relative to those."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from thalweg.graph.node import Node
from thalweg.ir.expr import Expr
from thalweg.ir.index import Affine
from thalweg.ir.kernel import Argument, Contraction, Kernel
from thalweg.lower.lowered import Launch
from thalweg.lower.memory.buffers import Buffer, View
from thalweg.lower.nests.loop_nest import LoopNest, Rebinding, Span


def bufferize(
    nests: Sequence[LoopNest], memory: Mapping[Buffer, Buffer]
) -> tuple[list[Launch], list[Node]]:
    """The kernel launches in order, and the node of each fault code, from 1.

    `memory` maps buffers to those whose memory they reuse.
    """
    launches: list[Launch] = []
    checked: list[Node] = []
    kernels: dict[Any, Kernel] = {}
    for nest in nests:
        arguments = _Arguments(nest, memory)
        key = nest.template, arguments.layout(nest.views)
        if key not in kernels:
            kernels[key] = _kernel(nest, arguments, len(checked) + 1)
        launches.append(Launch(kernels[key], arguments.buffers, nest.nodes, arguments.starts))
        checked += nest.nodes if nest.template.checks else ()
    return launches, checked


class _Arguments(Rebinding):
    """The arguments of one kernel. Rewrites expressions over buffers to ones over arguments."""

    def __init__(self, nest: LoopNest, memory: Mapping[Buffer, Buffer]) -> None:
        spans = nest.spans
        roots = {buffer: memory.get(buffer, buffer) for buffer in spans}
        outputs = {roots[buffer] for buffer in nest.written}
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


def _kernel(nest: LoopNest, arguments: _Arguments, fault: int) -> Kernel:
    """The kernel of a nest; `fault` is the code of its first check."""
    kernel = replace(arguments.kernel(nest.kernel), arguments=arguments.all)
    if isinstance(kernel, Contraction):
        return kernel
    checks = [replace(check, fault=n) for n, check in enumerate(kernel.checks, fault)]
    return replace(kernel, checks=tuple(checks))
