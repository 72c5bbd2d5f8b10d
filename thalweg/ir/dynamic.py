"""Run-time integers of a kernel: sizes and strides that vary between calls."""

from __future__ import annotations

import math
from typing import Any


class Dynamic(int):
    """An integer that is read when the kernel runs.

    Its value is a hint, from the call that the kernel was made for. Arithmetic would bake the hint
    into the code, so it raises.
    """

    word: int  # its position in the argument words

    def __eq__(self, other: object) -> bool:
        """Equal only to the same run-time integer: the value is a hint."""
        return self is other or (
            type(other) is type(self)
            and vars(self) == vars(other) != {}
            and int(self) == int(other)
        )

    def __ne__(self, other: object) -> bool:
        return not self == other  # `int` would compare the hints

    __hash__ = int.__hash__

    def _refuse(self, *_: object) -> Any:
        raise TypeError("arithmetic on an integer that is known only at run time")

    __add__ = __radd__ = __sub__ = __rsub__ = __mul__ = __rmul__ = _refuse
    __floordiv__ = __rfloordiv__ = __mod__ = __rmod__ = __neg__ = _refuse


class DynamicProduct(Dynamic):
    """A run-time integer that is the product of other integers."""

    factors: tuple[int, ...]


def dynamic(hint: int, word: int) -> Dynamic:
    """The run-time integer in an argument word."""
    result = Dynamic(hint)
    result.word = word
    return result


def times(*numbers: int) -> int:
    """The product of integers that may be dynamic."""
    product = math.prod(map(int, numbers))
    if all(map(is_static, numbers)):
        return product
    result = DynamicProduct(product)
    result.factors = tuple(numbers)
    return result


def factors_of(number: int) -> tuple[int, ...]:
    """The factors of a number, recursively; of one that is no product, itself."""
    if not isinstance(number, DynamicProduct):
        return (number,)
    return tuple(factor for part in number.factors for factor in factors_of(part))


def is_static(number: int) -> bool:
    """Whether an integer is known at compile time."""
    return not isinstance(number, Dynamic)
