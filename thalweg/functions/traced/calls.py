"""Calls of traced functions in eager code.

A call whose arguments have values runs at once, as one compiled step. Where a tape records, or an
argument is still to be computed, the function's nodes are recorded with the code around it.
The kinds of calls that were made last are cached with their programs (`call_cache`).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, cast

import numpy as np

from thalweg.functions.devices import eager_devices, generation
from thalweg.functions.eager import EAGER
from thalweg.functions.steps import PlannedStep, planned_step
from thalweg.functions.tensors import EagerTensor, known
from thalweg.functions.trace import Reference
from thalweg.graph.convert import convert_to_tensor
from thalweg.graph.dtypes import DType, string
from thalweg.graph.graph import Graph
from thalweg.graph.node import Node, Tensor
from thalweg.graph.op import Op
from thalweg.graph.shapes import TensorShape, unknown_shape
from thalweg.graph.subgraph import Body, inline
from thalweg.ops.core.basic import Placeholder
from thalweg.ops.core.buffer import Buffer
from thalweg.ops.random.random import Random
from thalweg.runtime.fast_path import BoundProgram
from thalweg.runtime.fetches import feed_value
from thalweg.runtime.plan import Step
from thalweg.variables.variable import variable_of


class Expected(NamedTuple):
    """What an argument was: a tensor or an array of a dtype and shape, or a Python value."""

    dtype: Any
    numpy_dtype: Any
    shape: Any
    value: Any


@dataclass(slots=True)
class CallKind:
    """A kind of call: what its arguments must be, what runs it with their arrays and, after them,
    those that were captured, and what that gives."""

    expected: list[Expected]
    run: BoundProgram
    context: Any
    captured: list[Any]
    variables: list[Any]
    dtypes: list[DType]
    shapes: list[TensorShape]
    has_effects: bool
    packed: Any  # how results are packed, where they are more than a tensor
    device: str  # what the scopes around the call ask for


class _Planned(NamedTuple):
    step: PlannedStep
    randoms: list[Node]


class EagerCall:
    """A body, as eager code calls it."""

    def __init__(
        self,
        body: Body,
        captured: Sequence[Tensor],
        packed: Callable[[Sequence[Any], None], Any],
        is_single: bool,
    ) -> None:
        self._body = body
        self._is_single = is_single
        self._captured = [cast("EagerTensor", tensor) for tensor in captured]
        self._packed = packed
        self._has_effects = bool(body.targets)
        self._dtypes = [tensor.dtype.base_dtype for tensor in body.outputs]
        self._references = [t for t in self._captured if t.dtype.is_ref_dtype]
        self._values = [t for t in self._captured if not t.dtype.is_ref_dtype]
        self._variables = [v for v in map(variable_of, self._references) if v is not None]
        #: by the device that the caller's scopes ask for, among those that there were
        self._steps: dict[tuple[int, str], _Planned] = {}

    @property
    def _planned(self) -> _Planned | None:
        """The step as it is called now; None where there is nothing to do."""
        key = generation[0], EAGER.device_name
        found = self._steps.get(key)
        if found is None and (self._body.outputs or self._body.targets):
            found = self._steps[key] = self._plan(key[1])
        return found

    def _plan(self, device: str) -> _Planned:
        graph = Graph()
        with graph.as_default():
            inputs = [_input(graph, tensor) for tensor in self._body.arguments]
            outputs, targets = inline(self._body, inputs)
        feeds = tuple(tensor for tensor in inputs if not tensor.dtype.is_ref_dtype)
        references = [tensor for tensor in inputs if tensor.dtype.is_ref_dtype]
        for tensor, variable in zip(references, self._references, strict=True):
            tensor.op.device = variable.device if eager_devices().has_gpus else ""
        for node in graph.nodes if device else ():
            if not node.device and not (node.inputs and node.inputs[0].dtype.is_ref_dtype):
                node.device = device
        randoms = [node for node in graph.nodes if isinstance(node.op, Random)]
        step = Step(tuple(outputs), tuple(targets), feeds)
        return _Planned(planned_step(step, references, randoms), randoms)

    def __call__(self, tensors: Sequence[Any]) -> Any:
        """The result for these arguments: tensors, arrays or numbers."""
        if EAGER.tapes or any(map(_is_pending, tensors)):
            return self._packed(self._recorded(tensors), None)
        arrays = self._arrays(tensors)
        run_pending_before(self._has_effects)
        planned = self._planned
        if planned is None:
            return self._packed([], None)
        streams = [_stream(node) for node in planned.randoms]
        kept = _kept(tensors, len(arrays))
        results = planned.step.run(arrays, self._cells(), streams, kept)
        made = [_tensor(r, dtype) for r, dtype in zip(results, self._dtypes, strict=True)]
        _label(made, planned.step.devices)
        return self._packed(made, None)

    def _arrays(self, tensors: Sequence[Any]) -> list[Any]:
        given = zip(self._body.arguments, tensors, strict=False)
        arrays = [_array(argument, value) for argument, value in given]
        return [*arrays, *[tensor.held() for tensor in self._values]]

    def _cells(self) -> list[Any]:
        return [tensor.held() for tensor in self._references]

    def kind(self, expected: list[Expected], tensors: Sequence[Any]) -> CallKind | None:
        """What runs calls with arguments like these, which ran before, if native code does."""
        planned = self._planned
        if planned is None or planned.randoms or any(map(_is_pending, tensors)):
            return None
        arrays, path = self._arrays(tensors), planned.step.path
        if path is None or path.cells or path.inputs != list(range(len(arrays))):
            return None
        bound = planned.step.bind(arrays, _kept(tensors, len(arrays)))
        if bound is None:
            return None
        step, cells = planned.step, self._cells()
        return CallKind(
            expected=expected,
            run=bound[0],
            context=step.context,
            captured=arrays[len(tensors) :],
            variables=[cells[number] for number in step.cells],
            dtypes=self._dtypes,
            shapes=[TensorShape.of(shape) for shape in bound[1]],
            has_effects=self._has_effects,
            packed=self._packer(step.devices),
            device=EAGER.device_name,
        )

    def _packer(self, devices: Sequence[str] | None) -> Any:
        """How the results of a kind of call are packed; None for a single tensor of the CPU."""
        if devices is None:
            return None if self._is_single else self._packed

        def pack(tensors: list[EagerTensor], done: None) -> Any:
            _label(tensors, devices)
            return self._packed(tensors, done)

        return pack

    # With the code around it

    def _recorded(self, tensors: Sequence[Any]) -> list[Any]:
        given = [
            convert_to_tensor(value, argument.dtype.base_dtype)
            for value, argument in zip(tensors, self._body.arguments, strict=False)
        ]
        inputs = cast("list[EagerTensor]", [*given, *self._captured])
        templates = [EAGER.template(tensor) for tensor in inputs]
        lazy_trace = EAGER.lazy_trace
        positions = tuple(lazy_trace.position(tensor) for tensor in inputs)
        for variable in self._variables:
            for tape in EAGER.tapes:
                tape.accessed(variable)
        return EAGER.macro((self, positions), lambda: inline(self._body, templates)[0])


def _label(tensors: Sequence[EagerTensor], devices: Sequence[str] | None) -> None:
    """Note where tensors were computed."""
    for tensor, device in zip(tensors, devices or (), strict=False):
        tensor._device = device  # pyright: ignore[reportPrivateUsage] - one mechanism in several files


def _kept(tensors: Sequence[Any], count: int) -> list[int]:
    """Which of the values of a call nobody writes to: of tensors and of what was captured. Arrays
    are the caller's."""
    given = [place for place, value in enumerate(tensors) if isinstance(value, EagerTensor)]
    return [*given, *range(len(tensors), count)]


