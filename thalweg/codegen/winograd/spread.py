"""The stage of a Winograd convolution that finds tiles whose inputs differ too much in magnitude.

The rounding error of a transformed tile is that of its largest inputs, also in results whose own
inputs are much smaller. What comes in are sums of squares by cells of a tile; what goes out is a
flag for each tile: whether it must be computed by direct summation. Infinities and NaN set it too.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import reduce
from itertools import product
from math import sqrt

from thalweg.codegen.contraction.form import argument_of
from thalweg.codegen.llvm.builder import FLOAT, I8, Value, constant, suffix
from thalweg.codegen.winograd.form import Axis
from thalweg.codegen.winograd.transforms import At, Stage

#: Of what an output sees times the largest tap, the error that inputs it does not see may cause.
MAX_ERROR = 1e-4
#: Sums of squares that are smaller may lack numbers whose squares are too small for a float.
LEAST_ENERGY = 1e-30
_LINE = 8  # as many sums are kept for a line of a tile


def max_spread(channels: int) -> float:
    """How many times the sum of the magnitudes that an output sees the root of the sum of the
    squares of its tile may be.

    Measured, for the worst of filters and places of large inputs: transforms have errors of 1.5e-6
    of that root, and sums over channels, which are rounded as often, grow with their root.
    """
    return MAX_ERROR / (1.5e-6 + 6e-7 * sqrt(channels))


class Spread(Stage):
    """Sets the flags of tiles. Given are the first tile and how many."""

    def emit(self) -> None:
        """All tiles: a test of cells, and only where that is not enough, one of all elements."""
        frame, b = self.frame, self.b
        first, count = frame.given
        self.lines = b.stack(FLOAT.of(_LINE), self.algorithm.size)
        with self.steps(count) as tile:
            number = frame.add(first, tile)
            at, flag = self.place_of(number), self.flag(number)
            b.store(constant(I8, 0), flag)
            energies = self._energies(tile)
            whole = self._total(energies)
            with b.when(self._is_doubtful(energies, whole, at)):
                b.store(b.convert("zext", self._is_spread(whole, at), "i8"), flag)
        b.ret()

    def _energies(self, tile: Value) -> list[Value]:
        frame, count = self.frame, self.layout.cells**2
        base = self.element(self.energies, frame.multiply(tile, count * self.lanes))
        numbers = [frame.integer(number * self.lanes) for number in range(count)]
        return [self.b.load(self.kind, self.element(base, number)) for number in numbers]

    def _is_doubtful(self, energies: Sequence[Value], whole: Value, at: At) -> Value:
        """Whether a cell that some output sees as a whole is small beside the tile."""
        b, least = self.b, self._scaled(self._least_needed(energies, at))
        is_small = b.compare("olt", whole, constant(FLOAT, LEAST_ENERGY))
        return b.binary("or", is_small, self._exceeds(whole, b.binary("fmul", least, least)))

    def _least_needed(self, energies: Sequence[Value], at: At) -> Value:
        """What the least of the cells is at least, as a sum of magnitudes, among those whose
        outputs the image has: outputs 2n and 2n + 1 of a line see all of cell n + 1."""
        b, none, numbers = self.b, constant(FLOAT, float("inf")), range(1, self.layout.cells)
        least = none
        for down, across in product(numbers, repeat=2):
            energy = energies[across * self.layout.cells + down]
            total = self._total([b.intrinsic("sqrt", energy)])
            there = b.binary(
                "and", self._has(0, at, 2 * down - 2), self._has(1, at, 2 * across - 2)
            )
            least = b.intrinsic("minnum", least, b.select(there, total, none))
        return least

    def _scaled(self, least: Value) -> Value:
        most = max_spread(int(self.window.channel.extent))
        return self.b.binary("fmul", least, constant(FLOAT, most))

    def _has(self, axis: int, at: At, number: int) -> Value:
        """Whether the image has an output of a tile."""
        output = self.window.axes[axis].output
        last = self.frame.integer(int(output.extent) - number)
        return self.b.compare("slt", at[output], last)

    def _exceeds(self, whole: Value, limit: Value) -> Value:
        """Whether a sum is not within a limit, or not finite."""
        b = self.b
        infinite = b.compare("ueq", whole, constant(FLOAT, float("inf")))
        return b.binary("or", b.compare("ugt", whole, limit), infinite)

    def _sum(self, values: Sequence[Value]) -> Value:
        return reduce(lambda one, other: self.b.binary("fadd", one, other), values)

    def _total(self, values: Sequence[Value]) -> Value:
        """The sum of the lanes of all values."""
        total = self._sum(values)
        name = f"llvm.vector.reduce.fadd.{suffix(total.type)}"
        return self.b.call(name, FLOAT, constant(FLOAT, -0.0), total, flags="reassoc")

    def _is_spread(self, whole: Value, at: At) -> Value:
        """Whether all that some output sees is small beside the tile, element by element."""
        b, frame, size = self.b, self.frame, self.algorithm.size
        for line in range(size):
            b.store(constant(FLOAT.of(_LINE), 0), self._place(frame.integer(line * _LINE)))
        with self.steps(size) as line, self.steps(size) as column:
            self._add_up(at, line, column)
        places = [self._place(frame.integer(line * _LINE)) for line in range(size)]
        lines = [b.load(FLOAT.of(_LINE), place) for place in places]
        return self._exceeds(
            self._root(whole, self._total(lines)), self._scaled(self._least_seen(lines, at))
        )

    def _root(self, whole: Value, instead: Value) -> Value:
        """The root of a sum of squares; where that may be wrong, a number that is not less."""
        b = self.b
        is_small = b.compare("ult", whole, constant(FLOAT, LEAST_ENERGY))
        is_large = b.compare("ueq", whole, constant(FLOAT, float("inf")))
        is_wrong = b.binary("or", is_small, is_large)
        return b.select(is_wrong, instead, b.intrinsic("sqrt", whole))

    def _place(self, number: Value) -> Value:
        return self.element(self.lines, number)

    def _add_up(self, at: At, line: Value, column: Value) -> None:
        """Keep the sum of the magnitudes of all channels of an element."""
        b, frame, (down, across) = self.b, self.frame, self.window.axes
        there, distance = self.along(down, at, line)
        here, further = self.along(across, at, column)
        base = frame.pointers[argument_of(self.window.kernel.a)[0]]
        start = frame.add(frame.add(self.start_of(at), distance), further)
        first, step = frame.integer(0), frame.integer(self.lanes)
        last = frame.integer(int(self.window.channel.extent))
        with b.when(b.binary("and", there, here)):
            with b.loop(first, last, step, [constant(self.kind, 0)]) as loop:
                address = self.far(base, frame.add(start, loop.index))
                size = b.intrinsic("fabs", self.channels_at(address, loop.index))
                loop.next = [b.binary("fadd", loop.carried[0], size)]
            place = self._place(frame.add(frame.multiply(line, _LINE), column))
            b.store(self._total(loop.results), place)

    def _least_seen(self, lines: Sequence[Value], at: At) -> Value:
        """The least sum of what an output of the tile sees, among those that the image has."""
        b, outputs, taps = self.b, self.blocks.outputs, self.window.taps
        axis: Axis = self.window.axes[1]
        kind = FLOAT.of(outputs)
        none = least = constant(kind, float("inf"))
        extent = self.frame.integer(axis.output.extent)
        exist = self.frame.below(at[axis.output], extent, outputs)
        for i in range(outputs):
            line = self._sum(lines[i : i + taps])
            seen = self._sum([b.shuffle(line, None, range(j, j + outputs)) for j in range(taps)])
            own = b.binary("and", exist, b.splat(self._has(0, at, i), outputs))
            least = b.intrinsic("minnum", least, b.select(own, seen, none))
        return b.call(f"llvm.vector.reduce.fmin.{suffix(kind)}", FLOAT, least)
