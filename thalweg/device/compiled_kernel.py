"""The kernels of a program as its device has them, for those who print, profile and tune them: by
name, with the ops and the user's lines they come from, their size, and their code.
"""

from __future__ import annotations

import re
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from functools import cached_property
from types import MappingProxyType
from typing import Self

from thalweg.device.program import AnyProgram
from thalweg.device.tuning import Tuned, iterations_of
from thalweg.graph.node import Node
from thalweg.ir.expr import Expr, Reduce
from thalweg.ir.kernel import Contraction, Kernel, Loops
from thalweg.ir.rewrite import walk
from thalweg.ir.text.printer import kernel_text
from thalweg.lower.dynamic_shapes import SpecializedKernel
from thalweg.lower.flops_bytes import flops_bytes
from thalweg.lower.lowered import Launch, Lowered

#: Ops that pass on what they get: a kernel is named after its other ones.
_SILENT = {"Const", "ExpandDims", "Identity", "NoOp", "Reshape", "Squeeze", "StopGradient"}
_MAX_NAMED = 5
_WORDS = re.compile(r"(?<=[a-z0-9])(?=[A-Z])|(?<=[A-Z])(?=[A-Z][a-z])")


class CompiledKernel(ABC):
    """One kernel of a step: a fused loop nest or a contraction, compiled for its shapes on the
    device that runs it."""

    nodes: tuple[Node, ...]  # all that it computes, in the order they were made
    scratch: int  # memory of its own that a call needs: packed operands and the like
    users: int  # on how many threads it runs
    phases: int = 1  # how many functions it runs one after the other, each with times of its own
    barriers: int = 0  # at how many its threads meet: before it, and between its phases
    #: the bytes of its code by what it is written in, where programs load kernels one by one
    code_sizes: Mapping[str, int] = MappingProxyType({})

    def __init__(self, launch: Launch, specialized: SpecializedKernel) -> None:
        self.launch, self.specialized = launch, specialized
        self.nodes = launch.nodes

    @property
    def kernel(self) -> Kernel:
        """What the code was made from: loops or a contraction over flat buffers."""
        return self.launch.kernel

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
        nodes = self.launch.nodes
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
        return _extents(kernel) if isinstance(kernel, Loops) else iterations_of(kernel)

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
    @abstractmethod
    def llvm(self) -> str:
        """Its code as LLVM has it."""

    @property
    @abstractmethod
    def asm(self) -> str:
        """Its code as the processor's instructions."""

    # What the device can do

    @property
    @abstractmethod
    def peaks(self) -> str:
        """The rates that its device reaches at best, as a line for readers."""

    @abstractmethod
    def memory_limit(self, touched: int) -> float:
        """Bytes per second that it could read and write of so many, were that all it did."""

    @property
    @abstractmethod
    def arithmetic_limit(self) -> float:
        """Operations per second of what multiplies in it, were that all it did; 0 where nobody has
        measured it."""

    @classmethod
    @abstractmethod
    def tune(cls, named: Sequence[tuple[str, Self]], budget: float) -> list[Tuned]:
        """Measure schedules for contractions of this device, so many seconds long, and keep the
        best."""

    def __repr__(self) -> str:
        return f"<{self.name}: {self.kind} {self.space}>"


def kernels_of(program: AnyProgram) -> list[CompiledKernel]:
    """The kernels of a program, in order."""
    lowered, kernels = program.lowered, program.compiled_kernels()
    computed = {node for kernel in kernels for node in kernel.launch.nodes}
    for each in kernels:
        each.nodes = _fused(each.launch, lowered, computed)
    return kernels


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
