"""Ops that parse serialised Example protobufs to tensors, a whole batch at once.

A sparse feature becomes a sparse matrix of the present values, a dense one a tensor of fixed shape
with a default for messages that lack it; if the first size of a dense shape is unknown, rows are
padded to the longest.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import prod
from typing import Any, cast

import numpy as np

from thalweg import errors
from thalweg.graph import dtypes
from thalweg.graph.dtypes import DType, as_dtype
from thalweg.graph.node import Tensor
from thalweg.graph.op import Op
from thalweg.graph.shapes import TensorShape, matrix, vector
from thalweg.ops.examples.example_format import (
    KINDS,
    BadMessage,
    Messages,
    OtherKind,
    are_all,
    keys_of,
)
from thalweg.ops.examples.example_values import NO_VALUES
from thalweg.ops.text import text
from thalweg.platform.arrays import Array
from thalweg.platform.compat import as_bytes

_DTYPE_TEXTS = {dtypes.float32: "float", dtypes.int64: "int64", dtypes.string: "string"}


def dtype_text(dtype: DType) -> str:
    """The name of a dtype in error messages."""
    return _DTYPE_TEXTS.get(dtype, dtype.name)


def shape_text(shape: TensorShape) -> str:
    """A shape in error messages."""
    sizes = shape.sizes or ()
    return f"[{','.join('?' if size is None else str(size) for size in sizes)}]"


def check_types(kinds: Sequence[DType]) -> None:
    """Raise unless features may have all of these dtypes."""
    for kind in kinds:
        if kind not in KINDS:
            names = ", ".join(sorted(d.name for d in KINDS))
            raise TypeError(f"A feature holds {names}, not {as_dtype(kind).name}")


class Column:
    """A feature of all messages of a batch."""

    def __init__(
        self,
        messages: Messages,
        table: Array,
        number: int,
        dtype: DType,
        where: Callable[[int], str],
        other_kind: Callable[[int], str],
    ) -> None:
        self._messages = messages
        self._table = table
        self._number = number
        self._dtype = dtype
        self._where = where  # the description of a row in errors
        self._other_kind = other_kind

    def sparse(self) -> tuple[Array, Array, Array]:
        """(indices [row, position], values, shape) of the present values."""
        counts, values = self._ragged()
        starts = np.cumsum(counts) - counts
        indices = np.empty((len(values), 2), np.int64)
        indices[:, 0] = np.repeat(np.arange(len(counts)), counts)
        indices[:, 1] = np.arange(len(values)) - np.repeat(starts, counts)
        return indices, values, np.array([len(counts), counts.max(initial=0)], np.int64)

    def dense(self, shape: TensorShape, default: Array, required: Callable[[int], str]) -> Array:
        """Values of a fixed shape; `required` is the error of a missing row without default."""
        sizes = cast("tuple[int, ...]", shape.sizes)
        size = prod(sizes)
        values, counts = self._read(lambda: self._messages.dense(*self._place, size))
        if not are_all(counts, size):
            missing = counts == NO_VALUES
            self._check_counts(~missing & (counts != size), counts, shape)
            if not default.size:
                raise errors.invalid(required(int(missing.argmax())))
            values[missing] = default.reshape(-1)
        return values.reshape(len(values), *sizes)

    def padded(self, shape: TensorShape, padding: Array) -> Array:
        """Values of a shape whose first size varies; rows are padded to the longest."""
        counts, values = self._ragged()
        inner = cast("tuple[int, ...]", (shape.sizes or ())[1:])
        stride = max(prod(inner), 1)
        self._check_counts(counts % stride != 0, counts, shape)
        width = int(counts.max(initial=0))
        result = np.full((len(counts), width), padding.reshape(-1)[0], values.dtype)
        result[np.arange(width) < counts[:, None]] = values
        return result.reshape(len(counts), width // stride, *inner)

    @property
    def _place(self) -> tuple[Array, int, DType]:
        return self._table, self._number, self._dtype

    def _ragged(self) -> tuple[Array, Array]:
        counts = self._read(lambda: self._messages.counts(*self._place))
        values = self._messages.values(*self._place, counts)
        return np.maximum(counts, 0), values

    def _read(self, read: Callable[[], Any]) -> Any:
        try:
            return read()
        except OtherKind as fault:
            raise errors.invalid(self._other_kind(fault.row)) from None

    def _check_counts(self, wrong: Array, counts: Array, shape: TensorShape) -> None:
        if wrong.any():
            row = int(wrong.argmax())
            raise errors.invalid(
                f"{self._where(row)}.  Number of {dtype_text(self._dtype)} values != expected.  "
                f"values size: {counts[row]} but output shape: {shape_text(shape)}"
            )


class ExampleBatch:
    """Serialised Examples with their names, and the keys of the wanted features."""

    def __init__(self, serialized: Sequence[bytes], names: Sequence[bytes], keys: list[bytes]):
        if names and len(names) != len(serialized):
            raise errors.invalid(
                f"Expected len(names) == len(serialized), but got: {len(names)} vs. "
                f"{len(serialized)}"
            )
        self._names = names
        self._keys = keys
        self._messages = Messages(serialized)
        try:
            self._table = self._messages.index_examples(keys_of(tuple(keys)))
        except BadMessage as fault:
            raise self._bad(fault) from None

    def sparse(self, number: int, dtype: DType) -> tuple[Array, Array, Array]:
        """(indices, values, shape) of a feature."""
        return self._column(number, dtype, lambda column: column.sparse())

    def dense(self, number: int, shape: TensorShape, dtype: DType, default: Array) -> Array:
        """A feature of a fixed shape, or padded if the first size is unknown."""
        if shape.sizes and shape.sizes[0] is None:
            return self._column(number, dtype, lambda column: column.padded(shape, default))

        def required(row: int) -> str:
            return (
                f"{self._name(row)}, Feature: {self._key(number)} (data type: {dtype_text(dtype)}) "
                "is required but could not be found."
            )

        return self._column(number, dtype, lambda column: column.dense(shape, default, required))

    def _column(self, number: int, dtype: DType, read: Callable[[Column], Any]) -> Any:
        def where(row: int) -> str:
            return f"{self._name(row)}, Key: {self._key(number)}, Index: {row}"

        def other_kind(row: int) -> str:
            found = next(d for d, kind in KINDS.items() if kind == self._table[row, number, 0])
            return (
                f"{where(row)}.  Data types don't match. Data type: {dtype_text(found)} but "
                f"expected type: {dtype_text(dtype)}"
            )

        column = Column(self._messages, self._table, number, dtype, where, other_kind)
        try:
            return read(column)
        except BadMessage as fault:
            raise self._bad(fault) from None

    def _key(self, number: int) -> str:
        return self._keys[number].decode(errors="replace")

    def _name(self, row: int) -> str:
        name = self._names[row] if self._names else b"<unknown>"
        return f"Name: {name.decode(errors='replace')}"

    def _bad(self, fault: BadMessage) -> errors.InvalidArgumentError:
        return errors.invalid(
            f"{self._name(fault.message)}, Could not parse example input, Index: {fault.message}: "
            f"the bytes from {fault.place} on are no field of an Example"
        )


def batch_shapes(count: int, rank: int) -> list[TensorShape]:
    """The static shapes of the outputs for sparse tensors: all indices, all values, all shapes."""
    parts = [matrix(None, rank), vector(None), vector(rank)]
    return [part for part in parts for _ in range(count)]


def transposed(parts: list[tuple[Any, ...]], width: int) -> list[Any]:
    """The transpose of a list of tuples."""
    return [part[index] for index in range(width) for part in parts]


class ParseExample(Op):
    """The features of a batch of serialised Examples"""

    signature = (
        "serialized: string, names: string, sparse_keys: Nsparse*string, "
        "dense_keys: Ndense*string, dense_defaults: [Tdense] -> sparse_indices: Nsparse*int64, "
        "sparse_values: [sparse_types], sparse_shapes: Nsparse*int64, dense_values: [Tdense]"
    )
    host_only = True
    not_differentiable = True
    Tdense: tuple[DType, ...]
    sparse_types: tuple[DType, ...]
    dense_shapes: tuple[TensorShape, ...]

    def shape(
        self,
        serialized: Tensor,
        names: Tensor,
        sparse_keys: list[Tensor],
        dense_keys: list[Tensor],
        dense_defaults: list[Tensor],
    ) -> list[TensorShape]:
        serialized.shape.assert_has_rank(1)
        names.shape.assert_has_rank(1)
        check_types([*self.sparse_types, *(d.dtype.base_dtype for d in dense_defaults)])
        dense = [serialized.shape.concatenate(shape) for shape in self.dense_shapes]
        return [*batch_shapes(len(sparse_keys), 2), *dense]

    def numpy(
        self,
        serialized: Array,
        names: Array,
        sparse_keys: list[Array],
        dense_keys: list[Array],
        dense_defaults: list[Array],
    ) -> list[Array]:
        keys = [text.text_item(key) for key in (*sparse_keys, *dense_keys)]
        batch = ExampleBatch(text.elements(serialized), text.elements(names), keys)
        return parsed(batch, self.sparse_types, self.dense_shapes, dense_defaults)


def parsed(
    batch: ExampleBatch,
    sparse_types: Sequence[DType],
    dense_shapes: Sequence[TensorShape],
    dense_defaults: Sequence[Array],
) -> list[Array]:
    """The outputs of an op: all sparse features, then all dense ones."""
    sparse = [batch.sparse(number, dtype) for number, dtype in enumerate(sparse_types)]
    defaults = [
        text.text_array(d) if isinstance(d, bytes) else np.asarray(d) for d in dense_defaults
    ]
    dense = [
        batch.dense(len(sparse) + number, shape, as_dtype(default.dtype), default)
        for number, (shape, default) in enumerate(zip(dense_shapes, defaults, strict=True))
    ]
    return [*transposed(cast("list[Any]", sparse), 3), *dense]


class ParseSingleExample(Op):
    """The features of one serialised Example"""

    signature = (
        "serialized: string, dense_defaults: [Tdense] -> sparse_indices: num_sparse*int64, "
        "sparse_values: [sparse_types], sparse_shapes: num_sparse*int64, dense_values: [Tdense]"
    )
    host_only = True
    not_differentiable = True
    num_sparse: int
    Tdense: tuple[DType, ...]
    sparse_keys: tuple[str, ...]
    dense_keys: tuple[str, ...]
    sparse_types: tuple[DType, ...]
    dense_shapes: tuple[TensorShape, ...]

    def shape(self, serialized: Tensor, dense_defaults: list[Tensor]) -> list[TensorShape]:
        serialized.shape.assert_has_rank(0)
        check_types([*self.sparse_types, *(d.dtype.base_dtype for d in dense_defaults)])
        return [*batch_shapes(len(self.sparse_types), 1), *self.dense_shapes]

    def numpy(self, serialized: Array, dense_defaults: list[Array]) -> list[Array]:
        keys = [as_bytes(key) for key in (*self.sparse_keys, *self.dense_keys)]
        batch = ExampleBatch([text.text_item(serialized)], [], keys)
        found = parsed(batch, self.sparse_types, self.dense_shapes, dense_defaults)
        count = self.num_sparse
        return [
            *(indices[:, 1:] for indices in found[:count]),
            *found[count : 2 * count],
            *(shape[1:] for shape in found[2 * count : 3 * count]),
            *(dense[0] for dense in found[3 * count :]),
        ]
