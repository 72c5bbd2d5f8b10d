"""The distributions that are in contrib alone, against scipy.stats."""

from typing import Any

import numpy as np
import pytest
from scipy import special, stats

import thalweg as tf

D = tf.contrib.distributions
B = D.bijectors

rng = np.random.default_rng(0)


@pytest.fixture(autouse=True)
def graph() -> Any:
    with tf.Graph().as_default() as graph:
        yield graph


def run(value: Any, feeds: Any = None) -> Any:
    with tf.Session() as session:
        return session.run(value, feeds)


def close(actual: Any, wanted: Any, rtol: float = 1e-8, atol: float = 1e-12) -> None:
    np.testing.assert_allclose(run(actual), wanted, rtol, atol)


LOC, SCALE = np.array([-1.5, 0.0, 2.0]), np.array([[0.5], [2.0]])
SHAPE = np.array([2.5, 3.0, 4.0])
REALS, POSITIVE = np.array([-3.0, 0.1, 2.4]), np.array([0.2, 1.0, 6.0])
PARTS = np.array([0.05, 0.5, 0.99])


def _log_normal() -> Any:
    return D.TransformedDistribution(D.Normal(LOC, SCALE), B.Exp())


def _falling() -> Any:
    return D.TransformedDistribution(
        D.Exponential(SCALE), B.AffineScalar(np.float64(1), np.float64(-2))
    )


class _Falling:
    """1 - 2 X, X exponential."""

    inner = stats.expon(scale=1 / SCALE)

    def pdf(self, y: Any) -> Any:
        return self.inner.pdf((1 - y) / 2) / 2

    def logpdf(self, y: Any) -> Any:
        return np.log(self.pdf(y))

    def cdf(self, y: Any) -> Any:
        return self.inner.sf((1 - y) / 2)

    def sf(self, y: Any) -> Any:
        return self.inner.cdf((1 - y) / 2)

    def ppf(self, p: Any) -> Any:
        return 1 - 2 * self.inner.ppf(1 - p)

    def mean(self) -> Any:
        return 1 - 2 * self.inner.mean()

    def entropy(self) -> Any:
        return self.inner.entropy() + np.log(2)


#: name: (ours, scipy's, values, methods that ours has not)
CONTINUOUS: dict[str, tuple[Any, Any, Any, str]] = {
    "Logistic": (lambda: D.Logistic(LOC, SCALE), stats.logistic(LOC, SCALE), REALS, ""),
    "Gumbel": (lambda: D.Gumbel(LOC, SCALE), stats.gumbel_r(LOC, SCALE), REALS, ""),
    "Cauchy": (lambda: D.Cauchy(LOC, SCALE), stats.cauchy(LOC, SCALE), REALS, "mean variance"),
    "HalfNormal": (lambda: D.HalfNormal(SCALE), stats.halfnorm(scale=SCALE), POSITIVE, ""),
    "Chi2": (lambda: D.Chi2(SHAPE), stats.chi2(SHAPE), POSITIVE, "quantile"),
    "InverseGamma": (
        lambda: D.InverseGamma(SHAPE, SCALE),
        stats.invgamma(SHAPE, scale=SCALE),
        POSITIVE,
        "quantile",
    ),
    "LogNormal": (
        _log_normal,
        stats.lognorm(SCALE, scale=np.exp(LOC)),
        POSITIVE,
        "mean variance entropy",
    ),
    "Falling": (_falling, _Falling(), -POSITIVE, "variance"),
    "Mixture": (
        lambda: D.Mixture(
            D.Categorical(probs=np.array([0.25, 0.75])),
            [D.Normal(np.float64(0), np.float64(1)), D.Laplace(np.float64(2), np.float64(1))],
        ),
        None,
        REALS,
        "",
    ),
}


