"""The distribution of work: the tiles of a contraction, their order, and their blocks.

Given a problem and a schedule, it emits the loop of a block over its tiles with the range of terms
of each, and the launch that adds up partial sums; it computes the number of blocks.
"""

from __future__ import annotations

from collections.abc import Callable, Generator
from contextlib import contextmanager
from dataclasses import dataclass

from thalweg.codegen.cuda.contraction.frame import GridFrame
from thalweg.codegen.cuda.contraction.output import Output, Partial, sum_type
from thalweg.codegen.cuda.contraction.problem import Problem
from thalweg.codegen.cuda.contraction.schedule import Schedule
from thalweg.codegen.cuda.contraction.space import At, Words
from thalweg.codegen.cuda.contraction.transposition import copied_bytes
from thalweg.codegen.llvm.builder import I64, Value, constant

FIXUP_THREADS = 256
_FIXUP_LANES = 4  # columns that a thread adds up together
_FIXUP_BLOCKS = 8  # of a multiprocessor

Sink = Output | Partial


@dataclass(frozen=True)
class Tile:
    """A tile of a block: its batch, first row and column, and blocks of terms."""

    batch: At
    row: Value
    column: Value
    first: Value  # of the blocks of terms (i32)
    end: Value
    whole: Value | None  # whether those are all terms; None: always
    part: Value | None  # the index of the part in scratch memory for partial sums
    done: Value  # the blocks of terms of the block's earlier tiles (i32)
    number: Value  # of the tile (i32)
    sequence: Value  # the number of earlier tiles, or parts of tiles, of the block (i32)


