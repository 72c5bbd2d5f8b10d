"""One-hot vectors and Boolean masks."""

from __future__ import annotations

from typing import Any

import numpy as np

from thalweg.graph import dtypes
from thalweg.graph.convert import convert_to_tensor
from thalweg.graph.dtypes import DType, as_dtype
from thalweg.graph.known import constant_value
from thalweg.graph.node import Node, Tensor
from thalweg.graph.op import Op
from thalweg.graph.scopes import name_scope
from thalweg.graph.shapes import TensorShape, unknown_shape
from thalweg.ir.expr import Expr, select
from thalweg.ir.loop import IndexTuple, Operand
from thalweg.ops.arrays import indexing, joining
from thalweg.ops.core import choosing, filling, shaping
from thalweg.ops.math import compare, reduce
from thalweg.platform.arrays import Array
from thalweg.public import public


class OneHot(Op):
    """y[…, j, …] = on_value if indices[…] = j else off_value"""

    signature = (
        "indices: TI, depth: int32, on_value: T, off_value: T -> output: T; TI: uint8|int32|int64"
    )
    axis: int = -1

    def shape(
        self, indices: Tensor, depth: Tensor, on_value: Tensor, off_value: Tensor
    ) -> TensorShape:
        for scalar in (depth, on_value, off_value):
            scalar.shape.assert_has_rank(0)
        sizes = indices.shape.sizes
        if sizes is None:
            return unknown_shape()
        count, place = constant_value(depth), self._place(len(sizes))
        if count is not None and count < 0:
            raise ValueError(f"depth must be non-negative, got: {count}")
        return TensorShape.of(
            (*sizes[:place], None if count is None else int(count), *sizes[place:])
        )

    def _place(self, rank: int) -> int:
        if not -1 <= self.axis <= rank:
            raise ValueError(
                f"Expected axis to be -1 or between [0, {rank}]. But received: {self.axis}"
            )
        return rank if self.axis == -1 else self.axis

    def numpy(self, indices: Array, depth: Array, on_value: Array, off_value: Array) -> Array:
        if depth < 0:
            raise ValueError(f"depth must be non-negative, got: {depth}")
        place = self._place(np.ndim(indices))
        rank = np.ndim(indices) + 1
        marked = np.expand_dims(indices, place) == indexing.aranged(int(depth), place, rank)
        return np.where(marked, on_value, off_value).astype(np.asarray(on_value).dtype)

    def loop(
        self,
        at: IndexTuple,
        indices: Operand,
        depth: Operand,
        on_value: Operand,
        off_value: Operand,
    ) -> Expr:
        place = self._place(indices.rank)
        marked = indices[(*at[:place], *at[place + 1 :])].eq(at[place])
        return select(marked, on_value[()], off_value[()])

    def gradient(self, node: Node, dy: Tensor) -> list[Any]:
        _, depth, on_value, off_value = node.inputs
        ones = OneHot(axis=self.axis)(
            node.inputs[0], depth, filling.ones_like(on_value), filling.zeros_like(off_value)
        )
        return [None, None, reduce.reduce_sum(dy * ones), reduce.reduce_sum(dy * (1 - ones))]


@public("one_hot")
def one_hot(
    indices: Any,
    depth: Any,
    on_value: Any = None,
    off_value: Any = None,
    axis: int | None = None,
    dtype: Any = None,
    name: str | None = None,
) -> Tensor:
    """One-hot vectors of `depth` elements: one at an index and zero elsewhere.

    Args:
        indices: integers of any shape; those outside [0, depth) give vectors without a one.
        depth: the number of elements.
        on_value: the value at the index; 1 if None.
        off_value: the value elsewhere; 0 if None.
        axis: the position of the new axis in the result; the last if None.
        dtype: the dtype; by default that of the given values, else float32.
        name: the name of the node.

    Returns:
        A tensor with one more axis than `indices`, of size `depth`.

    Example:
        >>> sess.run(tf.one_hot([0, 2], depth=3))
        array([[1., 0., 0.],
               [0., 0., 1.]], dtype=float32)
    """
    with name_scope(name, "one_hot", [indices, depth, on_value, off_value]) as scope:
        kind = None if dtype is None else as_dtype(dtype)
        on, off = _marks(on_value, off_value, kind)
        return OneHot(axis=-1 if axis is None else axis)(indices, depth, on, off, name=scope)


