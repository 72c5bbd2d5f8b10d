"""Packed channels: convolutions of images with few channels over images of packed pixels.

Units that read several adjacent channels need more than the three of an image. For a window with
stride `s`, blocks of `s` by `s` pixels become the channels of a smaller image with stride 1; with
stride 1, the pixels under a row of the window do. Channels are padded to a multiple with zeros, and
so is the filter where its last blocks exceed it: an infinite pixel there results in NaN.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from thalweg.ir import loop
from thalweg.ir.expr import Expr, select
from thalweg.ir.loop import IndexTuple, Intermediate, Operand, widened, within
from thalweg.ops.nn.windows import Slide, met
from thalweg.platform.dtype_traits import compute_dtype

#: (batch, position of a window, channel) -> the index in the data format of the op.
Index = Callable[[Any, Sequence[Any], Any], tuple[Any, ...]]


@dataclass(frozen=True)
class Block:
    """The packing of an axis: the pixels of a block, the blocks of a window, and the stride in
    blocks."""

    pixels: int
    taps: int
    step: int

    def place(self, tap: Any) -> tuple[Any, Any]:
        """The block of a tap of the window, and the pixel in the block."""
        return tap // self.pixels, tap % self.pixels


def _blocks(slides: Sequence[Slide]) -> list[Block]:
    if any(slide.stride > 1 for slide in slides):
        return [Block(s.stride, -(-s.window // s.stride), 1) for s in slides]
    *outer, last = slides
    return [*(Block(1, slide.window, 1) for slide in outer), Block(last.window, 1, 0)]


@dataclass(frozen=True)
class PackedChannels:
    """The packed form of a convolution of images `x` [batch, *sizes, channels], in the data format
    of `index`, with a filter of `window` taps."""

    slides: Sequence[Slide]
    x: Operand
    sizes: tuple[int, ...]  # of the images
    positions: tuple[int, ...]  # of the window
    channels: int
    multiple: int
    index: Index

    @property
    def blocks(self) -> list[Block]:
        """The blocks along each axis."""
        return _blocks(self.slides)

    @property
    def depth(self) -> int:
        """The channels of the packed image."""
        found = math.prod(block.pixels for block in self.blocks) * self.channels
        return -(-found // self.multiple) * self.multiple

    @property
    def taps(self) -> list[int]:
        """The numbers of blocks of a window."""
        return [block.taps for block in self.blocks]

    def image(self) -> Intermediate:
        """The packed image."""
        lengths = [
            count + block.taps - 1 for count, block in zip(self.positions, self.blocks, strict=True)
        ]

        def element(batch: Expr, *index: Expr) -> Expr:
            *places, packed = index
            pixels, channel = self._unpacked(packed)
            # A block is at the position of the window of which the pixel is one of the first taps.
            seen = met(self.slides, self.sizes, places, pixels)
            inside = within([*seen, packed], [*self.sizes, self._used])
            return select(inside, self.x[self.index(batch, seen, channel)], 0)

        return loop.intermediate((self.x.shape[0], *lengths, self.depth), self.x.dtype, element)

    @property
    def _used(self) -> int:
        return math.prod(block.pixels for block in self.blocks) * self.channels

    def _unpacked(self, packed: Expr) -> tuple[tuple[Any, ...], Any]:
        """The pixel and the channel of a packed channel."""
        *pixels, channel = loop.unravel(packed, [*(b.pixels for b in self.blocks), self.channels])
        return tuple(pixels), channel

    def filter(self, w: Operand) -> Intermediate:
        """A filter [*window, channels, outputs] for the packed image."""

        def element(*index: Expr) -> Expr:
            *blocks, packed, output = index
            pixels, channel = self._unpacked(packed)
            taps = [
                number * block.pixels + pixel
                for number, block, pixel in zip(blocks, self.blocks, pixels, strict=True)
            ]
            inside = within([*taps, packed], [*w.shape[:-2], self._used])
            return select(inside, w[(*taps, channel, output)], 0)

        return loop.intermediate((*self.taps, self.depth, w.shape[-1]), w.dtype, element)

    def _seen(self, image: Intermediate, batch: Any, places: Sequence[Any], index: Any) -> Expr:
        *taps, packed = index
        found = [place + tap for place, tap in zip(places, taps, strict=True)]
        return widened(image[(batch, *found, packed)], self.x.dtype)

    def forward(self, batch: Any, places: Sequence[Any], output: Any, w: Operand) -> Expr:
        """An element of the convolution."""
        image, packed = self.image(), self.filter(w)

        def product(*index: Expr) -> Expr:
            x = self._seen(image, batch, places, index)
            return x * widened(packed[(*index, output)], w.dtype)

        return loop.reduce("sum", [*self.taps, self.depth], product).cast(self.x.dtype)

    def to_filter(self, at: IndexTuple, dy: Operand) -> Expr:
        """An element of the gradient of the filter."""
        image, outputs = self.image(), at.shape[-1]

        def element(*index: Expr) -> Expr:
            *packed, output = index

            def product(batch: Expr, *places: Expr) -> Expr:
                gradient = widened(dy[self.index(batch, places, output)], dy.dtype)
                return self._seen(image, batch, places, packed) * gradient

            return loop.reduce("sum", [self.x.shape[0], *self.positions], product)

        wide = compute_dtype(self.x.dtype)
        sums = loop.intermediate((*self.taps, self.depth, outputs), wide, element)
        *taps, channel, output = at
        pairs = [block.place(tap) for block, tap in zip(self.blocks, taps, strict=True)]
        extents = [*(block.pixels for block in self.blocks), self.channels]
        packed = loop.ravel([*(pixel for _, pixel in pairs), channel], extents)
        return sums[(*(number for number, _ in pairs), packed, output)].cast(self.x.dtype)
