"""The frame of an entry: its argument words, the grid, and the points of a contraction on a GPU.

It is the CPU's frame with kernel parameters instead of a table of words. Buffers begin at multiples
of 256 bytes, so vectors are accessed whole if offsets allow it.
"""

from __future__ import annotations

from contextlib import AbstractContextManager
from dataclasses import dataclass, replace

from thalweg.codegen.cuda.contraction.problem import ACCESS_BYTES, alignment_of
from thalweg.codegen.cuda.grid import Grid, GridModule
from thalweg.codegen.frame import Frame
from thalweg.codegen.llvm.builder import I1, I32, I64, POINTER, Type, Value, alignment, constant
from thalweg.codegen.math.conversion import storage_type
from thalweg.codegen.point import Address, Point
from thalweg.ir.expr import Variable
from thalweg.ir.index import Affine
from thalweg.ir.kernel import Argument, Kernel


class GridFrame(Frame):
    """The frame of an entry: the values of its parameters, and the indices of its threads."""

    def __init__(
        self, module: GridModule, name: str, kernel: Kernel, threads: int, maps: int = 0
    ) -> None:
        """`maps`: the number of tensor maps, which follow the run-time sizes."""
        count, buffers = len(kernel.arguments), range(1, 2 + len(kernel.arguments))
        sizes = max([count + 1, *kernel.words]) - count - 1
        words = [POINTER] * (2 + count) + [I64] * sizes
        b = module.entry(name, words, threads, maps)
        given = b.parameters[1:]
        pointers = {a: given[n] for a, n in zip(kernel.arguments, buffers, strict=False)}
        super().__init__(b, pointers, {n: given[n] for n in kernel.words})
        self.target, self.max_threads = module.target, threads
        self.fault, self.scratch = given[0], given[1 + count]
        self.maps = given[2 + count + sizes :]
        self.grid = Grid.of(self.b)
        self.number = self.grid.thread()  # of the thread in its block (i32)
        self.memory = self.grid.shared()  # the address of the block's shared memory

    def unless_faulty(self, guarded: bool) -> AbstractContextManager[None]:
        """Emit code that, if `guarded`, does not run after a fault."""
        if not guarded:
            return self.b.when(None)
        return self.b.when(self.b.compare("eq", self.b.load(I64, self.fault), 0))

    # 32-bit integers, which suffice for indices of a matrix

    def i32(self, number: int) -> Value:
        """A constant."""
        return constant(I32, number)

    def plus32(self, a: Value, b: Value | int) -> Value:
        """The sum of two integers."""
        return self._binary("add", a, b, 0)

    def times32(self, a: Value, b: Value | int) -> Value:
        """The product of two integers."""
        return self._binary("mul", a, b, 1)

    def over32(self, a: Value, b: Value | int) -> Value:
        """The quotient of two integers that are not negative."""
        return self._binary("udiv", a, b, 1)

    def modulo32(self, a: Value, b: Value | int) -> Value:
        """The remainder of two integers that are not negative."""
        return self._binary("urem", a, b, None)

    def _binary(self, operation: str, a: Value, b: Value | int, neutral: int | None) -> Value:
        if isinstance(b, int):
            if b == neutral:
                return a
            b = constant(I32, b)
        return self.b.binary(operation, a, b)

    def chunks32(self, extent: Value, size: int) -> Value:
        """The number of chunks of a size that cover an extent."""
        return self.over32(self.plus32(extent, size - 1), size)

    def wide(self, value: Value) -> Value:
        """A non-negative integer, extended to 64 bits."""
        return self.b.convert("zext", value, "i64")

    def both(self, *conditions: Value) -> Value:
        """Whether all conditions hold."""
        result = constant(I1, True)
        for condition in conditions:
            if condition.text != "true":
                result = (
                    condition if result.text == "true" else self.b.binary("and", result, condition)
                )
        return result

    # Memory

    def at_byte(self, base: Value, offset: Value | int) -> Value:
        """The address at a byte offset (i32, or a constant) from another one."""
        return base if offset == 0 else self.b.element(base, "i8", offset)

    def load_aligned(self, kind: Type, address: Value, align: int) -> Value:
        """Load from an address with the given alignment."""
        return self.b.emit(kind, f"load {kind}, {address}, align {align}")

    def store_aligned(self, value: Value, address: Value, align: int) -> None:
        """Store to an address with the given alignment."""
        self.b.line(f"store {value}, {address}, align {align}")


@dataclass(eq=False)
class GridPoint(Point):
    """A point on a GPU: vectors are accessed whole if they are aligned."""

    def locate(self, argument: Argument, offset: Affine, mask: Value | None) -> Address:
        found = super().locate(argument, offset, mask)
        return found if mask is None else replace(found, aligned=1)

    def _alignment(self, argument: Argument, offset: Affine) -> int:
        kind = storage_type(argument.dtype, self.lanes)
        return access_alignment(offset, self.vector, kind) // alignment(kind)


def access_alignment(offset: Affine, lane: Variable | None, kind: Type) -> int:
    """The known alignment in bytes of the addresses of vectors along a lane."""
    size = max(kind.bits // 8, 1)
    whole = size * kind.lanes
    known = alignment_of(offset, lane) * size or whole
    align = size
    while align < min(whole, ACCESS_BYTES) and known % (2 * align) == 0:
        align *= 2
    return align
