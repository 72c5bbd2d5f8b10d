"""Random ops: TensorFlow's numbers, the moments of each distribution, streams and seeds."""

import math
from collections.abc import Callable
from itertools import islice
from typing import Any

import numpy as np
import pytest
from scipy import stats

import thalweg as tf
from thalweg.ops.nn import samplers
from thalweg.ops.nn.candidate_sampling import (
    LearnedUnigramCandidateSampler,
    ThreadUnsafeUnigramCandidateSampler,
)
from thalweg.ops.random import distributions
from thalweg.ops.random.philox import Draws, Philox, Stream, Words


def run(build: Callable[[], Any], steps: int = 1, seed: int | None = 7) -> list[Any]:
    """The values of some steps, in a new graph and session."""
    with tf.Graph().as_default(), tf.Session() as session:
        tf.set_random_seed(seed)
        fetches = build()
        return [session.run(fetches) for _ in range(steps)]


class TestPhilox:
    @pytest.mark.parametrize(
        ("key", "counter", "words"),
        [
            (0, 0, "6627e8d5 e169c58d bc57ac4c 9b00dbd8"),
            ((1 << 64) - 1, (1 << 128) - 1, "408f276d 41c83b0e a20bc7c6 6d5451fd"),
            (
                0x299F31D0A4093822,
                0x0370734413198A2E85A308D3243F6A88,
                "d16cfe09 94fdcceb 5001e420 24126ea1",
            ),
        ],
    )
    def test_known_answers(self, key: int, counter: int, words: str):
        assert [f"{word:08x}" for word in Philox(key, counter).blocks(1)[0]] == words.split()

    def test_blocks_at_any_offset(self):
        generator = Philox(5, (1 << 64) - 3)  # the lower half of the counter overflows
        whole = generator.blocks(8)
        for start in range(8):
            assert (generator.skip(start).blocks(8 - start) == whole[start:]).all()
        assert (generator.blocks_at(np.array([6, 1], np.uint64)) == whole[[6, 1]]).all()

    def test_words_one_by_one(self):
        generator = Philox.from_seeds(3, 4)
        words = Words(generator)
        assert [words.word() for _ in range(300)] == generator.words(300).tolist()

    def test_integers_below_a_limit(self):
        words = Words(Philox.from_seeds(3, 4))
        for limit in (1, 2, 7, 8, 1000):
            drawn = [words.below(limit, bits) for bits in (32, 64) for _ in range(50)]
            assert min(drawn) >= 0
            assert max(drawn) < limit

    def test_reserved_blocks_are_disjoint(self):
        stream = Stream(1, 2)
        first, second = stream.reserve(3), stream.reserve(3)
        assert second == first.skip(3)

    def test_unseeded_streams_differ(self):
        assert Stream(0, 0).reserve(1) != Stream(0, 0).reserve(1)


class TestTensorFlowsNumbers:
    """The numbers of TensorFlow for the same seeds."""

    NORMAL = [-0.81131822, 1.48459876, 0.06532937, -2.44270396, 0.0992484, 0.59122431]

    def test_normal(self):
        (values,) = run(lambda: tf.random_normal([2, 3], seed=1), seed=None)
        np.testing.assert_allclose(values.ravel(), self.NORMAL, rtol=1e-5)

    def test_truncated_normal_rejects_distant_numbers(self):
        (values,) = run(lambda: tf.truncated_normal([4], seed=1), seed=None)
        kept = [value for value in self.NORMAL if abs(value) < 2]
        np.testing.assert_allclose(values, kept[:4], rtol=1e-5)


