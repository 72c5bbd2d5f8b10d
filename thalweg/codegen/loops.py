"""Machine code for loop kernels.

What comes in is a `Loops` kernel and a target; what goes out is LLVM text: `kernel`, which reads
the argument words, and the function it calls with the buffers, of which none overlaps another.
"""

from __future__ import annotations

from collections.abc import Iterator
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


def emit_loops(kernel: Loops, target: Target) -> Emitted:
    """The code of a loop kernel, in one function that all threads call."""
    decided = plan(simplest(kernel), target)
    module = Module()
    words = _words(decided.form)
    _write_body(module, decided, words)
    _write_entry(module, decided, words)
    return Emitted(("kernel",), module.text)


def _write_entry(module: Module, decided: Plan, words: list[int]) -> None:
    """The function that the step calls: it reads the words and hands them on."""
    b = module.function("kernel", [POINTER, I64, I64], attributes="nounwind")
    words_at, thread, threads = b.parameters
    pointers = [_word(b, words_at, 1 + a.position, POINTER) for a in decided.form.arguments]
    fault = _word(b, words_at, 0, POINTER)
    integers = [_word(b, words_at, word, I64) for word in words]
    given = ", ".join(map(str, [fault, *pointers, *integers, thread, threads]))
    b.line(f"call void @body({given})")
    b.ret()


def _word(b: Builder, words: Value, number: int, kind: Any) -> Value:
    return b.load(kind, b.element(words, "i64", constant(I64, number)), align=8)


def _write_body(module: Module, decided: Plan, words: list[int]) -> None:
    arguments = decided.form.arguments
    kinds = [POINTER] * (1 + len(arguments)) + [I64] * (len(words) + 2)
    b = module.function("body", kinds, attributes="noinline nounwind")
    b.marks = dict.fromkeys(range(1 + len(arguments)), "noalias nocapture")
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
