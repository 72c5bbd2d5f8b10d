"""Whole files as strings."""

from __future__ import annotations

import glob
from pathlib import Path
from typing import Any

import numpy as np

from thalweg.graph.analysis.effects import Resource, reads, writes
from thalweg.graph.node import Node, Tensor
from thalweg.graph.op import Op
from thalweg.graph.shapes import TensorShape, scalar, vector
from thalweg.ops.core.context import Context
from thalweg.platform.arrays import Array
from thalweg.platform.files.gfile import os_errors
from thalweg.public import public


def _path(name: Any) -> Path:
    return Path(np.asarray(name, object).item().decode())


class ReadFile(Op):
    """The contents of a file."""

    signature = "filename: string -> contents: string"
    effects = (reads(Resource.FILES),)
    stateful = True
    host_only = True
    not_differentiable = True

    def shape(self, filename: Tensor) -> TensorShape:
        filename.shape.assert_is_compatible_with([])
        return scalar()

    def kernel(self, context: Context, filename: Any) -> Any:
        path = _path(filename)
        with os_errors(path):
            return np.array(path.read_bytes(), object)


@public("read_file", "io.read_file")
def read_file(filename: Any, name: str | None = None) -> Tensor:
    """The contents of a file.

    Args:
        filename: the path, a scalar string.
        name: the name of the node.

    Returns:
        A scalar string.

    Raises:
        NotFoundError: if there is no such file.

    Example:
        >>> tf.gfile.GFile("a.txt", "w").write("hello")
        >>> sess.run(tf.read_file("a.txt"))
        b'hello'
    """
    return ReadFile()(filename, name=name)


class WriteFile(Op):
    """Writes a string to a file, and creates its folders."""

    signature = "filename: string, contents: string ->"
    effects = (writes(Resource.FILES),)
    stateful = True
    host_only = True
    not_differentiable = True

    def shape(self, filename: Tensor, contents: Tensor) -> list[TensorShape]:
        filename.shape.assert_is_compatible_with([])
        contents.shape.assert_is_compatible_with([])
        return []

    def kernel(self, context: Context, filename: Any, contents: Any) -> tuple[()]:
        path = _path(filename)
        with os_errors(path):
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(np.asarray(contents, object).item())
        return ()


@public("write_file", "io.write_file")
def write_file(filename: Any, contents: Any, name: str | None = None) -> Node:
    """Write a string to a file, and create its folders.

    Args:
        filename: the path, a scalar string.
        contents: a scalar string.
        name: the name of the node.

    Returns:
        A node to run.

    Example:
        >>> sess.run(tf.write_file("logs/a.txt", "hello"))
        >>> tf.gfile.GFile("logs/a.txt").read()
        'hello'
    """
    return WriteFile()(filename, contents, name=name)


class MatchingFiles(Op):
    """The names of the files that match glob patterns, sorted."""

    signature = "pattern: string -> filenames: string"
    effects = (reads(Resource.FILES),)
    stateful = True
    host_only = True
    not_differentiable = True

    def shape(self, pattern: Tensor) -> TensorShape:
        return vector(None)

    def kernel(self, context: Context, pattern: Any) -> Array:
        found: set[bytes] = set()
        for item in np.atleast_1d(np.asarray(pattern, object)).tolist():
            found |= {name.encode() for name in glob.glob(item.decode())}
        result = np.empty(len(found), object)
        result[:] = sorted(found)
        return result


@public("matching_files", "io.matching_files")
def matching_files(pattern: Any, name: str | None = None) -> Tensor:
    """The names of the files that match one or several glob patterns."""
    return MatchingFiles()(pattern, name=name)
