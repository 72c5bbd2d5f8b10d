"""Lookup tables from keys to values, stored in the session and shared by its steps.

A static table is filled once by its initializer, which `tf.tables_initializer()` runs; a mutable
one is changed by steps, and a Saver saves and restores its content.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from os import PathLike
from typing import Any, overload

from thalweg.functions.mode import executing_eagerly
from thalweg.graph.collections import GraphKeys
from thalweg.graph.composite import SparseTensor
from thalweg.graph.convert import convert_to_tensor
from thalweg.graph.dtypes import DType, as_dtype, int64, string
from thalweg.graph.graph import get_default_graph
from thalweg.graph.likes import DTypeLike, TensorLike
from thalweg.graph.node import Node, Tensor
from thalweg.graph.origin import user_line
from thalweg.graph.scopes import name_scope
from thalweg.graph.shapes import TensorShape, unknown_shape
from thalweg.ops.core import shaping
from thalweg.ops.state import lookup
from thalweg.ops.state.lookup import LINE_NUMBER, WHOLE_LINE
from thalweg.platform.described import described
from thalweg.public import public
from thalweg.saved.saveables import SaveableObject, SaveSpec


class LookupInterface:
    """The methods of all tables."""

    def __init__(self, key_dtype: Any, value_dtype: Any, name: str) -> None:
        self._key_dtype = as_dtype(key_dtype)
        self._value_dtype = as_dtype(value_dtype)
        self._name = name

    def __repr__(self) -> str:
        return described(self, self._name, keys=self._key_dtype.name, values=self._value_dtype.name)

    @property
    def key_dtype(self) -> DType:
        """The dtype of the keys."""
        return self._key_dtype

    @property
    def value_dtype(self) -> DType:
        """The dtype of the values."""
        return self._value_dtype

    @property
    def name(self) -> str:
        """The name, without scopes."""
        return self._name.rpartition("/")[2]


class _HandleTable(LookupInterface):
    """A table with a resource handle."""

    def __init__(
        self, key_dtype: Any, value_dtype: Any, handle: Tensor, default_value: Tensor
    ) -> None:
        super().__init__(key_dtype, value_dtype, handle.op.name)
        self._handle = handle
        self._default_value = default_value

    @property
    def resource_handle(self) -> Tensor:
        """The handle of the table."""
        return self._handle

    @property
    def table_ref(self) -> Tensor:
        """The handle of the table."""
        return self._handle

    @property
    def default_value(self) -> Tensor:
        """The value of missing keys."""
        return self._default_value

    def size(self, name: str | None = None) -> Tensor:
        """The number of keys."""
        with name_scope(name, f"{self.name}_Size", [self._handle]) as scope:
            return lookup.LookupTableSizeV2()(self._handle, name=scope)

    @overload
    def lookup(self, keys: SparseTensor, name: str | None = None) -> SparseTensor: ...
    @overload
    def lookup(self, keys: TensorLike, name: str | None = None) -> Tensor: ...
    def lookup(
        self, keys: TensorLike | SparseTensor, name: str | None = None
    ) -> Tensor | SparseTensor:
        """The values of keys, or the default for missing ones; a SparseTensor for sparse keys."""
        if isinstance(keys, SparseTensor):
            result = self.lookup(keys.values, name)
            return SparseTensor(keys.indices, result, keys.dense_shape)
        tensor = self._keys(keys)
        with name_scope(name, f"{self.name}_Lookup", [self._handle, tensor]) as scope:
            find = lookup.LookupTableFindV2()
            result = find(self._handle, tensor, self._default_value, name=scope)
        result.set_shape(self._found_shape(tensor))
        return result

    def _found_shape(self, keys: Tensor) -> TensorShape:
        return keys.shape.concatenate(self._default_value.shape)

    @overload
    def __getitem__(self, keys: SparseTensor) -> SparseTensor: ...
    @overload
    def __getitem__(self, keys: TensorLike) -> Tensor: ...
    def __getitem__(self, keys: TensorLike | SparseTensor) -> Tensor | SparseTensor:
        return self.lookup(keys)

    def export(self, name: str | None = None) -> tuple[Tensor, Tensor]:
        """All keys and their values."""
        with name_scope(name, f"{self.name}_Export", [self._handle]) as scope:
            export = lookup.LookupTableExportV2(Tkeys=self._key_dtype, Tvalues=self._value_dtype)
            keys, values = result = export(self._handle, name=scope)
        keys.set_shape(self._exported_keys())
        values.set_shape(TensorShape([None]).concatenate(self._default_value.shape))
        return result

    def _exported_keys(self) -> TensorShape:
        return TensorShape([None])

    def _keys(self, keys: Any) -> Tensor:
        is_tensor = isinstance(keys, Tensor)
        tensor = keys if is_tensor else convert_to_tensor(keys, self._key_dtype)
        if tensor.dtype.base_dtype is not self._key_dtype:
            raise TypeError(
                f"Signature mismatch. Keys of table {self.name!r} must be dtype "
                f"{self._key_dtype.name}, got {tensor.dtype.name}."
            )
        return tensor


# Contents of static tables


class TableInitializerBase:
    """The base of the initializers of static tables."""

    def __init__(self, key_dtype: Any, value_dtype: Any) -> None:
        self._key_dtype = as_dtype(key_dtype)
        self._value_dtype = as_dtype(value_dtype)

    @property
    def key_dtype(self) -> DType:
        """The dtype of the keys."""
        return self._key_dtype

    @property
    def value_dtype(self) -> DType:
        """The dtype of the values."""
        return self._value_dtype

    def initialize(self, table: Any) -> Node:
        """A node that fills a table, which is added to the collection of table initializers."""
        for what, mine in (("key_dtype", self._key_dtype), ("value_dtype", self._value_dtype)):
            its = getattr(table, what)
            if its is not mine:
                raise TypeError(f"Invalid {what}: the table has {its.name}, not {mine.name}.")
        result = self._fill(table.resource_handle)
        if not executing_eagerly():
            get_default_graph().add_to_collection(GraphKeys.TABLE_INITIALIZERS, result)
        return result

    def _fill(self, handle: Tensor) -> Node:
        raise TypeError(f"{type(self).__name__} must define _fill")


@public("lookup.KeyValueTensorInitializer", "contrib.lookup.KeyValueTensorInitializer")
class KeyValueTensorInitializer(TableInitializerBase):
    """Fills a table from two tensors of one shape."""

    def __init__(
        self,
        keys: Any,
        values: Any,
        key_dtype: Any = None,
        value_dtype: Any = None,
        name: str | None = None,
    ) -> None:
        with name_scope(name, "key_value_init", [keys, values]) as scope:
            self._keys = convert_to_tensor(keys, key_dtype, name="keys")
            self._values = convert_to_tensor(values, value_dtype, name="values")
        if not self._keys.shape.is_compatible_with(self._values.shape):
            raise ValueError(
                f"Shapes {self._keys.shape} of the keys and {self._values.shape} of the values of "
                f"a table are incompatible: each key has one value (at {user_line()})"
            )
        self._scope = scope
        super().__init__(self._keys.dtype.base_dtype, self._values.dtype.base_dtype)

    def _fill(self, handle: Tensor) -> Node:
        keys, values = (shaping.reshape(column, [-1]) for column in (self._keys, self._values))
        return lookup.InitializeTableV2()(handle, keys, values, name=self._scope)


@public("lookup.TextFileIndex", "contrib.lookup.TextFileIndex")
class TextFileIndex:
    """The parts of a line that can be keys or values besides columns."""

    WHOLE_LINE = WHOLE_LINE
    LINE_NUMBER = LINE_NUMBER


@public("lookup.TextFileInitializer", "contrib.lookup.TextFileInitializer")
class TextFileInitializer(TableInitializerBase):
    """Fills a table from the lines of a file: line numbers, whole lines or columns."""

    def __init__(
        self,
        filename: TensorLike | PathLike[str],
        key_dtype: Any,
        key_index: int,
        value_dtype: Any,
        value_index: int,
        vocab_size: int | None = None,
        delimiter: str = "\t",
        name: str | None = None,
    ) -> None:
        super().__init__(key_dtype, value_dtype)
        if not isinstance(filename, Tensor) and not filename:
            raise ValueError("Filename required: name the file that the table is made of.")
        _check_column("key", key_index, self._key_dtype)
        _check_column("value", value_index, self._value_dtype)
        if vocab_size is not None and vocab_size <= 0:
            raise ValueError(f"Invalid vocab_size {vocab_size}: it must be positive.")
        self._filename = filename
        self._op = lookup.InitializeTableFromTextFileV2(
            key_index=key_index,
            value_index=value_index,
            vocab_size=-1 if vocab_size is None else vocab_size,
            delimiter=delimiter,
        )
        self._name = name

    def _fill(self, handle: Tensor) -> Node:
        with name_scope(self._name, "text_file_init", [handle]) as scope:
            filename = convert_to_tensor(_path(self._filename), string, name="asset_filepath")
            if not executing_eagerly():
                get_default_graph().add_to_collection(GraphKeys.ASSET_FILEPATHS, filename)
            return self._op(handle, filename, name=scope)


def _path(filename: TensorLike | PathLike[str]) -> TensorLike:
    return os.fspath(filename) if isinstance(filename, os.PathLike) else filename


def _check_column(what: str, index: int, dtype: DType) -> None:
    if index < WHOLE_LINE:
        raise ValueError(f"Invalid {what} index {index}: a column, or one of TextFileIndex.")
    if index == LINE_NUMBER and dtype is not int64:
        raise ValueError(f"Line numbers are int64: {what}_dtype cannot be {dtype.name}.")
    if index == WHOLE_LINE and not (dtype.is_integer or dtype is string):
        raise ValueError(
            f"Whole lines are strings or integers: {what}_dtype cannot be {dtype.name}."
        )


@public("contrib.lookup.TextFileStringTableInitializer")
class TextFileStringTableInitializer(TextFileInitializer):
    """Fills a table from line numbers to lines."""

    def __init__(
        self,
        filename: TensorLike | PathLike[str],
        key_column_index: int = LINE_NUMBER,
        value_column_index: int = WHOLE_LINE,
        vocab_size: int | None = None,
        delimiter: str = "\t",
        name: str = "text_file_string_table_init",
    ) -> None:
        columns = int64, key_column_index, string, value_column_index
        super().__init__(filename, *columns, vocab_size, delimiter, name)


@public("contrib.lookup.TextFileIdTableInitializer")
class TextFileIdTableInitializer(TextFileInitializer):
    """Fills a table from lines to line numbers."""

    def __init__(
        self,
        filename: TensorLike | PathLike[str],
        key_column_index: int = WHOLE_LINE,
        value_column_index: int = LINE_NUMBER,
        vocab_size: int | None = None,
        delimiter: str = "\t",
        name: str = "text_file_id_table_init",
        key_dtype: DTypeLike = string,
    ) -> None:
        columns = key_dtype, key_column_index, int64, value_column_index
        super().__init__(filename, *columns, vocab_size, delimiter, name)


# Static tables


@public("contrib.lookup.InitializableLookupTableBase")
class InitializableLookupTableBase(_HandleTable):
    """A table that is filled once, by an initializer."""

    def __init__(
        self, handle: Tensor, default_value: Any, initializer: TableInitializerBase
    ) -> None:
        kinds = initializer.key_dtype, initializer.value_dtype
        default = convert_to_tensor(default_value, initializer.value_dtype)
        default.shape.assert_is_compatible_with([])
        super().__init__(*kinds, handle, default)
        self._init: Node = initializer.initialize(self)

    @property
    def initializer(self) -> Node:
        """The node that fills the table."""
        return self._init

    @property
    def init(self) -> Node:
        """The node that fills the table."""
        return self._init


@public("contrib.lookup.HashTable")
class HashTable(InitializableLookupTableBase):
    """A table with fixed content: `HashTable(KeyValueTensorInitializer(keys, values), -1)`."""

    def __init__(
        self,
        initializer: TableInitializerBase,
        default_value: Any,
        shared_name: str | None = None,
        name: str | None = None,
    ) -> None:
        with name_scope(name, "hash_table", [initializer, default_value]) as scope:
            handle = lookup.HashTableV2(
                container=get_default_graph().container_name,
                shared_name=shared_name or "",
                use_node_name_sharing=True,
                key_dtype=initializer.key_dtype,
                value_dtype=initializer.value_dtype,
            )(name=scope)
            super().__init__(handle, default_value, initializer)


@public("lookup.StaticHashTable")
class StaticHashTable(HashTable):
    """A table with fixed content."""

    def __init__(
        self, initializer: TableInitializerBase, default_value: Any, name: str | None = None
    ) -> None:
        super().__init__(initializer, default_value, name=name)


# Mutable tables


class _MutableTable(_HandleTable):
    """The base of tables that steps change."""

    def __init__(
        self, handle: Tensor, default: Tensor, key_dtype: DTypeLike, checkpoint: bool
    ) -> None:
        super().__init__(key_dtype, default.dtype.base_dtype, handle, default)
        if checkpoint and not executing_eagerly():
            graph = get_default_graph()
            graph.add_to_collection(GraphKeys.SAVEABLE_OBJECTS, _TableSaveable(self))

    def insert(self, keys: Any, values: Any, name: str | None = None) -> Node:
        """A node that inserts keys with values, overwriting those of existing keys."""
        tensor = self._keys(keys)
        rows = convert_to_tensor(values, self._value_dtype)
        with name_scope(name, f"{self.name}_lookup_table_insert", [tensor, rows]) as scope:
            return lookup.LookupTableInsertV2()(self._handle, tensor, rows, name=scope)

    def remove(self, keys: Any, name: str | None = None) -> Node:
        """A node that removes keys; missing ones are ignored."""
        tensor = self._keys(keys)
        with name_scope(name, f"{self.name}_lookup_table_remove", [tensor]) as scope:
            return lookup.LookupTableRemoveV2()(self._handle, tensor, name=scope)


class _TableSaveable(SaveableObject):
    """The keys and values of a mutable table."""

    def __init__(self, table: _MutableTable) -> None:
        name = table.resource_handle.op.name
        keys, values = table.export()
        specs = [SaveSpec(keys, "", f"{name}-keys"), SaveSpec(values, "", f"{name}-values")]
        super().__init__(table, specs, name)

    def restore(self, restored_tensors: Sequence[Tensor], restored_shapes: Any) -> Node:
        handle = self.op.resource_handle
        with name_scope(f"{self.op.name}_table_restore"), get_default_graph().colocate_with(handle):
            return lookup.LookupTableImportV2()(handle, *restored_tensors)


@public("contrib.lookup.MutableHashTable")
class MutableHashTable(_MutableTable):
    """A mutable table whose values are scalars or tensors of the default's shape."""

    def __init__(
        self,
        key_dtype: DTypeLike,
        value_dtype: Any,
        default_value: Any,
        shared_name: str | None = None,
        name: str = "MutableHashTable",
        checkpoint: bool = True,
    ) -> None:
        default = convert_to_tensor(default_value, as_dtype(value_dtype))
        common: dict[str, Any] = {
            "container": get_default_graph().container_name,
            "shared_name": shared_name or "",
            "use_node_name_sharing": checkpoint and shared_name is None,
            "key_dtype": as_dtype(key_dtype),
            "value_dtype": as_dtype(value_dtype),
        }
        if default.shape.rank == 0:
            op: Any = lookup.MutableHashTableV2(**common)
        else:
            op = lookup.MutableHashTableOfTensorsV2(value_shape=default.shape, **common)
        super().__init__(op(name=name), default, key_dtype, checkpoint)


