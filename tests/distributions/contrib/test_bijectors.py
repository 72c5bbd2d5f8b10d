"""Bijectors: both directions undo each other, and Jacobians are those of central differences."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from scipy import stats

import thalweg as tf

D = tf.contrib.distributions
B = D.bijectors

rng = np.random.default_rng(0)
REALS = np.array([-2.3, -0.4, 0.0, 0.7, 3.1])
POSITIVE = np.array([0.1, 0.9, 1.0, 2.5, 7.0])
PARTS = np.array([0.02, 0.3, 0.5, 0.77, 0.98])
VECTORS = rng.normal(size=(4, 3))
TRIANGLE = np.array([[1.5, 0, 0], [0.2, -0.7, 0], [1.0, 0.3, 2.0]])
FACTOR = np.array([[0.5], [0.1], [-0.3]])
LOWER = np.array([[0.8, 0, 0], [0.4, 1.3, 0], [-0.6, 0.9, 0.5]])


@pytest.fixture(autouse=True)
def graph() -> Any:
    with tf.Graph().as_default() as graph:
        yield graph


def run(value: Any, feeds: Any = None) -> Any:
    with tf.Session() as session:
        return session.run(value, feeds)


def close(actual: Any, wanted: Any, rtol: float = 1e-9, atol: float = 1e-10) -> None:
    np.testing.assert_allclose(run(actual), wanted, rtol, atol)


#: name: (bijector, inputs, formula)
SCALARS: dict[str, tuple[Callable[[], Any], Any, Callable[..., Any]]] = {
    "Identity": (B.Identity, REALS, lambda x: x),
    "Exp": (B.Exp, REALS, np.exp),
    "PowerTransform": (lambda: B.PowerTransform(0.5), POSITIVE, lambda x: (1 + 0.5 * x) ** 2),
    "AffineScalar": (
        lambda: B.AffineScalar(np.float64(1.5), np.float64(-2)),
        REALS,
        lambda x: 1.5 - 2 * x,
    ),
    "shift": (lambda: B.AffineScalar(shift=np.float64(1.5)), REALS, lambda x: 1.5 + x),
    "Sigmoid": (B.Sigmoid, REALS, lambda x: 1 / (1 + np.exp(-x))),
    "Tanh": (B.Tanh, REALS, np.tanh),
    "Softplus": (B.Softplus, REALS, lambda x: np.log1p(np.exp(x))),
    "hinge": (
        lambda: B.Softplus(hinge_softness=np.float64(0.3)),
        REALS,
        lambda x: 0.3 * np.log1p(np.exp(x / 0.3)),
    ),
    "Softsign": (B.Softsign, REALS, lambda x: x / (1 + abs(x))),
    "Square": (B.Square, POSITIVE, np.square),
    "Gumbel": (
        lambda: B.Gumbel(np.float64(0.3), np.float64(1.7)),
        REALS,
        stats.gumbel_r(0.3, 1.7).cdf,
    ),
    "Weibull": (
        lambda: B.Weibull(np.float64(2), np.float64(1.3)),
        POSITIVE,
        stats.weibull_min(1.3, scale=2).cdf,
    ),
    "Kumaraswamy": (
        lambda: B.Kumaraswamy(np.float64(2), np.float64(3)),
        PARTS,
        lambda x: np.sqrt(1 - np.cbrt(1 - x)),
    ),
    "SinhArcsinh": (
        lambda: B.SinhArcsinh(np.float64(0.4), np.float64(1.2)),
        REALS,
        lambda x: np.sinh((np.arcsinh(x) + 0.4) * 1.2),
    ),
    "Invert": (lambda: B.Invert(B.Exp()), POSITIVE, np.log),
    "Chain": (
        lambda: B.Chain([B.Exp(), B.AffineScalar(scale=np.float64(0.5)), B.Softplus()]),
        REALS,
        lambda x: np.sqrt(1 + np.exp(x)),
    ),
    "Inline": (
        lambda: B.Inline(
            tf.exp, tf.log, lambda y: -tf.log(y), forward_min_event_ndims=0, name="inline"
        ),
        REALS,
        np.exp,
    ),
}


@pytest.mark.parametrize("name", SCALARS)
def test_functions_of_numbers(name: str) -> None:
    make, x, formula = SCALARS[name]
    bijector = make()
    given = tf.constant(x)
    y = bijector.forward(given)
    close(y, formula(x))
    # Another tensor of the same values: what was mapped forward is not found again.
    close(bijector.inverse(run(y)), x, 1e-6, 1e-7)
    slopes = np.log(abs(run(tf.gradients(y, given)[0])))
    volume = run(bijector.forward_log_det_jacobian(x, 0))
    np.testing.assert_allclose(np.broadcast_to(volume, x.shape), slopes, 1e-7, 1e-10)
    back = run(bijector.inverse_log_det_jacobian(formula(x), 0))
    np.testing.assert_allclose(np.broadcast_to(back, x.shape), -slopes, 1e-6, 1e-7)
    # Over the event, also where the Jacobian is one number.
    close(bijector.forward_log_det_jacobian(x, 1), slopes.sum(), 1e-7)
    close(bijector.inverse_log_det_jacobian(formula(x), 1), -slopes.sum(), 1e-6)


@pytest.mark.parametrize("name", SCALARS)
def test_known_inputs_are_found_again(name: str) -> None:
    make, x, _ = SCALARS[name]
    bijector, given = make(), tf.constant(x)
    assert bijector.inverse(bijector.forward(given)) is given


def test_saturated_samples_keep_their_densities() -> None:
    relaxed = D.RelaxedBernoulli(0.01, logits=[3.0, -3.0])
    samples = relaxed.sample(100, seed=1)
    drawn, logs = run([samples, relaxed.log_prob(samples)])
    assert np.any(drawn == 1) and np.all(np.isfinite(logs))


VECTOR_MAPS: dict[str, tuple[Callable[[], Any], Any, Any]] = {
    "Affine of a diagonal": (
        lambda: B.Affine(VECTORS[0], scale_diag=VECTORS[1]),
        VECTORS,
        VECTORS * VECTORS[1] + VECTORS[0],
    ),
    "Affine of a number": (
        lambda: B.Affine(VECTORS[0], scale_identity_multiplier=np.float64(-2)),
        VECTORS,
        -2 * VECTORS + VECTORS[0],
    ),
    "Affine of a triangle and more": (
        lambda: B.Affine(
            scale_tril=TRIANGLE,
            scale_identity_multiplier=np.float64(2),
            scale_diag=np.array([1.0, 2.0, 3.0]),
        ),
        VECTORS,
        VECTORS @ (TRIANGLE + np.diag([3.0, 4.0, 5.0])).T,
    ),
    "Affine of low rank": (
        lambda: B.Affine(scale_diag=np.array([1.0, 2.0, 3.0]), scale_perturb_factor=FACTOR),
        VECTORS,
        VECTORS @ (np.diag([1.0, 2.0, 3.0]) + FACTOR @ FACTOR.T).T,
    ),
    "AffineLinearOperator": (
        lambda: B.AffineLinearOperator(
            VECTORS[0], tf.linalg.LinearOperatorFullMatrix(TRIANGLE + 1, is_non_singular=True)
        ),
        VECTORS,
        VECTORS @ (TRIANGLE + 1).T + VECTORS[0],
    ),
    "Permute": (lambda: B.Permute([2, 0, 1]), VECTORS, VECTORS[:, [2, 0, 1]]),
    "Ordered": (
        B.Ordered,
        np.cumsum(abs(VECTORS), -1),
        np.concatenate([abs(VECTORS[:, :1]), np.log(abs(VECTORS[:, 1:]))], -1),
    ),
    "Chain of numbers and vectors": (
        lambda: B.Chain([B.Exp(), B.Affine(scale_tril=TRIANGLE)]),
        VECTORS,
        np.exp(VECTORS @ TRIANGLE.T),
    ),
}


def _jacobian(bijector: Any, x: np.ndarray) -> np.ndarray:
    given = tf.constant(x)
    y = tf.reshape(bijector.forward(given), [-1])
    rows = [tf.reshape(tf.gradients(y[i], given)[0], [-1]) for i in range(y.shape[0])]
    return run(tf.stack(rows))


@pytest.mark.parametrize("name", VECTOR_MAPS)
def test_functions_of_vectors(name: str) -> None:
    make, x, expected = VECTOR_MAPS[name]
    bijector = make()
    close(bijector.forward(x), expected)
    close(bijector.inverse(expected), x, 1e-6)
    volume = np.linalg.slogdet(_jacobian(bijector, x[0]))[1]
    close(bijector.forward_log_det_jacobian(x[0], 1), volume, 1e-7, 1e-9)
    close(bijector.inverse_log_det_jacobian(expected[0], 1), -volume, 1e-6, 1e-9)
    both = run(bijector.forward_log_det_jacobian(x[:2], 2))
    second = np.linalg.slogdet(_jacobian(bijector, x[1]))[1]
    np.testing.assert_allclose(both, volume + second, 1e-7)
    with pytest.raises(ValueError, match="event_ndims"):
        bijector.forward_log_det_jacobian(x, 0)


@pytest.mark.parametrize("name", VECTOR_MAPS)
def test_shapes_known_only_at_run_time(name: str) -> None:
    make, x, expected = VECTOR_MAPS[name]
    bijector, given = make(), tf.placeholder(tf.float64)
    made = [bijector.forward(given), bijector.forward_log_det_jacobian(given, 2)]
    y, volume = run(made, {given: x})
    np.testing.assert_allclose(y, expected, 1e-9)
    np.testing.assert_allclose(volume, run(bijector.forward_log_det_jacobian(x, 2)), 1e-9)


def test_softmax_centered_has_the_volume_of_a_dirichlet_density() -> None:
    bijector, x = B.SoftmaxCentered(), VECTORS[0]
    y = run(bijector.forward(x))
    assert y.shape == (4,) and abs(y.sum() - 1) < 1e-12
    close(bijector.inverse(y), x)
    volume = np.linalg.slogdet(_jacobian(bijector, x)[:3])[1]
    close(bijector.forward_log_det_jacobian(x, 1), volume)
    close(bijector.inverse_log_det_jacobian(y, 1), -volume)
    assert bijector.forward_event_shape([7, 3]).as_list() == [7, 4]
    close(bijector.inverse_event_shape_tensor([7, 4]), [7, 3])


def test_triangles() -> None:
    vector = np.arange(1.0, 7.0)
    filled = run(D.fill_triangular(vector))
    np.testing.assert_array_equal(filled, [[4, 0, 0], [6, 5, 0], [3, 2, 1]])
    upper = run(D.fill_triangular(vector, upper=True))
    np.testing.assert_array_equal(upper, [[1, 2, 3], [0, 5, 6], [0, 0, 4]])
    many = rng.normal(size=(2, 10))
    for side in (False, True):
        close(D.fill_triangular_inverse(D.fill_triangular(many, side), side), many)
    bijector = B.FillTriangular()
    assert bijector.forward_event_shape([5, 6]).as_list() == [5, 3, 3]
    assert bijector.inverse_event_shape([5, 3, 3]).as_list() == [5, 6]
    close(bijector.forward_event_shape_tensor([5, 6]), [5, 3, 3])
    close(bijector.inverse_event_shape_tensor([5, 3, 3]), [5, 6])
    with pytest.raises(ValueError, match="triangular"):
        D.fill_triangular([1.0, 2.0])


def test_positive_diagonals() -> None:
    bijector, x = B.ScaleTriL(diag_shift=np.float64(0.1)), rng.normal(size=6)
    y = run(bijector.forward(x))
    assert np.all(np.diag(y) > 0.1) and np.all(np.triu(y, 1) == 0)
    close(bijector.inverse(y), x)
    places = np.tril_indices(3)
    rows = _jacobian(bijector, x).reshape(3, 3, 6)[places]
    close(bijector.forward_log_det_jacobian(x, 1), np.linalg.slogdet(rows)[1])
    close(bijector.inverse_log_det_jacobian(y, 2), -np.linalg.slogdet(rows)[1])


def test_outer_products_of_triangles() -> None:
    bijector = B.CholeskyOuterProduct()
    close(bijector.forward(LOWER), LOWER @ LOWER.T)
    close(bijector.inverse(LOWER @ LOWER.T), LOWER)
    places = np.tril_indices(3)
    jacobian = _jacobian(bijector, LOWER).reshape(3, 3, 3, 3)[places][:, places[0], places[1]]
    close(bijector.forward_log_det_jacobian(LOWER, 2), np.linalg.slogdet(jacobian)[1])
    close(bijector.inverse_log_det_jacobian(LOWER @ LOWER.T, 2), -np.linalg.slogdet(jacobian)[1])


def test_other_shapes() -> None:
    bijector, x = B.Reshape([2, -1], [6]), rng.normal(size=(5, 6))
    y = bijector.forward(tf.placeholder_with_default(x, [None, 6]))
    assert y.shape.as_list() == [None, 2, None]
    close(y, x.reshape(5, 2, 3))
    close(bijector.inverse(x.reshape(5, 2, 3)), x)
    close(bijector.forward_log_det_jacobian(x, 1), 0)
    assert bijector.forward_min_event_ndims == 1 and bijector.inverse_min_event_ndims == 2
    assert bijector.forward_event_shape([6]).as_list() == [2, 3]
    close(bijector.forward_event_shape_tensor([5, 6]), [5, 2, 3])
    close(bijector.inverse_event_shape_tensor([5, 2, 3]), [5, 6])
    with pytest.raises(ValueError, match="do not match"):
        B.Reshape([2, 3], [5])
    with pytest.raises(ValueError, match="at most one"):
        B.Reshape([-1, -1])
    # A chain counts the axes that its members give and take.
    chain = B.Chain([B.Reshape([2, 3], [6]), B.Affine(scale_diag=np.ones(6) * 2)])
    assert chain.forward_min_event_ndims == 1 and chain.inverse_min_event_ndims == 2
    close(chain.forward_log_det_jacobian(x, 1), 6 * np.log(2))
    close(chain.inverse_log_det_jacobian(x.reshape(5, 2, 3), 3), -30 * np.log(2))


def test_diagonals() -> None:
    bijector = B.TransformDiagonal(B.Exp())
    close(
        bijector.forward(LOWER), LOWER - np.diag(np.diag(LOWER)) + np.diag(np.exp(np.diag(LOWER)))
    )
    close(bijector.forward_log_det_jacobian(LOWER, 2), np.trace(LOWER))


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: B.AffineScalar(scale=0.0, validate_args=True).forward(1.0), "!="),
        (lambda: B.Softplus(hinge_softness=0.0, validate_args=True).forward(1.0), "!="),
        (lambda: B.Square(validate_args=True).inverse(-1.0), ">= 0"),
        (lambda: B.Exp(validate_args=True).inverse(-1.0), "> 0"),
        (lambda: B.Softsign(validate_args=True).inverse(2.0), "<"),
        (lambda: B.Ordered(validate_args=True).forward([2.0, 1.0]), "> 0"),
        (lambda: B.Affine(scale_diag=[1.0, 0.0], validate_args=True).forward([1.0, 1.0]), "zero"),
        (
            lambda: B.Permute(tf.placeholder_with_default([0, 0], [2]), validate_args=True).forward(
                [1.0, 2.0]
            ),
            "exactly one",
        ),
    ],
)
def test_bad_values_fail_when_they_are_checked(make: Any, message: str) -> None:
    with pytest.raises(tf.errors.InvalidArgumentError, match=message):
        run(make())


def test_bad_programs_fail_on_their_line() -> None:
    with pytest.raises(ValueError, match="at least one"):
        B.Bijector()
    with pytest.raises(ValueError, match="non-negative"):
        B.PowerTransform(-1.0)
    with pytest.raises(ValueError, match="exactly one"):
        B.Permute([0, 2])
    with pytest.raises(TypeError, match="int"):
        B.Permute([0.0, 1.0])
    with pytest.raises(ValueError, match="dtypes"):
        B.Chain([B.AffineScalar(np.float64(1)), B.AffineScalar(np.float32(1))])
    with pytest.raises(TypeError, match="float64"):
        B.AffineScalar(np.float64(1)).forward(tf.constant(1.0))
    with pytest.raises(TypeError, match="LinearOperator"):
        B.AffineLinearOperator(scale=1.0)
    with pytest.raises(NotImplementedError, match="is_increasing is not implemented: Affine"):
        B.Affine([0.0]).is_increasing()
    with pytest.raises(NotImplementedError, match="inverse is not implemented: Bijector"):
        B.Bijector(forward_min_event_ndims=0).inverse(1.0)
    with pytest.raises(ValueError, match="perturb_factor"):
        B.Affine(scale_diag=[1.0], scale_perturb_diag=[1.0])
