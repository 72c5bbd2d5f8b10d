"""Samplers of classes: uniform, log-uniform, and by learned or given counts.

A sampler draws from [0, range) with `draws(words)` and has the `probability` of each class.
`sample_batch` draws many, with or without repetition; `expected_count` is the expected count of
each. `batches` does both for successive steps.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from itertools import islice
from typing import NamedTuple, Protocol

import numpy as np

from thalweg import errors
from thalweg.ops.core.sorting import stable_sort, starts_run
from thalweg.ops.random.philox import WORDS, Draws, Words, float64s
from thalweg.platform.arrays import Array

_TOLERANCE = 1e-12  # relative, of exponentials: far above their error
_MAX_RANGE = 1 << 48  # of classes of several steps that are sorted together


class Sampler(Protocol):
    """A distribution over [0, range)."""

    range: int

    def draws(self, words: Words) -> Iterator[int]:
        """An endless sequence of classes."""
        ...

    def probability(self, value: Array) -> Array:
        """The probability of each class in `value`."""
        ...


class Batch(NamedTuple):
    """The classes of a step, the number of draws, and the expected counts."""

    classes: Array
    tries: int
    expected: Array


def batches(sampler: Sampler, draws: Draws, count: int, unique: bool) -> Callable[[], Batch]:
    """Returns a function that draws the `count` classes of the next step; not thread-safe."""
    if isinstance(sampler, LogUniform) and count and sampler.range <= _MAX_RANGE:
        return LogUniformBatches(sampler, draws, count, unique).next
    return partial(_next_batch, sampler, draws, count, unique)


def _next_batch(sampler: Sampler, draws: Draws, count: int, unique: bool) -> Batch:
    classes, tries = sample_batch(sampler, draws.next(), count, unique)
    return Batch(classes, tries, expected_count(sampler.probability(classes), count, tries))


def sample_batch(sampler: Sampler, words: Words, count: int, unique: bool) -> tuple[Array, int]:
    """`count` classes, and the number of draws."""
    draws = sampler.draws(words)
    if not unique:
        return np.fromiter(islice(draws, count), np.int64, count), count
    _check_range(sampler, count)
    found: dict[int, None] = {}
    tries = 0
    while len(found) < count:
        found[next(draws)] = None
        tries += 1
    return np.fromiter(found, np.int64, count), tries


def _check_range(sampler: Sampler, count: int) -> None:
    """Raise unless a sampler has at least `count` classes."""
    if count > sampler.range:
        raise errors.invalid(
            f"Sampler's range is too small: {sampler.range} for {count} unique samples"
        )


def expected_count(probability: Array, count: int, tries: int) -> Array:
    """The expected count of a class in a batch; without repetition, the probability of one."""
    if tries == count:
        return (probability * count).astype(np.float32)
    return (-np.expm1(tries * np.log1p(-probability))).astype(np.float32)


def expected_counts(probability: Array, count: int, tries: Array) -> Array:
    """`expected_count` for each row, whose number of draws is in `tries`."""
    counts = expected_count(probability, count, count)
    rows = np.flatnonzero(tries != count)
    counts[rows] = -np.expm1(tries[rows, None] * np.log1p(-probability[rows]))
    return counts


class Uniform:
    """Every class with the same probability."""

    def __init__(self, range: int) -> None:
        self.range = range

    def draws(self, words: Words) -> Iterator[int]:
        """An endless sequence of classes."""
        while True:
            yield words.below(self.range, bits=64)

    def probability(self, value: Array) -> Array:
        """1 / range"""
        return np.full(np.shape(value), 1 / self.range)


class LogUniform:
    """P(k) = log((k + 2) / (k + 1)) / log(range + 1), for words sorted by frequency."""

    def __init__(self, range: int) -> None:
        self.range = range
        self._log_range = math.log1p(range)

    def draws(self, words: Words) -> Iterator[int]:
        """An endless sequence of classes."""
        while True:
            yield from self.classes(np.array(words.float64s())).tolist()

    def classes(self, numbers: Array) -> Array:
        """The classes of uniform numbers in [0, 1)."""
        powers = numbers * self._log_range
        limits = np.exp(powers)
        # NumPy's last bits may differ from the C library's, but the integer parts must not.
        is_close = np.abs(limits - np.rint(limits)) <= limits * _TOLERANCE
        for place in np.flatnonzero(is_close):
            limits.flat[place] = math.exp(powers.flat[place])
        return (limits.astype(np.int64) - 1) % self.range  # rounding may give `range` itself

    def probability(self, value: Array) -> Array:
        """log((k + 2) / (k + 1)) / log(range + 1)"""
        return np.log((value + 2.0) / (value + 1.0)) / self._log_range


class LogUniformBatches:
    """The classes of successive steps. Those of several steps are drawn together, from a number of
    draws that usually suffices. A step that needs more is drawn again, one class at a time."""

    def __init__(self, sampler: LogUniform, draws: Draws, count: int, unique: bool) -> None:
        self._sampler, self._draws = sampler, draws
        self._count, self._unique = count, unique
        self._numbers = count + count // 2 if unique else count  # of each step
        self._ahead: list[Batch] = []  # of the next steps, in reverse

    def next(self) -> Batch:
        """The classes of the next step. Not thread-safe."""
        if not self._ahead:
            self._ahead = self._next_steps()[::-1]
        return self._ahead.pop()

    def _next_steps(self) -> list[Batch]:
        if self._unique:
            _check_range(self._sampler, self._count)
        generator, words = self._draws.next_steps(-(-self._numbers * 2 // WORDS))
        drawn = self._sampler.classes(float64s(words))
        classes, tries = drawn[:, : self._count], np.full(len(drawn), self._count)
        if self._unique:
            classes, tries = self._distinct(drawn)
        for step in np.flatnonzero(tries == 0):
            again = Words(self._draws.skip(generator, int(step)))
            classes[step], needed = sample_batch(self._sampler, again, self._count, unique=True)
            tries[step] = needed
            self._numbers = max(self._numbers, needed + needed // 4)
        expected = expected_counts(self._sampler.probability(classes), self._count, tries)
        return [*map(Batch, classes, tries.tolist(), expected)]

    def _distinct(self, drawn: Array) -> tuple[Array, Array]:
        """The first distinct classes of each row, and the number of draws; 0 if there are too
        few."""
        steps, count = len(drawn), self._count
        rows = np.arange(steps)[:, None] * self._sampler.range
        found, order = stable_sort((drawn + rows).ravel(), steps * self._sampler.range)
        is_new = np.empty(drawn.size, np.bool_)
        is_new[order] = starts_run(found)
        ranks = np.cumsum(is_new.reshape(drawn.shape), axis=1)
        is_enough = ranks[:, -1] >= count
        tries = np.where(is_enough, np.argmax(ranks == count, axis=1) + 1, 0)
        is_chosen = is_new.reshape(drawn.shape) & (ranks <= count) & is_enough[:, None]
        classes = np.empty((steps, count), np.int64)
        classes[is_enough] = drawn[is_chosen].reshape(-1, count)
        return classes, tries


class LearnedUnigram:
    """By the counts of classes seen (`update`), plus one."""

    def __init__(self, range: int) -> None:
        self.range = range
        self._counts = np.ones(range, np.int64)
        self._sums = np.cumsum(self._counts)

    def draws(self, words: Words) -> Iterator[int]:
        """An endless sequence of classes."""
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
    """By given weights, with Walker's alias method: two numbers per draw."""

    def __init__(self, weights: Sequence[float]) -> None:
        self.range = len(weights)
        self._weights = np.asarray(weights, np.float64)
        self._keep, self._alias = _alias_tables(self._weights)

    def draws(self, words: Words) -> Iterator[int]:
        """An endless sequence of classes."""
        while True:
            fraction = words.float32()
            place = words.below(self.range)
            yield place if fraction < self._keep[place] else self._alias[place]

    def probability(self, value: Array) -> Array:
        """weight / total"""
        return self._weights[value] / self._weights.sum()


def _alias_tables(weights: Array) -> tuple[list[float], list[int]]:
    """For each slot, the probability to keep it, and its alias."""
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
    """The weights of one shard: 0 for reserved classes, count ** distortion for others."""
    weights = [0.0 for index in range(reserved) if index % shards == shard]
    for index, count in enumerate(counts, len(weights)):
        if index % shards == shard:
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
            raise errors.invalid(f"Wrong vocabulary format at line: {line}") from None
    return counts
