"""The state of an accumulator: the gradients since the last take, and the pending waits.

Pending takes are served first in, first out. Gradients are dense, or rows by index.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from functools import partial
from itertools import accumulate
from typing import Any, Generic, TypeVar

import numpy as np

from thalweg import errors
from thalweg.graph.dtypes import DType
from thalweg.graph.shapes import TensorShape, as_shape
from thalweg.ops.core.context import Cancellation
from thalweg.ops.core.sorting import stable_sort
from thalweg.ops.core.waiting import Done, Stop, wait_for
from thalweg.platform import tf_logging
from thalweg.platform.arrays import Array

Accumulated = TypeVar("Accumulated")

_MIN_VECTORIZED = 5  # sums that are faster to add to together than one by one
_MAX_SINGLE = 16  # rows that `np.add.at` adds
_NONE = np.empty(0, np.int64)
_largest = np.maximum.reduce


def _check_running(cancellation: Cancellation) -> None:
    """Raise the error that the step was stopped with; a CancelledError also names the operation."""
    try:
        cancellation.check()
    except errors.CancelledError as error:
        raise errors.CancelledError(
            None, None, f"TakeGrad operation was cancelled: {error.message}"
        ) from error


def _notify(served: Sequence[tuple[_Wait, Any, Exception | None]]) -> None:
    for wait, value, error in served:
        wait.end(value, error)


class _Wait:
    """A pending wait for a number of gradients, with its callback; `takes`: it removes them."""

    def __init__(self, required: int, takes: bool, done: Done) -> None:
        self.required, self.takes, self.done = required, takes, done
        self.is_over = False
        self.unregister: Callable[[], None] | None = None  # from the step's cancellation

    def end(self, value: Any, error: Exception | None) -> None:
        """Call the callback. Not under a lock: it may continue a step on this thread."""
        if self.unregister is not None:
            self.unregister()
        self.done(value, error)


class Accumulator(Generic[Accumulated]):
    """The gradients applied since the last take, under a lock."""

    def __init__(self, dtype: DType, shape: TensorShape, reduction: str) -> None:
        self.dtype = dtype
        self.shape = shape
        self.is_mean = reduction == "MEAN"
        self.count = 0
        self.step = 0
        self._lock = threading.Lock()
        self._pending: list[_Wait] = []  # first in, first out

    def apply(self, local_step: int, gradient: Accumulated) -> None:
        """Add a gradient, unless it is stale."""
        with self._lock:
            self._check(gradient)
            if local_step < self.step:
                return
            self._add(gradient)
            self.count += 1
            served = self._serve()
        _notify(served)

    def take(self, required: int, cancellation: Cancellation) -> Accumulated:
        """Block until there are `required` gradients; return their mean or sum and begin the next
        step."""
        return wait_for(lambda done: self.start_take(required, cancellation, done))

    def await_count(self, required: int, cancellation: Cancellation) -> None:
        """Block until there are `required` gradients, without removing them."""
        wait_for(lambda done: self.start_await(required, cancellation, done))

    def start_take(self, required: int, cancellation: Cancellation, done: Done) -> Stop:
        """`take` without blocking: calls `done` with the result. Returns a function that withdraws
        the wait."""
        if required <= 0:
            raise errors.invalid(f"Argument num_required must be positive, but got {required}")
        return self._start(_Wait(required, True, done), cancellation)

    def start_await(self, required: int, cancellation: Cancellation, done: Done) -> Stop:
        """`await_count` without blocking: calls `done` when there are enough gradients."""
        return self._start(_Wait(required, False, done), cancellation)

    def _start(self, wait: _Wait, cancellation: Cancellation) -> Stop:
        _check_running(cancellation)
        with self._lock:
            self._pending.append(wait)
            served = self._serve()
        _notify(served)
        stop = partial(self._withdraw, wait, cancellation)
        if not wait.is_over:
            wait.unregister = cancellation.on_cancel(stop)
            if wait.is_over:  # completed meanwhile, before `unregister` was set
                wait.unregister()
        return stop

    def _withdraw(self, wait: _Wait, cancellation: Cancellation) -> None:
        with self._lock:
            if wait.is_over:
                return
            wait.is_over = True
            self._pending.remove(wait)
            served = self._serve()
        _notify(served)
        try:
            _check_running(cancellation)
        except errors.OpError as error:
            wait.end(None, error)

    def _serve(self) -> list[tuple[_Wait, Any, Exception | None]]:
        """Remove the pending waits that are satisfied; each with its result or error. Waits that
        take nothing come first: a take resets the count. The lock is held."""
        served = list[tuple[_Wait, Any, Exception | None]]()
        if not self._pending:
            return served
        for wait in [each for each in self._pending if not each.takes]:
            if self.count >= wait.required:
                served.append((wait, (), None))
        for wait in [each for each in self._pending if each.takes]:
            if self.count < wait.required:
                break
            served.append((wait, *self._take_result()))
        for wait, _, _ in served:
            wait.is_over = True
            self._pending.remove(wait)
        return served

    def _take_result(self) -> tuple[Any, Exception | None]:
        """(mean or sum, None), after which the next step begins; or (None, error)."""
        try:
            result = self._reduced()
        except Exception as error:  # raised in the taking step, not in the one that applied last
            return None, error
        self._clear()
        self.count = 0
        self.step += 1
        return result, None

    def set_step(self, step: int) -> None:
        """Set the current step: gradients of earlier steps are dropped."""
        with self._lock:
            if step < self.step:
                tf_logging.warning("Attempt to set current_global_step_ to smaller value: %d", step)
            self.step = step

    def _check(self, gradient: Accumulated) -> None:
        """Raise unless a gradient has the declared shape and that of earlier gradients."""

    def _add(self, gradient: Accumulated) -> None:
        """Add a gradient that passed `_check`."""

    def _reduced(self) -> Accumulated:
        """The mean or sum of the accumulated gradients."""
        raise TypeError(f"{type(self).__name__} must define _reduced")

    def _clear(self) -> None:
        """Drop the accumulated gradients."""


class DenseAccumulator(Accumulator[Array]):
    """Accumulates tensors of one shape."""

    _total: Array | None = None
    _owns_total = False  # the memory of the total is not shared

    def _check(self, gradient: Array) -> None:
        shape = np.shape(gradient)
        if self._total is not None and self._total.shape == shape:
            return
        expected = self.shape if self._total is None else as_shape(self._total.shape)
        if not expected.is_compatible_with(shape):
            raise errors.invalid(f"Shape mismatch: expected {expected}, got {list(shape)}")

    def _add(self, gradient: Array) -> None:
        if self._total is None:
            self._total, self._owns_total = immutable(gradient), False
        elif self._owns_total:
            np.add(self._total, gradient, out=self._total)
        else:
            self._total, self._owns_total = np.asarray(np.add(self._total, gradient)), True

    def _reduced(self) -> Array:
        total = np.asarray(self._total)
        if not self.is_mean or not self._owns_total:  # a shared total is a single gradient
            return total
        if np.issubdtype(total.dtype, np.inexact):
            return np.divide(total, self.count, out=total)  # the caller now owns the memory
        return (total / self.count).astype(total.dtype, copy=False)

    def _clear(self) -> None:
        self._total = None


class SparseGradient:
    """Rows of a tensor: indices, values, and the tensor's shape if it is known."""

    def __init__(self, indices: Array, values: Array, shape: Array | None) -> None:
        self.indices = indices
        self.values = values
        self.shape = shape

    @property
    def parts(self) -> tuple[Any, ...]:
        """(indices, values, shape)"""
        return self.indices, self.values, self.shape


