"""The verifier of kernels, which runs after every lowering pass if `THALWEG_VERIFY=1`.

The tests switch it on. An error names the pass, the kernel and the violated invariant; `faults` and
`value_faults` list the violations of a kernel and of an expression.
"""

from __future__ import annotations

import os
from collections.abc import Collection, Iterable, Iterator
from typing import Any

import numpy as np

from thalweg.ir.dynamic import Dynamic
from thalweg.ir.expr import (
    Accumulated,
    Expr,
    Load,
    OperandLoad,
    Reduce,
    Scan,
    Select,
    Variable,
)
from thalweg.ir.functions.dtypes import BOOL, Dtype
from thalweg.ir.functions.reductions import REDUCTIONS
from thalweg.ir.index import Affine
from thalweg.ir.kernel import Contraction, Kernel, Loops, Store
from thalweg.ir.rewrite import free_variables, postorder, walk

ENABLED = os.environ.get("THALWEG_VERIFY") == "1"

_COMBINES = {"set", *(name for name, row in REDUCTIONS.items() if row.keeps_dtype)}
_SUMS = frozenset({np.dtype(np.float32), np.dtype(np.float64)})


class InvalidKernel(Exception):
    """A kernel violates an invariant of the IR: a bug in the pass that made it."""


def verify(kernel: Kernel, after: str, name: str) -> None:
    """Raise `InvalidKernel` if a kernel violates an invariant."""
    report(faults(kernel), after, name)


def report(found: Iterable[str], after: str, name: str) -> None:
    """Raise `InvalidKernel` if there is a fault."""
    for fault in found:
        raise InvalidKernel(f"after {after}, in {name}: {fault}")


def faults(kernel: Kernel) -> Iterator[str]:
    """The violations in a kernel."""
    if [argument.position for argument in kernel.arguments] != [*range(len(kernel.arguments))]:
        yield "the arguments are not in the order of their positions"
    yield from body_faults(kernel)
    for store in kernel.stores:
        if store.buffer not in kernel.arguments or not store.buffer.written:
            yield f"argument {store.buffer.position} is stored to and not said to be written"
    for load in kernel.every(Load):
        if load.buffer not in kernel.arguments:
            yield "a load is of a buffer that is no argument"
    for offset in kernel.offsets:
        if offset.floor_mods:
            yield f"a quotient or remainder in {offset} is no expression"


def body_faults(kernel: Kernel) -> Iterator[str]:
    """The violations in the loops, stores and factors of a kernel, or of one without arguments."""
    return _loops_faults(kernel) if isinstance(kernel, Loops) else _contraction_faults(kernel)


def _loops_faults(kernel: Loops) -> Iterator[str]:
    variables = kernel.variables
    if not kernel.serial <= set(variables):
        yield "a serial variable is no loop"
    for work in (*kernel.stores, *kernel.checks):
        if work.variables != variables[: len(work.variables)]:
            yield "the variables of a store or check are no prefix of the loops"
    for store in kernel.stores:
        yield from _store_faults(store, None)
    for check in kernel.checks:
        if check.fault < 1:
            yield f"a check's fault is {check.fault}"
        yield from _condition_faults(check.condition, frozenset(check.variables), None)
    for scan in kernel.every(Scan):
        if scan.variable not in kernel.serial:
            yield f"a scan goes along {scan.variable.name}, which is not serial"


def _contraction_faults(kernel: Contraction) -> Iterator[str]:
    bound = frozenset(kernel.loops)
    if len(bound) != len(kernel.loops):
        yield "a variable plays two roles"
    if kernel.dtype not in _SUMS:
        yield f"sums are of {kernel.dtype}"
    outer = bound - set(kernel.reduced)
    used = [free_variables(side.value) for side in (kernel.a, kernel.b)]
    if used[0] & set(kernel.columns) or used[1] & set(kernel.rows):
        yield "a factor depends on a variable of the other one's"
    for side in (kernel.a, kernel.b):
        yield from value_faults(side.value, bound, None, is_guarded=bool(side.bounds))
        for _, place, _ in side.bounds:
            if not place.variables <= bound:
                yield "a bound is on a variable that is not bound"
    for store in kernel.stores:
        if frozenset(store.variables) != outer:
            yield "a store is not over all rows, columns and batches"
        yield from _store_faults(store, np.dtype(kernel.dtype))


def _store_faults(store: Store, sums: Dtype | None) -> Iterator[str]:
    """The violations in a store; `sums` is the dtype of a contraction's sum, if it is of one."""
    buffer, bound = store.buffer, frozenset(store.variables)
    if store.combine not in _COMBINES:
        yield f"'{store.combine}' combines nothing"
    if not store.distinct <= bound or not store.offset.variables <= bound:
        yield "a store's offset depends on variables that are not bound"
    for part in (store.value, *store.offset.parts):
        yield from value_faults(part, bound, sums, store.inside is not None)
    if store.inside is not None:
        yield from _condition_faults(store.inside, bound, sums)
    elif all(variable.extent for variable in bound):
        yield from _offset_faults(buffer, store.offset, "stored to")
    # A store converts implicitly within one kind of numbers, or to a wider kind.
    if not np.can_cast(store.value.dtype, buffer.dtype, "same_kind"):
        yield f"{store.value.dtype} is stored as {buffer.dtype} without a cast"


def _condition_faults(
    condition: Expr, bound: frozenset[Variable], sums: Dtype | None
) -> Iterator[str]:
    if condition.dtype != BOOL:
        yield f"a condition is of {condition.dtype}"
    yield from value_faults(condition, bound, sums)


def value_faults(
    value: Expr, bound: frozenset[Variable], sums: Dtype | None, is_guarded: bool = False
) -> Iterator[str]:
    """The violations in an expression, given the bound variables and the sum's dtype, if any."""
    loose = free_variables(value) - bound
    if loose:
        yield f"variables that are not bound: {_names(loose)}"
    for part in postorder([value]):
        if isinstance(part, OperandLoad):
            yield "OperandLoad is left of an op's form"
        if isinstance(part, Accumulated) and part.dtype != sums:
            yield f"a sum of {part.dtype} is read where there is {sums or 'none'}"
        if isinstance(part, Reduce) and not part.variables:
            yield "a reduction goes over nothing"
        if isinstance(part, Reduce) and not bound.isdisjoint(part.variables):
            yield f"a reduction binds {_names(part.variables)} again"
    if not is_guarded and all(variable.extent for variable in bound):
        for part in walk([value], _certain_parts):
            if isinstance(part, Load):
                yield from _offset_faults(part.buffer, part.offset, "loaded from")


def _certain_parts(part: Expr) -> tuple[Expr, ...]:
    """The parts that are evaluated unconditionally."""
    if isinstance(part, Select):
        return (part.condition,)
    is_empty = isinstance(part, Reduce) and not all(v.extent for v in part.variables)
    return () if is_empty else part.parts


def _offset_faults(buffer: Any, offset: Affine, how: str) -> Iterator[str]:
    low, high = offset.bounds
    if isinstance(buffer.size, Dynamic) or np.isinf(low) or np.isinf(high):
        return
    if low < 0 or high >= buffer.size:
        yield f"a buffer of {buffer.size} elements is {how} at {low:.0f} … {high:.0f}"


def _names(variables: Collection[Variable]) -> str:
    return ", ".join(sorted(variable.name for variable in variables))
