"""Philox4x32-10 as expressions: each word of a random stream is a function of its number.

`thalweg.ops.random.philox` is the same generator over arrays. 32-bit words are held in uint64
elements, so that products do not overflow.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from thalweg.ir.expr import Expr, call, select
from thalweg.ir.loop import Operand

WORD = (1 << 32) - 1
MULTIPLIERS = (0xD2511F53, 0xCD9E8D57)
KEY_STEPS = (0x9E3779B9, 0xBB67AE85)
ROUNDS = 10
SCRAMBLING_KEY = 0x02461E293EC8F720

Words = tuple[Expr, Expr, Expr, Expr]


def philox_words(key: tuple[Any, Any], counter: Words) -> Words:
    """A block of four words, from two words of key and four words of counter."""
    one, two, three, four = counter
    for step in range(ROUNDS):
        low, high = (_advanced(k, step * by) for k, by in zip(key, KEY_STEPS, strict=True))
        first, second = one * MULTIPLIERS[0], three * MULTIPLIERS[1]
        one, two = _high(second).bit_xor(two).bit_xor(low), _low(second)
        three, four = _high(first).bit_xor(four).bit_xor(high), _low(first)
    return one, two, three, four


def _advanced(word: Any, by: int) -> Any:
    return _low(word + by) if isinstance(word, Expr) else (word + by) & WORD


def _low(long: Expr) -> Expr:
    return long.bit_and(WORD)


def _high(long: Expr) -> Expr:
    return long.shift_right(32)


def joined(high: Expr, low: Expr) -> Expr:
    """Two words as one of 64 bits."""
    return high.shift_left(32).bit_or(low)


def unsigned(value: Any) -> Expr:
    """An index, number or element as uint64."""
    return call("cast", value, np.uint64)


@dataclass(frozen=True, eq=False)
class Generator:
    """A position in a random stream: two words of key, and a counter as two uint64."""

    key: tuple[Any, Any]
    low: Expr
    high: Expr

    @classmethod
    def at(cls, place: Operand) -> Generator:
        """The stream from a position on, given as the six words of `Philox.place`."""
        key_low, key_high, *counter = (unsigned(place[i]) for i in range(6))
        return cls(
            (key_low, key_high), joined(counter[1], counter[0]), joined(counter[3], counter[2])
        )

    @classmethod
    def scrambled(cls, seed: Operand) -> Generator:
        """The stream of a pair of user seeds, as `Philox.scrambled`."""
        low, high = unsigned(seed[0]), unsigned(seed[1])
        key = SCRAMBLING_KEY & WORD, SCRAMBLING_KEY >> 32
        words = philox_words(key, (_low(low), _high(low), _low(high), _high(high)))
        return cls(words[:2], unsigned(0), joined(words[3], words[2]))

    def block(self, number: Any) -> Words:
        """Block `number` from here: four words."""
        offset = unsigned(number)
        low = self.low + offset
        high = self.high + unsigned(low < offset)
        return philox_words(self.key, (_low(low), _high(low), _low(high), _high(high)))

    def pair(self, number: Any) -> tuple[Expr, Expr]:
        """Pair `number` from here: two words."""
        place = unsigned(number)
        words = self.block(place.shift_right(1))
        is_first = place.bit_and(1).eq(0)
        return select(is_first, words[0], words[2]), select(is_first, words[1], words[3])

    def word(self, number: Any) -> Expr:
        """Word `number` from here."""
        place = unsigned(number)
        first, second = self.pair(place.shift_right(1))
        return select(place.bit_and(1).eq(0), first, second)
