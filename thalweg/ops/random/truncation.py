"""Normal numbers between two bounds, by the rejection sampler with the best acceptance rate.

After Robert, "Simulation of truncated normal variables": proposals are normal if the bounds include
much of the distribution, uniform if they are close, and exponential in a tail. The outputs of a
batch share their parameters and a range of the stream.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from thalweg import errors
from thalweg.ops.random import distributions
from thalweg.ops.random.philox import Philox
from thalweg.platform.arrays import Array

_BATCH = 100  # samples of one batch if all outputs have the same parameters
_MAX_TRIES = 1000  # proposals per output, for which blocks are reserved
_WIDE = 1.3  # deviations from the mean to a bound above which proposals are normal


@dataclass(frozen=True)
class Batch:
    """A number of outputs of one distribution."""

    size: int
    mean: float
    deviation: float
    low: float
    high: float

    def check(self) -> None:
        """Raise unless the parameters are those of a distribution."""
        bounded = math.isfinite(self.low) or math.isfinite(self.high)
        if not (self.deviation > 0 and self.low < self.high and bounded):
            raise errors.invalid(
                f"Invalid parameters: need stddev > 0 and minval < maxval, one of them finite, got "
                f"stddev={self.deviation}, minval={self.low}, maxval={self.high}"
            )

    def facing_right(self) -> Batch:
        """The batch, mirrored if a single bound, or both, lie left of the mean."""
        if self.low == -math.inf or self.high < self.mean:
            return Batch(self.size, self.mean, -self.deviation, self.high, self.low)
        return self


def batches(shape: tuple[int, ...], parameters: Sequence[Array]) -> list[Batch]:
    """The batches of an output: one per row, or of a fixed size if parameters are scalars."""
    rows, size = shape[0], math.prod(shape[1:])
    if all(np.size(value) == 1 for value in parameters) and rows != 0:
        rows, size = -(-rows * size // _BATCH), _BATCH
    columns = [np.broadcast_to(np.float64(np.ravel(value)), rows) for value in parameters]
    return [Batch(size, *map(float, values)) for values in zip(*columns, strict=True)]


def blocks(given: Sequence[Batch]) -> int:
    """The number of blocks reserved for batches."""
    return sum(_reserved(batch) for batch in given)


def _reserved(batch: Batch) -> int:
    return 2 * _MAX_TRIES * ((batch.size + 3) // 4)


def draw(generator: Philox, given: Sequence[Batch], dtype: Any) -> Array:
    """The numbers of all batches, concatenated."""
    drawn = [np.empty(0)]
    for batch in given:
        batch.check()
        drawn.append(_draw(generator, batch.facing_right(), dtype))
        generator = generator.skip(_reserved(batch))
    return np.concatenate(drawn).astype(dtype)


def _draw(generator: Philox, batch: Batch, dtype: Any) -> Array:
    low = (batch.low - batch.mean) / batch.deviation
    high = (batch.high - batch.mean) / batch.deviation
    accepted = [np.empty(0)]
    missing = batch.size
    rounds = _rounds(generator, low, high, max(16, batch.size), np.dtype(dtype))
    for values in itertools.islice(rounds, _MAX_TRIES):
        accepted.append(values[:missing])
        missing -= len(accepted[-1])
        if missing == 0:
            return np.concatenate(accepted) * batch.deviation + batch.mean
    raise errors.InternalError(
        None, None, f"No normal numbers were found between {low} and {high} standard deviations"
    )


def _rounds(generator: Philox, low: float, high: float, count: int, dtype: Any) -> Iterator[Array]:
    """The accepted numbers of successive rounds of `count` proposals."""
    propose = _sampler(low, high)
    words = 2 if dtype.itemsize == 8 else 1
    while True:
        even = count + count % 2
        yield propose(generator, even, low, high, dtype)
        generator = generator.skip(-(-2 * even * words // 4))


def _sampler(low: float, high: float) -> Any:
    wide = (low < -_WIDE and high >= 0) or (high > _WIDE and low <= 0)
    if wide:
        return _from_normal
    root = math.sqrt(low * low + 4)
    cutoff = 2 * math.exp(0.5 + low * (low - root) / 4) / (low + root)
    return _from_uniform if high - low < cutoff else _from_exponential


def _from_normal(generator: Philox, count: int, low: float, high: float, dtype: Any) -> Array:
    drawn = distributions.normal(generator, count, dtype).astype(np.float64)
    return drawn[(drawn >= low) & (drawn <= high)]


def _from_uniform(generator: Philox, count: int, low: float, high: float, dtype: Any) -> Array:
    drawn = distributions.uniform(generator, 2 * count, dtype).astype(np.float64)
    proposal = drawn[:count] * (high - low) + low
    nearest = max(low, 0.0)
    return proposal[drawn[count:] <= np.exp((nearest**2 - proposal**2) / 2)]


def _from_exponential(generator: Philox, count: int, low: float, high: float, dtype: Any) -> Array:
    drawn = distributions.uniform(generator, 2 * count, dtype).astype(np.float64)
    rate = (low + math.sqrt(low * low + 4)) / 2
    proposal = low - np.log(np.maximum(drawn[0::2], np.finfo(np.float32).tiny)) / rate
    distance = rate - proposal if low < rate else np.full(count, low - rate)
    return proposal[(drawn[1::2] <= np.exp(-(distance**2) / 2)) & (proposal < high)]
