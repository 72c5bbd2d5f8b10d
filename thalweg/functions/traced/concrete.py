"""Traced functions: a Python function as a body, for arguments of known dtypes and shapes.

`trace` calls the function once, on arguments without values. A `ConcreteFunction` holds what it
did; called in graph code it is inlined there, called in eager code it runs as one step.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from thalweg.control.bodies import components, rebuilt
from thalweg.control.traces import here
from thalweg.functions.eager import EAGER
from thalweg.functions.traced.calls import CallKind, EagerCall, Expected
from thalweg.functions.traced.function_graph import FunctionGraph
from thalweg.functions.traced.signature import (
    Arguments,
    Known,
    Parameters,
    Same,
    Sizes,
    TensorKind,
    fits,
    is_tensor,
    names_of,
    with_tensors,
)
from thalweg.functions.traced.tensor_spec import TensorSpec
from thalweg.graph import nest
from thalweg.graph.convert import convert_to_tensor, has_conversion
from thalweg.graph.dtypes import DType
from thalweg.graph.graph import Graph, get_default_graph
from thalweg.graph.node import Node, Tensor
from thalweg.graph.shapes import TensorShape
from thalweg.graph.subgraph import Body, SubGraph, inline
from thalweg.ops.core import basic
from thalweg.variables.variable import Variable


class Results:
    """What a function returned: its tensors, and how to put others in their place."""

    def __init__(self, result: Any, graph: FunctionGraph) -> None:
        self.structure = result
        self.tensors: list[Tensor] = []
        self.nodes: list[Node] = []
        self._counts: list[int] = []  # how many tensors stand for each leaf; -1 for other values
        self.leaves = nest.flatten(result)
        for leaf in self.leaves:
            self._enter(leaf, graph)
        self.is_single = self._counts == [1] and not nest.is_sequence(result)

    def _enter(self, leaf: Any, graph: FunctionGraph) -> None:
        if isinstance(leaf, Node):
            self.nodes.append(leaf)
            self._counts.append(0)
        elif _gives_tensors(leaf):
            parts = [graph.capture(part) for part in components(leaf)]
            self.tensors += parts
            self._counts.append(len(parts))
        else:
            self._counts.append(-1)

    def packed(self, tensors: Sequence[Any], done: Node | None) -> Any:
        """The result with these tensors, and a node in the place of nodes."""
        rest = iter(tensors)
        pairs = zip(self.leaves, self._counts, strict=True)
        leaves = [_rebuilt(leaf, count, rest, done) for leaf, count in pairs]
        return nest.pack_sequence_as(self.structure, leaves)


def _gives_tensors(leaf: Any) -> bool:
    """Whether a leaf of a result is a tensor; other Python values are returned as they are."""
    if isinstance(leaf, str | bytes | int | float | complex | type(None)):
        return False
    return hasattr(leaf, "components") or isinstance(leaf, np.ndarray) or has_conversion(leaf)


def _rebuilt(leaf: Any, count: int, tensors: Iterator[Any], done: Node | None) -> Any:
    if count < 0:
        return leaf
    if count == 0:
        return done
    return rebuilt(leaf, [next(tensors) for _ in range(count)])


@dataclass(eq=False, repr=False)
class ConcreteFunction:
    """A function, traced for one signature."""

    name: str
    parameters: Parameters
    known: Known
    bound: dict[str, Any]  # with specs in the place of tensors
    body: Body
    results: Results
    captured_inputs: tuple[Tensor, ...]

    def __post_init__(self) -> None:
        self._graphs = {t.graph for t in self.captured_inputs}
        self._eager: EagerCall | None = None

    # What it is

    @property
    def graph(self) -> FunctionGraph:
        """The graph of the function."""
        graph = self.body.graph
        assert isinstance(graph, FunctionGraph)
        return graph

    @property
    def inputs(self) -> list[Tensor]:
        """The tensors of the graph that stand for arguments, and for what was captured."""
        return list(self.body.arguments)

    @property
    def outputs(self) -> list[Tensor]:
        """The tensors of the graph that are returned, in one list."""
        return list(self.body.outputs)

    @property
    def structured_outputs(self) -> Any:
        """What the function returns, with tensors of its graph."""
        return self.results.packed(self.body.outputs, None)

    @property
    def structured_input_signature(self) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """The arguments it was traced for: specs, and Python values as they are."""
        bound = {name: nest.map_structure(_object, v) for name, v in self.bound.items()}
        return self.parameters.split(bound)

    @property
    def variables(self) -> tuple[Variable, ...]:
        """The variables that it reads or writes."""
        return tuple(self.graph.variables())

    @property
    def trainable_variables(self) -> tuple[Any, ...]:
        """Those of its variables that optimizers change."""
        return tuple(v for v in self.variables if v.trainable)

    def __repr__(self) -> str:
        return f"<tf.ConcreteFunction {self}>"

    def __str__(self) -> str:
        given = ", ".join(f"{name}={_spec_text(value)}" for name, value in self.bound.items())
        outputs = ", ".join(f"{t.dtype.base_dtype.name}{t.shape}" for t in self.body.outputs)
        return f"{self.name}({given}) -> {outputs or 'nothing'}"

    # Calling it

    def is_usable(self, graph: Graph) -> bool:
        """Whether what was captured can be had in a graph."""
        return all(
            each is graph or (isinstance(graph, SubGraph) and graph.sees(each))
            for each in self._graphs
        )

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Call with arguments of the traced signature; Python values may be left out."""
        given = self.parameters.partly(args, kwargs)
        tensors: list[Any] = []
        for name, wanted in self.bound.items():
            tensors += _matched(name, wanted, given.get(name, wanted))
        return self.call(tensors)

    def call(self, tensors: Sequence[Any]) -> Any:
        """Call with tensors (or arrays) for the traced ones, in their order."""
        if get_default_graph() is not EAGER:
            return self._inlined(tensors)
        eager = self._eager
        if eager is None:
            results = self.results
            eager = EagerCall(self.body, self.captured_inputs, results.packed, results.is_single)
            self._eager = eager
        return eager(tensors)

    def kind(self, expected: list[Expected], tensors: Sequence[Any]) -> CallKind | None:
        """What runs calls like one that just ran in eager code, if native code does."""
        return None if self._eager is None else self._eager.kind(expected, tensors)

    def _inlined(self, tensors: Sequence[Any]) -> Any:
        """Copies of the function's nodes in the current graph."""
        graph = get_default_graph()
        with graph.name_scope(self.name):
            given = [
                convert_to_tensor(value, argument.dtype.base_dtype)
                for value, argument in zip(tensors, self.body.arguments, strict=False)
            ]
            inputs = [here(tensor) for tensor in (*given, *self.captured_inputs)]
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
        return self.results.packed(outputs, done)


