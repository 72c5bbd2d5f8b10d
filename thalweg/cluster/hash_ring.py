"""Consistent hashing: which member of a group owns a key, such that few keys move with a member.

Members stand on a ring at many points each, their virtual nodes; a key belongs to the first virtual
node at or after its own point. A member that comes takes keys from all others and moves no other
key; of one that goes, the keys are spread over those that stay.
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
    """The keys from `start` up to `stop`, without it, and who owns them."""

    start: int
    stop: int
    owner: Member


@public("cluster.HashRing")
class HashRing(Generic[Member]):
    """Maps keys to members, alike in every process, so that few keys move when members do.

    Args:
        members: who may own keys, by their texts: names of tasks, devices, or numbers.
        virtual_nodes: how many points of the ring each stands at. The more, the more even are
            their shares: they differ by about 1 / sqrt(virtual_nodes).

    Raises:
        ValueError: where there are no members, one comes twice, or none has a point.

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
        at = {
            _point(f"{member}#{node}"): member
            for member in members
            for node in range(virtual_nodes)
        }
        self._points = sorted(at)
        self._owners = [at[point] for point in self._points]

    def __repr__(self) -> str:
        return f"HashRing({list(self.members)!r}, {len(self._points) // len(self.members)})"

    def owner(self, key: object) -> Member:
        """The member that owns a key.

        Args:
            key: a name or number; its text counts.

        Returns:
            One of the members.
        """
        place = bisect_left(self._points, _point(str(key)))
        return self._owners[place % len(self._owners)]

    def key_ranges(self, num_keys: int) -> list[KeyRange[Member]]:
        """The keys 0, 1, … laid around the ring in order: ranges that belong to one member each.

        Args:
            num_keys: how many keys there are.

        Returns:
            Ranges in order, none of them empty, that hold all keys.

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
    """Give the keys from `start` to `stop` to a member; where the rest starts."""
    if stop <= start:
        return start
    if ranges and ranges[-1].owner == owner:
        start = ranges.pop().start
    ranges.append(KeyRange(start, stop, owner))
    return stop


def _point(text: str) -> int:
    """Where on the ring a text is."""
    return int.from_bytes(hashlib.blake2b(text.encode(), digest_size=_BITS // 8).digest())
