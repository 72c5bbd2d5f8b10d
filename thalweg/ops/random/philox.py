"""Philox4x32-10: random numbers as a function of a key and a counter.

A generator is a value: 64 bits of key and 128 bits of counter. Block `i` is the counter plus `i`,
encrypted into four 32-bit words, so any part of the stream can be computed independently, in any
order and on any number of threads. Seeds are laid out as in TensorFlow.
"""

from __future__ import annotations

import os
import threading
from dataclasses import dataclass

import numpy as np

from thalweg.ir import philox as elements
from thalweg.platform.arrays import Array

_WORD = elements.WORD
_LONG = (1 << 64) - 1
_HUGE = (1 << 128) - 1
_MULTIPLIERS = tuple(map(np.uint64, elements.MULTIPLIERS))
_CHUNK = 1 << 13  # blocks computed together: their words fit in the cache
WORDS = 4  # per block


@dataclass(frozen=True)
class Philox:
    """A position in a random stream."""

    key: int
    counter: int

    @classmethod
    def from_seeds(cls, seed: int, seed2: int) -> Philox:
        """The stream of a pair of op seeds: one is the key, one the upper half of the counter."""
        return cls(seed & _LONG, (seed2 & _LONG) << 64)

    @classmethod
    def scrambled(cls, seed: int, seed2: int) -> Philox:
        """The stream of a pair of user seeds, whose bits need not be well distributed."""
        mix = cls(elements.SCRAMBLING_KEY, (seed & _LONG) | (seed2 & _LONG) << 64).blocks(1)[0]
        words = [int(word) for word in mix]
        return cls(words[0] | words[1] << 32, words[2] << 64 | words[3] << 96)

    @classmethod
    def at(cls, words: Array) -> Philox:
        """The inverse of `place`."""
        number = sum(int(word) << 32 * i for i, word in enumerate(words))
        return cls(number & _LONG, number >> 64)

    def skip(self, blocks: int) -> Philox:
        """The stream advanced by `blocks`."""
        return Philox(self.key, (self.counter + blocks) & _HUGE)

    def place(self) -> Array:
        """The key and the counter as 32-bit words, lowest first: the input of compiled loops."""
        number = self.counter << 64 | self.key
        return np.frombuffer(number.to_bytes(24, "little"), "<u4").astype(np.uint32)

    def blocks(self, count: int) -> Array:
        """The next blocks, as words of shape [count, 4]."""
        return self.blocks_at(np.arange(count, dtype=np.uint64))

    def blocks_at(self, offsets: Array) -> Array:
        """The blocks at offsets from the position, as words of shape [len(offsets), 4]."""
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
    """Ten rounds of multiply and exclusive-or, on 32-bit words in 64-bit integers."""
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
    """A nondeterministic seed: 64 bits of the system's entropy."""
    return int.from_bytes(os.urandom(8))


class Stream:
    """The random stream of one node in one session; steps reserve disjoint parts of it."""

    def __init__(self, seed: int, seed2: int) -> None:
        if seed == 0 and seed2 == 0:
            seed, seed2 = fresh_seed(), fresh_seed()
        self._next = Philox.from_seeds(seed, seed2)
        self._lock = threading.Lock()

    def reserve(self, blocks: int) -> Philox:
        """Reserve the next `blocks` blocks of the stream."""
        with self._lock:
            reserved = self._next
            self._next = Philox(reserved.key, (reserved.counter + blocks) & _HUGE)
        return reserved


class Words:
    """The sequence of a generator's words, for samplers whose draws depend on earlier ones. `first`
    are words that are already computed."""

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
        """The next of these numbers, as many as are read ahead; no other kind may precede them."""
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
        """An integer in [0, limit) without bias: values below 2**bits mod limit are rejected."""
        draw = self.word if bits == 32 else self.long
        if limit & (limit - 1) == 0:
            return draw() & (limit - 1)
        remainder = ((1 << bits) - 1) % limit + 1
        value = draw()
        while value < remainder:
            value = draw()
        return value % limit


def float64s(words: Array) -> Array:
    """Numbers in [0, 1) of 52 bits from pairs of words, along the last axis."""
    longs = words.astype(np.uint64)
    return ((longs[..., 0::2] & 0xFFFFF) << 32 | longs[..., 1::2]) / (1 << 52)


class Draws:
    """Reserves a fixed number of blocks of a stream for each step, of which the first few usually
    suffice. Those of several steps are computed together, which takes little longer than one."""

    _MAX_TOGETHER = 1024  # blocks

    def __init__(self, stream: Stream, blocks: int) -> None:
        self._stream, self._blocks = stream, blocks
        self._first: dict[int, Array] = {}  # words by the counter of their first block

    def next(self) -> Words:
        """The blocks of the next step. Not thread-safe."""
        here = self._stream.reserve(self._blocks)
        if here.counter not in self._first:
            words = self._first_words(here, Words.READ_AHEAD)
            counters = [self.skip(here, step).counter for step in range(len(words))]
            self._first = dict(zip(counters, words, strict=True))
        return Words(here, self._first.pop(here.counter))

    def next_steps(self, used: int) -> tuple[Philox, Array]:
        """The blocks of the next steps, and the words of the first `used` blocks of each."""
        used = min(used, self._blocks)
        here = self._stream.reserve(self._steps(used) * self._blocks)
        return here, self._first_words(here, used)

    def skip(self, generator: Philox, steps: int) -> Philox:
        """The blocks of a later step."""
        return generator.skip(steps * self._blocks)

    def _steps(self, used: int) -> int:
        return max(1, self._MAX_TOGETHER // used)

    def _first_words(self, generator: Philox, used: int) -> Array:
        starts = np.arange(self._steps(used), dtype=np.uint64)[:, None] * np.uint64(self._blocks)
        offsets = starts + np.arange(used, dtype=np.uint64)
        return generator.blocks_at(offsets.ravel()).reshape(len(starts), -1)
