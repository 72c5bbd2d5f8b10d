"""A program but for its addresses: what every invocation of it is made from, as plain data.

Comes in: the calls of a lowered region. Goes out: a `ProgramTemplate`, whose argument words are
numbers to which the address of some memory is added, in one go, when an invocation is made. It
holds no expressions, buffers or nodes, so it can be written to a file and read in another process.
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
from thalweg.ir.kernel import Argument, Contraction
from thalweg.ir.rewrite import walk
from thalweg.lower.memory.buffers import Buffer, BufferKind
from thalweg.lower.specialise import NotCompiled

if TYPE_CHECKING:
    from thalweg.device.program import Listing
    from thalweg.lower.lowered import Launch, Lowered
    from thalweg.lower.memory.arena import Arena

Array = NDArray[Any]
#: Argument words that hold an address: which, and how far from the array's start it points.
Words = tuple[tuple[int, int], ...]

#: What is added to a word: nothing, or the address of the fault word, of the arena, of the
#: positions in random streams, of a constant (the first one has this number).
NOTHING, FAULT, ARENA, STREAMS, CONSTANTS = range(5)
STREAM_BYTES = 24  # that a position in a random stream takes


class Reference(NamedTuple):
    """A variable of the region: where its address goes, and what becomes of it."""

    words: Words
    written: bool
    is_set_first: bool  # its first value may come from here
    shape: tuple[int, ...]


class Output(NamedTuple):
    """A result: a fresh array, or a variable's reference."""

    words: Words
    shape: tuple[int, ...]
    dtype: Any
    reference: int = -1
    made_by: int = -1  # of one that others wait for: the call after which it is signalled


class Stream(NamedTuple):
    """A random op: its position among the region's nodes, and what is known of its inputs."""

    node: int
    values: tuple[Any, ...]


@dataclass(frozen=True, eq=False)
class ProgramTemplate:
    """The program of a region on some shapes; each kind of device adds how its calls run."""

    kernels: tuple[str, ...]  # by their names in the cache, each once
    words: NDArray[np.int64]
    bases: NDArray[np.int64]  # for each word, what is added to it
    constants: Sequence[Array]
    streams: Sequence[Stream]
    inputs: Sequence[tuple[int, Words]]
    references: Sequence[Reference]
    outputs: Sequence[Output]
    exclusive: Sequence[int]  # the references that updates with locking write
    arena: int  # bytes


def base_addresses(
    fault: int, arena: int, streams: int, constants: Sequence[Array]
) -> NDArray[np.int64]:
    """What an invocation adds to its argument words, by base."""
    every = [0, fault, arena, streams, *(constant.ctypes.data for constant in constants)]
    return np.array(every, np.int64)


class Layout:
    """The argument words of some calls, while they are laid out."""

    def __init__(self, arena: Arena | None = None, streams: Sequence[Buffer] = ()) -> None:
        self.arena = arena  # that of the calls that come next
        self._streams = {buffer: number for number, buffer in enumerate(streams)}
        self._constants: dict[Any, int] = {}
        self.words: list[int] = []
        self.bases: list[int] = []
        self.places: dict[Buffer, list[tuple[int, int]]] = {}  # the words that point to each buffer

    @property
    def constants(self) -> list[Array]:
        """The arrays that belong to the program."""
        return [np.require(buffer.source, requirements=["C", "A"]) for buffer in self._constants]

    def add(self, launch: Launch, scratch: int, sizes: Sequence[int]) -> None:
        """The words of a call: the fault word, its buffers, its scratch, its run-time sizes."""
        self._put(FAULT, 0)
        for buffer, start in zip(launch.buffers, launch.starts, strict=True):
            shift = start * np.dtype(buffer.dtype).itemsize
            self.places.setdefault(buffer, []).append((len(self.words), shift))
            self._put(*self.address(buffer, shift))
        self._put(ARENA, scratch)
        for size in sizes:
            self._put(NOTHING, size)

    def _put(self, base: int, word: int) -> None:
        self.bases.append(base)
        self.words.append(word)

    def constant(self, source: Any) -> int:
        """The base of a constant, by the buffer that it is the source of."""
        return CONSTANTS + self._constants.setdefault(source, len(self._constants))

    def address(self, buffer: Buffer, shift: int) -> tuple[int, int]:
        """The base of a buffer, and how far from it an argument begins."""
        match buffer.kind:
            case BufferKind.TEMPORARY:
                return ARENA, cast("Arena", self.arena).offsets[buffer] + shift
            case BufferKind.CONSTANT:
                return self.constant(buffer), shift
            case BufferKind.STREAM:
                return STREAMS, self._streams[buffer] * STREAM_BYTES + shift
            case _:
                return NOTHING, 0  # known when a call runs


