"""ELF object files of kernels: undefined symbols, and loading without a linker.

The bytes of a 64-bit ELF object come in, as LLVM wrote them. They are trusted: an object from disk
is one that this user's processes signed (`platform/disk_cache.py`).
"""

from __future__ import annotations

import struct
from collections.abc import Mapping, Sequence
from functools import cached_property

#: Symbols that LLVM may reference though the text does not.
EXTERNAL = frozenset({"memset", "memcpy", "memmove", "_GLOBAL_OFFSET_TABLE_"})

_IDENT_BYTES = 16
_HEADER = struct.Struct("<16sHHIQQQIHHHHHH")
_SECTION = struct.Struct("<IIQQQQIIQQ")
_SYMBOL = struct.Struct("<IBBHQQ")
_RELOCATION = struct.Struct("<QIIq")
_X86_64 = struct.pack("<H", 62)  # the machine
_BITS, _SYMBOLS, _RELOCATIONS = 1, 2, 4
_WRITABLE, _ALLOC = 1, 2
_DISTANCES = frozenset((2, 4))  # x86-64: PC-relative relocations, of data and of functions
_DISTANCE = struct.Struct("<i")
_CACHE_LINE = 64


#: name, kind, flags, address, offset, size, link, info, alignment, size of an entry
_Section = tuple[int, int, int, int, int, int, int, int, int, int]
#: name, info, other, section, value, size
_Symbol = tuple[int, int, int, int, int, int]


class ObjectFile:
    """An object file; tables are read on demand.

    Plain tuples and loops for speed: all kernels of a step are loaded in its first run.
    """

    def __init__(self, code: bytes) -> None:
        self._code = code

    def undefined(self) -> list[str]:
        """The undefined symbols."""
        return [self._name(name) for name, _, _, place, _, _ in self._symbols if name and not place]

    def flat(self, functions: Sequence[str]) -> tuple[bytes, list[int]] | None:
        """Code and constants as one relocated, position-independent image, and the offsets of the
        functions in it. None where the object needs a linker: it has absolute or undefined
        references, or writable memory. Most x86-64 kernels do not."""
        if not self._code.startswith(_X86_64, _IDENT_BYTES + 2):
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

    @cached_property
    def _sections(self) -> list[_Section]:
        *_, start, _, _, _, _, _, count, _ = _HEADER.unpack_from(self._code)
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
