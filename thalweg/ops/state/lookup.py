"""Ops on lookup tables: handles of a session's tables, and operations on them.

The names, inputs and attributes are those of TensorFlow's ops with resource handles (V2); the older
ops are imported as these. `thalweg.data.lookup` has the public classes.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, cast

import numpy as np

from thalweg import errors
from thalweg.graph.analysis.effects import Resource, reads, writes
from thalweg.graph.dtypes import DType, string
from thalweg.graph.node import Tensor
from thalweg.graph.op import Op
from thalweg.graph.shapes import TensorShape, scalar, unknown_shape
from thalweg.ops.core.context import Context
from thalweg.ops.state.table_state import DenseTable, StaticTable, Table
from thalweg.ops.text import text
from thalweg.platform.arrays import Array
from thalweg.platform.files.gfile import GFile

WHOLE_LINE = -2
LINE_NUMBER = -1


class TableOp(Op, abstract=True):
    """The flags of all ops on tables."""

    stateful = True
    host_only = True
    not_differentiable = True


# Handles


class TableHandle(TableOp, abstract=True):
    """A handle of one of the session's tables."""

    signature = "-> table_handle: resource"
    container: str = ""
    shared_name: str = ""
    use_node_name_sharing: bool = False
    key_dtype: DType
    value_dtype: DType

    def shape(self, *_: Tensor) -> TensorShape:
        return scalar()

    def get_or_create(self, context: Context, make: Callable[[str], Table], kind: str) -> Table:
        """The table, created on first use."""
        name = self.shared_name or context.node.name
        table: Any = context.resource(name, self.container, lambda: make(name))
        wanted = f"{kind} of {self.key_dtype.name} to {self.value_dtype.name}"
        if not isinstance(table, Table) or _described(table) != wanted:
            is_other = _described(table) if isinstance(table, Table) else type(table).__name__
            raise errors.invalid(f"'{name}' is a {is_other}, not a {wanted}")
        return table


def _sizes(shape: TensorShape) -> tuple[int, ...]:
    if not shape.is_fully_defined():
        raise errors.invalid(f"The values of a table must have a known shape, not {shape}")
    return tuple(cast("list[int]", shape.as_list()))


def _described(table: Table) -> str:
    return f"{table.kind} of {table.key_dtype.name} to {table.value_dtype.name}"


class HashTableV2(TableHandle):
    """A handle of a static table, filled by an initializer"""

    def kernel(self, context: Context) -> Table:
        def make(name: str) -> Table:
            return StaticTable(name, self.key_dtype, self.value_dtype)

        return self.get_or_create(context, make, StaticTable.kind)


class MutableHashTableV2(TableHandle):
    """A handle of a mutable table whose values are scalars"""

    def kernel(self, context: Context) -> Table:
        def make(name: str) -> Table:
            return Table(name, self.key_dtype, self.value_dtype)

        return self.get_or_create(context, make, Table.kind)


class MutableHashTableOfTensorsV2(TableHandle):
    """A handle of a mutable table whose values are tensors of one shape"""

    value_shape: TensorShape = TensorShape([])

    def kernel(self, context: Context) -> Table:
        def make(name: str) -> Table:
            sizes = _sizes(self.value_shape)
            return Table(name, self.key_dtype, self.value_dtype, value_shape=sizes)

        return self.get_or_create(context, make, Table.kind)


class MutableDenseHashTableV2(TableHandle):
    """A handle of a mutable table with two reserved keys"""

    signature = "empty_key: key_dtype, deleted_key: key_dtype -> table_handle: resource"
    effects = ()  # it only creates the table
    key_dtype: DType
    value_shape: TensorShape = TensorShape([])
    initial_num_buckets: int = 131072
    max_load_factor: float = 0.8

    def kernel(self, context: Context, empty_key: Array, deleted_key: Array) -> Table:
        def make(name: str) -> Table:
            sizes = _sizes(self.value_shape)
            return DenseTable(name, self.key_dtype, self.value_dtype, sizes, empty_key, deleted_key)

        return self.get_or_create(context, make, DenseTable.kind)


# Operations


class LookupTableFindV2(TableOp):
    """The values of keys, or the default for keys that are missing."""

    signature = "table_handle: resource, keys: Tin, default_value: Tout -> values: Tout"
    effects = (reads("table_handle"),)

    def shape(self, table_handle: Tensor, keys: Tensor, default_value: Tensor) -> TensorShape:
        # Only for scalar keys and values does the result have the shape of `keys`.
        known_scalars = isinstance(table_handle.op.op, HashTableV2 | MutableHashTableV2)
        return keys.shape if known_scalars else unknown_shape()

    def kernel(self, context: Context, table_handle: Table, keys: Any, default: Any) -> Array:
        _check_types(context, table_handle)
        return table_handle.find(keys, default)


class Updating(TableOp, abstract=True):
    """An op that changes a table and has no outputs."""

    def shape(self, *_: Tensor) -> list[TensorShape]:
        return []


class LookupTableInsertV2(Updating):
    """Inserts keys with values, overwriting those of existing keys."""

    signature = "table_handle: resource, keys: Tin, values: Tout ->"

    def kernel(self, context: Context, table_handle: Table, keys: Any, values: Any) -> Any:
        _check_types(context, table_handle)
        table_handle.insert(keys, values)
        return ()


