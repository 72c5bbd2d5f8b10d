"""Unique values, set differences, counts and histograms."""

from __future__ import annotations

from typing import Any

import numpy as np

from thalweg.graph import dtypes
from thalweg.graph.convert import convert_to_tensor
from thalweg.graph.dtypes import DType, as_dtype
from thalweg.graph.known import constant_value
from thalweg.graph.node import Tensor
from thalweg.graph.op import Op
from thalweg.graph.scopes import name_scope
from thalweg.graph.shapes import TensorShape, vector
from thalweg.ir import loop
from thalweg.ir.expr import Expr, call
from thalweg.ir.loop import IndexTuple, Operand, RuntimeCheck, Scatter
from thalweg.ops.core import casting, shaping
from thalweg.ops.math import arithmetic, reduce
from thalweg.platform.arrays import Array
from thalweg.public import public


def _first_places(x: Array) -> tuple[Array, Array]:
    """The first position of each distinct value, and the index of each element's value."""
    if x.dtype == object:
        return _first_places_of_strings(x)
    _, first, inverse = np.unique(x, return_index=True, return_inverse=True)
    order = np.argsort(first)  # np.unique is in order of values; this is in order of appearance
    number = np.empty_like(order)
    number[order] = np.arange(len(order))
    return first[order], number[inverse.reshape(-1)]


def _first_places_of_strings(x: Array) -> tuple[Array, Array]:
    numbers: dict[Any, int] = {}
    places: list[int] = []
    for position, value in enumerate(x.tolist()):
        if numbers.setdefault(value, len(numbers)) == len(places):
            places.append(position)
    index = [numbers[value] for value in x.tolist()]
    return np.array(places, np.int64), np.array(index, np.int64)


class Unique(Op):
    """The distinct values of a vector in order of appearance, and each element's index in them"""

    signature = "x: T -> y: T, idx: out_idx; out_idx: index"
    host_only = True
    any_device = True  # optimizers place it on the variable's device
    inexpensive = True
    not_differentiable = True
    out_idx: DType = dtypes.int32

    def shape(self, x: Tensor) -> list[TensorShape]:
        return [vector(None), x.shape.with_rank(1)]

    def numpy(self, x: Array) -> tuple[Array, Array]:
        _check_vector("unique", x)
        first, index = _first_places(x)
        return x[first], index.astype(self.out_idx.as_numpy_dtype)


def _check_vector(what: str, x: Array) -> None:
    if x.ndim != 1:
        raise ValueError(f"{what} expects a 1D vector, not shape {list(x.shape)}.")


@public("unique")
def unique(x: Any, out_idx: Any = dtypes.int32, name: str | None = None) -> Any:
    """The distinct values of a vector, in order of appearance.

    Args:
        x: a vector.
        out_idx: the dtype of the indices, int32 or int64.
        name: the name of the node.

    Returns:
        A named tuple (y, idx) with x = y[idx].

    Example:
        >>> y, idx = tf.unique([5, 7, 5])
        >>> sess.run([y, idx])
        [array([5, 7], dtype=int32), array([0, 1, 0], dtype=int32)]
    """
    return Unique(out_idx=as_dtype(out_idx))(x, name=name)


class UniqueWithCounts(Op):
    """The distinct values of a vector, each element's index in them, and their counts"""

    signature = "x: T -> y: T, idx: out_idx, count: out_idx; out_idx: index"
    host_only = True
    not_differentiable = True
    out_idx: DType = dtypes.int32

    def shape(self, x: Tensor) -> list[TensorShape]:
        return [vector(None), x.shape.with_rank(1), vector(None)]

    def numpy(self, x: Array) -> tuple[Array, Array, Array]:
        _check_vector("unique", x)
        first, index = _first_places(x)
        kind = self.out_idx.as_numpy_dtype
        counts = np.bincount(index, minlength=len(first))
        return x[first], index.astype(kind), counts.astype(kind)


@public("unique_with_counts")
def unique_with_counts(x: Any, out_idx: Any = dtypes.int32, name: str | None = None) -> Any:
    """The distinct values of a vector, in order of appearance, and their counts.

    Args:
        x: a vector.
        out_idx: the dtype of indices and counts, int32 or int64.
        name: the name of the node.

    Returns:
        A named tuple (y, idx, count) with x = y[idx].

    Example:
        >>> y, idx, count = tf.unique_with_counts([5, 7, 5])
        >>> sess.run(count)
        array([2, 1], dtype=int32)
    """
    return UniqueWithCounts(out_idx=as_dtype(out_idx))(x, name=name)


