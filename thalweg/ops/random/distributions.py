"""Random distributions as functions of a Philox stream: (generator, count, …) to an array.

The mapping from words of the stream to elements is TensorFlow's, so that equal seeds give equal
numbers. Distributions with rejection reserve a range of blocks for each group of outputs: an
element never depends on how often another one was rejected.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np

from thalweg.ir.expr import Expr, select
from thalweg.ir.philox import Generator, joined, unsigned
from thalweg.ops.random.philox import WORDS, Philox
from thalweg.platform.arrays import Array
from thalweg.platform.dtype_traits import float_format

#: Blocks of the stream reserved for each output, far more than any rejection loop uses.
RESERVED = 256

_MIN_UNIFORM = 1e-7  # keeps the logarithm of Box-Muller finite
_TRUNCATED_AT = 2.0


def uniform(generator: Philox, count: int, dtype: Any) -> Array:
    """Floats in [0, 1), from one word each, or two for float64."""
    return _uniform(generator.words(count * _words_per(dtype)), dtype)


def _words_per(dtype: Any) -> int:
    return 2 if np.dtype(dtype).itemsize == 8 else 1


def _uniform(words: Array, dtype: Any) -> Array:
    """Words as floats in [0, 1), along the last axis: mantissas of [1, 2), minus one."""
    form, kind = float_format(dtype), np.dtype(f"u{np.dtype(dtype).itemsize}").type
    mantissa = form.mantissa_bits
    wide = _long_words(words, first_is_high=True) if mantissa > 32 else words
    drawn = (wide & wide.dtype.type((1 << mantissa) - 1)).astype(kind)
    bits = drawn | kind(form.bias << mantissa)
    return bits.view(dtype) - np.ones((), dtype)


def _long_words(words: Array, first_is_high: bool) -> Array:
    """Pairs of words as 64-bit integers."""
    pairs = words.reshape(*words.shape[:-1], words.shape[-1] // 2, 2).astype(np.uint64)
    first, second = pairs[..., 0], pairs[..., 1]
    return first << 32 | second if first_is_high else second << 32 | first


def uniform_element(generator: Generator, number: Any, dtype: Any) -> Expr:
    """Element `number` of `uniform`."""
    kind = np.dtype(dtype)
    if kind == np.float64:
        return _fraction(joined(*generator.pair(number)), kind)
    return _fraction(generator.word(number), kind)


def _fraction(word: Expr, dtype: Any) -> Expr:
    """A word (64 bits for float64) as a float in [0, 1)."""
    mantissa = float_format(dtype).mantissa_bits
    bits = word.bit_and((1 << mantissa) - 1)
    return (bits.cast(_computed_in(dtype)) * 2.0**-mantissa).cast(dtype)


def uniform_integers(generator: Philox, count: int, low: Any, high: Any, dtype: Any) -> Array:
    """Integers in [low, high): the remainder of a word, or of two for 64 bits."""
    words = generator.words(count * _words_per(dtype))
    unsigned = words if _words_per(dtype) == 1 else _long_words(words, first_is_high=False)
    span = unsigned.dtype.type(int(high) - int(low))
    # Unsigned addition wraps to the bits of the signed sum, without an overflow.
    offset = np.asarray(low, dtype).astype(unsigned.dtype)
    return (unsigned % span + offset).astype(dtype)


def uniform_integers_element(
    generator: Generator, number: Any, low: Expr, high: Expr, dtype: Any
) -> Expr:
    """Element `number` of `uniform_integers`."""
    if _words_per(dtype) == 1:
        drawn = generator.word(number)
    else:
        first, second = generator.pair(number)
        drawn = joined(second, first)
    start = unsigned(low)
    return (drawn % (unsigned(high) - start) + start).cast(dtype)


def normal(generator: Philox, count: int, dtype: Any) -> Array:
    """Standard normal numbers, in pairs by Box-Muller."""
    kind = _computed_in(dtype)
    words = generator.words(2 * -(-count // 2) * _words_per(kind))
    return _box_muller(_uniform(words, kind)).reshape(-1)[:count].astype(dtype)


def _computed_in(dtype: Any) -> Any:
    return np.float64 if np.dtype(dtype) == np.float64 else np.float32


def _box_muller(uniforms: Array) -> Array:
    """Pairs of uniform numbers (along the last axis) as pairs of normal ones."""
    kind = uniforms.dtype.type
    radius = np.sqrt(kind(-2) * np.log(np.maximum(uniforms[..., 0::2], kind(_MIN_UNIFORM))))
    angle = kind(2 * math.pi) * uniforms[..., 1::2]
    pairs = np.stack([np.sin(angle) * radius, np.cos(angle) * radius], axis=-1)
    return pairs.reshape(uniforms.shape)


def normal_element(generator: Generator, number: Any, dtype: Any) -> Expr:
    """Element `number` of `normal`."""
    kind = np.dtype(_computed_in(dtype))
    place = unsigned(number)
    if kind == np.float64:
        block = generator.block(place.shift_right(1))
        words = joined(block[0], block[1]), joined(block[2], block[3])
    else:
        words = generator.pair(place.shift_right(1))
    first, second = (_fraction(word, kind) for word in words)
    radius = (first.max(_MIN_UNIFORM).log() * -2).sqrt()
    angle = second * (2 * math.pi)
    wave = select(place.bit_and(1).eq(0), angle.sin(), angle.cos())
    return (wave * radius).cast(dtype)


def truncated_normal(generator: Philox, count: int, dtype: Any) -> Array:
    """Normal numbers within two standard deviations; others are rejected.

    A group of outputs (as many as a block gives) takes the accepted numbers of its range in order.
    """
    kind = _computed_in(dtype)
    group = WORDS // _words_per(kind)
    groups = -(-count // group)
    starts = np.arange(groups, dtype=np.uint64) * np.uint64(group * RESERVED // WORDS)
    result = np.empty((groups, group), kind)
    pending, blocks = np.arange(groups), 1
    while len(pending):
        words = generator.blocks_at(_stretches(starts[pending], blocks))
        drawn = _box_muller(_uniform(words.reshape(len(pending), -1), kind))
        accepted = np.abs(drawn) < _TRUNCATED_AT
        rank = np.cumsum(accepted, axis=1)
        done = rank[:, -1] >= group
        chosen = accepted & (rank <= group)
        result[pending[done]] = drawn[done][chosen[done]].reshape(-1, group)
        pending, blocks = pending[~done], 2 * blocks
    return result.reshape(-1)[:count].astype(dtype)


def _stretches(starts: Array, blocks: int) -> Array:
    return (starts[:, None] + np.arange(blocks, dtype=np.uint64)).reshape(-1)


class _Lanes:
    """A range of the stream per output; each advances as far as its own rejections require."""

    def __init__(self, generator: Philox, count: int) -> None:
        self._generator = generator
        self._starts = np.arange(count, dtype=np.uint64) * np.uint64(RESERVED)
        self._used = np.zeros(count, np.uint64)
        # Unused pairs: a block gives two doubles, taken from the back.
        self._uniforms, self._uniforms_left = np.empty((count, 2)), np.zeros(count, np.int64)
        self._normals, self._normals_left = np.empty((count, 2)), np.zeros(count, np.int64)

    def uniform(self, lanes: Array) -> Array:
        """The next uniform number of some lanes."""
        self._refill(lanes, self._uniforms, self._uniforms_left, lambda pairs: pairs)
        return self._uniforms[lanes, self._uniforms_left[lanes]]

    def normal(self, lanes: Array) -> Array:
        """The next normal number of some lanes."""
        self._refill(lanes, self._normals, self._normals_left, _box_muller)
        return self._normals[lanes, self._normals_left[lanes]]

    def _refill(
        self, lanes: Array, values: Array, left: Array, transform: Callable[[Array], Array]
    ) -> None:
        empty = lanes[left[lanes] == 0]
        words = self._generator.blocks_at(self._starts[empty] + self._used[empty])
        self._used[empty] += np.uint64(1)
        values[empty] = transform(_uniform(words, np.float64))
        left[empty] = 2
        left[lanes] -= 1


def gamma(generator: Philox, alpha: Array) -> Array:
    """A gamma number per shape parameter: Marsaglia and Tsang, "A simple method for generating
    gamma variables". For alpha = 1 the exponential distribution; below it, the power trick."""
    alpha = alpha.astype(np.float64)
    lanes = _Lanes(generator, len(alpha))
    result = np.full(len(alpha), np.nan)  # remains for invalid parameters
    exponential = np.flatnonzero(alpha == 1)
    result[exponential] = -np.log(1 - lanes.uniform(exponential))
    pending = np.flatnonzero((alpha != 1) & (alpha >= 0))
    while len(pending):
        accepted, values = _gamma_round(lanes, pending, alpha[pending])
        result[pending[accepted]] = values
        pending = pending[~accepted]
    return result


