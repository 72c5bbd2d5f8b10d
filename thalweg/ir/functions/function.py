"""The description of a scalar function: one row with all that the system knows about it.

`Function.numpy` defines it and `Function.emit` emits it; lowering uses its cost and dtypes. Nothing
else lists functions by name: sets such as "comparisons" are derived from rows.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from thalweg.ir.functions.dtypes import Dtype, DtypeRule, of_ufunc
from thalweg.ir.functions.register import Register
from thalweg.platform.dtype_traits import find_traits, is_float, is_narrow_float

_LONG_COST = 12.0


@dataclass(frozen=True)
class Site:
    """A call of a function: the dtypes of NumPy's loop, inputs first, then the output."""

    dtypes: tuple[Dtype, ...]
    #: reports a condition that must not hold in any active lane: a zero divisor
    fault: Callable[[Register], None] | None = None

    @property
    def dtype(self) -> Dtype:
        """The dtype of the first input; most functions have the same for all."""
        return self.dtypes[0]

    @property
    def signed(self) -> bool:
        """Whether elements are signed integers."""
        return self.dtype.kind == "i"

    @property
    def is_float(self) -> bool:
        """Whether elements are floating-point numbers."""
        return is_float(self.dtype)

    @property
    def is_narrow(self) -> bool:
        """Whether elements are floats of fewer than 32 bits, computed as float32."""
        return is_narrow_float(self.dtype)


#: Emits a function: `emit(site, *inputs)`. The registers have the site's input dtypes and the same
#: number of lanes; the result has the site's output dtype.
Emit = Callable[..., Register]


@dataclass(frozen=True)
class Approximation:
    """An approximate instruction of the target for a function, for floats of at most
    `mantissa_bits`, whose rounding hides its error."""

    instruction: str
    mantissa_bits: int
    formula: Callable[..., Register] | None = None  # around the instruction, if any
    cost: float = 1.0
    exact_cost: float | None = None  # of the exact function on such a target, if it differs

    def emit(self, x: Register, *others: Register) -> Register:
        """Emit the approximation."""
        if self.formula is not None:
            return self.formula(x, *others)
        return x.approximated(self.instruction, *others)

    def serves(self, dtype: Dtype) -> bool:
        """Whether it is accurate enough for a dtype."""
        row = find_traits(dtype)
        form = None if row is None or not row.is_narrow_float else row.float_format
        return form is not None and form.mantissa_bits <= self.mantissa_bits


@dataclass(frozen=True)
class Comparison:
    """For which orders of its operands a comparison holds."""

    if_less: bool
    if_equal: bool
    if_greater: bool


@dataclass(frozen=True)
class Function:
    """A scalar function. Those without `emit` are special forms of the code generator."""

    name: str
    numpy: Callable[..., Any]
    emit: Emit | None = None
    dtypes: DtypeRule = of_ufunc
    cost: float = 1.0  # in vector instructions per element
    ulps: float | None = None  # its largest error; None: bits are NumPy's
    comparison: Comparison | None = None
    divides: bool = False  # an integer divided by zero faults
    narrow: Approximation | None = None  # for narrow floats, on targets that have it

    def emit_at(self, site: Site, *inputs: Register) -> Register:
        """Emit it at a call site, by its approximation where that suffices."""
        near = self.narrow
        if near and near.instruction in inputs[0].approximations and near.serves(site.dtype):
            return near.emit(*inputs)
        assert self.emit is not None
        return self.emit(site, *inputs)

    def approximate_cost(self, dtype: Dtype) -> float:
        """Its cost for a dtype on a target with all approximations."""
        if self.narrow is None:
            return self.cost
        return (
            self.narrow.cost if self.narrow.serves(dtype) else self.narrow.exact_cost or self.cost
        )

    @property
    def is_long(self) -> bool:
        """Whether it takes many instructions and registers."""
        return self.cost >= _LONG_COST
