"""Gathering and scattering by index."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from thalweg import errors
from thalweg.graph.composite import IndexedSlices
from thalweg.graph.node import Node, Tensor
from thalweg.graph.op import Op
from thalweg.graph.shapes import TensorShape
from thalweg.ops import shaping

Array = NDArray[Any]


def check_within(indices: Array, limit: int, what: str = "indices") -> None:
    """Raise unless every index lies in [0, limit)."""
    bad = (indices < 0) | (indices >= limit)
    if np.any(bad):
        where = np.argwhere(np.atleast_1d(bad))[0].tolist()
        value = np.atleast_1d(indices)[tuple(where)]
        raise errors.InvalidArgumentError(
            None,
            None,
            f"{what}{where if np.ndim(indices) else ''} = {value} is not in [0, {limit})",
        )


class Gather(Op):
    """y[i…, r…] = params[indices[i…], r…]"""

    signature = "params: T, indices: I -> output: T; I: index"
    validate_indices: bool = True

    def shape(self, params: Tensor, indices: Tensor) -> TensorShape:
        rest = params.shape.with_rank_at_least(1)
        return indices.shape.concatenate(rest[1:])

    def numpy(self, params: Array, indices: Array) -> Array:
        check_within(indices, params.shape[0])
        return params[indices]

    def gradient(self, node: Node, dy: Tensor) -> list[Any]:
        params, indices = node.inputs
        full = shaping.shape(params)
        values = shaping.reshape(dy, _rows_shape(indices, params))
        return [IndexedSlices(values, shaping.reshape(indices, [-1]), full), None]


def _rows_shape(indices: Tensor, params: Tensor) -> Tensor:
    """[number of indices, *the shape of a row]"""
    return RowsShape()(shaping.size(indices), shaping.shape(params))


class RowsShape(Op):
    """[count, *shape[1:]]"""

    signature = "count: I, shape: I -> output: I; I: index"
    not_differentiable = True

    def shape(self, count: Tensor, shape: Tensor) -> TensorShape:
        return shape.shape

    def numpy(self, count: Array, shape: Array) -> Array:
        return np.concatenate([np.reshape(count, 1), shape[1:]])

    def dimensions(self, count: Tensor, shape: Tensor) -> TensorShape:
        known = shaping.known_shape(shape)
        return TensorShape.of(None if known.sizes is None else (None, *known.sizes[1:]))


def gather(params: Any, indices: Any, name: str | None = None) -> Tensor:
    """Rows of `params` by index."""
    return Gather()(params, indices, name=name)
