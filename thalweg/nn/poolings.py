"""Poolings over one, two or three spatial axes by one name, and their spellings."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from thalweg.graph.convert import convert_to_tensor
from thalweg.graph.node import Tensor
from thalweg.graph.scopes import name_scope
from thalweg.nn import dilation
from thalweg.ops.core import shaping
from thalweg.ops.nn import pooling, pooling3d, windows
from thalweg.public import public

Pool = Callable[..., Tensor]

_POOLS: dict[tuple[str, int], Pool] = {
    ("MAX", 1): pooling.max_pool,
    ("MAX", 2): pooling.max_pool,
    ("MAX", 3): pooling3d.max_pool3d,
    ("AVG", 1): pooling.avg_pool,
    ("AVG", 2): pooling.avg_pool,
    ("AVG", 3): pooling3d.avg_pool3d,
}
_FORMATS = {1: ("NWC", "NCW"), 2: ("NHWC", "NCHW"), 3: ("NDHWC", "NCDHW")}


@public("nn.pool")
def pool(
    input: Any,
    window_shape: Sequence[int],
    pooling_type: str,
    padding: str,
    dilation_rate: Sequence[int] | None = None,
    strides: Sequence[int] | None = None,
    name: str | None = None,
    data_format: str | None = None,
    dilations: Sequence[int] | None = None,
) -> Tensor:
    """The largest ("MAX") or mean ("AVG") elements under a window over 1 to 3 spatial axes."""
    with name_scope(name, f"{pooling_type.lower()}_pool", [input]) as scope:
        x = convert_to_tensor(input, name="input")
        rank = len(window_shape)
        if not 1 <= rank <= 3:
            raise ValueError("It is required that 1 <= num_spatial_dims <= 3.")
        x.shape.assert_has_rank(rank + 2)
        rates = dilation_rate if dilations is None else dilations
        steps, rates = dilation.strides_and_rates(rank, strides, rates)
        _check(rank, window_shape, pooling_type, padding, steps, rates)
        layout = _layout(rank, data_format)
        first = 2 if layout.startswith("NC") else 1

        def apply(converted: Tensor, _: int, how: str) -> Tensor:
            return _pooled(converted, window_shape, pooling_type, how, steps, layout, scope)

        return dilation.with_space_to_batch(
            x, rates, padding, apply, window_shape, range(first, first + rank)
        )


def _check(
    rank: int,
    window: Sequence[int],
    pooling_type: str,
    padding: str,
    strides: Sequence[int],
    rates: Sequence[int],
) -> None:
    if (pooling_type, rank) not in _POOLS:
        raise ValueError(f"{rank}-D {pooling_type} pooling is not supported.")
    if padding == "SAME" and max(rates) > 1:
        raise ValueError("pooling with SAME padding is not implemented for dilation_rate > 1")
    if any(step > size for step, size in zip(strides, window, strict=True)):
        raise ValueError(f"strides {list(strides)} > window_shape {list(window)} is not supported")


def _layout(rank: int, data_format: str | None) -> str:
    layout = _FORMATS[rank][0] if data_format is None else data_format
    if layout not in _FORMATS[rank]:
        raise ValueError(f"data_format must be one of {', '.join(_FORMATS[rank])}")
    return layout


def _pooled(
    x: Tensor,
    window: Sequence[int],
    pooling_type: str,
    padding: str,
    strides: Sequence[int],
    layout: str,
    name: str,
) -> Tensor:
    function = _POOLS[pooling_type, len(window)]
    if len(window) > 1:
        return function(x, list(window), list(strides), padding, layout, name=name)
    return _over_line(function, x, window[0], strides[0], padding, layout, name)


def _over_line(
    function: Pool, x: Tensor, window: int, stride: int, padding: str, layout: str, name: str | None
) -> Tensor:
    """A pooling of lines as one of images a single pixel high."""
    axis, image = (2, "NCHW") if layout == "NCW" else (1, "NHWC")
    rows = shaping.expand_dims(x, axis)
    result = function(rows, [1, window], [1, stride], padding, image, name=name)
    return shaping.squeeze(result, [axis])


@public("nn.max_pool1d")
def max_pool1d(
    input: Any,
    ksize: Any,
    strides: Any,
    padding: str,
    data_format: str = "NWC",
    name: str | None = None,
) -> Tensor:
    """The largest elements under a window that slides over [batch, width, channels]."""
    with name_scope(name, "MaxPool1d", [input]):
        window, stride = _line_arguments(ksize, strides, data_format)
        x = convert_to_tensor(input)
        return _over_line(pooling.max_pool, x, window, stride, padding, data_format, None)


@public("nn.avg_pool1d")
def avg_pool1d(
    input: Any,
    ksize: Any,
    strides: Any,
    padding: str,
    data_format: str = "NWC",
    name: str | None = None,
) -> Tensor:
    """The mean elements under a window that slides over [batch, width, channels]."""
    with name_scope(name, "AvgPool1D", [input]):
        window, stride = _line_arguments(ksize, strides, data_format)
        x = convert_to_tensor(input)
        return _over_line(pooling.avg_pool, x, window, stride, padding, data_format, None)


def _line_arguments(ksize: Any, strides: Any, data_format: str) -> tuple[int, int]:
    axis = 2 if _layout(1, data_format) == "NCW" else 1
    window = windows.per_axis("ksize", ksize, data_format)
    return window[axis], windows.per_axis("strides", strides, data_format)[axis]


@public("nn.max_pool_v2")
def max_pool_v2(
    input: Any,
    ksize: Any,
    strides: Any,
    padding: str,
    data_format: str | None = None,
    name: str | None = None,
) -> Tensor:
    """The largest elements under a window, over as many axes as the input has."""
    return _by_rank("MAX", input, ksize, strides, padding, data_format, name or "max_pool")


@public("nn.avg_pool_v2")
def avg_pool_v2(
    input: Any,
    ksize: Any,
    strides: Any,
    padding: str,
    data_format: str | None = None,
    name: str | None = None,
) -> Tensor:
    """The mean elements under a window, over as many axes as the input has."""
    return _by_rank("AVG", input, ksize, strides, padding, data_format, name or "avg_pool")


def _by_rank(
    pooling_type: str,
    input: Any,
    ksize: Any,
    strides: Any,
    padding: str,
    data_format: str | None,
    name: str,
) -> Tensor:
    x = convert_to_tensor(input)
    rank = _spatial_rank(x, ksize, data_format)
    layout = _layout(rank, data_format)
    first = 2 if layout.startswith("NC") else 1
    window = windows.per_axis("ksize", ksize, layout)[first : first + rank]
    steps = windows.per_axis("strides", strides, layout)[first : first + rank]
    with name_scope(name) as scope:
        return _pooled(x, window, pooling_type, padding, steps, layout, scope)


def _spatial_rank(x: Tensor, ksize: Any, data_format: str | None) -> int:
    if data_format is not None:
        return len(data_format) - 2
    if x.shape.rank is not None:
        return x.shape.rank - 2
    if np.size(ksize) < 3:
        raise ValueError("The rank of the input must be known, or data_format given")
    return int(np.size(ksize)) - 2