class ListDiff(Op):
    """The elements of the vector x that are not in y, in order, and their indices in x"""

    signature = "x: T, y: T -> out: T, idx: out_idx; out_idx: index"
    host_only = True
    not_differentiable = True
    out_idx: DType = dtypes.int32

    def shape(self, x: Tensor, y: Tensor) -> list[TensorShape]:
        x.shape.assert_has_rank(1)
        y.shape.assert_has_rank(1)
        return [vector(None), vector(None)]

    def numpy(self, x: Array, y: Array) -> tuple[Array, Array]:
        _check_vector("x", x)
        _check_vector("y", y)
        if x.dtype == object:
            without = set(y.tolist())
            kept = np.array([value not in without for value in x.tolist()], bool)
        else:
            kept = ~np.isin(x, y)
        places = np.flatnonzero(kept)
        return x[places], places.astype(self.out_idx.as_numpy_dtype)


@public("setdiff1d")
def setdiff1d(x: Any, y: Any, index_dtype: Any = dtypes.int32, name: str | None = None) -> Any:
    """The elements of one vector that are not in another.

    Args:
        x, y: vectors of one dtype.
        index_dtype: the dtype of the indices, int32 or int64.
        name: the name of the node.

    Returns:
        A named tuple (out, idx) with out = x[idx].

    Example:
        >>> out, idx = tf.setdiff1d([1, 2, 3, 4], [2, 4])
        >>> sess.run(out)
        array([1, 3], dtype=int32)
    """
    return ListDiff(out_idx=as_dtype(index_dtype))(x, y, name=name)


@public("listdiff", "list_diff")
def listdiff(x: Any, y: Any, out_idx: Any = None, name: str | None = None) -> Any:
    """The old name of `setdiff1d`."""
    return setdiff1d(x, y, dtypes.int32 if out_idx is None else out_idx, name)


class Bincount(Op):
    """bins[i] = the number (or the sum of the weights) of the elements of arr equal to i < size"""

    signature = "arr: int32, size: int32, weights: T -> bins: T; T: real"
    not_differentiable = True

    def shape(self, arr: Tensor, size: Tensor, weights: Tensor) -> TensorShape:
        size.shape.assert_has_rank(0)
        count = constant_value(size)
        return vector(None if count is None else int(count))

    def numpy(self, arr: Array, size: Array, weights: Array) -> Array:
        if np.any(np.less(arr, 0)):
            raise ValueError("Input arr must be non-negative!")
        kept = np.less(arr, size)
        bins = np.zeros(int(size), weights.dtype)
        amounts = np.asarray(weights)[kept] if np.size(weights) else weights.dtype.type(1)
        np.add.at(bins, np.asarray(arr)[kept], amounts)
        return bins

    def loop(self, at: IndexTuple, arr: Operand, size: Operand, weights: Operand) -> Scatter:
        if weights.size and weights.shape != arr.shape:
            raise ValueError(f"weights of shape {weights.shape} for arr of shape {arr.shape}")

        def element(*k: Expr) -> tuple[tuple[Expr], Expr]:
            return (arr[k],), weights[k] if weights.size else call("cast", 1, weights.dtype)

        return loop.scatter("sum", arr.shape, element, 0)


@public("bincount", "math.bincount")
def bincount(
    arr: Any,
    weights: Any = None,
    minlength: Any = None,
    maxlength: Any = None,
    dtype: Any = dtypes.int32,
    name: str | None = None,
) -> Tensor:
    """The count of each integer in `arr`, or the sum of its weights."""
    with name_scope(name, "bincount", [arr]):
        values = convert_to_tensor(arr, name="arr", dtype=dtypes.int32)
        size = casting.cast(shaping.size(values) > 0, dtypes.int32)
        size = size * (reduce.reduce_max(values) + 1)
        if minlength is not None:
            size = arithmetic.maximum(convert_to_tensor(minlength, dtypes.int32), size)
        if maxlength is not None:
            size = arithmetic.minimum(convert_to_tensor(maxlength, dtypes.int32), size)
        amounts = np.zeros(0, as_dtype(dtype).as_numpy_dtype) if weights is None else weights
        return Bincount()(values, size, amounts)


