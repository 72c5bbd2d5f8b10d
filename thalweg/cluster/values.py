"""Values in messages: by their places in a step, or by the keys that they are received under.

A trace of a branch that was not taken has no value; nobody looks at it, but it flows all the same.
Small values need no message of their own where another one leaves at the same time for the same
task: the one that starts its part of a step, or tells the master that a part has ended.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from threading import get_ident
from typing import Any

import numpy as np

from thalweg.cluster.tasks import task_of
from thalweg.cluster.wire import Message
from thalweg.partition.rendezvous import Key
from thalweg.platform.caches import memoized

Keyed = Sequence[tuple[Key, Any]]

#: The same keys come in every step.
key_of = memoized(4096)(Key)
_MAX_HELD = 32 << 10  # bytes of a value
_ARRAYS: Any = (np.ndarray, np.generic)
_ABSENT = "absent"  # the field with the places of values that are None


def packed(message: Message) -> Message:
    """A message without the values that are None."""
    absent = [place for place, value in enumerate(message.values) if value is None]
    if not absent:
        return message
    fields = {**message.fields, _ABSENT: absent}
    return message._replace(fields=fields, values=[v for v in message.values if v is not None])


def values_of(message: Message) -> Sequence[Any]:
    """The values of a message that was packed."""
    absent: Sequence[int] = message.fields.get(_ABSENT, ())
    if not absent:
        return message.values
    found = list(message.values)
    for place in absent:
        found.insert(place, None)
    return found


def by_place(places: Sequence[int], message: Message) -> Mapping[int, Any]:
    """The values of a message by their places in a step; they come before those with keys."""
    return dict(zip(places, values_of(message), strict=False))


def by_key(keys: Sequence[Sequence[str]], message: Message) -> list[tuple[Key, Any]]:
    """The last values of a message, by the keys that they are received under."""
    values = message.values[-len(keys) :]
    return [(key_of(*key), value) for key, value in zip(keys, values, strict=True)]


class Held:
    """Values for some tasks that one thread sends and that have not left."""

    def __init__(self, tasks: Collection[str]) -> None:
        self._tasks, self._kept = tasks, dict[str, list[tuple[Key, Any]]]()
        self._thread = get_ident()

    def keep(self, key: Key, value: Any) -> bool:
        """Hold a value, unless it is large, not for one of the tasks, or of another thread."""
        if not isinstance(value, _ARRAYS) or value.nbytes > _MAX_HELD:
            return False
        task = task_of(key.destination)
        if task not in self._tasks or get_ident() != self._thread:
            return False
        self._kept.setdefault(task, []).append((key, value))
        return True

    def of(self, task: str) -> Keyed:
        """The values for a task."""
        return self._kept.get(task, ())
