"""Operands that the copy engine (TMA) reads: tensor maps, and the coordinates of boxes.

Given an operand and the size of its tile, it returns a `BoxCopy` if the engine can load the tile to
shared memory as boxes of a tensor, or of the windows of a convolution.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import gcd

from thalweg.codegen.cuda.contraction.frame import GridFrame
from thalweg.codegen.cuda.contraction.layout import SharedTile
from thalweg.codegen.cuda.contraction.problem import FLOAT32, Operand
from thalweg.codegen.cuda.contraction.space import At, Space, round_up
from thalweg.codegen.cuda.tensor_map import (
    MAX_RANK,
    ROUNDED_FLOAT32,
    TensorMap,
    TensorMapSpec,
    Windows,
    varying_extents,
)
from thalweg.codegen.llvm.builder import I32, Value, constant
from thalweg.ir.dynamic import is_static
from thalweg.ir.expr import Variable
from thalweg.ir.index import Affine
from thalweg.platform.caches import memoized

ALIGNMENT = 16  # bytes, of addresses and strides
_MAX_BOX, _MAX_CORNER, _MAX_STEP, _MAX_TAP = 256, 127, 8, 255


@dataclass(frozen=True)
class Coordinate:
    """A coordinate of a tensor: a variable, counted from its end if its stride is negative."""

    variable: Variable | None
    factor: int = 1
    constant: int = 0

    def at(self, frame: GridFrame, at: At) -> Value:
        """Its value (i32)."""
        if self.variable is None or self.variable not in at:
            return constant(I32, self.constant)
        value = frame.b.convert("trunc", at[self.variable], "i32")
        return frame.plus32(frame.times32(value, self.factor), self.constant)


@dataclass(frozen=True)
class BoxCopy:
    """The copies of an operand's tiles: a map, and the coordinates of a box.

    `taps`: the coordinates in a window (width, height), for images. A tile has a box per panel.
    """

    spec: TensorMapSpec
    coordinates: tuple[Coordinate, ...]
    taps: tuple[Coordinate, ...] = ()

    @property
    def is_image(self) -> bool:
        """Whether it reads windows of images."""
        return bool(self.taps)


@memoized(64)
def box_copy(operand: Operand, tile: SharedTile) -> BoxCopy | None:
    """The copies of an operand's tiles by the engine, if it supports them."""
    if not operand.is_plain or operand.axis != tile.axis:
        return None
    if not all(map(is_static, operand.access.load.offset.integers)):
        return None
    return _Match(operand, tile).found()


def _within(space: Space, tile: int) -> bool:
    """Whether each tile is within one value of all variables of a space but the last."""
    last = space.last
    if len(space.variables) < 2:
        return True
    if last is None or not is_static(last.extent):
        return False
    return round_up(last.extent, space.multiple) % tile == 0


