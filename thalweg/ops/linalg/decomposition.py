"""Orthogonal decompositions of innermost matrices: QR, singular values, Hermitian eigenvalues."""

from __future__ import annotations

from typing import Any, Literal, overload

import numpy as np

from thalweg.graph import dtypes
from thalweg.graph.convert import convert_to_tensor
from thalweg.graph.likes import TensorLike
from thalweg.graph.node import Node, Tensor
from thalweg.graph.op import Op
from thalweg.graph.scopes import name_scope
from thalweg.graph.shapes import Size, TensorShape, unknown_shape
from thalweg.ops.arrays import diagonal, joining
from thalweg.ops.core import basic, casting, checks, choosing, filling, shaping
from thalweg.ops.linalg import linalg, matmul
from thalweg.ops.linalg.linalg import TYPES
from thalweg.ops.linalg.matmul import adjoint_of
from thalweg.ops.math import arithmetic, compare, complexes, reduce
from thalweg.platform import blas
from thalweg.platform.arrays import Array
from thalweg.public import public


class Qr(Op):
    """x = q r, with orthonormal columns in q and r upper triangular"""

    signature = f"input: T -> q: T, r: T; T: {TYPES}"
    host_only = True
    full_matrices: bool = False

    def shape(self, input: Tensor) -> list[TensorShape]:
        sizes = linalg.matrix_sizes(input)
        if sizes is None:
            return [unknown_shape(), unknown_shape()]
        batch, (rows, columns) = sizes[:-2], sizes[-2:]
        inner = rows if self.full_matrices else smaller(rows, columns)
        return [TensorShape.of((*batch, rows, inner)), TensorShape.of((*batch, inner, columns))]

    def numpy(self, input: Array) -> tuple[Array, Array]:
        q, r = blas.qr(input, mode="complete" if self.full_matrices else "reduced")
        return q, r

    def gradient(self, node: Node, dq: Tensor, dr: Tensor) -> Tensor:
        x = node.inputs[0]
        rows, columns = _sizes(x)
        if self.full_matrices:
            x = _required(
                x,
                rows <= columns,
                "The gradient of qr with full_matrices=True is not defined for matrices with more "
                "rows than columns: the last columns of q are arbitrary",
            )
        q, r = node.outputs
        if isinstance(rows, Tensor) or isinstance(columns, Tensor):
            return _wide_qr_gradient(x, q, r, dq, dr, arithmetic.minimum(rows, columns))
        if rows >= columns:
            return _tall_qr_gradient(q, r, dq, dr)
        return _wide_qr_gradient(x, q, r, dq, dr, rows)


def smaller(rows: Size, columns: Size) -> Size:
    """The smaller of two sizes, or None if it is unknown."""
    return None if rows is None or columns is None else min(rows, columns)


def _sizes(x: Tensor) -> tuple[Any, Any]:
    """The numbers of rows and columns, as tensors if they are not static."""
    known, dynamic = (x.shape.sizes or (None, None))[-2:], shaping.shape(x)
    rows, columns = (
        dynamic[axis] if size is None else size for axis, size in zip((-2, -1), known, strict=True)
    )
    return rows, columns


def _required(x: Tensor, condition: Any, message: str) -> Tensor:
    """`x`, if a condition holds: checked at construction if it is static, else in the step."""
    if isinstance(condition, Tensor):
        return basic.with_dependencies([checks.Assert(condition, [message])], x)
    if not condition:
        raise NotImplementedError(message)
    return x


def _tall_qr_gradient(q: Tensor, r: Tensor, dq: Tensor, dr: Tensor) -> Tensor:
    projected = matmul.matmul(q, dq, adjoint_a=True)
    product = matmul.matmul(r, dr, adjoint_b=True)
    skew = projected - linalg.adjoint(projected) + product - linalg.adjoint(product)
    inside = dr + _over_adjoint(linalg.lower_half(skew), r)
    outside = _over_adjoint(dq - matmul.matmul(q, projected), r)
    return matmul.matmul(q, inside) + outside


