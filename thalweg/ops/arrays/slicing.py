"""Slices: strided ones, `tf.slice`, and assignment to slices of variables.

A strided slice is specified by three integer vectors and five bit masks, one bit per entry. This
module converts the specification to a NumPy index, and checks the rules that differ from NumPy's.
"""

from __future__ import annotations

import builtins
import itertools
from collections.abc import Iterator, Sequence
from types import EllipsisType
from typing import Any, NamedTuple, cast

import numpy as np

from thalweg import errors
from thalweg.graph.convert import convert_to_tensor
from thalweg.graph.known import constant_elements, constant_value_as_shape
from thalweg.graph.likes import HoldsTensor
from thalweg.graph.node import Node, Tensor
from thalweg.graph.op import Op
from thalweg.graph.shapes import TensorShape, unknown_shape
from thalweg.ir.expr import Expr, call, select
from thalweg.ir.loop import IndexTuple, Operand, RuntimeCheck
from thalweg.ops.core import filling, shaping
from thalweg.ops.core.context import Context, VariableCell
from thalweg.platform.arrays import Array
from thalweg.public import public, publish_value

Size = int | None
Bounds = Sequence[Size]  # begins, ends or strides; None if known only at run time

newaxis = None
publish_value("newaxis", newaxis)

_UNKNOWN: Any = object()  # a bound that is known only at run time, where None means "from the end"


