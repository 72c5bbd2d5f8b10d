"""Locks in the child of a fork: those that other threads of the parent held are free again."""

from __future__ import annotations

import os
from typing import Protocol
from weakref import WeakSet


class Locked(Protocol):
    """Something with locks of its own."""

    def renew_locks(self) -> None:
        """Have new locks, which nobody holds."""
        ...


_holders: WeakSet[Locked] = WeakSet()


def renewed_after_fork(holder: Locked) -> None:
    """Let an object rebuild its locks in the child of a fork."""
    _holders.add(holder)


def _renew() -> None:
    for holder in list(_holders):
        holder.renew_locks()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_renew)
