"""Summaries: ops that convert values to serialised Summary protocol buffers.

The inputs are scalars, histograms, images, sounds and tensors with a tag; the output is a string,
which a `FileWriter` writes and TensorBoard shows. Messages are encoded here, without message
classes.
"""

from __future__ import annotations

import struct
from collections.abc import Callable
from functools import cache
from typing import Any

import numpy as np

from thalweg import errors
from thalweg.graph import dtypes
from thalweg.graph.dtypes import DType
from thalweg.graph.op import Op
from thalweg.graph.shapes import TensorShape, scalar
from thalweg.ops.core.context import Context
from thalweg.ops.image.codecs import EncodePng
from thalweg.ops.text import text
from thalweg.platform.arrays import Array
from thalweg.platform.dtype_traits import widened
from thalweg.platform.files.wire import (
    bytes_field,
    double_field,
    fields,
    float_field,
    integer_field,
)

# Field numbers of the message Summary.Value.
_TAG, _SIMPLE_VALUE, _IMAGE, _HISTOGRAM, _AUDIO = 1, 2, 4, 5, 6
_NODE_NAME, _TENSOR, METADATA = 7, 8, 9


class SummaryOp(Op, abstract=True):
    """One serialised Summary of the inputs."""

    host_only = True
    not_differentiable = True

    def shape(self, *_: Any) -> TensorShape:
        return scalar()


def _value(tag: bytes, content: bytes) -> bytes:
    """A Summary of one value; the concatenation of several is a Summary, too."""
    return bytes_field(1, (bytes_field(_TAG, tag) if tag else b"") + content)


def _only_tag(tag: Any) -> bytes:
    tags = text.text_array(tag)
    if tags.ndim:
        raise errors.invalid(f"tags must be scalar, got the shape {tags.shape}")
    return text.text_item(tags)


class ScalarSummary(SummaryOp):
    """A number for each tag."""

    signature = "tags: string, values: T -> summary: string; T: real"

    def numpy(self, tags: Any, values: Any) -> Array:
        names, numbers = text.text_array(tags), np.asarray(values)
        if names.shape != numbers.shape:
            shown = f" (tag '{text.text_item(names).decode()}')" if names.size == 1 else ""
            raise errors.invalid(
                f"tags and values are not the same shape: {list(names.shape)} != "
                f"{list(numbers.shape)}{shown}"
            )
        with np.errstate(over="ignore"):  # out of range of float32: shown as infinite
            rounded = numbers.astype(np.float32).ravel().tolist()
        pairs = zip(text.elements(names), rounded, strict=True)
        return _joined(_value(tag, float_field(_SIMPLE_VALUE, x)) for tag, x in pairs)


def _joined(parts: Any) -> Array:
    return text.text_array(b"".join(parts))


# Histograms


class HistogramSummary(SummaryOp):
    """The number of values in each of TensorFlow's buckets"""

    signature = "tag: string, values: T -> summary: string; T: real"

    def kernel(self, context: Context, tag: Any, values: Any) -> Array:
        name = _only_tag(tag)
        ordered = np.sort(_sortable(np.asarray(values).ravel())).astype(np.float64)
        _check_finite(ordered, context.node.name)
        return _joined([_value(name, bytes_field(_HISTOGRAM, histogram(ordered)))])


def _sortable(values: Array) -> Array:
    """Values in a dtype with a fast sort, which narrow floats have not."""
    return widened(values)


def _check_finite(ordered: Array, name: str) -> None:
    """Raise unless all values are finite: in sorted order infinities are at the ends, NaN last."""
    ends = ordered[[0, -1]] if ordered.size else ordered
    if np.isnan(ends).any():
        raise errors.invalid(f"Nan in summary histogram for: {name}")
    if np.isinf(ends).any():
        raise errors.invalid(f"Infinity in summary histogram for: {name}")


@cache
def bucket_limits() -> Array:
    """The upper ends of the buckets: zero, and in both directions powers of 1.1 from 1e-12."""
    limits: list[float] = []
    limit = 1e-12
    while limit < 1e20:
        limits.append(limit)
        limit *= 1.1
    limits.append(np.finfo(np.float64).max)
    return np.array([*(-limit for limit in reversed(limits)), 0.0, *limits])


def histogram(ordered: Array) -> bytes:
    """A HistogramProto of ascending float64 values; runs of empty buckets are merged."""
    limits = bucket_limits()
    below = np.searchsorted(ordered, limits, side="left")
    below[-1] = len(ordered)
    counts = np.diff(below, prepend=0)
    kept = (counts > 0) | (np.append(counts[1:], 1) > 0)
    largest = limits[-1]
    with np.errstate(over="ignore"):
        total, squares = ordered.sum(), np.square(ordered).sum()
    return b"".join(
        (
            double_field(1, ordered[0] if ordered.size else largest),
            double_field(2, ordered[-1] if ordered.size else -largest),
            double_field(3, len(ordered)),
            double_field(4, total),
            double_field(5, squares),
            bytes_field(6, limits[kept].astype("<f8").tobytes()),
            bytes_field(7, counts[kept].astype("<f8").tobytes()),
        )
    )


