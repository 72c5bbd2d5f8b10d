"""The compiled kernels of a program, for printing, profiling and tuning: names, the ops and user's
lines they come from, work, code, and the limits of their device.
"""

from __future__ import annotations

import re
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from functools import cached_property
from types import MappingProxyType

from thalweg.device.program import AnyProgram
from thalweg.device.tuning import Subject, iterations_of
from thalweg.graph.node import Node, reached
from thalweg.ir.expr import Reduce, Variable
from thalweg.ir.kernel import Contraction, Kernel, Loops
from thalweg.ir.rewrite import walk
from thalweg.ir.text.printer import kernel_text
from thalweg.lower.dynamic_shapes import SpecializedKernel
from thalweg.lower.flops_bytes import flops_bytes
from thalweg.lower.lowered import Launch

#: Ops that compute nothing: the name of a kernel leaves them out.
_UNNAMED = {"Const", "ExpandDims", "Identity", "NoOp", "Reshape", "Squeeze", "StopGradient"}
_MAX_NAMED = 5
_WORD_BORDER = re.compile(r"(?<=[a-z0-9])(?=[A-Z])|(?<=[A-Z])(?=[A-Z][a-z])")


class CompiledKernel(ABC):
    """One kernel of a step: a fused loop nest or a contraction, compiled for its shapes and its
    device."""

    nodes: tuple[Node, ...]  # all that it computes, inlined ones included, by their index
    scratch: int  # bytes of scratch memory of a call, for packed operands and the like
    users: int  # the number of threads that it runs on
    phases: int = 1  # the number of functions that it runs in sequence; each is timed by itself
    barriers: int = 0  # before it and between its phases
    #: the bytes of its code by the language of the code, if the device loads kernels one by one
    code_sizes: Mapping[str, int] = MappingProxyType({})

    def __init__(self, launch: Launch, specialized: SpecializedKernel) -> None:
        self.launch, self.specialized = launch, specialized
        self.kernel: Kernel = launch.kernel  # its IR: loops or a contraction over flat buffers
        self.nodes = launch.nodes
        #: the node that most of its work is attributed to
        self.main: Node = launch.nodes[0 if self.kind == "contraction" else -1]

    @property
    def text(self) -> str:
        """The IR as text."""
        return kernel_text(self.kernel)

    @cached_property
    def name(self) -> str:
        """Its ops, joined: `conv2d+bias_add+relu`."""
        prefix = "check_" if self.kind == "check" else ""
        return prefix + short_name(node.type for node in self.nodes)

    @property
    def ops(self) -> tuple[str, ...]:
        """The names of its nodes."""
        return tuple(node.name for node in self.nodes)

    @property
    def lines(self) -> tuple[str, ...]:
        """The user's lines that created its nodes, as `file:line`."""
        return tuple(dict.fromkeys(node.origin for node in self.nodes))

    @property
    def kind(self) -> str:
        """`contraction`, `loops`, or `check` for loops without stores, which check indices."""
        if isinstance(self.kernel, Contraction):
            return "contraction"
        return "loops" if self.kernel.stores else "check"

    @property
    def space(self) -> str:
        """Its iteration space: `64×100×784` rows, columns and terms, or the extents of the
        loops."""
        kernel = self.kernel
        return _loop_extents(kernel) if isinstance(kernel, Loops) else iterations_of(kernel)

    @cached_property
    def flops(self) -> float:
        """Arithmetic operations of a call."""
        return flops_bytes(self.kernel).operations

    @cached_property
    def bytes(self) -> int:
        """Bytes that a call moves: an element that is read and written counts twice."""
        return flops_bytes(self.kernel).moved

    @property
    def touched(self) -> int:
        """The size in bytes of the memory that a call accesses: each element counts once."""
        return sum(flops_bytes(self.kernel).touched)

    @property
    @abstractmethod
    def llvm(self) -> str:
        """Its code as LLVM IR."""

    @property
    @abstractmethod
    def asm(self) -> str:
        """Its code as assembly."""

    # The limits of the device

    @property
    @abstractmethod
    def peaks(self) -> str:
        """The peak rates of its device, as a line of text."""

    @abstractmethod
    def memory_limit(self, touched: int) -> float:
        """The peak rate, in bytes per second, of accessing `touched` bytes of memory."""

    @property
    @abstractmethod
    def arithmetic_limit(self) -> float:
        """The peak rate of its arithmetic, in operations per second; 0 if unknown."""

    @property
    @abstractmethod
    def subject(self) -> Subject:
        """The kernel, a contraction, as one to tune."""

    def __repr__(self) -> str:
        return f"<{self.name}: {self.kind} {self.space}>"


def kernels_of(program: AnyProgram) -> list[CompiledKernel]:
    """The kernels of a program, in order, with the nodes that were inlined into them: those have no
    value or launch, and no launch uses their buffers."""
    lowered, kernels = program.listing.lowered, program.compiled_kernels()
    launched = {node for kernel in kernels for node in kernel.launch.nodes}
    inlinable = set(lowered.spec.region.nodes) - launched
    used = {buffer for launch in lowered.launches for buffer in launch.buffers}
    stored = {tensor for tensor, buffer in lowered.buffers.items() if buffer in used}
    stored |= lowered.spec.values.keys()

    def inlined(node: Node) -> list[Node]:
        return [t.op for t in node.inputs if t.op in inlinable and t not in stored]

    for kernel in kernels:
        if kernel.kind != "check":
            nodes = reached(kernel.launch.nodes, inlined)
            kernel.nodes = tuple(sorted(nodes, key=lambda node: node.index))
    return kernels


def short_name(types: Iterable[str]) -> str:
    """Op types as one name: repeated types are counted, those after the first few left out."""
    types = list(types)
    named = [each for each in types if each not in _UNNAMED] or types[-1:]
    counts = Counter(map(snake_case, named))
    parts = [name if count == 1 else f"{name}×{count}" for name, count in counts.items()]
    more = len(parts) - _MAX_NAMED
    if more > 0:
        parts = [*parts[:_MAX_NAMED], f"{more} more"]
    return "+".join(parts)


def snake_case(op_type: str) -> str:
    """`BiasAdd` as `bias_add`, `Conv2D` as `conv2d`, `MatMul` as `matmul`."""
    joined = op_type.replace("MatMul", "Matmul").replace("2D", "2d").replace("3D", "3d")
    return _WORD_BORDER.sub("_", joined).lower()


def _loop_extents(kernel: Loops) -> str:
    """The extents of the loops, and of the first reduction inside them."""
    loops = _product(kernel.variables) or "1"
    for part in walk([store.value for store in kernel.stores]):
        if isinstance(part, Reduce) and part.variables:
            return f"{loops} Σ {_product(part.variables)}"
    return loops


def _product(variables: Sequence[Variable]) -> str:
    return "×".join(str(int(variable.extent)) for variable in variables)
