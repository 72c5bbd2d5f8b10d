"""Messages between the fuzzer and its workers: a JSON header and the raw bytes of arrays.

A message is a dict. Under "arrays" it may hold NumPy arrays; all the rest is plain data. On the
pipe stand the header's length (four bytes), the header, and the arrays' bytes one after another.
"""

from __future__ import annotations

import json
import struct
from collections.abc import Callable
from typing import Any

import ml_dtypes
import numpy as np

_LENGTH = struct.Struct("<I")
_NARROW = {"bfloat16": np.dtype(ml_dtypes.bfloat16)}


def numpy_dtype(name: str) -> np.dtype[Any]:
    """The NumPy dtype of a dtype's name, `bfloat16` and `string` too."""
    if name == "string":
        return np.dtype(object)
    return _NARROW.get(name) or np.dtype(name)


def dtype_name(array: np.ndarray[Any, Any]) -> str:
    """What `numpy_dtype` takes for the array's dtype."""
    return "string" if array.dtype.kind in "OSU" else array.dtype.name


def encode(message: dict[str, Any]) -> bytes:
    """The bytes of a message."""
    packed = [_pack(np.asarray(array)) for array in message.get("arrays", [])]
    header = {**message, "arrays": [meta for meta, _ in packed]}
    text = json.dumps(header).encode()
    return b"".join([_LENGTH.pack(len(text)), text, *(body for _, body in packed)])


def read(take: Callable[[int], bytes]) -> dict[str, Any]:
    """The next message, from a function that takes exactly so many bytes off the pipe."""
    (length,) = _LENGTH.unpack(take(_LENGTH.size))
    message = json.loads(take(length))
    message["arrays"] = [_unpack(meta, take(meta["bytes"])) for meta in message["arrays"]]
    return message


def _pack(array: np.ndarray[Any, Any]) -> tuple[dict[str, Any], bytes]:
    name = dtype_name(array)
    body = _string_bytes(array) if name == "string" else np.ascontiguousarray(array).tobytes()
    return {"dtype": name, "shape": array.shape, "bytes": len(body)}, body


def _string_bytes(array: np.ndarray[Any, Any]) -> bytes:
    """Strings as JSON: NumPy's own string arrays lose the zero bytes at the end."""
    items = [s.encode() if isinstance(s, str) else bytes(s) for s in array.ravel().tolist()]
    return json.dumps([item.decode("latin-1") for item in items]).encode()


def _unpack(meta: dict[str, Any], body: bytes) -> np.ndarray[Any, Any]:
    shape = tuple(meta["shape"])
    if meta["dtype"] != "string":
        return np.frombuffer(body, numpy_dtype(meta["dtype"])).reshape(shape)
    items = [item.encode("latin-1") for item in json.loads(body)]
    array = np.empty(len(items), object)
    array[:] = items
    return array.reshape(shape)
