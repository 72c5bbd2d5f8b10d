"""`gradients(ys, xs)`: new nodes that compute dy/dx, made by walking the graph backwards.

Every node lies after what it depends on, so visiting the nodes between xs and ys in reverse order
of creation sees each node after all its consumers: one pass, no recursion.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from contextvars import ContextVar
from types import MethodType
from typing import Any, NamedTuple, cast

from thalweg.autodiff.registry import gradient_function
from thalweg.graph.composite import IndexedSlices, ListEntry
from thalweg.graph.convert import convert_to_tensor
from thalweg.graph.dtypes import int64, string, variant
from thalweg.graph.graph import Graph, get_default_graph
from thalweg.graph.likes import MaybeNone, TensorStructure
from thalweg.graph.node import Node, Tensor, operators
from thalweg.graph.origin import is_passed_over, user_frame
from thalweg.graph.scopes import name_scope
from thalweg.graph.subgraph import SubGraph, depth, is_body
from thalweg.ops.arrays import joining
from thalweg.ops.core import basic, casting, filling, shaping
from thalweg.ops.math import arithmetic
from thalweg.platform.collector import gc_paused
from thalweg.public import public

Gradient = Tensor | IndexedSlices
Part = Gradient | ListEntry  # of a gradient

#: Whether gradients go where what they are of is: the choice holds inside bodies too.
_colocates: ContextVar[bool] = ContextVar("colocates", default=False)
_ANYWHERE = nullcontext()


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
    """What the gradient of something that nothing depends on is."""

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
    """The gradients of the sum of `ys` in each of `xs`, as new nodes of the graph.

    Args:
        ys: a tensor or a list of tensors.
        xs: a tensor or variable, or a list of them.
        grad_ys: what flows into each of `ys`; ones if None.
        name: the scope of the new nodes.
        colocate_gradients_with_ops: put the gradient of a node on the node's device.
        gate_gradients: let no gradient of a node be used before all of them are there.
        aggregation_method: taken for old programs.
        stop_gradients: tensors that count as constants.
        unconnected_gradients: "none" or "zero": what an x gets that no y depends on.

    Returns:
        A list with a tensor (or IndexedSlices, or None) for each of `xs`.

    Raises:
        LookupError: where a node on the way has no gradient.

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
    outputs, inputs = _as_list(ys), _as_list(xs)
    seeds = [None] * len(outputs) if grad_ys is None else _as_list(grad_ys)
    if len(seeds) != len(outputs):
        raise ValueError(f"Passed {len(seeds)} grad_ys for {len(outputs)} ys")
    stops = [] if stop_gradients is None else _as_list(stop_gradients)
    with name_scope(name, "gradients", [*outputs, *inputs, *stops, *seeds]):
        around = _around()
        walk = _Backward(
            [convert_to_tensor(y, name="y") for y in outputs],
            [around.source(x) for x in inputs],
            {_source(s).op for s in stops},
            colocate_gradients_with_ops,
            gate_gradients,
            aggregation_method,
            around.captured,
        )
        found = walk.run(seeds)
        if unconnected_gradients == "none":
            return found
        return [
            filling.zeros_like(x) if g is None else g for x, g in zip(inputs, found, strict=True)
        ]


def _as_list(value: Any) -> list[Any]:
    return list(cast("Sequence[Any]", value)) if isinstance(value, list | tuple) else [value]


def _source(x: Any) -> Tensor:
    """The tensor whose gradient is meant: of a variable its reference, which all reads start at."""
    reference = getattr(x, "gradient_source", None)
    if reference is not None:
        return reference()
    if isinstance(x, IndexedSlices):
        return x.values
    return convert_to_tensor(x, name="x")


class _Around(NamedTuple):
    """The bodies that are being built around the current line, up to a function or the graph."""

    captured: dict[Tensor, Tensor]  # what their arguments stand for in the graphs around
    bodies: list[Graph]
    outermost: Graph

    def source(self, x: Any) -> Tensor:
        """The tensor whose gradient is meant, as it is seen in one of these graphs."""
        tensor, graph = _source(x), self.outermost
        if not isinstance(graph, SubGraph) or tensor.graph in self.bodies:
            return tensor
        return graph.capture(tensor)


