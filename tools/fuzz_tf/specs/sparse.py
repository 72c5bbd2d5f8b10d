"""SparseTensors."""

from __future__ import annotations

import numpy as np

from tools.fuzz_tf.draw import Code, Draw, spec


def sparse(draw: Draw, dtype: str, shape: tuple[int, ...], fill: str = "normal") -> Code:
    """A SparseTensor in order, with about a third of its elements."""
    places = np.argwhere(draw.rng.random(shape) < 0.35)
    index = draw.given(places.reshape(-1, len(shape)), "int64")
    values = draw.tensor(dtype, (len(places),), fill)
    return Code(f"tf.SparseTensor({index}, {values}, {list(shape)})")


def _shape(draw: Draw, least: int = 1, most: int = 3) -> tuple[int, ...]:
    return draw.shape(least, most, low=1, high=6)


@spec("sparse.to_dense sparse_tensor_to_dense")
def _to_dense(draw: Draw) -> None:
    draw.call(sparse(draw, draw.choice(draw.numeric(), "string"), _shape(draw)))


@spec("sparse.reduce_sum sparse.reduce_max", ulps=256)
def _reduce(draw: Draw) -> None:
    shape = _shape(draw)
    draw.call(
        sparse(draw, draw.choice("float32", "float64", "int32"), shape),
        axis=draw.choice(None, draw.axis(len(shape))),
        keepdims=draw.chance(0.4),
    )


@spec("sparse.reduce_sum_sparse sparse.reduce_max_sparse", ulps=256)
def _reduce_sparse(draw: Draw) -> None:
    shape = _shape(draw)
    draw.call(
        sparse(draw, draw.choice("float32", "float64"), shape),
        axis=draw.choice(None, draw.axis(len(shape))),
    )


@spec("sparse.add sparse_add")
def _add(draw: Draw) -> None:
    shape, dtype = _shape(draw), draw.choice("float32", "float64", "int32", "int64")
    other = draw.tensor(dtype, shape) if draw.chance(0.4) else sparse(draw, dtype, shape)
    draw.call(sparse(draw, dtype, shape), other)


@spec("sparse.maximum sparse.minimum")
def _maximum(draw: Draw) -> None:
    shape, dtype = _shape(draw), draw.choice("float32", "float64", "int32")
    draw.call(sparse(draw, dtype, shape), sparse(draw, dtype, shape))


@spec("sparse.concat sparse_concat")
def _concat(draw: Draw) -> None:
    shape, dtype = _shape(draw), draw.choice("float32", "int64", "string")
    axis = draw.axis(len(shape))
    parts = []
    for _ in range(draw.integer(1, 3)):
        part = list(shape)
        part[axis] = draw.integer(1, 4)
        parts.append(sparse(draw, dtype, tuple(part)))
    draw.call(axis, parts)


@spec("sparse.reorder")
def _reorder(draw: Draw) -> None:
    shape = _shape(draw)
    places = np.argwhere(draw.rng.random(shape) < 0.4)
    places = places[draw.rng.permutation(len(places))].reshape(-1, len(shape))
    index = draw.given(places, "int64")
    found = draw.tensor(draw.anything(), (len(places),))
    draw.call(Code(f"tf.SparseTensor({index}, {found}, {list(shape)})"))


@spec("sparse.reshape")
def _reshape(draw: Draw) -> None:
    shape = _shape(draw)
    draw.call(
        sparse(draw, draw.numeric(), shape), draw.choice([-1], [int(np.prod(shape))], [1, -1])
    )


@spec("sparse.transpose")
def _transpose(draw: Draw) -> None:
    shape = _shape(draw)
    draw.call(
        sparse(draw, draw.numeric(), shape),
        *([draw.rng.permutation(len(shape)).tolist()] if draw.chance(0.6) else []),
    )


@spec("sparse.expand_dims")
def _expand(draw: Draw) -> None:
    shape = _shape(draw)
    draw.call(sparse(draw, draw.numeric(), shape), draw.integer(-len(shape) - 1, len(shape)))


@spec("sparse.slice")
def _slice(draw: Draw) -> None:
    shape = _shape(draw)
    start = [draw.integer(0, n - 1) for n in shape]
    draw.call(sparse(draw, draw.numeric(), shape), start, [draw.integer(1, n) for n in shape])


