"""Steps explained: `sess.plan(fetches, feeds)` gives a `StepPlan`.

Print it to see what becomes of the step, stage by stage; `.kernels` have the code of each;
measure with `.profile()`. None of it changes the state of the session.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np

from thalweg.device.compiled_kernel import CompiledKernel
from thalweg.device.device import Device
from thalweg.inspect.plan_html import page
from thalweg.inspect.plan_text import graph_facts, heading, listing
from thalweg.inspect.plan_walk import (
    HostOp,
    PlannedControl,
    PlannedRegion,
    PlannedUnit,
    planned_units,
)
from thalweg.inspect.profile import Profile, profile
from thalweg.runtime.plan import Plan, Step
from thalweg.runtime.resources import Resources


@dataclass(frozen=True, eq=False)
class StepPlan:
    """How a step runs: `print` it, read its `kernels`, or measure it with `profile`.

    ```
    plan = sess.plan([train, loss], {x: images, y: labels})
    print(plan)
    print(plan.kernels[0].asm)
    print(plan.profile())
    ```
    """

    step: Step
    plan: Plan
    feeds: Sequence[Any]
    resources: Resources
    graph_size: int
    units: Sequence[PlannedUnit]

    @cached_property
    def regions(self) -> list[PlannedRegion]:
        """The regions, those inside others included."""
        return [unit for unit in self.units if isinstance(unit, PlannedRegion)]

    @property
    def host_ops(self) -> list[HostOp]:
        """The nodes that run on their NumPy kernels."""
        return [unit for unit in self.units if isinstance(unit, HostOp)]

    @property
    def controls(self) -> list[PlannedControl]:
        """The conditionals and loops, and how they ran the last time."""
        return [unit for unit in self.units if isinstance(unit, PlannedControl)]

    @cached_property
    def kernels(self) -> list[CompiledKernel]:
        """All native kernels, in the order they run."""
        return [kernel for region in self.regions for kernel in region.kernels]

    def profile(self, n: int = 10) -> Profile:
        """Measure every kernel in `n` runs on copies of the variables: no state changes."""
        return profile(self.plan, self.feeds, self.resources, n)

    def text(self, most: int | None = None) -> str:
        """The plan as text; with `most`, only so many kernels of each region, the heaviest."""
        return "\n".join([*self._facts(), *listing(self.regions, most)])

    def _facts(self) -> list[str]:
        """What holds for the whole step."""
        fed = zip(self.step.feeds, map(np.shape, self.feeds), strict=True)
        asked = heading(self.step.fetches, self.step.targets, dict(fed))
        found = self.regions, self.host_ops, self.controls
        return [*asked, *graph_facts(self.plan, *found, self.graph_size)]

    def _repr_html_(self) -> str:
        """The plan in a notebook: its regions as tables, kernels with their share of the work."""
        return page(self._facts(), self.regions)

    def __str__(self) -> str:
        return self.text()

    __repr__ = __str__


def explain(
    plan: Plan,
    step: Step,
    feeds: Sequence[Any],
    resources: Resources,
    graph_size: int,
    device: Device,
) -> StepPlan:
    """Lower and compile a plan for these feeds, and tell how it runs."""
    shapes = dict(zip(step.feeds, map(np.shape, feeds), strict=True))
    units = planned_units(plan, shapes, resources.on(plan.device), device)
    for each in plan.partitions:
        own = {tensor: np.shape(feeds[place]) for place, tensor in each.partition.feeds}
        units += planned_units(each.plan, own, resources.on(each.device.name), each.device)
    return StepPlan(step, plan, feeds, resources, graph_size, units)
