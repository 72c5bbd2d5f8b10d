"""Splits contractions with strided outputs into phases.

The gradient of a strided convolution reads at `i // 2` and `i % 2` of an output index i. Over the
even and over the odd indices apart, both are sums of variables again, and each phase is a plain
contraction.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator
from typing import Any

from thalweg.ir.expr import Cast, Expr, is_zero
from thalweg.ir.index import Affine, expressed, number
from thalweg.ir.index import variable as index_of
from thalweg.ir.loop import IndexTuple, Variable
from thalweg.ir.target import Target
from thalweg.lower.nests.match_contraction import floor_mods, summed_product


def strides_of(form: Any, at: IndexTuple, target: Target) -> dict[Variable, int]:
    """The strides of a contraction's output variables: those it divides by, if it divides nothing
    else."""
    body = summed_product(form) if isinstance(form, Expr) else None
    if body is None:
        return {}
    strides: dict[Variable, int] = {}
    for term in floor_mods(body):
        outer = [v for v in term.number.terms if v in at.variables]
        if len(term.number.terms) != 1 or len(outer) != 1:
            return {}
        by = term.divisor * max(term.modulus, 1)
        variable = at.variables[at.variables.index(outer[0])]  # pyright: ignore[reportArgumentType]
        strides[variable] = math.lcm(strides.get(variable, 1), by)
    return strides if math.prod(strides.values()) <= target.max_strided_phases else {}


def phases(
    at: IndexTuple, strides: dict[Variable, int]
) -> Iterator[tuple[IndexTuple, tuple[Variable, ...]]]:
    """The index of an element of each phase, and the loops over its elements."""
    for residues in itertools.product(*(range(s) for s in strides.values())):
        chosen = dict(zip(strides, residues, strict=True))
        indices: list[Affine] = []
        loops: list[Variable] = []
        for variable in at.variables:
            index, loop = _phase(variable, strides.get(variable, 1), chosen.get(variable, 0))
            indices.append(index)
            loops.append(loop)
        if all(loop.extent for loop in loops):
            places = [expressed(index) for index in indices]
            yield (
                IndexTuple.of(places, at.shape, at.output),
                tuple(loop for loop in loops if loop.extent != 1),
            )


def _phase(variable: Variable, stride: int, residue: int) -> tuple[Affine, Variable]:
    count = max(-(-(variable.extent - residue) // stride), 0)
    loop = Variable.fresh(count)
    return index_of(loop).scaled(stride) + number(residue), loop


def is_nothing(form: Expr) -> bool:
    """Whether a phase of a contraction is zero: one of its factors is always padding."""
    body = summed_product(form)
    return is_zero(form) if body is None else any(is_zero(_bare(part)) for part in body.arguments)


def _bare(value: Expr) -> Expr:
    """A factor without conversions."""
    while isinstance(value, Cast):
        value = value.value
    return value
