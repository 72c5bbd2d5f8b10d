"""From Python functions to bodies: each is unclosed once, in a sub-graph of its own.

Bodies that stand in one node (two branches; a condition and a body) take the same arguments: what
any of them captured, all of them get.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any

from thalweg.control.reload_variables import reload_variables, stale_reads
from thalweg.graph import nest
from thalweg.graph.analysis.node_effects import is_visible, written_variables
from thalweg.graph.convert import convert_to_tensor
from thalweg.graph.dtypes import DType
from thalweg.graph.graph import get_default_graph
from thalweg.graph.node import Node, Tensor
from thalweg.graph.op import Op
from thalweg.graph.origin import user_line
from thalweg.graph.shapes import TensorShape
from thalweg.graph.subgraph import Argument, Body, SubGraph
from thalweg.ops.core import basic


class ControlOp(Op, abstract=True):
    """The base of conditionals and loops: they do what their bodies do."""

    effects = ()  # those of its bodies
    stateful = True  # its bodies may be
    chooses_gradients = True
    of_process = True

    @property
    def blocking(self) -> bool:  # pyright: ignore[reportIncompatibleVariableOverride] - as its bodies do
        return any(body.blocks for body in self.bodies)

    def kernel(self, context: Any, *inputs: Any) -> Any:
        raise AssertionError(f"{context.node.name} is run by its plan")


@dataclass(frozen=True, eq=False)
class TracedBody:
    """A traced function before closure conversion: what it captured is not among its arguments."""

    graph: SubGraph
    arguments: tuple[Tensor, ...]
    outputs: tuple[Tensor, ...]
    result: Any = None  # what the function returned
    targets: tuple[Node, ...] = ()  # what runs though nothing depends on it


ArgumentSpec = tuple[DType, TensorShape]


def trace_body(
    function: Callable[..., Any],
    holder: str,
    specs: Sequence[ArgumentSpec] = (),
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
        found = tensors_of(result, f"What {holder} returns")
        outputs = tuple(graph.capture(tensor) for tensor in found)
    return TracedBody(graph, arguments, outputs, result, _effects(graph))


def _effects(graph: SubGraph) -> tuple[Node, ...]:
    """The nodes of a body inside a function that run for what they do."""
    if not graph.runs_effects:
        return ()
    nodes = [node for node in graph.nodes if not isinstance(node.op, Argument)]
    return tuple(node for node in nodes if written_variables(node) or is_visible(node))


def close_bodies(unclosed: Sequence[TracedBody]) -> tuple[list[Body], list[Tensor]]:
    """Closure conversion: bodies that take the same captured tensors after their own arguments, and
    those tensors."""
    bodies = [Body(each.graph, each.arguments, each.outputs, each.targets) for each in unclosed]
    stale = stale_reads(bodies)
    if stale:
        bodies = [reload_variables(body, stale) for body in bodies]
    captured = list(dict.fromkeys(t for body in bodies for t in body.graph.captures))
    return [_with_arguments(body, captured) for body in bodies], captured


def _with_arguments(body: Body, captured: Sequence[Tensor]) -> Body:
    found = tuple(_argument(body.graph, tensor) for tensor in captured)
    return replace(body, arguments=(*body.arguments, *found))


def _argument(graph: SubGraph, tensor: Tensor) -> Tensor:
    if tensor not in graph.captures:
        name = tensor.op.name.rpartition("/")[2]
        graph.captures[tensor] = graph.argument(tensor.dtype, tensor.shape, name)
    return graph.captures[tensor]


@contextmanager
def after_outer_nodes(bodies: Sequence[TracedBody | Body]) -> Generator[None]:
    """The node made inside comes after what nodes of its bodies come after."""
    controls: dict[Node, None] = {}
    for body in bodies:
        controls |= body.graph.outer_controls
    with get_default_graph().control_dependencies(list(controls)):
        yield


# What goes into a branch, around a loop or through a function is nested: lists, tuples, mappings,
# sparse tensors, tensor arrays. The nodes themselves take and give flat lists of tensors.


def tensors_of(structure: Any, what: str) -> list[Tensor]:
    """All tensors of a structure; other leaves are converted. An error says what it is."""
    found: list[Tensor] = []
    for leaf in nest.flatten(structure):
        try:
            found += components(leaf)
        except (TypeError, ValueError) as error:
            kind = TypeError if isinstance(error, TypeError) else ValueError
            raise kind(
                f"{what} must be tensors, not {leaf!r}: {error} (at {user_line()})"
            ) from error
    return found


def components(leaf: Any) -> list[Tensor]:
    """The tensors a leaf is made of; a node is a truth that comes after it."""
    if hasattr(leaf, "components"):
        return leaf.components()
    if isinstance(leaf, Node):
        with get_default_graph().control_dependencies([leaf]):
            return [basic.constant(True, name="done")]
    tensor = convert_to_tensor(leaf)
    return [basic.identity(tensor)] if tensor.dtype.is_ref_dtype else [tensor]


def rebuilt(structure: Any, tensors: Sequence[Tensor]) -> Any:
    """A structure like another one, with other tensors."""
    return nest.pack_sequence_as(structure, tensors, expand_composites=True)
