"""Tensors in checkpoint files: the locations of their slices, and the assembly of tensors.

A slice is written as in TensorFlow's checkpoints: `"10 20 0,5:-"` is rows 0 to 4 of a 10 by 20
tensor. `Checkpoint` is the base class of readers of all checkpoint formats.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from math import prod
from typing import Any, cast

import numpy as np

from thalweg import errors
from thalweg.platform.arrays import Array
from thalweg.platform.dtype_traits import TABLE

Sizes = tuple[int, ...]
#: Takes ownership of an array; may return another one of the same dtype and shape for reuse.
Receiver = Callable[[Array], Array | None]

#: NumPy's dtypes by the names of dtypes in entries.
NUMPY: dict[str, Any] = {row.name: row.storage for row in TABLE if row.dtype_class != "opaque"}

_MAX_AXES = 64  # of a NumPy array
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
    """The slice that is a whole tensor."""
    return Slice(shape, (0,) * len(shape), shape)


def parse_slice(spec: str) -> Slice | None:
    """Parse a slice such as `"10 20 0,5:-"`; None if the text is empty."""
    if not spec:
        return None
    *sizes, extents = spec.split(" ")
    try:
        full = tuple(int(size) for size in sizes)
        pairs = [_extent(text, size) for text, size in zip(extents.split(":"), full, strict=True)]
    except ValueError:
        raise errors.invalid(
            f"{spec!r} is not a shape and slice: it must look like '10 20 0,5:-'"
        ) from None
    starts, lengths = tuple(start for start, _ in pairs), tuple(length for _, length in pairs)
    box = checked_slice(full, starts, lengths)
    if box is None:
        raise errors.invalid(f"The slice {spec!r} does not fit the shape {list(full)}")
    return box


def _extent(text: str, size: int) -> tuple[int, int]:
    if text == "-":
        return 0, size
    start, length = text.split(",")
    return int(start), int(length)


def checked_slice(full: Sizes | None, start: Sizes | None, shape: Sizes | None) -> Slice | None:
    """A slice, if it has the axes of its tensor and lies inside it."""
    if full is None or start is None or shape is None:
        return None
    if not len(full) == len(start) == len(shape):
        return None
    axes = zip(start, shape, full, strict=True)
    is_inside = all(first >= 0 and n >= 0 and first + n <= size for first, n, size in axes)
    return Slice(full, start, shape) if is_inside else None


def as_sizes(value: Any, itemsize: int = 1) -> Sizes | None:
    """A value from a file as a shape, if an array of such items can have it."""
    if not isinstance(value, list | tuple):
        return None
    sizes = tuple(cast("Sequence[Any]", value))
    if len(sizes) > _MAX_AXES or not all(type(size) is int and size >= 0 for size in sizes):
        return None
    fits = prod(size for size in sizes if size) * max(itemsize, 1) < _MAX_BYTES
    return sizes if fits else None


def _overlap(first: Slice, second: Slice) -> tuple[slice, ...] | None:
    """The intersection of two slices of one tensor, if any."""
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
    """A slice of a tensor and the location of its bytes."""

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


#: A read request: the name of a tensor, a slice of it or None, and the receiver.
ReadRequest = tuple[str, Slice | None, Receiver]


class Checkpoint:
    """Tensors by name, read from files on demand."""

    def __init__(self, prefix: str, entries: Mapping[str, Entry]) -> None:
        self.prefix = prefix
        self.entries = dict(sorted(entries.items()))

    def load(self, entry: Entry, part: Part) -> Array:
        """The array of one part; it may be a view of the file."""
        raise TypeError(f"{type(self).__name__} must define load")

    def prepare(self, names: Iterable[str]) -> None:
        """Prefetch the bytes of some tensors."""

    def read_into(self, wanted: Sequence[ReadRequest]) -> None:
        """Read tensors or slices into new arrays, and pass each to its receiver."""
        self.prepare(name for name, _, _ in wanted)
        for name, box, receive in wanted:
            receive(np.array(self.read(name, box)))

    def entry(self, name: str) -> Entry:
        """The entry of a tensor; a NotFoundError if there is none."""
        if name not in self.entries:
            raise errors.NotFoundError(
                None, None, f"Key {name} not found in checkpoint {self.prefix}"
            )
        return self.entries[name]

    def read(self, name: str, wanted: Slice | None = None) -> Array:
        """A tensor or a slice of it; read-only if it is a view of the file."""
        entry = self.entry(name)
        box = self._box(name, wanted)
        for part in entry.parts:
            if part.extent == box:
                return self.load(entry, part)
        return self._assembled(name, entry, box)

    def _box(self, name: str, wanted: Slice | None) -> Slice:
        """The requested slice of a tensor; an error if the slice is of another shape."""
        entry = self.entry(name)
        box = whole(entry.shape) if wanted is None else wanted
        if box.full != entry.shape:
            raise errors.invalid(
                f"Key {name} in checkpoint {self.prefix} has shape {list(entry.shape)}, not "
                f"{list(box.full)} as the slice says"
            )
        return box

    def _assembled(self, name: str, entry: Entry, box: Slice) -> Array:
        overlaps = [(part, _overlap(part.extent, box)) for part in entry.parts]
        covered = sum(
            prod(axis.stop - axis.start for axis in o) for _, o in overlaps if o is not None
        )
        # Checked before the allocation, which is then bounded by the size of the files.
        if covered < prod(box.shape):
            raise errors.DataLossError(
                None,
                None,
                f"The slices of {name} in checkpoint {self.prefix} do not cover {box.text} of "
                f"shape {list(entry.shape)}",
            )
        result: Array | None = None
        for part, overlap in overlaps:
            if overlap is None:
                continue
            values = self.load(entry, part)
            if result is None:
                result = np.zeros(box.shape, values.dtype)
            result[_relative(overlap, box.start)] = values[_relative(overlap, part.extent.start)]
        return np.zeros(box.shape, NUMPY[entry.dtype]) if result is None else result
