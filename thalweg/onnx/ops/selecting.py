"""Operators that read and write at indices, and those whose result is a list of places."""

from __future__ import annotations

from typing import Any

import numpy as np

from thalweg.graph import dtypes
from thalweg.graph.node import Tensor
from thalweg.onnx.ops.boxes import suppressed
from thalweg.onnx.registry import ML, NodeView, operator
from thalweg.onnx.values import axis_of, constant, rank_of, sizes_of, static, to_int32, wrapped
from thalweg.ops.arrays import indexing, joining, marking, transposing
from thalweg.ops.core import casting, choosing, filling, python_call, shaping
from thalweg.ops.math import arithmetic, compare


@operator("Gather")
def gather(node: NodeView, x: Tensor, indices: Tensor) -> Tensor:
    axis = axis_of(node, x)
    return indexing.gather(x, wrapped(indices, shaping.shape(x)[axis]), axis=axis)


@operator("GatherND", since=11)
def gather_nd(node: NodeView, x: Tensor, indices: Tensor) -> Tensor:
    batch = int(node.get("batch_dims", 0))
    depth = indices.shape.as_list()[-1]
    if depth is None:
        raise node.unsupported("the last size of indices must be known")
    sizes = casting.cast(shaping.shape(x)[batch : batch + depth], indices.dtype.base_dtype)
    return indexing.gather_nd(x, wrapped(indices, sizes), batch_dims=batch)


def _coordinates(node: NodeView, x: Tensor, indices: Tensor, axis: int) -> Tensor:
    """[…, rank]: where each element of indices points, itself along one axis."""
    rank = rank_of(node, x)
    sizes = sizes_of(indices)
    own = wrapped(to_int32(indices), shaping.shape(x)[axis])
    found: list[Tensor] = []
    for index in range(rank):
        if index == axis:
            found.append(own)
            continue
        line = filling.range(0, sizes[index])
        spread = shaping.reshape(line, [-1 if a == index else 1 for a in range(rank)])
        found.append(arithmetic.add(spread, filling.zeros_like(own)))
    return joining.stack(found, -1)


@operator("GatherElements", since=11)
def gather_elements(node: NodeView, x: Tensor, indices: Tensor) -> Tensor:
    return indexing.gather_nd(x, _coordinates(node, x, indices, axis_of(node, x)))


@operator("ScatterElements", "Scatter", since=9)
def scatter_elements(node: NodeView, x: Tensor, indices: Tensor, updates: Tensor) -> Tensor:
    return _scattered(node, x, _coordinates(node, x, indices, axis_of(node, x)), updates)


@operator("ScatterND", since=11)
def scatter_nd(node: NodeView, x: Tensor, indices: Tensor, updates: Tensor) -> Tensor:
    depth = indices.shape.as_list()[-1]
    sizes = shaping.shape(x)[: depth or 0]
    return _scattered(node, x, wrapped(to_int32(indices), sizes), updates)


_REDUCTIONS = {
    "none": np.ndarray.__setitem__,
    "add": np.add.at,
    "mul": np.multiply.at,
    "max": np.maximum.at,
    "min": np.minimum.at,
}


def _scattered(node: NodeView, x: Tensor, places: Tensor, updates: Tensor) -> Tensor:
    """A tensor with elements or rows replaced, or combined with others, at index vectors."""
    kind = node.get("reduction", "none")
    is_number = x.dtype.base_dtype.is_floating or x.dtype.base_dtype.is_integer
    if kind in ("none", "add") and is_number:
        sizes = shaping.shape(x, out_type=places.dtype.base_dtype)
        values = indexing.scatter_nd(places, updates, sizes)
        if kind == "add":
            return arithmetic.add(x, values)
        ones = filling.ones_like(updates, dtypes.int32)
        written = compare.greater(indexing.scatter_nd(places, ones, sizes), 0)
        return choosing.where_v2(written, values, x)
    if kind not in _REDUCTIONS:
        raise node.unsupported(f"the reduction {kind!r}")
    write = _REDUCTIONS[kind]

    def change(data: Any, at: Any, values: Any) -> Any:
        result = np.array(data)
        write(result, tuple(np.moveaxis(at, -1, 0)), values)
        return result

    result = python_call.numpy_function(change, [x, places, updates], x.dtype.base_dtype)
    result.set_shape(x.shape)
    return result


@operator("OneHot", since=9)
def one_hot(node: NodeView, indices: Tensor, depth: Tensor, values: Tensor) -> Tensor:
    axis = int(node.get("axis", -1))
    count = to_int32(shaping.reshape(depth, []))
    known = static(count)
    places = wrapped(casting.cast(indices, dtypes.int64), count)
    return marking.one_hot(
        places,
        count if known is None else int(known),
        on_value=values[1],
        off_value=values[0],
        axis=axis if axis >= -1 else axis + rank_of(node, indices) + 1,
        dtype=values.dtype.base_dtype,
    )


