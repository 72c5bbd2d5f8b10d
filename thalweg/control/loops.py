"""Loops in the graph: nodes with a condition and a body.

The gradient of a loop is a loop over the iterations in reverse, whose body is the gradient of the
forward body. It reads the forward values of each iteration from traces.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, cast

from thalweg.autodiff.gradients import InnerGradient, backward, is_differentiable, zeros
from thalweg.control.bodies import (
    ControlOp,
    TracedBody,
    after_outer_nodes,
    close_bodies,
    explained,
    pack_tensors,
    tensors_of,
    trace_body,
)
from thalweg.control.list_ops import TensorArrayRead
from thalweg.control.sink_invariant_gradients import SunkGradient, sink_gradient
from thalweg.control.traces import LoopCount, LoopTrace, add_trace, capture, capture_inner
from thalweg.graph import nest
from thalweg.graph.composite import IndexedSlices, SparseTensor
from thalweg.graph.convert import convert_to_tensor
from thalweg.graph.dtypes import DType, int32, variant
from thalweg.graph.dtypes import bool as boolean
from thalweg.graph.graph import get_default_graph
from thalweg.graph.likes import Structure
from thalweg.graph.node import Node, Tensor
from thalweg.graph.origin import user_line
from thalweg.graph.scopes import name_scope
from thalweg.graph.shapes import TensorShape, as_shape, scalar
from thalweg.graph.subgraph import Body, SubGraph, needed
from thalweg.ops.core import basic
from thalweg.ops.math import compare
from thalweg.ops.math.arithmetic import AddN
from thalweg.public import public


class While(ControlOp):
    """The loop variables after the body was applied to them while the condition was true.

    Condition and body take the variables and then the invariants; the body returns new variables.
    """

    signature = "variables: [T], invariants: [Tinvariant] -> results: [Tout]"
    condition: Body
    body: Body
    Tout: tuple[DType, ...]
    shapes: tuple[TensorShape, ...]
    parallel_iterations: int = 10
    back_prop: bool = True

    @property
    def bodies(self) -> tuple[Body, ...]:
        return self.condition, self.body

    def shape(self, variables: list[Tensor], invariants: list[Tensor]) -> list[list[TensorShape]]:
        return [list(self.shapes)]

    def gradient(
        self,
        node: Node,
        *dys: Any,
        wanted: Sequence[int],
        given: Sequence[int] = (),
        inner: Sequence[InnerGradient] = (),
    ) -> list[Any]:
        if not self.back_prop:
            return [None] * len(node.inputs)
        return _BackwardLoop(node, dys, wanted, given, inner).run()


class _BackwardLoop:
    """The gradient of one loop: a loop whose body is the gradient of one iteration."""

    def __init__(
        self,
        node: Node,
        dys: Sequence[Any],
        wanted: Sequence[int],
        given: Sequence[int],
        inner: Sequence[InnerGradient],
    ) -> None:
        self._node = node
        self._op = cast("While", node.op)
        self._dys = dys
        self._inner = inner
        self._variables = self._reached_variables(given)
        self._wanted = [index for index in wanted if is_differentiable(node.inputs[index])]
        self._invariants = [index for index in self._wanted if index >= len(node.outputs)]
        self._graph = SubGraph(get_default_graph(), f"the gradient of {node.name}")
        #: The variables of the backward loop, and their next values.
        self._carried: list[tuple[Tensor, Tensor]] = []
        self._summed: list[int] = []  # invariants whose gradients are summed in the loop
        self._sunk: dict[int, SunkGradient] = {}  # those whose gradients are summed after it

    def _reached_variables(self, given: Sequence[int]) -> list[int]:
        """The indices of the variables that gradients reach in some iteration."""
        body, outputs = self._op.body, self._node.outputs
        candidates = {index for index, tensor in enumerate(outputs) if is_differentiable(tensor)}
        reached: set[int] = set()
        fresh = candidates & set(given)
        targets = [tensor for tensor, _ in self._inner]
        while fresh or targets:
            reached |= fresh
            targets += [body.outputs[index] for index in sorted(fresh)]
            nodes, targets = set(needed(targets, (), {})), []
            fresh = {i for i in candidates if body.arguments[i].op in nodes} - reached
        return sorted(reached)

    def run(self) -> list[Any]:
        node = self._node
        count = capture(add_trace(node, LoopCount()))
        body = self._backward_body()
        initial = [count - 1, *(capture(self._dys[index]) for index in self._variables)]
        initial += [zeros(capture(node.inputs[index])) for index in self._summed]
        initial += [each.new_list(count) for sunk in self._sunk.values() for each in sunk.saved]
        shapes = [argument.shape for argument in body.arguments]
        specs = [(argument.dtype, argument.shape) for argument in body.arguments]
        condition = trace_body(_has_iterations_left, "the gradient of a loop", specs)
        results = loop_node(initial, condition, body, shapes, self._op.parallel_iterations)[1:]
        gradients: list[Any] = [None] * len(node.inputs)
        for index in self._wanted:
            if index < len(node.outputs):
                gradients[index] = zeros(capture(node.inputs[index]))
        for index in (*self._variables, *self._summed):
            gradients[index] = results.pop(0)
        for index, sunk in self._sunk.items():
            lists = [results.pop(0) for _ in sunk.saved]
            gradients[index] = sunk.total(lists, count, capture(node.inputs[index]))
        return gradients

    def _backward_body(self) -> Body:
        """The gradient of one iteration."""
        node, graph = self._node, self._graph
        with graph.as_default():
            iteration = graph.argument(int32, scalar(), "iteration")
            graph.sources[self._op.body.graph] = self._source(iteration)
            dys = [self._gradient_argument(node.outputs[index]) for index in self._variables]
            list_totals = {
                index: self._gradient_argument(node.inputs[index])
                for index in self._invariants
                if node.inputs[index].dtype.base_dtype is variant
            }
            gradients = self._gradients(iteration, dys, list_totals)
            self._carried.append((iteration, iteration - 1))
            for index, dy in zip(self._variables, dys, strict=True):
                dx = gradients[index]
                new = zeros(self._op.body.arguments[index]) if dx is None else convert_to_tensor(dx)
                self._carried.append((dy, new))
            for index in self._invariants:
                if gradients[index] is not None:
                    self._add_invariant(index, gradients[index], list_totals.get(index), iteration)
            for sunk in self._sunk.values():
                self._carried += [(each.argument, each.write(iteration)) for each in sunk.saved]
            outputs = tuple(graph.capture(new) for _, new in self._carried)
        return Body(graph, tuple(argument for argument, _ in self._carried), outputs)

    def _add_invariant(
        self, index: int, gradient: Any, list_total: Tensor | None, iteration: Tensor
    ) -> None:
        """Sum an iteration's gradient of an invariant: in place for a list, else after the loop if
        that is possible, or in a loop variable."""
        if list_total is not None:
            self._summed.append(index)
            self._carried.append((list_total, gradient))
        elif sunk := sink_gradient(gradient, iteration, self._graph):
            self._sunk[index] = sunk
        else:
            self._summed.append(index)
            total = self._gradient_argument(self._node.inputs[index])
            dense = convert_to_tensor(gradient)
            summands = dense.op.inputs if isinstance(dense.op.op, AddN) else [dense]
            self._carried.append((total, AddN()([total, *summands])))

    def _gradient_argument(self, tensor: Tensor) -> Tensor:
        """An argument of the backward body for the gradient of a tensor."""
        return self._graph.argument(tensor.dtype.base_dtype, tensor.shape, "gradient")

    def _source(self, iteration: Tensor) -> Callable[[Tensor], Tensor]:
        """Maps a tensor of the forward body to its value in an iteration, in the backward body."""
        node, graph, arguments = self._node, self._graph, self._op.body.bound(self._node)
        variables = self._op.body.arguments[: len(node.outputs)]

        def read(tensor: Tensor) -> Tensor:
            values = graph.capture(add_trace(node, LoopTrace(tensor=tensor)))
            return _read_iteration(values, iteration, tensor)

        invariants = {t: outer for t, outer in arguments.items() if t not in variables}
        return capture_inner(graph, invariants, read)

    def _gradients(
        self, iteration: Tensor, dys: Sequence[Tensor], list_totals: Mapping[int, Tensor]
    ) -> dict[int, Any]:
        """The gradients of an iteration: of the variables before it, and of the invariants its own
        summand (for lists the total, to which it adds in place)."""
        forward = self._op.body
        ys = [forward.outputs[index] for index in self._variables]
        seeds: list[Any] = list(dys)
        for tensor, gradient in self._inner:
            ys.append(tensor)
            seeds.append(_read_iteration(self._graph.capture(gradient), iteration, tensor))
        indices = (*self._variables, *self._invariants)
        xs = [forward.arguments[index] for index in indices]
        totals = [list_totals.get(index) for index in indices]
        return dict(zip(indices, backward(ys, seeds, xs, totals), strict=True))


def _has_iterations_left(iteration: Tensor, *_: Tensor) -> Tensor:
    return iteration >= 0


def _read_iteration(values: Tensor, iteration: Tensor, like: Tensor) -> Tensor:
    """The value that a tensor of a body had in an iteration, from its trace."""
    return TensorArrayRead(dtype=like.dtype.base_dtype, element_shape=like.shape)(values, iteration)


def loop_node(
    variables: Sequence[Tensor],
    condition: Body,
    body: Body,
    shapes: Sequence[TensorShape],
    parallel_iterations: int = 10,
    back_prop: bool = True,
) -> list[Tensor]:
    """Add a loop with a traced condition and body; returns the final variables."""
    (condition_body, loop_body), captured = close_bodies([condition, body])
    op = While(
        condition=condition_body,
        body=loop_body,
        Tout=tuple(tensor.dtype.base_dtype for tensor in variables),
        shapes=tuple(shapes),
        parallel_iterations=parallel_iterations,
        back_prop=back_prop,
    )
    with after_outer_nodes([condition, body]):
        return op(list(variables), captured)


@public("while_loop")
def while_loop(
    cond: Callable[..., Any],
    body: Callable[..., Any],
    loop_vars: Structure,
    shape_invariants: Structure = None,
    parallel_iterations: int = 10,
    back_prop: bool = True,
    swap_memory: bool = False,
    name: str | None = None,
    maximum_iterations: Any = None,
    return_same_structure: bool = False,
) -> Structure:
    """Apply `body` to the loop variables while `cond` is true, as a node of the graph.

    Args:
        cond: a function of the loop variables that returns a scalar bool tensor.
        body: a function of the loop variables that returns their next values.
        loop_vars: the initial values: tensors, or a nesting of them.
        shape_invariants: less specific shapes, for variables whose shape changes.
        parallel_iterations: how many iterations may overlap, where a loop is not compiled.
        swap_memory: for compatibility; no effect.
        back_prop: whether gradients can be taken.
        name: the name of the node.
        maximum_iterations: a limit on the number of iterations.
        return_same_structure: return a list of one loop variable as a list.

    Returns:
        The final values, in the structure of `loop_vars`.

    Raises:
        ValueError: if a loop variable changes its shape, its dtype or the structure.

    Example:
        >>> i, total = tf.while_loop(
        ...     lambda i, total: i < 5, lambda i, total: (i + 1, total + i), (0, 0)
        ... )
        >>> sess.run(total)
        np.int32(10)
    """
    _check_arguments(cond, body, loop_vars, parallel_iterations)
    with name_scope(name, "while", nest.flatten(loop_vars)):
        if maximum_iterations is not None:
            cond, body, loop_vars, shape_invariants = _with_counter(
                cond, body, loop_vars, shape_invariants, maximum_iterations
            )
        if get_default_graph().is_eager:
            result = _run_eagerly(cond, body, loop_vars)
        else:
            options = parallel_iterations, back_prop
            result = _build_loop(cond, body, loop_vars, shape_invariants, *options)
        if maximum_iterations is not None:
            result = result[1]
        return result if return_same_structure else nest.single(result)


def _run_eagerly(cond: Callable[..., Any], body: Callable[..., Any], loop_vars: Any) -> Any:
    """Run the loop in Python, in eager code."""
    values = pack_tensors(loop_vars, tensors_of(loop_vars, "Loop variables"))
    while cond(*_as_arguments(values)):
        values = _as_loop_vars(loop_vars, body(*_as_arguments(values)))
    return values


def _check_arguments(cond: Any, body: Any, loop_vars: Any, parallel_iterations: Any) -> None:
    if not loop_vars:
        raise ValueError(f"No loop variables provided (at {user_line()})")
    for name, function in (("cond", cond), ("body", body)):
        if not callable(function):
            raise TypeError(f"{name} must be callable. (at {user_line()})")
    if not isinstance(parallel_iterations, int) or parallel_iterations < 1:
        raise TypeError(
            f"parallel_iterations must be a positive int: {parallel_iterations!r} "
            f"(at {user_line()})"
        )


def _with_counter(
    cond: Callable[..., Any],
    body: Callable[..., Any],
    loop_vars: Any,
    shape_invariants: Any,
    limit: Any,
) -> tuple[Callable[..., Any], Callable[..., Any], Any, Any]:
    """The loop with a counter as an additional variable, which limits the iterations."""
    maximum = convert_to_tensor(limit, name="maximum_iterations")
    if maximum.shape.rank not in (None, 0) or not (
        maximum.dtype.is_integer or maximum.dtype.is_floating
    ):
        raise ValueError(
            f"maximum_iterations must be a scalar number, not {limit!r} (at {user_line()})"
        )
    counter = basic.constant(0, maximum.dtype.base_dtype, name="iteration_counter")

    def counted_cond(iteration: Tensor, rest: Any) -> Tensor:
        return compare.logical_and(compare.less(iteration, maximum), cond(*_as_arguments(rest)))

    def counted_body(iteration: Tensor, rest: Any) -> Any:
        return iteration + 1, _as_loop_vars(loop_vars, body(*_as_arguments(rest)))

    shapes = None if shape_invariants is None else (counter.shape, shape_invariants)
    return counted_cond, counted_body, (counter, loop_vars), shapes


def _as_arguments(structure: Any) -> Sequence[Any]:
    """Loop variables as the arguments of a function."""
    return structure if nest.is_plain(structure) else [structure]


def _as_loop_vars(loop_vars: Any, result: Any) -> Any:
    """A body's result in the structure of the loop variables: a single one may be without its list,
    and lists and tuples are interchangeable."""
    if not nest.is_plain(loop_vars):
        return result
    if not nest.is_plain(result):
        return type(loop_vars)([result]) if len(loop_vars) == 1 else result
    return type(loop_vars)(result)


def _build_loop(
    cond: Callable[..., Any],
    body: Callable[..., Any],
    loop_vars: Any,
    shape_invariants: Any,
    *options: Any,
) -> Any:
    initial = tensors_of(loop_vars, "Loop variables")
    shapes = _invariant_shapes(loop_vars, initial, shape_invariants)
    specs = [(t.dtype.base_dtype, shape) for t, shape in zip(initial, shapes, strict=True)]

    def pack(tensors: Sequence[Tensor]) -> Sequence[Any]:
        return _as_arguments(pack_tensors(loop_vars, tensors))

    def packed_body(*values: Any) -> Any:
        return _as_loop_vars(loop_vars, body(*values))

    condition = trace_body(cond, "cond of tf.while_loop", specs, pack)
    _check_condition(condition)
    traced_body = trace_body(packed_body, "body of tf.while_loop", specs, pack)
    _check_body(loop_vars, initial, shapes, traced_body)
    results = loop_node(initial, condition, traced_body, shapes, *options)
    return pack_tensors(traced_body.result, results)


def _invariant_shapes(
    loop_vars: Any, initial: Sequence[Tensor], invariants: Any
) -> list[TensorShape]:
    """The shapes that hold in every iteration."""
    if invariants is None:
        return [tensor.shape for tensor in initial]
    leaves = nest.flatten(loop_vars)
    with explained("shape_invariants must have the structure of the loop variables"):
        leaf_invariants = nest.flatten_up_to(loop_vars, invariants, check_types=False)
    shapes = [shape for parts in map(_component_shapes, leaves, leaf_invariants) for shape in parts]
    for tensor, shape in zip(initial, shapes, strict=True):
        if not _is_subshape(tensor.shape, shape):
            raise ValueError(
                f"The shape invariant specified for {tensor.name} is not compatible with the "
                f"initial shape of the loop variable. It enters the loop with shape "
                f"{tensor.shape}, but the specified shape invariant is {shape}. (at {user_line()})"
            )
    return shapes


def _component_shapes(leaf: Any, invariant: Any) -> list[TensorShape]:
    """The invariant shapes of a leaf's tensors; of a sparse one, from that of its dense_shape."""
    if isinstance(leaf, SparseTensor):
        shape = as_shape(invariant)  # of the vector of sizes
        rank = shape[0].value if shape.rank else None
        return [TensorShape([None, rank]), TensorShape([None]), TensorShape([rank])]
    if isinstance(leaf, IndexedSlices):
        shape = as_shape(invariant)
        parts = [shape, TensorShape([shape[0].value if shape.rank else None])]
        return parts if leaf.dense_shape is None else [*parts, TensorShape([shape.rank])]
    if hasattr(leaf, "components"):
        return [part.shape for part in leaf.components()]
    return [as_shape(invariant)]