class _DenseTable(_MutableTable):
    def __init__(
        self,
        key_dtype: DTypeLike,
        value_dtype: Any,
        default_value: Any,
        empty_key: TensorLike,
        deleted_key: TensorLike,
        initial_num_buckets: int | None,
        shared_name: str | None,
        name: str,
        checkpoint: bool,
    ) -> None:
        default = convert_to_tensor(default_value, as_dtype(value_dtype))
        empty, deleted = (
            convert_to_tensor(key, as_dtype(key_dtype)) for key in (empty_key, deleted_key)
        )
        self._key_shape = empty.shape
        op = lookup.MutableDenseHashTableV2(
            container=get_default_graph().container_name,
            shared_name=shared_name or "",
            use_node_name_sharing=checkpoint and shared_name is None,
            key_dtype=as_dtype(key_dtype),
            value_dtype=as_dtype(value_dtype),
            value_shape=default.shape,
            initial_num_buckets=initial_num_buckets or 131072,
        )
        super().__init__(op(empty, deleted, name=name), default, key_dtype, checkpoint)

    def _found_shape(self, keys: Tensor) -> TensorShape:
        rank, own = keys.shape.rank, self._key_shape.rank
        if rank is None or own is None:
            return unknown_shape()
        return keys.shape[: rank - own].concatenate(self._default_value.shape)

    def _exported_keys(self) -> TensorShape:
        return TensorShape([None]).concatenate(self._key_shape)


