"""Max pooling that also outputs the argmax of each window.

An argmax is a flat index into the image, or into the batch. The gradient is added there.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from thalweg.graph import dtypes
from thalweg.graph.dtypes import DType, as_dtype
from thalweg.graph.node import Node, Tensor
from thalweg.graph.shapes import TensorShape
from thalweg.ir import loop
from thalweg.ir.expr import Expr, select
from thalweg.ir.loop import IndexTuple, Operand
from thalweg.ops.nn import windows
from thalweg.ops.nn.pooling import Pooling, attributes, lowest
from thalweg.ops.nn.windows import met
from thalweg.platform.arrays import Array
from thalweg.public import public


class MaxPoolWithArgmax(Pooling):
    """y as in MaxPool, and the index of each element: (row · width + column) · channels + c"""

    signature = "input: T -> output: T, argmax: Targmax; T: real, Targmax: index"
    Targmax: DType = dtypes.int64
    include_batch_in_index: bool = False

    def shape(self, input: Tensor) -> list[TensorShape]:
        return [self.pooled_shape(input.shape)] * 2

    def numpy(self, input: Array) -> tuple[Array, Array]:
        positions = windows.counts(self.slides, input.shape)
        place = self.padded(self._places(input.shape), -1)
        padded = self.padded(input, lowest(input.dtype))
        largest: Array = np.full(positions, lowest(input.dtype), input.dtype)
        argmax = np.full(positions, -1, place.dtype)
        for tap, where in zip(
            self.views(padded, positions), self.views(place, positions), strict=True
        ):
            better = (tap > largest) | ((argmax < 0) & (where >= 0))
            np.copyto(largest, tap, where=better)
            np.copyto(argmax, where, where=better)
        return largest, argmax

    def loop(self, at: IndexTuple, input: Operand) -> Expr:
        def element(tap: Expr) -> Expr:
            return self.seen(input, at, loop.unravel(tap, self.ksize), lowest(input.dtype))

        # Padding is no place of a maximum: where nothing else is larger, the element next to it is.
        def nearest(taps: Sequence[Any]) -> list[Expr]:
            return [index.max(0) for index in met(self.slides, input.shape, at, taps)]

        largest = loop.reduce("argmax", [math.prod(self.ksize)], element)
        start, found = nearest([0] * len(self.ksize)), nearest(loop.unravel(largest, self.ksize))
        is_nan = input[start].is_nan()  # which only counts as a maximum if it comes first
        place = [select(is_nan, *pair) for pair in zip(start, found, strict=True)]
        if at.output == 0:
            return input[place]
        skipped = 0 if self.include_batch_in_index else 1
        number = loop.ravel(place[skipped:], input.shape[skipped:])
        return number.cast(self.Targmax.as_numpy_dtype)

    def _places(self, sizes: Sequence[int]) -> Array:
        """The flat index of every element, within its image or within the batch."""
        kind = self.Targmax.as_numpy_dtype
        if self.include_batch_in_index:
            return np.arange(int(np.prod(sizes)), dtype=kind).reshape(sizes)
        image = np.arange(int(np.prod(sizes[1:])), dtype=kind).reshape(sizes[1:])
        return np.broadcast_to(image, sizes)

    def gradient(self, node: Node, dy: Tensor, _: Any) -> Tensor:
        y_places = node.outputs[1]
        return MaxPoolGradWithArgmax(**self.attributes)(node.inputs[0], dy, y_places)


def _flat_places(argmax: Array, x: Sequence[int], batch_included: bool) -> Array:
    if batch_included:
        return argmax.ravel()
    image = int(np.prod(x[1:]))
    starts = np.arange(len(argmax)) * image
    return (argmax.reshape(len(argmax), argmax[0].size) + starts[:, None]).ravel()


def _place(
    argmax: Operand, at: Sequence[Expr], x: Sequence[int], batch_included: bool
) -> tuple[Any, ...]:
    """The coordinates in x of the argmax at a position."""
    number = argmax[tuple(at)]
    if batch_included:
        return loop.unravel(number, x)
    return at[0], *loop.unravel(number, x[1:])


class MaxPoolGradWithArgmax(Pooling):
    """dx = dy, added at the argmax from MaxPoolWithArgmax"""

    signature = "input: T, grad: T, argmax: Targmax -> output: T; T: real, Targmax: index"
    include_batch_in_index: bool = False
    Targmax: DType = dtypes.int64

    def shape(self, input: Tensor, grad: Tensor, argmax: Tensor) -> TensorShape:
        grad.shape.assert_is_compatible_with(argmax.shape)
        return input.shape

    def numpy(self, input: Array, grad: Array, argmax: Array) -> Array:
        dx = np.zeros(input.size, grad.dtype)
        np.add.at(dx, _flat_places(argmax, input.shape, self.include_batch_in_index), grad.ravel())
        return dx.reshape(input.shape)

    def loop(self, at: IndexTuple, input: Operand, grad: Operand, argmax: Operand) -> loop.Scatter:
        def part(*place: Expr) -> tuple[Sequence[Any], Expr]:
            return _place(argmax, place, input.shape, self.include_batch_in_index), grad[place]

        return loop.scatter("sum", grad.shape, part, 0)

    def gradient(self, node: Node, ddx: Tensor) -> list[Tensor | None]:
        x, _, argmax = node.inputs
        return [None, MaxPoolGradGradWithArgmax(**self.attributes)(x, ddx, argmax), None]


class MaxPoolGradGradWithArgmax(Pooling):
    """dx gathered at the argmax from MaxPoolWithArgmax"""

    signature = "input: T, grad: T, argmax: Targmax -> output: T; T: real, Targmax: index"
    include_batch_in_index: bool = False
    Targmax: DType = dtypes.int64

    def shape(self, input: Tensor, grad: Tensor, argmax: Tensor) -> TensorShape:
        return argmax.shape

    def numpy(self, input: Array, grad: Array, argmax: Array) -> Array:
        places = _flat_places(argmax, input.shape, self.include_batch_in_index)
        return grad.ravel()[places].reshape(argmax.shape)

    def loop(self, at: IndexTuple, input: Operand, grad: Operand, argmax: Operand) -> Expr:
        if grad.shape != input.shape:
            raise ValueError(f"a gradient of shape {grad.shape} for an input of {input.shape}")
        return grad[_place(argmax, at, input.shape, self.include_batch_in_index)]

    def gradient(self, node: Node, dy: Tensor) -> list[Tensor | None]:
        x, _, argmax = node.inputs
        return [None, MaxPoolGradWithArgmax(**self.attributes)(x, dy, argmax), None]


@public("nn.max_pool_with_argmax")
def max_pool_with_argmax(
    input: Any,
    ksize: Any,
    strides: Any,
    padding: str,
    data_format: str = "NHWC",
    Targmax: Any = None,  # noqa: N803 - the name that callers write
    name: str | None = None,
    output_dtype: Any = None,
    include_batch_in_index: bool = False,
) -> Any:
    """The maximum of each window, and its index in the flattened input."""
    if data_format != "NHWC":
        raise ValueError("data_format values other than 'NHWC' are not supported")
    given = Targmax if output_dtype is None else output_dtype
    op = MaxPoolWithArgmax(
        **attributes(ksize, strides, padding, "NHWC"),
        Targmax=dtypes.int64 if given is None else as_dtype(given),
        include_batch_in_index=include_batch_in_index,
    )
    return op(input, name=name)
