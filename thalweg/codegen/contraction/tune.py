"""Schedules that were found best by measurement, kept in memory and beside the kernels on disk.

What comes in is the key of a kernel and its winner; what goes out, in this process and later ones,
is that winner. A file that is damaged, or that other generators wrote, counts as not there.
"""

from __future__ import annotations

import importlib
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

    from thalweg.codegen.contraction.schedule import Schedule

_STATE = sha256(b"state of the schedules").hexdigest()

Kept = TypeVar("Kept", bound="DataclassInstance")


class Winners:
    """The best schedules by the keys of their kernels."""

    def __init__(self, disk: Disk | None) -> None:
        self._disk = disk
        self._known = Bounded[str, Any]("schedules that won", 1 << 13)
        self._state: str | None = None  # not looked up yet

    def find(self, key: str, target: Target) -> Schedule | None:
        """The schedule that was kept for a kernel of a processor, if any."""
        return self.find_like(key, target, _sample())

    def find_like(self, key: str, target: Target, sample: Kept) -> Kept | None:
        """The schedule that was kept for a kernel, if it is one of the sample's type."""
        name = _name(key, target)
        if name not in self._known:
            content = self._disk.read(name) if self._disk else None
            self._known[name] = None if content is None else parsed_like(content, sample)
        return self._known[name]

    @property
    def state(self) -> str:
        """A word for all that was kept so far: another one after every winner."""
        if self._state is None:
            content = self._disk.read(_STATE) if self._disk else None
            self._state = (content or b"").hex()
        return self._state

    def keep(self, key: str, target: Target, schedule: DataclassInstance) -> None:
        """Use a schedule for a kernel from now on."""
        name = _name(key, target)
        self._known[name] = schedule
        self._state = token_hex(8)
        if self._disk:
            self._disk.write(_STATE, self._state.encode())
            self._disk.write(name, json.dumps(asdict(schedule)).encode())


def winners() -> Winners:
    """The winners that this process knows."""
    return _process.get("winners") or _process.setdefault("winners", Winners(disk_of_environment()))


_process: dict[str, Winners] = {}


def parsed(content: bytes) -> Schedule | None:
    """The schedule for a processor in the content of a file, if it is one."""
    return parsed_like(content, _sample())


def _sample() -> Schedule:
    # The compiler's: not before it is needed.
    compiler = importlib.import_module("thalweg.codegen.contraction.schedule")
    return compiler.Schedule(1, 0, 1)


def parsed_like(content: bytes, sample: Kept) -> Kept | None:
    """The schedule of the sample's type in the content of a file, if it is one."""
    try:
        made = type(sample)(**json.loads(content))
    except (TypeError, ValueError):
        return None
    names = [field.name for field in fields(sample)]
    same = all(type(getattr(made, name)) is type(getattr(sample, name)) for name in names)
    return made if same else None


def _name(key: str, target: Target) -> str:
    """The file of a kernel's winner; the sizes of caches decide about it too."""
    sizes = f"{target.l1} {target.l2} {target.l3}"
    return sha256(f"schedule\0{target.key}\0{sizes}\0{key}".encode()).hexdigest()