class LookupTableRemoveV2(Updating):
    """Removes keys; missing ones are ignored."""

    signature = "table_handle: resource, keys: Tin ->"

    def kernel(self, context: Context, table_handle: Table, keys: Any) -> Any:
        _check_types(context, table_handle)
        table_handle.remove(keys)
        return ()


class LookupTableImportV2(Updating):
    """Replaces the whole content of a table."""

    signature = "table_handle: resource, keys: Tin, values: Tout ->"

    def kernel(self, context: Context, table_handle: Table, keys: Any, values: Any) -> Any:
        _check_types(context, table_handle)
        table_handle.replace(keys, values)
        return ()


class LookupTableSizeV2(TableOp):
    """The number of keys"""

    signature = "table_handle: resource -> size: int64"
    effects = (reads("table_handle"),)

    def shape(self, table_handle: Tensor) -> TensorShape:
        return scalar()

    def kernel(self, context: Context, table_handle: Table) -> Any:
        return np.int64(table_handle.size)


class LookupTableExportV2(TableOp):
    """All keys and their values."""

    signature = "table_handle: resource -> keys: Tkeys, values: Tvalues"
    effects = (reads("table_handle"),)
    Tkeys: DType
    Tvalues: DType

    def shape(self, table_handle: Tensor) -> list[TensorShape]:
        return [unknown_shape(), unknown_shape()]

    def kernel(self, context: Context, table_handle: Table) -> tuple[Array, Array]:
        given = table_handle.key_dtype, table_handle.value_dtype
        if given != (self.Tkeys, self.Tvalues):
            raise _other_types(table_handle, (self.Tkeys, self.Tvalues))
        return table_handle.export()


class InitializeTableV2(Updating):
    """Fills a static table with keys and values."""

    signature = "table_handle: resource, keys: Tkey, values: Tval ->"

    def kernel(self, context: Context, table_handle: Table, keys: Any, values: Any) -> Any:
        _check_types(context, table_handle)
        _static(table_handle).initialize(keys, values)
        return ()


class InitializeTableFromTextFileV2(Updating):
    """Fills a static table from the lines of a file: numbers, whole lines or columns."""

    signature = "table_handle: resource, filename: string ->"
    effects = (writes("table_handle"), reads(Resource.FILES))
    key_index: int
    value_index: int
    vocab_size: int = -1
    delimiter: str = "\t"

    def kernel(self, context: Context, table_handle: Table, filename: Any) -> Any:
        table = _static(table_handle)
        rows = list(self._rows(text.text_item(filename).decode(), table))
        keys = _column([key for key, _ in rows], table.key_dtype)
        table.initialize(keys, _column([value for _, value in rows], table.value_dtype))
        return ()

    def _rows(self, name: str, table: Table) -> Iterator[tuple[Any, Any]]:
        count = 0
        for line in _lines(name):
            if count == self.vocab_size:
                return
            yield (
                self._field(name, count, line, self.key_index, table.key_dtype),
                self._field(name, count, line, self.value_index, table.value_dtype),
            )
            count += 1
        if count < self.vocab_size:
            raise errors.invalid(
                f"Invalid vocab_size in {name}: expected {self.vocab_size} but got {count}"
            )

    def _field(self, name: str, number: int, line: bytes, index: int, dtype: DType) -> Any:
        if index == LINE_NUMBER:
            return number
        if index == WHOLE_LINE:
            return _converted(name, number, line, dtype)
        columns = line.split(self.delimiter.encode())
        if index >= len(columns):
            raise errors.invalid(
                f"Invalid number of columns in {name} line {number} ({line!r}): expected at "
                f"least {index + 1}, got {len(columns)}"
            )
        return _converted(name, number, columns[index], dtype)


def _converted(name: str, number: int, field: bytes, dtype: DType) -> Any:
    if dtype is string:
        return field
    try:
        return int(field) if dtype.is_integer else float(field)
    except ValueError:
        raise errors.invalid(
            f"Field {field!r} in line {number} of {name} is not a valid {dtype.name}."
        ) from None


def _column(values: list[Any], dtype: DType) -> Array:
    result = np.empty(len(values), dtype.as_numpy_dtype)
    result[:] = values
    return result


def _lines(name: str) -> Iterator[bytes]:
    with GFile(name, "rb") as file:
        for line in file:
            yield line.removesuffix(b"\n").replace(b"\r", b"")


def _static(table: Table) -> StaticTable:
    if not isinstance(table, StaticTable):
        raise errors.invalid(f"Table '{table.name}' is a {table.kind}, which has no initializer")
    return table


def _check_types(context: Context, table: Table) -> None:
    """Raise unless keys and values have the dtypes of the table."""
    expected = (table.key_dtype, table.value_dtype)
    given = tuple(tensor.dtype.base_dtype for tensor in context.node.inputs[1:])
    if given != expected[: len(given)]:
        raise _other_types(table, given)


def _other_types(table: Table, given: tuple[DType, ...]) -> errors.InvalidArgumentError:
    names = " to ".join(dtype.name for dtype in given)
    return errors.invalid(f"Table '{table.name}' is a {_described(table)}, not of {names}")
