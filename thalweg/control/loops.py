"""Loops in the graph: a condition and a body that run until the condition is false.

The gradient of a loop is a loop that goes backwards over the iterations, with what the body's
gradient needs of them read from traces.
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
    rebuilt,
    tensors_of,
    trace_body,
)
from thalweg.control.list_ops import TensorArrayRead
from thalweg.control.sink_invariant_gradients import SunkGradient, sink_gradient
from thalweg.control.traces import LoopCount, LoopTrace, here, is_argument, known_in, traced
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
    """Loop variables after the body was applied to them as long as the condition held.

    Condition and body take the variables and then the invariants; the body gives new variables.
    """

    signature = "variables: [T], invariants: [Tinvariant] -> results: [Tout]"
    condition: Body
    body: Body
    Tout: tuple[DType, ...]
    shapes: tuple[TensorShape, ...]
    parallel_iterations: int = 10
    back_prop: bool = True
    swap_memory: bool = False

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
    """The gradient of one loop: a loop whose body is one iteration backwards."""

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
        self._variables = self._reached(given)
        self._wanted = [place for place in wanted if is_differentiable(node.inputs[place])]
        self._invariants = [place for place in self._wanted if place >= len(node.outputs)]
        self._graph = SubGraph(get_default_graph(), f"the gradient of {node.name}")
        self._carried: list[tuple[Tensor, Tensor]] = []  # loop variables, and their new values
        self._added: list[int] = []  # inputs whose gradients the iterations add up
        self._sunk: list[SunkGradient] = []  # what is left for after the loop

    def _reached(self, given: Sequence[int]) -> list[int]:
        """The variables that a gradient comes to, in whatever iteration."""
        body = self._op.body
        carrying = {
            place for place, tensor in enumerate(self._node.outputs) if is_differentiable(tensor)
        }
        found: set[int] = set()
        fresh = carrying & set(given)
        ends = [tensor for tensor, _ in self._inner]
        while fresh or ends:
            found |= fresh
            ends += [body.outputs[place] for place in sorted(fresh)]
            nodes, ends = set(needed(ends, (), {})), []
            fresh = {p for p in carrying if body.arguments[p].op in nodes} - found
        return sorted(found)

    def run(self) -> list[Any]:
        node = self._node
        count = here(traced(node, LoopCount()))
        body = self._body()
        starts = [count - 1, *(here(self._dys[place]) for place in self._variables)]
        starts += [zeros(here(node.inputs[place])) for place in self._added]
        starts += [kept.start(count) for each in self._sunk for kept in each.kept]
        shapes = [argument.shape for argument in body.arguments]
        specs = [(argument.dtype, argument.shape) for argument in body.arguments]
        condition = trace_body(_is_left, "the gradient of a loop", specs)
        results = loop_node(starts, condition, body, shapes, self._op.parallel_iterations)[1:]
        found: list[Any] = [None] * len(node.inputs)
        for place in self._wanted:
            if place < len(node.outputs):
                found[place] = zeros(here(node.inputs[place]))
        for place in (*self._variables, *self._added):
            found[place] = results.pop(0)
        for each in self._sunk:
            lists = [results.pop(0) for _ in each.kept]
            found[each.place] = each.total(lists, count, here(node.inputs[each.place]))
        return found

    def _body(self) -> TracedBody:
        """One iteration backwards."""
        node, graph = self._node, self._graph
        with graph.as_default():
            at = graph.argument(int32, scalar(), "iteration")
            graph.sources[self._op.body.graph] = self._source(at)
            of_outputs = [self._gradient_of(node.outputs[place]) for place in self._variables]
            of_lists = {
                place: self._gradient_of(node.inputs[place])
                for place in self._invariants
                if node.inputs[place].dtype.base_dtype is variant
            }
            found = self._gradients(at, of_outputs, of_lists)
            self._carried.append((at, at - 1))
            for place, argument in zip(self._variables, of_outputs, strict=True):
                self._carried.append((argument, self._dense(place, found[place])))
            for place in self._invariants:
                if found[place] is not None:
                    self._add(place, found[place], of_lists.get(place), at)
            for kept in [kept for each in self._sunk for kept in each.kept]:
                self._carried.append((kept.held, kept.written(at)))
            outputs = tuple(graph.capture(new) for _, new in self._carried)
        return TracedBody(graph, tuple(argument for argument, _ in self._carried), outputs)

    def _add(self, place: int, gradient: Any, of_list: Tensor | None, at: Tensor) -> None:
        """Take up an iteration's part of the gradient of what the loop takes unchanged."""
        left = sink_gradient(place, gradient, at, self._graph) if of_list is None else None
        if left is not None:
            self._sunk.append(left)
            return
        self._added.append(place)
        if of_list is not None:
            self._carried.append((of_list, gradient))
            return
        total = self._gradient_of(self._node.inputs[place])
        self._carried.append((total, AddN()([total, *_summands(convert_to_tensor(gradient))])))

    def _dense(self, place: int, gradient: Any) -> Tensor:
        if gradient is None:
            return zeros(self._op.body.arguments[place])
        return convert_to_tensor(gradient)

    def _gradient_of(self, tensor: Tensor) -> Tensor:
        """The argument of the backward body that is the gradient of a tensor."""
        return self._graph.argument(tensor.dtype.base_dtype, tensor.shape, "gradient")

    def _source(self, at: Tensor) -> Callable[[Tensor], Tensor]:
        """How the backward body gets at a tensor of the forward one, at its iteration."""
        node, graph = self._node, self._graph
        places = {tensor: place for place, tensor in enumerate(self._op.body.arguments)}

        def source(tensor: Tensor) -> Tensor:
            if is_argument(tensor) and places[tensor] >= len(node.outputs):
                return graph.capture(node.inputs[places[tensor]])
            known = known_in(graph, tensor)
            if known is not None:
                return known
            values = graph.capture(traced(node, LoopTrace(tensor=tensor)))
            with graph.as_default(), graph.without_scopes():
                return _read(values, at, tensor)

        return source

    def _gradients(
        self, at: Tensor, of_outputs: Sequence[Tensor], of_lists: Mapping[int, Tensor]
    ) -> dict[int, Any]:
        """What an iteration gives: the gradients of variables before it, and of what it takes
        unchanged its own part (of lists the whole, which it adds to in place)."""
        forward = self._op.body
        ys = [forward.outputs[place] for place in self._variables]
        seeds: list[Any] = list(of_outputs)
        for tensor, gradient in self._inner:
            ys.append(tensor)
            seeds.append(_read(self._graph.capture(gradient), at, tensor))
        places = (*self._variables, *self._invariants)
        xs = [forward.arguments[place] for place in places]
        totals = [of_lists.get(place) for place in places]
        return dict(zip(places, backward(ys, seeds, xs, totals), strict=True))


