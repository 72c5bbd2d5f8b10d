"""Normal distributions of vectors: a standard normal vector, scaled by an operator and moved.

The classes differ in how the scale is given: diagonal, triangle, covariance, or with a low rank.
"""

from __future__ import annotations

from typing import Any

from thalweg.distributions.contrib.bijectors.affine import AffineLinearOperator
from thalweg.distributions.contrib.scales import scale_operator
from thalweg.distributions.contrib.transformed import TransformedDistribution
from thalweg.distributions.divergence import RegisterKL
from thalweg.distributions.normal import Normal
from thalweg.distributions.parameters import after, floats
from thalweg.graph.likes import TensorLike
from thalweg.graph.node import Tensor
from thalweg.graph.scopes import name_scope
from thalweg.linear_operators.base import LinearOperator
from thalweg.ops.arrays import joining, transposing
from thalweg.ops.core import broadcast, casting, checks, filling, shaping
from thalweg.ops.linalg import cholesky as cholesky_ops
from thalweg.ops.linalg import matmul
from thalweg.ops.math import arithmetic, reduce, transcendental
from thalweg.ops.nn.activation import softplus
from thalweg.public import public


@public("contrib.distributions.MultivariateNormalLinearOperator")
class MultivariateNormalLinearOperator(TransformedDistribution):
    """loc + scale Z, with Z of independent standard normal numbers

    Args:
        loc: the means, [..., k]; zeros for None.
        scale: a linear operator of [..., k, k].
        validate_args: whether the step checks parameters and values.
        allow_nan_stats: give NaN for statistics that are not defined, instead of raising.
        name: the scope of the nodes.
    """

    def __init__(
        self,
        loc: TensorLike | None = None,
        scale: LinearOperator | None = None,
        validate_args: bool = False,
        allow_nan_stats: bool = True,
        name: str = "MultivariateNormalLinearOperator",
    ) -> None:
        parameters = dict(locals())
        if scale is None:
            raise ValueError("Missing required `scale` parameter.")
        if not scale.dtype.is_floating:
            raise TypeError("`scale` parameter must have floating-point dtype.")
        with name_scope(name, values=[loc]) as scope:
            self._loc = None if loc is None else floats(loc)[0]
            _check_sizes(self._loc, scale)
            zero = filling.zeros([], scale.dtype)
            super().__init__(
                Normal(zero, filling.ones_like(zero), allow_nan_stats=allow_nan_stats),
                AffineLinearOperator(self._loc, scale, validate_args),
                batch_shape=_batch_sizes(self._loc, scale),
                event_shape=shaping.reshape(scale.range_dimension_tensor(), [1]),
                validate_args=validate_args,
                parameters=parameters,
                name=scope,
            )
        self._scale_operator = scale

    @property
    def loc(self) -> Tensor | None:
        """The means, if they were given."""
        return self._loc

    @property
    def scale(self) -> LinearOperator:
        """The operator whose product with its adjoint is the covariance."""
        return self._scale_operator

    def _spread(self, x: Tensor, axes: int) -> Tensor:
        """`x`, whose last axes are of the event, for the whole batch."""
        rank = shaping.rank(x)
        sizes = [self.batch_shape_tensor(), shaping.shape(x)[rank - axes :]]
        return broadcast.broadcast_to(x, joining.concat(sizes, 0))

    def _mean(self) -> Tensor:
        if self._loc is None:
            sizes = [self.batch_shape_tensor(), self.event_shape_tensor()]
            return filling.zeros(joining.concat(sizes, 0), self.dtype)
        return self._spread(self._loc, 1)

    def _mode(self) -> Tensor:
        return self._mean()

    def _covariance(self) -> Tensor:
        dense = self._scale_operator.to_dense()
        return self._spread(matmul.matmul(dense, dense, adjoint_b=True), 2)

    def _variance(self) -> Tensor:
        dense = self._scale_operator.to_dense()
        return self._spread(reduce.reduce_sum(arithmetic.square(dense), axis=-1), 1)

    def _stddev(self) -> Tensor:
        return transcendental.sqrt(self._variance())


