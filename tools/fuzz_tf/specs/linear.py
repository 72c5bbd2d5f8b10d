"""Matrices: products, factorisations, solvers, Fourier transforms."""

from __future__ import annotations

from typing import Any

import numpy as np

from tools.fuzz_tf.draw import Draw, spec


@spec("matmul linalg.matmul", ulps=512)
def _matmul(draw: Draw) -> None:
    batch = draw.shape(0, 2, low=1, high=3)
    n, k, m = (draw.length(0) for _ in range(3))
    dtype = draw.choice(draw.floating(), draw.floating(), "int32", "complex64")
    flags = {f"transpose_{s}": True for s in "ab" if draw.chance(0.3)}
    one = (*batch, k, n) if "transpose_a" in flags else (*batch, n, k)
    two = (*batch, m, k) if "transpose_b" in flags else (*batch, k, m)
    draw.call(draw.tensor(dtype, one), draw.tensor(dtype, two), **flags)


@spec("linalg.matvec", ulps=512)
def _matvec(draw: Draw) -> None:
    batch, n, k = draw.shape(0, 1, low=1, high=3), draw.length(0), draw.length(0)
    dtype = draw.floating()
    draw.call(draw.tensor(dtype, (*batch, n, k)), draw.tensor(dtype, (*batch, k)))


@spec("sparse_matmul", ulps=512)
def _sparse_matmul(draw: Draw) -> None:
    n, k, m = (draw.length() for _ in range(3))
    draw.call(
        draw.tensor("float32", (n, k), "ties"),
        draw.tensor("float32", (k, m)),
        a_is_sparse=draw.chance(0.5),
    )


@spec("tensordot", ulps=512)
def _tensordot(draw: Draw) -> None:
    shared = draw.shape(0, 2, low=1, high=6)
    one, two, dtype = draw.shape(0, 2, high=6), draw.shape(0, 2, high=6), draw.floating()
    if draw.chance(0.5):
        draw.call(draw.tensor(dtype, one + shared), draw.tensor(dtype, shared + two), len(shared))
        return
    axes = [
        [len(one) + i for i in range(len(shared))],
        [draw.choice(i, i - len(shared) - len(two)) for i in range(len(shared))],
    ]
    draw.call(draw.tensor(dtype, one + shared), draw.tensor(dtype, shared + two), axes)


@spec("einsum", ulps=512)
def _einsum(draw: Draw) -> None:
    sizes = {letter: draw.integer(1, 5) for letter in "abijk"}
    equation = draw.choice(
        "ij,jk->ik",
        "ij,jk",
        "bij,bjk->bik",
        "ij->ji",
        "ij,ij->",
        "i,j->ij",
        "bij,jk->bik",
        "bij->b",
        "abi,abj->abij",
        "ij,ik->jk",
        "bi,bi->b",
        "ab,bi,ij->aj",
        "bij,bik->bjk",
        "ijk->kij",
    )
    terms = equation.split("->")[0].split(",")
    dtype = draw.floating()
    draw.call(equation, *(draw.tensor(dtype, [sizes[c] for c in term]) for term in terms))


@spec("cross linalg.cross", ulps=64)
def _cross(draw: Draw) -> None:
    shape, dtype = (*draw.shape(0, 2), 3), draw.numeric()
    draw.call(draw.tensor(dtype, shape), draw.tensor(dtype, shape))


def square(draw: Draw, dtype: str, symmetric: bool = False) -> np.ndarray[Any, Any]:
    """Well conditioned square matrices, symmetric positive ones if asked."""
    n, batch = draw.integer(1, 5), draw.shape(0, 1, low=1, high=3)
    made = draw.rng.standard_normal((*batch, n, n))
    if dtype.startswith("complex"):
        made = made + 1j * draw.rng.standard_normal(made.shape)
    if symmetric:
        made = made @ np.conj(np.swapaxes(made, -1, -2))
    return made + (n + 2) * np.eye(n)


_MATRICES = ("float32", "float64", "float64", "complex128")


@spec("cholesky linalg.cholesky", ulps=4096)
def _cholesky(draw: Draw) -> None:
    dtype = draw.choice("float32", "float64")
    draw.call(draw.given(square(draw, dtype, True), dtype))


@spec("matrix_inverse linalg.inv matrix_determinant linalg.det", ulps=4096)
def _inverse(draw: Draw) -> None:
    dtype = draw.choice(*_MATRICES)
    draw.call(draw.given(square(draw, dtype), dtype))


@spec("linalg.slogdet linalg.logdet", ulps=4096)
def _slogdet(draw: Draw) -> None:
    dtype = draw.choice("float32", "float64")
    draw.call(draw.given(square(draw, dtype, draw.function.endswith("logdet")), dtype))


@spec("linalg.expm", ulps=1 << 14)
def _expm(draw: Draw) -> None:
    dtype = draw.choice("float32", "float64")
    draw.call(draw.given(square(draw, dtype) / 4, dtype))


@spec("linalg.sqrtm matrix_square_root", ulps=1 << 14)
def _sqrtm(draw: Draw) -> None:
    dtype = draw.choice("float32", "float64")
    draw.call(draw.given(square(draw, dtype, True), dtype))


@spec("self_adjoint_eigvals linalg.eigvalsh", ulps=4096)
def _eigvals(draw: Draw) -> None:
    dtype = draw.choice("float32", "float64")
    draw.call(draw.given(square(draw, dtype, True), dtype))


@spec("self_adjoint_eig linalg.eigh", ulps=4096)
def _eig(draw: Draw) -> None:
    dtype = draw.choice("float32", "float64")
    draw.line(f"e, v = {draw.calling(draw.given(square(draw, dtype, True), dtype))}")
    draw.line("[e, tf.abs(v)]")  # the signs of the vectors are free


