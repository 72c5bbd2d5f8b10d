"""Profiles: the time of every kernel of a step, compared with the machine's peak rates.

A profile runs a plan several times with the real feeds on copies of the variables, so no state
changes. Host ops with side effects are not run; zeros are substituted for their outputs. Goes out:
a table, its rows as data, and a Chrome trace.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import cached_property
from itertools import accumulate, pairwise
from pathlib import Path
from statistics import median
from typing import Any, TypeVar

import numpy as np

from thalweg import errors
from thalweg.device.compiled_kernel import CompiledKernel, kernels_of, snake_case
from thalweg.device.program import AnyProgram, Times
from thalweg.graph.analysis.node_effects import inner_nodes
from thalweg.graph.node import Node, Tensor
from thalweg.inspect.plan_text import clipped, table
from thalweg.inspect.plan_walk import is_variable
from thalweg.inspect.timed import TimedRegion, timed
from thalweg.inspect.timeline import ChromeTrace, Track
from thalweg.ops.core.basic import Const
from thalweg.ops.core.context import VariableCell
from thalweg.platform.amounts import plural
from thalweg.runtime.cancellation import Cancellation
from thalweg.runtime.compiled import Executable
from thalweg.runtime.kernels import Context, Instruction
from thalweg.runtime.plan import Plan
from thalweg.runtime.resources import Resources

Resource = TypeVar("Resource")

_MAX_ROWS = 40
_MIN_KERNEL_SHARE = 0.8  # of the wall time, for processor time to tell about disturbance
_MIN_PROCESSOR_SHARE = 0.85  # of the threads' wall time, below which the machine was busy
_GROUP_HEAD = ("all kernels of the same ops", "count", "time", "share", "of peak")


class HostKernel:
    """A host op, presented as the only kernel of a program on one thread."""

    kind, space, flops, bytes, phases, users = "host", "", 0.0, 0, 1, 1

    def __init__(self, node: Node) -> None:
        self.name = snake_case(node.type)
        self.ops, self.lines = (node.name,), (node.origin,)


AnyKernel = CompiledKernel | HostKernel


@dataclass(frozen=True)
class ProgramRun:
    """One run of a native program or a host op: its kernels and their times."""

    kernels: Sequence[AnyKernel]
    times: Times

    @property
    def ran(self) -> Times:
        """The begins and ends, in nanoseconds, of the entries that ran."""
        return self.times[self.times > 0]

    @property
    def span(self) -> int:
        """Nanoseconds from the first begin to the last end."""
        return int(self.ran.max() - self.ran.min()) if self.ran.size else 0

    @property
    def threads(self) -> int:
        """The number of threads."""
        return self.times.shape[1]

    def entries(self) -> list[tuple[AnyKernel, slice]]:
        """Each kernel with its entries in the program, one for each phase."""
        ends = list(accumulate((kernel.phases for kernel in self.kernels), initial=0))
        return [(k, slice(*span)) for k, span in zip(self.kernels, pairwise(ends), strict=True)]

    def waits(self) -> Times:
        """For each entry and thread, the time since the thread's previous entry ended."""
        begin, end = self.times[..., 0], self.times[..., 1]
        start = int(self.ran.min()) if self.ran.size else 0
        ends_before = np.vstack([np.full_like(end[:1], start), end[:-1]])
        return np.where(end > 0, begin - np.maximum.accumulate(ends_before), 0)


@dataclass(frozen=True)
class Row:
    """A row of a profile. Times are seconds of the slowest thread, rates those of the best run."""

    number: int
    name: str
    kind: str
    iterations: str
    best: float
    median: float
    wait: float  # the mean of the threads' waits before it
    share: float  # of the threads' time in the step
    flops: float
    bytes: int
    peak: float  # the fraction of the peak rate that it reaches
    bound: str  # the rate that bounds it: "flops" or "bytes"
    ops: tuple[str, ...]
    lines: tuple[str, ...]

    @property
    def flops_per_second(self) -> float:
        """Arithmetic operations per second."""
        return self.flops / self.best if self.best else 0.0

    @property
    def bytes_per_second(self) -> float:
        """Bytes read and written per second."""
        return self.bytes / self.best if self.best else 0.0


@dataclass(frozen=True)
class Group:
    """The rows of kernels with the same ops."""

    name: str
    rows: Sequence[Row]
    seconds: float  # the sum of their medians
    share: float  # of the threads' time
    peak: float  # the mean of their fractions of the peak rate, weighted by time

    @classmethod
    def of(cls, name: str, rows: Sequence[Row]) -> Group:
        """The group of some rows."""
        seconds = sum(row.median for row in rows)
        peak = sum(row.peak * row.median for row in rows) / (seconds or 1.0)
        return cls(name, rows, seconds, sum(row.share for row in rows), peak)


