"""Steps measured: the time of every kernel, next to what the machine can do.

A profile runs a plan's native programs again and again on the real feeds and on copies of the
variables, so nothing that lasts changes. Host ops that have effects are left out: what they would
give is taken to be zeros. Goes out: a table, its rows as data, and a Chrome trace.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from statistics import median
from typing import Any, NamedTuple, TypeVar

import numpy as np

from thalweg import errors
from thalweg.device.compiled_kernel import CompiledKernel, kernels_of, snake_case
from thalweg.device.program import AnyProgram, Times
from thalweg.graph.analysis.node_effects import inner_nodes
from thalweg.graph.node import Node, Tensor
from thalweg.inspect.plan_text import clipped, table
from thalweg.inspect.plan_walk import is_variable
from thalweg.inspect.timed import TimedRegion, run_single, timed
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
_INSIDE = 0.8
_UNDISTURBED = 0.85
_GROUP_HEAD = ("all kernels of the same ops", "count", "time", "share", "of peak")


class HostKernel:
    """A host op, as the only kernel of a program on one thread."""

    kind, space, flops, bytes, phases, users = "host", "", 0.0, 0, 1, 1

    def __init__(self, node: Node) -> None:
        self.name = snake_case(node.type)
        self.ops, self.lines = (node.name,), (node.origin,)


AnyKernel = CompiledKernel | HostKernel


@dataclass(frozen=True)
class ProgramRun:
    """One run of a native program or of a host op: its kernels, and when they ran."""

    kernels: Sequence[AnyKernel]
    times: Times

    @property
    def ran(self) -> Times:
        """When its entries began and ended, in nanoseconds, without those that did not run."""
        return self.times[self.times > 0]

    @property
    def span(self) -> int:
        """Nanoseconds from the first begin to the last end."""
        return int(self.ran.max() - self.ran.min()) if self.ran.size else 0

    @property
    def threads(self) -> int:
        """How many it ran on."""
        return self.times.shape[1]

    def entries(self) -> list[tuple[AnyKernel, slice]]:
        """Each kernel with its entries in the program: one for each of its phases."""
        found: list[tuple[AnyKernel, slice]] = []
        start = 0
        for kernel in self.kernels:
            found.append((kernel, slice(start, start + kernel.phases)))
            start += kernel.phases
        return found

    def waits(self) -> Times:
        """For each entry and thread, the time since what the thread did before."""
        begun = int(self.ran.min()) if self.ran.size else 0
        free = np.full(self.times.shape[1], begun)
        waits = np.zeros(self.times.shape[:2], np.int64)
        for entry, (begin, end) in enumerate(self.times.transpose(0, 2, 1)):
            called = end > 0
            waits[entry, called] = begin[called] - free[called]
            free[called] = end[called]
        return waits


@dataclass(frozen=True)
class Row:
    """One line of a profile: seconds are those of the slowest thread, rates of the best run."""

    number: int
    name: str
    kind: str
    iterations: str
    best: float
    median: float
    wait: float  # of a thread, in the mean, before it could begin
    share: float  # of the threads' time in the step
    flops: float
    bytes: int
    peak: float  # how much of what the machine can do, 1 being all
    bound: str  # what that is measured by: "flops" or "bytes"
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
    """The rows of kernels that have the same ops."""

    name: str
    rows: tuple[Row, ...]

    @property
    def seconds(self) -> float:
        """What they take together, by their medians."""
        return sum(row.median for row in self.rows)

    @property
    def share(self) -> float:
        """Their share of the threads' time."""
        return sum(row.share for row in self.rows)

    @property
    def peak(self) -> float:
        """How much of what the machine can do, in the mean over their time."""
        done = sum(row.peak * row.median for row in self.rows)
        return done / self.seconds if self.seconds else 0.0