SHAPED = {
    "uniform": (lambda n, t: tf.random_uniform([n], dtype=t), stats.uniform()),
    "uniform range": (lambda n, t: tf.random_uniform([n], -2.0, 3.0, t), stats.uniform(-2, 5)),
    "normal": (lambda n, t: tf.random_normal([n], dtype=t), stats.norm()),
    "normal scaled": (lambda n, t: tf.random_normal([n], 1.0, 3.0, t), stats.norm(1, 3)),
    "truncated": (lambda n, t: tf.truncated_normal([n], dtype=t), stats.truncnorm(-2, 2)),
    "stateless uniform": (
        lambda n, t: tf.random.stateless_uniform([n], [3, 4], dtype=t),
        stats.uniform(),
    ),
    "stateless normal": (
        lambda n, t: tf.random.stateless_normal([n], [3, 4], dtype=t),
        stats.norm(),
    ),
    "stateless truncated": (
        lambda n, t: tf.random.stateless_truncated_normal([n], [3, 4], dtype=t),
        stats.truncnorm(-2, 2),
    ),
    "gamma 1": (lambda n, t: tf.random_gamma([n], 1.0, dtype=t), stats.gamma(1)),
    "gamma below 1": (lambda n, t: tf.random_gamma([n], 0.4, dtype=t), stats.gamma(0.4)),
    "gamma above 1": (lambda n, t: tf.random_gamma([n], 5.0, 2.0, t), stats.gamma(5, scale=0.5)),
    "bounded wide": (
        lambda n, t: tf.parameterized_truncated_normal([n], 0.0, 1.0, -2.0, 3.0, t),
        stats.truncnorm(-2, 3),
    ),
    "bounded narrow": (
        lambda n, t: tf.parameterized_truncated_normal([n], 0.0, 1.0, 0.5, 0.7, t),
        stats.truncnorm(0.5, 0.7),
    ),
    "bounded tail": (
        lambda n, t: tf.parameterized_truncated_normal([n], 0.0, 1.0, 3.0, np.inf, t),
        stats.truncnorm(3, np.inf),
    ),
    "bounded left tail": (
        lambda n, t: tf.parameterized_truncated_normal([n], 0.0, 1.0, -np.inf, -3.0, t),
        stats.truncnorm(-np.inf, -3),
    ),
}


@pytest.mark.parametrize("dtype", [tf.float32, tf.float64])
@pytest.mark.parametrize("name", SHAPED)
def test_distribution(name: str, dtype: Any):
    build, expected = SHAPED[name]
    (values,) = run(lambda: build(4000, dtype))
    assert values.dtype == dtype.as_numpy_dtype
    assert stats.kstest(values.astype(float), expected.cdf).pvalue > 1e-3


@pytest.mark.parametrize("dtype", [tf.float16, tf.bfloat16])
@pytest.mark.parametrize("name", ["uniform", "normal", "truncated"])
def test_small_floats(name: str, dtype: Any):
    build, expected = SHAPED[name]
    (values,) = run(lambda: build(4000, dtype))
    assert values.dtype == dtype.as_numpy_dtype
    assert abs(values.astype(float).mean() - expected.mean()) < 0.1
    assert abs(values.astype(float).std() - expected.std()) < 0.1


@pytest.mark.parametrize("rate", [0.5, 4.0, 30.0, 400.0])
@pytest.mark.parametrize("dtype", [tf.int32, tf.float32])
def test_poisson(rate: float, dtype: Any):
    (values,) = run(lambda: tf.random_poisson([rate, 2.0], [3000], dtype))
    assert values.shape == (3000, 2)
    assert abs(values[:, 0].mean() - rate) < 5 * np.sqrt(rate / 3000)
    assert abs(values[:, 0].var() / rate - 1) < 0.15


def test_invalid_parameters_give_nan():
    (gamma,) = run(lambda: tf.random_gamma([2], [-1.0, np.nan]))
    (poisson,) = run(lambda: tf.random_poisson([-1.0, np.nan, np.inf], [2]))
    assert np.isnan(gamma).all()
    assert np.isnan(poisson).all()
    (zero,) = run(lambda: tf.random_poisson(0.0, [2]))
    assert (zero == 0).all()


@pytest.mark.parametrize("dtype", [tf.int32, tf.int64])
def test_integers(dtype: Any):
    (values,) = run(lambda: tf.random_uniform([5000], -3, 4, dtype))
    counts = np.bincount(values + 3, minlength=7)
    assert values.dtype == dtype.as_numpy_dtype
    assert stats.chisquare(counts).pvalue > 1e-3


