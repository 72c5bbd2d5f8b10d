"""Nests too large for one kernel, cut into several.

A kernel holds at most `max_expressions` and goes through at most `max_streams` buffers at a time
(`thalweg.ir.target` has both, and why). A sum of thousands of terms is stored after some of them
and continued from there; a concatenation of thousands of tensors is written some of them at a time.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from math import prod

from thalweg.ir.expr import Bitcast, Call, Cast, Const, Expr, Index, Load, Select, select
from thalweg.ir.index import number, row_major, upper_border
from thalweg.ir.index import variable as index_of
from thalweg.ir.loop import Variable
from thalweg.ir.rewrite import Rewriter, walk
from thalweg.ir.target import Target
from thalweg.lower.memory.buffers import Buffer, BufferKind
from thalweg.lower.nests.loop_nest import Home, LoopNest, NestTemplate, Renaming, Write

_Range = tuple[Expr, int, int]  # a value for an index from a number up to another

# Values in steps


def in_steps(drafts: Sequence[LoopNest], target: Target) -> list[LoopNest]:
    """The drafts, large values computed by several of which each reads what the last one stored."""
    known: dict[NestTemplate, _Steps] = {}
    result: list[LoopNest] = []
    for draft in drafts:
        nest = draft.nest
        if not _is_large(nest, target) or not _is_plain(nest):
            result.append(draft)
            continue
        if nest not in known:
            known[nest] = _Steps(nest, target)
        result += known[nest].of_nest(draft)
    return result


def _is_plain(nest: NestTemplate) -> bool:
    """Whether all of a nest's values may be computed for all values of its variables, and alone."""
    plain = all(write.combine == "set" and write.inside is None for write in nest.writes)
    return plain and nest.product is None and not nest.serial


def _is_large(nest: NestTemplate, target: Target) -> bool:
    streams = len(nest.loads) + len(nest.writes)
    return nest.parts > target.max_expressions or streams > target.max_streams


@dataclass
class _Amount:
    """What an expression adds to a kernel."""

    parts: int = 0
    buffers: set[Buffer] = field(default_factory=set[Buffer])

    def of(self, *others: _Amount) -> _Amount:
        """This and others together."""
        parts = self.parts + sum(other.parts for other in others)
        return _Amount(parts, self.buffers.union(*(other.buffers for other in others)))

    def fits(self, target: Target) -> bool:
        """Whether there is room for it beside what it is stored to, or loaded from."""
        streams = len(self.buffers) + 2
        return self.parts < target.max_expressions and streams <= target.max_streams


def _amount(part: Expr) -> _Amount:
    found = _Amount()
    for one in walk([part]):
        found.parts += not isinstance(one, Const)
        if isinstance(one, Load):
            found.buffers.add(one.buffer)
    return found


class _Steps(Rewriter):
    """The nests of one that was too large. The values are made again from their leaves on, and what
    has grown too large is stored."""

    def __init__(self, nest: NestTemplate, target: Target) -> None:
        super().__init__()
        self._nest, self._target = nest, target
        self._amounts: dict[Expr, _Amount] = {}  # of what nobody counted yet
        self._stored: list[Buffer] = []
        self._nests: list[NestTemplate] = []
        writes = tuple([replace(write, value=self._value(write)) for write in nest.writes])
        self._nests.append(replace(nest, writes=writes) if self._nests else nest)

    def of_nest(self, draft: LoopNest) -> list[LoopNest]:
        """What does the work of a draft."""
        fresh: dict[Buffer, Home] = {buffer: (replace(buffer), 0) for buffer in self._stored}
        first, *others = [draft.changed(nest, fresh) for nest in self._nests]
        return [first, *(replace(other, needed=()) for other in others)]

    def _value(self, write: Write) -> Expr:
        self._write = write
        return self.of(write.value)

    def early(self, node: Expr) -> Expr | None:
        if isinstance(node, Call | Cast | Bitcast):
            return None
        # It stands whole in a kernel: its parts count with variables of its own, or may not be
        # computed where they are not chosen.
        self._amounts[node] = _amount(node)
        return node

    def rebuilt(self, node: Expr) -> Expr:
        inner = list(dict.fromkeys(node.parts))
        amounts = {part: self._amounts.pop(part, _Amount()) for part in inner}  # each counts once
        for largest in sorted(inner, key=lambda part: amounts[part].parts, reverse=True):
            if _Amount(1).of(*amounts.values()).fits(self._target):
                break
            if isinstance(largest, Call | Cast | Bitcast):
                stored = self._store(self.new(largest))
                self._made[largest] = stored
                amounts[largest] = _Amount(1, {stored.buffer})
        self._amounts[node] = _Amount(1).of(*amounts.values())
        return super().rebuilt(node)

    def _store(self, part: Expr) -> Load:
        write = self._write
        size = prod(variable.extent for variable in write.variables)
        buffer = Buffer(BufferKind.TEMPORARY, part.dtype, size, write.buffer.source)
        place = row_major(write.variables)
        self._stored.append(buffer)
        stored = Write(buffer, write.variables, place, part)
        self._nests.append(NestTemplate(write.variables, (stored,)))
        return Load(buffer, place)


