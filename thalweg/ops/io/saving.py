"""Ops that save tensors to files and restore them.

`SaveV2` and `RestoreV2` take the prefix of a checkpoint, names of tensors and, for slices of
partitioned variables, specs such as `"10 20 0,5:-"`. Restored values are views of mapped files;
those that are only assigned to variables are read directly into memory that the variables adopt.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Generator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import Any, cast
from weakref import WeakKeyDictionary

import numpy as np

from thalweg import errors
from thalweg.graph.analysis.effects import Resource, reads, writes
from thalweg.graph.dtypes import DType
from thalweg.graph.known import constant_value
from thalweg.graph.node import Node, Tensor
from thalweg.graph.op import Op
from thalweg.graph.shapes import TensorShape, scalar, unknown_shape
from thalweg.ops.core.context import Cancellation, Context, VariableCell
from thalweg.ops.state.state import Assign
from thalweg.ops.text.strings import RegexFullMatch, StringOp
from thalweg.platform.arrays import Array
from thalweg.platform.files import checkpoint_files
from thalweg.platform.files.checkpoints import open_checkpoint
from thalweg.platform.files.safetensors import Piece
from thalweg.platform.files.tensor_slices import Checkpoint, ReadRequest, Slice, parse_slice

#: An assignment of a restored value, and its variable.
Target = tuple[Node, VariableCell]


class FileOp(Op, abstract=True):
    """Reads or writes files."""

    stateful = True
    effects = (writes(Resource.FILES),)
    host_only = True
    not_differentiable = True


def _text(value: Any) -> str:
    return np.asarray(value, object).item().decode()


def _texts(values: Any) -> list[str]:
    return [item.decode() for item in np.asarray(values, object).reshape(-1).tolist()]


def pieces(names: Any, slices: Any, tensors: Sequence[Any]) -> list[Piece]:
    """The pieces that a saving op writes, from its inputs."""
    named, boxes = _texts(names), _texts(slices)
    if not len(named) == len(boxes) == len(tensors):
        raise errors.invalid(
            f"{len(tensors)} tensors to save, but {len(named)} names and {len(boxes)} slices"
        )
    return [_piece(*each) for each in zip(named, boxes, tensors, strict=True)]


def _piece(name: str, spec: str, value: Any) -> Piece:
    array, extent = np.asarray(value), parse_slice(spec)
    if extent is not None and extent.shape != array.shape:
        raise errors.invalid(
            f"Slice in shape_and_slice specification does not match the shape of the tensor to "
            f"save: {spec}, tensor: {list(array.shape)}"
        )
    return Piece(name, array, extent)


def _check_lists(prefix: Tensor, lists: Sequence[Tensor], count: int) -> None:
    prefix.shape.assert_is_compatible_with([])
    for each in lists:
        each.shape.assert_is_compatible_with([count])


# Saving

#: The pieces of deferred saves, by prefix: see `deferred`.
_deferred: dict[str, list[list[Piece]]] = {}


@contextmanager
def deferred(prefix: str) -> Generator[list[list[Piece]]]:
    """Inside the block, a save to `prefix` appends its tensors to the result, one list per device,
    instead of writing them.

    Variables are not copied: the tensors are leases, and a variable that changes later gets a new
    buffer.
    """
    shards = _deferred[prefix] = []
    try:
        yield shards
    finally:
        del _deferred[prefix]


def _deferral(path: str) -> list[list[Piece]] | None:
    """The deferred shards of a save to a path, or None; a device's shard has a temporary path."""
    return _deferred.get(path, _deferred.get(path.rpartition("_temp_")[0]))


def _lasting(shard: Sequence[Piece], sources: Sequence[Tensor]) -> list[Piece]:
    """The pieces, with copies of temporaries of the step: their memory is reused."""
    return [
        piece if source.dtype.is_ref_dtype else replace(piece, array=piece.array.copy())
        for piece, source in zip(shard, sources, strict=True)
    ]


class SaveV2(FileOp):
    """Writes tensors to the checkpoint of a prefix."""

    signature = (
        "prefix: string, tensor_names: string, shape_and_slices: string, tensors: [dtypes] ->"
    )

    def shape(
        self, prefix: Tensor, names: Tensor, slices: Tensor, tensors: list[Tensor]
    ) -> list[TensorShape]:
        _check_lists(prefix, [names, slices], len(tensors))
        return []

    def kernel(
        self, context: Context, prefix: Any, names: Any, slices: Any, tensors: list[Any]
    ) -> tuple[()]:
        path, shard = _text(prefix), pieces(names, slices, tensors)
        kept = _deferral(path)
        if kept is not None:
            kept.append(_lasting(shard, context.node.inputs[3:]))
            return ()
        os.makedirs(os.path.dirname(path) or ".", exist_ok=True)  # shards go to a new folder
        checkpoint_files.save(path, [shard])
        return ()