def _over_adjoint(x: Tensor, r: Tensor) -> Tensor:
    """x r⁻ᴴ for upper triangular r"""
    return linalg.adjoint(linalg.matrix_triangular_solve(r, linalg.adjoint(x), lower=False))


def _wide_qr_gradient(x: Tensor, q: Tensor, r: Tensor, dq: Tensor, dr: Tensor, rows: Any) -> Tensor:
    """[a | b] = q [u | v]: a = q u is square, and b follows from v = qᴴ b.

    If there are fewer columns than rows, b is empty and a is tall.
    """
    b, dv = x[..., rows:], dr[..., rows:]
    da = _tall_qr_gradient(
        q, r[..., :rows], dq + matmul.matmul(b, dv, adjoint_b=True), dr[..., :rows]
    )
    return joining.concat([da, matmul.matmul(q, dv)], -1)


@public("qr", "linalg.qr")
def qr(input: Any, full_matrices: bool = False, name: str | None = None) -> Any:
    """The QR decompositions of the innermost matrices.

    Args:
        input: [..., m, n], float32, float64 or complex.
        full_matrices: whether q is square.
        name: the name of the node.

    Returns:
        A named tuple (q, r) with input = q r.

    Example:
        >>> q, r = tf.qr([[2.0, 0.0], [0.0, 3.0]])
        >>> np.allclose(sess.run(tf.matmul(q, r)), [[2, 0], [0, 3]])
        True
    """
    return Qr(full_matrices=full_matrices)(input, name=name)


class SelfAdjointEigV2(Op):
    """x = v diag(e) vᴴ for Hermitian x, e ascending; only the lower half of x is read"""

    signature = f"input: T -> e: T, v: T; T: {TYPES}"
    host_only = True
    compute_v: bool = True

    def shape(self, input: Tensor) -> list[TensorShape]:
        square = linalg.square_shape(input)
        values = unknown_shape() if square.sizes is None else square[:-1]
        return [values, square if self.compute_v else TensorShape.of((0,))]

    def numpy(self, input: Array) -> tuple[Array, Array]:
        linalg.check_square(input)
        if not self.compute_v:
            values = blas.eigvalsh(input).astype(input.dtype)
            return values, np.zeros(0, input.dtype)
        values, vectors = blas.eigh(input)
        return values.astype(input.dtype), vectors

    def gradient(self, node: Node, de: Tensor, dv: Tensor) -> Tensor:
        e, v = node.outputs if self.compute_v else SelfAdjointEigV2()(node.inputs[0])
        inside = diagonal.matrix_diag(_real_part(de))
        if self.compute_v:
            gaps = shaping.expand_dims(e, -2) - shaping.expand_dims(e, -1)
            inside = inside + reciprocal(gaps) * matmul.matmul(v, dv, adjoint_a=True)
        full = matmul.matmul(v, matmul.matmul(inside, v, adjoint_b=True))
        # The upper half is not read: its gradient is added to the lower half.
        return linalg.lower_half(full + linalg.adjoint(full))


def _real_part(gradient: Tensor) -> Tensor:
    """The gradient of values that are real, also in a complex dtype."""
    if not gradient.dtype.is_complex:
        return gradient
    return casting.cast(complexes.real(gradient), gradient.dtype)


def reciprocal(x: Tensor) -> Tensor:
    """1/x, and 0 at 0: on the diagonal, and for equal values."""
    is_zero = compare.equal(x, filling.zeros_like(x))
    ones = filling.ones_like(x)
    return choosing.where(is_zero, filling.zeros_like(x), ones / choosing.where(is_zero, ones, x))


