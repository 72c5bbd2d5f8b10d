"""What tells the calls of a function apart: its arguments as a key, and tensors in their place.

Tensors and arrays count by dtype and shape, Python's numbers and texts by value, other objects by
identity. `Arguments` is one call: the key without the sizes of tensors (the skeleton), those sizes,
and the tensors themselves. Two calls that need different traces differ in words (`differences`).
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

Sizes = tuple[int | None, ...] | None

_VALUES = (type(None), bool, int, str, bytes, range, type, np.dtype, DType, enum.Enum)


class Same:
    """An object as a key: equal to itself alone, and to nothing once it is gone."""

    __slots__ = ("_id", "find")

    find: Callable[[], Any]

    def __init__(self, value: Any) -> None:
        self._id = id(value)
        try:
            self.find = weakref.ref(value)
        except TypeError:  # of a kind that knows no weak references
            self.find = lambda: value

    @property
    def is_gone(self) -> bool:
        """Whether nobody will ever come with this object again."""
        return self.find() is None

    def __eq__(self, other: object) -> bool:
        mine = self.find()
        return mine is not None and isinstance(other, Same) and other.find() is mine

    def __hash__(self) -> int:
        return self._id

    def __repr__(self) -> str:
        value = self.find()
        return "an object that is gone" if value is None else _shortened(value)


class TensorKind(NamedTuple):
    """A tensor in a skeleton."""

    dtype: DType
    rank: int | None

    def __repr__(self) -> str:
        return f"a {self.dtype.name} tensor"


class ValueKind(NamedTuple):
    """A Python value in a skeleton: of equal values of different types only one is meant."""

    type: type
    value: Any

    def __repr__(self) -> str:
        return _shortened(self.value)


class StructureKind(NamedTuple):
    """A list, a tuple, a mapping or a value made of tensors, in a skeleton; its parts follow."""

    type: type
    keys: tuple[Any, ...]

    def __repr__(self) -> str:
        return f"{self.type.__name__} of {len(self.keys)}"


Kind = TensorKind | ValueKind | StructureKind | Same


class Arguments(NamedTuple):
    """The arguments of a call: what makes it need a trace of its own, and the tensors."""

    skeleton: tuple[Kind, ...]
    shapes: tuple[Sizes, ...]
    tensors: tuple[Any, ...]  # tensors and arrays, in order
    bound: dict[str, Any]  # the arguments by parameter, in the parameters' order


def arguments_of(bound: dict[str, Any]) -> Arguments:
    """Arguments by parameter, looked through."""
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
        skeleton.append(StructureKind(value.__class__, keys))
        for _, part in parts:
            _describe(part, skeleton, tensors)
    else:
        skeleton.append(_leaf_kind(value, value.__class__))


def _leaf_kind(value: Any, kind: type) -> Kind:
    if issubclass(kind, _VALUES):
        return ValueKind(kind, value)
    if issubclass(kind, float | complex):
        return ValueKind(kind, repr(value))  # zeros have signs, and nan is nan
    return Same(value)


def is_tensor(value: Any) -> bool:
    """Whether a leaf is passed as a tensor."""
    return isinstance(value, Tensor | np.ndarray | np.generic | TensorSpec)


def sizes_of(value: Any) -> Sizes:
    """The shape of a tensor or an array, as plain numbers."""
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
    except TypeError:  # keys without an order: they come as they are
        return list(value.items())


def with_tensors(value: Any, tensors: Iterator[Any], is_spec: bool = False) -> Any:
    """A structure of arguments with other tensors in their places; where those are specs, objects
    are not held, and values made of tensors are tuples."""
    if is_tensor(value):
        return next(tensors)
    parts = _parts(value)
    if parts is None:
        kind = _leaf_kind(value, value.__class__)
        return kind if is_spec and isinstance(kind, Same) else value
    rebuilt = [(key, with_tensors(part, tensors, is_spec)) for key, part in parts]
    if is_spec and hasattr(value, "components"):
        return tuple(part for _, part in rebuilt)
    return _rebuilt(value, rebuilt)


def _rebuilt(value: Any, parts: Sequence[tuple[Any, Any]]) -> Any:
    make = cast("Any", type(value))
    items = [part for _, part in parts]
    if hasattr(value, "with_components"):
        return value.with_components(items)
    if hasattr(value, "components") or hasattr(value, "_fields"):
        return make(*items)
    if not nest.is_mapping(value):
        return make(items)
    found = dict(parts)
    return make((key, found[key]) for key in value)


# Names and differences, for people


def names_of(arguments: Arguments) -> Iterator[str]:
    """What to call each item of the skeleton: `argument 0 'x'`, `argument 1 'y'[2]`."""
    for position, (name, value) in enumerate(arguments.bound.items()):
        yield from _part_names(f"argument {position} '{name}'", value)


def _part_names(name: str, value: Any) -> Iterator[str]:
    yield name
    for key, part in (None if is_tensor(value) else _parts(value)) or ():
        yield from _part_names(f"{name}[{key!r}]", part)


class Known(NamedTuple):
    """What a trace was made for."""

    skeleton: tuple[Kind, ...]
    shapes: tuple[Sizes, ...]


def differences(old: Known, new: Arguments) -> list[str]:
    """In words, how a call differs from one that was traced before."""
    shapes, old_shapes = iter(new.shapes), iter(old.shapes)
    found: list[str] = []
    for name, before, after in zip(names_of(new), old.skeleton, new.skeleton, strict=False):
        old_sizes = next(old_shapes, None) if isinstance(before, TensorKind) else None
        new_sizes = next(shapes, None) if isinstance(after, TensorKind) else None
        if isinstance(before, TensorKind) and isinstance(after, TensorKind):
            found += _tensor_difference(name, before, after, old_sizes, new_sizes)
        elif before != after:
            found.append(f"{name}: {_kind_difference(before, after)}")
            if not isinstance(before, ValueKind | Same) or not isinstance(after, ValueKind | Same):
                break  # from here on the skeletons do not stand side by side
    return found


def _tensor_difference(
    name: str, before: TensorKind, after: TensorKind, old: Sizes, new: Sizes
) -> list[str]:
    found: list[str] = []
    if before.dtype is not after.dtype:
        found.append(f"{name}: dtype {before.dtype.name} → {after.dtype.name}")
    if not fits(old, new):
        before_text, after_text = (s if s is not None else "unknown" for s in (old, new))
        found.append(f"{name}: shape {before_text} → {after_text}")
    return found


def _kind_difference(before: Kind, after: Kind) -> str:
    if isinstance(before, ValueKind) and isinstance(after, ValueKind):
        return f"value {before!r} → {after!r}"
    if isinstance(before, Same) and isinstance(after, Same):
        return f"object {before!r} → {after!r}"
    return f"{before!r} → {after!r}"


def _shortened(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 60 else f"{text[:57]}..."


# Shapes


def fits(known: Sizes, given: Sizes) -> bool:
    """Whether a tensor of a shape may come where another shape is expected."""
    if known is None or known == given:
        return True
    if given is None or len(known) != len(given):
        return False
    return all(a is None or a == b for a, b in zip(known, given, strict=True))


def joined(one: Sizes, other: Sizes) -> Sizes:
    """What holds for both of two shapes."""
    if one is None or other is None or len(one) != len(other):
        return None
    return tuple(a if a == b else None for a, b in zip(one, other, strict=True))


# Parameters


class Parameters:
    """The parameters of a Python function, and how a call binds them."""

    def __init__(self, function: Callable[..., Any], specs: Any = None) -> None:
        self._signature = _signature(function)
        self._name = getattr(function, "__name__", type(function).__name__)
        self.specs = None if specs is None else tuple(specs)
        if self.specs is not None:
            self._check_specs()

    def bind(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> dict[str, Any]:
        """The arguments by parameter, with the defaults of those that are not given."""
        if self._signature is None:
            return {str(place): value for place, value in enumerate(args)} | kwargs
        try:
            bound = self._signature.bind(*args, **kwargs)
        except TypeError as error:
            raise TypeError(f"{self._name}() called as {self._name}{self}: {error}") from None
        bound.apply_defaults()
        return bound.arguments

    def partly(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> dict[str, Any]:
        """The arguments by parameter, as far as they are given."""
        if self._signature is None:
            return self.bind(args, kwargs)
        return self._signature.bind_partial(*args, **kwargs).arguments

    def call(self, function: Callable[..., Any], bound: dict[str, Any]) -> Any:
        """Call a function with arguments by parameter."""
        args, kwargs = self.split(bound)
        return function(*args, **kwargs)

    def split(self, bound: dict[str, Any]) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """Arguments by parameter as positional ones and ones by name."""
        if self._signature is None:
            return tuple(bound.values()), {}
        given = inspect.BoundArguments(self._signature, cast("Any", bound))
        return given.args, given.kwargs

    def specified(self, bound: dict[str, Any]) -> Arguments:
        """A call of a function whose arguments were specified: they must be as the specs say."""
        specs = self.specs or ()
        if len(specs) > len(bound):
            raise TypeError(f"{self._name}{self} cannot take the {len(specs)} specified arguments")
        wanted, tensors = dict(bound), list[Any]()
        for (name, value), spec in zip(bound.items(), specs, strict=False):
            wanted[name] = spec
            tensors += _specified(self._name, name, value, spec)
        found = arguments_of(wanted)
        if len(found.tensors) != len(tensors):
            raise TypeError(
                f"{self._name} has specs for its first {len(specs)} arguments, and takes no "
                "tensors besides"
            )
        return found._replace(tensors=tuple(tensors))

    def _check_specs(self) -> None:
        leaves = nest.flatten(list(self.specs or ()))
        strange = [leaf for leaf in leaves if not isinstance(leaf, TensorSpec)]
        if strange:
            raise TypeError(
                "input_signature must be a possibly nested sequence of TensorSpec objects, got "
                f"{strange[0]!r}"
            )

    def __str__(self) -> str:
        return "(...)" if self._signature is None else str(self._signature)


def _specified(function: str, name: str, value: Any, spec: Any) -> list[Any]:
    """The tensors of an argument that is like its spec."""
    try:
        leaves = nest.flatten_up_to(spec, value, check_types=False)
    except (TypeError, ValueError) as error:
        raise TypeError(f"{function}: argument '{name}' must be like {spec!r}: {error}") from None
    pairs = zip(nest.flatten(spec), leaves, strict=True)
    return [_like(function, name, leaf, wanted) for wanted, leaf in pairs]


def _like(function: str, name: str, value: Any, spec: TensorSpec) -> Any:
    try:
        tensor = value if is_tensor(value) else convert_to_tensor(value, spec.dtype)
    except (TypeError, ValueError) as error:
        raise TypeError(f"{function}: argument '{name}' must be like {spec!r}: {error}") from None
    if not spec.is_compatible_with(tensor):
        raise ValueError(
            f"{function}: argument '{name}' must be like {spec!r}, not {value!r} (at {user_line()})"
        )
    return tensor


def _signature(function: Callable[..., Any]) -> inspect.Signature | None:
    try:
        return inspect.signature(function)
    except (TypeError, ValueError):  # some built-in functions do not tell
        return None
