"""Program templates: programs with relocatable argument words, as plain data.

Comes in: the launches of a lowered region. Goes out: a `ProgramTemplate`. Each of its argument
words is relative to a base; an invocation adds the bases' addresses to all words at once. A
template holds no expressions, buffers or nodes, so the program cache can store it in a file.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple, cast

import numpy as np
from numpy.typing import NDArray

from thalweg.graph.analysis.node_effects import locks_updates
from thalweg.graph.node import Tensor
from thalweg.ir.expr import Load
from thalweg.ir.functions.dtypes import Unsupported
from thalweg.ir.kernel import Contraction
from thalweg.ir.rewrite import walk
from thalweg.lower.memory.buffers import Buffer, BufferKind
from thalweg.lower.specialise import NotCompiled
from thalweg.platform.arrays import Array

if TYPE_CHECKING:
    from thalweg.device.program import Listing
    from thalweg.lower.lowered import Launch, Lowered
    from thalweg.lower.memory.arena import Arena

#: Argument words that point into one array: (word, offset from the array's start in bytes).
Words = tuple[tuple[int, int], ...]

#: Bases of words: none (an absolute value), the fault word, the arena, the positions in random
#: streams, the first constant; the other constants follow.
ABSOLUTE, FAULT, ARENA, STREAMS, CONSTANTS = range(5)
STREAM_BYTES = 24  # the size of a position in a random stream


class KernelLayout(NamedTuple):
    """A kernel of a template, which is laid out for its phases and scratch bytes. The name does not
    determine them: a kernel that was recompiled for other caches has the same one."""

    name: str  # in the kernel cache
    phases: int
    scratch: int

    @classmethod
    def of(cls, name: str, kernel: Any) -> KernelLayout:
        """The layout of a loaded kernel."""
        return cls(name, len(kernel.functions), kernel.scratch)


class Reference(NamedTuple):
    """A variable of the region."""

    words: Words
    shape: tuple[int, ...]
    written: bool
    may_initialize: bool  # the program writes all of it before reading: it needs no value before
    exclusive: bool  # an update with locking writes it


class Output(NamedTuple):
    """A result: a new array, or a variable's reference."""

    words: Words
    shape: tuple[int, ...]
    dtype: Any
    reference: int = -1
    producer: int = -1  # of an early output: the call after which it is signalled


class Stream(NamedTuple):
    """A random op: its index among the region's nodes, and the values of its constant inputs."""

    node: int
    values: tuple[Any, ...]


@dataclass(frozen=True, eq=False)
class ProgramTemplate:
    """The program of a region or a control node for one set of shapes; subclasses add how a device
    runs its calls."""

    kernels: tuple[KernelLayout, ...]  # of distinct names
    words: NDArray[np.int64]
    bases: NDArray[np.int64]  # the base of each word
    constants: Sequence[Array]
    arena: int  # its size in bytes
    references: Sequence[Reference]
    streams: Sequence[Stream]
    inputs: Sequence[tuple[int, Words]]
    outputs: Sequence[Output]


class Layout:
    """A builder of the argument words of some calls."""

    def __init__(self, arena: Arena | None = None, streams: Sequence[Buffer] = ()) -> None:
        self.arena = arena  # of the calls that are added next
        self._streams = {buffer: number for number, buffer in enumerate(streams)}
        self._constants: dict[Any, int] = {}
        self.words: list[tuple[int, int]] = []  # the base of each, and the offset from it
        self.words_of: dict[Buffer, list[tuple[int, int]]] = {}  # the words that point to a buffer

    def fields(self, kernels: Mapping[str, Any]) -> dict[str, Any]:
        """Of a template: its loaded kernels by name, and the words of all calls that were added."""
        bases, words = np.array(self.words or [(ABSOLUTE, 0)], np.int64).T.copy()
        return {
            "kernels": tuple(KernelLayout.of(name, kernel) for name, kernel in kernels.items()),
            "words": words,
            "bases": bases,
            "constants": [np.require(b.source, requirements=["C", "A"]) for b in self._constants],
        }

    def add(self, launch: Launch, scratch: int, sizes: Sequence[int]) -> None:
        """Append the words of a call: the fault word, its buffers, its scratch, its run-time
        sizes."""
        self.words.append((FAULT, 0))
        for buffer, start in zip(launch.buffers, launch.starts, strict=True):
            shift = start * np.dtype(buffer.dtype).itemsize
            self.words_of.setdefault(buffer, []).append((len(self.words), shift))
            self.words.append(self.address(buffer, shift))
        self.words += [(ARENA, scratch), *((ABSOLUTE, size) for size in sizes)]

    def constant(self, source: Any) -> int:
        """The base of a constant, a buffer or view with an array as its `source`."""
        return CONSTANTS + self._constants.setdefault(source, len(self._constants))

    def address(self, buffer: Buffer, shift: int) -> tuple[int, int]:
        """The base of a buffer, and the offset from it of the byte `shift` of the buffer."""
        match buffer.kind:
            case BufferKind.TEMPORARY:
                return ARENA, cast("Arena", self.arena).offsets[buffer] + shift
            case BufferKind.CONSTANT:
                return self.constant(buffer), shift
            case BufferKind.STREAM:
                return STREAMS, self._streams[buffer] * STREAM_BYTES + shift
            case _:
                return ABSOLUTE, 0  # bound by each call


