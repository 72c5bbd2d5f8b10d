"""The signature of an op: what it takes and gives, as one line of text.

`"params: T, indices: I -> output: T; I: index"` reads: two inputs whose dtypes are bound to the
type variables T and I, one output of dtype T, and I one of the index dtypes. `N*T` is a list of
tensors of one dtype, `[Ts]` a list of any dtypes, `&T` a reference to a variable's buffer. A name
that is a dtype (`int32`) is fixed; a name that is a field of the op takes the field's value.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from thalweg.graph import dtypes
from thalweg.graph.dtypes import DType
from thalweg.platform.caches import memoized

_FIXED: dict[str, DType] = {dtype.name: dtype for dtype in dtypes.ANY}


@dataclass(frozen=True)
class Argument:
    """One input or output: its name, its type, and whether it is a reference or a list."""

    name: str
    type: str
    is_ref: bool = False
    count: str = ""  # the name of the length, for a list of one dtype
    is_mixed: bool = False  # a list of any dtypes

    @cached_property
    def is_list(self) -> bool:
        """Whether this argument stands for any number of tensors."""
        return bool(self.count) or self.is_mixed

    @cached_property
    def fixed(self) -> DType | None:
        """The dtype, where the signature names one."""
        return _FIXED.get(self.type)

    def size(self, values: Mapping[str, Any]) -> int:
        """How many tensors this argument stands for, given the attributes of a node."""
        if self.is_mixed:
            return len(values[self.type])
        return values[self.count] if self.count else 1


@dataclass(frozen=True)
class Signature:
    """The parsed form: inputs, outputs, and the dtypes each type variable may take."""

    inputs: tuple[Argument, ...]
    outputs: tuple[Argument, ...]
    allowed: dict[str, frozenset[DType]]

    @cached_property
    def has_lists(self) -> bool:
        """Whether any input stands for several tensors."""
        return any(argument.is_list for argument in self.inputs)

    @cached_property
    def references(self) -> tuple[int, ...]:
        """The positions of the inputs that are references to variables."""
        return tuple(i for i, argument in enumerate(self.inputs) if argument.is_ref)

    @cached_property
    def type_names(self) -> tuple[str, ...]:
        """The type variables and type fields, in order of first use."""
        names = dict.fromkeys(a.type for a in self.inputs + self.outputs if a.fixed is None)
        return tuple(names)

    def group(self, flat: Sequence[Any], counts: tuple[int, ...]) -> list[Any]:
        """Gather a flat sequence into one value per input, lists where the input is a list."""
        return gathered(self.inputs, flat, counts)


def gathered(
    arguments: Sequence[Argument], flat: Sequence[Any], counts: Sequence[int]
) -> list[Any]:
    """One value per argument of a flat sequence, lists where the argument is a list."""
    grouped: list[Any] = []
    start = 0
    for argument, count in zip(arguments, counts, strict=True):
        grouped.append(list(flat[start : start + count]) if argument.is_list else flat[start])
        start += count
    return grouped


@memoized(1_000)  # families of ops have one signature
def parse(text: str) -> Signature:
    """Parse a signature line."""
    body, _, constraints = text.partition(";")
    inputs, _, outputs = body.partition("->")
    return Signature(
        tuple(_argument(part) for part in _split(inputs)),
        tuple(_argument(part) for part in _split(outputs)),
        dict(_constraint(part) for part in _split(constraints)),
    )


def _split(text: str) -> list[str]:
    return [part.strip() for part in text.split(",") if part.strip()]


@memoized(2_000)  # most ops have an `x: T`
def _argument(text: str) -> Argument:
    name, _, kind = (part.strip() for part in text.partition(":"))
    if kind.startswith("["):
        return Argument(name, kind.strip("[]"), is_mixed=True)
    if kind.startswith("&"):
        return Argument(name, kind[1:], is_ref=True)
    if "*" in kind:
        count, _, kind = kind.partition("*")
        return Argument(name, kind.lstrip("&"), is_ref=kind.startswith("&"), count=count)
    return Argument(name, kind)


def _constraint(text: str) -> tuple[str, frozenset[DType]]:
    """`I: index` or `I: int32|int64` or `T: real|string`: the union of groups and dtypes."""
    name, _, kinds = (part.strip() for part in text.partition(":"))
    allowed: frozenset[DType] = frozenset()
    for kind in kinds.split("|"):
        fixed = _FIXED.get(kind)
        allowed |= dtypes.groups[kind] if fixed is None else {fixed}
    return name, allowed
