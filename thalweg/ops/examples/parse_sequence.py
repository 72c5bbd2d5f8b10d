"""Ops that parse serialised SequenceExample protobufs to tensors.

The context of a message has features like an Example; each of its feature lists has a feature per
time step. A sparse feature list becomes a sparse matrix [time, position], a dense one a tensor
whose first axis is time; in a batch all are padded to the longest.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, cast

import numpy as np

from thalweg import errors
from thalweg.graph import dtypes
from thalweg.graph.dtypes import DType, as_dtype
from thalweg.graph.node import Tensor
from thalweg.graph.op import Op
from thalweg.graph.shapes import TensorShape, vector
from thalweg.ops.examples.example_format import FIELD_NAMES, BadMessage, Messages, keys_of
from thalweg.ops.examples.example_values import MISSING
from thalweg.ops.examples.parse_example import (
    Column,
    batch_shapes,
    check_types,
    dtype_text,
    transposed,
)
from thalweg.ops.text import text
from thalweg.platform.arrays import Array
from thalweg.platform.compat import as_bytes


class SequenceBatch:
    """Serialised SequenceExamples with their names, and the keys of the wanted features."""

    def __init__(
        self,
        serialized: Sequence[bytes],
        names: Sequence[bytes],
        context_keys: Sequence[bytes],
        list_keys: Sequence[bytes],
    ) -> None:
        if names and len(names) != len(serialized):
            raise errors.invalid(
                f"Expected len(debug_name) == len(serialized), but got: {len(names)} vs. "
                f"{len(serialized)}"
            )
        self._names = names
        self._context_keys = context_keys
        self._list_keys = list_keys
        self._messages = Messages(serialized)
        self._context, self._lists = self._read(
            lambda: self._messages.index_sequences(
                keys_of(tuple(context_keys)), keys_of(tuple(list_keys))
            )
        )

    def __len__(self) -> int:
        return self._messages.count

    # The context

    def context_sparse(self, number: int, dtype: DType) -> tuple[Array, Array, Array]:
        """(indices, values, shape) of a context feature."""
        return self._read(lambda: self._context_column(number, dtype).sparse())

    def context_dense(self, number: int, shape: TensorShape, default: Array) -> Array:
        """A context feature of a fixed shape."""
        dtype = as_dtype(default.dtype)

        def required(row: int) -> str:
            return (
                f"{self._name(row)}, Context feature '{_text(self._context_keys[number])}' is "
                "required but could not be found."
            )

        column = self._context_column(number, dtype)
        return self._read(lambda: column.dense(shape, default, required))

    def _context_column(self, number: int, dtype: DType) -> Column:
        key = _text(self._context_keys[number])

        def where(row: int) -> str:
            return f"{self._name(row)}, Key: {key}, Index: {row}"

        def other_kind(row: int) -> str:
            found = FIELD_NAMES[int(self._context[row, number, 0])]
            return _mismatch(f"{self._name(row)}, Context feature: {key}", dtype, found)

        return Column(self._messages, self._context, number, dtype, where, other_kind)

    # Feature lists

    def list_sparse(self, row: int, number: int, dtype: DType) -> tuple[Array, Array, Array]:
        """(indices [time, position], values, shape) of a feature list of one message."""
        features = self._features(row, number)
        column, _ = self._list_column(row, number, features, dtype)
        return self._read(column.sparse)

    def list_dense(self, row: int, number: int, shape: TensorShape, dtype: DType) -> Array:
        """A feature list of one message; its first axis is time."""
        features = self._features(row, number)
        column, other_kind = self._list_column(row, number, features, dtype)
        return self._read(lambda: column.dense(shape, np.empty(0), other_kind))

    def check_present(self, row: int, number: int) -> None:
        """Raise if a message lacks a feature list."""
        if self._lists[row, number, 0] == MISSING:
            raise errors.invalid(
                f"{self._name(row)}, Feature list '{_text(self._list_keys[number])}' is required "
                "but could not be found.  Did you mean to include it in "
                "feature_list_dense_missing_assumed_empty or feature_list_dense_defaults?"
            )

    def _features(self, row: int, number: int) -> Array:
        entry = self._lists[row, number]
        if entry[0] == MISSING:
            return np.zeros((0, 1, 3), np.int64)
        return self._read(lambda: self._messages.features_of(entry, row))

    def _list_column(
        self, row: int, number: int, features: Array, dtype: DType
    ) -> tuple[Column, Callable[[int], str]]:
        key, name = _text(self._list_keys[number]), self._name(row)

        def where(time: int) -> str:
            return f"{name}, Key: {key}, Index: {time}"

        def other_kind(time: int) -> str:
            found = FIELD_NAMES[int(features[time, 0, 0])]
            return _mismatch(f"{name}, Feature list: {key}, Index: {time}", dtype, found)

        return Column(self._messages, features, 0, dtype, where, other_kind), other_kind

    # Error messages

    def _read(self, read: Callable[[], Any]) -> Any:
        try:
            return read()
        except BadMessage as fault:
            raise self._bad(fault) from None

    def _name(self, row: int) -> str:
        name = (self._names[row] if self._names else b"") or b"<unknown>"
        return f"Name: {_text(name)}"

    def _bad(self, fault: BadMessage) -> errors.InvalidArgumentError:
        return errors.invalid(
            f"{self._name(fault.message)}, Could not parse sequence example input, Index: "
            f"{fault.message}: the bytes from {fault.place} on are no field of a SequenceExample"
        )


def _text(key: bytes) -> str:
    return key.decode(errors="replace")


def _mismatch(where: str, dtype: DType, found: str) -> str:
    return (
        f"{where}.  Data types don't match. Expected type: {dtype_text(dtype)}  Feature is: {found}"
    )


def _defaults(values: Sequence[Any]) -> list[Array]:
    return [text.text_array(v) if isinstance(v, bytes) else np.asarray(v) for v in values]


class SequenceParser(Op, abstract=True):
    """The base of ops that parse SequenceExamples."""

    host_only = True
    not_differentiable = True
    Tcontext_dense: tuple[DType, ...] = ()
    context_sparse_types: tuple[DType, ...] = ()
    feature_list_dense_types: tuple[DType, ...] = ()
    context_dense_shapes: tuple[TensorShape, ...] = ()
    feature_list_sparse_types: tuple[DType, ...] = ()
    feature_list_dense_shapes: tuple[TensorShape, ...] = ()

    def _check_types(self) -> None:
        """Raise unless messages can hold the wanted types."""
        sparse = [*self.context_sparse_types, *self.feature_list_sparse_types]
        check_types([*sparse, *self.feature_list_dense_types])


class ParseSingleSequenceExample(SequenceParser):
    """The context features and feature lists of one serialised SequenceExample"""

    signature = (
        "serialized: string, feature_list_dense_missing_assumed_empty: string, "
        "context_sparse_keys: Ncontext_sparse*string, context_dense_keys: Ncontext_dense*string, "
        "feature_list_sparse_keys: Nfeature_list_sparse*string, "
        "feature_list_dense_keys: Nfeature_list_dense*string, "
        "context_dense_defaults: [Tcontext_dense], debug_name: string "
        "-> context_sparse_indices: Ncontext_sparse*int64, "
        "context_sparse_values: [context_sparse_types], "
        "context_sparse_shapes: Ncontext_sparse*int64, context_dense_values: [Tcontext_dense], "
        "feature_list_sparse_indices: Nfeature_list_sparse*int64, "
        "feature_list_sparse_values: [feature_list_sparse_types], "
        "feature_list_sparse_shapes: Nfeature_list_sparse*int64, "
        "feature_list_dense_values: [feature_list_dense_types]"
    )

    def shape(self, serialized: Tensor, assumed_empty: Tensor, *_: Any) -> list[TensorShape]:
        serialized.shape.assert_has_rank(0)
        assumed_empty.shape.assert_has_rank(1)
        self._check_types()
        return [
            *batch_shapes(len(self.context_sparse_types), 1),
            *self.context_dense_shapes,
            *batch_shapes(len(self.feature_list_sparse_types), 2),
            *(vector(None).concatenate(shape) for shape in self.feature_list_dense_shapes),
        ]

    def numpy(
        self,
        serialized: Array,
        assumed_empty: Array,
        context_sparse_keys: list[Array],
        context_dense_keys: list[Array],
        list_sparse_keys: list[Array],
        list_dense_keys: list[Array],
        context_dense_defaults: list[Array],
        debug_name: Array,
    ) -> list[Array]:
        context_keys = [text.text_item(key) for key in (*context_sparse_keys, *context_dense_keys)]
        list_keys = [text.text_item(key) for key in (*list_sparse_keys, *list_dense_keys)]
        batch = SequenceBatch(
            [text.text_item(serialized)], text.elements(debug_name), context_keys, list_keys
        )
        self._check_lists(batch, list_keys, text.elements(assumed_empty))
        return [
            *self._context(batch, _defaults(context_dense_defaults)),
            *self._lists(batch),
        ]

    def _check_lists(
        self, batch: SequenceBatch, keys: list[bytes], assumed_empty: list[bytes]
    ) -> None:
        for number in range(len(self.feature_list_sparse_types), len(keys)):
            if keys[number] not in assumed_empty:
                batch.check_present(0, number)

    def _context(self, batch: SequenceBatch, defaults: list[Array]) -> list[Array]:
        found = [batch.context_sparse(i, d) for i, d in enumerate(self.context_sparse_types)]
        sparse = [(indices[:, 1:], values, shape[1:]) for indices, values, shape in found]
        dense = [
            batch.context_dense(len(sparse) + number, shape, default)[0]
            for number, (shape, default) in enumerate(
                zip(self.context_dense_shapes, defaults, strict=True)
            )
        ]
        return [*transposed(cast("list[Any]", sparse), 3), *dense]

    def _lists(self, batch: SequenceBatch) -> list[Array]:
        sparse = [batch.list_sparse(0, i, d) for i, d in enumerate(self.feature_list_sparse_types)]
        kinds = zip(self.feature_list_dense_shapes, self.feature_list_dense_types, strict=True)
        dense = [
            batch.list_dense(0, len(sparse) + number, shape, dtype)
            for number, (shape, dtype) in enumerate(kinds)
        ]
        return [*transposed(cast("list[Any]", sparse), 3), *dense]


class ParseSequenceExample(SequenceParser):
    """The context features and feature lists of a batch of serialised SequenceExamples"""

    signature = (
        "serialized: string, debug_name: string, context_dense_defaults: [Tcontext_dense] "
        "-> context_sparse_indices: Ncontext_sparse*int64, "
        "context_sparse_values: [context_sparse_types], "
        "context_sparse_shapes: Ncontext_sparse*int64, context_dense_values: [Tcontext_dense], "
        "feature_list_sparse_indices: Nfeature_list_sparse*int64, "
        "feature_list_sparse_values: [feature_list_sparse_types], "
        "feature_list_sparse_shapes: Nfeature_list_sparse*int64, "
        "feature_list_dense_values: [feature_list_dense_types], "
        "feature_list_dense_lengths: Nfeature_list_dense*int64"
    )
    feature_list_dense_missing_assumed_empty: tuple[str, ...]
    context_sparse_keys: tuple[str, ...]
    context_dense_keys: tuple[str, ...]
    feature_list_sparse_keys: tuple[str, ...]
    feature_list_dense_keys: tuple[str, ...]
    Ncontext_sparse: int = 0
    Ncontext_dense: int = 0
    Nfeature_list_sparse: int = 0
    Nfeature_list_dense: int = 0

    def shape(self, serialized: Tensor, debug_name: Tensor, *_: Any) -> list[TensorShape]:
        rows = serialized.shape
        rows.assert_has_rank(1)
        self._check_types()
        times = rows.concatenate(vector(None))
        return [
            *batch_shapes(len(self.context_sparse_types), 2),
            *(rows.concatenate(shape) for shape in self.context_dense_shapes),
            *batch_shapes(len(self.feature_list_sparse_types), 3),
            *(times.concatenate(shape) for shape in self.feature_list_dense_shapes),
            *[rows] * self.Nfeature_list_dense,
        ]

    def numpy(
        self, serialized: Array, debug_name: Array, context_dense_defaults: list[Array]
    ) -> list[Array]:
        batch = SequenceBatch(
            text.elements(serialized),
            text.elements(debug_name),
            [as_bytes(key) for key in (*self.context_sparse_keys, *self.context_dense_keys)],
            [
                as_bytes(key)
                for key in (*self.feature_list_sparse_keys, *self.feature_list_dense_keys)
            ],
        )
        self._check_lists(batch)
        return [*self._context(batch, _defaults(context_dense_defaults)), *self._lists(batch)]

    def _check_lists(self, batch: SequenceBatch) -> None:
        first = self.Nfeature_list_sparse
        for number, key in enumerate(self.feature_list_dense_keys, first):
            if key not in self.feature_list_dense_missing_assumed_empty:
                for row in range(len(batch)):
                    batch.check_present(row, number)

    def _context(self, batch: SequenceBatch, defaults: list[Array]) -> list[Array]:
        sparse = [batch.context_sparse(i, d) for i, d in enumerate(self.context_sparse_types)]
        shapes = zip(self.context_dense_shapes, defaults, strict=True)
        dense = [
            batch.context_dense(len(sparse) + number, shape, default)
            for number, (shape, default) in enumerate(shapes)
        ]
        return [*transposed(cast("list[Any]", sparse), 3), *dense]

    def _lists(self, batch: SequenceBatch) -> list[Array]:
        sparse = [_stacked(batch, i, d) for i, d in enumerate(self.feature_list_sparse_types)]
        kinds = zip(self.feature_list_dense_shapes, self.feature_list_dense_types, strict=True)
        dense = [
            _padded(batch, len(sparse) + number, shape, dtype)
            for number, (shape, dtype) in enumerate(kinds)
        ]
        return [
            *transposed(cast("list[Any]", sparse), 3),
            *transposed(cast("list[Any]", dense), 2),
        ]


def _stacked(batch: SequenceBatch, number: int, dtype: DType) -> tuple[Array, Array, Array]:
    """(indices [row, time, position], values, shape) of a feature list of all messages."""
    parts = [batch.list_sparse(row, number, dtype) for row in range(len(batch))]
    empty = np.zeros((0, 3), np.int64)
    indices = [np.insert(part, 0, row, axis=1) for row, (part, *_) in enumerate(parts)]
    values = [values for _, values, _ in parts]
    sizes = np.max([shape for *_, shape in parts], axis=0, initial=0) if parts else np.zeros(2)
    kind = dtype.as_numpy_dtype
    return (
        np.concatenate([empty, *indices]),
        np.concatenate([np.empty(0, kind), *values]),
        np.array([len(parts), *sizes], np.int64),
    )


def _padded(
    batch: SequenceBatch, number: int, shape: TensorShape, dtype: DType
) -> tuple[Array, Array]:
    """(values [row, time, …] padded with zeros, lengths) of a feature list of all messages."""
    parts = [batch.list_dense(row, number, shape, dtype) for row in range(len(batch))]
    lengths = np.array([len(part) for part in parts], np.int64)
    sizes = (len(parts), lengths.max(initial=0), *cast("tuple[int, ...]", shape.sizes))
    filler: Any = b"" if dtype is dtypes.string else 0
    result = np.full(sizes, filler, dtype.as_numpy_dtype)
    for row, part in enumerate(parts):
        result[row, : len(part)] = part
    return result, lengths
