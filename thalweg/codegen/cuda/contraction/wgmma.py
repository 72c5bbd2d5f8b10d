"""Products by groups of warps on tensor cores (wgmma), for sm_90.

Blocks are persistent and loop over tiles. One warp issues copies of operands to shared memory by
the copy engine, some stages ahead; if the engine cannot read an operand, four warps load it. The
other warps multiply: each group of four has 64 rows of the tile.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from math import prod

from thalweg.codegen.cuda.contraction.async_instructions import BARRIER_BYTES, AsyncInstructions
from thalweg.codegen.cuda.contraction.copy_engine import BoxCopy, box_copy
from thalweg.codegen.cuda.contraction.epilogue import epilogue_of
from thalweg.codegen.cuda.contraction.fragments import SLAB_BYTES, Slabs
from thalweg.codegen.cuda.contraction.frame import GridFrame
from thalweg.codegen.cuda.contraction.layout import ATOM, LINE, LINES, SharedTile
from thalweg.codegen.cuda.contraction.problem import FLOAT32, Operand, Problem
from thalweg.codegen.cuda.contraction.rewriting import Rewriter
from thalweg.codegen.cuda.contraction.schedule import Schedule
from thalweg.codegen.cuda.contraction.space import At, Space, Words, round_up
from thalweg.codegen.cuda.contraction.staged_output import StagedOutput
from thalweg.codegen.cuda.contraction.stages import Stages
from thalweg.codegen.cuda.contraction.staging import Staging, shared_tile
from thalweg.codegen.cuda.contraction.transposition import with_copies
from thalweg.codegen.cuda.contraction.warp_instructions import WarpInstructions
from thalweg.codegen.cuda.contraction.warpgroup import GROUP, ROWS, Pipeline, multiply_blocks
from thalweg.codegen.cuda.contraction.work import Tile, Work
from thalweg.codegen.cuda.tensor_map import TensorMapSpec
from thalweg.codegen.llvm.builder import I64, Value, constant
from thalweg.ir.dynamic import is_static

_MAX_PADDING = 1.4  # the maximum factor of padding terms or rows with zeros for the copy engine
_OUTSIDE = 1 << 28  # an index beyond the end of every axis
_LINE_COSTS = {128: 1.0, 64: 1.18, 32: 1.9}  # relative costs of products by lines of an operand
_MULTIPLIER_REGISTERS, _LOADER_REGISTERS = 216, 72  # per thread, if loading warps release registers
_MAX_FRAGMENT_COLUMNS = 192  # for which registers suffice besides the fragments of rows
_GROUP_WARPS = GROUP // 32
_LAG = 2  # blocks of terms that loading threads have in flight


def padded(problem: Problem, schedule: Schedule) -> Problem:
    """The problem with spaces padded, and lines of operands chosen, so that each box of the copy
    engine is within one image or matrix.

    Of several possibilities, the engine reads the most operands, with the least work.
    """
    if schedule.swapped:
        problem = problem.swapped
    size = problem.a.dtype.itemsize
    multiples = [line // size for line in LINES]
    choices = [
        _over(problem, schedule, rows, columns, reduced)
        for reduced in _padded_spaces(problem.reduced, {schedule.k, *multiples})
        for rows in _padded_spaces(problem.rows, multiples)
        for columns in _padded_spaces(problem.columns, multiples)
    ]
    return max(choices, key=lambda choice: (len(_copies(choice, schedule)), -_work_of(choice)))


def _copies(problem: Problem, schedule: Schedule) -> list[BoxCopy]:
    sides = zip((problem.a, problem.b), _shared_tiles(problem, schedule), strict=True)
    found = [box_copy(operand, tile) for operand, tile in sides]
    return [copy for copy in found if copy is not None and problem.is_aligned]


def _shared_tiles(problem: Problem, schedule: Schedule) -> list[SharedTile]:
    sizes = _sizes_across(schedule)
    return [
        shared_tile(problem.a, schedule.m, schedule.k, sizes[0]),
        shared_tile(problem.b, schedule.n, schedule.k, sizes[1]),
    ]


def _sizes_across(schedule: Schedule) -> list[tuple[int, ...]]:
    """The element sizes of each operand that may be stored across the terms in shared memory."""
    return [(2, 4) if is_so else (2,) for is_so in (schedule.fragments, schedule.rewritten)]


def _work_of(problem: Problem) -> float:
    """The products, including zeros, times the cost of short lines."""
    lines = prod(_LINE_COSTS[operand.line_bytes] for operand in (problem.a, problem.b))
    return lines * prod(map(float, problem.shape))


def _over(
    problem: Problem, schedule: Schedule, rows: Space, columns: Space, reduced: Space
) -> Problem:
    a = replace(problem.a, across=rows, along=reduced)
    b = replace(problem.b, across=columns, along=reduced)
    spaces = replace(problem, rows=rows, columns=columns, reduced=reduced, a=a, b=b)
    made_copies = with_copies(spaces, schedule)
    sizes = _sizes_across(schedule)
    a = _with_lines(made_copies.a, schedule.m, schedule.k, sizes[0])
    return replace(made_copies, a=a, b=_with_lines(made_copies.b, schedule.n, schedule.k, sizes[1]))


def _with_lines(operand: Operand, mn: int, k: int, sizes: tuple[int, ...]) -> Operand:
    """An operand with the longest lines that the copy engine supports."""
    for line in LINES:
        result = replace(operand, line_bytes=line)
        if box_copy(result, shared_tile(result, mn, k, sizes)) is not None:
            return result
    return operand


def _padded_spaces(space: Space, multiples: Iterable[int]) -> list[Space]:
    """A space unchanged, and padded to multiples if this changes it."""
    found = {space.multiple: space}
    for multiple in sorted(multiples):
        other = _padded(space, multiple)
        if other is not space:
            grown = round_up(int(other.variables[-1].extent), multiple)
            found[grown] = other  # of the same size, the largest multiple
    return list(found.values())


def _padded(space: Space, multiple: int) -> Space:
    last = space.last
    if len(space.variables) < 2 or last is None or not is_static(last.extent):
        return space
    grown = round_up(last.extent, multiple)
    if grown == last.extent or grown > _MAX_PADDING * last.extent:
        return space
    return Space(space.variables, multiple)


@dataclass(frozen=True, eq=False)
class Side:
    """An operand, its tile in shared memory, and its copies by the copy engine, if supported."""

    operand: Operand
    tile: SharedTile
    offset: int  # in a stage
    copy: BoxCopy | None


def needs_registers(fragments: bool, columns: int) -> bool:
    """Whether multiplying threads need more registers than an even share."""
    return fragments and columns > _MAX_FRAGMENT_COLUMNS


class Plan:
    """The operands and the shared memory layout of a block."""

    def __init__(self, work: Work) -> None:
        problem, schedule = work.problem, work.schedule
        tiles = _shared_tiles(problem, schedule)
        offsets = [0, round_up(tiles[0].bytes, ATOM)]
        self.sides = [
            Side(operand, tile, offset, box_copy(operand, tile) if problem.is_aligned else None)
            for operand, tile, offset in zip((problem.a, problem.b), tiles, offsets, strict=True)
        ]
        self.stage = offsets[1] + round_up(tiles[1].bytes, ATOM)
        self.stages, self.warps, self.loaders = schedule.stages, schedule.warps, schedule.loaders
        staged = (
            epilogue_of(problem, schedule) if schedule.buffers and not schedule.has_parts else None
        )
        self.epilogue = staged
        self.buffers = schedule.stages * self.stage
        barriers = self.buffers + (0 if staged is None else staged.bytes)
        self.pipe = Stages(schedule.stages, self.stage, barriers)
        self.rewriters = schedule.loaders - 1 if schedule.rewritten else 0
        end = self.read_barriers + BARRIER_BYTES * (0 if staged is None else staged.barriers)
        self.slabs = round_up(end, 128)
        self.size = self.slabs + (schedule.warps * SLAB_BYTES if staged is None else 0)
        self.pipeline = Pipeline(
            tiles[0],
            replace(tiles[1], axis="k") if schedule.rewritten else tiles[1],
            offsets[1],
            self.pipe,
            problem.a.dtype,
            schedule.fragments,
            problem.b.source is not None or schedule.rewritten,
            schedule.rewritten,
        )

    @property
    def copies(self) -> list[BoxCopy]:
        """The operands' copies by the copy engine."""
        return [side.copy for side in self.sides if side.copy is not None]

    @property
    def tensor_maps(self) -> tuple[TensorMapSpec, ...]:
        """The kernel's tensor maps: those of the operands, then those of the epilogue."""
        staged = () if self.epilogue is None else self.epilogue.tensor_maps.values()
        return (*(copy.spec for copy in self.copies), *staged)

    @property
    def copied_bytes(self) -> int:
        """The bytes that the copy engine loads to a stage."""
        return sum(side.tile.bytes for side in self.sides if side.copy is not None)

    def most_stages(self, room: int) -> int:
        """The maximum number of stages in some bytes of shared memory."""
        other = self.size - self.stages * self.stage + 128  # including barriers
        return (room - other) // self.stage

    @property
    def read_barriers(self) -> int:
        """The offset of the barriers of the epilogue's reads."""
        return self.pipe.end(self.rewriters > 0)

    @property
    def shares_registers(self) -> bool:
        """Whether loading warps release registers to multiplying ones, which need them for
        fragments besides the sums."""
        is_group = (self.warps, self.loaders) == (2 * _GROUP_WARPS, _GROUP_WARPS)
        return is_group and needs_registers(self.pipeline.fragments, self.pipeline.columns)

    @property
    def is_usable(self) -> bool:
        """Whether the copy engine loads operands of fragments and rewritten ones, in supported
        lines."""
        lines = self.sides[1].operand.line_bytes
        return self.is_all_copied and (not self.rewriters or lines == LINE)

    @property
    def is_all_copied(self) -> bool:
        """Whether the copy engine reads both operands."""
        return len(self.copies) == len(self.sides)