class _Match:
    """The matching of an operand to the copy engine's accesses."""

    def __init__(self, operand: Operand, tile: SharedTile) -> None:
        self.operand, self.tile, self.offset = operand, tile, operand.access.load.offset
        self.size = tile.itemsize
        self.lane = operand.along.last if operand.axis == "k" else operand.across.last

    def found(self) -> BoxCopy | None:
        if self.lane is None or self.offset.factor(self.lane) != 1:
            return None
        return self._boxes() if not self.operand.bounds and self._is_boxed() else self._images()

    # Tensors

    def _is_boxed(self) -> bool:
        tile, operand = self.tile, self.operand
        if tile.axis == "k":
            return _within(operand.across, tile.mn) and _within(operand.along, tile.panel)
        return _within(operand.across, tile.panel) and _within(operand.along, tile.k)

    def _boxes(self) -> BoxCopy | None:
        tile, operand = self.tile, self.operand
        other = operand.across.last if tile.axis == "k" else operand.along.last
        lines = tile.mn if tile.axis == "k" else tile.k
        if self.lane is None or other is None or lines > _MAX_BOX:
            return None
        if self.offset.factor(other) <= 0:
            return None
        used = [v for v in self.offset.strides if v not in (self.lane, other)]
        start = self.offset.constant
        coordinates = [Coordinate(self.lane), Coordinate(other)]
        for variable in used:
            factor = self.offset.factor(variable)
            if factor > 0:
                coordinates.append(Coordinate(variable))
                continue
            if not is_static(variable.extent):
                return None
            coordinates.append(Coordinate(variable, -1, variable.extent - 1))
            start += factor * (variable.extent - 1)
        axes = [self.lane, other, *used]
        strides = [abs(self.offset.factor(v)) * self.size for v in axes[1:]]
        if len(axes) > MAX_RANK or not self._is_aligned(start, strides):
            return None
        box = (tile.panel, lines, *[1] * len(used))
        extents = tuple(v.extent for v in axes)
        return BoxCopy(self._spec(start, extents, strides, box), tuple(coordinates))

    def _spec(
        self,
        start: int,
        extents: tuple[int, ...],
        strides: list[int],
        box: tuple[int, ...],
        steps: tuple[int, ...] | None = None,
        windows: Windows | None = None,
    ) -> TensorMapSpec:
        known = tuple(map(int, extents))
        tensor_map = TensorMap(
            start * self.size,
            ROUNDED_FLOAT32 if self.operand.dtype == FLOAT32 else self.operand.dtype.name,
            self.size,
            known,
            tuple(strides),
            box,
            steps or (1,) * len(extents),
            windows,
        )
        word = 1 + self.operand.access.load.buffer.position  # it follows the fault word
        return TensorMapSpec(word, tensor_map, varying_extents(extents))

    def _is_aligned(self, start: int, strides: list[int]) -> bool:
        sizes = [start * self.size, *strides]
        return start >= 0 and all(size % ALIGNMENT == 0 for size in sizes)

    # Windows of images

    def _images(self) -> BoxCopy | None:
        """Match images of one or two axes: positions in one space, taps and channels in another."""
        tile, operand = self.tile, self.operand
        positions, taps = operand.across, operand.along
        pixels = tile.mn
        if operand.axis == "mn":
            positions, taps, pixels = taps, positions, tile.k
        channels = tile.panel
        last = taps.last
        if last is None or not taps.is_static or not _within(taps, channels):
            return None
        found = self._axes(positions, taps) if positions.multiple == 1 else None
        if found is None:
            return None
        width, height = found.width, found.height
        start = self.offset.constant - width.start * width.pitch - height.start * height.pitch
        strides = [size * self.size for size in (width.pitch, height.pitch, found.apart)]
        if not all(axis.fits for axis in (width, height)) or not self._is_aligned(start, strides):
            return None
        windows = Windows(
            (width.lower, height.lower), (width.upper, height.upper), channels, pixels
        )
        extents = (last.extent, width.extent, height.extent, found.count)
        steps = (1, width.step, height.step, 1)
        spec = self._spec(start, extents, strides, (channels, pixels, 1, 1), steps, windows)
        places = tuple(axis.position for axis in (width, height))
        return BoxCopy(
            spec,
            (Coordinate(last), *places, Coordinate(found.variable)),
            tuple(axis.tap for axis in (width, height)),
        )

    def _axes(self, positions: Space, taps: Space) -> _Images | None:
        """Match the batch, width and height of images with positions and taps."""
        variables = list(positions.variables)
        factors = [self.offset.factor(v) for v in variables]
        if set(self.offset.strides) - {*variables, *taps.variables} or not variables:
            return None
        if factors != sorted(factors, reverse=True) or factors[-1] <= 0:
            return None
        windows = {self._position_of(tap, variables): tap for tap in taps.variables[:-1]}
        bounds = {self._bounded(bound[1], variables): bound for bound in self.operand.bounds}
        if None in windows or None in bounds or len(windows) < len(taps.variables) - 1:
            return None
        image = variables[0]
        if len(variables) > 1 and image not in windows and image not in bounds:
            variables = variables[1:]
        else:
            image = None
        found = [
            _image_axis(self.offset, v, windows.get(v), bounds.get(v)) for v in variables[::-1]
        ]
        axes = [axis for axis in found if axis is not None]
        if len(axes) < len(variables) or len(axes) > 2:
            return None
        return self._images_of(image, axes)

    def _images_of(self, image: Variable | None, axes: list[_ImageAxis]) -> _Images:
        if len(axes) < 2:
            pitch = round_up(axes[0].pitch * axes[0].extent, ALIGNMENT)
            axes = [*axes, _ImageAxis(pitch, 1, 1, 0, 0, 0, None, None, 1)]
        if image is None:
            apart = round_up(axes[1].pitch * axes[1].extent, ALIGNMENT)
            return _Images(1, apart, None, *axes)
        return _Images(image.extent, self.offset.factor(image), image, *axes)

    def _bounded(self, place: Affine, positions: list[Variable]) -> Variable | None:
        """The position in a bound, if there is exactly one."""
        found = [v for v in positions if v in place.strides]
        return found[0] if len(found) == 1 else None

    def _position_of(self, tap: Variable, positions: list[Variable]) -> Variable | None:
        """The position on the axis of a tap, by a bound or by its stride."""
        for _, place, _ in self.operand.bounds:
            if tap in place.strides:
                return self._bounded(place, positions)
        near = abs(self.offset.factor(tap))
        for position in reversed(positions):
            far = self.offset.factor(position)
            if near and (far % near == 0 or near % far == 0) and near < 8 * far:
                return position
        return None


