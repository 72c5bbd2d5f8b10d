"""Windows, frames of a signal, and its spectrum over time."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

from thalweg.graph import dtypes
from thalweg.graph.convert import convert_to_tensor
from thalweg.graph.dtypes import as_dtype
from thalweg.graph.known import constant_value
from thalweg.graph.likes import DTypeLike, TensorLike
from thalweg.graph.node import Tensor
from thalweg.graph.scopes import name_scope
from thalweg.ops.arrays import indexing, joining, padding, segment, transposing
from thalweg.ops.core import casting, filling, shaping
from thalweg.ops.math import arithmetic, division, reduce, rounding, transcendental
from thalweg.ops.signal.real_fft import irfft, rfft
from thalweg.public import public

Window = Callable[..., Any]


def _raised_cosine(
    length: Any, periodic: bool, dtype: Any, name: str | None, title: str, low: float
) -> Tensor:
    """low - (1 - low) cos(2πi/n); n is the length if even and periodic, else length - 1."""
    kind = as_dtype(dtype)
    if not kind.is_floating:
        raise ValueError(f"dtype must be a floating point type. Found {kind}")
    with name_scope(name, title):
        count = convert_to_tensor(length, dtypes.int32, "window_length")
        if constant_value(count) == 1:
            return filling.ones([1], kind)
        even = 1 - division.floormod(count, 2)
        last = arithmetic.maximum(count + (even if periodic else 0) - 1, 1)
        turns = casting.cast(filling.range(count), kind) / casting.cast(last, kind)
        waves = transcendental.cos(turns * (2 * math.pi))
        return convert_to_tensor(low - (1 - low) * waves)


@public("signal.hann_window", "contrib.signal.hann_window")
def hann_window(
    window_length: TensorLike,
    periodic: bool = True,
    dtype: DTypeLike = dtypes.float32,
    name: str | None = None,
) -> Tensor:
    """Hann's window.

    Args:
        window_length: the number of samples.
        periodic: whether it is one period of a periodic window; otherwise it is symmetric.
        dtype: a floating dtype.
        name: the name of the nodes.

    Returns:
        A vector.

    Example:
        >>> sess.run(tf.signal.hann_window(4))
        array([0. , 0.5, 1. , 0.5], dtype=float32)
    """
    return _raised_cosine(window_length, periodic, dtype, name, "hann_window", 0.5)


@public("signal.hamming_window", "contrib.signal.hamming_window")
def hamming_window(
    window_length: TensorLike,
    periodic: bool = True,
    dtype: DTypeLike = dtypes.float32,
    name: str | None = None,
) -> Tensor:
    """Hamming's window.

    Args:
        window_length: the number of samples.
        periodic: whether it is one period of a periodic window; otherwise it is symmetric.
        dtype: a floating dtype.
        name: the name of the nodes.

    Returns:
        A vector.

    Example:
        >>> sess.run(tf.signal.hamming_window(4)).round(2)
        array([0.08, 0.54, 1.  , 0.54], dtype=float32)
    """
    return _raised_cosine(window_length, periodic, dtype, name, "hamming_window", 0.54)


@public("signal.frame", "contrib.signal.frame")
def frame(
    signal: TensorLike,
    frame_length: TensorLike,
    frame_step: TensorLike,
    pad_end: bool = False,
    pad_value: TensorLike = 0,
    axis: int = -1,
    name: str | None = None,
) -> Tensor:
    """Frames of a signal, which may overlap.

    Args:
        signal: [..., samples, ...].
        frame_length: the number of samples of a frame.
        frame_step: the number of samples from the begin of a frame to that of the next.
        pad_end: whether to include frames that begin in the signal and end after it.
        pad_value: their padding.
        axis: the axis of the samples.
        name: the name of the nodes.

    Returns:
        [..., frames, frame_length, ...].

    Example:
        >>> sess.run(tf.signal.frame([1, 2, 3, 4, 5], 3, 2))
        array([[1, 2, 3],
               [3, 4, 5]], dtype=int32)
    """
    with name_scope(name, "frame"):
        samples = convert_to_tensor(signal, name="signal")
        rank = samples.shape.with_rank_at_least(1).rank
        if rank is None:
            raise ValueError("tf.signal.frame needs a signal of known rank.")
        place = axis % rank
        length = convert_to_tensor(frame_length, dtypes.int32, "frame_length")
        step = convert_to_tensor(frame_step, dtypes.int32, "frame_step")
        static = samples.shape[place].value
        count: Any = shaping.shape(samples)[place] if static is None else static
        if pad_end:
            frames: Any = -division.floordiv(-count, step)
            missing = arithmetic.maximum(0, length + step * (frames - 1) - count)
            pads = [[0, missing if at == place else 0] for at in range(rank)]
            samples = padding.pad(
                samples, pads, constant_values=convert_to_tensor(pad_value, samples.dtype)
            )
        else:
            frames = arithmetic.maximum(0, 1 + division.floordiv(count - length, step))
        starts = shaping.expand_dims(filling.range(frames) * step, 1)
        return indexing.gather(samples, starts + filling.range(length), axis=place)


@public("signal.overlap_and_add", "contrib.signal.overlap_and_add")
def overlap_and_add(signal: TensorLike, frame_step: TensorLike, name: str | None = None) -> Tensor:
    """The signal of these frames, which are added where they overlap.

    Args:
        signal: [..., frames, frame_length].
        frame_step: the number of samples from the begin of a frame to that of the next.
        name: the name of the nodes.

    Returns:
        [..., samples].

    Example:
        >>> sess.run(tf.signal.overlap_and_add([[1, 2, 3], [10, 20, 30]], 2))
        array([ 1,  2, 13, 20, 30], dtype=int32)
    """
    with name_scope(name, "overlap_and_add"):
        frames = convert_to_tensor(signal, name="signal")
        frames.shape.with_rank_at_least(2)
        step = convert_to_tensor(frame_step, name="frame_step")
        if not step.dtype.is_integer:
            raise ValueError(f"frame_step must be an integer. Got {step.dtype}")
        step = casting.cast(step, dtypes.int32)
        sizes = shaping.shape(frames)
        count, length = sizes[-2], sizes[-1]
        starts = shaping.expand_dims(filling.range(count) * step, 1)
        places = shaping.reshape(starts + filling.range(length), [-1])
        total = length + step * (count - 1)
        columns = transposing.transpose(shaping.reshape(frames, [-1, count * length]))
        summed = segment.unsorted_segment_sum(columns, places, total)
        outer = joining.concat([sizes[:-2], [total]], 0)
        return shaping.reshape(transposing.transpose(summed), outer)


def _power_of_two(length: Tensor) -> Tensor:
    """The smallest power of two that is at least the length."""
    known = constant_value(length)
    if known is not None:
        return convert_to_tensor(1 << max(int(known) - 1, 0).bit_length(), dtypes.int32)
    doublings = transcendental.log(casting.to_float(length)) / math.log(2.0)
    return casting.to_int32(arithmetic.power(2.0, rounding.ceil(doublings)))


def _lengths(frame_length: Any, fft_length: Any) -> tuple[Tensor, Tensor]:
    length = convert_to_tensor(frame_length, dtypes.int32, "frame_length")
    if fft_length is None:
        return length, _power_of_two(length)
    return length, convert_to_tensor(fft_length, dtypes.int32, "fft_length")


@public("signal.stft", "contrib.signal.stft")
def stft(
    signals: TensorLike,
    frame_length: TensorLike,
    frame_step: TensorLike,
    fft_length: TensorLike | None = None,
    window_fn: Window | None = hann_window,
    pad_end: bool = False,
    name: str | None = None,
) -> Tensor:
    """The spectra of the frames of signals: their short-time Fourier transform.

    Args:
        signals: [..., samples], real.
        frame_length: the number of samples of a frame.
        frame_step: the number of samples from the begin of a frame to that of the next.
        fft_length: the length of a transform; the next power of two if None.
        window_fn: a function of (length, dtype) that returns a window, or None.
        pad_end: whether to include frames that end after the signal.
        name: the name of the nodes.

    Returns:
        [..., frames, fft_length // 2 + 1], complex.

    Example:
        >>> tf.signal.stft(tf.ones([2, 20]), 8, 4).shape.as_list()
        [2, 4, 5]
    """
    with name_scope(name, "stft"):
        samples = convert_to_tensor(signals, name="signals")
        length, size = _lengths(frame_length, fft_length)
        frames = frame(samples, length, frame_step, pad_end)
        if window_fn is not None:
            frames = frames * window_fn(length, dtype=frames.dtype)
        return rfft(frames, shaping.reshape(size, [1]))


@public("signal.inverse_stft", "contrib.signal.inverse_stft")
def inverse_stft(
    stfts: TensorLike,
    frame_length: TensorLike,
    frame_step: TensorLike,
    fft_length: TensorLike | None = None,
    window_fn: Window | None = hann_window,
    name: str | None = None,
) -> Tensor:
    """Signals from the spectra of their frames.

    Args:
        stfts: [..., frames, fft_length // 2 + 1], complex.
        frame_length: the number of samples of a frame.
        frame_step: the number of samples from the begin of a frame to that of the next.
        fft_length: the length of a transform; the next power of two if None.
        window_fn: a function of (length, dtype) that returns a window, or None; that of
            `inverse_stft_window_fn` reconstructs the signals.
        name: the name of the nodes.

    Returns:
        [..., samples], real.

    Example:
        >>> spectra = tf.signal.stft(tf.range(16.0), 8, 4)
        >>> window = tf.signal.inverse_stft_window_fn(4)
        >>> sess.run(tf.signal.inverse_stft(spectra, 8, 4, window_fn=window))[4:8].round(3)
        array([4., 5., 6., 7.], dtype=float32)
    """
    with name_scope(name, "inverse_stft"):
        spectra = convert_to_tensor(stfts, name="stfts")
        spectra.shape.with_rank_at_least(2)
        length, size = _lengths(frame_length, fft_length)
        frames = irfft(spectra, shaping.reshape(size, [1]))
        known, full = constant_value(length), constant_value(size)
        if known is None or full is None or known > full:
            extra = arithmetic.maximum(0, length - size)
            rank = frames.shape.rank or 2
            frames = padding.pad(frames, [*[[0, 0]] * (rank - 1), [0, extra]])
        frames = frames[..., : length if known is None else int(known)]
        if window_fn is not None:
            frames = frames * window_fn(length, dtype=frames.dtype)
        return overlap_and_add(frames, frame_step)


@public("signal.inverse_stft_window_fn", "contrib.signal.inverse_stft_window_fn")
def inverse_stft_window_fn(
    frame_step: TensorLike, forward_window_fn: Window = hann_window, name: str | None = None
) -> Window:
    """The window with which `inverse_stft` is the inverse of `stft`.

    Args:
        frame_step: the number of samples from the begin of a frame to that of the next.
        forward_window_fn: the window of `stft`.
        name: the name of the nodes.

    Returns:
        A function of (length, dtype).

    Example:
        >>> sess.run(tf.signal.inverse_stft_window_fn(2)(4, tf.float32))
        array([0. , 1. , 1. , 1. ], dtype=float32)
    """

    def window(frame_length: Any, dtype: Any) -> Tensor:
        with name_scope(name, "inverse_stft_window_fn"):
            length = convert_to_tensor(frame_length, dtypes.int32)
            forward = forward_window_fn(length, dtype=dtype)
            overlaps: Any = -division.floordiv(-length, frame_step)
            missing = overlaps * frame_step - length
            squares = padding.pad(arithmetic.square(forward), [[0, missing]])
            rows = shaping.reshape(squares, joining.stack([overlaps, frame_step]))
            sums = joining.tile(reduce.reduce_sum(rows, 0), [overlaps])
            return forward / sums[:length]

    return window
