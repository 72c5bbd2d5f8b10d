"""`gradients(ys, xs)`: reverse-mode differentiation that adds the nodes which compute dy/dx.

Nodes are created after their inputs, so creation order is a topological order: visiting the nodes
between xs and ys in reverse sees each one after all its consumers, in one pass.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from contextvars import ContextVar
from dataclasses import dataclass, field
from functools import reduce
from operator import add
from types import MethodType
from typing import Any, NamedTuple, cast

from thalweg.autodiff.registry import gradient_function
from thalweg.graph import nest
from thalweg.graph.composite import IndexedSlices, ListEntry
from thalweg.graph.convert import convert_to_tensor
from thalweg.graph.dtypes import int64, string, variant
from thalweg.graph.graph import Graph, get_default_graph
from thalweg.graph.likes import MaybeNone, TensorStructure
from thalweg.graph.node import Node, Tensor, operators, reached
from thalweg.graph.origin import is_passed_over, user_frame
from thalweg.graph.scopes import name_scope
from thalweg.graph.subgraph import SubGraph, depth, is_body
from thalweg.ops.arrays import joining
from thalweg.ops.core import basic, casting, filling, shaping
from thalweg.ops.math import arithmetic
from thalweg.platform.collector import gc_paused
from thalweg.public import public

Gradient = Tensor | IndexedSlices
Part = Gradient | ListEntry  # a summand of a gradient

#: Whether the gradient of a node is colocated with it; also applies inside bodies.
_colocate: ContextVar[bool] = ContextVar("colocates", default=False)
_NO_COLOCATION = nullcontext()


@public("AggregationMethod")
class AggregationMethod:
    """How several gradients of one tensor are summed.

    Example:
        >>> x = tf.constant(3.0)
        >>> method = tf.AggregationMethod.EXPERIMENTAL_TREE
        >>> (gradient,) = tf.gradients(x * x + x, [x], aggregation_method=method)
        >>> sess.run(gradient)
        np.float32(7.0)
    """

    ADD_N = 0
    DEFAULT = ADD_N
    EXPERIMENTAL_TREE = 1
    EXPERIMENTAL_ACCUMULATE_N = 2


@public("UnconnectedGradients")
class UnconnectedGradients:
    """The gradient of an x that no y depends on: None, or zeros."""

    NONE = "none"
    ZERO = "zero"


@public("gradients")
def gradients(
    ys: TensorStructure,
    xs: TensorStructure,
    grad_ys: TensorStructure | None = None,
    name: str = "gradients",
    colocate_gradients_with_ops: bool = False,
    gate_gradients: bool = False,
    aggregation_method: int | None = None,
    stop_gradients: TensorStructure | None = None,
    unconnected_gradients: str = "none",
) -> list[Tensor | MaybeNone]:
    """The gradients of the sum of `ys` with respect to each of `xs`, as new nodes of the graph.

    Args:
        ys: a tensor or a list of tensors.
        xs: a tensor or variable, or a list of them.
        grad_ys: the gradient of each of `ys`; ones if None.
        name: the scope of the new nodes.
        colocate_gradients_with_ops: put the gradient of a node on the node's device.
        gate_gradients: let no gradient of a node be used before all of them are computed.
        aggregation_method: an `AggregationMethod`: how the summands are added.
        stop_gradients: tensors to treat as constants.
        unconnected_gradients: "none" or "zero": the gradient of an x that no y depends on.

    Returns:
        A list with a tensor (or IndexedSlices, or None) for each of `xs`.

    Raises:
        LookupError: if a node between xs and ys has no gradient.

    Example:
        >>> x = tf.constant([1.0, 2.0])
        >>> (dx,) = tf.gradients(x**2, [x])
        >>> sess.run(dx)
        array([2., 4.], dtype=float32)
    """
    if unconnected_gradients not in ("none", "zero"):
        raise ValueError(f"Unknown value for unconnected_gradients: {unconnected_gradients!r}")
    if aggregation_method not in (None, 0, 1, 2):
        raise ValueError(f"Invalid aggregation_method specified {aggregation_method}.")
    outputs, inputs = nest.as_list(ys), nest.as_list(xs)
    seeds = [None] * len(outputs) if grad_ys is None else nest.as_list(grad_ys)
    if len(seeds) != len(outputs):
        raise ValueError(f"Passed {len(seeds)} grad_ys for {len(outputs)} ys")
    stops = [] if stop_gradients is None else nest.as_list(stop_gradients)
    with name_scope(name, "gradients", [*outputs, *inputs, *stops, *seeds]):
        enclosing = _enclosing_bodies()
        backward_pass = _BackwardPass(
            [convert_to_tensor(y, name="y") for y in outputs],
            [enclosing.source(x) for x in inputs],
            {_source(s).op for s in stops},
            colocate_gradients_with_ops,
            gate_gradients,
            aggregation_method,
            enclosing.captured,
        )
        results = backward_pass.run(seeds)
        if unconnected_gradients == "none":
            return results
        return [
            filling.zeros_like(x) if g is None else g for x, g in zip(inputs, results, strict=True)
        ]


def _source(x: Any) -> Tensor:
    """The tensor to differentiate with respect to: for a variable, the reference all reads take."""
    reference = getattr(x, "gradient_source", None)
    if reference is not None:
        return reference()
    if isinstance(x, IndexedSlices):
        return x.values
    return convert_to_tensor(x, name="x")


class _EnclosingBodies(NamedTuple):
    """The control-flow bodies that are being built, innermost first."""

    captured: dict[Tensor, Tensor]  # argument of a body → the tensor it captures
    bodies: list[Graph]
    outermost: Graph  # the function or graph that holds them

    def source(self, x: Any) -> Tensor:
        """The tensor to differentiate with respect to, in one of these graphs."""
        tensor, graph = _source(x), self.outermost
        if not isinstance(graph, SubGraph) or tensor.op.graph in self.bodies:
            return tensor
        return graph.capture(tensor)


def _enclosing_bodies() -> _EnclosingBodies:
    captured: dict[Tensor, Tensor] = {}
    bodies: list[Graph] = []
    graph = get_default_graph()
    while isinstance(graph, SubGraph) and is_body(graph):
        captured |= {inner: outer for outer, inner in graph.captures.items()}
        bodies.append(graph)
        graph = graph.outer
    return _EnclosingBodies(captured, bodies, graph)


class InnerGradient(NamedTuple):
    """The gradient of a tensor inside a control node, for the gradient function of that node."""

    tensor: Tensor
    gradient: Any


def backward(
    ys: Sequence[Tensor],
    seeds: Sequence[Any],
    xs: Sequence[Tensor],
    totals: Sequence[Any] | None = None,
) -> list[Any]:
    """The gradients of xs, each added to its entry of `totals` unless that is None.

    The nodes between xs and ys may be in another graph than the current one, which then captures
    their tensors through its `sources`.
    """
    backward_pass = _BackwardPass(list(ys), list(xs), set(), _colocate.get(), False, None)
    for x, total in zip(xs, totals or (), strict=totals is not None):
        if total is not None:
            backward_pass.add_part(x, total)
    return backward_pass.run(seeds)


@dataclass(eq=False)
class _BackwardPass:
    """One call of `gradients`: the nodes between xs and ys, and the gradients found so far."""

    ys: list[Tensor]
    xs: list[Tensor]
    stops: set[Node]
    colocate: bool
    gate: bool
    aggregation: int | None
    #: argument of a body → the tensor it captures
    captured: Mapping[Tensor, Tensor] = field(default_factory=dict[Tensor, Tensor])

    def __post_init__(self) -> None:
        self._parts: dict[Tensor, list[Part]] = defaultdict(list)  # summands of gradients
        self._totals: dict[Tensor, Gradient] = {}
        self._inner_gradients: dict[Node, list[InnerGradient]] = defaultdict(list)
        self._reached: set[Node] = set()  # the nodes of xs, and those that depend on them

    def add_part(self, tensor: Tensor, gradient: Any) -> None:
        """Add a summand of the gradient of a tensor."""
        self._parts[tensor].append(gradient)

    def run(self, seeds: Sequence[Any]) -> list[Any]:
        for y, seed in zip(self.ys, seeds, strict=True):
            if y.dtype.base_dtype is not string:  # strings have no gradient
                self._parts[y].append(self._seed(y, seed))
        before = _colocate.set(self.colocate)
        try:
            with gc_paused(), get_default_graph().at_line(user_frame()):
                for node in self._nodes_between():
                    self._visit(node)
                return [self._sum(x) for x in self.xs]
        finally:
            _colocate.reset(before)

    def _seed(self, y: Tensor, seed: Any) -> Gradient:
        if seed is None:
            if y.dtype.is_complex:
                raise TypeError(
                    f"Gradients of complex tensors must set grad_ys (y.dtype = {y.dtype})"
                )
            with self._colocated_with(y.op):
                return filling.ones_like(y, name="grad_ys")
        if isinstance(seed, IndexedSlices):
            return seed
        tensor = convert_to_tensor(seed, y.dtype.base_dtype, name="grad_y")
        if tensor.shape.is_compatible_with(y.shape):
            return tensor
        if tensor.shape.num_elements() != y.shape.num_elements():
            raise ValueError(f"grad_y of shape {tensor.shape} does not fit {y.name}: {y.shape}")
        return shaping.reshape(tensor, shaping.shape(y))

    def _nodes_between(self) -> list[Node]:
        """Nodes that ys depend on and that depend on xs, in reverse topological order."""
        ends = [y.op for y in self.ys]
        ancestors = reached(ends, lambda node: [tensor.op for tensor in self._sources(node)])
        starts = {x.op for x in self.xs}
        found = self._reached
        for node in sorted(ancestors | starts, key=_topological_key):
            if node in starts or any(t.op in found for t in self._sources(node)):
                found.add(node)
        return sorted(found & ancestors, key=_topological_key, reverse=True)

    def _sources(self, node: Node) -> Sequence[Tensor]:
        """The inputs of a node; of an argument of a body, the tensor it captures."""
        outside = [self.captured[t] for t in node.outputs if t in self.captured]
        return outside or node.inputs

    def _visit(self, node: Node) -> None:
        inner = self._inner_gradients.get(node)
        if not inner and not any(self._parts.get(t) for t in node.outputs):
            return
        totals = [self._sum(t) for t in node.outputs]
        if node in self.stops:
            return
        if not node.inputs:
            self._exit_body(node, totals)
        elif any(is_differentiable(t) for t in node.outputs):
            self._propagate(node, totals, inner)

    def _propagate(
        self, node: Node, totals: Sequence[Gradient | None], inner: list[InnerGradient] | None
    ) -> None:
        """Add a node's contribution to the gradients of its inputs."""
        function = gradient_function(node)
        if function is None:
            return
        options: dict[str, Any] = {} if inner is None else {"inner": inner}
        if node.op.chooses_gradients:
            options["wanted"] = [p for p, t in enumerate(node.inputs) if t.op in self._reached]
            options["given"] = [p for p, total in enumerate(totals) if total is not None]
        with get_default_graph().name_scope(f"{node.name}_grad"), self._colocated_with(node):
            results = _as_gradients(self._call_gradient(node, function, totals, options), node)
            # Values that were read never change: only for an op that takes a variable by reference
            # could another gradient see an early update.
            if self.gate and any(tensor.dtype.is_ref_dtype for tensor in node.inputs):
                present = [gradient for gradient in results if gradient is not None]
                results = basic.tuple_(results) if len(present) > 1 else results
        for tensor, gradient in zip(node.inputs, results, strict=True):
            if isinstance(gradient, InnerGradient):
                self._inner_gradients[tensor.op].append(gradient)
            elif gradient is not None and is_differentiable(tensor):
                self._parts[tensor].append(_with_checked_shape(gradient, tensor))

    def _call_gradient(
        self,
        node: Node,
        function: Callable[..., Any],
        totals: Sequence[Gradient | None],
        options: Mapping[str, Any],
    ) -> Any:
        dys = self._output_gradients(node, totals)
        if isinstance(function, MethodType) and is_passed_over[function.__code__.co_filename]:
            return function(node, *dys, **options)
        with get_default_graph().at_line(None):  # nodes of a user's function have their own lines
            return function(node, *dys, **options)

    def _exit_body(self, node: Node, totals: Sequence[Gradient | None]) -> None:
        """Pass the gradient of a body's argument on to the tensor it captures."""
        for tensor, total in zip(node.outputs, totals, strict=True):
            if total is not None and tensor in self.captured:
                self._parts[self.captured[tensor]].append(total)

    def _output_gradients(self, node: Node, totals: Sequence[Gradient | None]) -> list[Any]:
        """The arguments of a gradient function: zeros for None, dense unless it takes slices."""
        dys: list[Any] = []
        for tensor, total in zip(node.outputs, totals, strict=True):
            if total is None and is_differentiable(tensor):
                dys.append(zeros(tensor))
            elif isinstance(total, IndexedSlices) and not node.op.passes_slices:
                dys.append(convert_to_tensor(total))
            else:
                dys.append(total)
        return dys

    def _sum(self, tensor: Tensor) -> Gradient | None:
        if tensor in self._totals:
            return self._totals[tensor]
        parts = self._parts.get(tensor)
        if not parts:
            return None
        if len(parts) == 1 and isinstance(parts[0], Tensor):
            total = parts[0]
        else:
            with self._colocated_with(_aggregation_node(tensor, parts)):
                total = aggregate(parts, self.aggregation)
        self._totals[tensor] = total
        return total

    def _colocated_with(self, node: Node) -> AbstractContextManager[Any]:
        return get_default_graph().colocate_with(node) if self.colocate else _NO_COLOCATION


