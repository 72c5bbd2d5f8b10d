"""Loop kernels to LLVM text.

A `Loops` kernel and a target come in. The text has two functions: `kernel`, which loads the
argument words, and the body that it calls, whose buffer parameters are `noalias`.
"""

from __future__ import annotations

from collections.abc import Sequence

from thalweg.codegen.kernels import Iteration
from thalweg.codegen.llvm.builder import I64, POINTER, Module
from thalweg.codegen.llvm.emitted import Emitted
from thalweg.codegen.loops.emit import CpuEmitter
from thalweg.codegen.loops.plan import Plan, plan
from thalweg.codegen.loops.simplify import canonicalize
from thalweg.codegen.loops.transpose_kernel import emit_transpose, transpose_of
from thalweg.codegen.machine import CpuTarget
from thalweg.ir.kernel import Loops


def emit_loops(kernel: Loops, target: CpuTarget) -> Emitted:
    """Emit a loop kernel: one entry point that all threads call."""
    form = canonicalize(kernel)
    if transpose := transpose_of(form, target):
        return emit_transpose(transpose, target)
    chosen = plan(form, target)
    module = Module(target.native_fp16)
    words = chosen.form.words
    _write_body(module, "body", chosen, words, "noinline")
    pointers = range(1, 1 + len(chosen.form.arguments))
    _write_entry(module, "body", pointers, words, shared=True)
    return Emitted(("kernel",), module.text)


def emit_iteration(iteration: Iteration, target: CpuTarget) -> Emitted:
    """Emit a loop over kernels: one entry point that one thread calls."""
    plans = [plan(canonicalize(kernel), target) for kernel in iteration.kernels]
    module = Module(target.native_fp16)
    words = [each.form.words for each in plans]
    can_fault = [
        _write_body(module, f"body{number}", each, words[number], "alwaysinline")
        for number, each in enumerate(plans)
    ]
    places = {
        memory: start + 1 + position
        for start, memories in zip(iteration.word_starts, iteration.memory, strict=True)
        for position, memory in enumerate(memories)
    }
    _write_iterations(module, iteration, [*places], words, can_fault)
    pairs = zip(iteration.word_starts, words, strict=True)
    integers = [start + word for start, own in pairs for word in own]
    _write_entry(module, "iterations", [*places.values()], integers, shared=False)
    return Emitted(("kernel",), module.text, passes="iterations")


def _write_entry(
    module: Module, called: str, pointers: Sequence[int], integers: Sequence[int], shared: bool
) -> None:
    """Write the entry point: it loads the words at these positions and passes them on after the
    fault word, and if the work is `shared`, the thread and the number of threads."""
    b = module.function("kernel", [POINTER, I64, I64], attributes="nounwind")
    words, *threads = b.parameters
    positions = [*((n, POINTER) for n in (0, *pointers)), *((n, I64) for n in integers)]
    arguments = [b.load(kind, b.element(words, "i64", n)) for n, kind in positions]
    arguments += threads if shared else []
    b.line(f"call void @{called}({', '.join(map(str, arguments))})")


def _write_iterations(
    module: Module,
    iteration: Iteration,
    memories: Sequence[int],
    words: Sequence[Sequence[int]],
    can_fault: Sequence[bool],
) -> None:
    """Write the loop over the bodies, which LLVM inlines: values stay in registers, and a loop
    that only counts vanishes. A fault leaves the loop."""
    count = sum(map(len, words))
    kinds = [POINTER] * (1 + len(memories)) + [I64] * count
    b = module.function("iterations", kinds, attributes="noinline nounwind")
    # As in `_write_body`, except for memory that may alias (`overlapping`).
    apart = [1 + n for n, memory in enumerate(memories) if memory not in iteration.overlapping]
    b.parameter_attributes = dict.fromkeys([0, *apart], "noalias nocapture")
    fault, *others = b.parameters
    pointer = dict(zip(memories, others, strict=False))
    integers = iter(others[len(memories) :])
    b.line("br label %again")
    b.line("again:")
    last = max((n for n, faults in enumerate(can_fault) if faults), default=None)
    latch = "again" if last is None else f"sound{last}"
    b.line(f"%iteration = phi i64 [0, %entry], [%next, %{latch}]")
    for number, own in enumerate(iteration.memory):
        arguments = [
            fault,
            *(pointer[memory] for memory in own),
            *(next(integers) for _ in words[number]),
        ]
        b.line(f"call void @body{number}({', '.join(map(str, arguments))}, i64 0, i64 1)")
        if can_fault[number]:
            b.line(f"%fault{number} = load i64, ptr {fault.text}, align 8")
            b.line(f"%fine{number} = icmp eq i64 %fault{number}, 0")
            b.line(f"br i1 %fine{number}, label %sound{number}, label %done")
            b.line(f"sound{number}:")
    b.line(f"%byte = load i8, ptr {pointer[iteration.condition].text}, align 1")
    b.line("%holds = icmp ne i8 %byte, 0")
    b.line("%next = add nuw nsw i64 %iteration, 1")  # it was less than the maximum
    b.line(f"%left = icmp ult i64 %next, {iteration.max_iterations}")
    b.line("%more = and i1 %holds, %left")
    b.line("br i1 %more, label %again, label %done")
    b.line("done:")


def _write_body(module: Module, name: str, plan: Plan, words: list[int], inlining: str) -> bool:
    """Write the body of a kernel: a function of the fault word, the buffers, the run-time integers,
    thread and threads. Returns whether it may fault.

    Buffers are `noalias`. A buffer that is updated in place is one argument. Different arguments
    are different arrays, disjoint parts of one (`lower/passes/alias_concat.py`), or parts of the
    arena that live at the same time and so are disjoint (`lower/memory/arena.py`). Two feeds may
    share memory, but nothing writes there: results are fresh arrays, and a variable with views is
    copied before it is written (`Program._copy_on_write`).
    """
    arguments = plan.form.arguments
    kinds = [POINTER] * (1 + len(arguments)) + [I64] * (len(words) + 2)
    b = module.function(name, kinds, attributes=f"{inlining} nounwind")
    b.parameter_attributes = dict.fromkeys(range(1 + len(arguments)), "noalias nocapture")
    fault, *others = b.parameters
    pointers = dict(zip(arguments, others, strict=False))
    integers = dict(zip(words, others[len(arguments) :], strict=False))
    CpuEmitter(plan, b, pointers, integers, fault).write(*others[-2:])
    return b.uses(fault)
