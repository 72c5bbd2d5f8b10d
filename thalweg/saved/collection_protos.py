"""How the items of a collection are written to a MetaGraphDef and made from it again.

A collection that is registered holds objects that have a protocol buffer of their own, such as
variables; all others hold nodes, numbers or strings.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from thalweg import protos
from thalweg.graph.collections import GraphKeys
from thalweg.variables.variable import Variable


@dataclass(frozen=True)
class Conversion:
    """The message class of a collection's items, and the ways there and back."""

    proto_type: Any
    to_proto: Callable[..., Any] | None
    from_proto: Callable[..., Any] | None

    @property
    def message(self) -> Any:
        """The message class, loaded if it was given as a function."""
        return self.proto_type if isinstance(self.proto_type, type) else self.proto_type()


_conversions: dict[str, Conversion] = {}


def register_proto_function(
    collection_name: str,
    proto_type: Any = None,
    to_proto: Callable[..., Any] | None = None,
    from_proto: Callable[..., Any] | None = None,
) -> None:
    """Say how items of a collection become protos: `proto_type` is a class or gives one."""
    for function in (to_proto, from_proto):
        if function is not None and not callable(function):
            raise TypeError("to_proto and from_proto must be callable.")
    if collection_name in _conversions:
        raise KeyError(f"The collection {collection_name!r} has its proto function already.")
    _conversions[collection_name] = Conversion(proto_type, to_proto, from_proto)


def conversion_of(collection_name: Any) -> Conversion | None:
    """What was registered for a collection."""
    return _conversions.get(collection_name)


def get_collection_proto_type(collection_name: str) -> Any:
    """The message class of a collection's items."""
    found = conversion_of(collection_name)
    return None if found is None else found.message


def get_to_proto_function(collection_name: str) -> Callable[..., Any] | None:
    """What makes protos of a collection's items."""
    found = conversion_of(collection_name)
    return None if found is None else found.to_proto


def get_from_proto_function(collection_name: str) -> Callable[..., Any] | None:
    """What makes a collection's items of protos."""
    found = conversion_of(collection_name)
    return None if found is None else found.from_proto


for _key in dict.fromkeys(
    (
        GraphKeys.GLOBAL_VARIABLES,
        GraphKeys.LOCAL_VARIABLES,
        GraphKeys.MODEL_VARIABLES,
        GraphKeys.METRIC_VARIABLES,
        GraphKeys.TRAINABLE_VARIABLES,
        GraphKeys.MOVING_AVERAGE_VARIABLES,
        GraphKeys.GLOBAL_STEP,
        GraphKeys.EVAL_STEP,
    )
):
    register_proto_function(
        _key, lambda: protos.VariableDef, Variable.to_proto, Variable.from_proto
    )
