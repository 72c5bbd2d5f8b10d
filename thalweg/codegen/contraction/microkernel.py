"""The micro-kernel: a tile of sums in registers, fed by loops over the reduced variables.

The addresses of both factors and the loops of the sum come in; the sums go out. Every product adds
the splat of an element of `a` times a vector of `b`. To limit rounding errors, long sums are split:
every block starts from zero, and blocks are added up in memory, hierarchically.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from thalweg.codegen.frame import Frame
from thalweg.codegen.llvm.builder import I32, VOID, Builder, Type, Value, constant
from thalweg.codegen.loops.lanes import BlockSplit, block_split


@dataclass(frozen=True)
class Level:
    """A loop of a sum: its range, and its strides in both factors."""

    start: Value
    stop: Value
    step_a: int
    step_b: int
    extent: int | None = None  # of a static range from 0
    max_length: int | None = None  # a static bound on its length, if any


@dataclass(frozen=True)
class Addresses:
    """The addresses of a tile's factors, advanced by the loops of the sum."""

    a: Value
    b: Value


@dataclass
class TileKernel:
    """A tile of sums; `rows` are the offsets of its rows in `a`."""

    frame: Frame
    kind: Type  # a vector of sums
    rows: Sequence[Value]

    def sums(self, levels: Sequence[Level], at: Addresses, start: Sequence[Value]) -> list[Value]:
        """The sums after all loops, row by row."""
        level, *inner = levels
        if not inner:
            return self.innermost(level, at, start)
        with self.frame.b.loop(level.start, level.stop, 1, start) as loop:
            loop.next = self.sums(inner, self.advance(at, level, loop.index), loop.carried)
        return loop.results

    def innermost(self, level: Level, at: Addresses, start: Sequence[Value]) -> list[Value]:
        """The sums after the innermost loop."""
        raise NotImplementedError

    def advance(self, at: Addresses, level: Level, index: Value) -> Addresses:
        """The addresses of the factors at one index of a loop."""
        a, b = (
            self.address(base, self.frame.multiply(index, step))
            for base, step in ((at.a, level.step_a), (at.b, level.step_b))
        )
        return Addresses(a, b)

    def address(self, base: Value, distance: Value) -> Value:
        """The address `distance` elements from a base address."""
        return self.frame.element(base, self.kind.scalar, distance)


