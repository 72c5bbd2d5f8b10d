"""Loop nests: what the lowering passes rewrite, between the graph and kernels.

A nest is loops and writes: expressions over buffers, with offsets in normal form. A sum of products
is a `Contraction` beside the writes. Nests that compute the same on other buffers are instances of
one `NestTemplate`. `thalweg.lower.nests.bufferize` makes kernels of nests.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import chain, pairwise
from types import MappingProxyType
from typing import Any

from thalweg.graph.node import Node
from thalweg.ir.expr import Const, Expr, Load, Reduce, Scan, Variable
from thalweg.ir.index import Affine, FloorMod, expressed, index_of, number, row_major
from thalweg.ir.kernel import Check, Contraction, Kernel, KernelRewriter, Loops, Store
from thalweg.ir.loop import iterations
from thalweg.ir.rewrite import Replace, loads_in, walk
from thalweg.lower.memory.buffers import Buffer, View

Positions = defaultdict[Buffer, list[int]]  # of the nests that access each buffer, ascending
_NOTHING: Mapping[Any, Any] = MappingProxyType({})


def stored(value: Expr, loops: tuple[Variable, ...], source: Any) -> tuple[Store, Load]:
    """The write of a value to a new temporary, an element per iteration, and the load of it."""
    buffer, offset = Buffer.temporary(value.dtype, iterations(loops), source), row_major(loops)
    return Store(buffer, loops, offset, value), Load(buffer, offset)


#: The first and the last element of a buffer that may be touched.
Span = tuple[int, float]


@dataclass(frozen=True, eq=False)
class NestTemplate:
    """Loops over `variables` and what they write, on the buffers of the first instance.

    The iterations of an unrolled loop are instances of one template on other buffers. Properties of
    the template are computed once for all of them.
    """

    variables: tuple[Variable, ...]
    writes: tuple[Store, ...]
    product: Contraction | None = None
    serial: frozenset[Variable] = frozenset()  # that carry a dependence between iterations
    is_sealed: bool = False  # matched as it is by a code generator: nothing is fused into it
    checks: tuple[Check, ...] = ()  # for each node of a nest that does nothing else

    @cached_property
    def loads(self) -> dict[Buffer, list[Affine]]:
        """The offsets at which each buffer is loaded."""
        loads: dict[Buffer, list[Affine]] = {}
        for load in loads_in(self.roots):
            loads.setdefault(load.buffer, []).append(load.offset)
        return loads

    @cached_property
    def expr_size(self) -> int:
        """The number of distinct expressions in it."""
        return sum(not isinstance(part, Const) for part in walk(self.roots))

    @property
    def roots(self) -> list[Expr]:
        """The roots of its expressions."""
        products = [] if self.product is None else [self.product]
        return [root for work in (*self.writes, *products, *self.checks) for root in work.roots]

    @cached_property
    def buffers(self) -> tuple[Buffer, ...]:
        """The buffers it writes and reads."""
        return tuple(dict.fromkeys([*(write.buffer for write in self.writes), *self.loads]))

    @cached_property
    def read(self) -> tuple[Buffer, ...]:
        """The buffers it reads, including those that it combines values into."""
        return *self.loads, *(write.buffer for write in self.writes if write.combine != "set")

    @cached_property
    def spans(self) -> tuple[Span, ...]:
        """The span of each of its buffers."""
        offsets = {buffer: [*self.loads.get(buffer, ())] for buffer in self.buffers}
        for write in self.writes:
            offsets[write.buffer].append(write.offset)
        return tuple(map(_span, offsets.values()))

    @property
    def is_plain(self) -> bool:
        """Whether it only stores values, unconditionally and in any order of iterations."""
        is_special = self.product is not None or self.serial or self.is_sealed
        return not is_special and all(write.is_plain for write in self.writes)

    @property
    def values(self) -> list[Expr]:
        """What is written."""
        return [write.value for write in self.writes]

    @cached_property
    def has_reductions(self) -> bool:
        """Whether its writes hold reductions (a product's own sum aside)."""
        return any(isinstance(part, Reduce | Scan) for part in walk(self.values))

    @cached_property
    def can_rebind(self) -> bool:
        """Whether it may be instantiated on other buffers: its offsets depend on its loops alone,
        and it has no reductions, whose variables would be shared with another instance fused into
        it."""
        all_offsets = [offset for offsets in self.loads.values() for offset in offsets]
        all_offsets += [write.offset for write in self.writes]
        return not self.has_reductions and not any(offset.parts for offset in all_offsets)


@dataclass(frozen=True, eq=False)
class LoopNest:
    """An instance of a template on buffers of its own, and the nodes that it computes."""

    template: NestTemplate
    nodes: tuple[Node, ...]
    #: sub-buffers of what it reads, written by other nests; of a check, variables to be updated
    aliases: frozenset[Buffer] = frozenset()
    bindings: tuple[View, ...] | None = None  # of the template's buffers; None: to themselves

    def with_writes(self, writes: tuple[Store, ...]) -> LoopNest:
        """This nest with other writes."""
        template = NestTemplate(self.variables, writes, self.product, self.template.serial)
        return LoopNest(template, self.nodes, self.aliases)

    def with_template(
        self, template: NestTemplate, new_views: Mapping[Buffer, View] = _NOTHING
    ) -> LoopNest:
        """An instance of a rewritten template on this nest's buffers and `new_views`."""
        views = {**self.bound, **new_views}
        bound = tuple([views[buffer] for buffer in template.buffers])
        is_identity = bound == tuple([(buffer, 0) for buffer in template.buffers])
        bindings = None if is_identity else bound
        return LoopNest(template, self.nodes, self.aliases, bindings)

    def can_rebind(self, views: Sequence[View]) -> bool:
        """Whether it may be instantiated on other views than these, all that it accesses."""
        buffers = {buffer for buffer, _ in views}
        return self.template.can_rebind and buffers.issuperset(self.template.buffers)

    def rebound(
        self, old: Sequence[View], new: Sequence[View], nodes: tuple[Node, ...]
    ) -> LoopNest:
        """This nest, whose buffers are all among some views, on other views that overlap in the
        same way."""
        moved: dict[Buffer, View] = {}
        for (buffer, start), (new_buffer, new_start) in zip(old, new, strict=True):
            moved.setdefault(buffer, (new_buffer, new_start - start))
        views = [(*moved[buffer], shift) for buffer, shift in self.views]
        bindings = tuple([(buffer, distance + shift) for buffer, distance, shift in views])
        return LoopNest(self.template, nodes, bindings=bindings)

    @cached_property
    def views(self) -> tuple[View, ...]:
        """The view that each buffer of the template is bound to."""
        return self.bindings or tuple([(buffer, 0) for buffer in self.template.buffers])

    @cached_property
    def bound(self) -> dict[Buffer, View]:
        """The same by buffer."""
        return dict(zip(self.template.buffers, self.views, strict=True))

    @property
    def variables(self) -> tuple[Variable, ...]:
        """Its loops."""
        return self.template.variables

    @property
    def values(self) -> list[Expr]:
        """What it writes."""
        return [write.value for write in self.writes]

    @property
    def reductions(self) -> list[Reduce]:
        """All reductions in what it writes."""
        return [part for part in walk(self.values) if isinstance(part, Reduce)]

    @property
    def domain(self) -> tuple[int, ...]:
        """The extents of its loops."""
        return tuple([variable.extent for variable in self.variables])

    @cached_property
    def _rebinding(self) -> Rebinding:
        return Rebinding(self.bound)

    @cached_property
    def writes(self) -> tuple[Store, ...]:
        """What is written for each value of the variables."""
        if self.bindings is None:
            return self.template.writes
        return tuple([self._rebinding.store(write) for write in self.template.writes])

    @cached_property
    def product(self) -> Contraction | None:
        """The sum of products that the writes use, if there is one."""
        product = self.template.product
        if self.bindings is None or product is None:
            return product
        return self._rebinding.contraction(product)

    @property
    def checks(self) -> tuple[Check, ...]:
        """The conditions that it checks, one for each of its nodes."""
        return tuple(map(self._rebinding.check, self.template.checks))

    @property
    def kernel(self) -> Kernel:
        """What it does, as a kernel that has no arguments yet."""
        if self.product is not None:
            return replace(self.product, stores=self.writes)
        return Loops((), self.variables, self.writes, self.checks, self.template.serial)

    def has_factor(self, buffer: Buffer) -> bool:
        """Whether a factor of its product is loaded from a buffer."""
        product = self.product
        return product is not None and buffer in (product.a.load.buffer, product.b.load.buffer)

    @cached_property
    def write_offsets(self) -> tuple[tuple[Buffer, Affine], ...]:
        """The buffer and the offset of each write."""
        shifted = self._rebinding.shifted
        return tuple([shifted(write.buffer, write.offset) for write in self.template.writes])

    @cached_property
    def loads(self) -> dict[Buffer, list[Affine]]:
        """The offsets at which each buffer is loaded."""
        bound = [(*self.bound[b], offsets) for b, offsets in self.template.loads.items()]
        return {buffer: _shifted(offsets, shift) for buffer, shift, offsets in bound}

    @property
    def load_offsets(self) -> list[Affine]:
        """The offsets of all loads."""
        return [*chain.from_iterable(self.loads.values())]

    @property
    def spans(self) -> dict[Buffer, Span]:
        """The span of each buffer that it touches."""
        pairs = zip(self.views, self.template.spans, strict=True)
        return {buffer: (low + shift, high + shift) for (buffer, shift), (low, high) in pairs}

    @property
    def loaded(self) -> list[Buffer]:
        """The buffers it loads from."""
        return [self.bound[buffer][0] for buffer in self.template.loads]

    @cached_property
    def reads(self) -> frozenset[Buffer]:
        """The buffers it reads, and their sub-buffers."""
        return self.aliases.union([self.bound[buffer][0] for buffer in self.template.read])

    @cached_property
    def targets(self) -> tuple[Buffer, ...]:
        """The buffer of each write."""
        return tuple([self.bound[write.buffer][0] for write in self.template.writes])

    @cached_property
    def written(self) -> frozenset[Buffer]:
        """The buffers it writes."""
        return frozenset(self.targets)


def users_of(nests: Sequence[LoopNest]) -> tuple[Positions, Positions]:
    """The positions of the nests that write each buffer, and of those that read it."""
    writers: Positions = defaultdict(list)
    readers: Positions = defaultdict(list)
    for position, nest in enumerate(nests):
        for buffer in nest.written:
            writers[buffer].append(position)
        for buffer in nest.reads:
            readers[buffer].append(position)
    return writers, readers


class LastAccesses:
    """The position at which each buffer was last accessed, and last written, by the nests noted so
    far; -1 for never."""

    def __init__(self) -> None:
        self.used: dict[Buffer, int] = defaultdict(lambda: -1)
        self.written: dict[Buffer, int] = defaultdict(lambda: -1)

    def note(self, nest: LoopNest, position: int) -> None:
        """Note the accesses of a nest at a position."""
        for buffer in nest.reads | nest.written:
            self.used[buffer] = max(self.used[buffer], position)
        for buffer in nest.written:
            self.written[buffer] = max(self.written[buffer], position)

    def before(self, nest: LoopNest) -> int:
        """The position of the last nest that must precede a nest: it wrote what that one accesses,
        or read what that one writes."""
        times = [self.written[buffer] for buffer in nest.reads]
        times += [self.used[buffer] for buffer in nest.written]
        return max(times, default=-1)


def hoisted(nests: Sequence[LoopNest], may_move: Callable[[LoopNest], bool]) -> list[LoopNest]:
    """The nests; those that may move come right after the last one that must precede them."""
    last, positions = LastAccesses(), list[int]()
    for position, nest in enumerate(nests):
        positions.append(last.before(nest) if may_move(nest) else position)
        last.note(nest, positions[-1])
    order = sorted(range(len(nests)), key=positions.__getitem__)  # stable: after what stays there
    return [nests[n] for n in order]


def contiguous_variable(nest: LoopNest) -> Variable | None:
    """The loop along which a nest writes contiguous elements."""
    for variable in reversed(nest.variables):
        if all(offset.factor(variable) == 1 for _, offset in nest.write_offsets):
            return variable
    return None


def dense_variables(offset: Affine, size: int) -> tuple[Variable, ...] | None:
    """The variables of an offset that visits each element of a buffer once, the outermost first;
    None for other offsets."""
    variables = tuple(sorted(offset.strides, key=offset.factor, reverse=True))
    is_dense = offset == row_major(variables) and iterations(variables) == size
    return variables if is_dense else None


def digits_of(variable: Variable, extent: int, terms: Iterable[FloorMod]) -> tuple[Variable, ...]:
    """New loops for the digits that quotients and remainders take of an index in range(extent), the
    outermost first: one loop, if they take no digits of it."""
    taken = [term for term in terms if variable in term.number.terms]
    borders = {border for t in taken for border in (t.divisor, t.divisor * t.modulus)}
    steps = [extent, *sorted([b for b in borders if 1 < b < extent], reverse=True), 1]
    if any(before % after for before, after in pairwise(steps)):
        steps = [extent, 1]
    return tuple([Variable.fresh(before // after) for before, after in pairwise(steps)])


def _span(offsets: Sequence[Affine]) -> Span:
    return min(map(_least, offsets)), max(offset.bounds[1] for offset in offsets)


def _least(offset: Affine) -> int:
    low = offset.bounds[0]
    return offset.constant if math.isinf(low) else int(low)


def _shifted(offsets: list[Affine], shift: int) -> list[Affine]:
    return [offset + number(shift) for offset in offsets] if shift else offsets


class Renaming(KernelRewriter, Replace):
    """Substitutes loops or affine sums for variables, and expressions for those that `replace`
    knows. In stores, loops are replaced by loops."""

    def __init__(
        self,
        variables: Mapping[Variable, Variable | Affine],
        replace: Callable[[Expr], Expr | None] = lambda part: None,
    ) -> None:
        super().__init__(replace)
        self._loops = {v: new for v, new in variables.items() if isinstance(new, Variable)}
        self._sums = {
            v: index_of(n) if isinstance(n, Variable) else n for v, n in variables.items()
        }

    def renamed(self, variable: Variable) -> Variable:
        return self._loops.get(variable, variable)

    def index(self, variable: Variable) -> Expr:
        new = self._sums.get(variable)
        return super().index(variable) if new is None else expressed(new)

    def term(self, term: Variable | Expr) -> Affine | Variable | None:
        return self._sums.get(term) if isinstance(term, Variable) else super().term(term)


class Rebinding(KernelRewriter):
    """Rewrites expressions to the views that buffers are bound to: those of an instance of a
    template, or the arguments of a kernel."""

    def __init__(self, views: Mapping[Buffer, tuple[Any, int]]) -> None:
        super().__init__()
        self.views = views

    def store(self, store: Store) -> Store:
        rewritten = super().store(store)
        buffer, offset = self.shifted(store.buffer, rewritten.offset)
        return replace(rewritten, buffer=buffer, offset=offset)

    def shifted(self, buffer: Buffer, offset: Affine) -> tuple[Any, Affine]:
        """What a buffer is bound to, and an offset in that."""
        bound, shift = self.views[buffer]
        return bound, offset + number(shift) if shift else offset

    def load(self, buffer: Buffer, offset: Affine) -> Expr:
        return Load(*self.shifted(buffer, offset))


def renaming(old: Sequence[Variable], new: Sequence[Variable]) -> dict[Variable, Variable]:
    """The substitution of loops by others, one by one."""
    return {before: after for before, after in zip(old, new, strict=True) if before is not after}
