"""What lies at a path, by what the bytes say and, where they say nothing, by the name."""

from __future__ import annotations

import os
import re
import stat
from typing import Protocol

from thalweg.cli.checkpoints import CheckpointFiles, CheckpointFolder, indexed
from thalweg.cli.events import EventFile, EventFolder, event_files
from thalweg.cli.graphs import GraphFile, SavedModelFolder
from thalweg.cli.problem import Problem
from thalweg.cli.records import RecordFile, read_records
from thalweg.cli.report import Report
from thalweg.cli.tensors import NamedArray
from thalweg.platform.files import wire
from thalweg.platform.files.checkpoint_files import exists
from thalweg.platform.files.checksum import masked_crc32c
from thalweg.platform.files.sorted_table import MAGIC
from thalweg.saved.saved_model import maybe_saved_model_directory

_HEAD = 64  # bytes that tell what a file is
_DATA_FILE = re.compile(r"(.+)\.data-\d{5}-of-\d{5}(\.safetensors)?$")
_FOREIGN = {
    b"\x89HDF": "an HDF5 file, as Keras writes it",
    b"PK\x03\x04": "a zip archive, such as .npz, .keras and PyTorch's files are",
    b"\x93NUMPY": "an array of NumPy's",
    b"\x80\x02": "a pickle",
    b"\x80\x03": "a pickle",
    b"\x80\x04": "a pickle",
    b"\x80\x05": "a pickle",
    b"TFL3": "a model of TensorFlow Lite",
    b"\x7fELF": "a program",
}


class Inspected(Protocol):
    """A file or folder that can tell what is in it."""

    def report(self, verify: bool) -> Report:
        """All of it in short; with `verify`, after reading every byte."""
        ...

    def tensor(self, name: str, record: int | None) -> NamedArray:
        """One tensor of it."""
        ...


def recognise(path: str) -> Inspected:
    """The file, folder or checkpoint of a path; a Problem if it is nothing that can be shown."""
    if os.path.isdir(path):
        return _folder(path)
    if not os.path.exists(path):
        if exists(path):
            return CheckpointFiles(path)
        raise Problem(f"{path}: there is no such file, folder or checkpoint")
    if not stat.S_ISREG(os.stat(path).st_mode):
        raise Problem(f"{path}: neither a file nor a folder")
    return _file(path)


def _folder(path: str) -> Inspected:
    if maybe_saved_model_directory(path):
        return SavedModelFolder(path)
    if os.path.isfile(os.path.join(path, "checkpoint")) or indexed(path):
        return CheckpointFolder(path)
    if event_files(path):
        return EventFolder(path)
    raise Problem(f"{path}: a folder without a saved model, checkpoints or event files")


def _file(path: str) -> Inspected:
    folder, name = os.path.split(path)
    if name in ("saved_model.pb", "saved_model.pbtxt"):
        return SavedModelFolder(folder or ".")
    if name == "checkpoint":
        return CheckpointFolder(folder or ".")
    data = _DATA_FILE.match(path)
    if data is not None and exists(f"{data[1]}.index"):
        return CheckpointFiles(data[1])
    if path.endswith(".index"):
        return CheckpointFiles(path.removesuffix(".index"))
    return _by_content(path)


def _by_content(path: str) -> Inspected:
    head, tail = _ends(path)
    if tail == MAGIC:  # a checkpoint of TensorFlow's of version 1
        return CheckpointFiles(path)
    for magic, what in _FOREIGN.items():
        if head.startswith(magic):
            raise Problem(f"{path}: {what}, which thalweg does not read")
    if path.endswith(".safetensors") or _is_safetensors(head, os.path.getsize(path)):
        return CheckpointFiles(path)
    return _records(path, head) or GraphFile(path)


def _records(path: str, head: bytes) -> RecordFile | EventFile | None:
    name = os.path.basename(path)
    if "tfevents" in name or (_is_record(head) and _begins_as_events(path)):
        return EventFile(path)
    if head.startswith(b"\x1f\x8b"):
        return RecordFile(path, "GZIP")
    if head[:1] == b"\x78" and int.from_bytes(head[:2], "big") % 31 == 0:
        return RecordFile(path, "ZLIB")
    is_named = ".tfrecord" in name or name.endswith(".records")
    return RecordFile(path) if _is_record(head) or is_named else None


def _ends(path: str) -> tuple[bytes, bytes]:
    with open(path, "rb") as file:
        head = file.read(_HEAD)
        file.seek(max(0, os.fstat(file.fileno()).st_size - len(MAGIC)))
        return head, file.read(len(MAGIC))


def _is_record(head: bytes) -> bool:
    """Whether a file begins with a length and the checksum of that."""
    return len(head) >= 12 and masked_crc32c(head[:8]) == int.from_bytes(head[8:12], "little")


def _begins_as_events(path: str) -> bool:
    """Whether the first record is the one that says of which version the events are."""
    with read_records(path) as records:
        first = next(records, b"")
    try:
        fields = {field.number: field.value for field in wire.fields(first)}
    except ValueError:
        return False
    version = fields.get(3)
    return isinstance(version, bytes) and version.startswith(b"brain.Event:")


def _is_safetensors(head: bytes, size: int) -> bool:
    return head[8:9] == b"{" and int.from_bytes(head[:8], "little") <= size - 8