def _marks(on_value: Any, off_value: Any, kind: DType | None) -> tuple[Tensor, Tensor]:
    """The two values as tensors of one dtype: the given one, theirs, or float32."""
    on, off = _mark(on_value, kind), _mark(off_value, kind)
    for name, tensor in (("on_value", on), ("off_value", off)):
        if tensor is None:
            continue
        kind = tensor.dtype.base_dtype if kind is None else kind
        if tensor.dtype.base_dtype is not kind:
            raise TypeError(f"dtype {tensor.dtype.name} of {name} does not match {kind.name}")
    kind = kind or dtypes.float32
    if kind is dtypes.string and (on is None or off is None):
        raise TypeError("on_value and off_value must both be given for dtype string")
    return (
        filling.ones([], kind, name="on_value") if on is None else on,
        filling.zeros([], kind, name="off_value") if off is None else off,
    )


def _mark(value: Any, kind: DType | None) -> Tensor | None:
    if value is None:
        return None
    has_dtype = hasattr(value, "dtype")  # then it must match
    return convert_to_tensor(value, preferred_dtype=None if has_dtype else kind)


@public("boolean_mask")
def boolean_mask(tensor: Any, mask: Any, name: str = "boolean_mask", axis: Any = None) -> Tensor:
    """The slices of a tensor at which a mask is True.

    Args:
        tensor: any tensor.
        mask: a bool tensor of a static rank, of the shape of some axes of `tensor`; of numbers, all
            but 0 are true.
        name: the name of the nodes.
        axis: the first of those axes; 0 if None.

    Returns:
        `tensor` with one axis, of unknown size, in place of those of the mask.

    Example:
        >>> sess.run(tf.boolean_mask([1, 2, 3], [True, False, True]))
        array([1, 3], dtype=int32)
    """
    with name_scope(name, "boolean_mask", [tensor, mask]):
        values = convert_to_tensor(tensor, name="tensor")
        marks = _as_bools(mask)
        start = 0 if axis is None else _static_axis(axis, values)
        rank = marks.shape.rank
        if rank == 0:
            raise ValueError("mask cannot be scalar.")
        if rank is None:
            raise ValueError(
                "Number of mask dimensions must be specified, even if some dimensions are None. "
                "E.g. shape=[None] is ok, but shape=None is not."
            )
        values.shape[start : start + rank].assert_is_compatible_with(marks.shape)
        flat = shaping.reshape(values, _merged_shape(values, start, rank))
        known = values.shape.sizes
        if known is not None:
            part = TensorShape.of(known[start : start + rank]).num_elements()
            flat.set_shape((*known[:start], part, *known[start + rank :]))
        where = choosing.where(shaping.reshape(marks, [-1]))
        return indexing.gather(flat, shaping.squeeze(where, axis=[1]), axis=start)


def _as_bools(mask: Any) -> Tensor:
    """A mask as bools; numbers other than 0 are true."""
    marks = convert_to_tensor(mask, name="mask")
    if marks.dtype.base_dtype is dtypes.bool:
        return marks
    if marks.dtype.base_dtype is dtypes.string:
        raise TypeError("mask must be bools, or numbers, not strings")
    return compare.not_equal(marks, filling.zeros_like(marks))


def _static_axis(axis: Any, values: Tensor) -> int:
    place = constant_value(convert_to_tensor(axis))
    if place is None:
        raise ValueError("boolean_mask needs an axis that is known when the graph is built")
    if place >= 0:
        return int(place)
    if values.shape.rank is None:
        raise ValueError(f"axis {place} of a tensor of unknown rank cannot be counted from its end")
    return shaping.axis_within(int(place), values.shape.rank)


def _merged_shape(values: Tensor, start: int, rank: int) -> Tensor:
    """The shape of a tensor with `rank` axes from `start` on merged."""
    sizes = shaping.shape(values)
    merged = reduce.reduce_prod(sizes[start : start + rank], [0])
    return joining.concat([sizes[:start], [merged], sizes[start + rank :]], 0)
