"""Nodes that call functions of a GraphDef's library, and conditionals and loops that name them, as
nodes that hold sub-graphs.

A few functions that call each other twice name more nodes than memory holds: that is found before
anything is made.

Comes in: a NodeDef of TensorFlow's `If`, `Case` or `While` (or of one that is stateless), and its
inputs. Goes out: the op here, its inputs, and which tensors stand for the node's outputs. Bodies
are made for the inputs they get: a handle that stands for a variable is a reference inside too.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, NamedTuple

from thalweg.graph import dtypes
from thalweg.graph.dtypes import DType
from thalweg.graph.node import Tensor
from thalweg.graph.op import REGISTRY, Op
from thalweg.graph.shapes import TensorShape, scalar, unknown_shape
from thalweg.graph.subgraph import Body

MAX_DEPTH = 48  # of functions that call each other
_MAX_NODES = 300_000  # that calls may add, and as many times those that are there
_MAX_GROWTH = 4
_CALLS = frozenset({"PartitionedCall", "StatefulPartitionedCall"})
#: The attribute that only TensorFlow's node of a kind has.
_MARKS = {"If": "else_branch", "Case": "output_shapes", "While": "cond"}

ArgumentType = tuple[DType, TensorShape]
#: (the name of a function, what its arguments are inside) -> the body
MakeBody = Callable[[str, Sequence[ArgumentType]], Body]


class ControlNode(NamedTuple):
    """A control node to be made. `passed` are outputs that are inputs as they came, by place."""

    op: Op
    inputs: tuple[Any, ...]
    passed: dict[int, Tensor]


def functional_kind(node: Any) -> str | None:
    """What a node of TensorFlow's functional control flow is; None for any other."""
    kind = node.op.removeprefix("Stateless")
    mark = _MARKS.get(kind)
    return kind if mark is not None and (mark in node.attr or kind != node.op) else None


def callees(node: Any) -> list[str]:
    """The functions that a node of functional control flow names."""
    found: list[str] = []
    for name in ("cond", "body", "else_branch", "then_branch", "branches"):
        if name in node.attr:
            value = node.attr[name]
            found += [each.name for each in value.list.func] or [value.func.name]
    return found


def called_function(node: Any, functions: Mapping[str, Any]) -> str | None:
    """The function that a node calls: by attribute, or by its op's name as in TensorFlow 1."""
    if node.op in _CALLS:
        return node.attr["f"].func.name
    return node.op if node.op in functions else None


def branching(node: Any, inputs: Sequence[Tensor], make: MakeBody) -> ControlNode:
    """An `If` or a `Case`."""
    choice, *others = inputs
    kind = node.op.removeprefix("Stateless")
    if kind == "If" and choice.dtype.base_dtype is not dtypes.bool:
        choice = REGISTRY["NotEqual"]()(choice, 0)
    types = [(tensor.dtype, tensor.shape) for tensor in others]
    bodies = tuple(make(name, types) for name in callees(node))
    ends = bodies[0].outputs
    _check_alike(node, bodies)
    kept = tuple(tensor.dtype.base_dtype for tensor in ends)
    return ControlNode(REGISTRY[kind](branches=bodies, Tout=kept), (choice, others), {})


def _check_alike(node: Any, bodies: Sequence[Body]) -> None:
    first = [tensor.dtype for tensor in bodies[0].outputs]
    for body in bodies:
        found = [tensor.dtype for tensor in body.outputs]
        if [dtype.base_dtype for dtype in found] != [dtype.base_dtype for dtype in first]:
            raise ValueError(f"the branches of {node.name!r} give {first} and {found}")
        if any(dtype.is_ref_dtype or dtype is dtypes.resource for dtype in found):
            raise ValueError(f"a branch of {node.name!r} gives a handle, which has to be known")


