"""Tiles of rows in shared memory, and their fragments in registers for tensor cores.

A tile has some whole rows of an operand, in panels of 128 bytes of each row with swizzled lines.
The same tile can be a right operand (by rows) and a weighted operand (transposed).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from thalweg.codegen.cuda.contraction.frame import GridFrame
from thalweg.codegen.cuda.contraction.layout import LINE, SharedTile, swizzled
from thalweg.codegen.cuda.contraction.problem import ACCESS_BYTES, Operand, vector_of
from thalweg.codegen.cuda.contraction.space import At, Space
from thalweg.codegen.cuda.contraction.staging import Staging
from thalweg.codegen.cuda.contraction.warp_instructions import WarpInstructions
from thalweg.codegen.llvm.builder import Value
from thalweg.ir.expr import Load, Variable
from thalweg.ir.kernel import Access

_ITEM = 2  # bytes of an element
PANEL = LINE // _ITEM  # elements of a row in a panel

#: Values that threads have read and will store to a tile: (staging, values, address of the tile).
Pending = tuple[Staging, list[Value], Value]


@dataclass(frozen=True)
class RowTile:
    """Some rows of an operand in shared memory."""

    rows: int
    depth: int

    @property
    def bytes(self) -> int:
        """Its size."""
        return -(-self.depth // PANEL) * self.rows * LINE


class RowLoader:
    """Loads rows of one operand to shared memory, from row `first` (i32) on."""

    def __init__(
        self,
        frame: GridFrame,
        warp: WarpInstructions,
        load: Load,
        variables: tuple[Variable, Variable],
        tile: RowTile,
        batch: At,
        is_aligned: bool,
    ) -> None:
        """`variables`: those of rows and of their elements."""
        row, depth = variables
        width = ACCESS_BYTES // _ITEM if is_aligned else 1
        vector = vector_of([load], (), depth, width)
        self._operand = Operand(Access(load), Space((row,)), Space((depth,)), "k", vector)
        self._frame, self._warp, self._tile, self._batch = frame, warp, tile, batch

    def begin(self, first: Value, base: Value) -> list[Pending]:
        """Begin to copy; returns the values that are in registers meanwhile."""
        frame, pending = self._frame, list[Pending]()
        for panel in range(-(-self._tile.depth // PANEL)):
            shared = SharedTile(self._tile.rows, PANEL, "k", _ITEM)
            staging = Staging(frame, self._warp, self._operand, shared, self._batch, first)
            start, place = frame.i32(panel * PANEL), self._panel(base, panel)
            if staging.is_copied:
                staging.copy(start, place)
            else:
                pending.append((staging, staging.read(start), place))
        return pending

    def _panel(self, base: Value, panel: int) -> Value:
        return self._frame.at_byte(base, panel * self._tile.rows * LINE)


def put(pending: Sequence[Pending]) -> None:
    """Store the values in registers to their tiles."""
    for staging, values, base in pending:
        staging.put(values, base)


class Fragments:
    """Loads a lane's fragments of tiles: matrices of 8 lines of 16 bytes, four at a time."""

    def __init__(self, frame: GridFrame, warp: WarpInstructions, lane: Value) -> None:
        self._frame, self._warp = frame, warp
        matrix, self._line = frame.over32(lane, 8), frame.modulo32(lane, 8)
        self._low, self._high = frame.modulo32(matrix, 2), frame.over32(matrix, 2)

    def left(self, tile: RowTile, base: Value, row: Value, step: int) -> list[Value]:
        """16 rows by 16 terms, as a left operand."""
        return self._matrices(tile, base, self._lines(row, self._low), 2 * step, self._high)

    def right(self, tile: RowTile, base: Value, row: Value, step: int) -> list[list[Value]]:
        """16 rows by 16 terms, as a right operand: registers of 8 rows each."""
        found = self._matrices(tile, base, self._lines(row, self._high), 2 * step, self._low)
        return [found[:2], found[2:]]

    def weighted(self, tile: RowTile, base: Value, row: Value, columns: int) -> list[list[Value]]:
        """16 rows, which are terms, by the 16 columns number `columns`: registers of 8 columns."""
        lines = self._lines(row, self._low)
        found = self._matrices(tile, base, lines, 2 * columns, self._high, is_transposed=True)
        return [found[:2], found[2:]]

    def _lines(self, row: Value, second: Value) -> Value:
        frame = self._frame
        return frame.plus32(frame.plus32(row, self._line), frame.times32(second, 8))

    def _matrices(
        self,
        tile: RowTile,
        base: Value,
        line: Value,
        piece: int,
        second: Value,
        is_transposed: bool = False,
    ) -> list[Value]:
        """Load four matrices: of these lines, from a 16-byte piece on, or the `second` one."""
        frame, per_line = self._frame, LINE // 16
        panel, rest = divmod(piece, per_line)
        byte = frame.times32(frame.plus32(second, rest), 16)
        offset = frame.plus32(swizzled(frame, line, byte), panel * tile.rows * LINE)
        return self._warp.load_matrices(frame.at_byte(base, offset), is_transposed)
