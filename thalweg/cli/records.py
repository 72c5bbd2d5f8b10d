"""TFRecord files as `thalweg inspect` shows them: how many records, how long, and what the first
ones hold if they are Examples or SequenceExamples.
"""

from __future__ import annotations

import itertools
from collections.abc import Generator, Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from thalweg import protos
from thalweg.cli.checkpoints import missing
from thalweg.cli.problem import Problem
from thalweg.cli.report import Report, Size
from thalweg.cli.tensors import NamedArray
from thalweg.platform.files.records import RecordReader

#: Bytes of a record that a file may claim before its length is taken for damage.
MAX_RECORD = 1 << 30
_MAX_EXAMPLES = 100  # records whose features are listed
_DTYPES: dict[str, Any] = {"bytes_list": object, "float_list": np.float32, "int64_list": np.int64}


class RecordFile:
    """A file of records, maybe compressed."""

    def __init__(self, path: str, compression: str = "") -> None:
        self._path, self._compression = path, compression

    def report(self, verify: bool) -> Report:
        """Counts and lengths of all records, whose checksums are looked at on the way."""
        lengths, features = _Lengths(), _Features()
        with read_records(self._path, self._compression) as records:
            for record in records:
                if lengths.count < _MAX_EXAMPLES:
                    features.add(record)
                lengths.add(len(record))
        facts = {"compression": self._compression or "none"} | lengths.facts()
        return Report("records", self._path, facts, {"features": features.rows()})

    def tensor(self, name: str, record: int | None) -> NamedArray:
        """A feature of the example in one record, the first unless another is asked for."""
        wanted = record or 0
        with read_records(self._path, self._compression) as records:
            content = next(itertools.islice(records, wanted, None), None)
        if content is None:
            raise Problem(f"{self._path}: there is no record {wanted}")
        found = dict(_features(content))
        if name not in found:
            raise missing(self._path, "feature", name, list(found))
        return NamedArray(name, _array(self._path, name, found[name]))


@contextmanager
def read_records(path: str, compression: str = "") -> Generator[Iterator[bytes]]:
    """The records of a file, none of which may be larger than makes sense."""
    reader = RecordReader(path, compression, max_record=MAX_RECORD)
    try:
        yield iter(reader)
    finally:
        reader.close()


class _Lengths:
    """What is known of the lengths of records."""

    def __init__(self) -> None:
        self.count = self._total = self._longest = 0
        self._shortest: int | None = None

    def add(self, length: int) -> None:
        self.count += 1
        self._total += length
        self._longest = max(self._longest, length)
        self._shortest = length if self._shortest is None else min(self._shortest, length)

    def facts(self) -> dict[str, Any]:
        """The facts of a report."""
        if self._shortest is None:
            return {"records": 0}
        return {
            "records": self.count,
            "data": Size(self._total),
            "shortest": Size(self._shortest),
            "longest": Size(self._longest),
        }


class _Features:
    """The features of examples: in how many they are, of which kind, with how many values."""

    def __init__(self) -> None:
        self._found: dict[str, dict[str, Any]] = {}

    def add(self, record: bytes) -> None:
        for name, values in _features(record):
            fresh = {"name": name, "kind": values.kind, "in": 0, "fewest": values.count, "most": 0}
            row = self._found.setdefault(name, fresh)
            row["in"] += 1
            row["fewest"] = min(row["fewest"], values.count)
            row["most"] = max(row["most"], values.count)

    def rows(self) -> list[dict[str, Any]]:
        """The rows of a table."""
        return [self._found[name] for name in sorted(self._found)]


class _Values(NamedTuple):
    """A feature, or the features of a list, which has one for each of its steps."""

    steps: list[Any]
    is_list: bool

    @property
    def kind(self) -> str:
        """What the values are: `float`, or `steps of float`."""
        kinds: list[str] = [step.WhichOneof("kind") or "" for step in self.steps]
        kind = next((kind for kind in kinds if kind), "empty").removesuffix("_list")
        return f"steps of {kind}" if self.is_list else kind

    @property
    def count(self) -> int:
        """How many values there are, or steps of a list."""
        return len(self.steps) if self.is_list else len(_numbers(self.steps[0]))


def _features(record: bytes) -> Iterator[tuple[str, _Values]]:
    """The features of a record; none if it is no example. An Example is a SequenceExample whose
    lists are missing."""
    try:
        example = protos.SequenceExample.FromString(record)
    except Exception:  # protobuf's own class: the record is something else, which is fine
        return
    for name, feature in example.context.feature.items():
        yield name, _Values([feature], is_list=False)
    for name, steps in example.feature_lists.feature_list.items():
        yield name, _Values(list(steps.feature), is_list=True)


def _array(path: str, name: str, values: _Values) -> NDArray[Any]:
    rows = [_numbers(step) for step in values.steps]
    if not values.is_list:
        return rows[0]
    if len({len(row) for row in rows}) > 1:
        raise Problem(f"{path}: the steps of {name!r} have different lengths")
    return np.stack(rows) if rows else np.empty((0, 0), np.float32)


def _numbers(feature: Any) -> NDArray[Any]:
    kind = feature.WhichOneof("kind")
    if kind is None:
        return np.empty(0, np.float32)
    return np.array(list(getattr(feature, kind).value), _DTYPES[kind])
