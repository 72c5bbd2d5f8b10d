"""Native control nodes: conditionals and loops as kernels of a plan, compiled for each set of input
shapes.

Traces of a loop have a capacity in iterations; a call that exceeds it is run again with four times
as much, and so are later calls. A program that an earlier process stored is restored without the
compiler.
"""

from __future__ import annotations

import importlib
import threading
from collections.abc import Sequence
from typing import Any

from thalweg.device.control import AnyControlStep, CapacityExceeded
from thalweg.device.control_inputs import (
    FIRST_CAPACITY,
    buffer_text,
    capacity_for,
    input_buffer,
    value_key,
)
from thalweg.device.device import Device
from thalweg.lower.control.program import Binding, Capacity
from thalweg.lower.specialise import ControlRegion, NotCompiled
from thalweg.platform.caches import Bounded
from thalweg.platform.collector import gc_paused
from thalweg.platform.depth import deep_calls
from thalweg.platform.forks import freed_after_fork
from thalweg.runtime.program_cache import ProgramCache, cached_lower

#: The package's own tests set this to False: they test the lowering of control nodes, and patch
#: parts of it that no key contains.
RESTORES = True

_MAX_PROGRAMS = 64  # per control node, one for each set of shapes


class NativeControl:
    """A loop or conditional of a step: native programs by input shapes."""

    def __init__(self, unit: ControlRegion, device: Device) -> None:
        self._unit, self._device = unit, device
        self._programs = Bounded[Any, AnyControlStep | None](
            "programs of a loop or conditional", _MAX_PROGRAMS
        )
        self._cache = ProgramCache(unit, device)
        self._capacity = Capacity(FIRST_CAPACITY, FIRST_CAPACITY)
        self.reason = ""  # why the last call was not native, if it was not
        self._lock = freed_after_fork(threading.Lock())

    def __call__(self, context: Any, values: Sequence[Any]) -> list[Any] | None:
        """The unit's outputs, or None if the executor must compute them."""
        while True:
            step = self._step(values)
            if step is None:
                return None
            try:
                return step.run(context, values)
            except CapacityExceeded as exceeded:
                capacities = exceeded.capacities
            with self._lock:
                grown = dict(self._capacity.grown)
                for number, capacity in capacities.items():
                    grown[number] = max(grown.get(number, 0), 4 * capacity)
                self._capacity = self._capacity._replace(grown=tuple(sorted(grown.items())))

    def _step(self, values: Sequence[Any]) -> AnyControlStep | None:
        capacity = capacity_for(values, self._capacity)
        key = (capacity, *[value_key(value) for value in values])
        if key not in self._programs:
            with self._lock:
                if key not in self._programs:
                    self._programs[key] = self._compile(values, capacity)
        return self._programs[key]

    def _compile(self, values: Sequence[Any], capacity: Capacity) -> AnyControlStep | None:
        """The program for these values; None, with a `reason`, if there is no native one."""
        buffers = [input_buffer(number, value) for number, value in enumerate(values)]
        inputs = [buffer for buffer in buffers if buffer is not None]
        if len(inputs) < len(values):
            self.reason = (
                "an input has no value, or a list holds elements of several shapes, empty ones, or "
                "such lists"
            )
            return None
        try:
            with gc_paused(), deep_calls():
                return self._restore(inputs, capacity) or self._lower_and_load(inputs, capacity)
        except NotCompiled as failure:
            self.reason = str(failure)
            return None

    def _restore(self, inputs: Sequence[Binding], capacity: Capacity) -> AnyControlStep | None:
        """The program that an earlier process stored; None if there is none."""
        if not RESTORES:
            return None
        cached = self._cache.find([(repr(capacity),), *[(buffer_text(each),) for each in inputs]])
        return cached and self._device.restore_control(*cached[:2])

    def _lower_and_load(self, inputs: Sequence[Binding], capacity: Capacity) -> AnyControlStep:
        builder = importlib.import_module("thalweg.lower.control.builder")  # imported on demand
        target = self._device.target
        program = builder.lower_control(self._unit, inputs, capacity, target, cached_lower)
        kernels = self._cache.specialized(program.launches)
        step = self._device.load_control(program, kernels)
        if step.template is not None:
            self._cache.store(step.template)
        return step
