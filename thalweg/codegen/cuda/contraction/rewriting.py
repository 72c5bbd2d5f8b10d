"""Transposes tiles in place in shared memory, between the copy engine and tensor cores.

A panel of 32 elements of 4 bytes across the terms by 32 terms has the same size along them: warps
read it to registers and write it back. If rows are read to registers, the terms are permuted (see
`transposition`).
"""

from __future__ import annotations

from dataclasses import dataclass

from thalweg.codegen.cuda.contraction.async_instructions import AsyncInstructions
from thalweg.codegen.cuda.contraction.frame import GridFrame
from thalweg.codegen.cuda.contraction.layout import LINE, PIECE, SharedTile
from thalweg.codegen.cuda.contraction.stages import Stages
from thalweg.codegen.cuda.contraction.transposition import ORDER
from thalweg.codegen.cuda.contraction.work import Tile, Work
from thalweg.codegen.llvm.builder import Value
from thalweg.codegen.math.conversion import storage_type

_SIDE = LINE // 4  # of a panel, in elements


@dataclass(frozen=True)
class Rewriter:
    """Emits the `warps` warps that transpose tiles; `warp` is the index of this one."""

    frame: GridFrame
    engine: AsyncInstructions
    stages: Stages
    tile: SharedTile  # as loaded by the copy engine
    offset: int  # in a stage
    warp: Value
    warps: int
    is_ordered: bool

    def emit(self, work: Work) -> None:
        """Transpose the tiles of all blocks of terms."""
        with work.tiles_of_block(self.frame) as tile:
            self._tile(tile)

    def _tile(self, tile: Tile) -> None:
        frame, b, stages = self.frame, self.frame.b, self.stages
        lane = frame.modulo32(frame.number, 32)
        with b.loop(frame.wide(tile.first), frame.wide(tile.end)) as loop:
            block = b.convert("trunc", loop.index, "i32")
            number = frame.plus32(tile.done, b.binary("sub", block, tile.first))
            full = stages.barrier(frame, number, stages.barriers)
            self.engine.wait(full, stages.parity(frame, number))
            self._panels(stages.place(frame, number, self.offset), lane)
            self.engine.publish_writes()
            frame.grid.warp_barrier()
            with b.when(b.compare("eq", lane, frame.i32(0))):
                self.engine.arrive(stages.barrier(frame, number, stages.rewritten))

    def _panels(self, base: Value, lane: Value) -> None:
        """Transpose this warp's panels of the tile at an address."""
        frame, count = self.frame, self.tile.panels
        for first in range(0, count, self.warps):
            panel = frame.plus32(self.warp, first)
            place = frame.at_byte(base, frame.times32(panel, _SIDE * LINE))
            if first + self.warps <= count:
                self._panel(place, lane)
                continue
            with frame.b.when(frame.b.compare("slt", panel, frame.i32(count))):
                self._panel(place, lane)

    def _panel(self, place: Value, lane: Value) -> None:
        """Lane n reads element n of every term, and writes a line of all terms."""
        frame, b = self.frame, self.frame.b
        kind, size = storage_type("float32"), self.tile.itemsize
        found: list[Value] = []
        for term in range(_SIDE):
            byte = b.binary("xor", frame.times32(lane, size), frame.i32(term % 8 * PIECE))
            address = frame.at_byte(frame.at_byte(place, byte), term * LINE)
            found.append(frame.load_aligned(kind, address, size))
        frame.grid.warp_barrier()
        line = frame.at_byte(place, frame.times32(lane, LINE))
        swizzle = frame.times32(frame.modulo32(lane, 8), PIECE)
        for piece in range(LINE // PIECE):
            four = [found[self._term(PIECE // size * piece + n)] for n in range(PIECE // size)]
            byte = b.binary("xor", swizzle, frame.i32(piece * PIECE))
            frame.store_aligned(frame.b.vector(four), frame.at_byte(line, byte), PIECE)

    def _term(self, place: int) -> int:
        if not self.is_ordered:
            return place
        eights, rest = divmod(place, len(ORDER))
        return len(ORDER) * eights + ORDER[rest]
