"""Updates of parts of variables: rows (`scatter_*`) and slices (`scatter_nd_*`).

All indices and shapes are checked before the first element is written, so a failed update leaves
the variable unchanged. Updates at repeated indices accumulate; of plain assignments the last one
wins.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, ClassVar

import numpy as np

from thalweg import errors
from thalweg.graph.convert import convert_to_tensor
from thalweg.graph.node import Tensor
from thalweg.graph.scopes import name_scope
from thalweg.graph.shapes import TensorShape
from thalweg.ir import loop
from thalweg.ir.expr import Expr
from thalweg.ir.loop import IndexTuple, NotLowered, Operand, Scatter
from thalweg.ops.arrays import joining
from thalweg.ops.arrays.indexing import INVALID_COORDINATE, check_updates, check_within, coordinates
from thalweg.ops.core import filling, shaping
from thalweg.ops.core.context import Context, VariableCell
from thalweg.ops.state.state import Update
from thalweg.platform.arrays import Array
from thalweg.public import public

#: (buffer, where, updates): updates the elements of a buffer at an index
Change = Callable[[Array, Any, Array], None]


def _put(buffer: Array, where: Any, updates: Array) -> None:
    buffer[where] = updates


def _divide(buffer: Array, where: Any, updates: Array) -> None:
    if buffer.dtype.kind not in "iu":
        np.true_divide.at(buffer, where, updates)
        return
    if not np.all(updates):
        raise errors.invalid("Integer division by zero")
    # Integer division truncates, as in C, so repeated indices are divided one by one.
    indices: Array = np.reshape(where, -1)
    for index, divisor in zip(indices, _rows(updates, buffer, where), strict=True):
        quotient = np.abs(buffer[index]) // np.abs(divisor)
        buffer[index] = quotient * np.sign(buffer[index]) * np.sign(divisor)


def _rows(updates: Array, buffer: Array, where: Any) -> Array:
    return np.broadcast_to(updates, np.shape(where) + buffer.shape[1:]).reshape(
        (-1, *buffer.shape[1:])
    )


class PartialUpdate(Update, abstract=True):
    """Combines updates with the elements of a variable at given indices."""

    signature = (
        "ref: &T, indices: Tindices, updates: T -> output_ref: &T; T: numeric, Tindices: index"
    )
    change: ClassVar[Change]
    combine: ClassVar[str]

    def update(self, value: Expr) -> Expr:
        """The value that is combined into the variable, computed from an element of updates."""
        return value


class ScatterOp(PartialUpdate, abstract=True):
    """ref[indices[i…]] ∘= updates[i…]"""

    function: ClassVar[np.ufunc | None] = None  # faster than `change` if no row is repeated

    def shape(self, ref: Tensor, indices: Tensor, updates: Tensor) -> TensorShape:
        if updates.shape.rank != 0 and ref.shape.rank is not None:
            indices.shape.concatenate(ref.shape[1:]).assert_is_compatible_with(updates.shape)
        return ref.shape

    def kernel(
        self, context: Context, ref: VariableCell, indices: Array, updates: Array
    ) -> VariableCell:
        change, function = type(self).change, self.function

        def write(buffer: Array) -> None:
            _check_rows(buffer, indices, updates, ref.name)
            rows, values = np.asarray(indices), np.asarray(updates)
            if function is not None and _are_ascending(rows):
                buffer[rows] = function(buffer[rows], values)  # several times faster
            else:
                change(buffer, rows, values)

        ref.update(write)
        return ref

    def loop(self, at: IndexTuple, ref: Operand, indices: Operand, updates: Operand) -> Scatter:
        if not ref.rank:
            raise ValueError("a scalar has no rows")

        def write(*k: Expr) -> tuple[tuple[Expr, ...], Expr]:
            row, rest = indices[k[: indices.rank]], k[indices.rank :]
            return (row, *rest), self.update(updates.broadcast(k))

        extents = indices.shape + ref.shape[1:]
        return loop.scatter(self.combine, extents, write, ref[at])


def _are_ascending(indices: Array) -> bool:
    """Whether indices are sorted and distinct, as those of an accumulator are."""
    return indices.ndim == 1 and bool((indices[1:] > indices[:-1]).all())


def _check_rows(buffer: Array, indices: Array, updates: Array, name: str) -> None:
    if buffer.ndim == 0:
        raise errors.invalid(f"{name} is a scalar: it has no rows")
    wanted = np.shape(indices) + buffer.shape[1:]
    if np.ndim(updates) and np.shape(updates) != wanted:
        raise errors.invalid(
            "Must have updates.shape = indices.shape + params.shape[1:], got "
            f"updates.shape {list(np.shape(updates))}, indices.shape {list(np.shape(indices))}, "
            f"params.shape {list(buffer.shape)}"
        )
    check_within(indices, buffer.shape[0])


class ScatterUpdate(ScatterOp):
    """ref[indices[i…]] = updates[i…]"""

    signature = "ref: &T, indices: Tindices, updates: T -> output_ref: &T; Tindices: index"
    change = staticmethod(_put)
    combine = "set"
    use_locking: bool = True


class ScatterAdd(ScatterOp):
    """ref[indices[i…]] += updates[i…]"""

    change = np.add.at
    function = np.add
    combine = "sum"


class ScatterSub(ScatterOp):
    """ref[indices[i…]] -= updates[i…]"""

    change = np.subtract.at
    function = np.subtract
    combine = "sum"

    def update(self, value: Expr) -> Expr:
        return -value


class ScatterMul(ScatterOp):
    """ref[indices[i…]] *= updates[i…]"""

    change = np.multiply.at
    combine = "prod"


class ScatterDiv(ScatterOp):
    """ref[indices[i…]] /= updates[i…]"""

    change = staticmethod(_divide)
    combine = "prod"

    def loop(self, at: IndexTuple, ref: Operand, indices: Operand, updates: Operand) -> Scatter:
        if ref.dtype.kind in "iu":
            raise NotLowered("integers have no inverses to multiply by")
        return super().loop(at, ref, indices, updates)

    def update(self, value: Expr) -> Expr:
        return 1 / value


class ScatterMin(ScatterOp):
    """ref[indices[i…]] = min(ref[indices[i…]], updates[i…])"""

    signature = "ref: &T, indices: Tindices, updates: T -> output_ref: &T; T: real, Tindices: index"
    change = np.minimum.at
    combine = "min"


class ScatterMax(ScatterOp):
    """ref[indices[i…]] = max(ref[indices[i…]], updates[i…])"""

    signature = "ref: &T, indices: Tindices, updates: T -> output_ref: &T; T: real, Tindices: index"
    change = np.maximum.at
    combine = "max"


@public("scatter_update")
def scatter_update(
    ref: Any, indices: Any, updates: Any, use_locking: bool = True, name: str | None = None
) -> Tensor:
    """Set rows of a variable.

    Args:
        ref: a variable.
        indices: row numbers of any shape.
        updates: a tensor of the shape of `indices`, then that of a row.
        use_locking: taken for old programs; updates are always whole.
        name: the name of the node.

    Returns:
        A tensor that reads the new value.

    Example:
        >>> v = tf.Variable([1, 2, 3])
        >>> sess.run(v.initializer)
        >>> sess.run(tf.scatter_update(v, [0], [9]))
        array([9, 2, 3], dtype=int32)
    """
    return ScatterUpdate(use_locking=use_locking)(ref, indices, updates, name=name)


@public("scatter_add")
def scatter_add(
    ref: Any, indices: Any, updates: Any, use_locking: bool = False, name: str | None = None
) -> Tensor:
    """Add to rows of a variable.

    Args:
        ref: a variable.
        indices: row numbers of any shape; repeated ones accumulate.
        updates: a tensor of the shape of `indices`, then that of a row.
        use_locking: taken for old programs; updates are always whole.
        name: the name of the node.

    Returns:
        A tensor that reads the new value.

    Example:
        >>> v = tf.Variable([1, 2, 3])
        >>> sess.run(v.initializer)
        >>> sess.run(tf.scatter_add(v, [0, 2], [10, 30]))
        array([11,  2, 33], dtype=int32)
    """
    return ScatterAdd(use_locking=use_locking)(ref, indices, updates, name=name)


@public("scatter_sub")
def scatter_sub(
    ref: Any, indices: Any, updates: Any, use_locking: bool = False, name: str | None = None
) -> Tensor:
    """Subtract from rows of a variable.

    Args:
        ref: a variable.
        indices: row numbers of any shape.
        updates: a tensor of the shape of `indices`, then that of a row.
        use_locking: taken for old programs; updates are always whole.
        name: the name of the node.

    Returns:
        A tensor that reads the new value.

    Example:
        >>> v = tf.Variable([1, 2, 3])
        >>> sess.run(v.initializer)
        >>> sess.run(tf.scatter_sub(v, [0, 2], [1, 1]))
        array([0, 2, 2], dtype=int32)
    """
    return ScatterSub(use_locking=use_locking)(ref, indices, updates, name=name)


@public("scatter_mul")
def scatter_mul(
    ref: Any, indices: Any, updates: Any, use_locking: bool = False, name: str | None = None
) -> Tensor:
    """Multiply rows of a variable; the result reads the new value.

    Args:
        ref: a variable.
        indices: the rows.
        updates: the factors, with a row for each index.
        use_locking: whether updates exclude each other.
        name: the name of the node.

    Returns:
        A tensor that reads the new value.

    Example:
        >>> v = tf.Variable([1, 2, 3])
        >>> sess.run(v.initializer)
        >>> sess.run(tf.scatter_mul(v, [0, 2], [5, 5]))
        array([ 5,  2, 15], dtype=int32)
    """
    return ScatterMul(use_locking=use_locking)(ref, indices, updates, name=name)


@public("scatter_div")
def scatter_div(
    ref: Any, indices: Any, updates: Any, use_locking: bool = False, name: str | None = None
) -> Tensor:
    """Divide rows of a variable; the result reads the new value."""
    return ScatterDiv(use_locking=use_locking)(ref, indices, updates, name=name)


@public("scatter_min")
def scatter_min(
    ref: Any, indices: Any, updates: Any, use_locking: bool = False, name: str | None = None
) -> Tensor:
    """Take the smaller of a variable's rows and `updates`; the result reads the new value."""
    return ScatterMin(use_locking=use_locking)(ref, indices, updates, name=name)