@dataclass
class MicroKernel(TileKernel):
    """A tile that is vectorized along columns, which are contiguous in `b`."""

    masks: Sequence[Value | None]  # per vector: the columns that exist
    masked_loads: bool  # whether loads of `b` need the masks
    vector_a: bool  # whether `a` has an element per lane
    unroll: int = 1
    prefetch_steps: int = 0  # how many steps ahead `b` is prefetched to L1; 0: never
    prefetch_panels: int = 0  # how many panels ahead `b` is prefetched to L2; 0: never

    @property
    def vectors(self) -> int:
        """How many vectors a row of the tile has."""
        return len(self.masks)

    def sums(self, levels: Sequence[Level], at: Addresses, start: Sequence[Value]) -> list[Value]:
        """The sums after all loops, row by row."""
        return super().sums(levels, at, start) if levels else self._products(at, start)

    def innermost(self, level: Level, at: Addresses, start: Sequence[Value]) -> list[Value]:
        """The sums after the innermost loop."""
        if self.unroll > 1:
            return self._unrolled(level, at, start)
        with self.frame.b.loop(level.start, level.stop, 1, start) as loop:
            loop.next = self._step(level, at, loop.index, loop.carried)
        return loop.results

    def _step(
        self, level: Level, at: Addresses, index: Value, sums: Sequence[Value]
    ) -> list[Value]:
        here = self.advance(at, level, index)
        if self.prefetch_steps:
            self._prefetch(here.b, self.frame.multiply(self.prefetch_steps, level.step_b), 3)
        if self.prefetch_panels:
            width = self.vectors * self.kind.lanes
            self._prefetch(here.b, self.frame.integer(self.prefetch_panels * width), 2)
        return self._products(here, sums)

    def _unrolled(self, level: Level, at: Addresses, start: Sequence[Value]) -> list[Value]:
        frame, b = self.frame, self.frame.b
        middle = frame.whole_end(level.start, frame.maximum(level.start, level.stop), self.unroll)
        with b.loop(level.start, middle, self.unroll, start) as loop:
            values = loop.carried
            for step in range(self.unroll):
                index = frame.add(loop.index, step)
                values = self._step(level, at, index, values)
            loop.next = values
        with b.loop(middle, level.stop, 1, loop.results) as last:
            last.next = self._products(self.advance(at, level, last.index), last.carried)
        return last.results

    def _prefetch(self, base: Value, distance: Value, nearness: int) -> None:
        """Prefetch a row of `b`. Past the end of memory a prefetch does nothing."""
        for j in range(self.vectors):
            place = self.frame.add(distance, j * self.kind.lanes)
            prefetch(self.frame.b, self.address(base, place), nearness)

    def _products(self, at: Addresses, sums: Sequence[Value]) -> list[Value]:
        columns = [self._column(at.b, j, self.masked_loads) for j in range(self.vectors)]
        result: list[Value] = []
        for i, row in enumerate(self.rows):
            elements = self._row(self.address(at.a, row))
            for j in range(self.vectors):
                total = sums[i * self.vectors + j]
                result.append(self.frame.b.multiply_add(elements[j], columns[j], total))
        return result

    def _column(self, base: Value, j: int, is_masked: bool) -> Value:
        address = self.address(base, self.frame.integer(j * self.kind.lanes))
        return self.frame.b.load(self.kind, address, self.masks[j] if is_masked else None)

    def _row(self, address: Value) -> list[Value]:
        if self.vector_a:
            return [self._column(address, j, True) for j in range(self.vectors)]
        element = self.frame.b.load(self.kind.of(1), address)
        return [self.frame.b.splat(element, self.kind.lanes)] * self.vectors


@dataclass
class DotKernel(TileKernel):
    """A tile of dot products, vectorized along the last loop in both factors.

    `columns` are the offsets of the tile's columns in `b`.
    """

    columns: Sequence[Value]

    def innermost(self, level: Level, at: Addresses, start: Sequence[Value]) -> list[Value]:
        """The sums after the innermost loop, each still distributed over the lanes: whole vectors,
        then what is left of one."""
        frame, b, lanes = self.frame, self.frame.b, self.kind.lanes
        middle = frame.whole_end(level.start, frame.maximum(level.start, level.stop), lanes)
        with b.loop(level.start, middle, lanes, start) as loop:
            loop.next = self._products(at, loop.index, None, loop.carried)
        if level.extent is not None and level.extent % lanes == 0:
            return loop.results
        with b.loop(middle, level.stop, lanes, loop.results) as last:
            mask = frame.lanes_below(last.index, level.stop, lanes)
            last.next = self._products(at, last.index, mask, last.carried)
        return last.results

    def _products(
        self, at: Addresses, index: Value, mask: Value | None, sums: Sequence[Value]
    ) -> list[Value]:
        a, b = self.address(at.a, index), self.address(at.b, index)
        columns = [self.frame.b.load(self.kind, self.address(b, d), mask) for d in self.columns]
        result: list[Value] = []
        for i, distance in enumerate(self.rows):
            row = self.frame.b.load(self.kind, self.address(a, distance), mask)
            start = i * len(columns)
            for column, total in zip(columns, sums[start : start + len(columns)], strict=True):
                result.append(self.frame.b.multiply_add(row, column, total))
        return result


def prefetch(b: Builder, address: Value, nearness: int, to_write: bool = False) -> None:
    """Prefetch a cache line into L1 (nearness 3) or L2 (nearness 2)."""
    numbers = int(to_write), nearness, 1  # 1: data, not code
    b.call("llvm.prefetch.p0", VOID, address, *(constant(I32, number) for number in numbers))