class SparseAccumulator(Accumulator[SparseGradient]):
    """Accumulates rows by index; the mean of a row is over the gradients that have it."""

    def __init__(self, dtype: DType, shape: TensorShape, reduction: str) -> None:
        super().__init__(dtype, shape, reduction)
        self._sizes = shape.sizes or ()
        first = self._sizes[0] if self._sizes else None
        self._limit = 1 << 63 if first is None else first  # of indices
        self._clear()

    def _clear(self) -> None:
        self._gradients: list[tuple[Array, Array]] = []  # indices and rows of each
        self._row_shape: tuple[int, ...] | None = None

    def _check(self, gradient: SparseGradient) -> None:
        indices, values = gradient.indices, gradient.values
        if indices.ndim != 1:
            raise errors.invalid(
                f"Input indices should be vector but received shape: {indices.shape}"
            )
        if values.ndim == 0:
            raise errors.invalid("Values cannot be 0-dimensional.")
        if len(values) != len(indices):
            raise errors.invalid(
                f"Expected {len(indices)} non-empty input values, got {len(values)}"
            )
        if gradient.shape is not None:
            self._check_shape(gradient.shape.tolist())
        self._check_limits(indices)
        if values.shape[1:] != self._row_shape:
            self._check_values(values)

    def _check_shape(self, shape: list[int]) -> None:
        sizes = self._sizes
        if len(sizes) > len(shape):
            raise errors.invalid(
                f"Shape mismatch: expected shape rank at least {len(sizes)}, got {len(shape)}"
            )
        for axis, size in enumerate(sizes):
            if size is not None and size != shape[axis]:
                raise errors.invalid(
                    f"Shape mismatch: expected shape dim {axis} to be {size}, got {shape[axis]}"
                )

    def _check_limits(self, indices: Array) -> None:
        # One comparison finds both errors: negative indices are large as unsigned integers.
        if not indices.size or int(_largest(indices.view(np.uint64))) < self._limit:
            return
        limit = self._sizes[0] if self._sizes else None
        wrong = np.flatnonzero((indices < 0) | (False if limit is None else indices >= limit))
        raise errors.invalid(
            f"Shape mismatch: index of slice {wrong[0]} exceeded limits of shape; index "
            f"is {indices[wrong[0]]} exceeded {limit}"
        )

    def _check_values(self, values: Array) -> None:
        if self._row_shape is not None:
            expected: tuple[int | None, ...] = (None, *self._row_shape)
            if len(expected) != values.ndim:
                raise errors.invalid(
                    f"Shape mismatch: expected values rank {len(expected)}, got {values.ndim}"
                )
        else:
            expected = self._sizes
            if len(expected) > values.ndim:
                raise errors.invalid(
                    f"Shape mismatch: expected values rank at least {len(expected)}, got "
                    f"{values.ndim}"
                )
        for axis, size in enumerate(expected):
            if axis > 0 and size is not None and size != values.shape[axis]:
                raise errors.invalid(
                    f"Shape mismatch: expected values dim {axis} to be {size}, got "
                    f"{values.shape[axis]}"
                )

    def _add(self, gradient: SparseGradient) -> None:
        """Append a gradient; a take sums all in one pass."""
        self._row_shape = gradient.values.shape[1:]
        self._gradients.append((immutable(gradient.indices), immutable(gradient.values)))

    def _reduced(self) -> SparseGradient:
        rows, sums, shared, counts = _sum_rows(self._gradients, self._limit)
        if self.is_mean and counts.size:
            sums[shared] = _divide_rows(sums[shared], counts)
        first = self._sizes[0] if self._sizes and self._sizes[0] is not None else -1
        return SparseGradient(rows, sums, np.array([first, *sums.shape[1:]]))


