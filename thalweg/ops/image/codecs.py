"""Image files: decoding and encoding through Pillow (the extra `[image]`)."""

from __future__ import annotations

import importlib
import io
import zlib
from typing import Any, cast

import numpy as np

from thalweg import errors
from thalweg.graph import dtypes
from thalweg.graph.dtypes import DType, as_dtype
from thalweg.graph.node import Tensor
from thalweg.graph.op import Op
from thalweg.graph.shapes import TensorShape, scalar
from thalweg.ops.image import png16
from thalweg.platform import blas
from thalweg.platform.arrays import Array
from thalweg.public import public

_MODES = {1: "L", 2: "LA", 3: "RGB", 4: "RGBA"}


def _pillow() -> Any:
    try:
        return importlib.import_module("PIL.Image")
    except ImportError as error:
        raise errors.UnimplementedError(
            None, None, "image files need Pillow: pip install 'thalweg[image]'"
        ) from error


def _bytes(contents: Any) -> bytes:
    """The string of a scalar, which may be a 0-d array."""
    return cast(bytes, np.asarray(contents, object).item())


def _open(contents: Any, kinds: tuple[str, ...]) -> Any:
    data = _bytes(contents)
    try:
        return _pillow().open(io.BytesIO(data), formats=kinds)
    except OSError as error:
        raise errors.invalid(
            f"Invalid {'/'.join(kinds)} data of {len(data)} bytes: no such picture"
        ) from error


def _deep_pixels(data: bytes, channels: int) -> Array:
    """The pixels of a PNG file of 16 bits per channel, with the requested channels."""
    try:
        pixels = png16.decode(data)
    except (ValueError, KeyError, zlib.error) as error:
        raise errors.invalid(f"Invalid PNG data: {error}") from error
    colours, alpha = _without_alpha(pixels)
    if channels in (0, pixels.shape[-1]):
        return pixels
    if channels in (1, 2):
        colours = _gray(colours)
    elif colours.shape[-1] == 1:
        colours = colours.repeat(3, -1)
    return np.concatenate([colours, alpha], -1) if channels in (2, 4) else colours


def _without_alpha(pixels: Array) -> tuple[Array, Array]:
    if pixels.shape[-1] in (2, 4):
        return pixels[..., :-1], pixels[..., -1:]
    return pixels, np.full_like(pixels[..., :1], 65535)


def _gray(colours: Array) -> Array:
    if colours.shape[-1] == 1:
        return colours
    return (blas.matmul(colours, [0.299, 0.587, 0.114]) + 0.5).astype(np.uint16)[..., None]


def _pixels(picture: Any, channels: int, dtype: DType = dtypes.uint8) -> Array:
    """A picture as [height, width, channels]."""
    if picture.mode.startswith("I"):
        picture = _pillow().fromarray((np.asarray(picture) >> 8).astype(np.uint8))
    mode = _MODES[channels] if channels else _own_mode(picture.mode)
    try:
        array = np.asarray(picture if picture.mode == mode else picture.convert(mode), np.uint8)
    except OSError as error:
        raise errors.invalid(f"Invalid image data: {error}") from error
    array = array if array.ndim == 3 else array[..., None]
    return array.astype(np.uint16) * 257 if dtype is dtypes.uint16 else array


def _own_mode(mode: str) -> str:
    if mode in ("L", "LA", "RGB", "RGBA"):
        return mode
    return {"1": "L", "P": "RGB", "PA": "RGBA", "CMYK": "RGB", "YCbCr": "RGB"}.get(mode, "RGB")


class Decode(Op, abstract=True):
    """An image file as pixels [height, width, channels]."""

    host_only = True
    not_differentiable = True
    channels: int = 0

    def shape(self, contents: Tensor) -> TensorShape:
        contents.shape.assert_is_compatible_with([])
        if self.channels not in (0, 1, 3, 4):
            raise ValueError(f"channels must be 0, 1, 3 or 4, got {self.channels}")
        return TensorShape.of((None, None, self.channels or None))


