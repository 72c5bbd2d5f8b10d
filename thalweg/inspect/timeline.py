"""Timelines: a traced step as a Chrome trace of op runs, dataflow between them, and memory.

Comes in: StepStats. Goes out: JSON for chrome://tracing and Perfetto.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from operator import itemgetter
from typing import Any, NamedTuple

from thalweg import protos
from thalweg.graph.graph import Graph
from thalweg.public import public

_LABEL = re.compile(r"(.*?) = (.*?)\((.*?)\).*?(?: @ (.*))?")
_RECEIVED = "RecvTensor"
Event = dict[str, Any]


class AllocationMaximum(NamedTuple):
    """The peak memory use of an allocator, and when it was reached."""

    timestamp: float
    num_bytes: int
    tensors: set[str]


class StepStatsAnalysis(NamedTuple):
    """The Chrome trace of a step, and the peak memory use by allocator."""

    chrome_trace: ChromeTrace
    allocator_maximums: dict[str, AllocationMaximum]


class ChromeTrace:
    """A builder of Chrome traces: processes with lanes (threads) of events."""

    def __init__(self) -> None:
        self.events: list[Event] = []

    def process(self, name: str) -> int:
        """Add a process; its number."""
        number = sum(event["name"] == "process_name" for event in self.events)
        event = {"name": "process_name", "ph": "M", "pid": number, "args": {"name": name}}
        self.events.append(event)
        return number

    def lane(self, process: int, number: int, name: str) -> None:
        """Name a lane of a process."""
        metadata = {"ph": "M", "pid": process, "tid": number}
        self.events.append({"name": "thread_name", **metadata, "args": {"name": name}})

    def emit(self, phase: str, category: str, name: str, track: Track, **fields: Any) -> None:
        """Add an event on a track."""
        position = {"pid": track.process, "tid": track.lane, "ts": track.time}
        self.events.append({"ph": phase, "cat": category, "name": name} | position | fields)

    def format_to_string(self, pretty: bool = False) -> str:
        """The trace as JSON."""
        return json.dumps({"traceEvents": self.events}, indent=2 if pretty else None)


class Track(NamedTuple):
    """A point of the trace: a process, a lane in it, and a time in microseconds."""

    process: int
    lane: int
    time: float


@dataclass
class _Run:
    """One run of a node, and its lane."""

    stats: Any
    process: int
    lane: int
    op: str
    inputs: list[str]
    line: str

    @property
    def start(self) -> Track:
        return Track(self.process, self.lane, self.stats.all_start_micros)

    @property
    def duration(self) -> int:
        return self.stats.all_end_rel_micros or self.stats.op_end_rel_micros

    @property
    def end(self) -> Track:
        return self.start._replace(time=self.stats.all_start_micros + self.duration)


@dataclass
class _Value:
    """A tensor, alive from the run that computes it to its last use."""

    name: str
    number: int
    source: _Run
    process: int
    description: Any
    last_use: float

    @property
    def memory(self) -> Any:
        return self.description.allocation_description

    def at(self, time: float) -> Track:
        return Track(self.process, self.source.lane, time)


@public("python.client.timeline.Timeline", "profiler.Timeline")
class Timeline:
    """The timeline of a traced step: `Timeline(run_metadata.step_stats)`."""

    def __init__(self, step_stats: protos.StepStats, graph: Graph | None = None) -> None:
        self._step_stats = step_stats
        self._trace = ChromeTrace()

    def generate_chrome_trace_format(
        self, show_dataflow: bool = True, show_memory: bool = False
    ) -> str:
        """The trace as JSON, optionally with arrows for dataflow and curves of memory use."""
        analysis = self.analyze_step_stats(show_dataflow, show_memory)
        return analysis.chrome_trace.format_to_string(pretty=True)

    def analyze_step_stats(
        self, show_dataflow: bool = True, show_memory: bool = True
    ) -> StepStatsAnalysis:
        """The trace, and the peak memory use of each allocator."""
        self._trace = ChromeTrace()
        allocators = self._trace.process("Allocators")
        runs, values = self._read()
        for run in runs:
            self._show_run(run)
        self._follow_values(runs, values, show_dataflow)
        maximums: dict[str, AllocationMaximum] = {}
        if show_memory:
            self._show_values(values)
            maximums = self._show_memory(values, allocators)
        return StepStatsAnalysis(self._trace, maximums)

    def _read(self) -> tuple[list[_Run], dict[str, _Value]]:
        """The runs of all nodes, and all tensors by name."""
        runs: list[_Run] = []
        values: dict[str, _Value] = {}
        for device in self._step_stats.dev_stats:
            if device.thread_names:
                runs += self._read_threads(device)
                continue
            process = self._trace.process(f"{device.device} Compute")
            tensors = self._trace.process(f"{device.device} Tensors")
            for stats, lane in zip(device.node_stats, _lanes(device.node_stats), strict=True):
                run = _Run(stats, process, lane, *_parsed(stats))
                runs.append(run)
                for name, description in _outputs(stats):
                    end = run.end.time
                    values[name] = _Value(name, len(values), run, tensors, description, end)
        return runs, values

    def _read_threads(self, device: Any) -> list[_Run]:
        """The spans of threads, one lane for each; spans may be nested."""
        process = self._trace.process(device.device)
        for number, name in sorted(device.thread_names.items()):
            self._trace.lane(process, number, name)
        return [_Run(s, process, s.thread_id, *_parsed(s)) for s in device.node_stats]

    def _show_run(self, run: _Run) -> None:
        inputs = {f"input{index}": name for index, name in enumerate(run.inputs)}
        args = {"name": run.stats.node_name, "op": run.op} | inputs | {"line": run.line}
        self._trace.emit("X", "Op", run.op, run.start, dur=run.duration, args=args)

    def _follow_values(self, runs: Sequence[_Run], values: dict[str, _Value], show: bool) -> None:
        """Find the last use of each tensor; with `show`, draw arrows between lanes."""
        arrows = 0
        for run in runs:
            for name in run.inputs:
                value = values.get(name) or values.get(name.partition("/_")[0])
                if value is None:
                    continue
                value.last_use = max(value.last_use, run.end.time)
                source = value.source
                if show and (source.process, source.lane) != (run.process, run.lane):
                    self._trace.emit("s", "DataFlow", name, source.end, id=arrows)
                    self._trace.emit("t", "DataFlow", name, run.start, id=arrows)
                    arrows += 1

    def _show_values(self, values: dict[str, _Value]) -> None:
        for value in values.values():
            number, source = value.number, value.source
            snapshot = {"snapshot": {"tensor_description": str(value.description)}}
            start, end = value.at(source.start.time), value.at(source.end.time - 1)
            self._trace.emit("N", "Tensor", value.name, start, id=number)
            self._trace.emit("O", "Tensor", value.name, end, id=number, args=snapshot)
            self._trace.emit("D", "Tensor", value.name, value.at(value.last_use), id=number)

    def _show_memory(self, values: dict[str, _Value], process: int) -> dict[str, AllocationMaximum]:
        """Draw the memory use of each allocator as a curve; the maxima."""
        maximums: dict[str, AllocationMaximum] = {}
        live: dict[str, dict[str, int]] = {}  # the bytes of live tensors by name, by allocator
        changes = [(value.source.start.time, True, value) for value in values.values()]
        changes += [(value.last_use, False, value) for value in values.values()]
        for time, is_allocated, value in sorted(changes, key=itemgetter(0, 1)):
            allocator = value.memory.allocator_name
            tensors = live.setdefault(allocator, {})
            if is_allocated:
                tensors[value.name] = value.memory.requested_bytes
            else:
                tensors.pop(value.name, None)
            total = sum(tensors.values())
            if total > maximums.setdefault(allocator, AllocationMaximum(0, 0, set())).num_bytes:
                maximums[allocator] = AllocationMaximum(time, total, set(tensors))
            track = Track(process, 0, time)
            self._trace.emit("C", "Memory", allocator, track, args={allocator: total})
        return maximums


def _lanes(nodes: Sequence[Any]) -> list[int]:
    """A lane for each node such that the runs in a lane do not overlap."""
    ends: dict[int, int] = {}  # when the last run of each lane ended
    lanes: list[int] = []
    for stats in nodes:
        free = (lane for lane, end in ends.items() if stats.all_start_micros >= end)
        lane = next(free, len(ends))
        ends[lane] = stats.all_start_micros + stats.all_end_rel_micros
        lanes.append(lane)
    return lanes


def _parsed(stats: Any) -> tuple[str, list[str], str]:
    """The op, the inputs and the line, from a label such as `c = Add(a, b:1) @ model.py:3`."""
    match = _LABEL.fullmatch(stats.timeline_label)
    if stats.node_name == _RECEIVED:
        return _RECEIVED, [], ""
    if match is None:
        return "unknown", [], ""
    inputs = [name.removesuffix(":0") for name in match[3].split(", ") if name]
    return match[2], inputs, match[4] or ""


def _outputs(stats: Any) -> Iterator[tuple[str, Any]]:
    for output in stats.output:
        name = f"{stats.node_name}:{output.slot}" if output.slot else stats.node_name
        yield name, output.tensor_description
