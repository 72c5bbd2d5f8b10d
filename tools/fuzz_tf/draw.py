"""What a call spec draws with: shapes, dtypes, inputs, and the text of the call.

A spec is a function of a `Draw`; it adds inputs and ends with `draw.call(...)` or some
`draw.line(...)`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

import numpy as np

from tools.fuzz_tf import values
from tools.fuzz_tf.case import MODES, Case, is_float

Item = TypeVar("Item")
Array = np.ndarray[Any, Any]

#: lengths of axes: small ones, the borders of vectors, and now and then none at all
_LENGTHS = (1, 1, 2, 2, 3, 3, 4, 5, 6, 7, 8, 9, 16, 17, 33)


class Code(str):
    """Text that stands in a call as it is."""


@dataclass(frozen=True)
class Spec:
    """How calls of a public function are drawn, and how closely their results must agree."""

    function: str
    make: Callable[[Draw], None]
    ulps: float = 64
    scaled: bool = True
    gradient: bool = True


SPECS: dict[str, Spec] = {}


def spec(names: str, **options: Any) -> Callable[[Callable[[Draw], None]], Callable[[Draw], None]]:
    """Register a maker of calls under each of the names."""

    def register(make: Callable[[Draw], None]) -> Callable[[Draw], None]:
        for name in names.split():
            if name in SPECS:
                raise ValueError(f"{name} has two specs.")
            SPECS[name] = Spec(name, make, **options)
        return make

    return register


class Draw:
    """One case in the making."""

    def __init__(self, rng: np.random.Generator, function: str, shown: str) -> None:
        self.rng = rng
        self.function = function
        self.shown = shown
        self.arrays: list[Array] = []
        self.code: list[str] = []
        self.gradient = True

    # choices

    def choice(self, *items: Item) -> Item:
        """One of the arguments."""
        return items[int(self.rng.integers(len(items)))]

    def chance(self, probability: float) -> bool:
        """True so often."""
        return bool(self.rng.random() < probability)

    def integer(self, low: int, high: int) -> int:
        """low <= it <= high"""
        return int(self.rng.integers(low, high + 1))

    def number(self, low: float, high: float) -> float:
        """A number with few digits."""
        return round(float(self.rng.uniform(low, high)), 3)

    def floating(self, *, narrow: bool = True) -> str:
        """A floating dtype, float32 most often."""
        names = ("float32", "float32", "float64", "float16", "bfloat16")
        return self.choice(*names[: 5 if narrow else 3])

    def numeric(self) -> str:
        """Any real dtype."""
        return self.choice(self.floating(), self.floating(), self.choice(*values.INTS))

    def anything(self) -> str:
        """Any dtype that functions of shape take."""
        return self.choice(
            self.numeric(), self.numeric(), self.choice("complex64", "complex128", "bool", "string")
        )

    # shapes

    def length(self, low: int = 1, high: int = 33) -> int:
        """The length of an axis; with `low` 0 it may be empty."""
        if low == 0 and self.chance(0.06):
            return 0
        return self.choice(*[n for n in _LENGTHS if low <= n <= high] or [low])

    def shape(self, least: int = 0, most: int = 4, low: int = 0, high: int = 33) -> tuple[int, ...]:
        """A shape of some hundred elements at most."""
        result: list[int] = []
        for _ in range(self.integer(least, most)):
            room = max(low, 1, min(high, 300 // max(1, int(np.prod(result)))))
            result.append(self.length(low, room))
        return tuple(result)

    def axis(self, rank: int) -> int:
        """An axis of so many, often counted from the end."""
        return self.integer(-rank, rank - 1)

    def axes(self, rank: int) -> Any:
        """None, an axis, or a list of distinct axes."""
        if rank == 0 or self.chance(0.2):
            return self.choice(None, [])
        if self.chance(0.5):
            return self.axis(rank)
        some = self.rng.permutation(rank)[: self.integer(1, rank)].tolist()
        return [a - rank if self.chance(0.3) else a for a in some]

    def broadcast_pair(self, most: int = 4) -> tuple[tuple[int, ...], tuple[int, ...]]:
        """Two shapes that broadcast, mostly."""
        whole = self.shape(most=most)
        sides = [whole, whole]
        if self.chance(0.6):
            side = self.integer(0, 1)
            cut = whole[self.integer(0, len(whole)) :]
            sides[side] = tuple(1 if self.chance(0.3) else n for n in cut)
        if whole and self.chance(0.02):
            sides[0] = (*sides[0][:-1], whole[-1] + 1) if sides[0] else sides[0]
        return sides[0], sides[1]

    # inputs

    def tensor(self, dtype: str, shape: Sequence[int], fill: str = "normal") -> Code:
        """An input with elements of a fill."""
        return self.given(values.array(self.rng, dtype, tuple(shape), fill))

    def given(self, array: Any, dtype: str | None = None) -> Code:
        """An input with these elements."""
        made = np.asarray(array)
        self.arrays.append(made.astype(values.numpy_dtype(dtype)) if dtype else made)
        return Code(f"x{len(self.arrays) - 1}")

    def ints(self, shape: Sequence[int], low: int, high: int, dtype: str | None = None) -> Code:
        """An input of integers, low <= each < high."""
        return self.tensor(
            dtype or self.choice("int32", "int64"), shape, f"{low}..{max(high, low + 1)}"
        )

    def strings(self, pool: Sequence[bytes], shape: Sequence[int]) -> Code:
        """An input of strings from a pool."""
        made = np.empty(tuple(shape), object)
        for place in np.ndindex(*shape):
            made[place] = pool[self.integer(0, len(pool) - 1)]
        return self.given(made)

    # the text

    def line(self, text: str) -> None:
        """Add a line of code."""
        self.code.append(text)

    def call(self, *args: Any, **kwargs: Any) -> None:
        """End with a call of the function the spec is for."""
        self.code.append(self.calling(*args, **kwargs))

    def calling(self, *args: Any, **kwargs: Any) -> Code:
        """The text of a call of the function."""
        given = [text(a) for a in args]
        named = [f"{key}={text(value)}" for key, value in kwargs.items()]
        return Code(f"tf.{self.shown}({', '.join([*given, *named])})")


def text(value: Any) -> str:
    """Python for an argument; codes stand as they are."""
    if isinstance(value, Code):
        return str(value)
    if isinstance(value, list):
        return "[" + ", ".join(text(v) for v in value) + "]"
    if isinstance(value, tuple):
        return "(" + "".join(text(v) + ", " for v in value) + ")"
    return repr(value)


def draw_case(spec_: Spec, shown: str, number: int, rng: np.random.Generator) -> Case:
    """A case of a spec, calling the function by the name `shown`."""
    draw = Draw(rng, spec_.function, shown)
    spec_.make(draw)
    floats = (
        tuple(i for i, a in enumerate(draw.arrays) if is_float(a))
        if spec_.gradient and draw.gradient
        else ()
    )
    return Case(
        number=number,
        function=spec_.function,
        code=tuple(draw.code),
        arrays=tuple(draw.arrays),
        mode=draw.choice(*MODES),
        gradient=floats if draw.chance(0.6) else (),
        compiled=draw.chance(0.6),
        ulps=spec_.ulps,
        scaled=spec_.scaled,
    )
