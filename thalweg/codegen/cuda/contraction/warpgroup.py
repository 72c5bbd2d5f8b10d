"""Products by groups of four warps on tensor cores (wgmma), from tiles in shared memory.

The loop over blocks of terms is one piece of PTX, since nothing may access the sums while products
are in flight. It waits for the barrier of a stage, begins its products, and frees the previous
stage once only these are in flight. Rows that are stored across the terms, which tensor cores
support only for 2-byte elements, are read to registers first. On an emulated grid the same loop is
a function, with an emulated instruction that reads elements by the same descriptors.
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
from thalweg.codegen.cuda.contraction.stages import Stages
from thalweg.codegen.cuda.contraction.warp_instructions import STEP_BYTES, elements, mma_name
from thalweg.codegen.cuda.grid import Grid
from thalweg.codegen.llvm.builder import (
    FLOAT,
    I32,
    I64,
    POINTER,
    VOID,
    Builder,
    Value,
    constant,
)

GROUP = 128  # threads
ROWS = 64  # of a product of a group of warps
_SWIZZLES = {128: 1 << 62, 64: 2 << 62, 32: 3 << 62}  # descriptor bits by the bytes of a line
_LEADING, _STRIDE, _ADDRESS_BITS = 16, 32, 14
_FIELD = (1 << _ADDRESS_BITS) - 1


@dataclass(frozen=True)
class Descriptor:
    """The wgmma descriptor of a tile: constant bits, and the increment of address / 16 per step.

    Along the terms, 8 lines are `stride` bytes and the leading distance is not used. Across them,
    panels are `leading` and 8 terms `stride` bytes apart.
    """

    tile: SharedTile

    @property
    def is_across(self) -> bool:
        """Whether lines are across the terms."""
        return self.tile.axis == "mn"

    @property
    def bits(self) -> int:
        """All bits but the address."""
        tile = self.tile
        leading = tile.k * tile.line_bytes if self.is_across else 16
        stride = 8 * tile.line_bytes
        return _SWIZZLES[tile.line_bytes] | (stride >> 4) << _STRIDE | (leading >> 4) << _LEADING

    def step(self, number: int) -> int:
        """The offset of a product's terms, / 16."""
        tile = self.tile
        if self.is_across:
            return number * STEP_BYTES // tile.itemsize * tile.line_bytes >> 4
        panel, within = divmod(number * STEP_BYTES, tile.line_bytes)
        return panel * tile.mn * tile.line_bytes + within >> 4

    @property
    def rows(self) -> int:
        """The distance of the rows of consecutive groups of warps, / 16: lines, or panels."""
        tile = self.tile
        return ROWS * (tile.k * tile.itemsize if self.is_across else tile.line_bytes) >> 4


@dataclass(frozen=True)
class Pipeline:
    """The stages of the loop, in bytes from the start of shared memory."""

    a: SharedTile
    b: SharedTile
    b_offset: int  # of the second tile in a stage
    stages: Stages
    dtype: np.dtype[Any]
    fragments: bool = False  # of the first tile, which are read to registers
    is_ordered: bool = False  # terms are those of `transposition.ORDER`
    rewritten: bool = False  # the second tile, after it is loaded

    @property
    def columns(self) -> int:
        """The columns of a product."""
        return self.b.mn

    @property
    def sums(self) -> int:
        """The number of sums of a thread."""
        return ROWS * self.columns // GROUP

    @property
    def steps(self) -> int:
        """The products of a block of terms."""
        return self.a.k * self.a.itemsize // STEP_BYTES


def multiply_blocks(
    frame: GridFrame, pipeline: Pipeline, first: Value, count: Value, warp: Value, lane: Value
) -> list[Value]:
    """The sums of `count` blocks of terms, the first of which is number `first` of all in the
    pipeline (i32). With g = lane / 4, t = lane % 4: of every 8 columns, sums 0 and 1
    are columns 2t and 2t + 1 of row 16 · warp + g, sums 2 and 3 those of row g + 8."""
    b, kind = frame.b, struct(FLOAT, pipeline.sums)
    elected = b.convert("zext", b.compare("eq", lane, frame.i32(0)), "i32")
    stages = pipeline.stages
    given = [frame.modulo32(first, stages.count), stages.parity(frame, first), count, elected]
    given += _rows_of(frame, pipeline, warp, lane)
    if frame.target.is_emulated:
        helpers = Helpers(frame)
        name = f"emulated.blocks.{pipeline.columns}"
        arguments = [frame.memory, *given]
        found = helpers.call(name, kind, arguments, lambda f: _write_blocks(f, pipeline))
    else:
        base = shared_address(b, frame.memory)
        write = _inline_fragments if pipeline.fragments else _inline_blocks
        found = write(b, pipeline, [base, *given])
    return unpacked(b, found, FLOAT, pipeline.sums)