class _Mixed:
    """The formulas of the mixture above."""

    parts = ((0.25, stats.norm(0, 1)), (0.75, stats.laplace(2, 1)))

    def _sum(self, method: str, *args: Any) -> Any:
        return sum(weight * getattr(one, method)(*args) for weight, one in self.parts)

    def pdf(self, x: Any) -> Any:
        return self._sum("pdf", x)

    def logpdf(self, x: Any) -> Any:
        return np.log(self.pdf(x))

    def cdf(self, x: Any) -> Any:
        return self._sum("cdf", x)

    def sf(self, x: Any) -> Any:
        return 1 - self.cdf(x)

    def mean(self) -> Any:
        return self._sum("mean")

    def var(self) -> Any:
        second = sum(w * (one.var() + one.mean() ** 2) for w, one in self.parts)
        return second - self.mean() ** 2


def _case(name: str) -> tuple[Any, Any, Any, str]:
    make, right, x, absent = CONTINUOUS[name]
    return make(), right or _Mixed(), x, absent


@pytest.mark.parametrize("name", CONTINUOUS)
def test_densities_and_tails(name: str) -> None:
    ours, right, x, _ = _case(name)
    close(ours.prob(x), right.pdf(x))
    close(ours.log_prob(x), right.logpdf(x))
    close(ours.cdf(x), right.cdf(x))
    close(ours.log_cdf(x), np.log(right.cdf(x)), 1e-6)
    close(ours.survival_function(x), right.sf(x), 1e-6)
    close(ours.log_survival_function(x), np.log(right.sf(x)), 1e-6)


@pytest.mark.parametrize("name", CONTINUOUS)
def test_moments(name: str) -> None:
    ours, right, _, absent = _case(name)
    for ours_is, theirs in (("mean", "mean"), ("variance", "var"), ("entropy", "entropy")):
        if ours_is not in absent and hasattr(right, theirs):
            close(getattr(ours, ours_is)(), getattr(right, theirs)(), 1e-7)


@pytest.mark.parametrize("name", CONTINUOUS)
def test_quantiles(name: str) -> None:
    ours, right, _, absent = _case(name)
    if "quantile" not in absent and hasattr(right, "ppf"):
        close(ours.quantile(PARTS), right.ppf(PARTS))


@pytest.mark.parametrize("name", CONTINUOUS)
def test_samples_follow_the_distribution(name: str) -> None:
    ours, right, _, _ = _case(name)
    samples = ours.sample([2000], seed=7)
    assert samples.shape.as_list() == [2000, *ours.batch_shape.as_list()]
    values = right.cdf(run(samples))
    for place in np.ndindex(*values.shape[1:]):
        assert stats.kstest(values[(slice(None), *place)], "uniform").pvalue > 1e-4


@pytest.mark.parametrize("name", CONTINUOUS)
def test_gradients_of_densities_are_those_of_differences(name: str) -> None:
    ours, _, x, _ = _case(name)
    values = tf.constant(x)
    total = tf.reduce_sum(ours.log_prob(values))
    slope = run(tf.gradients(total, values)[0])
    step = 1e-6
    sums = [
        run(tf.reduce_sum(ours.log_prob(x + step * direction)))
        - run(tf.reduce_sum(ours.log_prob(x - step * direction)))
        for direction in np.eye(3)
    ]
    np.testing.assert_allclose(slope, np.array(sums) / (2 * step), 1e-5, 1e-7)


def test_undefined_moments() -> None:
    cauchy = D.Cauchy(LOC, SCALE)
    assert np.all(np.isnan(run(cauchy.mean()))) and np.all(np.isnan(run(cauchy.stddev())))
    np.testing.assert_array_equal(run(D.InverseGamma([0.5, 3.0], 2.0).mean()), [np.nan, 1.0])
    with pytest.raises(tf.errors.InvalidArgumentError, match="undefined"):
        run(D.InverseGamma(1.5, 1.0, allow_nan_stats=False).variance())


# Counts

COUNTS = np.array([0.0, 1.0, 3.0, 7.0])
ODDS = np.array([[0.1], [0.5], [0.8]])

