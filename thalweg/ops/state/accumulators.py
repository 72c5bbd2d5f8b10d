"""Conditional accumulators: gradients of several workers, averaged when enough have come.

A gradient carries the step it was computed for; one from before the accumulator's own step is
stale and dropped. `take_grad(n)` waits for n gradients, gives their mean (or sum), and starts the
next step. Waiting takes are served in the order they came.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, Generic, TypeVar

import numpy as np
from numpy.typing import NDArray

from thalweg import errors
from thalweg.graph.analysis.effects import reads
from thalweg.graph.composite import IndexedSlices
from thalweg.graph.convert import convert_to_tensor
from thalweg.graph.dtypes import DType, as_dtype, int64
from thalweg.graph.graph import get_default_graph
from thalweg.graph.node import Node, Tensor
from thalweg.graph.op import Op
from thalweg.graph.shapes import TensorShape, as_shape, scalar, unknown_shape
from thalweg.ops.core import casting
from thalweg.ops.core.context import Cancellation, Context
from thalweg.ops.core.waiting import Done, Stop, waited_for
from thalweg.platform import tf_logging
from thalweg.platform.described import described
from thalweg.public import public

Array = NDArray[Any]
Accumulated = TypeVar("Accumulated")


def _invalid(message: str) -> errors.InvalidArgumentError:
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


# What a session keeps


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
            raise _invalid(f"Argument num_required must be positive, but got {required}")
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
            raise _invalid(f"Shape mismatch: expected {expected}, got {list(shape)}")

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
            raise _invalid(f"Input indices should be vector but received shape: {indices.shape}")
        if np.ndim(values) == 0:
            raise _invalid("Values cannot be 0-dimensional.")
        if len(values) != len(indices):
            raise _invalid(f"Expected {len(indices)} non-empty input values, got {len(values)}")
        if gradient.shape is not None:
            self._check_shape(gradient.shape)
        self._check_limits(indices)
        self._check_values(values)

    def _sizes(self) -> tuple[int | None, ...]:
        return self.shape.sizes or ()

    def _check_shape(self, shape: Array) -> None:
        sizes = self._sizes()
        if len(sizes) > len(shape):
            raise _invalid(
                f"Shape mismatch: expected shape rank at least {len(sizes)}, got {len(shape)}"
            )
        for axis, size in enumerate(sizes):
            if size is not None and size != shape[axis]:
                raise _invalid(
                    f"Shape mismatch: expected shape dim {axis} to be {size}, got {shape[axis]}"
                )

    def _check_limits(self, indices: Array) -> None:
        sizes = self._sizes()
        limit = sizes[0] if sizes else None
        if not indices.size or (indices.min() >= 0 and (limit is None or indices.max() < limit)):
            return
        wrong = np.flatnonzero((indices < 0) | (False if limit is None else indices >= limit))
        raise _invalid(
            f"Shape mismatch: index of slice {wrong[0]} exceeded limits of shape; index "
            f"is {indices[wrong[0]]} exceeded {limit}"
        )

    def _check_values(self, values: Array) -> None:
        if self._row_shape is not None:
            expected: tuple[int | None, ...] = (None, *self._row_shape)
            if len(expected) != values.ndim:
                raise _invalid(
                    f"Shape mismatch: expected values rank {len(expected)}, got {values.ndim}"
                )
        else:
            expected = self._sizes()
            if len(expected) > values.ndim:
                raise _invalid(
                    f"Shape mismatch: expected values rank at least {len(expected)}, got "
                    f"{values.ndim}"
                )
        for axis, size in enumerate(expected):
            if axis > 0 and size is not None and size != values.shape[axis]:
                raise _invalid(
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


# Ops


class AccumulatorHandle(Op, abstract=True):
    """A reference to an accumulator of the session."""

    signature = "-> handle: &string"
    stateful = True
    not_differentiable = True
    host_only = True
    dtype: DType
    given_shape: TensorShape
    container: str = ""
    shared_name: str = ""
    reduction_type: str = "MEAN"

    def shape(self) -> TensorShape:
        return unknown_shape(1)

    def make(self) -> Accumulator[Any]:
        """A new accumulator of this kind."""
        raise TypeError(f"{type(self).__name__} must define make")

    def kernel(self, context: Context) -> Accumulator[Any]:
        name = self.shared_name or context.node.name
        found = context.resource(name, self.container, self.make)
        if found.dtype is not self.dtype or found.shape.sizes != self.given_shape.sizes:
            raise _invalid(
                f"Shared accumulator '{name}' holds {found.dtype.name} of shape {found.shape}, "
                f"not {self.dtype.name} of shape {self.given_shape}"
            )
        return found


class ConditionalAccumulatorOp(AccumulatorHandle, name="ConditionalAccumulator"):
    """A reference to an accumulator of dense gradients."""

    def make(self) -> Accumulator[Any]:
        return DenseAccumulator(self.dtype, self.given_shape, self.reduction_type)


class SparseConditionalAccumulatorOp(AccumulatorHandle, name="SparseConditionalAccumulator"):
    """A reference to an accumulator of sparse gradients."""

    def make(self) -> Accumulator[Any]:
        return SparseAccumulator(self.dtype, self.given_shape, self.reduction_type)


class AccumulatorOp(Op, abstract=True):
    """Acts on an accumulator."""

    stateful = True
    not_differentiable = True
    host_only = True

    def shape(self, *_: Tensor) -> Any:
        return []


class AccumulatorNumAccumulated(AccumulatorOp):
    """How many gradients there are now."""

    signature = "handle: &string -> num_accumulated: int32"
    effects = (reads("handle"),)

    def shape(self, *_: Tensor) -> TensorShape:
        return scalar()

    def kernel(self, context: Context, handle: Accumulator[Any]) -> Any:
        return np.int32(handle.count)


class AccumulatorAwait(AccumulatorOp, name="ThalwegAccumulatorAwait"):
    """Waits until there are enough gradients, and takes none."""

    signature = "handle: &string, num_required: int32 ->"
    blocking = True

    def kernel(self, context: Context, handle: Accumulator[Any], num_required: Array) -> Any:
        handle.await_count(int(num_required), context.cancellation)
        return ()

    def start(
        self, context: Context, done: Done, handle: Accumulator[Any], num_required: Array
    ) -> None:
        handle.start_await(int(num_required), context.cancellation, done)


class AccumulatorSetGlobalStep(AccumulatorOp):
    """Declares the current step."""

    signature = "handle: &string, new_global_step: int64 ->"
    inexpensive = True

    def kernel(self, context: Context, handle: Accumulator[Any], new_global_step: Array) -> Any:
        handle.set_step(int(new_global_step))
        return ()


class AccumulatorApplyGradient(AccumulatorOp):
    """Adds a dense gradient."""

    signature = "handle: &string, local_step: int64, gradient: dtype -> ; dtype: numeric"
    inexpensive = True

    def kernel(
        self, context: Context, handle: DenseAccumulator, local_step: Array, gradient: Array
    ) -> Any:
        handle.apply(int(local_step), gradient)
        return ()


class AccumulatorTakeGradient(AccumulatorOp):
    """The mean (or sum) of the dense gradients, once there are enough."""

    signature = "handle: &string, num_required: int32 -> average: dtype"
    blocking = True
    dtype: DType

    def shape(self, *_: Tensor) -> TensorShape:
        return unknown_shape()

    def kernel(self, context: Context, handle: DenseAccumulator, num_required: Array) -> Array:
        return handle.take(int(num_required), context.cancellation)

    def start(
        self, context: Context, done: Done, handle: DenseAccumulator, num_required: Array
    ) -> None:
        handle.start_take(int(num_required), context.cancellation, done)


class SparseAccumulatorApplyGradient(AccumulatorOp):
    """Adds a sparse gradient."""

    signature = (
        "handle: &string, local_step: int64, gradient_indices: int64, gradient_values: dtype, "
        "gradient_shape: int64 -> ; dtype: numeric"
    )
    inexpensive = True
    has_known_shape: bool

    def kernel(
        self,
        context: Context,
        handle: SparseAccumulator,
        local_step: Array,
        indices: Array,
        values: Array,
        shape: Array,
    ) -> Any:
        known = shape if self.has_known_shape else None
        handle.apply(
            int(local_step), SparseGradient(np.asarray(indices), np.asarray(values), known)
        )
        return ()


class SparseAccumulatorTakeGradient(AccumulatorOp):
    """The mean (or sum) of the sparse gradients, once there are enough."""

    signature = (
        "handle: &string, num_required: int32 -> indices: int64, values: dtype, shape: int64"
    )
    blocking = True
    dtype: DType

    def shape(self, *_: Tensor) -> list[TensorShape]:
        return [unknown_shape(1), unknown_shape(), unknown_shape(1)]

    def kernel(
        self, context: Context, handle: SparseAccumulator, num_required: Array
    ) -> tuple[Any, ...]:
        return handle.take(int(num_required), context.cancellation).parts

    def start(
        self, context: Context, done: Done, handle: SparseAccumulator, num_required: Array
    ) -> None:
        def taken(gradient: SparseGradient | None, error: BaseException | None) -> None:
            done(gradient and gradient.parts, error)

        handle.start_take(int(num_required), context.cancellation, taken)


# What users see


def _as_int64(value: Any) -> Tensor:
    return casting.cast(convert_to_tensor(value), int64)


@public("ConditionalAccumulatorBase")
class ConditionalAccumulatorBase:
    """What dense and sparse accumulators share."""

    def __init__(self, dtype: Any, shape: Any, accumulator_ref: Tensor) -> None:
        self._dtype = as_dtype(dtype)
        self._shape = as_shape(shape)
        self._accumulator_ref = accumulator_ref
        self._name = accumulator_ref.op.name.split("/")[-1]

    def __repr__(self) -> str:
        return described(self, self._name, shape=self._shape, dtype=self._dtype.name)

    @property
    def accumulator_ref(self) -> Tensor:
        """The reference to the accumulator."""
        return self._accumulator_ref

    @property
    def name(self) -> str:
        """The name, without scopes."""
        return self._name

    @property
    def dtype(self) -> DType:
        """The dtype of the gradients."""
        return self._dtype

    def num_accumulated(self, name: str | None = None) -> Tensor:
        """How many gradients are accumulated now."""
        name = name or f"{self._name}_NumAccumulated"
        return AccumulatorNumAccumulated()(self._accumulator_ref, name=name)

    def await_grads(self, num_required: Any, name: str | None = None) -> Node:
        """Wait for `num_required` gradients, and leave them to be taken."""
        return AccumulatorAwait()(self._accumulator_ref, num_required, name=name)

    def set_global_step(self, new_global_step: Any, name: str | None = None) -> Node:
        """Declare the current step: gradients of earlier ones are dropped."""
        step = _as_int64(new_global_step)
        return AccumulatorSetGlobalStep()(self._accumulator_ref, step, name=name)


def _check_reduction(reduction_type: str) -> None:
    if reduction_type not in ("MEAN", "SUM"):
        raise ValueError(f"reduction_type must be 'MEAN' or 'SUM', not {reduction_type!r}")


@public("ConditionalAccumulator")
class ConditionalAccumulator(ConditionalAccumulatorBase):
    """Averages dense gradients: `apply_grad` adds one, `take_grad(n)` waits for n."""

    def __init__(
        self,
        dtype: Any,
        shape: Any = None,
        shared_name: str | None = None,
        name: str = "conditional_accumulator",
        reduction_type: str = "MEAN",
    ) -> None:
        _check_reduction(reduction_type)
        handle = ConditionalAccumulatorOp(
            dtype=as_dtype(dtype),
            given_shape=as_shape(shape),
            container=get_default_graph().container_name,
            shared_name=shared_name or "",
            reduction_type=reduction_type,
        )
        super().__init__(dtype, shape, handle(name=name))

    def apply_grad(self, grad: Any, local_step: Any = 0, name: str | None = None) -> Node:
        """Add a gradient of `local_step`; it is dropped if that step is over."""
        gradient = convert_to_tensor(grad, self._dtype)
        gradient.shape.assert_is_compatible_with(self._shape)
        apply = AccumulatorApplyGradient()
        return apply(self._accumulator_ref, _as_int64(local_step), gradient, name=name)

    def take_grad(self, num_required: Any, name: str | None = None) -> Tensor:
        """Wait for `num_required` gradients and give their mean (or sum)."""
        take = AccumulatorTakeGradient(dtype=self._dtype)
        taken: Tensor = take(self._accumulator_ref, num_required, name=name)
        taken.set_shape(self._shape)
        return taken


@public("SparseConditionalAccumulator", "sparse.SparseConditionalAccumulator")
class SparseConditionalAccumulator(ConditionalAccumulatorBase):
    """Averages sparse gradients, each row over the gradients that have it."""

    def __init__(
        self,
        dtype: Any,
        shape: Any = None,
        shared_name: str | None = None,
        name: str = "sparse_conditional_accumulator",
        reduction_type: str = "MEAN",
    ) -> None:
        _check_reduction(reduction_type)
        handle = SparseConditionalAccumulatorOp(
            dtype=as_dtype(dtype),
            given_shape=as_shape(shape),
            container=get_default_graph().container_name,
            shared_name=shared_name or "",
            reduction_type=reduction_type,
        )
        super().__init__(dtype, shape, handle(name=name))

    def apply_indexed_slices_grad(
        self, grad: IndexedSlices, local_step: Any = 0, name: str | None = None
    ) -> Node:
        """Add a gradient given as IndexedSlices."""
        return self.apply_grad(grad.indices, grad.values, grad.dense_shape, local_step, name)

    def apply_grad(
        self,
        grad_indices: Any,
        grad_values: Any,
        grad_shape: Any = None,
        local_step: Any = 0,
        name: str | None = None,
    ) -> Node:
        """Add rows `grad_values` at `grad_indices`, unless `local_step` is over."""
        shape = convert_to_tensor([] if grad_shape is None else grad_shape, _empty_type(grad_shape))
        apply = SparseAccumulatorApplyGradient(has_known_shape=grad_shape is not None)
        return apply(
            self._accumulator_ref,
            _as_int64(local_step),
            _as_int64(grad_indices),
            convert_to_tensor(grad_values, self._dtype),
            _as_int64(shape),
            name=name,
        )

    def take_grad(self, num_required: Any, name: str | None = None) -> Any:
        """Wait for `num_required` gradients: (indices, values, shape) of their mean (or sum)."""
        take = SparseAccumulatorTakeGradient(dtype=self._dtype)
        return take(self._accumulator_ref, num_required, name=name)

    def take_indexed_slices_grad(self, num_required: Any, name: str | None = None) -> IndexedSlices:
        """As `take_grad`, as IndexedSlices."""
        taken = self.take_grad(num_required, name)
        return IndexedSlices(taken.values, taken.indices, taken.shape)


def _empty_type(shape: Any) -> DType | None:
    """An empty list says nothing of its dtype."""
    return int64 if shape is None or shape == [] else None
