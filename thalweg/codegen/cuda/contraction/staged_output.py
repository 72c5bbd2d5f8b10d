"""The epilogue of wgmma tiles, staged in shared memory.

Each warp has 16 rows of a tile, and processes them in chunks of columns. The copy engine prefetches
the operands of a chunk to a buffer, some chunks (or tiles) ahead; the warp computes the results in
place, in the layout of its sums, and the engine writes them. No thread waits for memory, and all
transfers are whole lines. Warps do not synchronize.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from thalweg.codegen.cuda.contraction.async_instructions import BARRIER_BYTES, AsyncInstructions
from thalweg.codegen.cuda.contraction.epilogue import (
    PAIR,
    ROWS,
    Box,
    Epilogue,
    Matrix,
)
from thalweg.codegen.cuda.contraction.frame import GridFrame, GridPoint
from thalweg.codegen.cuda.contraction.layout import PIECE
from thalweg.codegen.cuda.contraction.output import store_all
from thalweg.codegen.cuda.contraction.space import At, Space
from thalweg.codegen.cuda.contraction.work import Tile, Work
from thalweg.codegen.llvm.builder import FLOAT, Value
from thalweg.codegen.math.conversion import storage_type, to_memory
from thalweg.ir.index import Affine
from thalweg.ir.kernel import Argument, Store

_BLOCK = 8  # columns, two for each of four lanes
_HALF = 8  # half of a warp's rows
_PARKED_BYTES = 8  # of a pair of sums
_CACHED_SHARE = 0.3  # of the L2 cache, that may be prefetched
_PAIRS_AT_ONCE = 4  # per iteration of a long epilogue, to hide latency


@dataclass(eq=False)
class StagedPoint(GridPoint):
    """A point of an epilogue whose staged accesses are to shared memory."""

    loads: Mapping[Matrix, Value] = field(default_factory=dict[Matrix, Value])
    stores: Mapping[Matrix, Value] = field(default_factory=dict[Matrix, Value])

    def _load_raw(self, argument: Argument, offset: Affine, mask: Value | None) -> Value:
        address = self.loads.get((argument, offset))
        if address is None:
            return super()._load_raw(argument, offset, mask)
        kind = storage_type(argument.dtype, self.lanes)
        return self.frame.b.emit(kind, f"load {kind}, {address}, align {_pair_bytes(argument)}")

    def store(self, store: Store, value: Value, mask: Value | None = None) -> None:
        """Store a result to the buffer that the copy engine writes."""
        raw = to_memory(self.frame.b, value, store.buffer.dtype)
        if raw.type.lanes < self.lanes:
            raw = self.frame.b.splat(raw, self.lanes)
        address = self.stores[store.buffer, store.offset]
        self.frame.b.line(f"store {raw}, {address}, align {_pair_bytes(store.buffer)}")


def _pair_bytes(argument: Argument) -> int:
    return PAIR * argument.dtype.itemsize


class StagedOutput:
    """The epilogue of all tiles of a block, for one warp."""

    def __init__(
        self,
        work: Work,
        epilogue: Epilogue,
        frame: GridFrame,
        places: tuple[int, int],
        warp: Value,
        lane: Value,
    ) -> None:
        """`places`: the offsets of the buffers and of their barriers in shared memory. The tensor
        maps are the last ones of the entry."""
        self.work, self.epilogue, self.frame = work, epilogue, frame
        self.engine = AsyncInstructions(frame)
        maps = frame.maps[len(frame.maps) - len(epilogue.tensor_maps) :]
        self._maps = dict(zip(epilogue.tensor_maps, maps, strict=True))
        self._warp, self._row, self._pair = warp, frame.over32(lane, 4), frame.modulo32(lane, 4)
        self._is_first = frame.b.compare("eq", lane, frame.i32(0))
        self._buffers = frame.at_byte(
            frame.at_byte(frame.memory, places[0]), frame.times32(warp, epilogue.warp_bytes)
        )
        self._barriers = frame.at_byte(
            frame.at_byte(frame.memory, places[1]), frame.times32(warp, BARRIER_BYTES)
        )
        self._memory = frame.at_byte(frame.memory, places[0] + epilogue.buffer_bytes)
        own = frame.plus32(frame.times32(warp, epilogue.warp_pairs * 32), lane)
        self._memory = frame.at_byte(self._memory, frame.times32(own, _PARKED_BYTES))
        self._tiles = work.tile_count(frame)
        self._stride = frame.grid.blocks()  # from one tile of the block to the next

    # The loop over tiles

    def begin(self) -> None:
        """Begin to read the operands of the first chunks: for all buffers but one, since each chunk
        starts the next read when it is written."""
        first = self.frame.grid.block()
        for chunk in range(self.epilogue.buffers - 1 if self.epilogue.loads else 0):
            self._read(first, self.frame.i32(0), self.frame.i32(chunk))

    def prefetch(self, tile: Tile) -> None:
        """Prefetch the operands of a tile's later chunks to the L2 cache while it is multiplied, if
        those of all multiprocessors fit."""
        frame, epilogue, target = self.frame, self.epilogue, self.frame.target
        needed = epilogue.read_bytes * epilogue.warps * epilogue.chunks * target.multiprocessors
        if needed > _CACHED_SHARE * target.l2:
            return
        place = tile.batch, tile.row, tile.column
        with frame.b.when(self._is_first):
            for chunk in range(epilogue.buffers - 1, epilogue.chunks):
                for box, _, at in self._places(epilogue.loads, place, frame.i32(chunk)):
                    self.engine.prefetch_box(self._maps[box.matrix], at)

    def store(self, tile: Tile, sums: Sequence[Value]) -> None:
        """Store the sums of a tile: of every 8 columns, two of a row and two of the row 8 below.

        A long epilogue is emitted once, for one chunk and a few pairs of sums, in a loop over pairs
        that are stored in shared memory.
        """
        frame, b, count = self.frame, self.frame.b, self.epilogue.chunks
        pairs = [frame.b.vector(sums[at : at + PAIR]) for at in range(0, len(sums), PAIR)]
        size = len(pairs) // count
        chunks = [pairs[at : at + size] for at in range(0, len(pairs), size)]
        if not self.epilogue.is_long:
            for number, some in enumerate(chunks):
                self._chunk(tile, frame.i32(number), some)
            return
        with b.loop(frame.i32(0), frame.i32(count), frame.i32(1)) as loop:
            for number, some in enumerate(chunks):
                with b.when(b.compare("eq", loop.index, frame.i32(number))):
                    for at, pair in enumerate(some):
                        frame.store_aligned(pair, self._spilled_pair(frame.i32(at)), _PARKED_BYTES)
            self._chunk(tile, loop.index, None)

    def end(self) -> None:
        """Wait until all stores have read shared memory."""
        with self.frame.b.when(self._is_first):
            self.engine.wait_stores(0)

    # Chunks

    def _chunk(self, tile: Tile, chunk: Value, pairs: Sequence[Value] | None) -> None:
        """Store a chunk of the given pairs of sums, or of those in shared memory."""
        frame, epilogue, engine = self.frame, self.epilogue, self.engine
        number = self._number(tile.sequence, chunk)
        buffer = self._buffer(number)
        if epilogue.loads:
            phase = frame.over32(number, epilogue.buffers)
            engine.wait(self._barrier(number), frame.b.binary("and", phase, frame.i32(1)))
        else:
            with frame.b.when(self._is_first):
                engine.wait_stores(epilogue.buffers - 1)
            frame.grid.warp_barrier()
        self._compute(tile, chunk, pairs, buffer)
        engine.publish_writes()
        frame.grid.warp_barrier()
        with frame.b.when(self._is_first):
            self._move(epilogue.stores, (tile.batch, tile.row, tile.column), chunk, buffer, None)
            engine.commit_stores()
        if epilogue.loads:  # to the buffer of the previous chunk: this one's is still being read
            following = frame.plus32(chunk, epilogue.buffers - 1)
            self._read(tile.number, tile.sequence, following, pending=1)

    def _read(self, tile: Value, sequence: Value, chunk: Value, pending: int | None = None) -> None:
        """Begin to read a chunk, counted from a tile on, if it exists, after waiting for all but
        the last `pending` writes of chunks."""
        frame, epilogue, engine = self.frame, self.epilogue, self.engine
        later, chunk = (f(chunk, epilogue.chunks) for f in (frame.over32, frame.modulo32))
        tile = frame.plus32(tile, frame.b.binary("mul", self._stride, later))
        exists = frame.b.compare("slt", tile, self._tiles)
        with frame.b.when(frame.b.binary("and", self._is_first, exists)):
            if pending is not None:
                engine.wait_stores(pending)
            number = self._number(frame.plus32(sequence, later), chunk)
            barrier = self._barrier(number)
            engine.arrive(barrier, epilogue.read_bytes)
            place = self.work.place(frame, tile)
            self._move(epilogue.loads, place, chunk, self._buffer(number), barrier)

    def _number(self, sequence: Value, chunk: Value) -> Value:
        """The index of a chunk among all of the block."""
        frame = self.frame
        return frame.plus32(frame.times32(sequence, self.epilogue.chunks), chunk)

    def _buffer(self, number: Value) -> Value:
        frame, epilogue = self.frame, self.epilogue
        place = frame.modulo32(number, epilogue.buffers)
        size = epilogue.warps * epilogue.warp_bytes
        return frame.at_byte(self._buffers, frame.times32(place, size))

    def _barrier(self, number: Value) -> Value:
        frame, epilogue = self.frame, self.epilogue
        place = frame.modulo32(number, epilogue.buffers)
        return frame.at_byte(self._barriers, frame.times32(place, epilogue.warps * BARRIER_BYTES))

    def _move(
        self,
        boxes: Sequence[Box],
        place: tuple[At, Value, Value],
        chunk: Value,
        buffer: Value,
        barrier: Value | None,
    ) -> None:
        """Begin to copy a chunk of this warp: to shared memory if there is a barrier for its
        arrival, else from shared memory."""
        for box, panel, at in self._places(boxes, place, chunk):
            tensor_map = self._maps[box.matrix]
            memory = self.frame.at_byte(buffer, box.offset + panel * box.panel_bytes)
            if barrier is None:
                self.engine.store_box(tensor_map, memory, at)
            else:
                self.engine.copy_box(tensor_map, memory, barrier, at)

    def _places(
        self, boxes: Sequence[Box], place: tuple[At, Value, Value], chunk: Value
    ) -> Iterator[tuple[Box, int, list[Value]]]:
        """The panels of a chunk of this warp, with their coordinates."""
        frame, (batch, row, column) = self.frame, place
        row = frame.plus32(row, frame.times32(self._warp, ROWS))
        column = frame.plus32(column, frame.times32(chunk, self.epilogue.columns))
        for box in boxes:
            outer = [frame.b.convert("trunc", batch[v], "i32") for v in box.batch]
            for panel in range(box.panels):
                yield box, panel, [frame.plus32(column, panel * box.panel), row, *outer]

    # Results

    def _compute(
        self, tile: Tile, chunk: Value, pairs: Sequence[Value] | None, buffer: Value
    ) -> None:
        frame, width = self.frame, self.epilogue.columns
        column = frame.plus32(frame.times32(chunk, width), frame.times32(self._pair, PAIR))
        column = frame.plus32(tile.column, column)
        if pairs is not None:
            for number, pair in enumerate(pairs):
                self._store_pair(tile, column, buffer, frame.i32(number), pair)
            return
        count, step = frame.i32(2 * width // _BLOCK), frame.i32(_PAIRS_AT_ONCE)
        with frame.b.loop(frame.i32(0), count, step) as loop:
            for number in range(_PAIRS_AT_ONCE):
                at = frame.plus32(loop.index, number)
                pair = frame.load_aligned(FLOAT.of(PAIR), self._spilled_pair(at), _PARKED_BYTES)
                self._store_pair(tile, column, buffer, at, pair)

    def _spilled_pair(self, number: Value) -> Value:
        """The address of a pair of sums of this lane."""
        frame = self.frame
        return frame.at_byte(self._memory, frame.times32(number, 32 * _PARKED_BYTES))

    def _store_pair(
        self, tile: Tile, column: Value, buffer: Value, number: Value, pair: Value
    ) -> None:
        """Store a pair: each block of columns has one in this lane's row and one in the row 8
        below."""
        frame, problem = self.frame, self.work.problem
        block, half = frame.over32(number, 2), frame.modulo32(number, 2)
        row = frame.plus32(frame.times32(self._warp, ROWS), self._row)
        row = frame.plus32(row, frame.times32(half, _HALF))
        rows = _existing(frame, problem.rows, frame.plus32(tile.row, row))
        column = frame.plus32(column, frame.times32(block, _BLOCK))
        columns = _existing(frame, problem.columns, column)
        point = StagedPoint(
            frame,
            {**tile.batch, **rows, **columns},
            problem.columns.last,
            PAIR,
            sum=pair,
            loads=self._addresses(self.epilogue.loads, buffer, block, half),
            stores=self._addresses(self.epilogue.stores, buffer, block, half),
        )
        store_all(problem, point)

    def _addresses(
        self, boxes: Sequence[Box], buffer: Value, block: Value, half: Value
    ) -> dict[Matrix, Value]:
        """The address of this lane's pair of columns of a block in each box."""
        frame, b = self.frame, self.frame.b
        result: dict[Matrix, Value] = {}
        for box in boxes:
            line = box.line_bytes
            byte = frame.times32(block, _BLOCK * box.itemsize)
            panel, byte = frame.over32(byte, line), frame.modulo32(byte, line)
            byte = frame.plus32(byte, frame.times32(self._pair, PAIR * box.itemsize))
            place = frame.times32(self._row, line)  # rows that are 8 apart have the same swizzle
            bits = b.binary("lshr", place, frame.i32(7))
            bits = b.binary("and", bits, frame.i32(line // PIECE - 1))
            place = frame.plus32(place, b.binary("xor", byte, frame.times32(bits, PIECE)))
            further = frame.times32(panel, box.panel_bytes)
            further = frame.plus32(further, frame.times32(half, _HALF * line))
            address = frame.at_byte(frame.at_byte(buffer, place), further)
            result[box.matrix] = frame.at_byte(address, box.offset)
        return result


def _existing(frame: GridFrame, space: Space, index: Value) -> At:
    """The variables at an index, or at 0 if it is beyond the end: the engine writes no result
    there, but loads must be in bounds."""
    inside = frame.b.compare("slt", index, space.size(frame))
    at, _ = space.at(frame, frame.b.select(inside, index, frame.i32(0)))
    return at
