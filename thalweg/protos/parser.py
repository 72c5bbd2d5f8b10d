"""`.proto` files as descriptors: the part of protobuf's own language that the files here use.

In comes the text of a file (proto3: messages, enums, oneofs, maps, imports), out goes its
FileDescriptorProto. Types of messages and enums stay as they are written: a descriptor pool finds
them by protobuf's rules for scopes.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Final

from google.protobuf.descriptor_pb2 import (
    DescriptorProto,
    EnumDescriptorProto,
    FieldDescriptorProto,
    FileDescriptorProto,
)

_TOKEN: Final = re.compile(r'//.*|"[^"]*"|-?[\w.]+|\S')
_SCALARS: Final = {
    name.removeprefix("TYPE_").lower(): number
    for name, number in FieldDescriptorProto.Type.items()
    if name not in ("TYPE_MESSAGE", "TYPE_ENUM", "TYPE_GROUP")
}


def parse(name: str, text: str) -> FileDescriptorProto:
    """The descriptor of the file `name` with this text; a SyntaxError says what cannot be read."""
    file = FileDescriptorProto(name=name)
    tokens = _Tokens(text)
    for word in tokens:
        if word == "message":
            _message(tokens, file.message_type.add())
        elif word == "enum":
            _enum(tokens, file.enum_type.add())
        else:
            _setting(word, tokens, file)
    return file


class _Tokens:
    """The words and signs of a text, one after the other."""

    def __init__(self, text: str) -> None:
        self._left = [token for token in _TOKEN.findall(text) if not token.startswith("//")][::-1]

    def __iter__(self) -> Iterator[str]:
        while self._left:
            yield self._left.pop()

    def word(self) -> str:
        """The next token."""
        if not self._left:
            raise SyntaxError("a .proto file ends too early")
        return self._left.pop()

    def skip(self, *signs: str) -> None:
        """Pass over signs that have to come now."""
        for sign in signs:
            found = self.word()
            if found != sign:
                raise SyntaxError(f"{sign!r} is missing before {found!r} in a .proto file")

    def block(self) -> Iterator[str]:
        """The first words of what stands in braces."""
        self.skip("{")
        while (word := self.word()) != "}":
            yield word


def _setting(word: str, tokens: _Tokens, file: FileDescriptorProto) -> None:
    """`syntax = "proto3";`, `package name;` or `import "file";`"""
    if word == "syntax":
        tokens.skip("=")
        file.syntax = tokens.word().strip('"')
    elif word == "package":
        file.package = tokens.word()
    elif word == "import":
        file.dependency.append(tokens.word().strip('"'))
    else:
        raise SyntaxError(f"a .proto file cannot have {word!r} here")
    tokens.skip(";")


def _message(tokens: _Tokens, described: DescriptorProto) -> None:
    described.name = tokens.word()
    for word in tokens.block():
        if word == "message":
            _message(tokens, described.nested_type.add())
        elif word == "enum":
            _enum(tokens, described.enum_type.add())
        elif word == "oneof":
            _oneof(tokens, described)
        else:
            _field(word, tokens, described)


def _enum(tokens: _Tokens, described: EnumDescriptorProto) -> None:
    described.name = tokens.word()
    for word in tokens.block():
        tokens.skip("=")
        described.value.add(name=word, number=int(tokens.word()))
        tokens.skip(";")


def _oneof(tokens: _Tokens, described: DescriptorProto) -> None:
    index = len(described.oneof_decl)
    described.oneof_decl.add(name=tokens.word())
    for word in tokens.block():
        _field(word, tokens, described).oneof_index = index


def _field(word: str, tokens: _Tokens, described: DescriptorProto) -> FieldDescriptorProto:
    """`type name = 1;`, where `repeated` may precede the type; `map<key, value> name = 1;`"""
    if word == "map":
        return _map(tokens, described)
    repeated = word == "repeated"
    kind = tokens.word() if repeated else word
    return _add(described, kind, tokens.word(), _number(tokens), repeated)


def _map(tokens: _Tokens, described: DescriptorProto) -> FieldDescriptorProto:
    """A map is a list of entries, each a message of its own with a key and a value."""
    tokens.skip("<")
    key = tokens.word()
    tokens.skip(",")
    value = tokens.word()
    tokens.skip(">")
    name = tokens.word()
    entry = described.nested_type.add(name=f"{name.title().replace('_', '')}Entry")
    entry.options.map_entry = True
    _add(entry, key, "key", 1)
    _add(entry, value, "value", 2)
    return _add(described, entry.name, name, _number(tokens), repeated=True)


def _number(tokens: _Tokens) -> int:
    tokens.skip("=")
    number = int(tokens.word())
    tokens.skip(";")
    return number


def _add(
    described: DescriptorProto, kind: str, name: str, number: int, repeated: bool = False
) -> FieldDescriptorProto:
    field = described.field.add(name=name, number=number)
    field.label = field.LABEL_REPEATED if repeated else field.LABEL_OPTIONAL
    if kind in _SCALARS:
        field.type = _SCALARS[kind]
    else:
        field.type_name = kind  # a message or an enum, the pool finds out
    return field
