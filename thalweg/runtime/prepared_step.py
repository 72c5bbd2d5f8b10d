"""A step of a session whose fetches and feeds need not be looked at again.

Comes in: the fed values, in order. Goes out: the fetched values. Where the step has a fast path,
the values are taken as they come and the variables are looked up once: a few microseconds around
the program itself.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, cast

import numpy as np

from thalweg.graph.node import Tensor
from thalweg.ops.core.context import VariableCell
from thalweg.runtime.cancellation import Cancellation
from thalweg.runtime.fast_path import FastPath, fast_path
from thalweg.runtime.fetches import feed_value
from thalweg.runtime.kernels import Context
from thalweg.runtime.plan import Plan, Step
from thalweg.runtime.resources import Resources

#: (plan, feeds as arrays) -> the fetched values
Execute = Callable[[Plan, Sequence[Any]], list[Any]]


class PreparedStep:
    """A planned step of a session."""

    def __init__(
        self,
        plan: Plan,
        step: Step,
        execute: Execute,
        resources: Resources,
        cancellation: Cancellation | None,
    ) -> None:
        """Without a cancellation, which stops all runs for good, there is no fast path."""
        self._plan, self._execute = plan, execute
        self._feeds = [(tensor, _array_dtype(tensor)) for tensor in step.feeds]
        self.feed_count = len(step.feeds)
        self._resources, self._version = resources, -1
        self._cells: list[VariableCell] = []
        self._path = None if cancellation is None else _path_of(plan, step)
        if self._path is not None and cancellation is not None:
            self._context = Context(self._path.node, resources, cancellation)
            self._takes_all = self._path.inputs == list(range(len(step.feeds)))

    def run(self, values: Sequence[Any]) -> list[Any]:
        """The fetched values of a step with these feeds."""
        path = self._path
        if path is None:
            return self._run_plan(values)
        arrays = self._arrays(values, path) if values else values
        if self._version != self._resources.version:
            self._look_up(path)
        results = path.run(self._context, arrays, self._cells)
        if results is None:
            return self._run_plan(values)
        for place in path.cells:
            results[place] = results[place].snapshot()
        return results

    def _run_plan(self, values: Sequence[Any]) -> list[Any]:
        pairs = zip(self._feeds, values, strict=True)
        return self._execute(
            self._plan, [feed_value(tensor, value) for (tensor, _), value in pairs]
        )

    def _arrays(self, values: Sequence[Any], path: FastPath) -> list[Any]:
        """The region's inputs, as arrays."""
        arrays = [
            value if type(value) is np.ndarray and value.dtype is feed[1] else _array(value, *feed)
            for value, feed in zip(values, self._feeds, strict=True)
        ]
        return arrays if self._takes_all else [arrays[place] for place in path.inputs]

    def _look_up(self, path: FastPath) -> None:
        """The cells of the variables, which stay the same until something is forgotten."""
        self._version = self._resources.version
        variables = [tensor.op for tensor in path.references]
        self._cells = [node.op.kernel(self._context.at(node)) for node in variables]


def _path_of(plan: Plan, step: Step) -> FastPath | None:
    path = fast_path(plan, step.feeds)
    has_cells = path is not None and all(tensor.op.op.has("kernel") for tensor in path.references)
    return path if has_cells else None


def _array_dtype(tensor: Tensor) -> Any:
    """The dtype of arrays that may be fed as they are; None where there are none such."""
    base = tensor.dtype.base_dtype
    return None if base.is_quantized else np.dtype(base.as_numpy_dtype)


def _array(value: Any, tensor: Tensor, dtype: Any) -> Any:
    """A fed value as an array; numbers, which many steps are fed, by a shortcut."""
    is_number = type(value) is float and dtype is not None and dtype.kind == "f"
    if is_number or (isinstance(value, np.generic) and cast("Any", value).dtype is dtype):
        return np.array(value, dtype)
    return feed_value(tensor, value)
