"""ELF object files of kernels: undefined symbols, validation, and loading without a linker.

The bytes of a 64-bit ELF object come in. A loader trusts them: an offset past the end of a section
makes it read or write our memory. So an object from disk is validated first: every table is inside
the file, every reference inside what it refers to, and nothing is there that kernels do not need.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator, Mapping, Sequence
from functools import cached_property

from thalweg.platform.collector import gc_paused

#: Symbols that LLVM may reference though the text does not.
EXTERNAL = frozenset({"memset", "memcpy", "memmove", "_GLOBAL_OFFSET_TABLE_"})

_IDENT = b"\x7fELF\x02\x01\x01"  # 64 bits, little-endian
_IDENT_BYTES = 16
_HEADER = struct.Struct("<16sHHIQQQIHHHHHH")
_SECTION = struct.Struct("<IIQQQQIIQQ")
_SYMBOL = struct.Struct("<IBBHQQ")
_RELOCATION = struct.Struct("<QIIq")
_RELOCATABLE = 1
_BITS, _SYMBOLS, _STRINGS, _RELOCATIONS, _ZEROS = 1, 2, 3, 4, 8
_UNWIND = 0x70000001  # unwind tables of x86-64
_KINDS = frozenset((_BITS, _SYMBOLS, _STRINGS, _RELOCATIONS, _ZEROS, _UNWIND))
_WRITABLE, _ALLOC, _EXECUTABLE = 1, 2, 4
_FLAGS = _WRITABLE | _ALLOC | _EXECUTABLE | 16 | 32 | 64  # mergeable, strings, info is a section
_ALIGNMENTS = frozenset(1 << power for power in range(13))
_MAX_ZEROS = 1 << 24
_ABSOLUTE = 0xFFF1
_FILE = 4
_SYMBOL_KINDS = frozenset((0, 1, 2, 3, _FILE))  # besides it, an object, function, section
_GLOBAL_FUNCTION = 1 << 4 | 2
_MACHINES = {"x86_64": 62, "aarch64": 183}
#: How many bytes a relocation patches, for the types that occur in kernels.
_X86 = {1: 8, 24: 8, **dict.fromkeys((2, 4, 9, 10, 11, 41, 42), 4)}
_ARM_WORDS = (258, 261, 273, 274, 275, 277, 278, 280, 282, 283, 284, 285, 286, 299, 311, 312)
_ARM = {257: 8, 260: 8, **dict.fromkeys(_ARM_WORDS, 4)}
_CHANGED = {"x86_64": _X86, "aarch64": _ARM}
_DISTANCES = frozenset((2, 4))  # x86-64: PC-relative relocations, of data and of functions
_DISTANCE = struct.Struct("<i")
_CACHE_LINE = 64


#: name, kind, flags, address, offset, size, link, info, alignment, size of an entry
_Section = tuple[int, int, int, int, int, int, int, int, int, int]
#: name, info, other, section, value, size
_Symbol = tuple[int, int, int, int, int, int]


class ObjectFile:
    """An object file; tables are read on demand, unchecked until `check`.

    Plain tuples and loops for speed: all kernels of a step are checked in its first run.
    """

    def __init__(self, code: bytes) -> None:
        self._code = code

    def undefined(self) -> list[str]:
        """The undefined symbols."""
        return [self._name(name) for name, _, _, place, _, _ in self._symbols if name and not place]

    def check(self, functions: Sequence[str], architecture: str) -> None:
        """Raise ValueError unless the object is valid and defines these functions."""
        try:
            with gc_paused():  # the tables are dropped at once
                sound = all(self._conditions(functions, architecture))
        except (struct.error, LookupError, UnicodeDecodeError) as error:
            raise ValueError("This is no object file.") from error
        if not sound:
            raise ValueError("This is no object file that a kernel can be.")

    def flat(self, functions: Sequence[str]) -> tuple[bytes, list[int]] | None:
        """Code and constants as one relocated, position-independent image, and the offsets of the
        functions in it. None where the object needs a linker: it has absolute or undefined
        references, or writable memory. Most x86-64 kernels do not."""
        if not self._code.startswith(struct.pack("<H", _MACHINES["x86_64"]), _IDENT_BYTES + 2):
            return None
        starts, content = dict[int, int](), bytearray()
        for index, section in enumerate(self._sections):
            if section[2] & _ALLOC:
                if section[1] != _BITS or section[2] & _WRITABLE:
                    return None
                content += bytes(-len(content) % max(section[8], _CACHE_LINE))
                starts[index] = len(content)
                content += self._bytes_of(section)
        try:
            found = {self._name(s[0]): starts[s[3]] + s[4] for s in self._symbols if s[1] >> 4}
            for section in self._sections:
                if section[1] == _RELOCATIONS and section[7] in starts:
                    self._set_distances(section, starts, content)
            offsets = [found[name] for name in functions]
        except (LookupError, ValueError, struct.error):
            return None
        return (bytes(content), offsets) if offsets else None

    def _set_distances(
        self, section: _Section, starts: Mapping[int, int], content: bytearray
    ) -> None:
        symbols, base = self._symbols, starts[section[7]]
        for offset, kind, symbol, addend in _RELOCATION.iter_unpack(self._bytes_of(section)):
            if kind not in _DISTANCES:
                raise LookupError
            _, _, _, place, value, _ = symbols[int(symbol)]
            at = base + offset
            _DISTANCE.pack_into(content, at, starts[place] + value + addend - at)

    def _conditions(self, functions: Sequence[str], architecture: str) -> Iterator[bool]:
        """The conditions of a valid object; each relies on those before it."""
        yield self._header_is_sound(architecture)
        yield self._sections_are_sound()
        yield self._tables_are_sound()
        yield self._symbols_are_sound()
        yield EXTERNAL.issuperset(self.undefined())
        yield set(functions) <= self._functions()
        widths = _CHANGED[architecture]
        for section in self._sections:
            yield section[1] != _RELOCATIONS or self._relocations_are_sound(section, widths)

    def _header_is_sound(self, architecture: str) -> bool:
        start, size, count, titles = self._table_of_sections
        kinds = struct.pack("<HH", _RELOCATABLE, _MACHINES[architecture])
        return (
            self._code.startswith(_IDENT)
            and self._code.startswith(kinds, _IDENT_BYTES)
            and size == _SECTION.size
            and start + size * count <= len(self._code)
            and 0 < titles < count
        )

    def _sections_are_sound(self) -> bool:
        length, (first, *sections) = len(self._code), self._sections
        return not any(first) and all(
            kind in _KINDS
            and flags | _FLAGS == _FLAGS
            and address == 0
            and (offset + size <= length if kind != _ZEROS else size <= _MAX_ZEROS)
            and alignment in _ALIGNMENTS
            for _, kind, flags, address, offset, size, _, _, alignment, _ in sections
        )

    def _tables_are_sound(self) -> bool:
        """Whether section names, the one symbol table and its string table are valid."""
        titles = self._sections[self._table_of_sections[3]]
        _, _, _, _, _, size, link, first_global, _, entry_size = self._symbol_table
        return (
            [section[1] for section in self._sections].count(_SYMBOLS) == 1
            and (entry_size, size % _SYMBOL.size) == (_SYMBOL.size, 0)
            and first_global <= size // _SYMBOL.size
            and self._is_strings(self._sections[link])
            and self._is_strings(titles)
            and all(section[0] < titles[5] for section in self._sections)
        )

    def _is_strings(self, section: _Section) -> bool:
        _, kind, _, _, offset, size, *_ = section
        return kind == _STRINGS and size > 0 and self._code[offset + size - 1] == 0

    def _symbols_are_sound(self) -> bool:
        length = self._sections[self._symbol_table[6]][5]
        sizes = {place: section[5] for place, section in enumerate(self._sections)}  # none: 0 bytes
        return all(
            name < length
            and info & 15 in _SYMBOL_KINDS
            and (value + size <= sizes[place] if place != _ABSOLUTE else info & 15 == _FILE)
            for name, info, _, place, value, size in self._symbols
        )

    def _functions(self) -> set[str]:
        return {
            self._name(name)
            for name, info, _, place, _, size in self._symbols
            if info == _GLOBAL_FUNCTION and size and self._sections[place][2] & _EXECUTABLE
        }

    def _relocations_are_sound(self, section: _Section, widths: dict[int, int]) -> bool:
        _, _, _, _, _, size, link, info, _, entry_size = section
        if entry_size != _RELOCATION.size or size % entry_size:
            return False
        if self._sections[link] is not self._symbol_table:
            return False
        _, changed, flags, _, _, length, *_ = self._sections[info]
        usable = self._usable
        return (
            changed in (_BITS, _UNWIND)
            and flags & _ALLOC != 0
            and all(
                kind in widths and offset + widths[kind] <= length and symbol in usable
                for offset, kind, symbol, _ in _RELOCATION.iter_unpack(self._bytes_of(section))
            )
        )

    @cached_property
    def _usable(self) -> set[int]:
        """The symbols that relocations may use: those in loaded sections, and undefined ones."""
        loaded = {index for index, section in enumerate(self._sections) if section[2] & _ALLOC}
        loaded.add(0)
        return {number for number, symbol in enumerate(self._symbols) if symbol[3] in loaded}

    @cached_property
    def _table_of_sections(self) -> tuple[int, int, int, int]:
        """Its offset, the size of an entry, their number, the section of the names."""
        *_, start, _, _, _, _, size, count, titles = _HEADER.unpack_from(self._code)
        return start, size, count, titles

    @cached_property
    def _sections(self) -> list[_Section]:
        start, _, count, _ = self._table_of_sections
        return list(_SECTION.iter_unpack(self._code[start : start + _SECTION.size * count]))

    @cached_property
    def _symbol_table(self) -> _Section:
        return self._sections[[section[1] for section in self._sections].index(_SYMBOLS)]

    @cached_property
    def _symbols(self) -> list[_Symbol]:
        return list(_SYMBOL.iter_unpack(self._bytes_of(self._symbol_table)))

    def _bytes_of(self, section: _Section) -> bytes:
        return self._code[section[4] : section[4] + section[5]]

    def _name(self, start: int) -> str:
        place = self._sections[self._symbol_table[6]][4] + start
        return self._code[place : self._code.index(0, place)].decode()