DISCRETE: dict[str, tuple[Any, Any]] = {
    "Binomial": (
        lambda: D.Binomial(np.array([7.0, 8.0, 9.0, 12.0]), probs=ODDS),
        stats.binom([7, 8, 9, 12], ODDS),
    ),
    "NegativeBinomial": (
        lambda: D.NegativeBinomial(np.array([3.0, 2.5, 1.0, 6.0]), probs=ODDS),
        stats.nbinom([3, 2.5, 1, 6], 1 - ODDS),
    ),
    "Geometric": (lambda: D.Geometric(probs=ODDS), stats.geom(ODDS, loc=-1)),
    "Poisson": (lambda: D.Poisson(rate=ODDS * 10), stats.poisson(ODDS * 10)),
    "Poisson of a logarithm": (
        lambda: D.Poisson(log_rate=np.log(ODDS * 10), interpolate_nondiscrete=False),
        stats.poisson(ODDS * 10),
    ),
}


@pytest.mark.parametrize("name", DISCRETE)
def test_counts(name: str) -> None:
    make, right = DISCRETE[name]
    ours = make()
    close(ours.prob(COUNTS), right.pmf(COUNTS))
    close(ours.log_prob(COUNTS), right.logpmf(COUNTS))
    close(ours.cdf(COUNTS), right.cdf(COUNTS))
    close(ours.cdf(-np.ones(4)), np.zeros((3, 4)))
    shape = ours.batch_shape.as_list()
    close(ours.mean() + np.zeros(shape), np.broadcast_to(right.mean(), shape))
    close(ours.variance() + np.zeros(shape), np.broadcast_to(right.var(), shape))


@pytest.mark.parametrize("name", DISCRETE)
def test_samples_of_counts(name: str) -> None:
    make, right = DISCRETE[name]
    ours = make()
    samples = ours.sample([1500, 2], seed=3)
    shape = ours.batch_shape.as_list()
    assert samples.shape.as_list() == [1500, 2, *shape]
    drawn = run(samples).reshape(3000, *shape)
    error = np.sqrt(np.broadcast_to(right.var(), shape) / 3000)
    assert np.all(abs(drawn.mean(0) - right.mean()) < 4.5 * error)
    np.testing.assert_allclose(drawn.var(0), np.broadcast_to(right.var(), shape), rtol=0.2)


def test_modes_of_counts() -> None:
    close(D.Binomial(4.0, probs=[0.1, 0.5, 1.0]).mode(), [0, 2, 4])
    close(D.Poisson(rate=[0.3, 4.5]).mode(), [0, 4])
    close(D.Geometric(probs=[0.3]).mode(), [0])
    close(D.NegativeBinomial(3.0, probs=[0.5]).mode(), [2])


def test_masses_between_integers() -> None:
    between = np.array([0.5, 1.0, -1.0])
    smooth, exact = (D.Poisson(rate=2.0, interpolate_nondiscrete=flag) for flag in (True, False))
    assert run(smooth.prob(between))[0] > 0
    np.testing.assert_array_equal(run(exact.prob(between))[[0, 2]], [0, 0])
    certain = D.Binomial([3.0, 3.0], probs=[0.0, 1.0])
    np.testing.assert_array_equal(run(certain.prob([0.0, 3.0])), [1, 1])


# Vectors

MEAN = rng.normal(size=(2, 3))
LOWER = np.tril(rng.normal(size=(3, 3))) + 2 * np.eye(3)
COVARIANCE = LOWER @ LOWER.T
WIDTHS = np.array([0.5, 1.5, 2.0])
FACTOR = rng.normal(size=(3, 1))

