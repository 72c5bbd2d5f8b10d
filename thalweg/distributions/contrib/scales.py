"""The scale of a location-scale family of vectors, as a linear operator, from its parts."""

from __future__ import annotations

from typing import Any

from thalweg.distributions.parameters import after, floats
from thalweg.graph.likes import TensorLike
from thalweg.graph.node import Tensor
from thalweg.linear_operators.base import LinearOperator
from thalweg.linear_operators.dense import LinearOperatorLowerTriangular
from thalweg.linear_operators.derived import LinearOperatorLowRankUpdate
from thalweg.linear_operators.diagonals import LinearOperatorDiag, LinearOperatorScaledIdentity
from thalweg.ops.arrays import diagonal
from thalweg.ops.core import checks, filling, shaping


def scale_operator(
    loc: Tensor | None,
    identity_multiplier: TensorLike | None = None,
    diag: TensorLike | None = None,
    tril: TensorLike | None = None,
    perturb_factor: TensorLike | None = None,
    perturb_diag: TensorLike | None = None,
    validate_args: bool = False,
) -> LinearOperator:
    """m I + diag(d) + T + F diag(e) Fᵀ of the parts that are given; `loc` may tell the size."""
    base = _base(loc, identity_multiplier, diag, tril, perturb_factor, validate_args)
    if perturb_factor is None:
        if perturb_diag is not None:
            raise ValueError("A perturb_diag needs a perturb_factor.")
        return base
    factor, update = _low_rank(perturb_factor, perturb_diag, base)
    return LinearOperatorLowRankUpdate(
        base,
        factor,
        diag_update=update,
        is_diag_update_positive=perturb_diag is None,
        is_non_singular=True,
        is_self_adjoint=True,
        is_positive_definite=True,
        is_square=True,
    )


def _low_rank(factor: Any, diag: Any, base: LinearOperator) -> tuple[Tensor, Tensor | None]:
    given = [part for part in (factor, diag) if part is not None]
    tensors = [_like(part, base) for part in given]
    return tensors[0], tensors[1] if diag is not None else None


def _like(part: Any, base: LinearOperator) -> Tensor:
    (tensor,) = floats(part)
    if tensor.dtype.base_dtype != base.dtype:
        raise TypeError(f"A part of a scale is {tensor.dtype.name}, another {base.dtype.name}.")
    return tensor


def _base(
    loc: Tensor | None, multiplier: Any, diag: Any, tril: Any, factor: Any, validate_args: bool
) -> LinearOperator:
    """The scale without what perturbs it."""
    if tril is not None:
        return LinearOperatorLowerTriangular(
            _triangle(tril, multiplier, diag, validate_args), is_non_singular=True
        )
    positive = True if factor is not None else None
    if diag is not None:
        given = [diag] if multiplier is None else [diag, multiplier]
        entries, *rest = floats(*given)
        entries = entries + shaping.expand_dims(rest[0], -1) if rest else entries
        return LinearOperatorDiag(
            _invertible(entries, validate_args),
            is_non_singular=True,
            is_self_adjoint=True,
            is_positive_definite=positive,
        )
    return _scaled_identity(loc, multiplier, factor, positive, validate_args)


def _triangle(tril: Any, multiplier: Any, diag: Any, validate_args: bool) -> Tensor:
    given = [part for part in (tril, diag, multiplier) if part is not None]
    tensors = floats(*given)
    lower = diagonal.matrix_band_part(tensors[0], -1, 0)
    entries = diagonal.matrix_diag_part(lower)
    if diag is not None:
        entries = entries + tensors[1]
    if multiplier is not None:
        entries = entries + shaping.expand_dims(tensors[-1], -1)
    if len(tensors) == 1 and not validate_args:
        return lower
    return diagonal.matrix_set_diag(lower, _invertible(entries, validate_args))


def _scaled_identity(
    loc: Tensor | None, multiplier: Any, factor: Any, positive: bool | None, validate_args: bool
) -> LinearOperator:
    known = loc if loc is not None else None if factor is None else floats(factor)[0]
    if known is None:
        raise ValueError("Cannot infer `event_shape` unless `loc` or `shift` is specified.")
    size = shaping.shape(known)[-1 if loc is not None else -2]
    one = filling.ones([], known.dtype.base_dtype)
    entry = one if multiplier is None else floats(multiplier, one)[0]
    return LinearOperatorScaledIdentity(
        size,
        _invertible(entry, validate_args),
        is_non_singular=True,
        is_self_adjoint=True,
        is_positive_definite=positive,
    )


def _invertible(entries: Tensor, validate_args: bool) -> Tensor:
    if not validate_args:
        return entries
    message = "Singular operator: diagonal contained zero values."
    fine = checks.assert_none_equal(entries, filling.zeros_like(entries), message=message)
    return after([fine], entries)