def loop(node: Any, function: Any, inputs: Sequence[Tensor], make: MakeBody) -> ControlNode:
    """A `While`, given the FunctionDef of its body. What the body gives as it got it does not
    vary: handles have to be such."""
    fixed = _fixed_places(function)
    varying = [place for place in range(len(inputs)) if place not in fixed]
    for place in varying:
        if inputs[place].dtype.is_ref_dtype or inputs[place].dtype is dtypes.resource:
            raise ValueError(f"the loop {node.name!r} changes the handle {inputs[place].name}")
    order = [*varying, *sorted(fixed)]
    known = _stated_shapes(node, function)
    types = [
        (tensor.dtype, tensor.shape if place in fixed else _inner_shape(tensor, known, place))
        for place, tensor in enumerate(inputs)
    ]
    condition, body = (make(node.attr[name].func.name, types) for name in ("cond", "body"))
    op = REGISTRY["While"](
        condition=_ordered(condition, order, condition.outputs),
        body=_ordered(body, order, [body.outputs[place] for place in varying]),
        Tout=tuple(inputs[place].dtype.base_dtype for place in varying),
        shapes=tuple(types[place][1] for place in varying),
        parallel_iterations=int(node.attr["parallel_iterations"].i) or 10,
    )
    variables = [inputs[place] for place in varying]
    invariants = [inputs[place] for place in sorted(fixed)]
    return ControlNode(op, (variables, invariants), {place: inputs[place] for place in fixed})


def _ordered(body: Body, order: Sequence[int], outputs: Sequence[Tensor]) -> Body:
    arguments = tuple(body.arguments[place] for place in order)
    return Body(body.graph, arguments, tuple(outputs), body.targets)


def _fixed_places(function: Any) -> set[int]:
    """The outputs of a FunctionDef that are the input of the same place."""
    nodes = {node.name: node for node in function.node_def}
    signature = function.signature
    names = {argument.name: place for place, argument in enumerate(signature.input_arg)}
    found: set[int] = set()
    for place, out in enumerate(signature.output_arg):
        source = function.ret[out.name]
        for _ in range(len(nodes) + 1):
            node = nodes.get(source.partition(":")[0])
            if node is None or node.op != "Identity" or len(node.input) != 1:
                break
            source = node.input[0]
        if names.get(source.partition(":")[0]) == place and source.partition(":")[0] not in nodes:
            found.add(place)
    return found


def _stated_shapes(node: Any, function: Any) -> list[TensorShape]:
    """The shapes that a loop's variables keep, as far as the GraphDef tells."""
    stated = node.attr["output_shapes"].list.shape or node.attr["_output_shapes"].list.shape
    if stated:
        return [TensorShape(shape) for shape in stated]
    return [stated_shape(function, place) for place in range(len(function.signature.input_arg))]


def stated_shape(function: Any, place: int) -> TensorShape:
    """The shape of an argument, as far as a FunctionDef tells."""
    shapes = function.arg_attr[place].attr["_output_shapes"].list.shape
    return TensorShape(shapes[0]) if shapes else unknown_shape()


def _inner_shape(tensor: Tensor, known: Sequence[TensorShape], place: int) -> TensorShape:
    if tensor.dtype.base_dtype is dtypes.variant:
        return scalar()
    return known[place] if place < len(known) else unknown_shape()


# How large a library is once all functions are made


def check_expansion(nodes: Iterable[Any], functions: Mapping[str, Any]) -> None:
    """Raise a ValueError where nodes and all that they call are too many."""
    written = sum(len(function.node_def) for function in functions.values())
    limit = _MAX_NODES + _MAX_GROWTH * written
    sizes = _sizes(functions, limit)
    total = sum(sizes.get(callee, 0) for node in nodes for callee in _used(node, functions))
    if total > limit:
        raise ValueError(
            f"graph_def calls functions that would add more than {limit} nodes to the graph."
        )


def _sizes(functions: Mapping[str, Any], limit: int) -> dict[str, int]:
    """How many nodes each function is with all that it calls, up to a limit; what calls itself is
    counted once here, and refused later."""
    sizes: dict[str, int] = {}
    entered: set[str] = set()
    pending = list(functions)
    while pending:
        name = pending[-1]
        inside = [callee for node in functions[name].node_def for callee in _used(node, functions)]
        missing = [c for c in inside if c in functions and c not in entered]
        if name not in entered and missing:
            entered.add(name)
            pending += dict.fromkeys(missing)
            continue
        entered.add(name)
        known = sum(sizes.get(callee, 0) for callee in inside)
        sizes[name] = min(limit + 1, len(functions[name].node_def) + known)
        pending.pop()
    return sizes


def _used(node: Any, functions: Mapping[str, Any]) -> list[str]:
    callee = called_function(node, functions)
    if callee is not None:
        return [callee]
    return callees(node) if functional_kind(node) is not None else []
