"""Candidate sampling: negative classes for softmax and logistic losses over many classes.

Each op returns the sampled classes and the expected counts of the true and the sampled classes.
"""

from __future__ import annotations

import threading
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from thalweg import errors
from thalweg.graph.node import Tensor
from thalweg.graph.op import Op
from thalweg.graph.shapes import TensorShape, vector
from thalweg.ops.core.context import Context
from thalweg.ops.nn import samplers
from thalweg.ops.random.philox import WORDS, Draws, Stream
from thalweg.ops.random.random import Random, seeds
from thalweg.platform.arrays import Array
from thalweg.platform.files import gfile
from thalweg.public import public

_WORDS_PER_SAMPLE = 2048  # reserved; rejections rarely need more


class Candidates(NamedTuple):
    """The outputs of a sampler."""

    sampled_candidates: Tensor
    true_expected_count: Tensor
    sampled_expected_count: Tensor


class CandidateSampler(Random, abstract=True):
    """num_sampled classes from [0, range_max)"""

    signature = (
        "true_classes: int64 -> sampled_candidates: int64, true_expected_count: float32, "
        "sampled_expected_count: float32"
    )
    host_only = True
    num_true: int
    num_sampled: int
    unique: bool

    def shape(self, true_classes: Tensor) -> list[TensorShape]:
        rows = true_classes.shape.with_rank(2)[0].value
        counts = TensorShape.of((rows, self.num_true))
        true_classes.shape.assert_is_compatible_with(counts)
        return [vector(self.num_sampled), counts, vector(self.num_sampled)]

    def sampler(self) -> samplers.Sampler:
        """The distribution to draw from."""
        raise AssertionError(f"{self.type_name} has no distribution")

    def kernel(self, context: Context, true_classes: Array) -> tuple[Array, Array, Array]:
        if true_classes.ndim != 2 or true_classes.shape[1] != self.num_true:
            raise errors.invalid(
                f"true_classes must have num_true = {self.num_true} columns, got the shape "
                f"{true_classes.shape}"
            )
        state = context.state(lambda: _State(self))
        return state.draw(self, true_classes)