class Strided(Op, abstract=True):
    """The base of strided ops: the masks, and the index that they specify."""

    begin_mask: int = 0
    end_mask: int = 0
    ellipsis_mask: int = 0
    new_axis_mask: int = 0
    shrink_axis_mask: int = 0

    def index(self, sizes: Sequence[Size], begin: Bounds, end: Bounds, strides: Bounds) -> Any:
        """The NumPy index of a slice of a tensor of these sizes, one entry per axis."""
        entries = _without_ellipsis([*self._entries(begin, end, strides)], len(sizes))
        left = iter(enumerate(sizes))
        for entry in entries:
            if entry is not newaxis:
                _check_entry(entry, *next(left))
        # With the ellipsis, a full index returns an array instead of the element.
        return (*entries, Ellipsis)

    def _entries(self, begin: Bounds, end: Bounds, strides: Bounds) -> Iterator[Any]:
        if not len(begin) == len(end) == len(strides):
            raise ValueError(
                "Expected begin, end, and strides to be 1D equal size tensors, but they have "
                f"{len(begin)}, {len(end)} and {len(strides)} elements"
            )
        for index, (first, last, stride) in enumerate(zip(begin, end, strides, strict=True)):
            bit = 1 << index
            if self.ellipsis_mask & bit:
                yield Ellipsis
            elif self.new_axis_mask & bit:
                yield newaxis
            elif self.shrink_axis_mask & bit:
                yield _position(first, stride)
            else:
                yield _range(
                    None if self.begin_mask & bit else _bound(first),
                    None if self.end_mask & bit else _bound(last),
                    _bound(stride),
                    index,
                )

    def array_index(self, sizes: Sequence[int], begin: Any, end: Any, strides: Any) -> Any:
        """The NumPy index from the inputs of a kernel."""
        return self.index(sizes, begin.tolist(), end.tolist(), strides.tolist())

    def cuts(self, sizes: Sequence[int], begin: Operand, strides: Operand) -> Iterator[_Cut | None]:
        """The cut of each axis, in order; None for each new axis."""
        steps: list[int] = strides.constant().tolist()
        # The end of a slice is implied by its shape.
        *entries, _ = self.index(sizes, _loop_bounds(begin), [None] * len(steps), steps)
        left = iter(sizes)
        for entry in entries:
            if entry is newaxis:
                yield None
            elif isinstance(entry, builtins.slice):
                cut = cast("builtins.slice[Any, Any, int]", entry)
                yield _Cut(_first(cut.start, cut.step, next(left)), cut.step)
            else:
                yield _Cut(_first(entry, 1, next(left)), None)

    def written(
        self, at: IndexTuple, begin: Operand, strides: Operand, value: Operand, otherwise: Any
    ) -> Expr:
        """The element at an index of a tensor with a slice replaced by `value`."""
        left = iter(at)
        indices: list[Any] = []
        conditions: list[Expr] = []
        for cut in self.cuts(at.shape, begin, strides):
            if cut is None:
                indices.append(0)
                continue
            offset = next(left) - cut.first
            if cut.step is None:
                conditions.append(offset.eq(0))
                continue
            indices.append(offset // cut.step)
            if abs(cut.step) > 1:
                conditions.append((offset % cut.step).eq(0))
        element = value.or_else(indices, otherwise)
        for inside in conditions:
            element = select(inside, element, otherwise)
        return element

    def fitting(
        self,
        sizes: Sequence[int],
        part: Sequence[int] | None,
        begin: Operand,
        end: Operand,
        strides: Operand,
    ) -> list[RuntimeCheck]:
        """The checks that run-time bounds are valid, and give a slice of this shape."""
        steps: list[int] = strides.constant().tolist()
        *entries, _ = self.index(sizes, _loop_bounds(begin), _loop_bounds(end), steps)
        left, counts = iter(sizes), itertools.repeat(None) if part is None else iter(part)
        conditions: list[Any] = []
        for entry in entries:
            size = None if entry is newaxis else next(left)
            count = next(counts) if size is None or isinstance(entry, builtins.slice) else None
            if size is not None:
                conditions.append(_fits(entry, size, count))
        return [RuntimeCheck((), condition) for condition in conditions]

    def static_shape(
        self, input: TensorShape, begin: Tensor, end: Tensor, strides: Tensor
    ) -> TensorShape:
        """The static shape of a slice."""
        bounds = _static_bounds(begin, end, strides)
        if input.sizes is None or bounds is None:
            return unknown_shape()
        *entries, _ = self.index(input.sizes, *bounds)
        left = iter(input.sizes)
        sizes: list[Size] = []
        for entry in entries:
            if entry is newaxis:
                sizes.append(1)
            elif isinstance(entry, builtins.slice):
                sizes.append(_length(cast(Any, entry), next(left)))
            else:
                next(left)
        return TensorShape.of(tuple(sizes))


class _Cut(NamedTuple):
    """The cut of one axis: elements from `first` on, or only that one (no step)."""

    first: Any
    step: int | None


def _first(start: Any, step: int, size: int) -> Any:
    """The first element of a slice along an axis; a run-time one is clamped."""
    if isinstance(start, Expr):
        return select(start < 0, start + size, start).max(0).min(size - 1)
    return builtins.slice(start, None, step).indices(size)[0]


def _loop_bounds(bounds: Operand) -> list[Any]:
    """Bounds as numbers if they are known, else as loads."""
    if bounds.value is None:
        return [bounds[index] for index in range(bounds.size)]
    return bounds.value.tolist()


def _bound(value: Size) -> Any:
    return _UNKNOWN if value is None else value


def _position(first: Size, stride: Size) -> Any:
    if stride is not None and stride <= 0:
        raise ValueError("only stride 1 allowed on non-range indexing.")
    return _bound(first)


def _range(start: Any, stop: Any, step: Any, place: int) -> builtins.slice:
    if step == 0:
        raise ValueError(f"strides[{place}] must be non-zero")
    return builtins.slice(start, stop, step)


def _without_ellipsis(entries: list[Any], rank: int) -> list[Any]:
    """The entries with the ellipsis (at the end, if there is none) expanded."""
    places = [i for i, entry in enumerate(entries) if isinstance(entry, EllipsisType)]
    if len(places) > 1:
        raise ValueError("Multiple ellipses in slice spec not allowed")
    used = sum(entry is not newaxis for entry in entries) - len(places)
    if used > rank:
        raise ValueError(f"Index out of range using input dim {rank}; input has only {rank} dims")
    place = places[0] if places else len(entries)
    whole = [builtins.slice(None, None, 1)] * (rank - used)
    return [*entries[:place], *whole, *entries[place + 1 :]]


def _check_entry(entry: Any, axis: int, size: Size) -> None:
    if isinstance(entry, builtins.slice | Expr) or entry is _UNKNOWN or size is None:
        return
    if not -size <= entry < size:
        raise ValueError(f"slice index {entry} of dimension {axis} out of bounds.")


def _length(cut: builtins.slice[Any, Any, Any], size: Size) -> Size:
    if _UNKNOWN in (cut.start, cut.stop, cut.step) or size is None:
        return None
    return len(range(size)[cut])


def _fits(entry: Any, size: int, count: Size) -> Any:
    """Whether an entry is a valid index of an axis, or a range of `count` elements (None: any).

    Also False for run-time bounds that count from the end.
    """
    if isinstance(entry, Expr):
        return (entry >= -size) & (entry < size)
    if not isinstance(entry, builtins.slice) or count is None:
        return True
    cut = cast("builtins.slice[Any, Any, int]", entry)
    if not isinstance(cut.start, Expr) and not isinstance(cut.stop, Expr):
        return len(range(size)[cut]) == count
    start = 0 if cut.start is None else cut.start
    stop = size if cut.stop is None else cut.stop
    inside = call("and", call("ge", start, 0), call("le", stop, size))
    return cut.step == 1 and inside & call("eq", stop - start, count)


def _static_bounds(begin: Tensor, end: Tensor, strides: Tensor) -> list[Bounds] | None:
    count = begin.shape.merge_with(end.shape).merge_with(strides.shape).with_rank(1)[0].value
    if count is None:
        return None
    known = [constant_elements(tensor) for tensor in (begin, end, strides)]
    return [(None,) * count if bounds is None else bounds for bounds in known]


class StridedSlice(Strided):
    """y = x[begin:end:strides, …]"""

    signature = "input: T, begin: Index, end: Index, strides: Index -> output: T; Index: index"

    def shape(self, input: Tensor, begin: Tensor, end: Tensor, strides: Tensor) -> TensorShape:
        return self.static_shape(input.shape, begin, end, strides)

    def numpy(self, input: Array, begin: Array, end: Array, strides: Array) -> Array:
        return np.asarray(input)[self.array_index(np.shape(input), begin, end, strides)]

    def known_value(
        self, input: Tensor, begin: Tensor, end: Tensor, strides: Tensor
    ) -> Array | None:
        """`tf.shape(x)[1]` may be known even if the whole shape is not."""
        sizes = self._kept(input, begin, end, strides)
        if sizes is None or None in sizes.ravel().tolist():
            return None
        return sizes.astype(input.dtype.base_dtype.as_numpy_dtype)

    def dimensions(self, input: Tensor, begin: Tensor, end: Tensor, strides: Tensor) -> TensorShape:
        sizes = self._kept(input, begin, end, strides)
        if sizes is None or sizes.ndim != 1:
            return unknown_shape()
        return TensorShape.of(tuple(sizes.tolist()))

    def _kept(self, input: Tensor, begin: Tensor, end: Tensor, strides: Tensor) -> Array | None:
        """The slice of the known elements of an integer vector; None if an element is unknown."""
        if input.shape.rank != 1 or not input.dtype.base_dtype.is_integer:
            return None
        whole = constant_elements(input)
        bounds = [constant_elements(tensor) for tensor in (begin, end, strides)]
        if whole is None or any(known is None or None in known for known in bounds):
            return None
        array = np.array(whole, dtype=object)
        return array[self.index(array.shape, *cast("list[Bounds]", bounds))]

    def loop(
        self, at: IndexTuple, input: Operand, begin: Operand, end: Operand, strides: Operand
    ) -> Expr:
        left = iter(at)
        indices: list[Any] = []
        for cut in self.cuts(input.shape, begin, strides):
            if cut is None:
                next(left)
            else:
                moved = cut.first if cut.step is None else next(left) * cut.step + cut.first
                indices.append(moved)
        return input[indices]

    def requires(
        self, input: Operand, begin: Operand, end: Operand, strides: Operand
    ) -> list[RuntimeCheck]:
        if begin.value is not None:
            return []  # implied by the shape
        return self.fitting(input.shape, None, begin, end, strides)

    def gradient(self, node: Node, dy: Tensor) -> list[Tensor | None]:
        x, begin, end, strides = node.inputs
        shape = shaping.shape(x, out_type=begin.dtype)
        dx = StridedSliceGrad(**self.attributes)(shape, begin, end, strides, dy)
        return [dx, None, None, None]


class StridedSliceGrad(Strided):
    """x = 0, but x[begin:end:strides, …] = dy"""

    signature = (
        "shape: Index, begin: Index, end: Index, strides: Index, dy: T -> output: T; Index: index"
    )

    def shape(
        self, shape: Tensor, begin: Tensor, end: Tensor, strides: Tensor, dy: Tensor
    ) -> TensorShape:
        full = constant_value_as_shape(shape)
        dy.shape.assert_is_compatible_with(self.static_shape(full, begin, end, strides))
        return full

    def numpy(self, shape: Array, begin: Array, end: Array, strides: Array, dy: Array) -> Array:
        full = np.zeros(shape.tolist(), np.asarray(dy).dtype)
        full[self.array_index(full.shape, begin, end, strides)] = dy
        return full

    def loop(
        self,
        at: IndexTuple,
        shape: Operand,
        begin: Operand,
        end: Operand,
        strides: Operand,
        dy: Operand,
    ) -> Expr:
        return self.written(at, begin, strides, dy, filling.zero_of(dy.dtype))

    def requires(
        self,
        shape: Operand,
        begin: Operand,
        end: Operand,
        strides: Operand,
        dy: Operand,
    ) -> list[RuntimeCheck]:
        sizes: list[int] = shape.constant().tolist()
        return self.fitting(sizes, dy.shape, begin, end, strides)

    def gradient(self, node: Node, dx: Tensor) -> list[Tensor | None]:
        _, begin, end, strides, _ = node.inputs
        ddy = StridedSlice(**self.attributes)(dx, begin, end, strides)
        return [None, None, None, None, ddy]


@public("strided_slice")
def strided_slice(
    input_: Any,
    begin: Any,
    end: Any,
    strides: Any = None,
    begin_mask: int = 0,
    end_mask: int = 0,
    ellipsis_mask: int = 0,
    new_axis_mask: int = 0,
    shrink_axis_mask: int = 0,
    var: HoldsTensor | None = None,
    name: str | None = None,
) -> Tensor:
    """The elements begin, begin + strides, … before end, along every axis; masks as in NumPy.

    Args:
        input_: a tensor.
        begin, end: vectors with the begin and end along each axis.
        strides: a vector of steps; 1 if None.
        begin_mask, end_mask: bit i: axis i begins at its first element, ends after its last.
        ellipsis_mask: bit i: entry i is an ellipsis for all missing axes.
        new_axis_mask: bit i: entry i adds an axis of size 1.
        shrink_axis_mask: bit i: the axis is indexed by `begin` and removed.
        var: the variable of the tensor, for assignments.
        name: the name of the node.

    Returns:
        A tensor.

    Example:
        >>> x = tf.constant([[1, 2, 3], [4, 5, 6]])
        >>> sess.run(tf.strided_slice(x, [0, 2], [2, 0], [1, -1]))
        array([[3, 2],
               [6, 5]], dtype=int32)
    """
    first = shaping.index_tensor(begin)
    op = StridedSlice(
        begin_mask=begin_mask,
        end_mask=end_mask,
        ellipsis_mask=ellipsis_mask,
        new_axis_mask=new_axis_mask,
        shrink_axis_mask=shrink_axis_mask,
    )
    steps = filling.ones_like(first) if strides is None else strides
    return op(convert_to_tensor(input_), first, end, steps, name=name)


@public("strided_slice_grad")
def strided_slice_grad(
    shape: Any,
    begin: Any,
    end: Any,
    strides: Any,
    dy: Any,
    begin_mask: int = 0,
    end_mask: int = 0,
    ellipsis_mask: int = 0,
    new_axis_mask: int = 0,
    shrink_axis_mask: int = 0,
    name: str | None = None,
) -> Tensor:
    """Zeros of a shape, with `dy` in the strided slice."""
    op = StridedSliceGrad(
        begin_mask=begin_mask,
        end_mask=end_mask,
        ellipsis_mask=ellipsis_mask,
        new_axis_mask=new_axis_mask,
        shrink_axis_mask=shrink_axis_mask,
    )
    return op(shape, begin, end, strides, dy, name=name)


class StridedSliceAssign(Strided):
    """ref[begin:end:strides, …] = value"""

    signature = (
        "ref: &T, begin: Index, end: Index, strides: Index, value: T -> output_ref: &T; "
        "Index: index"
    )
    stateful = True
    not_differentiable = True

    def shape(
        self, ref: Tensor, begin: Tensor, end: Tensor, strides: Tensor, value: Tensor
    ) -> TensorShape:
        value.shape.assert_is_compatible_with(self.static_shape(ref.shape, begin, end, strides))
        return ref.shape

    def kernel(
        self,
        context: Context,
        ref: VariableCell,
        begin: Array,
        end: Array,
        strides: Array,
        value: Array,
    ) -> VariableCell:
        def change(buffer: Array) -> None:
            part = buffer[self.array_index(buffer.shape, begin, end, strides)]
            if part.shape != np.shape(value):
                raise errors.invalid(
                    f"The slice of {ref.name} has shape {part.shape}, its value {np.shape(value)}"
                )
            part[...] = value

        ref.update(change)
        return ref

    def loop(
        self,
        at: IndexTuple,
        ref: Operand,
        begin: Operand,
        end: Operand,
        strides: Operand,
        value: Operand,
    ) -> Expr:
        return self.written(at, begin, strides, value, ref[at])

    def requires(
        self,
        ref: Operand,
        begin: Operand,
        end: Operand,
        strides: Operand,
        value: Operand,
    ) -> list[RuntimeCheck]:
        return self.fitting(ref.shape, value.shape, begin, end, strides)


class Slice(Op):
    """y = x[begin : begin + size], along every axis; a size of -1 is the rest"""

    signature = "input: T, begin: Index, size: Index -> output: T; Index: index"

    def shape(self, input: Tensor, begin: Tensor, size: Tensor) -> TensorShape:
        count = begin.shape.with_rank(1).merge_with(size.shape)[0].value
        rank = input.shape.with_rank(count).rank
        if rank is None:
            return unknown_shape()
        whole = input.shape.sizes or (None,) * rank
        starts = constant_elements(begin) or (None,) * rank
        lengths = constant_elements(size) or (None,) * rank
        parts = zip(whole, starts, lengths, strict=True)
        return TensorShape.of(tuple(_sliced(*part) for part in parts))

    def numpy(self, input: Array, begin: Array, size: Array) -> Array:
        index: list[Any] = []
        parts = zip(np.shape(input), begin.tolist(), size.tolist(), strict=True)
        for whole, start, length in parts:
            kept = _sliced(whole, start, length)
            index.append(builtins.slice(start, start + (kept or 0)))
        return np.asarray(input)[(*index, Ellipsis)]

    def loop(self, at: IndexTuple, input: Operand, begin: Operand, size: Operand) -> Expr:
        starts = map(_first, _loop_bounds(begin), [1] * at.rank, input.shape)
        return input[[index + start for index, start in zip(at, starts, strict=True)]]

    def requires(self, input: Operand, begin: Operand, size: Operand) -> list[RuntimeCheck]:
        if begin.value is not None:
            return []  # implied by the shape
        parts = zip(_loop_bounds(begin), _loop_bounds(size), input.shape, strict=True)
        return [
            RuntimeCheck((), (start >= 0) & (start <= whole - length))
            for start, length, whole in parts
        ]

    def gradient(self, node: Node, dy: Tensor) -> list[Tensor | None]:
        x, begin, _ = node.inputs
        shape = shaping.shape(x, out_type=begin.dtype)
        end = begin + shaping.shape(dy, out_type=begin.dtype)
        dx = StridedSliceGrad()(shape, begin, end, filling.ones_like(begin), dy)
        return [dx, None, None]


def _sliced(whole: Size, start: Size, length: Size) -> Size:
    """The size of a slice along one axis; raises if it is out of bounds."""
    if start is None or length is None:
        return None if length == -1 else length
    if length == -1:
        return None if whole is None else _fitting(whole, start, whole - start)
    return _fitting(whole, start, length)


def _fitting(whole: Size, start: int, length: int) -> int:
    limit = start + length if whole is None else whole
    if not 0 <= start <= limit:
        raise ValueError(f"Expected begin in [0, {limit}], but got {start}")
    if not 0 <= length <= limit - start:
        raise ValueError(f"Expected size in [0, {limit - start}], but got {length}")
    return length


@public("slice")
def slice(input_: Any, begin: Any, size: Any, name: str | None = None) -> Tensor:
    """The part of a tensor that starts at `begin` and has `size`; `x[1:3, ::2]` does more.

    Args:
        input_: any tensor.
        begin: the first index along each axis, as a list or an integer vector.
        size: the size along each axis; -1 goes up to the end.
        name: the name of the node.

    Returns:
        A tensor of the same rank and dtype.

    Raises:
        ValueError: if the part is known to be out of bounds.

    Example:
        >>> x = tf.constant([[1, 2, 3], [4, 5, 6]])
        >>> sess.run(tf.slice(x, [0, 1], [2, -1]))
        array([[2, 3],
               [5, 6]], dtype=int32)
    """
    return Slice()(input_, shaping.index_tensor(begin), size, name=name)