def _matched(name: str, wanted: Any, given: Any) -> list[Any]:
    """The tensors of an argument, if it is what the function was traced for."""
    specs, values = _leaves(wanted), _leaves(given)
    if len(specs) != len(values):
        raise TypeError(f"argument '{name}' must be like {wanted!r}, not {given!r}")
    found: list[Any] = []
    for spec, value in zip(specs, values, strict=True):
        if isinstance(spec, TensorSpec):
            found.append(_checked(name, spec, value))
        elif value is not spec and (is_tensor(value) or value != _object(spec)):
            raise TypeError(
                f"argument '{name}' was traced for the value {spec!r}, and is {value!r} now: get "
                "another concrete function for it"
            )
    return found


def _object(leaf: Any) -> Any:
    """An argument that counts by identity, as long as it lives."""
    return leaf.find() if isinstance(leaf, Same) else leaf


def _leaves(value: Any) -> list[Any]:
    return nest.flatten(value, expand_composites=True)


def _checked(name: str, spec: TensorSpec, value: Any) -> Any:
    """A value where a tensor of some dtype and shape is wanted."""
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


# Tracing


def trace(
    function: Callable[..., Any],
    parameters: Parameters,
    arguments: Arguments,
    shapes: tuple[Sizes, ...],
    outer: Graph,
    name: str,
) -> ConcreteFunction:
    """Call a function on arguments of these dtypes and shapes, in a graph of its own."""
    kinds = [kind.dtype for kind in arguments.skeleton if isinstance(kind, TensorKind)]
    names = [t.name if isinstance(t, TensorSpec) else None for t in arguments.tensors]
    rest: Iterator[Any] = map(TensorSpec, map(TensorShape.of, shapes), kinds, names)
    bound = {key: with_tensors(v, rest, is_spec=True) for key, v in arguments.bound.items()}
    graph = FunctionGraph(outer, name)
    with graph.as_default():
        inner = _arguments(graph, kinds, shapes, arguments)
        rest = iter(inner)
        given = {key: with_tensors(value, rest) for key, value in arguments.bound.items()}
        results = Results(parameters.call(function, given), graph)
    captured = tuple(graph.captures)
    body = Body(
        graph,
        (*inner, *graph.captures.values()),
        tuple(results.tensors),
        tuple(dict.fromkeys([*graph.effects, *results.nodes])),
    )
    known = Known(arguments.skeleton, shapes)
    return ConcreteFunction(name, parameters, known, bound, body, results, captured)


def _arguments(
    graph: FunctionGraph,
    kinds: Sequence[DType],
    shapes: Sequence[Sizes],
    arguments: Arguments,
) -> list[Tensor]:
    names = [
        name.partition("'")[2].partition("'")[0]
        for name, kind in zip(names_of(arguments), arguments.skeleton, strict=True)
        if isinstance(kind, TensorKind)
    ]
    return [
        graph.argument(dtype, TensorShape.of(sizes), name.lstrip("_") or "argument")
        for dtype, sizes, name in zip(kinds, shapes, names, strict=True)
    ]


def accepts(concrete: ConcreteFunction, arguments: Arguments) -> bool:
    """Whether tensors of these shapes may come where the function expects others."""
    return all(map(fits, concrete.known.shapes, arguments.shapes))
