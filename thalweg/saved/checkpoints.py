"""What is in a checkpoint: readers, lists of variables, and variables that start from one."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, cast

import numpy as np
from numpy.typing import NDArray

from thalweg.graph.dtypes import DType, as_dtype
from thalweg.graph.graph import get_default_graph
from thalweg.graph.graphdef.util import set_cpu0
from thalweg.graph.scopes import name_scope
from thalweg.ops.io import saving
from thalweg.ops.state import state
from thalweg.platform import tf_logging
from thalweg.platform.compat import as_str
from thalweg.platform.files import gfile
from thalweg.platform.files.checkpoints import open_checkpoint
from thalweg.platform.files.safetensors import Piece
from thalweg.platform.files.tf_bundle_writer import write_bundle
from thalweg.public import public
from thalweg.saved.checkpoint_state import latest_checkpoint
from thalweg.variables.partitioned import PartitionedVariable
from thalweg.variables.scope import get_variable_scope
from thalweg.variables.variable import Variable


class CheckpointReader:
    """The tensors of a checkpoint by name; ours, a safetensors file, or TensorFlow's."""

    def __init__(self, filepattern: str) -> None:
        self._checkpoint = open_checkpoint(filepattern)

    def has_tensor(self, tensor_str: str) -> bool:
        """Whether there is a tensor of that name."""
        return as_str(tensor_str) in self._checkpoint.entries

    def get_tensor(self, tensor_str: str) -> NDArray[Any]:
        """The value of a tensor, as an array of its own."""
        return np.array(self._checkpoint.read(as_str(tensor_str)))[()]

    def get_variable_to_shape_map(self) -> dict[str, list[int]]:
        """The shapes of all tensors by name."""
        return {name: list(entry.shape) for name, entry in self._checkpoint.entries.items()}

    def get_variable_to_dtype_map(self) -> dict[str, DType]:
        """The dtypes of all tensors by name."""
        return {name: as_dtype(entry.dtype) for name, entry in self._checkpoint.entries.items()}

    def debug_string(self) -> bytes:
        """A line for each tensor: `name (DT_FLOAT) [2,3]`."""
        lines = [
            f"{name} (DT_{as_dtype(entry.dtype).traits.short_name.upper()}) "
            f"[{','.join(map(str, entry.shape))}]"
            for name, entry in self._checkpoint.entries.items()
        ]
        return "\n".join(lines).encode()


@public("train.NewCheckpointReader")
def NewCheckpointReader(filepattern: str) -> CheckpointReader:
    """A reader of a checkpoint, without a graph.

    Args:
        filepattern: the prefix or the file name.

    Returns:
        An object with `get_variable_to_shape_map()`, `get_tensor(name)` and so on.

    Example:
        >>> v = tf.Variable([1.0, 2.0], name="v")
        >>> sess.run(v.initializer)
        >>> reader = tf.train.NewCheckpointReader(tf.train.Saver().save(sess, "./model"))
        >>> reader.get_variable_to_shape_map(), reader.get_tensor("v")
        ({'v': [2]}, array([1., 2.], dtype=float32))
    """
    return CheckpointReader(os.fsdecode(filepattern))


@public("train.load_checkpoint", "contrib.framework.load_checkpoint")
def load_checkpoint(ckpt_dir_or_file: str) -> CheckpointReader:
    """A reader of a checkpoint, or of the latest one of a folder.

    Args:
        ckpt_dir_or_file: the prefix of a checkpoint, or its folder.

    Returns:
        A reader with `get_tensor`, `has_tensor` and `get_variable_to_shape_map`.

    Example:
        >>> v = tf.Variable([1.0, 2.0], name="v")
        >>> sess.run(v.initializer)
        >>> path = tf.train.Saver().save(sess, "folder/model")
        >>> tf.train.load_checkpoint(path).get_tensor("v")
        array([1., 2.], dtype=float32)
    """
    return CheckpointReader(_checkpoint_path(ckpt_dir_or_file))


def _checkpoint_path(folder_or_prefix: Any) -> str:
    path = os.fsdecode(folder_or_prefix)
    if not os.path.isdir(path):
        return path
    found = latest_checkpoint(path)
    if found is None:
        raise ValueError(f"Couldn't find 'checkpoint' file or checkpoints in {path}")
    return found


@public("train.load_variable", "contrib.framework.load_variable")
def load_variable(ckpt_dir_or_file: str, name: str) -> NDArray[Any]:
    """The value of a variable in a checkpoint; its name may end in `:0`."""
    return load_checkpoint(ckpt_dir_or_file).get_tensor(name.removesuffix(":0"))


