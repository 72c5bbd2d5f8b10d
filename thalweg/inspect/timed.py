"""Programs run with a clock: a region's call is wrapped to note when each kernel ran.

A `TimedRegion` does what the region does, and hands on the program that ran with the times of its
entries. Nodes that run between compiled parts of a region are seen through a `TimedContext`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from thalweg import errors
from thalweg.device.program import AnyProgram, Times
from thalweg.runtime.compiled import Executable
from thalweg.runtime.kernels import Context, Instruction, run
from thalweg.runtime.sending import SendingExecutable

#: (the program that ran, the times of its entries)
Ran = Callable[[AnyProgram, Times], None]
#: run one instruction over slots in a context
Single = Callable[[Instruction, list[Any], Context], None]


@dataclass(frozen=True)
class TimedRegion:
    """The kernel of a region, telling what ran; `single` runs what is not compiled."""

    compiled: Executable
    ran: Ran
    single: Single

    def __call__(self, context: Context, *values: Any) -> Any:
        count = len(self.compiled.region.inputs)
        arrays, cells = values[:count], values[count:]
        program = self.compiled.compile(tuple(np.shape(array) for array in arrays), cells)
        results = None if program is None else self._timed(program, context, arrays, cells)
        if results is None:
            inner = TimedContext(context.node, context.resources, context.cancellation, region=self)
            results = Executable.run(self.compiled, inner, arrays, cells)
        if isinstance(self.compiled, SendingExecutable) and context.rendezvous is not None:
            self.compiled.send(context, results)
        return results

    def _timed(
        self,
        program: AnyProgram,
        context: Context,
        arrays: Sequence[Any],
        cells: Sequence[Any],
    ) -> list[Any] | None:
        try:
            results, times = program.timed(context, arrays, cells)
        except errors.FailedPreconditionError:
            return None
        if results is not None:
            self.ran(program, times)
        return results


@dataclass(slots=True)
class TimedContext(Context):
    """A step as a region sees it that runs in parts: the parts are timed as well."""

    region: TimedRegion = field(kw_only=True)

    def run(self, instructions: Sequence[Instruction], slots: list[Any]) -> None:
        """Run the parts of a region, each on its own."""
        for instruction in instructions:
            self.region.single(timed(instruction, self.region.ran, self.region.single), slots, self)


def timed(instruction: Instruction, ran: Ran, single: Single) -> Instruction:
    """An instruction that, where it is a region, tells what ran."""
    if not isinstance(instruction.call, Executable):
        return instruction
    return instruction._replace(call=TimedRegion(instruction.call, ran, single))


def run_single(instruction: Instruction, slots: list[Any], context: Context) -> None:
    """Run one instruction, and nothing more."""
    run((instruction,), slots, context.resources, context.cancellation)