@public("scatter_max")
def scatter_max(
    ref: Any, indices: Any, updates: Any, use_locking: bool = False, name: str | None = None
) -> Tensor:
    """Take the larger of a variable's rows and `updates`; the result reads the new value."""
    return ScatterMax(use_locking=use_locking)(ref, indices, updates, name=name)


class ScatterNdOp(PartialUpdate, abstract=True):
    """ref[indices[i…, :]] ∘= updates[i…]"""

    def shape(self, ref: Tensor, indices: Tensor, updates: Tensor) -> TensorShape:
        check_updates(indices.shape, updates.shape, ref.shape, "ref")
        return ref.shape

    def kernel(
        self, context: Context, ref: VariableCell, indices: Array, updates: Array
    ) -> VariableCell:
        change = type(self).change

        def write(buffer: Array) -> None:
            check_updates(_shape_of(indices), _shape_of(updates), _shape_of(buffer), "ref")
            where = coordinates(indices, buffer.shape, INVALID_COORDINATE)
            change(buffer, where, np.asarray(updates))

        ref.update(write)
        return ref

    def loop(self, at: IndexTuple, ref: Operand, indices: Operand, updates: Operand) -> Scatter:
        *outer, depth = indices.shape

        def write(*k: Expr) -> tuple[tuple[Expr, ...], Expr]:
            place, rest = k[: len(outer)], k[len(outer) :]
            start = tuple(indices[(*place, axis)] for axis in range(depth))
            return start + rest, self.update(updates[k])

        return loop.scatter(self.combine, (*outer, *ref.shape[depth:]), write, ref[at])


