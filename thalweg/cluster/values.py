"""Values in messages: by feed or fetch index, or by rendezvous key.

A tensor of a branch that was not taken has no value: it is sent as None and never read. A small
value is piggybacked if another message goes to the same task at the same time: the RUN message of
its part of a step, or the reply to the master at the end of one.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from threading import get_ident
from typing import Any

import numpy as np

from thalweg.cluster.wire import Message
from thalweg.graph.device import task_of
from thalweg.partition.rendezvous import Key
from thalweg.platform.caches import memoized

Keyed = Sequence[tuple[Key, Any]]

#: Memoized, as the same keys recur in every step.
key_of = memoized(4096)(Key)
_MAX_PIGGYBACK = 32 << 10  # bytes of a value that is piggybacked
_ARRAYS: Any = (np.ndarray, np.generic)
_ABSENT = "absent"  # the field with the indices of values that are None


def packed(message: Message) -> Message:
    """The message with None values removed and their indices recorded in a field."""
    absent = [index for index, value in enumerate(message.values) if value is None]
    if not absent:
        return message
    fields = {**message.fields, _ABSENT: absent}
    return message._replace(fields=fields, values=[v for v in message.values if v is not None])


def values_of(message: Message) -> Sequence[Any]:
    """The values of a packed message, with the None values restored."""
    absent: Sequence[int] = message.fields.get(_ABSENT, ())
    if not absent:
        return message.values
    values = list(message.values)
    for place in absent:
        values.insert(place, None)
    return values


def by_index(places: Sequence[int], message: Message) -> Mapping[int, Any]:
    """The values of a message by feed or fetch index; they precede piggybacked ones."""
    return dict(zip(places, values_of(message), strict=False))


def by_key(keys: Sequence[Sequence[str]], message: Message) -> list[tuple[Key, Any]]:
    """The piggybacked values of a message, which are its last ones, with their keys."""
    values = message.values[-len(keys) :]
    return [(key_of(*key), value) for key, value in zip(keys, values, strict=True)]


class PiggybackBuffer:
    """Values that one thread sends to some tasks, held back until `close` to be piggybacked."""

    def __init__(self, tasks: Collection[str]) -> None:
        self._tasks, self._by_task = tasks, dict[str, list[tuple[Key, Any]]]()
        self._thread: int | None = get_ident()  # None once closed

    def add(self, key: Key, value: Any) -> bool:
        """Hold a value back; False if the caller has to send it: it is not a small array, is for
        none of the tasks, or this is another thread."""
        if not isinstance(value, _ARRAYS) or value.nbytes > _MAX_PIGGYBACK:
            return False
        task = task_of(key.recv_device)
        if task not in self._tasks or get_ident() != self._thread:
            return False
        self._by_task.setdefault(task, []).append((key, value))
        return True

    def close(self) -> None:
        """Hold back no more values. Called on the same thread."""
        self._thread = None

    def values_for(self, task: str) -> Keyed:
        """The values held back for a task."""
        return self._by_task.get(task, ())
