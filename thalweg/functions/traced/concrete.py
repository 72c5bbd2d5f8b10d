"""Concrete functions: a Python function traced for arguments of known dtypes and shapes.

`trace` calls the function once, on symbolic arguments. A `ConcreteFunction` holds the resulting
body: a call in graph code inlines it, a call in eager code runs it as one step.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, cast

import numpy as np

from thalweg.control.traces import capture
from thalweg.functions.devices import eager_devices, generation
from thalweg.functions.eager import EAGER
from thalweg.functions.lazy_trace import LazyTrace, as_array
from thalweg.functions.steps import PlannedStep, add_input
from thalweg.functions.tensors import EagerTensor, known, set_devices
from thalweg.functions.traced.function_graph import FunctionGraph, Results
from thalweg.functions.traced.signature import (
    Arguments,
    IdentityKey,
    Parameters,
    TensorKind,
    arguments_of,
    is_tensor,
    replace_tensors,
)
from thalweg.functions.traced.tensor_spec import TensorSpec
from thalweg.graph import nest
from thalweg.graph.convert import convert_to_tensor
from thalweg.graph.dtypes import DType, string
from thalweg.graph.graph import Graph, get_default_graph
from thalweg.graph.node import Node, Tensor
from thalweg.graph.shapes import TensorShape
from thalweg.graph.subgraph import Body, SubGraph, inline
from thalweg.ops.core import basic
from thalweg.runtime.fetches import feed_value
from thalweg.variables.variable import Variable, variable_of

MISS: Any = object()  # no cached call matches


#: Runs a call: (arrays of the arguments, the current lazy trace) -> the result, or MISS
CachedCall = Callable[[list[Any], LazyTrace], Any]


@dataclass(eq=False, repr=False)
class ConcreteFunction:
    """A function, traced for one signature."""

    name: str
    parameters: Parameters
    signature: Arguments  # those that it was traced for, with specs in place of tensors
    body: Body
    results: Results

    def __post_init__(self) -> None:
        self.captured_inputs = tuple(self.graph.captures)
        self._graphs = {t.graph for t in self.captured_inputs}
        self._dtypes = [tensor.dtype.base_dtype for tensor in self.body.outputs]
        self._references: list[Any] = [t for t in self.captured_inputs if t.dtype.is_ref_dtype]
        self._values: list[Any] = [t for t in self.captured_inputs if not t.dtype.is_ref_dtype]
        #: By the generation of the devices, and the device that the caller's scopes request.
        self._steps: dict[tuple[int, str], PlannedStep] = {}

    # Properties

    @property
    def graph(self) -> FunctionGraph:
        """The graph of the function."""
        graph = self.body.graph
        assert isinstance(graph, FunctionGraph)
        return graph

    @property
    def inputs(self) -> list[Tensor]:
        """The tensors of the graph for arguments, and then for captured tensors."""
        return list(self.body.arguments)

    @property
    def outputs(self) -> list[Tensor]:
        """The tensors of the graph that are returned, as a flat list."""
        return list(self.body.outputs)

    @property
    def structured_outputs(self) -> Any:
        """The function's result, with tensors of its graph."""
        return self.results.pack(self.body.outputs, None)

    @property
    def structured_input_signature(self) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """The arguments it was traced for: specs for tensors, and Python values."""
        given = self.signature.bound.items()
        bound = {name: nest.map_structure(_dereference, value) for name, value in given}
        return self.parameters.split(bound)

    @property
    def variables(self) -> tuple[Variable, ...]:
        """The variables that the function reads or writes."""
        return tuple(v for v in map(variable_of, self._references) if v is not None)

    @property
    def trainable_variables(self) -> tuple[Any, ...]:
        """The trainable ones of its variables."""
        return tuple(v for v in self.variables if v.trainable)

    def __repr__(self) -> str:
        return f"<tf.ConcreteFunction {self}>"

    def __str__(self) -> str:
        given = self.signature.bound.items()
        arguments = ", ".join(f"{name}={_spec_text(value)}" for name, value in given)
        outputs = ", ".join(f"{t.dtype.base_dtype.name}{t.shape}" for t in self.body.outputs)
        return f"{self.name}({arguments}) -> {outputs or 'nothing'}"

    # Calls

    def is_usable(self, graph: Graph) -> bool:
        """Whether the captured tensors can be used in a graph."""
        return all(
            source is graph or (isinstance(graph, SubGraph) and graph.sees(source))
            for source in self._graphs
        )

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Call with arguments of the traced signature; Python values may be omitted."""
        arguments = self.parameters.bind_partial(args, kwargs)
        tensors: list[Any] = []
        for name, wanted in self.signature.bound.items():
            tensors += _match_argument(name, wanted, arguments.get(name, wanted))
        return self.call(tensors)

    def call(self, tensors: Sequence[Any]) -> Any:
        """Call with the flat list of tensors (or arrays) of the arguments."""
        return self._run(tensors) if get_default_graph() is EAGER else self._inline(tensors)

    def _inputs(self, tensors: Sequence[Any]) -> list[Any]:
        """The arguments as tensors, and then the captured tensors."""
        dtypes = [argument.dtype.base_dtype for argument in self.body.arguments]
        return [*map(convert_to_tensor, tensors, dtypes), *self.captured_inputs]

    def _inline(self, tensors: Sequence[Any]) -> Any:
        """Inline the body in the current graph."""
        graph = get_default_graph()
        with graph.name_scope(self.name):
            inputs = [capture(tensor) for tensor in self._inputs(tensors)]
            outputs, targets = inline(self.body, inputs)
            done: Node | None = None
            if targets and not isinstance(graph, FunctionGraph):  # that orders effects by itself
                with graph.control_dependencies(targets):
                    outputs = [basic.identity(tensor) for tensor in outputs]
                    done = basic.no_op(name="done")
            elif self.results.nodes:
                done = basic.no_op(name="done")
        if self.results.structure is None:
            return done
        return self.results.pack(outputs, done)

    # In eager code

    @property
    def _planned(self) -> PlannedStep | None:
        """The step for the current devices; None if the body computes nothing."""
        key = generation[0], EAGER.device_name
        planned = self._steps.get(key)
        if planned is None and (self.body.outputs or self.body.targets):
            planned = self._steps[key] = self._plan(key[1])
        return planned

    def _plan(self, device: str) -> PlannedStep:
        arguments, has_accelerators = self.body.arguments, eager_devices().has_accelerators
        devices = [""] * (len(arguments) - len(self.captured_inputs))
        devices += [tensor.device if has_accelerators else "" for tensor in self.captured_inputs]
        graph = Graph()
        with graph.as_default():
            inputs = [add_input(graph, *pair) for pair in zip(arguments, devices, strict=True)]
            outputs, targets = inline(self.body, inputs)
        for node in graph.nodes if device else ():
            if not node.device and not (node.inputs and node.inputs[0].dtype.is_ref_dtype):
                node.device = device
        return PlannedStep(graph, inputs, outputs, targets)

    def _run(self, tensors: Sequence[Any]) -> Any:
        """The result for these arguments: tensors, arrays or numbers.

        If they have values, the body runs immediately, as one compiled step. While a tape records,
        or if an argument is pending, its nodes are recorded into the lazy trace instead; effects
        run immediately unless a tape records.
        """
        if EAGER.tapes or any(map(_is_pending, tensors)):
            outputs = self._record(tensors)
            if self.body.targets and not EAGER.tapes:
                EAGER.flush()
            return self.results.pack(outputs, None)
        arrays = self._arrays(tensors)
        _run_pending_before(bool(self.body.targets))
        planned = self._planned
        if planned is None:
            return self.results.pack([], None)
        streams = [EAGER.stream(node.op) for node in planned.randoms]
        immutable = _immutable_inputs(tensors, len(arrays))
        results = planned.run(arrays, self._cells(), streams, immutable)
        return self._packed(list(map(_result_tensor, results, self._dtypes)), planned.devices)

    def _arrays(self, tensors: Sequence[Any]) -> list[Any]:
        """The arrays of the arguments and then those of the captured values."""
        arrays = map(_feed_array, self.body.arguments, tensors)
        return [*arrays, *[tensor.held() for tensor in self._values]]

    def _cells(self) -> list[Any]:
        return [tensor.held() for tensor in self._references]

    def cached_call(self, tensors: Sequence[Any]) -> CachedCall | None:
        """The call cache's form of a call that ran; None if it is not a single program."""
        planned = self._planned
        if planned is None or planned.randoms:
            return None
        arrays, path = self._arrays(tensors), planned.path
        if path is None or path.cells or path.inputs != list(range(len(arrays))):
            return None
        bound = planned.bind(arrays, _immutable_inputs(tensors, len(arrays)))
        if bound is None:
            return None
        program, context, devices = bound[0], planned.context, planned.devices
        captured, cells = arrays[len(tensors) :], self._cells()
        variables = [cells[number] for number in planned.cells]
        dtypes, shapes = self._dtypes, [TensorShape.of(shape) for shape in bound[1]]
        pack: Any = self.results.pack if devices is None else self._packed
        is_plain = self.results.is_single and devices is None
        has_effects = bool(self.body.targets)

        def run(arrays: list[Any], lazy_trace: LazyTrace) -> Any:
            if not lazy_trace.done:
                _run_pending_before(has_effects)
            results = program(context, arrays + captured if captured else arrays, variables)
            if results is None:
                return MISS  # the reference kernels will raise the error
            if is_plain:
                return known(results[0], dtypes[0], shapes[0])
            return pack(list(map(known, results, dtypes, shapes)), devices)

        return run

    def _packed(self, outputs: list[EagerTensor], devices: Sequence[str] | None) -> Any:
        set_devices(outputs, devices)
        return self.results.pack(outputs, None)

    def _record(self, tensors: Sequence[Any]) -> list[Any]:
        """Record the nodes of the body into the current lazy trace."""
        inputs = self._inputs(tensors)
        for variable in self.variables:
            for tape in EAGER.tapes:
                tape.accessed(variable)
        lazy_trace = EAGER.current()
        key = self, *map(lazy_trace.position, inputs)
        outputs = EAGER.record_subgraph(
            lazy_trace, key, lambda: inline(self.body, list(map(EAGER.template, inputs)))[0]
        )
        return self._record(tensors) if outputs is None else outputs


