"""Loads operand tiles to shared memory by the threads of a block.

Plain and aligned elements are copied without registers (cp.async); others are read or computed to
registers one block of terms ahead, and stored once the previous block has been multiplied.
"""

from __future__ import annotations

from collections.abc import Sequence

from thalweg.codegen.cuda.contraction.frame import GridFrame
from thalweg.codegen.cuda.contraction.layout import SharedTile
from thalweg.codegen.cuda.contraction.problem import Operand
from thalweg.codegen.cuda.contraction.reader import TileReader
from thalweg.codegen.cuda.contraction.space import At
from thalweg.codegen.cuda.contraction.tf32 import rounded
from thalweg.codegen.cuda.contraction.warp_instructions import WarpInstructions
from thalweg.codegen.llvm.builder import Value
from thalweg.codegen.math.conversion import storage_type

_COPIED = (4, 8, 16)  # bytes that cp.async copies


def shared_tile(operand: Operand, mn: int, k: int, sizes: tuple[int, ...] = (2,)) -> SharedTile:
    """The tile of an operand in shared memory: in the order of memory if elements have one of
    `sizes`, else along the terms, as wgmma and ldmatrix require."""
    size = operand.dtype.itemsize
    is_whole = mn % (operand.line_bytes // size) == 0
    axis = operand.axis if size in sizes and is_whole else "k"
    return SharedTile(mn, k, axis, size, operand.line_bytes)


def is_copied(operand: Operand, tile: SharedTile) -> bool:
    """Whether cp.async copies an operand."""
    size = operand.vector * operand.dtype.itemsize
    return operand.is_plain and operand.axis == tile.axis and size in _COPIED


class Staging:
    """Loads the tiles of one operand to shared memory."""

    def __init__(
        self,
        frame: GridFrame,
        instructions: WarpInstructions,
        operand: Operand,
        tile: SharedTile,
        batch: At,
        first: Value,
        threads: tuple[int, int] | None = None,
        is_rounded: bool = False,
    ) -> None:
        """`is_rounded`: elements are rounded for tensor cores, which read the tile (see `tf32`)."""
        self.frame, self.tile = frame, tile
        self._is_rounded = is_rounded
        self._instructions = instructions
        self._reader = TileReader(frame, operand, (tile.mn, tile.k), batch, first, threads=threads)
        self.is_copied = is_copied(operand, tile)

    def copy(self, start: Value, base: Value) -> None:
        """Begin to copy the block of terms from `start` on to a tile at `base`."""
        size = self._reader.vector * self.tile.itemsize
        places = self._reader.addresses(start)
        for chunk, (source, inside) in zip(self._reader.chunks, places, strict=True):
            with self.frame.b.when(chunk.exists):
                offset = self.tile.offset(self.frame, chunk.mn, chunk.k)
                destination = self.frame.at_byte(base, offset)
                self._instructions.copy(destination, source, size, inside)

    def complete(self, base: Value) -> None:
        """Round the elements that this thread has copied to a tile at `base`."""
        frame = self.frame
        if not (self._is_rounded and self.is_copied):
            return
        kind = storage_type("float32", self._reader.vector)
        for chunk in self._reader.chunks:
            with frame.b.when(chunk.exists):
                address = frame.at_byte(base, self.tile.offset(frame, chunk.mn, chunk.k))
                found = frame.load_aligned(kind, address, kind.bits // 8)
                frame.store_aligned(rounded(frame.b, found), address, kind.bits // 8)

    def read(self, start: Value) -> list[Value]:
        """The chunks of the block of terms from `start` on."""
        found = self._reader.raw(start)
        return [rounded(self.frame.b, raw) for raw in found] if self._is_rounded else found

    def put(self, values: Sequence[Value], base: Value) -> None:
        """Store chunks to a tile at `base`."""
        for chunk, value in zip(self._reader.chunks, values, strict=True):
            with self.frame.b.when(chunk.exists):
                self._put(chunk.mn, chunk.k, value, base)

    def _put(self, mn: Value, k: Value, value: Value, base: Value) -> None:
        frame, lanes = self.frame, value.type.lanes
        axis = self._reader.operand.axis
        if lanes == 1 or axis == self.tile.axis:
            address = frame.at_byte(base, self.tile.offset(frame, mn, k))
            frame.store_aligned(value, address, lanes * self.tile.itemsize)
            return
        for lane in range(lanes):
            place = (frame.plus32(mn, lane), k) if axis == "mn" else (mn, frame.plus32(k, lane))
            address = frame.at_byte(base, self.tile.offset(frame, *place))
            frame.store_aligned(frame.b.extract(value, lane), address, self.tile.itemsize)
