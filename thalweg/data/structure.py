"""The structure of datasets' elements: nested tensors, sparse tensors and datasets.

Tuples and mappings are nested; a list is a tensor. A structure of specs describes elements
statically; in a graph an element is a flat list of tensors, in a running pipeline a flat tuple with
one value per leaf.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, ClassVar, cast

import numpy as np

from thalweg.functions.traced.tensor_spec import TensorSpec
from thalweg.graph.composite import SparseTensor, SparseTensorValue
from thalweg.graph.convert import convert_to_tensor
from thalweg.graph.dtypes import DType, as_dtype, int64, variant
from thalweg.graph.likes import Structure
from thalweg.graph.nest import is_mapping, parts_of, sorted_keys
from thalweg.graph.node import Tensor
from thalweg.graph.shapes import TensorShape, as_shape, scalar, unknown_shape
from thalweg.public import public

Kind = tuple[DType, TensorShape]


@public("SparseTensorSpec")
class SparseTensorSpec:
    """The spec of a sparse tensor: its dtype and its dense shape."""

    def __init__(self, shape: Any = None, dtype: Any = np.float32) -> None:
        self.shape = as_shape(shape)
        self.dtype = as_dtype(dtype)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, SparseTensorSpec) and str(self) == str(other)

    def __hash__(self) -> int:
        return hash(str(self))

    def __repr__(self) -> str:
        return f"SparseTensorSpec({self.shape}, {self.dtype!r})"


@public("data.DatasetSpec", "data.experimental.DatasetStructure")
class DatasetSpec:
    """The spec of a dataset that is part of an element: the spec of its own elements."""

    #: The class of datasets, set by its module, which imports this one.
    dataset: ClassVar[Any] = None

    def __init__(self, element_spec: Structure, dataset_shape: Any = ()) -> None:
        self.element_spec = element_spec
        self.shape = as_shape(dataset_shape)
        self.dtype = variant

    def __eq__(self, other: object) -> bool:
        return isinstance(other, DatasetSpec) and self.element_spec == other.element_spec

    def __hash__(self) -> int:
        return hash(str(self.element_spec))

    def __repr__(self) -> str:
        return f"DatasetSpec({self.element_spec!r}, {self.shape})"


Spec = TensorSpec | SparseTensorSpec | DatasetSpec


# Nesting


def is_nested(value: Any) -> bool:
    """Whether a value is nested: tuples and mappings are, lists are not."""
    return isinstance(value, tuple | Mapping) and not isinstance(value, SparseTensorValue)


def flatten(structure: Any) -> list[Any]:
    """The leaves of a structure; those of a mapping in the order of sorted keys."""
    if not is_nested(structure):
        return [structure]
    return [leaf for part in parts_of(structure) for leaf in flatten(part)]


def pack(structure: Any, leaves: Sequence[Any]) -> Any:
    """The leaves in the form of a structure."""
    wanted = len(flatten(structure))
    if wanted != len(leaves):
        raise ValueError(f"{structure!r} has {wanted} parts, but {len(leaves)} were given")
    return _pack(structure, iter(leaves))


def _pack(structure: Any, leaves: Iterator[Any]) -> Any:
    if not is_nested(structure):
        return next(leaves)
    if is_mapping(structure):
        new = {key: _pack(structure[key], leaves) for key in sorted_keys(structure)}
        make: Any = type(structure)
        return make((key, new[key]) for key in structure)
    parts = [_pack(part, leaves) for part in structure]
    return type(structure)(*parts) if hasattr(structure, "_fields") else tuple(parts)


def map_structure(function: Callable[..., Any], structure: Any, *others: Any) -> Any:
    """Map `function` over corresponding leaves of structures of one form."""
    rows = zip(*(flatten(each) for each in (structure, *others)), strict=True)
    return pack(structure, [function(*row) for row in rows])


def broadcast_structure(structure: Any, over: Any) -> list[Any]:
    """Broadcast a structure to the leaves of another one: a leaf stands for a whole nested part."""
    if not is_nested(over):
        return [structure]
    if not is_nested(structure):
        return [structure] * len(flatten(over))
    if is_mapping(over):
        pairs = [(structure[key], over[key]) for key in sorted_keys(over)]
    else:
        pairs = list(zip(cast("Sequence[Any]", structure), over, strict=True))
    return [leaf for part, whole in pairs for leaf in broadcast_structure(part, whole)]


def flatten_generated(structure: Any, value: Any) -> list[Any]:
    """The leaves of a generator's value, by a structure; lists are accepted for tuples."""
    if not is_nested(structure):
        return [value]
    if is_mapping(structure):
        pairs = [(structure[key], value[key]) for key in sorted_keys(structure)]
    else:
        parts = cast("Sequence[Any]", value if isinstance(value, tuple | list) else (value,))
        if len(parts) != len(structure):
            raise TypeError(
                "`generator` yielded an element that did not match the expected structure. The "
                f"expected structure was {structure!r}, but the yielded element was {value!r}."
            )
        pairs = list(zip(cast("Sequence[Any]", structure), parts, strict=True))
    return [leaf for part, whole in pairs for leaf in flatten_generated(part, whole)]


def converted(structure: Any) -> Any:
    """Convert a user's structure of values to one of tensors, sparse tensors and datasets."""
    return map_structure(_converted_leaf, structure)


def _converted_leaf(value: Any) -> Any:
    if isinstance(value, DatasetSpec.dataset | SparseTensor):
        return value
    if isinstance(value, SparseTensorValue):
        return SparseTensor.from_value(value)
    return convert_to_tensor(value)


# Specs


