"""Dilated windows by moving space to batch: an op on every rate-th element runs as a plain one."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any

import numpy as np

from thalweg.graph import dtypes
from thalweg.graph.convert import convert_to_tensor
from thalweg.graph.known import constant_value
from thalweg.graph.node import Tensor
from thalweg.ops.arrays import indexing, joining, rearranging
from thalweg.ops.core import shaping
from thalweg.platform.arrays import Array
from thalweg.public import public

Apply = Callable[[Tensor, int, str], Tensor]


def strides_and_rates(
    rank: int, strides: Sequence[int] | None, rates: Sequence[int] | None
) -> tuple[list[int], list[int]]:
    """Strides and dilation rates, one per spatial axis; only one of them may be above 1."""
    steps, dilations = _per_axis("strides", rank, strides), _per_axis("dilation_rate", rank, rates)
    if max(steps) > 1 and max(dilations) > 1:
        raise ValueError("strides > 1 not supported in conjunction with dilation_rate > 1")
    return steps, dilations


def _per_axis(what: str, rank: int, given: Sequence[int] | None) -> list[int]:
    if given is None:
        return [1] * rank
    values = [int(v) for v in np.atleast_1d(np.asarray(given)).tolist()]
    if len(values) != rank:
        raise ValueError(f"len({what})={len(values)} but should be {rank}")
    if min(values) < 1:
        raise ValueError(f"all values of {what} must be positive")
    return values


@public("nn.with_space_to_batch")
def with_space_to_batch(
    input: Any,
    dilation_rate: Any,
    padding: str,
    op: Apply,
    filter_shape: Any = None,
    spatial_dims: Iterable[int] | None = None,
    data_format: str | None = None,
) -> Tensor:
    """`op(x, number of spatial axes, padding)` as if its window were dilated by `dilation_rate`.

    Ops of one rate can share the move: `with_space_to_batch(x, rate, "SAME", several_ops, …)`.
    """
    x = convert_to_tensor(input, name="input")
    rate = convert_to_tensor(dilation_rate, dtypes.int32, name="dilation_rate")
    if rate.shape.rank != 1 or not rate.shape.is_fully_defined():
        raise ValueError(f"dilation_rate must be a vector of known length, not {rate.shape}")
    rank = rate.shape.as_list()[0] or 0
    axes = _checked_axes(rank, spatial_dims, data_format)
    x.shape.with_rank_at_least(axes[-1] + 1)
    known = constant_value(rate)
    if known is not None and np.any(known < 1):
        raise ValueError(f"dilation_rate must be positive, got {known.tolist()}")
    if known is not None and np.all(known == 1):
        return op(x, rank, padding)
    paddings, crops = rearranging.required_space_to_batch_paddings(
        _spatial_shape(x, axes), rate, _base_paddings(padding, filter_shape, rate, known, rank)
    )
    block = _spread(rate, axes, 1)
    moved = rearranging.space_to_batch_nd(x, block, _spread(paddings, axes, 0))
    result = op(moved, rank, "VALID")
    return rearranging.batch_to_space_nd(result, block, _spread(crops, axes, 0))


def _checked_axes(
    rank: int, spatial_dims: Iterable[int] | None, data_format: str | None
) -> list[int]:
    if spatial_dims is None:
        first = 2 if data_format is not None and data_format.startswith("NC") else 1
        return list(range(first, first + rank))
    axes = [int(axis) for axis in spatial_dims]
    if axes != sorted(set(axes)) or min(axes) < 1:
        raise ValueError(f"spatial_dims must be increasing positive integers, got {axes}")
    return axes


def _spatial_shape(x: Tensor, axes: list[int]) -> Any:
    if x.shape.rank is not None:
        sizes = [x.shape[axis].value for axis in axes]
        if None not in sizes:
            return sizes
    return indexing.gather(shaping.shape(x), axes)


def _base_paddings(
    padding: str, filter_shape: Any, rate: Tensor, known: Array | None, rank: int
) -> Any:
    """The padding that makes "VALID" of `padding`."""
    if padding == "VALID":
        return np.zeros((rank, 2), np.int32)
    if padding != "SAME":
        raise ValueError(f"Invalid padding method {padding!r}")
    if filter_shape is None:
        raise ValueError("filter_shape must be specified for SAME padding")
    sizes = convert_to_tensor(filter_shape, dtypes.int32, name="filter_shape")
    window = constant_value(sizes)
    total = ((sizes if window is None else window)[:rank] - 1) * (rate if known is None else known)
    before = total // 2
    if isinstance(total, Tensor):
        return joining.stack([before, total - before], axis=1)
    return np.stack([before, total - before], axis=1)


def _spread(values: Tensor, axes: list[int], fill: int) -> Any:
    """Rows for the spatial axes, as rows for every axis from 1 on, `fill` where there is none."""
    known = constant_value(values)
    rows: Any = values if known is None else known
    inner: Any = values.shape.as_list()[1:]
    blank = np.zeros(inner, np.int32) + fill
    parts: list[Any] = [
        rows[axes.index(axis)] if axis in axes else blank for axis in range(1, axes[-1] + 1)
    ]
    return joining.stack(parts) if known is None else np.stack(parts)
