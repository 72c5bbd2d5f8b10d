"""Packed copies of a contraction's factors: their layout, and the loops that write them.

A `Packing` is the layout of a factor in scratch memory: one axis per variable, or per window, where
variables move along one padded axis together (oh·stride + kh). Padding is written as zeros and
expressions are evaluated, so that the multiplying loops read a dense array.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, partial, reduce
from math import gcd, prod
from typing import Any

import numpy as np

from thalweg.codegen.contraction.form import loads_of
from thalweg.codegen.frame import At, Frame
from thalweg.codegen.llvm.builder import Builder, Value, constant
from thalweg.codegen.math.conversion import from_memory, register_type, storage_type
from thalweg.codegen.point import Point
from thalweg.ir.dynamic import is_static, times
from thalweg.ir.expr import Cast, Expr, Index, Load
from thalweg.ir.index import Affine, Term, expressed
from thalweg.ir.kernel import Access, Bound, KernelRewriter, RenameVariables
from thalweg.ir.loop import Variable
from thalweg.ir.rewrite import postorder


@dataclass(frozen=True)
class Span:
    """The values of a variable that a copy covers: at most `length` from `start` on."""

    start: Value
    length: int


Box = Mapping[Variable, Span]


@dataclass(frozen=True, eq=False)
class Axis:
    """An axis of a copy: its coordinate is Σ factor · variable over the `parts`.

    A padded axis may exceed the extent of its variables; bounds then say what may be read.
    """

    coordinate: Variable
    parts: tuple[tuple[int, Variable], ...]
    is_padded: bool = False


@dataclass(frozen=True, eq=False)
class Tiling:
    """A variable split into tiles: variable = size · high + low."""

    variable: Variable
    size: int
    high: Variable
    low: Variable

    def offset(self, factor: int) -> Affine:
        """The variable times a factor."""
        return Affine(0, {self.high: times(factor, self.size), self.low: factor})


@dataclass(frozen=True, eq=False)
class Packing:
    """The layout of a copy: axes, outermost first, and the factor over coordinates."""

    axes: tuple[Axis, ...]
    access: Access
    tiling: Tiling | None = None
    in_memory_order: bool = False  # filled in the order of the source, not tile by tile

    def strides(self, spans: Mapping[Variable, int]) -> list[int]:
        """The stride of each axis."""
        lengths = self.lengths(spans)
        return [prod(lengths[depth + 1 :]) for depth in range(len(lengths))]

    def lengths(self, spans: Mapping[Variable, int]) -> list[int]:
        """The extents of the axes, for a box that spans so many values of each variable."""
        if self.tiling:
            tiles = -(-spans[self.tiling.variable] // self.tiling.size)
            spans = {**spans, self.tiling.high: tiles, self.tiling.low: self.tiling.size}
        return [
            1 + sum(abs(factor) * (spans.get(v, 1) - 1) for factor, v in axis.parts)
            for axis in self.axes
        ]

    def factors(self, spans: Mapping[Variable, int]) -> dict[Variable, int]:
        """The stride of each variable in the copy; of a tiled one, from tile to tile, per row."""
        strides: dict[Variable, int] = {}
        for axis, stride in zip(self.axes, self.strides(spans), strict=True):
            strides |= {variable: factor * stride for factor, variable in axis.parts}
        if self.tiling:
            strides[self.tiling.variable] = strides[self.tiling.high] // self.tiling.size
        return strides

    def tile_factors(self, spans: Mapping[Variable, int]) -> dict[Variable, int]:
        """The stride of each variable inside of a tile."""
        return self.factors(spans) | ({self.tiling.variable: 1} if self.tiling else {})

    def size(self, spans: Mapping[Variable, int]) -> int:
        """The number of elements of a copy."""
        return prod(self.lengths(spans))

    def constant(self, spans: Mapping[Variable, int]) -> int:
        """The offset in the copy of the first value of every variable of the box."""
        factors = self.factors(spans)
        return sum(-f * (spans.get(v, 1) - 1) for v, f in factors.items() if f < 0)


def tiled(packing: Packing, variable: Variable, size: int, along: bool = False) -> Packing:
    """A packing with tiles of a variable outermost, and its values in a tile innermost."""
    cut = Tiling(variable, size, Variable(1, f"{variable.name}h"), Variable(1, f"{variable.name}l"))
    high, low = (Axis(v, ((1, v),), True) for v in (cut.high, cut.low))
    rest = tuple(axis for axis in packing.axes if axis.coordinate is not variable)
    access = _IntoTiles(cut).access(packing.access)
    whole = (0, cut.offset(1), variable.extent)
    access = replace(access, bounds=(whole, *access.bounds))
    return Packing((high, *rest, low), access, cut, along)


class _IntoTiles(RenameVariables):
    """Rewrites a factor in terms of the tiles of a variable."""

    def __init__(self, cut: Tiling) -> None:
        super().__init__({})
        self._cut = cut

    def offset(self, offset: Affine) -> Affine:
        rest = offset.without({self._cut.variable})
        return super().offset(rest + self._cut.offset(offset.factor(self._cut.variable)))

    def index(self, variable: Variable) -> Expr:
        is_cut = variable is self._cut.variable
        return expressed(self._cut.offset(1)) if is_cut else super().index(variable)


def dense(access: Access, order: Sequence[Variable]) -> Packing:
    """A packing with an axis for each of these variables, in this order."""
    axes = tuple(Axis(variable, ((1, variable),)) for variable in order)
    return Packing(axes, access)


def windowed(access: Access, variables: Sequence[Variable]) -> Packing | None:
    """A packing that writes padding once: an axis per bound, in the order of memory.

    None if the offsets do not move along with the bounds.
    """
    windows = _windows(access)
    loads = [load.offset for load in loads_of(access.value)]
    if windows is None or not loads or not all(offset.is_plain for offset in loads):
        return None
    moved = {v: (factor, axis.coordinate) for axis in windows for factor, v in axis.parts}
    if not all(_moves_along(axis, offset) for axis in windows for offset in loads):
        return None
    if any(isinstance(p, Index) and p.variable in moved for p in postorder([access.value])):
        return None
    rest = [v for v in variables if v not in moved]
    axes = [*windows, *(Axis(v, ((1, v),)) for v in rest)]
    access = _IntoWindows(moved).access(access)
    places = [load.offset for load in loads_of(access.value)]
    axes.sort(key=lambda axis: -max(abs(int(o.factor(axis.coordinate))) for o in places))
    return Packing(tuple(axes), access)


class _IntoWindows(KernelRewriter):
    """Rewrites a factor over coordinates of windows: `moved` maps a variable to the factor that it
    has in a coordinate, and that coordinate, which stands for all variables of its window."""

    def __init__(self, moved: Mapping[Variable, tuple[int, Variable]]) -> None:
        super().__init__()
        self._moved = moved

    def offset(self, offset: Affine) -> Affine:
        terms: dict[Term, int] = {}
        for variable, factor in offset.strides.items():
            unit, new = self._moved.get(variable, (1, variable))
            terms[new] = factor // unit if unit != 1 else factor
        return Affine(offset.constant, terms)


def _windows(access: Access) -> list[Axis] | None:
    """The axes of the bounds; None if these share variables."""
    axes: list[Axis] = []
    seen: set[Variable] = set()
    for _, offset, _ in access.bounds:
        known = offset.is_plain and all(map(is_static, offset.terms.values()))
        if not known or not offset.terms or not seen.isdisjoint(offset.strides):
            return None
        seen |= set(offset.strides)
        axes.append(_window(offset))
    return axes


def _window(offset: Affine) -> Axis:
    step = gcd(*offset.terms.values())
    name = "".join(v.name for v in offset.strides)
    parts = tuple((factor // step, v) for v, factor in offset.strides.items())
    return Axis(Variable(1, f"w{name}"), parts, True)


def _moves_along(axis: Axis, offset: Affine) -> bool:
    factors = [(offset.factor(v), part) for part, v in axis.parts]
    if not all(is_static(factor) for factor, _ in factors):
        return False
    if any(factor % part for factor, part in factors):
        return False
    return len({factor // part for factor, part in factors}) == 1


def transposed(b: Builder, rows: Sequence[Value]) -> list[Value]:
    """Transpose a square tile of vectors in registers.

    Swaps the off-diagonal quarters of the tile, then those of each quarter, and so on.
    """
    vectors, count = list(rows), len(rows)
    step = count // 2
    while step:
        for i in (i for i in range(count) if not i & step):
            first, second = vectors[i], vectors[i + step]
            low = [j if not j & step else count + j - step for j in range(count)]
            high = [j + step if not j & step else count + j for j in range(count)]
            vectors[i] = b.shuffle(first, second, low)
            vectors[i + step] = b.shuffle(first, second, high)
        step //= 2
    return vectors


@dataclass(eq=False)
class PackEmitter:
    """Emits the loops that fill a packed copy of a box.

    `layout` has the spans of the whole copy, if the box is a part of it.
    """

    frame: Frame
    packing: Packing
    box: Box
    outer: Mapping[Variable, Value]
    destination: Value
    lanes: int
    dtype: Any
    layout: Mapping[Variable, int] | None = None

    def __post_init__(self) -> None:
        packing, box = self.packing, self.box
        self.at = dict(self.outer)
        spans = {v: span.length for v, span in box.items()}
        lengths, strides = packing.lengths(spans), packing.strides(self.layout or spans)
        if packing.tiling:
            self.box = {**box, **self._tiles(packing.tiling, box, lengths[0])}
        order = list(range(len(lengths)))
        if packing.in_memory_order:
            order = [*order[1:-1], 0, order[-1]]
        self.axes = [packing.axes[k] for k in order]
        self.lengths, self.strides = [lengths[k] for k in order], [strides[k] for k in order]
        self.scalar = storage_type(self.dtype).scalar

    def _tiles(self, tiling: Tiling, box: Box, count: int) -> Box:
        """The tiles that a box covers; it starts at a tile."""
        start = box[tiling.variable].start
        if start.text != "0":
            start = self.frame.b.binary("sdiv exact", start, tiling.size)
        low = Span(self.frame.integer(0), tiling.size)
        return {tiling.high: Span(start, count), tiling.low: low}

    def emit(self) -> None:
        """Emit the loops."""
        coordinates = {axis.coordinate for axis in self.axes}
        fixed = [b for b in self.packing.access.bounds if coordinates.isdisjoint(b[1].terms)]
        if fixed:
            self._guarded(-1, self.frame.integer(0), fixed)
        else:
            self._axis(0, self.frame.integer(0), False)

    def _axis(self, depth: int, place: Value, zero: bool) -> None:
        """Emit the loops from an axis on. `place` is the offset in the copy of its first element;
        if `zero`, zeros are written."""
        if depth == len(self.axes):
            self._element(place, zero)
        elif depth == len(self.axes) - 2 and not zero and self._should_transpose():
            self._transpose_tile(place)
        elif depth == len(self.axes) - 1:
            self._innermost(place, zero)
        else:
            self._outer(depth, place, zero)

    def _outer(self, depth: int, place: Value, zero: bool) -> None:
        frame, axis = self.frame, self.axes[depth]
        start, one = self._start(axis), frame.integer(1)
        with frame.b.loop(0, self._count(depth), one) as loop:
            self.at[axis.coordinate] = frame.add(start, loop.index)
            inner = frame.add(place, frame.multiply(loop.index, self.strides[depth]))
            bounds = [] if zero else self._decided_bounds(depth)
            if bounds:
                self._guarded(depth, inner, bounds)
            else:
                self._axis(depth + 1, inner, zero)

    # Transposed tiles

    def _should_transpose(self) -> bool:
        """Whether the source is contiguous along the sum and strided along a tile."""
        packing, load = self.packing, self._source
        if (
            not packing.tiling
            or packing.in_memory_order
            or len(packing.access.bounds) != 1
            or len(self.axes) < 3
        ):
            return False
        along, across = self.axes[-2], self.axes[-1]
        if load is None or along.is_padded or packing.tiling.size % self.lanes:
            return False
        factor = load.offset.factor
        return factor(along.coordinate) == 1 and factor(across.coordinate) != 1

    @cached_property
    def _source(self) -> Load | None:
        """The load of the source, if copying needs at most a widening conversion."""
        value = self.packing.access.value
        if isinstance(value, Cast) and value.dtype == np.dtype(self.dtype):
            value = value.value
        if not isinstance(value, Load):
            return None
        is_wide = register_type(value.buffer.dtype) == storage_type(self.dtype)
        is_same = np.dtype(value.buffer.dtype) == np.dtype(self.dtype)
        return value if value.offset.is_plain and (is_same or is_wide) else None

    def _transpose_tile(self, place: Value) -> None:
        """Emit the transposed blocks of one tile, then the remainder by vectors along it."""
        frame, depth, lanes = self.frame, len(self.axes) - 2, self.lanes
        axis, stride = self.axes[depth], self.strides[depth]
        start, count = self._start(axis), self._count(depth)
        whole = frame.b.binary("and", count, -lanes)
        with frame.b.loop(0, whole, lanes) as loop:
            self.at[axis.coordinate] = frame.add(start, loop.index)
            inner = frame.add(place, frame.multiply(loop.index, stride))
            for first in range(0, self.lengths[-1], lanes):
                self._transpose_block(frame.add(inner, first), first, stride)
        with frame.b.loop(whole, count) as loop:
            self.at[axis.coordinate] = frame.add(start, loop.index)
            self._innermost(frame.add(place, frame.multiply(loop.index, stride)), False)

    def _transpose_block(self, place: Value, first: int, stride: int) -> None:
        """Emit a square block of a tile, from row `first` on."""
        frame, b, tiling, load = self.frame, self.frame.b, self.packing.tiling, self._source
        assert tiling
        assert load
        dtype = load.buffer.dtype
        kind, is_same = storage_type(dtype, self.lanes), np.dtype(dtype) == np.dtype(self.dtype)
        base = frame.address(load, {**self.at, tiling.low: frame.integer(0)})
        step = load.offset.factor(tiling.low)
        start = frame.multiply(self.at[tiling.high], tiling.size)
        last = frame.subtract(tiling.variable.extent, start)
        ragged = not is_static(tiling.variable.extent) or tiling.variable.extent % tiling.size
        rows: list[Value] = []
        for number in range(first, first + self.lanes):
            row = frame.integer(number)
            if ragged:  # past the last row load that one again; it is masked below
                row = frame.minimum(row, frame.subtract(last, 1))
            raw = b.load(kind, b.element(base, kind.scalar, frame.multiply(row, step)))
            rows.append(raw if is_same else from_memory(b, raw, dtype))
        there = frame.lanes_below(first, last, self.lanes) if ragged else None
        for number, vector in enumerate(transposed(b, rows)):
            value = vector if there is None else b.select(there, vector, 0)
            target = frame.add(place, number * stride)
            b.store(value, b.element(self.destination, self.scalar, target))

    def _guarded(self, depth: int, place: Value, bounds: list[Bound]) -> None:
        b, inside = self.frame.b, self.frame.in_bounds(bounds, self.at)
        with b.when(inside):
            self._axis(depth + 1, place, False)
        with b.when(b.negation(inside)):
            self._axis(depth + 1, place, True)

    def _start(self, axis: Axis) -> Value:
        """The least coordinate of the box."""
        frame, result = self.frame, self.frame.integer(0)
        for factor, variable in axis.parts:
            span = self._span(variable)
            first = span.start
            if factor < 0:
                first = frame.add(first, span.length - 1)
            result = frame.add(result, frame.multiply(first, factor))
        return result

    def _span(self, variable: Variable) -> Span:
        return self.box.get(variable) or Span(self.outer[variable], 1)

    def _count(self, depth: int) -> Value:
        """How many coordinates to copy: on an unpadded axis, none past the variable's extent."""
        frame, axis = self.frame, self.axes[depth]
        length = frame.integer(self.lengths[depth])
        if axis.is_padded:
            return length
        start, extent = self._span(axis.coordinate).start, axis.coordinate.extent
        if start.text == "0" and is_static(extent) and self.lengths[depth] <= extent:
            return length
        return frame.minimum(length, frame.subtract(extent, start))

    def _decided_bounds(self, depth: int) -> list[Bound]:
        """The bounds that are decided by the coordinates up to this depth, and not before."""
        open_axes = {axis.coordinate for axis in self.axes[depth + 1 :]}
        here = self.axes[depth].coordinate
        return [
            bound
            for bound in self.packing.access.bounds
            if here in bound[1].terms and open_axes.isdisjoint(bound[1].terms)
        ]

    def _innermost(self, place: Value, zero: bool) -> None:
        """Emit whole vectors, then a masked one."""
        frame, depth = self.frame, len(self.axes) - 1
        count, length, lanes = self._count(depth), self.lengths[depth], self.lanes
        if self.packing.tiling:
            self._unrolled(place, zero)
            return
        vectors = frame.b.binary("and", count, -lanes)
        if length >= lanes:
            with frame.b.loop(0, vectors, lanes) as loop:
                self._vector(place, loop.index, None, zero)
        if count.text == str(length) and length % lanes == 0:
            return
        with frame.b.when(frame.b.compare("slt", vectors, count)):
            self._vector(place, vectors, frame.lanes_below(vectors, count, lanes), zero)

    def _unrolled(self, place: Value, zero: bool) -> None:
        """Emit the rows of a tile as unrolled vectors."""
        frame, length, lanes = self.frame, self.lengths[-1], self.lanes
        for start in range(0, length, lanes):
            index, mask = frame.integer(start), None
            if start + lanes > length:
                mask = frame.lanes_below(index, length, lanes)
            self._vector(place, index, mask, zero)

    def _vector(self, place: Value, index: Value, mask: Value | None, zero: bool) -> None:
        frame, b = self.frame, self.frame.b
        address = b.element(self.destination, self.scalar, frame.add(place, index))
        zeros = constant(storage_type(self.dtype, self.lanes), 0)
        b.store(zeros if zero else self._values(index, mask), address, mask)

    def _values(self, index: Value, mask: Value | None) -> Value:
        frame, axis = self.frame, self.axes[-1]
        start = frame.add(self._start(axis), index)
        at = {**self.at, axis.coordinate: start}
        inside = self._bounds_mask(at)
        wanted = frame.b.binary("and", inside, mask) if inside and mask else inside or mask
        point = Point(frame, at, axis.coordinate, self.lanes, mask)
        value = point.raw_bits(self.packing.access.value, self.dtype, wanted)
        return value if inside is None else frame.b.select(inside, value, 0)

    def _bounds_mask(self, at: At) -> Value | None:
        """A mask of the lanes that bounds on the innermost axis allow, if there are such bounds."""
        frame, masks, bounds = self.frame, list[Value](), self._decided_bounds(len(self.axes) - 1)
        if self.packing.tiling:  # the first bound is the end of the last tile
            (_, offset, end), *bounds = bounds
            masks.append(frame.lanes_below(frame.evaluate(offset, at), end, self.lanes))
        if bounds:
            masks.append(frame.in_bounds(bounds, at, self.axes[-1].coordinate, self.lanes))
        return reduce(partial(frame.b.binary, "and"), masks) if masks else None

    def _element(self, place: Value, zero: bool) -> None:
        """Emit a copy without axes: one element."""
        frame, b = self.frame, self.frame.b
        value = constant(storage_type(self.dtype), 0)
        if not zero:
            value = Point(frame, self.at, None, 1).raw_bits(
                self.packing.access.value, self.dtype, None
            )
        b.store(value, b.element(self.destination, self.scalar, place))
