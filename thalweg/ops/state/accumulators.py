"""Conditional accumulators: average the gradients of several workers once there are enough.

A gradient carries the step it was computed for; one from before the accumulator's own step is
stale and dropped. `take_grad(n)` waits for n gradients, returns their mean (or sum), and begins the
next step.
"""

from __future__ import annotations

from typing import Any

import numpy as np

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
from thalweg.ops.core.context import Context
from thalweg.ops.core.waiting import Done
from thalweg.ops.state.accumulator_state import (
    Accumulator,
    DenseAccumulator,
    SparseAccumulator,
    SparseGradient,
)
from thalweg.platform.arrays import Array
from thalweg.platform.described import described
from thalweg.public import public

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
        result = context.resource(name, self.container, self.make)
        if result.dtype is not self.dtype or result.shape.sizes != self.given_shape.sizes:
            raise errors.invalid(
                f"Shared accumulator '{name}' holds {result.dtype.name} of shape {result.shape}, "
                f"not {self.dtype.name} of shape {self.given_shape}"
            )
        return result


class ConditionalAccumulatorOp(AccumulatorHandle, name="ConditionalAccumulator"):
    """A reference to an accumulator of dense gradients."""

    def make(self) -> Accumulator[Any]:
        return DenseAccumulator(self.dtype, self.given_shape, self.reduction_type)


class SparseConditionalAccumulatorOp(AccumulatorHandle, name="SparseConditionalAccumulator"):
    """A reference to an accumulator of sparse gradients."""

    def make(self) -> Accumulator[Any]:
        return SparseAccumulator(self.dtype, self.given_shape, self.reduction_type)


class AccumulatorOp(Op, abstract=True):
    """An op on an accumulator."""

    stateful = True
    not_differentiable = True
    host_only = True

    def shape(self, *_: Tensor) -> Any:
        return []


class AccumulatorNumAccumulated(AccumulatorOp):
    """The number of accumulated gradients"""

    signature = "handle: &string -> num_accumulated: int32"
    effects = (reads("handle"),)

    def shape(self, *_: Tensor) -> TensorShape:
        return scalar()

    def kernel(self, context: Context, handle: Accumulator[Any]) -> Any:
        return np.int32(handle.count)


class AccumulatorAwait(AccumulatorOp, name="ThalwegAccumulatorAwait"):
    """Waits for a number of gradients, without removing them."""

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
    """Sets the current step; gradients of earlier steps are dropped."""

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


# The public classes


def _as_int64(value: Any) -> Tensor:
    return casting.cast(convert_to_tensor(value), int64)


@public("ConditionalAccumulatorBase")
class ConditionalAccumulatorBase:
    """The methods that dense and sparse accumulators share."""

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
        """The number of accumulated gradients."""
        name = name or f"{self._name}_NumAccumulated"
        return AccumulatorNumAccumulated()(self._accumulator_ref, name=name)

    def await_grads(self, num_required: Any, name: str | None = None) -> Node:
        """Wait for `num_required` gradients, without removing them."""
        return AccumulatorAwait()(self._accumulator_ref, num_required, name=name)

    def set_global_step(self, new_global_step: Any, name: str | None = None) -> Node:
        """Set the current step: gradients of earlier steps are dropped."""
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
        """Add a gradient; it is dropped if `local_step` is before the accumulator's step."""
        gradient = convert_to_tensor(grad, self._dtype)
        gradient.shape.assert_is_compatible_with(self._shape)
        apply = AccumulatorApplyGradient()
        return apply(self._accumulator_ref, _as_int64(local_step), gradient, name=name)

    def take_grad(self, num_required: Any, name: str | None = None) -> Tensor:
        """Wait for `num_required` gradients; returns their mean (or sum)."""
        take = AccumulatorTakeGradient(dtype=self._dtype)
        taken: Tensor = take(self._accumulator_ref, num_required, name=name)
        taken.set_shape(self._shape)
        return taken


@public("SparseConditionalAccumulator", "sparse.SparseConditionalAccumulator")
class SparseConditionalAccumulator(ConditionalAccumulatorBase):
    """Averages sparse gradients, each row over the gradients that contain it."""

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
        """Add the rows `grad_values` at `grad_indices`, unless `local_step` is before the
        accumulator's step."""
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
    """The dtype of an empty shape, from which none can be inferred."""
    return int64 if shape is None or shape == [] else None