@dataclass(frozen=True)
class Profile:
    """What every kernel of a step takes; `print` it, or write a `chrome_trace`."""

    runs: Sequence[Sequence[ProgramRun]]  # in each run, what ran, in order
    wall: float = 0.0  # seconds of all runs, with what is between kernels
    processor: float = 0.0  # seconds that the system gave this process meanwhile

    @cached_property
    def rows(self) -> list[Row]:
        """Kernels and host ops, those that take longest first."""
        found: list[Row] = []
        for place, event in enumerate(self.runs[0]):
            events = [run[place] for run in self.runs if place < len(run)]
            first = 1 + sum(row.number > 0 for row in found)
            # Of the same kernels: sizes may differ from run to run.
            same = [each for each in events if each.times.shape == event.times.shape]
            found += self._kernel_rows(same, first)
        return sorted(found, key=lambda row: row.median, reverse=True)

    @property
    def seconds(self) -> list[float]:
        """The time of each run, in its kernels and host ops."""
        return [sum(event.span for event in run) / 1e9 for run in self.runs]

    @cached_property
    def capacity(self) -> float:
        """The time of all threads in all runs, in nanoseconds."""
        return max(sum(event.threads * event.span for run in self.runs for event in run), 1)

    @property
    def waiting(self) -> float:
        """Which share of the threads' time nothing ran in: at barriers, or one thread alone."""
        return max(1.0 - sum(row.share for row in self.rows), 0.0)

    def _kernel_rows(self, programs: Sequence[ProgramRun], first: int) -> list[Row]:
        waits = [program.waits() for program in programs]
        return [
            self._kernel_row(
                number, kernel, [p.times[part] for p in programs], [w[part] for w in waits]
            )
            for number, (kernel, part) in enumerate(programs[0].entries(), first)
        ]

    def _kernel_row(
        self, number: int, kernel: AnyKernel, times: Sequence[Times], waits: Sequence[Times]
    ) -> Row:
        spans = [_phases_span(part) / 1e9 for part in times]
        busy = sum(float((part[..., 1] - part[..., 0]).sum()) for part in times)
        best = min(spans)
        peak, bound = _of_peak(kernel, best)
        return Row(
            number if isinstance(kernel, CompiledKernel) else 0,
            kernel.name,
            kernel.kind,
            kernel.space,
            best,
            median(spans),
            median(float(w.sum()) / kernel.users for w in waits) / 1e9,
            busy / self.capacity,
            kernel.flops,
            kernel.bytes,
            peak,
            bound,
            kernel.ops,
            kernel.lines,
        )

    def text(self, most: int | None = _MAX_ROWS) -> str:
        """The profile as a table of at most so many rows, the longest first."""
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
        """Kernels of the same ops taken together, those that take longest first."""
        found: dict[str, list[Row]] = {}
        for row in self.rows:
            found.setdefault(row.name, []).append(row)
        groups = [Group(name, tuple(rows)) for name, rows in found.items()]
        return sorted(groups, key=lambda group: group.seconds, reverse=True)

    def _summary(self) -> list[str]:
        times = self.seconds
        flops = sum(row.flops for row in self.rows)
        rate = flops / min(times) / 1e9 if min(times) else 0.0
        threads = max((event.threads for event in self.runs[0]), default=1)
        return [
            f"profile  {plural(len(self.runs), 'run')} on {plural(threads, 'thread')}: best "
            f"{_time(min(times))}, median {_time(median(times))}, {rate:.1f} GFLOP/s",
            *self._disturbance(threads),
            f"threads  {1 - self.waiting:.1%} of their time in kernels, {self.waiting:.1%} waiting",
            *_peaks(self.runs[0]),
        ]

    def _disturbance(self, threads: int) -> list[str]:
        """A warning where other processes had a good part of the processors."""
        inside = sum(self.seconds) > _INSIDE * self.wall  # else Python's time would tell nothing
        if not inside or self.processor > _UNDISTURBED * threads * self.wall:
            return []
        given = self.processor / self.wall
        return [f"busy     the system gave the {plural(threads, 'thread')} {given:.1f} processors"]

    def __str__(self) -> str:
        return self.text()

    __repr__ = __str__

    def chrome_trace(self, path: str | Path) -> None:
        """Write the fastest run as a Chrome trace: a row for each thread, an event per kernel."""
        fastest = self.runs[int(np.argmin(self.seconds))]
        spans = [span for event in fastest for span in _spans(event)]
        begun = min((span.begin for span in spans), default=0)
        trace = ChromeTrace()
        process = trace.process("step")
        for thread in sorted({span.thread for span in spans}):
            trace.lane(process, thread, f"thread {thread}")
        for name, category, thread, begin, end, about in spans:
            start = Track(process, thread, (begin - begun) / 1e3)
            trace.emit("X", category, name, start, dur=(end - begin) / 1e3, args=about)
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