@public("train.list_variables", "contrib.framework.list_variables")
def list_variables(ckpt_dir_or_file: str) -> list[tuple[str, list[int]]]:
    """The names and shapes of the variables in a checkpoint, sorted.

    Args:
        ckpt_dir_or_file: the prefix of a checkpoint, or its folder.

    Returns:
        A list of (name, shape).

    Example:
        >>> v = tf.Variable([1.0, 2.0], name="v")
        >>> sess.run(v.initializer)
        >>> path = tf.train.Saver().save(sess, "folder/model")
        >>> tf.train.list_variables("folder")
        [('v', [2])]
    """
    return sorted(load_checkpoint(ckpt_dir_or_file).get_variable_to_shape_map().items())


@public("train.export_tensorflow_checkpoint")
def export_tensorflow_checkpoint(ckpt_dir_or_file: str, prefix: str) -> list[str]:
    """Rewrite a checkpoint (or the latest of a folder) as TensorFlow's own, of version 2, for
    TensorFlow and its tools to read; gives the names of the tensors in it."""
    checkpoint = open_checkpoint(_checkpoint_path(ckpt_dir_or_file))
    gfile.MakeDirs(os.path.dirname(os.path.abspath(prefix)))
    write_bundle(prefix, (Piece(name, checkpoint.read(name)) for name in checkpoint.entries))
    return sorted(checkpoint.entries)


# Variables that start from a checkpoint


@public("train.init_from_checkpoint", "contrib.framework.init_from_checkpoint")
def init_from_checkpoint(
    ckpt_dir_or_file: str, assignment_map: Mapping[str, Any] | Iterable[tuple[str, Any]]
) -> None:
    """Let initializers of variables read a checkpoint.

    The map goes from names or scopes (ending in `/`) in the checkpoint to variables, lists of their
    parts, or names and scopes in the graph.
    """
    path = _checkpoint_path(ckpt_dir_or_file)
    shapes = CheckpointReader(path).get_variable_to_shape_map()
    given = dict(assignment_map)
    for key, value in sorted(given.items()):
        for name, variable in _assignments(key, value, shapes, path):
            _initialise_from(path, name, variable, shapes[name])


def _assignments(
    key: str, value: Any, shapes: Mapping[str, Any], path: str
) -> list[tuple[str, Any]]:
    """The tensors of the checkpoint and the variables that get them, for one item of the map."""
    if not key.endswith("/"):
        if key not in shapes:
            raise ValueError(f"Tensor {key} is not found in {path} checkpoint {dict(shapes)}")
        return [(key, _variable(value))]
    if not isinstance(value, str):
        raise ValueError(f"The scope {key} must be mapped to a scope, not to {value!r}")
    inside = "" if key == "/" else key
    scope = value.rstrip("/")
    result: list[tuple[str, Any]] = []
    for name, variable in sorted(_store().items()):
        if scope and not name.startswith(f"{scope}/"):
            continue
        stored = inside + name.removeprefix(f"{scope}/" if scope else "")
        if stored not in shapes:
            raise ValueError(
                f"Tensor {stored} ({name} in the scope {scope!r}) is not found in {path} checkpoint"
            )
        result.append((stored, variable))
    return result


def _store() -> dict[str, Any]:
    """The variables of the graph by name; the parts of a partitioned one together."""
    result: dict[str, Any] = {}
    for variable in get_default_graph().get_collection("variables"):
        info = variable.save_slice_info
        if info is None:
            result[variable.op.name] = variable
        else:
            result.setdefault(info.full_name, []).append(variable)
    return result


def _variable(value: Any) -> Any:
    if not isinstance(value, str):
        return value
    found = _store().get(value)
    if found is None:
        scope = get_variable_scope().name
        raise ValueError(f"There is no variable {value!r} in the graph (scope {scope!r})")
    return found


def _initialise_from(path: str, name: str, variable: Any, shape: Sequence[int]) -> None:
    if isinstance(variable, PartitionedVariable):
        variable = list(variable)
    parts = cast("list[Any]", variable if isinstance(variable, list) else [variable])
    for part in parts:
        if not isinstance(part, Variable):
            raise ValueError(f"{name} can only be given to variables, not to {part!r}")
        info = part.save_slice_info if isinstance(variable, list) else None
        whole = part.shape.as_list() if info is None else info.full_shape
        if list(whole) != list(shape):
            raise ValueError(
                f"Shape of variable {part.name} ({whole}) doesn't match with shape of tensor "
                f"{name} ({list(shape)}) from checkpoint reader."
            )
        _set_initializer(part, path, name, "" if info is None else info.spec)
    tf_logging.info("Initialize variable %s from checkpoint %s with %s", parts[0].name, path, name)


def _set_initializer(variable: Variable, path: str, name: str, spec: str) -> None:
    graph = variable.graph
    device = set_cpu0(variable.device) if variable.device else None
    with graph.as_default(), graph.control_dependencies(None), graph.device(device):
        with name_scope("checkpoint_initializer"):
            (value,) = saving.restore_v2(path, [name], [spec], [variable.dtype.base_dtype])
            value.set_shape(variable.shape)
        variable.initialise_with(value, state.assign(variable.gradient_source(), value).op)