def _gamma_round(lanes: _Lanes, pending: Array, alpha: Array) -> tuple[Array, Array]:
    d = np.where(alpha < 1, alpha + 2 / 3, alpha - 1 / 3)
    x = lanes.normal(pending)
    v = 1 + x / (3 * np.sqrt(d))
    accepted = v > 0
    inside = np.flatnonzero(accepted)
    x, v, d, alpha = x[inside], v[inside] ** 3, d[inside], alpha[inside]
    u = lanes.uniform(pending[inside])
    fits = (u < 1 - 0.0331 * x**4) | (np.log(u) < 0.5 * x * x + d * (1 - v + np.log(v)))
    accepted[inside] = fits
    inside, values, alpha = inside[fits], (d * v)[fits], alpha[fits]
    small = np.flatnonzero(alpha < 1)
    values[small] *= lanes.uniform(pending[inside[small]]) ** (1 / alpha[small])
    return accepted, values


def poisson(generator: Philox, rate: Array, largest: float) -> Array:
    """A Poisson number per rate: Knuth's product of uniforms below 10, from there Hörmann's
    transformed rejection ("The transformed rejection method for generating Poisson variables")."""
    rate = rate.astype(np.float64)
    lanes = _Lanes(generator, len(rate))
    result = np.full(len(rate), np.nan)  # remains for invalid parameters
    _poisson_products(lanes, np.flatnonzero((rate >= 0) & (rate < 10)), rate, result)
    pending = np.flatnonzero((rate >= 10) & (rate <= largest))
    while len(pending):
        accepted, values = _poisson_round(lanes, pending, rate[pending], largest)
        result[pending[accepted]] = values[accepted]
        pending = pending[~accepted]
    return result


