"""Devices by name, and which of them satisfy a request.

A request is a partial device name: `/cpu:1` names a type and an index, `/job:worker` only a job,
and the empty name nothing.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from thalweg.graph.device import DeviceSpec, is_cpu, task_of
from thalweg.platform.caches import memoized


class Devices:
    """Devices in order of preference: the accelerators of each task before its CPUs."""

    def __init__(self, names: Sequence[str]) -> None:
        tasks = list(dict.fromkeys(map(task_of, names)))

        def rank(name: str) -> tuple[int, bool]:
            return tasks.index(task_of(name)), is_cpu(name)

        self.names = tuple(sorted(names, key=rank))
        self._specs = {name: DeviceSpec.from_string(name) for name in self.names}
        self.span_tasks = len(tasks) > 1

    def feasible(self, request: DeviceSpec, accelerated: bool = True) -> list[str]:
        """The devices that satisfy a request, in order of preference; unless `accelerated`, only
        CPUs."""
        return [
            name
            for name, spec in self._specs.items()
            if (accelerated or is_cpu(name)) and matches(request, spec)
        ]

    def lacks_type(self, request: DeviceSpec) -> bool:
        """Whether there is a task that a request names, but no device of the requested type."""
        task, specs = without_device(request), self._specs.values()
        has_task = any(matches(task, spec) for spec in specs)
        return has_task and all(spec.device_type != request.device_type for spec in specs)


accelerated_first = memoized(64)(Devices)  # by the names


def matches(request: DeviceSpec, device: DeviceSpec) -> bool:
    """Whether a device satisfies a request."""
    return all(
        value is None or value == getattr(device, field) for field, value in vars(request).items()
    )


def without_device(request: DeviceSpec) -> DeviceSpec:
    """The job, replica and task of a request."""
    return replace(request, device_type=None, device_index=None)


def merge_requests(one: DeviceSpec, other: DeviceSpec) -> DeviceSpec | None:
    """The conjunction of two requests; None if they conflict."""
    fields = {field: value for field, value in vars(other).items() if value is not None}
    if any(getattr(one, field) not in (None, value) for field, value in fields.items()):
        return None
    return replace(one, **fields)
