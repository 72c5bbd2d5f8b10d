"""Settings of `tensorflow.python.keras.backend`: the default dtype and the like."""

from __future__ import annotations


class _Settings:
    floatx = "float32"
    epsilon = 1e-7
    image_data_format = "channels_last"


def floatx() -> str:
    """The dtype of weights and inputs where none is given."""
    return _Settings.floatx


def set_floatx(value: str) -> None:
    """Set the default dtype."""
    if value not in ("float16", "float32", "float64"):
        raise ValueError(f"Unknown floatx type: {value}")
    _Settings.floatx = str(value)


def epsilon() -> float:
    """The number that keeps logarithms and quotients finite."""
    return _Settings.epsilon


def set_epsilon(value: float) -> None:
    """Set the number that keeps logarithms and quotients finite."""
    _Settings.epsilon = value


def image_data_format() -> str:
    """Where the channels of an image are: `channels_last` or `channels_first`."""
    return _Settings.image_data_format


def set_image_data_format(data_format: str) -> None:
    """Set where the channels of an image are."""
    if data_format not in ("channels_last", "channels_first"):
        raise ValueError(f"Unknown data_format: {data_format}")
    _Settings.image_data_format = str(data_format)
