"""Approximate GPU instructions for functions of float32 numbers.

Their error bounds are those of the PTX manual. An emulated GPU computes the function and then
clears the bits of the result that the instruction does not guarantee, so that code which relies on
them fails.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from types import MappingProxyType
from typing import cast

from thalweg.codegen.cuda.target import CudaTarget
from thalweg.codegen.llvm.builder import Builder, Value
from thalweg.codegen.llvm.register import LlvmRegister
from thalweg.ir.functions.exponential import (
    SINGLE,
    Scaled,
    clamped,
    hyperbolic_tangent,
    reduced_exponential,
)
from thalweg.ir.functions.register import Register

Code = Callable[..., Value]

_TURING = 75  # the compute capability with `tanh.approx`


@dataclass(frozen=True)
class _Instruction:
    """An instruction: by an intrinsic of LLVM, or of NVPTX for single numbers."""

    emulated: Callable[..., Register]
    lost_bits: int  # at the end of the mantissa
    intrinsic: str = ""
    nvptx: str = ""
    capability: int = 0


def _power(x: Register) -> Register:
    """2ˣ"""
    near = clamped(x, -200.0, 200.0)
    whole = near.rounded()
    fraction = (near - whole) * math.log(2)
    return Scaled(reduced_exponential(fraction) + 1.0, whole.convert("fptosi", "i32")).joined()


def _normal_power(x: Register) -> Register:
    return (x < 1.0 - SINGLE.bias).choose(x.like(0.0), _power(x))


_INSTRUCTIONS = {
    # 2⁻¹¹ of the result
    "tanh": _Instruction(hyperbolic_tangent, 12, "tanh", capability=_TURING),
    # two ulps
    "exp2": _Instruction(_power, 1, "exp2"),
    "normal_exp2": _Instruction(_normal_power, 1, nvptx="ex2.approx.ftz.f"),
    "div": _Instruction(Register.__truediv__, 1, nvptx="div.full"),
    "sqrt": _Instruction(Register.square_root, 1, "sqrt"),
}


def approximations(target: CudaTarget) -> Mapping[str, Code]:
    """The code of a GPU's approximations, by name."""
    code = _emulated if target.is_emulated else _written
    return MappingProxyType(
        {
            name: partial(code, instruction)
            for name, instruction in _INSTRUCTIONS.items()
            if target.capability >= instruction.capability
        }
    )


def _written(instruction: _Instruction, b: Builder, *values: Value) -> Value:
    if instruction.intrinsic:
        return b.intrinsic(instruction.intrinsic, *values, flags="afn")
    kind, name = values[0].type, f"llvm.nvvm.{instruction.nvptx}"

    def lane(number: int) -> Value:
        return b.call(name, kind.of(1), *(b.extract(value, number) for value in values))

    return b.from_lanes(kind, lane)


def _emulated(instruction: _Instruction, b: Builder, *values: Value) -> Value:
    found = instruction.emulated(*(LlvmRegister(b, value) for value in values))
    kept = (found.bits() & -(1 << instruction.lost_bits)).floats()
    return cast("LlvmRegister", kept).value
