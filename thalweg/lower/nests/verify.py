"""The invariants of loop nests, checked after each pass over them when `THALWEG_VERIFY=1`."""

from __future__ import annotations

from collections.abc import Iterator, Sequence, Set
from itertools import chain
from weakref import WeakSet

from thalweg.ir import verify
from thalweg.lower.lowered import Launch
from thalweg.lower.memory.buffers import Buffer, BufferKind, Pieces
from thalweg.lower.nests.loop_nest import LoopNest

_SOUND = WeakSet[LoopNest]()  # nests are immutable: each is checked once


def verified(after: str, nests: list[LoopNest]) -> list[LoopNest]:
    """The nests that a pass returned; raises where one breaks an invariant."""
    if verify.ENABLED:
        written: set[Buffer] = set()
        for nest in nests:
            own_faults = () if nest in _SOUND else verify.body_faults(nest.kernel)
            faults = chain(own_faults, _unwritten(nest, written))
            verify.report(faults, after, f"the nest of {_names(nest)}")
            _SOUND.add(nest)
            written |= nest.written
    return nests


def verify_pieces(after: str, pieces: Pieces) -> None:
    """Raises where a sub-buffer is out of bounds, or lies in a sub-buffer: the memory plan follows
    one level only."""
    if verify.ENABLED:
        for piece, (whole, start) in pieces.items():
            if whole in pieces or start < 0 or start + piece.size > whole.size:
                verify.report(["a sub-buffer lies in no buffer of its own"], after, str(piece))


def verify_launches(launches: Sequence[Launch]) -> None:
    """Raises where a kernel breaks an invariant."""
    if verify.ENABLED:
        for launch in launches:
            verify.verify(launch.kernel, "bufferize", f"the kernel of {_names(launch)}")


def _unwritten(nest: LoopNest, written: Set[Buffer]) -> Iterator[str]:
    """Temporaries that a nest reads, directly or as sub-buffers, before anything writes them."""
    initialized = {write.buffer for write in nest.writes if write.combine == "set"}
    aliased = nest.aliases and nest.loads.keys() - written - initialized
    for buffer in nest.reads - written - initialized:
        if buffer.kind is BufferKind.TEMPORARY and buffer not in aliased:
            yield f"a temporary of {buffer.size} elements is read before anything writes it"


def _names(of: LoopNest | Launch) -> str:
    return ", ".join(node.name for node in of.nodes)
