"""Online softmax: the maximum of a row and the sum of exponentials relative to it, in one pass.

Σ exp(x - max x) needs the maximum first. If a row is too long to be kept, a thread sums
exponentials relative to the maximum so far, and rescales the sum when the maximum grows.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial, reduce
from operator import add

import numpy as np

from thalweg.codegen.cuda.loops.mapping import STRAIGHT, Mapping
from thalweg.codegen.llvm.builder import Builder, Value
from thalweg.codegen.llvm.register import LlvmRegister
from thalweg.codegen.loops.simplify import static_extent
from thalweg.codegen.math.elements import Accumulator
from thalweg.ir.expr import Call, Expr, Reduce, Variable
from thalweg.ir.functions.exponential import LOG2_E
from thalweg.ir.functions.reductions import REDUCTIONS
from thalweg.ir.kernel import RenameVariables

_FLOAT32 = np.dtype(np.float32)
BLOCKS = 2  # resident on a multiprocessor: while one waits for memory, another computes
_MAX, _SUM = (Accumulator(REDUCTIONS[name], _FLOAT32) for name in ("max", "sum"))


def sums_of_powers(mapping: Mapping) -> dict[Reduce, Reduce]:
    """The maxima of rows that threads cannot keep, each with the sum of exponentials relative to
    it."""
    if mapping.kind != "row":
        return {}
    result: dict[Reduce, Reduce] = {}
    for total in mapping.form.every(Reduce):
        match total:
            case Reduce("sum", (along,), Call("exp", (Call("sub", (x, Reduce() as most)),))):
                if _is_maximum(most, along, x) and _is_long(most, mapping):
                    result[most] = total
            case _:
                pass
    return result


def _is_maximum(most: Reduce, along: Variable, x: Expr) -> bool:
    """Whether a reduction is the maximum of float32 numbers."""
    if most.combine != "max" or len(most.variables) != 1:
        return False
    if not most.dtype == x.dtype == _FLOAT32:
        return False
    return RenameVariables({along: most.variables[0]}).of(x) is most.body


def _is_long(most: Reduce, mapping: Mapping) -> bool:
    (along,) = most.variables
    count = static_extent(along)
    kept = STRAIGHT * mapping.team * mapping.width
    return along is mapping.reduced and (count is None or count > kept)


def start() -> list[Value]:
    """The initial state: the maximum, and the sum of exponentials."""
    return [*_MAX.initial(1), *_SUM.initial(1)]


def taken(b: Builder, state: Sequence[Value], elements: Sequence[Value]) -> list[Value]:
    """The state after more elements, in lanes of vectors."""
    largest, total = (LlvmRegister(b, value) for value in state)
    (inside,) = _MAX.reduce_lanes(b, [reduce(partial(_larger, b), elements)])
    after = LlvmRegister(b, _larger(b, largest.value, inside))
    less = after.equals(-np.inf).choose(after.like(0.0), after)  # avoids inf - inf
    powers = reduce(add, [_power(b, LlvmRegister(b, x), less) for x in elements])
    (added,) = _SUM.reduce_lanes(b, [powers.value])
    return [after.value, (total * _power(b, largest, less) + LlvmRegister(b, added)).value]


def finished(b: Builder, state: Sequence[Value], largest: Value) -> Value:
    """This thread's sum of exponentials, relative to the maximum of all threads."""
    mine, total = (LlvmRegister(b, value) for value in state)
    return (total * _power(b, mine, LlvmRegister(b, largest))).value


def _power(b: Builder, x: LlvmRegister, less: LlvmRegister) -> LlvmRegister:
    """exp(x - less) with a relative error of |x - less| · 2⁻²⁴, which is small compared with the
    exponential of the maximum, 1."""
    apart = x - LlvmRegister(b, b.splat(less.value, x.type.lanes))
    return (apart * LOG2_E).approximated("normal_exp2")


def _larger(b: Builder, x: Value, y: Value) -> Value:
    (result,) = _MAX.merge(b, [x], [y])
    return result
