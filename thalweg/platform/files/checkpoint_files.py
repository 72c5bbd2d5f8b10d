"""Checkpoints on disk: a small index and data files in the safetensors format.

`<prefix>.index` is a line of JSON (the tensors, the locations of their bytes, checksums of the data
in blocks) and a line with its own checksum; data files are `<prefix>.data-00000-of-00001.\
safetensors`. The rename of the index commits a checkpoint: data files have names that no existing
index refers to, so the old checkpoint stays intact until then.
"""

from __future__ import annotations

import glob
import json
import os
import shutil
import threading
from collections import defaultdict
from collections.abc import Callable, Generator, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, replace
from typing import Any, cast
from weakref import WeakValueDictionary

import numpy as np

from thalweg import errors
from thalweg.platform.arrays import Array
from thalweg.platform.files import durable
from thalweg.platform.files.checksum import crc32c
from thalweg.platform.files.safetensors import (
    Piece,
    check_length,
    damaged,
    decode,
    layout,
    parse_object,
    read_entries,
)
from thalweg.platform.files.streaming import Mapped, StreamedTensor, stream
from thalweg.platform.files.tensor_slices import (
    NUMPY,
    Checkpoint,
    Entry,
    Part,
    ReadRequest,
    Slice,
    as_sizes,
    checked_slice,
    whole,
)
from thalweg.platform.forks import renewed_after_fork

_FORMAT = "thalweg checkpoint"
_VERSION = 1


def index_path(prefix: str) -> str:
    """The index file of a prefix: its existence is that of the checkpoint."""
    return f"{prefix}.index"


def data_pattern(prefix: str) -> str:
    """The glob pattern of the data files of a prefix, in any format."""
    return f"{glob.escape(prefix)}.data-?????-of-?????*"


# Writing


class _WriterLocks:
    """A lock for each prefix: a writer removes the files of the checkpoint that it replaces."""

    def __init__(self) -> None:
        self.renew_locks()
        renewed_after_fork(self)

    def renew_locks(self) -> None:
        """Replace the locks by new ones, which are not held."""
        self._guard = threading.Lock()
        self._locks: WeakValueDictionary[str, Any] = WeakValueDictionary()

    @contextmanager
    def hold(self, prefix: str) -> Generator[None]:
        """Exclude other threads that write a checkpoint of this prefix."""
        with self._guard:
            lock = self._locks.setdefault(os.path.abspath(prefix), threading.Lock())
        with lock:
            yield


_writers = _WriterLocks()


@dataclass
class Shard:
    """A data file: its path, size, checksums of blocks, and entries."""

    path: str
    size: int
    checksums: list[int]
    entries: dict[str, Entry] = field(default_factory=dict[str, Entry])


def save(
    prefix: str,
    shards: Sequence[Iterable[Piece]],
    threads: int = 2,
    rest: Callable[[], Any] | None = None,
) -> None:
    """Write a checkpoint, one data file per shard, replacing an older one of this prefix.

    `rest` is called between blocks: a background writer sleeps in it.
    """
    _replace(prefix, shards, lambda path, pieces: _write_shard(path, pieces, threads, rest))


def save_file(path: str, pieces: Iterable[Piece], threads: int = 2) -> None:
    """Write a checkpoint of one file, without an index."""
    _write_shard(path, pieces, threads)
    durable.sync_folder(path)


def _write_shard(
    path: str, pieces: Iterable[Piece], threads: int, rest: Callable[[], Any] | None = None
) -> Shard:
    header, segments, entries = layout(pieces)
    stream = [np.frombuffer(header, np.uint8), *segments]
    checksums = durable.write_stream(path, stream, threads, rest)
    size = sum(segment.nbytes for segment in stream)
    return Shard(path, size, checksums, entries)


def _data_names(prefix: str, count: int) -> list[str]:
    """Unused names of data files: with a suffix, if an older checkpoint has the plain ones."""
    generation = 0
    while True:
        suffix = f"-{generation}" if generation else ""
        names = [
            f"{prefix}.data-{shard:05d}-of-{count:05d}{suffix}.safetensors"
            for shard in range(count)
        ]
        if not any(os.path.exists(name) for name in names):
            return names
        generation += 1


