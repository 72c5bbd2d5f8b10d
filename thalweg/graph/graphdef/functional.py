"""Import of TensorFlow's functional control flow and function calls.

`conditional` and `while_loop` take the NodeDef of an `If`, `Case` or `While` (or a stateless one)
and its inputs, and return the op here that holds the bodies as sub-graphs, with its inputs. Bodies
are specialised to the inputs: a handle of a variable is a reference inside too.

A few functions that call each other twice expand to more nodes than memory holds: `check_expansion`
rejects such libraries before any node is created.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, NamedTuple

from thalweg.graph import dtypes
from thalweg.graph.dtypes import DType
from thalweg.graph.node import Tensor, TensorType
from thalweg.graph.op import REGISTRY, Op
from thalweg.graph.shapes import TensorShape, scalar, unknown_shape
from thalweg.graph.subgraph import Body

_MAX_DEPTH = 48  # of nested function calls
# Calls may add _MAX_NODES nodes, and _MAX_GROWTH times the nodes of the library.
_MAX_NODES = 300_000
_MAX_GROWTH = 4
_CALLS = frozenset({"PartitionedCall", "StatefulPartitionedCall"})
#: An attribute that TensorFlow's node has and the op of the same name here has not.
_FUNCTIONAL_ATTRIBUTES = {"If": "else_branch", "Case": "output_shapes", "While": "cond"}

#: (the name of a function, the types of its arguments) -> the body
MakeBody = Callable[[str, Sequence[TensorType]], Body]


class ControlNode(NamedTuple):
    """A control node to create. `invariants` are the outputs that are inputs of it, by ascending
    index."""

    op: Op
    inputs: tuple[Any, ...]
    invariants: dict[int, Tensor]


def functional_kind(node: Any) -> str | None:
    """`If`, `Case` or `While` for a node of TensorFlow's functional control flow, else None."""
    kind = node.op.removeprefix("Stateless")
    mark = _FUNCTIONAL_ATTRIBUTES.get(kind)
    return kind if mark is not None and (mark in node.attr or kind != node.op) else None


def called_function(node: Any, functions: Mapping[str, Any]) -> str | None:
    """The function that a node calls: by attribute, or by its op's name as in TensorFlow 1."""
    if node.op in _CALLS:
        return node.attr["f"].func.name
    return node.op if node.op in functions else None


def conditional(node: Any, inputs: Sequence[Tensor], make: MakeBody) -> ControlNode:
    """The control node of an `If` or a `Case`."""
    selector, *others = inputs
    kind = node.op.removeprefix("Stateless")
    if kind == "If" and selector.dtype.base_dtype is not dtypes.bool:
        selector = REGISTRY["NotEqual"]()(selector, 0)
    types = [(tensor.dtype, tensor.shape) for tensor in others]
    functions = (
        [node.attr[name].func for name in ("else_branch", "then_branch")]
        if kind == "If"
        else node.attr["branches"].list.func
    )
    bodies = tuple(make(function.name, types) for function in functions)
    _check_same_outputs(node, bodies)
    dtypes_out = tuple(tensor.dtype.base_dtype for tensor in bodies[0].outputs)
    return ControlNode(REGISTRY[kind](branches=bodies, Tout=dtypes_out), (selector, others), {})


def _check_same_outputs(node: Any, bodies: Sequence[Body]) -> None:
    first = [tensor.dtype for tensor in bodies[0].outputs]
    for body in bodies:
        own = [tensor.dtype for tensor in body.outputs]
        if [dtype.base_dtype for dtype in own] != [dtype.base_dtype for dtype in first]:
            raise ValueError(f"the branches of {node.name!r} give {first} and {own}")
        if any(dtype.is_ref_dtype or dtype is dtypes.resource for dtype in own):
            raise ValueError(f"a branch of {node.name!r} gives a handle, which has to be known")


