"""Drafts: kernels while they are being put together.

A draft is a loop nest with its writes, as expressions over buffers with offsets in normal form, and
where it holds a sum of products, that sum taken out. Drafts that do the same on other memory share
their nest. Fusion joins drafts; `thalweg.lower.nests.bufferize` turns them into kernels.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import compress
from types import MappingProxyType
from typing import Any

import numpy as np

from thalweg.graph.node import Node
from thalweg.ir.expr import Cast, Const, Expr, Load, Reduce, Scan
from thalweg.ir.index import Affine, expressed, number
from thalweg.ir.index import affine as as_sum
from thalweg.ir.index import variable as index_of
from thalweg.ir.loop import Variable
from thalweg.ir.rewrite import Rewriter, walk
from thalweg.lower.memory.buffers import Buffer
from thalweg.lower.nests.inline_producers import PendingCheck

Bound = tuple[int, Affine, int]
Positions = defaultdict[Buffer, list[int]]  # of drafts that use a buffer, in order
_NOTHING: Mapping[Any, Any] = MappingProxyType({})


@dataclass(frozen=True, eq=False)
class Factor:
    """One side of a sum of products: a load, perhaps cast, counting as zero outside its bounds."""

    value: Expr
    bounds: tuple[Bound, ...]

    @property
    def load(self) -> Load:
        """The load itself, without casts."""
        value = self.value
        while isinstance(value, Cast):
            value = value.value
        assert isinstance(value, Load)
        return value

    @property
    def buffer(self) -> Buffer:
        """What is read."""
        return self.load.buffer


@dataclass(frozen=True, eq=False)
class Product:
    """Σ over the reduced variables of a · b, by the roles of the draft's variables."""

    batch: tuple[Variable, ...]
    rows: tuple[Variable, ...]
    columns: tuple[Variable, ...]
    reduced: tuple[Variable, ...]
    a: Factor
    b: Factor
    dtype: Any


@dataclass(frozen=True, eq=False)
class Write:
    """One element that is written for each value of the variables."""

    buffer: Buffer
    variables: tuple[Variable, ...]
    offset: Affine
    value: Expr
    combine: str = "set"
    inside: Expr | None = None
    distinct: frozenset[Variable] = frozenset()


#: A buffer that stands for one of a nest, and how many elements further on its places are in it.
Home = tuple[Buffer, int]

#: The least constant of places in a buffer, and the last of its elements that may be touched.
Span = tuple[int, float]


@dataclass(frozen=True, eq=False)
class NestTemplate:
    """Loops over `variables` and what they write, told on the memory they were first seen on.

    Equal steps of an unrolled loop are one nest, each on memory of its own: what follows from the
    nest alone is found once for all of them.
    """

    variables: tuple[Variable, ...]
    writes: tuple[Write, ...]
    product: Product | None = None
    serial: frozenset[Variable] = frozenset()

    @property
    def loads(self) -> dict[Buffer, list[Affine]]:
        """Where each buffer is read."""
        return self._seen[0]

    @property
    def parts(self) -> int:
        """How large its expressions are."""
        return self._seen[1]

    @cached_property
    def _seen(self) -> tuple[dict[Buffer, list[Affine]], int]:
        return _loads_and_parts(self.roots)

    @property
    def roots(self) -> list[Expr | None]:
        """All its expressions."""
        roots: list[Expr | None] = []
        for write in self.writes:
            roots += write.value, *write.offset.parts
        roots += [write.inside for write in self.writes]
        if self.product is not None:
            roots += [self.product.a.value, self.product.b.value]
        return roots

    @cached_property
    def buffers(self) -> tuple[Buffer, ...]:
        """The buffers it writes and reads."""
        return tuple(dict.fromkeys([*(write.buffer for write in self.writes), *self.loads]))

    @cached_property
    def written(self) -> tuple[int, ...]:
        """Which of its buffers it writes."""
        return tuple([self.buffers.index(write.buffer) for write in self.writes])

    @cached_property
    def loaded(self) -> tuple[int, ...]:
        """Which of its buffers it loads from."""
        return tuple(map(self.buffers.index, self.loads))

    @cached_property
    def read(self) -> tuple[int, ...]:
        """Which of its buffers it reads: one that is combined into is read as well."""
        combines = [write.combine != "set" for write in self.writes]
        return self.loaded + tuple(compress(self.written, combines))

    @cached_property
    def spans(self) -> tuple[Span, ...]:
        """The span of each of its buffers."""
        written = [(write.buffer, write.offset) for write in self.writes]
        return tuple(spans_of(written, self.loads).values())

    @cached_property
    def has_reductions(self) -> bool:
        """Whether its writes hold reductions (a product's own sum aside)."""
        values = [write.value for write in self.writes]
        return any(isinstance(part, Reduce | Scan) for part in walk(values))

    @cached_property
    def can_move(self) -> bool:
        """Whether it may be had on other memory: its places follow from its loops alone. Reductions
        stay: two in one nest must not count with the same variables."""
        places = [place for offsets in self.loads.values() for place in offsets]
        places += [write.offset for write in self.writes]
        return not self.has_reductions and not any(place.parts for place in places)


