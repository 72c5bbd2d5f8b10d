"""Distributions against scipy.stats: densities, tails, moments, entropies, samples, divergences."""

from typing import Any

import numpy as np
import pytest
from scipy import stats

import thalweg as tf

D = tf.distributions


@pytest.fixture(autouse=True)
def graph() -> Any:
    with tf.Graph().as_default() as graph:
        yield graph


def run(value: Any, feeds: Any = None) -> Any:
    with tf.Session() as session:
        return session.run(value, feeds)


def close(actual: Any, wanted: Any, rtol: float = 1e-9, atol: float = 1e-12) -> None:
    np.testing.assert_allclose(run(actual), wanted, rtol, atol)


def f64(*values: Any) -> list[Any]:
    return [np.asarray(value, np.float64) for value in values]


LOC, SCALE = f64([-1.5, 0.0, 2.0], [[0.5], [2.0]])
ONE, TWO = f64([0.5, 1.0, 4.0], [[0.7], [3.0]])
DF = np.array([3.0, 5.0, 30.0])
ODDS = np.array([0.1, 0.5, 0.8])
REALS = np.array([-3.0, 0.1, 2.4])
POSITIVE = np.array([0.2, 1.0, 6.0])
PARTS = np.array([0.05, 0.5, 0.99])

#: name: (ours, scipy's, values)
SCALARS: dict[str, tuple[Any, Any, Any]] = {
    "Normal": (lambda: D.Normal(LOC, SCALE), stats.norm(LOC, SCALE), REALS),
    "Uniform": (lambda: D.Uniform(LOC, LOC + SCALE), stats.uniform(LOC, SCALE), REALS),
    "Laplace": (lambda: D.Laplace(LOC, SCALE), stats.laplace(LOC, SCALE), REALS),
    "StudentT": (lambda: D.StudentT(DF, LOC, SCALE), stats.t(DF, LOC, SCALE), REALS),
    "Gamma": (lambda: D.Gamma(ONE, TWO), stats.gamma(ONE, scale=1 / TWO), POSITIVE),
    "Exponential": (lambda: D.Exponential(TWO), stats.expon(scale=1 / TWO), POSITIVE),
    "Beta": (lambda: D.Beta(ONE, TWO), stats.beta(ONE, TWO), PARTS),
}


@pytest.mark.parametrize("name", SCALARS)
def test_densities_and_tails(name: str) -> None:
    make, right, x = SCALARS[name]
    ours = make()
    with np.errstate(divide="ignore"):
        close(ours.prob(x), right.pdf(x))
        close(ours.log_prob(x), right.logpdf(x))
        close(ours.cdf(x), right.cdf(x))
        close(ours.log_cdf(x), right.logcdf(x), 1e-7)
        close(ours.survival_function(x), right.sf(x), 1e-7)
        close(ours.log_survival_function(x), right.logsf(x), 1e-6)


@pytest.mark.parametrize("name", SCALARS)
def test_moments(name: str) -> None:
    make, right, _ = SCALARS[name]
    ours = make()
    close(ours.mean(), right.mean())
    close(ours.variance(), right.var())
    close(ours.stddev(), right.std())
    close(ours.entropy(), right.entropy(), 1e-7)


@pytest.mark.parametrize("name", SCALARS)
def test_samples_follow_the_distribution(name: str) -> None:
    make, right, _ = SCALARS[name]
    ours = make()
    samples = ours.sample([2000], seed=7)
    assert samples.shape.as_list() == [2000, *ours.batch_shape.as_list()]
    drawn = run(samples)
    values = right.cdf(drawn)
    for place in np.ndindex(*drawn.shape[1:]):
        # Under its own distribution function a sample is uniform.
        assert stats.kstest(values[(slice(None), *place)], "uniform").pvalue > 1e-4


@pytest.mark.parametrize("name", ["Normal", "Uniform", "Laplace", "Exponential"])
def test_quantiles(name: str) -> None:
    make, right, _ = SCALARS[name]
    p = np.array([1e-9, 0.3, 0.999])
    close(make().quantile(p), right.ppf(p), 1e-9)


