"""Attention as one op, and its gradients as another: softmax(q kᵀ · scale + mask) v.

Programs write attention as products and a softmax (`tf.nn.scaled_dot_product_attention` does, too);
on GPUs the optimizer replaces these and their gradients by these ops. They do not store the scores:
an additional output is the logarithm of each row's sum of exponentials (`lse`), from which the
gradients recompute the probabilities. `delta` is the sum of y · dy along each row.

An op has two loop forms. `loop` computes stored scores and probabilities by plain products;
`fused_loop` is one loop nest with all sums, for targets with a fused kernel.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from thalweg.graph.node import Tensor
from thalweg.graph.op import Op
from thalweg.graph.shapes import TensorShape, broadcast_shapes
from thalweg.ir.expr import Expr, constant, select
from thalweg.ir.loop import IndexTuple, Intermediate, Operand, intermediate, reduce, widened
from thalweg.platform import blas, dtype_traits
from thalweg.platform.arrays import Array

_MAX_HEAD = 128  # the maximum elements of a query, key or value in a fused kernel
_HEAD_STEP = 16  # the elements must be a multiple of it
_MIN_ROWS = 16  # queries or keys from which fusing pays


def takes_head(size: int | None) -> bool:
    """Whether a fused kernel supports queries, keys and values of `size` elements."""
    return size is not None and size % _HEAD_STEP == 0 and 0 < size <= _MAX_HEAD


class _Attention(Op, abstract=True):
    """The base of the op and its gradients: queries and keys of batches, and their scores.

    `mask` is added to the scores, and broadcasts to them; a scalar zero is none. If it is `causal`,
    queries attend to the keys up to their own position.
    """

    private = True
    scale: float = 1.0
    causal: bool = False

    def _score(self, q: Operand, k: Operand, mask: Operand, at: Sequence[Expr]) -> Expr:
        """The score of a query and a key, without the causal mask."""
        *batch, i, j = at

        def product(d: Expr) -> Expr:
            return _element(q, batch, i, d) * _element(k, batch, j, d)

        score = reduce("sum", q.shape[-1:], product) * self.scale
        return score + widened(mask.broadcast(at), mask.dtype) if mask.rank else score

    def _masked(self, score: Expr, i: Expr, j: Expr, otherwise: float) -> Expr:
        return select(j <= i, score, constant(otherwise, score.dtype)) if self.causal else score

    def _scores(self, q: Operand, k: Operand, mask: Operand) -> Intermediate:
        """All scores, stored."""

        def score(*at: Expr) -> Expr:
            return self._masked(self._score(q, k, mask, at), at[-2], at[-1], -np.inf)

        shape = (*_batch_of(q, k), q.shape[-2], k.shape[-2])
        return intermediate(shape, dtype_traits.compute_dtype(q.dtype), score)

    def _numpy_scores(self, q: Array, k: Array, mask: Array) -> Array:
        wide = dtype_traits.widened
        scores = blas.matmul(wide(q), np.swapaxes(wide(k), -1, -2))
        scores = scores * wide(q).dtype.type(self.scale)
        scores = scores + wide(mask)
        if self.causal:
            rows, columns = scores.shape[-2:]
            scores = np.where(np.tri(rows, columns, dtype=bool), scores, -np.inf)
        return scores.astype(wide(q).dtype, copy=False)

    def can_fuse(self, operands: Sequence[Operand]) -> bool:
        """Whether a fused kernel supports operands of these shapes and dtypes."""
        q, k, v = operands[:3]
        heads = {q.shape[-1], v.shape[-1]}
        is_plain = q.shape[:-2] == k.shape[:-2] == v.shape[:-2] and q.rank >= 2
        fits = len(heads) == 1 and takes_head(q.shape[-1])
        is_narrow = all(dtype_traits.is_narrow_float(x.dtype) for x in (q, k, v))
        is_long = min(q.shape[-2], k.shape[-2]) >= _MIN_ROWS
        sizes = {x.dtype.itemsize for x in (q, k, v)}
        return is_plain and fits and is_narrow and is_long and sizes == {2} and 0 not in q.shape


def _product(x: Operand, y: Operand, at: Sequence[Expr], is_transposed: bool = False) -> Expr:
    """An element of x y, or of xᵀ y."""
    *batch, row, column = at
    length = x.shape[-2 if is_transposed else -1]

    def term(k: Expr) -> Expr:
        left = _element(x, batch, *((k, row) if is_transposed else (row, k)))
        return left * _element(y, batch, k, column)

    return reduce("sum", [length], term)


def _element(x: Operand, batch: Sequence[Expr], row: Expr, column: Expr) -> Expr:
    """An element of a matrix in the broadcast batch, in the compute dtype."""
    own = zip(x.shape[:-2], batch[len(batch) + 2 - x.rank :], strict=True)
    return widened(x[(*(0 if size == 1 else i for size, i in own), row, column)], x.dtype)


def _batch_of(*operands: Operand) -> tuple[int, ...]:
    return np.broadcast_shapes(*(x.shape[:-2] for x in operands))


def _batch_shape(*tensors: Tensor) -> TensorShape:
    return broadcast_shapes(*(x.shape.with_rank_at_least(2)[:-2] for x in tensors))


class FusedAttention(_Attention):
    """output = softmax(q kᵀ · scale + mask) v; lse = log of the sum of each row's exponentials"""

    signature = "q: T, k: T, v: T, mask: M -> output: T, lse: float32; T: floating, M: floating"
    fused_outputs = ((0, 1),)  # lse is over the rows of the output

    def shape(self, q: Tensor, k: Tensor, v: Tensor, mask: Tensor) -> list[TensorShape]:
        rows = _batch_shape(q, k, v).concatenate(q.shape[-2:-1])
        return [rows.concatenate(v.shape[-1:]), rows]

    def numpy(self, q: Array, k: Array, v: Array, mask: Array) -> tuple[Array, Array]:
        scores = self._numpy_scores(q, k, mask)
        largest = scores.max(-1, keepdims=True)
        powers = np.exp(scores - largest)
        total = powers.sum(-1, keepdims=True)
        output = blas.matmul(powers / total, dtype_traits.widened(v))
        lse = (largest + np.log(total))[..., 0]
        return output.astype(q.dtype, copy=False), lse.astype(np.float32, copy=False)

    def loop(self, at: IndexTuple, q: Operand, k: Operand, v: Operand, mask: Operand) -> Expr:
        scores = self._scores(q, k, mask)
        keys = k.shape[-2:-1]

        def total(row: Sequence[Expr]) -> tuple[Expr, Expr]:
            def score(j: Expr) -> Expr:
                return scores[(*row, j)]

            def power(j: Expr) -> Expr:
                return (score(j) - largest).exp()

            largest = reduce("max", keys, score)
            return largest, reduce("sum", keys, power)

        if at.output == 1:
            largest, powers = total(at)
            return (largest + powers.log()).cast(np.float32)

        def probability(*at: Expr) -> Expr:
            largest, powers = total(at[:-1])
            return (scores[at] - largest).exp() / powers

        stored = intermediate(scores.shape, q.dtype, probability)
        return _product(stored, v, at).cast(q.dtype)

    def fused_loop(self, at: IndexTuple, q: Operand, k: Operand, v: Operand, mask: Operand) -> Expr:
        """An output with all sums nested in its loops, including the rows' maxima and sums."""
        row = at if at.output == 1 else at[:-1]
        keys = k.shape[-2:-1]

        def score(j: Expr) -> Expr:
            return self._masked(self._score(q, k, mask, (*row, j)), row[-1], j, -np.inf)

        def power(j: Expr) -> Expr:
            return (score(j) - largest).exp()

        def term(j: Expr) -> Expr:
            return power(j) * _element(v, row[:-1], j, at[-1])

        largest = reduce("max", keys, score)
        total = reduce("sum", keys, power)
        if at.output == 1:
            return (largest + total.log()).cast(np.float32)

        return (reduce("sum", keys, term) / total).cast(q.dtype)


