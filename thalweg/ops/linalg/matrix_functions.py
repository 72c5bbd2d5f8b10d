"""Functions of innermost matrices: exponential, logarithm and square root.

Each is computed in double precision by one rational approximation after scaling; all share one
gradient, since the derivative of f at x along d is the upper right block of f([[x, d], [0, x]]).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, ClassVar

import numpy as np

from thalweg.graph.node import Node, Tensor
from thalweg.graph.op import Op
from thalweg.graph.shapes import TensorShape
from thalweg.ops.arrays import joining
from thalweg.ops.core import filling, shaping
from thalweg.ops.linalg import linalg
from thalweg.platform import blas
from thalweg.platform.arrays import Array
from thalweg.public import public


class MatrixFunction(Op, abstract=True):
    """y = f(x)"""

    signature = f"input: T -> output: T; T: {linalg.TYPES}"
    host_only = True
    function: ClassVar[Callable[[Array], Array]]  # of a tensor of doubles

    def shape(self, input: Tensor) -> TensorShape:
        return linalg.square_shape(input)

    def numpy(self, input: Array) -> Array:
        linalg.check_square(input)
        if not input.size:
            return input.copy()
        wide = input.astype(np.complex128 if np.iscomplexobj(input) else np.float64)
        return type(self).function(wide).astype(input.dtype)

    def gradient(self, node: Node, dy: Tensor) -> Tensor:
        x = linalg.adjoint(node.inputs[0])
        above = joining.concat([x, dy], -1)
        below = joining.concat([filling.zeros_like(x), x], -1)
        whole = type(self)()(joining.concat([above, below], -2))
        side = shaping.shape(x)[-1]
        block = whole[..., :side, side:]
        block.set_shape(x.shape)
        return block


def _identity(x: Array) -> Array:
    return np.broadcast_to(np.eye(x.shape[-1], dtype=x.dtype), x.shape)


# The [13/13] Padé approximant of the exponential is exact to double precision in this radius.
_PADE = np.cumprod([1.0, *((13 - k) / ((26 - k) * (k + 1)) for k in range(13))])
_PADE_RADIUS = 5.37


def _exponential(x: Array) -> Array:
    """exp(x) = exp(x / 2ˢ) squared s times"""
    largest = float(np.max(np.abs(x).sum(-2)))
    squarings = max(0, int(np.ceil(np.log2(max(largest, 1e-300) / _PADE_RADIUS))))
    result = _pade(x / 2.0**squarings)
    for _ in range(squarings):
        result = blas.matmul(result, result)
    return result


def _pade(x: Array) -> Array:
    """p(x) / p(-x), from the even and the odd part of p"""
    square, power = blas.matmul(x, x), _identity(x)
    even, odd = np.zeros_like(x), np.zeros_like(x)
    for first, second in zip(_PADE[::2], _PADE[1::2], strict=True):
        even, odd = even + first * power, odd + second * power
        power = blas.matmul(power, square)
    odd = blas.matmul(x, odd)
    return blas.solve(even - odd, even + odd)


class MatrixExponential(MatrixFunction):
    """y = 1 + x + x²/2 + x³/6 + …"""

    function = staticmethod(_exponential)


@public("linalg.expm")
def expm(input: Any, name: str | None = None) -> Tensor:
    """The exponentials of the innermost matrices."""
    return MatrixExponential()(input, name=name)


_MAX_ITERATIONS = 100


def _square_root(x: Array) -> Array:
    """Newton's iteration on the root and its inverse; by eigenvectors if that fails."""
    root, inverse = x, _identity(x)
    for _ in range(_MAX_ITERATIONS):
        try:
            halves = 0.5 * (root + blas.inv(inverse)), 0.5 * (inverse + blas.inv(root))
        except np.linalg.LinAlgError:
            break
        change = np.max(np.abs(halves[0] - root))
        root, inverse = halves
        if not change > 1e-14 * np.max(np.abs(root)):
            break
    return root if np.allclose(blas.matmul(root, root), x, rtol=1e-8) else _root_by_eigenvectors(x)


def _root_by_eigenvectors(x: Array) -> Array:
    values, vectors = blas.eig(x)
    scaled = vectors * np.sqrt(values.astype(np.complex128))[..., None, :]
    root = blas.matmul(scaled, blas.inv(vectors))
    if np.iscomplexobj(x):
        return root
    if not np.allclose(root.imag, 0):
        raise ValueError("The matrix has no real square root; cast it to a complex dtype first")
    return root.real


class MatrixSquareRoot(MatrixFunction):
    """The principal y with y y = x"""

    function = staticmethod(_square_root)


@public("matrix_square_root", "linalg.sqrtm")
def matrix_square_root(input: Any, name: str | None = None) -> Tensor:
    """The principal square roots of the innermost matrices."""
    return MatrixSquareRoot()(input, name=name)


def _logarithm(x: Array) -> Array:
    """log(x) = 2ˢ log(x^(1/2ˢ)), near the identity by quadrature of ∫ (x-1) / (1 + t(x-1)) dt"""
    roots, one = 0, _identity(x)
    while np.max(np.abs(x - one)) > 0.25 and roots < _MAX_ITERATIONS:
        x, roots = _square_root(x), roots + 1
    distance, total = x - one, np.zeros_like(x)
    for node, weight in zip(*np.polynomial.legendre.leggauss(12), strict=True):
        place = 0.5 * (node + 1)
        total = total + 0.5 * weight * blas.solve(one + place * distance, distance)
    return total * 2.0**roots


class MatrixLogarithm(MatrixFunction):
    """The principal y with exp(y) = x"""

    signature = "input: T -> output: T; T: complex"
    function = staticmethod(_logarithm)


@public("linalg.logm")
def logm(input: Any, name: str | None = None) -> Tensor:
    """The principal logarithms of the innermost complex matrices."""
    return MatrixLogarithm()(input, name=name)
