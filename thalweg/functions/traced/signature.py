"""The signature of a call: what decides which trace of a function it uses.

Tensors and arrays count by dtype and shape, Python numbers and strings by value, other objects by
identity. `Arguments` is one call: the skeleton (the signature without sizes), the sizes, and the
tensors. `differences` states how two calls differ.
"""

from __future__ import annotations

import enum
import inspect
import weakref
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple, cast

import numpy as np

from thalweg.functions.traced.tensor_spec import TensorSpec
from thalweg.graph import nest
from thalweg.graph.convert import convert_to_tensor
from thalweg.graph.dtypes import DType, as_dtype
from thalweg.graph.node import Tensor
from thalweg.graph.origin import user_line
from thalweg.graph.shapes import TensorShape

Sizes = tuple[int | None, ...] | None

_VALUES = (type(None), bool, int, str, bytes, range, type, np.dtype, DType, enum.Enum)


class IdentityKey:
    """An object as a key, by identity: a weak reference, equal to nothing once it is dead."""

    __slots__ = ("_id", "get")

    get: Callable[[], Any]

    def __init__(self, value: Any) -> None:
        self._id = id(value)
        try:
            self.get = weakref.ref(value)
        except TypeError:  # not weakly referenceable
            self.get = lambda: value

    @property
    def is_dead(self) -> bool:
        """Whether the object was collected."""
        return self.get() is None

    def __eq__(self, other: object) -> bool:
        value = self.get()
        return value is not None and isinstance(other, IdentityKey) and other.get() is value

    def __hash__(self) -> int:
        return self._id

    def __repr__(self) -> str:
        value = self.get()
        return "an object that is gone" if value is None else _short_repr(value)


class TensorKind(NamedTuple):
    """A tensor in a skeleton."""

    dtype: DType
    rank: int | None

    def __repr__(self) -> str:
        return f"a {self.dtype.name} tensor"


class ValueKind(NamedTuple):
    """A Python value in a skeleton; equal values of different types differ."""

    type: type
    value: Any

    def __repr__(self) -> str:
        return _short_repr(self.value)


class StructureKind(NamedTuple):
    """A list, tuple, mapping or composite tensor in a skeleton; its parts follow."""

    type: type
    keys: tuple[Any, ...]
    static: Any = None  # what a composite tensor knows besides its parts

    def __repr__(self) -> str:
        static = "" if self.static is None else f" {self.static}"
        return f"{self.type.__name__} of {len(self.keys)}{static}"


Kind = TensorKind | ValueKind | StructureKind | IdentityKey


class Arguments(NamedTuple):
    """The arguments of a call."""

    skeleton: tuple[Kind, ...]
    shapes: tuple[Sizes, ...]
    tensors: tuple[Any, ...]  # tensors and arrays, flattened
    bound: dict[str, Any]  # the arguments by parameter, in the parameters' order


def arguments_of(bound: dict[str, Any]) -> Arguments:
    """The signature and the tensors of arguments by parameter."""
    skeleton: list[Kind] = []
    tensors: list[Any] = []
    for value in bound.values():
        _describe(value, skeleton, tensors)
    shapes = tuple(map(sizes_of, tensors))
    return Arguments(tuple(skeleton), shapes, tuple(tensors), bound)


def _describe(value: Any, skeleton: list[Kind], tensors: list[Any]) -> None:
    if is_tensor(value):
        sizes = sizes_of(value)
        dtype = as_dtype(value.dtype).base_dtype
        skeleton.append(TensorKind(dtype, None if sizes is None else len(sizes)))
        tensors.append(value)
        return
    parts = _parts(value)
    if parts is not None:
        keys = tuple(key for key, _ in parts)
        static = value.static_key if hasattr(value, "with_components") else None
        skeleton.append(StructureKind(value.__class__, keys, static))
        for _, part in parts:
            _describe(part, skeleton, tensors)
    else:
        skeleton.append(_leaf_kind(value, value.__class__))


