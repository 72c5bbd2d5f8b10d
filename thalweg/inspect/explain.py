"""Step plans: `sess.plan(fetches, feeds)` returns a `StepPlan`.

Printing it shows how the step is compiled, stage by stage; its `kernels` have their code, and
`profile()` measures them. None of this changes the state of the session.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np

from thalweg.device.compiled_kernel import CompiledKernel
from thalweg.inspect.plan_html import page
from thalweg.inspect.plan_text import region_lines, step_facts
from thalweg.inspect.plan_walk import HostOp, PlannedRegion, PlannedUnit, ShapeWalk
from thalweg.inspect.profile import Profile, profile
from thalweg.runtime.dataflow.control_region import ControlCall
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
        """The compiled regions, those inside partly compiled regions included."""
        return [unit for unit in self.units if isinstance(unit, PlannedRegion)]

    @property
    def host_ops(self) -> list[HostOp]:
        """The nodes that run on their NumPy kernels."""
        return [unit for unit in self.units if isinstance(unit, HostOp)]

    @property
    def controls(self) -> list[ControlCall]:
        """The conditionals and loops, and how they last ran."""
        return [unit for unit in self.units if isinstance(unit, ControlCall)]

    @cached_property
    def kernels(self) -> list[CompiledKernel]:
        """All native kernels, in the order they run."""
        return [kernel for region in self.regions for kernel in region.kernels]

    def profile(self, n: int = 10) -> Profile:
        """Measure every kernel in `n` runs on copies of the variables; no state changes."""
        return profile(self.plan, self.feeds, self.resources, n)

    def text(self, most: int | None = None) -> str:
        """The plan as text; at most `most` kernels of each region, those with the most work."""
        return "\n".join([*step_facts(self), *region_lines(self.regions, most)])

    def _repr_html_(self) -> str:
        """The plan for notebooks: a table of kernels, with their share of the work, per region."""
        return page(step_facts(self), self.regions)

    def __str__(self) -> str:
        return self.text()

    __repr__ = __str__


def explain(
    plan: Plan, step: Step, feeds: Sequence[Any], resources: Resources, graph_size: int
) -> StepPlan:
    """Lower and compile a plan for these feeds, without running it."""
    units: list[PlannedUnit] = []
    for part, values in plan.parts(feeds):
        shapes = dict(zip(part.feeds, map(np.shape, values), strict=True))
        units += ShapeWalk(resources.on(part.device), shapes).units(part.instructions)
    return StepPlan(step, plan, feeds, resources, graph_size, units)
