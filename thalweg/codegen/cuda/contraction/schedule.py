"""Schedules: the tuning parameters of a contraction on a GPU."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

#: The multiplying unit: cores, warps by mma.sync, or groups of four warps by wgmma.
Unit = Literal["cores", "mma", "wgmma"]


@dataclass(frozen=True)
class Schedule:
    """The schedule of a contraction.

    A block of threads has a tile of `m` by `n` sums, to which it adds `k` terms at a time; `warps`
    warps multiply, `warps_n` of them along columns, and `loaders` more only load. `stages` tiles of
    the operands are in shared memory. Tiles are computed in groups of `group` rows, column by
    column, so that the caches hold their shared operands. With `workers`, that many blocks have
    equal shares of all terms of all tiles (stream-K), and a second launch adds up the tiles that
    several of them share. With `splits`, the terms of every tile are split into that many parts,
    each a separate tile, and a second launch adds up all parts. With `buffers`, the operands and
    results of the epilogue are staged in shared memory, that many chunks of columns at a time, and
    transferred by the copy engine; otherwise threads access memory directly. A chunk has `chunk`
    columns, or the default number. `residents` blocks share a multiprocessor: while one multiplies,
    another may wait or store. `transposed` names the operands ("a", "b", "ab") of which earlier
    launches make copies along the terms. With `fragments`, the first operand is stored across the
    terms in shared memory, and warps read their fragments of it to registers. With `swapped`, rows
    and columns, and so the operands, are exchanged. With `rewritten`, some of the loading warps
    transpose tiles of the second operand, which are stored across the terms, in shared memory.
    """

    unit: Unit
    m: int
    n: int
    k: int
    warps: int
    warps_n: int
    stages: int = 2
    group: int = 8
    workers: int = 0
    loaders: int = 0
    splits: int = 1
    buffers: int = 0
    residents: int = 1
    chunk: int = 0
    transposed: str = ""
    fragments: bool = False
    swapped: bool = False
    rewritten: bool = False

    @property
    def summary(self) -> str:
        """The main parameters, as text."""
        parts = [f"{self.unit} {self.m}x{self.n}x{self.k}", f"{self.stages} stages"]
        counts = {"workers": self.workers, "parts": self.splits if self.splits > 1 else 0}
        counts["buffers"] = self.buffers
        counts["columns a chunk"] = self.chunk
        counts["residents"] = self.residents if self.residents > 1 else 0
        parts += [f"{count} {name}" for name, count in counts.items() if count]
        parts += [f"{name} transposed" for name in self.transposed]
        ways = ("fragments", "swapped", "rewritten")
        return ", ".join([*parts, *(way for way in ways if getattr(self, way))])

    @property
    def has_parts(self) -> bool:
        """Whether a second launch adds up partial sums of blocks."""
        return self.workers > 0 or self.splits > 1

    @property
    def threads(self) -> int:
        """The threads of a block."""
        return 32 * (self.warps + self.loaders)