class SaveSlices(FileOp):
    """Writes tensors and slices of tensors to one file."""

    signature = "filename: string, tensor_names: string, shapes_and_slices: string, data: [T] ->"

    def shape(
        self, filename: Tensor, names: Tensor, slices: Tensor, data: list[Tensor]
    ) -> list[TensorShape]:
        _check_lists(filename, [names, slices], len(data))
        return []

    def kernel(
        self, context: Context, filename: Any, names: Any, slices: Any, data: list[Any]
    ) -> tuple[()]:
        checkpoint_files.save_file(_text(filename), pieces(names, slices, data))
        return ()


class Save(FileOp):
    """Writes tensors to one file."""

    signature = "filename: string, tensor_names: string, data: [T] ->"

    def shape(self, filename: Tensor, names: Tensor, data: list[Tensor]) -> list[TensorShape]:
        _check_lists(filename, [names], len(data))
        return []

    def kernel(self, context: Context, filename: Any, names: Any, data: list[Any]) -> tuple[()]:
        slices = np.array([b""] * len(data), object)
        checkpoint_files.save_file(_text(filename), pieces(names, slices, data))
        return ()


class MergeV2Checkpoints(FileOp):
    """Merges the shards of several devices to one checkpoint."""

    signature = "checkpoint_prefixes: string, destination_prefix: string ->"
    delete_old_dirs: bool = True

    def shape(self, prefixes: Tensor, destination: Tensor) -> list[TensorShape]:
        prefixes.shape.with_rank(1)
        destination.shape.assert_is_compatible_with([])
        return []

    def kernel(self, context: Context, prefixes: Any, destination: Any) -> tuple[()]:
        path = _text(destination)
        if _deferral(path) is None:
            checkpoint_files.merge(_texts(prefixes), path, self.delete_old_dirs)
        return ()


# Names of shards


class ShardedFilename(FileOp):
    """`base-00004-of-00100`"""

    signature = "basename: string, shard: int32, num_shards: int32 -> filename: string"
    effects = ()

    def shape(self, *inputs: Tensor) -> TensorShape:
        for tensor in inputs:
            tensor.shape.assert_is_compatible_with([])
        return scalar()

    def kernel(self, context: Context, basename: Any, shard: Any, num_shards: Any) -> Any:
        name = f"{_text(basename)}-{int(shard):05d}-of-{int(num_shards):05d}"
        return np.array(name.encode(), object)


class ShardedFilespec(FileOp):
    """`base-?????-of-00100`: a pattern that matches all shards"""

    signature = "basename: string, num_shards: int32 -> filename: string"
    effects = ()

    def shape(self, *inputs: Tensor) -> TensorShape:
        for tensor in inputs:
            tensor.shape.assert_is_compatible_with([])
        return scalar()

    def kernel(self, context: Context, basename: Any, num_shards: Any) -> Any:
        return np.array(f"{_text(basename)}-?????-of-{int(num_shards):05d}".encode(), object)


class StaticRegexFullMatch(StringOp):
    """y = whether all of x matches a pattern; TensorFlow's savers apply it to paths"""

    signature = "input: string -> output: bool"
    pattern: str

    def shape(self, input: Tensor) -> TensorShape:
        return input.shape

    def numpy(self, input: Array) -> Array:
        return RegexFullMatch().numpy(input, np.array(self.pattern.encode(), object))


# Restoring

#: The checkpoints that each running step has opened, by the step's cancellation.
_opened: WeakKeyDictionary[Cancellation, dict[tuple[str, int], Checkpoint]] = WeakKeyDictionary()
_opening = threading.Lock()


def _open(context: Context, prefix: str) -> Checkpoint:
    """The checkpoint of a prefix: all ops of a step that restore from it share one index."""
    index = checkpoint_files.index_path(prefix)
    changed = os.stat(index).st_mtime_ns if os.path.exists(index) else 0
    with _opening:
        opened = _opened.setdefault(context.cancellation, {})
        if (prefix, changed) not in opened:
            opened[prefix, changed] = open_checkpoint(prefix)
        return opened[prefix, changed]


def _restored(checkpoint: Checkpoint, name: str, spec: str, dtype: DType) -> Array:
    _check_dtype(checkpoint, name, dtype)
    return checkpoint.read(name, parse_slice(spec))


def _check_dtype(checkpoint: Checkpoint, name: str, dtype: DType) -> None:
    stored = checkpoint.entry(name).dtype
    if stored != dtype.base_dtype.name:
        raise errors.invalid(
            f"Key {name} in checkpoint {checkpoint.prefix} has dtype {stored}, but "
            f"{dtype.base_dtype.name} was expected"
        )


def _check_assign(checkpoint: Checkpoint, name: str, box: Slice | None, target: Target) -> None:
    """Raise the error that the assignment of a restored value would, before anything is read."""
    node, cell = target
    shape = checkpoint.entry(name).shape if box is None else box.shape
    assert isinstance(node.op, Assign)
    try:
        node.op.check(cell, shape)
    except errors.OpError as error:
        raise error.at(node) from None


def _slice_shape(spec: bytes | str) -> TensorShape:
    extent = parse_slice(spec.decode() if isinstance(spec, bytes) else spec)
    return unknown_shape() if extent is None else TensorShape.of(extent.shape)