def _around() -> _Around:
    captured: dict[Tensor, Tensor] = {}
    bodies: list[Graph] = []
    graph = get_default_graph()
    while isinstance(graph, SubGraph) and is_body(graph):
        captured |= {inner: outer for outer, inner in graph.captures.items()}
        bodies.append(graph)
        graph = graph.outer
    return _Around(captured, bodies, graph)


class InnerGradient(NamedTuple):
    """The gradient of a tensor inside a control node, on its way to the gradient of that node."""

    tensor: Tensor
    gradient: Any


def backward(
    ys: Sequence[Tensor],
    seeds: Sequence[Any],
    xs: Sequence[Tensor],
    totals: Sequence[Any] | None = None,
) -> list[Any]:
    """The gradients of xs, added to `totals` where those are given.

    The nodes between xs and ys may lie in another graph than the current one, which then takes
    what it needs from there by its `sources`.
    """
    walk = _Backward(list(ys), list(xs), set(), _colocates.get(), False, None)
    for x, total in zip(xs, totals or (), strict=totals is not None):
        if total is not None:
            walk.add(x, total)
    return walk.run(seeds)


class _Backward:
    """One call of `gradients`: what lies between xs and ys, and what was accumulated so far."""

    def __init__(
        self,
        ys: list[Tensor],
        xs: list[Tensor],
        stops: set[Node],
        colocate: bool,
        gate: bool,
        aggregation: int | None,
        captured: Mapping[Tensor, Tensor] | None = None,
    ) -> None:
        self._ys = ys
        self._xs = xs
        self._stops = stops
        self._colocate = colocate
        self._gate = gate
        self._aggregation = aggregation
        self._captured = captured or {}  # arguments that the walk goes out of their graph by
        self._found: dict[Tensor, list[Part]] = defaultdict(list)
        self._total: dict[Tensor, Gradient] = {}
        self._inner: dict[Node, list[InnerGradient]] = defaultdict(list)
        self._reached: set[Node] = set()  # nodes that depend on xs, and those of xs themselves

    def add(self, tensor: Tensor, gradient: Any) -> None:
        """Note a part of the gradient of a tensor."""
        self._found[tensor].append(gradient)

    def run(self, seeds: Sequence[Any]) -> list[Any]:
        for y, seed in zip(self._ys, seeds, strict=True):
            if y.dtype.base_dtype is not string:  # nothing flows back from text
                self._found[y].append(self._seed(y, seed))
        before = _colocates.set(self._colocate)
        try:
            with gc_paused(), get_default_graph().at_line(user_frame()):
                for node in self._between():
                    self._visit(node)
                return [self._sum(x) for x in self._xs]
        finally:
            _colocates.reset(before)

    def _seed(self, y: Tensor, seed: Any) -> Gradient:
        if seed is None:
            if y.dtype.is_complex:
                raise TypeError(
                    f"Gradients of complex tensors must set grad_ys (y.dtype = {y.dtype})"
                )
            with self._on_device_of(y.op):
                return filling.ones_like(y, name="grad_ys")
        if isinstance(seed, IndexedSlices):
            return seed
        tensor = convert_to_tensor(seed, y.dtype.base_dtype, name="grad_y")
        if tensor.shape.is_compatible_with(y.shape):
            return tensor
        if tensor.shape.num_elements() != y.shape.num_elements():
            raise ValueError(f"grad_y of shape {tensor.shape} does not fit {y.name}: {y.shape}")
        return shaping.reshape(tensor, shaping.shape(y))

    def _between(self) -> list[Node]:
        """Nodes that ys depend on and that depend on xs, latest first."""
        behind = self._ancestors(y.op for y in self._ys)
        starts = {x.op for x in self._xs}
        reached = self._reached
        for node in sorted(behind | starts, key=_position):
            if node in starts or any(t.op in reached for t in self._sources(node)):
                reached.add(node)
        return sorted(reached & behind, key=_position, reverse=True)

    def _ancestors(self, nodes: Iterable[Node]) -> set[Node]:
        found: set[Node] = set()
        pending = list(nodes)
        while pending:
            node = pending.pop()
            if node not in found:
                found.add(node)
                pending += [tensor.op for tensor in self._sources(node)]
        return found

    def _sources(self, node: Node) -> Sequence[Tensor]:
        """The inputs of a node; of an argument, what it stands for in the graph around."""
        outside = [self._captured[t] for t in node.outputs if t in self._captured]
        return outside or node.inputs

    def _visit(self, node: Node) -> None:
        inner = self._inner.get(node)
        if not inner and not any(self._found.get(t) for t in node.outputs):
            return
        totals = [self._sum(t) for t in node.outputs]
        if node in self._stops:
            return
        if not node.inputs:
            self._leave(node, totals)
        elif any(carries(t) for t in node.outputs):
            self._pass_on(node, totals, inner)

    def _pass_on(
        self, node: Node, totals: Sequence[Gradient | None], inner: list[InnerGradient] | None
    ) -> None:
        """Add to the gradients of a node's inputs."""
        function = gradient_function(node)
        if function is None:
            return
        found: dict[str, Any] = {} if inner is None else {"inner": inner}
        if node.op.chooses_gradients:
            found["wanted"] = [p for p, t in enumerate(node.inputs) if t.op in self._reached]
            found["given"] = [p for p, total in enumerate(totals) if total is not None]
        with get_default_graph().name_scope(f"{node.name}_grad"), self._on_device_of(node):
            results = _as_gradients(self._given(node, function, totals, found), node)
            if self._gate and any(tensor.dtype.is_ref_dtype for tensor in node.inputs):
                results = _gated(results)
        for tensor, gradient in zip(node.inputs, results, strict=True):
            if isinstance(gradient, InnerGradient):
                self._inner[tensor.op].append(gradient)
            elif gradient is not None and carries(tensor):
                self._found[tensor].append(_shaped(gradient, tensor))

    def _given(
        self,
        node: Node,
        function: Callable[..., Any],
        totals: Sequence[Gradient | None],
        found: Mapping[str, Any],
    ) -> Any:
        """What a gradient function gives."""
        filled = self._filled(node, totals)
        if isinstance(function, MethodType) and is_passed_over[function.__code__.co_filename]:
            return function(node, *filled, **found)
        with get_default_graph().at_line(None):  # a function of the user's has lines of its own
            return function(node, *filled, **found)

    def _leave(self, node: Node, totals: Sequence[Gradient | None]) -> None:
        """Go on from an argument to what it stands for."""
        for tensor, total in zip(node.outputs, totals, strict=True):
            if total is not None and tensor in self._captured:
                self._found[self._captured[tensor]].append(total)

    def _filled(self, node: Node, totals: Sequence[Gradient | None]) -> list[Any]:
        """What a gradient function takes: zeros where no gradient came, slices made dense."""
        filled: list[Any] = []
        for tensor, total in zip(node.outputs, totals, strict=True):
            if total is None and carries(tensor):
                filled.append(zeros(tensor))
            elif isinstance(total, IndexedSlices) and not node.op.passes_slices:
                filled.append(convert_to_tensor(total))
            else:
                filled.append(total)
        return filled

    def _sum(self, tensor: Tensor) -> Gradient | None:
        if tensor in self._total:
            return self._total[tensor]
        parts = self._found.get(tensor)
        if not parts:
            return None
        if len(parts) == 1 and isinstance(parts[0], Tensor):
            total = parts[0]
        elif self._colocate:
            with self._on_device_of(_meeting_place(tensor, parts)):
                total = aggregate(parts, self._aggregation)
        else:
            total = aggregate(parts, self._aggregation)
        self._total[tensor] = total
        return total

    def _on_device_of(self, node: Node) -> AbstractContextManager[Any]:
        return get_default_graph().colocate_with(node) if self._colocate else _ANYWHERE


