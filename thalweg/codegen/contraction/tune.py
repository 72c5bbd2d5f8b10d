"""Tuned schedules, kept in memory and beside the kernels on disk.

The key of a kernel and its fastest schedule, the winner, come in; the winner goes out, in this
process and later ones. A file that is damaged, or that other generators wrote, is ignored.
"""

from __future__ import annotations

import json
from dataclasses import asdict, fields
from hashlib import sha256
from secrets import token_hex
from typing import TYPE_CHECKING, Any, TypeVar

from thalweg.ir.target import Target
from thalweg.platform.caches import Bounded
from thalweg.platform.disk_cache import Disk, disk_of_environment

if TYPE_CHECKING:
    from _typeshed import DataclassInstance

_STATE = sha256(b"state of the schedules").hexdigest()

Kept = TypeVar("Kept", bound="DataclassInstance")


class Winners:
    """The fastest measured schedules, by the keys of their kernels."""

    def __init__(self, disk: Disk | None) -> None:
        self._disk = disk
        self._known = Bounded[str, Any]("schedules that won", 1 << 13)
        self._state: str | None = None  # not read yet

    def find(self, key: str, target: Target, sample: Kept) -> Kept | None:
        """The winner of a kernel, if any; schedules are of the sample's type."""
        name = _name(key, target)
        if name not in self._known:
            content = self._disk.read(name) if self._disk else None
            self._known[name] = None if content is None else parsed_like(content, sample)
        return self._known[name]

    @property
    def state(self) -> str:
        """A token that changes with every winner that is kept."""
        if self._state is None:
            content = self._disk.read(_STATE) if self._disk else None
            self._state = (content or b"").hex()
        return self._state

    def keep(self, key: str, target: Target, schedule: DataclassInstance) -> None:
        """Make a schedule the winner of a kernel."""
        name = _name(key, target)
        self._known[name] = schedule
        self._state = token_hex(8)
        if self._disk:
            self._disk.write(_STATE, self._state.encode())
            self._disk.write(name, json.dumps(asdict(schedule)).encode())


def winners() -> Winners:
    """The winners of this process."""
    return _process.get("winners") or _process.setdefault("winners", Winners(disk_of_environment()))


_process: dict[str, Winners] = {}


def parsed_like(content: bytes, sample: Kept) -> Kept | None:
    """The schedule of the sample's type in the content of a file; None if it is not one."""
    try:
        made = type(sample)(**json.loads(content))
    except (TypeError, ValueError):
        return None
    names = [field.name for field in fields(sample)]
    same = all(type(getattr(made, name)) is type(getattr(sample, name)) for name in names)
    return made if same else None


def _name(key: str, target: Target) -> str:
    """The file of a kernel's winner, which also depends on the cache sizes."""
    sizes = f"{target.l1} {target.l2} {target.l3}"
    return sha256(f"schedule\0{target.key}\0{sizes}\0{key}".encode()).hexdigest()