@public("self_adjoint_eig", "linalg.eigh", "batch_self_adjoint_eig")
def self_adjoint_eig(tensor: TensorLike, name: str | None = None) -> tuple[Tensor, Tensor]:
    """The eigenvalues and eigenvectors of Hermitian innermost matrices.

    Args:
        tensor: [..., n, n]; only the lower triangles are read.
        name: the name of the node.

    Returns:
        (values [..., n], ascending; vectors [..., n, n], as columns).

    Example:
        >>> values, vectors = tf.self_adjoint_eig([[2.0, 0.0], [0.0, 1.0]])
        >>> sess.run(values)
        array([1., 2.], dtype=float32)
    """
    values, vectors = SelfAdjointEigV2()(tensor, name=name)
    return values, vectors


@public("self_adjoint_eigvals", "linalg.eigvalsh", "batch_self_adjoint_eigvals")
def self_adjoint_eigvals(tensor: Any, name: str | None = None) -> Tensor:
    """The eigenvalues, ascending, of Hermitian innermost matrices."""
    return SelfAdjointEigV2(compute_v=False)(tensor, name=name)[0]


class Svd(Op):
    """x = u diag(s) vᴴ, with orthonormal columns in u and v and s descending"""

    signature = f"input: T -> s: T, u: T, v: T; T: {TYPES}"
    host_only = True
    compute_uv: bool = True
    full_matrices: bool = False

    def shape(self, input: Tensor) -> list[TensorShape]:
        sizes = linalg.matrix_sizes(input)
        if sizes is None:
            return [unknown_shape()] * 3
        batch, (rows, columns) = sizes[:-2], sizes[-2:]
        inner = smaller(rows, columns)
        values = TensorShape.of((*batch, inner))
        if not self.compute_uv:
            return [values, TensorShape.of((0,)), TensorShape.of((0,))]
        left, right = (rows, columns) if self.full_matrices else (inner, inner)
        return [
            values,
            TensorShape.of((*batch, rows, left)),
            TensorShape.of((*batch, columns, right)),
        ]

    def numpy(self, input: Array) -> tuple[Array, Array, Array]:
        if not self.compute_uv:
            nothing = np.zeros(0, input.dtype)
            values = blas.svd(input, compute_uv=False)
            return values.astype(input.dtype), nothing, nothing
        u, s, vh = blas.svd(input, full_matrices=self.full_matrices)
        return s.astype(input.dtype), u, adjoint_of(vh)

    def gradient(self, node: Node, ds: Tensor, du: Tensor, dv: Tensor) -> Tensor:
        if not self.compute_uv:
            s, u, v = Svd()(node.inputs[0])
            return _from_values(u, v, ds)
        s, u, v = node.outputs
        if self.full_matrices:
            rows, columns = _sizes(node.inputs[0])
            s = _required(
                s,
                (rows <= columns) & (columns <= rows),
                "The gradient of svd with full_matrices=True is defined for square matrices alone: "
                "some of the singular vectors are arbitrary",
            )
        return _from_values(u, v, ds) + _from_vectors(s, u, v, du, dv)


def _from_values(u: Tensor, v: Tensor, ds: Tensor) -> Tensor:
    return matmul.matmul(u * shaping.expand_dims(_real_part(ds), -2), v, adjoint_b=True)


def _from_vectors(s: Tensor, u: Tensor, v: Tensor, du: Tensor, dv: Tensor) -> Tensor:
    """u (F∘(uᴴdu - duᴴu) S + S F∘(vᴴdv - dvᴴv)) vᴴ + the parts outside of the spans of u and v."""
    across, down = shaping.expand_dims(s, -2), shaping.expand_dims(s, -1)
    inverse_gaps = reciprocal(across * across - down * down)
    left, right = matmul.matmul(u, du, adjoint_a=True), matmul.matmul(v, dv, adjoint_a=True)
    inside = inverse_gaps * (left - linalg.adjoint(left)) * across
    inside = inside + down * inverse_gaps * (right - linalg.adjoint(right))
    if s.dtype.is_complex:
        inside = inside + _phases(right) * reciprocal(across)
    total = matmul.matmul(matmul.matmul(u, inside), v, adjoint_b=True)
    beside = (du - matmul.matmul(u, left)) * reciprocal(across)
    below = (dv - matmul.matmul(v, right)) * reciprocal(across)
    return (
        total + matmul.matmul(beside, v, adjoint_b=True) + matmul.matmul(u, below, adjoint_b=True)
    )


