"""Signals: Fourier transforms, windows, mel weights."""

from __future__ import annotations

from typing import Any

import numpy as np

from thalweg.graph.node import Tensor
from thalweg.onnx.registry import NodeView, operator
from thalweg.onnx.values import elements, rank_of, static_ints
from thalweg.ops.core import python_call


@operator("DFT", since=17)
def dft(node: NodeView, x: Tensor, length: Any = None, axis: Any = None) -> Tensor:
    """Along one axis; numbers are [..., 1], complex ones and results [..., 2]."""
    rank = rank_of(node, x)
    places = (
        static_ints(axis)
        if axis is not None
        else [int(node.get("axis", -2 if node.version > 17 else 1))]
    )
    if places is None:
        raise node.unsupported("the axis must be a constant")
    place = places[0] + rank if places[0] < 0 else places[0]
    inverse, half = bool(node.get("inverse", 0)), bool(node.get("onesided", 0))

    def transform(data: Any, count: Any) -> Any:
        size = int(count) if count >= 0 else None
        return _transformed(data, size, place, inverse, half)

    count = np.int64(-1) if length is None else length
    result = python_call.numpy_function(transform, [x, count], x.dtype.base_dtype)
    sizes = [None] * (rank - 1) + [2 if not (inverse and half) else 1]
    result.set_shape(sizes)
    return result


def _transformed(data: Any, size: int | None, axis: int, inverse: bool, half: bool) -> Any:
    kind = data.dtype
    numbers = data[..., 0] + (1j * data[..., 1] if data.shape[-1] == 2 else 0)
    found: Any
    if inverse and half:
        return np.fft.irfft(numbers, size, axis)[..., None].astype(kind)
    found = (np.fft.ifft if inverse else np.fft.fft)(numbers, size, axis)
    if half:
        found = np.take(found, range(found.shape[axis] // 2 + 1), axis)
    return np.stack([found.real, found.imag], -1).astype(kind)


@operator("STFT", since=17)
def stft(
    node: NodeView, signal: Tensor, step: Tensor, window: Any = None, length: Any = None
) -> Tensor:
    """[batch, frames, bins, 2]"""
    half = bool(node.get("onesided", 1))
    given = [signal, step]
    has_window, has_length = window is not None, length is not None
    given += [window] if has_window else []
    given += [length] if has_length else []

    def transform(data: Any, hop: Any, *rest: Any) -> Any:
        values = list(rest)
        shape = values.pop(0) if has_window else None
        size = int(values.pop(0)) if has_length else len(np.asarray(shape))
        weights = np.ones(size) if shape is None else np.asarray(shape)
        numbers = data[..., 0] + (1j * data[..., 1] if data.shape[-1] == 2 else 0)
        starts = range(0, numbers.shape[1] - size + 1, int(hop))
        frames = np.stack([numbers[:, start : start + size] * weights for start in starts], 1)
        found = np.fft.fft(frames, axis=-1)
        found = found[..., : size // 2 + 1] if half else found
        return np.stack([found.real, found.imag], -1).astype(data.dtype)

    return python_call.numpy_function(transform, given, signal.dtype.base_dtype)


_WINDOWS = {
    "HannWindow": (0.5, 0.5, 0.0),
    "HammingWindow": (25 / 46, 21 / 46, 0.0),
    "BlackmanWindow": (0.42, 0.5, 0.08),
}


@operator(*_WINDOWS, since=17)
def window(node: NodeView, size: Tensor) -> Tensor:
    kind = elements(int(node.get("output_datatype", 1)))
    first, second, third = _WINDOWS[node.op]
    periodic = bool(node.get("periodic", 1))

    def make(count: Any) -> Any:
        n = np.arange(int(count))
        angle = 2 * np.pi * n / (int(count) if periodic else int(count) - 1)
        found = first - second * np.cos(angle) + third * np.cos(2 * angle)
        return found.astype(kind.as_numpy_dtype)

    return python_call.numpy_function(make, [size], kind)


@operator("MelWeightMatrix", since=17)
def mel_weight_matrix(node: NodeView, *inputs: Tensor) -> Tensor:
    """[spectrum bins, mel bins]: triangles between points that are equally far on the mel scale."""
    kind = elements(int(node.get("output_datatype", 1)))

    def make(bins: Any, length: Any, rate: Any, low: Any, high: Any) -> Any:
        lines = int(length) // 2 + 1
        ends = 2595 * np.log10(1 + np.array([low, high], np.float64) / 700)
        mels = np.arange(int(bins) + 2) * ((ends[1] - ends[0]) / (int(bins) + 2)) + ends[0]
        places = ((int(length) + 1) * (700 * (10 ** (mels / 2595) - 1))) // int(rate)
        places = places.astype(np.int64)
        array = np.zeros((lines, int(bins)))
        for k in range(int(bins)):
            left, centre, right = places[k : k + 3]
            if centre == left:
                array[centre, k] = 1
            else:
                rising = np.array(range(left, centre + 1), np.int64)
                array[rising, k] = (rising - left) / (centre - left)
            if right > centre:
                falling = np.array(range(centre, right), np.int64)
                array[falling, k] = (right - falling) / (right - centre)
        return array.astype(kind.as_numpy_dtype)

    return python_call.numpy_function(make, list(inputs), kind)