def _position(node: Node) -> tuple[int, int]:
    """Where a node comes: those of graphs around it come before all of its own."""
    return depth(node.graph), node.index


def _meeting_place(tensor: Tensor, parts: Sequence[Part]) -> Node:
    """Where parts of a gradient are added: where all of them are, else where the tensor is."""
    nodes = [part.op for part in parts if not isinstance(part, ListEntry)]
    if len(nodes) < len(parts) or len({node.device for node in nodes}) > 1:
        return tensor.op
    return nodes[-1]  # of the first node that took the tensor


def zeros(tensor: Tensor) -> Tensor:
    """The gradient of a tensor that nothing depends on."""
    if tensor.dtype.base_dtype is variant:
        return operators["list_gradient"](tensor)
    return filling.zeros_like(tensor)


def carries(tensor: Tensor) -> bool:
    """Whether gradients can flow along a tensor of this dtype: of a list, those of its entries."""
    base = tensor.dtype.base_dtype
    return base.is_floating or base.is_complex or base is variant


def _as_gradients(result: Any, node: Node) -> list[Any]:
    gradients = _as_list(result)
    if len(gradients) != len(node.inputs):
        raise ValueError(
            f"Num gradients {len(gradients)} generated for op {node.name} ({node.type}) do not "
            f"match num inputs {len(node.inputs)}"
        )
    return [_as_gradient(gradient) for gradient in gradients]


