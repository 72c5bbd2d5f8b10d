"""Reorderings of elements: transpose, reverse, roll."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from thalweg import errors
from thalweg.graph.convert import convert_to_tensor
from thalweg.graph.known import constant_elements, constant_value
from thalweg.graph.node import Node, Tensor
from thalweg.graph.op import Op
from thalweg.graph.scopes import name_scope
from thalweg.graph.shapes import TensorShape, unknown_shape
from thalweg.ir import loop
from thalweg.ir.expr import Expr, select
from thalweg.ir.loop import IndexTuple, NotLowered, Operand, RuntimeCheck, Scatter
from thalweg.ops.arrays import joining
from thalweg.ops.core import filling, shaping
from thalweg.ops.math import arithmetic
from thalweg.platform.arrays import Array
from thalweg.public import public


class Transpose(Op):
    """y[i[perm[0]], i[perm[1]], …] = x[i[0], i[1], …]"""

    signature = "x: T, perm: Tperm -> y: T; Tperm: index"

    def shape(self, x: Tensor, perm: Tensor) -> TensorShape:
        perm.shape.assert_has_rank(1)
        rank = x.shape.with_rank(perm.shape.with_rank(1)[0].value).rank
        order = constant_elements(perm)
        if order is None or rank is None or None in order:
            return unknown_shape(rank)
        places = _checked_order([o for o in order if o is not None], rank)
        sizes = x.shape.sizes
        return (
            unknown_shape(rank)
            if sizes is None
            else TensorShape.of(tuple(sizes[place] for place in places))
        )

    def numpy(self, x: Array, perm: Array) -> Array:
        return np.transpose(x, _checked_order(perm.tolist(), np.ndim(x)))

    def loop(self, at: IndexTuple, x: Operand, perm: Operand) -> Expr:
        order = _checked_order(perm.constant().tolist(), x.rank)
        return x[[at[order.index(axis)] for axis in range(x.rank)]]

    def gradient(self, node: Node, dy: Tensor) -> list[Tensor | None]:
        return [type(self)()(dy, _inverse(node.inputs[1])), None]


class ConjugateTranspose(Transpose):
    """y = the conjugate of x, transposed"""

    def numpy(self, x: Array, perm: Array) -> Array:
        return np.conj(super().numpy(x, perm))

    def loop(self, at: IndexTuple, x: Operand, perm: Operand) -> Expr:
        return super().loop(at, x, perm).conj()


def _checked_order(order: list[int], rank: int) -> list[int]:
    places = [place + rank if place < 0 else place for place in order]
    for place in places:
        if not 0 <= place < rank:
            raise ValueError(f"{place} is out of range [0 .. {rank})")
    missing = [axis for axis in range(rank) if axis not in places]
    if missing:
        raise ValueError(f"{missing[0]} is missing from {order}.")
    return places


def _inverse(perm: Tensor) -> Tensor:
    order = constant_value(perm)
    if order is None:
        return invert_permutation(perm)
    return convert_to_tensor(np.argsort(order % max(len(order), 1)).astype(order.dtype))


@public("transpose")
def transpose(a: Any, perm: Any = None, name: str = "transpose", conjugate: bool = False) -> Tensor:
    """`a` with its axes in another order.

    Args:
        a: any tensor.
        perm: the axes of `a` in the order they have in the result; reversed if None.
        name: the name of the node.
        conjugate: conjugate complex elements too.

    Returns:
        A tensor whose axis i is axis `perm[i]` of `a`.

    Example:
        >>> sess.run(tf.transpose([[1, 2, 3], [4, 5, 6]]))
        array([[1, 4],
               [2, 5],
               [3, 6]], dtype=int32)
        >>> tf.transpose(tf.zeros([2, 3, 4]), [0, 2, 1]).shape.as_list()
        [2, 4, 3]
    """
    with name_scope(name, "transpose", [a]) as scope:
        x = convert_to_tensor(a, name="x")
        conjugated = conjugate and x.dtype.is_complex
        order = _reversed_axes(x) if perm is None else shaping.index_tensor(perm, "perm")
        op = ConjugateTranspose() if conjugated else Transpose()
        y = op(x, order, name=scope)
        if perm is None and x.shape.sizes is not None:
            y.set_shape(x.shape.sizes[::-1])
        return y


def _reversed_axes(x: Tensor) -> Tensor:
    rank = x.shape.rank
    if rank is not None:
        return convert_to_tensor(np.arange(rank, dtype=np.int32)[::-1], name="perm")
    count = shaping.rank(x)
    return count - 1 - filling.range(0, count, 1)


@public("matrix_transpose", "linalg.transpose", "linalg.matrix_transpose", "batch_matrix_transpose")
def matrix_transpose(a: Any, name: str = "matrix_transpose", conjugate: bool = False) -> Tensor:
    """A tensor with its last two axes exchanged.

    Args:
        a: a tensor of rank 2 or more.
        name: the name of the nodes.
        conjugate: conjugate complex elements too.

    Returns:
        A tensor [..., n, m].

    Example:
        >>> tf.matrix_transpose(tf.zeros([5, 2, 3])).shape.as_list()
        [5, 3, 2]
    """
    with name_scope(name, "transpose", [a]):
        x = convert_to_tensor(a, name="a")
        rank = x.shape.rank
        if rank is not None and rank < 2:
            raise ValueError(
                f"Argument 'a' should be a (batch) matrix, with rank >= 2. Found: {x.shape}"
            )
        return transpose(x, perm=_matrix_order(x), conjugate=conjugate)


def _matrix_order(x: Tensor) -> Any:
    rank = x.shape.rank
    if rank is not None:
        return [*range(rank - 2), rank - 1, rank - 2]
    count = shaping.rank(x)
    return joining.concat([filling.range(0, count - 2, 1), [count - 1, count - 2]], 0)


_MAX_COMPARED = 256  # elements of a permutation that are compared with each other


class InvertPermutation(Op):
    """y[x[i]] = i"""

    signature = "x: T -> y: T; T: index"
    not_differentiable = True

    def shape(self, x: Tensor) -> TensorShape:
        return x.shape.with_rank(1)

    def numpy(self, x: Array) -> Array:
        order = x % max(len(x), 1)  # negative axes count from the end
        if np.any((x < -len(x)) | (x >= len(x))):
            raise errors.invalid(f"{x.tolist()} has an element that is not between 0 and {len(x)}")
        if len(np.unique(order)) != len(x):
            raise errors.invalid(f"{x.tolist()} has a duplicate element")
        return np.argsort(order).astype(x.dtype)

    def loop(self, at: IndexTuple, x: Operand) -> Scatter:
        def update(place: Expr) -> tuple[Sequence[Expr], Expr]:
            return [x[place] % x.size], place.cast(x.dtype)

        if x.size > _MAX_COMPARED:
            raise NotLowered("to look for repeats takes as many steps as the square of its size")
        return loop.scatter("set", x.shape, update, 0)

    def requires(self, x: Operand) -> list[RuntimeCheck]:
        def is_new(k: Expr, other: Expr) -> Expr:
            return (k <= other) | ((x[k] - x[other]) % x.size).ne(0)

        return [
            loop.runtime_check(x.shape, lambda *k: (x[k] >= -x.size) & (x[k] < x.size)),
            loop.runtime_check([x.size, x.size], is_new),
        ]


@public("invert_permutation", "math.invert_permutation")
def invert_permutation(x: Any, name: str | None = None) -> Tensor:
    """The permutation that undoes another.

    Args:
        x: a vector with each of 0, 1, ..., n - 1 once; int32 or int64.
        name: the name of the node.

    Returns:
        A vector y with y[x[i]] = i.

    Example:
        >>> sess.run(tf.invert_permutation([2, 0, 1]))
        array([1, 2, 0], dtype=int32)
    """
    return InvertPermutation()(x, name=name)


class ReverseV2(Op):
    """y = x with the order of elements reversed along the given axes"""

    signature = "tensor: T, axis: Tidx -> output: T; Tidx: index"

    def shape(self, tensor: Tensor, axis: Tensor) -> TensorShape:
        axis.shape.assert_has_rank(1)
        axes = constant_elements(axis)
        if axes is not None and None not in axes and tensor.shape.rank is not None:
            _reversed([a for a in axes if a is not None], tensor.shape.rank)
        return tensor.shape

    def numpy(self, tensor: Array, axis: Array) -> Array:
        return np.flip(tensor, _reversed(axis.tolist(), np.ndim(tensor)))

    def loop(self, at: IndexTuple, tensor: Operand, axis: Operand) -> Expr:
        return tensor[_flipped(at, _reversed(axis.constant().tolist(), tensor.rank))]

    def gradient(self, node: Node, dy: Tensor) -> list[Tensor | None]:
        return [ReverseV2()(dy, node.inputs[1]), None]


def _flipped(at: IndexTuple, axes: Sequence[int]) -> list[Expr]:
    """The index, counted from the other end along some axes."""
    places = enumerate(zip(at, at.shape, strict=True))
    return [size - 1 - index if axis in axes else index for axis, (index, size) in places]


def _reversed(axes: list[int], rank: int) -> tuple[int, ...]:
    result: list[int] = []
    for position, axis in enumerate(axes):
        if not -rank <= axis < rank:
            raise ValueError(f"'axis'[{position}] = {axis} is out of valid range [0, {rank - 1}]")
        if axis % rank in result:
            raise ValueError(f"axis {axis % rank} specified more than once.")
        result.append(axis % rank)
    return tuple(result)


@public("reverse", "reverse_v2", "manip.reverse")
def reverse(tensor: Any, axis: Any = None, name: str | None = None, dims: Any = None) -> Tensor:
    """`tensor` reversed along axes.

    Args:
        tensor: any tensor.
        axis: a list of axes; or a bool for each axis, as before TensorFlow 1.0.
        name: the name of the node.
        dims: the old name of `axis`.

    Returns:
        A tensor of the same shape and dtype.

    Example:
        >>> sess.run(tf.reverse([[1, 2], [3, 4]], axis=[0]))
        array([[3, 4],
               [1, 2]], dtype=int32)
    """
    places = shaping.index_tensor(axis if dims is None else dims)
    if places.dtype.is_bool:
        return Reverse()(tensor, places, name=name)
    return ReverseV2()(tensor, places, name=name)


class Reverse(Op):
    """y = x with the order of elements reversed along the axes marked True"""

    signature = "tensor: T, dims: bool -> output: T"

    def shape(self, tensor: Tensor, dims: Tensor) -> TensorShape:
        return tensor.shape.with_rank(dims.shape.with_rank(1)[0].value)

    def numpy(self, tensor: Array, dims: Array) -> Array:
        return np.flip(tensor, tuple(np.flatnonzero(dims).tolist()))

    def loop(self, at: IndexTuple, tensor: Operand, dims: Operand) -> Expr:
        return tensor[_flipped(at, np.flatnonzero(dims.constant()).tolist())]

    def gradient(self, node: Node, dy: Tensor) -> list[Tensor | None]:
        return [Reverse()(dy, node.inputs[1]), None]


class ReverseSequence(Op):
    """y = x with the first seq_lengths[b] elements along seq_dim reversed, for each batch b"""

    signature = "input: T, seq_lengths: Tlen -> output: T; Tlen: index"
    seq_dim: int
    batch_dim: int = 0

    def shape(self, input: Tensor, seq_lengths: Tensor) -> TensorShape:
        lengths = seq_lengths.shape.with_rank(1)
        sizes = input.shape.sizes
        if sizes is None:
            return unknown_shape()
        self._check_axes(len(sizes))
        batch = lengths[0].merge_with(sizes[self.batch_dim]).value
        axis = self.batch_dim % len(sizes)
        return TensorShape.of((*sizes[:axis], batch, *sizes[axis + 1 :]))

    def _check_axes(self, rank: int) -> None:
        if self.seq_dim >= rank:
            raise ValueError(f"seq_dim must be < input rank: {self.seq_dim} vs. {rank}")
        if self.batch_dim >= rank:
            raise ValueError(f"batch_dim must be < input rank: {self.batch_dim} vs. {rank}")

    def numpy(self, input: Array, seq_lengths: Array) -> Array:
        if self.seq_dim == self.batch_dim:
            raise ValueError(f"batch_dim == seq_dim == {self.seq_dim}")
        self._check_axes(np.ndim(input))
        rows: Array = np.moveaxis(input, (self.batch_dim, self.seq_dim), (0, 1))
        _check_lengths(seq_lengths, rows.shape)
        places: Array = np.arange(int(rows.shape[1]))
        lengths = seq_lengths[:, None]
        order: Array = np.where(places < lengths, lengths - 1 - places, places)
        reversed_rows = rows[np.arange(len(rows))[:, None], order]
        return np.moveaxis(reversed_rows, (0, 1), (self.batch_dim, self.seq_dim))

    def loop(self, at: IndexTuple, input: Operand, seq_lengths: Operand) -> Expr:
        along = self.seq_dim % input.rank
        if along == self.batch_dim % input.rank:
            raise ValueError("a batch of sequences has two axes")
        length = seq_lengths[at[self.batch_dim]].min(input.shape[along])
        place = select(at[along] < length, length - 1 - at[along], at[along])
        return input[(*at[:along], place, *at[along + 1 :])]

    def requires(self, input: Operand, seq_lengths: Operand) -> list[RuntimeCheck]:
        most = input.shape[self.seq_dim]
        inside = loop.runtime_check(
            seq_lengths.shape, lambda *k: (seq_lengths[k] >= 0) & (seq_lengths[k] <= most)
        )
        return [inside]

    def gradient(self, node: Node, dy: Tensor) -> list[Tensor | None]:
        return [ReverseSequence(**self.attributes)(dy, node.inputs[1]), None]


def _check_lengths(lengths: Array, sizes: tuple[int, ...]) -> None:
    if len(lengths) != sizes[0]:
        raise ValueError(f"{len(lengths)} seq_lengths for a batch of {sizes[0]}")
    bad = np.flatnonzero((lengths < 0) | (lengths > sizes[1]))
    if bad.size:
        raise ValueError(
            f"seq_lengths({bad[0]}) = {lengths[bad[0]]} is not in [0, {sizes[1]}], the size along "
            "seq_dim"
        )


@public("reverse_sequence")
def reverse_sequence(
    input: Any,
    seq_lengths: Any,
    seq_axis: int | None = None,
    batch_axis: int | None = None,
    name: str | None = None,
    seq_dim: int | None = None,
    batch_dim: int | None = None,
) -> Tensor:
    """The first elements of each sequence reversed, the rest unchanged.

    Args:
        input: a tensor.
        seq_lengths: how many elements of each sequence are reversed.
        seq_axis: the axis of a sequence's elements.
        batch_axis: the axis of the sequences; 0 if None.
        name: the name of the node.
        seq_dim, batch_dim: the old names of the axes.

    Returns:
        A tensor of the shape and dtype of `input`.

    Example:
        >>> sess.run(tf.reverse_sequence([[1, 2, 3], [4, 5, 6]], [2, 3], seq_axis=1))
        array([[2, 1, 3],
               [6, 5, 4]], dtype=int32)
    """
    along = seq_dim if seq_axis is None else seq_axis
    batch = batch_dim if batch_axis is None else batch_axis
    if along is None:
        raise ValueError("reverse_sequence needs seq_axis")
    return ReverseSequence(seq_dim=along, batch_dim=batch or 0)(input, seq_lengths, name=name)


class Roll(Op):
    """y = x with elements moved cyclically by `shift` places along `axis`"""

    signature = "input: T, shift: Tshift, axis: Taxis -> output: T; Tshift: index, Taxis: index"

    def shape(self, input: Tensor, shift: Tensor, axis: Tensor) -> TensorShape:
        shift.shape.with_rank_at_most(1).assert_is_compatible_with(axis.shape)
        return input.shape.with_rank_at_least(1)

    def numpy(self, input: Array, shift: Array, axis: Array) -> Array:
        places = tuple(np.atleast_1d(axis).tolist())
        return np.roll(input, tuple(np.atleast_1d(shift).tolist()), places)

    def loop(self, at: IndexTuple, input: Operand, shift: Operand, axis: Operand) -> Expr:
        places = list(at)
        for number, along in enumerate(np.atleast_1d(axis.constant()).tolist()):
            places[along] = (places[along] - shift.flat(number)) % input.shape[along]
        return input[places]

    def gradient(self, node: Node, dy: Tensor) -> list[Tensor | None]:
        _, shift, axis = node.inputs
        return [roll(dy, arithmetic.negative(shift), axis), None, None]


@public("roll", "manip.roll")
def roll(input: Any, shift: Any, axis: Any, name: str | None = None) -> Tensor:
    """Shift elements cyclically along axes."""
    return Roll()(input, shift, axis, name=name)