def emit_wgmma(work: Work, frame: GridFrame) -> None:
    """The entry that multiplies."""
    plan = Plan(work)
    engine = AsyncInstructions(frame)
    _make_barriers(plan, frame, engine)
    frame.grid.barrier()
    # All lanes take the warp's index from one lane: the branch is then known to be uniform.
    warp = frame.grid.from_lane(frame.over32(frame.number, 32), frame.i32(0))
    with frame.b.when(frame.b.compare("slt", warp, frame.i32(plan.warps))):
        if plan.shares_registers:
            engine.take_registers(_MULTIPLIER_REGISTERS)
        _multiply(work, plan, frame, warp)
    first = frame.b.compare("eq", frame.number, frame.i32(32 * plan.warps))
    loader = frame.b.binary("sub", warp, frame.i32(plan.warps))
    with frame.b.when(frame.b.compare("sge", loader, frame.i32(0))):
        if plan.shares_registers:
            engine.leave_registers(_LOADER_REGISTERS)
        producer = _Producer(work, plan, frame, engine, first)
        if not plan.is_all_copied:
            producer.emit()
            return
        with frame.b.when(first):
            producer.emit()
        if plan.rewriters:
            number = frame.b.binary("sub", loader, frame.i32(1))
            with frame.b.when(frame.b.compare("sge", number, frame.i32(0))):
                _rewriter(plan, frame, engine, number).emit(work)


