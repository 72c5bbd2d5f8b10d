"""Attention, and its gradient, as fused ops on GPUs: softmax(q kᵀ · scale + mask) v.

A program writes two products with a softmax between them, and its gradient has four more with the
softmax's gradient; all of them store matrices of scores. Where nothing else reads these,
`FusedAttention` computes the output and `FusedAttentionGrad` the gradients, and no score is stored.
A constant mask of zeros up to the diagonal and large negative numbers beyond is causal, which
halves the work. Results are equal up to rounding: probabilities are not rounded in between.

Casts may be anywhere in between: mixed precision inserts them.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np

from thalweg.graph import dtypes
from thalweg.graph.node import Node, Tensor
from thalweg.ops.core.basic import constant
from thalweg.ops.core.casting import Cast
from thalweg.ops.linalg.matmul import BatchMatMulV2
from thalweg.ops.math.reduce import reduce_sum
from thalweg.ops.nn.attention import FusedAttention, FusedAttentionGrad, takes_head
from thalweg.optimize.facts import broadcasts_into, integers, value_of
from thalweg.optimize.pure import is_free
from thalweg.optimize.step_graph import StepGraph

#: The largest number that masks a score: its exponential vanishes beside any other.
_MAX_MASKED = -1e8
_NARROW = frozenset({dtypes.bfloat16, dtypes.float16})
_SCORES = frozenset({"Add", "BatchMatMulV2", "Cast", "Mul", "RealDiv"})  # ops that compute them


def fuse_attention(graph: StepGraph) -> None:
    """Replace the products around a softmax, and around its gradient, by one op each."""
    if "Softmax" not in graph.types or graph.devices is None:
        return
    for node in graph.nodes:
        if node.op.type_name == "Softmax" and graph.target(node).fuses_attention:
            attention = _Match(graph, node).attention()
            if attention is not None:
                _replace(graph, attention)


@dataclass(frozen=True)
class _Score:
    """The operands of scores: q kᵀ · scale + mask, perhaps causal."""

    q: Tensor
    k: Tensor
    scale: float
    mask: Tensor | None
    causal: bool


@dataclass(frozen=True)
class _Gradient:
    """The gradient of an attention: the products that it consists of in the step."""

    slope: Tensor  # the gradient of the output
    first: Node  # the first of its nodes
    products: tuple[Node | None, Node | None, Node | None]  # those of q, k and v


@dataclass(frozen=True)
class _Attention:
    """An attention: its operands, the product that is its output, and its gradient."""

    score: _Score
    v: Tensor
    output: Node
    gradient: _Gradient | None


class _NoMatch(Exception):
    """The nodes around a softmax are no attention."""


class _Match:
    """Matches the nodes around a softmax with an attention."""

    def __init__(self, graph: StepGraph, softmax: Node) -> None:
        self._graph, self._softmax = graph, softmax
        self._device = graph.device(softmax)

    def attention(self) -> _Attention | None:
        """The attention that the softmax belongs to, if there is one."""
        try:
            score = self._score(self._softmax.inputs[0])
            return self._attention(score)
        except _NoMatch:
            return None

    # Scores

    def _score(self, tensor: Tensor) -> _Score:
        scale, mask, causal = 1.0, None, False
        while True:
            node = self._inner(tensor)
            kind = node.op.type_name
            if isinstance(node.op, BatchMatMulV2):
                break
            if kind == "Add" and scale == 1.0:  # a mask is not scaled
                tensor, added = self._added(node)
                is_causal = _is_causal(added)
                _require(mask is None or is_causal)
                causal, mask = causal or is_causal, mask if is_causal else added
            elif kind in ("Mul", "RealDiv"):
                tensor, factor = self._scaled(node)
                scale *= factor
            elif kind == "Cast":
                tensor = node.inputs[0]
            else:
                raise _NoMatch
        _require(node.op == BatchMatMulV2(adj_x=False, adj_y=True))
        q, k = node.inputs
        _require(q.dtype in _NARROW and takes_head(q.shape[-1:].as_list()[0]))
        return _Score(q, k, scale, mask, causal)

    def _inner(self, tensor: Tensor) -> Node:
        """The node of a tensor that has one consumer."""
        node = tensor.op
        is_open = self._graph.is_open(tensor) and not self._graph.is_waited(node)
        _require(is_open and is_free(node) and self._graph.uses(tensor) == 1)
        _require(self._graph.device(node) == self._device)
        return node

    def _added(self, node: Node) -> tuple[Tensor, Tensor]:
        """The scores and the mask of a sum: scores come from a product."""
        shape = node.output.shape
        for scores, mask in (node.inputs, node.inputs[::-1]):
            is_whole = scores.shape.rank == shape.rank and scores.op.type in _SCORES
            if is_whole and mask.shape.rank is not None:
                _require(broadcasts_into(mask.shape, scores.shape))
                return scores, mask
        raise _NoMatch

    def _scaled(self, node: Node) -> tuple[Tensor, float]:
        """The tensor that a node multiplies by a number, and the number."""
        left, right = node.inputs
        number = _number(right)
        if number is not None:
            return left, number if node.op.type_name == "Mul" else 1.0 / number
        number = _number(left) if node.op.type_name == "Mul" else None
        if number is None:
            raise _NoMatch
        return right, number

    # Products of probabilities

    def _attention(self, score: _Score) -> _Attention:
        probabilities = self._softmax.output
        consumers = self._consumers(probabilities)
        output = [n for n in consumers if n.op == BatchMatMulV2() and self._is_softmax(n.inputs[0])]
        _require(len(output) == 1)
        v = output[0].inputs[1]
        _require(not self._is_softmax(v) and v.dtype == score.q.dtype)
        _require(v.shape[-1:].as_list() == score.q.shape[-1:].as_list())
        others = [node for node in consumers if node is not output[0]]
        return _Attention(score, v, output[0], self._gradient(score, v, others) if others else None)

    def _is_softmax(self, tensor: Tensor) -> bool:
        """Whether a tensor is the softmax, perhaps cast."""
        return _uncast(tensor) is self._softmax.output

    def _consumers(self, tensor: Tensor) -> list[Node]:
        """The nodes that take a tensor, or a cast of it; all of them must be replaceable."""
        graph, result = self._graph, list[Node]()
        consumers = list(dict.fromkeys(n for n in graph.consumers(tensor) if tensor in n.inputs))
        count = sum(node.inputs.count(tensor) for node in consumers)
        _require(count == graph.uses(tensor) and graph.is_open(tensor))
        for node in consumers:
            _require(is_free(node) and not graph.is_waited(node))
            _require(graph.device(node) == self._device)
            result += self._consumers(node.output) if node.op.type_name == "Cast" else [node]
        return list(dict.fromkeys(result))

    # The gradient

    def _gradient(self, score: _Score, v: Tensor, others: Sequence[Node]) -> _Gradient:
        adjoint = BatchMatMulV2(adj_x=True)
        dv = _at_most_one(n for n in others if n.op == adjoint and self._is_softmax(n.inputs[0]))
        products = [node for node in others if node is not dv]
        if dv is not None and not products:
            return _Gradient(dv.inputs[1], dv, (None, None, dv))
        _require([node.op.type_name for node in products] == ["Mul", "Mul"])
        of_slopes, of_scores = self._softmax_gradient(products)
        product = _uncast(of_slopes).op
        _require(product.op == BatchMatMulV2(adj_y=True) and product.inputs[1] is v)
        slope = product.inputs[0]
        _require(dv is None or dv.inputs[1] is slope)
        gradients = (*self._score_gradient(of_scores, score), dv)
        _require({node.output.dtype for node in gradients if node} == {score.q.dtype})
        return _Gradient(slope, self._first([product, dv] if dv else [product]), gradients)

    def _softmax_gradient(self, products: Sequence[Node]) -> tuple[Tensor, Tensor]:
        """Match (dp - Σ dp · p) · p from its two products with p. Returns dp, and the result."""
        for summed, result in (products, products[::-1]):
            sums = self._consumers(summed.output)
            if len(sums) != 1 or sums[0].op.type_name != "Sum":
                continue
            total, axes = sums[0], integers(sums[0].inputs[1])
            rank = self._softmax.output.shape.rank
            _require(total.op.attributes["keep_dims"] and axes in ([-1], [(rank or 0) - 1]))
            difference = self._only_taker(total.output)
            _require(difference.op.type_name == "Sub")
            _require(_uncast(difference.inputs[1]) is total.output)
            slopes = self._other(summed)
            _require(_uncast(difference.inputs[0]) is _uncast(slopes))
            _require(_uncast(self._other(result)) is difference.output)
            self._require_only(_uncast(slopes), (summed, difference))
            self._require_only(difference.output, (result,))
            return slopes, result.output
        raise _NoMatch

    def _only_taker(self, tensor: Tensor) -> Node:
        consumers = self._consumers(tensor)
        _require(len(consumers) == 1)
        return consumers[0]

    def _other(self, product: Node) -> Tensor:
        """The factor of a product that is not the probabilities."""
        left, right = product.inputs
        _require(self._is_softmax(left) != self._is_softmax(right))
        return right if self._is_softmax(left) else left

    def _require_only(self, tensor: Tensor, nodes: Iterable[Node]) -> None:
        """Require that only these nodes take a tensor."""
        _require(set(self._consumers(tensor)) == set(nodes))

    def _score_gradient(self, slope: Tensor, score: _Score) -> tuple[Node | None, Node | None]:
        """The products of the scores' slope with keys and queries."""
        scale = 1.0
        consumers = self._consumers(slope)
        while len(consumers) == 1 and consumers[0].op.type_name in ("Mul", "RealDiv"):
            tensor, factor = self._scaled(consumers[0])
            _require(_uncast(tensor) is _uncast(slope))
            slope, scale = consumers[0].output, scale * factor
            consumers = self._consumers(slope)
        _require(abs(scale - score.scale) <= 0.02 * abs(score.scale))  # rounded to a narrow float
        pairs = (BatchMatMulV2(), score.k), (BatchMatMulV2(adj_x=True), score.q)
        dq, dk = (
            _at_most_one(n for n in consumers if n.op == op and n.inputs[1] is factor)
            for op, factor in pairs
        )
        _require(all(node in (dq, dk) for node in consumers))
        _require(all(_uncast(node.inputs[0]) is _uncast(slope) for node in consumers))
        return dq, dk

    def _first(self, nodes: Sequence[Node]) -> Node:
        order = {node: number for number, node in enumerate(self._graph.nodes)}
        return min(nodes, key=order.__getitem__)