# Places in pieces


def in_pieces(drafts: Sequence[LoopNest], target: Target) -> list[LoopNest]:
    """The drafts, large choices by an index written by several of which each has some places."""
    result: list[LoopNest] = []
    for draft in drafts:
        nest = draft.nest
        is_small = nest.parts <= target.max_expressions
        if is_small or len(nest.writes) != 1 or not _is_plain(nest):
            result.append(draft)
            continue
        pieces = [] if draft.needed else _pieces(draft.writes[0], target.max_expressions)
        result += [_only(draft, piece) for piece in pieces] or [draft]
    return result


def _only(draft: LoopNest, piece: Write) -> LoopNest:
    """A draft that does a piece of another one's write."""
    return LoopNest.of(piece.variables, (piece,), draft.nodes, behind=draft.behind)


def _pieces(write: Write, most: int) -> list[Write]:
    along = _border(write.value)
    if along is None or along[0] not in write.variables:
        return []
    groups = _groups(_ranges(write.value, along[0]), most)
    return [_piece(write, along[0], group) for group in groups]


def _ranges(value: Expr, variable: Variable) -> Iterator[_Range]:
    """What an index chooses from, in the order of the index."""
    pending = [(value, 0, variable.extent)]
    while pending:
        part, low, high = pending.pop()
        found = _border(part)
        if (
            not isinstance(part, Select)
            or found is None
            or found[0] is not variable
            or not low < found[1] < high
        ):
            yield part, low, high
        else:
            pending += [(part.otherwise, found[1], high), (part.chosen, low, found[1])]


def _border(choice: Expr) -> tuple[Variable, int] | None:
    """The variable that a choice is made by, and the number below which it is for the first."""
    found = upper_border(choice.condition) if isinstance(choice, Select) else None
    if found is None or not isinstance(found[0], Variable):
        return None
    return found[0], found[1]


def _groups(ranges: Iterator[_Range], most: int) -> Iterator[list[_Range]]:
    """Ranges that follow one another, together as many as one kernel holds."""
    group: list[_Range] = []
    parts = 0
    for one in ranges:
        own = _amount(one[0]).parts + 2  # with the choice and its condition
        if group and parts + own >= most:
            yield group
            group, parts = [], 0
        group.append(one)
        parts += own
    yield group


def _piece(write: Write, variable: Variable, ranges: Sequence[_Range]) -> Write:
    """The part of a write where an index is in some ranges."""
    first, last = ranges[0][1], ranges[-1][2]
    fresh = Variable.fresh(last - first)
    place = Index(fresh)
    renaming = Renaming({variable: index_of(fresh) + number(first)})

    def chosen(low: int, high: int) -> Expr:
        if high - low == 1:
            return renaming.of(ranges[low][0])
        middle = (low + high) // 2
        return select(place < ranges[middle][1] - first, chosen(low, middle), chosen(middle, high))

    loops = [fresh if v is variable else v for v in write.variables]
    return replace(
        write,
        variables=tuple([v for v in loops if v.extent != 1]),
        offset=renaming.affine(write.offset),
        value=chosen(0, len(ranges)),
    )
