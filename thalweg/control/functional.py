"""Functions applied along the first axis: `map_fn`, `foldl`, `foldr` and `scan`.

Each is a loop over row numbers. The rows that come in are the entries of a list that takes the
tensor over without a copy; the rows that go out fill a list whose memory is the result.
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
    """A structure of tensors, to be read row by row: row k of all of them at once."""

    def __init__(self, structure: Any) -> None:
        self.structure = structure
        tensors = [convert_to_tensor(leaf, name="elem") for leaf in nest.flatten(structure)]
        if not tensors:
            raise ValueError(f"elems must have at least one tensor (at {user_line()})")
        self.dtypes = [tensor.dtype.base_dtype for tensor in tensors]
        self.fixed_count = _count(tensors)
        self.count: Any = self.fixed_count
        if self.count is None:
            self.count = shaping.shape(tensors[0])[0]
        self._lists = [self._list(tensor) for tensor in tensors]

    def _list(self, tensor: Tensor) -> TensorArray:
        rank = tensor.shape.rank
        element = None if rank is None else tensor.shape[1:]
        # Each row is read once: no need to clear it.
        entries = TensorArray(
            tensor.dtype, self.count, clear_after_read=False, element_shape=element
        )
        return entries.unstack(tensor)

    def ends(self, reverse: bool) -> tuple[Any, int]:
        """The number of the first row to read, and the step to the next one."""
        return (self.count - 1, -1) if reverse else (0, 1)

    def has_row(self, reverse: bool, at: Tensor, *_: Any) -> Tensor:
        """Whether there is a row of that number, going forwards or backwards."""
        return at >= 0 if reverse else at < self.count

    def read(self, index: Any) -> Any:
        """Row `index`, in the form of the structure."""
        return nest.pack_sequence_as(self.structure, [each.read(index) for each in self._lists])


class Gathered:
    """The rows of results: lists that a loop fills."""

    def __init__(self, rows: Rows, dtypes: Sequence[DType], infer_shape: bool) -> None:
        self._rows = rows
        self.lists = [
            TensorArray(
                dtype, rows.count, clear_after_read=False, infer_shape=infer_shape, name="results"
            )
            for dtype in dtypes
        ]

    def tensors(self, lists: Sequence[TensorArray]) -> list[Tensor]:
        """The filled lists as tensors."""
        found = [each.stack() for each in lists]
        for tensor in found:
            if tensor.shape.rank is not None:
                tensor.set_shape(
                    TensorShape([self._rows.fixed_count]).concatenate(tensor.shape[1:])
                )
        return found


def _write(lists: Sequence[TensorArray], index: Any, values: Sequence[Any]) -> list[TensorArray]:
    return [each.write(index, value) for each, value in zip(lists, values, strict=True)]


def _count(tensors: Sequence[Tensor]) -> int | None:
    """How many rows there are, where the shapes tell."""
    first = TensorShape([None])
    for tensor in tensors:
        if tensor.shape.rank is None:
            continue
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
    """A function of every row of `elems`, the results stacked.

    Args:
        fn: a function of a row, or of a nesting of rows.
        elems: a tensor [rows, ...], or a nesting of such.
        dtype: the structure and dtypes of the results, where they are not those of `elems`.
        parallel_iterations: how many iterations may overlap, where a loop is not compiled.
        swap_memory: taken for old programs.
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
        gathered = Gathered(rows, dtypes, infer_shape)

        def iterate(at: Tensor, lists: Sequence[TensorArray]) -> Any:
            values = fn(rows.read(at))
            nest.assert_same_structure(like, values)
            return at + 1, _write(lists, at, nest.flatten(values))

        options = (parallel_iterations or 10, back_prop, swap_memory)
        start = convert_to_tensor(0, int32), gathered.lists
        _, lists = while_loop(partial(rows.has_row, False), iterate, start, None, *options)
        return nest.pack_sequence_as(like, gathered.tensors(lists))


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
    """`fn(fn(fn(initializer, row 0), row 1), …)`; without one, row 0 is the initializer."""
    with name_scope(name, "foldl", nest.flatten(elems)):
        options = (parallel_iterations, back_prop, swap_memory)
        return _fold(fn, elems, initializer, False, *options)


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
        options = (parallel_iterations, back_prop, swap_memory)
        return _fold(fn, elems, initializer, True, *options)


def _fold(fn: Function, elems: Any, initializer: Any, reverse: bool, *options: Any) -> Any:
    _check_function(fn)
    rows = Rows(elems)
    begin, step = rows.ends(reverse)
    held = rows.read(begin) if initializer is None else _tensors(initializer)
    if initializer is None:
        begin = begin + step

    def iterate(at: Tensor, held: Any) -> Any:
        return at + step, _same(held, fn(held, rows.read(at)))

    start = convert_to_tensor(begin, int32), held
    _, result = while_loop(partial(rows.has_row, reverse), iterate, start, None, *options)
    return result


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
    """A function carried from row to row, all values on the way stacked.

    Args:
        fn: a function of the value so far and a row, which returns the next value.
        elems: a tensor [rows, ...], or a nesting of such.
        initializer: the value to begin with; the first row if None.
        parallel_iterations: how many iterations may overlap, where a loop is not compiled.
        swap_memory: taken for old programs.
        back_prop: whether gradients can be taken.
        infer_shape: False lets the values differ in shape.
        reverse: go from the last row to the first, each value at the place of its row.
        name: the name of the node.

    Returns:
        A tensor with a row for each value.

    Example:
        >>> sess.run(tf.scan(lambda total, x: total + x, np.array([1, 2, 3, 4])))
        array([ 1,  3,  6, 10])
    """
    _check_function(fn)
    with name_scope(name, "scan", nest.flatten(elems)):
        rows = Rows(elems)
        begin, step = rows.ends(reverse)
        held = rows.read(begin) if initializer is None else _tensors(initializer)
        gathered = Gathered(rows, [t.dtype.base_dtype for t in nest.flatten(held)], infer_shape)
        lists = gathered.lists
        if initializer is None:
            lists = _write(lists, begin, nest.flatten(held))
            begin = begin + step

        def iterate(at: Tensor, held: Any, lists: Sequence[TensorArray]) -> Any:
            new = _same(held, fn(held, rows.read(at)))
            return at + step, new, _write(lists, at, nest.flatten(new))

        options = (parallel_iterations, back_prop, swap_memory)
        start = convert_to_tensor(begin, int32), held, lists
        _, _, lists = while_loop(partial(rows.has_row, reverse), iterate, start, None, *options)
        return nest.pack_sequence_as(held, gathered.tensors(lists))


def _tensors(structure: Any) -> Any:
    return nest.map_structure(_initializer, structure)


def _initializer(value: Any) -> Tensor:
    return convert_to_tensor(value, name="initializer")


def _same(held: Any, new: Any) -> Any:
    """What a function made of what it held: it must have the same structure."""
    nest.assert_same_structure(held, new)
    return new