def _rows_of(frame: GridFrame, pipeline: Pipeline, warp: Value, lane: Value) -> list[Value]:
    """The positions of a warp's rows: the increment of a descriptor for its group, or the offsets
    of a thread's four registers of rows (`FRAGMENT`) in a stage."""
    if not pipeline.fragments:
        return [frame.times32(frame.over32(warp, 4), Descriptor(pipeline.a).rows)]
    row, term = frame.over32(lane, 4), frame.modulo32(lane, 4)
    row = frame.plus32(row, frame.times32(warp, ROWS // 4))
    near, far = (2, 1) if pipeline.is_ordered else (1, 4)  # from lane to lane, and half to half
    return [
        pipeline.a.boxed_offset(
            frame,
            frame.plus32(row, 8 * lower),
            frame.plus32(frame.times32(term, near), far * second),
        )
        for lower, second in FRAGMENT
    ]


def _named(pipeline: Pipeline) -> str:
    name, terms = mma_name(pipeline.dtype), STEP_BYTES // pipeline.dtype.itemsize
    return f"wgmma.mma_async.sync.aligned.m64n{pipeline.columns}k{terms}.f32.{name}.{name}"


def _product(pipeline: Pipeline, step: int, sums: str) -> str:
    a, b = Descriptor(pipeline.a), Descriptor(pipeline.b)
    transposed = f", {int(a.is_across)}, {int(b.is_across)}" if pipeline.dtype.itemsize == 2 else ""
    return (
        f"add.s64 xa, da, {a.step(step)}; add.s64 xb, db, {b.step(step)};\n"
        f"{_named(pipeline)} {{{sums}}}, xa, xb, 1, 1, 1{transposed};\n"
    )


def _wait(pipeline: Pipeline, base: str, label: str) -> str:
    """Wait for a stage; sets `fa` to its begin."""
    stages = pipeline.stages
    firsts = [stages.barriers, *([stages.rewritten] if pipeline.rewritten else [])]
    waits = [
        f"W{number}{label}${{:uid}}:\n"
        f"mbarrier.try_wait.parity.shared::cta.b64 p, [at+{first}], ph; "
        f"@!p bra W{number}{label}${{:uid}};"
        for number, first in enumerate(firsts)
    ]
    return "\n".join(
        [f"mad.lo.u32 at, st, 8, {base};", *waits, f"mad.lo.u32 fa, st, {stages.size}, {base};"]
    )


def _free(pipeline: Pipeline) -> str:
    """Free the previous stage."""
    return f"""setp.gt.u32 q, it, 0; and.pred q, q, e;
@q mbarrier.arrive.shared::cta.b64 _, [last+{pipeline.stages.empty}];
mov.u32 last, at;"""


def _next(pipeline: Pipeline, blocks: str) -> str:
    """Advance to the next stage; sets `p` if there is one."""
    return f"""add.u32 st, st, 1; setp.eq.u32 p, st, {pipeline.stages.count};
@p mov.u32 st, 0; @p xor.b32 ph, ph, 1;
add.u32 it, it, 1; setp.lt.u32 p, it, {blocks};"""


def _inline_blocks(b: Builder, pipeline: Pipeline, given: list[Value]) -> Value:
    count = pipeline.sums
    sums = ", ".join(f"${n}" for n in range(count))
    base, first, parity, blocks, elected, rows = (f"${2 * count + n}" for n in range(6))
    left = Descriptor(pipeline.a).bits
    right = Descriptor(pipeline.b).bits + (pipeline.b_offset >> 4)
    products = "".join(_product(pipeline, step, sums) for step in range(pipeline.steps))
    text = f"""{{
.reg .pred p, q, e; .reg .b32 it, st, ph, at, last, fa; .reg .b64 da, db, xa, xb, wide;
setp.ne.u32 e, {elected}, 0; mov.u32 it, 0; mov.u32 st, {first}; mov.u32 ph, {parity};
mov.u32 last, {base};
L${{:uid}}:
{_wait(pipeline, base, "")}
shr.u32 fa, fa, 4; and.b32 fa, fa, {_FIELD};
cvt.u64.u32 wide, fa; add.s64 db, wide, {right}; cvt.u64.u32 da, {rows};
add.s64 wide, wide, da; add.s64 da, wide, {left};
wgmma.fence.sync.aligned;
{products}wgmma.commit_group.sync.aligned; wgmma.wait_group.sync.aligned 1;
{_free(pipeline)}
{_next(pipeline, blocks)}
@p bra L${{:uid}};
wgmma.wait_group.sync.aligned 0;
@e mbarrier.arrive.shared::cta.b64 _, [last+{pipeline.stages.empty}];
}}"""
    return _inline(b, pipeline, text, given)


def _inline(b: Builder, pipeline: Pipeline, text: str, given: list[Value]) -> Value:
    """The loop as inline PTX, whose in-place results are sums that begin at zero."""
    count = pipeline.sums
    tied = [str(n) for n in range(count)]
    constraints = ",".join(["=f"] * count + tied + ["r"] * len(given) + ["~{memory}"])
    zeros = [constant(FLOAT, 0)] * count
    lines = text.replace("\n", "\\0A")
    return inline(b, struct(FLOAT, count), lines, constraints, [*zeros, *given])


# Rows in registers

#: A thread's registers of rows in a product: (8 rows lower, second four terms). Lane t has terms t
#: and t + 4 of eight, or 2t and 2t + 1 in the permuted order.
FRAGMENT = ((0, 0), (1, 0), (0, 1), (1, 1))


def _inline_fragments(b: Builder, pipeline: Pipeline, given: list[Value]) -> Value:
    """The loop with rows in registers, in two sets: while products of half a block of terms are in
    flight, the other half, or the next block's, is read."""
    count, half = pipeline.sums, pipeline.steps // 2
    base, first, parity, blocks, elected, *rows = (f"${2 * count + n}" for n in range(9))
    sets = [[f"{letter}{n}" for n in range(len(FRAGMENT) * half)] for letter in "xy"]
    right = Descriptor(pipeline.b).bits + (pipeline.b_offset >> 4)

    text = f"""{{
.reg .pred p, q, e; .reg .b32 it, st, ph, at, last, fa, fr; .reg .b64 db, xb;
.reg .b32 {", ".join([*sets[0], *sets[1]])};
setp.ne.u32 e, {elected}, 0; mov.u32 it, 0; mov.u32 st, {first}; mov.u32 ph, {parity};
mov.u32 last, {base};
{_wait(pipeline, base, "A")}
{_loads(pipeline, sets[0], rows, 0)}
L${{:uid}}:
shr.u32 fr, fa, 4; and.b32 fr, fr, {_FIELD}; cvt.u64.u32 db, fr; add.s64 db, db, {right};
{_products(pipeline, sets[0], 0)}
{_free(pipeline)}
{_loads(pipeline, sets[1], rows, half)}
{_products(pipeline, sets[1], half)}
{_next(pipeline, blocks)}
@!p bra E${{:uid}};
{_wait(pipeline, base, "B")}
{_loads(pipeline, sets[0], rows, 0)}
bra L${{:uid}};
E${{:uid}}:
wgmma.wait_group.sync.aligned 0;
@e mbarrier.arrive.shared::cta.b64 _, [last+{pipeline.stages.empty}];
}}"""
    return _inline(b, pipeline, text, given)


def _loads(pipeline: Pipeline, registers: list[str], rows: list[str], first: int) -> str:
    """The fragments of some products, from the stage that begins at `fa`."""
    lines: list[str] = []
    for part, row in enumerate(rows):
        lines.append(f"add.u32 fr, fa, {row};")
        for number, register in enumerate(registers[part :: len(rows)], first):
            lines.append(f"ld.shared.b32 {register}, [fr+{number * _step_bytes(pipeline)}];")
    return "\n".join(lines)


def _step_bytes(pipeline: Pipeline) -> int:
    """The distance of the terms of consecutive products, across them."""
    return STEP_BYTES // pipeline.a.itemsize * pipeline.a.line_bytes


def _products(pipeline: Pipeline, registers: list[str], first: int) -> str:
    """Begin some products, and wait for the previous ones."""
    sums, four = ", ".join(f"${n}" for n in range(pipeline.sums)), len(FRAGMENT)
    lines = ["wgmma.fence.sync.aligned;"]
    for at in range(0, len(registers), four):
        rows = ", ".join(registers[at : at + four])
        lines.append(f"add.s64 xb, db, {Descriptor(pipeline.b).step(first + at // four)};")
        lines.append(f"{_named(pipeline)} {{{sums}}}, {{{rows}}}, xb, 1, 1, 1;")
    lines.append("wgmma.commit_group.sync.aligned; wgmma.wait_group.sync.aligned 1;")
    return "\n".join(lines)


# Emulation


def _write_blocks(b: Builder, pipeline: Pipeline) -> None:
    grid, base, first, parity, count, elected, *rows = b.parameters
    sums = b.stack(FLOAT, pipeline.sums)
    for number in range(pipeline.sums):
        b.store(constant(FLOAT, 0), b.element(sums, "float", number))
    stages, one = pipeline.stages.count, constant(I32, 1)
    with b.loop(constant(I32, 0), count, one, [first, parity]) as loop:
        stage, parity = loop.carried
        barrier = b.binary("mul", stage, 8)
        first = constant(I32, pipeline.stages.barriers)
        full = b.element(base, "i8", b.binary("add", barrier, first))
        _call(b, "emulated.mbarrier.wait", [grid, full, parity], write_wait)
        if pipeline.rewritten:
            rewritten = b.element(full, "i8", 16 * stages)
            _call(b, "emulated.mbarrier.wait", [grid, rewritten, parity], write_wait)
        start = b.binary("mul", stage, pipeline.stages.size)
        wide = b.convert("zext", b.binary("lshr", start, 4), "i64")
        a, c = Descriptor(pipeline.a), Descriptor(pipeline.b)
        right = c.bits + (pipeline.b_offset >> 4)
        for step in range(pipeline.steps):
            other = b.binary("add", wide, right + c.step(step))
            if pipeline.fragments:
                left = _written_fragments(b, pipeline, grid, base, start, rows, step)
            else:
                moved = b.binary("add", wide, b.convert("zext", rows[0], "i64"))
                left = b.binary("add", moved, a.bits + a.step(step))
            name = f"emulated.wgmma.{pipeline.columns}"
            given = [grid, base, left, other, sums]
            _call(b, name, given, lambda f: _write_product(f, pipeline))
        empty = b.element(full, "i8", 8 * stages)
        with b.when(b.compare("ne", elected, 0)):
            given = [grid, empty, one, constant(I32, 0)]
            _call(b, "emulated.mbarrier.arrive", given, write_arrive)
        after = b.binary("add", stage, one)
        is_last = b.compare("eq", after, stages)
        flipped = b.binary("xor", parity, b.convert("zext", is_last, "i32"))
        loop.next = [b.select(is_last, constant(I32, 0), after), flipped]
    found = [b.load(FLOAT, b.element(sums, "float", n)) for n in range(pipeline.sums)]
    b.ret(packed(b, found))


def _written_fragments(
    b: Builder,
    pipeline: Pipeline,
    grid: Value,
    base: Value,
    start: Value,
    rows: list[Value],
    step: int,
) -> Value:
    """The terms of a thread's two rows in a product, gathered from the registers of four lanes: an
    array of 8 terms of its upper row and 8 of the row 8 lower."""
    lanes, count = Grid(b, grid), 2 * STEP_BYTES // pipeline.a.itemsize
    memory = b.stack(FLOAT, count)
    lane = b.binary("and", lanes.thread(), 28)
    for (lower, second), row in zip(FRAGMENT, rows, strict=True):
        place = b.binary("add", b.binary("add", start, row), step * _step_bytes(pipeline))
        (own,) = elements(b, b.element(base, "i8", place), pipeline.dtype, 1)
        for number in range(4):
            found = lanes.from_lane(own, b.binary("add", lane, number))
            at = count // 2 * lower + 4 * second + number
            b.store(found, b.element(memory, "float", at))
    return b.emit(I64, f"ptrtoint {memory} to i64")


def _call(b: Builder, name: str, arguments: list[Value], write: Callable[[Builder], None]) -> None:
    if not b.module.has_function(name):
        kinds = [a.type for a in arguments]
        write(b.module.function(name, kinds, VOID, "noinline nounwind"))
    b.line(f"call void @{name}({', '.join(map(str, arguments))})")


def _write_product(b: Builder, pipeline: Pipeline) -> None:
    """`(grid, base, a, b, sums)`: add this thread's products of two tiles to its sums. `a` is the
    address of the fragments if those are in registers, else a descriptor, as `b`."""
    grid, base, left, right, sums = b.parameters
    thread = b.binary("and", Grid(b, grid).thread(), 127)
    warp, lane = (b.binary(o, thread, 32) for o in ("udiv", "urem"))
    row, pair = (b.binary(o, lane, 4) for o in ("udiv", "urem"))
    row = b.binary("add", row, b.binary("mul", warp, 16))
    terms = STEP_BYTES // pipeline.dtype.itemsize
    one = constant(I32, 1)
    with (
        b.loop(constant(I32, 0), constant(I32, pipeline.columns // 8), one) as block,
        b.loop(constant(I32, 0), constant(I32, 4), one) as part,
    ):
        high = b.binary("lshr", part.index, one)
        low = b.binary("and", part.index, one)
        here = b.binary("add", row, b.binary("mul", high, 8))
        column = b.binary("add", b.binary("mul", pair, 2), low)
        column = b.binary("add", column, b.binary("mul", block.index, 8))
        at = b.binary("add", b.binary("mul", block.index, 4), part.index)
        place = b.element(sums, "float", at)
        with b.loop(constant(I32, 0), constant(I32, terms), one, [b.load(FLOAT, place)]) as loop:
            if pipeline.fragments:
                registers = b.emit(POINTER, f"inttoptr {left} to ptr")
                half = b.binary("mul", high, terms)
                x = b.load(FLOAT, b.element(registers, "float", b.binary("add", half, loop.index)))
            else:
                x = _find(b, base, left, pipeline.a, pipeline.dtype, here, loop.index)
            y = _find(b, base, right, pipeline.b, pipeline.dtype, column, loop.index)
            loop.next = [b.binary("fadd", loop.carried[0], b.binary("fmul", x, y))]
        b.store(loop.results[0], place)


def _find(
    b: Builder,
    base: Value,
    descriptor: Value,
    tile: SharedTile,
    dtype: np.dtype[Any],
    mn: Value,
    k: Value,
) -> Value:
    """Load an element of a tile by its descriptor, as a float32 number."""

    def field(shift: int) -> Value:
        moved = b.binary("lshr", descriptor, shift)
        return b.binary("shl", b.binary("and", moved, _FIELD), 4)

    def scaled(value: Value, size: Value | int) -> Value:
        wide = b.convert("zext", value, "i64")
        return b.binary("mul", wide, constant(I64, size) if isinstance(size, int) else size)

    line, within = (mn, k) if tile.axis == "k" else (k, mn)
    eights, rest = (b.binary(o, line, 8) for o in ("udiv", "urem"))
    place = b.binary("add", scaled(eights, field(_STRIDE)), scaled(rest, tile.line_bytes))
    if tile.axis == "mn":
        panel = constant(I32, tile.panel)
        place = b.binary("add", place, scaled(b.binary("udiv", mn, panel), field(_LEADING)))
        within = b.binary("urem", mn, panel)
    place = b.binary("add", place, scaled(within, tile.itemsize))
    address = b.binary("add", field(0), place)
    mask = constant(I64, tile.line_bytes // 16 - 1)
    bits = b.binary("and", b.binary("lshr", address, 7), mask)
    moved = b.binary("xor", address, b.binary("shl", bits, 4))
    return elements(b, b.element(base, "i8", moved), dtype, 1)[0]
