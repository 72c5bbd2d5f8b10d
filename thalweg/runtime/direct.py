"""Steps that are one native program: run without slots, or a context and a cancellation each.

Most steps are variables and one region. Such a step takes the fed values as they come, finds the
program by their shapes, and gives the fetched values: a few microseconds around the program itself.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, cast

import numpy as np

from thalweg.device.cpu.program import Program
from thalweg.graph.node import Node, Tensor
from thalweg.ops.core.context import VariableCell
from thalweg.runtime.cancellation import Cancellation
from thalweg.runtime.compiled import Executable
from thalweg.runtime.kernels import Context
from thalweg.runtime.plan import Plan, Step
from thalweg.runtime.resources import Resources

#: (tensor, value) -> the value as an array the tensor admits; raises where it is not
Convert = Callable[[Tensor, Any], Any]


class DirectStep:
    """A step whose only computation is one region."""

    def __init__(
        self,
        plan: Plan,
        step: Step,
        region: Executable,
        resources: Resources,
        convert: Convert,
        cancellation: Cancellation,
    ) -> None:
        instruction = next(i for i in plan.instructions if i.call is region)
        self._region = region
        self._variables = [tensor.op for tensor in region.region.references]
        self._resources, self._version = resources, -1
        self._cells: list[VariableCell] = []
        self._feeds = step.feeds
        self.feed_count = len(step.feeds)
        self._dtypes = [_dtype(tensor) for tensor in step.feeds]
        places = {tensor: place for place, tensor in enumerate(step.feeds)}
        self._inputs = [places[tensor] for tensor in region.region.inputs]
        self._in_order = self._inputs == list(range(len(step.feeds)))
        self._fetches = [slot - instruction.output for slot in plan.fetches]
        self._convert = convert
        self._context = Context(instruction.node, resources, cancellation)

    def run(self, values: Sequence[Any]) -> list[Any]:
        """The fetched values of a step with these feeds."""
        arrays = self._arrays(values) if values else values
        if self._version != self._resources.version:
            self._look_up()
        context, cells = self._context, self._cells
        step = self._region.steps.get(tuple([array.shape for array in arrays]))
        results = None
        if type(step) is Program:
            results = step(context, arrays, cells)
        else:  # shapes not seen before, or not to be compiled as one
            for tensor, value in zip(self._feeds, values, strict=True):
                self._convert(tensor, value)
        if results is None:
            with np.errstate(all="ignore"):
                results = self._region.run(context, arrays, cells)
        return [_fresh(results[place]) for place in self._fetches]

    def _arrays(self, values: Sequence[Any]) -> list[Any]:
        """The region's inputs, as arrays."""
        arrays = [
            value
            if type(value) is np.ndarray and value.dtype is dtype
            else self._array(value, dtype, tensor)
            for value, dtype, tensor in zip(values, self._dtypes, self._feeds, strict=True)
        ]
        return arrays if self._in_order else [arrays[place] for place in self._inputs]

    def _array(self, value: Any, dtype: Any, tensor: Tensor) -> Any:
        """A fed value as an array; numbers, which many steps are fed, the short way."""
        is_number = type(value) is float and dtype.kind == "f"
        if is_number or (isinstance(value, np.generic) and cast("Any", value).dtype is dtype):
            return np.array(value, dtype)
        return self._convert(tensor, value)

    def _look_up(self) -> None:
        """The cells of the variables, which stay the same until something is forgotten."""
        self._version = self._resources.version
        self._cells = [node.op.kernel(self._context.at(node)) for node in self._variables]


def direct_step(
    plan: Plan, step: Step, resources: Resources, convert: Convert, cancellation: Cancellation
) -> DirectStep | None:
    """The step as a direct one, if it is one region over variables and feeds.

    All its runs share a cancellation, which has them stop for good.
    """
    compiled = [i for i in plan.instructions if isinstance(i.call, Executable)]
    if len(compiled) != 1 or plan.may_block:
        return None
    region: Executable = compiled[0].call  # pyright: ignore[reportAssignmentType] - seen above
    others = [i.node for i in plan.instructions if i.call is not region]
    variables = {tensor.op for tensor in region.region.references}
    made = range(compiled[0].output, compiled[0].output + compiled[0].output_count)
    if any(node not in variables for node in others) or any(s not in made for s in plan.fetches):
        return None
    if not set(step.feeds).issuperset(region.region.inputs):
        return None
    if any(not _is_source(tensor.op) for tensor in region.region.references):
        return None
    if any(_dtype(tensor) is None for tensor in step.feeds):
        return None
    return DirectStep(plan, step, region, resources, convert, cancellation)


def _is_source(node: Node) -> bool:
    return not node.inputs and node.op.has("kernel")


def _dtype(tensor: Tensor) -> Any:
    """The dtype of arrays that may be fed as they are."""
    base = tensor.dtype.base_dtype
    return None if base.is_quantized else np.dtype(base.as_numpy_dtype)


def _fresh(item: Any) -> Any:
    """A fetched value the caller may keep: results are fresh already, variables are copied."""
    if type(item) is np.ndarray:
        return item if item.ndim else item[()]
    return item.snapshot() if isinstance(item, VariableCell) else item
