"""Discrete cosine transforms over the last axis, types 1 to 3, through real Fourier transforms."""

from __future__ import annotations

import math
from typing import Any

from thalweg.graph.convert import convert_to_tensor
from thalweg.graph.likes import TensorLike
from thalweg.graph.node import Tensor
from thalweg.graph.scopes import name_scope
from thalweg.ops.arrays import joining, transposing
from thalweg.ops.core import casting, choosing, filling, shaping
from thalweg.ops.math import compare, complexes, transcendental
from thalweg.ops.signal import real_fft
from thalweg.public import public

_INVERSE = {1: 1, 2: 3, 3: 2}


@public("spectral.dct", "signal.dct")
def dct(
    input: Any,
    type: int = 2,
    n: int | None = None,
    axis: int = -1,
    norm: str | None = None,
    name: str | None = None,
) -> Tensor:
    """The discrete cosine transform of the last axis, truncated or padded to `n` elements."""
    _check(type, n, axis, norm)
    with name_scope(name, "dct", [input]):
        x = convert_to_tensor(input)
        if n is not None:
            x = real_fft.fit(x, convert_to_tensor([n]), 1)
        transform = {1: _first, 2: _second, 3: _third}[type]
        return transform(x, norm == "ortho")


@public("spectral.idct", "signal.idct")
def idct(
    input: Any,
    type: int = 2,
    n: int | None = None,
    axis: int = -1,
    norm: str | None = None,
    name: str | None = None,
) -> Tensor:
    """The inverse of `dct` of the same type, up to a factor unless `norm="ortho"`."""
    _check(type, n, axis, norm)
    return dct(input, _INVERSE[type], n, axis, norm, name or "idct")


def _check(type: int, n: int | None, axis: int, norm: str | None) -> None:
    if type not in _INVERSE:
        raise ValueError(f"Types 1, 2 and 3 of the cosine transform are supported, not {type}")
    if n is not None and n < 1:
        raise ValueError(f"n must be a positive integer or None, got {n}")
    if axis != -1:
        raise ValueError(f"axis must be -1, got {axis}")
    if norm not in (None, "ortho"):
        raise ValueError(f"Unknown normalization {norm!r}: expected None or 'ortho'")
    if type == 1 and norm is not None:
        raise ValueError("Normalization is not supported for the cosine transform of type 1")


def _first(x: Tensor, _: bool) -> Tensor:
    """y[k] = x[0] + (-1)ᵏ x[N-1] + 2 Σ x[n] cos(π k n / (N-1))"""
    size = x.shape.with_rank_at_least(1)[-1].value if x.shape.rank else None
    if size is not None and size < 2:
        raise ValueError("The cosine transform of type 1 needs two elements or more")
    mirrored = transposing.reverse(x[..., 1:-1], [-1])
    return complexes.real(real_fft.rfft(joining.concat([x, mirrored], -1)))


def _second(x: Tensor, ortho: bool) -> Tensor:
    """y[k] = 2 Σ x[n] cos(π k (2n + 1) / 2N)"""
    size = _size(x)
    half = real_fft.rfft(x, _twice(size))[..., :size]
    y = complexes.real(half * _twiddle_factors(x, size, -1)) * 2
    return y * _weights(x, size, 0.25, 0.5, -0.5) if ortho else y


def _third(x: Tensor, ortho: bool) -> Tensor:
    """y[k] = x[0] + 2 Σ x[n] cos(π n (2k + 1) / 2N)"""
    size = _size(x)
    scaled = x * (_weights(x, size, 1, 0.5, 0.5) if ortho else _number(x, size))
    spectrum = complexes.from_real(scaled) * _twiddle_factors(x, size, 1)
    return real_fft.irfft(spectrum, _twice(size))[..., :size] * 2


def _size(x: Tensor) -> Any:
    known = x.shape.with_rank_at_least(1)[-1].value if x.shape.rank else None
    return shaping.shape(x)[-1] if known is None else known


def _twice(size: Any) -> Tensor:
    return shaping.reshape(convert_to_tensor(size) * 2, [1])


def _number(x: Tensor, size: TensorLike) -> Tensor:
    return casting.cast(size, x.dtype.base_dtype)


def _twiddle_factors(x: Tensor, size: Any, direction: int) -> Tensor:
    """exp(±i π k / 2N) for k in [0, N)"""
    steps = casting.cast(filling.range(size), x.dtype.base_dtype)
    angles = steps * (direction * math.pi / 2) / _number(x, size)
    return complexes.complex_number(transcendental.cos(angles), transcendental.sin(angles))


def _weights(x: Tensor, size: Any, first: float, others: float, power: float) -> Tensor:
    """√first Nᵖ, then √others Nᵖ: the weights of the orthonormal transform"""
    scale = _number(x, size) ** power
    is_first = compare.equal(filling.range(size), 0)
    return choosing.SelectV2()(is_first, scale * math.sqrt(first), scale * math.sqrt(others))