@spec("sparse.split")
def _split(draw: Draw) -> None:
    shape = _shape(draw)
    axis = draw.integer(0, len(shape) - 1)
    draw.call(
        sp_input=sparse(draw, draw.numeric(), shape),
        num_split=draw.integer(1, shape[axis]),
        axis=axis,
    )


@spec("sparse.retain")
def _retain(draw: Draw) -> None:
    shape = _shape(draw)
    x = sparse(draw, draw.numeric(), shape)
    draw.call(x, draw.tensor("bool", draw.arrays[-1].shape))


@spec("sparse.fill_empty_rows")
def _fill_empty(draw: Draw) -> None:
    dtype = draw.choice("float32", "int64", "string")
    draw.call(sparse(draw, dtype, _shape(draw, 2, 2)), draw.tensor(dtype, ()))


@spec("sparse.reset_shape")
def _reset(draw: Draw) -> None:
    shape = _shape(draw)
    draw.call(sparse(draw, draw.numeric(), shape), [n + draw.integer(0, 2) for n in shape])


@spec("sparse.softmax", ulps=128)
def _softmax(draw: Draw) -> None:
    draw.call(sparse(draw, draw.choice("float32", "float64"), _shape(draw, 2, 3)))


@spec("sparse.sparse_dense_matmul sparse_tensor_dense_matmul", ulps=512)
def _matmul(draw: Draw) -> None:
    n, k, m = (draw.integer(1, 6) for _ in range(3))
    dtype = draw.choice("float32", "float64")
    flags = {f"adjoint_{s}": True for s in "ab" if draw.chance(0.3)}
    a = sparse(draw, dtype, (k, n) if "adjoint_a" in flags else (n, k))
    draw.call(a, draw.tensor(dtype, (m, k) if "adjoint_b" in flags else (k, m)), **flags)


@spec("sparse.to_indicator")
def _indicator(draw: Draw) -> None:
    draw.call(sparse(draw, draw.choice("int32", "int64"), _shape(draw), "0..7"), 7)


@spec("sparse.merge sparse_merge", ulps=4)
def _merge(draw: Draw) -> None:
    shape = _shape(draw, 2, 2)
    ids = sparse(draw, "int64", shape, "0..5")
    values = draw.tensor("float32", draw.arrays[-1].shape)
    draw.call(ids, Code(f"tf.SparseTensor(x0, {values}, {list(shape)})"), 6)


@spec("sparse_to_dense")
def _sparse_to_dense(draw: Draw) -> None:
    shape, dtype = _shape(draw), draw.numeric()
    places = np.argwhere(draw.rng.random(shape) < 0.4).reshape(-1, len(shape))
    index = draw.given(places, "int64")
    draw.call(index, list(shape), draw.tensor(dtype, (len(places),)), draw.tensor(dtype, ()))


@spec("sparse_mask")
def _mask(draw: Draw) -> None:
    shape = _shape(draw)
    rows = draw.rng.permutation(9)[: shape[0]]
    slices = f"tf.IndexedSlices({draw.tensor('float32', shape)}, {draw.given(rows, 'int64')})"
    draw.line(f"y = {draw.calling(Code(slices), draw.ints((draw.integer(0, 3),), 0, 9, 'int64'))}")
    draw.line("[y.values, y.indices]")


@spec("sparse.from_dense")
def _from_dense(draw: Draw) -> None:
    draw.call(draw.tensor(draw.numeric(), draw.shape(1, 3), "unit"))


@spec("sparse.eye")
def _eye(draw: Draw) -> None:
    draw.call(draw.integer(0, 5), draw.choice(None, 3), dtype=Code(f"tf.{draw.numeric()}"))


@spec("IndexedSlices:sum")
def _indexed_slices_gradient(draw: Draw) -> None:
    x = draw.tensor(draw.floating(), _shape(draw, 2, 3))
    rows = draw.arrays[0].shape[0]
    one, two = (draw.ints((draw.integer(1, 5),), 0, rows, "int32") for _ in range(2))
    draw.line(f"[tf.gather({x}, {one}), tf.gather({x}, {two})]")
