"""Philox4x32-10: random numbers as a function of a key and a counter.

A generator is a value: 64 bits of key and 128 bits of counter. Block `i` is the counter plus `i`,
encrypted into four 32-bit words, so any part of the stream can be had without what comes before,
in any order and on any number of threads. Seeds are laid out as in TensorFlow.
"""

from __future__ import annotations

import os
import threading
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from thalweg.ir import philox as elements

Array = NDArray[Any]

_WORD = elements.WORD
_LONG = (1 << 64) - 1
_HUGE = (1 << 128) - 1
_MULTIPLIERS = tuple(map(np.uint64, elements.MULTIPLIERS))
_CHUNK = 1 << 13  # blocks worked on at once: what stays in the cache
WORDS = 4  # per block


@dataclass(frozen=True)
class Philox:
    """A place in a random stream."""

    key: int
    counter: int

    @classmethod
    def from_seeds(cls, seed: int, seed2: int) -> Philox:
        """The stream of a pair of op seeds: one is the key, the other the upper counter."""
        return cls(seed & _LONG, (seed2 & _LONG) << 64)

    @classmethod
    def scrambled(cls, seed: int, seed2: int) -> Philox:
        """The stream of a pair of user seeds, none of whose bits need to be strong."""
        mix = cls(elements.SCRAMBLING_KEY, (seed & _LONG) | (seed2 & _LONG) << 64).blocks(1)[0]
        words = [int(word) for word in mix]
        return cls(words[0] | words[1] << 32, words[2] << 64 | words[3] << 96)

    @classmethod
    def at(cls, words: Array) -> Philox:
        """The place that these words say."""
        number = sum(int(word) << 32 * i for i, word in enumerate(words))
        return cls(number & _LONG, number >> 64)

    def skip(self, blocks: int) -> Philox:
        """The stream from `blocks` further on."""
        return Philox(self.key, (self.counter + blocks) & _HUGE)

    def place(self) -> Array:
        """The key and the counter as 32-bit words, lowest first: what loops take."""
        number = self.counter << 64 | self.key
        return np.frombuffer(number.to_bytes(24, "little"), "<u4").astype(np.uint32)

    def blocks(self, count: int) -> Array:
        """The next blocks, as words of shape [count, 4]."""
        return self.blocks_at(np.arange(count, dtype=np.uint64))

    def blocks_at(self, offsets: Array) -> Array:
        """The blocks at some offsets from here, as words of shape [len(offsets), 4]."""
        words = np.empty((len(offsets), WORDS), np.uint32)
        for start in range(0, len(offsets), _CHUNK):
            part = slice(start, start + _CHUNK)
            _encrypt(self._counters(offsets[part]), self.key, words[part])
        return words

    def words(self, count: int) -> Array:
        """The next `count` words."""
        return self.blocks(-(-count // WORDS)).reshape(-1)[:count]

    def _counters(self, offsets: Array) -> list[Array]:
        low = np.uint64(self.counter & _LONG) + offsets.astype(np.uint64)
        carry = (low < offsets).astype(np.uint64)
        high = np.uint64(self.counter >> 64) + carry
        return [low & _WORD, low >> 32, high & _WORD, high >> 32]


def _encrypt(counter: list[Array], key: int, words: Array) -> None:
    """Ten rounds of multiply and exclusive-or; 32-bit words are held in 64 bits throughout."""
    one, two, three, four = counter
    low, high = key & _WORD, key >> 32
    steps = elements.KEY_STEPS
    for _ in range(elements.ROUNDS):
        first, second = one * _MULTIPLIERS[0], three * _MULTIPLIERS[1]
        one, two = (second >> 32) ^ two ^ low, second & _WORD
        three, four = (first >> 32) ^ four ^ high, first & _WORD
        low, high = (low + steps[0]) & _WORD, (high + steps[1]) & _WORD
    for column, value in enumerate((one, two, three, four)):
        words[:, column] = value


def fresh_seed() -> int:
    """A seed that nobody has chosen: 64 bits of the system's entropy."""
    return int.from_bytes(os.urandom(8))


class Stream:
    """The random stream of one node in one session: what one step takes, no other gets."""

    def __init__(self, seed: int, seed2: int) -> None:
        if seed == 0 and seed2 == 0:
            seed, seed2 = fresh_seed(), fresh_seed()
        self._next = Philox.from_seeds(seed, seed2)
        self._lock = threading.Lock()

    def reserve(self, blocks: int) -> Philox:
        """Take `blocks` blocks out of the stream."""
        with self._lock:
            reserved = self._next
            self._next = Philox(reserved.key, (reserved.counter + blocks) & _HUGE)
        return reserved


class Words:
    """The words of a generator one after another, for samplers that decide as they go. The first
    ones may be there already."""

    READ_AHEAD = 64  # blocks

    def __init__(self, generator: Philox, first: Array | None = None) -> None:
        self._generator, self._first = generator, first
        self._array = np.empty(0, np.uint32)
        self._words: list[int] = []
        self._position = 0

    def word(self) -> int:
        """The next 32 bits."""
        if self._position == len(self._array):
            self._read()
        if not self._words:
            self._words = self._array.tolist()
        self._position += 1
        return self._words[self._position - 1]

    def long(self) -> int:
        """The next 64 bits."""
        low = self.word()
        return low | self.word() << 32

    def float32(self) -> float:
        """The next number in [0, 1) of 23 bits."""
        return (self.word() & 0x7FFFFF) / (1 << 23)

    def float64(self) -> float:
        """The next number in [0, 1) of 52 bits."""
        high = self.word() & 0xFFFFF
        return (high << 32 | self.word()) / (1 << 52)

    def float64s(self) -> list[float]:
        """The next such numbers, as many as were read ahead; no others may be drawn before."""
        if self._position == len(self._array):
            self._read()
        words, self._position = self._array[self._position :], len(self._array)
        return float64s(words).tolist()

    def _read(self) -> None:
        read, self._first = self._first, None
        self._array = self._generator.words(self.READ_AHEAD * WORDS) if read is None else read
        self._words, self._position = [], 0
        self._generator = self._generator.skip(len(self._array) // WORDS)

    def below(self, limit: int, bits: int = 32) -> int:
        """An integer in [0, limit) without bias: what would favour small ones is thrown away."""
        draw = self.word if bits == 32 else self.long
        if limit & (limit - 1) == 0:
            return draw() & (limit - 1)
        remainder = ((1 << bits) - 1) % limit + 1
        value = draw()
        while value < remainder:
            value = draw()
        return value % limit


def float64s(words: Array) -> Array:
    """The numbers in [0, 1) of 52 bits that pairs of words make, along the last axis."""
    longs = words.astype(np.uint64)
    return ((longs[..., 0::2] & 0xFFFFF) << 32 | longs[..., 1::2]) / (1 << 52)


class Draws:
    """The same number of blocks of a stream for step after step, of which a few are mostly enough.
    Those of several steps are encrypted together: one takes nearly as long."""

    _MAX_TOGETHER = 1024  # blocks

    def __init__(self, stream: Stream, blocks: int) -> None:
        self._stream, self._blocks = stream, blocks
        self._first: dict[int, Array] = {}  # words by the counter that blocks begin with

    def next(self) -> Words:
        """The blocks of the next step; one thread at a time."""
        here = self._stream.reserve(self._blocks)
        if here.counter not in self._first:
            words = self._first_words(here, Words.READ_AHEAD)
            counters = [self.skip(here, step).counter for step in range(len(words))]
            self._first = dict(zip(counters, words, strict=True))
        return Words(here, self._first.pop(here.counter))

    def next_steps(self, used: int) -> tuple[Philox, Array]:
        """The blocks of the next steps, and the words of the first `used` ones of each in rows."""
        used = min(used, self._blocks)
        here = self._stream.reserve(self._steps(used) * self._blocks)
        return here, self._first_words(here, used)

    def skip(self, generator: Philox, steps: int) -> Philox:
        """The blocks of a step so many steps after another's."""
        return generator.skip(steps * self._blocks)

    def _steps(self, used: int) -> int:
        return max(1, self._MAX_TOGETHER // used)

    def _first_words(self, generator: Philox, used: int) -> Array:
        starts = np.arange(self._steps(used), dtype=np.uint64)[:, None] * np.uint64(self._blocks)
        offsets = starts + np.arange(used, dtype=np.uint64)
        return generator.blocks_at(offsets.ravel()).reshape(len(starts), -1)
