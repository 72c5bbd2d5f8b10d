"""The stages of a pipeline in shared memory: where they are, and the barriers that tell of them."""

from __future__ import annotations

from dataclasses import dataclass

from thalweg.codegen.cuda.contraction.async_instructions import BARRIER_BYTES
from thalweg.codegen.cuda.contraction.frame import GridFrame
from thalweg.codegen.llvm.builder import Value


@dataclass(frozen=True)
class Stages:
    """Stages of `size` bytes from the start of shared memory on, and from `barriers` on those that
    say of each that its operands are there, that they were multiplied, and that they were written
    again (see `rewriting`). Blocks of terms are counted through all tiles (i32)."""

    count: int
    size: int
    barriers: int

    @property
    def empty(self) -> int:
        """Where the second barriers are."""
        return self.barriers + BARRIER_BYTES * self.count

    @property
    def rewritten(self) -> int:
        """Where the third ones are."""
        return self.empty + BARRIER_BYTES * self.count

    def end(self, is_rewritten: bool) -> int:
        """What follows the barriers, with or without the third ones."""
        return self.rewritten + (BARRIER_BYTES * self.count if is_rewritten else 0)

    def place(self, frame: GridFrame, number: Value, offset: int) -> Value:
        """The address of a tile that is some bytes behind the start of its stage."""
        start = frame.times32(self._stage(frame, number), self.size)
        return frame.at_byte(frame.at_byte(frame.memory, offset), start)

    def barrier(self, frame: GridFrame, number: Value, first: int) -> Value:
        """The barrier of a block of terms, of those that begin at a place."""
        start = frame.times32(self._stage(frame, number), BARRIER_BYTES)
        return frame.at_byte(frame.at_byte(frame.memory, first), start)

    def parity(self, frame: GridFrame, number: Value) -> Value:
        """The parity of the phase that ends when a block of terms is there."""
        return frame.b.binary("and", frame.over32(number, self.count), frame.i32(1))

    def _stage(self, frame: GridFrame, number: Value) -> Value:
        return frame.modulo32(number, self.count)
