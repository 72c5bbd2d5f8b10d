"""The choice of a schedule by the cost model: unit, tile, stages and shares.

Given a problem and the target, it returns the cheapest `Schedule`, or a list of candidates to
measure.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import partial
from typing import TypeVar

from thalweg.codegen.cuda.contraction import mma, wgmma
from thalweg.codegen.cuda.contraction.cost import Cost
from thalweg.codegen.cuda.contraction.epilogue import Epilogue, epilogue_cost, epilogue_of
from thalweg.codegen.cuda.contraction.problem import FLOAT32, FLOAT64, Problem
from thalweg.codegen.cuda.contraction.schedule import Schedule
from thalweg.codegen.cuda.contraction.transposition import is_transposable
from thalweg.codegen.cuda.contraction.warp_instructions import mma_name
from thalweg.codegen.cuda.contraction.work import Work
from thalweg.codegen.cuda.target import CudaTarget

Tile = TypeVar("Tile", bound=tuple[int, ...])

_LINE = 128  # bytes of a line of an operand in shared memory: the terms of a block
_MAX_PARTS = 256 << 20  # bytes of scratch memory
_MAX_SPLITS = 32  # parts of the terms of a tile, which are separate tiles; more for few tiles
_SHARES = (1, 0.8, 0.65, 0.5, 0.35, 0.25)
_MIN_SPLIT_DEPTH = 4  # blocks of terms of a part
_MAX_WAVES = 3  # parts per multiprocessor: with more tiles, whole ones are as good
_MAX_OWN_COLUMNS = 128  # if threads load operands, which need registers
_MIN_OWN_BYTES = 8  # per read: all warps should read single elements
_OWN_LOADERS = 4  # warps that load operands if the copy engine cannot
_MAX_TURNED_ROWS = 256  # that become columns: their results are not contiguous
_MIN_STAGES, _MAX_STAGES = 2, 8  # by wgmma
_WRITTEN_BYTES, _READ_BYTES = 32 << 10, 48 << 10  # of an epilogue in shared memory
_SHORT_TERMS = 512
_MAX_SHARED_COLUMNS = 128  # of a tile whose block shares a multiprocessor, for lack of registers
_MIN_SHARED_ROWS = 128  # the same: with fewer warps, sharing hides no latency
_MIN_SHARED_COST = 8.0  # of the epilogue: one block hides a short one
_RESIDENTS = 2
_NARROW_CHUNK = 16  # columns: the saved shared memory may be another stage
_RESERVED_BYTES = 1 << 10  # of the shared memory of a block
_GROUPS_CAPABILITY = 90  # with wgmma, which later ones lack

# (rows, columns, warps) of a tile on the cores
_CORES = ((128, 128, 8), (128, 64, 8), (64, 128, 8), (64, 64, 4), (32, 64, 4), (32, 32, 2))
# (rows, columns, warps, warps along columns) of a tile by mma.sync
_WARPS = (
    (128, 128, 8, 4), (128, 64, 8, 2), (64, 128, 8, 4), (64, 64, 4, 2), (32, 64, 4, 2),
    (16, 64, 4, 4),
)  # fmt: skip
# (rows, columns) of a tile by wgmma
_GROUPS = (
    (128, 256), (128, 224), (128, 192), (128, 160), (128, 128), (128, 96), (128, 64), (128, 32),
    (64, 256), (64, 128), (64, 64),
)  # fmt: skip

_HIGH = 192, 128  # rows and columns of a tile by three groups of warps


def schedule_of(problem: Problem, target: CudaTarget) -> Schedule:
    """The schedule with the least estimated cost."""
    return min(_priced(problem, target), key=lambda pair: pair[1])[0]


def schedules(problem: Problem, target: CudaTarget, most: int = 12) -> list[Schedule]:
    """Candidates to measure, by estimated cost."""
    ranked = sorted(_priced(problem, target), key=lambda pair: pair[1])
    return [schedule for schedule, _ in ranked[:most]]


def _priced(problem: Problem, target: CudaTarget) -> list[tuple[Schedule, float]]:
    result: list[tuple[Schedule, float]] = []
    for tile, padded in _tiles(problem, target):
        is_copied = tile.loaders != _OWN_LOADERS or tile.fragments or tile.rewritten
        price = partial(Cost, padded, target, is_copied=is_copied)
        result += [
            (schedule, price(schedule).cycles()) for schedule in _shared(padded, target, tile)
        ]
    return result


def _shared(problem: Problem, target: CudaTarget, tile: Schedule) -> Iterator[Schedule]:
    """A tile unchanged and, if all sizes are static, with parts of its terms: as separate tiles by
    wgmma, else as shares of workers, which were slower in most products by wgmma: workers read
    distant terms, which do not stay in the L2 cache."""
    yield tile
    spaces = problem.batch, problem.rows, problem.columns, problem.reduced
    if not all(space.is_static for space in spaces):
        return
    units = target.multiprocessors
    work = Work(problem, tile)
    tiles, depth = work.tiles(problem.words()), work.counts(problem.words())[3]
    if tile.buffers:
        return
    if tile.unit == "wgmma":
        for splits in _splits(depth, tiles, units):
            schedule = replace(tile, splits=splits)
            if Work(problem, schedule).parts_bytes <= _MAX_PARTS:
                yield schedule
        return
    wanted = {units, 2 * units}
    wanted |= {tiles * parts for parts in (2, 3, 4, 6, 8, 12, 16) if tiles * parts <= 2 * units}
    for workers in sorted(wanted):
        share = tiles * depth / workers
        if share >= 4 and 2 * workers * work.part_bytes <= _MAX_PARTS:
            yield replace(tile, workers=workers)


def _splits(depth: int, tiles: int, units: int) -> list[int]:
    """Numbers of parts, which are not empty and have some blocks of terms: one, two or three per
    multiprocessor, and some fractions of these."""
    whole = [waves * units // tiles for waves in range(1, _MAX_WAVES + 1)]
    most = min(max(whole[0], _MAX_SPLITS), whole[-1], depth // _MIN_SPLIT_DEPTH)
    wanted = {*range(2, 5), *(int(count * share) for count in whole for share in _SHARES)}
    return sorted({-(-depth // -(-depth // n)) for n in wanted if 2 <= n <= most})


def _tiles(problem: Problem, target: CudaTarget) -> Iterator[tuple[Schedule, Problem]]:
    """Tiles on the units that can multiply the operands, with the problem for each."""
    if not has_tensor_cores(problem, target):
        terms = 8 if problem.dtype == FLOAT64 else 16
        for m, n, warps in _of_fitting_size(problem, _CORES):
            yield Schedule("cores", m, n, terms, warps, 1), problem
        return
    terms = _LINE // problem.a.dtype.itemsize
    for m, n, warps, across in _of_fitting_size(problem, _WARPS):
        schedule = Schedule("mma", m, n, terms, warps, across)
        for deep in _with_stages(target, schedule, (4, 3, 2), partial(_mma_bytes, problem)):
            yield deep, problem
    if target.capability == _GROUPS_CAPABILITY:
        tiles = [_group_tile(m, n, terms) for m, n in _of_fitting_size(problem, _GROUPS)]
        found = [
            pair
            for schedule in _along(problem, tiles)
            for pair in _with_loaders(problem, target, schedule)
        ]
        yield from found or (
            pair for schedule in tiles for pair in _with_loaders(problem, target, schedule)
        )


def _along(problem: Problem, tiles: Sequence[Schedule]) -> Iterator[Schedule]:
    """Tiles by wgmma of operands that are stored across the terms, but whose dtype tensor cores
    support only along them.

    The second operand is transposed by an earlier launch or in shared memory; of the first, warps
    read fragments, or of a large second one, if it is exchanged with a first operand of few rows.
    """
    sides = {"a": problem.a, "b": problem.b}
    across = "".join(name for name, side in sides.items() if is_transposable(problem, side))
    fragments = across == "ab" and problem.a.is_plain
    for schedule in tiles if across else ():
        yield replace(schedule, transposed="b" if fragments else across, fragments=fragments)
        if fragments or across == "b":
            yield replace(schedule, fragments=fragments, rewritten=True)
    if fragments and problem.shape[1] > _HIGH[0]:  # columns are rewritten once for more rows
        yield replace(_group_tile(*_HIGH, tiles[0].k), fragments=True, rewritten=True)
    if across == "b" and problem.b.is_plain and problem.shape[1] <= _MAX_TURNED_ROWS:
        for m, n in _of_fitting_size(problem.swapped, _GROUPS):
            schedule = _group_tile(m, n, tiles[0].k)
            yield replace(schedule, fragments=True, swapped=True)


def _group_tile(m: int, n: int, terms: int) -> Schedule:
    """A tile by wgmma; the concurrent tiles of all multiprocessors are about a square."""
    return Schedule("wgmma", m, n, terms, m // 16, 1, group=16)


def _with_loaders(
    problem: Problem, target: CudaTarget, schedule: Schedule
) -> Iterator[tuple[Schedule, Problem]]:
    """A tile by wgmma with loading warps and stages in shared memory."""
    padded = wgmma.padded(problem, schedule)
    plan = wgmma.Plan(Work(padded, schedule))
    is_copied = plan.is_all_copied
    if (schedule.transposed or schedule.fragments or schedule.rewritten) and not plan.is_usable:
        return
    own = [side.operand for side in plan.sides if side.copy is None]
    if any(operand.vector * operand.dtype.itemsize < _MIN_OWN_BYTES for operand in own):
        return
    if own and schedule.n > _MAX_OWN_COLUMNS:
        return
    is_group = schedule.m >= _MIN_SHARED_ROWS and wgmma.needs_registers(
        schedule.fragments, schedule.n
    )
    is_alone = is_copied and not schedule.rewritten and not is_group
    schedule = replace(schedule, loaders=1 if is_alone else _OWN_LOADERS)
    for candidate in _with_epilogues(padded, schedule):
        plan = wgmma.Plan(Work(padded, candidate))
        stages = min(_MAX_STAGES, plan.most_stages(_shared_bytes_per_block(target, candidate)))
        if stages >= _MIN_STAGES:
            yield replace(candidate, stages=stages), padded


def _with_epilogues(problem: Problem, schedule: Schedule) -> Iterator[Schedule]:
    """A tile by wgmma with an epilogue in registers, or staged in shared memory; for an expensive
    epilogue also with two blocks on a multiprocessor, one of which multiplies meanwhile."""
    yield schedule
    if epilogue_of(problem, replace(schedule, buffers=2)) is None:
        return
    for chunk in (0, _NARROW_CHUNK):
        found = epilogue_of(problem, replace(schedule, buffers=2, chunk=chunk))
        if found is not None:
            yield replace(schedule, buffers=_buffers(problem, found), chunk=chunk)
    fits = schedule.n <= _MAX_SHARED_COLUMNS and schedule.m >= _MIN_SHARED_ROWS
    is_dear = epilogue_cost(problem) > _MIN_SHARED_COST
    if is_dear and fits and schedule.loaders != _OWN_LOADERS:
        for chunk in (0, _NARROW_CHUNK):
            yield replace(schedule, buffers=2, residents=_RESIDENTS, chunk=chunk)


def _buffers(problem: Problem, found: Epilogue) -> int:
    """The number of the epilogue's chunks in shared memory: the prefetch distance of its operands,
    for which short sums leave little time."""
    chunk = found.warps * found.warp_bytes
    if not found.loads:
        return max(2, min(_WRITTEN_BYTES // chunk, found.chunks))
    is_short = problem.shape[3] < _SHORT_TERMS
    return max(2, (2 if is_short else 1) * _READ_BYTES // chunk)


def _with_stages(
    target: CudaTarget, schedule: Schedule, choices: tuple[int, ...], size: partial[int]
) -> Iterator[Schedule]:
    """The schedule with the most stages that fit in shared memory."""
    for stages in choices:
        deep = replace(schedule, stages=stages)
        if size(deep) <= target.shared_bytes:
            yield deep
            return


def _mma_bytes(problem: Problem, schedule: Schedule) -> int:
    return mma.shared_bytes(Work(problem, schedule), is_emulated=False)


def _shared_bytes_per_block(target: CudaTarget, schedule: Schedule) -> int:
    """The shared memory per resident block of a multiprocessor."""
    return (target.shared_bytes + _RESERVED_BYTES) // schedule.residents - _RESERVED_BYTES


def _of_fitting_size(problem: Problem, tiles: tuple[Tile, ...]) -> list[Tile]:
    """The tiles that are not much larger than the problem, and the smallest one."""
    _, m, n, _ = problem.shape
    found = [tile for tile in tiles if tile[0] < 2 * m + 32 and tile[1] < 2 * n + 64]
    return found or [tiles[-1]]


def has_tensor_cores(problem: Problem, target: CudaTarget) -> bool:
    """Whether tensor cores multiply the operands with the required precision."""
    a, b = problem.a.dtype, problem.b.dtype
    if a != b or problem.dtype != FLOAT32 or mma_name(a) is None or target.capability < 80:
        return False
    if a == FLOAT32:
        return target.allow_tf32
    return a.itemsize > 1 or target.capability >= 89