def while_loop(node: Any, function: Any, inputs: Sequence[Tensor], make: MakeBody) -> ControlNode:
    """The control node of a `While`, given the FunctionDef of its body.

    Arguments that the body returns unchanged are loop invariants; handles have to be.
    """
    fixed = _invariant_indices(function)
    varying = [index for index in range(len(inputs)) if index not in fixed]
    order = [*varying, *sorted(fixed)]
    types = [(tensor.dtype, tensor.shape) for tensor in inputs]
    for index in varying:
        dtype = inputs[index].dtype
        if dtype.is_ref_dtype or dtype is dtypes.resource:
            raise ValueError(f"the loop {node.name!r} changes the handle {inputs[index].name}")
        types[index] = dtype, _variable_shape(node, function, dtype, index)
    condition, body = (make(node.attr[name].func.name, types) for name in ("cond", "body"))
    op = REGISTRY["While"](
        condition=condition.selected(order, condition.outputs),
        body=body.selected(order, [body.outputs[index] for index in varying]),
        Tout=tuple(inputs[index].dtype.base_dtype for index in varying),
        shapes=tuple(types[index][1] for index in varying),
        parallel_iterations=int(node.attr["parallel_iterations"].i) or 10,
    )
    variables = [inputs[index] for index in varying]
    invariants = {index: inputs[index] for index in sorted(fixed)}
    return ControlNode(op, (variables, list(invariants.values())), invariants)


def _invariant_indices(function: Any) -> set[int]:
    """The indices of the outputs of a FunctionDef that are the input of the same index."""
    nodes = {node.name: node for node in function.node_def}
    signature = function.signature
    arguments = {argument.name: index for index, argument in enumerate(signature.input_arg)}
    invariant: set[int] = set()
    for index, output in enumerate(signature.output_arg):
        source = function.ret[output.name].partition(":")[0]
        for _ in range(len(nodes) + 1):
            node = nodes.get(source)
            if node is None or node.op != "Identity" or len(node.input) != 1:
                break
            source = node.input[0].partition(":")[0]
        if arguments.get(source) == index and source not in nodes:
            invariant.add(index)
    return invariant


def _variable_shape(node: Any, function: Any, dtype: DType, index: int) -> TensorShape:
    """The shape of a loop's variable in the GraphDef."""
    if dtype is dtypes.variant:
        return scalar()
    shapes = node.attr["output_shapes"].list.shape or node.attr["_output_shapes"].list.shape
    if not shapes:
        return declared_shape(function, index)
    return TensorShape(shapes[index]) if index < len(shapes) else unknown_shape()


def declared_shape(function: Any, index: int) -> TensorShape:
    """The shape of an argument in a FunctionDef."""
    shapes = function.arg_attr[index].attr["_output_shapes"].list.shape
    return TensorShape(shapes[0]) if shapes else unknown_shape()


# The nodes and the depth of a library with all calls expanded


def check_expansion(nodes: Iterable[Any], functions: Mapping[str, Any]) -> None:
    """Raise a ValueError if the functions that nodes call contain themselves, are nested too deep
    or expand to too many nodes."""
    limit = _MAX_NODES + _MAX_GROWTH * sum(len(f.node_def) for f in functions.values())
    measured: dict[str, tuple[int, int]] = {}  # the nodes of a function, and its levels of calls

    def measure_calls(nodes: Iterable[Any], callers: tuple[str, ...]) -> tuple[int, int]:
        names = [name for node in nodes for name in functions_of(node) if name in functions]
        inner = [measure(name, callers) for name in names]
        return sum(size for size, _ in inner), max((levels for _, levels in inner), default=0)

    def measure(name: str, callers: tuple[str, ...]) -> tuple[int, int]:
        if name in callers:
            raise ValueError(f"graph_def is invalid: the function {name!r} contains itself.")
        if name not in measured and len(callers) < _MAX_DEPTH:
            inside = functions[name].node_def
            size, levels = measure_calls(inside, (*callers, name))
            measured[name] = min(limit + 1, len(inside) + size), levels + 1
        if name not in measured or len(callers) + measured[name][1] > _MAX_DEPTH:
            raise ValueError(
                f"graph_def has functions nested more than {_MAX_DEPTH} deep: {name!r}"
            )
        return measured[name]

    if measure_calls(nodes, ())[0] > limit:
        raise ValueError(
            f"graph_def calls functions that would add more than {limit} nodes to the graph."
        )


def functions_of(node: Any) -> list[str]:
    """The functions that a node may call: its op, and the functions that are its attributes."""
    functions = [f for value in node.attr.values() for f in (value.func, *value.list.func)]
    return [node.op, *(function.name for function in functions if function.name)]