@public("contrib.lookup.MutableDenseHashTable")
class MutableDenseHashTable(_DenseTable):
    """A mutable table whose keys may be tensors; two keys must be reserved."""

    def __init__(
        self,
        key_dtype: DTypeLike,
        value_dtype: DTypeLike,
        default_value: TensorLike,
        empty_key: TensorLike,
        deleted_key: TensorLike,
        initial_num_buckets: int | None = None,
        shared_name: str | None = None,
        name: str = "MutableDenseHashTable",
        checkpoint: bool = True,
    ) -> None:
        kinds = key_dtype, value_dtype, default_value, empty_key, deleted_key
        super().__init__(*kinds, initial_num_buckets, shared_name, name, checkpoint)


@public("lookup.experimental.DenseHashTable")
class DenseHashTable(_DenseTable):
    """A mutable table whose keys may be tensors; two keys must be reserved."""

    def __init__(
        self,
        key_dtype: DTypeLike,
        value_dtype: DTypeLike,
        default_value: TensorLike,
        empty_key: TensorLike,
        deleted_key: TensorLike,
        initial_num_buckets: int | None = None,
        name: str = "MutableDenseHashTable",
        checkpoint: bool = True,
    ) -> None:
        kinds = key_dtype, value_dtype, default_value, empty_key, deleted_key
        super().__init__(*kinds, initial_num_buckets, None, name, checkpoint)