def _divide_rows(sums: Array, counts: Array) -> Array:
    """Divide each row by its count."""
    divisors = counts.reshape(-1, *[1] * (sums.ndim - 1))
    if sums.dtype.kind == "f":
        divisors = divisors.astype(sums.dtype)
    return (sums / divisors).astype(sums.dtype, copy=False)


def immutable(array: Array) -> Array:
    """The array if no array can write to its memory (a message's payload, for example), else a
    copy."""
    base: Any = array.base
    if (
        base is None
        or array.flags.writeable
        or (isinstance(base, np.ndarray) and base.flags.writeable)
    ):
        return np.array(array)
    return array


def _sum_rows(
    gradients: Sequence[tuple[Array, Array]], limit: int
) -> tuple[Array, Array, Array, Array]:
    """The sorted distinct indices and the sums of their rows, added in order of arrival; then the
    numbers of the sums that several gradients contribute to, and how many do."""
    parts, rows = zip(*gradients, strict=True)
    values = np.concatenate(rows)
    indices, order = stable_sort(np.concatenate(parts), limit)
    (before,) = (indices[1:] == indices[:-1]).nonzero()
    if not before.size:
        return indices, values.take(order, axis=0), _NONE, _NONE
    repeated, is_first = before + 1, np.ones(len(indices), np.bool_)
    is_first[repeated] = False
    sums = values.take(order[is_first], axis=0)
    places = before - np.arange(len(before))  # the sum that each repeated row is added to
    _add_rows(sums, places, values.take(order[repeated], axis=0))
    owners = np.searchsorted([*accumulate(map(len, parts))], order, side="right")  # gradients
    others = np.bincount(places[owners[repeated] != owners[before]])
    (shared,) = others.nonzero()
    return indices[is_first], sums, shared, others[shared] + 1


def _add_rows(sums: Array, places: Array, rows: Array) -> None:
    """Add rows to the sums at ascending places; rows of one place are added in order. Each pass
    adds one row to every place that has one left, until few places are left."""
    if rows.ndim == 1 or len(rows) <= _MAX_SINGLE:
        np.add.at(sums, places, rows)
        return
    ranks = np.arange(len(places)) - np.searchsorted(places, places)  # among rows of its place
    rank, (chosen,) = 0, (ranks == 0).nonzero()
    while len(chosen) >= _MIN_VECTORIZED:
        sums[places[chosen]] += rows[chosen]
        rank += 1
        (chosen,) = (ranks == rank).nonzero()
    for first in chosen:
        place = places[first]
        part = rows[first : np.searchsorted(places, place, side="right")]
        part[0] += sums[place]
        sums[place] = part[0] if len(part) == 1 else np.add.accumulate(part, dtype=part.dtype)[-1]
