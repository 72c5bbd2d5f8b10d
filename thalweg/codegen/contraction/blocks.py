"""The sums of a tile in blocks of products: rounding errors do not grow with a sum's whole length.

What comes in is a micro-kernel and the loops of its sums; every block of them starts from zero, and
blocks are added up in memory, those again in blocks. What goes out are the sums.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from thalweg.codegen.contraction.microkernel import Factors, Level, TileKernel
from thalweg.codegen.frame import Frame
from thalweg.codegen.llvm.builder import Type, Value, constant
from thalweg.codegen.loops.blocks import Cut, cut_of

#: Products of a block, and of a block of blocks: a tile goes to memory and back after each.
BLOCKS = (512, 512 * 64)


@dataclass(frozen=True)
class LongSums:
    """The sums of a tile, of which a micro-kernel has `count` vectors."""

    kernel: TileKernel
    count: int

    def sums(
        self, levels: Sequence[Level], at: Factors, blocks: Sequence[int] = BLOCKS
    ) -> list[Value]:
        """The sums after all loops, in blocks of at most these lengths."""
        if not blocks:
            return self.kernel.sums(levels, at, self._zeros)
        *smaller, block = blocks
        cut = cut_of([level.most for level in levels], block)
        if cut is None:
            return self.sums(levels, at, smaller)
        tile = _Tile(self.kernel.frame, self.kernel.kind, self.count)
        if not cut.certain:
            return self._perhaps_several(levels, at, smaller, cut.size, tile)
        tile.clear()
        self._several(levels, at, smaller, cut, tile)
        return tile.values()

    @property
    def _zeros(self) -> list[Value]:
        return [constant(self.kernel.kind, 0)] * self.count

    def _several(
        self,
        levels: Sequence[Level],
        at: Factors,
        smaller: Sequence[int],
        cut: Cut,
        tile: _Tile,
    ) -> None:
        """Loops down to that which is cut; what blocks give is added to a tile in memory."""
        frame, (level, *inner) = self.kernel.frame, levels
        if not cut.position:
            with frame.b.loop(level.start, level.stop, frame.integer(cut.size)) as loop:
                part = self._part(level, loop.index, cut.size)
                tile.add(self.sums([part, *inner], at, smaller))
            return
        with frame.b.loop(level.start, level.stop, frame.integer(1)) as loop:
            here = self.kernel.advanced(at, level, loop.index)
            self._several(inner, here, smaller, replace(cut, position=cut.position - 1), tile)

    def _perhaps_several(
        self,
        levels: Sequence[Level],
        at: Factors,
        smaller: Sequence[int],
        size: int,
        tile: _Tile,
    ) -> list[Value]:
        """Blocks of which there may be but one: it never leaves the registers."""
        frame, b, (level, *inner) = self.kernel.frame, self.kernel.frame.b, levels
        count = frame.subtract(level.stop, level.start)
        several = b.compare("sgt", count, frame.integer(size))
        with b.when(several):
            tile.clear()
        with b.loop(level.start, level.stop, frame.integer(size), self._zeros) as loop:
            part = self._part(level, loop.index, size)
            loop.next = self.sums([part, *inner], at, smaller)
            with b.when(b.compare("slt", part.stop, level.stop)):
                tile.add(loop.next)
        last = loop.results
        return b.choose_all(several, lambda: tile.plus(last), lambda: last)

    def _part(self, level: Level, start: Value, size: int) -> Level:
        """A block of a loop."""
        frame = self.kernel.frame
        stop = frame.least(frame.add(start, frame.integer(size)), level.stop)
        return replace(level, start=start, stop=stop, extent=None, most=size)


class _Tile:
    """Sums in memory."""

    def __init__(self, frame: Frame, kind: Type, count: int) -> None:
        self._b, self._kind = frame.b, kind
        base = frame.b.stack(kind, count)
        self._places = [frame.b.element(base, str(kind), frame.integer(n)) for n in range(count)]

    def clear(self) -> None:
        """Start from zero."""
        for place in self._places:
            self._b.store(constant(self._kind, 0), place)

    def values(self) -> list[Value]:
        """The sums."""
        return [self._b.load(self._kind, place) for place in self._places]

    def plus(self, values: Sequence[Value]) -> list[Value]:
        """The sums, with other values added."""
        pairs = zip(self.values(), values, strict=True)
        return [self._b.binary("fadd", old, new) for old, new in pairs]

    def add(self, values: Sequence[Value]) -> None:
        """Add values to the sums."""
        for place, value in zip(self._places, self.plus(values), strict=True):
            self._b.store(value, place)
