"""Checkpoints as `thalweg inspect` shows them: ours, TensorFlow's, safetensors files, folders.

A checkpoint of objects, as TensorFlow 2 writes it, has long keys such as
`model/dense/kernel/.ATTRIBUTES/VARIABLE_VALUE`; its variables also answer to their own names.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from functools import cached_property
from typing import Any

from thalweg.cli.problem import Problem
from thalweg.cli.report import Report, Size
from thalweg.cli.tensors import NamedArray
from thalweg.platform.files import wire
from thalweg.platform.files.checkpoint_files import exists
from thalweg.platform.files.checkpoints import open_checkpoint
from thalweg.platform.files.tensor_slices import Checkpoint, Entry
from thalweg.saved.checkpoint_state import get_checkpoint_state, read_state

_OBJECT_GRAPH = "_CHECKPOINTABLE_OBJECT_GRAPH"
_MAX_OBJECT_GRAPH = 256 << 20  # bytes that are looked through for names


class CheckpointFiles:
    """A checkpoint by its prefix, or a file of safetensors."""

    def __init__(self, prefix: str) -> None:
        self._prefix = prefix

    @cached_property
    def _checkpoint(self) -> Checkpoint:
        return open_checkpoint(self._prefix)

    def report(self, verify: bool) -> Report:
        """The tensors, by name."""
        entries = self._checkpoint.entries
        facts: dict[str, Any] = {
            "tensors": len(entries),
            "size": Size(sum(_size(entry) for entry in entries.values())),
        }
        if verify:
            for name in entries:
                self._checkpoint.read(name)
            facts["verified"] = "all tensors can be read, all checksums right"
        own = {key: name for name, key in self._own_names.items()}
        rows = [_row(name, entry, own.get(name)) for name, entry in entries.items()]
        return Report("checkpoint", self._prefix, facts, {"tensors": rows})

    def tensor(self, name: str, record: int | None) -> NamedArray:
        """A tensor by its key, or a variable by its own name."""
        refuse_record(self._prefix, record)
        entries = self._checkpoint.entries
        stripped = name.removesuffix(":0")
        for key in (name, stripped, self._own_names.get(stripped, "")):
            if key in entries:
                return NamedArray(name, self._checkpoint.read(key))
        raise missing(self._prefix, "tensor", name, [*entries, *self._own_names])

    @cached_property
    def _own_names(self) -> dict[str, str]:
        """The keys of variables by their own names, in a checkpoint of objects."""
        entry = self._checkpoint.entries.get(_OBJECT_GRAPH)
        if entry is None or entry.shape or _size(entry) > _MAX_OBJECT_GRAPH:
            return {}
        return dict(_saved_names(self._checkpoint.read(_OBJECT_GRAPH).item()))


class CheckpointFolder:
    """A folder whose file `checkpoint` lists checkpoints, or that has some without a list."""

    def __init__(self, folder: str) -> None:
        self._folder = folder

    def report(self, verify: bool) -> Report:
        """The checkpoints of a folder, and what is in the latest."""
        latest, every = self._prefixes()
        rows = [
            {"checkpoint": prefix, "state": _state(prefix, prefix == latest)} for prefix in every
        ]
        parts = [CheckpointFiles(latest).report(verify)]
        return Report("checkpoints of", self._folder, {}, {"checkpoints": rows}, parts)

    def tensor(self, name: str, record: int | None) -> NamedArray:
        """A tensor of the latest checkpoint."""
        return CheckpointFiles(self._prefixes()[0]).tensor(name, record)

    def _prefixes(self) -> tuple[str, list[str]]:
        listed = os.path.join(self._folder, "checkpoint")
        if os.path.exists(listed):
            read_state(listed)  # raises where the next line would only warn
            state = get_checkpoint_state(self._folder)
            every = list(state.all_model_checkpoint_paths)
            return state.model_checkpoint_path, every or [state.model_checkpoint_path]
        found = sorted(
            indexed(self._folder), key=lambda prefix: os.path.getmtime(f"{prefix}.index")
        )
        return found[-1], found


def indexed(folder: str) -> list[str]:
    """The prefixes of the checkpoints in a folder, by their indices."""
    names = sorted(name for name in os.listdir(folder) if name.endswith(".index"))
    return [os.path.join(folder, name.removesuffix(".index")) for name in names]


def missing(path: str, what: str, name: str, known: list[str]) -> Problem:
    """The problem that something has no such part, and what it has."""
    near = sorted(each for each in known if name in each or each in name) or sorted(known)
    shown = ", ".join(near[:6]) + (", …" if len(near) > 6 else "")
    return Problem(f"{path}: there is no {what} {name!r}; there is {shown or 'none at all'}")


def refuse_record(path: str, record: int | None) -> None:
    """Raise where `--record` is given for a file that has none."""
    if record is not None:
        raise Problem(f"{path}: --record is for files of records and events")


def _state(prefix: str, is_latest: bool) -> str:
    return ", ".join(
        word for word, holds in (("latest", is_latest), ("missing", not exists(prefix))) if holds
    )


def _size(entry: Entry) -> int:
    return sum(part.end - part.begin for part in entry.parts)


def _row(name: str, entry: Entry, own: str | None) -> dict[str, Any]:
    row = {
        "name": name,
        "dtype": entry.dtype,
        "shape": list(entry.shape),
        "size": Size(_size(entry)),
    }
    slices = {"slices": len(entry.parts)} if len(entry.parts) > 1 else {}
    return row | slices | ({"variable": own} if own else {})


def _saved_names(graph: Any) -> Iterator[tuple[str, str]]:
    """The (name, key) pairs that a TrackableObjectGraph has: of attributes of its nodes."""
    if not isinstance(graph, bytes):
        return
    for node in _inner(graph, 1):
        for attribute in _inner(node, 2):
            texts = {field.number: field.value for field in wire.fields(attribute)}
            name, key = texts.get(2), texts.get(3)
            if isinstance(name, bytes) and isinstance(key, bytes) and name:
                yield name.decode(errors="replace"), key.decode(errors="replace")


def _inner(message: bytes, number: int) -> Iterator[bytes]:
    """The messages in one field of a message."""
    for field in wire.fields(message):
        if field.number == number and isinstance(field.value, bytes):
            yield field.value
