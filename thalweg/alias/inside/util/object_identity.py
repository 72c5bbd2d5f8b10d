"""`tensorflow.python.util.object_identity`: collections that compare by identity."""

from __future__ import annotations

import weakref
from collections.abc import Iterable, Iterator, MutableMapping, MutableSet
from typing import Any


class ObjectIdentityDictionary(MutableMapping[Any, Any]):
    """A mapping whose keys are told apart by `is`."""

    def __init__(self) -> None:
        self._items: dict[int, tuple[Any, Any]] = {}

    def __getitem__(self, key: Any) -> Any:
        return self._items[id(key)][1]

    def __setitem__(self, key: Any, value: Any) -> None:
        self._items[id(key)] = key, value

    def __delitem__(self, key: Any) -> None:
        del self._items[id(key)]

    def __iter__(self) -> Iterator[Any]:
        return iter([key for key, _ in self._items.values()])

    def __len__(self) -> int:
        return len(self._items)


class ObjectIdentityWeakKeyDictionary(ObjectIdentityDictionary):
    """A mapping by identity that does not keep its keys alive."""

    def __setitem__(self, key: Any, value: Any) -> None:
        number = id(key)
        reference = weakref.ref(key, lambda _: self._items.pop(number, None))
        self._items[number] = reference, value

    def __iter__(self) -> Iterator[Any]:
        keys = (reference() for reference, _ in list(self._items.values()))
        return iter([key for key in keys if key is not None])


class ObjectIdentitySet(MutableSet[Any]):
    """A set whose elements are told apart by `is`."""

    _kind: type[ObjectIdentityDictionary] = ObjectIdentityDictionary

    def __init__(self, *args: Iterable[Any]) -> None:
        self._items = self._kind()
        self.update([item for items in args for item in items])

    def __contains__(self, x: object) -> bool:
        return x in self._items

    def add(self, value: Any) -> None:
        """Add an element."""
        self._items[value] = True

    def discard(self, value: Any) -> None:
        """Remove an element if it is there."""
        self._items.pop(value, None)

    def update(self, items: Iterable[Any]) -> None:
        """Add elements."""
        for item in items:
            self.add(item)

    def intersection(self, items: Iterable[Any]) -> Any:
        """The elements that are in both."""
        return type(self)([item for item in items if item in self])

    def difference(self, items: Iterable[Any]) -> Any:
        """The elements that are not among `items`."""
        others = ObjectIdentitySet(items)
        return type(self)([item for item in self if item not in others])

    def __iter__(self) -> Iterator[Any]:
        return iter(self._items)

    def __len__(self) -> int:
        return len(self._items)


class ObjectIdentityWeakSet(ObjectIdentitySet):
    """A set by identity that does not keep its elements alive."""

    _kind = ObjectIdentityWeakKeyDictionary