class RestoreV2(FileOp):
    """Tensors from the checkpoint of a prefix."""

    signature = (
        "prefix: string, tensor_names: string, shape_and_slices: string -> tensors: [dtypes]"
    )
    effects = (reads(Resource.FILES),)
    dtypes: tuple[DType, ...]

    def shape(self, prefix: Tensor, names: Tensor, slices: Tensor) -> list[TensorShape]:
        _check_lists(prefix, [names, slices], len(self.dtypes))
        known = constant_value(slices)
        if known is None:
            return [unknown_shape()] * len(self.dtypes)
        return [_slice_shape(spec) for spec in np.asarray(known, object).tolist()]

    def kernel(self, context: Context, prefix: Any, names: Any, slices: Any) -> list[Array]:
        checkpoint, named = _open(context, _text(prefix)), _texts(names)
        checkpoint.prepare(named)
        wanted = zip(named, _texts(slices), self.dtypes, strict=True)
        return [_restored(checkpoint, *each) for each in wanted]

    def restore(
        self, context: Context, prefix: Any, names: Any, slices: Any, targets: Sequence[Target]
    ) -> None:
        """Restore variables directly, with the effect of assigning the outputs."""
        checkpoint = _open(context, _text(prefix))
        wanted: list[ReadRequest] = []
        each = zip(_texts(names), _texts(slices), self.dtypes, targets, strict=True)
        for name, spec, dtype, target in each:
            box = parse_slice(spec)
            _check_dtype(checkpoint, name, dtype)
            _check_assign(checkpoint, name, box, target)
            wanted.append((name, box, target[1].exchange))
        checkpoint.read_into(wanted)


class Restore(FileOp):
    """A tensor from the files that match a pattern."""

    signature = "file_pattern: string, tensor_name: string -> tensor: dt"
    effects = (reads(Resource.FILES),)
    dt: DType
    preferred_shard: int = -1

    def shape(self, file_pattern: Tensor, tensor_name: Tensor) -> TensorShape:
        file_pattern.shape.assert_is_compatible_with([])
        tensor_name.shape.assert_is_compatible_with([])
        return unknown_shape()

    def kernel(self, context: Context, file_pattern: Any, tensor_name: Any) -> Array:
        return _restored(_open(context, _text(file_pattern)), _text(tensor_name), "", self.dt)


class RestoreSlice(FileOp):
    """A slice of a tensor from the files that match a pattern."""

    signature = "file_pattern: string, tensor_name: string, shape_and_slice: string -> tensor: dt"
    effects = (reads(Resource.FILES),)
    dt: DType
    preferred_shard: int = -1

    def shape(self, file_pattern: Tensor, tensor_name: Tensor, slice: Tensor) -> TensorShape:
        for tensor in (file_pattern, tensor_name, slice):
            tensor.shape.assert_is_compatible_with([])
        known = constant_value(slice)
        return unknown_shape() if known is None else _slice_shape(np.asarray(known, object).item())

    def kernel(self, context: Context, file_pattern: Any, tensor_name: Any, slice: Any) -> Array:
        checkpoint = _open(context, _text(file_pattern))
        return _restored(checkpoint, _text(tensor_name), _text(slice), self.dt)


# Functions


def save_v2(
    prefix: Any,
    tensor_names: Any,
    shape_and_slices: Any,
    tensors: Sequence[Any],
    name: str | None = None,
) -> Node:
    """Write tensors to the checkpoint of a prefix."""
    return SaveV2()(prefix, tensor_names, shape_and_slices, tensors, name=name)


def save_slices(
    filename: Any,
    tensor_names: Any,
    shapes_and_slices: Any,
    data: Sequence[Any],
    name: str | None = None,
) -> Node:
    """Write tensors and slices of tensors to one file."""
    return SaveSlices()(filename, tensor_names, shapes_and_slices, data, name=name)


def restore_v2(
    prefix: Any,
    tensor_names: Any,
    shape_and_slices: Any,
    dtypes: Sequence[DType],
    name: str | None = None,
) -> list[Tensor]:
    """Tensors from the checkpoint of a prefix."""
    kinds = tuple(dtype.base_dtype for dtype in dtypes)
    result = RestoreV2(dtypes=kinds)(prefix, tensor_names, shape_and_slices, name=name)
    return list(cast("Sequence[Tensor]", result)) if isinstance(result, list | tuple) else [result]


def merge_v2_checkpoints(
    checkpoint_prefixes: Any,
    destination_prefix: Any,
    delete_old_dirs: bool = True,
    name: str | None = None,
) -> Node:
    """Merge several shards to one checkpoint."""
    op = MergeV2Checkpoints(delete_old_dirs=delete_old_dirs)
    return op(checkpoint_prefixes, destination_prefix, name=name)


def sharded_filename(basename: Any, shard: Any, num_shards: Any, name: str | None = None) -> Tensor:
    """The name of a shard."""
    return ShardedFilename()(basename, shard, num_shards, name=name)


def sharded_filespec(basename: Any, num_shards: Any, name: str | None = None) -> Tensor:
    """A pattern for the names of all shards."""
    return ShardedFilespec()(basename, num_shards, name=name)