def _summands(gradient: Tensor) -> Sequence[Tensor]:
    return gradient.op.inputs if isinstance(gradient.op.op, AddN) else [gradient]


def _is_left(at: Tensor, *_: Tensor) -> Tensor:
    """Whether there is an iteration left, counting down."""
    return at >= 0


def _read(values: Tensor, at: Tensor, like: Tensor) -> Tensor:
    """The value that a tensor of a body had in an iteration."""
    return TensorArrayRead(dtype=like.dtype.base_dtype, element_shape=like.shape)(values, at)


def loop_node(
    variables: Sequence[Tensor],
    condition: TracedBody,
    body: TracedBody,
    shapes: Sequence[TensorShape],
    parallel_iterations: int = 10,
    back_prop: bool = True,
    swap_memory: bool = False,
    name: str = "While",
) -> list[Tensor]:
    """A loop over variables with a traced condition and body; the final variables."""
    (condition_body, loop_body), captured = close_bodies([condition, body])
    op = While(
        condition=condition_body,
        body=loop_body,
        Tout=tuple(tensor.dtype.base_dtype for tensor in variables),
        shapes=tuple(shapes),
        parallel_iterations=parallel_iterations,
        back_prop=back_prop,
        swap_memory=swap_memory,
    )
    with after_outer_nodes([condition, body]):
        return op(list(variables), captured, name=name)


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
    """Apply `body` to the loop variables while `cond` of them holds, in one step of the graph.

    Args:
        cond: a function of the loop variables that returns a scalar bool tensor.
        body: a function of the loop variables that returns their next values.
        loop_vars: the first values: tensors, or a nesting of them.
        shape_invariants: looser shapes, for variables whose shape changes.
        parallel_iterations: how many iterations may overlap, where a loop is not compiled.
        swap_memory: taken for old programs.
        back_prop: whether gradients can be taken.
        name: the name of the node.
        maximum_iterations: a limit on the number of iterations.
        return_same_structure: keep a list of one loop variable as it is.

    Returns:
        The last values, in the structure of `loop_vars`.

    Raises:
        ValueError: where a loop variable changes its shape, its dtype or the structure.

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
            cond, body, loop_vars, shape_invariants = _counted(
                cond, body, loop_vars, shape_invariants, maximum_iterations
            )
        if get_default_graph().is_eager:
            result = _run_now(cond, body, loop_vars)
        else:
            options = parallel_iterations, back_prop, swap_memory
            result = _loop(cond, body, loop_vars, shape_invariants, *options)
        if maximum_iterations is not None:
            result = result[1]
        return result if return_same_structure else nest.single(result)


def _run_now(cond: Callable[..., Any], body: Callable[..., Any], loop_vars: Any) -> Any:
    """The loop as Python runs it, in eager code."""
    values = rebuilt(loop_vars, tensors_of(loop_vars, "Loop variables"))
    while cond(*_unpacked(values)):
        values = _like(loop_vars, body(*_unpacked(values)))
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


def _counted(
    cond: Callable[..., Any],
    body: Callable[..., Any],
    loop_vars: Any,
    shape_invariants: Any,
    limit: Any,
) -> tuple[Callable[..., Any], Callable[..., Any], Any, Any]:
    """The same loop with a counter that ends it."""
    most = convert_to_tensor(limit, name="maximum_iterations")
    if most.shape.rank not in (None, 0) or not (most.dtype.is_integer or most.dtype.is_floating):
        raise ValueError(
            f"maximum_iterations must be a scalar number, not {limit!r} (at {user_line()})"
        )
    counter = basic.constant(0, most.dtype.base_dtype, name="iteration_counter")

    def counted_cond(at: Tensor, rest: Any) -> Tensor:
        return compare.logical_and(compare.less(at, most), cond(*_unpacked(rest)))

    def counted_body(at: Tensor, rest: Any) -> Any:
        return at + 1, _like(loop_vars, body(*_unpacked(rest)))

    shapes = None if shape_invariants is None else (counter.shape, shape_invariants)
    return counted_cond, counted_body, (counter, loop_vars), shapes


def _unpacked(structure: Any) -> Sequence[Any]:
    """Loop variables as arguments of a function."""
    return structure if nest.is_plain(structure) else [structure]


def _like(wanted: Any, result: Any) -> Any:
    """A body's result in the form of the loop variables: one alone may come without its list, and
    lists and tuples stand for each other."""
    if not nest.is_plain(wanted):
        return result
    if not nest.is_plain(result):
        return type(wanted)([result]) if len(wanted) == 1 else result
    return type(wanted)(result)


def _loop(
    cond: Callable[..., Any],
    body: Callable[..., Any],
    loop_vars: Any,
    shape_invariants: Any,
    *options: Any,
) -> Any:
    starts = tensors_of(loop_vars, "Loop variables")
    shapes = _shapes(loop_vars, starts, shape_invariants)
    specs = [(t.dtype.base_dtype, shape) for t, shape in zip(starts, shapes, strict=True)]

    def pack(tensors: Sequence[Tensor]) -> Sequence[Any]:
        return _unpacked(rebuilt(loop_vars, tensors))

    def again(*given: Any) -> Any:
        return _like(loop_vars, body(*given))

    condition = trace_body(cond, "cond of tf.while_loop", specs, pack)
    _check_condition(condition)
    traced_body = trace_body(again, "body of tf.while_loop", specs, pack)
    _check_body(loop_vars, starts, shapes, traced_body)
    results = loop_node(starts, condition, traced_body, shapes, *options)
    return rebuilt(traced_body.result, results)


def _shapes(loop_vars: Any, starts: Sequence[Tensor], invariants: Any) -> list[TensorShape]:
    """The shapes that hold in every iteration."""
    if invariants is None:
        return [tensor.shape for tensor in starts]
    leaves = nest.flatten(loop_vars)
    try:
        given = nest.flatten_up_to(loop_vars, invariants, check_types=False)
    except (TypeError, ValueError) as error:
        raise type(error)(
            f"shape_invariants must have the structure of the loop variables: {error} "
            f"(at {user_line()})"
        ) from error
    found = [shape for leaf, one in zip(leaves, given, strict=True) for shape in _spread(leaf, one)]
    for tensor, shape in zip(starts, found, strict=True):
        if not is_narrower(tensor.shape, shape):
            raise ValueError(
                f"The shape invariant specified for {tensor.name} is not compatible with the "
                f"initial shape of the loop variable. It enters the loop with shape "
                f"{tensor.shape}, but the specified shape invariant is {shape}. (at {user_line()})"
            )
    return found


def _spread(leaf: Any, invariant: Any) -> list[TensorShape]:
    """The invariant shapes of a leaf's tensors: of a sparse one from that of its dense_shape."""
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


