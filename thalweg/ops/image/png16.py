"""PNG files of 16 bits a channel, which Pillow reads and writes only in grey.

`encode` writes [height, width, channels] uint16 pixels; `decode` reads non-interlaced files back.
"""

from __future__ import annotations

import struct
import zlib

import numpy as np

from thalweg.platform.arrays import Array

_MAGIC = b"\x89PNG\r\n\x1a\n"
_COLOUR_TYPES = {1: 0, 2: 4, 3: 2, 4: 6}
_CHANNELS = {kind: channels for channels, kind in _COLOUR_TYPES.items()}


def encode(image: Array, level: int = -1) -> bytes:
    """Pixels as a PNG file."""
    height, width, channels = image.shape
    rows = np.ascontiguousarray(image.astype(">u2")).reshape(height, -1).view(np.uint8)
    header = struct.pack(">IIBBBBB", width, height, 16, _COLOUR_TYPES[channels], 0, 0, 0)
    data = zlib.compress(_filtered(rows, 2 * channels).tobytes(), level)
    chunks = [(b"IHDR", header), (b"IDAT", data), (b"IEND", b"")]
    return _MAGIC + b"".join(_chunk(kind, content) for kind, content in chunks)


def _filtered(rows: Array, step: int) -> Array:
    """Each row with the filter (none, left, up) that has the smallest differences."""
    left = np.pad(rows, [(0, 0), (step, 0)])[:, : rows.shape[1]]
    up = np.pad(rows, [(1, 0), (0, 0)])[:-1]
    candidates = np.stack([rows, rows - left, rows - up])
    costs = np.abs(candidates.view(np.int8).astype(np.int32)).sum(-1)
    best = costs.argmin(0)
    chosen = candidates[best, np.arange(len(rows))]
    return np.concatenate([best[:, None].astype(np.uint8), chosen], 1)


def _chunk(kind: bytes, content: bytes) -> bytes:
    check = zlib.crc32(kind + content)
    return struct.pack(">I", len(content)) + kind + content + struct.pack(">I", check)


def is_deep(data: bytes) -> bool:
    """Whether this is a PNG file of 16 bits a channel that `decode` can read."""
    return data[:8] == _MAGIC and len(data) > 28 and data[24] == 16 and data[28] == 0


def decode(data: bytes) -> Array:
    """The pixels [height, width, channels] of a file for which `is_deep` holds."""
    width, height, _, colour_type = struct.unpack(">IIBB", data[16:26])
    channels = _CHANNELS[colour_type]
    raw = np.frombuffer(zlib.decompress(_contents(data)), np.uint8)
    rows = raw.reshape(height, 1 + width * channels * 2)
    pixels = _unfiltered(rows[:, 0], rows[:, 1:], 2 * channels)
    return pixels.view(">u2").astype(np.uint16).reshape(height, width, channels)


def _contents(data: bytes) -> bytes:
    parts: list[bytes] = []
    place = 8
    while place + 8 <= len(data):
        (length,) = struct.unpack(">I", data[place : place + 4])
        if data[place + 4 : place + 8] == b"IDAT":
            parts.append(data[place + 8 : place + 8 + length])
        place += 12 + length
    return b"".join(parts)


def _unfiltered(filters: Array, rows: Array, step: int) -> Array:
    """Undo the five row filters of the format."""
    result = np.zeros_like(rows)
    above = np.zeros(rows.shape[1], np.uint8)
    for index, kind in enumerate(filters.tolist()):
        row = rows[index].astype(np.int32)
        if kind == 2:
            row += above
        elif kind:
            _undo_sequential(row, above.astype(np.int32), kind, step)
        result[index] = row & 255
        above = result[index]
    return result


def _undo_sequential(row: Array, above: Array, kind: int, step: int) -> None:
    """Undo filters that depend on the pixel to the left, pixel by pixel."""
    zero = np.zeros(step, np.int32)
    for start in range(0, len(row), step):
        here = slice(start, start + step)
        left = row[start - step : start] if start else zero
        corner = above[start - step : start] if start else zero
        row[here] = (row[here] + _predicted(kind, left, above[here], corner)) & 255


def _predicted(kind: int, left: Array, up: Array, corner: Array) -> Array:
    if kind == 1:
        return left
    if kind == 3:
        return (left + up) // 2
    guess = left + up - corner
    to_left, to_up, to_corner = abs(guess - left), abs(guess - up), abs(guess - corner)
    nearer = np.where(to_up <= to_corner, up, corner)
    return np.where((to_left <= to_up) & (to_left <= to_corner), left, nearer)
