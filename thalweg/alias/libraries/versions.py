"""Versions that can be compared: what is left to us of distutils."""

from __future__ import annotations

import functools
import re


@functools.total_ordering
class Version:
    """A version such as `1.15.5`; parts compare as numbers where they are numbers."""

    def __init__(self, text: str) -> None:
        self.text = text
        self.version = tuple(int(part) for part in re.findall(r"\d+", text))

    def __str__(self) -> str:
        return self.text

    def __eq__(self, other: object) -> bool:
        return self.version == _version(other)

    def __lt__(self, other: object) -> bool:
        return self.version < _version(other)

    def __hash__(self) -> int:
        return hash(self.version)


def _version(value: object) -> tuple[int, ...]:
    return value.version if isinstance(value, Version) else Version(str(value)).version
