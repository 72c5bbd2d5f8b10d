"""Bounded caches, and the list of all of them.

A `Bounded` is a dictionary that evicts its oldest entries when it is full; lookups are those of a
plain dictionary. `memoized` is a bounded cache of a function's results. Both are in the list of
`caches` as long as they exist.

>>> squares = Bounded[int, int]("squares", 2)
>>> for number in range(4):
...     squares[number] = number * number
>>> squares
{2: 4, 3: 9}
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping
from functools import lru_cache
from itertools import islice
from typing import Any, NamedTuple, Self, TypeVar
from weakref import WeakValueDictionary

K = TypeVar("K", bound=Hashable)
V = TypeVar("V")
F = TypeVar("F", bound=Callable[..., Any])


_EVICTED_PART = 64  # a full cache evicts one in so many entries at once


class Cache(NamedTuple):
    """A cache of this process: its size, its limit, and the function that clears it."""

    name: str
    size: int
    limit: int
    clear: Callable[[], None]


class Bounded(dict[K, V]):
    """A dictionary of at most `limit` entries, which evicts in order of insertion."""

    __slots__ = ("__weakref__", "limit", "name")

    def __init__(self, name: str, limit: int) -> None:
        super().__init__()
        self.name = name
        self.limit = limit
        _bounded[id(self)] = self

    def __setitem__(self, key: K, value: V) -> None:
        super().__setitem__(key, value)
        # After the insertion, so that the last of several threads that insert restores the limit.
        while len(self) > self.limit:
            self._evict()

    def setdefault(self, key: K, default: V) -> V:
        """The entry of a key, added if there is none."""
        if key not in self:
            self[key] = default
        return self.get(key, default)

    def update(self, other: Mapping[K, V]) -> None:  # pyright: ignore[reportIncompatibleMethodOverride] - one form of several
        """Add the entries of a mapping."""
        for key, value in other.items():
            self[key] = value

    def __ior__(self, other: Mapping[K, V]) -> Self:  # pyright: ignore[reportIncompatibleMethodOverride] - one form of several
        self.update(other)
        return self

    def renew(self, key: K) -> None:
        """Make an entry the newest."""
        super().__setitem__(key, self.pop(key))

    def _evict(self) -> None:
        """Remove the oldest entries; another thread may do so at the same time.

        Several at once, since iteration to the first entry skips all that were removed before it.
        """
        try:
            oldest = [*islice(self, 1 + self.limit // _EVICTED_PART)]
        except RuntimeError:
            return
        for key in oldest:
            self.pop(key, None)


def memoized(limit: int) -> Callable[[F], F]:
    """A decorator: cache the results of a function, up to `limit` of them."""

    def decorate(function: F) -> F:
        cached: Any = lru_cache(limit)(function)
        _functions.append(cached)
        return cached

    return decorate


_bounded: WeakValueDictionary[int, Bounded[Any, Any]] = WeakValueDictionary()
_functions: list[Any] = []


def caches() -> list[Cache]:
    """All caches of this process."""
    listed = [Cache(c.name, len(c), c.limit, c.clear) for c in list(_bounded.values())]
    for function in _functions:
        info, name = function.cache_info(), f"{function.__module__}.{function.__qualname__}"
        listed.append(Cache(name, info.currsize, info.maxsize, function.cache_clear))
    return listed
