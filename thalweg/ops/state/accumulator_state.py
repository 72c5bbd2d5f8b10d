"""What a session keeps of an accumulator: gradients, and who waits for enough of them.

Waiting takes are served in the order they came. Gradients are dense, or rows by index.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, Generic, TypeVar

import numpy as np
from numpy.typing import NDArray

from thalweg import errors
from thalweg.graph.dtypes import DType
from thalweg.graph.shapes import TensorShape, as_shape
from thalweg.ops.core.context import Cancellation
from thalweg.ops.core.waiting import Done, Stop, waited_for
from thalweg.platform import tf_logging

Array = NDArray[Any]
Accumulated = TypeVar("Accumulated")


def invalid(message: str) -> errors.InvalidArgumentError:
    """An error of a value that no accumulator takes; who runs the op adds the node."""
    return errors.InvalidArgumentError(None, None, message)


def _check_running(cancellation: Cancellation) -> None:
    """Raise what the step was stopped with; a cancelled step says what it waited for."""
    try:
        cancellation.check()
    except errors.CancelledError as error:
        raise errors.CancelledError(
            None, None, f"TakeGrad operation was cancelled: {error.message}"
        ) from error


def _tell(served: Sequence[tuple[_Wait, Any, Exception | None]]) -> None:
    for wait, value, error in served:
        wait.end(value, error)


class _Wait:
    """Who is told once there are enough gradients."""

    def __init__(self, required: int, takes: bool, done: Done) -> None:
        self.required, self.takes, self.done = required, takes, done
        self.is_over = False
        self.forget: Callable[[], None] | None = None  # that its step may be cancelled

    def end(self, value: Any, error: Exception | None) -> None:
        """Tell, outside of locks: whoever waits may go on in this thread."""
        if self.forget is not None:
            self.forget()
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
        self._waiting: list[_Wait] = []  # in the order they came

    def apply(self, local_step: int, gradient: Accumulated) -> None:
        """Add a gradient, unless it is stale."""
        with self._lock:
            self._check(gradient)
            if local_step < self.step:
                return
            self._add(gradient)
            self.count += 1
            served = self._serve()
        _tell(served)

    def take(self, required: int, cancellation: Cancellation) -> Accumulated:
        """Wait for `required` gradients; give their mean or sum and begin the next step."""
        return waited_for(lambda done: self.start_take(required, cancellation, done))

    def await_count(self, required: int, cancellation: Cancellation) -> None:
        """Wait for `required` gradients, and leave them."""
        waited_for(lambda done: self.start_await(required, cancellation, done))

    def start_take(self, required: int, cancellation: Cancellation, done: Done) -> Stop:
        """As `take`, but `done` is told; what is returned withdraws the request."""
        if required <= 0:
            raise invalid(f"Argument num_required must be positive, but got {required}")
        return self._start(_Wait(required, True, done), cancellation)

    def start_await(self, required: int, cancellation: Cancellation, done: Done) -> Stop:
        """As `await_count`, but `done` is told."""
        return self._start(_Wait(required, False, done), cancellation)

    def _start(self, wait: _Wait, cancellation: Cancellation) -> Stop:
        _check_running(cancellation)
        with self._lock:
            self._waiting.append(wait)
            served = self._serve()
        _tell(served)
        stop = partial(self._withdraw, wait, cancellation)
        if not wait.is_over:
            wait.forget = cancellation.on_cancel(stop)
            if wait.is_over:  # by now
                wait.forget()
        return stop

    def _withdraw(self, wait: _Wait, cancellation: Cancellation) -> None:
        with self._lock:
            if wait.is_over:
                return
            wait.is_over = True
            self._waiting.remove(wait)
            served = self._serve()
        _tell(served)
        try:
            _check_running(cancellation)
        except errors.OpError as error:
            wait.end(None, error)

    def _serve(self) -> list[tuple[_Wait, Any, Exception | None]]:
        """Who need not wait any longer, and what each is told; the lock is held. Those who take
        nothing are served together, then those who do, one after the other."""
        served = list[tuple[_Wait, Any, Exception | None]]()
        for wait in [each for each in self._waiting if not each.takes]:
            if self.count >= wait.required:
                served.append((wait, (), None))
        for wait in [each for each in self._waiting if each.takes]:
            if self.count < wait.required:
                break
            served.append((wait, *self._taken()))
        for wait, _, _ in served:
            wait.is_over = True
            self._waiting.remove(wait)
        return served

    def _taken(self) -> tuple[Any, Exception | None]:
        """The mean or sum, after which the next step begins, or why there is none."""
        try:
            result = self._reduced()
        except Exception as error:  # of whoever takes, not of who applied the last gradient
            return None, error
        self._clear()
        self.count = 0
        self.step += 1
        return result, None

    def set_step(self, step: int) -> None:
        """Declare the current step: gradients of earlier ones are dropped."""
        with self._lock:
            if step < self.step:
                tf_logging.warning("Attempt to set current_global_step_ to smaller value: %d", step)
            self.step = step

    def _check(self, gradient: Accumulated) -> None:
        """Raise unless a gradient fits what is expected and what came before."""

    def _add(self, gradient: Accumulated) -> None:
        """Add a gradient that fits."""

    def _reduced(self) -> Accumulated:
        """The mean or sum of what was added."""
        raise TypeError(f"{type(self).__name__} must define _reduced")

    def _clear(self) -> None:
        """Forget what was added."""


class DenseAccumulator(Accumulator[Array]):
    """Accumulates tensors of one shape."""

    _total: Array | None = None

    def _check(self, gradient: Array) -> None:
        shape = np.shape(gradient)
        if self._total is not None and self._total.shape == shape:
            return
        expected = self.shape if self._total is None else as_shape(self._total.shape)
        if not expected.is_compatible_with(shape):
            raise invalid(f"Shape mismatch: expected {expected}, got {list(shape)}")

    def _add(self, gradient: Array) -> None:
        if self._total is None:
            self._total = np.array(gradient)
        else:
            self._total += gradient

    def _reduced(self) -> Array:
        total = np.asarray(self._total)
        if not self.is_mean:
            return total
        if np.issubdtype(total.dtype, np.inexact):
            return np.divide(total, self.count, out=total)  # which is given away
        return (total / self.count).astype(total.dtype, copy=False)

    def _clear(self) -> None:
        self._total = None


class SparseGradient:
    """Rows of a tensor: indices, values, and the tensor's shape where it is known."""

    def __init__(self, indices: Array, values: Array, shape: Array | None) -> None:
        self.indices = indices
        self.values = values
        self.shape = shape

    @property
    def parts(self) -> tuple[Any, ...]:
        """All three."""
        return self.indices, self.values, self.shape