def _run_pending_before(has_effects: bool) -> None:
    """Run pending ops before a call, if they or the call have effects."""
    lazy_trace = EAGER.lazy_trace
    if not lazy_trace.done and (has_effects or lazy_trace.end.path_has_effects):
        lazy_trace.finish()


def _match_argument(name: str, wanted: Any, argument: Any) -> list[Any]:
    """The tensors of an argument; raises if it is not as the function was traced for."""
    specs, values = (nest.flatten(v, expand_composites=True) for v in (wanted, argument))
    if len(specs) != len(values):
        raise TypeError(f"argument '{name}' must be like {wanted!r}, not {argument!r}")
    tensors: list[Any] = []
    for spec, value in zip(specs, values, strict=True):
        if isinstance(spec, TensorSpec):
            tensors.append(_checked_tensor(name, spec, value))
        elif value is not spec and (is_tensor(value) or value != _dereference(spec)):
            raise TypeError(
                f"argument '{name}' was traced for the value {spec!r}, and is {value!r} now: get "
                "another concrete function for it"
            )
    return tensors


def _dereference(leaf: Any) -> Any:
    """The object of an `IdentityKey`; other leaves as they are."""
    return leaf.get() if isinstance(leaf, IdentityKey) else leaf


def _checked_tensor(name: str, spec: TensorSpec, value: Any) -> Any:
    """A value as a tensor that fits a spec; raises if it does not."""
    if value is spec:
        raise TypeError(f"missing argument '{name}', which must be like {spec}")
    tensor = value if is_tensor(value) else convert_to_tensor(value, spec.dtype)
    if not spec.is_compatible_with(tensor):
        raise TypeError(f"argument '{name}' must be like {spec}, not {value!r}")
    return tensor