@dataclass(frozen=True, eq=False)
class LoopNest:
    """A nest on memory of its own, and which nodes it computes."""

    nest: NestTemplate
    nodes: tuple[Node, ...]
    needed: tuple[PendingCheck, ...] = ()
    behind: frozenset[Buffer] = frozenset()  # pieces of a buffer it reads, written on their own
    moved: tuple[Home, ...] | None = None  # for each buffer of the nest, if it was moved

    @classmethod
    def of(
        cls,
        variables: tuple[Variable, ...],
        writes: tuple[Write, ...],
        nodes: tuple[Node, ...],
        product: Product | None = None,
        needed: tuple[PendingCheck, ...] = (),
        serial: frozenset[Variable] = frozenset(),
        behind: frozenset[Buffer] = frozenset(),
    ) -> LoopNest:
        """A draft of these writes."""
        return cls(NestTemplate(variables, writes, product, serial), nodes, needed, behind)

    def writing(self, writes: tuple[Write, ...]) -> LoopNest:
        """The same with other writes."""
        nest = NestTemplate(self.variables, writes, self.product, self.serial)
        return LoopNest(nest, self.nodes, self.needed, self.behind)

    def multiplying(self, product: Product) -> LoopNest:
        """The same with another product."""
        nest = NestTemplate(self.variables, self.writes, product, self.serial)
        return LoopNest(nest, self.nodes, self.needed, self.behind)

    def changed(self, nest: NestTemplate, more: Mapping[Buffer, Home] = _NOTHING) -> LoopNest:
        """The same with a nest that was made of its own; `more` tells of buffers that are new."""
        homes = {**dict(zip(self.nest.buffers, self.homes, strict=True)), **more}
        moved = tuple([homes[buffer] for buffer in nest.buffers])
        stays = all(home == (buffer, 0) for home, buffer in zip(moved, nest.buffers, strict=True))
        return LoopNest(nest, self.nodes, self.needed, self.behind, None if stays else moved)

    @cached_property
    def homes(self) -> tuple[Home, ...]:
        """What stands for each buffer of the nest."""
        return self.moved or tuple([(buffer, 0) for buffer in self.nest.buffers])

    @property
    def variables(self) -> tuple[Variable, ...]:
        """Its loops."""
        return self.nest.variables

    @property
    def serial(self) -> frozenset[Variable]:
        """Those of its loops whose turns depend on one another."""
        return self.nest.serial

    @property
    def has_reductions(self) -> bool:
        """Whether its writes hold reductions (a product's own sum aside)."""
        return self.nest.has_reductions

    @property
    def domain(self) -> tuple[int, ...]:
        """The extents of its loops."""
        return tuple([variable.extent for variable in self.variables])

    @cached_property
    def _moving(self) -> Moving:
        return Moving(dict(zip(self.nest.buffers, self.homes, strict=True)))

    @cached_property
    def writes(self) -> tuple[Write, ...]:
        """What is written for each value of the variables."""
        if self.moved is None:
            return self.nest.writes
        return tuple([self._moving.write(write) for write in self.nest.writes])

    @cached_property
    def product(self) -> Product | None:
        """The sum of products that the writes take."""
        product = self.nest.product
        if self.moved is None or product is None:
            return product
        a, b = (Factor(self._moving.of(f.value), f.bounds) for f in (product.a, product.b))
        return replace(product, a=a, b=b)

    @cached_property
    def places(self) -> tuple[tuple[Buffer, Affine], ...]:
        """Which buffers are written, and where."""
        if self.moved is None:
            return tuple([(write.buffer, write.offset) for write in self.nest.writes])
        return tuple([self._moving.place(write.buffer, write.offset) for write in self.nest.writes])

    @cached_property
    def loads(self) -> dict[Buffer, list[Affine]]:
        """Where each buffer is read."""
        if self.needed:
            return _loads_and_parts(self._roots())[0]
        if self.moved is None:
            return self.nest.loads
        return dict([self._moving.places(*pair) for pair in self.nest.loads.items()])

    @property
    def spans(self) -> dict[Buffer, Span]:
        """The span of each buffer that it touches."""
        if self.needed:
            return spans_of(self.places, self.loads)
        pairs = zip(self.homes, self.nest.spans, strict=True)
        return {home: (low + shift, high + shift) for (home, shift), (low, high) in pairs}

    @property
    def parts(self) -> int:
        """How large its expressions are."""
        return _loads_and_parts(self._roots())[1] if self.needed else self.nest.parts

    def _roots(self) -> list[Expr | None]:
        return [*self.nest.roots, *(need.condition for need in self.needed)]

    @property
    def loaded(self) -> list[Buffer]:
        """The buffers it loads from."""
        return list(self.loads) if self.needed else [self.homes[n][0] for n in self.nest.loaded]

    @cached_property
    def reads(self) -> frozenset[Buffer]:
        """The buffers it reads, all pieces of them among these."""
        found = [self.homes[number][0] for number in self.nest.read]
        return frozenset([*found, *self.loads] if self.needed else found) | self.behind

    @cached_property
    def targets(self) -> tuple[Buffer, ...]:
        """The buffer of each write."""
        return tuple([self.homes[number][0] for number in self.nest.written])

    @cached_property
    def written(self) -> frozenset[Buffer]:
        """The buffers it writes."""
        return frozenset(self.targets)