@dataclass(frozen=True)
class _Images:
    """The batch axis of images: their number, distance and variable."""

    count: int
    apart: int
    variable: Variable | None
    width: _ImageAxis
    height: _ImageAxis


@dataclass(frozen=True)
class _ImageAxis:
    """The width or height of images.

    Elements are `pitch` apart, windows begin at `lower` and then every `step`. The coordinate of
    a window's first element at position and tap 0 is `start`.
    """

    pitch: int
    step: int
    extent: int
    start: int
    lower: int
    upper: int
    variable: Variable | None
    window: Variable | None
    dilation: int  # negative if taps count down

    @property
    def fits(self) -> bool:
        """Whether the engine supports it."""
        corners = all(-_MAX_CORNER <= c <= _MAX_CORNER for c in (self.lower, self.upper))
        reach = 0 if self.window is None else abs(self.dilation) * (self.window.extent - 1)
        return corners and 1 <= self.step <= _MAX_STEP and reach <= _MAX_TAP

    @property
    def position(self) -> Coordinate:
        """The coordinate of a window's begin."""
        return Coordinate(self.variable, self.step, self.lower)

    @property
    def tap(self) -> Coordinate:
        """The offset of a tap in its window."""
        if self.window is None or self.dilation > 0:
            return Coordinate(self.window, self.dilation)
        return Coordinate(self.window, self.dilation, -self.dilation * (self.window.extent - 1))


def _image_axis(
    offset: Affine,
    variable: Variable,
    tap: Variable | None,
    bound: tuple[int, Affine, int] | None,
) -> _ImageAxis | None:
    far = offset.factor(variable)
    near = 0 if tap is None else offset.factor(tap)
    if bound is not None:
        low, place, high = bound
        others = set(place.strides) - {variable, tap}
        numbers = (low, high, *place.integers)
        if others or not place.is_plain or not all(map(is_static, numbers)):
            return None
        step, dilation = place.factor(variable), 0 if tap is None else place.factor(tap)
        if step <= 0 or far % step or near != far // step * dilation:
            return None
        pitch, start, extent = far // step, place.constant - low, high - low
    else:
        pitch = gcd(far, near)
        step, dilation, start = far // pitch, near // pitch, 0
        if dilation < 0:
            start = -dilation * (tap.extent - 1 if tap else 0)
        reach = 0 if tap is None else abs(dilation) * (tap.extent - 1)
        extent = (variable.extent - 1) * step + reach + 1
    lower = start + (dilation * (tap.extent - 1) if tap is not None and dilation < 0 else 0)
    upper = (variable.extent - 1) * step + lower - (extent - 1)
    return _ImageAxis(pitch, step, extent, start, lower, upper, variable, tap, dilation or 1)