@dataclass(frozen=True, eq=False)
class Work:
    """The tiles of a problem under a schedule."""

    problem: Problem
    schedule: Schedule

    # On the host

    def counts(self, words: Words) -> tuple[int, int, int, int]:
        """The numbers of batches, rows and columns of tiles, and blocks of terms of each."""
        problem, schedule = self.problem, self.schedule
        batch = problem.batch.count(words)
        m, n = problem.rows.count(words), problem.columns.count(words)
        return (
            batch,
            -(-m // schedule.m),
            -(-n // schedule.n),
            max(1, -(-problem.reduced.count(words) // schedule.k)),
        )

    def tiles(self, words: Words) -> int:
        """The number of tiles."""
        batch, m, n, _ = self.counts(words)
        return batch * m * n

    @property
    def part_bytes(self) -> int:
        """The bytes of a tile of sums."""
        return self.schedule.m * self.schedule.n * sum_type(self.problem).bits // 8

    @property
    def parts_bytes(self) -> int:
        """The bytes of all parts: a worker has one at the start and one at the end of its share."""
        schedule = self.schedule
        parts = 2 * schedule.workers
        if schedule.splits > 1:
            parts = schedule.splits * self.tiles(self.problem.words())
        return parts * self.part_bytes

    @property
    def scratch(self) -> int:
        """The bytes of copies of operands, followed by parts."""
        return copied_bytes(self.problem) + self.parts_bytes

    def fixup_blocks(self, tiles: int, multiprocessors: int) -> int:
        """The number of blocks that add up the parts of all tiles."""
        chunks = tiles * self.schedule.m * self.schedule.n // _FIXUP_LANES
        return min(-(-chunks // FIXUP_THREADS), _FIXUP_BLOCKS * multiprocessors)

    # On the device

    @contextmanager
    def tiles_of_block(self, frame: GridFrame) -> Generator[Tile]:
        """A loop over the tiles of a block."""
        device = _Device(frame, self)
        one = constant(I64, 1)
        if self.schedule.splits > 1:
            with self._splits_of_block(frame, device) as tile:
                yield tile
            return
        if not self.schedule.workers:
            block, blocks = (frame.wide(v) for v in (frame.grid.block(), frame.grid.blocks()))
            count = frame.wide(device.count)
            with frame.b.loop(block, count, blocks, [frame.i32(0)]) as loop:
                number, (before,) = frame.b.convert("trunc", loop.index, "i32"), loop.carried
                place, done = device.place(number), frame.b.binary("mul", before, device.blocks)
                terms = frame.i32(0), device.blocks
                yield Tile(*place, *terms, None, None, done, number, before)
                loop.next = [frame.plus32(before, 1)]
            return
        worker = frame.wide(frame.grid.block())
        start, end = device.start(worker), device.start(frame.add(worker, one))
        first = frame.b.binary("udiv", start, device.depth)
        last = frame.b.binary(
            "udiv", frame.add(end, frame.subtract(device.depth, one)), device.depth
        )
        last = frame.b.select(frame.b.compare("slt", worker, device.workers), last, first)
        with frame.b.loop(first, last, one) as loop:
            begin = frame.b.binary("mul", loop.index, device.depth)
            low = frame.maximum(frame.subtract(start, begin), constant(I64, 0))
            high = frame.minimum(frame.subtract(end, begin), device.depth)
            whole = frame.b.compare("eq", frame.subtract(high, low), device.depth)
            later = frame.b.convert("zext", frame.b.compare("sgt", begin, start), "i64")
            part = frame.add(frame.b.binary("shl", worker, one), later)
            done = frame.subtract(frame.add(begin, low), start)
            number, first32, end32, done32 = (
                frame.b.convert("trunc", v, "i32") for v in (loop.index, low, high, done)
            )
            before = frame.b.convert("trunc", frame.subtract(loop.index, first), "i32")
            place = device.place(number)
            yield Tile(*place, first32, end32, whole, part, done32, number, before)

    @contextmanager
    def _splits_of_block(self, frame: GridFrame, device: _Device) -> Generator[Tile]:
        """A loop over parts of tiles: the first ones of all tiles, which read the same terms, then
        the second ones. All parts but the last have the same number of blocks of terms."""
        b, splits = frame.b, self.schedule.splits
        block, blocks = (frame.wide(v) for v in (frame.grid.block(), frame.grid.blocks()))
        each = frame.chunks32(device.blocks, splits)
        count = frame.wide(frame.times32(device.count, splits))
        with b.loop(block, count, blocks, [frame.i32(0), frame.i32(0)]) as loop:
            number, (done, before) = b.convert("trunc", loop.index, "i32"), loop.carried
            part, tile = (
                frame.over32(number, device.count),
                frame.modulo32(number, device.count),
            )
            first = frame.times32(each, part)
            end = b.intrinsic("smin", frame.plus32(first, each), device.blocks)
            place = device.place(tile)
            yield Tile(*place, first, end, None, loop.index, done, tile, before)
            loop.next = [frame.plus32(done, b.binary("sub", end, first)), frame.plus32(before, 1)]

    def place(self, frame: GridFrame, number: Value) -> tuple[At, Value, Value]:
        """The batch, the first row and the first column of a tile (i32)."""
        return _Device(frame, self).place(number)

    def tile_count(self, frame: GridFrame) -> Value:
        """The number of tiles (i32)."""
        return _Device(frame, self).count

    def finish(self, frame: GridFrame, tile: Tile, store: Callable[[Sink], None]) -> None:
        """Store the sums of a tile, as results or as partial sums."""
        results = Output(frame, self.problem, tile.batch, tile.row, tile.column)
        if tile.part is None:
            store(results)
            return
        base = self._part(frame, frame.multiply(tile.part, self.part_bytes))
        kind, is_aligned = sum_type(self.problem), self.problem.is_aligned
        parts = Partial(frame, base, self.schedule.n, kind, is_aligned)
        if tile.whole is None:
            store(parts)
            return
        with frame.b.when(tile.whole):
            store(results)
        with frame.b.when(frame.b.binary("xor", tile.whole, True)):
            store(parts)

    def _part(self, frame: GridFrame, offset: Value) -> Value:
        """The address at a byte offset from the first part."""
        return frame.b.element(
            frame.at_byte(frame.scratch, copied_bytes(self.problem)), "i8", offset
        )

    def emit_fixup(self, frame: GridFrame) -> None:
        """Emit the launch that adds up the parts of tiles that several blocks computed."""
        if self.schedule.splits > 1:
            self._add_splits(frame)
            return
        b, device, schedule = frame.b, _Device(frame, self), self.schedule
        one, blocks = constant(I64, 1), frame.wide(frame.grid.blocks())
        with b.loop(frame.wide(frame.grid.block()), frame.wide(device.count), blocks) as loop:
            begin = b.binary("mul", loop.index, device.depth)
            end = frame.subtract(frame.add(begin, device.depth), one)
            first, last = device.worker(begin), device.worker(end)
            with b.when(b.compare("slt", first, last)):
                number = b.convert("trunc", loop.index, "i32")
                output = Output(frame, self.problem, *device.place(number))
                chunks = constant(I64, schedule.m * schedule.n // _FIXUP_LANES)
                step = constant(I64, FIXUP_THREADS)
                with b.loop(frame.wide(frame.number), chunks, step) as chunk:
                    self._add_parts(frame, device, chunk.index, (begin, first, last), output)

    def _add_splits(self, frame: GridFrame) -> None:
        """Each thread adds up the parts of a few columns, with all loads in flight."""
        b, device, schedule, kind = (
            frame.b,
            _Device(frame, self),
            self.schedule,
            sum_type(self.problem),
        )
        tiles = frame.wide(device.count)
        size = schedule.m * schedule.n // _FIXUP_LANES
        threads = constant(I64, FIXUP_THREADS)
        block, blocks = (frame.wide(v) for v in (frame.grid.block(), frame.grid.blocks()))
        first = frame.add(b.binary("mul", block, threads), frame.wide(frame.number))
        count = frame.multiply(tiles, size)
        with b.loop(first, count, b.binary("mul", blocks, threads)) as loop:
            address = self._part(frame, frame.multiply(loop.index, _FIXUP_LANES * kind.bits // 8))
            apart = frame.multiply(tiles, self.part_bytes)
            align = 16 if self.problem.is_aligned else kind.bits // 8
            total = frame.load_aligned(kind.of(_FIXUP_LANES), address, align)
            for _ in range(schedule.splits - 1):
                address = b.element(address, "i8", apart)
                part = frame.load_aligned(kind.of(_FIXUP_LANES), address, align)
                total = b.binary("fadd", total, part)
            narrow = b.convert("trunc", loop.index, "i32")
            tile, chunk = frame.over32(narrow, size), frame.modulo32(narrow, size)
            per_row = schedule.n // _FIXUP_LANES
            row, column = frame.over32(chunk, per_row), frame.modulo32(chunk, per_row)
            sums = [b.extract(total, lane) for lane in range(_FIXUP_LANES)]
            output = Output(frame, self.problem, *device.place(tile))
            output.store(row, frame.times32(column, _FIXUP_LANES), sums)

    def _add_parts(
        self,
        frame: GridFrame,
        device: _Device,
        chunk: Value,
        place: tuple[Value, Value, Value],
        output: Output,
    ) -> None:
        b, kind = frame.b, sum_type(self.problem)
        begin, first, last = place
        place_in_tile = frame.multiply(chunk, _FIXUP_LANES * kind.bits // 8)
        zeros = [constant(kind, 0)] * _FIXUP_LANES
        after = frame.add(last, constant(I64, 1))
        with b.loop(first, after, 1, zeros) as loop:
            later = b.convert("zext", b.compare("slt", device.start(loop.index), begin), "i64")
            part = frame.add(b.binary("shl", loop.index, 1), later)
            offset = frame.add(frame.multiply(part, self.part_bytes), place_in_tile)
            address = self._part(frame, offset)
            align = 16 if self.problem.is_aligned else kind.bits // 8
            found = frame.load_aligned(kind.of(_FIXUP_LANES), address, align)
            loop.next = [
                b.binary("fadd", total, b.extract(found, lane))
                for lane, total in enumerate(loop.carried)
            ]
        per_row = self.schedule.n // _FIXUP_LANES
        narrow = b.convert("trunc", chunk, "i32")
        row, column = frame.over32(narrow, per_row), frame.modulo32(narrow, per_row)
        output.store(row, frame.times32(column, _FIXUP_LANES), loop.results)


class _Device:
    """The sizes of the work as values of an entry."""

    def __init__(self, frame: GridFrame, work: Work) -> None:
        self._frame, self._work = frame, work
        problem, schedule = work.problem, work.schedule
        self._rows = frame.chunks32(problem.rows.size(frame), schedule.m)
        self._columns = frame.chunks32(problem.columns.size(frame), schedule.n)
        flat = frame.b.binary("mul", self._rows, self._columns)
        self._flat = flat
        self.count = frame.b.binary("mul", flat, problem.batch.size(frame))
        blocks = frame.chunks32(problem.reduced.size(frame), schedule.k)
        self.blocks = frame.b.intrinsic("smax", blocks, frame.i32(1))
        self.depth = frame.wide(self.blocks)
        self._total = frame.b.binary("mul", self.depth, frame.wide(self.count))
        self.workers = frame.minimum(schedule.workers, self._total)  # those with a share

    def start(self, worker: Value) -> Value:
        """The first block of terms of a worker."""
        b = self._frame.b
        divisor = self._frame.maximum(self.workers, constant(I64, 1))
        return b.binary("udiv", b.binary("mul", worker, self._total), divisor)

    def worker(self, position: Value) -> Value:
        """The worker of a block of terms."""
        b, one = self._frame.b, constant(I64, 1)
        after = b.binary("mul", self._frame.add(position, one), self.workers)
        divisor = self._frame.maximum(self._total, one)
        return b.binary("udiv", self._frame.subtract(after, one), divisor)

    def place(self, number: Value) -> tuple[At, Value, Value]:
        """The batch, the first row and the first column of a tile.

        Tiles are numbered down the rows of a group, then along the columns, group by group.
        """
        frame, work = self._frame, self._work
        b, schedule = frame.b, work.schedule
        batch, rest = frame.over32(number, self._flat), frame.modulo32(number, self._flat)
        wide = frame.times32(self._columns, schedule.group)
        group, within = frame.over32(rest, wide), frame.modulo32(rest, wide)
        first = frame.times32(group, schedule.group)
        left = b.binary("sub", self._rows, first)
        height = b.intrinsic("smin", left, frame.i32(schedule.group))
        row = frame.plus32(first, frame.modulo32(within, height))
        column = frame.over32(within, height)
        at, _ = work.problem.batch.at(frame, batch)
        return at, frame.times32(row, schedule.m), frame.times32(column, schedule.n)