@dataclass(frozen=True)
class Profile:
    """The times of all kernels of a step; `print` it, or write a `chrome_trace`."""

    runs: Sequence[Sequence[ProgramRun]]  # for each run of the step, its programs in order
    wall: float = 0.0  # seconds of all runs, the time between kernels included
    processor: float = 0.0  # seconds of processor time of this process meanwhile

    @cached_property
    def rows(self) -> list[Row]:
        """Kernels and host ops, the longest first."""
        rows: list[Row] = []
        for number, first_run in enumerate(self.runs[0]):
            programs = [run[number] for run in self.runs if number < len(run)]
            # Dynamic sizes may select other kernels in other runs.
            same = [run for run in programs if run.times.shape == first_run.times.shape]
            rows += self._kernel_rows(same, 1 + sum(row.number > 0 for row in rows))
        return sorted(rows, key=lambda row: row.median, reverse=True)

    @property
    def seconds(self) -> list[float]:
        """The time that each run spends in its programs and host ops."""
        return [sum(program.span for program in run) / 1e9 for run in self.runs]

    @cached_property
    def capacity(self) -> float:
        """The time of all threads in all runs, in nanoseconds."""
        return max(sum(p.threads * p.span for run in self.runs for p in run), 1)

    @property
    def waiting(self) -> float:
        """The share of the threads' time outside of kernels, at barriers or idle."""
        return max(1.0 - sum(row.share for row in self.rows), 0.0)

    def _kernel_rows(self, programs: Sequence[ProgramRun], first: int) -> Iterator[Row]:
        """The rows of one program's kernels, numbered from `first`; `programs` are its runs."""
        waits = [program.waits() for program in programs]
        for number, (kernel, phases) in enumerate(programs[0].entries(), first):
            durations = [p.times[phases, :, 1] - p.times[phases, :, 0] for p in programs]
            # Each phase takes as long as its slowest thread.
            seconds = [float(run.max(axis=1).sum()) / 1e9 for run in durations]
            peak, bound = _of_peak(kernel, min(seconds))
            yield Row(
                number if isinstance(kernel, CompiledKernel) else 0,
                kernel.name,
                kernel.kind,
                kernel.space,
                min(seconds),
                median(seconds),
                median(float(run[phases].sum()) / kernel.users for run in waits) / 1e9,
                sum(float(run.sum()) for run in durations) / self.capacity,
                kernel.flops,
                kernel.bytes,
                peak,
                bound,
                kernel.ops,
                kernel.lines,
            )

    def text(self, most: int | None = _MAX_ROWS) -> str:
        """The profile as a table of at most `most` rows, the longest first."""
        shown = self.rows[:most]
        head = ("#", "kernel", "iterations", "best", "median", "wait", "share")
        head = (*head, "GFLOP/s", "GB/s", "of peak")
        lines = [*self._summary(), "", *table(head, map(_cells, shown), left=(1, 2))]
        rest = self.rows[len(shown) :]
        if rest:
            share = sum(row.share for row in rest)
            lines.append(f"  … and {len(rest)} more, {share:.1%} of the time together")
            lines += ["", *table(_GROUP_HEAD, map(_group_cells, self.groups), left=(0,))]
        return "\n".join(lines)

    @property
    def groups(self) -> list[Group]:
        """Kernels grouped by their ops, the longest first."""
        by_name: dict[str, list[Row]] = {}
        for row in self.rows:
            by_name.setdefault(row.name, []).append(row)
        groups = [Group.of(name, rows) for name, rows in by_name.items()]
        return sorted(groups, key=lambda group: group.seconds, reverse=True)

    def _summary(self) -> list[str]:
        times = self.seconds
        flops = sum(row.flops for row in self.rows)
        rate = flops / min(times) / 1e9 if min(times) else 0.0
        threads = max((program.threads for program in self.runs[0]), default=1)
        return [
            f"profile  {plural(len(self.runs), 'run')} on {plural(threads, 'thread')}: best "
            f"{_time(min(times))}, median {_time(median(times))}, {rate:.1f} GFLOP/s",
            *self._disturbance(threads),
            f"threads  {1 - self.waiting:.1%} of their time in kernels, {self.waiting:.1%} waiting",
            *_peaks(self.runs[0]),
        ]

    def _disturbance(self, threads: int) -> list[str]:
        """A warning if other processes used a good part of the processors."""
        in_kernels = sum(self.seconds) > _MIN_KERNEL_SHARE * self.wall
        if not in_kernels or self.processor > _MIN_PROCESSOR_SHARE * threads * self.wall:
            return []
        used = self.processor / self.wall
        return [f"busy     the system gave the {plural(threads, 'thread')} {used:.1f} processors"]

    def __str__(self) -> str:
        return self.text()

    __repr__ = __str__

    def chrome_trace(self, path: str | Path) -> None:
        """Write the fastest run as a Chrome trace: a lane for each thread, an event per call."""
        fastest = self.runs[int(np.argmin(self.seconds))]
        calls = [call for program in fastest for call in _kernel_calls(program)]
        start = min((begin for _, _, begin, _, _ in calls), default=0)
        trace = ChromeTrace()
        process = trace.process("step")
        for thread in sorted({thread for _, thread, _, _, _ in calls}):
            trace.lane(process, thread, f"thread {thread}")
        for kernel, thread, begin, end, wait in calls:
            track, args = Track(process, thread, (begin - start) / 1e3), _trace_args(kernel, wait)
            duration = (end - begin) / 1e3
            trace.emit("X", kernel.kind, kernel.name, track, dur=duration, args=args)
        Path(path).write_text(trace.format_to_string(pretty=True))