def _shape_of(array: Array) -> TensorShape:
    """The shape of an array as a static shape."""
    return TensorShape.of(np.shape(array))


class ScatterNdUpdate(ScatterNdOp):
    """ref[indices[i…, :]] = updates[i…]"""

    signature = "ref: &T, indices: Tindices, updates: T -> output_ref: &T; Tindices: index"
    change = staticmethod(_put)
    combine = "set"
    use_locking: bool = True


class ScatterNdAdd(ScatterNdOp):
    """ref[indices[i…, :]] += updates[i…]"""

    change = np.add.at
    combine = "sum"


class ScatterNdSub(ScatterNdOp):
    """ref[indices[i…, :]] -= updates[i…]"""

    change = np.subtract.at
    combine = "sum"

    def update(self, value: Expr) -> Expr:
        return -value


@public("scatter_nd_update")
def scatter_nd_update(
    ref: Any, indices: Any, updates: Any, use_locking: bool = True, name: str | None = None
) -> Tensor:
    """Set slices of a variable; the result reads the new value."""
    return ScatterNdUpdate(use_locking=use_locking)(ref, indices, updates, name=name)


@public("scatter_nd_add")
def scatter_nd_add(
    ref: Any, indices: Any, updates: Any, use_locking: bool = False, name: str | None = None
) -> Tensor:
    """Add to slices of a variable; the result reads the new value."""
    return ScatterNdAdd(use_locking=use_locking)(ref, indices, updates, name=name)


@public("scatter_nd_sub")
def scatter_nd_sub(
    ref: Any, indices: Any, updates: Any, use_locking: bool = False, name: str | None = None
) -> Tensor:
    """Subtract from slices of a variable; the result reads the new value."""
    return ScatterNdSub(use_locking=use_locking)(ref, indices, updates, name=name)


@public("batch_scatter_update")
def batch_scatter_update(
    ref: Any, indices: Any, updates: Any, use_locking: bool = True, name: str | None = None
) -> Tensor:
    """ref[b…, indices[b…, i]] = updates[b…, i]: sets rows of each member of a batch."""
    with name_scope(name, "batch_scatter_update", [ref, indices, updates]) as scope:
        rows = convert_to_tensor(indices, name="indices")
        places = _batch_places(rows)
        return scatter_nd_update(ref, places, updates, use_locking, name=scope)


def _batch_places(rows: Tensor) -> Tensor:
    """The coordinates of each index: its position in the batch, then the index itself."""
    rank = len(rows.shape)
    sizes = shaping.shape(rows, out_type=rows.dtype.base_dtype)
    zeros = filling.zeros_like(rows)
    places: list[Tensor] = []
    for axis in range(rank - 1):
        along = [-1 if other == axis else 1 for other in range(rank)]
        places.append(zeros + shaping.reshape(filling.range(sizes[axis]), along))
    return joining.stack([*places, rows], axis=-1)