def test_the_normal_tails_are_exact() -> None:
    x = np.array([-60.0, -21.0, -19.0, 0.0, 7.0, 9.0])
    ours = D.Normal(np.float64(0), np.float64(1))
    close(ours.log_cdf(x), stats.norm.logcdf(x), 1e-6)
    close(ours.log_survival_function(-x), stats.norm.logcdf(x), 1e-6)
    close(ours.quantile(np.array([0.0, 1e-200, 0.5, 1.0])), stats.norm.ppf([0, 1e-200, 0.5, 1]))


@pytest.mark.parametrize("name", SCALARS)
def test_gradients_of_densities_are_finite(name: str) -> None:
    make, _, x = SCALARS[name]
    values = tf.constant(x)
    slopes = tf.gradients(make().log_prob(values), values)[0]
    if name != "Uniform":
        assert np.all(np.isfinite(run(slopes)))


@pytest.mark.parametrize("kind", ["Normal", "Laplace", "StudentT"])
def test_samples_pass_gradients_to_parameters(kind: str) -> None:
    loc = tf.constant(1.0)
    more = {"df": 4.0} if kind == "StudentT" else {}
    samples = getattr(D, kind)(loc=loc, scale=2.0, **more).sample(5, seed=1)
    assert run(tf.gradients(samples, loc)[0]) == 5
    assert getattr(D, kind)(loc=loc, scale=2.0, **more).reparameterization_type is (
        D.FULLY_REPARAMETERIZED
    )


def test_modes() -> None:
    close(D.Normal(LOC, SCALE).mode(), np.broadcast_to(LOC, (2, 3)))
    close(D.Gamma(*f64(3.0, 2.0)).mode(), 1.0)
    close(D.Beta(*f64(3.0, 2.0)).mode(), 2 / 3)
    close(D.Exponential(2.0).mode(), 0.0)
    close(D.Bernoulli(probs=ODDS).mode(), [0, 0, 1])
    close(D.Categorical(probs=[[0.2, 0.7, 0.1], [0.6, 0.1, 0.3]]).mode(), [1, 0])
    close(D.Dirichlet(np.array([2.0, 3.0, 5.0])).mode(), np.array([1, 2, 4]) / 7)


def test_undefined_moments_are_nan_or_an_error() -> None:
    assert np.isnan(run(D.Gamma(0.5, 1.0).mode()))
    assert np.isnan(run(D.Beta(0.5, 2.0).mode()))
    np.testing.assert_array_equal(run(D.StudentT([1.0, 3.0], 2.0, 1.0).mean()), [np.nan, 2.0])
    variance = run(D.StudentT([0.5, 1.5, 4.0], 0.0, 1.0).variance())
    np.testing.assert_array_equal(variance, [np.nan, np.inf, 2.0])
    for made in (
        D.Gamma(0.5, 1.0, allow_nan_stats=False).mode(),
        D.StudentT(1.0, 0.0, 1.0, allow_nan_stats=False).mean(),
        D.Dirichlet([0.5, 2.0], allow_nan_stats=False).mode(),
    ):
        with pytest.raises(tf.errors.InvalidArgumentError, match="efined"):
            run(made)


# Discrete ones


def test_bernoulli() -> None:
    ours, right = D.Bernoulli(probs=ODDS), stats.bernoulli(ODDS)
    x = np.array([[0], [1]])
    close(ours.log_prob(x), right.logpmf(x))
    close(ours.prob(x.astype(np.float64)), right.pmf(x))
    close(ours.cdf(np.array([[-1.0], [0.0], [0.5], [1.0]])), right.cdf([[-1], [0], [0.5], [1]]))
    close(ours.mean(), ODDS)
    close(ours.variance(), ODDS * (1 - ODDS))
    close(ours.entropy(), right.entropy())
    close(D.Bernoulli(logits=np.log(ODDS / (1 - ODDS))).probs, ODDS)
    drawn = run(ours.sample([4000], seed=3))
    assert drawn.dtype == np.int32
    np.testing.assert_allclose(drawn.mean(0), ODDS, atol=0.03)


def test_certain_events_have_finite_densities_and_entropies() -> None:
    sure = D.Bernoulli(probs=[0.0, 1.0])
    np.testing.assert_array_equal(run(sure.log_prob([0, 1])), [0, 0])
    np.testing.assert_array_equal(run(sure.log_prob([1, 0])), [-np.inf, -np.inf])
    np.testing.assert_array_equal(run(sure.entropy()), [0, 0])
    classes = D.Categorical(probs=[0.0, 1.0])
    np.testing.assert_array_equal(run(classes.log_prob([0, 1])), [-np.inf, 0])
    assert run(classes.entropy()) == 0


