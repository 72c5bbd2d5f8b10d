"""Diagonals and bands of (batches of) matrices.

`k` counts diagonals from the main one, upwards; a pair of numbers is a band, whose diagonals are
rows from the top one down, each padded at its end.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np

from thalweg.graph import dtypes
from thalweg.graph.convert import convert_to_tensor
from thalweg.graph.dtypes import as_dtype
from thalweg.graph.known import constant_value
from thalweg.graph.likes import TensorLike
from thalweg.graph.node import Node, Tensor
from thalweg.graph.op import Op
from thalweg.graph.scopes import name_scope
from thalweg.graph.shapes import Size, TensorShape, unknown_shape
from thalweg.ir import loop
from thalweg.ir.expr import Expr, call, select
from thalweg.ir.loop import IndexTuple, Operand, RuntimeCheck, zero_of
from thalweg.ops.arrays import joining
from thalweg.ops.core import filling, shaping
from thalweg.ops.math import arithmetic, reduce
from thalweg.platform.arrays import Array
from thalweg.public import public


class Diag(Op):
    """y[i…, i…] = x[i…], and zeros elsewhere"""

    signature = "diagonal: T -> output: T; T: numeric|bool"

    def shape(self, diagonal: Tensor) -> TensorShape:
        sizes = diagonal.shape.sizes
        if sizes == ():
            raise ValueError("Shape must be at least rank 1 but is rank 0")
        return TensorShape.of(None if sizes is None else sizes + sizes)

    def numpy(self, diagonal: Array) -> Array:
        flat = np.diag(np.ravel(diagonal))
        return flat.reshape(diagonal.shape + diagonal.shape)

    def loop(self, at: IndexTuple, diagonal: Operand) -> Expr:
        here, there = (loop.ravel(half, diagonal.shape) for half in at.split(diagonal.rank))
        return select(call("eq", here, there), diagonal[at[: diagonal.rank]], zero_of(diagonal))

    def gradient(self, node: Node, dy: Tensor) -> Tensor:
        return diag_part(dy)


@public("diag", "linalg.tensor_diag")
def diag(diagonal: Any, name: str | None = None) -> Tensor:
    """A tensor of twice the rank: `diagonal` where both halves of the indices agree, else zero.

    Args:
        diagonal: a tensor; of a vector, the result is a matrix.
        name: the name of the node.

    Returns:
        A tensor of the shape of `diagonal` twice.

    Example:
        >>> sess.run(tf.diag([1, 2]))
        array([[1, 0],
               [0, 2]], dtype=int32)
    """
    return Diag()(diagonal, name=name)


class DiagPart(Op):
    """y[i…] = x[i…, i…]"""

    signature = "input: T -> diagonal: T; T: numeric|bool"

    def shape(self, input: Tensor) -> TensorShape:
        sizes = input.shape.sizes
        if sizes is None:
            return unknown_shape()
        if not sizes or len(sizes) % 2:
            raise ValueError(f"Input must have even and non-zero rank, input rank is {len(sizes)}")
        half = len(sizes) // 2
        return TensorShape.of(sizes[:half]).merge_with(TensorShape.of(sizes[half:]))

    def numpy(self, input: Array) -> Array:
        half = input.ndim // 2
        if not input.ndim or input.ndim % 2 or input.shape[:half] != input.shape[half:]:
            raise ValueError(f"The two halves of the shape {list(input.shape)} must be the same")
        count = int(np.prod(input.shape[:half]))
        return input.reshape(count, count).diagonal().reshape(input.shape[:half])

    def loop(self, at: IndexTuple, input: Operand) -> Expr:
        return input[(*at, *at)]

    def gradient(self, node: Node, dy: Tensor) -> Tensor:
        return diag(dy)


@public("diag_part", "linalg.tensor_diag_part")
def diag_part(input: Any, name: str | None = None) -> Tensor:
    """The elements of a tensor at which both halves of the indices agree.

    Args:
        input: a tensor of even rank, whose shape is one shape twice: a square matrix.
        name: the name of the node.

    Returns:
        A tensor of half the rank.

    Example:
        >>> sess.run(tf.diag_part([[1, 2], [3, 4]]))
        array([1, 4], dtype=int32)
    """
    return DiagPart()(input, name=name)


# Bands of matrices


def _band(k: Array) -> tuple[int, int]:
    """The lowest and highest diagonal."""
    numbers = np.atleast_1d(k).tolist()
    if len(numbers) not in (1, 2):
        raise ValueError(f"k must be a scalar or have one or two elements, not {numbers}")
    if numbers[0] > numbers[-1]:
        raise ValueError(f"The lower diagonal {numbers[0]} is above the upper one {numbers[1]}")
    return numbers[0], numbers[-1]


def _length(rows: int, columns: int, number: int) -> int:
    """The length of one diagonal of a matrix."""
    return min(rows + min(number, 0), columns - max(number, 0))


def _longest(shape: tuple[int, ...], band: tuple[int, int]) -> int:
    """The length of the longest diagonal of a band."""
    (rows, columns), (low, high) = shape[-2:], band
    if not (-rows < low < columns and -rows < high < columns) and (low, high) != (0, 0):
        raise ValueError(f"The diagonals {low} to {high} are not all in a {rows}x{columns} matrix")
    return min(rows + min(high, 0), columns - max(low, 0))


def _band_shape(sizes: tuple[Size, ...], band: tuple[int, int]) -> tuple[Size, ...]:
    """The shape of the diagonals of a tensor of matrices; a single one is a vector."""
    *batch, rows, columns = sizes
    length = None if rows is None or columns is None else _longest((rows, columns), band)
    count = () if band[0] == band[1] else (band[1] - band[0] + 1,)
    return (*batch, *count, length)


def _places(shape: tuple[int, ...], band: tuple[int, int]) -> Iterator[tuple[int, Any, Any, slice]]:
    """For each diagonal, from the top: its index in the band, and the indices of its elements."""
    (rows, columns), (low, high) = shape[-2:], band
    for index, number in enumerate(range(high, low - 1, -1)):
        length = max(_length(rows, columns, number), 0)
        steps = np.arange(length)
        yield index, steps - min(number, 0), steps + max(number, 0), slice(length)


def _as_band(diagonal: Array, band: tuple[int, int]) -> Array:
    """[…, number of diagonals, length], also for a single diagonal, which is given as a vector."""
    return diagonal[..., None, :] if band[0] == band[1] else diagonal


def _filled(output: Array, diagonal: Array, band: tuple[int, int]) -> Array:
    lines = _as_band(diagonal, band)
    for place, row, column, part in _places(output.shape, band):
        output[..., row, column] = lines[..., place, part]
    return output


def _banded(at: IndexTuple, diagonal: Operand, band: tuple[int, int], outside: Expr) -> Expr:
    """An element of a matrix with these diagonals, and `outside` elsewhere."""
    *batch, row, column = at
    number, (low, high) = column - row, band
    if low != high and diagonal.shape[-2] != high - low + 1:
        raise ValueError(f"{diagonal.shape[-2]} diagonals for those from {low} to {high}")
    line = () if low == high else (high - number,)
    inside = (number >= low) & (number <= high)
    return select(inside, diagonal[(*batch, *line, row.min(column))], outside)


class MatrixDiagV2(Op):
    """y[…, i, j] = the element of diagonal j - i, and padding off the diagonals"""

    signature = (
        "diagonal: T, k: int32, num_rows: int32, num_cols: int32, padding_value: T -> output: T; "
        "T: numeric|bool"
    )

    def shape(
        self, diagonal: Tensor, k: Tensor, num_rows: Tensor, num_cols: Tensor, padding_value: Tensor
    ) -> TensorShape:
        sizes = _at_least(diagonal, 1)
        given = [constant_value(tensor) for tensor in (k, num_rows, num_cols)]
        if sizes is None or given[0] is None:
            return unknown_shape()
        band = _band(given[0])
        batch = sizes[: len(sizes) - 1 - (band[0] != band[1])]
        if sizes[-1] is None or given[1] is None or given[2] is None:
            return TensorShape.of((*batch, None, None))
        rows, columns = _matrix_size(sizes[-1], band, int(given[1]), int(given[2]))
        return TensorShape.of((*batch, rows, columns))

    def numpy(
        self, diagonal: Array, k: Array, num_rows: Array, num_cols: Array, padding_value: Array
    ) -> Array:
        _check_rank("input", diagonal, 1)
        band = _band(k)
        size = _matrix_size(diagonal.shape[-1], band, int(num_rows), int(num_cols))
        batch = _as_band(diagonal, band).shape[:-2]
        return _filled(np.full((*batch, *size), padding_value, diagonal.dtype), diagonal, band)

    def loop(
        self,
        at: IndexTuple,
        diagonal: Operand,
        k: Operand,
        num_rows: Operand,
        num_cols: Operand,
        padding_value: Operand,
    ) -> Expr:
        return _banded(at, diagonal, _band(k.constant()), padding_value[()])

    def gradient(self, node: Node, dy: Tensor) -> list[Tensor | None]:
        part = MatrixDiagPartV2()(dy, node.inputs[1], filling.zeros((), dy.dtype))
        return [part, None, None, None, None]


def _matrix_size(length: int, band: tuple[int, int], rows: int, columns: int) -> tuple[int, int]:
    """The size of the matrix of diagonals of at most `length`; -1 is the smallest."""
    least = length - min(band[1], 0), length + max(band[0], 0)
    if rows == columns == -1:
        return max(least), max(least)
    size = (least[0] if rows == -1 else rows), (least[1] if columns == -1 else columns)
    fits = size[0] >= least[0] and size[1] >= least[1]
    if not fits or (size[0] != least[0] and size[1] != least[1]):
        raise ValueError(
            f"A matrix of {size[0]} rows and {size[1]} columns has no diagonals {band[0]} to "
            f"{band[1]} of length {length}"
        )
    return size


def _at_least(tensor: Tensor, rank: int) -> tuple[Size, ...] | None:
    sizes = tensor.shape.sizes
    if sizes is not None and len(sizes) < rank:
        raise ValueError(f"Shape must be at least rank {rank} but is rank {len(sizes)}")
    return sizes


def _text(shape: tuple[Size, ...]) -> str:
    return f"[{','.join(map(str, shape))}]"


def _check_rank(what: str, array: Array, rank: int) -> None:
    if array.ndim < rank:
        raise ValueError(f"{what} must be at least {rank}-dim, received shape: {list(array.shape)}")


@public("matrix_diag", "linalg.diag", "batch_matrix_diag")
def matrix_diag(
    diagonal: Any,
    name: str = "diag",
    k: Any = 0,
    num_rows: Any = -1,
    num_cols: Any = -1,
    padding_value: Any = 0,
) -> Tensor:
    """Matrices with given diagonals.

    Args:
        diagonal: the innermost vectors are the diagonals; for a band, matrices of them as rows.
        name: the name of the node.
        k: which diagonal, or a pair for a band; positive ones lie above the main one.
        num_rows, num_cols: the size; by default the smallest.
        padding_value: the value of other elements.

    Returns:
        A tensor with one more axis.

    Example:
        >>> sess.run(tf.matrix_diag([1, 2]))
        array([[1, 0],
               [0, 2]], dtype=int32)
    """
    padding = _padding(padding_value, diagonal)
    return MatrixDiagV2()(diagonal, k, num_rows, num_cols, padding, name=name)


def _padding(value: Any, beside: Any) -> Any:
    """The padding in the dtype of the diagonal; a number is converted to a bool for bools."""
    bools = hasattr(beside, "dtype") and as_dtype(beside.dtype).base_dtype.is_bool
    return bool(value) if bools and not isinstance(value, Tensor) else value


class MatrixDiagPartV2(Op):
    """y[…, n] = the n-th element of diagonal k of x[…]; of a band, y[…, d, n]"""

    signature = "input: T, k: int32, padding_value: T -> diagonal: T; T: numeric|bool"

    def shape(self, input: Tensor, k: Tensor, padding_value: Tensor) -> TensorShape:
        sizes, known = _at_least(input, 2), constant_value(k)
        if sizes is None or known is None:
            return unknown_shape()
        return TensorShape.of(_band_shape(sizes, _band(known)))

    def numpy(self, input: Array, k: Array, padding_value: Array) -> Array:
        _check_rank("input", input, 2)
        band = _band(k)
        length = _longest(input.shape, band)
        shape = (*input.shape[:-2], band[1] - band[0] + 1, length)
        lines = np.full(shape, padding_value, input.dtype)
        for place, row, column, part in _places(input.shape, band):
            lines[..., place, part] = input[..., row, column]
        return lines[..., 0, :] if band[0] == band[1] else lines

    def loop(self, at: IndexTuple, input: Operand, k: Operand, padding_value: Operand) -> Expr:
        low, high = _band(k.constant())
        batch, (*line, step) = at.split(input.rank - 2)
        number = high - line[0] if line else low
        row, column = step - call("min", number, 0), step + call("max", number, 0)
        inside = (row < input.shape[-2]) & (column < input.shape[-1])
        return select(inside, input[(*batch, row, column)], padding_value[()])

    def gradient(self, node: Node, dy: Tensor) -> list[Tensor | None]:
        x, k, _ = node.inputs
        return [MatrixSetDiagV2()(filling.zeros_like(x), dy, k), None, None]


@public("matrix_diag_part", "linalg.diag_part", "batch_matrix_diag_part")
def matrix_diag_part(
    input: Any, name: str = "diag_part", k: Any = 0, padding_value: Any = 0
) -> Tensor:
    """The diagonals of the innermost matrices.

    Args:
        input: [..., m, n].
        name: the name of the node.
        k: which diagonal, or a pair for a band, whose diagonals become rows.
        padding_value: the padding of short diagonals of a band.

    Returns:
        A tensor with one axis fewer; for a band, of the same rank.

    Example:
        >>> sess.run(tf.matrix_diag_part([[1, 2], [3, 4]]))
        array([1, 4], dtype=int32)
    """
    return MatrixDiagPartV2()(input, k, _padding(padding_value, input), name=name)


class MatrixSetDiagV2(Op):
    """y = x with diagonal k of the innermost matrices replaced"""

    signature = "input: T, diagonal: T, k: int32 -> output: T; T: numeric|bool"

    def shape(self, input: Tensor, diagonal: Tensor, k: Tensor) -> TensorShape:
        sizes, known = _at_least(input, 2), constant_value(k)
        _at_least(diagonal, 1)
        if sizes is None or known is None:
            return input.shape
        wanted = TensorShape.of(_band_shape(sizes, _band(known)))
        batch = wanted.merge_with(diagonal.shape)[: len(sizes) - 2]
        return batch.concatenate(input.shape[-2:])

    def numpy(self, input: Array, diagonal: Array, k: Array) -> Array:
        _check_rank("input", input, 2)
        band = _band(k)
        wanted = _band_shape(input.shape, band)
        if np.shape(diagonal) != wanted:
            raise ValueError(
                f"the diagonal must have shape {_text(wanted)}, but received input shape: "
                f"{_text(input.shape)} and diagonal shape: {_text(np.shape(diagonal))}"
            )
        return _filled(input.copy(), diagonal, band)

    def loop(self, at: IndexTuple, input: Operand, diagonal: Operand, k: Operand) -> Expr:
        return _banded(at, diagonal, _band(k.constant()), input[at])

    def gradient(self, node: Node, dy: Tensor) -> list[Tensor | None]:
        _, diagonal, k = node.inputs
        zero = filling.zeros((), dy.dtype)
        outside = MatrixSetDiagV2()(dy, filling.zeros_like(diagonal), k)
        return [outside, MatrixDiagPartV2()(dy, k, zero), None]


@public("matrix_set_diag", "linalg.set_diag", "batch_matrix_set_diag")
def matrix_set_diag(input: Any, diagonal: Any, name: str = "set_diag", k: Any = 0) -> Tensor:
    """Matrices with their diagonals replaced.

    Args:
        input: [..., m, n].
        diagonal: the new diagonals, as for `tf.matrix_diag`.
        name: the name of the node.
        k: which diagonal, or a pair for a band.

    Returns:
        A tensor of the shape and dtype of `input`.

    Example:
        >>> sess.run(tf.matrix_set_diag([[1, 2], [3, 4]], [8, 9]))
        array([[8, 2],
               [3, 9]], dtype=int32)
    """
    return MatrixSetDiagV2()(input, diagonal, k, name=name)


class MatrixBandPart(Op):
    """y[…, i, j] = x[…, i, j] where i - j <= num_lower and j - i <= num_upper, else 0"""

    signature = (
        "input: T, num_lower: Tindex, num_upper: Tindex -> band: T; T: numeric|bool, Tindex: index"
    )

    def shape(self, input: Tensor, num_lower: Tensor, num_upper: Tensor) -> TensorShape:
        _at_least(input, 2)
        num_lower.shape.assert_has_rank(0)
        num_upper.shape.assert_has_rank(0)
        return input.shape

    def numpy(self, input: Array, num_lower: Array, num_upper: Array) -> Array:
        _check_rank("input", input, 2)
        rows, columns = input.shape[-2:]
        _check_width("num_lower", int(num_lower), "number of rows", rows)
        _check_width("num_upper", int(num_upper), "number of columns", columns)
        row, column = np.indices((rows, columns))
        above = column - row
        inside = (num_lower < 0) | (above >= -num_lower)
        inside = inside & ((num_upper < 0) | (above <= num_upper))
        return np.where(inside, input, np.zeros((), input.dtype))

    def loop(self, at: IndexTuple, input: Operand, num_lower: Operand, num_upper: Operand) -> Expr:
        above, lower, upper = at[-1] - at[-2], num_lower[()], num_upper[()]
        inside = ((lower < 0) | (above >= -lower)) & ((upper < 0) | (above <= upper))
        return select(inside, input[at], zero_of(input))

    def requires(
        self, input: Operand, num_lower: Operand, num_upper: Operand
    ) -> list[RuntimeCheck]:
        rows, columns = input.shape[-2:]
        return [RuntimeCheck((), (num_lower[()] <= rows) & (num_upper[()] <= columns))]

    def gradient(self, node: Node, dy: Tensor) -> list[Tensor | None]:
        _, lower, upper = node.inputs
        return [MatrixBandPart()(dy, lower, upper), None, None]


def _check_width(what: str, width: int, limit: str, most: int) -> None:
    if width > most:
        raise ValueError(
            f"{what} must be negative or less or equal to {limit} ({most}) got: {width}"
        )


@public("matrix_band_part", "linalg.band_part", "batch_matrix_band_part")
def matrix_band_part(
    input: Any, num_lower: TensorLike, num_upper: TensorLike, name: str | None = None
) -> Tensor:
    """The innermost matrices with zeros outside of a band; a negative width keeps a whole side."""
    widths = [num_lower, num_upper]
    if not any(isinstance(width, Tensor) for width in widths):
        widths = [convert_to_tensor(width, dtypes.int64) for width in widths]
    return MatrixBandPart()(input, *widths, name=name)


@public("eye", "linalg.eye")
def eye(
    num_rows: TensorLike,
    num_columns: TensorLike | None = None,
    batch_shape: Any = None,
    dtype: Any = dtypes.float32,
    name: str | None = None,
) -> Tensor:
    """An identity matrix, or a batch of them.

    Args:
        num_rows: the number of rows.
        num_columns: the number of columns; as many as rows if None.
        batch_shape: the shape of the batch.
        dtype: the dtype.
        name: the name of the nodes.

    Returns:
        A tensor [..., num_rows, num_columns].

    Example:
        >>> sess.run(tf.eye(2))
        array([[1., 0.],
               [0., 1.]], dtype=float32)
    """
    columns = num_rows if num_columns is None else num_columns
    with name_scope(name, "eye", [num_rows, num_columns, batch_shape]) as scope:
        shape = _diagonal_shape(num_rows, columns, batch_shape)
        ones = filling.ones(shape, as_dtype(dtype))
        return matrix_diag(ones, num_rows=num_rows, num_cols=columns, name=scope)


def _diagonal_shape(rows: Any, columns: Any, batch_shape: Any) -> Any:
    dynamic = any(isinstance(size, Tensor) for size in (rows, columns))
    length = arithmetic.minimum(rows, columns) if dynamic else min(int(rows), int(columns))
    if batch_shape is None:
        return [length]
    batch = shaping.shape_tensor(batch_shape)
    known = constant_value(batch)
    if known is not None and not dynamic:
        return [*known.tolist(), length]
    tail = convert_to_tensor([length], batch.dtype.base_dtype)
    return joining.concat([batch, tail], 0)


@public("trace", "linalg.trace")
def trace(x: Any, name: str | None = None) -> Tensor:
    """The sums of the main diagonals of the innermost matrices.

    Args:
        x: a numeric tensor [..., m, n].
        name: the name of the nodes.

    Returns:
        A tensor of the shape of `x` without its last two axes.

    Example:
        >>> sess.run(tf.trace([[1, 2], [3, 4]]))
        np.int32(5)
    """
    with name_scope(name, "Trace", [x]) as scope:
        return reduce.reduce_sum(matrix_diag_part(x), [-1], name=scope)