def _check_sizes(loc: Tensor | None, scale: LinearOperator) -> None:
    """Means of one number stand for all of them; others are as many as the operator's rows."""
    if loc is None or not loc.shape.rank:
        return
    given, size = loc.shape[-1].value, scale.range_dimension.value
    if None not in (given, size) and given not in (1, size):
        raise ValueError(f"`loc` has events of {given} numbers, but those of `scale` have {size}.")


def _batch_sizes(loc: Tensor | None, scale: LinearOperator) -> Any:
    """What the batches of both broadcast to: a vector of known length."""
    if loc is None:
        return scale.batch_shape_tensor()
    return broadcast.broadcast_dynamic_shape(shaping.shape(loc)[:-1], scale.batch_shape_tensor())


@RegisterKL(MultivariateNormalLinearOperator, MultivariateNormalLinearOperator)
def kl_normal_vectors(
    a: MultivariateNormalLinearOperator,
    b: MultivariateNormalLinearOperator,
    name: str | None = None,
) -> Tensor:
    """(|B⁻¹A|² + |B⁻¹(μb - μa)|² - k) / 2 + log |det B| / |det A|"""
    with name_scope(name, "kl_mvn"):
        ratio = b.scale.solve(a.scale.to_dense())
        spread = reduce.reduce_sum(arithmetic.square(ratio), axis=[-2, -1])
        moved = b.scale.solvevec(b.mean() - a.mean())
        distance = reduce.reduce_sum(arithmetic.square(moved), axis=-1)
        volumes = b.scale.log_abs_determinant() - a.scale.log_abs_determinant()
        size = casting.cast(a.event_shape_tensor()[0], a.dtype)
        return volumes + 0.5 * (spread + distance - size)


@public("contrib.distributions.MultivariateNormalDiag")
class MultivariateNormalDiag(MultivariateNormalLinearOperator):
    """Vectors of independent normal numbers

    Args:
        loc: the means, [..., k]; zeros for None.
        scale_diag: the standard deviations, [..., k].
        scale_identity_multiplier: a number, [...], that is added to all of them; without
            `scale_diag` it is the standard deviation.
        validate_args: whether the step checks that no standard deviation is zero.
        allow_nan_stats: give NaN for statistics that are not defined, instead of raising.
        name: the scope of the nodes.

    Example:
        >>> normal = tf.contrib.distributions.MultivariateNormalDiag([0.0, 1.0], [1.0, 2.0])
        >>> sess.run(normal.variance())
        array([1., 4.], dtype=float32)
    """

    def __init__(
        self,
        loc: TensorLike | None = None,
        scale_diag: TensorLike | None = None,
        scale_identity_multiplier: TensorLike | None = None,
        validate_args: bool = False,
        allow_nan_stats: bool = True,
        name: str = "MultivariateNormalDiag",
    ) -> None:
        parameters = dict(locals())
        with name_scope(name, values=[loc, scale_diag, scale_identity_multiplier]) as scope:
            centre = None if loc is None else floats(loc)[0]
            scale = scale_operator(
                centre, scale_identity_multiplier, scale_diag, validate_args=validate_args
            )
            super().__init__(centre, scale, validate_args, allow_nan_stats, scope)
        self._parameters = parameters


@public("contrib.distributions.MultivariateNormalDiagWithSoftplusScale")
class MultivariateNormalDiagWithSoftplusScale(MultivariateNormalDiag):
    """As `MultivariateNormalDiag`, with softplus(scale_diag) for the standard deviations

    Args:
        loc: the means, [..., k].
        scale_diag: what softplus makes positive, [..., k].
        validate_args: whether the step checks parameters and values.
        allow_nan_stats: give NaN for statistics that are not defined, instead of raising.
        name: the scope of the nodes.
    """

    def __init__(
        self,
        loc: TensorLike,
        scale_diag: TensorLike,
        validate_args: bool = False,
        allow_nan_stats: bool = True,
        name: str = "MultivariateNormalDiagWithSoftplusScale",
    ) -> None:
        parameters = dict(locals())
        with name_scope(name, values=[scale_diag]) as scope:
            positive = softplus(floats(scale_diag)[0])
            super().__init__(
                loc,
                positive,
                validate_args=validate_args,
                allow_nan_stats=allow_nan_stats,
                name=scope,
            )
        self._parameters = parameters


