"""What a saver can save: variables, and any object that says which tensors stand for it.

`saveables_of` turns the forms that a `var_list` may have into a list of saveable objects.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, cast

from thalweg.graph.collections import GraphKeys
from thalweg.graph.convert import convert_to_tensor
from thalweg.graph.dtypes import DType
from thalweg.graph.graph import get_default_graph
from thalweg.graph.node import Node, Tensor
from thalweg.ops.core import shaping
from thalweg.ops.state import state
from thalweg.variables.partitioned import PartitionedVariable
from thalweg.variables.variable import Variable


class SaveSpec:
    """A tensor to save, which slice of which tensor it is, and the name in the checkpoint."""

    def __init__(
        self,
        tensor: Any,
        slice_spec: str,
        name: str,
        dtype: DType | None = None,
        device: str | None = None,
    ) -> None:
        self._tensor = tensor
        self.slice_spec = slice_spec
        self.name = name
        self._dtype = dtype
        self._device = device

    @property
    def tensor(self) -> Any:
        """The tensor, made now if a function was given for it."""
        if isinstance(self._tensor, Tensor | Variable) or not callable(self._tensor):
            return self._tensor
        return cast("Callable[[], Any]", self._tensor)()

    @property
    def dtype(self) -> DType:
        """The dtype of what is saved."""
        return self.tensor.dtype if self._dtype is None else self._dtype

    @property
    def device(self) -> str:
        """The device of what is saved."""
        return self.tensor.device if self._device is None else self._device


class SaveableObject:
    """The base of what can be saved: an object, the specs of its tensors, and how to restore it."""

    def __init__(self, op: Any, specs: Sequence[SaveSpec], name: str) -> None:
        self.op = op
        self.specs = list(specs)
        self.name = name

    @property
    def device(self) -> str:
        """The device of all its tensors."""
        return self.specs[0].device

    @property
    def optional_restore(self) -> bool:
        """Whether a checkpoint without it will do."""
        return False

    def restore(self, restored_tensors: Sequence[Tensor], restored_shapes: Any) -> Any:
        """A node that gives the object the restored values."""
        raise ValueError(f"{type(self).__name__} must define restore().")


class VariableSaveable(SaveableObject):
    """A variable, or one slice of a partitioned one."""

    def __init__(self, var: Any, slice_spec: str, name: str) -> None:
        super().__init__(var, [SaveSpec(var, slice_spec, name)], name)

    def restore(self, restored_tensors: Sequence[Tensor], restored_shapes: Any) -> Any:
        value = restored_tensors[0]
        if restored_shapes is not None:
            value = shaping.reshape(value, restored_shapes[0])
        is_checked = restored_shapes is None and self.op.get_shape().is_fully_defined()
        return state.assign(self.op, value, validate_shape=is_checked)


def all_saveable_objects(scope: str | None = None) -> list[Any]:
    """The global variables and the registered saveable objects of the default graph."""
    graph = get_default_graph()
    return graph.get_collection(GraphKeys.GLOBAL_VARIABLES, scope) + graph.get_collection(
        GraphKeys.SAVEABLE_OBJECTS, scope
    )


def _buffer(value: Any) -> Tensor | None:
    """The reference of a variable, by whatever stands for it; None for anything else."""
    if isinstance(value, Node):
        value = value.outputs[0]
    tensor = value if isinstance(value, Tensor) else convert_to_tensor(value, as_ref=True)
    return tensor if isinstance(tensor.op.op, state.VariableV2) else None


def op_list_to_dict(op_list: Iterable[Any], convert_variable_to_tensor: bool = True) -> Any:
    """The items of a list by their names; slices of one variable share one."""
    if not isinstance(op_list, list | tuple | set):
        raise TypeError(f"Variables to save should be passed in a dict or a list: {op_list}")
    result: dict[str, Any] = {}
    for item in dict.fromkeys(cast("Iterable[Any]", op_list)):
        if isinstance(item, SaveableObject):
            result[item.name] = item
        elif isinstance(item, PartitionedVariable):
            _add_new(result, item.name, item)
        elif isinstance(item, Variable) and item.save_slice_info is not None:
            _add_slice(result, item.save_slice_info.full_name, item)
        else:
            tensor = _buffer(item)
            if tensor is None:
                raise TypeError(f"Variable to save is not a Variable: {item}")
            _add_new(result, tensor.op.name, tensor if convert_variable_to_tensor else item)
    return result


def _add_new(found: dict[str, Any], name: str, item: Any) -> None:
    if name in found:
        raise ValueError(f"At least two variables have the same name: {name}")
    found[name] = item


def _add_slice(found: dict[str, Any], name: str, item: Any) -> None:
    known: Any = found.setdefault(name, [])
    if not isinstance(known, list):
        raise ValueError(f"Mixing slices and non-slices with the same name: {name}")
    cast("list[Any]", known).append(item)


def saveables_of(names_to_saveables: Any) -> list[SaveableObject]:
    """The saveable objects of a dict or list, in the order of their names, each once."""
    if not isinstance(names_to_saveables, Mapping):
        names_to_saveables = op_list_to_dict(names_to_saveables)
    by_name = cast("Mapping[Any, Any]", names_to_saveables)
    for name in by_name:
        if not isinstance(name, str):
            raise TypeError(
                "names_to_saveables must be a dict mapping string names to checkpointable "
                f"operations. Name is not a string: {name}"
            )
    result: list[SaveableObject] = []
    seen: set[Any] = set()
    for name in sorted(by_name):
        for saveable in _saveables(name, by_name[name]):
            if saveable.op in seen:
                raise ValueError(
                    f"The same saveable will be restored with two names: {saveable.name}"
                )
            seen.add(saveable.op)
            result.append(saveable)
    return result


def _saveables(name: str, item: Any) -> list[SaveableObject]:
    if isinstance(item, SaveableObject):
        return [item]
    if isinstance(item, list | tuple | PartitionedVariable):
        return _slices(name, list(cast("Iterable[Any]", item)))
    tensor = _buffer(item)
    if tensor is None:
        raise TypeError(
            "names_to_saveables must be a dict mapping string names to Tensors/Variables. Not a "
            f"variable: {item}"
        )
    return [VariableSaveable(tensor, "", name)]


def _slices(name: str, parts: Sequence[Any]) -> list[SaveableObject]:
    result: list[SaveableObject] = []
    whole: str | None = None
    for part in parts:
        if not isinstance(part, Variable):
            raise ValueError(f"Slices must all be Variables: {part}")
        info = part.save_slice_info
        if info is None:
            raise ValueError(f"Slices must all be slices: {part}")
        if whole is not None and whole != info.full_name:
            raise ValueError(
                f"Slices must all be from the same tensor: {whole} != {info.full_name}"
            )
        whole = info.full_name
        result.append(VariableSaveable(part.gradient_source(), info.spec, name))
    return result
