"""Conversions between bytes and text, and tuples of number types for `isinstance`."""

import numbers
from os import PathLike
from typing import Any, Final

import numpy as np

from thalweg.public import public, publish_value

integral_types: Final = (numbers.Integral, np.integer)
real_types: Final = (numbers.Real, np.integer, np.floating)
complex_types: Final = (numbers.Complex, np.number)
bytes_or_text_types: Final = (bytes, str)


@public("compat.as_bytes")
def as_bytes(bytes_or_text: bytes | bytearray | str, encoding: str = "utf-8") -> bytes:
    """Bytes or text as bytes.

    Args:
        bytes_or_text: a string, which is encoded, or bytes.
        encoding: the encoding of the result.

    Returns:
        Bytes.

    Example:
        >>> tf.compat.as_bytes("abc")
        b'abc'
    """
    value: Any = bytes_or_text
    if isinstance(value, str):
        return value.encode(encoding)
    if isinstance(value, (bytes, bytearray)):
        return bytes(value)
    raise TypeError(f"Expected binary or unicode string, got {value!r}")


@public("compat.as_text", "compat.as_str")
def as_text(bytes_or_text: bytes | str, encoding: str = "utf-8") -> str:
    """Bytes or text as text.

    Args:
        bytes_or_text: bytes, which are decoded, or a string.
        encoding: the encoding of bytes.

    Returns:
        A string.

    Example:
        >>> tf.compat.as_text(b"abc"), tf.compat.as_str("abc")
        ('abc', 'abc')
    """
    value: Any = bytes_or_text
    if isinstance(value, str):
        return value
    if isinstance(value, bytes):
        return value.decode(encoding)
    raise TypeError(f"Expected binary or unicode string, got {value!r}")


as_str = as_text


@public("compat.as_str_any")
def as_str_any(value: object) -> str:
    """`str(value)`, but bytes are decoded."""
    return as_text(value) if isinstance(value, bytes) else str(value)


@public("compat.path_to_str")
def path_to_str(path: str | PathLike[str]) -> str:
    """The string of a path-like object; other values are returned unchanged."""
    return as_str_any(path.__fspath__()) if isinstance(path, PathLike) else path


publish_value("compat.integral_types", integral_types)
publish_value("compat.real_types", real_types)
publish_value("compat.complex_types", complex_types)
publish_value("compat.bytes_or_text_types", bytes_or_text_types)