def _group_cells(group: Group) -> tuple[str, ...]:
    times = _time(group.seconds), f"{group.share:.1%}"
    return clipped(group.name), str(len(group.rows)), *times, f"{group.peak:.0%}"


def _cells(row: Row) -> tuple[str, ...]:
    return (
        str(row.number or ""),
        clipped(row.name),
        row.iterations,
        _time(row.best),
        _time(row.median),
        _time(row.wait),
        f"{row.share:.1%}",
        f"{row.flops_per_second / 1e9:.1f}" if row.flops else "",
        f"{row.bytes_per_second / 1e9:.1f}" if row.bytes else "",
        f"{row.peak:.0%} {row.bound}" if row.bound else "",
    )


def _time(seconds: float) -> str:
    return f"{seconds * 1e3:.2f} ms" if seconds >= 1e-3 else f"{seconds * 1e6:.1f} µs"


def _of_peak(kernel: AnyKernel, seconds: float) -> tuple[float, str]:
    """The fraction of the peak rate that a kernel reaches, of the rate that bounds it, and which
    rate that is."""
    if seconds <= 0 or isinstance(kernel, HostKernel):
        return 0.0, ""
    limits = (
        (kernel.flops, kernel.arithmetic_limit, "flops"),
        (kernel.bytes, kernel.memory_limit(kernel.touched), "bytes"),
    )
    return max((done / limit / seconds if limit else 0.0, name) for done, limit, name in limits)


def _peaks(programs: Sequence[ProgramRun]) -> list[str]:
    """The peak rates of the devices that the programs ran on, as text."""
    kernels = [kernel for program in programs for kernel in program.kernels]
    return list(dict.fromkeys(k.peaks for k in kernels if isinstance(k, CompiledKernel)))


def _kernel_calls(program: ProgramRun) -> Iterator[tuple[AnyKernel, int, int, int, int]]:
    """The calls of kernels: (kernel, thread, begin, end, wait before it), in nanoseconds."""
    waits = program.waits()
    for kernel, phases in program.entries():
        for entry in range(phases.start, phases.stop):
            for thread, (begin, end) in enumerate(program.times[entry]):
                if end:
                    yield kernel, thread, int(begin), int(end), int(waits[entry, thread])


def _trace_args(kernel: AnyKernel, wait: int) -> dict[str, Any]:
    args = {"ops": list(kernel.ops), "lines": list(kernel.lines)}
    if isinstance(kernel, HostKernel):
        return args
    size = {"iterations": kernel.space, "flops": kernel.flops, "bytes": kernel.bytes}
    return args | size | {"waited_us": wait / 1e3}


def profile(plan: Plan, feeds: Sequence[Any], resources: Resources, runs: int) -> Profile:
    """Profile `runs` runs of a plan, after one to warm up. No state changes."""
    if runs < 1:
        raise ValueError(f"A profile takes one run or more, not {runs}.")
    parts = plan.parts(feeds)
    sandboxes = [(_Sandbox(resources.on(part.device)), part, own) for part, own in parts]

    def run_once() -> list[ProgramRun]:
        return [run for sandbox, part, own in sandboxes for run in sandbox.run(part, own)]

    run_once()
    wall, processor = time.perf_counter(), time.process_time()
    measured = [run_once() for _ in range(runs)]
    return Profile(measured, time.perf_counter() - wall, time.process_time() - processor)