def _leaf_kind(value: Any, kind: type) -> Kind:
    if issubclass(kind, _VALUES):
        return ValueKind(kind, value)
    if issubclass(kind, float | complex):
        return ValueKind(kind, repr(value))  # distinguishes 0.0 from -0.0, and nan equals itself
    return IdentityKey(value)


def is_tensor(value: Any) -> bool:
    """Whether an argument is passed as a tensor."""
    return isinstance(value, Tensor | np.ndarray | np.generic | TensorSpec)


def sizes_of(value: Any) -> Sizes:
    """The shape of a tensor or an array as a tuple."""
    shape = value.shape
    return cast("Sizes", shape if type(shape) is tuple else shape.sizes)


def _parts(value: Any) -> list[tuple[Any, Any]] | None:
    """The parts of a structure by key, or None for a leaf."""
    if hasattr(value, "components"):
        return list(enumerate(cast("list[Any]", value.components())))
    if not nest.is_sequence(value):
        return None
    if not nest.is_mapping(value):
        return list(enumerate(cast("Sequence[Any]", value)))
    try:
        return [(key, value[key]) for key in nest.sorted_keys(value)]
    except TypeError:  # keys that cannot be sorted keep their order
        return list(value.items())


def replace_tensors(value: Any, tensors: Iterator[Any], is_spec: bool = False) -> Any:
    """A structure of arguments with its tensors replaced.

    With `is_spec`, objects become `IdentityKey`s and composite tensors tuples.
    """
    if is_tensor(value):
        return next(tensors)
    parts = _parts(value)
    if parts is None:
        kind = _leaf_kind(value, value.__class__)
        return kind if is_spec and isinstance(kind, IdentityKey) else value
    items = [replace_tensors(part, tensors, is_spec) for _, part in parts]
    if is_spec and hasattr(value, "components"):
        return tuple(items)
    return nest.rebuild(value, items, [key for key, _ in parts])


# Error messages and reports


def argument_names(arguments: Arguments) -> Iterator[str]:
    """A name for each item of the skeleton: `argument 0 'x'`, `argument 1 'y'[2]`."""
    for position, (name, value) in enumerate(arguments.bound.items()):
        yield from _part_names(f"argument {position} '{name}'", value)


def _part_names(name: str, value: Any) -> Iterator[str]:
    yield name
    for key, part in (None if is_tensor(value) else _parts(value)) or ():
        yield from _part_names(f"{name}[{key!r}]", part)


def differences(old: Arguments, new: Arguments) -> list[str]:
    """Descriptions of how a call differs from a trace."""
    shapes, old_shapes = iter(new.shapes), iter(old.shapes)
    texts: list[str] = []
    for name, before, after in zip(argument_names(new), old.skeleton, new.skeleton, strict=False):
        old_sizes = next(old_shapes, None) if isinstance(before, TensorKind) else None
        new_sizes = next(shapes, None) if isinstance(after, TensorKind) else None
        if isinstance(before, TensorKind) and isinstance(after, TensorKind):
            texts += _tensor_difference(name, before, after, old_sizes, new_sizes)
        elif before != after:
            texts.append(f"{name}: {_kind_difference(before, after)}")
            if not all(isinstance(kind, ValueKind | IdentityKey) for kind in (before, after)):
                break  # the rest of the skeletons does not correspond
    return texts


def _tensor_difference(
    name: str, before: TensorKind, after: TensorKind, old: Sizes, new: Sizes
) -> list[str]:
    texts: list[str] = []
    if before.dtype is not after.dtype:
        texts.append(f"{name}: dtype {before.dtype.name} → {after.dtype.name}")
    if not covers(old, new):
        before_text, after_text = (s if s is not None else "unknown" for s in (old, new))
        texts.append(f"{name}: shape {before_text} → {after_text}")
    return texts


def _kind_difference(before: Kind, after: Kind) -> str:
    labels: dict[type, str] = {ValueKind: "value ", IdentityKey: "object "}
    label = labels.get(type(before), "") if type(before) is type(after) else ""
    return f"{label}{before!r} → {after!r}"


