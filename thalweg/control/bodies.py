"""Tracing of Python functions to bodies: each is called once, in a new sub-graph.

The bodies of one node (two branches; a condition and a body) take the same arguments: a tensor that
one of them captures is an argument of all.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from typing import Any

from thalweg.control.reload_variables import reload_variables, stale_reads
from thalweg.graph import nest
from thalweg.graph.analysis.node_effects import is_visible, written_variables
from thalweg.graph.convert import convert_to_tensor
from thalweg.graph.graph import get_default_graph
from thalweg.graph.node import Node, Tensor, TensorType
from thalweg.graph.op import Op
from thalweg.graph.origin import user_line
from thalweg.graph.subgraph import Body, SubGraph
from thalweg.ops.core import basic


class PlannedOp(Op, abstract=True):
    """The base of ops that plans run: conditionals and loops, their traces, dataflow primitives."""

    stateful = True  # what it gives depends on the step
    effects = ()  # derived from the bodies, if it has some

    def kernel(self, context: Any, *inputs: Any) -> Any:
        raise AssertionError(f"{context.node.name} is run by its plan")


class ControlOp(PlannedOp, abstract=True):
    """The base of conditionals and loops. Their effects are those of their bodies."""

    chooses_gradients = True

    @property
    def blocking(self) -> bool:  # pyright: ignore[reportIncompatibleVariableOverride] - as its bodies do
        return any(body.blocks for body in self.bodies)


@dataclass(frozen=True, eq=False)
class TracedBody(Body):
    """A traced function before closure conversion: captured tensors are not arguments yet."""

    result: Any = None  # what the function returned


def trace_body(
    function: Callable[..., Any],
    holder: str,
    specs: Sequence[TensorType] = (),
    pack: Callable[[Sequence[Tensor]], Sequence[Any]] = tuple,
    is_control_flow: bool = True,
) -> TracedBody:
    """Call a function in a new sub-graph, on arguments of these dtypes and shapes."""
    graph = SubGraph(get_default_graph(), holder)
    graph.is_control_flow = is_control_flow
    with graph.as_default():
        arguments = tuple(graph.argument(dtype, shape, "argument") for dtype, shape in specs)
        result = function(*pack(arguments))
        if result is None:
            raise ValueError(f"{holder} must have a return value. (at {user_line()})")
        tensors = tensors_of(result, f"What {holder} returns")
        outputs = tuple(graph.capture(tensor) for tensor in tensors)
    return TracedBody(graph, arguments, outputs, _effect_nodes(graph), result)


def _effect_nodes(graph: SubGraph) -> tuple[Node, ...]:
    """The nodes with effects, of a body inside a traced function."""
    if not graph.runs_effects:
        return ()
    return tuple(node for node in graph.nodes if written_variables(node) or is_visible(node))


def close_bodies(bodies: Sequence[Body]) -> tuple[list[Body], list[Tensor]]:
    """Closure conversion: bodies that take the tensors which any of them captured after their own
    arguments, and those tensors."""
    stale = stale_reads(bodies)
    if stale:
        bodies = [reload_variables(body, stale) for body in bodies]
    captured = list(dict.fromkeys(t for body in bodies for t in body.graph.captures))
    return [_with_arguments(body, captured) for body in bodies], captured


def _with_arguments(body: Body, captured: Sequence[Tensor]) -> Body:
    arguments = (*body.arguments, *map(body.graph.captured_argument, captured))
    return Body(body.graph, arguments, body.outputs, body.targets)


def after_outer_nodes(bodies: Sequence[Body]) -> AbstractContextManager[None]:
    """Nodes made inside depend on the outer control inputs of the bodies' nodes."""
    controls = dict.fromkeys(node for body in bodies for node in body.graph.outer_controls)
    return get_default_graph().control_dependencies(controls)


# Users pass and return structures: lists, tuples, mappings, sparse tensors, tensor arrays. Nodes
# take and return flat lists of tensors.


def tensors_of(structure: Any, what: str) -> list[Tensor]:
    """The tensors of a structure, other leaves converted; `what` names it in errors."""
    tensors: list[Tensor] = []
    for leaf in nest.flatten(structure):
        try:
            tensors += components(leaf)
        except (TypeError, ValueError) as error:
            kind = TypeError if isinstance(error, TypeError) else ValueError
            raise kind(
                f"{what} must be tensors, not {leaf!r}: {error} (at {user_line()})"
            ) from error
    return tensors


def components(leaf: Any) -> list[Tensor]:
    """The tensors of a leaf; for a node, a constant True that depends on it."""
    if hasattr(leaf, "components"):
        return leaf.components()
    if isinstance(leaf, Node):
        with get_default_graph().control_dependencies([leaf]):
            return [basic.constant(True, name="done")]
    tensor = convert_to_tensor(leaf)
    return [basic.identity(tensor)] if tensor.dtype.is_ref_dtype else [tensor]


@contextmanager
def explained(fault: str) -> Generator[None]:
    """Errors in a structure begin with what is wrong and end with the user's line."""
    try:
        yield
    except (TypeError, ValueError) as error:
        raise type(error)(f"{fault}: {error} (at {user_line()})") from error


def pack_tensors(structure: Any, tensors: Sequence[Tensor]) -> Any:
    """A structure with its tensors replaced."""
    return nest.pack_sequence_as(structure, tensors, expand_composites=True)
