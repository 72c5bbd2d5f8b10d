"""Searches: extremes, top k, sorting, and bounds in sorted sequences."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, ClassVar

import numpy as np

from thalweg.graph import dtypes
from thalweg.graph.convert import convert_to_tensor
from thalweg.graph.dtypes import DType, as_dtype
from thalweg.graph.known import constant_value
from thalweg.graph.node import Node, Tensor
from thalweg.graph.op import Op
from thalweg.graph.scopes import name_scope
from thalweg.graph.shapes import Size, TensorShape, unknown_shape
from thalweg.ir import loop
from thalweg.ir.expr import Expr, call, select
from thalweg.ir.loop import IndexTuple, Operand, Scatter
from thalweg.ops.arrays import transposing
from thalweg.ops.core import choosing, filling, shaping
from thalweg.ops.math import compare
from thalweg.platform.arrays import Array
from thalweg.platform.docstrings import NAME, composed
from thalweg.platform.dtype_traits import bounds
from thalweg.public import public


class ArgExtreme(Op, abstract=True):
    """y = the first index along an axis at which x is extreme; NaN is ignored"""

    signature = (
        "input: T, dimension: I -> output: output_type; T: real, I: index, output_type: index"
    )
    not_differentiable = True
    function: ClassVar[Any]  # the NumPy search
    combine: ClassVar[str]  # the loop reduction
    output_type: DType = dtypes.int64

    def shape(self, input: Tensor, dimension: Tensor) -> TensorShape:
        axis, sizes = constant_value(dimension), input.shape.sizes
        dimension.shape.assert_has_rank(0)
        if sizes is None or axis is None:
            return unknown_shape(None if sizes is None else max(len(sizes) - 1, 0))
        place = _axis(int(axis), len(sizes))
        return TensorShape.of(sizes[:place] + sizes[place + 1 :])

    def numpy(self, input: Array, dimension: Array) -> Array:
        axis = _axis(int(dimension), np.ndim(input))
        if input.shape[axis] == 0:
            raise ValueError(f"Reduction axis {axis} is empty in shape {list(input.shape)}")
        found = type(self).function(self._numbers(input), axis=axis)
        return np.asarray(found).astype(self.output_type.as_numpy_dtype)

    def _numbers(self, input: Array) -> Array:
        """The input, with NaN replaced by the least extreme value."""
        if input.dtype.kind in "iu" or not np.isnan(input).any():
            return input
        least, greatest = bounds(input.dtype)
        return np.where(np.isnan(input), least if self.combine == "argmax" else greatest, input)

    def loop(self, at: IndexTuple, input: Operand, dimension: Operand) -> Expr:
        axis = _axis(int(dimension.constant()), input.rank)
        if input.shape[axis] == 0:
            raise ValueError(f"axis {axis} is empty: no element is the most extreme one")
        before, after = at.split(axis)

        def element(k: Expr) -> Expr:
            return input[(*before, k, *after)]

        found = loop.reduce(self.combine, [input.shape[axis]], element)
        return found.cast(self.output_type.as_numpy_dtype)


def _axis(axis: int, rank: int) -> int:
    if not -rank <= axis < rank:
        raise ValueError(f"Dimension ({axis}) must be in the range [{-rank}, {rank})")
    return axis % rank


class ArgMax(ArgExtreme):
    """y = the first index along an axis at which x is largest

    Example:
        >>> sess.run(tf.argmax([[1.0, 5.0, 2.0], [7.0, 0.0, 7.0]], axis=1))
        array([1, 0])
    """

    function = staticmethod(np.argmax)
    combine = "argmax"


class ArgMin(ArgExtreme):
    """y = the first index along an axis at which x is smallest

    Example:
        >>> sess.run(tf.argmin([[1.0, 5.0, 2.0], [7.0, 0.0, 7.0]], axis=1))
        array([0, 1])
    """

    function = staticmethod(np.argmin)
    combine = "argmin"


def _extreme(kind: type[ArgExtreme], *names: str) -> Callable[..., Tensor]:
    def function(
        input: Any,
        axis: Any = None,
        name: str | None = None,
        dimension: Any = None,
        output_type: Any = dtypes.int64,
    ) -> Tensor:
        if axis is not None and dimension is not None:
            raise ValueError("Cannot specify both 'axis' and 'dimension'")
        place = dimension if axis is None else axis
        return kind(output_type=as_dtype(output_type))(
            input, 0 if place is None else place, name=name
        )

    taken = {
        "input": "a tensor (numeric).",
        "axis": "the axis to search along; 0 if None, negative ones count from the last.",
        "name": NAME,
        "dimension": "the old name of `axis`.",
        "output_type": "int64 or int32.",
    }
    return _publish(function, kind, names, taken)


def _old_extreme(kind: type[ArgExtreme], *names: str) -> Callable[..., Tensor]:
    def function(
        input: Any, dimension: Any, output_type: Any = dtypes.int64, name: str | None = None
    ) -> Tensor:
        return kind(output_type=as_dtype(output_type))(input, dimension, name=name)

    taken = {
        "input": "a tensor (numeric).",
        "dimension": "the axis to search along.",
        "output_type": "int64 or int32.",
        "name": NAME,
    }
    return _publish(function, kind, names, taken)


def _publish(
    function: Callable[..., Any], kind: type[Op], names: tuple[str, ...], taken: dict[str, str]
) -> Callable[..., Any]:
    returned = "A tensor of indices, without the axis; of equal elements the first counts."
    function.__doc__ = composed(kind.__doc__, taken, returned)
    function.__name__ = function.__qualname__ = names[0]
    function.__module__ = kind.__module__
    return public(*names)(function)


argmax = _extreme(ArgMax, "argmax", "math.argmax")
argmin = _extreme(ArgMin, "argmin", "math.argmin")
arg_max = _old_extreme(ArgMax, "arg_max")
arg_min = _old_extreme(ArgMin, "arg_min")


class TopKV2(Op):
    """The k largest elements along the last axis and their indices; ties by lower index"""

    signature = "input: T, k: int32 -> values: T, indices: int32; T: real"
    host_only = True
    sorted: bool = True

    def shape(self, input: Tensor, k: Tensor) -> list[TensorShape]:
        k.shape.assert_has_rank(0)
        sizes, count = input.shape.with_rank_at_least(1).sizes, constant_value(k)
        if sizes is None:
            return [unknown_shape(), unknown_shape()]
        known: Size = None if count is None else int(count)
        _check_count(known, sizes[-1])
        shape = TensorShape.of((*sizes[:-1], known))
        return [shape, shape]

    def numpy(self, input: Array, k: Array) -> tuple[Array, Array]:
        _check_count(int(k), input.shape[-1])
        # The last of equal elements in reversed order is the first in the original order.
        backwards = np.argsort(input[..., ::-1], axis=-1, kind="stable")[..., ::-1]
        places = (input.shape[-1] - 1 - backwards)[..., : int(k)]
        if not self.sorted:
            places = _ascending(input, places)
        return np.take_along_axis(input, places, -1), places.astype(np.int32)

    def gradient(self, node: Node, dy: Tensor, _: Tensor) -> list[Tensor | None]:
        shape = shaping.shape(node.inputs[0])
        return [PutAlongLast()(dy, node.outputs[1], shape), None]


def _check_count(k: Size, size: Size) -> None:
    if k is not None and k < 0:
        raise ValueError(f"Need k >= 0, got {k}")
    if k is not None and size is not None and size < k:
        raise ValueError(f"input must have last dimension >= k = {k} but is {size}")


def _ascending(x: Array, places: Array) -> Array:
    in_place = np.sort(places, axis=-1)
    order = np.argsort(np.take_along_axis(x, in_place, -1), axis=-1, kind="stable")
    return np.take_along_axis(in_place, order, -1)


@public("nn.top_k", "math.top_k")
def top_k(input: Any, k: Any = 1, sorted: bool = True, name: str | None = None) -> Any:
    """The largest elements along the last axis.

    Args:
        input: a real tensor of rank 1 or more.
        k: the number of elements, at most the size of the last axis.
        sorted: whether they are in descending order.
        name: the name of the node.

    Returns:
        A named tuple (values, indices) of tensors [..., k].

    Example:
        >>> values, indices = tf.nn.top_k([1.0, 9.0, 5.0], k=2)
        >>> sess.run([values, indices])
        [array([9., 5.], dtype=float32), array([1, 2], dtype=int32)]
    """
    return TopKV2(sorted=sorted)(input, k, name=name)


class PutAlongLast(Op):
    """y[…, i] = the sum of values[…, k] over the k with indices[…, k] = i"""

    private = True
    signature = "values: T, indices: I, shape: S -> output: T; T: numeric, I: index, S: index"

    def shape(self, values: Tensor, indices: Tensor, shape: Tensor) -> TensorShape:
        return shaping.known_shape(shape)

    def numpy(self, values: Array, indices: Array, shape: Array) -> Array:
        output = np.zeros(tuple(shape.tolist()), values.dtype)
        rest: tuple[Array, ...] = np.indices(np.shape(indices), sparse=True)[:-1]
        np.add.at(output, (*rest, indices), values)
        return output

    def loop(self, at: IndexTuple, values: Operand, indices: Operand, shape: Operand) -> Scatter:
        return loop.scatter("sum", indices.shape, lambda *k: ((*k[:-1], indices[k]), values[k]), 0)

    def gradient(self, node: Node, dy: Tensor) -> list[Tensor | None]:
        return [TakeAlongLast()(dy, node.inputs[1]), None, None]


class TakeAlongLast(Op):
    """y[…, k] = x[…, indices[…, k]]"""

    private = True
    signature = "x: T, indices: I -> output: T; T: numeric, I: index"

    def shape(self, x: Tensor, indices: Tensor) -> TensorShape:
        return indices.shape

    def numpy(self, x: Array, indices: Array) -> Array:
        return np.take_along_axis(x, indices, -1)

    def loop(self, at: IndexTuple, x: Operand, indices: Operand) -> Expr:
        return x[(*at[:-1], indices[at])]

    def gradient(self, node: Node, dy: Tensor) -> list[Tensor | None]:
        x, indices = node.inputs
        return [PutAlongLast()(dy, indices, shaping.shape(x)), None]


class InTopKV2(Op):
    """y[b] = whether fewer than k classes are predicted above the target of row b

    It is false if a prediction is not finite or the target is not a class.
    """

    signature = "predictions: float32, targets: T, k: T -> precision: bool; T: index"
    not_differentiable = True

    def shape(self, predictions: Tensor, targets: Tensor, k: Tensor) -> TensorShape:
        k.shape.assert_has_rank(0)
        rows = predictions.shape.with_rank(2)[0]
        return TensorShape.of((targets.shape.with_rank(1)[0].merge_with(rows).value,))

    def numpy(self, predictions: Array, targets: Array, k: Array) -> Array:
        is_class = (targets >= 0) & (targets < predictions.shape[1])
        if not predictions.size:
            return np.zeros_like(is_class)
        scores = np.take_along_axis(predictions, np.where(is_class, targets, 0)[:, None], 1)
        above = np.count_nonzero(predictions > scores, axis=1)
        return is_class & np.isfinite(predictions).all(1) & (above < k)

    def loop(self, at: IndexTuple, predictions: Operand, targets: Operand, k: Operand) -> Expr:
        (row,), classes = at, [predictions.shape[1]]
        target = targets[row]
        is_class = (target >= 0) & (target < classes[0])
        score = select(is_class, predictions[row, target], 0)

        def is_above(column: Expr) -> Expr:
            return (predictions[row, column] > score).cast(np.int64)

        def is_finite(column: Expr) -> Expr:
            return predictions[row, column].is_finite()

        above, finite = (
            loop.reduce("sum", classes, is_above),
            loop.reduce("all", classes, is_finite),
        )
        return is_class & finite & (above < k[()])


@public("nn.in_top_k", "math.in_top_k")
def in_top_k(predictions: Any, targets: Any, k: Any, name: str | None = None) -> Tensor:
    """Whether the target class of each row is among its `k` highest predictions.

    Args:
        predictions: float32 [batch, classes].
        targets: class numbers [batch], int32 or int64.
        k: how many predictions are considered, and all ties.
        name: the name of the node.

    Returns:
        A bool vector [batch].

    Example:
        >>> sess.run(tf.nn.in_top_k([[0.1, 0.7, 0.2], [0.5, 0.2, 0.3]], [2, 1], k=2))
        array([ True, False])
    """
    return InTopKV2()(predictions, targets, k, name=name or "InTopK")


@public("sort")
def sort(
    values: Any, axis: Any = -1, direction: str = "ASCENDING", name: str | None = None
) -> Tensor:
    """Values sorted along an axis.

    Args:
        values: a real tensor.
        axis: the axis to sort along.
        direction: "ASCENDING" or "DESCENDING".
        name: the name of the nodes.

    Returns:
        A tensor of the same shape and dtype.

    Example:
        >>> sess.run(tf.sort([3.0, 1.0, 2.0], direction="DESCENDING"))
        array([3., 2., 1.], dtype=float32)
    """
    with name_scope(name, "sort", [values]):
        return _in_order(values, axis, direction)[0]


@public("argsort")
def argsort(
    values: Any,
    axis: Any = -1,
    direction: str = "ASCENDING",
    stable: bool = False,
    name: str | None = None,
) -> Tensor:
    """The indices that sort values; the sort is always stable.

    Args:
        values: a real tensor.
        axis: the axis to sort along.
        direction: "ASCENDING" or "DESCENDING".
        stable: taken for old programs.
        name: the name of the nodes.

    Returns:
        An int32 tensor of the shape of `values`.

    Example:
        >>> sess.run(tf.argsort([3.0, 1.0, 2.0]))
        array([1, 2, 0], dtype=int32)
    """
    with name_scope(name, "argsort", [values]):
        return _in_order(values, axis, direction)[1]


def _in_order(values: Any, axis: Any, direction: str) -> tuple[Tensor, Tensor]:
    """The sorted values and their indices, by a top k of all along the last axis."""
    if direction not in ("ASCENDING", "DESCENDING"):
        raise ValueError(f"Unknown direction {direction!r}: ASCENDING or DESCENDING")
    place = constant_value(convert_to_tensor(axis))
    if place is None:
        raise ValueError("axis must be known when the graph is built")
    x = convert_to_tensor(values, name="values")
    order = _exchange_with_last(x, int(place))
    lines = x if order is None else transposing.transpose(x, order)
    flip = direction == "ASCENDING"
    found = top_k(_mirrored(lines) if flip else lines, shaping.shape(lines)[-1])
    ordered, indices = (_mirrored(found[0]) if flip else found[0]), found[1]
    if order is None:
        return ordered, indices
    return transposing.transpose(ordered, order), transposing.transpose(indices, order)


def _mirrored(x: Tensor) -> Tensor:
    """An order-reversing map that is its own inverse and never overflows."""
    if x.dtype.is_floating:
        return -x
    return (x.dtype.max if x.dtype.is_unsigned else -1) - x


def _exchange_with_last(x: Tensor, axis: int) -> Any:
    """The axes with that one and the last one exchanged; None if it is the last."""
    rank = x.shape.rank
    if axis == -1 or rank == axis + 1:
        return None
    if rank is None:
        count = shaping.rank(x)
        place, order = (axis if axis >= 0 else count + axis), filling.range(count)
        last = choosing.where_v2(compare.equal(order, count - 1), place, order)
        return choosing.where_v2(compare.equal(order, place), count - 1, last)
    place = _axis(axis, rank)
    order = list(range(rank))
    order[place], order[-1] = order[-1], order[place]
    return order


class Bound(Op, abstract=True):
    """y[b, i] = the insertion index of values[b, i] in the sorted row b"""

    signature = "sorted_inputs: T, values: T -> output: out_type; T: real, out_type: index"
    not_differentiable = True
    side: ClassVar[Any]
    passed: ClassVar[str]  # the comparison of an element with a value that is inserted after it
    out_type: DType = dtypes.int32

    def shape(self, sorted_inputs: Tensor, values: Tensor) -> TensorShape:
        rows = sorted_inputs.shape.with_rank(2)[0]
        wanted = values.shape.with_rank(2)
        return TensorShape.of((wanted[0].merge_with(rows).value, wanted[1].value))

    def numpy(self, sorted_inputs: Array, values: Array) -> Array:
        result = np.empty(values.shape, self.out_type.as_numpy_dtype)
        for row, (line, wanted) in enumerate(zip(sorted_inputs, values, strict=True)):
            result[row] = np.searchsorted(line, wanted, side=self.side)
        return result

    def loop(self, at: IndexTuple, sorted_inputs: Operand, values: Operand) -> Expr:
        """The number of elements that the value is inserted after, compared with all."""
        kind = self.out_type.as_numpy_dtype

        def comes_after(k: Expr) -> Expr:
            return call(self.passed, sorted_inputs[at[0], k], values[at]).cast(kind)

        return loop.reduce("sum", [sorted_inputs.shape[1]], comes_after)


class LowerBound(Bound):
    """y[b, i] = the first index in the sorted row b whose element is not below values[b, i]"""

    side, passed = "left", "lt"


class UpperBound(Bound):
    """y[b, i] = the first index in the sorted row b whose element is above values[b, i]"""

    side, passed = "right", "le"


@public("searchsorted")
def searchsorted(
    sorted_sequence: Any,
    values: Any,
    side: str = "left",
    out_type: Any = dtypes.int32,
    name: str | None = None,
) -> Tensor:
    """The insertion indices of `values` in the innermost sorted rows of `sorted_sequence`."""
    if side not in ("left", "right"):
        raise ValueError(f"side must be either 'right' or 'left'.  Saw: {side}.")
    kind = LowerBound if side == "left" else UpperBound
    with name_scope(name, "searchsorted", [sorted_sequence, values]):
        lines, wanted = convert_to_tensor(sorted_sequence), convert_to_tensor(values)
        found = kind(out_type=as_dtype(out_type))(_as_rows(lines), _as_rows(wanted))
        return shaping.reshape(found, shaping.shape(wanted))


def _as_rows(x: Tensor) -> Tensor:
    return shaping.reshape(x, [-1, shaping.shape(x)[-1]])