class DecodeJpeg(Decode):
    """A JPEG file as uint8 pixels."""

    signature = "contents: string -> image: uint8"
    ratio: int = 1
    fancy_upscaling: bool = True
    try_recover_truncated: bool = False
    acceptable_fraction: float = 1.0
    dct_method: str = ""

    def numpy(self, contents: Any) -> Array:
        picture = _open(contents, ("JPEG", "PNG", "GIF", "BMP"))
        if self.ratio > 1:
            size = [-(-side // self.ratio) for side in picture.size]
            picture.draft(None, tuple(size))
            picture = picture.resize(size) if list(picture.size) != size else picture
        return _pixels(picture, self.channels)


@public("image.decode_jpeg", "io.decode_jpeg")
def decode_jpeg(
    contents: Any,
    channels: int = 0,
    ratio: int = 1,
    fancy_upscaling: bool = True,
    try_recover_truncated: bool = False,
    acceptable_fraction: float = 1,
    dct_method: str = "",
    name: str | None = None,
) -> Tensor:
    """The pixels of a JPEG file.

    Args:
        contents: the bytes of the file, a scalar string.
        channels: 0: as in the file, 1: grey, 3: RGB.
        ratio: downscaling by 1, 2, 4 or 8 while decoding.
        fancy_upscaling, try_recover_truncated, acceptable_fraction, dct_method: details of the
            decoder.
        name: the name of the node.

    Returns:
        A uint8 tensor [height, width, channels].

    Raises:
        InvalidArgumentError: if the bytes are not a JPEG file.

    Example:
        >>> grey = tf.fill([8, 6, 3], tf.constant(128, tf.uint8))
        >>> sess.run(tf.image.decode_jpeg(tf.image.encode_jpeg(grey))).shape
        (8, 6, 3)
    """
    if ratio not in (1, 2, 4, 8):
        raise ValueError(f"ratio must be 1, 2, 4 or 8, got {ratio}")
    op = DecodeJpeg(
        channels=channels,
        ratio=ratio,
        fancy_upscaling=fancy_upscaling,
        try_recover_truncated=try_recover_truncated,
        acceptable_fraction=float(acceptable_fraction),
        dct_method=dct_method,
    )
    return op(contents, name=name)


class DecodeAndCropJpeg(Op):
    """A part of a JPEG file as uint8 pixels."""

    signature = "contents: string, crop_window: int32 -> image: uint8"
    host_only = True
    not_differentiable = True
    channels: int = 0
    ratio: int = 1

    def shape(self, contents: Tensor, crop_window: Tensor) -> TensorShape:
        return TensorShape.of((None, None, self.channels or None))

    def numpy(self, contents: Any, crop_window: Array) -> Array:
        image = DecodeJpeg(channels=self.channels, ratio=self.ratio).numpy(contents)
        top, left, height, width = crop_window.tolist()
        inside = top >= 0 and left >= 0 and height > 0 and width > 0
        if not inside or top + height > image.shape[0] or left + width > image.shape[1]:
            raise errors.invalid(f"crop window {crop_window.tolist()} is not inside {image.shape}")
        return image[top : top + height, left : left + width]


@public("image.decode_and_crop_jpeg", "io.decode_and_crop_jpeg")
def decode_and_crop_jpeg(
    contents: Any,
    crop_window: Any,
    channels: int = 0,
    ratio: int = 1,
    fancy_upscaling: bool = True,
    try_recover_truncated: bool = False,
    acceptable_fraction: float = 1,
    dct_method: str = "",
    name: str | None = None,
) -> Tensor:
    """The pixels of a window of a JPEG file.

    Args:
        contents: the bytes of the file, a scalar string.
        crop_window: [top, left, height, width], int32.
        channels: 0: as in the file, 1: grey, 3: RGB.
        ratio: downscaling by 1, 2, 4 or 8 while decoding.
        fancy_upscaling, try_recover_truncated, acceptable_fraction, dct_method: details of the
            decoder.
        name: the name of the node.

    Returns:
        A uint8 tensor [height, width, channels].

    Example:
        >>> file = tf.image.encode_jpeg(np.zeros([16, 16, 3], np.uint8))
        >>> sess.run(tf.image.decode_and_crop_jpeg(file, [0, 0, 8, 4])).shape
        (8, 4, 3)
    """
    return DecodeAndCropJpeg(channels=channels, ratio=ratio)(contents, crop_window, name=name)


class ExtractJpegShape(Op):
    """[height, width, channels] of a JPEG file, from its header."""

    signature = "contents: string -> image_shape: output_type; output_type: index"
    host_only = True
    not_differentiable = True
    output_type: DType = dtypes.int32

    def shape(self, contents: Tensor) -> TensorShape:
        return TensorShape.of((3,))

    def numpy(self, contents: Any) -> Array:
        picture = _open(contents, ("JPEG",))
        channels = len(picture.getbands())
        return np.array([picture.height, picture.width, channels], self.output_type.as_numpy_dtype)


@public("image.extract_jpeg_shape", "io.extract_jpeg_shape")
def extract_jpeg_shape(
    contents: Any, output_type: Any = dtypes.int32, name: str | None = None
) -> Tensor:
    """The shape of a JPEG file, without decoding it.

    Args:
        contents: a string scalar, the bytes of a JPEG file.
        output_type: int32 or int64.
        name: the name of the node.

    Returns:
        A vector: height, width, channels.

    Example:
        >>> file = tf.image.encode_jpeg(tf.zeros([4, 6, 3], tf.uint8))
        >>> sess.run(tf.image.extract_jpeg_shape(file))
        array([4, 6, 3], dtype=int32)
    """
    return ExtractJpegShape(output_type=as_dtype(output_type))(contents, name=name)


class DecodePng(Decode):
    """A PNG file as uint8 or uint16 pixels."""

    signature = "contents: string -> image: dtype; dtype: uint8|uint16"
    dtype: DType = dtypes.uint8

    def numpy(self, contents: Any) -> Array:
        data = _bytes(contents)
        if self.dtype is dtypes.uint16 and png16.is_deep(data):
            return _deep_pixels(data, self.channels)
        return _pixels(_open(data, ("PNG", "JPEG", "GIF", "BMP")), self.channels, self.dtype)


@public("image.decode_png", "io.decode_png")
def decode_png(
    contents: Any, channels: int = 0, dtype: Any = dtypes.uint8, name: str | None = None
) -> Tensor:
    """The pixels of a PNG file.

    Args:
        contents: the bytes of the file, a scalar string.
        channels: 0: as in the file, 1: grey, 2: grey and alpha, 3: RGB, 4: RGBA.
        dtype: uint8 or uint16.
        name: the name of the node.

    Returns:
        A tensor [height, width, channels] of that dtype.

    Raises:
        InvalidArgumentError: if the bytes are not a PNG file.

    Example:
        >>> image = tf.constant([[[1], [2]], [[3], [4]]], tf.uint8)
        >>> sess.run(tf.image.decode_png(tf.image.encode_png(image)))[:, :, 0]
        array([[1, 2],
               [3, 4]], dtype=uint8)
    """
    return DecodePng(channels=channels, dtype=as_dtype(dtype))(contents, name=name)


class DecodeBmp(Decode):
    """A BMP file as uint8 pixels."""

    signature = "contents: string -> image: uint8"

    def numpy(self, contents: Any) -> Array:
        return _pixels(_open(contents, ("BMP",)), self.channels)


@public("image.decode_bmp", "io.decode_bmp")
def decode_bmp(contents: Any, channels: int = 0, name: str | None = None) -> Tensor:
    """Decode a BMP file to [height, width, channels] uint8."""
    return DecodeBmp(channels=channels)(contents, name=name)


class DecodeGif(Op):
    """The frames of a GIF file as uint8 pixels [frames, height, width, 3]."""

    signature = "contents: string -> image: uint8"
    host_only = True
    not_differentiable = True

    def shape(self, contents: Tensor) -> TensorShape:
        contents.shape.assert_is_compatible_with([])
        return TensorShape.of((None, None, None, 3))

    def numpy(self, contents: Any) -> Array:
        picture = _open(contents, ("GIF",))
        frames: list[Array] = []
        for index in range(picture.n_frames):
            picture.seek(index)
            frames.append(np.asarray(picture.convert("RGB"), np.uint8))
        return np.stack(frames)


@public("image.decode_gif", "io.decode_gif")
def decode_gif(contents: Any, name: str | None = None) -> Tensor:
    """Decode the frames of a GIF file to [frames, height, width, 3] uint8."""
    return DecodeGif()(contents, name=name)


class DecodeImage(Op):
    """An image file of any known format as uint8 pixels; a GIF keeps its frames."""

    private = True
    signature = "contents: string -> image: uint8"
    host_only = True
    not_differentiable = True
    channels: int = 0
    expand_animations: bool = True

    def shape(self, contents: Tensor) -> TensorShape | None:
        return None

    def numpy(self, contents: Any) -> Array:
        picture = _open(contents, ("JPEG", "PNG", "GIF", "BMP"))
        if picture.format == "JPEG" and self.channels == 4:
            raise errors.invalid("Channels must be in (None, 0, 1, 3) when decoding JPEG images")
        if picture.format != "GIF":
            return _pixels(picture, self.channels)
        if self.channels not in (0, 3):
            raise errors.invalid(f"channels must be 0 or 3 for a GIF file, got {self.channels}")
        frames = DecodeGif().numpy(contents)
        return frames if self.expand_animations else frames[0]


class EncodeJpeg(Op):
    """Pixels as a JPEG file."""

    signature = "image: uint8 -> contents: string"
    host_only = True
    not_differentiable = True
    format: str = ""
    quality: int = 95
    progressive: bool = False
    optimize_size: bool = False
    chroma_downsampling: bool = True
    density_unit: str = "in"
    x_density: int = 300
    y_density: int = 300
    xmp_metadata: str = ""

    def shape(self, image: Tensor) -> TensorShape:
        image.shape.assert_has_rank(3)
        return scalar()

    def numpy(self, image: Array) -> Any:
        formats = {"": (1, 3), "grayscale": (1,), "rgb": (3,)}
        if image.shape[-1] not in formats.get(self.format, ()):
            raise errors.invalid(
                f"{image.shape[-1]} channels do not fit JPEG format {self.format!r}"
            )
        return _encoded(
            image,
            "JPEG",
            quality=self.quality,
            progressive=self.progressive,
            optimize=self.optimize_size,
            subsampling=2 if self.chroma_downsampling else 0,
            dpi=(self.x_density, self.y_density),
        )


@public("image.encode_jpeg", "io.encode_jpeg")
def encode_jpeg(
    image: Any,
    format: str = "",
    quality: int = 95,
    progressive: bool = False,
    optimize_size: bool = False,
    chroma_downsampling: bool = True,
    density_unit: str = "in",
    x_density: int = 300,
    y_density: int = 300,
    xmp_metadata: str = "",
    name: str | None = None,
) -> Tensor:
    r"""A JPEG file of an image.

    Args:
        image: uint8 [height, width, 1 or 3].
        format: "grayscale", "rgb", or "" to use the number of channels.
        quality: from 0 to 100.
        progressive, optimize_size, chroma_downsampling: details of the encoder.
        density_unit, x_density, y_density, xmp_metadata: the contents of the header.
        name: the name of the node.

    Returns:
        The bytes of the file, a scalar string.

    Example:
        >>> sess.run(tf.image.encode_jpeg(np.zeros([8, 8, 3], np.uint8)))[:2]
        b'\xff\xd8'
    """
    op = EncodeJpeg(
        format=format,
        quality=quality,
        progressive=progressive,
        optimize_size=optimize_size,
        chroma_downsampling=chroma_downsampling,
        density_unit=density_unit,
        x_density=x_density,
        y_density=y_density,
        xmp_metadata=xmp_metadata,
    )
    return op(image, name=name)


class EncodePng(Op):
    """Pixels as a PNG file."""

    signature = "image: T -> contents: string; T: uint8|uint16"
    host_only = True
    not_differentiable = True
    compression: int = -1

    def shape(self, image: Tensor) -> TensorShape:
        image.shape.assert_has_rank(3)
        return scalar()

    def numpy(self, image: Array) -> Any:
        if image.shape[-1] not in _MODES:
            raise errors.invalid(f"image must have 1, 2, 3 or 4 channels, got {image.shape}")
        if image.dtype == np.uint16:
            return png16.encode(image, self.compression)
        level = {} if self.compression < 0 else {"compress_level": self.compression}
        return _encoded(image, "PNG", **level)


def _encoded(image: Array, kind: str, **options: Any) -> bytes:
    flat = image[..., 0] if image.shape[-1] == 1 else image
    buffer = io.BytesIO()
    _pillow().fromarray(np.ascontiguousarray(flat)).save(buffer, kind, **options)
    return buffer.getvalue()


@public("image.encode_png", "io.encode_png")
def encode_png(image: Any, compression: int = -1, name: str | None = None) -> Tensor:
    """A PNG file of an image.

    Args:
        image: uint8 or uint16 [height, width, 1 to 4].
        compression: from 0 to 9; -1: the encoder's default.
        name: the name of the node.

    Returns:
        The bytes of the file, a scalar string.

    Example:
        >>> sess.run(tf.image.encode_png(np.zeros([8, 8, 1], np.uint8)))[1:4]
        b'PNG'
    """
    return EncodePng(compression=compression)(image, name=name)


class IsJpeg(Op):
    """Whether data begins like a JPEG file"""

    private = True
    signature = "contents: string -> output: bool"
    host_only = True
    not_differentiable = True

    def shape(self, contents: Tensor) -> TensorShape:
        return scalar()

    def numpy(self, contents: Any) -> Any:
        return np.bool_(_bytes(contents)[:3] == b"\xff\xd8\xff")


@public("image.is_jpeg", "io.is_jpeg")
def is_jpeg(contents: Any, name: str | None = None) -> Tensor:
    """Whether `contents` is a JPEG file, by its first bytes."""
    return IsJpeg()(contents, name=name)
