"""Values in messages: arrays as they are, and places where there is none.

A trace of a branch that was not taken has no value; nobody looks at it, but it flows all the same.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from thalweg.cluster.wire import Message

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
    """The values of a message by their places in a step."""
    return dict(zip(places, values_of(message), strict=True))
