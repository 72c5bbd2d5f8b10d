"""Event files as `thalweg inspect` shows them: their tags, and what was written under each."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np

from thalweg import protos
from thalweg.cli.checkpoints import missing
from thalweg.cli.problem import Problem, named
from thalweg.cli.records import read_records
from thalweg.cli.report import Report
from thalweg.cli.tensors import NamedArray, stored_array


class EventFile:
    """A file that a `FileWriter` wrote."""

    def __init__(self, path: str) -> None:
        self._path = path

    def report(self, verify: bool) -> Report:
        """The tags and what else there is, from one walk over the file."""
        digest = _Digest()
        for event in _events(self._path):
            digest.add(event)
        return Report("events", self._path, digest.facts(), {"tags": digest.rows()})

    def tensor(self, name: str, record: int | None) -> NamedArray:
        """What was written under a tag: all (step, value) of a scalar, one of any other kind."""
        history = list(self._history(name))
        if not history:
            raise missing(self._path, "tag", name, sorted(self._tags()))
        if record is not None and record >= len(history):
            raise Problem(f"{self._path}: {name!r} was written {len(history)} times only")
        if record is None and all(value.size == 1 and value.ndim == 0 for _, value in history):
            return NamedArray(name, np.array([[step, float(value)] for step, value in history]))
        return NamedArray(name, history[-1 if record is None else record][1])

    def _history(self, tag: str) -> Iterator[tuple[int, Any]]:
        for event in _events(self._path):
            for value in event.summary.value:
                if value.tag == tag:
                    yield event.step, _content(self._path, value)

    def _tags(self) -> set[str]:
        return {value.tag for event in _events(self._path) for value in event.summary.value}


class EventFolder:
    """A folder of event files: the runs of a program."""

    def __init__(self, folder: str) -> None:
        self._folder, self._paths = folder, event_files(folder)

    def report(self, verify: bool) -> Report:
        """Each of the files."""
        parts: list[Report] = []
        for path in self._paths:
            with named(path):
                parts.append(EventFile(path).report(verify))
        return Report("events of", self._folder, {"files": len(parts)}, parts=parts)

    def tensor(self, name: str, record: int | None) -> NamedArray:
        """What the latest file that has the tag wrote under it."""
        problem = missing(self._folder, "tag", name, [])
        for path in reversed(self._paths):
            try:
                return EventFile(path).tensor(name, record)
            except Problem as error:
                problem = error
        raise problem


def event_files(folder: str) -> list[str]:
    """The event files in a folder, in the order of their names, which is that of their times."""
    names = sorted(name for name in os.listdir(folder) if "tfevents" in name)
    return [os.path.join(folder, name) for name in names]


def _events(path: str) -> Iterator[Any]:
    with read_records(path) as records:
        for record in records:
            yield protos.Event.FromString(record)


@dataclass
class _Tag:
    """What was written under one tag."""

    kind: str
    first: int
    last: int
    count: int = 0
    value: float | None = None


class _Digest:
    """What a file's events amount to."""

    def __init__(self) -> None:
        self._version, self._graphs, self._count = "", 0, 0
        self._times: list[float] = []
        self._tags: dict[str, _Tag] = {}

    def add(self, event: Any) -> None:
        """Count an event in."""
        self._count += 1
        self._version = event.file_version or self._version
        self._graphs += bool(event.graph_def or event.meta_graph_def)
        self._times = [*self._times[:1], event.wall_time]
        for value in event.summary.value:
            tag = self._tags.setdefault(value.tag, _Tag(_kind(value), event.step, event.step))
            tag.count, tag.last = tag.count + 1, event.step
            tag.value = _scalar(value)

    def facts(self) -> dict[str, Any]:
        """The facts of a report."""
        facts: dict[str, Any] = {"events": self._count, "version": self._version or "none"}
        if self._times:
            facts["from"], facts["to"] = _date(self._times[0]), _date(self._times[-1])
        return facts | ({"graphs": self._graphs} if self._graphs else {})

    def rows(self) -> list[dict[str, Any]]:
        """The rows of a table of tags."""
        return [
            {
                "tag": name,
                "kind": tag.kind,
                "count": tag.count,
                "first step": tag.first,
                "last step": tag.last,
                "last value": tag.value,
            }
            for name, tag in sorted(self._tags.items())
        ]


def _date(seconds: float) -> str:
    try:
        return time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(seconds))
    except (OverflowError, ValueError, OSError):
        return f"{seconds} s"


def _kind(value: Any) -> str:
    kind = value.WhichOneof("value") or "empty"
    plugin = value.metadata.plugin_data.plugin_name
    names = {"simple_value": "scalar", "histo": "histogram"}
    return plugin.rstrip("s") if plugin and kind == "tensor" else names.get(kind, kind)


def _scalar(value: Any) -> float | None:
    kind = value.WhichOneof("value")
    if kind == "simple_value":
        return value.simple_value
    if kind == "tensor" and not value.tensor.tensor_shape.dim and len(value.tensor.float_val) == 1:
        return value.tensor.float_val[0]
    return None


def _content(path: str, value: Any) -> Any:
    """What was written, as an array; pictures and sounds are none."""
    kind = value.WhichOneof("value")
    if kind == "simple_value":
        return np.float32(value.simple_value).reshape(())
    if kind == "histo":
        return np.array([value.histo.bucket_limit, value.histo.bucket])
    if kind == "tensor":
        return stored_array(path, value.tag, value.tensor)
    raise Problem(f"{path}: {value.tag!r} is of the kind {_kind(value)}, which is no tensor")