def template_of(
    kernels: Mapping[str, Any], lowered: Lowered, listing: Listing[Any]
) -> ProgramTemplate:
    """The template of a listing with these loaded kernels by name, without what devices add."""
    layout = Layout(listing.arena, list(lowered.streams.values()))
    for call in listing.calls:
        layout.add(call.launch, call.scratch, call.specialized.words)
    interface, region = _Interface(lowered, layout.words_of), lowered.spec.region
    return ProgramTemplate(
        **layout.fields(kernels),
        arena=listing.arena.size,
        references=[interface.reference(tensor) for tensor in region.references],
        streams=interface.streams(),
        inputs=interface.inputs(),
        outputs=[interface.output(tensor) for tensor in region.outputs],
    )


def compile_error(launch: Launch, error: Exception) -> Exception:
    """The error to raise if a launch failed to compile: NotCompiled if no code can be generated
    for it, so that its node runs on its NumPy kernel."""
    if isinstance(error, Unsupported):
        return NotCompiled(launch.nodes[0], str(error))
    return error


class _Interface:
    """The inputs, outputs, variables and random streams of a region as words of its program."""

    def __init__(
        self, lowered: Lowered, words_of: Mapping[Buffer, Sequence[tuple[int, int]]]
    ) -> None:
        self._lowered, self._words_of = lowered, words_of
        launches = lowered.launches
        self._last_write = {b: n for n, launch in enumerate(launches) for b in launch.written}
        self._first_use = {b: launch for launch in reversed(launches) for b in launch.buffers}
        region = lowered.spec.region
        updates = [node for node in region.nodes if locks_updates(node)]
        locked = [node.inputs[n] for node in updates for n in node.op.parsed.references]
        self._locked = {region.roots[tensor] for tensor in locked if tensor in region.roots}

    def _words(self, tensor: Tensor) -> Words:
        buffer = self._lowered.buffers.get(tensor)
        return () if buffer is None else tuple(self._words_of.get(buffer, ()))

    def inputs(self) -> list[tuple[int, Words]]:
        """The inputs that are read: (number, words)."""
        spec = self._lowered.spec
        read = [(n, t) for n, t in enumerate(spec.region.inputs) if t not in spec.values]
        return [(number, words) for number, tensor in read if (words := self._words(tensor))]

    def streams(self) -> list[Stream]:
        """The random ops."""
        spec = self._lowered.spec
        positions = {node: position for position, node in enumerate(spec.region.nodes)}
        return [
            Stream(positions[node], tuple(spec.values.get(tensor) for tensor in node.inputs))
            for node in self._lowered.streams
        ]

    def output(self, tensor: Tensor) -> Output:
        """An output of the region."""
        region, shape = self._lowered.spec.region, self._lowered.spec.shapes[tensor]
        if tensor in region.roots:
            return Output((), shape, None, region.references.index(region.roots[tensor]))
        buffer = self._lowered.buffers[tensor]
        last = self._last_write.get(buffer, -1)
        is_early = tensor in region.early and last < len(self._lowered.launches) - 1
        producer = last if is_early else -1
        return Output(self._words(tensor), shape, np.dtype(buffer.dtype), producer=producer)

    def reference(self, tensor: Tensor) -> Reference:
        """A variable of the region."""
        buffer = self._lowered.buffers[tensor]
        first_use = self._first_use.get(buffer)
        may_initialize = first_use is not None and only_writes(first_use, buffer)
        shape, written = self._lowered.spec.shapes[tensor], buffer in self._last_write
        locked = tensor in self._locked
        return Reference(self._words(tensor), shape, written, may_initialize, locked)


def only_writes(launch: Launch, buffer: Buffer) -> bool:
    """Whether a launch writes a buffer of its arguments and does not read it."""
    kernel = launch.kernel
    argument = kernel.arguments[launch.buffers.index(buffer)]
    stores = [store for store in kernel.stores if store.buffer is argument]
    if not argument.written or any(store.combine != "set" for store in stores):
        return False
    values = [store.value for store in kernel.stores]
    if isinstance(kernel, Contraction):
        values += [kernel.a.value, kernel.b.value]
    return not any(isinstance(part, Load) and part.buffer is argument for part in walk(values))