def _replace(prefix: str, sources: Sequence[Any], write: Callable[[str, Any], Shard]) -> None:
    """Replace the checkpoint of a prefix by one with a data file for each source, which
    `write(path, source)` creates. On an error the old checkpoint remains."""
    with _writers.hold(prefix):
        written: list[Shard] = []
        try:
            for name, source in zip(_data_names(prefix, len(sources)), sources, strict=True):
                written.append(write(name, source))
            durable.sync_folder(prefix)  # the data files must be durable before the index
            durable.put_file(index_path(prefix), _index(prefix, written))
        except BaseException:
            _remove(shard.path for shard in written)
            raise
        durable.sync_folder(prefix)
        kept = {shard.path for shard in written}
        _remove(name for name in glob.glob(data_pattern(prefix)) if name not in kept)
        durable.sweep(os.path.dirname(prefix))


def _remove(paths: Iterable[str]) -> None:
    for path in paths:
        with suppress(FileNotFoundError):
            os.remove(path)


def _index(prefix: str, shards: Sequence[Shard]) -> bytes:
    tensors: dict[str, Any] = {}
    for number, shard in enumerate(shards):
        for name, entry in shard.entries.items():
            _add_tensor(tensors, name, entry, number)
    files = [
        {
            "name": shard.path.removeprefix(f"{prefix}."),
            "size": shard.size,
            "checksums": [f"{checksum:08x}" for checksum in shard.checksums],
        }
        for shard in shards
    ]
    index = {
        "format": _FORMAT,
        "version": _VERSION,
        "block": durable.BLOCK,
        "files": files,
        "tensors": tensors,
    }
    text = json.dumps(index, separators=(",", ":")).encode()
    return text + b'\n{"crc32c":"%08x"}\n' % crc32c(text)


def _add_tensor(tensors: dict[str, Any], name: str, entry: Entry, number: int) -> None:
    new = {"dtype": entry.dtype, "shape": list(entry.shape), "parts": []}
    known = tensors.setdefault(name, new)
    if (known["dtype"], known["shape"]) != (new["dtype"], new["shape"]):
        raise errors.invalid(f"Two shards have a tensor {name}, of different dtypes or shapes")
    for part in entry.parts:
        location: list[Any] = [number, part.begin, part.end]
        if not part.extent.is_whole:
            location += [list(part.extent.start), list(part.extent.shape)]
        known["parts"].append(location)


def merge(prefixes: Sequence[str], destination: str, delete_old_folders: bool = True) -> None:
    """Merge several checkpoints into one: renames their data files, and writes one index."""
    shards = [shard for prefix in prefixes for shard in _open_indexed(prefix).shards]

    def move(path: str, shard: Shard) -> Shard:
        with durable.file_errors(destination):
            os.rename(shard.path, path)
        return replace(shard, path=path)

    _replace(destination, shards, move)
    _remove(index_path(prefix) for prefix in prefixes if prefix != destination)
    if delete_old_folders:
        _remove_folders(prefixes, destination)


def _remove_folders(prefixes: Sequence[str], destination: str) -> None:
    """Remove the folders of merged checkpoints, except the one with the result."""
    final = os.path.abspath(os.path.dirname(destination))
    for folder in {os.path.abspath(os.path.dirname(prefix)) for prefix in prefixes}:
        if folder != final and not final.startswith(f"{folder}{os.sep}"):
            shutil.rmtree(folder, ignore_errors=True)


# Reading


def mapped(path: str) -> Array:
    """The bytes of a file, mapped and read-only."""
    return Mapped(path).array


def exists(prefix: str) -> bool:
    """Whether a checkpoint with this prefix, file name or pattern exists."""
    return os.path.exists(index_path(prefix)) or bool(glob.glob(prefix))


def open_files(prefix: str) -> Checkpoint:
    """The checkpoint of a prefix, or of files without an index whose names match a pattern."""
    return _open_indexed(prefix) if os.path.isfile(index_path(prefix)) else _open_unindexed(prefix)


def _open_unindexed(pattern: str) -> Checkpoint:
    paths = sorted(path for path in glob.glob(pattern) if os.path.isfile(path))
    if not paths:
        raise errors.NotFoundError(
            None,
            None,
            "Unsuccessful TensorSliceReader constructor: Failed to find any matching files for "
            f"{pattern}",
        )
    shards = [Shard(path, os.path.getsize(path), []) for path in paths]
    entries: dict[str, Entry] = {}
    contents = {path: Mapped(path) for path in paths}
    for path, content in contents.items():
        for name, entry in read_entries(path, content.array).items():
            known = entries.get(name)
            entries[name] = entry if known is None else _joined(path, name, known, entry)
    return SafetensorsCheckpoint(pattern, entries, shards, contents)