@public("contrib.distributions.MultivariateNormalDiagPlusLowRank")
class MultivariateNormalDiagPlusLowRank(MultivariateNormalLinearOperator):
    """Normal vectors with the scale diag(d) + m I + F diag(e) Fᵀ

    Args:
        loc: the means, [..., k]; zeros for None.
        scale_diag: d, [..., k].
        scale_identity_multiplier: m, [...].
        scale_perturb_factor: F, [..., k, r].
        scale_perturb_diag: e, [..., r]; ones for None.
        validate_args: whether the step checks parameters and values.
        allow_nan_stats: give NaN for statistics that are not defined, instead of raising.
        name: the scope of the nodes.
    """

    def __init__(
        self,
        loc: TensorLike | None = None,
        scale_diag: TensorLike | None = None,
        scale_identity_multiplier: TensorLike | None = None,
        scale_perturb_factor: TensorLike | None = None,
        scale_perturb_diag: TensorLike | None = None,
        validate_args: bool = False,
        allow_nan_stats: bool = True,
        name: str = "MultivariateNormalDiagPlusLowRank",
    ) -> None:
        parameters = dict(locals())
        with name_scope(name, values=[loc, scale_diag, scale_perturb_factor]) as scope:
            centre = None if loc is None else floats(loc)[0]
            scale = scale_operator(
                centre,
                scale_identity_multiplier,
                scale_diag,
                None,
                scale_perturb_factor,
                scale_perturb_diag,
                validate_args,
            )
            super().__init__(centre, scale, validate_args, allow_nan_stats, scope)
        self._parameters = parameters


@public("contrib.distributions.MultivariateNormalTriL")
class MultivariateNormalTriL(MultivariateNormalLinearOperator):
    """Normal vectors with the covariance L Lᵀ

    Args:
        loc: the means, [..., k]; zeros for None.
        scale_tril: L, lower triangles [..., k, k]; the identity for None.
        validate_args: whether the step checks that no diagonal has a zero.
        allow_nan_stats: give NaN for statistics that are not defined, instead of raising.
        name: the scope of the nodes.
    """

    def __init__(
        self,
        loc: TensorLike | None = None,
        scale_tril: TensorLike | None = None,
        validate_args: bool = False,
        allow_nan_stats: bool = True,
        name: str = "MultivariateNormalTriL",
    ) -> None:
        parameters = dict(locals())
        if loc is None and scale_tril is None:
            raise ValueError("Must specify one or both of `loc`, `scale_tril`.")
        with name_scope(name, values=[loc, scale_tril]) as scope:
            centre = None if loc is None else floats(loc)[0]
            scale = scale_operator(centre, tril=scale_tril, validate_args=validate_args)
            super().__init__(centre, scale, validate_args, allow_nan_stats, scope)
        self._parameters = parameters


@public("contrib.distributions.MultivariateNormalFullCovariance")
class MultivariateNormalFullCovariance(MultivariateNormalTriL):
    """Normal vectors with a covariance matrix

    Args:
        loc: the means, [..., k]; zeros for None.
        covariance_matrix: symmetric and positive definite, [..., k, k]; the identity for None.
        validate_args: whether the step checks that the matrix is symmetric.
        allow_nan_stats: give NaN for statistics that are not defined, instead of raising.
        name: the scope of the nodes.
    """

    def __init__(
        self,
        loc: TensorLike | None = None,
        covariance_matrix: TensorLike | None = None,
        validate_args: bool = False,
        allow_nan_stats: bool = True,
        name: str = "MultivariateNormalFullCovariance",
    ) -> None:
        parameters = dict(locals())
        with name_scope(name, values=[loc, covariance_matrix]) as scope:
            triangle = None
            if covariance_matrix is not None:
                (matrix,) = floats(covariance_matrix)
                if validate_args:
                    matrix = after([_symmetric(matrix)], matrix)
                triangle = cholesky_ops.cholesky(matrix)
            super().__init__(loc, triangle, validate_args, allow_nan_stats, scope)
        self._parameters = parameters


def _symmetric(matrix: Tensor) -> Any:
    return checks.assert_near(
        matrix, transposing.matrix_transpose(matrix), message="Matrix was not symmetric"
    )