# Images

_RED = np.array([255, 0, 0, 255], np.uint8)
_RED.flags.writeable = False
_DARK = 1e-6  # images that are not brighter than this are not scaled


class ImageSummary(SummaryOp):
    """The first images of a batch as PNG files"""

    signature = "tag: string, tensor: T -> summary: string; T: uint8|float16|float32|float64"
    max_images: int = 3
    bad_color: Array = _RED

    def __hash__(self) -> int:
        return hash((self.max_images, self.bad_color.tobytes()))

    def __eq__(self, other: object) -> bool:
        return isinstance(other, ImageSummary) and (
            self.max_images == other.max_images and np.array_equal(self.bad_color, other.bad_color)
        )

    def shape(self, *_: Any) -> TensorShape:
        _check_most("max_images", self.max_images)
        return scalar()

    def numpy(self, tag: Any, tensor: Array) -> Array:
        name = _only_tag(tag)
        if tensor.ndim != 4 or tensor.shape[3] not in (1, 3, 4):
            raise errors.invalid(
                f"Tensor must be 4-D with last dim 1, 3, or 4, not {list(tensor.shape)}"
            )
        if not tensor[:1].size and len(tensor):
            raise errors.invalid(f"pictures must have non-zero sizes, got {list(tensor.shape)}")
        return _joined(_each(name, b"image", tensor, self.max_images, self._picture))

    def _picture(self, picture: Array) -> bytes:
        pixels = picture if picture.dtype == np.uint8 else self._scaled(picture)
        sizes = [integer_field(i, size) for i, size in enumerate(picture.shape, start=1)]
        content = b"".join([*sizes, bytes_field(4, EncodePng().numpy(pixels))])
        return bytes_field(_IMAGE, content)

    def _scaled(self, picture: Array) -> Array:
        """Floats scaled to bytes: from 0 to the maximum, or around 128 if some are negative."""
        bad = self.bad_color[: picture.shape[-1]]
        if len(bad) < picture.shape[-1]:
            raise errors.invalid(
                f"expected depth <= bad_color.size, got depth = {picture.shape[-1]}, "
                f"bad_color.size = {len(bad)}"
            )
        finite = np.isfinite(picture).all(-1)
        scale, offset = _scaling(picture[finite], picture.dtype.type)
        pixels = np.empty(picture.shape, np.uint8)
        pixels[finite] = picture[finite] * scale + offset
        pixels[~finite] = bad
        return pixels


def _scaling(values: Array, kind: Callable[[Any], Any]) -> tuple[Any, Any]:
    """The factor and the offset that map values to the range of a byte."""
    if not values.size:
        return kind(0), kind(0)
    with np.errstate(over="ignore"):
        reach = np.abs(values).max().astype(np.float32)
    most, offset = (127, 128) if values.min() < 0 else (255, 0)
    return kind(0 if reach < _DARK else np.float32(most) / reach), kind(offset)


def _check_most(attribute: str, most: int) -> None:
    if most < 1:
        raise ValueError(f"Value for attr '{attribute}' of {most} must be at least minimum 1")


def _each(
    tag: bytes, kind: bytes, batch: Array, most: int, write: Callable[[Array], bytes]
) -> list[bytes]:
    """The first values of a batch; their tags are numbered if there may be several."""
    tags = (tag + b"/" + kind + (b"/%d" % i if most > 1 else b"") for i in range(most))
    return [_value(name, write(item)) for name, item in zip(tags, batch, strict=False)]


# Sounds

_MAX_SAMPLE = 1 << 15


class SoundSummary(SummaryOp, abstract=True):
    """The first sounds of a batch as WAV files"""

    max_outputs: int = 3

    def shape(self, *_: Any) -> TensorShape:
        _check_most("max_outputs", self.max_outputs)
        return scalar()

    def _sounds(self, tag: Any, tensor: Array, sample_rate: float) -> Array:
        name = _only_tag(tag)
        if tensor.ndim not in (2, 3):
            raise errors.invalid(f"Tensor must be 3-D or 2-D, got: {list(tensor.shape)}")
        if not sample_rate > 0:
            raise errors.invalid(f"sample_rate must be > 0, got {sample_rate}")
        sounds = tensor.reshape(*tensor.shape, *[1] * (3 - tensor.ndim))
        _check_sizes(sounds.shape[1], sounds.shape[2], sample_rate)
        return _joined(
            _each(name, b"audio", sounds, self.max_outputs, lambda s: _sound(s, sample_rate))
        )


def _check_sizes(frames: int, channels: int, sample_rate: float) -> None:
    """Raise unless the header of a WAV file can represent these numbers."""
    if not 0 < channels < 1 << 16:
        raise errors.invalid(f"a sound has 1 to 65535 channels, not {channels}")
    if 2 * channels * max(frames + 18, sample_rate) >= 1 << 32:
        raise errors.invalid(
            f"{frames} frames of {channels} channels at a sample rate of {sample_rate} are too "
            "many for a WAV file"
        )


