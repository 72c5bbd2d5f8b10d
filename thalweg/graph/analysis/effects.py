"""What an op does besides giving values: which state it reads and writes.

A block declares it: `effects = (reads("handle"), writes(Resource.CONSOLE))`, an input by its name
and other state by what it is. What the signature tells need not be declared: a stateful op writes
the variables it takes by reference, what its handles name and the lists it takes, and one with a
`stream` draws from it. Reads of variables are never declared: whoever takes the value of a
reference reads. `thalweg.graph.analysis.order` makes order edges of effects.

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
    """A kind of state. The first three are named by an input, the stream is the node's own."""

    VARIABLE = "variable"
    HANDLE = "handle"  # of a queue, table, reader, accumulator, barrier, iterator
    LIST = "list"  # changed in place while it flows from node to node
    STREAM = "random stream"
    CONSOLE = "console"
    FILES = "files"
    SESSION = "session"  # tensors that a session keeps for later steps
    STEP = "step"  # whether the step goes on: an assertion ends it
    PYTHON = "Python"  # whatever a user's function touches


class Effect(NamedTuple):
    """An effect as a block declares it."""

    target: str | Resource  # the name of an input, or state that no input names
    writes: bool


class Use(NamedTuple):
    """A read or write of a kind of state."""

    resource: Resource
    writes: bool


@dataclass(frozen=True)
class Footprint:
    """All effects of an op: of its inputs, by their place in the signature, and others."""

    inputs: Mapping[int, Use] = field(default_factory=dict[int, Use])
    others: tuple[Use, ...] = ()

    def __bool__(self) -> bool:
        return bool(self.inputs or self.others)


NO_FOOTPRINT = Footprint()


def reads(target: str | Resource) -> Effect:
    """The effect of reading what an input names, or other state."""
    return Effect(target, False)


def writes(target: str | Resource) -> Effect:
    """The effect of writing what an input names, or other state."""
    return Effect(target, True)


def footprint_of(
    effects: Iterable[Effect] | None, signature: Signature, has_stream: bool
) -> Footprint:
    """The footprint that a block declares; where it declares None, the one that follows."""
    found = _derived(signature, has_stream) if effects is None else _declared(effects, signature)
    return found or NO_FOOTPRINT


def _declared(effects: Iterable[Effect], signature: Signature) -> Footprint:
    places = {argument.name: place for place, argument in enumerate(signature.inputs)}
    inputs: dict[int, Use] = {}
    others: list[Use] = []
    for target, is_write in effects:
        if isinstance(target, Resource):
            others.append(Use(target, is_write))
        else:
            named = _named_by(signature.inputs[places[target]])
            assert named is not None, f"the input '{target}' names no state"
            inputs[places[target]] = Use(named, is_write)
    return Footprint(inputs, tuple(others))


def _derived(signature: Signature, has_stream: bool) -> Footprint:
    """The footprint of a stateful op that declares none: it writes all that its inputs name."""
    named = {place: _named_by(argument) for place, argument in enumerate(signature.inputs)}
    inputs = {place: Use(resource, True) for place, resource in named.items() if resource}
    return Footprint(inputs, (Use(Resource.STREAM, True),) if has_stream else ())


def _named_by(argument: Argument) -> Resource | None:
    """The kind of state that an input names, if any."""
    if argument.fixed is dtypes.resource or (argument.is_ref and argument.fixed is dtypes.string):
        return Resource.HANDLE
    if argument.fixed is dtypes.variant:
        return Resource.LIST
    return Resource.VARIABLE if argument.is_ref else None
