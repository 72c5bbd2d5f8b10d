"""Tensor maps: the descriptors by which the copy engine of a GPU (TMA) accesses tensors.

A `TensorMapSpec` belongs to a kernel; the argument words of a call resolve it to a `TensorMap`,
plain integers for `cuTensorMapEncodeTiled`, `cuTensorMapEncodeIm2col` or the emulated driver. Axes
are counted from the innermost.
"""

from __future__ import annotations

import struct
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from math import prod
from typing import Any

from thalweg.ir.dynamic import Dynamic, factors_of

BYTES = 128  # of an encoded map
MAX_RANK = 5
#: The dtype of a map by which the copy engine rounds float32 numbers to TF32.
ROUNDED_FLOAT32 = "tfloat32"


@dataclass(frozen=True)
class Windows:
    """The im2col part of a map: images that are read as the windows of a convolution.

    A box is `pixels` positions of a window, each of some `channels`. The first position of a row
    and of an image is `lower`, the last one `upper` beyond the end; (width, height) each.
    """

    lower: tuple[int, int]
    upper: tuple[int, int]
    channels: int
    pixels: int


@dataclass(frozen=True)
class TensorMap:
    """A tensor map in numbers. The lines of a box are 128, 64 or 32 bytes, with the swizzle of this
    size; elements outside of the tensor are zero."""

    address: int
    dtype: str  # the name in NumPy or ml_dtypes, or `ROUNDED_FLOAT32`
    itemsize: int
    extents: tuple[int, ...]
    strides: tuple[int, ...]  # in bytes, of all axes but the innermost
    box: tuple[int, ...]  # the elements of a copy along each axis
    steps: tuple[int, ...]  # the distance in elements between copied ones along each axis
    windows: Windows | None = None

    @property
    def line_bytes(self) -> int:
        """The bytes of a line of a box."""
        return self.box[0] * self.itemsize

    def emulated(self) -> bytes:
        """The encoding for the emulated copy engine: 32-bit words, see `MapWord`."""

        def padded(numbers: Sequence[int], fill: int) -> list[int]:
            return [*numbers, *[fill] * (MAX_RANK - len(numbers))]

        low, high = self.address & 0xFFFFFFFF, self.address >> 32
        strides = [stride // 16 for stride in self.strides]
        words = [low, high, len(self.extents), self.itemsize, *padded(self.extents, 1)]
        words += [*padded(strides, 0)[: MAX_RANK - 1], *padded(self.box, 1), *padded(self.steps, 1)]
        window = self.windows or Windows((0, 0), (0, 0), 0, 0)
        words += [*window.lower, *window.upper, window.channels, window.pixels]
        words.append(self.dtype == ROUNDED_FLOAT32)
        packed = b"".join(struct.pack("<I", word & 0xFFFFFFFF) for word in words)
        return packed.ljust(BYTES, b"\0")


class MapWord:
    """The indices of 32-bit words in the encoding for the emulated copy engine."""

    ADDRESS, RANK, ITEMSIZE, EXTENTS, STRIDES, BOX, STEPS = 0, 2, 3, 4, 9, 13, 18
    LOWER, UPPER, CHANNELS, PIXELS, IS_ROUNDED = 23, 25, 27, 28, 29


@dataclass(frozen=True)
class TensorMapSpec:
    """A tensor map of a kernel: the map of the call it was emitted for, and the varying parts.

    A kernel takes its encoded maps by value after its argument words; an emulated one takes their
    addresses, as words.
    """

    argument: int  # the index of the argument word with the tensor's address
    map: TensorMap  # its address is the byte offset from there
    varying: tuple[tuple[int, int, tuple[int, ...]], ...] = ()
    """(axis, number, words): the extent of an axis is the number times those argument words."""

    def resolved(self, words: Sequence[int]) -> TensorMap:
        """The map of a call; `words` are all argument words, from the fault word's address on."""
        extents = list(self.map.extents)
        for axis, number, factors in self.varying:
            extents[axis] = number * prod(int(words[word]) for word in factors)
        address = int(words[self.argument]) + self.map.address
        return replace(self.map, address=address, extents=tuple(max(1, e) for e in extents))

    def emulated(self, words: Sequence[int]) -> bytes:
        """The encoded map of a call on an emulated device."""
        return self.resolved(words).emulated()

    def to_json(self) -> dict[str, Any]:
        """The JSON object for cache entries."""
        return asdict(self)

    @classmethod
    def from_json(cls, fields: Mapping[str, Any]) -> TensorMapSpec:
        """The inverse of `to_json`."""
        given = {name: _tuples(value) for name, value in fields["map"].items()}
        windows = given.pop("windows")
        if windows is not None:
            windows = Windows(**{name: _tuples(value) for name, value in windows.items()})
        return cls(
            fields["argument"], TensorMap(**given, windows=windows), _tuples(fields["varying"])
        )


def _tuples(value: Any) -> Any:
    """Convert lists from JSON back to tuples."""
    return tuple(map(_tuples, value)) if isinstance(value, list | tuple) else value  # pyright: ignore[reportUnknownArgumentType, reportUnknownVariableType] - of any JSON values


def varying_extents(extents: Sequence[int]) -> tuple[tuple[int, int, tuple[int, ...]], ...]:
    """`TensorMapSpec.varying` for extents, some of which are known only at run time."""
    found = [varying_extent(axis, [extent]) for axis, extent in enumerate(extents)]
    return tuple(one for one in found if one is not None)


def varying_extent(axis: int, parts: Sequence[int]) -> tuple[int, int, tuple[int, ...]] | None:
    """The entry of one axis, whose extent is a product; None if it is static."""
    factors = [factor for part in parts for factor in factors_of(part)]
    words = tuple(factor.word for factor in factors if isinstance(factor, Dynamic))
    known = [int(factor) for factor in factors if not isinstance(factor, Dynamic)]
    return (axis, prod(known), words) if words else None