def _phases_span(times: Times) -> int:
    """The time of the slowest thread in each phase, added up."""
    return int((times[..., 1] - times[..., 0]).max(axis=1).sum())


def _of_peak(kernel: AnyKernel, seconds: float) -> tuple[float, str]:
    """How near a kernel comes to the nearer one of its two limits."""
    if seconds <= 0 or isinstance(kernel, HostKernel):
        return 0.0, ""
    limits = (
        (kernel.flops, kernel.arithmetic_limit, "flops"),
        (kernel.bytes, kernel.memory_limit(kernel.touched), "bytes"),
    )
    return max((done / limit / seconds if limit else 0.0, name) for done, limit, name in limits)


def _peaks(programs: Sequence[ProgramRun]) -> list[str]:
    """What the devices can do that programs ran on."""
    kernels = [kernel for program in programs for kernel in program.kernels]
    return list(dict.fromkeys(k.peaks for k in kernels if isinstance(k, CompiledKernel)))


class _Span(NamedTuple):
    """One call on one thread: when it began and ended in nanoseconds, and what is said of it."""

    name: str
    category: str
    thread: int
    begin: int
    end: int
    about: Mapping[str, Any]


def _spans(event: ProgramRun) -> Iterator[_Span]:
    waits = event.waits()
    for kernel, part in event.entries():
        for entry in range(part.start, part.stop):
            for thread, (begin, end) in enumerate(event.times[entry]):
                if end:
                    about = _about(kernel, int(waits[entry, thread]) / 1e3)
                    yield _Span(kernel.name, kernel.kind, thread, int(begin), int(end), about)


def _about(kernel: AnyKernel, waited: float) -> dict[str, Any]:
    about = {"ops": list(kernel.ops), "lines": list(kernel.lines)}
    if isinstance(kernel, HostKernel):
        return about
    size = {"iterations": kernel.space, "flops": kernel.flops, "bytes": kernel.bytes}
    return about | size | {"waited_us": waited}


def profile(plan: Plan, feeds: Sequence[Any], resources: Resources, runs: int) -> Profile:
    """Run a plan's kernels so many times (and once before, to warm up), changing nothing."""
    if runs < 1:
        raise ValueError(f"A profile takes one run or more, not {runs}.")
    fed = dict(enumerate(feeds))
    parts = [(each.plan, each.feeds(fed), each.device.name) for each in plan.partitions]
    parts = parts or [(plan, feeds, plan.device)]
    privates = [(_Private(resources.on(device)), part, own) for part, own, device in parts]

    def once() -> list[ProgramRun]:
        return [event for private, part, own in privates for event in private.run(part, own)]

    once()
    start, given = time.perf_counter(), time.process_time()
    measured = [once() for _ in range(runs)]
    return Profile(measured, time.perf_counter() - start, time.process_time() - given)


