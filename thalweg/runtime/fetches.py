"""Fetch and feed structures: flattened to tensors, and rebuilt from their values.

A fetch is a tensor, a node, a name, anything that converts to one, a composite of tensors, or any
nesting of lists, tuples, named tuples and dicts of these.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple, cast

import numpy as np

from thalweg.graph import dtypes
from thalweg.graph.composite import (
    IndexedSlices,
    IndexedSlicesValue,
    SparseTensor,
    SparseTensorValue,
)
from thalweg.graph.graph import Graph
from thalweg.graph.literal import make_array, plain_integers
from thalweg.graph.node import Node, Tensor
from thalweg.graph.shapes import TensorShape

Rebuild = Callable[[Sequence[Any]], Any]


class Fetches:
    """A fetch structure: its distinct tensors and nodes, and a function that rebuilds it."""

    def __init__(self, graph: Graph, structure: Any) -> None:
        self._graph = graph
        self._positions: dict[Any, int] = {}
        self.tensors: list[Tensor] = []
        self.targets: list[Node] = []
        #: The structure filled with values, one per tensor.
        self.result = self._parse(structure)

    def _parse(self, fetch: Any) -> Rebuild:
        if isinstance(fetch, Tensor | Node | str):
            return self._element(fetch)
        if fetch is None:
            raise TypeError("Fetch argument None has invalid type <class 'NoneType'>")
        if isinstance(fetch, list | tuple):
            return self._sequence(cast("Sequence[Any]", fetch))
        if isinstance(fetch, Mapping):
            return self._mapping(cast("Mapping[Any, Any]", fetch))
        return self._composite(fetch)

    def _sequence(self, fetch: Sequence[Any]) -> Rebuild:
        kind: Any = list if isinstance(fetch, list) else type(fetch)
        make, parts = getattr(kind, "_make", kind), [self._parse(f) for f in fetch]
        return lambda values: make([part(values) for part in parts])

    def _mapping(self, fetch: Mapping[Any, Any]) -> Rebuild:
        parts = {key: self._parse(value) for key, value in fetch.items()}
        kind = cast("type[Any]", type(fetch))
        return lambda values: kind((key, part(values)) for key, part in parts.items())

    def _composite(self, fetch: Any) -> Rebuild:
        conversion = _conversion_of(fetch)
        if conversion is None:
            return self._element(fetch)
        tensors, contract = conversion.fetch(fetch)
        elements = [self._element(t) for t in tensors]
        return lambda values: contract([element(values) for element in elements])

    def _element(self, fetch: Any) -> Rebuild:
        element = self._lookup(fetch)
        if not self._graph.is_fetchable(element):
            raise ValueError(f"{element!r} cannot be fetched")
        if isinstance(element, Node):
            self.targets.append(element)
            return lambda values: None
        position = self._positions.setdefault(element, len(self.tensors))
        if position == len(self.tensors):
            self.tensors.append(element)
        return lambda values: values[position]

    def _lookup(self, fetch: Any) -> Tensor | Node:
        try:
            return self._graph.as_graph_element(fetch)
        except TypeError as error:
            raise TypeError(
                f"Fetch argument {fetch!r} has invalid type {type(fetch)}, must be a string or "
                f"Tensor. ({error})"
            ) from error
        except (ValueError, KeyError) as error:
            reason = error.args[0] if error.args else error
            raise ValueError(
                f"Fetch argument {fetch!r} cannot be interpreted as a Tensor. ({reason})"
            ) from error


# Composites


class _Conversion(NamedTuple):
    """How values of a type are fetched and fed."""

    kind: type
    fetch: Callable[[Any], tuple[Sequence[Any], Callable[[list[Any]], Any]]]
    feed: Callable[[Any, Any], Sequence[tuple[Any, Any]]] | None


def _components(
    composite: SparseTensor | IndexedSlices,
) -> tuple[Sequence[Any], Callable[[list[Any]], Any]]:
    """The components, and their value as a whole; the dense shape comes last and may be absent."""
    make: Any = SparseTensorValue if isinstance(composite, SparseTensor) else IndexedSlicesValue
    return composite.components(), lambda parts: make(*parts, *([None] * (3 - len(parts))))


def _component_feeds(key: SparseTensor | IndexedSlices, value: Any) -> list[tuple[Any, Any]]:
    """The components with their values; the dense shape comes last and may be left out."""
    components = key.components()
    if len(value) not in (2, 3):
        raise ValueError(f"feeding {key} takes 2 or 3 values, got {len(value)}")
    return list(zip(components, value, strict=False))


_conversions = [
    _Conversion(SparseTensor, _components, _component_feeds),
    _Conversion(IndexedSlices, _components, _component_feeds),
]


def register_session_run_conversion_functions(
    tensor_type: type,
    fetch_function: Callable[[Any], tuple[Sequence[Any], Callable[[list[Any]], Any]]],
    feed_function: Callable[[Any, Any], Sequence[tuple[Any, Any]]] | None = None,
    feed_function_for_partial_run: Callable[[Any], Sequence[Any]] | None = None,
) -> None:
    """Let objects of a type be fetched and fed.

    Args:
        tensor_type: the type.
        fetch_function: (an object) -> (tensors to fetch, function from their values to the result).
        feed_function: (an object, the value fed for it) -> pairs of a tensor and its value.
        feed_function_for_partial_run: accepted for compatibility and ignored.
    """
    if any(issubclass(known.kind, tensor_type) for known in _conversions):
        raise ValueError(f"{tensor_type} has already been registered so ignore it.")
    _conversions.insert(0, _Conversion(tensor_type, fetch_function, feed_function))


def _conversion_of(value: Any) -> _Conversion | None:
    return next((c for c in _conversions if isinstance(value, c.kind)), None)


# Feeds


def feed_items(graph: Graph, feed_dict: Mapping[Any, Any]) -> Iterator[tuple[Tensor, Any]]:
    """The fed tensors of a feed dict with their values as arrays, checked."""
    if not isinstance(cast("Any", feed_dict), Mapping):
        raise TypeError(f"feed_dict must be a dict of values by tensor, not {feed_dict!r}")
    for key, value in feed_dict.items():
        for part, part_value in _flat_feeds(key, value):
            tensor = feed_tensor(graph, part)
            yield tensor, feed_value(tensor, part_value)


def _flat_feeds(key: Any, value: Any) -> list[tuple[Any, Any]]:
    if isinstance(key, tuple):
        return _tuple_feeds(cast("tuple[Any, ...]", key), value)
    expand = None if isinstance(key, Tensor | str) else _conversion_of(key)
    if expand is not None and expand.feed is not None:
        return list(expand.feed(key, value))
    return [(key, value)]


def _tuple_feeds(keys: tuple[Any, ...], values: Any) -> list[tuple[Any, Any]]:
    if not hasattr(values, "__len__") or len(keys) != len(values):
        raise ValueError(f"feeding {keys} takes {len(keys)} values, got {values!r}")
    pairs: list[tuple[Any, Any]] = []
    for key, value in zip(keys, values, strict=True):
        pairs += _flat_feeds(key, value)
    return pairs


def feed_tensor(graph: Graph, key: Any) -> Tensor:
    """The tensor of this graph that a feed key refers to."""
    try:
        tensor = graph.as_graph_element(key, allow_operation=False)
    except (TypeError, ValueError, KeyError) as error:
        reason = error.args[0] if error.args else error
        raise TypeError(f"Cannot interpret feed_dict key as Tensor: {reason}") from error
    if not graph.is_feedable(tensor):
        raise ValueError(f"Tensor {tensor} may not be fed.")
    return tensor


def feed_value(tensor: Tensor, value: Any) -> Any:
    """A fed value as a read-only array, of the tensor's dtype and a compatible shape."""
    if isinstance(value, Tensor):
        raise TypeError(
            "The value of a feed cannot be a tf.Tensor object. Acceptable feed values include "
            f"Python scalars, strings, lists, or numpy ndarrays. (feeding {tensor.name})"
        )
    if value is None:
        raise TypeError(f"Cannot feed None to Tensor '{tensor.name}' (made at {tensor.op.origin})")
    base = tensor.dtype.base_dtype
    is_int = isinstance(value, int) and not isinstance(value, bool)
    if is_int and base.is_integer and not base.min <= value <= base.max:
        raise TypeError(
            f"Type of feed value {value} is not compatible with Tensor type {base.name} of "
            f"{tensor.name}: it does not fit. Feed a tensor of a larger type, such as int64"
        )
    array = _feed_array(tensor, value, base)
    if not tensor.shape.is_compatible_with(TensorShape.of(array.shape)):
        raise ValueError(
            f"Cannot feed value of shape {array.shape} for Tensor '{tensor.name}', which has shape "
            f"'{tensor.shape}' (made at {tensor.op.origin})"
        )
    view = array.view()
    view.flags.writeable = False
    return view


def _feed_array(tensor: Tensor, value: Any, base: dtypes.DType) -> Any:
    if base in (dtypes.resource, dtypes.variant):
        return np.asarray(value)
    try:
        if base is dtypes.string:
            return make_array(np.array(value, dtype=object), base)
        return plain_integers(np.asarray(value, dtype=base.as_numpy_dtype))
    except (TypeError, ValueError, OverflowError) as error:
        kind = ValueError if isinstance(error, ValueError) else TypeError
        raise kind(
            f"Cannot feed {type(value).__name__} to Tensor '{tensor.name}' of dtype {base.name}: "
            f"{error} (made at {tensor.op.origin})"
        ) from error