NORMALS: dict[str, tuple[Any, Any]] = {
    "Diag": (lambda: D.MultivariateNormalDiag(MEAN, WIDTHS), np.diag(WIDTHS**2)),
    "Diag of a number": (
        lambda: D.MultivariateNormalDiag(MEAN, scale_identity_multiplier=np.float64(1.5)),
        np.eye(3) * 2.25,
    ),
    "Diag of softplus": (
        lambda: D.MultivariateNormalDiagWithSoftplusScale(MEAN, np.log(np.expm1(WIDTHS))),
        np.diag(WIDTHS**2),
    ),
    "TriL": (lambda: D.MultivariateNormalTriL(MEAN, LOWER), COVARIANCE),
    "FullCovariance": (lambda: D.MultivariateNormalFullCovariance(MEAN, COVARIANCE), COVARIANCE),
    "DiagPlusLowRank": (
        lambda: D.MultivariateNormalDiagPlusLowRank(MEAN, WIDTHS, scale_perturb_factor=FACTOR),
        np.linalg.matrix_power(np.diag(WIDTHS) + FACTOR @ FACTOR.T, 2),
    ),
    "Identity": (lambda: D.MultivariateNormalTriL(MEAN), np.eye(3)),
}


@pytest.mark.parametrize("name", NORMALS)
def test_normal_vectors(name: str) -> None:
    make, matrix = NORMALS[name]
    ours = make()
    right = [stats.multivariate_normal(mean, matrix) for mean in MEAN]
    assert ours.batch_shape.as_list() == [2] and ours.event_shape.as_list() == [3]
    x = rng.normal(size=(5, 1, 3))
    close(ours.log_prob(x), np.stack([one.logpdf(x[:, 0]) for one in right], -1))
    close(ours.mean(), MEAN)
    close(ours.mode(), MEAN)
    close(ours.covariance(), np.stack([matrix, matrix]), 1e-7)
    close(ours.variance(), np.stack([np.diag(matrix)] * 2), 1e-7)
    close(ours.stddev(), np.sqrt([np.diag(matrix)] * 2), 1e-7)
    close(ours.entropy(), [one.entropy() for one in right])
    samples = ours.sample([3000], seed=5)
    assert samples.shape.as_list() == [3000, 2, 3]
    drawn, logs = run([samples, ours.log_prob(samples)])
    assert logs.shape == (3000, 2)
    error = np.sqrt(np.diag(matrix) / 3000)
    assert np.all(abs(drawn.mean(0) - MEAN) < 4.5 * error)
    np.testing.assert_allclose(np.cov(drawn[:, 0].T), matrix, atol=0.12 * matrix.max())


def test_normal_vectors_without_means_and_with_unknown_shapes() -> None:
    ours = D.MultivariateNormalDiag(scale_diag=np.ones((2, 3)))
    close(ours.mean(), np.zeros((2, 3)))
    assert ours.loc is None and ours.sample(4).shape.as_list() == [4, 2, 3]
    loc = tf.placeholder(tf.float64, [None, None])
    ours = D.MultivariateNormalDiag(loc, WIDTHS)
    samples, logs = run([ours.sample(4), ours.log_prob(loc)], {loc: MEAN})
    assert samples.shape == (4, 2, 3)
    right = stats.multivariate_normal(np.zeros(3), np.diag(WIDTHS**2)).logpdf(np.zeros(3))
    np.testing.assert_allclose(logs, [right, right])


def test_gradients_of_normal_vectors() -> None:
    loc, lower, x = (tf.constant(v) for v in (MEAN[0], LOWER, MEAN[1]))
    log_prob = D.MultivariateNormalTriL(loc, lower).log_prob(x)
    slopes = run(tf.gradients(log_prob, [loc, x]))
    right = np.linalg.solve(COVARIANCE, MEAN[1] - MEAN[0])
    np.testing.assert_allclose(slopes, [right, -right])
    samples = D.MultivariateNormalTriL(loc, lower).sample(7, seed=1)
    np.testing.assert_allclose(run(tf.gradients(samples, loc)[0]), [7, 7, 7])


PROBS = np.array([[0.1, 0.2, 0.7], [0.5, 0.25, 0.25]])