class HistogramFixedWidth(Op):
    """y[i] = the number of values in the i-th of nbins equal bins of a range, ends included"""

    signature = "values: T, value_range: T, nbins: int32 -> out: dtype; T: real, dtype: index"
    not_differentiable = True
    dtype: DType = dtypes.int32

    def shape(self, values: Tensor, value_range: Tensor, nbins: Tensor) -> TensorShape:
        value_range.shape.assert_is_compatible_with([2])
        nbins.shape.assert_has_rank(0)
        count = constant_value(nbins)
        return vector(None if count is None else int(count))

    def numpy(self, values: Array, value_range: Array, nbins: Array) -> Array:
        bins = fixed_width_bins(np.ravel(values), value_range, int(nbins))
        return np.bincount(bins, minlength=int(nbins)).astype(self.dtype.as_numpy_dtype)

    def loop(
        self, at: IndexTuple, values: Operand, value_range: Operand, nbins: Operand
    ) -> Scatter:
        one = call("cast", 1, self.dtype.as_numpy_dtype)
        return loop.scatter(
            "sum", values.shape, lambda *k: ((_bin(values[k], value_range, nbins),), one), 0
        )

    def requires(self, values: Operand, value_range: Operand, nbins: Operand) -> list[RuntimeCheck]:
        return _are_bins(value_range, nbins)


def fixed_width_bins(values: Array, value_range: Array, nbins: int) -> Array:
    """The bin, of nbins equal ones, of each value; the first or last if it is out of range."""
    low, high = (float(bound) for bound in value_range)
    if nbins <= 0:
        raise ValueError(f"nbins should be a positive number, but got '{nbins}'")
    if not low < high:
        raise ValueError(
            f"value_range should satisfy value_range[0] < value_range[1], but got '[{low}, {high}]'"
        )
    scaled = np.floor((values.astype(np.float64) - low) / ((high - low) / nbins))
    return np.clip(scaled, 0, nbins - 1).astype(np.int64)


def _are_bins(value_range: Operand, nbins: Operand) -> list[RuntimeCheck]:
    return [RuntimeCheck((), (value_range[0] < value_range[1]) & (nbins[()] > 0))]


def _bin(value: Expr, value_range: Operand, nbins: Operand) -> Expr:
    """`fixed_width_bins` for one value."""
    if value_range.shape != (2,):
        raise ValueError(f"value_range has shape {value_range.shape}, not two ends")
    low, high = (value_range[i].cast(np.float64) for i in range(2))
    count = nbins[()].cast(np.float64)
    scaled = ((value.cast(np.float64) - low) / ((high - low) / count)).floor()
    return scaled.max(0.0).min(count - 1.0).cast(np.int64)


@public("histogram_fixed_width")
def histogram_fixed_width(
    values: Any,
    value_range: Any,
    nbins: Any = 100,
    dtype: Any = dtypes.int32,
    name: str | None = None,
) -> Tensor:
    """The counts of values in `nbins` equal bins of a range; outliers are in the end bins."""
    with name_scope(name, "histogram_fixed_width", [values, value_range, nbins]) as scope:
        op = HistogramFixedWidth(dtype=as_dtype(dtype))
        return op(convert_to_tensor(values), value_range, nbins, name=scope)


class HistogramFixedWidthBins(Op):
    """y = the bin, of nbins equal bins of a range, of each value"""

    private = True
    signature = "values: T, value_range: T, nbins: int32 -> bins: dtype; T: real, dtype: index"
    not_differentiable = True
    dtype: DType = dtypes.int32

    def shape(self, values: Tensor, value_range: Tensor, nbins: Tensor) -> TensorShape:
        return values.shape

    def numpy(self, values: Array, value_range: Array, nbins: Array) -> Array:
        bins = fixed_width_bins(np.asarray(values), value_range, int(nbins))
        return bins.astype(self.dtype.as_numpy_dtype)

    def loop(self, at: IndexTuple, values: Operand, value_range: Operand, nbins: Operand) -> Expr:
        return _bin(values[at], value_range, nbins).cast(self.dtype.as_numpy_dtype)

    def requires(self, values: Operand, value_range: Operand, nbins: Operand) -> list[RuntimeCheck]:
        return _are_bins(value_range, nbins)


@public("histogram_fixed_width_bins")
def histogram_fixed_width_bins(
    values: Any,
    value_range: Any,
    nbins: Any = 100,
    dtype: Any = dtypes.int32,
    name: str | None = None,
) -> Tensor:
    """The bin, of `nbins` equal bins of a range, of each value; outliers are in the end bins."""
    with name_scope(name, "histogram_fixed_width_bins", [values, value_range, nbins]) as scope:
        op = HistogramFixedWidthBins(dtype=as_dtype(dtype))
        return op(convert_to_tensor(values), value_range, nbins, name=scope)
