"""The dataflow control primitives: Switch, Merge, Enter, Exit, NextIteration and LoopCond.

`tf.cond` and `tf.while_loop` hold sub-graphs and do not use them. They serve graphs that are built
or imported in this form: a step with such nodes runs on the dataflow executor.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from typing import Any, NoReturn

from thalweg.control.bodies import PlannedOp
from thalweg.control.branches import common_shape
from thalweg.graph.analysis.effects import Resource, writes
from thalweg.graph.composite import IndexedSlices, SparseTensor
from thalweg.graph.convert import convert_to_tensor
from thalweg.graph.dtypes import bool as boolean
from thalweg.graph.likes import DTypeLike, Structure, TensorLike
from thalweg.graph.node import Node, Tensor, operators
from thalweg.graph.op import Op
from thalweg.graph.shapes import TensorShape, scalar
from thalweg.ops.core import basic
from thalweg.ops.math import compare
from thalweg.public import public


class Primitive(PlannedOp, abstract=True):
    """The base of ops that only the dataflow executor can run: they forward values or references,
    or none."""

    host_only = True
    step_local = True


class Switch(Primitive):
    """Forwards the data to the output that the predicate selects; the other one is dead."""

    signature = "data: T, pred: bool -> output_false: T, output_true: T"

    def shape(self, data: Tensor, pred: Tensor) -> list[TensorShape]:
        pred.shape.assert_has_rank(0)
        return [data.shape, data.shape]

    def gradient(self, node: Node, of_false: Any, of_true: Any) -> list[Any]:
        predicate = node.inputs[1]
        switched = [switch(of_false, predicate)[0], switch(of_true, predicate)[1]]
        return [merge(switched)[0], None]


class RefSwitch(Switch):
    """As Switch, for a reference."""

    signature = "data: &T, pred: bool -> output_false: &T, output_true: &T"


class Merge(Primitive):
    """The first live input, and its index."""

    signature = "inputs: N*T -> output: T, value_index: int32"

    def shape(self, inputs: list[Tensor]) -> list[TensorShape]:
        return [common_shape([tensor.shape for tensor in inputs]), scalar()]

    def gradient(self, node: Node, dy: Any, _: Any) -> list[Any]:
        if any(tensor.op.index > node.index for tensor in node.inputs):
            raise LookupError(
                f"No gradient defined through the loop that {node.name} ({node.type}, made at "
                f"{node.origin}) is part of: only loops made by tf.while_loop have gradients"
            )
        was_live = [compare.equal(node.outputs[1], index) for index in range(len(node.inputs))]
        return [switch(dy, predicate)[1] for predicate in was_live]


class RefMerge(Merge):
    """As Merge, for references."""

    signature = "inputs: N*&T -> output: &T, value_index: int32"


class FrameOp(Primitive, abstract=True):
    """The base of ops that forward a token to another frame or iteration."""

    signature = "data: T -> output: T"

    def shape(self, data: Tensor) -> TensorShape:
        return data.shape


class Enter(FrameOp):
    """Forwards the data into a frame: to its first iteration, or to all if it is constant."""

    frame_name: str
    is_constant: bool = False
    parallel_iterations: int = 10


class RefEnter(Enter):
    """As Enter, for a reference."""

    signature = "data: &T -> output: &T"


class Exit(FrameOp):
    """Forwards the data out of its frame."""


class RefExit(Exit):
    """As Exit, for a reference."""

    signature = "data: &T -> output: &T"


class NextIteration(FrameOp):
    """Forwards the data to the next iteration of its frame."""


class RefNextIteration(NextIteration):
    """As NextIteration, for a reference."""

    signature = "data: &T -> output: &T"


class RefIdentity(Op):
    """The same reference."""

    signature = "input: &T -> output: &T"
    effects = ()  # it forwards a reference
    stateful = True  # its referent may change
    host_only = True
    step_local = True

    def shape(self, input: Tensor) -> TensorShape:
        return input.shape

    def numpy(self, input: Any) -> Any:
        return input


class LoopCond(Primitive):
    """The predicate of a loop's Switches."""

    signature = "input: bool -> output: bool"
    not_differentiable = True

    def shape(self, input: Tensor) -> TensorShape:
        input.shape.assert_has_rank(0)
        return scalar()


class ControlTrigger(Primitive):
    """Runs when all its control inputs have run, dead or live."""

    signature = "->"
    not_differentiable = True

    def shape(self) -> list[TensorShape]:
        return []


class Abort(Op):
    """Ends the process."""

    signature = "->"
    effects = (writes(Resource.STEP),)
    stateful = True
    host_only = True
    not_differentiable = True
    error_msg: str = ""
    exit_without_error: bool = False

    def shape(self) -> list[TensorShape]:
        return []

    def kernel(self, context: Any) -> NoReturn:
        if self.exit_without_error:
            os._exit(0)
        print(f"Abort op {context.node.name}: {self.error_msg}", file=sys.stderr, flush=True)
        os.abort()