def users_of(drafts: Sequence[LoopNest]) -> tuple[Positions, Positions]:
    """For each buffer the positions of the drafts that write it, and of those that read it."""
    writers: Positions = defaultdict(list)
    readers: Positions = defaultdict(list)
    for position, draft in enumerate(drafts):
        for buffer in draft.written:
            writers[buffer].append(position)
        for buffer in draft.reads:
            readers[buffer].append(position)
    return writers, readers


def spans_of(
    places: Sequence[tuple[Buffer, Affine]], loads: Mapping[Buffer, list[Affine]] = _NOTHING
) -> dict[Buffer, Span]:
    """The spans of buffers that are touched at these places, in the order in which they appear."""
    used: dict[Buffer, list[Affine]] = {}
    for buffer, offset in places:
        used.setdefault(buffer, []).append(offset)
    for buffer, offsets in loads.items():
        used[buffer] = used.get(buffer, []) + offsets
    return {buffer: _span(offsets) for buffer, offsets in used.items()}


def _span(places: Sequence[Affine]) -> Span:
    return min(place.constant for place in places), max(place.bounds[1] for place in places)


def _loads_and_parts(roots: list[Expr | None]) -> tuple[dict[Buffer, list[Affine]], int]:
    found: dict[Buffer, list[Affine]] = {}
    count = 0
    for part in walk(roots):
        count += not isinstance(part, Const)
        if isinstance(part, Load):
            found.setdefault(part.buffer, []).append(part.offset)
    return found, count


class Moving(Rewriter):
    """Parts of a nest on other memory."""

    def __init__(self, homes: Mapping[Buffer, Home]) -> None:
        super().__init__()
        self._homes = homes

    def write(self, write: Write) -> Write:
        """A write."""
        buffer, offset = self.place(write.buffer, write.offset)
        value, inside = self.of(write.value), self.unless_none(write.inside)
        return replace(write, buffer=buffer, offset=offset, value=value, inside=inside)

    def place(self, buffer: Buffer, offset: Affine) -> tuple[Buffer, Affine]:
        """A place in a buffer."""
        home, shift = self._homes[buffer]
        return home, offset + number(shift) if shift else offset

    def places(self, buffer: Buffer, offsets: list[Affine]) -> tuple[Buffer, list[Affine]]:
        """Places in a buffer."""
        home, shift = self._homes[buffer]
        return home, [offset + number(shift) for offset in offsets] if shift else offsets

    def load(self, buffer: Buffer, offset: Affine) -> Expr:
        return Load(*self.place(buffer, offset))


class Renaming(Rewriter):
    """Expressions with sums of other variables, and other parts, put in place of some."""

    def __init__(
        self,
        variables: Mapping[Variable, Affine],
        replace: Callable[[Expr], Expr | None] = lambda part: None,
    ) -> None:
        super().__init__()
        self._variables = variables
        self._replace = replace

    def early(self, node: Expr) -> Expr | None:
        return self._replace(node)

    def index(self, variable: Variable) -> Expr:
        new = self._variables.get(variable)
        return super().index(variable) if new is None else expressed(new)

    def offset(self, offset: Affine) -> Affine:
        """A sum with its variables replaced, whose opaque integers were made anew."""
        return offset.replaced(self._sum)

    def affine(self, value: Affine) -> Affine:
        """A sum with its variables replaced."""
        for part in value.parts:
            self.of(part)
        return self.offset(value)

    def _sum(self, atom: Variable | Expr) -> Affine | None:
        if isinstance(atom, Variable):
            return self._variables.get(atom)
        made = self.new(atom)
        return None if made is atom else as_sum(made)


def renaming(old: Sequence[Variable], new: Sequence[Variable]) -> dict[Variable, Affine]:
    """Variables in place of others, one by one."""
    pairs = zip(old, new, strict=True)
    return {before: index_of(after) for before, after in pairs if before is not after}


def is_float(dtype: Any) -> bool:
    """Whether a dtype is a float that code computes in as it is."""
    return np.dtype(dtype) in (np.dtype(np.float32), np.dtype(np.float64))