def _short_repr(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 60 else f"{text[:57]}..."


# Shapes


def covers(known: Sizes, given: Sizes) -> bool:
    """Whether a trace for the `known` shape takes tensors of the given one."""
    return known == given or generalized(known, given) == known


def generalized(first: Sizes, second: Sizes) -> Sizes:
    """The most specific shape that covers both."""
    return TensorShape.of(first).most_specific_compatible_shape(TensorShape.of(second)).sizes


# Parameters


class Parameters:
    """The parameters of a Python function, and how a call binds them."""

    def __init__(self, function: Callable[..., Any], specs: Any = None) -> None:
        self._signature = _signature(function)
        self._name = getattr(function, "__name__", type(function).__name__)
        self.specs = None if specs is None else tuple(specs)
        leaves = nest.flatten([*(self.specs or ())])
        others = [leaf for leaf in leaves if not isinstance(leaf, TensorSpec)]
        if others:
            raise TypeError(
                "input_signature must be a possibly nested sequence of TensorSpec objects, got "
                f"{others[0]!r}"
            )

    def bind(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> dict[str, Any]:
        """The arguments by parameter, with defaults."""
        try:
            bound = self._signature.bind(*args, **kwargs)
        except TypeError as error:
            raise TypeError(f"{self._name}() called as {self._name}{self}: {error}") from None
        bound.apply_defaults()
        return bound.arguments

    def bind_partial(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> dict[str, Any]:
        """The given arguments by parameter, without defaults."""
        return self._signature.bind_partial(*args, **kwargs).arguments

    def split(self, bound: dict[str, Any]) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """Positional and keyword arguments, from arguments by parameter."""
        arguments = inspect.BoundArguments(self._signature, cast("Any", bound))
        return arguments.args, arguments.kwargs

    def bind_specs(self, bound: dict[str, Any]) -> Arguments:
        """The arguments of a call, which must fit the input signature."""
        specs = self._specs_by_name()
        specified, tensors = bound | specs, list[Any]()
        for name, spec in specs.items():
            tensors += _spec_tensors(self._name, name, bound[name], spec)
        arguments = arguments_of(specified)
        if len(arguments.tensors) != len(tensors):
            raise TypeError(
                f"{self._name} has specs for its first {len(self.specs or ())} arguments, and "
                "takes no tensors besides"
            )
        return arguments._replace(tensors=tuple(tensors))

    def _specs_by_name(self) -> dict[str, Any]:
        """The specs by parameter: `*args` has those that are left when it comes, as a tuple."""
        by_name: dict[str, Any] = {}
        rest = list(self.specs or ())
        for parameter in self._signature.parameters.values():
            if rest and parameter.kind is parameter.VAR_POSITIONAL:
                by_name[parameter.name], rest = tuple(rest), []
            elif rest:
                by_name[parameter.name] = rest.pop(0)
        if rest:
            count = len(self.specs or ())
            raise TypeError(f"{self._name}{self} cannot take the {count} specified arguments")
        return by_name

    def __str__(self) -> str:
        return str(self._signature)


def _spec_tensors(function: str, name: str, value: Any, spec: Any) -> list[Any]:
    """The tensors of an argument, which must fit its spec."""
    wanted = f"{function}: argument '{name}' must be like"
    specs: list[TensorSpec] = nest.flatten(spec)
    try:
        leaves = nest.flatten_up_to(spec, value, check_types=False)
        tensors = list(map(_as_tensor, leaves, specs))
    except (TypeError, ValueError) as error:
        raise TypeError(f"{wanted} {spec!r}: {error}") from None
    for leaf, tensor, leaf_spec in zip(leaves, tensors, specs, strict=True):
        if not leaf_spec.is_compatible_with(tensor):
            raise ValueError(f"{wanted} {leaf_spec!r}, not {leaf!r} (at {user_line()})")
    return tensors


def _as_tensor(value: Any, spec: TensorSpec) -> Any:
    return value if is_tensor(value) else convert_to_tensor(value, spec.dtype)


def _signature(function: Callable[..., Any]) -> inspect.Signature:
    try:
        return inspect.signature(function)
    except (TypeError, ValueError):  # some built-in functions have none
        return inspect.signature(lambda *args, **kwargs: None)
