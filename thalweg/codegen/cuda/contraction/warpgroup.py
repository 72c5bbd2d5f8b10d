"""Products by groups of four warps on tensor cores (wgmma), from tiles in shared memory.

The loop over blocks of terms is one piece of PTX: nothing may touch the sums while products are
under way. It waits for the barrier of a stage, begins its products, and frees the stage before when
its own are the only ones left. On an emulated grid the same loop is a function, with an emulated
instruction that finds elements by the same descriptors.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from thalweg.codegen.cuda.contraction.async_instructions import write_arrive, write_wait
from thalweg.codegen.cuda.contraction.frame import GridFrame
from thalweg.codegen.cuda.contraction.helpers import (
    Helpers,
    inline,
    packed,
    shared_address,
    struct,
    unpacked,
)
from thalweg.codegen.cuda.contraction.layout import SharedTile
from thalweg.codegen.cuda.contraction.warp_instructions import MMA_NAMES, STEP_BYTES, elements
from thalweg.codegen.cuda.grid import Grid
from thalweg.codegen.llvm.builder import (
    FLOAT,
    I32,
    I64,
    VOID,
    Builder,
    Value,
    constant,
)

ROWS = 64  # that a group of warps multiplies at once
_SWIZZLES = {128: 1 << 62, 64: 2 << 62, 32: 3 << 62}  # of a descriptor, by the bytes of a line
_LEADING, _STRIDE, _ADDRESS_BITS = 16, 32, 14
_FIELD = (1 << _ADDRESS_BITS) - 1


@dataclass(frozen=True)
class Descriptor:
    """How wgmma finds a tile: constant bits, and what a step of terms adds to the address / 16.

    Along the terms, 8 lines are `stride` bytes and the leading distance is not used. Across them,
    panels are `leading` and 8 terms `stride` bytes apart.
    """

    tile: SharedTile

    @property
    def is_across(self) -> bool:
        """Whether lines lie across the terms."""
        return self.tile.axis == "mn"

    @property
    def bits(self) -> int:
        """All but the address."""
        tile = self.tile
        leading = tile.k * tile.line_bytes if self.is_across else 16
        stride = 8 * tile.line_bytes
        return _SWIZZLES[tile.line_bytes] | (stride >> 4) << _STRIDE | (leading >> 4) << _LEADING

    def step(self, number: int) -> int:
        """How far the terms of a product are from the first, / 16."""
        tile = self.tile
        if self.is_across:
            return number * STEP_BYTES // tile.itemsize * tile.line_bytes >> 4
        panel, within = divmod(number * STEP_BYTES, tile.line_bytes)
        return panel * tile.mn * tile.line_bytes + within >> 4

    @property
    def rows(self) -> int:
        """From the rows of one group of warps to those of the next, / 16: lines, or panels."""
        tile = self.tile
        return ROWS * (tile.k * tile.itemsize if self.is_across else tile.line_bytes) >> 4


@dataclass(frozen=True)
class Pipeline:
    """The stages that the loop walks through, in bytes from the start of shared memory."""

    a: SharedTile
    b: SharedTile
    b_offset: int  # of the second tile in a stage
    stage: int
    stages: int
    barriers: int  # the full ones, then the empty ones
    dtype: np.dtype[Any]

    @property
    def columns(self) -> int:
        """Those of a product."""
        return self.b.mn

    @property
    def sums(self) -> int:
        """How many sums a thread has."""
        return ROWS * self.columns // 128

    @property
    def steps(self) -> int:
        """The products of a block of terms."""
        return self.a.k * self.a.itemsize // STEP_BYTES


def multiply_blocks(
    frame: GridFrame, pipeline: Pipeline, first: Value, count: Value, group: Value, lane: Value
) -> list[Value]:
    """The sums of `count` blocks of terms, the first of which is number `first` of all that went
    through the pipeline (i32). With g = lane / 4, t = lane % 4: of every 8 columns, sums 0 and 1
    are columns 2t and 2t + 1 of row 16 · warp + g, sums 2 and 3 those of row g + 8."""
    b, kind = frame.b, struct(FLOAT, pipeline.sums)
    distance = frame.times32(group, Descriptor(pipeline.a).rows)
    elected = b.convert("zext", b.compare("eq", lane, frame.i32(0)), "i32")
    turn = frame.over32(first, pipeline.stages)
    parity = b.binary("and", turn, frame.i32(1))
    given = [frame.modulo32(first, pipeline.stages), parity, count, distance, elected]
    if frame.target.is_emulated:
        helpers = Helpers(frame)
        name = f"emulated.blocks.{pipeline.columns}"
        arguments = [frame.memory, *given]
        found = helpers.call(name, kind, arguments, lambda f: _write_blocks(f, pipeline))
    else:
        base = shared_address(b, frame.memory)
        found = _inline_blocks(b, pipeline, [base, *given])
    return unpacked(b, found, FLOAT, pipeline.sums)


def _product(pipeline: Pipeline, step: int, sums: str) -> str:
    name, terms = MMA_NAMES[pipeline.dtype], STEP_BYTES // pipeline.dtype.itemsize
    a, b = Descriptor(pipeline.a), Descriptor(pipeline.b)
    transposed = f", {int(a.is_across)}, {int(b.is_across)}" if pipeline.dtype.itemsize == 2 else ""
    return (
        f"add.s64 xa, da, {a.step(step)}; add.s64 xb, db, {b.step(step)};\n"
        f"wgmma.mma_async.sync.aligned.m64n{pipeline.columns}k{terms}.f32.{name}.{name} "
        f"{{{sums}}}, xa, xb, 1, 1, 1{transposed};\n"
    )


def _inline_blocks(b: Builder, pipeline: Pipeline, given: list[Value]) -> Value:
    count, stages, size = pipeline.sums, pipeline.stages, pipeline.stage
    sums = ", ".join(f"${n}" for n in range(count))
    base, first, parity, blocks, rows, elected = (f"${2 * count + n}" for n in range(6))
    full, empty = pipeline.barriers, pipeline.barriers + 8 * stages
    left = Descriptor(pipeline.a).bits
    right = Descriptor(pipeline.b).bits + (pipeline.b_offset >> 4)
    products = "".join(_product(pipeline, step, sums) for step in range(pipeline.steps))
    text = f"""{{
.reg .pred p, q, e; .reg .b32 it, st, ph, at, last, fa; .reg .b64 da, db, xa, xb, wide;
setp.ne.u32 e, {elected}, 0; mov.u32 it, 0; mov.u32 st, {first}; mov.u32 ph, {parity};
mov.u32 last, {base};
L${{:uid}}:
mad.lo.u32 at, st, 8, {base};
W${{:uid}}:
mbarrier.try_wait.parity.shared::cta.b64 p, [at+{full}], ph; @!p bra W${{:uid}};
mad.lo.u32 fa, st, {size}, {base}; shr.u32 fa, fa, 4; and.b32 fa, fa, {_FIELD};
cvt.u64.u32 wide, fa; add.s64 db, wide, {right}; cvt.u64.u32 da, {rows};
add.s64 wide, wide, da; add.s64 da, wide, {left};
wgmma.fence.sync.aligned;
{products}wgmma.commit_group.sync.aligned; wgmma.wait_group.sync.aligned 1;
setp.gt.u32 q, it, 0; and.pred q, q, e;
@q mbarrier.arrive.shared::cta.b64 _, [last+{empty}];
mov.u32 last, at; add.u32 st, st, 1; setp.eq.u32 p, st, {stages};
@p mov.u32 st, 0; @p xor.b32 ph, ph, 1;
add.u32 it, it, 1; setp.lt.u32 p, it, {blocks}; @p bra L${{:uid}};
wgmma.wait_group.sync.aligned 0;
@e mbarrier.arrive.shared::cta.b64 _, [last+{empty}];
}}""".replace("\n", "\\0A")
    tied = [str(n) for n in range(count)]
    constraints = ",".join(["=f"] * count + tied + ["r"] * 6 + ["~{memory}"])
    zeros = [constant(FLOAT, 0)] * count
    return inline(b, struct(FLOAT, count), text, constraints, [*zeros, *given])


# Emulation


def _write_blocks(b: Builder, pipeline: Pipeline) -> None:
    grid, base, first, parity, count, rows, elected = b.parameters
    sums = b.stack(FLOAT, pipeline.sums)
    for number in range(pipeline.sums):
        b.store(constant(FLOAT, 0), b.element(sums, "float", constant(I64, number)))
    stages, one = pipeline.stages, constant(I32, 1)
    with b.loop(constant(I32, 0), count, one, [first, parity]) as loop:
        stage, parity = loop.carried
        barrier = b.binary("mul", stage, constant(I32, 8))
        full = b.element(base, "i8", b.binary("add", barrier, constant(I32, pipeline.barriers)))
        _call(b, "emulated.mbarrier.wait", [grid, full, parity], write_wait)
        start = b.binary(
            "lshr", b.binary("mul", stage, constant(I32, pipeline.stage)), constant(I32, 4)
        )
        wide = b.convert("zext", start, "i64")
        moved = b.binary("add", wide, b.convert("zext", rows, "i64"))
        a, c = Descriptor(pipeline.a), Descriptor(pipeline.b)
        right = c.bits + (pipeline.b_offset >> 4)
        for step in range(pipeline.steps):
            left = b.binary("add", moved, constant(I64, a.bits + a.step(step)))
            other = b.binary("add", wide, constant(I64, right + c.step(step)))
            name = f"emulated.wgmma.{pipeline.columns}"
            given = [grid, base, left, other, sums]
            _call(b, name, given, lambda f: _write_product(f, pipeline))
        empty = b.element(full, "i8", constant(I64, 8 * stages))
        with b.when(b.compare("ne", elected, constant(I32, 0))):
            given = [grid, empty, one, constant(I32, 0)]
            _call(b, "emulated.mbarrier.arrive", given, write_arrive)
        after = b.binary("add", stage, one)
        is_last = b.compare("eq", after, constant(I32, stages))
        flipped = b.binary("xor", parity, b.convert("zext", is_last, "i32"))
        loop.next = [b.select(is_last, constant(I32, 0), after), flipped]
    found = [
        b.load(FLOAT, b.element(sums, "float", constant(I64, n))) for n in range(pipeline.sums)
    ]
    b.ret(packed(b, found))


def _call(b: Builder, name: str, arguments: list[Value], write: Callable[[Builder], None]) -> None:
    if not b.module.has_function(name):
        kinds = [a.type for a in arguments]
        write(b.module.function(name, kinds, VOID, "noinline nounwind"))
    b.line(f"call void @{name}({', '.join(map(str, arguments))})")


def _write_product(b: Builder, pipeline: Pipeline) -> None:
    """`(grid, base, a, b, sums)`: add this thread's products of two tiles to its sums."""
    grid, base, left, right, sums = b.parameters
    thread = b.binary("and", Grid(b, grid).thread(), constant(I32, 127))
    warp, lane = (b.binary(o, thread, constant(I32, 32)) for o in ("udiv", "urem"))
    row, pair = (b.binary(o, lane, constant(I32, 4)) for o in ("udiv", "urem"))
    row = b.binary("add", row, b.binary("mul", warp, constant(I32, 16)))
    terms = STEP_BYTES // pipeline.dtype.itemsize
    one = constant(I32, 1)
    with (
        b.loop(constant(I32, 0), constant(I32, pipeline.columns // 8), one) as block,
        b.loop(constant(I32, 0), constant(I32, 4), one) as part,
    ):
        high = b.binary("lshr", part.index, one)
        low = b.binary("and", part.index, one)
        here = b.binary("add", row, b.binary("mul", high, constant(I32, 8)))
        column = b.binary("add", b.binary("mul", pair, constant(I32, 2)), low)
        column = b.binary("add", column, b.binary("mul", block.index, constant(I32, 8)))
        at = b.binary("add", b.binary("mul", block.index, constant(I32, 4)), part.index)
        place = b.element(sums, "float", at)
        with b.loop(constant(I32, 0), constant(I32, terms), one, [b.load(FLOAT, place)]) as loop:
            x = _find(b, base, left, pipeline.a, pipeline.dtype, here, loop.index)
            y = _find(b, base, right, pipeline.b, pipeline.dtype, column, loop.index)
            loop.next = [b.binary("fadd", loop.carried[0], b.binary("fmul", x, y))]
        b.store(loop.results[0], place)
    b.ret()


def _find(
    b: Builder,
    base: Value,
    descriptor: Value,
    tile: SharedTile,
    dtype: np.dtype[Any],
    mn: Value,
    k: Value,
) -> Value:
    """An element of a tile by its descriptor, as a float32 number."""

    def field(shift: int) -> Value:
        moved = b.binary("lshr", descriptor, constant(I64, shift))
        return b.binary("shl", b.binary("and", moved, constant(I64, _FIELD)), constant(I64, 4))

    def scaled(value: Value, size: Value | int) -> Value:
        wide = b.convert("zext", value, "i64")
        return b.binary("mul", wide, constant(I64, size) if isinstance(size, int) else size)

    line, within = (mn, k) if tile.axis == "k" else (k, mn)
    eights, rest = (b.binary(o, line, constant(I32, 8)) for o in ("udiv", "urem"))
    place = b.binary("add", scaled(eights, field(_STRIDE)), scaled(rest, tile.line_bytes))
    if tile.axis == "mn":
        panel = constant(I32, tile.panel)
        place = b.binary("add", place, scaled(b.binary("udiv", mn, panel), field(_LEADING)))
        within = b.binary("urem", mn, panel)
    place = b.binary("add", place, scaled(within, tile.itemsize))
    address = b.binary("add", field(0), place)
    mask = constant(I64, tile.line_bytes // 16 - 1)
    bits = b.binary("and", b.binary("lshr", address, constant(I64, 7)), mask)
    moved = b.binary("xor", address, b.binary("shl", bits, constant(I64, 4)))
    return elements(b, b.element(base, "i8", moved), dtype, 1)[0]
