"""Affine maps of vectors: y = A x + b, with A as a linear operator or by the parts that it has."""

from __future__ import annotations

from typing import Any

from thalweg.distributions.contrib.bijectors.base import Bijector
from thalweg.distributions.contrib.scales import scale_operator
from thalweg.distributions.parameters import floats
from thalweg.graph.likes import TensorLike
from thalweg.graph.node import Tensor
from thalweg.graph.scopes import name_scope
from thalweg.linear_operators.base import LinearOperator
from thalweg.ops.core import casting, shaping
from thalweg.ops.math import transcendental
from thalweg.public import public


def check_operator(scale: object) -> None:
    """Raise for what is given as a scale and is no linear operator."""
    if scale is not None and not isinstance(scale, LinearOperator):
        raise TypeError(f"scale is not an instance of tf.LinearOperator: {scale!r}")


@public("contrib.distributions.bijectors.AffineLinearOperator")
class AffineLinearOperator(Bijector):
    """y = scale x + shift, of vectors

    Args:
        shift: what is added, [..., k]; nothing for None.
        scale: an invertible linear operator of [..., k, k]; the identity for None.
        validate_args: whether the step checks that `scale` is invertible.
        name: the scope of the nodes.
    """

    def __init__(
        self,
        shift: TensorLike | None = None,
        scale: LinearOperator | None = None,
        validate_args: bool = False,
        name: str = "affine_linear_operator",
    ) -> None:
        with name_scope(name, values=[shift]):
            self._shift = None if shift is None else floats(shift)[0]
        check_operator(scale)
        if scale is not None and validate_args and not scale.is_non_singular:
            raise ValueError("Scale matrix must be non-singular.")
        self._scale = scale
        parts = [] if self._shift is None else [self._shift]
        kinds = [part.dtype for part in parts] + ([] if scale is None else [scale.dtype])
        if len({kind.base_dtype for kind in kinds}) > 1:
            raise TypeError("shift.dtype does not match scale.dtype.")
        super().__init__(
            graph_parents=parts + ([] if scale is None else scale.graph_parents),
            is_constant_jacobian=True,
            validate_args=validate_args,
            dtype=kinds[0] if kinds else None,
            forward_min_event_ndims=1,
            name=name,
        )

    @property
    def shift(self) -> Tensor | None:
        """What is added."""
        return self._shift

    @property
    def scale(self) -> LinearOperator | None:
        """The operator that multiplies."""
        return self._scale

    def _forward(self, x: Tensor) -> Tensor:
        y = x if self._scale is None else self._scale.matvec(x)
        return y if self._shift is None else y + self._shift

    def _inverse(self, y: Tensor) -> Tensor:
        x = y if self._shift is None else y - self._shift
        return x if self._scale is None else self._scale.solvevec(x)

    def _forward_log_det_jacobian(self, x: Tensor) -> Any:
        return 0.0 if self._scale is None else self._scale.log_abs_determinant()


@public("contrib.distributions.bijectors.Affine")
class Affine(AffineLinearOperator):
    """y = (m I + diag(d) + T + F diag(e) Fᵀ) x + shift, with those parts that are given

    Args:
        shift: what is added, [..., k].
        scale_identity_multiplier: m, [...].
        scale_diag: d, [..., k].
        scale_tril: T, lower triangles, [..., k, k].
        scale_perturb_factor: F, [..., k, r] with a small r.
        scale_perturb_diag: e, [..., r]; ones for None.
        validate_args: whether the step checks that the matrix is invertible.
        name: the scope of the nodes.

    Example:
        >>> tfb = tf.contrib.distributions.bijectors
        >>> affine = tfb.Affine(shift=[1.0, 2.0], scale_diag=[3.0, 4.0])
        >>> sess.run(affine.forward([1.0, 1.0]))
        array([4., 6.], dtype=float32)
    """

    def __init__(
        self,
        shift: TensorLike | None = None,
        scale_identity_multiplier: TensorLike | None = None,
        scale_diag: TensorLike | None = None,
        scale_tril: TensorLike | None = None,
        scale_perturb_factor: TensorLike | None = None,
        scale_perturb_diag: TensorLike | None = None,
        validate_args: bool = False,
        name: str = "affine",
    ) -> None:
        given = [scale_diag, scale_tril, scale_perturb_factor]
        self._multiplier = None
        scale = None
        with name_scope(name, values=[shift, scale_identity_multiplier, *given]):
            if all(part is None for part in given):
                # The size of the identity is that of what comes in.
                if scale_identity_multiplier is not None:
                    (self._multiplier,) = floats(scale_identity_multiplier)
            else:
                scale = scale_operator(
                    None,
                    scale_identity_multiplier,
                    scale_diag,
                    scale_tril,
                    scale_perturb_factor,
                    scale_perturb_diag,
                    validate_args,
                )
        super().__init__(shift, scale, validate_args, name)

    def _forward(self, x: Tensor) -> Tensor:
        if self._multiplier is None:
            return super()._forward(x)
        return super()._forward(x * shaping.expand_dims(self._multiplier, -1))

    def _inverse(self, y: Tensor) -> Tensor:
        x = super()._inverse(y)
        if self._multiplier is None:
            return x
        return x / shaping.expand_dims(self._multiplier, -1)

    def _forward_log_det_jacobian(self, x: Tensor) -> Any:
        if self._multiplier is None:
            return super()._forward_log_det_jacobian(x)
        size = casting.cast(shaping.shape(x)[-1], x.dtype)
        return size * transcendental.log(abs(self._multiplier))
