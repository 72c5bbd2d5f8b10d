"""Calls of traced functions in eager code.

A call whose arguments have values runs immediately, as one compiled step. While a tape records, or
if an argument is pending, the function's nodes are recorded into the lazy trace instead; effects
run immediately unless a tape records. The most recent calls are cached with their programs, by
their arguments without parsing a structure, and the program takes their arrays as they are.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, cast

import numpy as np

from thalweg.functions.devices import eager_devices, generation
from thalweg.functions.eager import EAGER
from thalweg.functions.steps import PlannedStep, add_input, plan_step
from thalweg.functions.tensors import EagerTensor, class_of, known, set_devices
from thalweg.functions.traced.function_graph import Results
from thalweg.graph.convert import convert_to_tensor
from thalweg.graph.dtypes import DType, string
from thalweg.graph.graph import Graph
from thalweg.graph.node import Tensor
from thalweg.graph.shapes import TensorShape
from thalweg.graph.subgraph import Body, inline
from thalweg.ops.core.buffer import Buffer
from thalweg.platform.caches import Bounded
from thalweg.runtime.fast_path import BoundProgram
from thalweg.runtime.fetches import feed_value
from thalweg.variables.variable import variable_of

_MAX_CALLS = 4
_SCALARS = frozenset((int, float, str, bool, type(None)))

MISS: Any = object()  # no cached call matches


@dataclass(slots=True)
class CachedCall:
    """A call as the call cache keeps it: the program, which takes the arguments' arrays and then
    the captured ones, and its results."""

    run: BoundProgram
    context: Any
    captured: list[Any]
    variables: list[Any]
    dtypes: list[DType]
    shapes: list[TensorShape]
    has_effects: bool
    pack: Any  # packs the results on their devices; None for a single tensor without GPUs
    devices: Sequence[str] | None


class EagerCall:
    """A traced body that eager code calls."""

    def __init__(self, body: Body, captured: Sequence[Tensor], results: Results) -> None:
        self._body, self._results = body, results
        self._captured = [cast("EagerTensor", tensor) for tensor in captured]
        self._has_effects = bool(body.targets)
        self._dtypes = [tensor.dtype.base_dtype for tensor in body.outputs]
        self._references = [t for t in self._captured if t.dtype.is_ref_dtype]
        self._values = [t for t in self._captured if not t.dtype.is_ref_dtype]
        self._variables = [v for v in map(variable_of, self._references) if v is not None]
        #: By the generation of the devices, and the device that the caller's scopes request.
        self._steps: dict[tuple[int, str], PlannedStep] = {}

    @property
    def _planned(self) -> PlannedStep | None:
        """The step for the current devices; None if the body computes nothing."""
        key = generation[0], EAGER.device_name
        planned = self._steps.get(key)
        if planned is None and (self._body.outputs or self._body.targets):
            planned = self._steps[key] = self._plan(key[1])
        return planned

    def _plan(self, device: str) -> PlannedStep:
        arguments, has_gpus = self._body.arguments, eager_devices().has_gpus
        devices = [""] * (len(arguments) - len(self._captured))
        devices += [tensor.device if has_gpus else "" for tensor in self._captured]
        graph = Graph()
        with graph.as_default():
            inputs = [add_input(graph, *pair) for pair in zip(arguments, devices, strict=True)]
            outputs, targets = inline(self._body, inputs)
        for node in graph.nodes if device else ():
            if not node.device and not (node.inputs and node.inputs[0].dtype.is_ref_dtype):
                node.device = device
        return plan_step(graph, inputs, outputs, targets)

    def __call__(self, tensors: Sequence[Any]) -> Any:
        """The result for these arguments: tensors, arrays or numbers."""
        if EAGER.tapes or any(map(_is_pending, tensors)):
            outputs = self._record(tensors)
            if self._has_effects and not EAGER.tapes:
                EAGER.flush()
            return self._results.pack(outputs, None)
        arrays = self._arrays(tensors)
        _run_pending_before(self._has_effects)
        planned = self._planned
        if planned is None:
            return self._results.pack([], None)
        streams = [EAGER.stream(node.op) for node in planned.randoms]
        immutable = _immutable_inputs(tensors, len(arrays))
        results = planned.run(arrays, self._cells(), streams, immutable)
        return self._packed(list(map(_result_tensor, results, self._dtypes)), planned.devices)

    def _arrays(self, tensors: Sequence[Any]) -> list[Any]:
        """The arrays of the arguments and then those of the captured values."""
        arrays = map(_feed_array, self._body.arguments, tensors)
        return [*arrays, *[tensor.held() for tensor in self._values]]

    def _cells(self) -> list[Any]:
        return [tensor.held() for tensor in self._references]

    def cached_call(self, tensors: Sequence[Any]) -> CachedCall | None:
        """An entry of the call cache for a call that ran; None if it is not a single program."""
        planned = self._planned
        if planned is None or planned.randoms:
            return None
        arrays, path = self._arrays(tensors), planned.path
        if path is None or path.cells or path.inputs != list(range(len(arrays))):
            return None
        bound = planned.bind(arrays, _immutable_inputs(tensors, len(arrays)))
        if bound is None:
            return None
        cells, pack = self._cells(), None if self._results.is_single else self._results.pack
        return CachedCall(
            run=bound[0],
            context=planned.context,
            captured=arrays[len(tensors) :],
            variables=[cells[number] for number in planned.cells],
            dtypes=self._dtypes,
            shapes=[TensorShape.of(shape) for shape in bound[1]],
            has_effects=self._has_effects,
            pack=self._packed if planned.devices else pack,
            devices=planned.devices,
        )

    def _packed(self, outputs: list[EagerTensor], devices: Sequence[str] | None) -> Any:
        set_devices(outputs, devices)
        return self._results.pack(outputs, None)

    # Recording

    def _record(self, tensors: Sequence[Any]) -> list[Any]:
        """Record the nodes of the body into the current lazy trace."""
        arguments = [
            convert_to_tensor(value, argument.dtype.base_dtype)
            for value, argument in zip(tensors, self._body.arguments, strict=False)
        ]
        inputs = cast("list[EagerTensor]", [*arguments, *self._captured])
        templates = [EAGER.template(tensor) for tensor in inputs]
        lazy_trace = EAGER.lazy_trace
        positions = tuple(lazy_trace.position(tensor) for tensor in inputs)
        for variable in self._variables:
            for tape in EAGER.tapes:
                tape.accessed(variable)
        return EAGER.record_subgraph((self, positions), lambda: inline(self._body, templates)[0])


class CallCache:
    """The most recent calls of a function, by the dtypes, shapes and values of their arguments."""

    def __init__(self) -> None:
        self._calls = Bounded[Any, CachedCall]("calls of a function", _MAX_CALLS)
        self.clear = self._calls.clear  # a new trace may fit better, or one was dropped

    def run(self, args: tuple[Any, ...]) -> Any:
        """The result of a call that is cached; MISS for others."""
        state = EAGER.__dict__  # of this thread: looked up once
        if state["tapes"]:
            return MISS
        arrays: list[Any] = []
        call = self._calls.get(_call_key(args, state["device_name"], arrays))
        if call is None:
            return MISS
        if not state["lazy_trace"].done:
            _run_pending_before(call.has_effects)
        if call.captured:
            arrays += call.captured
        results = call.run(call.context, arrays, call.variables)
        if results is None:
            return MISS  # the reference kernels will raise the error
        if call.pack is None:
            return known(results[0], call.dtypes[0], call.shapes[0])
        return call.pack(list(map(known, results, call.dtypes, call.shapes)), call.devices)

    def add(self, args: tuple[Any, ...], tensors: Sequence[Any], eager: EagerCall) -> None:
        """Cache a call that ran, if its arguments are tensors, arrays and scalars alone."""
        arrays: list[Any] = []
        key = _call_key(args, EAGER.device_name, arrays)
        if key is None or len(arrays) != len(tensors):
            return
        call = eager.cached_call(tensors)
        if call is not None:
            self._calls[key] = call


def _call_key(args: tuple[Any, ...], device: str, arrays: list[Any]) -> Any:
    """The key of a call, whose arrays are appended to `arrays`; None if an argument is pending, or
    anything but a tensor, an array or a scalar."""
    parts: list[Any] = [device]
    for value in args:
        kind = class_of(value)
        if kind is EagerTensor:
            array = value._array  # pyright: ignore[reportPrivateUsage] - one mechanism in several files
            if class_of(array) is not np.ndarray and not isinstance(array, Buffer):
                return None
            parts += array.shape, array.dtype  # not as of arrays, which belong to the caller
            arrays.append(array)
        elif kind is np.ndarray:
            parts += value.dtype, value.shape
            arrays.append(value)
        elif kind in _SCALARS and (value or kind is not float):  # 0.0 == -0.0
            parts += kind, value
        else:
            return None
    return tuple(parts)


def _immutable_inputs(tensors: Sequence[Any], count: int) -> list[int]:
    """The indices of a call's inputs that nobody writes to: tensors and captured values. Arrays
    belong to the caller."""
    arguments = [index for index, value in enumerate(tensors) if isinstance(value, EagerTensor)]
    return [*arguments, *range(len(tensors), count)]


def _run_pending_before(has_effects: bool) -> None:
    """Run pending ops before a call, if they or the call have effects."""
    lazy_trace = EAGER.lazy_trace
    if not lazy_trace.done and (has_effects or lazy_trace.end.path_has_effects):
        lazy_trace.finish()


def _is_pending(value: Any) -> bool:
    return type(value) is EagerTensor and value._array is None  # pyright: ignore[reportPrivateUsage] - one mechanism in several files


def _feed_array(argument: Tensor, value: Any) -> Any:
    """The value of an argument as a feed."""
    if isinstance(value, EagerTensor):
        return value.device_value()
    dtype: DType = argument.dtype.base_dtype
    wanted = None if dtype is string else np.dtype(dtype.as_numpy_dtype)
    if type(value) is not np.ndarray or cast("Any", value).dtype != wanted:
        return feed_value(argument, value)
    return cast("Any", value)


def _result_tensor(result: Any, dtype: DType) -> EagerTensor:
    if isinstance(result, np.ndarray | Buffer):
        return known(cast("Any", result), dtype)
    if isinstance(result, np.generic | bytes | str):
        return known(np.array(result, dtype.as_numpy_dtype), dtype)
    return known(result, dtype, TensorShape([]))  # a list or a handle
