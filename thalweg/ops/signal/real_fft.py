"""Discrete Fourier transforms between real signals and half spectra.

The length of the transform is an input: signals are truncated or padded with zeros at the end.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, ClassVar

import numpy as np

from thalweg import errors
from thalweg.graph import dtypes
from thalweg.graph.convert import convert_to_tensor
from thalweg.graph.dtypes import DType
from thalweg.graph.known import constant_value_as_shape
from thalweg.graph.node import Node, Tensor
from thalweg.graph.op import Op
from thalweg.graph.scopes import name_scope
from thalweg.graph.shapes import TensorShape
from thalweg.ir.expr import Expr, select
from thalweg.ir.loop import IndexTuple, Operand
from thalweg.ops.arrays import joining
from thalweg.ops.core import casting, shaping
from thalweg.ops.math import complexes, reduce
from thalweg.ops.signal import fft
from thalweg.platform.arrays import Array
from thalweg.platform.docstrings import NAME, composed
from thalweg.public import public

_COMPLEX = {dtypes.float32: dtypes.complex64, dtypes.float64: dtypes.complex128}
_INVERSE = {1: fft.IFFT, 2: fft.IFFT2D, 3: fft.IFFT3D}


def _axes(rank: int) -> tuple[int, ...]:
    return tuple(range(-rank, 0))


def _lengths(fft_length: Array, rank: int, input: Array) -> tuple[int, ...]:
    lengths = tuple(np.asarray(fft_length).ravel().tolist())
    if len(lengths) != rank or min(lengths) < 0 or np.ndim(input) < rank:
        raise errors.invalid(
            f"fft_length must be {rank} lengths >= 0 and the input have {rank} axes or more, got "
            f"fft_length {list(lengths)} and input shape {list(np.shape(input))}"
        )
    return lengths


def _replaced(input: Tensor, last: tuple[int | None, ...] | None, rank: int) -> TensorShape:
    """The shape of `input` with the sizes of its last axes replaced."""
    sizes = input.shape.with_rank_at_least(rank).sizes
    if sizes is None:
        return TensorShape(None)
    return TensorShape.of(sizes[: len(sizes) - rank] + (last or (None,) * rank))


class FitSignal(Op):
    """x truncated, or padded with zeros, at the end of its last axes to the given sizes"""

    private = True
    signature = "input: T, sizes: int32 -> output: T; T: floating|complex"
    rank: int

    def shape(self, input: Tensor, sizes: Tensor) -> TensorShape:
        return _replaced(input, constant_value_as_shape(sizes).sizes, self.rank)

    def numpy(self, input: Array, sizes: Array) -> Array:
        wanted = tuple(sizes.tolist())
        result = np.zeros(input.shape[: -self.rank] + wanted, input.dtype)
        common = zip(input.shape[-self.rank :], wanted, strict=True)
        inside = (..., *(slice(min(pair)) for pair in common))
        result[inside] = input[inside]
        return result

    def loop(self, at: IndexTuple, input: Operand, sizes: Operand) -> Expr:
        return input.or_else(at, 0)

    def gradient(self, node: Node, dy: Tensor) -> list[Tensor | None]:
        return [fit(dy, _sizes(node.inputs[0], self.rank), self.rank), None]


def fit(x: Tensor, sizes: Tensor, rank: int) -> Tensor:
    """`x` truncated or padded at the end of its last `rank` axes."""
    return FitSignal(rank=rank)(x, sizes)


def _sizes(x: Tensor, rank: int) -> Tensor:
    known = x.shape.sizes
    if known is not None and None not in known[-rank:]:
        return convert_to_tensor(np.array(known[-rank:], np.int32))
    return shaping.shape(x)[-rank:]


class HalfSpectrumWeights(Op):
    """The multiplicity of each bin of a half spectrum in the whole: one at its ends, else two"""

    private = True
    signature = "length: int32 -> weights: dtype"
    not_differentiable = True
    dtype: DType

    def shape(self, length: Tensor) -> TensorShape:
        return TensorShape.of((None,))

    def numpy(self, length: Array) -> Array:
        bins = np.arange(int(length) // 2 + 1)
        once = (bins == 0) | (2 * bins == int(length))
        return np.where(once, 1, 2).astype(self.dtype.as_numpy_dtype)

    def loop(self, at: IndexTuple, length: Operand) -> Expr:
        once = at[0].eq(0) | (2 * at[0]).eq(length[()])
        return select(once, 1, 2).cast(self.dtype.as_numpy_dtype)


class RealTransform(Op, abstract=True):
    """y = the half spectrum of the real signal x"""

    signature = (
        "input: Treal, fft_length: int32 -> output: Tcomplex; Treal: float32|float64, "
        "Tcomplex: complex"
    )
    host_only = True
    rank: ClassVar[int]
    Tcomplex: DType

    def shape(self, input: Tensor, fft_length: Tensor) -> TensorShape:
        lengths = constant_value_as_shape(fft_length).sizes
        if lengths and lengths[-1] is not None:
            lengths = (*lengths[:-1], lengths[-1] // 2 + 1 if lengths[-1] else 0)
        return _replaced(input, lengths, self.rank)

    def numpy(self, input: Array, fft_length: Array) -> Array:
        lengths = _lengths(fft_length, self.rank, input)
        kind: Any = self.Tcomplex.as_numpy_dtype
        if 0 in lengths or not input.size:
            last = lengths[-1] // 2 + 1 if lengths[-1] else 0
            return np.zeros((*input.shape[: -self.rank], *lengths[:-1], last), kind)
        return np.fft.rfftn(input, lengths, _axes(self.rank)).astype(kind)

    def gradient(self, node: Node, dy: Tensor) -> list[Tensor | None]:
        x, lengths = node.inputs
        whole = _INVERSE[self.rank]()(fit(dy, lengths, self.rank))
        size = casting.cast(reduce.reduce_prod(lengths), x.dtype.base_dtype)
        return [fit(complexes.real(whole) * size, _sizes(x, self.rank), self.rank), None]


class RFFT(RealTransform):
    """y = the half spectrum of the real signal x over its last axis"""

    rank = 1


class RFFT2D(RealTransform):
    """y = the half spectrum of the real signal x over its last two axes"""

    rank = 2


class RFFT3D(RealTransform):
    """y = the half spectrum of the real signal x over its last three axes"""

    rank = 3


class InverseRealTransform(Op, abstract=True):
    """y = the real signal whose half spectrum is x"""

    signature = (
        "input: Tcomplex, fft_length: int32 -> output: Treal; Tcomplex: complex, "
        "Treal: float32|float64"
    )
    host_only = True
    rank: ClassVar[int]
    forward: ClassVar[type[RealTransform]]
    Treal: DType

    def shape(self, input: Tensor, fft_length: Tensor) -> TensorShape:
        return _replaced(input, constant_value_as_shape(fft_length).sizes, self.rank)

    def numpy(self, input: Array, fft_length: Array) -> Array:
        lengths = _lengths(fft_length, self.rank, input)
        kind: Any = self.Treal.as_numpy_dtype
        if 0 in lengths or not input.size:
            return np.zeros((*input.shape[: -self.rank], *lengths), kind)
        return np.fft.irfftn(input, lengths, _axes(self.rank)).astype(kind)

    def gradient(self, node: Node, dy: Tensor) -> list[Tensor | None]:
        x, lengths = node.inputs
        kind = x.dtype.base_dtype
        spectrum = type(self).forward(Tcomplex=kind)(dy, lengths)
        weights = HalfSpectrumWeights(dtype=kind)(lengths[-1])
        size = casting.cast(reduce.reduce_prod(lengths), kind)
        return [fit(spectrum * weights / size, _sizes(x, self.rank), self.rank), None]


class IRFFT(InverseRealTransform):
    """y = the real signal whose half spectrum is x, over the last axis"""

    rank, forward = 1, RFFT


class IRFFT2D(InverseRealTransform):
    """y = the real signal whose half spectrum is x, over the last two axes"""

    rank, forward = 2, RFFT2D


class IRFFT3D(InverseRealTransform):
    """y = the real signal whose half spectrum is x, over the last three axes"""

    rank, forward = 3, RFFT3D


def _forward(kind: type[RealTransform], default_name: str) -> Callable[..., Tensor]:
    def function(input_tensor: Any, fft_length: Any = None, name: str | None = None) -> Tensor:
        with name_scope(name, default_name, [input_tensor, fft_length]) as scope:
            x = convert_to_tensor(input_tensor, preferred_dtype=dtypes.float32)
            lengths = _sizes(x, kind.rank) if fft_length is None else fft_length
            wide = _COMPLEX.get(x.dtype.base_dtype, dtypes.complex64)
            return kind(Tcomplex=wide)(x, lengths, name=scope)

    return _named(function, kind, default_name)


def _backward(kind: type[InverseRealTransform], default_name: str) -> Callable[..., Tensor]:
    def function(input_tensor: Any, fft_length: Any = None, name: str | None = None) -> Tensor:
        with name_scope(name, default_name, [input_tensor, fft_length]) as scope:
            x = convert_to_tensor(input_tensor, preferred_dtype=dtypes.complex64)
            lengths = _signal_sizes(x, kind.rank) if fft_length is None else fft_length
            return kind(Treal=x.dtype.base_dtype.real_dtype)(x, lengths, name=scope)

    return _named(function, kind, default_name)


def _signal_sizes(spectrum: Tensor, rank: int) -> Tensor:
    """The sizes of the signal of a half spectrum: 2 (n - 1) along the last axis."""
    sizes = _sizes(spectrum, rank)
    last = 2 * (sizes[-1:] - 1)
    return last if rank == 1 else joining.concat([sizes[:-1], last], 0)


def _named(function: Callable[..., Tensor], kind: type[Op], name: str) -> Callable[..., Tensor]:
    taken = {
        "input_tensor": "a tensor; the transform is along its last axes.",
        "fft_length": "the sizes of the signal, cut or filled up with zeros; as it is if None.",
        "name": NAME,
    }
    function.__doc__ = composed(kind.__doc__, taken, "The transform, of the matching dtype.")
    function.__name__ = function.__qualname__ = name
    return public(f"spectral.{name}", f"signal.{name}")(function)


rfft = _forward(RFFT, "rfft")
irfft = _backward(IRFFT, "irfft")
rfft2d = _forward(RFFT2D, "rfft2d")
irfft2d = _backward(IRFFT2D, "irfft2d")
rfft3d = _forward(RFFT3D, "rfft3d")
irfft3d = _backward(IRFFT3D, "irfft3d")
