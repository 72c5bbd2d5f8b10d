"""Arrays of the cases: a fill names how the elements are drawn, dtype by dtype.

`array(rng, dtype, shape, fill)` gives the same elements for the same generator state.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import ml_dtypes
import numpy as np

from tools.fuzz_tf.wire import numpy_dtype

Array = np.ndarray[Any, Any]
Rng = np.random.Generator

FLOATS = ("float32", "float64", "float16", "bfloat16")
COMPLEX = ("complex64", "complex128")
INTS = ("int32", "int64", "int8", "uint8", "int16", "uint16", "uint32", "uint64")

_WORDS = [
    b"",
    b"a",
    b"abc",
    b"Hello World",
    b" x ",
    b"a,b,,c",
    b"1.5",
    b"-7",
    b"\xc3\xa9t\xc3\xa9",
    b"\x00z",
    b"zz",
]


def array(rng: Rng, dtype: str, shape: tuple[int, ...], fill: str) -> Array:
    """An array of a fill: `normal`, `wide`, `special`, `unit`, `positive`, `ties`, `a..b`, …"""
    if dtype == "string":
        return _strings(rng, shape)
    if dtype == "bool":
        return rng.integers(0, 2, shape).astype(bool)
    if ".." in fill:
        return _between(rng, shape, fill, dtype)
    if dtype in COMPLEX:
        return _complex(rng, dtype, shape, fill)
    kind = "iu" if dtype in INTS else "f"
    return _FILLS[kind][fill](rng, dtype, shape).astype(numpy_dtype(dtype))


def _complex(rng: Rng, dtype: str, shape: tuple[int, ...], fill: str) -> Array:
    part = "float32" if dtype == "complex64" else "float64"
    # What functions make of infinite parts is the C++ library's choice.
    fill = "ties" if fill in ("special", "wide") else fill
    real, imaginary = (array(rng, part, shape, fill) for _ in range(2))
    result = np.empty(shape, dtype)
    result.real, result.imag = real, imaginary
    return result


def _strings(rng: Rng, shape: tuple[int, ...]) -> Array:
    result = np.empty(shape, object)
    for place in np.ndindex(*shape):
        result[place] = _WORDS[rng.integers(len(_WORDS))]
    return result


def _between(rng: Rng, shape: tuple[int, ...], fill: str, dtype: str) -> Array:
    low, high = (float(end) for end in fill.split(".."))
    if dtype in INTS:
        return rng.integers(int(low), int(high), shape).astype(dtype)
    if dtype in COMPLEX:
        return (rng.uniform(low, high, shape) + 1j * rng.uniform(low, high, shape)).astype(dtype)
    return rng.uniform(low, high, shape).astype(numpy_dtype(dtype))


def _wide(rng: Rng, dtype: str, shape: tuple[int, ...]) -> Array:
    top = {"float16": 4, "bfloat16": 30, "float32": 30, "float64": 250}[dtype]
    return rng.choice([-1.0, 1.0], shape) * 10.0 ** rng.uniform(-top, top, shape)


def _special_float(rng: Rng, dtype: str, shape: tuple[int, ...]) -> Array:
    info = ml_dtypes.finfo(numpy_dtype(dtype))
    # No subnormals: TensorFlow's threads flush them to zero.
    ends = [float(info.max), float(info.min), float(info.tiny), float(info.eps)]
    plain = [0.0, -0.0, 1.0, -1.0, 0.5, -0.5, 1.5, 2.5, -2.5, 10.0, 100.0, -100.0]
    pool = np.array([np.nan, np.inf, -np.inf, *ends, *plain], np.float64)
    return np.where(rng.random(shape) < 0.6, rng.choice(pool, shape), rng.standard_normal(shape))


def _special_int(rng: Rng, dtype: str, shape: tuple[int, ...]) -> Array:
    info = np.iinfo(dtype)
    pool = np.array([info.min, info.max, 0, 1, 2, 3, 7, info.max - 1, info.max // 2], dtype)
    if info.min < 0:
        pool = np.append(pool, np.array([-1, -2, -7, info.min + 1], dtype))
    return rng.choice(pool, shape)


def _small_int(rng: Rng, dtype: str, shape: tuple[int, ...]) -> Array:
    return rng.integers(-9 if np.iinfo(dtype).min < 0 else 0, 10, shape)


def _normal(rng: Rng, _: str, shape: tuple[int, ...]) -> Array:
    return rng.standard_normal(shape) * 2


_FILLS: dict[str, dict[str, Callable[[Rng, str, tuple[int, ...]], Array]]] = {
    "f": {
        "normal": _normal,
        "wide": _wide,
        "special": _special_float,
        "unit": lambda rng, _, shape: rng.uniform(-1, 1, shape),
        "positive": lambda rng, _, shape: rng.uniform(0.1, 4, shape),
        "nonzero": lambda rng, _, shape: rng.uniform(0.3, 3, shape) * rng.choice([-1, 1], shape),
        "ties": lambda rng, _, shape: rng.integers(-6, 7, shape) / 2,
    },
    "iu": {
        "normal": _small_int,
        "wide": _special_int,
        "special": _special_int,
        "unit": lambda rng, _, shape: rng.integers(0, 2, shape),
        "positive": lambda rng, _, shape: rng.integers(1, 10, shape),
        "nonzero": lambda rng, _, shape: rng.integers(1, 10, shape),
        "ties": _small_int,
    },
}