def test_integers_over_the_whole_range():
    low, high = np.iinfo(np.int64).min, np.iinfo(np.int64).max
    (values,) = run(lambda: tf.random_uniform([100], low, high, tf.int64))
    assert values.min() < low // 2
    assert values.max() > high // 2


def test_categories():
    logits = np.log([[0.1, 0.2, 0.7], [0.5, 0.5, 1e-30]]).astype(np.float32)
    (values,) = run(lambda: tf.multinomial(logits, 5000))
    assert values.dtype == np.int64
    shares = [np.bincount(row, minlength=3) / 5000 for row in values]
    np.testing.assert_allclose(shares, [[0.1, 0.2, 0.7], [0.5, 0.5, 0]], atol=0.04)
    (values,) = run(lambda: tf.random.categorical(logits, 5, dtype=tf.int32))
    assert values.dtype == np.int32


def test_shuffle_is_a_permutation():
    rows = np.arange(20).reshape(10, 2)
    first, second = run(lambda: tf.random_shuffle(rows), steps=2)
    assert sorted(map(tuple, first)) == sorted(map(tuple, rows))
    assert (first != second).any()


def test_permutations_are_uniform():
    generator = Philox.from_seeds(1, 2)
    seen: dict[tuple[int, ...], int] = {}
    for index in range(1200):
        order = tuple(distributions.permutation(generator.skip(index), 3).tolist())
        seen[order] = seen.get(order, 0) + 1
    assert len(seen) == 6
    assert stats.chisquare(list(seen.values())).pvalue > 1e-3


def test_crop():
    (values,) = run(lambda: tf.random_crop(np.arange(20).reshape(4, 5), [2, 3]))
    assert values.shape == (2, 3)
    assert (np.diff(values, axis=1) == 1).all()
    with pytest.raises(tf.errors.InvalidArgumentError, match=r"Need value\.shape >= size"):
        run(lambda: tf.random_crop(np.zeros([2, 2]), [3, 2]))