@dataclass
class _Private:
    """A step's world for a profile: variables are copies, and what else has state is fresh."""

    resources: Resources
    events: list[ProgramRun] = field(default_factory=list[ProgramRun])
    _stand_ins: set[int] = field(default_factory=set[int])  # slots that follow from made-up values
    _kernels: dict[int, list[CompiledKernel]] = field(
        default_factory=dict[int, list[CompiledKernel]]
    )

    @cached_property
    def own(self) -> Resources:
        """The resources that the runs of a profile see."""
        return _Copies(self.resources)

    def run(self, plan: Plan, feeds: Sequence[Any]) -> list[ProgramRun]:
        """One run: what ran, in order."""
        self.events, self._stand_ins = [], set()
        slots: list[Any] = [None] * plan.slot_count
        for slot, value in zip(plan.feeds, feeds, strict=True):
            slots[slot] = value
        cancellation = Cancellation()
        with np.errstate(all="ignore"):
            for instruction in plan.instructions:
                context = Context(instruction.node, self.own, cancellation)
                self._single(timed(instruction, self._ran, self._single), slots, context)
        return self.events

    def _single(self, instruction: Instruction, slots: list[Any], context: Context) -> None:
        node = instruction.node
        if any(slots[slot] is None for slot in instruction.inputs):
            return  # it takes what a host op would give that a profile does not run
        if is_variable(node):
            slots[instruction.output] = node.op.kernel(context)
        elif isinstance(instruction.call, TimedRegion) or all(map(_may_run, instruction.nodes)):
            self._attempt(instruction, slots, context)
        else:
            self._stand_in(instruction, slots)

    def _stand_in(self, instruction: Instruction, slots: list[Any]) -> None:
        # One that restores has no outputs: the assignments that run with it took them.
        given = instruction.node.outputs[: instruction.output_count]
        for place, tensor in enumerate(given, instruction.output):
            slots[place] = _zeros(tensor)
            self._stand_ins.add(place)

    def _attempt(self, instruction: Instruction, slots: list[Any], context: Context) -> None:
        """Run an instruction; values that are made up may be such as it does not take."""
        if self._stand_ins.isdisjoint(instruction.inputs):
            self._timed(instruction, slots, context)
            return
        first = instruction.output
        self._stand_ins.update(range(first, first + instruction.output_count))
        with suppress(errors.OpError):
            self._timed(instruction, slots, context)

    def _timed(self, instruction: Instruction, slots: list[Any], context: Context) -> None:
        start = time.perf_counter_ns()
        run_single(instruction._replace(frees=()), slots, context)
        if _is_host(instruction):
            times = np.array([[[start, time.perf_counter_ns()]]], np.int64)
            self.events.append(ProgramRun([HostKernel(instruction.node)], times))

    def _ran(self, step: AnyProgram, times: Times) -> None:
        if id(step) not in self._kernels:  # steps live as long as their plan, so ids stay theirs
            self._kernels[id(step)] = kernels_of(step)
        self.events.append(ProgramRun(self._kernels[id(step)], times))


class _Copies(Resources):
    """The resources of a profile: copies of a session's variables, all else rebuilt."""

    def __init__(self, session: Resources) -> None:
        super().__init__()
        self._session, self.allocate = session, session.allocate

    def get(self, name: str, container: str, make: Callable[[], Resource]) -> Resource:
        """The profile's object under (container, name): a copy, where it is a variable."""
        return super().get(name, container, lambda: self._copy(name, container, make()))

    def _copy(self, name: str, container: str, made: Resource) -> Resource:
        if isinstance(made, VariableCell):
            original = self._session.get(name, container, lambda: made)
            if original.is_initialized:
                made.assign(original.read())
        return made


def _is_host(instruction: Instruction) -> bool:
    is_region = isinstance(instruction.call, Executable | TimedRegion)
    return not is_region and not isinstance(instruction.node.op, Const)


def _may_run(node: Node) -> bool:
    """Whether a node, with all inside it, changes nothing but state that is fresh in a profile."""
    bodies = node.op.bodies
    if bodies:
        return all(_may_run(inner) for body in bodies for inner in inner_nodes(body))
    op = node.op
    pure = op.has("numpy") and not op.stateful
    return pure or not op.host_only or op.step_local or is_variable(node)


def _zeros(tensor: Tensor) -> Any:
    """What stands for the value of a node that is not run; None where nothing can."""
    shape, dtype = tensor.shape.whole, tensor.dtype
    if shape is None or dtype.is_ref_dtype or np.dtype(dtype.as_numpy_dtype).hasobject:
        return None
    return np.zeros(shape, dtype.as_numpy_dtype)
