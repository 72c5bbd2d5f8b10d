"""Names of expressions by what they are: equal for equal structure, whatever their variables are
called."""

from __future__ import annotations

from collections.abc import Sequence
from hashlib import blake2b
from typing import Any, cast

import numpy as np

from thalweg.ir.expr import Expr
from thalweg.ir.index import Affine, FloorMod
from thalweg.ir.loop import Variable
from thalweg.lower.memory.buffers import Buffer


def structure(part: Any, variables: Sequence[Variable]) -> bytes:
    """A digest of an expression over these variables."""
    return _Digest(variables).of(part)


class _Digest:
    def __init__(self, variables: Sequence[Variable]) -> None:
        self._numbers = {variable: number for number, variable in enumerate(variables)}
        self._known: dict[int, bytes] = {}

    def of(self, part: Any) -> bytes:
        if isinstance(part, Expr):
            if id(part) not in self._known:
                self._known[id(part)] = self._join(part.function, part.arguments)
            return self._known[id(part)]
        if isinstance(part, tuple):
            return self._join("", cast("tuple[Any, ...]", part))
        if isinstance(part, Affine):
            terms = sorted(self.of(atom) + str(f).encode() for atom, f in part.terms.items())
            return _hash(str(part.constant).encode(), *terms)
        return self._leaf(part)

    def _join(self, function: str, parts: tuple[Any, ...]) -> bytes:
        return _hash(function.encode(), *(self.of(part) for part in parts))

    def _leaf(self, part: Any) -> bytes:
        if isinstance(part, Variable):
            number = self._numbers.setdefault(part, len(self._numbers))
            return f"v{number}:{part.extent}".encode()
        if isinstance(part, FloorMod):
            return _hash(self.of(part.number), f"{part.divisor},{part.modulus}".encode())
        if isinstance(part, Buffer):
            return f"b{id(part)}".encode()
        if isinstance(part, np.generic):
            return f"{type(cast('Any', part)).__name__}{part!r}".encode()
        return f"{type(part).__name__}{part!r}".encode()


def _hash(*parts: bytes) -> bytes:
    digest = blake2b(digest_size=12)
    for part in parts:
        digest.update(len(part).to_bytes(4, "little"))
        digest.update(part)
    return digest.digest()
