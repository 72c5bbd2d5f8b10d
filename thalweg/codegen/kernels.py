"""Any kernel to LLVM text: contractions by the micro-kernel where it takes them, loops otherwise."""

from __future__ import annotations

from thalweg.codegen.contraction import emit_contraction
from thalweg.codegen.contraction_form import NotContraction
from thalweg.codegen.emitted import Emitted
from thalweg.codegen.loops import emit_loops
from thalweg.codegen.machine import Target
from thalweg.loops.expr import Expr, call
from thalweg.loops.kernel import Access, Contraction, Kernel, Loops, Offset, Store
from thalweg.loops.loop import Variable


def emit(kernel: Kernel, target: Target) -> Emitted:
    """A kernel as LLVM text for a target."""
    if isinstance(kernel, Loops):
        return emit_loops(kernel, target)
    try:
        return emit_contraction(kernel, target)
    except NotContraction:
        return emit_loops(as_loops(kernel), target)


def as_loops(kernel: Contraction) -> Loops:
    """A contraction as a plain nest with a reduction."""
    product = call("mul", _guarded(kernel.a), _guarded(kernel.b))
    total = Expr("reduce", ("sum", kernel.reduced, product))
    stores = tuple(
        Store(s.argument, s.variables, s.offset, _with_sum(s.value, total, {}), s.combine, s.inside)
        for s in kernel.stores
    )
    return Loops(kernel.arguments, kernel.stores[0].variables, stores)


def _guarded(access: Access) -> Expr:
    value = access.value
    for low, place, high in access.bounds:
        index = _expressed(place)
        inside = call("and", call("ge", index, low), call("lt", index, high))
        value = call("select", inside, value, 0)
    return value


def _expressed(offset: Offset) -> Expr | int:
    total: Expr | int = offset.constant
    for factor, term in offset.terms:
        index = Expr("index", (term,)) if isinstance(term, Variable) else term
        total = call("add", total, call("mul", index, factor))
    return total


def _with_sum(value: object, total: Expr, known: dict[int, Expr]) -> object:
    """A store's value with the sum put in its place."""
    if not isinstance(value, Expr):
        return value
    if value.function == "sum":
        return total
    if value.function == "load":
        return value
    if id(value) not in known:
        parts = tuple(_with_sum(part, total, known) for part in value.arguments)
        known[id(value)] = Expr(value.function, parts)
    return known[id(value)]