@operator("NonZero", since=9)
def non_zero(node: NodeView, x: Tensor) -> Tensor:
    rows = choosing.where(casting.cast(x, dtypes.bool))
    return transposing.transpose(rows)


@operator("Compress", since=9)
def compress(node: NodeView, x: Tensor, condition: Tensor) -> Tensor:
    places = shaping.reshape(choosing.where(condition), [-1])
    if "axis" not in node.attributes:
        return indexing.gather(shaping.reshape(x, [-1]), places)
    return indexing.gather(x, places, axis=axis_of(node, x))


@operator("Unique", since=11)
def unique(node: NodeView, x: Tensor) -> Any:
    """Distinct elements or slices, where each is first, which each one is, and how often."""
    axis = int(node.get("axis")) if "axis" in node.attributes else None
    in_order = bool(node.get("sorted", 1))

    def find(data: Any) -> Any:
        values, first, which, counts = np.unique(data, True, True, True, axis=axis)
        which = np.reshape(which, -1)
        if not in_order:
            order = np.argsort(first, kind="stable")
            values = np.take(values, order, axis or 0)
            first, counts, which = first[order], counts[order], np.argsort(order)[which]
        return [values, *(np.asarray(each, np.int64) for each in (first, which, counts))]

    kinds = [x.dtype.base_dtype, dtypes.int64, dtypes.int64, dtypes.int64]
    return tuple(python_call.numpy_function(find, [x], kinds))


@operator("NonMaxSuppression", since=10)
def non_max_suppression(
    node: NodeView,
    boxes: Tensor,
    scores: Tensor,
    most: Any = None,
    iou: Any = None,
    score: Any = None,
) -> Tensor:
    """[selected, (batch, class, box)], each class of each image by itself."""
    given = [
        constant(np.array(default, kind)) if value is None else shaping.reshape(value, [])
        for value, default, kind in (
            (most, 0, np.int64),
            (iou, 0.0, np.float32),
            (score, -np.inf, np.float32),
        )
    ]
    is_center = bool(node.get("center_point_box", 0))

    def find(*values: Any) -> Any:
        return suppressed(*values, is_center=is_center)

    return python_call.numpy_function(find, [boxes, scores, *given], dtypes.int64)


@operator("ArrayFeatureExtractor", domain=ML)
def array_feature_extractor(node: NodeView, x: Tensor, indices: Tensor) -> Tensor:
    found = indexing.gather(x, shaping.reshape(indices, [-1]), axis=rank_of(node, x) - 1)
    return shaping.expand_dims(found, 0) if x.shape.rank == 1 else found


@operator("LabelEncoder", domain=ML)
def label_encoder(node: NodeView, x: Tensor) -> Tensor:
    """Keys replaced by values, of whatever types."""
    keys, values, default, held = _mapping(node)
    kind = held or _element_kind(values, default)
    known = dict(zip([_key(key) for key in keys], values, strict=True))
    rest = default if default is not None else _nothing(kind)

    def find(data: Any) -> Any:
        result = [known.get(_key(each), rest) for each in np.ravel(data).tolist()]
        return np.reshape(
            np.array(result, object if kind is dtypes.string else kind.as_numpy_dtype),
            np.shape(data),
        )

    result = python_call.numpy_function(find, [x], kind)
    result.set_shape(x.shape)
    return result


def _mapping(node: NodeView) -> tuple[list[Any], list[Any], Any, Any]:
    def first(prefix: str) -> Any:
        found = [node.attributes[n] for n in sorted(node.attributes) if n.startswith(prefix)]
        return found[0] if found else None

    keys, values, default = first("keys_"), first("values_"), first("default_")
    if keys is None or values is None:
        raise node.unsupported("it must have keys and values")
    kind = getattr(values, "dtype", None)
    held = dtypes.as_dtype(kind) if kind is not None and kind.kind in "iuf" else None
    if hasattr(default, "dtype"):
        default = np.ravel(default)[0]
    return _flat(keys), _flat(values), default, held


def _flat(values: Any) -> list[Any]:
    return np.ravel(np.asarray(values, object)).tolist()


def _key(value: Any) -> Any:
    if isinstance(value, bytes):
        return value.decode()
    return "nan" if isinstance(value, float) and np.isnan(value) else value


def _element_kind(values: list[Any], default: Any) -> Any:
    sample = values[0] if values else default
    if isinstance(sample, str | bytes):
        return dtypes.string
    return dtypes.int64 if isinstance(sample, int) else dtypes.float32


def _nothing(kind: Any) -> Any:
    if kind is dtypes.string:
        return "_Unused"
    return -1 if kind.is_integer else -0.0
