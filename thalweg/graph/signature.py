"""Op signatures: the inputs and outputs of an op, as one line of text.

`"params: T, indices: I -> output: T; I: index"` means: two inputs whose dtypes bind the type
variables T and I, one output of dtype T, and I is one of the index dtypes. `N*T` is a list of N
tensors of one dtype, `[Ts]` a list of any dtypes, `&T` a reference to a variable's buffer. A type
that is the name of a dtype (`int32`) is fixed; one that is a field of the op has the field's value.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
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
        """Whether the argument is a list of tensors."""
        return bool(self.count) or self.is_mixed

    @cached_property
    def fixed(self) -> DType | None:
        """The dtype, if the signature names one."""
        return _FIXED.get(self.type)

    def size(self, values: Mapping[str, Any]) -> int:
        """The number of tensors of this argument, given the attributes of a node."""
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
        """Whether any input is a list."""
        return any(argument.is_list for argument in self.inputs)

    @cached_property
    def references(self) -> tuple[int, ...]:
        """The positions of the inputs that are references to variables."""
        return tuple(i for i, argument in enumerate(self.inputs) if argument.is_ref)

    def counts(self, total: int) -> tuple[int, ...]:
        """The number of tensors of each input, of which one at most is a list."""
        length = total - sum(not argument.is_list for argument in self.inputs)
        return tuple(length if argument.is_list else 1 for argument in self.inputs)

    def group(self, flat: Sequence[Any], counts: tuple[int, ...]) -> list[Any]:
        """Group a flat sequence into one value per input, a list if the input is a list."""
        return gathered(self.inputs, flat, counts)


def gathered(
    arguments: Sequence[Argument], flat: Sequence[Any], counts: Sequence[int]
) -> list[Any]:
    """Group a flat sequence into one value per argument, a list if the argument is a list."""
    grouped: list[Any] = []
    start = 0
    for argument, count in zip(arguments, counts, strict=True):
        grouped.append(list(flat[start : start + count]) if argument.is_list else flat[start])
        start += count
    return grouped


def flattened(grouped: Iterable[Any]) -> list[Any]:
    """The flat sequence of one value per argument, the inverse of `gathered`."""
    flat: list[Any] = []
    for value in grouped:
        flat += value if isinstance(value, list) else [value]
    return flat


@memoized(1_000)  # ops of a family share a signature
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
    name, _, type_text = (part.strip() for part in text.partition(":"))
    if type_text.startswith("["):
        return Argument(name, type_text.strip("[]"), is_mixed=True)
    count, _, type_text = type_text.rpartition("*")
    is_ref = type_text.startswith("&")
    return Argument(name, type_text.removeprefix("&"), is_ref, count)


def _constraint(text: str) -> tuple[str, frozenset[DType]]:
    """`I: index` or `I: int32|int64` or `T: real|string`: the union of dtypes and of the sets that
    `dtypes` has by such names in capitals."""
    name, _, terms = (part.strip() for part in text.partition(":"))
    allowed: frozenset[DType] = frozenset()
    for term in terms.split("|"):
        fixed = _FIXED.get(term)
        allowed |= getattr(dtypes, term.upper()) if fixed is None else {fixed}
    return name, allowed