#: Terms of a block, and of a block of blocks: a tile is added to memory after each.
BLOCKS = (512, 512 * 64)


@dataclass(frozen=True)
class BlockedSums:
    """The sums of a tile of `count` vectors, in blocks."""

    kernel: TileKernel
    count: int

    def sums(
        self, levels: Sequence[Level], at: Addresses, blocks: Sequence[int] = BLOCKS
    ) -> list[Value]:
        """The sums after all loops, in nested blocks of about these lengths."""
        if not blocks:
            return self.kernel.sums(levels, at, self._zeros)
        *smaller, block = blocks
        cut = block_split([level.max_length for level in levels], block)
        if cut is None:
            return self.sums(levels, at, smaller)
        tile = _StackTile(self.kernel.frame, self.kernel.kind, self.count)
        if not cut.is_certain:
            return self._sum_perhaps_blocked(levels, at, smaller, cut.size, tile)
        tile.clear()
        self._sum_blocks(levels, at, smaller, cut, tile)
        return tile.values()

    @property
    def _zeros(self) -> list[Value]:
        return [constant(self.kernel.kind, 0)] * self.count

    def _sum_blocks(
        self,
        levels: Sequence[Level],
        at: Addresses,
        smaller: Sequence[int],
        cut: BlockSplit,
        tile: _StackTile,
    ) -> None:
        """Emit the loops down to the one that is split, and add each block to a tile in memory."""
        frame, (level, *inner) = self.kernel.frame, levels
        if not cut.position:
            with frame.b.loop(level.start, level.stop, cut.size) as loop:
                part = self._block(level, loop.index, cut.size)
                tile.add(self.sums([part, *inner], at, smaller))
            return
        with frame.b.loop(level.start, level.stop) as loop:
            here = self.kernel.advance(at, level, loop.index)
            self._sum_blocks(inner, here, smaller, replace(cut, position=cut.position - 1), tile)

    def _sum_perhaps_blocked(
        self,
        levels: Sequence[Level],
        at: Addresses,
        smaller: Sequence[int],
        size: int,
        tile: _StackTile,
    ) -> list[Value]:
        """The same where there may be a single block at run time, which stays in registers."""
        frame, b, (level, *inner) = self.kernel.frame, self.kernel.frame.b, levels
        count = frame.subtract(level.stop, level.start)
        several = b.compare("sgt", count, size)
        with b.when(several):
            tile.clear()
        with b.loop(level.start, level.stop, size, self._zeros) as loop:
            part = self._block(level, loop.index, size)
            loop.next = self.sums([part, *inner], at, smaller)
            with b.when(b.compare("slt", part.stop, level.stop)):
                tile.add(loop.next)
        last = loop.results
        return b.choose_all(several, lambda: tile.added_to(last), lambda: last)

    def _block(self, level: Level, start: Value, size: int) -> Level:
        """A block of a loop, from `start` on."""
        frame = self.kernel.frame
        stop = frame.minimum(frame.add(start, size), level.stop)
        return replace(level, start=start, stop=stop, extent=None, max_length=size)


class _StackTile:
    """A tile of sums on the stack."""

    def __init__(self, frame: Frame, kind: Type, count: int) -> None:
        self._b, self._kind = frame.b, kind
        base = frame.b.stack(kind, count)
        self._places = [frame.b.element(base, str(kind), n) for n in range(count)]

    def clear(self) -> None:
        """Set the sums to zero."""
        for place in self._places:
            self._b.store(constant(self._kind, 0), place)

    def values(self) -> list[Value]:
        """Load the sums."""
        return [self._b.load(self._kind, place) for place in self._places]

    def added_to(self, values: Sequence[Value]) -> list[Value]:
        """The sums, with other values added."""
        pairs = zip(self.values(), values, strict=True)
        return [self._b.binary("fadd", old, new) for old, new in pairs]

    def add(self, values: Sequence[Value]) -> None:
        """Add values to the sums."""
        for place, value in zip(self._places, self.added_to(values), strict=True):
            self._b.store(value, place)
