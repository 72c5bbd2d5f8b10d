"""Sliding windows along axes: sizes, paddings, and the elements of each tap.

Convolutions, poolings and morphology are loops over the taps of a window; a `Slide` per axis has
the elements of tap k at every position.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.lib.stride_tricks import as_strided

from thalweg.graph.shapes import Size
from thalweg.ir.expr import select
from thalweg.platform.arrays import Array

Slices = tuple[slice, ...]


@dataclass(frozen=True)
class Slide:
    """A window of `window` taps, `dilation` apart, moving in steps of `stride` along one axis."""

    window: int = 1
    stride: int = 1
    dilation: int = 1
    padding: str | tuple[int, int] = "VALID"

    @property
    def extent(self) -> int:
        """The elements from the first tap to the last."""
        return (self.window - 1) * self.dilation + 1

    def count(self, size: Size) -> Size:
        """The number of positions along an axis of `size` elements."""
        if size is None:
            return None
        return self.positions(size)

    def positions(self, size: int) -> int:
        """The number of positions; a ValueError if the window does not fit."""
        if self.padding == "SAME":
            return -(-size // self.stride)
        room = size + sum(self.padding) if isinstance(self.padding, tuple) else size
        if room < self.extent:
            raise ValueError(
                f"Negative dimension size caused by subtracting {self.extent} from {room}"
            )
        return (room - self.extent) // self.stride + 1

    def pads(self, size: int) -> tuple[int, int]:
        """The padding before and after an axis of `size` elements."""
        if isinstance(self.padding, tuple):
            return self.padding
        if self.padding == "VALID":
            return 0, 0
        total = max((self.positions(size) - 1) * self.stride + self.extent - size, 0)
        return total // 2, total - total // 2

    def tap(self, index: int, positions: int) -> slice:
        """The padded elements of tap `index`, by position."""
        start = index * self.dilation
        return slice(start, start + (positions - 1) * self.stride + 1, self.stride)


Slides = Sequence[Slide]


def counts(slides: Slides, sizes: Sequence[int]) -> tuple[int, ...]:
    """The number of positions along each axis."""
    return tuple(s.positions(n) for s, n in zip(slides, sizes, strict=True))


def all_pads(slides: Slides, sizes: Sequence[int]) -> list[tuple[int, int]]:
    """The padding of each axis."""
    return [s.pads(n) for s, n in zip(slides, sizes, strict=True)]


def taps(slides: Slides, positions: Sequence[int]) -> Iterator[tuple[tuple[int, ...], Slices]]:
    """Each tap of the window with its padded elements, in row-major order."""
    for index in itertools.product(*(range(slide.window) for slide in slides)):
        moves = zip(slides, index, positions, strict=True)
        yield index, tuple(slide.tap(i, n) for slide, i, n in moves)


def pad(x: Array, pads: Sequence[tuple[int, int]], value: Any = 0) -> Array:
    """`x` padded with `value`; `x` itself without padding."""
    if not any(before or after for before, after in pads):
        return x
    sizes = [n + before + after for n, (before, after) in zip(x.shape, pads, strict=True)]
    padded = np.full(sizes, value, x.dtype) if value else np.zeros(sizes, x.dtype)
    padded[inside(pads, x.shape)] = x
    return padded


def inside(pads: Sequence[tuple[int, int]], sizes: Sequence[int]) -> Slices:
    """The slices of the elements in the padded array."""
    return tuple(slice(before, before + n) for (before, _), n in zip(pads, sizes, strict=True))


def unfold(padded: Array, slides: Slides, positions: Sequence[int]) -> Array:
    """A view [batch, *positions, *window, channels] of a padded [batch, *sizes, channels]."""
    batch, *steps, channel = padded.strides
    moves = [step * slide.stride for step, slide in zip(steps, slides, strict=True)]
    within = [step * slide.dilation for step, slide in zip(steps, slides, strict=True)]
    shape = (len(padded), *positions, *(s.window for s in slides), padded.shape[-1])
    return as_strided(padded, shape, (batch, *moves, *within, channel), writeable=False)


def tap_count(slides: Slides) -> int:
    """The number of taps of the window."""
    return math.prod(slide.window for slide in slides)


# Windows, as loops over indices


def met(
    slides: Sequence[Slide], sizes: Sequence[int], places: Sequence[Any], taps: Sequence[Any]
) -> list[Any]:
    """The index, in bounds or not, of the element of a tap for a position of the window."""
    return [
        place * slide.stride + tap * slide.dilation - slide.pads(size)[0]
        for slide, size, place, tap in zip(slides, sizes, places, taps, strict=True)
    ]


def overlaps(slides: Sequence[Slide], sizes: Sequence[int]) -> list[int]:
    """The maximum number of windows that contain an element, along each axis."""
    return [_overlap(*pair) for pair in zip(slides, sizes, strict=True)]


def _overlap(slide: Slide, size: int) -> int:
    if slide.positions(size) == 1:
        return 1
    return slide.window if slide.stride == 1 else -(-slide.extent // slide.stride)


def containing(
    slides: Sequence[Slide], sizes: Sequence[int], elements: Sequence[Any], numbers: Sequence[Any]
) -> tuple[list[Any], list[Any]]:
    """The position of window `number` of those that contain an element, and the element's tap.

    The inverse of `met`; a position or a tap out of range means that there is no such window.
    """
    pairs = [
        _window_around(slide, element + slide.pads(size)[0], number, slide.positions(size))
        for slide, size, element, number in zip(slides, sizes, elements, numbers, strict=True)
    ]
    return [place for place, _ in pairs], [tap for _, tap in pairs]


def _window_around(slide: Slide, padded: Any, number: Any, positions: int) -> tuple[Any, Any]:
    if positions > 1 and slide.stride == 1:
        return padded - number * slide.dilation, number
    place, offset = number, padded
    if positions > 1:
        place = padded // slide.stride - number
        offset = padded % slide.stride + number * slide.stride
    if slide.dilation > 1:
        offset = select((offset % slide.dilation).eq(0), offset // slide.dilation, -1)
    return place, offset


# Arguments


def per_axis(what: str, values: Any, layout: str) -> tuple[int, ...]:
    """One number per axis of `layout`, from a single one, one per spatial axis, or all."""
    try:
        given = [int(value) for value in np.atleast_1d(values).tolist()]
    except (TypeError, ValueError):
        raise TypeError(f"{what} must be integers, not {values!r}") from None
    rank = len(layout)
    if len(given) == rank:
        return tuple(given)
    if len(given) not in (1, rank - 2):
        raise ValueError(f"{what} must have length 1, {rank - 2} or {rank}, got {given}")
    spatial = given if len(given) == rank - 2 else given * (rank - 2)
    return (1, 1, *spatial) if layout.startswith("NC") else (1, *spatial, 1)