def _poisson_products(lanes: _Lanes, pending: Array, rate: Array, result: Array) -> None:
    product = np.ones(len(rate))
    events = 0
    while len(pending):
        product[pending] *= lanes.uniform(pending)
        over = product[pending] <= np.exp(-rate[pending])
        result[pending[over]] = events
        pending = pending[~over]
        events += 1


def _poisson_round(
    lanes: _Lanes, pending: Array, rate: Array, largest: float
) -> tuple[Array, Array]:
    b = 0.931 + 2.53 * np.sqrt(rate)
    a = -0.059 + 0.02483 * b
    inverse_alpha = 1.1239 + 1.1328 / (b - 3.4)
    u = lanes.uniform(pending) - 0.5
    v = lanes.uniform(pending)
    shifted = 0.5 - np.abs(u)
    k = np.floor((2 * a / shifted + b) * u + rate + 0.43)
    squeezed = (shifted >= 0.07) & (v <= 0.9277 - 3.6224 / (b - 2))
    outside = (k < 0) | ((shifted < 0.013) & (v > shifted))
    height = np.log(v * inverse_alpha / (a / (shifted * shifted) + b))
    density = -rate + k * np.log(rate) - _log_gamma(np.maximum(k, 0) + 1)
    accepted = (squeezed | (~outside & (height <= density))) & (k <= largest)
    return accepted, k


_log_gamma = np.vectorize(math.lgamma, otypes=[float])


def categorical(generator: Philox, logits: Array, samples: int) -> Array:
    """Classes drawn with the probabilities softmax(logits), row by row."""
    wide = logits.astype(np.float64)
    finite = np.isfinite(wide)
    largest = np.max(np.where(finite, wide, -np.inf), axis=1, keepdims=True, initial=-np.inf)
    weights = np.where(finite, np.exp(wide - largest), 0.0)
    sums = np.cumsum(weights, axis=1)
    result = np.empty((len(logits), samples), np.int64)
    drawn = uniform(generator, result.size, np.float64).reshape(result.shape)
    for row, (cumulative, targets) in enumerate(zip(sums, drawn, strict=True)):
        result[row] = np.searchsorted(cumulative, targets * cumulative[-1], side="right")
    return result


def permutation(generator: Philox, size: int) -> Array:
    """A permutation by the Fisher-Yates shuffle."""
    order = list(range(size))
    words = generator.words(max(0, size - 1)).tolist()
    for index, word in enumerate(words):
        other = index + word % (size - index)
        order[index], order[other] = order[other], order[index]
    return np.array(order, np.int64)
