"""Removes copies that concatenate tensors: their producers write into the result directly.

A nest that only copies whole tensors one after the other into a buffer (`stack`, `concat` of rows)
is removed by `alias_concat`: the tensors' buffers become sub-buffers of the result.

A nest that interleaves them (`concat` of columns, `stack` and a transpose) is removed by
`concat_in_place` if each tensor has one producer, which then writes to the offsets of the result.
Other readers of a tensor read it from the result, on targets that read strided rows as fast as
contiguous ones; on other targets there must be none.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache, partial
from math import prod

from thalweg.ir.expr import Expr, Load, Select, Variable
from thalweg.ir.index import Affine, floor_mod, number, row_major, total
from thalweg.ir.kernel import Store
from thalweg.ir.rewrite import loads_in
from thalweg.ir.target import Target
from thalweg.lower.memory.buffers import Buffer, BufferKind, Pieces, nested_buffers
from thalweg.lower.nests.loop_nest import (
    LoopNest,
    NestTemplate,
    Renaming,
    dense_variables,
    digits_of,
    users_of,
)
from thalweg.lower.nests.split import Limits, chosen_ranges


@dataclass(frozen=True)
class Layout:
    """The layout of a tensor inside a whole: the extents of its axes, their strides in the whole,
    and its first element."""

    axes: tuple[tuple[int, int], ...]  # (extent, stride), the outermost first
    start: int

    @property
    def run(self) -> int:
        """The number of contiguous elements."""
        run = 1
        for extent, stride in reversed(self.axes):
            if stride != run:
                break
            run *= extent
        return run

    @property
    def is_contiguous(self) -> bool:
        """Whether the tensor lies in the whole as it is."""
        return self.run == prod(extent for extent, _ in self.axes)

    def place(self, offset: Affine) -> Affine | None:
        """An offset in the tensor as one in the whole; None where that is no sum of its terms."""
        parts, rest = [number(self.start)], offset
        for extent, stride in reversed(self.axes):
            parts.append(floor_mod(rest, 1, extent).scaled(stride))
            rest = floor_mod(rest, extent, 0)
        placed = total(parts)
        is_inside = rest == number(0) and placed.terms.keys() <= offset.terms.keys()
        return placed if is_inside else None


Layouts = dict[Buffer, Layout]  # of the parts of a whole


def alias_concat(nests: Sequence[LoopNest], pieces: Pieces) -> list[LoopNest]:
    """The nests without concatenating copies; adds the parts to `pieces`."""
    writers: dict[Buffer, list[Store]] = defaultdict(list)
    for nest in nests:
        for write, buffer in zip(nest.template.writes, nest.targets, strict=True):
            writers[buffer].append(write)
    removed: set[int] = set()
    aliases: dict[Buffer, frozenset[Buffer]] = {}
    copied = cache(_copied)
    for position, nest in enumerate(nests):
        layouts = _layouts(nest, copied)
        if not layouts or not all(layout.is_contiguous for layout in layouts.values()):
            continue
        (whole,), starts = nest.targets, {part: layout.start for part, layout in layouts.items()}
        if not pieces.keys().isdisjoint([whole, *starts]):
            continue
        if all(_is_written_once(writers[buffer]) for buffer in (whole, *starts)):
            if not aliases.keys().isdisjoint(starts):
                _move_pieces(starts, whole, pieces)
            pieces.update((buffer, (whole, start)) for buffer, start in starts.items())
            # A part may be a concatenation itself: then its own parts are what nests write.
            aliases[whole] = frozenset[Buffer]().union(*(aliases.get(p, {p}) for p in starts))
            removed.add(position)
    remaining = [nest for position, nest in enumerate(nests) if position not in removed]
    return [_with_aliases(nest, aliases) for nest in remaining] if removed else remaining


def _move_pieces(starts: Mapping[Buffer, int], whole: Buffer, pieces: Pieces) -> None:
    """Sub-buffers of the parts become sub-buffers of the whole."""
    for buffer, (part, start) in pieces.items():
        if part in starts:
            pieces[buffer] = whole, starts[part] + start


def _is_written_once(writes: Sequence[Store]) -> bool:
    """Whether a buffer is a temporary that one unconditional write fills."""
    is_single = len(writes) == 1 and writes[0].is_plain
    return is_single and writes[0].buffer.kind is BufferKind.TEMPORARY


def _with_aliases(nest: LoopNest, aliases: Mapping[Buffer, frozenset[Buffer]]) -> LoopNest:
    """The nest, with the sub-buffers of the buffers it reads as aliases."""
    aliased = [aliases[buffer] for buffer in nest.loaded if buffer in aliases]
    return replace(nest, aliases=nest.aliases.union(*aliased)) if aliased else nest


def _layouts(nest: LoopNest, copied: Callable[[NestTemplate], Layouts]) -> Layouts:
    """The layout of each part that a nest copies into a whole; empty if it does anything else. A
    view that starts elsewhere than at 0 is no whole part."""
    if nest.aliases or any(shift for _, shift in nest.views):
        return {}
    return {nest.bound[buffer][0]: layout for buffer, layout in copied(nest.template).items()}


def _copied(template: NestTemplate) -> Layouts:
    if not _is_written_once(template.writes) or not isinstance(template.values[0], Select):
        return {}
    if len(template.loads) < 2 or template.serial or template.product:
        return {}
    (write,) = template.writes
    layouts: Layouts = {}
    for leaf, limits in chosen_ranges(write.value, {v: (0, v.extent) for v in template.variables}):
        layout = layout_of(write, leaf, limits) if isinstance(leaf, Load) else None
        if layout is None or not isinstance(leaf, Load) or leaf.buffer in layouts:
            return {}
        layouts[leaf.buffer] = layout
    return layouts


# Interleaved tensors


def concat_in_place(nests: Sequence[LoopNest], pieces: Pieces, target: Target) -> list[LoopNest]:
    """The nests without interleaving copies."""
    fixed = nested_buffers(pieces)
    writers, readers = users_of(nests)
    result: list[LoopNest | None] = list(nests)
    copied = cache(_copied)
    writing = cache(partial(_template_writing, target=target))
    for position, copy in enumerate(nests):
        parts = _layouts(copy, copied)
        if not parts or not fixed.isdisjoint(parts):
            continue
        (whole,) = copy.targets
        others = {reader for part in parts for reader in readers[part]} - {position}
        if any(buffer.kind is not BufferKind.TEMPORARY for buffer in (whole, *parts)):
            continue
        if any(len(writers[part]) != 1 for part in parts) or writers[whole] != [position]:
            continue
        if others and not target.reads_strided:
            continue
        producers = dict.fromkeys(writers[part][0] for part in parts)
        changed = {
            writer: _writing_to_whole(result[writer], parts, whole, writing) for writer in producers
        }
        for reader in others:
            is_copy = bool(_layouts(nests[reader], copied))
            before = None if is_copy else changed.get(reader, result[reader])
            changed[reader] = _reading_from_whole(before, parts, whole)
        if None not in changed.values():
            result[position] = None
            for other, nest in changed.items():
                result[other] = nest
    return [nest for nest in result if nest is not None]


def _writing_to_whole(
    producer: LoopNest | None,
    parts: Mapping[Buffer, Layout],
    whole: Buffer,
    writing: Callable[..., tuple[NestTemplate, Buffer] | None],
) -> LoopNest | None:
    """A producer that writes to the whole; None where it cannot."""
    if producer is None:
        return None
    layouts = tuple(parts.get(buffer) for buffer in producer.targets)
    found = writing(producer.template, layouts)
    return found and producer.with_template(found[0], {found[1]: (whole, 0)})


def _template_writing(
    template: NestTemplate, layouts: Sequence[Layout | None], target: Target
) -> tuple[NestTemplate, Buffer] | None:
    """A template that writes some of its results to a whole, and the whole."""
    writes: list[Store] = []
    pairs = list(zip(template.writes, layouts, strict=True))
    whole = next(replace(write.buffer) for write, layout in pairs if layout)
    for write, layout in pairs:
        if layout is None:
            writes.append(write)
            continue
        offset = layout.place(write.offset)
        # The tiles of a contraction are stored by whole vectors.
        is_short = layout.run * whole.dtype.itemsize < target.stored_bytes
        if offset is None or not _is_written_once([write]) or (template.product and is_short):
            return None
        writes.append(replace(write, buffer=whole, offset=offset))
    return replace(template, writes=tuple(writes)), whole


def _reading_from_whole(
    reader: LoopNest | None, parts: Mapping[Buffer, Layout], whole: Buffer
) -> LoopNest | None:
    """A nest that reads the parts from the whole. None for a contraction, a check, or
    offsets that are not affine in the whole."""
    if reader is None or reader.product is not None or reader.template.checks:
        return None
    loads: dict[Expr, Expr] = {}
    for load in loads_in([root for write in reader.writes for root in write.roots]):
        if load.buffer in parts:
            new_offset = parts[load.buffer].place(load.offset)
            if new_offset is None:
                return None
            loads[load] = Load(whole, new_offset)
    return reader.with_writes(tuple(map(Renaming({}, loads.get).store, reader.writes)))


# Offsets


def layout_of(write: Store, leaf: Load, limits: Limits) -> Layout | None:
    """The layout of a part that a copy goes through, each element once; None for other copies."""
    buffer, whole = leaf.buffer, write.buffer
    if (
        buffer.dtype != whole.dtype
        or buffer is whole
        or not write.offset.terms.keys() <= limits.keys()
    ):
        return None
    renamed = Renaming({v: _in_digits(v, *ends, leaf.offset) for v, ends in limits.items()})
    read, written = renamed.place(leaf.offset), renamed.place(write.offset)
    variables = dense_variables(read, buffer.size)
    if variables is None or written.variables != frozenset(variables):
        return None
    return Layout(tuple([(v.extent, written.factor(v)) for v in variables]), written.constant)


def _in_digits(variable: Variable, low: int, high: int, offset: Affine) -> Affine:
    """An index that runs from `low` to `high`, by the digits of it that an offset has."""
    return number(low) + row_major(digits_of(variable, high - low, offset.floor_mods))
