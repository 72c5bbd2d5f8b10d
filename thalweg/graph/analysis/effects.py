"""The effects of ops: which state they read and write.

A block declares effects as `effects = (reads("handle"), writes(Resource.CONSOLE))`: state that an
input refers to by the input's name, other state by its kind. Without a declaration they follow from
the signature: a stateful op writes the variables it takes by reference, the resources of its
handles and the lists it takes, and one with a `stream` draws from it. Reads of variables are never
declared: a node that takes the value of a reference reads it. `thalweg.graph.analysis.order`
derives order edges from effects.

>>> declared = (reads("filename"), writes(Resource.CONSOLE))
>>> [(effect.target, effect.writes) for effect in declared]
[('filename', False), (<Resource.CONSOLE: 'console'>, True)]
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from enum import Enum
from typing import NamedTuple

from thalweg.graph import dtypes
from thalweg.graph.signature import Argument, Signature


class Resource(Enum):
    """A kind of state. Inputs refer to the first three; a stream belongs to its node."""

    VARIABLE = "variable"
    HANDLE = "handle"  # of a queue, table, reader, accumulator, barrier, iterator
    LIST = "list"  # mutated in place as it passes from node to node
    STREAM = "random stream"
    CONSOLE = "console"
    FILES = "files"
    SESSION = "session"  # tensors that a session keeps for later steps
    STEP = "step"  # whether the step continues: an assertion ends it
    PYTHON = "Python"  # any state that a user's function uses


class Effect(NamedTuple):
    """An effect as a block declares it."""

    target: str | Resource  # the name of an input, or state that no input refers to
    writes: bool


class Use(NamedTuple):
    """A read or write of a kind of state."""

    resource: Resource
    writes: bool


@dataclass(frozen=True)
class Footprint:
    """All effects of an op: on state of its inputs, by position in the signature, and others."""

    inputs: Mapping[int, Use] = field(default_factory=dict[int, Use])
    others: tuple[Use, ...] = ()

    def __bool__(self) -> bool:
        return bool(self.inputs or self.others)


NO_FOOTPRINT = Footprint()


def reads(target: str | Resource) -> Effect:
    """The effect of reading the state of an input, or other state."""
    return Effect(target, False)


def writes(target: str | Resource) -> Effect:
    """The effect of writing the state of an input, or other state."""
    return Effect(target, True)


def footprint_of(
    effects: Iterable[Effect] | None, signature: Signature, has_stream: bool
) -> Footprint:
    """The footprint that a block declares; if it declares None, the one of its signature."""
    if effects is None:
        return _derived(signature, has_stream) or NO_FOOTPRINT
    return _declared(effects, signature) or NO_FOOTPRINT


def _declared(effects: Iterable[Effect], signature: Signature) -> Footprint:
    positions = {argument.name: index for index, argument in enumerate(signature.inputs)}
    inputs: dict[int, Use] = {}
    others: list[Use] = []
    for target, is_write in effects:
        if isinstance(target, Resource):
            others.append(Use(target, is_write))
        else:
            resource = _resource_of(signature.inputs[positions[target]])
            assert resource is not None, f"the input '{target}' names no state"
            inputs[positions[target]] = Use(resource, is_write)
    return Footprint(inputs, tuple(others))


def _derived(signature: Signature, has_stream: bool) -> Footprint:
    """The footprint of a stateful op that declares none: it writes the state of all its inputs."""
    resources = map(_resource_of, signature.inputs)
    inputs = {index: Use(kind, True) for index, kind in enumerate(resources) if kind}
    return Footprint(inputs, (Use(Resource.STREAM, True),) if has_stream else ())


def _resource_of(argument: Argument) -> Resource | None:
    """The kind of state that an input refers to, if any."""
    if argument.fixed is dtypes.resource or (argument.is_ref and argument.fixed is dtypes.string):
        return Resource.HANDLE
    if argument.fixed is dtypes.variant:
        return Resource.LIST
    return Resource.VARIABLE if argument.is_ref else None
