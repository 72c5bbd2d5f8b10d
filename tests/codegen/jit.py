"""A minimal way from expressions to native functions over arrays, for the tests of elements."""

from __future__ import annotations

import ctypes
from functools import partial
from typing import Any

import numpy as np

from tests.codegen.kept import kept
from thalweg.codegen.llvm import compile
from thalweg.codegen.llvm.builder import I64, POINTER, Builder, Module, Value, constant
from thalweg.codegen.machine import named
from thalweg.codegen.math.conversion import from_memory, storage_type, to_memory
from thalweg.codegen.math.elements import Evaluator
from thalweg.ir.expr import Expr, Load
from thalweg.ir.index import Affine
from thalweg.ir.kernel import Argument
from thalweg.ir.loop import Variable


def variable_loads(*arrays: Any) -> list[Expr]:
    """An expression for the element of each array at the loop's place."""
    place = Variable.fresh(len(arrays[0]))
    return [Load(Argument(i, a.dtype, a.size), Affine(0, {place: 1})) for i, a in enumerate(arrays)]


def module_text(expr: Any, count: int, lanes: int, faults: bool = False, fp16: bool = False) -> str:
    """A module whose function `run` is over pointers (inputs, output, fault word) and a size
    divisible by the lanes."""
    module = Module(fp16)
    add_function(module, "run", expr, count, lanes, faults)
    return module.text


def add_function(
    module: Module, name: str, expr: Any, count: int, lanes: int, faults: bool = False
) -> None:
    """Add what computes an expression, as `module_text` says."""
    b = module.function(name, [*[POINTER] * (count + 2), I64])
    *inputs, output, fault, size = b.parameters
    with b.loop(constant(I64, 0), size, constant(I64, lanes)) as loop:
        report = _report(fault) if faults else None
        evaluator = Evaluator(b, lanes, _leaf(b, inputs, loop.index, lanes), report)
        dtype = expr.dtype
        stored = to_memory(b, evaluator.value(expr), dtype)
        b.store(stored, b.element(output, stored.type.scalar, loop.index))
    b.ret()


def _report(word: Value) -> Any:
    def fault(b: Builder, is_zero: Value) -> None:
        with b.when(is_zero):
            b.store(constant(I64, 1), word)

    return fault


def _leaf(b: Builder, inputs: list[Value], index: Value, lanes: int) -> Any:
    def leaf(expr: Expr, mask: Value | None) -> Value:
        assert isinstance(expr, Load)
        argument, offset = expr.buffer, expr.offset
        width = lanes if offset.terms else 1
        place = index if offset.terms else constant(I64, offset.constant)
        kind = storage_type(argument.dtype, width)
        raw = b.load(kind, b.element(inputs[argument.position], kind.scalar, place))
        return from_memory(b, raw, argument.dtype)

    return leaf


def assembly(text: str, cpu: str) -> str:
    """The machine code of a module as text."""
    return kept(lambda: compile.assembly(text, named(cpu)).encode(), "assembly", cpu, text).decode()


def run(
    expr: Any, arrays: list[Any], lanes: int = 16, cpu: str = "native", faults: bool = False
) -> Any:
    """The values of an expression over arrays, and whether it faulted if that is asked for."""
    size = len(arrays[0])
    padded = [np.concatenate([a, np.repeat(a[-1:], -size % lanes)]) for a in arrays]
    fp16 = named(cpu).native_fp16
    text = module_text(expr, len(arrays), lanes, faults, fp16)
    code = kept(partial(compile.object_code, text, named(cpu)), "object", cpu, text)
    (address,) = compile.place(code, ["run"], named(cpu))
    output = np.zeros(len(padded[0]), expr.dtype)
    word = np.zeros(1, np.int64)
    places = [a.ctypes.data for a in (*padded, output, word)]
    signature = ctypes.CFUNCTYPE(None, *[ctypes.c_void_p] * len(places), ctypes.c_int64)
    signature(address)(*places, len(output))
    return (output[:size], bool(word[0])) if faults else output[:size]
