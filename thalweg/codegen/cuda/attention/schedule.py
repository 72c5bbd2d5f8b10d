"""Schedules of attention: the rows of a block, and the shared memory of its tiles.

A block has some rows and iterates over tiles of all others; each of its warps has its own 16 or 32
rows. The next tile is prefetched while one is multiplied.
"""

from __future__ import annotations

from math import prod

from thalweg.codegen.cuda.attention.form import AttentionForm
from thalweg.codegen.cuda.attention.tiles import RowTile
from thalweg.codegen.cuda.contraction.space import Words
from thalweg.codegen.cuda.contraction.warp_instructions import exchange_bytes
from thalweg.codegen.cuda.launch import LaunchShape

WARPS = 4
THREADS = 32 * WARPS
TILE_ROWS = 16  # of a product of tensor cores
STAGES = 2

_MAX_SUMS = 128  # registers of a thread for sums: those of products, and results
#: (tiles of rows of a warp, others of a tile): the first for which there are registers is used.
CHOICES = [(1, 64), (1, 32)]
#: The choice for gradients with short rows: the fastest on an H200, though some sums spill.
_SHORT, SHORT_GRADIENT = 64, (2, 32)


class Schedule:
    """The tiles of 16 rows of each warp, and the others of a tile."""

    def __init__(self, form: AttentionForm, tiles: int, others: int, is_emulated: bool) -> None:
        self.form, self.tiles, self.others = form, tiles, others
        #: the rows of a block
        self.rows = WARPS * TILE_ROWS * tiles
        #: the tiles of a row operand, which a block keeps, and of an other operand in a stage
        self.row_tile = RowTile(self.rows, form.depth.extent)
        self.other_tile = RowTile(others, form.depth.extent)
        #: the size of a stage
        self.stage_bytes = len(form.others_read) * self.other_tile.bytes
        #: where the stages begin, and the exchange memory of emulated lanes
        self.stages = len(form.rows_read) * self.row_tile.bytes
        self.exchange = self.stages + STAGES * self.stage_bytes
        #: the shared memory of a block
        self.shared_bytes = self.exchange + exchange_bytes(is_emulated, THREADS)

    def launch(self, words: Words) -> LaunchShape:
        """The launch of a call: a block per batch and block of rows."""
        blocks = -(-words.number(self.form.row.extent) // self.rows)
        batches = prod(words.number(variable.extent) for variable in self.form.batch)
        return LaunchShape((max(1, blocks * batches), 1, 1), (THREADS, 1, 1), self.shared_bytes)


def schedule_of(form: AttentionForm, is_emulated: bool) -> Schedule:
    """The schedule with as many rows and others as registers allow."""
    depth = form.depth.extent
    if form.softmax is None and depth <= _SHORT:
        return Schedule(form, *SHORT_GRADIENT, is_emulated)
    for tiles, others in CHOICES:
        products = len(form.products) * tiles * others // 2
        if products + len(form.chains) * tiles * depth // 2 <= _MAX_SUMS:
            return Schedule(form, tiles, others, is_emulated)
    return Schedule(form, *CHOICES[-1], is_emulated)