def test_one_hot_categorical() -> None:
    ours = D.OneHotCategorical(probs=PROBS)
    close(ours.log_prob([[0, 0, 1], [1, 0, 0]]), np.log([0.7, 0.5]))
    close(ours.entropy(), [stats.entropy(row) for row in PROBS])
    close(ours.mean(), PROBS)
    right = [stats.multinomial(1, row).cov() for row in PROBS]
    close(ours.covariance(), right)
    close(ours.variance(), [np.diag(one) for one in right])
    close(ours.mode(), [[0, 0, 1], [1, 0, 0]])
    samples = ours.sample(3000, seed=2)
    assert samples.shape.as_list() == [3000, 2, 3] and samples.dtype == tf.int32
    drawn = run(samples)
    np.testing.assert_array_equal(drawn.sum(-1), 1)
    np.testing.assert_allclose(drawn.mean(0), PROBS, atol=0.04)
    assert D.OneHotCategorical(logits=[0.0, 1.0], dtype=tf.float32).sample().dtype == tf.float32


def _concrete_log_density(x: Any, probs: Any, heat: Any) -> Any:
    """The density of Maddison and others, of points of the simplex."""
    k = len(probs)
    logs = np.log(probs) - (heat + 1) * np.log(x)
    total = special.logsumexp(np.log(probs) - heat * np.log(x))
    return special.gammaln(k) + (k - 1) * np.log(heat) + logs.sum() - k * total


def test_relaxed_one_hot_categorical() -> None:
    heat = np.array([0.3, 1.7])
    ours = D.RelaxedOneHotCategorical(heat, probs=PROBS)
    x = np.array([[0.2, 0.3, 0.5], [0.6, 0.1, 0.3]])
    right = [_concrete_log_density(*row) for row in zip(x, PROBS, heat, strict=True)]
    close(ours.log_prob(x), right)
    inner = D.ExpRelaxedOneHotCategorical(heat, logits=np.log(PROBS))
    close(inner.log_prob(np.log(x)), right + np.log(x).sum(-1))
    samples = ours.sample(2000, seed=3)
    drawn, logs = run([samples, ours.log_prob(samples)])
    np.testing.assert_allclose(drawn.sum(-1), 1)
    assert logs.shape == (2000, 2) and np.all(np.isfinite(logs))
    # Whatever the temperature, the largest element is that of the classes' distribution.
    largest = drawn.argmax(-1)
    actual = [[np.mean(largest[:, row] == k) for k in range(3)] for row in range(2)]
    np.testing.assert_allclose(actual, PROBS, atol=0.05)
    logits = tf.constant(np.log(PROBS))
    slope = tf.gradients(D.RelaxedOneHotCategorical(heat, logits).sample(3, seed=1)[..., 0], logits)
    assert np.all(run(slope[0]) != 0)


def test_relaxed_bernoulli() -> None:
    heat, odds = np.float64(0.7), np.float64(0.3)
    ours = D.RelaxedBernoulli(heat, probs=odds)
    x = 0.2
    right = _concrete_log_density(np.array([x, 1 - x]), np.array([odds, 1 - odds]), heat)
    close(ours.log_prob(np.float64(x)), right)
    assert abs(run(ours.cdf(np.float64(0.5))) - 0.7) < 1e-9
    drawn = run(ours.sample(2000, seed=1))
    assert stats.kstest(run(ours.cdf(drawn)), "uniform").pvalue > 1e-4
    close(ours.probs, 0.3)
    close(ours.logits, np.log(0.3 / 0.7))


