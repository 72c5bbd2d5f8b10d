"""Devices by name, and which of them a request names.

A request is a device name in which parts may be open: `/cpu:1` asks for a kind and an index,
`/job:worker` for a job alone, and the empty name for nothing.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from thalweg.graph.device import DeviceSpec
from thalweg.platform.caches import memoized


class Devices:
    """Devices in the order in which they are preferred: the GPUs of each task before its CPUs."""

    def __init__(self, names: Sequence[str]) -> None:
        specs = {name: DeviceSpec.from_string(name) for name in names}
        of_task = {name: str(without_device(spec)) for name, spec in specs.items()}
        tasks = list(dict.fromkeys(of_task.values()))

        def rank(name: str) -> tuple[int, bool]:
            return tasks.index(of_task[name]), specs[name].device_type != "GPU"

        self._specs = {name: specs[name] for name in sorted(names, key=rank)}
        self.names = tuple(self._specs)
        self.kinds = {name: spec.device_type or "" for name, spec in specs.items()}
        self.have_tasks = len(tasks) > 1  # whether they belong to several

    def feasible(self, request: DeviceSpec, kinds: frozenset[str]) -> list[str]:
        """The devices of some kinds that satisfy a request."""
        return [
            name
            for name, spec in self._specs.items()
            if spec.device_type in kinds and matches(request, spec)
        ]

    def lacks_kind(self, request: DeviceSpec) -> bool:
        """Whether a task is here that has no device of the kind that is asked for."""
        task = without_device(request)
        is_here = any(matches(task, spec) for spec in self._specs.values())
        return is_here and request.device_type not in self.kinds.values()


@memoized(64)
def accelerated_first(names: tuple[str, ...]) -> Devices:
    """Devices, with the GPUs of each task before its CPUs."""
    return Devices(names)


def matches(request: DeviceSpec, device: DeviceSpec) -> bool:
    """Whether a device satisfies a request."""
    return all(
        asked is None or asked == getattr(device, part) for part, asked in vars(request).items()
    )


def without_device(request: DeviceSpec) -> DeviceSpec:
    """The job, replica and task of a request."""
    return replace(request, device_type=None, device_index=None)


def merged(one: DeviceSpec, other: DeviceSpec) -> DeviceSpec | None:
    """What asks for all that two requests ask for; None where they contradict each other."""
    found = replace(one)
    for part, asked in vars(other).items():
        held = getattr(one, part)
        if asked is not None and held is not None and asked != held:
            return None
        if asked is not None:
            setattr(found, part, asked)
    return found