_GRADIENTS = (Tensor, IndexedSlices, ListEntry, InnerGradient)


def _as_gradient(gradient: Any) -> Any:
    if gradient is None or isinstance(gradient, _GRADIENTS):
        return gradient
    return convert_to_tensor(gradient)


def _gated(gradients: list[Any]) -> list[Any]:
    """Gradients each of which is there only when all are. What was read never changes, so it is
    only where an op takes a variable itself that an early update could be seen by another one."""
    present = [g for g in gradients if g is not None]
    return basic.tuple_(gradients) if len(present) > 1 else gradients


def _shaped(gradient: Part, tensor: Tensor) -> Part:
    """Check a gradient against its tensor; narrow its static shape by it."""
    if not isinstance(gradient, Tensor):
        return gradient
    if gradient.shape.sizes == tensor.shape.sizes:
        return gradient
    if not gradient.shape.is_compatible_with(tensor.shape):
        raise ValueError(
            f"Incompatible shapes between op input and calculated input gradient. {tensor.name} "
            f"({tensor.op.type}) has shape {tensor.shape}, its gradient {gradient.shape}"
        )
    gradient.set_shape(tensor.shape)
    return gradient


def aggregate(parts: Sequence[Part], method: int | None = None) -> Gradient:
    """The sum of gradients of one tensor; slices stay slices when all are."""
    entries = [part for part in parts if isinstance(part, ListEntry)]
    whole = [part for part in parts if not isinstance(part, ListEntry)]
    if entries or whole[0].dtype.base_dtype is variant:
        return _list_total(cast("Sequence[Tensor]", whole), entries)
    return _total(whole, method)


def _list_total(lists: Sequence[Tensor], entries: Sequence[ListEntry]) -> Tensor:
    """Entries are added to a list of gradients in place: each costs what it is large."""
    total = lists[0] if lists else zeros(entries[0].like)
    for other in lists[1:]:
        total = operators["list_merge"](total, other)
    for entry in entries:
        total = entry.added_to(total)
    return total


def _total(parts: Sequence[Gradient], method: int | None) -> Gradient:
    if len(parts) == 1:
        return parts[0]
    if all(isinstance(part, IndexedSlices) for part in parts):
        return _concatenated(cast("Sequence[IndexedSlices]", parts))
    tensors = [convert_to_tensor(part) for part in parts]
    if method == AggregationMethod.EXPERIMENTAL_TREE:
        total = tensors[0]
        for tensor in tensors[1:]:
            total = total + tensor
        return total
    return arithmetic.add_n(tensors)


def _concatenated(slices: Sequence[IndexedSlices]) -> IndexedSlices:
    indices = [s.indices for s in slices]
    if len({each.dtype for each in indices}) > 1:
        indices = [casting.cast(each, int64) for each in indices]
    return IndexedSlices(
        joining.concat([s.values for s in slices], 0),
        joining.concat(indices, 0),
        slices[0].dense_shape,
    )