def test_mixtures_of_one_family() -> None:
    weights = np.array([0.2, 0.5, 0.3])
    means, widths = rng.normal(size=(3, 2)), np.array([[1.0, 2.0], [0.5, 0.7], [2.0, 1.0]])
    ours = D.MixtureSameFamily(
        D.Categorical(probs=weights), D.MultivariateNormalDiag(means, widths)
    )
    assert ours.batch_shape.as_list() == [] and ours.event_shape.as_list() == [2]
    x = rng.normal(size=(4, 2))
    parts = [
        stats.multivariate_normal(m, np.diag(w**2)) for m, w in zip(means, widths, strict=True)
    ]
    close(ours.prob(x), sum(w * part.pdf(x) for w, part in zip(weights, parts, strict=True)))
    mean = weights @ means
    close(ours.mean(), mean)
    second = sum(
        w * (np.diag(s**2) + np.outer(m - mean, m - mean))
        for w, m, s in zip(weights, means, widths, strict=True)
    )
    close(ours.covariance(), second)
    close(ours.variance(), np.diag(second))
    samples = ours.sample(4000, seed=1)
    assert samples.shape.as_list() == [4000, 2]
    drawn = run(samples)
    assert np.all(abs(drawn.mean(0) - mean) < 4.5 * np.sqrt(np.diag(second) / 4000))
    np.testing.assert_allclose(np.cov(drawn.T), second, atol=0.2)
    numbers = D.MixtureSameFamily(
        D.Categorical(probs=weights), D.Normal(np.zeros((5, 3)) + means[:, 0], np.ones(3))
    )
    assert numbers.sample(2).shape.as_list() == [2, 5]
    right = sum(w * stats.norm(m).cdf(0.3) for w, m in zip(weights, means[:, 0], strict=True))
    close(numbers.cdf(np.float64(0.3)), np.full(5, right))


def test_mixtures_of_batches_draw_a_component_for_each() -> None:
    cat = D.Categorical(probs=np.array([[1.0, 0.0], [0.0, 1.0]]))
    far = [D.Normal(np.zeros(2), np.ones(2)), D.Normal(np.zeros(2) + 100, np.ones(2))]
    ours = D.Mixture(cat, far)
    drawn = run(ours.sample(50, seed=1))
    assert np.all(drawn[:, 0] < 10) and np.all(drawn[:, 1] > 90)
    close(ours.mean(), [0, 100])
    close(ours.entropy_lower_bound(), [stats.norm.entropy()] * 2)
    assert ours.num_components == 2
    shared = D.MixtureSameFamily(
        D.Categorical(probs=np.array([0.5, 0.5])), D.Normal(np.tile([0.0, 100.0], (40, 1)), 1.0)
    )
    drawn = run(shared.sample(seed=3)) > 50
    assert 5 < drawn.sum() < 35


def test_independent() -> None:
    inner = D.Normal(MEAN, WIDTHS)
    ours = D.Independent(inner)
    assert ours.batch_shape.as_list() == [2] and ours.event_shape.as_list() == [3]
    x = rng.normal(size=(4, 1, 3))
    right = stats.norm(MEAN, WIDTHS)
    close(ours.log_prob(x), right.logpdf(x).sum(-1))
    close(ours.entropy(), right.entropy().sum(-1))
    close(ours.mean(), MEAN)
    assert ours.sample([5, 4]).shape.as_list() == [5, 4, 2, 3]
    both = D.Independent(inner, 2)
    close(both.log_prob(x), right.logpdf(x).sum((-2, -1)))
    close(both.entropy(), right.entropy().sum())
    wide = D.Independent(D.Bernoulli(logits=np.zeros(3)), 0)
    assert wide.event_shape.as_list() == [] and wide.batch_shape.as_list() == [3]
    vectors = D.Independent(D.MultivariateNormalDiag(MEAN, WIDTHS), 1)
    assert vectors.event_shape.as_list() == [2, 3]
    close(vectors.log_prob(MEAN), right.logpdf(MEAN).sum())
    with pytest.raises(ValueError, match="cannot exceed"):
        D.Independent(inner, 3)


