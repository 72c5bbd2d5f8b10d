"""Discrete Fourier transforms of complex signals over their last one, two or three axes."""

from __future__ import annotations

import math
from typing import Any, ClassVar

import numpy as np

from thalweg import errors
from thalweg.graph.convert import convert_to_tensor
from thalweg.graph.dtypes import DType
from thalweg.graph.node import Node, Tensor
from thalweg.graph.op import Op
from thalweg.graph.shapes import TensorShape
from thalweg.ops.core import casting, shaping
from thalweg.ops.math import reduce
from thalweg.platform.arrays import Array
from thalweg.public import public


def _axes(rank: int) -> tuple[int, ...]:
    return tuple(range(-rank, 0))


class Transform(Op, abstract=True):
    """y = the transform of x over its last `rank` axes"""

    signature = "input: Tcomplex -> output: Tcomplex; Tcomplex: complex"
    host_only = True
    rank: ClassVar[int]
    back: ClassVar[type[Transform]]  # the inverse transform
    forwards: ClassVar[bool]  # the inverse divides by the size, so its gradient multiplies

    def shape(self, input: Tensor) -> TensorShape:
        return input.shape.with_rank_at_least(self.rank)

    def numpy(self, input: Array) -> Array:
        if np.ndim(input) < self.rank:
            raise errors.invalid(
                f"Input must have rank of at least {self.rank}, got {np.ndim(input)}"
            )
        if not np.size(input):
            return np.zeros_like(input)
        function = np.fft.fftn if self.forwards else np.fft.ifftn
        return function(input, axes=_axes(self.rank)).astype(input.dtype)

    def gradient(self, node: Node, dy: Tensor) -> Tensor:
        size = _signal_size(node.inputs[0], self.rank, dy.dtype.base_dtype)
        returned = type(self).back()(dy)
        return returned * size if self.forwards else returned / size


def _signal_size(x: Tensor, rank: int, kind: DType) -> Tensor:
    """The number of elements of a transform."""
    sizes = x.shape.sizes
    if sizes is not None and None not in sizes[-rank:]:
        return convert_to_tensor(math.prod(s for s in sizes[-rank:] if s is not None), kind)
    return casting.cast(reduce.reduce_prod(shaping.shape(x)[-rank:]), kind)


class FFT(Transform):
    """y = the discrete Fourier transform of x over its last axis"""

    rank, forwards = 1, True


@public("fft", "batch_fft", "spectral.fft", "signal.fft")
def fft(input: Any, name: str | None = None) -> Tensor:
    """The discrete Fourier transform over the last axis."""
    return FFT()(input, name=name)


class IFFT(Transform):
    """y = the inverse discrete Fourier transform of x over its last axis"""

    rank, forwards = 1, False


@public("ifft", "batch_ifft", "spectral.ifft", "signal.ifft")
def ifft(input: Any, name: str | None = None) -> Tensor:
    """The inverse discrete Fourier transform over the last axis."""
    return IFFT()(input, name=name)


class FFT2D(Transform):
    """y = the discrete Fourier transform of x over its last two axes"""

    rank, forwards = 2, True


@public("fft2d", "batch_fft2d", "spectral.fft2d", "signal.fft2d")
def fft2d(input: Any, name: str | None = None) -> Tensor:
    """The discrete Fourier transform over the last two axes."""
    return FFT2D()(input, name=name)


class IFFT2D(Transform):
    """y = the inverse discrete Fourier transform of x over its last two axes"""

    rank, forwards = 2, False


@public("ifft2d", "batch_ifft2d", "spectral.ifft2d", "signal.ifft2d")
def ifft2d(input: Any, name: str | None = None) -> Tensor:
    """The inverse discrete Fourier transform over the last two axes."""
    return IFFT2D()(input, name=name)


class FFT3D(Transform):
    """y = the discrete Fourier transform of x over its last three axes"""

    rank, forwards = 3, True


@public("fft3d", "batch_fft3d", "spectral.fft3d", "signal.fft3d")
def fft3d(input: Any, name: str | None = None) -> Tensor:
    """The discrete Fourier transform over the last three axes."""
    return FFT3D()(input, name=name)


class IFFT3D(Transform):
    """y = the inverse discrete Fourier transform of x over its last three axes"""

    rank, forwards = 3, False


@public("ifft3d", "batch_ifft3d", "spectral.ifft3d", "signal.ifft3d")
def ifft3d(input: Any, name: str | None = None) -> Tensor:
    """The inverse discrete Fourier transform over the last three axes."""
    return IFFT3D()(input, name=name)


for _there, _back in ((FFT, IFFT), (FFT2D, IFFT2D), (FFT3D, IFFT3D)):
    _there.back, _back.back = _back, _there
