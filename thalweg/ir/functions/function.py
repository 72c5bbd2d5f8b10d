"""What a scalar function is: one row that says everything the system knows about it.

`Function.numpy` is its meaning and `Function.emit` its code; lowering asks for its cost and its
dtypes. Nothing else names functions one by one: sets such as "comparisons" are questions to rows.
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
    #: hears of a condition that may hold in no lane that counts: a zero divisor
    fault: Callable[[Register], None] | None = None

    @property
    def dtype(self) -> Dtype:
        """The dtype of the first input, which most functions share among all."""
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


#: Writes the code of a function: `emit(site, *inputs)`. The registers have the input dtypes of the
#: site and agree in their number of lanes; the result has the site's output dtype.
Emit = Callable[..., Register]


@dataclass(frozen=True)
class Approximation:
    """The code of a function by an instruction of the target, for floats whose rounding hides the
    error of it: of `mantissa_bits` at most."""

    instruction: str
    mantissa_bits: int
    formula: Callable[..., Register] | None = None  # around the instruction, where it is not all
    cost: float = 1.0
    exact_cost: float | None = None  # of the function itself on such a target, if it is another one

    def emit(self, x: Register, *others: Register) -> Register:
        """Its code."""
        if self.formula is not None:
            return self.formula(x, *others)
        return x.approximated(self.instruction, *others)

    def serves(self, dtype: Dtype) -> bool:
        """Whether it is exact enough for elements of a dtype."""
        row = find_traits(dtype)
        form = None if row is None or not row.is_narrow_float else row.float_format
        return form is not None and form.mantissa_bits <= self.mantissa_bits


@dataclass(frozen=True)
class Comparison:
    """Where a comparison holds."""

    if_less: bool
    if_equal: bool
    if_greater: bool


@dataclass(frozen=True)
class Function:
    """A scalar function. Those without `emit` are special forms that a code generator writes."""

    name: str
    numpy: Callable[..., Any]
    emit: Emit | None = None
    dtypes: DtypeRule = of_ufunc
    cost: float = 1.0  # in vector instructions per element
    ulps: float | None = None  # its largest error in units of the last place; None: NumPy's bits
    comparison: Comparison | None = None
    divides: bool = False  # integers by zero are a fault
    narrow: Approximation | None = None  # its code for narrow floats, where the target has one

    def emit_at(self, site: Site, *inputs: Register) -> Register:
        """Its code at a site. Those without `emit` have none."""
        near = self.narrow
        if near and near.instruction in inputs[0].approximations and near.serves(site.dtype):
            return near.emit(*inputs)
        assert self.emit is not None
        return self.emit(site, *inputs)

    def approximate_cost(self, dtype: Dtype) -> float:
        """Its cost for elements of a dtype on a target with all approximations."""
        if self.narrow is None:
            return self.cost
        return (
            self.narrow.cost if self.narrow.serves(dtype) else self.narrow.exact_cost or self.cost
        )

    @property
    def is_long(self) -> bool:
        """Whether its code takes many instructions and registers."""
        return self.cost >= _LONG_COST
