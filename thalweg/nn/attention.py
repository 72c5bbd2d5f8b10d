"""Attention, as products and a softmax: what GPUs make one kernel of, the optimizer recognises."""

from __future__ import annotations

import numpy as np

from thalweg.graph.convert import convert_to_tensor
from thalweg.graph.likes import TensorLike
from thalweg.graph.node import Tensor
from thalweg.graph.scopes import name_scope
from thalweg.ops.core import basic, choosing, filling, shaping
from thalweg.ops.linalg.matmul import matmul
from thalweg.ops.math import compare
from thalweg.ops.nn.softmax import softmax
from thalweg.public import public


@public("nn.scaled_dot_product_attention")
def scaled_dot_product_attention(
    query: TensorLike,
    key: TensorLike,
    value: TensorLike,
    attn_mask: TensorLike | None = None,
    is_causal: bool = False,
    scale: float | None = None,
    name: str | None = None,
) -> Tensor:
    """softmax(query · keyᵀ · scale + mask) · value: each query mixes the values of keys.

    On GPUs it is one kernel in bfloat16 and float16, as is the same written by products and a
    softmax; its gradient is two. No scores are stored, so memory grows with the length, and not
    with its square.

    Args:
        query: [..., queries, size].
        key: [..., keys, size].
        value: [..., keys, size of the result].
        attn_mask: what is added to the scores [..., queries, keys], or truths: which of them count.
        is_causal: whether query i sees the keys up to number i alone.
        scale: what products of queries and keys are multiplied by; by default 1 / sqrt(size).
        name: the name of the nodes.

    Returns:
        A tensor [..., queries, size of the result].

    Example:
        >>> x = tf.constant([[[1.0, 0.0], [0.0, 2.0]]])
        >>> sess.run(tf.nn.scaled_dot_product_attention(x, x, x, is_causal=True, scale=100.0))
        array([[[1., 0.],
                [0., 2.]]], dtype=float32)
    """
    with name_scope(name, "attention", [query, key, value]):
        query, key, value = (convert_to_tensor(x) for x in (query, key, value))
        size = query.shape[-1:].as_list()[0]
        if scale is None and size is None:
            raise ValueError("The size of queries is not known: say what the scale is.")
        factor = scale if scale is not None else float(size or 1) ** -0.5
        scores = matmul(query, key, transpose_b=True) * factor
        if attn_mask is not None:
            mask = convert_to_tensor(attn_mask)
            scores = scores + (_hidden(mask, scores) if mask.dtype.is_bool else mask)
        if is_causal:
            scores = scores + _causal(scores)
        return matmul(softmax(scores), value)


def _hidden(sees: Tensor, scores: Tensor) -> Tensor:
    """What is added to scores: zero where a key is seen, minus infinity elsewhere."""
    zero, lowest = (basic.constant(number, scores.dtype) for number in (0.0, -np.inf))
    return choosing.where_v2(sees, zero, lowest)


def _causal(scores: Tensor) -> Tensor:
    """Zero for the keys that a query sees, minus infinity for others."""
    rows, columns = scores.shape[-2:].as_list()
    if rows is not None and columns is not None:
        hidden = np.triu(np.full((rows, columns), -np.inf, np.float32), 1)
        return basic.constant(hidden.astype(scores.dtype.as_numpy_dtype))
    sizes = shaping.shape(scores)
    row, column = (filling.range(sizes[axis]) for axis in (-2, -1))
    sees = compare.less_equal(column, shaping.expand_dims(row, 1))
    return _hidden(sees, scores)