def spec_of(value: Any) -> Spec:
    """The spec of a leaf."""
    if isinstance(value, DatasetSpec.dataset):
        return DatasetSpec(value.element_spec)
    if isinstance(value, SparseTensor):
        return SparseTensorSpec(value.get_shape(), value.dtype)
    return TensorSpec(value.shape, value.dtype.base_dtype)


def class_of(spec: Spec) -> Any:
    """The class of a leaf."""
    match spec:
        case TensorSpec():
            return Tensor
        case SparseTensorSpec():
            return SparseTensor
        case DatasetSpec():
            return DatasetSpec.dataset


def kinds_of(spec: Spec) -> list[Kind]:
    """The dtypes and shapes of the tensors of a leaf."""
    match spec:
        case TensorSpec():
            return [(spec.dtype, spec.shape)]
        case SparseTensorSpec():
            rank = spec.shape.rank
            sizes = [(int64, TensorShape([None, rank])), (spec.dtype, TensorShape([None]))]
            return [*sizes, (int64, TensorShape([rank]))]
        case DatasetSpec():
            return [(variant, scalar())]


def leaf_of(spec: Spec, tensors: Iterator[Tensor]) -> Any:
    """Construct a leaf from the next tensors."""
    match spec:
        case TensorSpec():
            return _shaped(next(tensors), spec.shape)
        case SparseTensorSpec():
            return SparseTensor(*(next(tensors) for _ in range(3)))
        case DatasetSpec():
            return DatasetSpec.dataset(next(tensors), spec.element_spec)


def _shaped(tensor: Tensor, shape: TensorShape) -> Tensor:
    tensor.set_shape(shape)
    return tensor


def tensors_of(structure: Any) -> list[Tensor]:
    """The tensors of all leaves of a structure."""
    return [tensor for leaf in flatten(structure) for tensor in _tensors(leaf)]


def _tensors(leaf: Any) -> list[Tensor]:
    if isinstance(leaf, DatasetSpec.dataset):
        return [leaf.variant]
    return leaf.components() if isinstance(leaf, SparseTensor) else [leaf]


def structure_of(spec: Any, tensors: Sequence[Tensor]) -> Any:
    """Construct an element from its tensors."""
    rest = iter(tensors)
    return pack(spec, [leaf_of(leaf, rest) for leaf in flatten(spec)])


def all_kinds(spec: Any) -> list[Kind]:
    """The dtypes and shapes of all tensors of an element."""
    return [kind for leaf in flatten(spec) for kind in kinds_of(leaf)]


def leaf_types(spec: Any) -> tuple[DType, ...]:
    """The dtype of each leaf as an op's attribute: variant for sparse tensors and datasets."""
    return tuple(leaf.dtype if isinstance(leaf, TensorSpec) else variant for leaf in flatten(spec))


def leaf_shapes(spec: Any) -> tuple[TensorShape, ...]:
    """The shape of each leaf."""
    return tuple(leaf.shape for leaf in flatten(spec))


def specs_from(types: Any, shapes: Any, classes: Any) -> Any:
    """The spec described by structures of dtypes, shapes and classes."""
    flat = flatten(types)
    sizes = broadcast_structure(shapes, types)
    kinds = broadcast_structure(Tensor if classes is None else classes, types)
    rows = zip(flat, sizes, kinds, strict=True)
    return pack(types, [_spec_from(*row) for row in rows])


def _spec_from(kind: Any, shape: Any, leaf_class: Any) -> Spec:
    if isinstance(kind, DatasetSpec):
        return kind
    size = unknown_shape() if shape is None else as_shape(shape)
    made = SparseTensorSpec if leaf_class is SparseTensor else TensorSpec
    return made(size, as_dtype(kind))


def resized(spec: Spec, change: Callable[[TensorShape], TensorShape]) -> Spec:
    """The spec of a leaf with its shape changed."""
    match spec:
        case TensorSpec():
            return TensorSpec(change(spec.shape), spec.dtype)
        case SparseTensorSpec():
            return SparseTensorSpec(change(spec.shape), spec.dtype)
        case DatasetSpec():
            return spec


def batched(spec: Any, size: int | None) -> Any:
    """The spec of batches of elements."""

    def grown(leaf: Spec) -> Spec:
        return resized(leaf, TensorShape([size]).concatenate)

    return map_structure(grown, spec)


def unbatched(spec: Any) -> Any:
    """The spec of the rows of elements."""

    def rest(shape: TensorShape) -> TensorShape:
        if shape.rank == 0:
            raise ValueError("a scalar has no rows to take one after the other")
        return unknown_shape() if shape.rank is None else shape[1:]

    def row(leaf: Spec) -> Spec:
        return resized(leaf, rest)

    return map_structure(row, spec)


def common_spec(first: Any, second: Any) -> Any:
    """The most specific spec that covers two specs; a TypeError if their dtypes or kinds differ."""

    def both(a: Spec, b: Spec) -> Spec:
        if type(a) is not type(b) or a.dtype != b.dtype:
            raise TypeError(f"elements of different types: {first!r} and {second!r}")
        return resized(a, lambda shape: shape.most_specific_compatible_shape(b.shape))

    if len(flatten(first)) != len(flatten(second)):
        raise TypeError(f"elements of different structure: {first!r} and {second!r}")
    return map_structure(both, first, second)


def are_compatible(wanted: Any, given: Any) -> bool:
    """Whether elements of spec `given` are accepted where `wanted` is required."""
    pairs = (flatten(wanted), flatten(given))
    if len(pairs[0]) != len(pairs[1]):
        return False
    return all(
        type(a) is type(b) and a.dtype == b.dtype and a.shape.is_compatible_with(b.shape)
        for a, b in zip(*pairs, strict=True)
    )
