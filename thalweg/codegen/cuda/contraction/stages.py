"""The stages of a pipeline in shared memory, and their barriers."""

from __future__ import annotations

from dataclasses import dataclass

from thalweg.codegen.cuda.contraction.async_instructions import BARRIER_BYTES
from thalweg.codegen.cuda.contraction.frame import GridFrame
from thalweg.codegen.llvm.builder import Value


@dataclass(frozen=True)
class Stages:
    """Stages of `size` bytes from the start of shared memory on; from `barriers` on, the barriers
    for loaded, multiplied and rewritten operands (see `rewriting`) of each stage. Blocks of terms
    are numbered through all tiles (i32)."""

    count: int
    size: int
    barriers: int

    @property
    def empty(self) -> int:
        """The offset of the second barriers."""
        return self.barriers + BARRIER_BYTES * self.count

    @property
    def rewritten(self) -> int:
        """The offset of the third barriers."""
        return self.empty + BARRIER_BYTES * self.count

    def end(self, is_rewritten: bool) -> int:
        """The end of the barriers, with or without the third ones."""
        return self.rewritten + (BARRIER_BYTES * self.count if is_rewritten else 0)

    def place(self, frame: GridFrame, number: Value, offset: int) -> Value:
        """The address of a tile at a byte offset in its stage."""
        start = frame.times32(self._stage(frame, number), self.size)
        return frame.at_byte(frame.at_byte(frame.memory, offset), start)

    def barrier(self, frame: GridFrame, number: Value, first: int) -> Value:
        """The barrier of a block of terms, among those that begin at `first`."""
        start = frame.times32(self._stage(frame, number), BARRIER_BYTES)
        return frame.at_byte(frame.at_byte(frame.memory, first), start)

    def parity(self, frame: GridFrame, number: Value) -> Value:
        """The parity of the phase that ends when a block of terms is loaded."""
        return frame.b.binary("and", frame.over32(number, self.count), frame.i32(1))

    def _stage(self, frame: GridFrame, number: Value) -> Value:
        return frame.modulo32(number, self.count)
