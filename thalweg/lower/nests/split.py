"""Splits nests that are too large for one kernel.

A kernel holds at most `max_expressions` and goes through at most `max_streams` buffers at a time
(`thalweg.ir.target` has both, and why). A sum of thousands of terms is stored after some of them
and continued from there; a concatenation of thousands of tensors is written a range of them at a
time.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import cache, partial

from thalweg.ir.expr import Bitcast, Call, Cast, Const, Expr, Index, Load, Select, Variable, select
from thalweg.ir.index import FloorMod, affine, index_of, number
from thalweg.ir.kernel import Store
from thalweg.ir.rewrite import Rewriter, loads_in, walk
from thalweg.ir.target import Target
from thalweg.lower.memory.buffers import Buffer, View
from thalweg.lower.nests.loop_nest import LoopNest, NestTemplate, Renaming, stored

#: The range of values that each index takes.
Limits = dict[Variable, tuple[int, int]]
_Range = tuple[Expr, int, int]  # a value, and the range of the index that chooses it

# Large values


def split_large_values(nests: Sequence[LoopNest], target: Target) -> list[LoopNest]:
    """The nests, with large values split: each nest continues from what the one before stored."""
    steps = cache(partial(_ValueSplit, target=target))
    result: list[LoopNest] = []
    for nest in nests:
        is_split = _is_large(nest.template, target) and nest.template.is_plain
        result += steps(nest.template).nests_of(nest) if is_split else [nest]
    return result


def _is_large(template: NestTemplate, target: Target) -> bool:
    streams = len(template.loads) + len(template.writes)
    return not target.holds(template.expr_size, streams)


@dataclass
class _Size:
    """The size of an expression in a kernel: expressions, and buffers that it streams through."""

    exprs: int = 0
    buffers: set[Buffer] = field(default_factory=set[Buffer])

    def of(self, *others: _Size) -> _Size:
        """The size of this and others together."""
        exprs = self.exprs + sum(other.exprs for other in others)
        return _Size(exprs, self.buffers.union(*(other.buffers for other in others)))

    def fits(self, target: Target) -> bool:
        """Whether a kernel holds it, with a buffer to store to and one to continue from."""
        return target.holds(self.exprs + 1, len(self.buffers) + 2)


def _size_of(part: Expr) -> _Size:
    exprs = sum(not isinstance(expr, Const) for expr in walk([part]))
    return _Size(exprs, {load.buffer for load in loads_in([part])})


class _ValueSplit(Rewriter):
    """The templates that a large one is split into. Values are rebuilt from their leaves; a
    subexpression that grows too large is stored."""

    def __init__(self, template: NestTemplate, target: Target) -> None:
        super().__init__()
        self._target = target
        self._sizes: dict[Expr, _Size] = {}  # of expressions that no larger one contains yet
        self._stored: list[Buffer] = []
        self._templates: list[NestTemplate] = []
        writes = tuple([replace(write, value=self._value(write)) for write in template.writes])
        self._templates.append(replace(template, writes=writes) if self._templates else template)

    def nests_of(self, nest: LoopNest) -> list[LoopNest]:
        """The nests that replace an instance of the template."""
        fresh: dict[Buffer, View] = {buffer: (replace(buffer), 0) for buffer in self._stored}
        return [nest.with_template(template, fresh) for template in self._templates]

    def _value(self, write: Store) -> Expr:
        self._write = write
        return self.of(write.value)

    def early(self, node: Expr) -> Expr | None:
        if isinstance(node, Call | Cast | Bitcast):
            return None
        # Other expressions are not split: they bind variables, or guard their operands.
        self._sizes[node] = _size_of(node)
        return node

    def rebuilt(self, node: Expr) -> Expr:
        inner = list(dict.fromkeys(node.parts))
        sizes = {part: self._sizes.pop(part, _Size()) for part in inner}  # each counts once
        for largest in sorted(inner, key=lambda part: sizes[part].exprs, reverse=True):
            if _Size(1).of(*sizes.values()).fits(self._target):
                break
            if isinstance(largest, Call | Cast | Bitcast):
                load = self._store(self.new(largest))
                self._rewritten[largest] = load
                sizes[largest] = _Size(1, {load.buffer})
        self._sizes[node] = _Size(1).of(*sizes.values())
        return super().rebuilt(node)

    def _store(self, part: Expr) -> Load:
        loops = self._write.variables
        write, load = stored(part, loops, self._write.buffer.source)
        self._stored.append(write.buffer)
        self._templates.append(NestTemplate(loops, (write,)))
        return load


# Large selects by an index


def split_large_selects(nests: Sequence[LoopNest], target: Target) -> list[LoopNest]:
    """The nests, with large selects by an index split: each nest writes a range of the index."""
    result: list[LoopNest] = []
    for nest in nests:
        template = nest.template
        is_large = template.expr_size > target.max_expressions
        is_split = is_large and len(template.writes) == 1 and template.is_plain
        pieces = _split_write(nest.writes[0], target.max_expressions) if is_split else []
        result += [
            LoopNest(NestTemplate(write.variables, (write,)), nest.nodes, aliases=nest.aliases)
            for write in pieces
        ] or [nest]
    return result


def _split_write(write: Store, max_size: int) -> list[Store]:
    border = _border(write.value, {v: (0, v.extent) for v in write.variables})
    if border is None:
        return []
    along, _ = border
    leaves = chosen_ranges(write.value, {along: (0, along.extent)})
    groups = _groups(((part, *limits[along]) for part, limits in leaves), max_size)
    return [_restricted(write, along, group) for group in groups]


def chosen_ranges(value: Expr, limits: Limits) -> Iterator[tuple[Expr, Limits]]:
    """The values that nested selects by some indices choose from, in order, and the ranges of these
    indices for each."""
    pending = [(value, limits)]
    while pending:
        part, limits = pending.pop()
        border = _border(part, limits)
        if border is None or not isinstance(part, Select):
            yield part, limits
            continue
        variable, bound = border
        low, high = limits[variable]
        pending.append((part.otherwise, {**limits, variable: (bound, high)}))
        pending.append((part.chosen, {**limits, variable: (low, bound)}))


def _border(part: Expr, limits: Limits) -> tuple[Variable, int] | None:
    """The index of a select by `index < bound`, or by `index // divisor < bound`, and the bound of
    the index, if that is inside its range."""
    match part:
        case Select(condition=Call(function="lt", arguments=(left, Const(value=limit)))):
            term, bound = affine(left).sole_term if left.is_index else None, int(limit)
        case _:
            return None
    if isinstance(term, FloorMod) and not term.modulus:
        term, bound = term.number.sole_term, bound * term.divisor
    if not isinstance(term, Variable) or term not in limits:
        return None
    low, high = limits[term]
    return (term, bound) if low < bound < high else None


def _groups(ranges: Iterable[_Range], max_size: int) -> Iterator[list[_Range]]:
    """Consecutive ranges in groups that fit a kernel each."""
    group: list[_Range] = []
    size = 0
    for span in ranges:
        added = _size_of(span[0]).exprs + 2  # with the choice and its condition
        if group and size + added >= max_size:
            yield group
            group, size = [], 0
        group.append(span)
        size += added
    yield group


def _restricted(write: Store, variable: Variable, ranges: Sequence[_Range]) -> Store:
    """The write, restricted to some ranges of an index."""
    first, last = ranges[0][1], ranges[-1][2]
    fresh = Variable.fresh(last - first)
    index = Index(fresh)
    renaming = Renaming({variable: index_of(fresh) + number(first)})

    def chosen(low: int, high: int) -> Expr:
        if high - low == 1:
            return renaming.of(ranges[low][0])
        middle = (low + high) // 2
        return select(index < ranges[middle][1] - first, chosen(low, middle), chosen(middle, high))

    loops = [fresh if v is variable else v for v in write.variables]
    return replace(
        write,
        variables=tuple([v for v in loops if v.extent != 1]),
        offset=renaming.place(write.offset),
        value=chosen(0, len(ranges)),
    )