def _rewriter(plan: Plan, frame: GridFrame, engine: AsyncInstructions, number: Value) -> Rewriter:
    side, is_ordered = plan.sides[1], plan.pipeline.fragments
    about = side.tile, side.offset, number, plan.rewriters, is_ordered
    return Rewriter(frame, engine, plan.pipe, *about)


def _make_barriers(plan: Plan, frame: GridFrame, engine: AsyncInstructions) -> None:
    """Initialize the barriers of each stage, and of the epilogue."""
    threads = 0 if plan.is_all_copied else 32 * plan.loaders
    pipe, arrivals = plan.pipe, threads + bool(plan.copies)
    kinds = {pipe.barriers: arrivals, pipe.empty: plan.warps}
    if plan.rewriters:
        kinds[pipe.rewritten] = plan.rewriters
    with frame.b.when(frame.b.compare("eq", frame.number, frame.i32(0))):
        for first, count in kinds.items():
            for stage in range(plan.stages):
                engine.init(frame.at_byte(frame.memory, first + BARRIER_BYTES * stage), count)
        for number in range(plan.epilogue.barriers if plan.epilogue is not None else 0):
            engine.init(frame.at_byte(frame.memory, plan.read_barriers + BARRIER_BYTES * number), 1)
        engine.publish()