def _phases(right: Tensor) -> Tensor:
    """The gauge freedom of complex singular vectors: ½ diag(rᴴ - r)."""
    line = diagonal.matrix_diag_part(right)
    return diagonal.matrix_diag((complexes.conj(line) - line) * 0.5)


@overload
def svd(  # pyright: ignore[reportOverlappingOverload] - the second is for a value not known
    tensor: TensorLike,
    full_matrices: bool = False,
    *,
    compute_uv: Literal[False],
    name: str | None = None,
) -> Tensor: ...
@overload
def svd(
    tensor: TensorLike,
    full_matrices: bool = False,
    compute_uv: bool = True,
    name: str | None = None,
) -> tuple[Tensor, Tensor, Tensor]: ...
@public("svd", "linalg.svd", "batch_svd")
def svd(
    tensor: TensorLike,
    full_matrices: bool = False,
    compute_uv: bool = True,
    name: str | None = None,
) -> Tensor | tuple[Tensor, Tensor, Tensor]:
    """The singular value decomposition of the innermost matrices.

    Args:
        tensor: [..., m, n], float32, float64 or complex.
        full_matrices: whether u and v are square.
        compute_uv: False returns only the singular values.
        name: the name of the node.

    Returns:
        (s, u, v), or s: singular values, largest first, and the vectors as columns.

    Example:
        >>> s, u, v = tf.svd(tf.constant([[3.0, 0.0], [0.0, 4.0]]))
        >>> sess.run(s)
        array([4., 3.], dtype=float32)
    """
    op = Svd(compute_uv=compute_uv, full_matrices=full_matrices)
    s, u, v = op(tensor, name=name)
    values = complexes.real(s) if s.dtype.is_complex else s
    return (values, u, v) if compute_uv else values


@public("linalg.matrix_rank")
def matrix_rank(
    a: Any, tol: Any = None, validate_args: bool = False, name: str | None = None
) -> Tensor:
    """The numbers of singular values of the innermost matrices above `tol`."""
    with name_scope(name, "matrix_rank", [a, tol]):
        matrices = convert_to_tensor(a, name="a")
        s = svd(matrices, compute_uv=False)
        above = s > (_cutoff(matrices, s) if tol is None else tol)
        return reduce.reduce_sum(casting.cast(above, dtypes.int32), -1)


@public("linalg.pinv")
def pinv(a: Any, rcond: Any = None, validate_args: bool = False, name: str | None = None) -> Tensor:
    """The Moore-Penrose pseudo-inverses; singular values up to `rcond` of the largest are zero."""
    with name_scope(name, "pinv", [a, rcond]):
        matrices = convert_to_tensor(a, name="a")
        s, u, v = svd(matrices)
        largest = reduce.reduce_max(s, -1, keepdims=True)
        least = _cutoff(matrices, s) if rcond is None else _as_column(rcond, s) * largest
        kept = casting.cast(s > least, s.dtype) * s
        scaled = v * casting.cast(shaping.expand_dims(reciprocal(kept), -2), v.dtype)
        return matmul.matmul(scaled, u, adjoint_b=True)


def _as_column(rcond: Any, s: Tensor) -> Tensor:
    return shaping.expand_dims(convert_to_tensor(rcond, s.dtype.base_dtype), -1)


def _cutoff(matrices: Tensor, s: Tensor) -> Tensor:
    """The largest singular value, times the larger size, times the machine epsilon."""
    size = casting.cast(reduce.reduce_max(shaping.shape(matrices)[-2:]), s.dtype)
    precision = float(np.finfo(s.dtype.as_numpy_dtype).eps)
    return reduce.reduce_max(s, -1, keepdims=True) * size * precision
