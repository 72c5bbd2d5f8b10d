"""Functions of a pipeline: traced to a sub-graph, planned once, called for each element.

Outer tensors are captured by value when the iterator is created, variables by reference: each call
reads their current values.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Collection, Iterator, Sequence
from typing import Any, NamedTuple, cast

import numpy as np

from thalweg import errors
from thalweg.control.bodies import close_bodies, trace_body
from thalweg.data import structure
from thalweg.data.columns import as_array
from thalweg.data.flow import Element, Pipeline, Run, Stage
from thalweg.device.local import local_devices
from thalweg.functions.tensors import EagerTensor
from thalweg.functions.trace import Reference
from thalweg.graph.analysis.node_effects import inner_nodes
from thalweg.graph.composite import SparseTensorValue
from thalweg.graph.graphdef.attributes import FunctionName
from thalweg.graph.graphdef.functions import Lambda
from thalweg.graph.node import Node, Tensor
from thalweg.graph.subgraph import Body
from thalweg.ops.core.basic import Identity
from thalweg.ops.core.context import VariableCell
from thalweg.ops.random.random import Random
from thalweg.ops.state.state import VariableV2
from thalweg.runtime.cancellation import Cancellation
from thalweg.runtime.engine import COMPILES
from thalweg.runtime.fast_path import FastPath, fast_path
from thalweg.runtime.kernels import Context, run
from thalweg.runtime.plan import Plan, Step, plan

#: Functions are compiled for one thread: the thread pool is for steps.
_THREADS = 1


class TracedFunction:
    """A user's function traced to a body, with the spec of its results."""

    def __init__(self, function: Callable[..., Any], holder: str, *specs: Any) -> None:
        if not callable(function):
            raise TypeError(f"a function of elements is needed, not {function!r}")
        kinds = [kind for spec in specs for kind in structure.all_kinds(spec)]
        self.spec: Any = None

        def call(*tensors: Tensor) -> Any:
            rest = iter(tensors)
            packed = [_packed(spec, rest) for spec in specs]
            arguments = [part for each in packed for part in unpacked(each)]
            result = function(*(arguments if len(specs) == 1 else packed))
            return self._flat(result)

        (body,), self.captured = close_bodies(
            [trace_body(call, holder, kinds, is_control_flow=False)]
        )
        outside = [t for t in body.arguments[len(kinds) :] if t.dtype.is_ref_dtype]
        for node in _taking_references(body, outside):
            raise ValueError(
                f"{holder} runs {node.name!r} ({node.type}, made at {node.origin}) on a reference "
                "from outside: a variable, a queue or a reader. The functions of a pipeline take "
                "values, also those of variables: run this op in a step, or before the pipeline"
            )
        cells = tuple(_eager_cell(tensor) for tensor in self.captured)
        self.function = Lambda(body, sparse_leaves(self.spec), cells)

    def _flat(self, result: Any) -> list[Tensor]:
        if result is None:
            raise TypeError("the function returned None; it must return what an element becomes")
        # A returned list is treated as a tuple: it usually holds the outputs of an op.
        given = tuple(cast("list[Any]", result)) if isinstance(result, list) else result
        converted = structure.converted(given)
        self.spec = structure.map_structure(structure.spec_of, converted)
        return structure.tensors_of(converted)


def _taking_references(body: Body, references: Collection[Tensor]) -> Iterator[Node]:
    """The nodes that run on one of these references, also in the bodies of nodes."""
    for node in inner_nodes(body) if references else ():
        for inner in node.op.bodies:
            bound = inner.bound(node)
            yield from _taking_references(inner, [t for t in bound if bound[t] in references])
        pairs = zip(node.inputs, node.takes_references(), strict=True)
        if not node.op.bodies and any(is_ref and t in references for t, is_ref in pairs):
            yield node


def _packed(spec: Any, tensors: Iterator[Tensor]) -> Any:
    leaves = [structure.leaf_of(leaf, tensors) for leaf in structure.flatten(spec)]
    return structure.pack(spec, leaves)


def unpacked(element: Any) -> Sequence[Any]:
    """The arguments of a function for an element: the parts of a plain tuple, or the element."""
    return cast("Sequence[Any]", element) if type(element) is tuple else (element,)


class Function:
    """A function and its captured values."""

    def __init__(self, function: str, captured: Sequence[Any]) -> None:
        if not isinstance(function, Lambda):
            raise errors.FailedPreconditionError(
                None, None, f"{function!r} is the name of a function that this graph does not have"
            )
        self.body = function.body
        self.sparse = function.sparse
        cells = function.cells or [None] * len(captured)
        pairs = zip(cells, captured, strict=True)
        self.captured = tuple(value if cell is None else cell for cell, value in pairs)

    def bound(self, run: Run, node: Node) -> Call:
        """The function bound to the state of one iterator."""
        return Call(self, run, node)


class FunctionStage(Stage, abstract=True):
    """The base of stages with a function. The captured values are the op's second input."""

    f: FunctionName

    def kernel(self, context: Context, source: Any, captured: list[Any], *others: Any) -> Any:
        function = Function(self.f, captured_values(context, 1, captured))
        return Pipeline(self, context.node, (source, function, *others))


def captured_values(context: Context, start: int, values: Sequence[Any]) -> list[Any]:
    """The captured values of a function, which are the inputs from `start` on; variables as
    cells."""
    tensors = context.node.inputs[start : start + len(values)]
    return [_cell(context, tensor, value) for tensor, value in zip(tensors, values, strict=True)]


def _cell(context: Context, tensor: Tensor, value: Any) -> Any:
    """The cell of a variable if the tensor is one or only reads it; else the value."""
    node = tensor.op
    if isinstance(node.op, Identity) and not node.control_inputs:
        node = node.inputs[0].op
    is_variable = isinstance(node.op, VariableV2 | Reference)
    return node.op.kernel(context.at(node)) if is_variable else value