def _sound(samples: Array, sample_rate: float) -> bytes:
    frames, channels = samples.shape
    content = (
        float_field(1, sample_rate),
        integer_field(2, channels),
        integer_field(3, frames),
        bytes_field(4, wave_file(samples, max(1, round(sample_rate)))),
        bytes_field(5, b"audio/wav"),
    )
    return bytes_field(_AUDIO, b"".join(content))


def wave_file(samples: Array, sample_rate: int) -> bytes:
    """Samples [frames, channels] between -1 and 1 as a WAV file of 16 bits per sample."""
    scaled = np.nan_to_num(samples) * np.float32(_MAX_SAMPLE)
    away_from_zero = np.trunc(scaled + np.copysign(np.float32(0.5), scaled))
    limited = np.clip(away_from_zero, -_MAX_SAMPLE, _MAX_SAMPLE - 1)
    data = limited.astype("<i2").tobytes()
    step = 2 * samples.shape[1]
    shape = struct.pack("<HHIIHH", 1, samples.shape[1], sample_rate, sample_rate * step, step, 16)
    parts = (b"RIFF", 36 + len(data), b"WAVEfmt ", len(shape), shape, b"data", len(data), data)
    return b"".join(struct.pack("<I", p) if isinstance(p, int) else p for p in parts)


class AudioSummary(SoundSummary):
    """The first sounds of a batch; the sample rate is an attribute."""

    signature = "tag: string, tensor: float32 -> summary: string"
    sample_rate: float

    def numpy(self, tag: Any, tensor: Array) -> Array:
        return self._sounds(tag, tensor, self.sample_rate)


class AudioSummaryV2(SoundSummary):
    """The first sounds of a batch; the sample rate is a tensor."""

    signature = "tag: string, tensor: float32, sample_rate: float32 -> summary: string"

    def numpy(self, tag: Any, tensor: Array, sample_rate: Array) -> Array:
        return self._sounds(tag, tensor, np.asarray(sample_rate).item())


# Tensors


class TensorSummary(SummaryOp):
    """A tensor under the name of the node"""

    signature = "tensor: T -> summary: string"
    description: str = ""
    labels: tuple[str, ...] = ()
    display_name: str = ""

    def kernel(self, context: Context, tensor: Any) -> Array:
        return _joined([_value(b"", _named_tensor(context, tensor, 0))])


class TensorSummaryV2(SummaryOp):
    """A tensor with a tag, and metadata that select the plugin that shows it"""

    signature = "tag: string, tensor: T, serialized_summary_metadata: string -> summary: string"

    def kernel(self, context: Context, tag: Any, tensor: Any, metadata: Any) -> Array:
        given = bytes_field(METADATA, text.text_item(metadata))
        return _joined([_value(_only_tag(tag), _named_tensor(context, tensor, 1) + given)])


def _named_tensor(context: Context, tensor: Any, position: int) -> bytes:
    """The name of the node, and its input at a position as a TensorProto."""
    content = _tensor_proto(tensor, context.node.inputs[position].dtype.base_dtype)
    return bytes_field(_NODE_NAME, context.node.name.encode()) + bytes_field(_TENSOR, content)


def _tensor_proto(value: Any, dtype: DType) -> bytes:
    is_text = dtype is dtypes.string
    array = text.text_array(value) if is_text else np.asarray(value)
    sizes = b"".join(bytes_field(2, integer_field(1, size)) for size in array.shape)
    if is_text:
        content = b"".join(bytes_field(8, item) for item in array.ravel())
    else:
        content = bytes_field(4, array.tobytes()) if array.size else b""
    return integer_field(1, dtype.as_datatype_enum) + bytes_field(2, sizes) + content


# Merging


class MergeSummary(SummaryOp):
    """All values of several summaries, whose tags must be distinct"""

    signature = "inputs: N*string -> summary: string"

    def numpy(self, inputs: list[Any]) -> Array:
        values = [value for item in inputs for s in text.elements(item) for value in _values(s)]
        seen: set[bytes] = set()
        for value in values:
            tag = value_tag(value)
            if tag and tag in seen:  # values without a tag are identified by their node's name
                raise errors.invalid(
                    f"Duplicate tag {tag.decode(errors='replace')} found in summary inputs"
                )
            seen.add(tag)
        return _joined(bytes_field(1, value) for value in values)


def _values(summary: bytes) -> list[bytes]:
    try:
        found = [field.value for field in fields(summary) if field.number == 1]
    except ValueError as error:
        raise errors.invalid(f"Could not parse one of the summary inputs: {error}") from error
    return [value for value in found if isinstance(value, bytes)]


def value_tag(value: bytes) -> bytes:
    """The tag of a serialised Summary.Value, empty if it has none."""
    try:
        tags = [field.value for field in fields(value) if field.number == _TAG]
    except ValueError as error:
        raise errors.invalid(f"Could not parse a summary value: {error}") from error
    last = tags[-1] if tags else b""
    return last if isinstance(last, bytes) else b""