class _Sandbox:
    """Runs the plan of one device on copies of the session's variables and otherwise new state."""

    def __init__(self, resources: Resources) -> None:
        self._resources = _CopiedResources(resources)
        self._runs: list[ProgramRun] = []
        self._substituted: set[int] = set()  # slots with substitutes, or computed from them
        self._kernels: dict[int, list[CompiledKernel]] = {}  # by the id of the program

    def run(self, plan: Plan, feeds: Sequence[Any]) -> list[ProgramRun]:
        """One run: its programs and host ops, in order."""
        self._runs, self._substituted = [], set()
        slots, cancellation = plan.slots(feeds), Cancellation()
        with np.errstate(all="ignore"):
            for instruction in plan.instructions:
                context = Context(instruction.node, self._resources, cancellation)
                self._run_one(timed(instruction, self._on_run, self._run_one), slots, context)
        return self._runs

    def _run_one(self, instruction: Instruction, slots: list[Any], context: Context) -> None:
        """Run an instruction, or set its outputs to zeros; with substituted inputs it may fail."""
        if any(slots[slot] is None for slot in instruction.inputs):
            return  # an input for which there is no substitute
        is_region = isinstance(instruction.call, TimedRegion)
        may_run = is_region or all(map(_may_run, instruction.nodes))
        if may_run and self._substituted.isdisjoint(instruction.inputs):
            self._run_timed(instruction, slots, context)
            return
        outputs = range(instruction.output, instruction.output + instruction.output_count)
        self._substituted.update(outputs)
        if may_run:
            with suppress(errors.OpError):
                self._run_timed(instruction, slots, context)
            return
        # An op that restores variables has no outputs: the assignments that run with it take them.
        for slot, tensor in zip(outputs, instruction.node.outputs, strict=False):
            slots[slot] = _zeros(tensor)

    def _run_timed(self, instruction: Instruction, slots: list[Any], context: Context) -> None:
        start = time.perf_counter_ns()
        # Not `context.run`: a timed context would come back here.
        Context.run(context, [instruction._replace(frees=())], slots)
        if _is_host(instruction):
            times = np.array([[[start, time.perf_counter_ns()]]], np.int64)
            self._runs.append(ProgramRun([HostKernel(instruction.node)], times))

    def _on_run(self, program: AnyProgram, times: Times) -> None:
        if id(program) not in self._kernels:  # programs live as long as their plan
            self._kernels[id(program)] = kernels_of(program)
        self._runs.append(ProgramRun(self._kernels[id(program)], times))


class _CopiedResources(Resources):
    """Copies of a session's variables, and new objects in place of its other resources."""

    def __init__(self, session: Resources) -> None:
        super().__init__()
        self._session, self.allocate = session, session.allocate

    def get(self, name: str, container: str, make: Callable[[], Resource]) -> Resource:
        """The object under (container, name); at first a copy if it is a variable, else new."""
        return super().get(name, container, lambda: self._copy(name, container, make()))

    def _copy(self, name: str, container: str, new: Resource) -> Resource:
        if isinstance(new, VariableCell):
            original = self._session.get(name, container, lambda: new)
            if original.is_initialized:
                new.assign(original.read())
        return new


def _is_host(instruction: Instruction) -> bool:
    is_region = isinstance(instruction.call, Executable | TimedRegion)
    is_lookup = isinstance(instruction.node.op, Const) or is_variable(instruction.node)
    return not is_region and not is_lookup


def _may_run(node: Node) -> bool:
    """Whether a node and those inside it change no state but that of the sandbox."""
    bodies = node.op.bodies
    if bodies:
        return all(_may_run(inner) for body in bodies for inner in inner_nodes(body))
    op = node.op
    pure = op.has("numpy") and not op.stateful
    return pure or not op.host_only or op.step_local or is_variable(node)


def _zeros(tensor: Tensor) -> Any:
    """A substitute for the value of a tensor; None if its shape is unknown or it has no numbers."""
    shape, dtype = tensor.shape.whole, tensor.dtype
    if shape is None or dtype.is_ref_dtype or np.dtype(dtype.as_numpy_dtype).hasobject:
        return None
    return np.zeros(shape, dtype.as_numpy_dtype)
