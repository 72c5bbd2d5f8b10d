"""The kernels of a program, for readers: by name, with the ops and the user's lines they come from,
their size, and their code.

Comes in: a program. Goes out: a `PlannedKernel` for each of its launches.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from math import prod

from thalweg.device.compiled_kernel import CompiledKernel
from thalweg.device.program import ListedProgram
from thalweg.graph.node import Node
from thalweg.ir.expr import Expr, Reduce
from thalweg.ir.kernel import Contraction, Kernel, Loops
from thalweg.ir.rewrite import walk
from thalweg.ir.text.printer import kernel_text
from thalweg.lower.flops_bytes import flops_bytes
from thalweg.lower.lowering import Lowered
from thalweg.lower.nests.bufferize import Launch

#: Ops that pass on what they get: a kernel is named after its other ones.
_SILENT = {"Const", "ExpandDims", "Identity", "NoOp", "Reshape", "Squeeze", "StopGradient"}
_MAX_NAMED = 5
_WORDS = re.compile(r"(?<=[a-z0-9])(?=[A-Z])|(?<=[A-Z])(?=[A-Z][a-z])")


@dataclass(frozen=True, eq=False)
class PlannedKernel:
    """One kernel of a step: a fused loop nest or a contraction, compiled for these shapes."""

    code: CompiledKernel
    nodes: tuple[Node, ...]  # all that it computes, in the order they were made

    @property
    def kernel(self) -> Kernel:
        """What the code was made from: loops or a contraction over flat buffers."""
        return self.code.kernel

    @property
    def text(self) -> str:
        """The kernel as text: its loops, or what it multiplies and what becomes of the sums."""
        return kernel_text(self.kernel)

    @cached_property
    def name(self) -> str:
        """Its ops as a name: `conv2d+bias_add+relu`."""
        prefix = "check_" if self.kind == "check" else ""
        return prefix + short_name(node.type for node in self.nodes)

    @property
    def ops(self) -> tuple[str, ...]:
        """The names of the nodes that it computes."""
        return tuple(node.name for node in self.nodes)

    @property
    def lines(self) -> tuple[str, ...]:
        """Where the user's code made them, as `file:line`."""
        return tuple(dict.fromkeys(node.origin for node in self.nodes))

    @cached_property
    def main(self) -> Node:
        """The node that most of the work is for."""
        nodes = self.code.launch.nodes
        return nodes[0] if self.kind == "contraction" else nodes[-1]

    @property
    def kind(self) -> str:
        """`contraction`, `loops`, or `check` for loops that only check indices."""
        if isinstance(self.kernel, Contraction):
            return "contraction"
        return "loops" if self.kernel.stores else "check"

    @property
    def space(self) -> str:
        """Its iterations: `64×100×784` rows, columns and terms, or the extents of the loops."""
        kernel = self.kernel
        if isinstance(kernel, Loops):
            return _extents(kernel)
        batch, *parts = (
            prod(int(v.extent) for v in variables)
            for variables in (kernel.batch, kernel.rows, kernel.columns, kernel.reduced)
        )
        return (f"{batch} of " if batch != 1 else "") + "×".join(map(str, parts))

    @cached_property
    def flops(self) -> float:
        """Arithmetic operations of a call."""
        return flops_bytes(self.kernel).operations

    @cached_property
    def bytes(self) -> int:
        """What a call reads and writes: each element once, or twice where it does both."""
        return flops_bytes(self.kernel).moved

    @property
    def touched(self) -> int:
        """The bytes of memory it reads or writes, each once."""
        return sum(flops_bytes(self.kernel).touched)

    @property
    def scratch(self) -> int:
        """Memory of its own that a call needs: packed operands and the like."""
        return self.code.scratch

    @property
    def phases(self) -> int:
        """How many functions it runs one after the other, each with times of its own."""
        return self.code.phases

    @property
    def barriers(self) -> int:
        """At how many barriers its threads meet: before it, and between its phases."""
        return self.code.barriers

    @property
    def users(self) -> int:
        """On how many threads it runs."""
        return self.code.users

    @property
    def code_sizes(self) -> Mapping[str, int]:
        """The bytes of its code by what it is written in, where its device says."""
        return self.code.code_sizes

    @property
    def llvm(self) -> str:
        """Its code as LLVM has it."""
        return self.code.llvm

    @property
    def asm(self) -> str:
        """Its code as the processor's instructions."""
        return self.code.asm

    def __repr__(self) -> str:
        return f"<{self.name}: {self.kind} {self.space}>"


def kernels_of(program: ListedProgram) -> list[PlannedKernel]:
    """The kernels of a program, in order."""
    lowered, kernels = program.lowered, program.compiled_kernels()
    computed = {node for kernel in kernels for node in kernel.launch.nodes}
    return [PlannedKernel(each, _fused(each.launch, lowered, computed)) for each in kernels]


def _fused(launch: Launch, lowered: Lowered, computed: Collection[Node]) -> tuple[Node, ...]:
    """The nodes of a launch, with those that were inlined into it on the way."""
    found = set(launch.nodes)
    if isinstance(launch.kernel, Loops) and not launch.kernel.stores:
        return launch.nodes
    inside = set(lowered.spec.region.nodes)
    pending = list(launch.nodes)
    while pending:
        for tensor in pending.pop().inputs:
            node = tensor.op
            stored = tensor in lowered.buffers or tensor in lowered.spec.values
            if node in inside and not stored and node not in found and node not in computed:
                found.add(node)
                pending.append(node)
    return tuple(sorted(found, key=lambda node: node.index))


def short_name(types: Iterable[str]) -> str:
    """Ops as one name; several of a kind are counted, and of many only the first are named."""
    every = list(types)
    spoken = [kind for kind in every if kind not in _SILENT] or every[-1:]
    counts = Counter(map(snake_case, spoken))
    parts = [name if count == 1 else f"{name}×{count}" for name, count in counts.items()]
    more = len(parts) - _MAX_NAMED
    if more > 0:
        parts = [*parts[:_MAX_NAMED], f"{more} more"]
    return "+".join(parts)


def snake_case(kind: str) -> str:
    """`BiasAdd` as `bias_add`, `Conv2D` as `conv2d`, `MatMul` as `matmul`."""
    whole = kind.replace("MatMul", "Matmul").replace("2D", "2d").replace("3D", "3d")
    return _WORDS.sub("_", whole).lower()


def _extents(kernel: Loops) -> str:
    loops = "×".join(str(int(v.extent)) for v in kernel.variables) or "1"
    reduced = _reduced([store.value for store in kernel.stores])
    return loops + (f" Σ {'×'.join(map(str, reduced))}" if reduced else "")


def _reduced(roots: Sequence[Expr]) -> list[int]:
    """The extents of the first reduction among expressions."""
    for part in walk(roots):
        if isinstance(part, Reduce):
            return [int(v.extent) for v in part.variables]
    return []
