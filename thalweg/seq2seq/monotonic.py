"""Monotonic attention: the place that is looked at never moves back."""

from __future__ import annotations

from typing import Any

import numpy as np

from thalweg.control.functional import scan as scan_steps
from thalweg.graph.convert import convert_to_tensor
from thalweg.graph.dtypes import int32
from thalweg.graph.likes import DTypeLike, TensorLike
from thalweg.graph.node import Tensor
from thalweg.graph.scopes import name_scope
from thalweg.ops.arrays import joining, marking, scan, transposing
from thalweg.ops.core import casting, filling, shaping
from thalweg.ops.math import arithmetic, compare, transcendental
from thalweg.ops.random import random
from thalweg.public import public
from thalweg.seq2seq.attention import (
    BahdanauScores,
    BaseAttentionMechanism,
    LuongScores,
    Probabilities,
)
from thalweg.variables.initializers import Constant
from thalweg.variables.scope import get_variable


@public("contrib.seq2seq.safe_cumprod")
def safe_cumprod(x: TensorLike, *args: Any, **kwargs: Any) -> Tensor:
    """Cumulative products of numbers in [0, 1], as the exponential of sums of logarithms.

    Args:
        x: a tensor.
        args, kwargs: what `tf.cumsum` takes besides.

    Returns:
        A tensor of the same shape and dtype.

    Example:
        >>> sess.run(tf.contrib.seq2seq.safe_cumprod([0.5, 0.5, 0.0])).round(4)
        array([0.5 , 0.25, 0.  ], dtype=float32)
    """
    with name_scope(None, "SafeCumprod"):
        values = convert_to_tensor(x, name="x")
        tiny = float(np.finfo(values.dtype.as_numpy_dtype).tiny)
        logarithms = transcendental.log(arithmetic.clip_by_value(values, tiny, 1.0))
        return transcendental.exp(scan.cumsum(logarithms, *args, **kwargs))


@public("contrib.seq2seq.monotonic_attention")
def monotonic_attention(p_choose_i: TensorLike, previous_attention: TensorLike, mode: str) -> Any:
    """The attention of a step, from that of the step before.

    Args:
        p_choose_i: for each place, the probability to stop there, [batch, time].
        previous_attention: the attention of the step before, [batch, time].
        mode: "recursive", "parallel" (the same by cumulative products, faster but less exact) or
            "hard", where the probabilities are 0 or 1.

    Returns:
        The attention [batch, time].

    Example:
        >>> p = tf.constant([[0.0, 1.0, 0.0]])
        >>> sess.run(tf.contrib.seq2seq.monotonic_attention(p, [[1.0, 0.0, 0.0]], "hard"))
        array([[0., 1., 0.]], dtype=float32)
    """
    stop = convert_to_tensor(p_choose_i, name="p_choose_i")
    previous = convert_to_tensor(previous_attention, name="previous_attention")
    if mode == "recursive":
        return stop * _reached(stop, previous)
    if mode == "parallel":
        passed = safe_cumprod(1 - stop, axis=1, exclusive=True)
        share = previous / arithmetic.clip_by_value(passed, 1e-10, 1.0)
        return stop * passed * scan.cumsum(share, axis=1)
    if mode == "hard":
        stop *= scan.cumsum(previous, axis=1)
        return stop * scan.cumprod(1 - stop, axis=1, exclusive=True)
    raise ValueError("mode must be 'recursive', 'parallel', or 'hard'.")


def _reached(stop: Tensor, previous: Tensor) -> Tensor:
    """The probability to come to each place: q[i] = (1 - p[i-1]) q[i-1] + previous[i]."""
    first = filling.ones_like(stop[:, :1])
    passed = joining.concat([first, 1 - stop[:, :-1]], 1)
    start = filling.zeros_like(stop[:, 0])
    columns = [transposing.transpose(passed), transposing.transpose(previous)]

    def following(q: Any, column: Any) -> Any:
        return column[0] * q + column[1]

    reached = scan_steps(following, columns, start)
    return transposing.transpose(reached)


def _probabilities(noise: float, mode: str, seed: int | None) -> Probabilities:
    """The function from scores and the attention before to the attention."""

    def attention(score: Tensor, previous: Any) -> Tensor:
        if noise > 0:
            drawn = random.random_normal(shaping.shape(score), dtype=score.dtype, seed=seed)
            score += noise * drawn
        if mode != "hard":
            return monotonic_attention(transcendental.sigmoid(score), previous, mode)
        is_chosen: Tensor = compare.greater(score, 0)
        return monotonic_attention(casting.cast(is_chosen, score.dtype), previous, mode)

    return attention


