"""Locks after a fork: the child releases those that other threads of the parent held."""

from __future__ import annotations

import os
from typing import Any, Protocol, TypeVar
from weakref import WeakSet


class LockOwner(Protocol):
    """An object that owns locks."""

    def renew_locks(self) -> None:
        """Replace the locks by new ones, which are not held."""
        ...


Lock = TypeVar("Lock")

_holders: WeakSet[LockOwner] = WeakSet()
_locks: WeakSet[Any] = WeakSet()


def freed_after_fork(lock: Lock) -> Lock:
    """Register a lock of `threading` to be released in the child of a fork; returns it."""
    _locks.add(lock)
    return lock


def renewed_after_fork(holder: LockOwner) -> None:
    """Register an object to replace its locks in the child of a fork."""
    _holders.add(holder)


def _renew() -> None:
    for lock in list(_locks):
        lock._at_fork_reinit()  # as the interpreter does with its own locks
    for holder in list(_holders):
        holder.renew_locks()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_renew)
