"""The server and the row of a key: key ranges on a hash ring, looked up by graph code."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from thalweg.cluster.hash_ring import HashRing, KeyRange
from thalweg.graph.dtypes import int32, int64
from thalweg.graph.node import Tensor
from thalweg.ops.arrays import indexing, searching
from thalweg.ops.core import basic, casting


class Route(NamedTuple):
    """The location of each key: the index of its shard, and its row there."""

    shard: Tensor
    row: Tensor


class KeyRanges:
    """The keys 0 … num_keys - 1, in ranges that belong to one server each.

    The ranges of a server are the rows of one shard, in the order of their keys. A server without
    keys has no shard.
    """

    def __init__(self, ring: HashRing[str], num_keys: int) -> None:
        self.ranges: list[KeyRange[str]] = ring.key_ranges(num_keys)
        owners = {key_range.owner for key_range in self.ranges}
        self.owners: list[str] = [member for member in ring.members if member in owners]
        self.sizes = dict.fromkeys(self.owners, 0)
        first_rows: list[int] = []
        for start, stop, owner in self.ranges:
            first_rows.append(self.sizes[owner])
            self.sizes[owner] += stop - start
        self._starts = [key_range.start for key_range in self.ranges]
        self._shards = [self.owners.index(key_range.owner) for key_range in self.ranges]
        self._offsets = [row - start for row, start in zip(first_rows, self._starts, strict=True)]

    def route(self, keys: Tensor) -> Route:
        """The locations of a vector of keys."""
        keys = casting.cast(keys, int64)
        index = searching.searchsorted(_vector(self._starts), keys, side="right") - 1
        shard = indexing.gather(_vector(self._shards), index)
        row = keys + indexing.gather(_vector(self._offsets), index)
        return Route(casting.cast(shard, int32), row)


def _vector(values: Sequence[int]) -> Tensor:
    return basic.constant(np.array(values, np.int64))