def _joined(path: str, name: str, first: Entry, second: Entry) -> Entry:
    if (first.dtype, first.shape) != (second.dtype, second.shape):
        raise damaged(path, 8, f"{name!r} has another dtype or shape in another file")
    return replace(first, parts=first.parts + second.parts)


def _open_indexed(prefix: str) -> SafetensorsCheckpoint:
    path = index_path(prefix)
    index = _checked_index(path)
    block, files, tensors = index.get("block"), index.get("files"), index.get("tensors")
    if block != durable.BLOCK or not isinstance(files, list) or not isinstance(tensors, dict):
        raise damaged(path, 0, "the index lacks its block size, files or tensors")
    shards = [_shard(prefix, path, file) for file in cast("list[Any]", files)]
    contents = {shard.path: _map_shard(shard) for shard in shards}
    entries = {
        name: _entry(path, name, value, shards)
        for name, value in cast("dict[str, Any]", tensors).items()
    }
    _set_shard_entries(entries, shards)
    return SafetensorsCheckpoint(prefix, entries, shards, contents)


def _set_shard_entries(entries: Mapping[str, Entry], shards: Sequence[Shard]) -> None:
    """Add the entries of a checkpoint to the shards that have their parts."""
    by_path = {shard.path: shard for shard in shards}
    for name, entry in entries.items():
        for path in {part.path for part in entry.parts}:
            parts = tuple(part for part in entry.parts if part.path == path)
            by_path[path].entries[name] = replace(entry, parts=parts)


def _checked_index(path: str) -> dict[str, Any]:
    content = mapped(path).tobytes()
    text, _, rest = content.partition(b"\n")
    index = parse_object(path, 0, text)
    if (index.get("format"), index.get("version")) != (_FORMAT, _VERSION):
        raise damaged(path, 0, f"this is no index of version {_VERSION}")
    checksum = parse_object(path, len(text) + 1, rest).get("crc32c")
    if checksum != f"{crc32c(text):08x}":
        raise damaged(path, 0, "the index does not have the checksum that it says")
    return index