def _spec_text(value: Any) -> str:
    if isinstance(value, TensorSpec):
        return f"{value.dtype.name}{value.shape}"
    return repr(value)


def _immutable_inputs(tensors: Sequence[Any], count: int) -> list[int]:
    """The indices of a call's inputs that nobody writes to: tensors and captured values. Arrays
    belong to the caller."""
    arguments = [index for index, value in enumerate(tensors) if isinstance(value, EagerTensor)]
    return [*arguments, *range(len(tensors), count)]


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
    value = as_array(result)
    # A list or a handle has no shape.
    return known(value, dtype, None if hasattr(value, "shape") else TensorShape([]))


# Tracing


def trace(
    function: Callable[..., Any],
    parameters: Parameters,
    arguments: Arguments,
    outer: Graph,
    name: str,
) -> ConcreteFunction:
    """Trace a function in a new graph, on symbolic arguments of these dtypes and shapes."""
    kinds = [kind.dtype for kind in arguments.skeleton if isinstance(kind, TensorKind)]
    names = [t.name if isinstance(t, TensorSpec) else None for t in arguments.tensors]
    shapes = [TensorShape.of(sizes) for sizes in arguments.shapes]
    rest: Iterator[Any] = map(TensorSpec, shapes, kinds, names)
    bound = {key: replace_tensors(v, rest, is_spec=True) for key, v in arguments.bound.items()}
    graph = FunctionGraph(outer, name)
    with graph.as_default():
        inner = list(map(graph.argument, kinds, shapes, _argument_names(arguments)))
        rest = iter(inner)
        symbolic = {key: replace_tensors(value, rest) for key, value in arguments.bound.items()}
        args, kwargs = parameters.split(symbolic)
        results = Results(function(*args, **kwargs), graph)
    body = Body(
        graph,
        (*inner, *graph.captures.values()),
        tuple(results.tensors),
        tuple(dict.fromkeys([*graph.effects, *results.nodes])),
    )
    signature = arguments._replace(tensors=(), bound=bound)
    return ConcreteFunction(name, parameters, signature, body, results)


def _argument_names(arguments: Arguments) -> Iterator[str]:
    """The names of the nodes for a call's tensors: those of their parameters."""
    for name, value in arguments.bound.items():
        for _ in arguments_of({name: value}).tensors:
            yield name.lstrip("_") or "argument"