PROBS = np.array([[0.1, 0.2, 0.7], [0.5, 0.25, 0.25]])


def test_categorical() -> None:
    ours = D.Categorical(probs=PROBS)
    close(ours.prob([2, 0]), [0.7, 0.5])
    close(ours.log_prob([[0, 1], [1, 2]]), np.log([[0.1, 0.25], [0.2, 0.25]]))
    close(ours.cdf([1, 0]), [0.3, 0.5])
    close(ours.entropy(), [stats.entropy(row) for row in PROBS])
    assert run(ours.event_size) == 3
    samples = ours.sample([1500, 2], seed=5)
    assert samples.shape.as_list() == [1500, 2, 2] and samples.dtype == tf.int32
    drawn = run(samples)
    actual = [np.mean(drawn[..., row] == 2) for row in range(2)]
    np.testing.assert_allclose(actual, [0.7, 0.25], atol=0.03)
    assert D.Categorical(logits=[0.0, 1.0], dtype=tf.int64).sample().dtype == tf.int64


COUNTS = np.array([[1.0, 2.0, 3.0], [0.0, 4.0, 0.0]])


def test_multinomial() -> None:
    total = COUNTS.sum(-1)
    ours = D.Multinomial(total, probs=PROBS)
    right = [stats.multinomial(n, p) for n, p in zip(total, PROBS, strict=True)]
    close(ours.log_prob(COUNTS), [d.logpmf(x) for d, x in zip(right, COUNTS, strict=True)])
    close(ours.mean(), total[:, None] * PROBS)
    close(ours.covariance(), [d.cov() for d in right])
    close(ours.variance(), [np.diag(d.cov()) for d in right])
    samples = run(ours.sample(3000, seed=2))
    np.testing.assert_array_equal(samples.sum(-1), np.broadcast_to(total, (3000, 2)))
    np.testing.assert_allclose(samples.mean(0), total[:, None] * PROBS, atol=0.1)


def test_dirichlet() -> None:
    weights = np.array([[1.0, 2.0, 3.5], [0.5, 4.0, 2.0]])
    ours, right = D.Dirichlet(weights), [stats.dirichlet(row) for row in weights]
    x = np.array([0.2, 0.3, 0.5])
    close(ours.log_prob(x), [d.logpdf(x) for d in right])
    close(ours.mean(), [d.mean() for d in right])
    close(ours.variance(), [d.var() for d in right])
    close(ours.covariance(), [d.cov() for d in right])
    close(ours.entropy(), [d.entropy() for d in right], 1e-7)
    samples = run(ours.sample(3000, seed=2))
    np.testing.assert_allclose(samples.sum(-1), 1)
    np.testing.assert_allclose(samples.mean(0), [d.mean() for d in right], atol=0.02)
    np.testing.assert_allclose(samples.var(0), [d.var() for d in right], atol=0.01)


def test_dirichlet_multinomial() -> None:
    weights, total = np.array([1.0, 2.0, 3.5]), 6.0
    ours = D.DirichletMultinomial(total, weights)
    right = stats.dirichlet_multinomial(weights, int(total))
    close(ours.log_prob(COUNTS[0]), right.logpmf(COUNTS[0].astype(int)))
    close(ours.mean(), right.mean())
    close(ours.variance(), right.var())
    close(ours.covariance(), right.cov())
    samples = run(ours.sample(4000, seed=2))
    np.testing.assert_allclose(samples.mean(0), right.mean(), atol=0.1)
    np.testing.assert_allclose(samples.var(0), right.var(), atol=0.25)


# Divergences

