"""Products of matrices, of batches that broadcast, and of mostly-zero matrices."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from thalweg.graph import dtypes
from thalweg.graph.convert import convert_to_tensor
from thalweg.graph.node import Node, Tensor
from thalweg.graph.op import Op
from thalweg.graph.scopes import name_scope
from thalweg.graph.shapes import Size, TensorShape, broadcast_shapes, unknown_shape, vector
from thalweg.ir import loop
from thalweg.ir.expr import Expr
from thalweg.ir.loop import IndexTuple, Operand
from thalweg.ops.core import broadcast, casting, shaping
from thalweg.ops.core.overloads import overload
from thalweg.ops.math import complexes, reduce
from thalweg.platform import blas
from thalweg.platform.arrays import Array
from thalweg.platform.dtype_traits import widened
from thalweg.public import public

#: (a, b, flip a, flip b) -> the product of two tensors, each flipped (transposed) or not
Multiply = Callable[[Tensor, Tensor, bool, bool], Tensor]


class MatMul(Op):
    """c = a b, of two matrices, either transposed first"""

    signature = "a: T, b: T -> product: T; T: floating|int32|int64|complex"
    transpose_a: bool = False
    transpose_b: bool = False

    def shape(self, a: Tensor, b: Tensor) -> TensorShape:
        return _product_shape(a, b, self.transpose_a, self.transpose_b)

    def numpy(self, a: Array, b: Array) -> Array:
        return _product(a.T if self.transpose_a else a, b.T if self.transpose_b else b)

    def loop(self, at: IndexTuple, a: Operand, b: Operand) -> Expr:
        return _product_element(at, a, b, self.transpose_a, self.transpose_b)

    def gradient(self, node: Node, dc: Tensor) -> list[Tensor]:
        a, b = (conjugate(tensor) for tensor in node.inputs)
        return _gradients(_transposed_product, a, b, dc, self.transpose_a, self.transpose_b)


def _product_element(
    at: IndexTuple,
    a: Operand,
    b: Operand,
    flip_a: bool,
    flip_b: bool,
    entry: Callable[[Expr, bool], Expr] = lambda x, flipped: x,
) -> Expr:
    """An element of a product of innermost matrices; `entry` maps each factor."""
    *batch, row, column = at

    def product(k: Expr) -> Expr:
        left = _element(a, batch, *((k, row) if flip_a else (row, k)))
        right = _element(b, batch, *((column, k) if flip_b else (k, column)))
        return entry(left, flip_a) * entry(right, flip_b)

    return loop.reduce("sum", [a.shape[-2 if flip_a else -1]], product)


def _element(x: Operand, batch: list[Expr], row: Expr, column: Expr) -> Expr:
    """An entry of a matrix in the broadcast batch."""
    own = zip(x.shape[:-2], batch[len(batch) + 2 - x.rank :], strict=True)
    return x[(*(0 if size == 1 else i for size, i in own), row, column)]


def _transposed_product(a: Tensor, b: Tensor, transpose_a: bool, transpose_b: bool) -> Tensor:
    return MatMul(transpose_a=transpose_a, transpose_b=transpose_b)(a, b)


def _gradients(
    multiply: Multiply, a: Tensor, b: Tensor, dc: Tensor, flip_a: bool, flip_b: bool
) -> list[Tensor]:
    """[da, db] of c = flip(a) flip(b), as products that flip only by flags."""
    da = multiply(b, dc, flip_b, True) if flip_a else multiply(dc, b, False, not flip_b)
    db = multiply(dc, a, True, flip_a) if flip_b else multiply(a, dc, not flip_a, False)
    return [da, db]


def _product(a: Array, b: Array) -> Array:
    """a b; narrow floats are summed in float32."""
    if a.shape[-1] != b.shape[-2]:
        raise ValueError(f"Matrix size-incompatible: In[0]: {a.shape}, In[1]: {b.shape}")
    return blas.matmul(widened(a), widened(b)).astype(a.dtype, copy=False)


def conjugate(x: Tensor) -> Tensor:
    """The complex conjugate; of a real tensor, itself."""
    return complexes.conj(x) if x.dtype.is_complex else x


def _product_shape(a: Tensor, b: Tensor, flip_a: bool, flip_b: bool) -> TensorShape:
    rows, inner = _matrix_sizes(a, flip_a)
    inner_too, columns = _matrix_sizes(b, flip_b)
    _check_inner(inner, inner_too)
    return TensorShape.of((rows, columns))


def _matrix_sizes(tensor: Tensor, flip: bool) -> tuple[Size, Size]:
    sizes = (None, None) if tensor.shape.sizes is None else tensor.shape.sizes
    if len(sizes) != 2:
        raise ValueError(f"Shape must be rank 2 but is rank {len(sizes)}")
    return (sizes[1], sizes[0]) if flip else (sizes[0], sizes[1])


def _check_inner(left: Size, right: Size) -> None:
    if left is not None and right is not None and left != right:
        raise ValueError(f"Dimensions must be equal, but are {left} and {right}")


@public("matmul", "linalg.matmul")
def matmul(
    a: Any,
    b: Any,
    transpose_a: bool = False,
    transpose_b: bool = False,
    adjoint_a: bool = False,
    adjoint_b: bool = False,
    a_is_sparse: bool = False,
    b_is_sparse: bool = False,
    name: str | None = None,
) -> Tensor:
    """The matrix product of `a` and `b`; of higher ranks, of their innermost matrices.

    Args:
        a: a tensor [..., n, k] of a floating, complex or integer dtype.
        b: a tensor [..., k, m] of the same dtype; leading axes broadcast.
        transpose_a, transpose_b: use the matrices with rows and columns exchanged.
        adjoint_a, adjoint_b: use the conjugate transpose; not together with the transpose.
        a_is_sparse, b_is_sparse: hints that many elements are zero.
        name: the name of the node.

    Returns:
        A tensor [..., n, m] of the same dtype.

    Raises:
        ValueError: if the inner sizes differ.

    Example:
        >>> a = tf.constant([[1.0, 2.0], [3.0, 4.0]])
        >>> sess.run(tf.matmul(a, [[1.0], [10.0]]))
        array([[21.],
               [43.]], dtype=float32)
    """
    if (transpose_a and adjoint_a) or (transpose_b and adjoint_b):
        which = "a" if transpose_a and adjoint_a else "b"
        raise ValueError(f"Only one of transpose_{which} and adjoint_{which} can be True.")
    flip_a, flip_b = transpose_a or adjoint_a, transpose_b or adjoint_b
    with name_scope(name, "MatMul", [a, b]) as scope:
        left, right = _operands(a, b)
        mixed = left.dtype.base_dtype is not right.dtype.base_dtype
        sparse = (a_is_sparse or b_is_sparse or mixed) and _short(left, right)
        if not sparse and any(t.shape.rank is None or t.shape.rank > 2 for t in (left, right)):
            left, right = _conjugated(left, transpose_a), _conjugated(right, transpose_b)
            return BatchMatMulV2(adj_x=flip_a, adj_y=flip_b)(left, right, name=scope)
        left, right = _conjugated(left, adjoint_a), _conjugated(right, adjoint_b)
        if sparse:
            flags = a_is_sparse, b_is_sparse
            return sparse_matmul(left, right, flip_a, flip_b, *flags, name=scope)
        return MatMul(transpose_a=flip_a, transpose_b=flip_b)(left, right, name=scope)


def _conjugated(x: Tensor, wanted: bool) -> Tensor:
    return conjugate(x) if wanted else x


def _operands(a: Any, b: Any) -> tuple[Tensor, Tensor]:
    """Both operands as tensors; a Python value gets the dtype of the other."""
    if isinstance(b, Tensor) and not isinstance(a, Tensor):
        return convert_to_tensor(a, preferred_dtype=b.dtype.base_dtype, name="a"), b
    left = convert_to_tensor(a, name="a")
    return left, convert_to_tensor(b, preferred_dtype=left.dtype.base_dtype, name="b")


overload("matmul", matmul)


@public("linalg.matvec")
def matvec(
    a: Any,
    b: Any,
    transpose_a: bool = False,
    adjoint_a: bool = False,
    a_is_sparse: bool = False,
    b_is_sparse: bool = False,
    name: str | None = None,
) -> Tensor:
    """The products of the innermost matrices of `a` and the innermost vectors of `b`."""
    with name_scope(name, "MatVec", [a, b]):
        left, right = _operands(a, b)
        product = matmul(
            left,
            shaping.expand_dims(right, -1),
            transpose_a=transpose_a,
            adjoint_a=adjoint_a,
            a_is_sparse=a_is_sparse,
            b_is_sparse=b_is_sparse,
        )
        return shaping.squeeze(product, [-1])


class BatchMatMulV2(Op):
    """c[…] = x[…] y[…], of innermost matrices, either adjoint first; the batches broadcast"""

    signature = "x: T, y: T -> output: T; T: floating|int32|int64|complex"
    adj_x: bool = False
    adj_y: bool = False

    def shape(self, x: Tensor, y: Tensor) -> TensorShape:
        batch_x, rows, inner = _batch_sizes(x, self.adj_x)
        batch_y, inner_too, columns = _batch_sizes(y, self.adj_y)
        _check_inner(inner, inner_too)
        batch = broadcast_shapes(batch_x, batch_y)
        return batch.concatenate(TensorShape.of((rows, columns)))

    def numpy(self, x: Array, y: Array) -> Array:
        if np.ndim(x) < 2 or np.ndim(y) < 2:
            raise ValueError(f"In[0] and In[1] must be matrices: {np.shape(x)} and {np.shape(y)}")
        return _product(adjoint_of(x) if self.adj_x else x, adjoint_of(y) if self.adj_y else y)

    def loop(self, at: IndexTuple, x: Operand, y: Operand) -> Expr:
        def entry(value: Expr, flipped: bool) -> Expr:
            return value.conj() if flipped and x.dtype.kind == "c" else value

        return _product_element(at, x, y, self.adj_x, self.adj_y, entry)

    def gradient(self, node: Node, dc: Tensor) -> list[Tensor]:
        x, y = node.inputs
        dx, dy = _gradients(_adjoint_product, x, y, dc, self.adj_x, self.adj_y)
        return _sum_batches(x, y, dx, dy)


def adjoint_of(array: Array) -> Array:
    """The conjugate transposes of innermost matrices."""
    flipped = np.swapaxes(array, -1, -2)
    return flipped.conj() if np.iscomplexobj(array) else flipped


def _adjoint_product(x: Tensor, y: Tensor, adj_x: bool, adj_y: bool) -> Tensor:
    return BatchMatMulV2(adj_x=adj_x, adj_y=adj_y)(x, y)


def _batch_sizes(tensor: Tensor, flip: bool) -> tuple[TensorShape, Size, Size]:
    sizes = tensor.shape.sizes
    if sizes is None:
        return unknown_shape(), None, None
    if len(sizes) < 2:
        raise ValueError(f"Shape must be at least rank 2 but is rank {len(sizes)}")
    rows, columns = (sizes[-1], sizes[-2]) if flip else (sizes[-2], sizes[-1])
    return TensorShape.of(sizes[:-2]), rows, columns


def _sum_batches(x: Tensor, y: Tensor, dx: Tensor, dy: Tensor) -> list[Tensor]:
    """Gradients of the broadcast batches, summed to the batches of the inputs."""
    batch_x, batch_y = x.shape[:-2], y.shape[:-2]
    if batch_x.is_fully_defined() and batch_x.sizes == batch_y.sizes:
        return [dx, dy]
    shape_x, shape_y = shaping.shape(x), shaping.shape(y)
    axes_x, axes_y = BatchGradientArgs()(shape_x, shape_y)
    return [
        shaping.reshape(reduce.reduce_sum(dx, axes_x), shape_x),
        shaping.reshape(reduce.reduce_sum(dy, axes_y), shape_y),
    ]


class BatchGradientArgs(Op):
    """The batch axes that the gradients of a product of broadcast batches are summed over."""

    private = True
    signature = "shape_x: I, shape_y: I -> axes_x: I, axes_y: I; I: index"
    of_shapes = True
    not_differentiable = True

    def shape(self, shape_x: Tensor, shape_y: Tensor) -> list[TensorShape]:
        return [vector(None), vector(None)]

    def numpy(self, shape_x: Array, shape_y: Array) -> tuple[Array, Array]:
        mine, theirs = tuple(shape_x[:-2].tolist()), tuple(shape_y[:-2].tolist())
        axes = broadcast.summed_axes(mine, theirs), broadcast.summed_axes(theirs, mine)
        return np.array(axes[0], shape_x.dtype), np.array(axes[1], shape_x.dtype)


@public("batch_matmul")
def batch_matmul(
    x: Any, y: Any, adj_x: bool = False, adj_y: bool = False, name: str | None = None
) -> Tensor:
    """The products of the innermost matrices of `x` and `y`, either adjoint first.

    Args:
        x, y: tensors [..., rows, columns] whose leading axes broadcast.
        adj_x, adj_y: whether its matrices are conjugated and transposed first.
        name: the name of the node.

    Returns:
        A tensor of matrices.

    Example:
        >>> x = tf.constant([[[1.0, 2.0]], [[3.0, 4.0]]])
        >>> sess.run(tf.batch_matmul(x, x, adj_y=True)).ravel()
        array([ 5., 25.], dtype=float32)
    """
    left, right = _operands(x, y)
    return BatchMatMulV2(adj_x=adj_x, adj_y=adj_y)(left, right, name=name or "BatchMatMul")


class SparseMatMul(Op):
    """c = a b, in float32, where the matrices flagged as sparse are mostly zeros"""

    signature = "a: Ta, b: Tb -> product: float32; Ta: float32|bfloat16, Tb: float32|bfloat16"
    transpose_a: bool = False
    transpose_b: bool = False
    a_is_sparse: bool = False
    b_is_sparse: bool = False

    def shape(self, a: Tensor, b: Tensor) -> TensorShape:
        return _product_shape(a, b, self.transpose_a, self.transpose_b)

    def numpy(self, a: Array, b: Array) -> Array:
        left, right = a.astype(np.float32), b.astype(np.float32)
        return _product(
            left.T if self.transpose_a else left, right.T if self.transpose_b else right
        )

    def loop(self, at: IndexTuple, a: Operand, b: Operand) -> Expr:
        def entry(value: Expr, _: bool) -> Expr:
            return value.cast(np.float32)

        return _product_element(at, a, b, self.transpose_a, self.transpose_b, entry)

    def gradient(self, node: Node, dc: Tensor) -> list[Tensor]:
        a, b = node.inputs
        sparse = {a: self.a_is_sparse, b: self.b_is_sparse}

        def multiply(x: Tensor, y: Tensor, flip_x: bool, flip_y: bool) -> Tensor:
            return SparseMatMul(
                transpose_a=flip_x,
                transpose_b=flip_y,
                a_is_sparse=sparse.get(x, False),
                b_is_sparse=sparse.get(y, False),
            )(x, y)

        da, db = _gradients(multiply, a, b, dc, self.transpose_a, self.transpose_b)
        return [casting.cast(da, a.dtype), casting.cast(db, b.dtype)]


def _short(a: Tensor, b: Tensor) -> bool:
    """Whether both have dtypes that the product of mostly-zero matrices supports, and may mix."""
    return all(t.dtype.base_dtype in (dtypes.float32, dtypes.bfloat16) for t in (a, b))


@public("sparse_matmul")
def sparse_matmul(
    a: Any,
    b: Any,
    transpose_a: bool = False,
    transpose_b: bool = False,
    a_is_sparse: bool = False,
    b_is_sparse: bool = False,
    name: str | None = None,
) -> Tensor:
    """The product, in float32, of matrices that are mostly zeros."""
    return SparseMatMul(
        transpose_a=transpose_a,
        transpose_b=transpose_b,
        a_is_sparse=a_is_sparse,
        b_is_sparse=b_is_sparse,
    )(a, b, name=name)
