"""Buffers: the memory that the kernels of a region read and write."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from typing import Any

import numpy as np


class BufferKind(Enum):
    """Where a buffer comes from."""

    INPUT = "input"  # an array from outside: a feed, the result of a host op
    VARIABLE = "variable"  # a variable's own memory
    CARRIED = "carried"  # the memory of a loop variable: as a variable's, but of this step alone
    CONSTANT = "constant"  # an array that belongs to the step's plan
    STREAM = "stream"  # the place in a random stream that this run takes
    OUTPUT = "output"  # a fresh array that leaves the region
    TEMPORARY = "temporary"  # a piece of the step's arena


@dataclass(frozen=True, eq=False)
class Buffer:
    """So many elements of a dtype, in row-major order."""

    kind: BufferKind
    dtype: Any
    size: int
    source: Any = None  # the tensor, variable, array or node it stands for

    @property
    def bytes(self) -> int:
        """Its size in memory."""
        return self.size * np.dtype(self.dtype).itemsize