@spec("svd linalg.svd", ulps=4096)
def _svd(draw: Draw) -> None:
    dtype = draw.choice("float32", "float64")
    x = draw.tensor(dtype, draw.shape(2, 3, low=1, high=6))
    if draw.chance(0.5):
        draw.call(x, compute_uv=False)
        return
    draw.line(f"s, u, v = {draw.calling(x)}")
    draw.line("[s, tf.abs(u), tf.abs(v)]")


@spec("qr linalg.qr", ulps=4096)
def _qr(draw: Draw) -> None:
    dtype = draw.choice("float32", "float64")
    draw.call(draw.tensor(dtype, draw.shape(2, 3, low=1, high=6)), full_matrices=draw.chance(0.3))


@spec("matrix_solve linalg.solve", ulps=1 << 14)
def _solve(draw: Draw) -> None:
    dtype = draw.choice(*_MATRICES)
    a = square(draw, dtype)
    more = {"adjoint": True} if draw.chance(0.3) else {}
    draw.call(draw.given(a, dtype), draw.tensor(dtype, (*a.shape[:-1], draw.integer(0, 3))), **more)


@spec("matrix_triangular_solve linalg.triangular_solve", ulps=1 << 14)
def _triangular(draw: Draw) -> None:
    dtype = draw.choice(*_MATRICES)
    a = square(draw, dtype)
    right = draw.tensor(dtype, (*a.shape[:-1], draw.integer(1, 3)))
    draw.call(draw.given(a, dtype), right, lower=draw.chance(0.5), adjoint=draw.chance(0.3))


@spec("cholesky_solve", ulps=1 << 14)
def _cholesky_solve(draw: Draw) -> None:
    dtype = draw.choice("float32", "float64")
    a = np.tril(square(draw, dtype))
    draw.call(draw.given(a, dtype), draw.tensor(dtype, (*a.shape[:-1], draw.integer(1, 3))))


@spec("matrix_solve_ls linalg.lstsq", ulps=1 << 16)
def _solve_ls(draw: Draw) -> None:
    rows, columns = draw.integer(1, 6), draw.integer(1, 4)
    dtype = draw.choice("float64", "float32")
    a = draw.tensor(dtype, (rows, columns))
    draw.call(a, draw.tensor(dtype, (rows, 2)), l2_regularizer=draw.choice(0.0, 0.5))


@spec("linalg.pinv", ulps=1 << 16)
def _pinv(draw: Draw) -> None:
    draw.call(draw.tensor("float64", draw.shape(2, 3, low=1, high=5)))


@spec("linalg.matrix_rank", ulps=4096)
def _matrix_rank(draw: Draw) -> None:
    draw.call(draw.tensor("float64", draw.shape(2, 3, low=1, high=5), "ties"))


@spec("fft ifft fft2d ifft2d fft3d ifft3d", ulps=1024)
def _fft(draw: Draw) -> None:
    rank = int(draw.function[-2]) if draw.function.endswith("d") else 1
    shape = draw.shape(rank, rank + 1, low=1, high=9)
    draw.call(draw.tensor(draw.choice("complex64", "complex128"), shape))


@spec("signal.rfft signal.rfft2d signal.rfft3d", ulps=1024)
def _rfft(draw: Draw) -> None:
    rank = int(draw.function[-2]) if draw.function.endswith("d") else 1
    shape = draw.shape(rank, rank + 1, low=1, high=9)
    more = {"fft_length": [draw.integer(1, 9) for _ in range(rank)]} if draw.chance(0.4) else {}
    draw.call(draw.tensor(draw.choice("float32", "float64"), shape), **more)


@spec("signal.irfft signal.irfft2d", ulps=1024)
def _irfft(draw: Draw) -> None:
    rank = int(draw.function[-2]) if draw.function.endswith("d") else 1
    shape = draw.shape(rank, rank + 1, low=2, high=9)
    more = {"fft_length": [draw.integer(1, 9) for _ in range(rank)]} if draw.chance(0.4) else {}
    draw.call(draw.tensor(draw.choice("complex64", "complex128"), shape), **more)


@spec("signal.dct signal.idct", ulps=1024)
def _dct(draw: Draw) -> None:
    shape = draw.shape(1, 2, low=2, high=9)
    draw.call(
        draw.tensor(draw.choice("float32", "float64"), shape),
        type=draw.choice(1, 2, 3),
        norm=draw.choice(None, "ortho"),
    )


@spec("nn.xw_plus_b nn.relu_layer", ulps=512)
def _layer(draw: Draw) -> None:
    n, k, m, dtype = draw.length(), draw.length(), draw.length(), draw.floating()
    draw.call(*(draw.tensor(dtype, s) for s in ((n, k), (k, m), (m,))))


@spec("nn.bias_add")
def _bias_add(draw: Draw) -> None:
    shape, dtype = draw.shape(2, 5, low=1), draw.numeric()
    form = draw.choice(None, "NHWC", "NCHW")
    depth = shape[1] if form == "NCHW" else shape[-1]
    more = {"data_format": form} if form else {}
    draw.call(draw.tensor(dtype, shape), draw.tensor(dtype, (depth,)), **more)


@spec("hessians:scalar", ulps=512)
def _hessians(draw: Draw) -> None:
    x = draw.tensor(draw.choice("float32", "float64"), (draw.integer(1, 4),))
    function = draw.choice("exp", "square", "tanh", "sigmoid")
    draw.line(f"tf.hessians(tf.reduce_sum(tf.{function}({x}) * {x}), {x})")
