"""Samplers of class numbers: uniform, log-uniform, and by counts learned or given.

A sampler draws from [0, range) with `draws(words)` and knows the `probability` of each class.
`sample_batch` draws many, with repetition or without, and tells how often each is expected.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from itertools import islice
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from thalweg import errors
from thalweg.ops.random.philox import Words

Array = NDArray[Any]


class Sampler(Protocol):
    """A distribution over [0, range)."""

    range: int

    def draws(self, words: Words) -> Iterator[int]:
        """One class after the other."""
        ...

    def probability(self, value: Array) -> Array:
        """The probability of each class in `value`."""
        ...


def sample_batch(sampler: Sampler, words: Words, count: int, unique: bool) -> tuple[Array, int]:
    """`count` classes, and how many draws they took."""
    draws = sampler.draws(words)
    if not unique:
        return np.fromiter(islice(draws, count), np.int64, count), count
    if count > sampler.range:
        raise errors.InvalidArgumentError(
            None, None, f"Sampler's range is too small: {sampler.range} for {count} unique samples"
        )
    found: dict[int, None] = {}
    tries = 0
    while len(found) < count:
        found[next(draws)] = None
        tries += 1
    return np.fromiter(found, np.int64, count), tries


def expected_count(probability: Array, count: int, tries: int) -> Array:
    """How often a class comes in a batch: if drawn without repetition, whether it comes at all."""
    if tries == count:
        return (probability * count).astype(np.float32)
    return (-np.expm1(tries * np.log1p(-probability))).astype(np.float32)


class Uniform:
    """Every class with the same probability."""

    def __init__(self, range: int) -> None:
        self.range = range

    def draws(self, words: Words) -> Iterator[int]:
        """One class after the other."""
        while True:
            yield words.below(self.range, bits=64)

    def probability(self, value: Array) -> Array:
        """1 / range"""
        return np.full(np.shape(value), 1 / self.range)


class LogUniform:
    """P(k) = log((k + 2) / (k + 1)) / log(range + 1): right for words sorted by frequency."""

    def __init__(self, range: int) -> None:
        self.range = range
        self._log_range = math.log1p(range)

    def draws(self, words: Words) -> Iterator[int]:
        """One class after the other."""
        while True:
            for number in words.float64s():
                # Rounding may give `range` itself.
                yield (int(math.exp(number * self._log_range)) - 1) % self.range

    def probability(self, value: Array) -> Array:
        """log((k + 2) / (k + 1)) / log(range + 1)"""
        return np.log((value + 2.0) / (value + 1.0)) / self._log_range


class LearnedUnigram:
    """By how often a class was seen (`update`), once more than that for each."""

    def __init__(self, range: int) -> None:
        self.range = range
        self._counts = np.ones(range, np.int64)
        self._sums = np.cumsum(self._counts)

    def draws(self, words: Words) -> Iterator[int]:
        """One class after the other."""
        total = int(self._sums[-1])
        while True:
            yield int(np.searchsorted(self._sums, words.below(total), side="right"))

    def probability(self, value: Array) -> Array:
        """count / total"""
        return self._counts[value] / self._sums[-1]

    def update(self, seen: Array) -> None:
        """Count the classes of a batch."""
        np.add.at(self._counts, seen, 1)
        self._sums = np.cumsum(self._counts)


class FixedUnigram:
    """By given weights, with Walker's alias tables: two numbers make a draw."""

    def __init__(self, weights: Sequence[float]) -> None:
        self.range = len(weights)
        self._weights = np.asarray(weights, np.float64)
        self._keep, self._alias = _alias_tables(self._weights)

    def draws(self, words: Words) -> Iterator[int]:
        """One class after the other."""
        while True:
            fraction = words.float32()
            place = words.below(self.range)
            yield place if fraction < self._keep[place] else self._alias[place]

    def probability(self, value: Array) -> Array:
        """weight / total"""
        return self._weights[value] / self._weights.sum()


def _alias_tables(weights: Array) -> tuple[list[float], list[int]]:
    """For each place, the probability to keep it, and the one to take otherwise."""
    share = (weights * len(weights) / weights.sum()).tolist()
    alias = list(range(len(weights)))
    low = [place for place, value in enumerate(share) if value < 1]
    high = [place for place, value in enumerate(share) if value >= 1]
    while high and low:
        short, long = low.pop(), high.pop()
        alias[short] = long
        share[long] -= 1 - share[short]
        (low if share[long] < 1 else high).append(long)
    for place in low + high:  # left over by rounding
        share[place] = 1.0
    return share, alias


def unigram_weights(
    counts: Iterable[float], distortion: float, reserved: int, shards: int, shard: int
) -> list[float]:
    """The weights of one shard: none for reserved classes, count ** distortion for others."""
    weights = [0.0 for place in range(reserved) if place % shards == shard]
    for place, count in enumerate(counts, len(weights)):
        if place % shards == shard:
            weights.append(count**distortion)
    return weights


def vocabulary_counts(text: str) -> list[float]:
    """The counts of a vocabulary file: the last field of each line."""
    counts: list[float] = []
    for line in text.splitlines():
        field = line.split(",")[-1]
        try:
            counts.append(float(field))
        except ValueError:
            raise errors.InvalidArgumentError(
                None, None, f"Wrong vocabulary format at line: {line}"
            ) from None
    return counts