class SparseAccumulator(Accumulator[SparseGradient]):
    """Accumulates rows by index; the mean of a row is over the gradients that have it."""

    def __init__(self, dtype: DType, shape: TensorShape, reduction: str) -> None:
        super().__init__(dtype, shape, reduction)
        self._clear()

    def _clear(self) -> None:
        self._gradients: list[tuple[Array, Array]] = []  # indices and rows of each
        self._row_shape: tuple[int, ...] | None = None

    def _check(self, gradient: SparseGradient) -> None:
        indices, values = gradient.indices, gradient.values
        if np.ndim(indices) != 1:
            raise invalid(f"Input indices should be vector but received shape: {indices.shape}")
        if np.ndim(values) == 0:
            raise invalid("Values cannot be 0-dimensional.")
        if len(values) != len(indices):
            raise invalid(f"Expected {len(indices)} non-empty input values, got {len(values)}")
        if gradient.shape is not None:
            self._check_shape(gradient.shape)
        self._check_limits(indices)
        self._check_values(values)

    def _sizes(self) -> tuple[int | None, ...]:
        return self.shape.sizes or ()

    def _check_shape(self, shape: Array) -> None:
        sizes = self._sizes()
        if len(sizes) > len(shape):
            raise invalid(
                f"Shape mismatch: expected shape rank at least {len(sizes)}, got {len(shape)}"
            )
        for axis, size in enumerate(sizes):
            if size is not None and size != shape[axis]:
                raise invalid(
                    f"Shape mismatch: expected shape dim {axis} to be {size}, got {shape[axis]}"
                )

    def _check_limits(self, indices: Array) -> None:
        sizes = self._sizes()
        limit = sizes[0] if sizes else None
        if not indices.size or (indices.min() >= 0 and (limit is None or indices.max() < limit)):
            return
        wrong = np.flatnonzero((indices < 0) | (False if limit is None else indices >= limit))
        raise invalid(
            f"Shape mismatch: index of slice {wrong[0]} exceeded limits of shape; index "
            f"is {indices[wrong[0]]} exceeded {limit}"
        )

    def _check_values(self, values: Array) -> None:
        if self._row_shape is not None:
            expected: tuple[int | None, ...] = (None, *self._row_shape)
            if len(expected) != values.ndim:
                raise invalid(
                    f"Shape mismatch: expected values rank {len(expected)}, got {values.ndim}"
                )
        else:
            expected = self._sizes()
            if len(expected) > values.ndim:
                raise invalid(
                    f"Shape mismatch: expected values rank at least {len(expected)}, got "
                    f"{values.ndim}"
                )
        for axis, size in enumerate(expected):
            if axis > 0 and size is not None and size != values.shape[axis]:
                raise invalid(
                    f"Shape mismatch: expected values dim {axis} to be {size}, got "
                    f"{values.shape[axis]}"
                )

    def _add(self, gradient: SparseGradient) -> None:
        """Keep a gradient: all are summed at once when they are taken, in one pass."""
        self._row_shape = gradient.values.shape[1:]
        self._gradients.append((np.array(gradient.indices), np.array(gradient.values)))

    def _reduced(self) -> SparseGradient:
        row_shape = self._row_shape or ()
        rows, sums, counts = _summed(self._gradients)
        if self.is_mean and counts.max(initial=1) > 1:
            divisors = counts.reshape(-1, *[1] * len(row_shape))
            if sums.dtype.kind == "f":
                divisors = divisors.astype(sums.dtype)
            sums = (sums / divisors).astype(sums.dtype, copy=False)
        sizes = self._sizes()
        first = sizes[0] if sizes and sizes[0] is not None else -1
        return SparseGradient(
            rows.astype(np.int64, copy=False), sums, np.array([first, *row_shape])
        )


def _summed(gradients: Sequence[tuple[Array, Array]]) -> tuple[Array, Array, Array]:
    """The distinct indices of gradients in order, the sums of their rows, and how many of the
    gradients have each."""
    indices, values = (np.concatenate(parts) for parts in zip(*gradients, strict=True))
    order = np.argsort(indices, kind="stable")  # so that the gradients of an index are in order
    indices = indices[order]
    is_first = np.ones(len(indices), np.bool_)
    np.not_equal(indices[1:], indices[:-1], out=is_first[1:])
    starts, others = np.flatnonzero(is_first), np.flatnonzero(~is_first)
    counts = np.ones(len(starts), np.int64)
    places = others - np.arange(1, len(others) + 1)  # of their indices among the distinct
    if len(others) > len(starts):
        sums = np.add.reduceat(values[order], starts, axis=0, dtype=values.dtype)
    else:  # most rows are moved once and added to nothing
        sums = values[order[starts]]
        np.add.at(sums, places, values[order[others]])
    if others.size:
        ends = np.cumsum([len(each) for each, _ in gradients])
        numbers = np.searchsorted(ends, order, side="right")  # the gradient that a row is of
        np.add.at(counts, places, numbers[others] != numbers[others - 1])
    return indices[starts], sums, counts
