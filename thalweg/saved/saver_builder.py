"""The nodes of a saver: what writes the variables of a graph to a checkpoint and reads them back.

Comes in: saveable objects. Goes out: a SaverDef, which names the tensor that takes the path, the
one that saves when it is fetched, and the node that restores.
"""

from __future__ import annotations

import uuid
from collections import defaultdict
from collections.abc import Sequence
from typing import Any

from thalweg import protos
from thalweg.graph.device import canonical_name
from thalweg.graph.graph import get_default_graph
from thalweg.graph.graphdef.util import set_cpu0
from thalweg.graph.node import Node, Tensor
from thalweg.graph.scopes import name_scope
from thalweg.ops.core import basic, shaping
from thalweg.ops.io import saving
from thalweg.ops.text import strings
from thalweg.saved.saveables import (
    SaveableObject,
    SaveSpec,
    VariableSaveable,
    op_list_to_dict,
    saveables_of,
)

V1, V2 = 1, 2
_PerDevice = list[tuple[str, list[SaveableObject]]]


class BaseSaverBuilder:
    """Adds the nodes of a saver; subclasses may save and restore by other nodes."""

    SaveSpec = SaveSpec
    SaveableObject = SaveableObject
    VariableSaveable = VariableSaveable
    ResourceVariableSaveable = VariableSaveable
    OpListToDict = staticmethod(op_list_to_dict)

    def __init__(self, write_version: int = V2) -> None:
        self._write_version = write_version

    def save_op(self, filename_tensor: Tensor, saveables: Sequence[SaveableObject]) -> Node:
        """A node that saves some objects to one file."""
        specs = [spec for saveable in saveables for spec in saveable.specs]
        names, slices = [spec.name for spec in specs], [spec.slice_spec for spec in specs]
        tensors = [spec.tensor for spec in specs]
        if self._write_version == V1:
            return saving.save_slices(filename_tensor, names, slices, tensors)
        if self._write_version == V2:
            return saving.save_v2(filename_tensor, names, slices, tensors)
        raise RuntimeError(f"Unexpected write_version: {self._write_version}")

    def restore_op(
        self, filename_tensor: Tensor, saveable: SaveableObject, preferred_shard: int
    ) -> list[Tensor]:
        """The tensors of one object, from a file."""
        return [
            saving.restore_v2(filename_tensor, [spec.name], [spec.slice_spec], [spec.dtype])[0]
            for spec in saveable.specs
        ]

    def bulk_restore(
        self,
        filename_tensor: Tensor,
        saveables: Sequence[SaveableObject],
        preferred_shard: int,
        restore_sequentially: bool,
    ) -> list[list[Tensor]]:
        """The tensors of each object, from a file."""
        restored: list[list[Tensor]] = []
        for saveable in saveables:
            last = [tensor.op for tensor in restored[-1]] if restored else []
            with (
                _on_cpu_of(saveable),
                get_default_graph().control_dependencies(last if restore_sequentially else []),
            ):
                restored.append(self.restore_op(filename_tensor, saveable, preferred_shard))
        return restored

    def sharded_filename(self, filename_tensor: Tensor, shard: int, num_shards: Tensor) -> Tensor:
        """The name of one file of several."""
        return saving.sharded_filename(filename_tensor, shard, num_shards)

    # Saving

    def _add_save_ops(self, filename: Tensor, saveables: Sequence[SaveableObject]) -> Tensor:
        return basic.with_dependencies([self.save_op(filename, saveables)], filename)

    def _add_sharded_save_ops(self, filename: Tensor, per_device: _PerDevice) -> Tensor:
        if self._write_version == V2:
            return self._add_merged_save_ops(filename, per_device)
        count = basic.constant(len(per_device), name="num_shards")
        saved = [
            self._add_shard(filename, shard, count, device, saveables)[1]
            for shard, (device, saveables) in enumerate(per_device)
        ]
        with get_default_graph().control_dependencies([tensor.op for tensor in saved]):
            return saving.sharded_filespec(filename, count)

    def _add_merged_save_ops(self, prefix: Tensor, per_device: _PerDevice) -> Tensor:
        """Each device writes a checkpoint of its own beside; one index joins them at the end."""
        beside = strings.string_join([prefix, f"_temp_{uuid.uuid4().hex}/part"])
        count = basic.constant(len(per_device), name="num_shards")
        parts = [
            self._add_shard(beside, shard, count, device, saveables)
            for shard, (device, saveables) in enumerate(per_device)
        ]
        graph = get_default_graph()
        with (
            graph.control_dependencies([saved.op for _, saved in parts]),
            graph.device(per_device[-1][0] if per_device else None),
        ):
            merged = saving.merge_v2_checkpoints([name for name, _ in parts], prefix)
            with graph.control_dependencies([merged]):
                return basic.identity(prefix)

    def _add_shard(
        self,
        filename: Tensor,
        shard: int,
        count: Tensor,
        device: str,
        saveables: Sequence[SaveableObject],
    ) -> tuple[Tensor, Tensor]:
        with get_default_graph().device(device):
            name = self.sharded_filename(filename, shard, count)
            return name, self._add_save_ops(name, saveables)

    # Restoring

    def _add_restore_ops(
        self,
        filename: Tensor,
        saveables: Sequence[SaveableObject],
        restore_sequentially: bool,
        reshape: bool,
        preferred_shard: int = -1,
        name: str = "restore_all",
    ) -> Node:
        tensors = self.bulk_restore(filename, saveables, preferred_shard, restore_sequentially)
        assigned: list[Any] = []
        for saveable, restored in zip(saveables, tensors, strict=True):
            before = assigned[-1:] if restore_sequentially else []
            with get_default_graph().control_dependencies(before), _on_cpu_of(saveable):
                shapes = [_shape(spec.tensor) for spec in saveable.specs] if reshape else None
                assigned.append(saveable.restore(restored, shapes))
        return basic.group(*assigned, name=name)

    def _add_sharded_restore_ops(
        self, filename: Tensor, per_device: _PerDevice, restore_sequentially: bool, reshape: bool
    ) -> Node:
        restored: list[Node] = []
        for shard, (device, saveables) in enumerate(per_device):
            with get_default_graph().device(device):
                restored.append(
                    self._add_restore_ops(
                        filename,
                        saveables,
                        restore_sequentially,
                        reshape,
                        preferred_shard=shard,
                        name="restore_shard",
                    )
                )
        return basic.group(*restored, name="restore_all")

    def build(
        self,
        names_to_saveables: Any,
        reshape: bool = False,
        sharded: bool = False,
        max_to_keep: int | None = 5,
        keep_checkpoint_every_n_hours: float = 10000.0,
        name: str | None = None,
        restore_sequentially: bool = False,
        filename: str = "model",
    ) -> Any:
        """Add the nodes for some variables and objects; returns the SaverDef that names them."""
        saveables = saveables_of(names_to_saveables)
        with name_scope(name, "save", [saveable.op for saveable in saveables]):
            path = basic.constant(filename or "model")
            if sharded:
                per_device = _by_device(saveables)
                saved = self._add_sharded_save_ops(path, per_device)
                restored = self._add_sharded_restore_ops(
                    path, per_device, restore_sequentially, reshape
                )
            else:
                saved = self._add_save_ops(path, saveables)
                restored = self._add_restore_ops(path, saveables, restore_sequentially, reshape)
        return protos.SaverDef(
            filename_tensor_name=path.name,
            save_tensor_name=saved.name,
            restore_op_name=restored.name,
            max_to_keep=max_to_keep or 0,
            sharded=sharded,
            keep_checkpoint_every_n_hours=keep_checkpoint_every_n_hours,
            version=self._write_version,
        )


