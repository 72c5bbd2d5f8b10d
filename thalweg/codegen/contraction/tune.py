"""Schedules that were found best by measurement, kept in memory and beside the kernels on disk.

What comes in is the key of a kernel and its winner; what goes out, in this process and later ones,
is that winner. A file that is damaged, or that other generators wrote, counts as not there.
"""

from __future__ import annotations

import json
from dataclasses import asdict, fields
from hashlib import sha256
from secrets import token_hex

from thalweg.codegen.contraction.schedule import Schedule
from thalweg.codegen.machine import CpuTarget
from thalweg.platform.caches import Bounded
from thalweg.platform.disk_cache import Disk, disk_of_environment

_STATE = sha256(b"state of the schedules").hexdigest()


class Winners:
    """The best schedules by the keys of their kernels."""

    def __init__(self, disk: Disk | None) -> None:
        self._disk = disk
        self._known = Bounded[str, Schedule | None]("schedules that won", 1 << 13)
        self._state: str | None = None  # not looked up yet

    def find(self, key: str, target: CpuTarget) -> Schedule | None:
        """The schedule that was kept for a kernel, if any."""
        name = _name(key, target)
        if name not in self._known:
            content = self._disk.read(name) if self._disk else None
            self._known[name] = None if content is None else parsed(content)
        return self._known[name]

    @property
    def state(self) -> str:
        """A word for all that was kept so far: another one after every winner."""
        if self._state is None:
            content = self._disk.read(_STATE) if self._disk else None
            self._state = (content or b"").hex()
        return self._state

    def keep(self, key: str, target: CpuTarget, schedule: Schedule) -> None:
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
    """The schedule in the content of a file, if it is one."""
    try:
        made = Schedule(**json.loads(content))
    except (TypeError, ValueError):
        return None
    sample = Schedule(1, 0, 1)
    names = [field.name for field in fields(Schedule)]
    same = all(type(getattr(made, name)) is type(getattr(sample, name)) for name in names)
    return made if same else None


def _name(key: str, target: CpuTarget) -> str:
    """The file of a kernel's winner; the sizes of caches decide about it too."""
    sizes = f"{target.l1} {target.l2} {target.l3}"
    return sha256(f"schedule\0{target.key}\0{sizes}\0{key}".encode()).hexdigest()