def _eager_cell(tensor: Tensor) -> VariableCell | None:
    held = tensor.held() if isinstance(tensor, EagerTensor) and tensor.dtype.is_ref_dtype else None
    return held if isinstance(held, VariableCell) else None


def sparse_leaves(spec: Any) -> tuple[bool, ...]:
    """Which leaves are sparse."""
    return tuple(isinstance(leaf, structure.SparseTensorSpec) for leaf in structure.flatten(spec))


class PlannedBody(NamedTuple):
    """A body, ready to run: its outputs are arguments or results of the plan."""

    plan: Plan
    path: FastPath | None
    outputs: list[int]  # among the arguments, then the results
    are_results: bool  # the outputs are the results


_plans: weakref.WeakKeyDictionary[Body, PlannedBody] = weakref.WeakKeyDictionary()


def planned(body: Body) -> PlannedBody:
    """The plan of a body's outputs, given its arguments."""
    known = _plans.get(body)
    if known is None:
        computed = tuple(t for t in dict.fromkeys(body.outputs) if t not in body.arguments)
        step = Step(computed, (), body.arguments)
        made = plan(step, local_devices({}, _THREADS), compiled=COMPILES)
        path = fast_path(made)
        order = [*body.arguments, *computed]
        outputs = [order.index(tensor) for tensor in body.outputs]
        path = None if path is None or path.references else path
        are_results = body.outputs == computed
        known = _plans[body] = PlannedBody(made, path, outputs, are_results)
    return known


class Call:
    """A function, ready to be called by one iterator: (values of an element) -> values."""

    def __init__(self, function: Function, run: Run, node: Node) -> None:
        self._plan, self._path, self._outputs, self._are_results = planned(function.body)
        self._captured = function.captured
        self._has_cells = any(isinstance(value, VariableCell) for value in function.captured)
        self._sparse = function.sparse if any(function.sparse) else ()
        self._context = Context(node, run.resources, Cancellation())
        self._is_random = is_random(function.body)
        self.node = node

    def __call__(self, *element: Any) -> Element:
        return self.leaves(self.flat(*element))

    def flat(self, *element: Any) -> list[Any]:
        """Call the function; returns its results as a flat list of tensors."""
        captured = self._captured
        if self._has_cells:
            captured = [v.read() if isinstance(v, VariableCell) else v for v in captured]
        values, path, results = [*tensors_of(element), *captured], self._path, None
        if path is not None:
            results = path.run(self._context, [values[place] for place in path.inputs], ())
        return self._joined(values, self._run_plan(values) if results is None else results)

    def _joined(self, values: Sequence[Any], results: list[Any]) -> list[Any]:
        """The outputs, some of which may be arguments that the function returns unchanged."""
        if self._are_results:
            return results
        every = [*values, *results]
        return [every[place] for place in self._outputs]

    @property
    def supports_rows(self) -> bool:
        """Whether `run_rows` is supported: a call depends only on the element and constants."""
        count = len(self._plan.feeds)
        of_captured = range(count - len(self._captured), count)
        return (
            self._path is not None
            and not (self._has_cells or self._sparse or self._is_random)
            and not any(place in of_captured for place in self._outputs)
        )

    def run_rows(self, *columns: Any) -> Element:
        """Call the function for each row of the columns and stack the results; raises if a row
        needs the reference kernels."""
        values, path = [*columns, *self._captured], cast("FastPath", self._path)
        is_row = [place < len(columns) for place in path.inputs]
        arrays = [values[place] for place in path.inputs]
        results = path.run_rows(arrays, is_row, len(columns[0]))
        if results is None:
            raise errors.UnavailableError(None, None, "a row needs the reference kernels")
        return tuple(self._joined(values, results))

    def _run_plan(self, values: list[Any]) -> list[Any]:
        slots = self._plan.slots(values)
        # A cancellation of its own: the error of an element does not cancel the elements after it.
        run(self._plan.instructions, slots, self._context.resources, Cancellation())
        return [slots[slot] for slot in self._plan.fetches]

    def leaves(self, tensors: Sequence[Any]) -> Element:
        """The results, one value per leaf."""
        if not self._sparse:
            return tuple(tensors)
        rest = iter(tensors)
        return tuple(
            SparseTensorValue(next(rest), next(rest), next(rest)) if is_sparse else next(rest)
            for is_sparse in self._sparse
        )

    @property
    def holds_gil(self) -> bool:
        """Whether a call is shorter than a switch to another thread."""
        path = self._path
        return not self._plan.instructions if path is None else path.executable.holds_gil


_SPECIAL = frozenset((SparseTensorValue, bytes))


def tensors_of(element: Sequence[Any]) -> Sequence[Any]:
    """The tensors of the leaves of an element."""
    if _SPECIAL.isdisjoint(map(type, element)):
        return element
    flat: list[Any] = []
    for value in element:
        if isinstance(value, SparseTensorValue):
            flat += value
        else:
            flat.append(as_array(value) if isinstance(value, bytes) else value)
    return flat


def is_random(body: Body) -> bool:
    """Whether a body draws random numbers: its calls must then be sequential."""
    return any(_draws(node) or any(map(is_random, _bodies(node))) for node in body.graph.nodes)


def _draws(node: Node) -> bool:
    return isinstance(node.op, Random) or node.op.has("stream")


def _bodies(node: Node) -> list[Body]:
    function = getattr(node.op, "f", None)
    inner = [function.body] if isinstance(function, Lambda) else []
    return [*node.op.bodies, *inner]


def as_bool(value: Any) -> bool:
    """A predicate's result."""
    return bool(np.asarray(value))
