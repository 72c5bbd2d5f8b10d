"""Gradients against numbers: the Jacobian from backpropagation beside the one from differences.

Complex tensors count as vectors of twice as many reals: a Jacobian is always real, with a row per
real of x and a column per real of y.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, cast

import numpy as np
from numpy.typing import ArrayLike

from thalweg.autodiff.gradients import gradients
from thalweg.graph import context
from thalweg.graph.composite import IndexedSlices
from thalweg.graph.likes import HoldsTensor, Structure
from thalweg.graph.node import Tensor
from thalweg.ops.core import basic
from thalweg.platform.arrays import Array
from thalweg.public import public

Jacobians = tuple[Array, Array]


@public("test.compute_gradient")
def compute_gradient(
    x: Tensor | HoldsTensor | Sequence[Tensor | HoldsTensor],
    x_shape: Sequence[Any],
    y: Tensor,
    y_shape: Sequence[Any],
    x_init_value: ArrayLike | None = None,
    delta: float = 1e-3,
    init_targets: Sequence[Any] | None = None,
    extra_feed_dict: Mapping[Any, Any] | None = None,
) -> Structure:
    """The Jacobian of y by x twice: from the gradients, and from differences of size `delta`."""
    if not isinstance(x, list):
        source = cast("Tensor", x)
        return _compute(
            [source], [x_shape], y, y_shape, [x_init_value], delta, init_targets, extra_feed_dict
        )[0]
    sources = cast("list[Tensor]", x)
    values = [None] * len(sources) if x_init_value is None else cast("Sequence[Any]", x_init_value)
    return _compute(sources, x_shape, y, y_shape, values, delta, init_targets, extra_feed_dict)


@public("test.compute_gradient_error")
def compute_gradient_error(
    x: Tensor | HoldsTensor | Sequence[Tensor | HoldsTensor],
    x_shape: Sequence[Any],
    y: Tensor,
    y_shape: Sequence[Any],
    x_init_value: ArrayLike | None = None,
    delta: float = 1e-3,
    init_targets: Sequence[Any] | None = None,
    extra_feed_dict: Mapping[Any, Any] | None = None,
) -> float:
    """The largest difference between the two Jacobians of `compute_gradient`."""
    found = compute_gradient(
        x, x_shape, y, y_shape, x_init_value, delta, init_targets, extra_feed_dict
    )
    pairs = cast("list[Jacobians]", found if isinstance(found, list) else [found])
    errors = [np.abs(one - other).max() for one, other in pairs if one.size or other.size]
    return max(errors, default=0)


def _compute(
    sources: Sequence[Tensor],
    x_shapes: Sequence[Any],
    y: Tensor,
    y_shape: Any,
    x_values: Sequence[Any],
    delta: float,
    init_targets: Sequence[Any] | None,
    feeds: Mapping[Any, Any] | None,
) -> list[Jacobians]:
    slopes = [_gradient(x, y, y_shape) for x in sources]
    for target in init_targets or ():
        target.run()
    result: list[Jacobians] = []
    for x, shape, value, (dx, dy) in zip(sources, x_shapes, x_values, slopes, strict=True):
        point = _Point(x, _start(x, shape, value), dict(feeds or {}))
        result.append((_symbolic(point, dx, dy, _sizes(y_shape)), _numeric(point, y, delta)))
    return result


def _gradient(x: Tensor, y: Tensor, y_shape: Any) -> tuple[Any, Tensor]:
    """dx, and the tensor to feed dy to. An identity lies between: a step cannot fetch its feed."""
    with x.graph.as_default():
        dy = basic.constant(1.0, shape=y_shape, dtype=y.dtype.base_dtype)
        (dx,) = gradients(y, x, basic.identity(dy))
    return dx, dy


@dataclass(frozen=True)
class _Point:
    """Where a Jacobian is taken: x, its value, and what else is fed."""

    x: Tensor
    value: Array
    feeds: dict[Any, Any]

    def run(self, fetches: Any, feeds: Mapping[Any, Any]) -> Any:
        runner = context.runner_for(self.x.graph, None, "compute_gradient()")
        return runner.run(fetches, {**self.feeds, self.x: self.value, **feeds})


def _start(x: Tensor, shape: Any, value: Any) -> Array:
    dtype = x.dtype.base_dtype
    if not (dtype.is_floating or dtype.is_complex):
        raise TypeError(f"compute_gradient does not support {dtype.name} for {x.name}")
    if value is None:
        return np.asarray(np.random.random_sample(_sizes(shape)), dtype.as_numpy_dtype)
    given = np.asarray(value, dtype.as_numpy_dtype)
    if given.shape != _sizes(shape):
        raise ValueError(f"x_shape = {_sizes(shape)}, but x_init_value has the shape {given.shape}")
    return given


def _symbolic(point: _Point, dx: Any, dy: Tensor, y_shape: tuple[int, ...]) -> Array:
    """One column per real of y: the gradient of that one alone."""
    columns = [
        _dense(point.run(_parts(dx), {dy: unit}), point.value)
        for unit in _units(np.zeros(y_shape, dy.dtype.as_numpy_dtype))
    ]
    if columns:
        return np.stack(columns, axis=1)
    nothing = _dense(
        point.run(_parts(dx), {dy: np.zeros(y_shape, dy.dtype.as_numpy_dtype)}), point.value
    )
    if np.any(nothing):
        raise ValueError("Empty tensor with nonzero gradients")
    return np.zeros((nothing.size, 0), nothing.dtype)


def _parts(dx: Any) -> list[Tensor]:
    return [dx.indices, dx.values] if isinstance(dx, IndexedSlices) else [dx]


def _dense(parts: Sequence[Any], like: Array) -> Array:
    """A gradient, given whole or by rows, as a vector of reals."""
    total = np.zeros_like(like)
    if len(parts) == 2:
        np.add.at(total, parts[0], parts[1])
    elif np.shape(parts[0]) != like.shape:
        raise ValueError(
            f"The gradient has the wrong shape: expected {like.shape}, got {np.shape(parts[0])}"
        )
    else:
        total[...] = parts[0]
    return _reals(total)


def _numeric(point: _Point, y: Tensor, delta: float) -> Array:
    """One row per real of x: the change of y around it."""
    rows: list[Array] = []
    for unit in _units(np.zeros_like(point.value)):
        step = (unit * delta).astype(point.value.dtype)
        above = point.run(y, {point.x: point.value + step})
        below = point.run(y, {point.x: point.value - step})
        slope = (above - below) / np.asarray(2 * delta, _reals(above).dtype)
        rows.append(_reals(np.asarray(slope)))
    if rows:
        return np.stack(rows)
    value = np.asarray(point.run(y, {}))
    return np.zeros((0, _reals(value).size), _reals(value).dtype)


def _units(zeros: Array) -> Iterator[Array]:
    """Arrays that are one in one real and zero in the others."""
    for position in range(_reals(zeros).size):
        unit = np.array(zeros, order="C")  # so that the flat view below is no copy
        unit.reshape(-1).view(_real_type(unit.dtype))[position] = 1
        yield unit


def _reals(array: Any) -> Array:
    flat = np.ascontiguousarray(array).reshape(-1)
    return flat.view(_real_type(flat.dtype))


def _real_type(dtype: Any) -> Any:
    return np.empty(0, dtype).real.dtype


def _sizes(shape: Any) -> tuple[int, ...]:
    return (int(shape),) if np.ndim(shape) == 0 else tuple(int(size) for size in shape)
