"""Tensor maps: how the copy engine of a GPU (TMA) finds the elements of a tensor.

A `TensorMapSpec` belongs to a kernel; with the argument words of a call it is a `TensorMap`, plain
integers that `cuTensorMapEncodeTiled` or `cuTensorMapEncodeIm2col` takes, or the emulated driver.
Axes are counted from the innermost.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from dataclasses import dataclass

from thalweg.ir.dynamic import Dynamic, DynamicProduct, factors_of

BYTES = 128  # of an encoded map
MAX_RANK = 5


@dataclass(frozen=True)
class Windows:
    """What makes a map one of images, read as the windows of a convolution (im2col).

    A box is `pixels` positions of a window, each of some `channels`. The first position of a row
    and of an image is `lower`, the last one `upper` beyond the end; (width, height) each.
    """

    lower: tuple[int, int]
    upper: tuple[int, int]
    channels: int
    pixels: int


@dataclass(frozen=True)
class TensorMap:
    """A tensor map in numbers. Boxes are swizzled by 128 bytes; what is outside of it is zero."""

    address: int
    dtype: str  # as NumPy and ml_dtypes name it
    itemsize: int
    extents: tuple[int, ...]
    strides: tuple[int, ...]  # in bytes, of all axes but the innermost
    box: tuple[int, ...]  # the elements of a copy along each axis
    steps: tuple[int, ...]  # elements from one that is copied to the next, along each axis
    windows: Windows | None = None

    def emulated(self) -> bytes:
        """The map as the emulated copy engine reads it: 32-bit words, see `MapWord`."""

        def padded(numbers: Sequence[int], fill: int) -> list[int]:
            return [*numbers, *[fill] * (MAX_RANK - len(numbers))]

        low, high = self.address & 0xFFFFFFFF, self.address >> 32
        strides = [stride // 16 for stride in self.strides]
        words = [low, high, len(self.extents), self.itemsize, *padded(self.extents, 1)]
        words += [*padded(strides, 0)[: MAX_RANK - 1], *padded(self.box, 1), *padded(self.steps, 1)]
        if self.windows is not None:
            window = self.windows
            words += [*window.lower, *window.upper, window.channels, window.pixels]
        packed = b"".join(struct.pack("<I", word & 0xFFFFFFFF) for word in words)
        return packed.ljust(BYTES, b"\0")


class MapWord:
    """Where the emulated copy engine finds what: the numbers of 32-bit words."""

    ADDRESS, RANK, ITEMSIZE, EXTENTS, STRIDES, BOX, STEPS = 0, 2, 3, 4, 9, 13, 18
    LOWER, UPPER, CHANNELS, PIXELS = 23, 25, 27, 28


@dataclass(frozen=True)
class TensorMapSpec:
    """A tensor map of a kernel, whose integers may be known at run time only.

    The address of the encoded map is an argument word after all run-time sizes, in the order of
    the kernel's maps.
    """

    argument: int  # the argument word that holds the address of the tensor
    offset: int  # bytes from there
    dtype: str
    itemsize: int
    extents: tuple[int, ...]
    strides: tuple[int, ...]
    box: tuple[int, ...]
    steps: tuple[int, ...]
    windows: Windows | None = None

    def resolved(self, words: Sequence[int]) -> TensorMap:
        """The map of a call; `words` are all argument words, from the fault word's address on."""

        def number(value: int) -> int:
            if isinstance(value, DynamicProduct):
                result = 1
                for factor in factors_of(value):
                    result *= number(factor)
                return result
            return int(words[value.word]) if isinstance(value, Dynamic) else int(value)

        return TensorMap(
            int(words[self.argument]) + self.offset,
            self.dtype,
            self.itemsize,
            tuple(max(1, number(extent)) for extent in self.extents),
            self.strides,
            self.box,
            self.steps,
            self.windows,
        )

    def emulated(self, words: Sequence[int]) -> bytes:
        """The encoded map of a call on an emulated device."""
        return self.resolved(words).emulated()
