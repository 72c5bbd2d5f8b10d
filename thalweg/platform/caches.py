"""What is kept to be found again: every cache of the package has a limit, and this list knows it.

A `Bounded` is a dictionary that lets go of its oldest entries when it is full; finding one is what
it is in any dictionary. `memoized` bounds what a function remembers of its calls. Both are in the
list of `caches` as long as they live.

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


_PART = 64  # of a full cache, this part is let go at once


class Cache(NamedTuple):
    """A cache that is in use: how much it holds and may hold, and what empties it."""

    name: str
    size: int
    limit: int
    clear: Callable[[], None]


class Bounded(dict[K, V]):
    """A dictionary of at most `limit` entries. When it is full, those that were put in first go,
    of a large one some at once."""

    __slots__ = ("__weakref__", "limit", "name")

    def __init__(self, name: str, limit: int) -> None:
        super().__init__()
        self.name = name
        self.limit = limit
        _bounded[id(self)] = self

    def __setitem__(self, key: K, value: V) -> None:
        super().__setitem__(key, value)
        # After the entry, not before it: of threads that add at once, the last one trims.
        while len(self) > self.limit:
            self._drop_oldest()  # many at once: to find the first, all that went before are passed

    def setdefault(self, key: K, default: V) -> V:
        """The entry of a key, which is made if there is none."""
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
        """Have an entry go last of those that are there now."""
        super().__setitem__(key, self.pop(key))

    def _drop_oldest(self) -> None:
        """Remove the oldest entries, one or a small part of all; another thread may do so at the
        same time."""
        try:
            oldest = [*islice(self, 1 + self.limit // _PART)]
        except RuntimeError:
            return
        for key in oldest:
            self.pop(key, None)


def memoized(limit: int) -> Callable[[F], F]:
    """A function that remembers what it returned to its last calls, so many of them."""

    def decorate(function: F) -> F:
        made: Any = lru_cache(limit)(function)
        _functions.append(made)
        return made

    return decorate


_bounded: WeakValueDictionary[int, Bounded[Any, Any]] = WeakValueDictionary()
_functions: list[Any] = []


def caches() -> list[Cache]:
    """All caches of this process."""
    found = [Cache(c.name, len(c), c.limit, c.clear) for c in list(_bounded.values())]
    for function in _functions:
        info, name = function.cache_info(), f"{function.__module__}.{function.__qualname__}"
        found.append(Cache(name, info.currsize, info.maxsize, function.cache_clear))
    return found
