"""Machine code for loop kernels.

What comes in is a `Loops` kernel and a target; what goes out is LLVM text: `kernel`, which reads
the argument words, and the function it calls with the buffers, of which none overlaps another.
"""

from __future__ import annotations

from collections.abc import Sequence

from thalweg.codegen.llvm.builder import I64, POINTER, Builder, Module
from thalweg.codegen.llvm.emitted import Emitted
from thalweg.codegen.loops.emit import CpuEmitter
from thalweg.codegen.loops.iteration import Iteration
from thalweg.codegen.loops.plan import Plan, plan
from thalweg.codegen.loops.simplify import canonicalize
from thalweg.codegen.loops.transpose_kernel import emit_transpose, transpose_of
from thalweg.codegen.machine import CpuTarget
from thalweg.ir.kernel import Loops


def emit_loops(kernel: Loops, target: CpuTarget) -> Emitted:
    """The code of a loop kernel, in one function that all threads call."""
    form = canonicalize(kernel)
    if transpose := transpose_of(form, target):
        return emit_transpose(transpose, target)
    decided = plan(form, target)
    module = Module(target.native_fp16)
    words = decided.form.words
    _write_body(module, "body", decided, words, "noinline")
    pointers = [1 + argument.position for argument in decided.form.arguments]
    _write_entry(module, "body", pointers, words, shared=True)
    return Emitted(("kernel",), module.text)


def emit_iteration(iteration: Iteration, target: CpuTarget) -> Emitted:
    """The code of an iteration that repeats itself, in one function that one thread calls."""
    decided = [plan(canonicalize(kernel), target) for kernel in iteration.kernels]
    module = Module(target.native_fp16)
    words = [one.form.words for one in decided]
    can_fault = [
        _write_body(module, f"body{number}", one, words[number], "alwaysinline")
        for number, one in enumerate(decided)
    ]
    used = [
        [iteration.memory[n][a.position] for a in d.form.arguments] for n, d in enumerate(decided)
    ]
    _write_iterations(module, iteration, used, words, can_fault)
    places = {
        memory: start + 1 + position
        for start, memories in zip(iteration.word_starts, iteration.memory, strict=True)
        for position, memory in enumerate(memories)
    }
    pointers = [places[memory] for memory in _all_memory(iteration, used)]
    pairs = zip(iteration.word_starts, words, strict=True)
    integers = [start + word for start, own in pairs for word in own]
    _write_entry(module, "iterations", pointers, integers, shared=False)
    return Emitted(("kernel",), module.text, passes="iterations")


def _write_entry(
    module: Module, called: str, pointers: Sequence[int], integers: Sequence[int], shared: bool
) -> None:
    """The function that the step calls: it reads words at these places, hands them on after the
    fault word, and where threads share the work, says which of them it is."""
    b = module.function("kernel", [POINTER, I64, I64], attributes="nounwind")
    words, *threads = b.parameters
    read = [*((place, POINTER) for place in (0, *pointers)), *((place, I64) for place in integers)]
    given = [b.load(kind, b.element(words, "i64", place)) for place, kind in read]
    given += threads if shared else []
    b.line(f"call void @{called}({', '.join(map(str, given))})")
    b.ret()


#: Of each kernel of an iteration: the memory of its arguments, or its run-time words.
_Lists = list[list[int]]


def _all_memory(iteration: Iteration, used: _Lists) -> list[int]:
    return list(dict.fromkeys([*(memory for own in used for memory in own), iteration.condition]))


def _write_iterations(
    module: Module, iteration: Iteration, used: _Lists, words: _Lists, can_fault: list[bool]
) -> None:
    """The bodies in a loop, in which LLVM sees through them: values stay in registers, and where a
    iteration only counts, no loop is left. A fault ends the iteration."""
    memories = _all_memory(iteration, used)
    count = sum(map(len, words))
    kinds = [POINTER] * (1 + len(memories)) + [I64] * count
    b = module.function("iterations", kinds, attributes="noinline nounwind")
    # As in `_function`; several kernels may share memory, which `overlapping` says.
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
    for number, own in enumerate(used):
        given = [
            fault,
            *(pointer[memory] for memory in own),
            *(next(integers) for _ in words[number]),
        ]
        b.line(f"call void @body{number}({', '.join(map(str, given))}, i64 0, i64 1)")
        if can_fault[number]:
            b.line(f"%fault{number} = load i64, ptr {fault.text}, align 8")
            b.line(f"%fine{number} = icmp eq i64 %fault{number}, 0")
            b.line(f"br i1 %fine{number}, label %sound{number}, label %done")
            b.line(f"sound{number}:")
    b.line(f"%byte = load i8, ptr {pointer[iteration.condition].text}, align 1")
    b.line("%holds = icmp ne i8 %byte, 0")
    b.line("%next = add nuw nsw i64 %iteration, 1")  # it was less than `most`
    b.line(f"%left = icmp ult i64 %next, {iteration.max_iterations}")
    b.line("%more = and i1 %holds, %left")
    b.line("br i1 %more, label %again, label %done")
    b.line("done:")
    b.ret()


def _body_function(
    module: Module, name: str, decided: Plan, words: list[int], inlining: str
) -> Builder:
    """A function of the fault word, the buffers, of which none overlaps another, the run-time
    integers and the threads.

    What is read and written in place is one argument. Different ones lie in different arrays, in
    pieces of one that have no element in common (`lower/passes/alias_concat.py`), or in parts of
    the arena that live at the same time and so lie apart (`lower/memory/arena.py`). A feed may be
    another feed's memory, but nothing writes there: results are fresh, and a variable that anybody
    holds a view of is copied before it is written (`Program._lend`).
    """
    count = len(decided.form.arguments)
    kinds = [POINTER] * (1 + count) + [I64] * (len(words) + 2)
    b = module.function(name, kinds, attributes=f"{inlining} nounwind")
    b.parameter_attributes = dict.fromkeys(range(1 + count), "noalias nocapture")
    return b


def _write_body(module: Module, name: str, decided: Plan, words: list[int], inlining: str) -> bool:
    """Write what a kernel does; whether it may fault."""
    arguments = decided.form.arguments
    b = _body_function(module, name, decided, words, inlining)
    fault, *others = b.parameters
    pointers = dict(zip(arguments, others, strict=False))
    integers = dict(zip(words, others[len(arguments) :], strict=False))
    CpuEmitter(decided, b, pointers, integers, fault).write(*others[-2:])
    b.ret()
    return b.uses(fault)
