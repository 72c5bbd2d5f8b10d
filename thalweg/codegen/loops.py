"""Machine code for loop kernels.

What comes in is a `Loops` kernel and a target; what goes out is LLVM text: `kernel`, which reads
the argument words, and the function it calls with the buffers, of which none overlaps another.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from thalweg.codegen.builder import I64, POINTER, Builder, Module, Value, constant
from thalweg.codegen.emitted import Emitted
from thalweg.codegen.loop_emit import Emission
from thalweg.codegen.loop_facts import postorder
from thalweg.codegen.loop_form import Form
from thalweg.codegen.loop_plan import Plan, plan
from thalweg.codegen.loop_simplify import simplest
from thalweg.codegen.machine import Target
from thalweg.loops.kernel import Dynamic, Loops

#: What goes into the fault word when an integer is divided by zero.
DIVISION_FAULT = 1


@dataclass(frozen=True)
class Repetition:
    """A kernel that is all of a loop's turn: it runs again as long as a byte it wrote is not zero,
    but not more often than `most` times in one call."""

    deciding: int  # the position of the argument with the byte
    most: int


def emit_loops(kernel: Loops, target: Target, again: Repetition | None = None) -> Emitted:
    """The code of a loop kernel, in one function that all threads call; one thread, if it repeats
    itself."""
    decided = plan(simplest(kernel), target)
    module = Module()
    words = _words(decided.form)
    _write_body(module, decided, words, "noinline" if again is None else "alwaysinline")
    if again is not None:
        _write_turns(module, decided, words, again)
    _write_entry(module, decided, words, "body" if again is None else "turns")
    return Emitted(("kernel",), module.text, passes="loops" if again is None else "turns")


def _write_entry(module: Module, decided: Plan, words: list[int], called: str) -> None:
    """The function that the step calls: it reads the words and hands them on."""
    b = module.function("kernel", [POINTER, I64, I64], attributes="nounwind")
    words_at, thread, threads = b.parameters
    pointers = [_word(b, words_at, 1 + a.position, POINTER) for a in decided.form.arguments]
    fault = _word(b, words_at, 0, POINTER)
    integers = [_word(b, words_at, word, I64) for word in words]
    given = ", ".join(map(str, [fault, *pointers, *integers, thread, threads]))
    b.line(f"call void @{called}({given})")
    b.ret()


def _write_turns(module: Module, decided: Plan, words: list[int], again: Repetition) -> None:
    """The body in a loop, in which LLVM sees through it: values stay in registers, and where a
    turn only counts, no loop is left."""
    b = _function(module, "turns", decided, words, "noinline")
    *given, _, _ = b.parameters
    position = [a.position for a in decided.form.arguments].index(again.deciding)
    everything = ", ".join([*map(str, given), "i64 0", "i64 1"])
    b.line("br label %again")
    b.line("again:")
    b.line("%turn = phi i64 [0, %entry], [%next, %again]")
    b.line(f"call void @body({everything})")
    b.line(f"%byte = load i8, ptr {given[1 + position].text}, align 1")
    b.line("%holds = icmp ne i8 %byte, 0")
    b.line("%next = add nuw nsw i64 %turn, 1")
    b.line(f"%left = icmp ult i64 %next, {again.most}")
    b.line("%more = and i1 %holds, %left")
    b.line("br i1 %more, label %again, label %done")
    b.line("done:")
    b.ret()


def _function(module: Module, name: str, decided: Plan, words: list[int], inlining: str) -> Builder:
    """A function of the fault word, the buffers, of which none overlaps another, the run-time
    integers and the threads."""
    count = len(decided.form.arguments)
    kinds = [POINTER] * (1 + count) + [I64] * (len(words) + 2)
    b = module.function(name, kinds, attributes=f"{inlining} nounwind")
    b.marks = dict.fromkeys(range(1 + count), "noalias nocapture")
    return b


def _word(b: Builder, words: Value, number: int, kind: Any) -> Value:
    return b.load(kind, b.element(words, "i64", constant(I64, number)), align=8)


def _write_body(module: Module, decided: Plan, words: list[int], inlining: str) -> None:
    arguments = decided.form.arguments
    b = _function(module, "body", decided, words, inlining)
    fault, *others = b.parameters
    pointers = dict(zip(arguments, others, strict=False))
    integers = dict(zip(words, others[len(arguments) :], strict=False))
    Emission(
        decided, b, pointers, integers, fault, (others[-2], others[-1]), DIVISION_FAULT
    ).write()
    b.ret()


def _words(form: Form) -> list[int]:
    """The run-time integers that a kernel uses, by their words."""
    return sorted({number.word for number in _integers(form) if isinstance(number, Dynamic)})


def _integers(form: Form) -> Iterator[Any]:
    for offset in form.offsets():
        yield offset.constant
        yield from (factor for factor, _ in offset.terms)
    for variable in form.variables:
        yield from form.factors(variable)
    for expr in postorder(form.roots):
        if expr.function == "reduce":
            for variable in expr.arguments[1]:
                yield from form.factors(variable)
        elif expr.function == "index":
            yield expr.arguments[0]
