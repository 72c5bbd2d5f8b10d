"""Serialization of tensors and sparse tensors, and a map of sparse tensors in the session.

A tensor is serialized as a TensorProto, as in TensorFlow; a sparse tensor as three of them.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from typing import Any, cast

import numpy as np

from thalweg.graph import dtypes
from thalweg.graph.analysis.effects import Resource, writes
from thalweg.graph.composite import SparseTensor
from thalweg.graph.convert import convert_to_tensor
from thalweg.graph.dtypes import DType, as_dtype
from thalweg.graph.likes import SparseLike
from thalweg.graph.node import Node, Tensor
from thalweg.graph.op import Op
from thalweg.graph.shapes import TensorShape, matrix, scalar, unknown_shape, vector
from thalweg.ops.core.context import Context
from thalweg.ops.io.tensor_format import from_bytes, to_bytes
from thalweg.ops.sparse import sparse
from thalweg.ops.sparse.sparse import as_sparse, static_rank
from thalweg.ops.text import text
from thalweg.platform.arrays import Array
from thalweg.public import public

SparseArrays = tuple[Array, Array, Array]

# Dense tensors


class SerializeTensor(Op):
    """A tensor as a serialized TensorProto"""

    signature = "tensor: T -> serialized: string"
    host_only = True
    not_differentiable = True

    def shape(self, tensor: Tensor) -> TensorShape:
        return scalar()

    def numpy(self, tensor: Array) -> Array:
        return text.text_array(to_bytes(np.asarray(tensor)))


@public("serialize_tensor", "io.serialize_tensor")
def serialize_tensor(tensor: Any, name: str | None = None) -> Tensor:
    """A tensor as a string that `parse_tensor` reads."""
    return SerializeTensor()(tensor, name=name)


class ParseTensor(Op):
    """The tensor of a serialized TensorProto"""

    signature = "serialized: string -> output: out_type"
    host_only = True
    not_differentiable = True
    out_type: DType

    def shape(self, serialized: Tensor) -> TensorShape:
        serialized.shape.assert_has_rank(0)
        return unknown_shape()

    def numpy(self, serialized: Array) -> Array:
        data = text.text_array(serialized)
        if data.ndim:
            raise ValueError(f"Expected `serialized` to be a scalar, got shape: {list(data.shape)}")
        array = self._parsed(data.item())
        if as_dtype(array.dtype) is not self.out_type:
            raise ValueError(
                f"Type mismatch between parsed tensor ({as_dtype(array.dtype).name}) and dtype "
                f"({self.out_type.name})"
            )
        return array

    def _parsed(self, data: bytes) -> Array:
        try:
            return from_bytes(data)
        except ValueError as error:
            shown = data[:64].decode(errors="backslashreplace")
            raise ValueError(
                f"Could not parse `serialized` as TensorProto: '{shown}' ({error})"
            ) from error


@public("parse_tensor", "io.parse_tensor")
def parse_tensor(serialized: Any, out_type: Any, name: str | None = None) -> Tensor:
    """The tensor of dtype `out_type` of a string from `serialize_tensor`."""
    return ParseTensor(out_type=as_dtype(out_type))(serialized, name=name)


# Sparse tensors


class SerializeSparse(Op):
    """Indices, values and shape of a sparse tensor, each as a string (or variant)."""

    signature = (
        "sparse_indices: int64, sparse_values: T, sparse_shape: int64 "
        "-> serialized_sparse: out_type; out_type: string|variant"
    )
    host_only = True
    not_differentiable = True
    out_type: DType = dtypes.string

    def shape(self, indices: Tensor, values: Tensor, shape: Tensor) -> TensorShape:
        static_rank(indices, shape)
        return vector(3)

    def numpy(self, indices: Array, values: Array, shape: Array) -> Array:
        return packed((indices, values, shape), self.out_type)


def packed(parts: SparseArrays, kind: DType) -> Array:
    """The parts of a sparse tensor as serialized tensors, or as a variant."""
    row = np.empty(3, object)
    for position, part in enumerate(parts):
        row[position] = to_bytes(part) if kind is dtypes.string else part
    return row


@public("serialize_sparse", "io.serialize_sparse")
def serialize_sparse(
    sp_input: SparseLike, name: str | None = None, out_type: Any = dtypes.string
) -> Any:
    """A SparseTensor as a vector of three strings (or variants).

    Args:
        sp_input: a SparseTensor.
        name: the name of the node.
        out_type: string or variant.

    Returns:
        A vector of three elements: indices, values and shape.

    Example:
        >>> x = tf.SparseTensor([[0, 1]], [5], [2, 2])
        >>> sess.run(tf.serialize_sparse(x)).shape
        (3,)
    """
    op = SerializeSparse(out_type=as_dtype(out_type))
    return op(*as_sparse(sp_input).components(), name=name)


class SerializeManySparse(Op):
    """Each slice along the first axis of a sparse tensor, serialized as a row."""

    signature = (
        "sparse_indices: int64, sparse_values: T, sparse_shape: int64 "
        "-> serialized_sparse: out_type; out_type: string|variant"
    )
    host_only = True
    not_differentiable = True
    out_type: DType = dtypes.string

    def shape(self, indices: Tensor, values: Tensor, shape: Tensor) -> TensorShape:
        static_rank(indices, shape)
        return matrix(None, 3)

    def numpy(self, indices: Array, values: Array, shape: Array) -> Array:
        rows = np.empty((int(shape[0]), 3), object)
        for number, parts in enumerate(slices(indices, values, shape)):
            rows[number] = packed(parts, self.out_type)
        return rows


def slices(indices: Array, values: Array, shape: Array) -> Iterator[SparseArrays]:
    """The slices of a sparse tensor along its first axis."""
    if len(shape) < 2:
        raise ValueError(f"Rank of input SparseTensor should be > 1, but saw rank: {len(shape)}")
    sparse.check_indices(indices[:, :1], shape[:1], ordered=False)
    for number in range(int(shape[0])):
        here = indices[:, 0] == number
        yield indices[here, 1:], values[here], shape[1:]


@public("serialize_many_sparse", "io.serialize_many_sparse")
def serialize_many_sparse(
    sp_input: SparseLike, name: str | None = None, out_type: Any = dtypes.string
) -> Tensor:
    """The slices of a SparseTensor along its first axis, each as a row of three strings."""
    op = SerializeManySparse(out_type=as_dtype(out_type))
    return op(*as_sparse(sp_input).components(), name=name)


class DeserializeManySparse(Op):
    """Deserializes sparse tensors and stacks them along a new first axis."""

    signature = (
        "serialized_sparse: Tserialized -> sparse_indices: int64, sparse_values: dtype, "
        "sparse_shape: int64; Tserialized: string|variant"
    )
    host_only = True
    not_differentiable = True
    dtype: DType

    def shape(self, serialized_sparse: Tensor) -> list[TensorShape]:
        serialized_sparse.shape.with_rank(2)[1].assert_is_compatible_with(3)
        return sparse.component_shapes(None, None)

    def numpy(self, serialized_sparse: Array) -> SparseArrays:
        rows = np.asarray(serialized_sparse)
        parsed = [[_parsed(item, i, j) for j, item in enumerate(row)] for i, row in enumerate(rows)]
        return batched([(parts[0], parts[1], parts[2]) for parts in parsed], self.dtype)


def _parsed(item: Any, row: int, column: int) -> Array:
    if isinstance(item, np.ndarray):
        return cast("Array", item)
    try:
        return from_bytes(item)
    except (ValueError, TypeError) as error:
        raise ValueError(f"Could not parse serialized_sparse[{row}, {column}]: {error}") from error


def batched(parts: Sequence[SparseArrays], kind: DType) -> SparseArrays:
    """Stack sparse tensors of one rank along a new first axis."""
    if not parts:
        raise ValueError("Must have at least 1 serialized SparseTensor, but input is empty")
    for number, (_, values, shape) in enumerate(parts):
        if as_dtype(values.dtype) is not kind.base_dtype:
            raise ValueError(
                f"Requested SparseTensor of type {kind.name} but "
                f"SparseTensor[{number}].values.dtype() == {as_dtype(values.dtype).name}"
            )
        if len(shape) != len(parts[0][2]):
            raise ValueError(
                "Inconsistent rank across SparseTensors: rank prior to "
                f"SparseTensor[{number}] was: {len(parts[0][2]) + 1} but rank of "
                f"SparseTensor[{number}] is: {len(shape) + 1}"
            )
    rows = [np.insert(indices, 0, number, axis=1) for number, (indices, *_) in enumerate(parts)]
    sizes = np.max([shape for *_, shape in parts], axis=0)
    shape = np.array([len(parts), *sizes], np.int64)
    return np.concatenate(rows), np.concatenate([values for _, values, _ in parts]), shape


@public("deserialize_many_sparse", "io.deserialize_many_sparse")
def deserialize_many_sparse(
    serialized_sparse: Any, dtype: Any, rank: int | None = None, name: str | None = None
) -> SparseTensor:
    """Rows of `serialize_many_sparse` as one SparseTensor; `rank` is that of one element.

    Args:
        serialized_sparse: a string matrix [rows, 3].
        dtype: the dtype of the values.
        rank: the rank of one element; None if unknown.
        name: the name of the node.

    Returns:
        A SparseTensor with one axis more.

    Example:
        >>> x = tf.SparseTensor([[0, 1], [1, 0]], [5, 6], [2, 2])
        >>> again = tf.deserialize_many_sparse(tf.serialize_many_sparse(x), tf.int32)
        >>> sess.run(tf.sparse_tensor_to_dense(again))
        array([[0, 5],
               [6, 0]], dtype=int32)
    """
    op = DeserializeManySparse(dtype=as_dtype(dtype))
    return _with_rank(op(convert_to_tensor(serialized_sparse), name=name), rank)


def _with_rank(parts: Sequence[Tensor], rank: int | None) -> SparseTensor:
    indices, values, shape = parts
    if rank is not None:
        indices.set_shape([None, rank + 1])
        shape.set_shape([rank + 1])
    return SparseTensor(indices, values, shape)


# A map of sparse tensors in the session


class SparseTensorsMap:
    """The sparse tensors of a session by number; each can be taken once."""

    def __init__(self) -> None:
        self._tensors: dict[int, SparseArrays] = {}
        self._numbers = itertools.count()  # thread-safe

    def add(self, parts: SparseArrays) -> int:
        """Store a sparse tensor; returns its number."""
        number = next(self._numbers)
        self._tensors[number] = parts
        return number

    def take(self, number: int) -> SparseArrays:
        """Remove a sparse tensor and return it."""
        if number not in self._tensors:
            raise ValueError(f"Unable to find SparseTensor: {number} in map")
        return self._tensors.pop(number)


class TensorsMapOp(Op, abstract=True):
    """An op on the map of sparse tensors under (container, shared_name or the node's name)."""

    stateful = True
    effects = (writes(Resource.SESSION),)
    host_only = True
    not_differentiable = True
    container: str = ""
    shared_name: str = ""

    def tensors(self, context: Context) -> SparseTensorsMap:
        name = self.shared_name or context.node.name
        return context.resource(name, self.container, SparseTensorsMap)


class AddSparseToTensorsMap(TensorsMapOp):
    """Stores a sparse tensor in a map and outputs its number."""

    signature = (
        "sparse_indices: int64, sparse_values: T, sparse_shape: int64 -> sparse_handle: int64"
    )

    def shape(self, indices: Tensor, values: Tensor, shape: Tensor) -> TensorShape:
        return scalar()

    def kernel(self, context: Context, indices: Array, values: Array, shape: Array) -> Any:
        return np.int64(self.tensors(context).add((indices, values, shape)))


class AddManySparseToTensorsMap(TensorsMapOp):
    """Stores the slices of a sparse tensor in a map and outputs their numbers."""

    signature = (
        "sparse_indices: int64, sparse_values: T, sparse_shape: int64 -> sparse_handles: int64"
    )

    def shape(self, indices: Tensor, values: Tensor, shape: Tensor) -> TensorShape:
        return vector(None)

    def kernel(self, context: Context, indices: Array, values: Array, shape: Array) -> Array:
        tensors = self.tensors(context)
        return np.array([tensors.add(part) for part in slices(indices, values, shape)], np.int64)


class TakeManySparseFromTensorsMap(TensorsMapOp):
    """Removes sparse tensors from a map by number and stacks them along a new first axis."""

    signature = (
        "sparse_handles: int64 -> sparse_indices: int64, sparse_values: dtype, sparse_shape: int64"
    )
    dtype: DType

    def shape(self, sparse_handles: Tensor) -> list[TensorShape]:
        sparse_handles.shape.assert_has_rank(1)
        return sparse.component_shapes(None, None)

    def kernel(self, context: Context, sparse_handles: Array) -> SparseArrays:
        tensors = self.tensors(context)
        return batched([tensors.take(number) for number in sparse_handles.tolist()], self.dtype)


def add_sparse_to_tensors_map(
    sp_input: Any,
    container: str | None = None,
    shared_name: str | None = None,
    name: str | None = None,
) -> Tensor:
    """Store a SparseTensor in the map of this node; returns its number."""
    op = AddSparseToTensorsMap(container=container or "", shared_name=shared_name or "")
    return op(*as_sparse(sp_input).components(), name=name)


def add_many_sparse_to_tensors_map(
    sp_input: Any,
    container: str | None = None,
    shared_name: str | None = None,
    name: str | None = None,
) -> Tensor:
    """Store the slices of a SparseTensor in the map of this node; returns their numbers."""
    op = AddManySparseToTensorsMap(container=container or "", shared_name=shared_name or "")
    return op(*as_sparse(sp_input).components(), name=name)


def take_many_sparse_from_tensors_map(
    sparse_map_op: Node, sparse_handles: Any, rank: int | None = None, name: str | None = None
) -> SparseTensor:
    """Remove SparseTensors by number from the map of `sparse_map_op`; returns them stacked."""
    kept = sparse_map_op.op
    if not isinstance(kept, AddSparseToTensorsMap | AddManySparseToTensorsMap):
        raise TypeError(
            "sparse_map_op must be one of AddSparseToTensorsMap or AddManySparseToTensorsMap, "
            f"got {sparse_map_op.type}"
        )
    op = TakeManySparseFromTensorsMap(
        dtype=sparse_map_op.inputs[1].dtype.base_dtype,
        container=kept.container,
        shared_name=kept.shared_name or sparse_map_op.name,
    )
    return _with_rank(op(sparse_handles, name=name), rank)


# The names of TensorFlow, where these three functions are private but used by programs.
_add_sparse_to_tensors_map = add_sparse_to_tensors_map
_add_many_sparse_to_tensors_map = add_many_sparse_to_tensors_map
_take_many_sparse_from_tensors_map = take_many_sparse_from_tensors_map
