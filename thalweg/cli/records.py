"""TFRecord files as `thalweg inspect` shows them: how many records, how long, and what the first
ones hold if they are Examples.
"""

from __future__ import annotations

import itertools
from collections.abc import Generator, Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np

from thalweg import protos
from thalweg.cli.checkpoints import missing
from thalweg.cli.problem import Problem
from thalweg.cli.report import Report, Size
from thalweg.cli.tensors import NamedArray
from thalweg.platform.files.records import RecordReader

#: Bytes of a record that a file may claim before its length is taken for damage.
MAX_RECORD = 1 << 30
_MAX_EXAMPLES = 100  # records whose features are listed


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
        """A feature of the Example in one record, the first unless another is asked for."""
        wanted = record or 0
        with read_records(self._path, self._compression) as records:
            content = next(itertools.islice(records, wanted, None), None)
        if content is None:
            raise Problem(f"{self._path}: there is no record {wanted}")
        found = dict(_features(content))
        if name not in found:
            raise missing(self._path, "feature", name, list(found))
        return NamedArray(name, _array(found[name]))


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
    """The features of Examples: in how many they are, of which kind, with how many values."""

    def __init__(self) -> None:
        self._found: dict[str, dict[str, Any]] = {}

    def add(self, record: bytes) -> None:
        for name, feature in _features(record):
            kind = feature.WhichOneof("kind")
            count = len(getattr(feature, kind).value) if kind else 0
            row = self._found.setdefault(
                name,
                {"name": name, "kind": _kind_name(kind), "in": 0, "fewest": count, "most": count},
            )
            row["in"] += 1
            row["fewest"], row["most"] = min(row["fewest"], count), max(row["most"], count)

    def rows(self) -> list[dict[str, Any]]:
        """The rows of a table."""
        return [self._found[name] for name in sorted(self._found)]


def _kind_name(kind: str | None) -> str:
    return "empty" if kind is None else kind.removesuffix("_list")


def _features(record: bytes) -> Iterator[tuple[str, Any]]:
    """The features of a record; none if it is no Example."""
    try:
        example = protos.Example.FromString(record)
    except Exception:  # protobuf's own class: the record is something else, which is fine
        return
    yield from example.features.feature.items()


def _array(feature: Any) -> Any:
    kind = feature.WhichOneof("kind")
    dtypes = {"bytes_list": object, "float_list": np.float32, "int64_list": np.int64}
    if kind is None:
        return np.empty(0, np.float32)
    return np.array(list(getattr(feature, kind).value), dtypes[kind])