class FusedAttentionGrad(_Attention):
    """dq, dk and dv of FusedAttention, from dy, its lse, and delta = Σ y · dy along each row

    With p = exp(score - lse) and ds = p · (dy vᵀ - delta) · scale: dq = ds k, dk = dsᵀ q, and
    dv = pᵀ dy.
    """

    signature = (
        "q: T, k: T, v: T, mask: M, y_backprop: T, lse: float32, delta: float32 -> "
        "q_backprop: T, k_backprop: T, v_backprop: T; T: floating, M: floating"
    )
    fused_outputs = ((0,), (1, 2))

    def shape(self, q: Tensor, k: Tensor, v: Tensor, *rest: Tensor) -> list[TensorShape]:
        batch = _batch_shape(q, k, v)
        return [batch.concatenate(x.shape[-2:]) for x in (q, k, v)]

    def numpy(
        self, q: Array, k: Array, v: Array, mask: Array, dy: Array, lse: Array, delta: Array
    ) -> tuple[Array, Array, Array]:
        wide_q, wide_k, wide_v, wide_dy = map(dtype_traits.widened, (q, k, v, dy))
        p = np.exp(self._numpy_scores(q, k, mask) - lse[..., None])
        ds = p * (blas.matmul(wide_dy, np.swapaxes(wide_v, -1, -2)) - delta[..., None])
        ds = ds * wide_q.dtype.type(self.scale)
        products = (
            (ds, wide_k),
            (np.swapaxes(ds, -1, -2), wide_q),
            (np.swapaxes(p, -1, -2), wide_dy),
        )
        found = [blas.matmul(*pair) for pair in products]
        dq, dk, dv = (each.astype(q.dtype, copy=False) for each in found)
        return dq, dk, dv

    def _weights(
        self,
        operands: Sequence[Operand],
        at: Sequence[Expr],
    ) -> tuple[Expr, Expr]:
        """The probability of a key for a query, and the gradient of their score."""
        q, k, v, mask, dy, lse, delta = operands
        *batch, i, j = at

        def product(e: Expr) -> Expr:
            return _element(dy, batch, i, e) * _element(v, batch, j, e)

        p = (self._score(q, k, mask, at) - lse[(*batch, i)]).exp()
        slope = reduce("sum", v.shape[-1:], product) - delta[(*batch, i)]
        return self._masked(p, i, j, 0.0), self._masked(p * slope, i, j, 0.0)

    def loop(self, at: IndexTuple, *operands: Operand) -> Expr:
        q, k, v, _, dy, _, _ = operands
        shape = (*_batch_of(q, k, v), q.shape[-2], k.shape[-2])
        number = 0 if at.output == 2 else 1
        weights = intermediate(shape, q.dtype, lambda *at: self._weights(operands, at)[number])
        found = _product(weights, (k, q, dy)[at.output], at, is_transposed=at.output > 0)
        return self._of_products(found, at).cast(q.dtype)

    def fused_loop(self, at: IndexTuple, *operands: Operand) -> Expr:
        """An output with all sums nested in its loops, including scores and probabilities."""
        q, k, _, _, dy, _, _ = operands
        *batch, row, column = at
        other = (k, q, dy)[at.output]

        def term(n: Expr) -> Expr:
            pair = (row, n) if at.output == 0 else (n, row)
            p, ds = self._weights(operands, (*batch, *pair))
            weight = p if at.output == 2 else ds
            return weight * _element(other, batch, n, column)

        return self._of_products(reduce("sum", other.shape[-2:-1], term), at).cast(q.dtype)

    def _of_products(self, slope: Expr, at: IndexTuple) -> Expr:
        """A gradient times the scale for q and k, whose products are scaled; not for v."""
        return slope if at.output == 2 else slope * self.scale