def _multiply(work: Work, plan: Plan, frame: GridFrame, warp: Value) -> None:
    """Emit the multiplying warps."""
    lane = frame.modulo32(frame.number, 32)

    def sums_of(tile: Tile) -> list[Value]:
        count = frame.b.binary("sub", tile.end, tile.first)
        return multiply_blocks(frame, plan.pipeline, tile.done, count, warp, lane)

    if plan.epilogue is not None:
        places = plan.buffers, plan.read_barriers
        output = StagedOutput(work, plan.epilogue, frame, places, warp, lane)
        output.begin()
        with work.tiles_of_block(frame) as tile:
            output.prefetch(tile)
            output.store(tile, sums_of(tile))
        output.end()
        return
    memory = frame.at_byte(frame.memory, plan.slabs)
    slabs = Slabs(frame, frame.at_byte(memory, frame.times32(warp, SLAB_BYTES)), lane)
    row = frame.times32(warp, ROWS // 4)
    with work.tiles_of_block(frame) as tile:
        sums = sums_of(tile)
        fours = [sums[at : at + 4] for at in range(0, len(sums), 4)]
        work.finish(frame, tile, lambda sink: slabs.store(sink, row, frame.i32(0), fours))


_Staged = list[tuple[Staging, int]]  # operands that threads load, and their offsets in a stage


class _Producer:
    """Emits the loading warps: one thread for the copy engine, or all threads."""

    def __init__(
        self, work: Work, plan: Plan, frame: GridFrame, engine: AsyncInstructions, first: Value
    ) -> None:
        self.work, self.plan, self.frame = work, plan, frame
        self.pipe, self.engine, self.first = plan.pipe, engine, first
        self.threads = WarpInstructions(frame, frame.memory)

    def emit(self) -> None:
        """Load the operands of all tiles of the block to shared memory."""
        with self.frame.b.when(self.first):
            for tensor_map in self.frame.maps:
                self.engine.prefetch(tensor_map)
        with self.work.tiles_of_block(self.frame) as tile:
            self._tile(tile)

    def _tile(self, tile: Tile) -> None:
        frame, b, one = self.frame, self.frame.b, constant(I64, 1)
        starts = [tile.row, tile.column]
        boxes = [
            self._panels(side, tile, start) if side.copy is not None else []
            for side, start in zip(self.plan.sides, starts, strict=True)
        ]
        own = [
            (self._staging(side, tile, start), side.offset)
            for side, start in zip(self.plan.sides, starts, strict=True)
            if side.copy is None
        ]
        with b.loop(frame.wide(tile.first), frame.wide(tile.end), one) as loop:
            block = b.convert("trunc", loop.index, "i32")
            number = frame.plus32(tile.done, b.binary("sub", block, tile.first))
            free = b.binary("xor", self.pipe.parity(frame, number), frame.i32(1))  # initially true
            self.engine.wait(self.pipe.barrier(frame, number, self.pipe.empty), free)
            start = frame.times32(block, self.work.schedule.k)
            if self.plan.copies:
                self._copy(number, start, boxes)
            if own:
                self._load(number, start, own, tile.done)
        if any(staging.is_copied for staging, _ in own):
            self._finish(tile, own)

    # The copy engine

    def _panels(self, side: Side, tile: Tile, start: Value) -> list[At]:
        """The variables across the terms at each box of a tile."""
        frame, shared = self.frame, side.tile
        step = shared.panel if shared.axis == "mn" else 0
        places = [
            side.operand.across.at(frame, frame.plus32(start, step * n))[0]
            for n in range(shared.panels)
        ]
        return [{**tile.batch, **at} for at in places]

    def _copy(self, number: Value, start: Value, boxes: list[list[At]]) -> None:
        frame, engine = self.frame, self.engine
        with frame.b.when(self.first):
            full = self.pipe.barrier(frame, number, self.pipe.barriers)
            engine.arrive(full, self.plan.copied_bytes)
            maps = iter(frame.maps)
            for side, panels in zip(self.plan.sides, boxes, strict=True):
                if side.copy is None:
                    continue
                tensor_map, shared = next(maps), side.tile
                step = shared.panel if shared.axis == "k" else 0
                for n, at in enumerate(panels):
                    place = self.pipe.place(frame, number, side.offset)
                    place = frame.at_byte(place, n * shared.bytes // shared.panels)
                    terms = self._terms(side.operand.along, frame.plus32(start, step * n))
                    self._copy_box(side.copy, tensor_map, place, full, {**at, **terms})

    def _terms(self, space: Space, start: Value) -> At:
        """The reduced variables at an index; beyond the end, coordinates outside of every tensor: a
        map has an element even without terms, and a window has one after its last."""
        frame = self.frame
        terms, _ = space.at(frame, start)
        begun = frame.b.compare("slt", start, space.size(frame))
        outside = constant(I64, _OUTSIDE)
        some = [v for v in terms if not is_static(v.extent) or v.extent == 0]
        if space.is_static and space.count(Words(0)) % self.work.schedule.k:
            some = [space.last, *some]
        return {**terms, **{v: frame.b.select(begun, terms[v], outside) for v in some if v}}

    def _copy_box(
        self, copy: BoxCopy, tensor_map: Value, place: Value, full: Value, at: At
    ) -> None:
        frame = self.frame
        coordinates = [one.at(frame, at) for one in copy.coordinates]
        if copy.is_image:
            taps = [one.at(frame, at) for one in copy.taps]
            self.engine.copy_windows(tensor_map, place, full, coordinates, taps)
        else:
            self.engine.copy_box(tensor_map, place, full, coordinates)

    # Loads by threads

    def _staging(self, side: Side, tile: Tile, start: Value) -> Staging:
        first = 32 * self.plan.warps
        return Staging(
            self.frame,
            self.threads,
            side.operand,
            side.tile,
            tile.batch,
            start,
            (first, 32 * self.plan.loaders),
            side.operand.dtype == FLOAT32,
        )

    def _load(self, number: Value, start: Value, sides: _Staged, done: Value) -> None:
        frame, b = self.frame, self.frame.b
        for staging, offset in sides:
            base = self.pipe.place(frame, number, offset)
            if staging.is_copied:
                staging.copy(start, base)
            else:
                staging.put(staging.read(start), base)
        if not any(staging.is_copied for staging, _ in sides):
            self._arrive(number, sides)
            return
        self.threads.commit()
        self.threads.wait(self._lag)
        earlier = b.binary("sub", number, frame.i32(self._lag))
        with b.when(b.compare("sge", earlier, done)):
            self._arrive(earlier, sides)

    @property
    def _lag(self) -> int:
        return min(_LAG, self.plan.stages - 1)

    def _arrive(self, number: Value, sides: _Staged) -> None:
        for staging, offset in sides:
            staging.complete(self.pipe.place(self.frame, number, offset))
        self.engine.publish_writes()
        self.engine.arrive(self.pipe.barrier(self.frame, number, self.pipe.barriers))

    def _finish(self, tile: Tile, sides: _Staged) -> None:
        """Wait for a tile's last blocks of terms."""
        frame, b = self.frame, self.frame.b
        self.threads.wait(0)
        end = frame.plus32(tile.done, b.binary("sub", tile.end, tile.first))
        begin = b.binary("sub", end, frame.i32(self._lag))
        begin = b.intrinsic("smax", begin, tile.done)
        with b.loop(frame.wide(begin), frame.wide(end)) as loop:
            self._arrive(b.convert("trunc", loop.index, "i32"), sides)