def test_transformed_events_and_batches() -> None:
    base = D.Normal(np.float64(0), np.float64(1))
    affine = B.Affine(shift=MEAN[0], scale_tril=LOWER)
    ours = D.TransformedDistribution(base, affine, batch_shape=[2], event_shape=[3])
    assert ours.batch_shape.as_list() == [2] and ours.event_shape.as_list() == [3]
    right = stats.multivariate_normal(MEAN[0], COVARIANCE)
    x = rng.normal(size=(2, 3))
    close(ours.log_prob(x), right.logpdf(x))
    close(ours.mean(), np.stack([MEAN[0]] * 2))
    close(ours.entropy(), [right.entropy()] * 2)
    samples = run(ours.sample([2000], seed=2))
    assert samples.shape == (2000, 2, 3)
    np.testing.assert_allclose(np.cov(samples[:, 1].T), COVARIANCE, atol=0.15 * COVARIANCE.max())
    # The base's own batch stays before the events.
    wide = D.TransformedDistribution(
        D.Normal(np.array([0.0, 50.0]), np.float64(1)), B.Identity(), event_shape=[3]
    )
    drawn = run(wide.sample(4, seed=1))
    assert drawn.shape == (4, 2, 3) and np.all(drawn[:, 0] < 25) and np.all(drawn[:, 1] > 25)
    simplex = D.TransformedDistribution(base, B.SoftmaxCentered(), event_shape=[3])
    assert simplex.event_shape.as_list() == [4]
    np.testing.assert_allclose(run(simplex.sample(5)).sum(-1), 1)
    with pytest.raises(ValueError, match="not scalar"):
        D.TransformedDistribution(D.Normal(MEAN, 1.0), B.Exp(), batch_shape=[2])
    for method in ("mean", "entropy"):
        with pytest.raises(NotImplementedError, match="constant Jacobian"):
            getattr(_log_normal(), method)()
    with pytest.raises(NotImplementedError, match="event_shape"):
        ours.cdf(x)


def test_certain_values() -> None:
    ours = D.Deterministic([1.0, 2.0], atol=0.1)
    np.testing.assert_array_equal(run(ours.prob([1.05, 2.2])), [1, 0])
    np.testing.assert_array_equal(run(ours.cdf([0.5, 2.2])), [0, 1])
    np.testing.assert_array_equal(run(ours.sample(2)), [[1, 2], [1, 2]])
    np.testing.assert_array_equal(run([ours.mean(), ours.variance()]), [[1, 2], [0, 0]])
    vector = D.VectorDeterministic([[1.0, 2.0]])
    assert vector.event_shape.as_list() == [2] and vector.batch_shape.as_list() == [1]
    np.testing.assert_array_equal(run(vector.prob([[1.0, 2.0]])), [1])
    normal = D.Normal(0.0, 1.0)
    close(D.kl_divergence(ours, normal), -stats.norm.logpdf([1, 2]), 1e-6)


def test_constrained_parameters() -> None:
    raw = np.array([-1.0, 0.5])
    positive = np.log1p(np.exp(raw))
    close(D.NormalWithSoftplusScale(np.zeros(2), raw).stddev(), positive)
    close(D.LaplaceWithSoftplusScale(loc=np.zeros(2), scale=raw).scale, positive)
    close(D.GammaWithSoftplusConcentrationRate(raw, raw).mean(), [1, 1])
    close(D.BetaWithSoftplusConcentration(raw, raw).mean(), [0.5, 0.5])
    close(D.StudentTWithAbsDfSoftplusScale(-raw - 4, 0 * raw, raw).df, [3, 4])
    close(D.Chi2WithAbsDf(np.array([-2.5])).df, [2])
    ours = D.ExponentialWithSoftplusRate(raw, name="mine")
    assert ours.name == "mine/" and ours.parameters["rate"] is raw
    close(ours.copy(rate=raw + 1).rate, np.log1p(np.exp(raw + 1)))


PAIRS: dict[str, Any] = {
    "normal vectors": lambda: (
        D.MultivariateNormalTriL(MEAN, LOWER),
        D.MultivariateNormalDiag(MEAN[::-1], WIDTHS + 1),
    ),
    "Independent": lambda: (
        D.Independent(D.Normal(MEAN, WIDTHS)),
        D.Independent(D.Normal(MEAN[::-1], WIDTHS + 0.5)),
    ),
    "OneHotCategorical": lambda: (
        D.OneHotCategorical(probs=PROBS),
        D.OneHotCategorical(probs=PROBS[::-1]),
    ),
    "HalfNormal": lambda: (D.HalfNormal(WIDTHS), D.HalfNormal(WIDTHS[::-1])),
    "Chi2": lambda: (D.Chi2(SHAPE), D.Chi2(SHAPE[::-1])),
}