class _State:
    """A node's distribution (it may learn) and its random stream, in one session."""

    def __init__(self, op: CandidateSampler) -> None:
        self.sampler = op.sampler()
        draws = Draws(Stream(op.seed, op.seed2), op.num_sampled * _WORDS_PER_SAMPLE // WORDS)
        self._next_batch = samplers.batches(self.sampler, draws, op.num_sampled, op.unique)
        self.lock = threading.Lock()

    def draw(self, op: CandidateSampler, true_classes: Array) -> tuple[Array, Array, Array]:
        with self.lock:
            drawn, tries, drawn_count = self._next_batch()
            probability = self.sampler.probability(true_classes)
            if isinstance(self.sampler, samplers.LearnedUnigram):
                self.sampler.update(true_classes)
        return drawn, samplers.expected_count(probability, op.num_sampled, tries), drawn_count


class RangeSampler(CandidateSampler, abstract=True):
    """A sampler of a known number of classes"""

    range_max: int


class UniformCandidateSampler(RangeSampler):
    """Every class with the same probability"""

    def sampler(self) -> samplers.Sampler:
        return samplers.Uniform(self.range_max)


class LogUniformCandidateSampler(RangeSampler):
    """P(k) = log((k + 2) / (k + 1)) / log(range_max + 1)"""

    def sampler(self) -> samplers.Sampler:
        return samplers.LogUniform(self.range_max)


class LearnedUnigramCandidateSampler(RangeSampler):
    """By how often each class was a true one in the session so far"""

    def sampler(self) -> samplers.Sampler:
        return samplers.LearnedUnigram(self.range_max)


class ThreadUnsafeUnigramCandidateSampler(LearnedUnigramCandidateSampler):
    """As LearnedUnigramCandidateSampler; it is thread-safe here, too"""


class FixedUnigramCandidateSampler(RangeSampler):
    """By counts from a file or a list, each raised to `distortion`"""

    vocab_file: str = ""
    distortion: float = 1.0
    num_reserved_ids: int = 0
    num_shards: int = 1
    shard: int = 0
    unigrams: tuple[float, ...] = ()

    def sampler(self) -> samplers.Sampler:
        weights = samplers.unigram_weights(
            self._counts(), self.distortion, self.num_reserved_ids, self.num_shards, self.shard
        )
        if len(weights) != self.range_max:
            raise errors.invalid(
                f"range_max is {self.range_max}, but {len(weights)} counts were given"
            )
        return samplers.FixedUnigram(weights)

    def _counts(self) -> Sequence[float]:
        if not self.vocab_file:
            return self.unigrams
        with gfile.GFile(self.vocab_file) as file:
            return samplers.vocabulary_counts(str(file.read()))


class AllCandidateSampler(CandidateSampler):
    """Every class once, in order"""

    def kernel(self, context: Context, true_classes: Array) -> tuple[Array, Array, Array]:
        ones = np.ones(self.num_sampled, np.float32)
        classes = np.arange(self.num_sampled, dtype=np.int64)
        return classes, np.ones(true_classes.shape, np.float32), ones


@public("nn.uniform_candidate_sampler", "random.uniform_candidate_sampler")
def uniform_candidate_sampler(
    true_classes: Any,
    num_true: int,
    num_sampled: int,
    unique: bool,
    range_max: int,
    seed: int | None = None,
    name: str | None = None,
) -> Candidates:
    """Draws classes uniformly from [0, range_max)."""
    return Candidates(
        *UniformCandidateSampler(
            num_true=num_true,
            num_sampled=num_sampled,
            unique=unique,
            range_max=range_max,
            **seeds(seed),
        )(true_classes, name=name)
    )


@public("nn.log_uniform_candidate_sampler", "random.log_uniform_candidate_sampler")
def log_uniform_candidate_sampler(
    true_classes: Any,
    num_true: int,
    num_sampled: int,
    unique: bool,
    range_max: int,
    seed: int | None = None,
    name: str | None = None,
) -> Candidates:
    """Draws classes from [0, range_max), smaller ones more often, for words sorted by frequency."""
    return Candidates(
        *LogUniformCandidateSampler(
            num_true=num_true,
            num_sampled=num_sampled,
            unique=unique,
            range_max=range_max,
            **seeds(seed),
        )(true_classes, name=name)
    )


@public("nn.learned_unigram_candidate_sampler", "random.learned_unigram_candidate_sampler")
def learned_unigram_candidate_sampler(
    true_classes: Any,
    num_true: int,
    num_sampled: int,
    unique: bool,
    range_max: int,
    seed: int | None = None,
    name: str | None = None,
) -> Candidates:
    """Draws classes from [0, range_max) by how often they were among the true ones."""
    return Candidates(
        *LearnedUnigramCandidateSampler(
            num_true=num_true,
            num_sampled=num_sampled,
            unique=unique,
            range_max=range_max,
            **seeds(seed),
        )(true_classes, name=name)
    )


@public("nn.fixed_unigram_candidate_sampler", "random.fixed_unigram_candidate_sampler")
def fixed_unigram_candidate_sampler(
    true_classes: Any,
    num_true: int,
    num_sampled: int,
    unique: bool,
    range_max: int,
    vocab_file: str = "",
    distortion: float = 1.0,
    num_reserved_ids: int = 0,
    num_shards: int = 1,
    shard: int = 0,
    unigrams: Sequence[float] = (),
    seed: int | None = None,
    name: str | None = None,
) -> Candidates:
    """Draws classes by counts: the last fields of the lines of `vocab_file`, or `unigrams`.

    Args:
        true_classes: int64 [batch, num_true].
        num_true: the number of true classes of an example.
        num_sampled: the number of sampled classes.
        unique: whether no class is drawn twice.
        range_max: the number of classes.
        vocab_file: a file with a line for each class.
        distortion: the power that counts are raised to.
        num_reserved_ids: the number of classes before the counted ones, which are never drawn.
        num_shards, shard: draw only every `num_shards`-th class, from `shard` on.
        unigrams: the counts, in place of a file.
        seed: a number that fixes the samples.
        name: the name of the node.

    Returns:
        (sampled, expected counts of the true classes, expected counts of the sampled ones).

    Example:
        >>> sampled, _, _ = tf.nn.fixed_unigram_candidate_sampler(
        ...     tf.constant([[0]], tf.int64), 1, 2, True, 3, unigrams=[1.0, 0.0, 5.0], seed=1
        ... )
        >>> sorted(sess.run(sampled).tolist())
        [0, 2]
    """
    if bool(vocab_file) == bool(unigrams):
        raise ValueError("Exactly one of vocab_file and unigrams must be given")
    op = FixedUnigramCandidateSampler(
        num_true=num_true,
        num_sampled=num_sampled,
        unique=unique,
        range_max=range_max,
        vocab_file=vocab_file,
        distortion=distortion,
        num_reserved_ids=num_reserved_ids,
        num_shards=num_shards,
        shard=shard,
        unigrams=tuple(float(count) for count in unigrams),
        **seeds(seed),
    )
    return Candidates(*op(true_classes, name=name))


@public("nn.all_candidate_sampler", "random.all_candidate_sampler")
def all_candidate_sampler(
    true_classes: Any,
    num_true: int,
    num_sampled: int,
    unique: bool,
    seed: int | None = None,
    name: str | None = None,
) -> Candidates:
    """Every class, for losses without sampling."""
    return Candidates(
        *AllCandidateSampler(
            num_true=num_true, num_sampled=num_sampled, unique=unique, **seeds(seed)
        )(true_classes, name=name)
    )


class ComputeAccidentalHits(Op):
    """The sampled classes that are true: row, index in the samples, and a weight to remove it"""

    signature = (
        "true_classes: int64, sampled_candidates: int64 -> "
        "indices: int32, ids: int64, weights: float32"
    )
    not_differentiable = True
    host_only = True
    num_true: int
    seed: int = 0
    seed2: int = 0

    def shape(self, true_classes: Tensor, sampled_candidates: Tensor) -> list[TensorShape]:
        true_classes.shape.assert_is_compatible_with(TensorShape.of((None, self.num_true)))
        sampled_candidates.shape.assert_has_rank(1)
        return [vector(None)] * 3

    def numpy(self, true_classes: Array, sampled_candidates: Array) -> tuple[Array, Array, Array]:
        place = {value: index for index, value in enumerate(sampled_candidates.tolist())}
        hits = [
            (row, place[value])
            for row, values in enumerate(true_classes.tolist())
            for value in values
            if value in place
        ]
        found = np.array(hits, np.int64).reshape(-1, 2)
        weights = np.full(len(found), -np.finfo(np.float32).max, np.float32)
        return found[:, 0].astype(np.int32), found[:, 1], weights


@public("nn.compute_accidental_hits")
def compute_accidental_hits(
    true_classes: Any,
    sampled_candidates: Any,
    num_true: int,
    seed: int | None = None,
    name: str | None = None,
) -> Any:
    """The sampled classes that are true ones, with weights that remove them from a softmax."""
    op = ComputeAccidentalHits(num_true=num_true, **seeds(seed))
    return op(true_classes, sampled_candidates, name=name)
