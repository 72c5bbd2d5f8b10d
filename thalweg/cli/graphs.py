"""Graphs as `thalweg inspect` shows them: GraphDefs and MetaGraphDefs, and saved models, which
have several; of TensorFlow 1 and 2, as bytes or as text.
"""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Iterable, Iterator
from functools import cached_property
from itertools import chain
from typing import Any

from thalweg import protos
from thalweg.cli.checkpoints import CheckpointFiles, missing, refuse_record
from thalweg.cli.problem import Problem
from thalweg.cli.report import Report, Size
from thalweg.cli.tensors import NamedArray, stored_array
from thalweg.graph.dtypes import as_dtype
from thalweg.graph.shapes import TensorShape
from thalweg.platform.files.checkpoint_files import exists
from thalweg.saved.meta_graph import read_proto
from thalweg.saved.saved_model import VARIABLES_DIRECTORY, VARIABLES_FILENAME, saved_model_file

_MAX_MESSAGE = (1 << 31) - 1  # bytes that a protocol buffer can have
_MAX_LISTED = 20


class GraphFile:
    """A file of a GraphDef or a MetaGraphDef."""

    def __init__(self, path: str) -> None:
        self._path = path

    @cached_property
    def _proto(self) -> Any:
        """The message. Each kind reads as the other without nodes, or not at all."""
        check_size(self._path)
        reason = ""
        for kind in (protos.MetaGraphDef, protos.GraphDef):
            try:
                proto = read_proto(self._path, kind)
            except OSError as error:
                reason = str(error)
                continue
            if len(_graph_of(proto).node):
                return proto
            reason = "it has no nodes"
        raise self._unreadable(reason)

    def _unreadable(self, reason: str) -> Problem:
        """What is wrong with a file that should be a graph, or was found to be nothing else."""
        if self._path.endswith(".pbtxt"):
            return Problem(reason if self._path in reason else f"{self._path}: {reason}")
        if self._path.endswith((".pb", ".meta")):
            return Problem(f"{self._path}: no graph, or one that is damaged or cut off")
        return Problem(
            f"{self._path}: of no kind that is known: neither a checkpoint nor safetensors, a "
            "saved model, a graph, records or events"
        )

    def report(self, verify: bool) -> Report:
        """The ops of the graph, and what a MetaGraphDef knows besides."""
        if isinstance(self._proto, protos.MetaGraphDef):
            return meta_graph_report(self._proto, self._path)
        return Report("graph", self._path, *_graph_parts(self._proto))

    def tensor(self, name: str, record: int | None) -> NamedArray:
        """A constant."""
        refuse_record(self._path, record)
        return constant(self._path, name, [_graph_of(self._proto)])


class SavedModelFolder:
    """A folder with a `saved_model.pb`."""

    def __init__(self, folder: str) -> None:
        self._folder = folder
        self._variables = os.path.join(folder, VARIABLES_DIRECTORY, VARIABLES_FILENAME)

    @cached_property
    def _model(self) -> Any:
        path = saved_model_file(self._folder)
        check_size(path)
        model = read_proto(path, protos.SavedModel)
        if not model.meta_graphs:
            raise Problem(f"{path}: a saved model without graphs")
        return model

    def report(self, verify: bool) -> Report:
        """The graphs and the variables."""
        parts = [meta_graph_report(graph) for graph in self._model.meta_graphs]
        if exists(self._variables):
            parts.append(CheckpointFiles(self._variables).report(verify))
        version = self._model.saved_model_schema_version
        return Report("saved model", self._folder, {"schema version": version}, parts=parts)

    def tensor(self, name: str, record: int | None) -> NamedArray:
        """A variable, or a constant of the graphs."""
        refuse_record(self._folder, record)
        try:
            return constant(self._folder, name, [g.graph_def for g in self._model.meta_graphs])
        except Problem:
            if not exists(self._variables):
                raise
        return CheckpointFiles(self._variables).tensor(name, None)


def check_size(path: str) -> None:
    """Raise before a file is read that is longer than a message can be."""
    size = os.path.getsize(path)
    if size > _MAX_MESSAGE:
        raise Problem(f"{path}: {size:,} bytes are more than a protocol buffer can have")


# A graph


def _graph_of(proto: Any) -> Any:
    return proto.graph_def if isinstance(proto, protos.MetaGraphDef) else proto