@pytest.mark.parametrize("name", PAIRS)
def test_divergence_is_the_mean_of_the_log_ratio(name: str) -> None:
    a, b = PAIRS[name]()
    x = a.sample(10_000, seed=11)
    ratio = a.log_prob(x) - b.log_prob(x)
    exact, sampled = run([D.kl_divergence(a, b), ratio])
    error = sampled.std(0) / 100
    assert np.all(abs(exact - sampled.mean(0)) < 4.5 * error + 1e-12)
    close(D.kl_divergence(a, a), np.zeros(a.batch_shape.as_list()), atol=1e-9)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: D.Binomial(2.0, probs=0.5, validate_args=True).prob(3.0), "less than or equal"),
        (lambda: D.Binomial(2.5, probs=0.5, validate_args=True).mean(), "fractional"),
        (lambda: D.Poisson(rate=-1.0, validate_args=True).mean(), "x > 0"),
        (lambda: D.Geometric(probs=0.5, validate_args=True).prob(0.5), "fractional"),
        (lambda: D.Logistic(0.0, -1.0, validate_args=True).mean(), "x > 0"),
        (lambda: D.MultivariateNormalDiag([0.0], [0.0], validate_args=True).sample(), "zero"),
        (
            lambda: D.MultivariateNormalFullCovariance(
                [0.0, 0.0], [[1.0, 0.5], [0.0, 1.0]], validate_args=True
            ).sample(),
            "symmetric",
        ),
        (lambda: D.OneHotCategorical([0.0, 0.0], validate_args=True).prob([1, 1]), "one-hot"),
        (lambda: D.RelaxedBernoulli(-1.0, probs=0.5, validate_args=True).sample(), "x > 0"),
    ],
)
def test_bad_arguments_fail_when_they_are_checked(make: Any, message: str) -> None:
    with pytest.raises(tf.errors.InvalidArgumentError, match=message):
        run(make())


def test_bad_programs_fail_on_their_line() -> None:
    with pytest.raises(ValueError, match="loc"):
        D.MultivariateNormalDiag()
    with pytest.raises(ValueError, match="one or both"):
        D.MultivariateNormalTriL()
    with pytest.raises(ValueError, match="scale"):
        D.MultivariateNormalLinearOperator([0.0])
    with pytest.raises(ValueError, match="exactly one"):
        D.Poisson()
    normal, cat = D.Normal(0.0, 1.0), D.Categorical(probs=[0.5, 0.5])
    with pytest.raises(TypeError, match="Categorical"):
        D.Mixture(normal, [normal])
    with pytest.raises(ValueError, match="2, but there are 1"):
        D.Mixture(cat, [normal])
    with pytest.raises(TypeError, match="dtype"):
        D.Mixture(cat, [normal, D.Normal(np.float64(0), np.float64(1))])
    with pytest.raises(ValueError, match="batch shape"):
        D.Mixture(cat, [normal, D.Normal([0.0, 1.0], 1.0)])
    with pytest.raises(ValueError, match="components"):
        D.MixtureSameFamily(cat, D.Normal([0.0, 1.0, 2.0], 1.0))
    with pytest.raises(TypeError, match=r"scale\.dtype"):
        D.MultivariateNormalLinearOperator(
            [0.0], tf.linalg.LinearOperatorDiag(np.ones(1))
        ).log_prob([0.0])


def test_means_and_scale_of_a_normal_vector_are_of_one_size() -> None:
    with pytest.raises(ValueError, match=r"events of 2 numbers.* have 3"):
        tf.contrib.distributions.MultivariateNormalDiag([0.0, 0.0], [1.0, 1.0, 1.0])
    assert tf.contrib.distributions.MultivariateNormalDiag([0.0], [1.0, 1.0]).event_shape == [2]