def _shard(prefix: str, path: str, file: Any) -> Shard:
    fields = cast("dict[str, Any]", file) if isinstance(file, dict) else {}
    name, size, sums = (fields.get(key) for key in ("name", "size", "checksums"))
    if not isinstance(name, str) or os.sep in name or type(size) is not int:
        raise damaged(path, 0, f"a file of the index is {file!r}")
    if not isinstance(sums, list) or len(cast("list[Any]", sums)) != -(-size // durable.BLOCK):
        raise damaged(path, 0, f"the checksums of {name} are not one for each block")
    try:
        checksums = [int(text, 16) for text in cast("list[Any]", sums)]
    except (TypeError, ValueError):
        raise damaged(path, 0, f"the checksums of {name} are no numbers") from None
    return Shard(f"{prefix}.{name}", size, checksums)


def _map_shard(shard: Shard) -> Mapped:
    content = Mapped(shard.path)
    size = content.array.size
    if size != shard.size:
        raise damaged(shard.path, size, f"the file ends here; it should have {shard.size} bytes")
    return content


def _entry(path: str, name: str, value: Any, shards: Sequence[Shard]) -> Entry:
    fields = cast("dict[str, Any]", value) if isinstance(value, dict) else {}
    dtype, shape, parts = str(fields.get("dtype")), fields.get("shape"), fields.get("parts")
    sizes = as_sizes(shape, NUMPY[dtype].itemsize) if dtype in NUMPY else None
    if sizes is None:
        raise damaged(path, 0, f"{name!r} has dtype {dtype!r} and shape {shape!r}")
    if not isinstance(parts, list):
        raise damaged(path, 0, f"{name!r} has no list of parts")
    locations = cast("list[Any]", parts)
    return Entry(dtype, sizes, tuple(_part(path, name, dtype, sizes, x, shards) for x in locations))


def _part(
    path: str, name: str, dtype: str, full: tuple[int, ...], location: Any, shards: Sequence[Shard]
) -> Part:
    numbers = cast("list[Any]", location) if isinstance(location, list) else []
    span = as_sizes(numbers[:3])
    if len(numbers) not in (3, 5) or span is None or span[0] >= len(shards):
        raise damaged(path, 0, f"a part of {name!r} is at {location!r}")
    number, begin, end = span
    shard = shards[number]
    extent = whole(full) if len(numbers) == 3 else _box(path, name, full, numbers[3:])
    if not begin <= end <= shard.size:
        raise damaged(path, 0, f"{name!r} lies at {begin} to {end} of {shard.size} bytes")
    check_length(shard.path, name, dtype, extent.shape, begin, end)
    return Part(shard.path, begin, end, extent)


def _box(path: str, name: str, full: tuple[int, ...], box: Sequence[Any]) -> Slice:
    extent = checked_slice(full, as_sizes(box[0]), as_sizes(box[1]))
    if extent is None:
        raise damaged(path, 0, f"{name!r} has a slice {box!r} outside its shape {list(full)}")
    return extent


def _read_ahead(path: str, parts: Iterable[Part]) -> None:
    """Start reading from the disk: page faults of a mapping read only little at a time."""
    with durable.file_errors(path), open(path, "rb") as file:
        for part in parts:
            size = part.end - part.begin
            os.posix_fadvise(file.fileno(), part.begin, size, os.POSIX_FADV_WILLNEED)


def _disjoint(
    requests: Iterable[tuple[StreamedTensor, ReadRequest]],
) -> tuple[list[StreamedTensor], list[ReadRequest]]:
    """Tensors of a file that do not overlap, and the requests for those that overlap one."""
    disjoint: list[StreamedTensor] = []
    overlapping: list[ReadRequest] = []
    end = 0
    for tensor, request in sorted(requests, key=lambda pair: pair[0].begin):
        if tensor.begin < end:
            overlapping.append(request)
        else:
            disjoint.append(tensor)
            end = tensor.end
    return disjoint, overlapping


class SafetensorsCheckpoint(Checkpoint):
    """A checkpoint of safetensors files; arrays are views of the mapped files."""

    def __init__(
        self,
        prefix: str,
        entries: Mapping[str, Entry],
        shards: Sequence[Shard],
        contents: Mapping[str, Mapped],
    ) -> None:
        super().__init__(prefix, entries)
        self.shards = list(shards)
        self._files = contents
        self._contents = {path: file.array for path, file in contents.items()}
        self._checksums = {shard.path: shard.checksums for shard in shards}
        self._checked: set[tuple[str, int]] = set()

    def load(self, entry: Entry, part: Part) -> Array:
        """A view of the file, after a check of its blocks."""
        self._check([(part.path, block) for block in self._blocks(part)])
        content = self._contents[part.path][part.begin : part.end]
        return decode(part.path, content, entry.dtype, part.extent.shape, part.begin)

    def prepare(self, names: Iterable[str]) -> None:
        """Check all blocks of some tensors, which also reads them into memory."""
        parts = [part for name in names for part in self.entry(name).parts]
        for path in {part.path for part in parts}:
            _read_ahead(path, [part for part in parts if part.path == path])
        self._check([(part.path, block) for part in parts for block in self._blocks(part)])

    def read_into(self, wanted: Sequence[ReadRequest]) -> None:
        """Stream contiguous tensors into new arrays; read the others one by one."""
        by_path: dict[str, list[tuple[StreamedTensor, ReadRequest]]] = defaultdict(list)
        others: list[ReadRequest] = []
        for request in wanted:
            name, slice_, receive = request
            entry, box = self.entry(name), self._box(name, slice_)
            part = next((part for part in entry.parts if part.extent == box), None)
            if part is None or entry.dtype == "string":
                others.append(request)
            else:
                span = part.begin, part.end
                tensor = StreamedTensor(*span, NUMPY[entry.dtype], box.shape, receive)
                by_path[part.path].append((tensor, request))
        for path, requests in by_path.items():
            disjoint, overlapping = _disjoint(requests)
            others += overlapping
            stream(path, self._files[path], self._checksums[path], disjoint)
        super().read_into(others)

    def _blocks(self, part: Part) -> range:
        if not self._checksums[part.path] or part.begin == part.end:
            return range(0)
        return range(part.begin // durable.BLOCK, -(-part.end // durable.BLOCK))

    def _check(self, blocks: Iterable[tuple[str, int]]) -> None:
        new = [block for block in dict.fromkeys(blocks) if block not in self._checked]
        if len(new) < 4:
            for block in new:
                self._check_block(block)
        else:
            with ThreadPoolExecutor(min(2, os.cpu_count() or 1)) as pool:
                list(pool.map(self._check_block, new))
        self._checked.update(new)

    def _check_block(self, block: tuple[str, int]) -> None:
        path, number = block
        begin = number * durable.BLOCK
        content = self._contents[path][begin : begin + durable.BLOCK]
        if crc32c(content.data) != self._checksums[path][number]:
            raise damaged(
                path, begin, f"these {content.nbytes} bytes are not those that were saved"
            )
