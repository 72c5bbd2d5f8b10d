"""Recognises chained products in loops: sums over pairs of rows, weighted by functions of products.

Given a `Loops` kernel over (batch…, row, column), it finds the sums

    out[row, column] = Σ over other of weight(row, other) · z[other, column]

where a weight is an elementwise function of products Σ over depth of x[row, depth] · y[other,
depth], of elements of row or other, and of masks. In attention, the weight is the exponential of a
score less the row's maximum, and there is a second sum, of the exponentials. Its gradients are
chains with weights of two products. Rows are queries and others are keys, or vice versa.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Literal

from thalweg.codegen.cuda.contraction.problem import BFLOAT16, FLOAT16
from thalweg.ir.dynamic import is_static
from thalweg.ir.expr import Call, Cast, Expr, Index, Load, Reduce, Select, Variable
from thalweg.ir.kernel import Loops, RenameVariables, Store
from thalweg.ir.rewrite import postorder, walk

#: The others that count for a row: all, those up to the row, or those from it on (causal masks).
Order = Literal["all", "up to row", "from row"]

MAX_DEPTH = 128
DEPTH_STEP = 16  # terms of a product of tensor cores


class NotAttention(Exception):
    """A kernel that is not a chain of products for tensor cores."""


@dataclass(frozen=True, eq=False)
class Product:
    """A product of a row and another: x[row, depth] · y[other, depth], summed over depth."""

    total: Reduce
    x: Load
    y: Load


@dataclass(frozen=True, eq=False)
class Chain:
    """A sum over others of weight(row, other) · z[other, column]."""

    total: Reduce
    weight: Expr
    z: Load


@dataclass(frozen=True, eq=False)
class Softmax:
    """The score whose exponentials are the weights, its maximum per row, and their sum."""

    score: Expr
    largest: Reduce
    total: Reduce


@dataclass(frozen=True, eq=False)
class AttentionForm:
    """A kernel as chains: all of them over one `other` variable, all products over one `depth`."""

    kernel: Loops
    batch: tuple[Variable, ...]
    row: Variable
    column: Variable
    other: Variable
    depth: Variable
    products: tuple[Product, ...]
    chains: tuple[Chain, ...]
    softmax: Softmax | None
    order: Order
    stores: tuple[Store, ...]

    @property
    def rows_read(self) -> tuple[Load, ...]:
        """The loads along rows: the left sides of products."""
        return tuple(product.x for product in self.products)

    @property
    def others_read(self) -> tuple[Load, ...]:
        """The distinct loads along others: right sides of products, and weighted operands, that are
        over `depth` here, too."""
        weighted = [self.along_depth(chain.z) for chain in self.chains]
        return tuple(dict.fromkeys([*(product.y for product in self.products), *weighted]))

    def along_depth(self, z: Load) -> Load:
        """A load along columns, renamed to the depth of products."""
        result = RenameVariables({self.column: self.depth}).of(z)
        assert isinstance(result, Load)
        return result


def form_of(kernel: Loops) -> AttentionForm:
    """Match a kernel as chains of products; raises `NotAttention` for others."""
    if len(kernel.variables) < 2 or kernel.serial or kernel.checks:
        raise NotAttention
    *batch, row, column = kernel.variables
    if not all(store.is_plain for store in kernel.stores) or not kernel.stores:
        raise NotAttention
    kernel, other, depth = _renamed(kernel)
    sums = _outermost([store.value for store in kernel.stores])
    softmax = _softmax(sums, other)
    chains = [_chain(total, other, column) for total in sums if not _is_of(total, softmax)]
    if not chains:
        raise NotAttention
    if softmax is not None:
        chains = [_softmax_chain(chain, softmax) for chain in chains]
        order, score = _order(softmax.score, row, other)
        softmax = replace(softmax, score=score)
    else:
        order, _ = _order(chains[0].weight, row, other)
        chains = [
            replace(each, weight=_in_order(each.weight, order, row, other)) for each in chains
        ]
    weights = [softmax.score] if softmax is not None else [chain.weight for chain in chains]
    products = tuple(_product(total, row, other, depth) for total in _outermost(weights))
    form = AttentionForm(
        kernel,
        tuple(batch),
        row,
        column,
        other,
        depth,
        products,
        tuple(chains),
        softmax,
        order,
        kernel.stores,
    )
    _check(form)
    return form


def _renamed(kernel: Loops) -> tuple[Loops, Variable, Variable]:
    """The kernel with one variable for all sums, and one for all nested sums: equal parts are then
    the same expression."""
    sums = _outermost([store.value for store in kernel.stores])
    pending, others, depths = list(sums), list[Variable](), list[Variable]()
    bodies = [part for total in sums for part in postorder([total.body])]
    inner = [part for part in bodies if isinstance(part, Reduce)]
    for total in [*pending, *inner]:
        if len(total.variables) != 1:
            raise NotAttention
        nested = any(isinstance(part, Reduce) for part in walk([total.body]))
        (others if nested or total in sums else depths).append(total.variables[0])
    extents = [{int(v.extent) for v in group} for group in (others, depths)]
    if any(len(group) != 1 for group in extents):
        raise NotAttention
    names = dict.fromkeys(others, others[0]) | dict.fromkeys(depths, depths[0])
    rename = RenameVariables(names)
    stores = tuple(rename.store(store) for store in kernel.stores)
    return replace(kernel, stores=stores), others[0], depths[0]


def _outermost(values: Sequence[Expr]) -> list[Reduce]:
    parts = walk(values, lambda part: () if isinstance(part, Reduce | Load) else part.parts)
    return [part for part in parts if isinstance(part, Reduce)]


def _softmax(sums: Sequence[Reduce], other: Variable) -> Softmax | None:
    """The softmax among a kernel's sums: a sum of exponentials of scores less their maximum."""
    for total in sums:
        match total:
            case Reduce(
                combine="sum",
                body=Call(
                    function="exp", arguments=(Call(function="sub", arguments=(score, top)),)
                ),
            ) if isinstance(top, Reduce) and top.combine == "max" and top.body is score:
                return Softmax(score, top, total)
            case _:
                pass
    return None


