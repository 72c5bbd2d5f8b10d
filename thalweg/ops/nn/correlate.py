"""The convolution of deep learning, a correlation, and its two transposes, in NumPy.

y[n, p, o] = sum over taps k and channels c of x[n, p·stride + k·dilation, c] w[k, c, o], for any
number of spatial axes, channels last. Each is one matrix product per block of the batch, which is
sized so that its unfolded windows stay in cache.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import replace

import numpy as np

from thalweg.ops.nn import windows
from thalweg.ops.nn.windows import Slides
from thalweg.platform import blas
from thalweg.platform.arrays import Array

_BLOCK_BYTES = 1 << 22


def correlate(x: Array, w: Array, slides: Slides) -> Array:
    """y of [batch, *sizes, in] and [*window, in, out]."""
    positions = windows.counts(slides, x.shape[1:-1])
    y = np.empty((len(x), *positions, w.shape[-1]), x.dtype)
    matrix = w.reshape(-1, w.shape[-1])
    for block, rows in _blocks(x, slides, positions):
        blas.matmul(rows, matrix, out=y[block].reshape(len(rows), w.shape[-1]))
    return y


def filter_adjoint(x: Array, dy: Array, slides: Slides) -> Array:
    """dw of x and [batch, *positions, out]."""
    positions = dy.shape[1:-1]
    channels = dy.shape[-1]
    window = tuple(slide.window for slide in slides)
    dw = np.zeros((math.prod(window) * x.shape[-1], channels), x.dtype)
    for block, rows in _blocks(x, slides, positions):
        dw += blas.matmul(rows.T, dy[block].reshape(len(rows), channels))
    return dw.reshape(*window, x.shape[-1], channels)


def input_adjoint(sizes: Sequence[int], w: Array, dy: Array, slides: Slides) -> Array:
    """dx, of shape [batch, *sizes, in], of w and dy."""
    backwards = _backwards(slides, windows.all_pads(slides, sizes))
    # Unfolding copies the channels of dy for each tap, scattering those of x: choose the fewer.
    if backwards is not None and w.shape[-1] <= 2 * w.shape[-2]:
        flipped = np.flip(w, tuple(range(len(slides))))
        return correlate(dy, np.ascontiguousarray(flipped.swapaxes(-1, -2)), backwards)
    return _scatter(sizes, w, dy, slides)


def _backwards(slides: Slides, pads: Sequence[tuple[int, int]]) -> Slides | None:
    """The slides over dy by which dx is a correlation, too; None if a stride skips positions or
    the padding is too large."""
    margins = [
        (slide.extent - 1 - before, slide.extent - 1 - after)
        for slide, (before, after) in zip(slides, pads, strict=True)
    ]
    if any(slide.stride > 1 for slide in slides) or min(map(min, margins)) < 0:
        return None
    return [replace(s, padding=margin) for s, margin in zip(slides, margins, strict=True)]


def _scatter(sizes: Sequence[int], w: Array, dy: Array, slides: Slides) -> Array:
    """dx by adding, for each tap, a product to the elements of the tap."""
    pads = [(0, 0), *windows.all_pads(slides, sizes), (0, 0)]
    shape = (len(dy), *sizes, w.shape[-2])
    padded = np.zeros([n + sum(p) for n, p in zip(shape, pads, strict=True)], dy.dtype)
    positions = dy.shape[1:-1]
    rows = dy.reshape(math.prod(dy.shape[:-1]), dy.shape[-1])
    products = np.empty((*dy.shape[:-1], w.shape[-2]), dy.dtype)
    for index, seen in windows.taps(slides, positions):
        blas.matmul(rows, w[index].T, out=products.reshape(len(rows), w.shape[-2]))
        padded[(slice(None), *seen)] += products
    return padded[windows.inside(pads, shape)]


def _blocks(x: Array, slides: Slides, positions: Sequence[int]) -> Iterator[tuple[slice, Array]]:
    """Blocks of the batch, each with its windows as rows of a matrix."""
    pads = [(0, 0), *windows.all_pads(slides, x.shape[1:-1]), (0, 0)]
    view = windows.unfold(windows.pad(x, pads), slides, positions)
    width = windows.tap_count(slides) * x.shape[-1]
    rows = math.prod(positions)
    size = max(_BLOCK_BYTES // max(rows * width * x.itemsize, 1), 1)
    for start in range(0, len(x), size):
        block = slice(start, start + size)
        yield block, view[block].reshape(len(view[block]) * rows, width)
