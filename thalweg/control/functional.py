"""Functions applied along the first axis: `map_fn`, `foldl`, `foldr` and `scan`.

Each is a loop over row indices. The input rows are the entries of a list that shares the memory of
the tensor; the output rows fill a list whose memory becomes the result.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

from thalweg.control.loops import while_loop
from thalweg.control.tensor_array import TensorArray
from thalweg.graph import nest
from thalweg.graph.composite import SparseTensor
from thalweg.graph.convert import convert_to_tensor
from thalweg.graph.dtypes import DType, as_dtype, int32
from thalweg.graph.likes import Structure, TensorStructure
from thalweg.graph.node import Tensor
from thalweg.graph.origin import user_line
from thalweg.graph.scopes import name_scope
from thalweg.graph.shapes import TensorShape
from thalweg.ops.core import shaping
from thalweg.public import public

Function = Callable[..., Any]


class Rows:
    """A structure of tensors that a loop reads row by row, forwards or in reverse."""

    def __init__(self, structure: Any, reverse: bool = False) -> None:
        self._structure = structure
        tensors = [convert_to_tensor(leaf, name="elem") for leaf in nest.flatten(structure)]
        if not tensors:
            raise ValueError(f"elems must have at least one tensor (at {user_line()})")
        self.dtypes = [tensor.dtype.base_dtype for tensor in tensors]
        static_count = _static_count(tensors)
        self._count: Any = shaping.shape(tensors[0])[0] if static_count is None else static_count
        self._lists = [self._list(tensor) for tensor in tensors]
        self.first, self.step = (self._count - 1, -1) if reverse else (0, 1)

    def _list(self, tensor: Tensor) -> TensorArray:
        # Each row is read once: no need to clear it.
        shape = tensor.shape[1:]
        rows = TensorArray(tensor.dtype, self._count, clear_after_read=False, element_shape=shape)
        return rows.unstack(tensor)

    def has_row(self, index: Tensor, *_: Any) -> Tensor:
        """Whether an index is in range: the condition of a loop over the rows."""
        return index >= 0 if self.step < 0 else index < self._count

    def read(self, index: Any) -> Any:
        """Row `index` of all tensors, in the structure."""
        return nest.pack_sequence_as(self._structure, [rows.read(index) for rows in self._lists])

    def new_results(self, dtypes: Sequence[DType], infer_shape: bool) -> list[TensorArray]:
        """Lists for a loop to fill, with an entry for each row."""
        return [
            TensorArray(
                dtype, self._count, clear_after_read=False, infer_shape=infer_shape, name="results"
            )
            for dtype in dtypes
        ]


def _write(lists: Sequence[TensorArray], index: Any, values: Sequence[Any]) -> list[TensorArray]:
    return [array.write(index, value) for array, value in zip(lists, values, strict=True)]


def _static_count(tensors: Sequence[Tensor]) -> int | None:
    """The number of rows, if it is static."""
    first = TensorShape([None])
    for tensor in tensors:
        if tensor.shape.rank == 0:
            raise ValueError(
                "elements in elems must be 1+ dimensional Tensors, not scalars: "
                f"{tensor.name} (at {user_line()})"
            )
        if not first.is_compatible_with(tensor.shape[:1]):
            raise ValueError(
                f"Dimension 0 of all elems must be the same: of {tensor.name} it is "
                f"{tensor.shape.as_list()[0]}, of others {first.as_list()[0]} (at {user_line()})"
            )
        first = first.merge_with(tensor.shape[:1])
    return first.as_list()[0]


def _check_function(fn: Any) -> None:
    if not callable(fn):
        raise TypeError(f"fn must be callable. (at {user_line()})")


@public("map_fn")
def map_fn(
    fn: Function,
    elems: TensorStructure,
    dtype: Structure = None,
    parallel_iterations: int | None = None,
    back_prop: bool = True,
    swap_memory: bool = False,
    infer_shape: bool = True,
    name: str | None = None,
) -> Structure:
    """Apply a function to every row of `elems`, and stack the results.

    Args:
        fn: a function of a row, or of a nesting of rows.
        elems: a tensor [rows, ...], or a nesting of such.
        dtype: the structure and dtypes of the results, where they are not those of `elems`.
        parallel_iterations: how many iterations may overlap, where a loop is not compiled.
        swap_memory: for compatibility; no effect.
        back_prop: whether gradients can be taken.
        infer_shape: False lets the results of the rows differ in shape.
        name: the name of the node.

    Returns:
        A tensor [rows, ...], or a nesting of such.

    Example:
        >>> sess.run(tf.map_fn(lambda row: row[::-1], np.array([[1, 2], [3, 4]])))
        array([[2, 1],
               [4, 3]])
    """
    _check_function(fn)
    if any(isinstance(leaf, SparseTensor) for leaf in nest.flatten(elems)):
        raise TypeError(
            "To perform a map over the values of a sparse tensor use "
            "SparseTensor(input.indices, fn(input.values), input.dense_shape) or "
            "SparseTensor(input.indices, map_fn(fn, input.values), input.dense_shape)"
        )
    with name_scope(name, "map", nest.flatten(elems)):
        rows = Rows(elems)
        like = elems if dtype is None else dtype
        dtypes = rows.dtypes if dtype is None else [as_dtype(d) for d in nest.flatten(dtype)]

        def iterate(index: Tensor, results: Sequence[TensorArray]) -> Any:
            values = fn(rows.read(index))
            nest.assert_same_structure(like, values)
            return index + 1, _write(results, index, nest.flatten(values))

        initial = convert_to_tensor(0, int32), rows.new_results(dtypes, infer_shape)
        options = parallel_iterations or 10, back_prop
        _, results = while_loop(rows.has_row, iterate, initial, None, *options)
        return nest.pack_sequence_as(like, [result.stack() for result in results])


@public("foldl")
def foldl(
    fn: Function,
    elems: TensorStructure,
    initializer: TensorStructure | None = None,
    parallel_iterations: int = 10,
    back_prop: bool = True,
    swap_memory: bool = False,
    name: str | None = None,
) -> Structure:
    """`fn(fn(fn(initializer, row 0), row 1), …)`; row 0 is the initializer if it is None."""
    with name_scope(name, "foldl", nest.flatten(elems)):
        return _fold(fn, elems, initializer, False, parallel_iterations, back_prop)


@public("foldr")
def foldr(
    fn: Function,
    elems: TensorStructure,
    initializer: TensorStructure | None = None,
    parallel_iterations: int = 10,
    back_prop: bool = True,
    swap_memory: bool = False,
    name: str | None = None,
) -> Structure:
    """As `foldl`, from the last row to the first."""
    with name_scope(name, "foldr", nest.flatten(elems)):
        return _fold(fn, elems, initializer, True, parallel_iterations, back_prop)


def _fold(fn: Function, elems: Any, initializer: Any, reverse: bool, *options: Any) -> Any:
    _check_function(fn)
    rows = Rows(elems, reverse)
    first, value = _initial(rows, initializer)

    def iterate(index: Tensor, value: Any) -> Any:
        return index + rows.step, _next_value(value, fn(value, rows.read(index)))

    initial = convert_to_tensor(first, int32), value
    _, result = while_loop(rows.has_row, iterate, initial, None, *options)
    return result


def _initial(rows: Rows, initializer: Any) -> tuple[Any, Any]:
    """The first row index of a fold and its initial value: the first row if there is none."""
    if initializer is None:
        value = rows.read(rows.first)
        return rows.first + rows.step, value
    to_tensor = partial(convert_to_tensor, name="initializer")
    return rows.first, nest.map_structure(to_tensor, initializer)


@public("scan")
def scan(
    fn: Function,
    elems: TensorStructure,
    initializer: TensorStructure | None = None,
    parallel_iterations: int = 10,
    back_prop: bool = True,
    swap_memory: bool = False,
    infer_shape: bool = True,
    reverse: bool = False,
    name: str | None = None,
) -> Structure:
    """Fold a function over the rows of `elems`, and stack all intermediate values.

    Args:
        fn: a function of the value so far and a row, which returns the next value.
        elems: a tensor [rows, ...], or a nesting of such.
        initializer: the initial value; the first row if None.
        parallel_iterations: how many iterations may overlap, where a loop is not compiled.
        swap_memory: for compatibility; no effect.
        back_prop: whether gradients can be taken.
        infer_shape: False lets the values differ in shape.
        reverse: go from the last row to the first; each value is at the index of its row.
        name: the name of the node.

    Returns:
        A tensor with a row for each value.

    Example:
        >>> sess.run(tf.scan(lambda total, x: total + x, np.array([1, 2, 3, 4])))
        array([ 1,  3,  6, 10])
    """
    _check_function(fn)
    with name_scope(name, "scan", nest.flatten(elems)):
        rows = Rows(elems, reverse)
        first, value = _initial(rows, initializer)
        results = rows.new_results([t.dtype.base_dtype for t in nest.flatten(value)], infer_shape)
        if initializer is None:
            results = _write(results, rows.first, nest.flatten(value))

        def iterate(index: Tensor, value: Any, results: Sequence[TensorArray]) -> Any:
            new = _next_value(value, fn(value, rows.read(index)))
            return index + rows.step, new, _write(results, index, nest.flatten(new))

        initial = convert_to_tensor(first, int32), value, results
        options = parallel_iterations, back_prop
        _, _, results = while_loop(rows.has_row, iterate, initial, None, *options)
        return nest.pack_sequence_as(value, [result.stack() for result in results])


def _next_value(value: Any, new: Any) -> Any:
    """The new value of a fold, which must have the structure of the old one."""
    nest.assert_same_structure(value, new)
    return new
