"""Timed regions: wrappers of regions that report when each kernel ran.

A `TimedRegion` does what its region does, and reports the program that ran with the times of its
entries. A partly compiled region runs its instructions through a `TimedContext`, which times them
as well.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from thalweg import errors
from thalweg.device.program import AnyProgram, Times
from thalweg.runtime.compiled import Executable
from thalweg.runtime.kernels import Context, Instruction
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
        compiled, count = self.compiled, len(self.compiled.region.inputs)
        arrays, cells, results = values[:count], values[count:], None
        program = compiled.compile(tuple(np.shape(array) for array in arrays), cells)
        if program is not None:
            with suppress(errors.FailedPreconditionError):  # the reference kernels raise it again
                results, times = program.timed(context, arrays, cells)
                if results is not None:
                    self.on_run(program, times)
        if results is None:
            inner = TimedContext(context.node, context.resources, context.cancellation, region=self)
            results = Executable.run(compiled, inner, arrays, cells)
        if isinstance(compiled, SendingExecutable) and context.rendezvous is not None:
            compiled.send(context, results)
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