def _require(holds: bool) -> None:
    if not holds:
        raise _NoMatch


def _at_most_one(nodes: Iterable[Node]) -> Node | None:
    first, *others = [*nodes] or [None]
    _require(not others)
    return first


def _uncast(tensor: Tensor) -> Tensor:
    """A tensor without casts between floats."""
    while tensor.op.op.type_name == "Cast" and tensor.op.inputs[0].dtype.is_floating:
        tensor = tensor.op.inputs[0]
    return tensor


def _number(tensor: Tensor) -> float | None:
    """The value of a scalar constant."""
    value = value_of(tensor)
    is_one = value is not None and value.size == 1 and value.ndim == 0
    return float(value.item()) if value is not None and is_one else None


def _is_causal(mask: Tensor) -> bool:
    """Whether a mask is zero up to the diagonal and masks all beyond."""
    value = value_of(mask)
    if value is None or value.ndim < 2 or value.size != value.shape[-1] * value.shape[-2]:
        return False
    matrix = value.reshape(value.shape[-2:]).astype(np.float32)
    visible = np.tril(np.ones(matrix.shape, bool))
    return bool((matrix[visible] == 0).all() and (matrix[~visible] <= _MAX_MASKED).all())


# The ops


def _replace(graph: StepGraph, attention: _Attention) -> None:
    """Replace the products by fused ops."""
    score, v, gradient = attention.score, attention.v, attention.gradient
    scale, causal = score.scale, score.causal

    def forward() -> tuple[Tensor, Tensor, Tensor]:
        mask = constant(np.zeros((), np.float32)) if score.mask is None else score.mask
        return mask, *FusedAttention(scale=scale, causal=causal)(score.q, score.k, v, mask)

    mask, output, lse = graph.build(attention.output, forward)
    graph.fire("attention", attention.output)
    if gradient is not None:
        slope, wide = gradient.slope, Cast(DstT=dtypes.float32)

        def backward() -> list[Tensor]:
            delta = reduce_sum(wide(output) * wide(slope), -1)
            op = FusedAttentionGrad(scale=scale, causal=causal)
            return op(score.q, score.k, v, mask, slope, lse, delta)

        slopes = graph.rebuilt("gradient of attention", gradient.first, backward)
        for node, tensor in zip(gradient.products, slopes, strict=True):
            if node is not None:
                graph.replace(node.output, tensor)
    graph.replace(attention.output.output, output)
