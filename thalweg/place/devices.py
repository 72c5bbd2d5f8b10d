"""Devices by name, and which of them a request names.

A request is a device name in which parts may be open: `/cpu:1` asks for a kind and an index,
`/job:worker` for a job alone, and the empty name for nothing.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import cached_property

from thalweg.graph.device import DeviceSpec
from thalweg.platform.caches import memoized


class Devices:
    """Devices in the order in which they are preferred."""

    def __init__(self, names: Sequence[str]) -> None:
        self.names = tuple(names)
        self._specs = [DeviceSpec.from_string(name) for name in names]

    @cached_property
    def have_tasks(self) -> bool:
        """Whether they belong to several tasks."""
        return len({str(without_device(spec)) for spec in self._specs}) > 1

    def kind(self, name: str) -> str:
        """Of which kind a device is."""
        return self._specs[self.names.index(name)].device_type or ""

    def feasible(self, request: DeviceSpec, kinds: frozenset[str]) -> list[str]:
        """The devices of some kinds that satisfy a request."""
        return [
            name
            for name, spec in zip(self.names, self._specs, strict=True)
            if spec.device_type in kinds and matches(request, spec)
        ]

    def lacks_kind(self, request: DeviceSpec) -> bool:
        """Whether a task is here that has no device of the kind that is asked for."""
        task = without_device(request)
        is_here = any(matches(task, spec) for spec in self._specs)
        return is_here and request.device_type not in {spec.device_type for spec in self._specs}


@memoized(64)
def accelerated_first(names: tuple[str, ...]) -> Devices:
    """Devices, with the GPUs of each task before its CPUs."""
    specs = [DeviceSpec.from_string(name) for name in names]
    tasks = list(dict.fromkeys(str(without_device(spec)) for spec in specs))
    places = {task: place for place, task in enumerate(tasks)}

    def rank(item: tuple[str, DeviceSpec]) -> tuple[int, bool]:
        return places[str(without_device(item[1]))], item[1].device_type != "GPU"

    pairs = sorted(zip(names, specs, strict=True), key=rank)
    return Devices([name for name, _ in pairs])


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