PAIRS: dict[str, Any] = {
    "Normal": lambda: (D.Normal(LOC, SCALE), D.Normal(*f64(0.3, 1.7))),
    "Gamma": lambda: (D.Gamma(*f64(2.5, 1.5)), D.Gamma(*f64(4.0, 0.7))),
    "Beta": lambda: (D.Beta(*f64(2.5, 1.5)), D.Beta(*f64(4.0, 0.7))),
    "Exponential": lambda: (D.Exponential(*f64(2.0)), D.Exponential(*f64(0.7))),
    "Bernoulli": lambda: (D.Bernoulli(probs=ODDS), D.Bernoulli(probs=np.float64(0.3))),
    "Categorical": lambda: (D.Categorical(probs=PROBS), D.Categorical(probs=PROBS[::-1])),
    "Dirichlet": lambda: (D.Dirichlet(PROBS + 1), D.Dirichlet(PROBS[::-1] + 2)),
}


@pytest.mark.parametrize("name", PAIRS)
def test_divergence_is_the_mean_of_the_log_ratio(name: str) -> None:
    a, b = PAIRS[name]()
    x = a.sample(20_000, seed=11)
    ratio = tf.reduce_mean(a.log_prob(x) - b.log_prob(x), 0)
    exact, sampled = run([D.kl_divergence(a, b), ratio])
    np.testing.assert_allclose(exact, sampled, rtol=0.05, atol=0.03)
    close(D.kl_divergence(a, a), np.zeros(a.batch_shape.as_list()), atol=1e-9)
    close(a.cross_entropy(b), run(a.entropy() + a.kl_divergence(b)))


def test_divergences_are_registered_for_pairs_of_classes() -> None:
    class Mine(D.Normal):
        pass

    @D.RegisterKL(Mine, D.Uniform)
    def mine(a: Any, b: Any, name: Any = None) -> Any:
        return tf.constant(42.0)

    assert run(D.kl_divergence(Mine(0.0, 1.0), D.Uniform())) == 42
    assert run(D.kl_divergence(Mine(0.0, 1.0), D.Normal(0.0, 1.0))) == 0
    with pytest.raises(NotImplementedError, match="No KL"):
        D.kl_divergence(D.Uniform(), Mine(0.0, 1.0))
    with pytest.raises(ValueError, match="already been registered"):
        D.RegisterKL(Mine, D.Uniform)(mine)
    with pytest.raises(TypeError, match="callable"):
        D.RegisterKL(Mine, Mine)("not callable")


def test_a_nan_divergence_may_be_an_error() -> None:
    pair = D.Normal(np.nan, 1.0), D.Normal(0.0, 1.0)
    assert np.isnan(run(D.kl_divergence(*pair)))
    with pytest.raises(tf.errors.InvalidArgumentError, match="NaN"):
        run(D.kl_divergence(*pair, allow_nan_stats=False))


# What they all share


def test_names_shapes_and_copies() -> None:
    ours = D.Normal(loc=[0.0, 1.0], scale=1.0, name="prior")
    assert ours.name == "prior/" and ours.loc.name == "prior/loc:0"
    assert ours.entropy().name.startswith("prior/entropy/")
    assert ours.batch_shape.as_list() == [2] and ours.event_shape.as_list() == []
    assert run([ours.batch_shape_tensor(), ours.event_shape_tensor()])[0].tolist() == [2]
    assert run([ours.is_scalar_batch(), ours.is_scalar_event()]) == [False, True]
    assert ours.parameters["scale"] == 1.0 and "self" not in ours.parameters
    other = ours.copy(scale=3.0)
    assert type(other) is D.Normal and run(other.stddev()).tolist() == [3, 3]
    assert "batch_shape=(2,)" in str(ours) and "Normal 'prior/'" in repr(ours)
    assert D.Normal.param_static_shapes([4])["loc"].as_list() == [4]
    assert run(D.Normal.param_shapes([4, 2])["scale"]).tolist() == [4, 2]


def test_shapes_known_only_at_run_time() -> None:
    loc = tf.placeholder(tf.float32)
    sizes = tf.placeholder(tf.int32, [None])
    ours = D.Normal(loc, [[1.0], [2.0]])
    feeds = {loc: np.zeros(3), sizes: [4, 5]}
    made = [ours.sample(sizes), ours.batch_shape_tensor(), ours.entropy(), ours.is_scalar_batch()]
    samples, batch, entropy, single = run(made, feeds)
    assert samples.shape == (4, 5, 2, 3) and batch.tolist() == [2, 3]
    assert entropy.shape == (2, 3) and not single