def is_narrower(shape: TensorShape, than: TensorShape) -> bool:
    """Whether whatever has one shape has the other too."""
    if than.rank is None:
        return True
    if shape.rank != than.rank:
        return False
    return all(b is None or a == b for a, b in zip(shape.as_list(), than.as_list(), strict=True))


def _check_condition(condition: TracedBody) -> None:
    if len(condition.outputs) != 1 or nest.is_sequence(condition.result):
        raise TypeError(f"cond must return a boolean: {condition.result!r} (at {user_line()})")
    (truth,) = condition.outputs
    if truth.dtype.base_dtype is not boolean or truth.shape.rank not in (None, 0):
        raise TypeError(
            f"cond must return a boolean scalar tensor, not {truth!r} (made at {truth.op.origin})"
        )


def _check_body(
    loop_vars: Any, starts: Sequence[Tensor], shapes: Sequence[TensorShape], body: TracedBody
) -> None:
    """Raise unless the body gives the structure, dtypes and shapes that it takes."""
    try:
        nest.assert_same_structure(loop_vars, body.result, check_types=False)
    except ValueError as error:
        raise ValueError(
            "The number and structure of what body returns must be those of the loop variables: "
            f"{error} (at {user_line()})"
        ) from error
    for start, shape, end in zip(starts, shapes, body.outputs, strict=True):
        if end.dtype.base_dtype is not start.dtype.base_dtype:
            raise TypeError(
                f"Loop variable {start.name} enters the loop with type {start.dtype.name}, but has "
                f"type {end.dtype.name} after one iteration (made at {end.op.origin})."
            )
        if not is_narrower(end.shape, shape):
            raise ValueError(
                f"The shape for {start.name} is not an invariant for the loop. It enters the loop "
                f"with shape {shape}, but has shape {end.shape} after one iteration (made at "
                f"{end.op.origin}). Provide shape invariants using either the `shape_invariants` "
                "argument of tf.while_loop or set_shape() on the loop variables."
            )
