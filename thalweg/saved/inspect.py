"""The command `thalweg`: `inspect PATH` shows what is in a checkpoint, a saved model or the file of
a graph; `export PATH TARGET` writes a checkpoint as TensorFlow's own.

Comes in: a path of any of these, or of a folder that has them. Goes out: lines of text, or an exit
status of 1 and the reason where there is nothing that can be read.
"""

from __future__ import annotations

import argparse
import os
import sys
from collections import Counter
from collections.abc import Iterator, Sequence
from math import prod
from typing import Any

import numpy as np

from thalweg import errors, protos
from thalweg.graph.attributes import shape_from_proto
from thalweg.graph.dtypes import as_dtype
from thalweg.platform.dtype_traits import is_float, widened
from thalweg.platform.files.checkpoint_files import exists
from thalweg.platform.files.checkpoints import open_checkpoint
from thalweg.platform.files.safetensors import NUMPY
from thalweg.platform.files.tensor_slices import Checkpoint, Entry
from thalweg.saved.checkpoint_state import get_checkpoint_state
from thalweg.saved.checkpoints import export_tensorflow_checkpoint
from thalweg.saved.meta_graph import read_proto
from thalweg.saved.saved_model import (
    VARIABLES_DIRECTORY,
    VARIABLES_FILENAME,
    maybe_saved_model_directory,
    read_saved_model,
)


def inspect(path: str, verify: bool = False, tensor: str | None = None) -> Iterator[str]:
    """Lines that describe what lies at a path."""
    if tensor is not None:
        yield from _value(open_checkpoint(path), tensor)
    elif maybe_saved_model_directory(path):
        yield from _saved_model(path, verify)
    elif os.path.isdir(path):
        yield from _folder(path, verify)
    elif path.endswith((".meta", ".pb", ".pbtxt")):
        yield from _graph_file(path)
    else:
        yield from _checkpoint(path, verify)


def _folder(path: str, verify: bool) -> Iterator[str]:
    state = get_checkpoint_state(path)
    if state is None:
        raise errors.NotFoundError(
            None, None, f"{path}: neither a saved model nor a folder of checkpoints"
        )
    yield f"checkpoints of {path}:"
    for prefix in state.all_model_checkpoint_paths:
        is_latest = prefix == state.model_checkpoint_path
        note = "" if exists(prefix) else " (missing)"
        yield f"  {prefix}{note}{' (latest)' if is_latest else ''}"
    yield from _checkpoint(state.model_checkpoint_path, verify)


def _checkpoint(prefix: str, verify: bool) -> Iterator[str]:
    checkpoint = open_checkpoint(prefix)
    if verify:
        for name in checkpoint.entries:
            checkpoint.read(name)
    entries = checkpoint.entries.values()
    size = sum(part.end - part.begin for entry in entries for part in entry.parts)
    checked = ", all checksums right" if verify else ""
    yield f"checkpoint {prefix}: {len(entries)} tensors, {size:,} bytes{checked}"
    width = max((len(name) for name in checkpoint.entries), default=0)
    for name, entry in checkpoint.entries.items():
        yield f"  {name:{width}}  {_described(entry)}"


def _described(entry: Entry) -> str:
    slices = f" in {len(entry.parts)} slices" if len(entry.parts) > 1 else ""
    return f"{entry.dtype}{list(entry.shape)}{slices}"


def _value(checkpoint: Checkpoint, name: str) -> Iterator[str]:
    entry = checkpoint.entry(name)
    yield f"{name}  {_described(entry)}"
    value = checkpoint.read(name)
    if is_float(NUMPY[entry.dtype]) and prod(entry.shape):
        wide = widened(value)
        yield f"  min {wide.min():g}  max {wide.max():g}  mean {wide.mean(dtype=float):g}"
    yield from np.array2string(value).splitlines()


def _saved_model(path: str, verify: bool) -> Iterator[str]:
    model = read_saved_model(path)
    yield f"saved model {path}: {len(model.meta_graphs)} graphs"
    for graph in model.meta_graphs:
        yield from _meta_graph(graph)
    variables = os.path.join(path, VARIABLES_DIRECTORY, VARIABLES_FILENAME)
    if exists(variables):
        yield from _checkpoint(variables, verify)


def _meta_graph(graph: Any) -> Iterator[str]:
    info = graph.meta_info_def
    tags = f" tagged {', '.join(sorted(info.tags))}" if info.tags else ""
    yield f"graph{tags}, written by version {info.tensorflow_version or 'unknown'}"
    yield from _nodes(graph.graph_def)
    for key, signature in sorted(graph.signature_def.items()):
        yield f"  signature {key} ({signature.method_name or 'no method'})"
        for name, tensor in sorted(signature.inputs.items()):
            yield f"    in  {name}: {_tensor(tensor)}"
        for name, tensor in sorted(signature.outputs.items()):
            yield f"    out {name}: {_tensor(tensor)}"
    for key, collection in sorted(graph.collection_def.items()):
        kind = collection.WhichOneof("kind")
        count = len(getattr(collection, kind).value) if kind else 0
        yield f"  collection {key}: {count} items"


def _tensor(info: Any) -> str:
    dtype, shape = as_dtype(info.dtype).name, shape_from_proto(info.tensor_shape)
    where = info.name or f"sparse {info.coo_sparse.values_tensor_name}"
    return f"{dtype}{shape} {where}"


def _graph_file(path: str) -> Iterator[str]:
    """A MetaGraphDef, or a bare GraphDef: each reads as the other without nodes, or not at all."""
    for kind, describe in (
        (protos.MetaGraphDef, _meta_graph),
        (protos.GraphDef, _nodes),
    ):
        try:
            proto = read_proto(path, kind)
        except OSError:
            continue
        if len(proto.node if describe is _nodes else proto.graph_def.node):
            yield f"graph file {path}"
            yield from describe(proto)
            return
    raise errors.DataLossError(None, None, f"{path}: neither a GraphDef nor a MetaGraphDef")


def _nodes(graph_def: Any) -> Iterator[str]:
    counted = Counter(node.op for node in graph_def.node)
    yield f"  {len(graph_def.node)} nodes of {len(counted)} ops"
    for op, count in sorted(counted.items(), key=lambda pair: (-pair[1], pair[0])):
        yield f"    {count:6} {op}"


def main(arguments: Sequence[str] | None = None) -> int:
    """The command `thalweg`."""
    parser = argparse.ArgumentParser(prog="thalweg")
    commands = parser.add_subparsers(dest="command", required=True)
    command = commands.add_parser(
        "inspect", help="show what is in a checkpoint, a saved model or a graph"
    )
    command.add_argument("path", help="a checkpoint's prefix, a folder, or a file")
    command.add_argument("--tensor", help="show the value of one tensor of a checkpoint")
    command.add_argument("--verify", action="store_true", help="check all bytes of a checkpoint")
    command = commands.add_parser("export", help="write a checkpoint as TensorFlow's own")
    command.add_argument("path", help="a checkpoint's prefix, or a folder of checkpoints")
    command.add_argument("target", help="the prefix of the files to write")
    given = parser.parse_args(arguments)
    path = given.path.removesuffix(".index")
    try:
        if given.command == "export":
            written = export_tensorflow_checkpoint(path, given.target)
            print(f"{given.target}: {len(written)} tensors for TensorFlow")
            return 0
        for line in inspect(path, given.verify, given.tensor):
            print(line)
    except BrokenPipeError:  # the reader has seen enough
        return 0
    except (errors.OpError, OSError, ValueError) as error:
        print(f"thalweg {given.command}: {error}", file=sys.stderr)
        return 1
    return 0
