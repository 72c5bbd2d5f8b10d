"""Reductions along axes, and the places of extremes."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from thalweg.graph import dtypes
from thalweg.graph.node import Tensor
from thalweg.onnx.ops.normalization import as_matrix
from thalweg.onnx.registry import NodeView, operator
from thalweg.onnx.values import at_axis, axis_of, moved_back, moved_last, static_ints, to_int32
from thalweg.ops.arrays import marking, scan, searching, transposing
from thalweg.ops.core import basic, casting, shaping
from thalweg.ops.math import arithmetic, reduce, transcendental


def _l2(x: Tensor, axes: Any, keep: bool) -> Tensor:
    return transcendental.sqrt(reduce.reduce_sum(arithmetic.square(x), axes, keep))


_REDUCTIONS: dict[str, Callable[[Tensor, Any, bool], Tensor]] = {
    "ReduceMax": reduce.reduce_max,
    "ReduceMean": reduce.reduce_mean,
    "ReduceMin": reduce.reduce_min,
    "ReduceProd": reduce.reduce_prod,
    "ReduceSum": reduce.reduce_sum,
    "ReduceLogSumExp": reduce.reduce_logsumexp,
    "ReduceL1": lambda x, axes, keep: reduce.reduce_sum(arithmetic.absolute(x), axes, keep),
    "ReduceL2": _l2,
    "ReduceLogSum": lambda x, axes, keep: transcendental.log(reduce.reduce_sum(x, axes, keep)),
    "ReduceSumSquare": lambda x, axes, keep: reduce.reduce_sum(arithmetic.square(x), axes, keep),
}


@operator(*_REDUCTIONS)
def reduction(node: NodeView, x: Tensor, axes: Any = None) -> Tensor:
    """Along axes that are an attribute, or an input since version 13 or 18."""
    given = node.get("axes") if axes is None else _known(axes)
    keep = bool(node.get("keepdims", 1))
    if isinstance(given, list | tuple) and not given:
        given = None
    if given is None and node.get("noop_with_empty_axes", 0):
        return _elementwise(node.op, x)
    truths = x.dtype.base_dtype is dtypes.bool
    values = casting.cast(x, dtypes.uint8) if truths else x
    found = _REDUCTIONS[node.op](values, given, keep)
    return casting.cast(found, dtypes.bool) if truths else found


def _elementwise(op: str, x: Tensor) -> Tensor:
    """What a reduction along no axis does to each element."""
    if op in ("ReduceSumSquare",):
        return arithmetic.square(x)
    if op in ("ReduceL1", "ReduceL2"):
        return arithmetic.absolute(x)
    return transcendental.log(x) if op == "ReduceLogSum" else basic.identity(x)


def _known(axes: Any) -> Any:
    found = static_ints(axes)
    return to_int32(axes) if found is None else found


@operator("ArgMax", "ArgMin")
def extreme(node: NodeView, x: Tensor) -> Tensor:
    """The place of the first, or the last, largest or smallest element."""
    axis = axis_of(node, x)
    find = searching.argmax if node.op == "ArgMax" else searching.argmin
    if node.get("select_last_index", 0):
        last = shaping.shape(x, out_type=dtypes.int64)[axis] - 1
        found = last - find(transposing.reverse(x, [axis]), axis)
    else:
        found = find(x, axis)
    found = casting.cast(found, dtypes.int64)
    return shaping.expand_dims(found, axis) if node.get("keepdims", 1) else found


@operator("CumSum", "CumProd", since=11)
def cumulative(node: NodeView, x: Tensor, axis: Any) -> Tensor:
    function = scan.cumsum if node.op == "CumSum" else scan.cumprod
    return function(
        x,
        to_int32(shaping.reshape(axis, [])),
        bool(node.get("exclusive", 0)),
        bool(node.get("reverse", 0)),
    )


@operator("TopK")
def top_k_fixed(node: NodeView, x: Tensor) -> Any:
    return _top_k(node, x, int(node.get("k")))


@operator("TopK", since=10)
def top_k(node: NodeView, x: Tensor, k: Any) -> Any:
    known = static_ints(k)
    return _top_k(node, x, to_int32(shaping.reshape(k, [])) if known is None else known[0])


def _top_k(node: NodeView, x: Tensor, k: Any) -> Any:
    axis = axis_of(node, x, -1)
    inner = moved_last(x, axis)
    if node.get("largest", 1):
        values, indices = searching.top_k(inner, k)
    else:
        indices = searching.argsort(inner, stable=True)
        values = searching.sort(inner)
        last = (x.shape.rank or 1) - 1
        values, indices = at_axis(values, last, 0, k), at_axis(indices, last, 0, k)
    found = [moved_back(each, axis) for each in (values, casting.cast(indices, dtypes.int64))]
    return found[0], found[1]


@operator("Hardmax")
def hardmax_flat(node: NodeView, x: Tensor) -> Tensor:
    flat = as_matrix(x, axis_of(node, x, 1))
    return shaping.reshape(_one_hot(flat, 1), shaping.shape(x))


@operator("Hardmax", since=13)
def hardmax(node: NodeView, x: Tensor) -> Tensor:
    return _one_hot(x, axis_of(node, x, -1))


def _one_hot(x: Tensor, axis: int) -> Tensor:
    """1 at the first largest element along an axis, 0 elsewhere."""
    depth = shaping.shape(x)[axis]
    return marking.one_hot(searching.argmax(x, axis), depth, axis=axis, dtype=x.dtype.base_dtype)
