"""Kernel to LLVM text: contractions by the micro-kernel where it supports them, else as loops."""

from __future__ import annotations

from dataclasses import replace

from thalweg.codegen.contraction.form import NotContraction
from thalweg.codegen.contraction.kernel import emit_contraction
from thalweg.codegen.contraction.schedule import Schedule
from thalweg.codegen.llvm.emitted import Emitted
from thalweg.codegen.loops.kernel import emit_loops
from thalweg.codegen.machine import CpuTarget
from thalweg.ir.expr import Accumulated, Expr, Reduce, select
from thalweg.ir.index import as_operand, expressed
from thalweg.ir.kernel import Access, Contraction, Kernel, Loops
from thalweg.ir.rewrite import Replace


def emit(kernel: Kernel, target: CpuTarget, schedule: Schedule | None = None) -> Emitted:
    """Emit a kernel for a target, a contraction by `schedule` or by the cost model's choice."""
    if isinstance(kernel, Loops):
        return emit_loops(kernel, target)
    try:
        return emit_contraction(kernel, target, schedule)
    except NotContraction:
        return emit_loops(as_loops(kernel), target)


def as_loops(kernel: Contraction) -> Loops:
    """A contraction as a plain loop nest with a sum reduction."""
    product = _guarded(kernel.a) * _guarded(kernel.b)
    total = Reduce("sum", kernel.reduced, product)
    finished = Replace(lambda part: total if isinstance(part, Accumulated) else None)
    stores = tuple(replace(store, value=finished.of(store.value)) for store in kernel.stores)
    return Loops(kernel.arguments, kernel.stores[0].variables, stores)


def _guarded(access: Access) -> Expr:
    value = access.value
    for low, offset, high in access.bounds:
        index = expressed(offset)
        inside = (index >= as_operand(low)) & (index < as_operand(high))
        value = select(inside, value, 0)
    return value
