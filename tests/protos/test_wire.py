"""Every message, held against the classes of tensorboard: the same fields, the same bytes."""

from __future__ import annotations

import importlib
import pkgutil
import random
from collections.abc import Iterable, Iterator
from typing import Any

import pytest
from google.protobuf.unknown_fields import UnknownFieldSet
from tensorboard.compat import proto as their_protos

from thalweg import protos
from thalweg.protos.classes import declared_names

#: Messages that the package tensorboard does not have.
OURS_ALONE = {
    *("CheckpointState", "SavedModel", "QueueRunnerDef", "Code"),
    *("BytesList", "FloatList", "Int64List", "Feature", "Features", "FeatureList", "FeatureLists"),
    *("Example", "SequenceExample", "ServerDef"),
}
DEPTH = 4  # of random messages: some contain themselves


def their_names() -> dict[str, Any]:
    modules = [
        f"{their_protos.__name__}.{module.name}"
        for module in pkgutil.iter_modules(their_protos.__path__)
    ]
    modules.append("tensorboard.plugins.projector.projector_config_pb2")
    result: dict[str, Any] = {}
    for module in map(importlib.import_module, modules):
        file = module.DESCRIPTOR
        names = (*file.message_types_by_name, *file.enum_types_by_name)
        result |= {name: getattr(module, name) for name in names}
    return result


THEIRS = their_names()
SHARED = sorted(set(declared_names()) & set(THEIRS))
MESSAGES = [name for name in SHARED if isinstance(THEIRS[name], type)]
ENUMS = [name for name in SHARED if name not in MESSAGES]


def test_every_message_of_ours_is_compared():
    assert set(declared_names()) - set(THEIRS) == OURS_ALONE


def test_all_are_found_under_the_names_that_tensorflow_gives_them():
    for name in declared_names():
        package = "tensorflow.error" if name == "Code" else "tensorflow"
        assert getattr(protos, name).DESCRIPTOR.full_name == f"{package}.{name}"


@pytest.mark.parametrize("name", MESSAGES)
def test_fields_are_the_same(name: str):
    ours, theirs = getattr(protos, name).DESCRIPTOR, THEIRS[name].DESCRIPTOR
    assert described(ours) == described(theirs)


@pytest.mark.parametrize("name", ENUMS)
def test_numbers_are_the_same(name: str):
    assert getattr(protos, name).items() == THEIRS[name].items()


@pytest.mark.parametrize("name", MESSAGES)
def test_bytes_are_the_same_both_ways(name: str):
    ours, theirs = getattr(protos, name), THEIRS[name]
    choices = max((len(oneof.fields) for oneof in ours.DESCRIPTOR.oneofs), default=1)
    for choice in range(choices):
        there_and_back(ours, theirs, random.Random(name), choice)
        there_and_back(theirs, ours, random.Random(name), choice)


def there_and_back(written: Any, read: Any, rng: random.Random, choice: int) -> None:
    made = written()
    Filler(rng, choice).fill(made, DEPTH)
    content = made.SerializeToString(deterministic=True)
    copied = read.FromString(content)
    assert list(unknown(copied)) == []
    assert copied.SerializeToString(deterministic=True) == content
    assert written.FromString(copied.SerializeToString()) == made


def described(descriptor: Any) -> dict[str, Any]:
    """All that a message's bytes depend on, by what it is called without its package."""
    return {
        "fields": {field.name: field_facts(field) for field in descriptor.fields},
        "enums": {enum.name: enum.values_by_name.keys() for enum in descriptor.enum_types},
        "numbers": {v.name: v.number for enum in descriptor.enum_types for v in enum.values},
        "nested": {inner.name: described(inner) for inner in descriptor.nested_types},
        "is map": descriptor.GetOptions().map_entry,
    }


def field_facts(field: Any) -> tuple[Any, ...]:
    typed = field.message_type or field.enum_type
    inside = None if typed is None else typed.full_name.removeprefix(f"{typed.file.package}.")
    oneof = field.containing_oneof and field.containing_oneof.name
    return field.number, field.type, field.is_repeated, field.is_packed, inside, oneof


def unknown(message: Any) -> Iterator[Any]:
    """The fields of a message, and of those in it, that its class does not know."""
    yield from UnknownFieldSet(message)
    for field, value in message.ListFields():
        for item in held_messages(field, value):
            yield from unknown(item)


def held_messages(field: Any, value: Any) -> Iterable[Any]:
    if field.message_type is None:
        return ()
    if not field.message_type.GetOptions().map_entry:
        return value if field.is_repeated else (value,)
    return value.values() if field.message_type.fields_by_name["value"].message_type else ()


class Filler:
    """Sets every field of messages at random, of each oneof the one whose turn it is."""

    def __init__(self, rng: random.Random, choice: int) -> None:
        self.rng = rng
        self.choice = choice

    def fill(self, message: Any, depth: int) -> None:
        for field in message.DESCRIPTOR.fields:
            if self.is_chosen(field):
                self.set(message, field, depth)

    def is_chosen(self, field: Any) -> bool:
        if field.containing_oneof is None:
            return True
        rivals = field.containing_oneof.fields
        return rivals[self.choice % len(rivals)].name == field.name

    def set(self, message: Any, field: Any, depth: int) -> None:
        held = getattr(message, field.name)
        if field.message_type is not None and field.message_type.GetOptions().map_entry:
            self.set_map(held, field.message_type, depth)
        elif field.message_type is not None:
            self.set_messages(held, field, depth)
        elif field.is_repeated:
            held.extend(self.scalar(field) for _ in range(3))
        else:
            setattr(message, field.name, self.scalar(field))

    def set_messages(self, held: Any, field: Any, depth: int) -> None:
        if not depth:
            return
        if not field.is_repeated:
            held.SetInParent()
            self.fill(held, depth - 1)
            return
        for _ in range(2):
            self.fill(held.add(), depth - 1)

    def set_map(self, held: Any, entry: Any, depth: int) -> None:
        value = entry.fields_by_name["value"]
        for _ in range(2):
            key = self.scalar(entry.fields_by_name["key"])
            if value.message_type is None:
                held[key] = self.scalar(value)
            elif depth:
                self.fill(held[key], depth - 1)

    def scalar(self, field: Any) -> Any:
        """A random value, never the one that means that nothing is set."""
        if field.enum_type is not None:
            return self.rng.choice([v.number for v in field.enum_type.values if v.number])
        if field.type == field.TYPE_BYTES:
            return self.rng.randbytes(5)
        return {
            field.CPPTYPE_INT32: lambda: -self.rng.randint(1, 2**31),
            field.CPPTYPE_INT64: lambda: -self.rng.randint(1, 2**63),
            field.CPPTYPE_UINT32: lambda: self.rng.randint(1, 2**32 - 1),
            field.CPPTYPE_UINT64: lambda: self.rng.randint(1, 2**64 - 1),
            field.CPPTYPE_FLOAT: lambda: self.rng.randint(1, 2**20) / 2**10,
            field.CPPTYPE_DOUBLE: lambda: self.rng.uniform(1, 2),
            field.CPPTYPE_BOOL: lambda: True,
            field.CPPTYPE_STRING: lambda: f"é{self.rng.random()}",
        }[field.cpp_type]()
