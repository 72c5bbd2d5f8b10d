"""Nested structures of lists, tuples, named tuples and mappings.

`flatten` returns the leaves of a structure in a fixed order (of a mapping, by sorted key), and
`pack_sequence_as` is its inverse. Everything that is not a sequence or a mapping is a leaf.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, TypeGuard, cast

from thalweg.public import public

if TYPE_CHECKING:
    from thalweg.graph.likes import Structure


def _names(name: str) -> tuple[str, ...]:
    return (f"nest.{name}", f"contrib.framework.nest.{name}")


@public(*_names("is_sequence"), *_names("is_nested"))
def is_sequence(seq: Structure) -> bool:
    """Whether a value is a list, tuple or mapping; strings and tensors are leaves."""
    if isinstance(seq, str | bytes):
        return False
    return isinstance(seq, list | tuple | Mapping)


def is_mapping(value: Any) -> TypeGuard[Mapping[Any, Any]]:
    """Whether a value is a mapping."""
    return isinstance(value, Mapping)


def is_plain(value: Any) -> TypeGuard[list[Any] | tuple[Any, ...]]:
    """Whether a value is a list or a tuple, but no named tuple."""
    return isinstance(value, list | tuple) and not hasattr(cast("Any", value), "_fields")


def single(value: Any) -> Any:
    """The item of a list or tuple of one; other values unchanged."""
    return value[0] if is_plain(value) and len(value) == 1 else value


def as_list(value: Any) -> list[Any]:
    """The items of a list or tuple; another value as a list of one."""
    return list(cast("Sequence[Any]", value)) if isinstance(value, list | tuple) else [value]


def _keys(structure: Any) -> list[Any]:
    """The keys or indices of the parts of a sequence, in flattening order."""
    return sorted_keys(structure) if is_mapping(structure) else [*range(len(parts_of(structure)))]


def sorted_keys(mapping: Mapping[Any, Any]) -> list[Any]:
    """The keys of a mapping, sorted."""
    try:
        return sorted(mapping)
    except TypeError:
        raise TypeError("nest only supports dicts with sortable keys.") from None


def parts_of(structure: Any) -> list[Any]:
    """The parts of a sequence, those of a mapping in the order of sorted keys."""
    if is_mapping(structure):
        return [structure[key] for key in sorted_keys(structure)]
    return list(structure)  # named tuples of users may have their own `__len__` or `__getitem__`


def rebuild(structure: Any, parts: Sequence[Any], keys: Sequence[Any] | None = None) -> Any:
    """A sequence, mapping or composite of the type of `structure`, with other parts. Those of a
    mapping are in the order of `keys`, by default sorted."""
    make = cast("Any", type(structure))
    if is_plain(structure):
        return make(parts)
    if is_mapping(structure):
        new = dict(zip(keys or sorted_keys(structure), parts, strict=True))
        return make((key, new[key]) for key in structure)
    if not isinstance(structure, tuple) and hasattr(structure, "with_components"):
        return structure.with_components(parts)
    return make(*parts)


@public(*_names("flatten"))
def flatten(structure: Structure, expand_composites: bool = False) -> list[Any]:
    """The leaves of a structure: `flatten(((1, 2), [3]))` is `[1, 2, 3]`."""
    if not is_sequence(structure):
        return structure.components() if _expands(structure, expand_composites) else [structure]
    return [leaf for part in parts_of(structure) for leaf in flatten(part, expand_composites)]


def _expands(value: Any, expand_composites: bool) -> bool:
    return expand_composites and hasattr(value, "components")


@public(*_names("pack_sequence_as"))
def pack_sequence_as(
    structure: Structure, flat_sequence: Sequence[Any], expand_composites: bool = False
) -> Structure:
    """A structure like `structure` with the leaves `flat_sequence`."""
    if not is_sequence(flat_sequence):
        raise TypeError(f"flat_sequence must be a sequence, not {flat_sequence!r}")
    leaves, count = len(flatten(structure, expand_composites)), len(flat_sequence)
    if leaves != count:
        if not is_sequence(structure):
            raise ValueError(f"Structure is a scalar but len(flat_sequence) == {count} > 1")
        raise ValueError(
            f"Structure had {leaves} elements, but flat_sequence had {count} elements.  "
            f"Structure: {structure!r}, flat_sequence: {flat_sequence!r}."
        )
    return _pack(structure, iter(flat_sequence), expand_composites)


def _pack(structure: Any, leaves: Iterator[Any], expand_composites: bool) -> Any:
    if is_sequence(structure):
        parts = [_pack(part, leaves, expand_composites) for part in parts_of(structure)]
        return rebuild(structure, parts)
    if _expands(structure, expand_composites):
        return rebuild(structure, [next(leaves) for _ in structure.components()])
    return next(leaves)


@public(*_names("assert_same_structure"))
def assert_same_structure(
    nest1: Structure, nest2: Structure, check_types: bool = True, expand_composites: bool = False
) -> None:
    """Raise unless both structures nest the same way (with `check_types`, in the same types)."""
    counts = [len(flatten(nest, expand_composites)) for nest in (nest1, nest2)]
    if counts[0] != counts[1] or is_sequence(nest1) != is_sequence(nest2):
        raise _mismatch("number of elements", nest1, nest2)
    _assert_same(nest1, nest2, check_types)


def _mismatch(what: str, nest1: Any, nest2: Any) -> ValueError:
    return ValueError(
        f"The two structures don't have the same {what}. First structure: {nest1!r}, second "
        f"structure: {nest2!r}."
    )


def _assert_same(nest1: Any, nest2: Any, check_types: bool) -> None:
    if is_sequence(nest1) != is_sequence(nest2):
        raise _mismatch("nested structure", nest1, nest2)
    if not is_sequence(nest1):
        _assert_same_elements(nest1, nest2)
        return
    if check_types:
        _assert_same_type(nest1, nest2)
    _assert_same_keys(nest1, nest2)
    for part1, part2 in zip(parts_of(nest1), parts_of(nest2), strict=True):
        _assert_same(part1, part2, check_types)


def _assert_same_elements(nest1: Any, nest2: Any) -> None:
    """Raise if two datasets have elements of different specs."""
    specs = [getattr(nest, "element_spec", None) for nest in (nest1, nest2)]
    if specs[0] != specs[1]:
        raise _mismatch("element_spec", nest1, nest2)


def _assert_same_type(nest1: Any, nest2: Any) -> None:
    both_mappings = is_mapping(nest1) and is_mapping(nest2)
    if type(nest1) is type(nest2) or both_mappings or _same_named_tuple(nest1, nest2):
        return
    raise TypeError(
        "The two structures don't have the same sequence type. First structure has type "
        f"{type(nest1)}, while second structure has type {type(nest2)}."
    )


def _same_named_tuple(nest1: Any, nest2: Any) -> bool:
    """Whether two values are named tuples of the same name and fields, if not of one class."""
    fields = [getattr(nest, "_fields", None) for nest in (nest1, nest2)]
    names = [type(nest).__name__ for nest in (nest1, nest2)]
    return fields[0] is not None and fields[0] == fields[1] and names[0] == names[1]


def _assert_same_keys(nest1: Any, nest2: Any) -> None:
    keys = [_keys(nest1), _keys(nest2)]
    if keys[0] == keys[1]:
        return
    if is_mapping(nest1):
        raise ValueError(f"The two dictionaries don't have the same set of keys: {keys}")
    raise _mismatch("nested structure", nest1, nest2)


@public(*_names("map_structure"))
def map_structure(func: Callable[..., Any], *structure: Structure, **kwargs: Any) -> Structure:
    """Apply `func` to corresponding leaves of equal structures; the result has their structure."""
    if not callable(func):
        raise TypeError(f"func must be callable, got: {func!r}")
    if not structure:
        raise ValueError("Must provide at least one structure")
    check_types = kwargs.pop("check_types", True)
    expand_composites = kwargs.pop("expand_composites", False)
    if kwargs:
        raise ValueError(f"map_structure has no keyword argument '{next(iter(kwargs))}'")
    for other in structure[1:]:
        assert_same_structure(structure[0], other, check_types, expand_composites)
    rows = zip(*(flatten(nested, expand_composites) for nested in structure), strict=True)
    return pack_sequence_as(structure[0], [func(*row) for row in rows], expand_composites)


@public(*_names("flatten_dict_items"))
def flatten_dict_items(dictionary: Mapping[Any, Any]) -> dict[Any, Any]:
    """A mapping with nested keys and their values flattened into pairs of leaves."""
    if not isinstance(dictionary, Mapping):  # pyright: ignore[reportUnnecessaryIsInstance] - user input
        raise TypeError(f"input must be a dictionary, not {dictionary!r}")
    flat: dict[Any, Any] = {}
    for key, value in dictionary.items():
        for leaf, item in _leaf_pairs(key, value):
            if leaf in flat:
                raise ValueError(f"Could not flatten dictionary: key {leaf} is not unique.")
            flat[leaf] = item
    return flat


def _leaf_pairs(key: Any, value: Any) -> list[tuple[Any, Any]]:
    if not is_sequence(key):
        return [(key, value)]
    keys, values = flatten(key), flatten(value)
    if len(keys) != len(values):
        raise ValueError(
            f"Could not flatten dictionary. Key had {len(keys)} elements, but value had "
            f"{len(values)} elements. Key: {key}, value: {value}."
        )
    return list(zip(keys, values, strict=True))


@public(*_names("assert_shallow_structure"))
def assert_shallow_structure(
    shallow_tree: Structure, input_tree: Structure, check_types: bool = True
) -> None:
    """Raise unless `input_tree` has the structure of `shallow_tree` down to that one's leaves."""
    if not is_sequence(shallow_tree):
        return
    if not is_sequence(input_tree):
        raise TypeError(f"If shallow structure is a sequence, input must also be: {input_tree!r}")
    if check_types:
        _assert_same_type(shallow_tree, input_tree)
    if len(input_tree) != len(shallow_tree):
        raise ValueError(
            f"The two structures don't have the same sequence length: {len(input_tree)} and "
            f"{len(shallow_tree)}."
        )
    _assert_same_keys(shallow_tree, input_tree)
    for shallow, deep in zip(parts_of(shallow_tree), parts_of(input_tree), strict=True):
        assert_shallow_structure(shallow, deep, check_types)


@public(*_names("flatten_up_to"))
def flatten_up_to(
    shallow_tree: Structure, input_tree: Structure, check_types: bool = True
) -> list[Any]:
    """The parts of `input_tree` at the leaves of `shallow_tree`."""
    assert_shallow_structure(shallow_tree, input_tree, check_types)
    return _flatten_up_to(shallow_tree, input_tree)


def _flatten_up_to(shallow_tree: Any, input_tree: Any) -> list[Any]:
    if not is_sequence(shallow_tree):
        return [input_tree]
    pairs = zip(parts_of(shallow_tree), parts_of(input_tree), strict=True)
    return [part for shallow, deep in pairs for part in _flatten_up_to(shallow, deep)]


@public(*_names("map_structure_up_to"))
def map_structure_up_to(
    shallow_tree: Structure, func: Callable[..., Any], *inputs: Structure, check_types: bool = True
) -> Structure:
    """`func` of the parts of the inputs at the leaves of `shallow_tree`."""
    if not inputs:
        raise ValueError("Cannot map over no sequences")
    columns = [flatten_up_to(shallow_tree, tree, check_types) for tree in inputs]
    return pack_sequence_as(shallow_tree, [func(*row) for row in zip(*columns, strict=True)])
