"""Timed regions: wrappers of regions that report when each kernel ran.

A `TimedRegion` does what its region does, and reports the program that ran with the times of its
entries. A partly compiled region runs its instructions through a `TimedContext`, which times them
as well.
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

#: Called with a program that ran and the times of its entries.
OnRun = Callable[[AnyProgram, Times], None]
#: Runs one instruction on slots in a context.
RunOne = Callable[[Instruction, list[Any], Context], None]


@dataclass(frozen=True)
class TimedRegion:
    """A region that reports its runs; `run_one` runs instructions that are not compiled."""

    compiled: Executable
    on_run: OnRun
    run_one: RunOne

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
            self.on_run(program, times)
        return results


@dataclass(slots=True)
class TimedContext(Context):
    """The context of a partly compiled region, which times its parts."""

    region: TimedRegion = field(kw_only=True)

    def run(self, instructions: Sequence[Instruction], slots: list[Any]) -> None:
        """Run the parts of a region one by one."""
        on_run, run_one = self.region.on_run, self.region.run_one
        for instruction in instructions:
            run_one(timed(instruction, on_run, run_one), slots, self)


def timed(instruction: Instruction, on_run: OnRun, run_one: RunOne) -> Instruction:
    """The instruction, with a `TimedRegion` in place of a region."""
    if not isinstance(instruction.call, Executable):
        return instruction
    return instruction._replace(call=TimedRegion(instruction.call, on_run, run_one))


def run_single(instruction: Instruction, slots: list[Any], context: Context) -> None:
    """Run one instruction."""
    run((instruction,), slots, context.resources, context.cancellation)
