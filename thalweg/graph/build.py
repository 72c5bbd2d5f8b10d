"""Node construction: converts the inputs of a called op, binds dtypes and infers shapes.

Every node is created here, so that dtype and shape errors are raised on the user's line.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, cast

from thalweg.graph import op as ops
from thalweg.graph.composite import IndexedSlices
from thalweg.graph.convert import convert_all, convert_to_tensor, has_conversion
from thalweg.graph.dtypes import DType, as_dtype
from thalweg.graph.graph import Graph, get_default_graph, graphs
from thalweg.graph.node import Node, Tensor, TensorType, operators
from thalweg.graph.op import Op
from thalweg.graph.origin import user_line
from thalweg.graph.shapes import TensorShape, unknown_shape
from thalweg.graph.signature import Argument, flattened, gathered
from thalweg.graph.subgraph import SubGraph, root
from thalweg.platform.caches import memoized

_UNKNOWN = unknown_shape()


def apply(op: Op, arguments: tuple[Any, ...], name: str | None) -> Any:
    """Add a node with `op` to the graph of its inputs; return its outputs (see `results`)."""
    current = get_default_graph()
    graph = graph_of(arguments, current)
    if op.of_shapes and isinstance(graph, SubGraph) and graph.sources:
        graph = _shape_graph(graph, arguments)
        if graph is not current and (node := _equal_node(graph, op, arguments)):
            return results(node)
    if graph is current:
        return results(add_node(graph, op, arguments, name))
    with graph.as_default():
        return results(add_node(graph, op, arguments, name))


def add_node(
    graph: Graph,
    op: Op,
    arguments: tuple[Any, ...],
    name: str | None,
    like: Node | None = None,
    is_imported: bool = False,
) -> Node:
    """Add a node with `op` to `graph`, which must be the default graph.

    Its origin is that of the node `like`, or the user's current line. An imported node keeps the
    colocation of its GraphDef.
    """
    base_name = name or op.type_name
    inputs, grouped, bound, counts = convert_inputs(op, arguments, base_name)
    if not _all_inside(graph, inputs):
        inputs = _capture_inputs(graph, inputs)
        grouped = op.parsed.group(inputs, counts or op.parsed.counts(len(inputs)))
    types = _outputs(op, grouped, bound, base_name)
    annotations = None if counts is None else {"_counts": counts}
    override = graph.gradient_override(op.type_name)
    if override is not None:
        annotations = (annotations or {}) | {"_gradient_op_type": override}
    made_at = None if like is None else like.made_at
    if is_imported or not op.parsed.references:
        return graph.add(op, inputs, types, base_name, annotations, made_at)
    # An op that writes to a variable runs where the variable is.
    with graph.colocate_with(inputs[op.parsed.references[0]]):
        return graph.add(op, inputs, types, base_name, annotations, made_at)


def _all_inside(graph: Graph, inputs: Sequence[Tensor]) -> bool:
    """Whether all inputs belong to a graph."""
    for tensor in inputs:  # noqa: SIM110 - a plain loop is twice as fast, and runs for every node
        if tensor.op.graph is not graph:
            return False
    return True


def create_op(
    graph: Graph,
    op_type: str,
    inputs: Sequence[Any],
    name: str | None = None,
    attrs: Mapping[str, Any] | None = None,
) -> Node:
    """Add a node, given the name of its op, its flat inputs and its attributes."""
    block = ops.REGISTRY.get(op_type)
    if block is None:
        raise ValueError(f"No op named {op_type}")
    op = block(**dict(attrs or {}))
    grouped = op.parsed.group(inputs, op.parsed.counts(len(inputs)))
    with graph.as_default():
        return add_node(graph, op, tuple(grouped), name)


def results(node: Node, tensors: Sequence[Tensor] | None = None) -> Any:
    """The outputs of a node, or `tensors` in their place, as user code gets them.

    The node itself if it has no output, the tensor (or list) if it has one, else a named tuple.
    """
    arguments = node.op.parsed.outputs
    outputs = node.outputs if tensors is None else tensors
    if not arguments:
        return node
    if len(arguments) == 1:
        return list(outputs) if arguments[0].is_list else outputs[0]
    attributes = node.attributes()
    counts = [argument.size(attributes) for argument in arguments]
    return node.op.result(*gathered(arguments, outputs, counts))


def graph_of(arguments: Sequence[Any], current: Graph | None = None) -> Graph:
    """The graph for nodes over (possibly nested) arguments.

    The graph of the first tensor, unless the current graph (by default, the default graph) can use
    that graph's tensors.
    """
    current = get_default_graph() if current is None else current
    first = _first_graph(arguments)
    if first is None or first is current or first.is_eager or current.sees(first):
        return current
    return first


def _shape_graph(graph: SubGraph, arguments: Sequence[Any]) -> Graph:
    """The graph for a shape op: that of the first tensor, so that only its result is captured.

    It must see the tensors of all arguments.
    """
    first = _first_graph(arguments)
    if first not in graph.sources or not isinstance(arguments[0], Tensor):
        return graph
    others = [argument.graph for argument in arguments if isinstance(argument, Tensor)]
    return first if all(first.sees(other) for other in others) else graph


def _equal_node(graph: Graph, op: Op, tensors: Sequence[Any]) -> Node | None:
    """A node of this op and these tensors: gradients ask for the same shapes again, which are saved
    once."""
    consumers = graph.consumers(tensors[0])
    return next((n for n in consumers if n.op == op and n.inputs == tuple(tensors)), None)


def _first_graph(arguments: Sequence[Any]) -> Graph | None:
    for argument in arguments:
        if isinstance(argument, Tensor):
            return _open_graph(argument)
    for argument in arguments:
        if isinstance(argument, list | tuple):
            for inner in cast("Sequence[Any]", argument):
                if isinstance(inner, Tensor):
                    return _open_graph(inner)
        elif not isinstance(argument, int | float | str | bytes) and hasattr(argument, "graph"):
            graph = argument.graph
            if isinstance(graph, Graph):
                return graph
    return None


def _open_graph(tensor: Tensor) -> Graph:
    """The graph of a tensor; an error if it is a finished sub-graph, not visible from here."""
    graph: Graph = tensor.graph
    if not isinstance(graph, SubGraph) or graph in graphs.items or get_default_graph().sees(graph):
        return graph
    raise ValueError(
        f"{tensor!r} (made at {tensor.op.origin}) is inside {graph.holder} and has no value "
        "outside of it: return it from there to use it here"
    )


def _capture_inputs(graph: Graph, inputs: Iterable[Tensor]) -> tuple[Tensor, ...]:
    """The inputs as tensors of a graph: tensors of graphs around a sub-graph are captured."""
    captured: list[Tensor] = []
    for tensor in inputs:
        if tensor.op.graph is graph:
            captured.append(tensor)
        elif tensor.op.graph.is_eager and not root(graph).is_eager:
            captured.append(_eager_constant(tensor))
        else:
            _open_graph(tensor)
            captured.append(graph.capture(tensor))
    return tuple(captured)


def _eager_constant(tensor: Any) -> Tensor:
    """The value of an eager tensor as a constant of the current graph."""
    if tensor.dtype.is_ref_dtype:
        raise ValueError(
            f"{tensor!r} is a variable of eager code and cannot be used in a graph; make one there"
        )
    return convert_to_tensor(tensor.numpy(), tensor.dtype)


# Inputs


def convert_inputs(
    op: Op, arguments: tuple[Any, ...], name: str
) -> tuple[tuple[Tensor, ...], list[Any], dict[str, Any], tuple[int, ...] | None]:
    """Flat tensors, the same grouped by argument, bound dtypes, and list lengths if ambiguous."""
    declared = op.parsed.inputs
    if len(arguments) != len(declared):
        raise TypeError(
            f"op {op.type_name} takes {len(declared)} inputs "
            f"({', '.join(a.name for a in declared)}), got {len(arguments)}"
        )
    dtypes = None if op.parsed.has_lists else _dtypes(arguments)
    bound = None if dtypes is None else _bind_dtypes(type(op), dtypes)
    if bound is not None:
        return arguments, list(arguments), bound, None
    bound = _bind_tensors(op, arguments)
    grouped: list[Any] = []
    for argument, value in zip(declared, arguments, strict=True):
        grouped.append(_convert(op, argument, value, bound, name))
    _check_types(op, grouped, bound, name)
    if not op.parsed.has_lists:
        return tuple(grouped), grouped, bound, None
    is_ambiguous = sum(a.is_list for a in declared) > 1
    counts = tuple([len(flattened([value])) for value in grouped]) if is_ambiguous else None
    return tuple(flattened(grouped)), grouped, bound, counts


def _dtypes(arguments: Sequence[Any]) -> tuple[DType, ...] | None:
    """The dtypes of arguments, if all are tensors."""
    dtypes: list[DType] = []
    for value in arguments:
        if not isinstance(value, Tensor):
            return None
        dtypes.append(value.dtype)
    return tuple(dtypes)


@memoized(1_024)
def _bind_dtypes(block: type[Op], dtypes: tuple[DType, ...]) -> dict[str, Any] | None:
    """The type variables that input dtypes bind: the fast path if all inputs are tensors.

    None if a field binds one too, or if a dtype does not fit: the general path raises the error.
    """
    bound: dict[str, Any] = {}
    for argument, dtype in zip(block.parsed.inputs, dtypes, strict=True):
        expected = argument.fixed or bound.setdefault(argument.type, dtype.base_dtype)
        fits = expected in (dtype, dtype.base_dtype) and dtype.is_ref_dtype >= argument.is_ref
        if argument.type in block.fields or not fits:
            return None
    limits = block.parsed.allowed.items()
    return bound if all(bound.get(name) in allowed for name, allowed in limits) else None


def _bind_tensors(op: Op, arguments: Sequence[Any]) -> dict[str, Any]:
    """Bind type variables from fields and from arguments that are tensors, so that Python values
    of the same type variable are converted to that dtype."""
    bound: dict[str, Any] = {}
    for argument, value in zip(op.parsed.inputs, arguments, strict=True):
        if argument.fixed is not None or argument.is_mixed or argument.type in bound:
            continue
        field = op.__dict__.get(argument.type)
        if field is not None:
            bound[argument.type] = field
        elif isinstance(value, Tensor):
            bound[argument.type] = value.dtype.base_dtype
        elif not argument.is_list and has_conversion(value) and hasattr(value, "dtype"):
            bound[argument.type] = as_dtype(value.dtype).base_dtype
    return bound


def _convert(op: Op, argument: Argument, value: Any, bound: dict[str, Any], name: str) -> Any:
    if isinstance(value, Tensor) and not argument.is_list:
        return value
    dtype = argument.fixed or (None if argument.is_mixed else bound.get(argument.type))
    if argument.is_list:
        return _convert_list(op, argument, value, bound, dtype)
    is_unnamed = argument.fixed is not None or isinstance(value, IndexedSlices)
    value_name = None if is_unnamed else f"{name.rstrip('/')}/{argument.name}"
    try:
        tensor = convert_to_tensor(value, dtype, value_name, as_ref=argument.is_ref)
    except (TypeError, ValueError) as error:
        raise _conversion_error(op, argument, value, dtype, error) from error
    bound.setdefault(argument.type, tensor.dtype.base_dtype)
    return tensor


def _conversion_error(
    op: Op, argument: Argument, value: Any, dtype: DType | None, error: Exception
) -> Exception:
    """The error for a value that cannot be converted to this input."""
    error_class = TypeError if isinstance(error, TypeError) else ValueError
    fault, actual = "cannot be a tensor", _type_of(value)
    if dtype is not None and actual != dtype.name:
        fault = f"has type {actual} that does not match {_expected_type(op, argument, dtype)}"
    return error_class(
        f"Input '{argument.name}' of '{op.type_name}' Op {fault}: {error} (at {user_line()})"
    )


def _expected_type(op: Op, argument: Argument, dtype: DType) -> str:
    """The expected dtype of an input, and the argument that determines it."""
    others = [a for a in op.parsed.inputs if a.type == argument.type and a is not argument]
    if argument.fixed is not None or not others:
        return f"expected type of {dtype.name}"
    return f"type {dtype.name} of argument '{others[0].name}'"


def _type_of(value: Any) -> str:
    dtype = getattr(value, "dtype", None)
    return type(value).__name__ if dtype is None else str(getattr(dtype, "name", dtype))


def _convert_list(
    op: Op, argument: Argument, value: Any, bound: dict[str, Any], dtype: DType | None
) -> list[Tensor]:
    if not isinstance(value, list | tuple):
        raise TypeError(
            f"Expected list for '{argument.name}' argument to '{op.type_name}' op, not {value!r}."
        )
    values = cast("Sequence[Any]", value)
    if argument.is_mixed:
        dtypes = op.__dict__.get(argument.type) or [None] * len(values)
        tensors = [convert_to_tensor(v, d) for v, d in zip(values, dtypes, strict=True)]
        bound[argument.type] = [t.dtype.base_dtype for t in tensors]
        return tensors
    try:
        tensors = convert_all(values, dtype)
    except (TypeError, ValueError) as error:
        _check_same_dtype(op, argument, values)
        raise _conversion_error(op, argument, value, dtype, error) from error
    if tensors and argument.fixed is None:
        bound.setdefault(argument.type, tensors[0].dtype.base_dtype)
    elif dtype is None and argument.type not in op.__dict__:
        raise ValueError(
            f"List argument '{argument.name}' of '{op.type_name}' Op must not be empty: nothing "
            f"tells the dtype (at {user_line()})"
        )
    bound[argument.count] = len(tensors)
    return tensors


def _check_same_dtype(op: Op, argument: Argument, values: Sequence[Any]) -> None:
    """Raise a TypeError unless all tensors of a list have one dtype."""
    names = [value.dtype.base_dtype.name for value in values if isinstance(value, Tensor)]
    if len(set(names)) > 1:
        raise TypeError(
            f"Tensors in list passed to '{argument.name}' of '{op.type_name}' Op have types "
            f"[{', '.join(names)}] that don't all match (at {user_line()})"
        )


def _check_types(op: Op, grouped: Sequence[Any], bound: dict[str, Any], name: str) -> None:
    for argument, value in zip(op.parsed.inputs, grouped, strict=True):
        if argument.is_mixed:
            continue
        expected: DType = argument.fixed or bound.get(argument.type)  # pyright: ignore[reportAssignmentType] - bound above
        for tensor in value if argument.is_list else (value,):
            if tensor.dtype is not expected and tensor.dtype.base_dtype is not expected:
                raise TypeError(
                    f"Input '{argument.name}' of '{op.type_name}' Op has type {tensor.dtype.name} "
                    f"that does not match {_expected_type(op, argument, expected)}: {tensor.name} "
                    f"was made at {tensor.op.origin}, for the node '{name.rstrip('/')}'"
                )
            if argument.is_ref and not tensor.dtype.is_ref_dtype:
                raise TypeError(
                    f"'{op.type_name}' Op requires that input '{argument.name}' be a mutable "
                    f"tensor (e.g.: a tf.Variable), not {tensor!r} (at {user_line()})"
                )
    for type_name, allowed in op.parsed.allowed.items():
        dtype = bound.get(type_name, op.__dict__.get(type_name))
        if isinstance(dtype, DType) and dtype.base_dtype not in allowed:
            names = ", ".join(sorted(d.name for d in allowed))
            raise TypeError(
                f"DataType {dtype.name} for attr '{type_name}' of '{op.type_name}' op "
                f"'{name.rstrip('/')}' is not in the list of allowed values: {names}"
            )


# Outputs


def _outputs(op: Op, grouped: list[Any], bound: dict[str, Any], name: str) -> list[TensorType]:
    declared = op.parsed.outputs
    try:
        inferred = op.shape(*grouped)
    except (ValueError, IndexError) as error:
        raise ValueError(_shape_error(op, grouped, name, error)) from error
    if len(declared) == 1 and not declared[0].is_list:
        return [(_output_dtype(op, declared[0], bound), _UNKNOWN if inferred is None else inferred)]
    dtypes: list[DType] = []
    for argument in declared:
        dtype = _output_dtype(op, argument, bound)
        dtypes += dtype if argument.is_mixed else [dtype] * argument.size(bound | op.__dict__)
    shapes = _flat_shapes(inferred, len(dtypes))
    if len(shapes) != len(dtypes):
        raise AssertionError(f"{op.type_name}: {len(dtypes)} outputs, {len(shapes)} shapes")
    return list(zip(dtypes, shapes, strict=True))


def _output_dtype(op: Op, argument: Argument, bound: dict[str, Any]) -> Any:
    dtype = argument.fixed or bound.get(argument.type) or op.__dict__[argument.type]
    return dtype.as_ref if argument.is_ref else dtype


def _flat_shapes(inferred: Any, count: int) -> list[TensorShape]:
    if inferred is None:
        return [_UNKNOWN] * count
    shapes = cast("Sequence[Any]", inferred if isinstance(inferred, list | tuple) else [inferred])
    return flattened([_UNKNOWN if shape is None else shape for shape in shapes])


def _shape_error(op: Op, grouped: list[Any], name: str, error: Exception) -> str:
    shapes = ", ".join(str(tensor.shape) for tensor in flattened(grouped))
    return (
        f"{error} for '{name.rstrip('/')}' (op: '{op.type_name}') with input shapes: {shapes}. "
        f"(at {user_line()})"
    )


ops.applier[:] = [apply]
operators["create_op"] = create_op