def run_pending_before(has_effects: bool) -> None:
    """Run what was recorded before a call, where one of them may see what the other does."""
    lazy_trace = EAGER.lazy_trace
    if not lazy_trace.done and (has_effects or lazy_trace.end.effects):
        lazy_trace.finish()


def _input(graph: Graph, tensor: Tensor) -> Tensor:
    """A node for an argument: a variable from outside, or a value that is fed."""
    dtype = tensor.dtype.base_dtype
    is_reference = tensor.dtype.is_ref_dtype
    shape = tensor.shape if is_reference else unknown_shape()
    kind: type[Op] = Reference if is_reference else Placeholder
    op = kind(dtype=dtype, given_shape=shape)
    return graph.add(op, (), [tensor.dtype], [shape], tensor.op.name).outputs[0]


def _is_pending(value: Any) -> bool:
    return type(value) is EagerTensor and value._array is None  # pyright: ignore[reportPrivateUsage] - one mechanism in several files


def _array(argument: Tensor, value: Any) -> Any:
    """The array of an argument."""
    if isinstance(value, EagerTensor):
        return value.located()
    dtype: DType = argument.dtype.base_dtype
    wanted = None if dtype is string else np.dtype(dtype.as_numpy_dtype)
    if type(value) is not np.ndarray or cast("Any", value).dtype != wanted:
        return feed_value(argument, value)
    return cast("Any", value)


def _tensor(result: Any, dtype: DType) -> EagerTensor:
    if isinstance(result, np.ndarray | Buffer):
        return known(cast("Any", result), dtype)
    if isinstance(result, np.generic | bytes | str):
        return known(np.array(result, dtype.as_numpy_dtype), dtype)
    return known(result, dtype, TensorShape([]))  # a list, or the handle of something


def _stream(node: Node) -> Any:
    """The random numbers that a call takes."""
    return EAGER._stream(node.op)  # pyright: ignore[reportPrivateUsage] - one mechanism in several files
