"""Calls of traced functions in eager code.

A call whose arguments have values runs immediately, as one compiled step. While a tape records, or
if an argument is pending, the function's nodes are recorded into the lazy trace instead. The most
recent calls are cached with their programs: arguments are compared with the expected ones one by
one, without parsing their structure, and the program takes their arrays as they are.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, cast

import numpy as np

from thalweg.functions.devices import eager_devices, generation
from thalweg.functions.eager import EAGER
from thalweg.functions.steps import PlannedStep, add_input, plan_step
from thalweg.functions.tensors import EagerTensor, known, set_devices
from thalweg.graph.convert import convert_to_tensor
from thalweg.graph.dtypes import DType, string
from thalweg.graph.graph import Graph
from thalweg.graph.node import Tensor
from thalweg.graph.shapes import TensorShape
from thalweg.graph.subgraph import Body, inline
from thalweg.ops.core.buffer import Buffer
from thalweg.runtime.fast_path import BoundProgram
from thalweg.runtime.fetches import feed_value
from thalweg.variables.variable import variable_of

_MAX_CALLS = 4
_SCALARS = (int, float, str, bool, type(None))

MISS: Any = object()  # no cached call matches


class ExpectedArgument(NamedTuple):
    """An argument of a cached call: a tensor or array of a dtype and shape, or a Python value."""

    dtype: Any
    numpy_dtype: Any
    shape: Any
    value: Any


@dataclass(slots=True)
class CachedCall:
    """A call as the call cache keeps it: the expected arguments, the program, which takes the
    arguments' arrays and then the captured ones, and its results."""

    expected: list[ExpectedArgument]
    run: BoundProgram
    context: Any
    captured: list[Any]
    variables: list[Any]
    dtypes: list[DType]
    shapes: list[TensorShape]
    has_effects: bool
    pack: Any  # packs the results; None for a single tensor
    device: str  # requested by the scopes around the call


class EagerCall:
    """A traced body that eager code calls."""

    def __init__(
        self,
        body: Body,
        captured: Sequence[Tensor],
        pack: Callable[[Sequence[Any], None], Any],
        is_single: bool,
    ) -> None:
        self._body = body
        self._is_single = is_single
        self._captured = [cast("EagerTensor", tensor) for tensor in captured]
        self._pack = pack
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
            return self._pack(self._record(tensors), None)
        arrays = self._arrays(tensors)
        _run_pending_before(self._has_effects)
        planned = self._planned
        if planned is None:
            return self._pack([], None)
        streams = [EAGER.stream(node.op) for node in planned.randoms]
        immutable = _immutable_inputs(tensors, len(arrays))
        results = planned.run(arrays, self._cells(), streams, immutable)
        outputs = list(map(_result_tensor, results, self._dtypes))
        set_devices(outputs, planned.devices)
        return self._pack(outputs, None)

    def _arrays(self, tensors: Sequence[Any]) -> list[Any]:
        """The arrays of the arguments and then those of the captured values."""
        arrays = map(_feed_array, self._body.arguments, tensors)
        return [*arrays, *[tensor.held() for tensor in self._values]]

    def _cells(self) -> list[Any]:
        return [tensor.held() for tensor in self._references]

    def cached_call(
        self, expected: list[ExpectedArgument], tensors: Sequence[Any]
    ) -> CachedCall | None:
        """An entry of the call cache for a call that ran; None if it is not a single program."""
        planned = self._planned
        if planned is None or planned.randoms or any(map(_is_pending, tensors)):
            return None
        arrays, path = self._arrays(tensors), planned.path
        if path is None or path.cells or path.inputs != list(range(len(arrays))):
            return None
        bound = planned.bind(arrays, _immutable_inputs(tensors, len(arrays)))
        if bound is None:
            return None
        cells = self._cells()
        return CachedCall(
            expected=expected,
            run=bound[0],
            context=planned.context,
            captured=arrays[len(tensors) :],
            variables=[cells[number] for number in planned.cells],
            dtypes=self._dtypes,
            shapes=[TensorShape.of(shape) for shape in bound[1]],
            has_effects=self._has_effects,
            pack=self._packer(planned.devices),
            device=EAGER.device_name,
        )

    def _packer(self, devices: Sequence[str] | None) -> Any:
        """Packs the results of a cached call; None for a single tensor without GPUs."""
        if devices is None:
            return None if self._is_single else self._pack

        def pack(tensors: list[EagerTensor], done: None) -> Any:
            set_devices(tensors, devices)
            return self._pack(tensors, done)

        return pack

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
        self._calls: list[CachedCall] = []

    def clear(self) -> None:
        """Drop all: a new trace may fit better, or one was dropped."""
        self._calls = []

    def run(self, args: tuple[Any, ...]) -> Any:
        """The result of a call that is cached; MISS for others."""
        state = EAGER.__dict__  # of this thread: looked up once
        if state["tapes"]:
            return MISS
        device = state["device_name"]
        for call in self._calls:
            if call.device is not device:
                continue
            arrays = _match(call, args)
            if arrays is None:
                continue
            if not state["lazy_trace"].done:
                _run_pending_before(call.has_effects)
            if call.captured:
                arrays += call.captured
            results = call.run(call.context, arrays, call.variables)
            if results is None:
                return MISS  # the reference kernels will raise the error
            if call.pack is None:
                return known(results[0], call.dtypes[0], call.shapes[0])
            return call.pack(list(map(known, results, call.dtypes, call.shapes)), None)
        return MISS

    def add(self, args: tuple[Any, ...], tensors: Sequence[Any], eager: EagerCall) -> None:
        """Cache a call that ran, if its arguments are tensors, arrays and scalars alone."""
        expected = [argument for argument in map(_expected, args) if argument is not None]
        arrays = [argument for argument in expected if argument.numpy_dtype is not None]
        if len(expected) != len(args) or len(arrays) != len(tensors):
            return
        call = eager.cached_call(expected, tensors)
        if call is not None:
            self._calls = [call, *self._calls][:_MAX_CALLS]


def _expected(value: Any) -> ExpectedArgument | None:
    if isinstance(value, EagerTensor):
        held = value.device_value()
        if not isinstance(held, np.ndarray | Buffer):
            return None
        array = cast("Any", held)
        return ExpectedArgument(value.dtype, array.dtype, array.shape, None)
    if type(value) is np.ndarray:
        array = cast("np.ndarray[Any, Any]", value)
        return ExpectedArgument(None, array.dtype, array.shape, None)
    if type(value) not in _SCALARS or (type(value) is float and value == 0):
        return None  # 0.0 == -0.0
    return ExpectedArgument(None, None, None, value)


def _match(call: CachedCall, args: tuple[Any, ...]) -> list[Any] | None:
    """The arrays of the arguments; None if they are not as the call expects."""
    if len(args) != len(call.expected):
        return None
    arrays: list[Any] = []
    for value, expected in zip(args, call.expected):  # noqa: B905 - lengths are equal, as checked above
        if type(value) is EagerTensor:
            if value.dtype is not expected.dtype:
                return None
            value = value._array  # pyright: ignore[reportPrivateUsage] - one mechanism in several files
            if value is None or value.shape != expected.shape:
                return None
            arrays.append(value)
        elif type(value) is np.ndarray:
            if value.dtype is not expected.numpy_dtype or value.shape != expected.shape:
                return None
            arrays.append(value)
        elif (
            expected.numpy_dtype is not None
            or type(value) is not type(expected.value)
            or value != expected.value
        ):
            return None
    return arrays


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
