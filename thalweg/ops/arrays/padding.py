"""Padding of tensors with constants or mirrored elements."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, cast

import numpy as np
from numpy.typing import ArrayLike

from thalweg.graph.known import constant_elements, constant_value
from thalweg.graph.node import Node, Tensor
from thalweg.graph.op import Op
from thalweg.graph.shapes import TensorShape, unknown_shape
from thalweg.ir import loop
from thalweg.ir.expr import Expr, select
from thalweg.ir.loop import IndexTuple, Operand, Scatter
from thalweg.ops.arrays import slicing, subscripts
from thalweg.ops.core import filling, shaping
from thalweg.platform.arrays import Array
from thalweg.public import public

Size = int | None


class Padding(Op, abstract=True):
    """x with paddings[d, 0] elements before it and paddings[d, 1] after it along each axis d."""

    def shape(self, input: Tensor, paddings: Tensor, *_: Tensor) -> TensorShape:
        sizes, border = static_paddings(input, paddings)
        return padded_shape(sizes, border)


def static_paddings(
    input: Tensor, paddings: Tensor
) -> tuple[tuple[Size, ...] | None, list[tuple[Size, Size]]]:
    """The sizes of the input (None for unknown rank) and the known padding of each axis."""
    axes = paddings.shape.with_rank(2).merge_with((None, 2))[0].value
    shape = input.shape.with_rank(axes)
    if shape.sizes is None:
        return None, []
    paddings.shape.assert_is_compatible_with((len(shape.sizes), 2))
    known = constant_elements(paddings) or (None,) * (2 * len(shape.sizes))
    if any(size is not None and size < 0 for size in known):
        raise ValueError(f"Paddings must be non-negative, got {list(known)}")
    return shape.sizes, list(zip(known[::2], known[1::2], strict=True))


def padded_shape(sizes: tuple[Size, ...] | None, border: list[tuple[Size, Size]]) -> TensorShape:
    """The sizes plus their padding."""
    if sizes is None:
        return unknown_shape()
    parts = zip(sizes, border, strict=True)
    return TensorShape.of(tuple(_sum(size, before, after) for size, (before, after) in parts))


def _sum(*parts: Size) -> Size:
    known = [part for part in parts if part is not None]
    return sum(known) if len(known) == len(parts) else None


def _border(input: Array, paddings: Array) -> list[tuple[int, int]]:
    """Paddings for NumPy, checked."""
    if paddings.shape != (np.ndim(input), 2):
        raise ValueError(
            f"paddings must have the shape [{np.ndim(input)}, 2], got {list(paddings.shape)}"
        )
    if np.any(paddings < 0):
        raise ValueError(f"Paddings must be non-negative, got {paddings.tolist()}")
    return [(before, after) for before, after in paddings.tolist()]


class Pad(Padding):
    """x with zeros around it"""

    signature = "input: T, paddings: Tpaddings -> output: T; Tpaddings: index"

    def numpy(self, input: Array, paddings: Array) -> Array:
        fill = filling.zero_of(np.asarray(input).dtype)
        return with_border(input, _border(input, paddings), fill)

    def loop(self, at: IndexTuple, input: Operand, paddings: Operand) -> Expr:
        return _bordered(at, input, paddings, filling.zero_of(input.dtype))

    def gradient(self, node: Node, dy: Tensor) -> list[Tensor | None]:
        return [_inside(node, dy), None]


class PadV2(Padding):
    """x with a constant around it"""

    signature = "input: T, paddings: Tpaddings, constant_values: T -> output: T; Tpaddings: index"

    def numpy(self, input: Array, paddings: Array, constant_values: Array) -> Array:
        return with_border(input, _border(input, paddings), constant_values)

    def loop(
        self, at: IndexTuple, input: Operand, paddings: Operand, constant_values: Operand
    ) -> Expr:
        return _bordered(at, input, paddings, constant_values[()])

    def gradient(self, node: Node, dy: Tensor) -> list[Tensor | None]:
        return [_inside(node, dy), None, None]


def with_border(input: Array, border: Sequence[Sequence[int]], fill: Any) -> Array:
    """An array with `fill` around it."""
    sizes = [sum(pair) + size for pair, size in zip(border, np.shape(input), strict=True)]
    padded = np.full(sizes, fill, dtype=np.asarray(input).dtype)
    inside = (slice(b, b + s) for (b, _), s in zip(border, np.shape(input), strict=True))
    padded[tuple(inside)] = input
    return padded


def _bordered(at: IndexTuple, input: Operand, paddings: Operand, fill: Any) -> Expr:
    before = paddings.constant()[:, 0].tolist()
    return input.or_else([index - n for index, n in zip(at, before, strict=True)], fill)


def _inside(node: Node, dy: Tensor) -> Tensor:
    x, paddings = node.inputs[:2]
    known = constant_value(paddings)
    if known is not None:
        before: Any = known[:, 0]
    else:
        before = subscripts.getitem(paddings, (slice(None), 0))
    return slicing.slice(dy, before, shaping.shape(x, out_type=paddings.dtype))


class Mirrored(Padding, abstract=True):
    """The base of MirrorPad and its gradient: the source of each padded element."""

    mode: str

    def sources(self, size: int, before: int, after: int) -> Array:
        """For each index of a padded axis, the index that it mirrors."""
        limit = size - 1 if self.mode == "REFLECT" else size
        if max(before, after) > max(limit, 0):
            raise ValueError(
                f"paddings must be no greater than {limit} along a dimension of size {size} in "
                f"{self.mode} mode: {before}, {after}"
            )
        if before == after == 0:
            return np.arange(size)
        return np.pad(np.arange(size), (before, after), cast(Any, self.mode.lower()))

    def mirrored(
        self, padded: Sequence[Expr], sizes: Sequence[int], paddings: Operand
    ) -> list[Expr]:
        """The index in a tensor of these sizes that an index of the padded tensor mirrors."""
        edge = 0 if self.mode == "REFLECT" else 1  # whether the edge is mirrored, too
        before: list[int] = paddings.constant()[:, 0].tolist()
        places: list[Expr] = []
        for index, size, skipped in zip(padded, sizes, before, strict=True):
            place = index - skipped
            beyond = select(place < size, place, 2 * size - 2 + edge - place)
            places.append(select(place < 0, -place - edge, beyond))
        return places

    def check(self, sizes: Sequence[Size], border: Sequence[tuple[Size, Size]]) -> None:
        """Raise if a known padding is larger than its axis."""
        for size, pair in zip(sizes, border, strict=True):
            if size is not None and None not in pair:
                self.sources(size, *cast("tuple[int, int]", pair))


class MirrorPad(Mirrored):
    """x with its own elements mirrored at its edges (SYMMETRIC: the edge too)"""

    signature = "input: T, paddings: Tpaddings -> output: T; Tpaddings: index"

    def shape(self, input: Tensor, paddings: Tensor) -> TensorShape:
        sizes, border = static_paddings(input, paddings)
        self.check(sizes or (), border)
        return padded_shape(sizes, border)

    def numpy(self, input: Array, paddings: Array) -> Array:
        padded = np.asarray(input)
        for axis, pair in enumerate(_border(input, paddings)):
            padded = np.take(padded, self.sources(padded.shape[axis], *pair), axis)
        return padded

    def loop(self, at: IndexTuple, input: Operand, paddings: Operand) -> Expr:
        return input[self.mirrored(at, input.shape, paddings)]

    def gradient(self, node: Node, dy: Tensor) -> list[Tensor | None]:
        return [MirrorPadGrad(mode=self.mode)(dy, node.inputs[1]), None]


class MirrorPadGrad(Mirrored):
    """The padding of x added to the elements that it mirrors"""

    signature = "input: T, paddings: Tpaddings -> output: T; Tpaddings: index"

    def shape(self, input: Tensor, paddings: Tensor) -> TensorShape:
        sizes, border = static_paddings(input, paddings)
        negative = [(_minus(before), _minus(after)) for before, after in border]
        return padded_shape(sizes, negative)

    def numpy(self, input: Array, paddings: Array) -> Array:
        folded = np.asarray(input)
        for axis, (before, after) in enumerate(_border(input, paddings)):
            size = folded.shape[axis] - before - after
            rows = np.moveaxis(folded, axis, 0)
            total = np.zeros((size, *rows.shape[1:]), folded.dtype)
            np.add.at(total, self.sources(size, before, after), rows)
            folded = np.moveaxis(total, 0, axis)
        return folded

    def loop(self, at: IndexTuple, input: Operand, paddings: Operand) -> Scatter:
        def update(*place: Expr) -> tuple[list[Expr], Expr]:
            return self.mirrored(place, at.shape, paddings), input[place]

        return loop.scatter("sum", input.shape, update, filling.zero_of(input.dtype))

    def gradient(self, node: Node, dy: Tensor) -> list[Tensor | None]:
        return [MirrorPad(mode=self.mode)(dy, node.inputs[1]), None]


def _minus(size: Size) -> Size:
    return None if size is None else -size


@public("pad")
def pad(
    tensor: Any,
    paddings: Any,
    mode: str = "CONSTANT",
    name: str | None = None,
    constant_values: Tensor | ArrayLike = 0,
) -> Tensor:
    """A tensor padded with a constant, or with its own elements.

    Args:
        tensor: any tensor.
        paddings: [rank, 2] integers: the numbers of elements before and after along each axis.
        mode: "CONSTANT", "REFLECT" (mirrored without the edge) or "SYMMETRIC" (with it).
        name: the name of the node.
        constant_values: the constant.

    Returns:
        A tensor of the same rank and dtype.

    Example:
        >>> sess.run(tf.pad([[1, 2]], [[1, 0], [0, 2]]))
        array([[0, 0, 0, 0],
               [1, 2, 0, 0]], dtype=int32)
        >>> sess.run(tf.pad([1, 2, 3], [[2, 0]], "REFLECT"))
        array([3, 2, 1, 2, 3], dtype=int32)
    """
    kind = mode.upper()
    if kind in ("REFLECT", "SYMMETRIC"):
        return MirrorPad(mode=kind)(tensor, paddings, name=name)
    if kind != "CONSTANT":
        raise ValueError(f"Unknown padding mode: {mode}")
    if isinstance(constant_values, Tensor) or np.any(np.not_equal(constant_values, 0)):
        return PadV2()(tensor, paddings, constant_values, name=name)
    return Pad()(tensor, paddings, name=name)