def _is_subshape(shape: TensorShape, general: TensorShape) -> bool:
    """Whether every tensor of a static shape also has the more general one."""
    return general.most_specific_compatible_shape(shape).sizes == general.sizes


def _check_condition(condition: TracedBody) -> None:
    if len(condition.outputs) != 1 or nest.is_sequence(condition.result):
        raise TypeError(f"cond must return a boolean: {condition.result!r} (at {user_line()})")
    (predicate,) = condition.outputs
    if predicate.dtype.base_dtype is not boolean or predicate.shape.rank not in (None, 0):
        raise TypeError(
            f"cond must return a boolean scalar tensor, not {predicate!r} (made at "
            f"{predicate.op.origin})"
        )


def _check_body(
    loop_vars: Any, initial: Sequence[Tensor], shapes: Sequence[TensorShape], body: TracedBody
) -> None:
    """Raise unless the body returns the structure, dtypes and shapes that it takes."""
    fault = "The number and structure of what body returns must be those of the loop variables"
    with explained(fault):
        nest.assert_same_structure(loop_vars, body.result, check_types=False)
    for start, shape, end in zip(initial, shapes, body.outputs, strict=True):
        if end.dtype.base_dtype is not start.dtype.base_dtype:
            raise TypeError(
                f"Loop variable {start.name} enters the loop with type {start.dtype.name}, but has "
                f"type {end.dtype.name} after one iteration (made at {end.op.origin})."
            )
        if not _is_subshape(end.shape, shape):
            raise ValueError(
                f"The shape for {start.name} is not an invariant for the loop. It enters the loop "
                f"with shape {shape}, but has shape {end.shape} after one iteration (made at "
                f"{end.op.origin}). Provide shape invariants using either the `shape_invariants` "
                "argument of tf.while_loop or set_shape() on the loop variables."
            )