def test_equal_seeds_give_equal_samples() -> None:
    ours = D.Gamma([1.5, 2.0], 3.0)
    first, second, other = run([ours.sample(3, seed=1), ours.sample(3, seed=1), ours.sample(3, 2)])
    np.testing.assert_array_equal(first, second)
    assert np.all(first != other)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: D.Normal(0.0, -1.0, validate_args=True).scale, "x > 0"),
        (lambda: D.Uniform(1.0, 0.0, validate_args=True).mean(), "low >= high"),
        (lambda: D.Gamma(1.0, 1.0, validate_args=True).log_prob(-1.0), "x > 0"),
        (lambda: D.Beta(1.0, 1.0, validate_args=True).prob(1.5), "less than"),
        (lambda: D.Bernoulli(probs=1.5, validate_args=True).mean(), "greater than 1"),
        (lambda: D.Bernoulli(probs=0.5, validate_args=True).prob(2), "less than or equal"),
        (lambda: D.Categorical(probs=[0.5, 0.2], validate_args=True).probs, "sum to 1"),
        (lambda: D.Categorical(probs=[0.5, 0.5], validate_args=True).prob(2), "<="),
        (lambda: D.Multinomial(1.5, [0.0, 0.0], validate_args=True).mean(), "fractional"),
        (lambda: D.Multinomial(2.0, [0.0, 0.0], validate_args=True).prob([1.0, 0.0]), "sum"),
        (lambda: D.Dirichlet([1.0, 2.0], validate_args=True).prob([0.5, 0.9]), "sum"),
        (lambda: D.Dirichlet([1.0, -2.0], validate_args=True).mean(), "positive"),
        (lambda: D.StudentT(-1.0, 0.0, 1.0, validate_args=True).mode(), "x > 0"),
    ],
)
def test_bad_arguments_fail_when_they_are_checked(make: Any, message: str) -> None:
    with pytest.raises(tf.errors.InvalidArgumentError, match=message):
        run(make())


def test_bad_programs_fail_on_their_line() -> None:
    with pytest.raises(ValueError, match="Expected floating point type"):
        D.Normal(0, 1)
    with pytest.raises(ValueError, match="probs or logits"):
        D.Bernoulli()
    with pytest.raises(ValueError, match="probs or logits"):
        D.Categorical(logits=[0.0], probs=[1.0])
    with pytest.raises(NotImplementedError, match="mode is not implemented: Uniform"):
        D.Uniform().mode()
    with pytest.raises(NotImplementedError, match="cdf is not implemented: Dirichlet"):
        D.Dirichlet([1.0, 2.0]).cdf([0.5, 0.5])
    with pytest.raises(ValueError, match="not a Tensor"):
        D.Distribution(tf.float32, D.NOT_REPARAMETERIZED, False, True, graph_parents=[1])


def test_a_distribution_of_ones_own() -> None:
    class Triangle(D.Distribution):
        def __init__(self) -> None:
            super().__init__(tf.float32, D.NOT_REPARAMETERIZED, False, True, dict(locals()))

        def _prob(self, value: Any) -> Any:
            return 2 * value

        def _stddev(self) -> Any:
            return tf.constant(3.0)

    ours = Triangle()
    close(ours.log_prob(0.25), np.log(0.5), 1e-6)
    close(ours.variance(), 9.0)
    with pytest.raises(NotImplementedError, match="log_cdf is not implemented"):
        ours.log_cdf(0.5)


def test_earlier_spellings_live_in_contrib() -> None:
    contrib = tf.contrib.distributions
    ours = contrib.Normal(mu=1.0, sigma=[2.0])
    assert isinstance(ours, D.Normal) and ours.get_batch_shape().as_list() == [1]
    close(ours.pdf(1.0), stats.norm.pdf([0.0]) / 2, 1e-6)
    close(ours.std(), [2.0])
    close(ours.sigma, [2.0])
    assert run(ours.sample_n(3, seed=1)).shape == (3, 1)
    assert isinstance(ours.copy(loc=0.0), contrib.Normal)
    assert run(contrib.kl_divergence(ours, contrib.Normal(loc=1.0, scale=2.0))) == [0]
    close(contrib.Bernoulli(p=0.25).pmf(1), 0.25, 1e-6)
    with pytest.raises(AttributeError, match="rate"):
        ours.rate