class TestDraws:
    def test_words_equal_those_of_the_stream(self) -> None:
        stream, draws = Stream(3, 4), Draws(Stream(3, 4), 100)
        for _ in range(40):
            expected, actual = Words(stream.reserve(100)), draws.next()
            assert [actual.word() for _ in range(300)] == [expected.word() for _ in range(300)]
            assert actual.below(1000) == expected.below(1000)

    def test_other_draws_may_interleave(self) -> None:
        stream, own = Stream(3, 4), Stream(3, 4)
        draws = Draws(own, 70)
        for skipped in (0, 70, 3, 0, 700, 1):
            assert stream.reserve(skipped) == own.reserve(skipped)
            expected, actual = Words(stream.reserve(70)), draws.next()
            assert actual.float64s() == expected.float64s()
            assert actual.float64s() == expected.float64s()

    def test_next_steps_equal_single_steps(self) -> None:
        stream, draws = Stream(3, 4), Draws(Stream(3, 4), 500)
        for used in (48, 64, 400, 600):
            generator, words = draws.next_steps(used)
            for step, row in enumerate(words):
                expected = stream.reserve(500)
                assert draws.skip(generator, step) == expected
                assert (row == expected.words(min(used, 500) * 4)).all()
            assert len(words) == max(1, 1024 // min(used, 500))


class TestStreams:
    def test_steps_differ_and_sessions_agree(self):
        first = run(lambda: tf.random_uniform([3]), steps=2)
        again = run(lambda: tf.random_uniform([3]), steps=2)
        assert (first[0] != first[1]).all()
        np.testing.assert_array_equal(first, again)

    def test_unseeded_sessions_differ(self):
        assert (
            run(lambda: tf.random_uniform([3]), seed=None)[0]
            != run(lambda: tf.random_uniform([3]), seed=None)[0]
        ).all()

    def test_nodes_have_separate_streams(self):
        ((one, two),) = run(lambda: [tf.random_uniform([3]), tf.random_uniform([3])])
        assert (one != two).all()

    def test_the_same_op_seed_gives_the_same_numbers(self):
        ((one, two),) = run(lambda: [tf.random_uniform([3], seed=5) for _ in range(2)])
        np.testing.assert_array_equal(one, two)

    def test_a_prefix_does_not_depend_on_the_number_of_draws(self):
        (few,) = run(lambda: tf.truncated_normal([10], seed=1))
        (many,) = run(lambda: tf.truncated_normal([1000], seed=1))
        np.testing.assert_array_equal(few, many[:10])

    def test_stateless_numbers_depend_only_on_the_seed(self):
        first = run(lambda: tf.random.stateless_uniform([3], [1, 2]), steps=2, seed=1)
        other = run(lambda: tf.random.stateless_uniform([3], [1, 3]), steps=1, seed=2)
        np.testing.assert_array_equal(first[0], first[1])
        assert (first[0] != other[0]).all()


class TestSeeds:
    @pytest.mark.parametrize(
        ("graph_seed", "op_seed", "pair"),
        [
            (None, None, (None, None)),
            (None, 1, (87654321, 1)),
            (1, None, (1, 0)),
            (1, 1, (1, 1)),
            (0, 0, (0, 2**31 - 1)),
            (2**31 - 1, 0, (0, 2**31 - 1)),
            (2**31 + 1, 2, (2, 2)),
        ],
    )
    def test_get_seed(self, graph_seed: Any, op_seed: Any, pair: Any):
        with tf.Graph().as_default():
            tf.set_random_seed(graph_seed)
            assert tf.get_seed(op_seed) == pair


def test_gamma_gradient():
    """The derivative of a sample by alpha: that of the quantile function."""
    with tf.Graph().as_default(), tf.Session() as session:
        alpha = tf.constant([0.5, 2.0, 7.0], tf.float64)
        sample = tf.random_gamma([20], alpha, dtype=tf.float64, seed=3)
        values, slopes = session.run([sample, tf.gradients(sample, alpha)[0]])
    step = 1e-5
    alphas = np.array([0.5, 2.0, 7.0])
    level = stats.gamma.cdf(values, alphas)
    expected = stats.gamma.ppf(level, alphas + step) - stats.gamma.ppf(level, alphas - step)
    np.testing.assert_allclose(slopes, (expected / (2 * step)).sum(axis=0), rtol=1e-3)


SHAPES = {
    "known": (lambda: tf.random_uniform([2, 3]), [2, 3]),
    "part": (lambda: tf.random_normal(tf.stack([2, tf.placeholder(tf.int32, [])])), [2, None]),
    "rank": (lambda: tf.truncated_normal(tf.placeholder(tf.int32, [2])), [None, None]),
    "gamma": (lambda: tf.random_gamma([5], np.ones([2, 3], np.float32)), [5, 2, 3]),
    "multinomial": (lambda: tf.multinomial(tf.zeros([4, 3]), 2), [4, 2]),
}


@pytest.mark.parametrize("name", SHAPES)
def test_static_shape(name: str):
    build, shape = SHAPES[name]
    with tf.Graph().as_default():
        assert build().shape.as_list() == shape


ERRORS = {
    "no maximum": (lambda: tf.random_uniform([1], dtype=tf.int32), ValueError, "maxval"),
    "empty range": (
        lambda: tf.random_uniform([1], 2, 2, tf.int32),
        tf.errors.InvalidArgumentError,
        "Need minval < maxval",
    ),
    "scalar shape": (lambda: tf.random_uniform(3), ValueError, "rank"),
    "vector logits": (lambda: tf.multinomial([0.0], 1), ValueError, "rank"),
    "no deviation": (
        lambda: tf.parameterized_truncated_normal([1], stddevs=-1.0),
        tf.errors.InvalidArgumentError,
        "Invalid parameters",
    ),
    "nothing there": (
        lambda: tf.parameterized_truncated_normal(
            [1], minvals=1e200, maxvals=np.inf, dtype="float64"
        ),
        tf.errors.InternalError,
        "No normal numbers",
    ),
    "wrong length": (
        lambda: tf.parameterized_truncated_normal([3], [0.0, 1.0]),
        tf.errors.InvalidArgumentError,
        "should have length 1 or shape",
    ),
}


@pytest.mark.parametrize("name", ERRORS)
def test_error(name: str):
    build, kind, text = ERRORS[name]
    with pytest.raises(kind, match=text):
        run(build)


class TestCandidates:
    TRUE = np.array([[1, 2], [0, 4], [3, 3]])

    def sample(self, sampler: Any, unique: bool = True, **options: Any) -> Any:
        def build() -> Any:
            return sampler(self.TRUE, num_true=2, unique=unique, **options)

        return run(build)[0]

    def test_all(self):
        classes, true_count, count = self.sample(tf.nn.all_candidate_sampler, num_sampled=3)
        assert classes.tolist() == [0, 1, 2]
        assert (true_count == 1).all() and (count == 1).all()

    @pytest.mark.parametrize(
        "sampler",
        [
            tf.nn.uniform_candidate_sampler,
            tf.nn.log_uniform_candidate_sampler,
            tf.nn.learned_unigram_candidate_sampler,
        ],
    )
    def test_unique_classes(self, sampler: Any):
        classes, true_count, count = self.sample(sampler, num_sampled=5, range_max=5)
        assert sorted(classes) == [0, 1, 2, 3, 4]
        assert true_count.shape == (3, 2)
        assert ((count > 0) & (count <= 1)).all()

    def test_float64s_equal_successive_float64(self):
        words, again = (Words(Philox.from_seeds(1, 2)) for _ in range(2))
        assert all(number == again.float64() for number in words.float64s() + words.float64s())

    def test_log_uniform_probabilities(self):
        sampler = samplers.LogUniform(100)
        assert sampler.probability(np.arange(100)).sum() == pytest.approx(1)
        words = Words(Philox.from_seeds(1, 2))
        drawn = np.bincount([*islice(sampler.draws(words), 4000)], minlength=100)
        np.testing.assert_allclose(drawn / 4000, sampler.probability(np.arange(100)), atol=0.03)

    @pytest.mark.parametrize("unique", [True, False])
    @pytest.mark.parametrize(
        ("count", "classes"), [(1, 1), (5, 5), (64, 50_000), (300, 400), (700, 50_000)]
    )
    def test_log_uniform_batches_equal_single_draws(self, count: int, classes: int, unique: bool):
        sampler, blocks = samplers.LogUniform(classes), count * 512
        batches = samplers.batches(sampler, Draws(Stream(1, 2), blocks), count, unique)
        stream = Stream(1, 2)
        for _ in range(30):
            words = Words(stream.reserve(blocks))
            drawn: list[int] = []
            while len(set(drawn) if unique else drawn) < count:
                drawn.append(self.log_uniform_class(words.float64(), classes))
            batch = batches()
            assert batch.tries == len(drawn)
            assert batch.classes.tolist() == [*(dict.fromkeys(drawn) if unique else drawn)]
            probability = sampler.probability(batch.classes)
            expected = samplers.expected_count(probability, count, len(drawn))
            assert batch.classes.dtype == np.int64 and batch.expected.dtype == np.float32
            np.testing.assert_array_equal(batch.expected, expected)

    def test_classes_at_rounding_boundaries_follow_the_c_library(self):
        for classes in (1, 10, 50_000, 1 << 40):
            powers = np.log(np.arange(1, min(classes, 3000) + 2)) / np.log1p(classes)
            numbers = np.clip(powers[:, None] * (1 + np.arange(-4, 5) * 2.0**-53), 0, 1 - 2.0**-52)
            actual = samplers.LogUniform(classes).classes(numbers)
            expected = [self.log_uniform_class(x, classes) for x in numbers.ravel().tolist()]
            assert actual.ravel().tolist() == expected

    @staticmethod
    def log_uniform_class(number: float, classes: int) -> int:
        return (int(math.exp(number * math.log1p(classes))) - 1) % classes

    def test_fixed_counts(self):
        classes, _, count = self.sample(
            tf.nn.fixed_unigram_candidate_sampler,
            unique=False,
            num_sampled=4000,
            range_max=5,
            unigrams=[1.0, 2.0, 4.0, 0.0, 1.0],
        )
        shares = np.bincount(classes, minlength=5) / 4000
        np.testing.assert_allclose(shares, np.array([1, 2, 4, 0, 1]) / 8, atol=0.03)
        np.testing.assert_allclose(count[:1], 4000 * np.array([1, 2, 4, 0, 1])[classes[:1]] / 8)

    def test_a_vocabulary_file(self, tmp_path: Any):
        path = tmp_path / "vocabulary"
        path.write_text("a,1\nb,0\nc,3\n")
        classes, _, _ = self.sample(
            tf.nn.fixed_unigram_candidate_sampler,
            unique=False,
            num_sampled=50,
            range_max=5,
            vocab_file=str(path),
            num_reserved_ids=2,
        )
        assert set(classes.tolist()) == {2, 4}

    def test_learned_counts_follow_the_true_classes(self):
        def build() -> Any:
            return tf.nn.learned_unigram_candidate_sampler([[2, 2]] * 200, 2, 50, False, 4)

        steps = run(build, steps=2)
        assert len(set(steps[0].sampled_candidates.tolist())) == 4
        assert np.mean(steps[1].sampled_candidates == 2) > 0.9

    def test_accidental_hits(self):
        ((rows, places, weights),) = run(
            lambda: tf.nn.compute_accidental_hits(
                np.array([[1, 2], [7, 1]]), np.array([5, 1, 7]), num_true=2
            )
        )
        assert rows.tolist() == [0, 1, 1]
        assert places.tolist() == [1, 2, 1]
        assert (weights == -np.finfo(np.float32).max).all()

    def test_too_few_classes(self):
        with pytest.raises(tf.errors.InvalidArgumentError, match="too small"):
            self.sample(tf.nn.uniform_candidate_sampler, num_sampled=6, range_max=5)


def test_stateless_integers_stay_in_their_range():
    (drawn,) = run(
        lambda: tf.random.stateless_uniform([200], (1, 2), minval=-3, maxval=4, dtype=tf.int32)
    )
    assert set(drawn.tolist()) == set(range(-3, 4))


def test_stateless_classes_follow_their_logits():
    logits = np.log([[0.2, 0.8, 1e-9], [1e-9, 0.5, 0.5]])
    one, same = run(lambda: tf.random.stateless_multinomial(logits, 1000, (3, 4)), steps=2)
    np.testing.assert_array_equal(one, same)
    assert one.shape == (2, 1000)
    assert (one[0] == 1).mean() == pytest.approx(0.8, abs=0.05)
    assert (one[1] == 1).mean() == pytest.approx(0.5, abs=0.05)


def test_the_thread_unsafe_learned_sampler_equals_the_thread_safe_one():
    samplers_alike = [LearnedUnigramCandidateSampler, ThreadUnsafeUnigramCandidateSampler]
    options = {"num_true": 1, "num_sampled": 3, "unique": True, "range_max": 8, "seed": 5}
    one, other = (
        run(lambda kind=kind: kind(**options)(np.array([[1], [2]])), steps=3)
        for kind in samplers_alike
    )
    for first, second in zip(one, other, strict=True):
        np.testing.assert_array_equal(first[0], second[0])


@pytest.mark.parametrize("draw", [tf.truncated_normal, tf.random_normal, tf.random_uniform])
def test_sizes_may_be_narrow_integers(draw: Any) -> None:
    drawn = draw([2, np.array([3, 9], np.uint8).max()])
    assert drawn.shape.as_list() == [2, 9]
    with tf.Session() as session:
        assert session.run(drawn).shape == (2, 9)