class BulkSaverBuilder(BaseSaverBuilder):
    """Restores all objects by one node, which reads the index once and the data in parallel."""

    def bulk_restore(
        self,
        filename_tensor: Tensor,
        saveables: Sequence[SaveableObject],
        preferred_shard: int,
        restore_sequentially: bool,
    ) -> list[list[Tensor]]:
        """The tensors of each object, from a file."""
        if restore_sequentially:
            return super().bulk_restore(filename_tensor, saveables, preferred_shard, True)
        specs = [spec for saveable in saveables for spec in saveable.specs]
        names, slices = [spec.name for spec in specs], [spec.slice_spec for spec in specs]
        with get_default_graph().device("cpu:0"):
            flat = iter(
                saving.restore_v2(filename_tensor, names, slices, [spec.dtype for spec in specs])
            )
        return [[next(flat) for _ in saveable.specs] for saveable in saveables]


def _on_cpu_of(saveable: SaveableObject) -> Any:
    """Files are read where the object is, by the processor there."""
    device = saveable.device
    return get_default_graph().device(set_cpu0(device) if device else None)


def _shape(tensor: Any) -> Any:
    shape = tensor.get_shape()
    return shape if shape.is_fully_defined() else shaping.shape(tensor)


def _by_device(saveables: Sequence[SaveableObject]) -> _PerDevice:
    found: defaultdict[str, list[SaveableObject]] = defaultdict(list)
    for saveable in saveables:
        devices = {canonical_name(spec.device) for spec in saveable.specs}
        if len(devices) != 1:
            raise ValueError(
                f"All tensors of a saveable object must be on the same device: {saveable.name}"
            )
        found[devices.pop()].append(saveable)
    return sorted(found.items())
