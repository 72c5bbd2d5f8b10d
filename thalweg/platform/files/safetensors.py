"""The safetensors format: eight bytes of length, a JSON header, and the bytes of the tensors.

Tensors of dtypes that the format lacks (strings, complex and quantized numbers) are tensors of
bytes; a note in the metadata has the dtype and shape. Notes also have the slice of an entry that is
part of a tensor.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from math import prod
from typing import Any, cast

import numpy as np

from thalweg import errors
from thalweg.platform.arrays import Array
from thalweg.platform.compat import as_bytes
from thalweg.platform.dtype_traits import TABLE
from thalweg.platform.files.tensor_slices import (
    NUMPY,
    Entry,
    Part,
    Slice,
    as_sizes,
    checked_slice,
    whole,
)

Sizes = tuple[int, ...]

_MAX_HEADER = 100_000_000  # bytes, as in other readers of the format
_METADATA = "__metadata__"
_NOTES = "thalweg"  # the key of our notes in the metadata
_ALIGNMENT = 64  # of the first tensor's bytes

_CODES = {row.name: row.safetensors for row in TABLE if row.safetensors}
_FOREIGN = {"C64": "complex64"}  # written only by others; here they are bytes with a note
_NAMES = {code: name for name, code in _CODES.items()} | _FOREIGN


@dataclass(frozen=True)
class Piece:
    """A tensor, or a slice of one, to write."""

    name: str
    array: Array
    extent: Slice | None = None

    @property
    def key(self) -> str:
        """The name in the file, with the box of a slice."""
        return self.name if self.extent is None else f"{self.name}[{self.extent.text}]"

    @property
    def dtype(self) -> str:
        """The dtype by name."""
        return dtype_name(self.array.dtype)


def dtype_name(dtype: Any) -> str:
    """The name of a NumPy dtype in entries."""
    if dtype.kind == "O":
        return "string"
    return dtype.names[0] if dtype.names else dtype.name


# Writing


def layout(pieces: Iterable[Piece]) -> tuple[bytes, list[Array], dict[str, Entry]]:
    """The header, the bytes of the tensors in order, and the entries with empty paths."""
    ordered = sorted(pieces, key=lambda piece: (-_alignment(piece), piece.key))
    header: dict[str, Any] = {}
    notes: dict[str, Any] = {}
    segments: list[Array] = []
    end = 0
    for piece in ordered:
        if piece.key in header or piece.key == _METADATA:
            raise errors.invalid(f"Cannot save {piece.key!r} here: taken")
        content = _bytes(piece.array)
        begin, end = end, end + content.nbytes
        header[piece.key] = _header_entry(piece, begin, end)
        if note := _note(piece):
            notes[piece.key] = note
        segments.append(content)
    written = _encoded(header, notes)
    return written, segments, _placed(ordered, header, len(written))


def _alignment(piece: Piece) -> int:
    """The sort key that aligns all elements to their size: wide ones first, strings last."""
    return 0 if piece.dtype == "string" else piece.array.dtype.itemsize


def _bytes(array: Array) -> Array:
    if array.dtype.kind == "O":
        return _string_bytes(array)
    return np.ascontiguousarray(array).reshape(-1).view(np.uint8)


def _string_bytes(array: Array) -> Array:
    """The lengths, of eight bytes each, then the strings."""
    items = [as_bytes(item) for item in array.reshape(-1).tolist()]
    lengths = np.array([len(item) for item in items], "<u8")
    return np.frombuffer(lengths.tobytes() + b"".join(items), np.uint8)


def _header_entry(piece: Piece, begin: int, end: int) -> dict[str, Any]:
    plain = piece.dtype in _CODES
    shape = list(piece.array.shape) if plain else [end - begin]
    code = _CODES.get(piece.dtype, "U8")
    return {"dtype": code, "shape": shape, "data_offsets": [begin, end]}


def _note(piece: Piece) -> dict[str, Any]:
    """The properties of a piece that the header has no field for."""
    note: dict[str, Any] = {}
    if piece.dtype not in _CODES:
        note |= {"dtype": piece.dtype, "shape": list(piece.array.shape)}
    if piece.extent is not None:
        full, start = list(piece.extent.full), list(piece.extent.start)
        note |= {"name": piece.name, "full": full, "start": start}
    return note


def _encoded(header: Mapping[str, Any], notes: Mapping[str, Any]) -> bytes:
    metadata = {"format": "pt"} | ({_NOTES: json.dumps(notes)} if notes else {})
    text = json.dumps({_METADATA: metadata, **header}, separators=(",", ":")).encode()
    text += b" " * (-(len(text) + 8) % _ALIGNMENT)
    return len(text).to_bytes(8, "little") + text


def _placed(pieces: Sequence[Piece], header: Mapping[str, Any], offset: int) -> dict[str, Entry]:
    entries: dict[str, Entry] = {}
    for piece in pieces:
        begin, end = header[piece.key]["data_offsets"]
        extent = piece.extent or whole(piece.array.shape)
        part = Part("", offset + begin, offset + end, extent)
        add_part(entries, piece.name, piece.dtype, part, piece.key)
    return entries


def add_part(entries: dict[str, Entry], name: str, dtype: str, part: Part, source: str) -> None:
    """Add a slice to the entry of its tensor; its dtype and full shape must match."""
    entry = entries.get(name)
    if entry is not None and (entry.dtype, entry.shape) != (dtype, part.extent.full):
        raise errors.invalid(
            f"{source}: the slices of {name} disagree: {entry.dtype}{list(entry.shape)} and "
            f"{dtype}{list(part.extent.full)}"
        )
    parts = () if entry is None else entry.parts
    entries[name] = Entry(dtype, part.extent.full, (*parts, part))


# Reading


def damaged(path: str, offset: int, what: str) -> errors.DataLossError:
    """The error for a malformed or corrupted file."""
    return errors.DataLossError(None, None, f"{path}: at byte {offset}: {what}")


def read_entries(path: str, content: Array) -> dict[str, Entry]:
    """The entries of a file, from its bytes."""
    size = content.nbytes
    if size < 8:
        raise damaged(path, 0, f"{size} bytes are too few for a safetensors file")
    length = int.from_bytes(content[:8].tobytes(), "little")
    if length > min(size - 8, _MAX_HEADER):
        raise damaged(path, 0, f"a header of {length} bytes does not fit a file of {size}")
    header = parse_object(path, 8, content[8 : 8 + length].tobytes())
    metadata = header.pop(_METADATA, {})
    items: Any = cast("dict[str, Any]", metadata) if isinstance(metadata, dict) else {_NOTES: None}
    notes_text = items.get(_NOTES, "{}")
    if not isinstance(notes_text, str):
        raise damaged(path, 8, "the metadata is not a map of strings")
    notes = parse_object(path, 8, notes_text.encode())
    entries: dict[str, Entry] = {}
    for key, value in header.items():
        name, dtype, part = _read_part(path, key, value, notes.get(key, {}), 8 + length, size)
        add_part(entries, name, dtype, part, path)
    return entries


def parse_object(path: str, offset: int, text: bytes) -> dict[str, Any]:
    """A JSON object from a file."""
    try:
        value = json.loads(text.decode())
    except (ValueError, RecursionError) as error:
        raise damaged(path, offset, f"this is no JSON: {error}") from error
    if not isinstance(value, dict):
        raise damaged(path, offset, "this is no JSON object")
    return cast("dict[str, Any]", value)


def _read_part(
    path: str, key: str, value: Any, note: Any, offset: int, size: int
) -> tuple[str, str, Part]:
    if not isinstance(value, dict) or not isinstance(note, dict):
        raise damaged(path, 8, f"the entry of {key!r} is no JSON object")
    entry, notes = cast("dict[str, Any]", value), cast("dict[str, Any]", note)
    dtype = str(notes.get("dtype", _NAMES.get(str(entry.get("dtype")))))
    sizes = notes.get("shape", entry.get("shape"))
    shape = as_sizes(sizes, NUMPY[dtype].itemsize) if dtype in NUMPY else None
    if shape is None:
        raise damaged(path, 8, f"{key!r} has dtype {entry.get('dtype')!r} and shape {sizes!r}")
    begin, end = _span(path, key, entry.get("data_offsets"), offset, size)
    check_length(path, key, dtype, shape, begin, end)
    extent = _extent(path, key, notes, shape)
    return str(notes.get("name", key)), dtype, Part(path, begin, end, extent)


def _span(path: str, key: str, offsets: Any, data: int, size: int) -> tuple[int, int]:
    span = as_sizes(offsets)
    if span is not None and len(span) == 2:
        begin, end = data + span[0], data + span[1]
        if begin <= end <= size:
            return begin, end
    raise damaged(path, 8, f"{key!r} lies at {offsets!r}, outside the {size - data} bytes of data")


def check_length(path: str, key: str, dtype: str, shape: Sizes, begin: int, end: int) -> None:
    """Raise unless the elements have the number of bytes of their dtype and shape."""
    elements, size = prod(shape), end - begin
    is_string = dtype == "string"
    fits = size >= 8 * elements if is_string else size == elements * NUMPY[dtype].itemsize
    if not fits:
        raise damaged(path, begin, f"{key!r} is {dtype}{list(shape)} but has {end - begin} bytes")


def _extent(path: str, key: str, note: Mapping[str, Any], shape: Sizes) -> Slice:
    if "full" not in note:
        return whole(shape)
    extent = checked_slice(as_sizes(note["full"]), as_sizes(note.get("start")), shape)
    if extent is None:
        raise damaged(path, 8, f"{key!r} is no slice of a tensor: {note!r}")
    return extent


def decode(path: str, content: Array, dtype: str, shape: Sizes, offset: int) -> Array:
    """The array with these bytes: a view of them, or a new array of strings."""
    if dtype == "string":
        return _strings(path, content, shape, offset)
    return content.view(NUMPY[dtype]).reshape(shape)


def _strings(path: str, content: Array, shape: Sizes, offset: int) -> Array:
    count = prod(shape)
    lengths = content[: 8 * count].view("<u8")
    if int(lengths.sum(dtype=object) if count else 0) != content.nbytes - 8 * count:
        raise damaged(path, offset, "the lengths of the strings do not add up to their bytes")
    ends = (8 * count + np.cumsum(lengths, dtype=np.int64)).tolist()
    starts = [8 * count, *ends]
    result = np.empty(count, object)
    result[:] = [content[s:e].tobytes() for s, e in zip(starts, ends, strict=False)]
    return result.reshape(shape)
