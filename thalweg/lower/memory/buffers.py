"""Buffers: the memory that the kernels of a region read and write."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from enum import Enum
from typing import Any

import numpy as np

STREAM_WORDS = 6  # of a random stream's state: key and counter


class BufferKind(Enum):
    """Where a buffer comes from."""

    INPUT = "input"  # an array from outside: a feed, the result of a host op
    VARIABLE = "variable"  # a variable's own memory
    CARRIED = "carried"  # a loop variable: updated in place, but discarded after the step
    CONSTANT = "constant"  # an array of the step's plan
    STREAM = "stream"  # key and counter of a random op in this run
    OUTPUT = "output"  # a fresh array that leaves the region
    TEMPORARY = "temporary"  # in the step's arena


@dataclass(frozen=True, eq=False)
class Buffer:
    """Contiguous memory for `size` elements of a dtype."""

    kind: BufferKind
    dtype: Any
    size: int
    source: Any = None  # the tensor, variable, array or node it stands for

    @property
    def is_variable(self) -> bool:
        """Whether it holds a variable or a loop variable, which are updated in place."""
        return self.kind in (BufferKind.VARIABLE, BufferKind.CARRIED)

    @property
    def bytes(self) -> int:
        """Its size in memory."""
        return self.size * np.dtype(self.dtype).itemsize

    @classmethod
    def temporary(cls, dtype: Any, size: int, source: Any) -> Buffer:
        """A new temporary."""
        return cls(BufferKind.TEMPORARY, dtype, size, source)


#: A part of a buffer: the buffer, and the element that the part begins at.
View = tuple[Buffer, int]

#: Sub-buffers: for each buffer that lies inside another one, where.
Pieces = dict[Buffer, View]


def nested_buffers(pieces: Pieces) -> set[Buffer]:
    """All sub-buffers, and the buffers that contain them."""
    return {*pieces, *(root for root, _ in pieces.values())}


def temporary_bytes(buffers: Iterable[Buffer]) -> int:
    """The bytes of the temporaries among buffers."""
    return sum(buffer.bytes for buffer in buffers if buffer.kind is BufferKind.TEMPORARY)
