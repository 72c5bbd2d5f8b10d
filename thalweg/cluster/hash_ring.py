"""Consistent hashing: maps keys to members so that few keys move when membership changes.

Each member has many points on a ring, its virtual nodes; a key belongs to the first virtual node at
or after its own point. A new member takes keys from all others and moves no other keys; the keys of
a removed member are spread over the remaining ones.
"""

from __future__ import annotations

import hashlib
from bisect import bisect_left
from collections.abc import Hashable, Sequence
from typing import Final, Generic, NamedTuple, TypeVar

from thalweg.public import public

Member = TypeVar("Member", bound=Hashable)

_BITS: Final = 64


class KeyRange(NamedTuple, Generic[Member]):
    """The half-open range of keys [start, stop) and its owner."""

    start: int
    stop: int
    owner: Member


@public("cluster.HashRing")
class HashRing(Generic[Member]):
    """Maps keys to members, identically in every process; few keys move when members change.

    Args:
        members: the owners: names of tasks or devices, or numbers. Their `str` is hashed.
        virtual_nodes: points on the ring per member. More points balance the shares better: they
            differ by about 1 / sqrt(virtual_nodes).

    Raises:
        ValueError: if `members` is empty or has duplicates, or `virtual_nodes` is below 1.

    Example:
        >>> few = tf.cluster.HashRing(["ps0", "ps1"])
        >>> more = tf.cluster.HashRing(["ps0", "ps1", "ps2"])
        >>> keys = [f"key{i}" for i in range(1000)]
        >>> moved = [key for key in keys if few.owner(key) != more.owner(key)]
        >>> {more.owner(key) for key in moved}, 200 < len(moved) < 500
        ({'ps2'}, True)
    """

    def __init__(self, members: Sequence[Member], virtual_nodes: int = 128) -> None:
        if not members or len(set(members)) < len(members):
            raise ValueError(f"A ring needs members, each of them once: {members!r}")
        if virtual_nodes < 1:
            raise ValueError(f"A member needs at least one virtual node, not {virtual_nodes}")
        self.members = tuple(members)
        owner_at = {
            _point(f"{member}#{node}"): member
            for member in members
            for node in range(virtual_nodes)
        }
        self._points = sorted(owner_at)
        self._owners = [owner_at[point] for point in self._points]

    def __repr__(self) -> str:
        return f"HashRing({list(self.members)!r}, {len(self._points) // len(self.members)})"

    def owner(self, key: object) -> Member:
        """The member that owns a key.

        Args:
            key: a name or number; its `str` is hashed.

        Returns:
            One of the members.
        """
        index = bisect_left(self._points, _point(str(key)))
        return self._owners[index % len(self._owners)]

    def key_ranges(self, num_keys: int) -> list[KeyRange[Member]]:
        """Distributes the keys 0, 1, … around the ring in order, as ranges with one owner each.

        Args:
            num_keys: the number of keys.

        Returns:
            Non-empty ranges in ascending order that cover all keys.

        Example:
            >>> ranges = tf.cluster.HashRing(["a", "b"], virtual_nodes=1).key_ranges(100)
            >>> [tuple(each) for each in ranges]
            [(0, 67, 'a'), (67, 69, 'b'), (69, 100, 'a')]
        """
        ranges: list[KeyRange[Member]] = []
        start = 0
        for point, owner in zip(self._points, self._owners, strict=True):
            stop = min((point * num_keys >> _BITS) + 1, num_keys)
            start = _extend(ranges, start, stop, owner)
        _extend(ranges, start, num_keys, self._owners[0])
        return ranges


def _extend(ranges: list[KeyRange[Member]], start: int, stop: int, owner: Member) -> int:
    """Append [start, stop), merged with the last range if it has the same owner; the new end."""
    if stop <= start:
        return start
    if ranges and ranges[-1].owner == owner:
        start = ranges.pop().start
    ranges.append(KeyRange(start, stop, owner))
    return stop


def _point(text: str) -> int:
    """The point of a text on the ring."""
    return int.from_bytes(hashlib.blake2b(text.encode(), digest_size=_BITS // 8).digest())
