"""Operand tiles in shared memory, as tensor cores and the copy engine expect them.

A tile is lines of 128 bytes. Along the terms (`axis` "k"), a line is a row or column of the
operand; across them, a line is one term of a panel of 128 bytes, panels one after the other. The
eight pieces of 16 bytes of a line are permuted by its number (the 128-byte swizzle), so that eight
lines are read without conflicts.
"""

from __future__ import annotations

from dataclasses import dataclass

from thalweg.codegen.cuda.contraction.frame import GridFrame
from thalweg.codegen.cuda.contraction.problem import Axis
from thalweg.codegen.llvm.builder import Value

LINE = 128  # bytes
PIECE = 16
ATOM = 8 * LINE  # after which the permutation repeats: where tiles begin


@dataclass(frozen=True)
class SharedTile:
    """A tile of an operand: `mn` rows or columns by `k` terms of `itemsize` bytes."""

    mn: int
    k: int
    axis: Axis
    itemsize: int

    @property
    def bytes(self) -> int:
        """Its size."""
        return self.mn * self.k * self.itemsize

    @property
    def panel(self) -> int:
        """The rows or columns of a panel."""
        return LINE // self.itemsize

    def line(self, frame: GridFrame, mn: Value, k: Value) -> tuple[Value, Value]:
        """The line of an element, and its byte in it before the permutation (i32)."""
        if self.axis == "k":
            return mn, frame.times32(k, self.itemsize)
        panel, rest = frame.over32(mn, self.panel), frame.modulo32(mn, self.panel)
        return frame.plus32(frame.times32(panel, self.k), k), frame.times32(rest, self.itemsize)

    def offset(self, frame: GridFrame, mn: Value, k: Value) -> Value:
        """Where an element lies, in bytes from the tile's start (i32)."""
        return swizzled(frame, *self.line(frame, mn, k))


def swizzled(frame: GridFrame, line: Value, byte: Value) -> Value:
    """The place of a byte of a line: its piece is permuted by the line's number."""
    b = frame.b
    bits = b.binary("shl", b.binary("and", line, frame.i32(7)), frame.i32(4))
    return frame.plus32(frame.times32(line, LINE), b.binary("xor", byte, bits))


def swizzle_number(offset: int) -> int:
    """The same of a number: bits 4 to 6 of an offset in a tile are combined with bits 7 to 9."""
    return offset ^ ((offset >> 7) & 7) << 4