def _topological_key(node: Node) -> tuple[int, int]:
    """Sorts nodes after their inputs: nodes of an enclosing graph come before those of a body."""
    return depth(node.graph), node.index


def _aggregation_node(tensor: Tensor, parts: Sequence[Part]) -> Node:
    """The node whose device sums the parts: that of all parts if it is one, else the tensor's."""
    nodes = [part.op for part in parts if not isinstance(part, ListEntry)]
    if len(nodes) < len(parts) or len({node.device for node in nodes}) > 1:
        return tensor.op
    return nodes[-1]  # from the first consumer of the tensor


def zeros(tensor: Tensor) -> Tensor:
    """A zero gradient for a tensor; for a list, an empty list of gradients."""
    if tensor.dtype.base_dtype is variant:
        return operators["list_gradient"](tensor)
    return filling.zeros_like(tensor)


def is_differentiable(tensor: Tensor) -> bool:
    """Whether tensors of this dtype have gradients: floats, complex numbers, and lists of them."""
    base = tensor.dtype.base_dtype
    return base.is_floating or base.is_complex or base is variant


def _as_gradients(result: Any, node: Node) -> list[Any]:
    gradients = nest.as_list(result)
    if len(gradients) != len(node.inputs):
        raise ValueError(
            f"Num gradients {len(gradients)} generated for op {node.name} ({node.type}) do not "
            f"match num inputs {len(node.inputs)}"
        )
    return [g if isinstance(g, _GRADIENTS) else convert_to_tensor(g) for g in gradients]


