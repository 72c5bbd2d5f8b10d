"""Schedules: how a contraction is computed on a GPU, as numbers that can be kept and varied."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

#: What multiplies: the cores themselves, warps by mma.sync, or groups of four warps by wgmma.
Unit = Literal["cores", "mma", "wgmma"]


@dataclass(frozen=True)
class Schedule:
    """How a contraction is computed.

    A block of threads has a tile of `m` by `n` sums, to which it adds `k` terms at a time; `warps`
    of them multiply, `warps_n` side by side, and `loaders` more only load. `stages` tiles of the
    operands are in shared memory at once. Of `group` rows of tiles one column after the other is
    computed, while the caches hold what they share. With `workers`, that many blocks have equal
    shares of all terms of all tiles (stream-K), and a second launch adds up the tiles that several
    of them have parts of. With `splits`, the terms of every tile are as many parts, each of which
    is a tile of its own, and a second launch adds up all of them. With `buffers`, what the epilogue
    reads and writes is in shared memory, that many chunks of columns of it at once, and moved by
    the copy engine; without, threads read and write it themselves. A chunk has `chunk` columns, or
    as many as are usual. `residents` blocks share a multiprocessor: while one multiplies, another
    may wait or store. Of the operands `transposed` names ("a", "b", "ab"), copies that lie along
    the terms are made by launches before. With `fragments`, the first operand lies across the terms
    in shared memory, and warps read their fragments of it to registers. `swapped`, columns are rows
    and rows are columns: the second operand is the first. With `rewritten`, some of the warps that
    load write tiles of the second operand, which lie across the terms, a second time along them.
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
        """What matters of it, for readers."""
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
        """Whether a second launch adds up what blocks summed."""
        return self.workers > 0 or self.splits > 1

    @property
    def threads(self) -> int:
        """The threads of a block."""
        return 32 * (self.warps + self.loaders)