def update_input(node: Node, index: int, tensor: Tensor) -> None:
    """Replace an input of a Merge by a tensor that may depend on it: builds a loop."""
    if not isinstance(node.op, Merge):
        raise TypeError(f"{node.name} is a {node.type}: only the inputs of a Merge can be changed")
    if tensor.graph is not node.graph:
        raise ValueError(f"{tensor!r} must be from the same graph as {node.name}")
    if tensor.dtype.base_dtype is not node.outputs[0].dtype.base_dtype:
        raise TypeError(
            f"Input {index} of {node.name} has type {node.outputs[0].dtype.name}, and {tensor!r} "
            "another one"
        )
    inputs = list(node.inputs)
    inputs[index] = tensor
    node.graph.reconnect(node, tuple(inputs))
    node.outputs[0].widen_shape(common_shape([value.shape for value in inputs]))


operators["update_input"] = update_input


@public("control.switch")
def switch(
    data: TensorLike | SparseTensor,
    pred: TensorLike,
    dtype: DTypeLike | None = None,
    name: str | None = None,
) -> Structure:
    """The data as (output_false, output_true): the one that `pred` selects is live."""
    if isinstance(data, SparseTensor | IndexedSlices):
        parts = [switch(part, pred) for part in data.components()]
        return Switch.result(*(type(data)(*outputs) for outputs in zip(*parts, strict=True)))
    tensor = convert_to_tensor(data, dtype, name="data", as_ref=_is_reference(data))
    kind = RefSwitch if tensor.dtype.is_ref_dtype else Switch
    return kind()(tensor, convert_to_tensor(pred, boolean, name="pred"), name=name)


@public("control.merge")
def merge(inputs: Sequence[Any], name: str | None = None) -> Structure:
    """The first live input, as (output, value_index)."""
    if any(value is None for value in inputs):
        raise ValueError(f"At least one of the merge inputs is None: {inputs}")
    if all(hasattr(value, "components") for value in inputs):
        rows = zip(*(value.components() for value in inputs), strict=True)
        merged = [merge(row) for row in rows]
        whole = type(inputs[0])(*(value.output for value in merged))
        return Merge.result(whole, merged[0].value_index)
    tensors = [convert_to_tensor(value, as_ref=_is_reference(value)) for value in inputs]
    kind = RefMerge if all(value.dtype.is_ref_dtype for value in tensors) else Merge
    return kind()(tensors, name=name)


@public("control.enter")
def enter(
    data: Any,
    frame_name: str,
    is_constant: bool = False,
    parallel_iterations: int = 10,
    use_ref: bool = True,
    name: str | None = None,
) -> Tensor:
    """Forward the data into the frame of that name; a constant to all of its iterations."""
    tensor = convert_to_tensor(data, as_ref=use_ref and _is_reference(data))
    kind = RefEnter if tensor.dtype.is_ref_dtype and use_ref else Enter
    op = kind(
        frame_name=frame_name, is_constant=is_constant, parallel_iterations=parallel_iterations
    )
    return op(tensor, name=name)


@public("control.exit")
def exit_(data: Any, name: str | None = None) -> Tensor:
    """Forward the data out of its frame."""
    tensor = convert_to_tensor(data)
    return (RefExit() if tensor.dtype.is_ref_dtype else Exit())(tensor, name=name)


@public("control.next_iteration")
def next_iteration(data: Any, name: str | None = None) -> Tensor:
    """Forward the data to the next iteration."""
    tensor = convert_to_tensor(data)
    kind = RefNextIteration if tensor.dtype.is_ref_dtype else NextIteration
    return kind()(tensor, name=name)


@public("control.loop_cond")
def loop_cond(input: Any, name: str | None = None) -> Tensor:
    """The predicate of a loop, for its Switches."""
    return LoopCond()(convert_to_tensor(input, boolean), name=name)


@public("control.control_trigger")
def control_trigger(name: str | None = None) -> Node:
    """A node that runs when all its control inputs have run, also those in branches not taken."""
    return ControlTrigger()(name=name)


@public("control.abort")
def abort(error_msg: str = "", exit_without_error: bool = False, name: str | None = None) -> Node:
    """A node that ends the process, with SIGABRT or with exit status 0."""
    return Abort(error_msg=error_msg, exit_without_error=exit_without_error)(name=name)


def same(data: Any, name: str | None = None) -> Any:
    """The identity of a value or reference."""
    tensor = convert_to_tensor(data, as_ref=_is_reference(data))
    return (RefIdentity() if tensor.dtype.is_ref_dtype else basic.Identity())(tensor, name=name)


def _is_reference(value: Any) -> bool:
    """Whether a value is a variable or a reference to one."""
    if isinstance(value, Tensor):
        return value.dtype.is_ref_dtype
    return hasattr(value, "_ref")