_GRADIENTS = (Tensor, IndexedSlices, ListEntry, InnerGradient, type(None))


def _with_checked_shape(gradient: Part, tensor: Tensor) -> Part:
    """The gradient, whose static shape is checked against and refined by that of its tensor."""
    if not isinstance(gradient, Tensor):
        return gradient
    if gradient.shape.sizes == tensor.shape.sizes:
        return gradient
    if not gradient.shape.is_compatible_with(tensor.shape):
        raise ValueError(
            f"Incompatible shapes between op input and calculated input gradient. {tensor.name} "
            f"({tensor.op.type}) has shape {tensor.shape}, its gradient {gradient.shape} "
            f"(made at {tensor.op.origin})"
        )
    gradient.set_shape(tensor.shape)
    return gradient


def aggregate(parts: Sequence[Part], method: int | None = None) -> Gradient:
    """The sum of gradients of one tensor; IndexedSlices if all are."""
    entries = [part for part in parts if isinstance(part, ListEntry)]
    whole = [part for part in parts if not isinstance(part, ListEntry)]
    if entries or whole[0].dtype.base_dtype is variant:
        return _sum_lists(cast("Sequence[Tensor]", whole), entries)
    return _sum(whole, method)


def _sum_lists(lists: Sequence[Tensor], entries: Sequence[ListEntry]) -> Tensor:
    """The sum of lists of gradients. Adding an entry in place costs only the size of the entry."""
    total = lists[0] if lists else zeros(entries[0].like)
    for other in lists[1:]:
        total = operators["list_merge"](total, other)
    for entry in entries:
        total = entry.added_to(total)
    return total


def _sum(parts: Sequence[Gradient], method: int | None) -> Gradient:
    if len(parts) == 1:
        return parts[0]
    if all(isinstance(part, IndexedSlices) for part in parts):
        return _concat_slices(cast("Sequence[IndexedSlices]", parts))
    tensors = [convert_to_tensor(part) for part in parts]
    if method == AggregationMethod.EXPERIMENTAL_TREE:
        return reduce(add, tensors)
    return arithmetic.add_n(tensors)


def _concat_slices(slices: Sequence[IndexedSlices]) -> IndexedSlices:
    indices = [s.indices for s in slices]
    if len({t.dtype for t in indices}) > 1:
        indices = [casting.cast(t, int64) for t in indices]
    return IndexedSlices(
        joining.concat([s.values for s in slices], 0),
        joining.concat(indices, 0),
        slices[0].dense_shape,
    )
