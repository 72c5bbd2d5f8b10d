"""The layout of operand tiles in shared memory for tensor cores and the copy engine.

A tile consists of panels of lines of 128 bytes, or of 64 or 32 if the copy engine loads shorter
runs. Along the terms (`axis` "k"), a line has some terms of a row or column of the operand; across
them, a line has some rows or columns of one term. Panels are contiguous. The 16-byte pieces of a
line are permuted by its address (the 128-, 64- or 32-byte swizzle), so that eight lines are read
without bank conflicts.
"""

from __future__ import annotations

from dataclasses import dataclass

from thalweg.codegen.cuda.contraction.frame import GridFrame
from thalweg.codegen.cuda.contraction.problem import Axis
from thalweg.codegen.llvm.builder import Value

LINE = 128  # bytes
LINES = (128, 64, 32)  # supported sizes, the best first
PIECE = 16
ATOM = 8 * LINE  # the period of the swizzle, and the alignment of tiles


@dataclass(frozen=True)
class SharedTile:
    """A tile of an operand: `mn` rows or columns by `k` terms of `itemsize` bytes."""

    mn: int
    k: int
    axis: Axis
    itemsize: int
    line_bytes: int = LINE

    @property
    def bytes(self) -> int:
        """Its size in bytes."""
        return self.mn * self.k * self.itemsize

    @property
    def panel(self) -> int:
        """The elements of a line: terms, or rows or columns if it is across them."""
        return self.line_bytes // self.itemsize

    @property
    def panels(self) -> int:
        """The number of panels."""
        return (self.k if self.axis == "k" else self.mn) // self.panel

    def line(self, frame: GridFrame, mn: Value, k: Value) -> tuple[Value, Value]:
        """The 128-byte line of an element, and its byte in it before the swizzle (i32)."""
        if self.axis == "k":
            return mn, frame.times32(k, self.itemsize)
        panel, rest = frame.over32(mn, self.panel), frame.modulo32(mn, self.panel)
        return frame.plus32(frame.times32(panel, self.k), k), frame.times32(rest, self.itemsize)

    def offset(self, frame: GridFrame, mn: Value, k: Value) -> Value:
        """The byte offset of an element in the tile (i32)."""
        return swizzled(frame, *self.line(frame, mn, k), self.axis == "mn" and self.itemsize == 4)

    def boxed_offset(self, frame: GridFrame, mn: Value, k: Value) -> Value:
        """The byte offset at which the copy engine stores an element, for any line size (i32)."""
        b, size = frame.b, self.itemsize
        line, along = (mn, k) if self.axis == "k" else (k, mn)
        lines = self.mn if self.axis == "k" else self.k
        panel, rest = frame.over32(along, self.panel), frame.modulo32(along, self.panel)
        line = frame.plus32(frame.times32(panel, lines), line)
        place = frame.plus32(frame.times32(line, self.line_bytes), frame.times32(rest, size))
        bits = b.binary("and", frame.over32(place, LINE), frame.i32(self.line_bytes // PIECE - 1))
        return b.binary("xor", place, frame.times32(bits, PIECE))


def swizzled(frame: GridFrame, line: Value, byte: Value, by_words: bool = False) -> Value:
    """The swizzled offset of a byte of a line: its piece is permuted by the line's index.

    `by_words`: for lanes that read one word each, eight adjacent ones of each of four lines.
    """
    b, (mask, shift) = frame.b, (3, 5) if by_words else (7, 4)
    bits = b.binary("shl", b.binary("and", line, frame.i32(mask)), frame.i32(shift))
    return frame.plus32(frame.times32(line, LINE), b.binary("xor", byte, bits))
