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

from collections.abc import Iterable
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
    position: int | None = None  # in the signature, of the input that refers to it


#: All effects of an op.
Footprint = tuple[Use, ...]


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
    if effects is not None:
        return tuple(_declared(effect, signature) for effect in effects)
    # A stateful op that declares none writes the state of all its inputs.
    resources = enumerate(map(_resource_of, signature.inputs))
    written = [Use(kind, True, position) for position, kind in resources if kind]
    return (*written, Use(Resource.STREAM, True)) if has_stream else tuple(written)


def _declared(effect: Effect, signature: Signature) -> Use:
    if isinstance(effect.target, Resource):
        return Use(effect.target, effect.writes)
    position = [argument.name for argument in signature.inputs].index(effect.target)
    resource = _resource_of(signature.inputs[position])
    assert resource is not None, f"the input '{effect.target}' names no state"
    return Use(resource, effect.writes, position)


def _resource_of(argument: Argument) -> Resource | None:
    """The kind of state that an input refers to, if any."""
    if argument.fixed is dtypes.resource or (argument.is_ref and argument.fixed is dtypes.string):
        return Resource.HANDLE
    if argument.fixed is dtypes.variant:
        return Resource.LIST
    return Resource.VARIABLE if argument.is_ref else None
