"""`tensorflow.python.layers.utils`: arguments of layers, and conditions that may be known."""

from __future__ import annotations

from typing import Any

from thalweg.alias import names
from thalweg.alias.inside.keras.tf_utils import constant_value, smart_cond

__all__ = ["constant_value", "smart_cond"]

tf = names.root()


def convert_data_format(data_format: str, ndim: int) -> str:
    """`channels_last` and a number of axes as the letters that ops take."""
    letters = {3: "W", 4: "HW", 5: "DHW"}.get(ndim)
    if letters is None:
        raise ValueError(f"Input rank not supported: {ndim}")
    if data_format not in ("channels_last", "channels_first"):
        raise ValueError(f"Invalid data_format: {data_format}")
    return f"N{letters}C" if data_format == "channels_last" else f"NC{letters}"


def normalize_tuple(value: Any, n: int, name: str) -> tuple[int, ...]:
    """A number or `n` numbers as `n` numbers."""
    if isinstance(value, int):
        return (value,) * n
    try:
        values = tuple(int(v) for v in value)
    except (TypeError, ValueError) as error:
        raise ValueError(
            f"The `{name}` argument must be {n} integers. Received: {value}"
        ) from error
    if len(values) != n:
        raise ValueError(
            f"The `{name}` argument must be a tuple of {n} integers. Received: {value}"
        )
    return values


def normalize_data_format(value: str) -> str:
    """The name of a data format, checked."""
    if value.lower() not in ("channels_last", "channels_first"):
        raise ValueError(f"The `data_format` argument must be one of 'channels_first', "
                         f"'channels_last'. Received: {value}")  # fmt: skip
    return value.lower()


def normalize_padding(value: str) -> str:
    """The name of a padding, checked."""
    if value.lower() not in ("valid", "same"):
        raise ValueError(
            f'The `padding` argument must be one of "valid", "same". Received: {value}'
        )
    return value.lower()


def conv_output_length(
    input_length: int | None, filter_size: int, padding: str, stride: int, dilation: int = 1
) -> int | None:
    """The length that a convolution gives."""
    if input_length is None:
        return None
    reach = filter_size + (filter_size - 1) * (dilation - 1)
    lengths = {"same": 0, "valid": 1 - reach, "full": reach - 1}
    return (input_length + lengths[padding] + stride - 1) // stride


def conv_input_length(output_length: Any, filter_size: int, padding: str, stride: int) -> Any:
    """The length of which a convolution gives `output_length`."""
    if output_length is None:
        return None
    pad = {"same": filter_size // 2, "valid": 0, "full": filter_size - 1}[padding]
    return (output_length - 1) * stride - 2 * pad + filter_size


def deconv_output_length(input_length: Any, filter_size: int, padding: str, stride: int) -> Any:
    """The length that a transposed convolution gives."""
    if input_length is None:
        return None
    extra = {"valid": max(filter_size - stride, 0), "full": -(stride + filter_size - 2), "same": 0}
    return input_length * stride + extra[padding]