class _Monotonic(BaseAttentionMechanism):
    """Starts at the first place, and adds an offset to all scores."""

    _score_bias_init: Any = 0.0

    def initial_alignments(self, batch_size: TensorLike, dtype: DTypeLike) -> Any:
        """All attention is on the first place."""
        first = filling.zeros(shaping.reshape(batch_size, [1]), int32)
        return marking.one_hot(first, self._alignments_size, dtype=dtype)

    def _offset(self, dtype: Any) -> Any:
        return get_variable("attention_score_bias", (), dtype, Constant(self._score_bias_init))


@public("contrib.seq2seq.BahdanauMonotonicAttention")
class BahdanauMonotonicAttention(_Monotonic, BahdanauScores):
    """Monotonic attention with Bahdanau's scores.

    Args:
        num_units: the size of keys and queries, behind their layers.
        memory: what is looked at, [batch, time, ...].
        memory_sequence_length: how many places count in each example.
        normalize: normalize v, with a gain `attention_g` and an offset `attention_b`.
        score_mask_value: the score behind the end of an example; -inf if None.
        sigmoid_noise: the standard deviation of the noise that is added to scores.
        sigmoid_noise_seed: its seed.
        score_bias_init: where the offset of all scores begins.
        mode: see `monotonic_attention`.
        dtype: the dtype of the layers.
        name: the name of the nodes.

    Example:
        >>> attention = tf.contrib.seq2seq.BahdanauMonotonicAttention(4, tf.ones([2, 3, 5]))
        >>> sess.run(attention.initial_state(2, tf.float32))[0]
        array([1., 0., 0.], dtype=float32)
    """

    scope = "bahdanau_monotonic_attention"

    def __init__(
        self,
        num_units: int,
        memory: TensorLike,
        memory_sequence_length: TensorLike | None = None,
        normalize: bool = False,
        score_mask_value: TensorLike | None = None,
        sigmoid_noise: float = 0.0,
        sigmoid_noise_seed: int | None = None,
        score_bias_init: TensorLike = 0.0,
        mode: str = "parallel",
        dtype: DTypeLike | None = None,
        name: str = "BahdanauMonotonicAttention",
    ) -> None:
        self._score_bias_init = score_bias_init
        super().__init__(
            num_units,
            memory,
            memory_sequence_length,
            normalize,
            _probabilities(sigmoid_noise, mode, sigmoid_noise_seed),
            dtype,
            score_mask_value=score_mask_value,
            name=name,
        )

    def score(self, query: Tensor) -> Tensor:
        """Bahdanau's scores and an offset."""
        return super().score(query) + self._offset(query.dtype)


@public("contrib.seq2seq.LuongMonotonicAttention")
class LuongMonotonicAttention(_Monotonic, LuongScores):
    """Monotonic attention with Luong's scores.

    Args:
        num_units: the size of keys, which must be that of queries.
        memory: what is looked at, [batch, time, ...].
        memory_sequence_length: how many places count in each example.
        scale: multiply scores by a weight, `attention_g`.
        score_mask_value: the score behind the end of an example; -inf if None.
        sigmoid_noise: the standard deviation of the noise that is added to scores.
        sigmoid_noise_seed: its seed.
        score_bias_init: where the offset of all scores begins.
        mode: see `monotonic_attention`.
        dtype: the dtype of the layer.
        name: the name of the nodes.

    Example:
        >>> attention = tf.contrib.seq2seq.LuongMonotonicAttention(4, tf.ones([2, 3, 5]))
        >>> sess.run(attention.initial_state(2, tf.float32))[0]
        array([1., 0., 0.], dtype=float32)
    """

    scope = "luong_monotonic_attention"

    def __init__(
        self,
        num_units: int,
        memory: TensorLike,
        memory_sequence_length: TensorLike | None = None,
        scale: bool = False,
        score_mask_value: TensorLike | None = None,
        sigmoid_noise: float = 0.0,
        sigmoid_noise_seed: int | None = None,
        score_bias_init: TensorLike = 0.0,
        mode: str = "parallel",
        dtype: DTypeLike | None = None,
        name: str = "LuongMonotonicAttention",
    ) -> None:
        self._score_bias_init = score_bias_init
        super().__init__(
            num_units,
            memory,
            memory_sequence_length,
            scale,
            _probabilities(sigmoid_noise, mode, sigmoid_noise_seed),
            dtype,
            score_mask_value=score_mask_value,
            name=name,
        )

    def score(self, query: Tensor) -> Tensor:
        """Luong's scores and an offset."""
        return super().score(query) + self._offset(query.dtype)
