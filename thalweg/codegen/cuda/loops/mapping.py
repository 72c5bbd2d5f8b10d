"""The mapping of a kernel's loops to the threads of a grid.

Given a kernel in its simplest form, it returns a `Mapping`. A thread takes a vector of neighbouring
elements of the variable along which most accesses are contiguous (`vector`), so that a warp reads
and writes whole lines. Long reductions are shared by a team of threads per item (a row, or a few
adjacent columns). Iterations that must run in order are loops of one thread.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np

from thalweg.codegen.cuda.builder import WIDEST
from thalweg.codegen.cuda.target import CudaTarget
from thalweg.codegen.loops.plan import colliding_variables, is_long, scans_in_order
from thalweg.codegen.loops.simplify import stride
from thalweg.ir.dynamic import factors_of, is_static
from thalweg.ir.expr import Expr, Load, Reduce, Scan, Select, Variable
from thalweg.ir.functions.reductions import REDUCTIONS
from thalweg.ir.index import Affine
from thalweg.ir.kernel import Loops, Store
from thalweg.ir.rewrite import Fold, free_variables, postorder, walk
from thalweg.platform.dtype_traits import is_float

MIN_SHARED_TERMS = 33  # of a reduction that a team of threads shares
STRAIGHT = 8  # the maximum vectors of a row in a thread's straight-line code
UNROLLED = 4  # vectors of an unrolled iteration of a long reduction
MIN_UNROLLED = 8  # vectors of a thread from which it is unrolled
TILE, TILE_ROWS = 32, 8  # the side of a transposed tile; the threads along a column of it
_MAX_TRANSPOSED = 4  # loads whose tiles fit in shared memory
_NARROW_ELEMENT, _MAX_WIDE_TILES = 2, 8  # bytes of an element; of all loads of wide tiles
SCAN_THREADS = 256  # of a block that scans
_MIN_BLOCK_SCAN = 64  # elements of a scan from which a block shares it
_MAX_WIDTH = 8
_MAX_INSTRUCTIONS = 320  # an estimate of those of one thread's lanes per stored element
_MAX_REPEATED = 60  # expressions of a kernel that is emitted twice, for the remainder of vectors
_BLOCK = 256  # threads
_ANY_EXTENT = 512  # assumed for an extent that is known only at run time
_SMALL_BLOCK = 128
_MAX_BLOCKS = 1 << 21
_COLUMN_THREADS = 512
_MIN_COLUMN_SIDE = 8  # adjacent columns, which together are a line of memory

Kind = Literal["each", "row", "column", "transpose", "scan"]


@dataclass(frozen=True, eq=False)
class Mapping:
    """The mapping of a kernel.

    An item is one value of all `items`. For "each" it is `width` elements of one thread; for "row",
    a row of a team, whose threads reduce `width` neighbours at a time; for "column", `width`
    adjacent columns of a team, which shares a block with other teams; for "transpose", a tile of
    the last two variables, of which `transposed` loads are contiguous along the first and whose
    threads take `width` neighbours at a time; for "scan", the scans of a block, `width` neighbours
    per thread at a time.
    """

    form: Loops
    target: CudaTarget
    kind: Kind
    items: tuple[Variable, ...]  # distributed over the grid; the last is the fastest
    serial: tuple[Variable, ...]  # loops of one thread, outermost first
    rest: tuple[Variable, ...]  # shared by a team after its reductions; the last is the fastest
    backward: frozenset[Variable]
    vector: Variable | None  # the vectorized one of items or rest
    width: int
    team: int  # threads of an item
    side: int  # items of a block
    reduced: Variable | None = None  # the vectorized one of the reductions of a row
    transposed: tuple[Load, ...] = ()

    @property
    def threads(self) -> int:
        """The threads of a block."""
        return self.team * self.side

    @property
    def item_width(self) -> int:
        """The number of values of the last of `items` in an item."""
        return self.width if self.kind != "row" and self.vector in self.items else 1

    def atomic(self, store: Store) -> bool:
        """Whether several threads may combine values at one element concurrently."""
        return not (colliding_variables(store) - set(self.serial)).isdisjoint(self.items)


def mapping_of(form: Loops, target: CudaTarget, aligned: bool) -> Mapping:
    """Choose the mapping of a kernel."""
    ordered = _ordered(form, target)
    scanned = _scanned(form)
    alone = tuple(v for v in form.variables if v in ordered or v in scanned)
    parallel = [v for v in form.variables if v not in alone]
    vector = contiguous(parallel, form)
    items = (*(v for v in parallel if v is not vector), *([vector] if vector else []))
    form, backward = scans_in_order(form, (*items, *alone))
    if not alone:
        shared = [e for e in form.every(Reduce) if is_shared(e, form)]
        if shared and (result := _team_mapping(form, target, shared, aligned)) is not None:
            return result
        if vector is not None:
            result = _transpose_mapping(form, target, items, aligned)
            if result is not None:
                return result
    elif _scans_by_blocks(form, target, items, alone):
        return _scan_mapping(form, target, items, alone, backward, aligned)
    width = _width(form, vector, target, aligned)
    side = _BLOCK if width * _instructions(form) <= _MAX_INSTRUCTIONS else _SMALL_BLOCK
    return Mapping(form, target, "each", items, alone, (), backward, vector, width, 1, side)


def _ordered(form: Loops, target: CudaTarget) -> frozenset[Variable]:
    """The variables whose iterations must run in order on one thread."""
    found = set(form.serial)
    for store in form.stores:
        if not _in_any_order(store, target):
            found |= colliding_variables(store)
    return frozenset(found)


def _scanned(form: Loops) -> frozenset[Variable]:
    """The variables of scans, and those that a work with a scan does not have."""
    found = set[Variable]()
    for work in (*form.checks, *form.stores):
        scans = [part for part in postorder(work.roots) if isinstance(part, Scan)]
        if scans:
            found |= {scan.variable for scan in scans}
            found |= set(form.variables) - set(work.variables)
    return frozenset(found)


def _in_any_order(store: Store, target: CudaTarget) -> bool:
    """Whether values may be stored at an element in any order."""
    row = REDUCTIONS.get(store.combine)
    if row is None:
        return False
    return not (target.deterministic and row.rounds and is_float(np.dtype(store.buffer.dtype)))


# Lanes


def contiguous(variables: Iterable[Variable], form: Loops) -> Variable | None:
    """The variable along which most accesses are contiguous; the last one if none are."""
    places = [load.offset for load in form.every(Load)]
    places += [s.offset for s in form.stores for _ in range(2)]
    return _best(list(variables), places)


def _best(variables: Sequence[Variable], places: Sequence[Affine]) -> Variable | None:
    scores = {v: _score(v, places) for v in variables}
    return max(reversed(variables), key=lambda v: scores[v], default=None)


def _score(variable: Variable, places: Sequence[Affine]) -> float:
    worth: dict[int | None, float] = {1: 1.0, 0: 0.0}
    found = [
        worth.get(None if _is_computed(offset, variable) else stride(offset, variable), -0.5)
        for offset in places
    ]
    return sum(found) if typical(variable.extent) > 1 else -math.inf


def _is_computed(offset: Affine, variable: Variable) -> bool:
    return any(variable in free_variables(part) for part in offset.parts)


def typical(extent: int) -> int:
    """An extent for decisions; a constant if it is known only at run time. Its hint is not used:
    code runs for all values, and its launches must match the mapping it was emitted for."""
    factors = factors_of(extent)
    return math.prod(factor if is_static(factor) else _ANY_EXTENT for factor in factors)


def divisor(extent: int) -> int:
    """An integer that divides an extent for all values of its run-time factors."""
    return math.prod(factor for factor in factors_of(extent) if is_static(factor))


def _widest(form: Loops, aligned: bool) -> int:
    """The elements of the smallest dtype in one access; fewer if code is long."""
    if not aligned or not form.arguments:
        return 1
    smallest = min(np.dtype(argument.dtype).itemsize for argument in form.arguments)
    width = min(max(WIDEST // smallest, 1), _MAX_WIDTH)
    size = _instructions(form)
    while width > 1 and width * size > _MAX_INSTRUCTIONS * len(form.stores):
        width //= 2
    return width


def _widest_store(form: Loops) -> int:
    """The elements of one store: two stores of a thread would each write half sectors, which took
    twice as long; repeated loads are cached."""
    largest = max((np.dtype(s.buffer.dtype).itemsize for s in form.stores), default=1)
    return max(WIDEST // largest, 1)


def _power_below(value: float) -> int:
    """The largest power of two that is at most a number."""
    return 1 << (int(value).bit_length() - 1)


def _instructions(form: Loops) -> int:
    """The estimated number of instructions of a lane."""
    reads = Fold(_reads)
    return sum(8 if is_long(part) else 1 for part in form.parts if reads.of(part))


def _reads(expr: Expr, known: Fold[bool]) -> bool:
    """Whether an expression contains a load: it is more than index arithmetic."""
    return isinstance(expr, Load) or any(known.parts(expr))


def _width(form: Loops, vector: Variable | None, target: CudaTarget, aligned: bool) -> int:
    if vector is None:
        return 1
    places = [load.offset for load in form.every(Load)] + [s.offset for s in form.stores]
    if not any(stride(offset, vector) == 1 for offset in places):
        return 1
    width = min(_widest(form, aligned), _widest_store(form))
    total = math.prod(typical(v.extent) for v in form.variables)
    while width > 1 and total < width * target.multiprocessors * _BLOCK:
        width //= 2
    if form.variables == (vector,) and not form.serial and len(form.parts) <= _MAX_REPEATED:
        return width  # the remainder is processed one by one
    while divisor(vector.extent) % width:
        width //= 2
    return width


# Teams


def is_shared(expr: Reduce, form: Loops) -> bool:
    """Whether a reduction is long enough to be shared by threads, and is not nested."""
    inside = free_variables(expr) <= frozenset(form.variables)
    return inside and terms_of(expr) >= MIN_SHARED_TERMS


def terms_of(expr: Reduce) -> int:
    """The estimated number of terms of a reduction."""
    return math.prod(typical(v.extent) for v in expr.variables)


def _team_mapping(
    form: Loops, target: CudaTarget, shared: Sequence[Reduce], aligned: bool
) -> Mapping | None:
    """A mapping with teams for the long reductions of a kernel, if no stores conflict."""
    if any(store.combine != "set" and colliding_variables(store) for store in form.stores):
        return None
    free = frozenset[Variable]().union(*map(free_variables, shared))
    items = [v for v in form.variables if v in free]
    rest = [v for v in form.variables if v not in free]
    places = [part.offset for e in shared for part in postorder([e.body]) if isinstance(part, Load)]
    reduced = _best([v for e in shared for v in e.variables], places)
    column = _best(items, places)
    assert reduced is not None
    along, across = _score(reduced, places), -math.inf if column is None else _score(column, places)
    terms = max(map(terms_of, shared))
    if column is not None and across > max(along, 0.0):
        return _column_mapping(form, target, items, rest, column, terms, aligned)
    last = _best(rest, [*(load.offset for load in form.every(Load)), *_stored(form)])
    return _row_mapping(form, target, items, rest, reduced, last, shared, terms, aligned)


def _stored(form: Loops) -> list[Affine]:
    return [store.offset for store in form.stores]


def _row_mapping(
    form: Loops,
    target: CudaTarget,
    items: Sequence[Variable],
    rest: Sequence[Variable],
    reduced: Variable,
    last: Variable | None,
    shared: Sequence[Reduce],
    terms: int,
    aligned: bool,
) -> Mapping:
    width = _widest(form, aligned)
    if not all(reduced in e.variables for e in shared):
        width = 1
    extents = [reduced.extent, *([] if last is None else [last.extent])]
    while any(divisor(extent) % width for extent in extents) or width * 32 > max(terms, 1):
        if width == 1:
            break
        width //= 2
    many = math.prod(typical(v.extent) for v in items) >= 2 * target.multiprocessors
    wanted = math.ceil(terms / width / (STRAIGHT if many else 1))
    team = min(max(1 << (wanted - 1).bit_length(), target.warp), 512 if many else 1024)
    if many and not rest and (part := _part_of_warp(form, target, items, shared, aligned)):
        team, width = part
    side = _SMALL_BLOCK // team if team <= target.warp else 1
    ordered = (*(v for v in rest if v is not last), *([last] if last else []))
    return Mapping(
        form,
        target,
        "row",
        tuple(items),
        (),
        ordered,
        frozenset(),
        last,
        width,
        team,
        side,
        reduced,
    )


def _part_of_warp(
    form: Loops,
    target: CudaTarget,
    items: Sequence[Variable],
    shared: Sequence[Reduce],
    aligned: bool,
) -> tuple[int, int] | None:
    """Threads and width of a team that is a part of a warp, for rows so short that each thread has
    one vector. No team of a warp may lack a row, since the warp synchronizes."""
    lengths = {v.extent for expr in shared for v in expr.variables}
    if any(len(expr.variables) > 1 for expr in shared) or len(lengths) > 1:
        return None
    (length,) = lengths
    width = _widest(form, aligned)
    factors = [length, *(v.extent for v in items)]
    if width == 1 or not all(map(is_static, factors)) or length % width:
        return None
    team, rows = length // width, math.prod(v.extent for v in items)
    is_part = 1 < team < target.warp and target.warp % team == 0
    return (team, width) if is_part and rows % (_SMALL_BLOCK // team) == 0 else None


def _column_mapping(
    form: Loops,
    target: CudaTarget,
    items: Sequence[Variable],
    rest: Sequence[Variable],
    column: Variable,
    terms: int,
    aligned: bool,
) -> Mapping:
    columns = math.prod(typical(v.extent) for v in items)
    width = _widest(form, aligned)
    while width > 1 and (divisor(column.extent) % width or columns < width * _MIN_COLUMN_SIDE):
        width //= 2
    threads = _COLUMN_THREADS if terms >= _COLUMN_THREADS else _BLOCK
    side = _column_side(items, width, threads, target)
    team = _power_below(threads / side)
    ordered = (*(v for v in items if v is not column), column)
    return Mapping(
        form,
        target,
        "column",
        ordered,
        (),
        tuple(rest),
        frozenset(),
        column,
        width,
        team,
        side,
    )


def _column_side(items: Sequence[Variable], width: int, threads: int, target: CudaTarget) -> int:
    """The number of teams of a block: all, or a divisor of them such that blocks are whole warps
    without idle threads."""
    count = math.prod(divisor(v.extent) for v in items) // width
    known = all(is_static(factor) for v in items for factor in factors_of(v.extent))
    for side in range(target.warp, target.warp // 2, -1):
        if count % side == 0 and side * _power_below(threads / side) % target.warp == 0:
            return side
    if known and count < target.warp:
        for side in range(max(count, _MIN_COLUMN_SIDE), target.warp):
            if side * _power_below(threads / side) % target.warp == 0:
                return side
    return target.warp


# Scans


def _scans_by_blocks(
    form: Loops,
    target: CudaTarget,
    items: Sequence[Variable],
    alone: Sequence[Variable],
) -> bool:
    """Whether a block shares the scans of an item: they are long, and threads would be few.

    No other operation may depend on the order of elements: no stores conflict or are read again.
    """
    works = (*form.stores, *form.checks)
    if len(alone) != 1 or not all(scan.variable is alone[0] for scan in form.every(Scan)):
        return False
    stored = {store.buffer for store in form.stores}
    if any(map(colliding_variables, form.stores)) or not form.every(Scan):
        return False
    if any(load.buffer in stored for load in form.every(Load)):
        return False
    if any(set(work.variables) != set(form.variables) for work in works):
        return False
    many = math.prod(typical(v.extent) for v in items) >= target.multiprocessors * _BLOCK
    return not many and typical(alone[0].extent) >= _MIN_BLOCK_SCAN


def _scan_mapping(
    form: Loops,
    target: CudaTarget,
    items: tuple[Variable, ...],
    alone: tuple[Variable, ...],
    backward: frozenset[Variable],
    aligned: bool,
) -> Mapping:
    (along,) = alone
    places = [load.offset for load in form.every(Load)] + [s.offset for s in form.stores]
    width = min(_widest(form, aligned), _widest_store(form))
    if any(_is_computed(place, along) or stride(place, along) not in (0, 1) for place in places):
        width = 1
    while divisor(along.extent) % width or width * SCAN_THREADS > typical(along.extent):
        if width == 1:
            break
        width //= 2
    return Mapping(form, target, "scan", items, alone, (), backward, along, width, SCAN_THREADS, 1)


# Transposes


def _transpose_mapping(
    form: Loops, target: CudaTarget, items: tuple[Variable, ...], aligned: bool
) -> Mapping | None:
    """A mapping with tiles for loads that are contiguous along another variable than the stores,
    if there are any and the kernel only stores elements."""
    *others, along = items
    works = (*form.stores, *form.checks)
    if form.every(Reduce) or any(set(work.variables) != set(items) for work in works):
        return None
    if typical(along.extent) < TILE // 2 or any(s.combine != "set" for s in form.stores):
        return None
    for across in others:
        if typical(across.extent) < TILE // 2 or any(
            stride(store.offset, across) == 1 for store in form.stores
        ):
            continue
        certain = _unconditional_loads(form)
        loads = tuple(e for e in certain if _is_transposed(e, across, along))
        if 0 < len(loads) <= _MAX_TRANSPOSED:
            ordered = (*(v for v in others if v is not across), across, along)
            team = TILE * TILE_ROWS
            return Mapping(
                form,
                target,
                "transpose",
                ordered,
                (),
                (),
                frozenset(),
                along,
                _tile_width(form, loads, (across, along), aligned),
                team,
                1,
                transposed=loads,
            )
    return None


def _tile_width(
    form: Loops, loads: Sequence[Load], pair: tuple[Variable, Variable], aligned: bool
) -> int:
    """The number of neighbours that a thread reads and writes at once: two narrow elements, so that
    a warp accesses whole lines."""
    buffers = [load.buffer for load in loads]
    sizes = [np.dtype(b.dtype).itemsize for b in (*buffers, *(s.buffer for s in form.stores))]
    fits = sum(sizes[: len(loads)]) <= _MAX_WIDE_TILES
    even = all(divisor(v.extent) % 2 == 0 and typical(v.extent) >= 2 * TILE for v in pair)
    return 2 if aligned and even and fits and min(sizes) <= _NARROW_ELEMENT else 1


def _is_transposed(load: Load, across: Variable, along: Variable) -> bool:
    offset = load.offset
    jumps = stride(offset, along) not in (0, 1)
    return offset.is_plain and stride(offset, across) == 1 and jumps


def _unconditional_loads(form: Loops) -> list[Load]:
    """The loads of a kernel that are not guarded."""

    def parts(expr: Expr) -> tuple[Expr, ...]:
        return (expr.condition,) if isinstance(expr, Select) else expr.parts

    roots = [store.value for store in form.stores if store.inside is None]
    return [expr for expr in walk(roots, parts) if isinstance(expr, Load)]


# Grids


def item_count(mapping: Mapping, extents: dict[Variable, int]) -> int:
    """The number of items for given extents of the variables."""
    if mapping.kind == "transpose":
        *others, across, along = (extents[v] for v in mapping.items)
        side = TILE * mapping.width
        return math.prod(others) * -(-across // side) * -(-along // side)
    return math.prod(extents[v] for v in mapping.items) // mapping.item_width


def block_count(mapping: Mapping, items: int) -> int:
    """The number of blocks of a grid for some items, which is limited."""
    return min(max(-(-items // mapping.side), 1), _MAX_BLOCKS)
