"""Tensors in files: where their bytes lie, whole or in slices, and how slices become a tensor.

A slice is written as checkpoints of TensorFlow write it: `"10 20 0,5:-"` is rows 0 to 4 of a
10 by 20 tensor. `Checkpoint` is what all kinds of checkpoint files have in common.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from math import prod
from typing import Any, cast

import numpy as np
from numpy.typing import NDArray

from thalweg import errors

Array = NDArray[Any]
Sizes = tuple[int, ...]
#: Takes an array for good; may give another of the same dtype and shape that nobody needs.
Receiver = Callable[[Array], Array | None]

_MAX_AXES = 64  # what NumPy can hold
_MAX_BYTES = 1 << 62


@dataclass(frozen=True)
class Slice:
    """A box inside a tensor: the tensor's shape, the first index and the shape of the box."""

    full: Sizes
    start: Sizes
    shape: Sizes

    @property
    def is_whole(self) -> bool:
        """Whether the box is all of the tensor."""
        return self.shape == self.full

    @property
    def box(self) -> tuple[slice, ...]:
        """The box as an index of an array of the full shape."""
        return tuple(slice(s, s + n) for s, n in zip(self.start, self.shape, strict=True))

    @property
    def text(self) -> str:
        """The box as NumPy would write it: `0:5,0:20`."""
        return ",".join(f"{s}:{s + n}" for s, n in zip(self.start, self.shape, strict=True))


def whole(shape: Sizes) -> Slice:
    """All of a tensor."""
    return Slice(shape, (0,) * len(shape), shape)


def parse_slice(spec: str) -> Slice | None:
    """The slice that a text such as `"10 20 0,5:-"` stands for; None for an empty one."""
    if not spec:
        return None
    *sizes, extents = spec.split(" ")
    try:
        full = tuple(int(size) for size in sizes)
        pairs = [_extent(text, size) for text, size in zip(extents.split(":"), full, strict=True)]
    except ValueError:
        raise _invalid(
            f"{spec!r} is not a shape and slice: it must look like '10 20 0,5:-'"
        ) from None
    found = Slice(full, tuple(start for start, _ in pairs), tuple(length for _, length in pairs))
    if not is_inside(found):
        raise _invalid(f"The slice {spec!r} does not fit the shape {list(full)}")
    return found


def _extent(text: str, size: int) -> tuple[int, int]:
    if text == "-":
        return 0, size
    start, length = text.split(",")
    return int(start), int(length)


def is_inside(box: Slice) -> bool:
    """Whether a slice has as many axes as its tensor and lies inside it."""
    if not len(box.full) == len(box.start) == len(box.shape):
        return False
    ends = zip(box.start, box.shape, box.full, strict=True)
    return all(start >= 0 and n >= 0 and start + n <= size for start, n, size in ends)


def as_sizes(value: Any, itemsize: int = 1) -> Sizes | None:
    """Something read from a file as the shape of an array, if an array can have it."""
    if not isinstance(value, list | tuple):
        return None
    sizes = tuple(cast("Sequence[Any]", value))
    if len(sizes) > _MAX_AXES or not all(type(size) is int and size >= 0 for size in sizes):
        return None
    fits = prod(size for size in sizes if size) * max(itemsize, 1) < _MAX_BYTES
    return sizes if fits else None


def _overlap(first: Slice, second: Slice) -> tuple[slice, ...] | None:
    """The box that two slices of one tensor share."""
    shared: list[slice] = []
    for one, other in zip(first.box, second.box, strict=True):
        begin, end = max(one.start, other.start), min(one.stop, other.stop)
        if begin >= end:
            return None
        shared.append(slice(begin, end))
    return tuple(shared)


def _relative(box: Sequence[slice], start: Sizes) -> tuple[slice, ...]:
    return tuple(slice(b.start - s, b.stop - s) for b, s in zip(box, start, strict=True))


@dataclass(frozen=True)
class Part:
    """A slice of a tensor and where its bytes lie."""

    path: str
    begin: int
    end: int
    extent: Slice
    checksum: int | None = None


@dataclass(frozen=True)
class Entry:
    """A tensor in a checkpoint: its dtype by name, its shape and its parts."""

    dtype: str
    shape: Sizes
    parts: tuple[Part, ...]


#: The name of a tensor, a slice if not all of it is wanted, and who gets it.
Wish = tuple[str, Slice | None, Receiver]


class Checkpoint:
    """Tensors by name, read from files on demand."""

    def __init__(self, prefix: str, entries: Mapping[str, Entry]) -> None:
        self.prefix = prefix
        self.entries = dict(sorted(entries.items()))

    def load(self, entry: Entry, part: Part) -> Array:
        """The array of one part; it may be a view of the file."""
        raise TypeError(f"{type(self).__name__} must define load")

    def prepare(self, names: Iterable[str]) -> None:
        """Look at the bytes of some tensors ahead of reading them."""

    def hand_over(self, wanted: Sequence[Wish]) -> None:
        """Give each of some tensors, or slices of them, to its receiver, as arrays of its own."""
        self.prepare(name for name, _, _ in wanted)
        for name, box, receive in wanted:
            receive(np.array(self.read(name, box)))

    def entry(self, name: str) -> Entry:
        """The entry of a tensor; NotFoundError without one."""
        if name not in self.entries:
            raise errors.NotFoundError(
                None, None, f"Key {name} not found in checkpoint {self.prefix}"
            )
        return self.entries[name]

    def read(self, name: str, wanted: Slice | None = None) -> Array:
        """A tensor or a slice of it; read-only where it is a view of the file."""
        entry = self.entry(name)
        box = self._box(name, wanted)
        for part in entry.parts:
            if part.extent == box:
                return self.load(entry, part)
        return self._assembled(name, entry, box)

    def _box(self, name: str, wanted: Slice | None) -> Slice:
        """What is wanted of a tensor, which must have the shape that a slice says."""
        entry = self.entry(name)
        box = whole(entry.shape) if wanted is None else wanted
        if box.full != entry.shape:
            raise _invalid(
                f"Key {name} in checkpoint {self.prefix} has shape {list(entry.shape)}, not "
                f"{list(box.full)} as the slice says"
            )
        return box

    def _assembled(self, name: str, entry: Entry, box: Slice) -> Array:
        shared = [(part, _overlap(part.extent, box)) for part in entry.parts]
        found = sum(prod(b.stop - b.start for b in both) for _, both in shared if both is not None)
        # Checked first: the size of the result is then bounded by the size of the files.
        if found < prod(box.shape):
            raise errors.DataLossError(
                None,
                None,
                f"The slices of {name} in checkpoint {self.prefix} do not cover {box.text} of "
                f"shape {list(entry.shape)}",
            )
        result: Array | None = None
        for part, both in shared:
            if both is None:
                continue
            values = self.load(entry, part)
            if result is None:
                result = np.zeros(box.shape, values.dtype)
            result[_relative(both, box.start)] = values[_relative(both, part.extent.start)]
        return np.zeros(box.shape, self.empty_dtype(entry)) if result is None else result

    def empty_dtype(self, entry: Entry) -> Any:
        """The NumPy dtype of an entry, for a tensor without elements."""
        raise TypeError(f"{type(self).__name__} must define empty_dtype")


def _invalid(message: str) -> errors.InvalidArgumentError:
    return errors.InvalidArgumentError(None, None, message)
