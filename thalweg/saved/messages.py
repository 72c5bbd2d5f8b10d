"""The protocol buffers of checkpoints and saved models, made when they are first asked for.

Most are tensorboard's classes. Those that it does not ship are built from a description here,
field for field as TensorFlow has them, so that files are the same.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from thalweg.graph.protos import message
from thalweg.platform.caches import memoized
from thalweg.public import publish_lazily

#: name of a field, its number, its type, and whether it is repeated
_Field = tuple[str, int, str, bool]

_DESCRIBED: dict[str, Sequence[_Field]] = {
    "CheckpointState": (
        ("model_checkpoint_path", 1, "string", False),
        ("all_model_checkpoint_paths", 2, "string", True),
        ("all_model_checkpoint_timestamps", 3, "double", True),
        ("last_preserved_timestamp", 4, "double", False),
    ),
    "SavedModel": (
        ("saved_model_schema_version", 1, "int64", False),
        ("meta_graphs", 2, "MetaGraphDef", True),
    ),
}


def saver_def() -> Any:
    """The class SaverDef: which tensors of a graph save and restore it."""
    return message("saver", "SaverDef")


def meta_graph_def() -> Any:
    """The class MetaGraphDef: a graph with its collections, saver and signatures."""
    return message("meta_graph", "MetaGraphDef")


def checkpoint_state() -> Any:
    """The class CheckpointState: what the file `checkpoint` of a folder says."""
    return _built("CheckpointState")


def saved_model() -> Any:
    """The class SavedModel: the graphs of a saved model."""
    return _built("SavedModel")


@memoized(1_000)
def _built(name: str) -> Any:
    """A message class of our description."""
    inner = meta_graph_def().DESCRIPTOR  # also says how to install protobuf where it is missing
    from google.protobuf import descriptor_pb2, descriptor_pool, message_factory

    file = descriptor_pb2.FileDescriptorProto(
        name=f"thalweg/{name}.proto", package="thalweg", syntax="proto3"
    )
    file.dependency.append(inner.file.name)
    described = file.message_type.add(name=name)
    kinds: Any = descriptor_pb2.FieldDescriptorProto
    for field, number, kind, repeated in _DESCRIBED[name]:
        label = kinds.LABEL_REPEATED if repeated else kinds.LABEL_OPTIONAL
        added = described.field.add(name=field, number=number, label=label)
        if kind == inner.name:
            added.type, added.type_name = kinds.TYPE_MESSAGE, f".{inner.full_name}"
        else:
            added.type = kinds.Type.Value(f"TYPE_{kind.upper()}")
    pool: Any = descriptor_pool.Default()
    pool.Add(file)
    return message_factory.GetMessageClass(pool.FindMessageTypeByName(f"thalweg.{name}"))


publish_lazily("train.SaverDef", saver_def)
publish_lazily("train.CheckpointState", checkpoint_state)