def _is_of(total: Reduce, softmax: Softmax | None) -> bool:
    return softmax is not None and total in (softmax.largest, softmax.total)


def _chain(total: Reduce, other: Variable, column: Variable) -> Chain:
    match total:
        case Reduce(combine="sum", body=Call(function="mul", arguments=(weight, factor))):
            z = _load(factor)
            if column in z.offset.variables and column not in _variables(weight):
                return Chain(total, weight, z)
        case _:
            pass
    raise NotAttention


def _softmax_chain(chain: Chain, softmax: Softmax) -> Chain:
    """A chain whose weights are the softmax's exponentials."""
    if chain.weight is not softmax.total.body:
        raise NotAttention
    return chain


def _product(total: Reduce, row: Variable, other: Variable, depth: Variable) -> Product:
    match total:
        case Reduce(combine="sum", body=Call(function="mul", arguments=(left, right))):
            x, y = _load(left), _load(right)
            if other in x.offset.variables:
                x, y = y, x
            both = {row, other}
            ours, theirs = both & x.offset.variables, both & y.offset.variables
            has_depth = depth in x.offset.variables and depth in y.offset.variables
            if (ours, theirs) == ({row}, {other}) and has_depth:
                return Product(total, x, y)
        case _:
            pass
    raise NotAttention


def _load(factor: Expr) -> Load:
    """The load of a factor, without conversions."""
    value = factor.value if isinstance(factor, Cast) else factor
    if not isinstance(value, Load) or not value.offset.is_plain:
        raise NotAttention
    return value


def _variables(value: Expr) -> set[Variable]:
    loads = [part.offset.variables for part in walk([value]) if isinstance(part, Load)]
    indices = [part.variable for part in walk([value]) if isinstance(part, Index)]
    return set(indices).union(*loads)


def _order(value: Expr, row: Variable, other: Variable) -> tuple[Order, Expr]:
    """The order that a value is masked by, and the unmasked value. The masked value has no effect:
    zero for a weight, minus infinity for a score."""
    match value:
        case Select(
            condition=Call(
                function="le", arguments=(Index(variable=first), Index(variable=second))
            ),
            chosen=chosen,
        ) if (first, second) == (other, row):
            return "up to row", chosen
        case Select(
            condition=Call(
                function="le", arguments=(Index(variable=first), Index(variable=second))
            ),
            chosen=chosen,
        ) if (first, second) == (row, other):
            return "from row", chosen
        case _:
            return "all", value


def _in_order(value: Expr, order: Order, row: Variable, other: Variable) -> Expr:
    """The unmasked value; raises unless the value is masked by the order."""
    found, chosen = _order(value, row, other)
    if found != order:
        raise NotAttention
    return chosen


def _check(form: AttentionForm) -> None:
    """Raise unless tensor cores can multiply the operands."""
    loads = [*form.rows_read, *form.others_read]
    dtypes = {load.dtype for load in loads}
    if len(dtypes) != 1 or not dtypes <= {BFLOAT16, FLOAT16}:
        raise NotAttention
    extents = form.depth.extent, form.column.extent
    if not all(map(is_static, extents)) or extents[0] != extents[1]:
        raise NotAttention
    if extents[0] % DEPTH_STEP or extents[0] > MAX_DEPTH:
        raise NotAttention
    if any(load.offset.factor(form.depth) != 1 for load in loads):
        raise NotAttention
