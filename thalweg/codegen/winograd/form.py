"""Matching of contractions that are convolutions with small square filters and stride 1.

A `Contraction` comes in; the roles of its variables go out if it is such a convolution, forward or
the gradient of the input, whose filters are flipped.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import ceil

import numpy as np

from thalweg.codegen.contraction.form import with_plain_stores
from thalweg.codegen.contraction.schedule import is_plain_load
from thalweg.codegen.winograd.algorithm import OUTPUT_SIZES
from thalweg.ir.dynamic import is_static
from thalweg.ir.kernel import Contraction
from thalweg.ir.loop import Variable


@dataclass(frozen=True)
class Axis:
    """A spatial axis: its output and tap variables.

    An input has the coordinate `output + sign · tap`; outside `bounds` it is zero.
    """

    output: Variable
    tap: Variable
    sign: int
    bounds: tuple[int, int] | None = None

    @property
    def taps(self) -> int:
        """How many taps there are."""
        return int(self.tap.extent)

    @property
    def first(self) -> int:
        """The coordinate of the first input of an output, relative to the output."""
        return 0 if self.sign > 0 else 1 - self.taps

    @property
    def elements(self) -> tuple[int, int]:
        """The half-open range of coordinates that are read."""
        low, high = self.first, self.first + int(self.output.extent) + self.taps - 1
        if self.bounds is None:
            return low, high
        return max(low, self.bounds[0]), min(high, self.bounds[1])

    def tap_at(self, number: int) -> int:
        """The tap that multiplies input `number` of an output."""
        return number if self.sign > 0 else self.taps - 1 - number


@dataclass(frozen=True, eq=False)
class Convolution:
    """A convolution: the roles of its variables."""

    kernel: Contraction
    images: tuple[Variable, ...]
    axes: tuple[Axis, Axis]
    channel: Variable
    lane: Variable

    @property
    def taps(self) -> int:
        """How many taps there are along each axis."""
        return self.axes[0].taps

    def tiles(self, outputs: int) -> list[int]:
        """The number of tiles: along each image variable, then along each axis."""
        across = [ceil(axis.output.extent / outputs) for axis in self.axes]
        return [*(int(v.extent) for v in self.images), *across]


def match_convolution(kernel: Contraction) -> Convolution | None:
    """Match a contraction that is such a convolution, in float32."""
    kernel = with_plain_stores(kernel)
    if kernel.batch or len(kernel.columns) != 1 or len(kernel.reduced) != 3 or not kernel.stores:
        return None
    if not _has_plain_factors(kernel):
        return None
    offset = kernel.a.load.offset
    channels = [v for v in kernel.reduced if offset.factor(v) == 1]
    taps = [v for v in kernel.reduced if v not in channels[:1]]
    axes = [_axis(kernel, tap) for tap in taps]
    if len(axes) != 2 or axes[0] is None or axes[1] is None:
        return None
    if axes[0].taps != axes[1].taps or axes[0].output is axes[1].output:
        return None
    if len(kernel.a.bounds) != sum(1 for axis in axes if axis and axis.bounds is not None):
        return None  # a bound is not that of an axis
    filters = kernel.b.load.offset
    if 1 not in (filters.factor(channels[0]), filters.factor(kernel.columns[0])):
        return None
    images = tuple(v for v in kernel.rows if all(v is not a.output for a in axes if a))
    return Convolution(kernel, images, (axes[0], axes[1]), channels[0], kernel.columns[0])


def _has_plain_factors(kernel: Contraction) -> bool:
    """Whether both factors are plain loads of read-only buffers, and all integers static."""
    sides = kernel.a, kernel.b
    if kernel.dtype != np.float32 or not all(is_plain_load(side, np.float32) for side in sides):
        return False
    if kernel.b.bounds or any(side.load.buffer.written for side in sides):
        return False
    variables = *kernel.rows, *kernel.columns, *kernel.reduced
    numbers = [v.extent for v in variables]
    numbers += [limit for low, _, high in kernel.a.bounds for limit in (low, high)]
    for offset in kernel.offsets:
        numbers += offset.integers
    return all(map(is_static, numbers)) and all(v.extent > 0 for v in variables)


def _axis(kernel: Contraction, tap: Variable) -> Axis | None:
    """The axis along which a tap moves, and the bound on it."""
    input_offset = kernel.a.load.offset
    step = input_offset.factor(tap)
    outputs = [v for v in kernel.rows if step and input_offset.factor(v) == abs(step)]
    if tap.extent not in OUTPUT_SIZES or len(outputs) != 1:
        return None
    sign = 1 if step > 0 else -1
    for low, offset, high in kernel.a.bounds:
        if offset.terms == {outputs[0]: 1, tap: sign}:
            bounds = low - offset.constant, high - offset.constant
            return Axis(outputs[0], tap, sign, bounds)
    return Axis(outputs[0], tap, sign)