def template_of(kernels: Sequence[str], lowered: Lowered, listing: Listing[Any]) -> ProgramTemplate:
    """What the templates of all devices have, for kernels of these names."""
    layout = Layout(listing.arena, list(lowered.streams.values()))
    for call in listing.calls:
        layout.add(call.launch, call.scratch, call.specialized.words)
    words, bases = (np.array(each or [0], np.int64) for each in (layout.words, layout.bases))
    border = _Border(lowered, layout.places)
    inside = words, bases, layout.constants, border.streams()
    outside = border.inputs(), border.references(), border.outputs(), border.exclusive()
    return ProgramTemplate(tuple(kernels), *inside, *outside, listing.arena.size)


def explained(launch: Launch, error: Exception) -> Exception:
    """Why a launch has no code: what has no machine code is run on NumPy kernels."""
    if isinstance(error, Unsupported):
        return NotCompiled(launch.nodes[0], str(error))
    return error


class _Border:
    """What comes into a region and what leaves it, as words of its program."""

    def __init__(
        self, lowered: Lowered, places: Mapping[Buffer, Sequence[tuple[int, int]]]
    ) -> None:
        self._lowered, self._places = lowered, places
        self._written = {buffer for launch in lowered.launches for buffer in launch.written}
        self._first = {b: launch for launch in reversed(lowered.launches) for b in launch.buffers}

    def _words(self, tensor: Tensor) -> Words:
        buffer = self._lowered.buffers.get(tensor)
        return () if buffer is None else tuple(self._places.get(buffer, ()))

    def inputs(self) -> list[tuple[int, Words]]:
        """The inputs that are read: which, and where their addresses go."""
        spec = self._lowered.spec
        read = [(p, t) for p, t in enumerate(spec.region.inputs) if t not in spec.values]
        return [(place, words) for place, tensor in read if (words := self._words(tensor))]

    def references(self) -> list[Reference]:
        """The variables."""
        return [self._reference(tensor) for tensor in self._lowered.spec.region.references]

    def outputs(self) -> list[Output]:
        """The results."""
        return [self._output(tensor) for tensor in self._lowered.spec.region.outputs]

    def streams(self) -> list[Stream]:
        """The random ops."""
        spec = self._lowered.spec
        positions = {node: position for position, node in enumerate(spec.region.nodes)}
        return [
            Stream(positions[node], tuple(spec.values.get(tensor) for tensor in node.inputs))
            for node in self._lowered.streams
        ]

    def exclusive(self) -> list[int]:
        """The variables that updates with locking write."""
        region = self._lowered.spec.region
        updates = [node for node in region.nodes if locks_updates(node)]
        written = [node.inputs[place] for node in updates for place in node.op.parsed.references]
        roots = {region.roots[tensor] for tensor in written if tensor in region.roots}
        return [place for place, tensor in enumerate(region.references) if tensor in roots]

    def _output(self, tensor: Tensor) -> Output:
        region, shape = self._lowered.spec.region, self._lowered.spec.shapes[tensor]
        if tensor in region.roots:
            return Output((), shape, None, region.references.index(region.roots[tensor]))
        buffer = self._lowered.buffers[tensor]
        made_by = self._made_by(buffer) if tensor in region.early else -1
        return Output(self._words(tensor), shape, np.dtype(buffer.dtype), made_by=made_by)

    def _made_by(self, buffer: Buffer) -> int:
        """The last launch that writes a buffer; -1 where none does, or nothing comes after it."""
        launches = self._lowered.launches
        writers = [number for number, launch in enumerate(launches) if buffer in launch.written]
        return writers[-1] if writers and writers[-1] < len(launches) - 1 else -1

    def _reference(self, tensor: Tensor) -> Reference:
        buffer = self._lowered.buffers[tensor]
        set_first = buffer in self._first and is_set_first(self._first[buffer], buffer)
        shape = self._lowered.spec.shapes[tensor]
        return Reference(self._words(tensor), buffer in self._written, set_first, shape)


def is_set_first(launch: Launch, buffer: Buffer) -> bool:
    """Whether the first thing that happens to a buffer is that a launch writes it, unread."""
    argument = launch.kernel.arguments[launch.buffers.index(buffer)]
    return argument.written and not _is_read(launch, argument)


def _is_read(launch: Launch, argument: Argument) -> bool:
    """Whether a launch reads an argument that it writes."""
    kernel = launch.kernel
    if any(s.combine != "set" for s in kernel.stores if s.buffer is argument):
        return True
    values = [store.value for store in kernel.stores]
    if isinstance(kernel, Contraction):
        values += [kernel.a.value, kernel.b.value]
    return any(isinstance(part, Load) and part.buffer is argument for part in walk(values))
