"""Any kernel to machine code: contractions by the micro-kernel where it takes them, else loops.

A kernel's key is its structure, its integers and the text of the generators themselves: what was
made before is found without being emitted again.
"""

from __future__ import annotations

from dataclasses import replace
from functools import cache, partial

from thalweg.codegen.contraction.form import NotContraction
from thalweg.codegen.contraction.kernel import emit_contraction
from thalweg.codegen.contraction.schedule import SLOTS, Schedule
from thalweg.codegen.contraction.tune import winners
from thalweg.codegen.llvm.emitted import Emitted, Request
from thalweg.codegen.loops.kernel import Iteration, emit_iteration, emit_loops
from thalweg.codegen.machine import CpuTarget
from thalweg.codegen.sources import own_digest
from thalweg.codegen.winograd import ENABLED
from thalweg.ir.dynamic import Dynamic
from thalweg.ir.expr import Accumulated, Expr, Reduce, Word, constant, select
from thalweg.ir.fingerprint import fingerprint, integers
from thalweg.ir.index import expressed
from thalweg.ir.kernel import Access, Contraction, Kernel, Loops
from thalweg.ir.rewrite import Replace

#: About what a kernel takes to make and compile, measured.
_SECONDS = {Contraction: 20e-3, Loops: 8e-3}
_SECONDS_PER_INTEGER = 0.2e-3


def request(kernel: Kernel, target: CpuTarget, schedule: Schedule | None = None) -> Request:
    """The kernel as the cache is asked for it: by a schedule that is given, or was tuned."""
    key = key_of(kernel)
    if schedule is None and isinstance(kernel, Contraction):
        schedule = tuned_schedule(kernel, target)
    chosen = key if schedule is None else f"{key} {schedule}"
    cost = _SECONDS[type(kernel)] + _SECONDS_PER_INTEGER * len(integers(kernel))
    passes = "tiles" if isinstance(kernel, Contraction) else "loops"
    return Request(chosen, partial(emit, kernel, target, schedule), cost, passes)


def iteration_request(body: Iteration, target: CpuTarget) -> Request:
    """An iteration that repeats itself, as the cache is asked for it."""
    keys = [key_of(kernel) for kernel in body.kernels]
    rest = body.starts, body.memory, sorted(body.overlapping), body.deciding, body.most
    cost = _SECONDS[Loops] * len(keys)
    return Request(f"{keys} {rest}", partial(emit_iteration, body, target), cost, "iterations")


def tuned_schedule(kernel: Contraction, target: CpuTarget) -> Schedule | None:
    """The schedule that was found best for a contraction, if it was ever measured."""
    return winners().find(key_of(kernel), target)


def keep_schedule(kernel: Contraction, target: CpuTarget, schedule: Schedule) -> None:
    """From now on, and in later processes, make a contraction by this schedule."""
    winners().keep(key_of(kernel), target, schedule)


def key_of(kernel: Kernel) -> str:
    """What a kernel is: its structure and its integers, and who makes code of it."""
    words = [f"w{n.word}" if isinstance(n, Dynamic) else n for n in integers(kernel)]
    return f"{_generators()} {fingerprint(kernel).hex()} {words}"


@cache
def _generators() -> str:
    """A digest of the code that makes code, and what was switched off of it: kernels made by other
    versions of it do not count."""
    return f"{own_digest(('codegen', 'ir'))} {SLOTS}" + ("" if ENABLED else " plain")


def emit(kernel: Kernel, target: CpuTarget, schedule: Schedule | None = None) -> Emitted:
    """A kernel as LLVM text for a target; a contraction by a schedule, or the likely best one."""
    if isinstance(kernel, Loops):
        return emit_loops(kernel, target)
    try:
        return emit_contraction(kernel, target, schedule)
    except NotContraction:
        return emit_loops(as_loops(kernel), target)


def as_loops(kernel: Contraction) -> Loops:
    """A contraction as a plain nest with a reduction."""
    product = _guarded(kernel.a) * _guarded(kernel.b)
    total = Reduce("sum", kernel.reduced, product)
    finished = Replace(lambda part: total if isinstance(part, Accumulated) else None)
    stores = tuple(replace(store, value=finished.of(store.value)) for store in kernel.stores)
    return Loops(kernel.arguments, kernel.stores[0].variables, stores)


def _guarded(access: Access) -> Expr:
    value = access.value
    for low, place, high in access.bounds:
        index = expressed(place)
        inside = (index >= _number(low)) & (index < _number(high))
        value = select(inside, value, 0)
    return value


def _number(number: int) -> Expr:
    return Word(number) if isinstance(number, Dynamic) else constant(number)
