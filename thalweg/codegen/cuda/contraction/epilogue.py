"""Plans a staged epilogue: its operands and results in shared memory, as boxes of the copy engine.

Given a problem and a schedule, it returns an `Epilogue` if every store, and every load that varies
with the row, is a matrix that the copy engine can transfer: tensor maps, and the layout of a tile's
chunks in the shared memory of a warp.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from math import prod
from typing import Any

import numpy as np

from thalweg.codegen.contraction.form import loads_of
from thalweg.codegen.cuda.contraction.copy_engine import ALIGNMENT
from thalweg.codegen.cuda.contraction.layout import LINE
from thalweg.codegen.cuda.contraction.output import store_width
from thalweg.codegen.cuda.contraction.problem import Problem
from thalweg.codegen.cuda.contraction.schedule import Schedule
from thalweg.codegen.cuda.contraction.space import Space
from thalweg.codegen.cuda.tensor_map import MAX_RANK, TensorMap, TensorMapSpec, varying_extent
from thalweg.ir.dynamic import is_static
from thalweg.ir.expr import Call, Load, Variable
from thalweg.ir.functions.table import FUNCTIONS
from thalweg.ir.index import Affine
from thalweg.ir.kernel import Argument
from thalweg.ir.rewrite import postorder
from thalweg.platform.caches import memoized

ROWS = 16  # of a warp in a tile
_COLUMNS = (64, 32)  # of a chunk: a divisor of the tile's, smaller if shared memory is short
PAIR = 2  # adjacent columns of a thread in a product
_ITEMSIZES = (2, 4)
_WIDE_BYTES = 4  # of an element in shared memory, above which chunks have fewer columns
_LONG_COST = 1700.0  # of a thread's computation for a tile

Matrix = tuple[Argument, Affine]


@dataclass(frozen=True)
class Box:
    """A matrix of rows and columns of the problem, which the copy engine transfers in boxes."""

    matrix: Matrix
    spec: TensorMapSpec
    batch: tuple[Variable, ...]  # the coordinates after those of column and row
    columns: int  # of a chunk
    offset: int  # in the buffer of a warp

    @property
    def itemsize(self) -> int:
        """The bytes of an element."""
        return self.spec.map.itemsize

    @property
    def line_bytes(self) -> int:
        """The bytes of a row of a box."""
        return self.spec.map.line_bytes

    @property
    def panel(self) -> int:
        """The number of columns of a box."""
        return self.line_bytes // self.itemsize

    @property
    def panels(self) -> int:
        """The number of boxes of a chunk."""
        return self.columns // self.panel

    @property
    def panel_bytes(self) -> int:
        """The bytes of a box, with the rows of a warp."""
        return ROWS * self.line_bytes

    @property
    def bytes(self) -> int:
        """The bytes of a chunk of a warp."""
        return self.panels * self.panel_bytes


@dataclass(frozen=True)
class Epilogue:
    """The epilogue's loads and stores in chunks of columns, `buffers` of which are in shared
    memory. A result overwrites an operand of its size, if there is one."""

    loads: tuple[Box, ...]
    stores: tuple[Box, ...]
    columns: int  # of a chunk
    chunks: int  # of a tile
    buffers: int
    warps: int
    is_long: bool  # unrolled code would not stay in the instruction caches

    @property
    def warp_bytes(self) -> int:
        """The bytes of a buffer of one warp."""
        return max(box.offset + box.bytes for box in (*self.loads, *self.stores))

    @property
    def warp_pairs(self) -> int:
        """The pairs of sums that each lane stores in shared memory."""
        return ROWS * self.columns // (32 * PAIR) if self.is_long else 0

    @property
    def buffer_bytes(self) -> int:
        """The bytes of all buffers."""
        return self.buffers * self.warps * self.warp_bytes

    @property
    def bytes(self) -> int:
        """The bytes of all shared memory."""
        return self.buffer_bytes + self.warps * self.warp_pairs * 32 * PAIR * 4

    @property
    def read_bytes(self) -> int:
        """The bytes that the copy engine loads to a buffer of a warp."""
        return sum(box.bytes for box in self.loads)

    @property
    def barriers(self) -> int:
        """The number of barriers for the arrival of operands."""
        return self.buffers * self.warps if self.loads else 0

    @property
    def tensor_maps(self) -> dict[Matrix, TensorMapSpec]:
        """The tensor maps; a matrix that is read and written has one."""
        return {box.matrix: box.spec for box in (*self.loads, *self.stores)}


def epilogue_of(problem: Problem, schedule: Schedule) -> Epilogue | None:
    """The staged epilogue of a tile, if the copy engine can transfer all of it."""
    wide, narrow = _COLUMNS
    is_narrow = (
        schedule.n % wide > 0 or schedule.residents > 1 or _moved_bytes(problem) > _WIDE_BYTES
    )
    columns = schedule.chunk or (narrow if is_narrow else wide)
    boxes = None if schedule.n % columns else _boxes_of(problem, columns)
    if boxes is None or (boxes[0] and schedule.buffers < 2):
        return None
    is_long = epilogue_cost(problem) * schedule.m * schedule.n / (32 * schedule.warps) > _LONG_COST
    return Epilogue(
        *boxes, columns, schedule.n // columns, schedule.buffers, schedule.warps, is_long
    )


@memoized(64)
def epilogue_cost(problem: Problem) -> float:
    """The instructions per element."""
    parts = postorder([store.value for store in problem.kernel.stores])
    calls = [part for part in parts if isinstance(part, Call)]
    return sum(FUNCTIONS[call.function].approximate_cost(call.loop[0]) for call in calls)


def _moved_bytes(problem: Problem) -> int:
    """The bytes read and written per element."""
    boxes = _boxes_of(problem, _COLUMNS[-1])
    return (
        0
        if boxes is None
        else max((b.offset + b.bytes) for b in (*boxes[0], *boxes[1])) // (ROWS * _COLUMNS[-1])
    )


@memoized(64)
def _boxes_of(problem: Problem, columns: int) -> tuple[tuple[Box, ...], tuple[Box, ...]] | None:
    """The boxes of loads and of stores, if the copy engine can transfer all of them."""
    if not problem.is_aligned or store_width(problem, PAIR) < PAIR:
        return None
    read = _boxes(problem, columns, varying_loads(problem), ())
    if read is None:
        return None
    stores = [(store.buffer, store.offset) for store in problem.kernel.stores]
    written = _boxes(problem, columns, stores, read)
    return None if written is None else (read, written)


@memoized(64)
def varying_loads(problem: Problem) -> list[Matrix]:
    """The loads of the stores that vary with the row and are contiguous along columns."""
    result: dict[Matrix, None] = {}
    for store in problem.kernel.stores:
        for load in loads_of(store.value):
            if not load.offset.is_plain or _varies(problem, load):
                result[load.buffer, load.offset] = None
    return list(result)


def _varies(problem: Problem, load: Load) -> bool:
    used = load.offset.variables
    return any(v in used for v in problem.rows.variables) and any(
        v in used for v in problem.columns.variables
    )


def _boxes(
    problem: Problem, columns: int, matrices: Sequence[Matrix], before: Iterable[Box]
) -> tuple[Box, ...] | None:
    """Boxes of matrices, in new memory or in that of an earlier one of the same size."""
    known = {box.matrix: box for box in before}
    free = [box for box in known.values() if box.matrix not in matrices]
    end = max((box.offset + box.bytes for box in known.values()), default=0)
    result: list[Box] = []
    for matrix in dict.fromkeys(matrices):
        spec = _spec(problem, columns, *matrix)
        if spec is None:
            return None
        size = spec.map.itemsize
        place = known.get(matrix) or next((box for box in free if box.itemsize == size), None)
        if place in free:
            free.remove(place)
        start, batch = end if place is None else place.offset, _batch(problem, matrix[1])
        box = Box(matrix, spec, batch, columns, start)
        end = max(end, box.offset + box.bytes)
        result.append(box)
    return tuple(result)


def _batch(problem: Problem, offset: Affine) -> tuple[Variable, ...]:
    return tuple(v for v in problem.batch.variables if offset.factor(v) != 0)


def _spec(problem: Problem, chunk: int, argument: Argument, offset: Affine) -> TensorMapSpec | None:
    """The tensor map of a matrix: columns, rows, and the variables of the batch."""
    if not offset.is_plain or not all(map(is_static, offset.integers)):
        return None
    dtype: np.dtype[Any] = np.dtype(argument.dtype)
    batch = _batch(problem, offset)
    distances = [_distance(problem.columns, offset), _distance(problem.rows, offset)]
    distances += [offset.factor(v) for v in batch]
    known = {*problem.columns.variables, *problem.rows.variables, *problem.batch.variables}
    if distances[0] != 1 or dtype.itemsize not in _ITEMSIZES or len(distances) > MAX_RANK:
        return None
    strides = [(distance or 0) * dtype.itemsize for distance in distances[1:]]
    start = offset.constant * dtype.itemsize
    is_aligned = start >= 0 and all(size % ALIGNMENT == 0 for size in (start, *strides))
    if not is_aligned or min(strides) <= 0 or not known.issuperset(offset.strides):
        return None
    extents = [[v.extent for v in space.variables] for space in (problem.columns, problem.rows)] + [
        [v.extent] for v in batch
    ]
    varying = [varying_extent(axis, factors) for axis, factors in enumerate(extents)]
    tensor_map = TensorMap(
        start,
        dtype.name,
        dtype.itemsize,
        tuple(prod(map(int, factors)) for factors in extents),
        tuple(strides),
        (min(LINE // dtype.itemsize, chunk), ROWS, *[1] * len(batch)),
        (1,) * len(extents),
    )
    return TensorMapSpec(
        1 + argument.position, tensor_map, tuple(v for v in varying if v is not None)
    )


def _distance(space: Space, offset: Affine) -> int | None:
    """The stride of a space that is one axis of a matrix."""
    if space.multiple != 1:
        return None
    distance, apart = None, 0
    for variable in reversed(space.variables):
        factor = offset.factor(variable)
        if variable.extent == 1 and is_static(variable.extent):
            continue
        if distance is None:
            distance = factor
        elif factor != apart:
            return None
        if not is_static(variable.extent) and variable is not space.variables[0]:
            return None
        apart = factor * int(variable.extent)
    return distance
