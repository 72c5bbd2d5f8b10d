"""Locks in the child of a fork: those that other threads of the parent held are free again."""

from __future__ import annotations

import os
from typing import Any, Protocol, TypeVar
from weakref import WeakSet


class Locked(Protocol):
    """Something with locks of its own."""

    def renew_locks(self) -> None:
        """Have new locks, which nobody holds."""
        ...


Lock = TypeVar("Lock")

_holders: WeakSet[Locked] = WeakSet()
_locks: WeakSet[Any] = WeakSet()


def freed_after_fork(lock: Lock) -> Lock:
    """A lock of `threading` that nobody holds in the child of a fork."""
    _locks.add(lock)
    return lock


def renewed_after_fork(holder: Locked) -> None:
    """Let an object rebuild its locks in the child of a fork."""
    _holders.add(holder)


def _renew() -> None:
    for lock in list(_locks):
        lock._at_fork_reinit()  # as the interpreter does with its own
    for holder in list(_holders):
        holder.renew_locks()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_renew)
