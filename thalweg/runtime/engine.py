"""Engines: what plans and runs the steps of a session.

A session without a target has an engine of its own, with the devices of this process and state that
ends with it. The other kind of engine is a cluster's master (`thalweg.cluster.master`).
"""

from __future__ import annotations

import os
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from typing import Any

from thalweg import errors
from thalweg.device.device import Device
from thalweg.device.local import local_devices
from thalweg.place.placer import Placer
from thalweg.runtime.cancellation import Cancellation
from thalweg.runtime.config import SessionOptions
from thalweg.runtime.executor import execute
from thalweg.runtime.plan import Plan, Step, plan, prune
from thalweg.runtime.resources import Resources
from thalweg.runtime.step_cache import StepEntry, step_entry

#: THALWEG_COMPILE=0 runs everything on the reference kernels.
COMPILES = os.environ.get("THALWEG_COMPILE", "1") != "0"


def _ignore(error: errors.OpError) -> None:
    """Tell nobody."""


class Engine(ABC):
    """What a session runs its steps on."""

    devices: Sequence[Device]  # those of this process
    resources: Resources  # what the first of them owns
    placer: Placer
    #: Told of an error that ends the session, whoever caused it.
    on_failure: Callable[[errors.OpError], None] = staticmethod(_ignore)

    @abstractmethod
    def plan(self, step: Step) -> Plan:
        """A step, ready to run."""

    def entry(self, step: Step) -> StepEntry | None:
        """The disk entry of a step's program; None for a step that has none."""
        return None

    def explained(self, planned: Plan) -> Plan:
        """A plan with all that can be told of it."""
        return planned

    @abstractmethod
    def execute(self, planned: Plan, feeds: Sequence[Any], cancellation: Cancellation) -> list[Any]:
        """Run a step that was planned; what is fetched, fresh."""

    @abstractmethod
    def close(self) -> None:
        """The session ends."""


class LocalEngine(Engine):
    """The devices of this process, with state of their own."""

    def __init__(self, options: SessionOptions) -> None:
        self.devices = local_devices(options.device_count, options.threads, gpus=options.gpus)
        self.placer = Placer([each.name for each in self.devices], options.allow_soft_placement)
        self._switches = options.optimizer
        self._own()

    def _own(self) -> None:
        """Have state that nobody has used."""
        self.resources, *self._others = Resources.of_devices(self.devices)

    def plan(self, step: Step) -> Plan:
        return plan(step, self.devices, self.placer, COMPILES, self._switches)

    def entry(self, step: Step) -> StepEntry | None:
        if not COMPILES or len(self.devices) > 1:
            return None
        nodes = prune(step.fetches, step.targets, step.feeds)
        self.placer.place(nodes)  # raises for a device that a node cannot have
        return step_entry(step, nodes, self.devices[0], self._switches)

    def execute(self, planned: Plan, feeds: Sequence[Any], cancellation: Cancellation) -> list[Any]:
        return execute(planned, feeds, self.resources, cancellation)

    def close(self) -> None:
        self._own()