def _graph_parts(graph: Any) -> tuple[dict[str, Any], dict[str, list[dict[str, Any]]]]:
    """Facts and tables of a GraphDef."""
    counted = Counter(node.op for node in graph.node)
    facts: dict[str, Any] = {"nodes": len(graph.node), "ops": len(counted)}
    if graph.library.function:
        facts["functions"] = len(graph.library.function)
    held = sum(node.attr["value"].ByteSize() for node in _constants(graph))
    facts["constants"] = Size(held)
    ranked = sorted(counted.items(), key=lambda pair: (-pair[1], pair[0]))
    tables = {
        "inputs": [_placeholder(node) for node in graph.node if node.op.startswith("Placeholder")],
        "nodes by op": [{"count": count, "op": op} for op, count in ranked],
    }
    return facts, tables


def _placeholder(node: Any) -> dict[str, Any]:
    shape = node.attr["shape"].shape if "shape" in node.attr else None
    return {
        "name": node.name,
        "dtype": _dtype_name(node.attr["dtype"].type),
        "shape": "unknown" if shape is None else str(TensorShape(shape)),
    }


def _dtype_name(number: int) -> str:
    """The name of a dtype, or what stands in a file for one that nobody knows."""
    try:
        return as_dtype(number).name
    except TypeError:
        return f"dtype {number}"


def _constants(graph: Any) -> Iterator[Any]:
    """The constants of a graph, and those of its functions."""
    bodies = (function.node_def for function in graph.library.function)
    for node in chain(graph.node, *bodies):
        if node.op == "Const" and "value" in node.attr:
            yield node


def constant(path: str, name: str, graphs: Iterable[Any]) -> NamedArray:
    """The value of a constant of some graphs."""
    known: list[str] = []
    for graph in graphs:
        for node in _constants(graph):
            if node.name == name.removesuffix(":0"):
                return NamedArray(
                    node.name, stored_array(path, node.name, node.attr["value"].tensor)
                )
            known.append(node.name)
    raise missing(path, "constant", name, known)


# What surrounds it


def meta_graph_report(meta: Any, path: str = "") -> Report:
    """A MetaGraphDef: who wrote it, its signatures and collections, its objects, its graph."""
    facts, tables = _graph_parts(meta.graph_def)
    info = meta.meta_info_def
    about = {
        "tags": ", ".join(sorted(info.tags)) or "none",
        "written by": info.tensorflow_version or "unknown",
    }
    signatures = {
        f"signature {key} ({signature.method_name or 'no method'})": list(_ends(signature))
        for key, signature in sorted(meta.signature_def.items())
    }
    more = {"collections": list(_collections(meta)), "objects": list(_objects(meta))}
    return Report("graph", path, about | facts, signatures | more | tables)


def _ends(signature: Any) -> Iterator[dict[str, Any]]:
    for way, ends in (("in", signature.inputs), ("out", signature.outputs)):
        for name, info in sorted(ends.items()):
            yield {
                "": way,
                "name": name,
                "dtype": _dtype_name(info.dtype),
                "shape": str(TensorShape(info.tensor_shape)),
                "tensor": info.name or f"sparse {info.coo_sparse.values_tensor_name}",
            }


def _collections(meta: Any) -> Iterator[dict[str, Any]]:
    for key, collection in sorted(meta.collection_def.items()):
        kind = collection.WhichOneof("kind")
        yield {
            "collection": key,
            "items": len(getattr(collection, kind).value) if kind else 0,
        }


def _objects(meta: Any) -> Iterator[dict[str, Any]]:
    """What a saved model of TensorFlow 2 restores objects from: how many of each kind, and names
    of the first."""
    found: dict[str, list[str]] = {}
    for node in meta.object_graph_def.nodes:
        kind = node.WhichOneof("kind") or "other"
        inner = getattr(node, kind, None)
        found.setdefault(kind, []).append(getattr(inner, "name", "") or _identifier(inner))
    for kind, names in sorted(found.items()):
        distinct = sorted(set(filter(None, names)))
        shown = ", ".join(distinct[:_MAX_LISTED]) + (", …" if len(distinct) > _MAX_LISTED else "")
        yield {"kind": kind.replace("_", " "), "count": len(names), "names": shown}


def _identifier(inner: Any) -> str:
    return getattr(inner, "identifier", "")
