"""What convolutions and poolings say about space: tuples of sizes, layouts, output lengths."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

Size = int | None


def as_tuple(value: Any, count: int, name: str) -> tuple[int, ...]:
    """One positive int for all dimensions, or one for each."""
    try:
        sizes = (value,) * count if isinstance(value, int) else tuple(int(size) for size in value)
    except (TypeError, ValueError):
        sizes = ()
    if len(sizes) != count or min(sizes) < 1:
        raise ValueError(
            f"The `{name}` argument must be a tuple of {count} integers above 0. Received: {value}"
        )
    return sizes


def as_data_format(value: str) -> str:
    """`channels_last` or `channels_first`, in lower case."""
    data_format = value.lower()
    if data_format not in ("channels_first", "channels_last"):
        raise ValueError(
            "The `data_format` argument must be one of 'channels_first', 'channels_last'. "
            f"Received: {value}"
        )
    return data_format


def as_padding(value: str) -> str:
    """`valid` or `same`, in lower case."""
    padding = value.lower()
    if padding not in ("valid", "same"):
        raise ValueError(
            f"The `padding` argument must be one of 'valid', 'same'. Received: {value}"
        )
    return padding


def op_format(data_format: str, rank: int) -> str:
    """The layout as ops spell it: `NHWC`, `NCDHW` and the like."""
    spatial = {1: "W", 2: "HW", 3: "DHW"}[rank]
    return f"NC{spatial}" if data_format == "channels_first" else f"N{spatial}C"


def conv_length(length: Size, window: int, padding: str, stride: int, dilation: int = 1) -> Size:
    """How many places a window takes along a dimension."""
    if length is None:
        return None
    extent = window + (window - 1) * (dilation - 1)
    places = length if padding == "same" else length - extent + 1
    return (places + stride - 1) // stride


def deconv_length(length: Any, window: int, padding: str, stride: int) -> Any:
    """The length (a number, None or a tensor) that a transposed convolution gives."""
    if length is None:
        return None
    length = length * stride
    return length + max(window - stride, 0) if padding == "valid" else length


def with_space(
    shape: Sequence[Any], space: Sequence[Any], channels: Any, data_format: str
) -> list[Any]:
    """[batch, space, channels] in the order of the layout."""
    if data_format == "channels_first":
        return [shape[0], channels, *space]
    return [shape[0], *space, channels]


def space_of(shape: Sequence[Any], data_format: str) -> list[Any]:
    """The spatial sizes of a shape."""
    return list(shape[2:] if data_format == "channels_first" else shape[1:-1])
