"""The backward pass of a tape in eager code.

Input: the spans of lazy traces that a tape recorded (`TraceSpan`), targets and sources. Output:
gradients, which are recorded too. Pending nodes are differentiated as they are. Nodes that ran get
proxies: copies that are differentiated, and whose outputs take the saved values.
"""

# Eager tensors and lazy traces are one mechanism in several files:
# pyright: reportPrivateUsage=false

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain
from typing import Any, cast

from thalweg.autodiff.gradients import aggregate, gradients, is_differentiable, zeros
from thalweg.control.traces import Trace, traced_tensors
from thalweg.functions.eager import EAGER, PROXY, component_tensors
from thalweg.functions.lazy_trace import LazyTrace
from thalweg.functions.tensors import EagerTensor
from thalweg.functions.trace import OP, REFERENCE, SAVED, VALUE, TraceNode, has_effect
from thalweg.functions.traced.function_graph import FunctionGraph
from thalweg.graph.composite import IndexedSlices
from thalweg.graph.convert import convert_to_tensor
from thalweg.graph.dtypes import variant
from thalweg.graph.node import Node, Tensor
from thalweg.ops.core import filling
from thalweg.variables.variable import Variable


class TraceSpan:
    """The part of a lazy trace that a tape recorded: a path between two trace nodes."""

    def __init__(self, lazy_trace: LazyTrace, number: int) -> None:
        self.lazy_trace = lazy_trace
        self.number = number  # among the spans of its tape
        self.start = lazy_trace.end
        self._end: TraceNode | None = None
        self.saved: dict[Tensor, Any] = {}

    def close(self, end: TraceNode | None = None) -> None:
        """End the span, here or at a trace node: later ops are not part of it."""
        if self._end is None:
            self._end = end or self.lazy_trace.end

    @property
    def end(self) -> TraceNode:
        """The last trace node."""
        return self.lazy_trace.end if self._end is None else self._end

    def nodes(self) -> list[Node]:
        """The nodes of the ops, without leaves, and the traces that are saved."""
        path = self.end.path(self.start)
        nodes = [(*p.nodes, *(p.traces or ())) for p in path if p.kind == OP]
        return list(chain.from_iterable(nodes))

    def wanted(self) -> list[Tensor]:
        """The tensors to save for the gradient: inputs and outputs of the nodes, without leaves."""
        for trace_node in self.end.path(self.start):
            _find_traces(trace_node)
        used = [t for node in self.nodes() for t in (*node.inputs, *node.outputs)]
        leaves = {t for node in self.end.path() if node.kind != OP for t in node.outputs}
        saved = [t for t in used if t not in leaves and t.op.type != "Const"]
        return [t for t in dict.fromkeys(saved) if not t.dtype.is_ref_dtype]

    def save(self, values: Mapping[Tensor, Any]) -> None:
        """Keep the values of the `wanted` tensors."""
        self.saved = {tensor: values[tensor] for tensor in self.wanted()}


def _find_traces(trace_node: TraceNode) -> None:
    """Find the traces that gradients take of the control nodes of a trace node."""
    if trace_node.traces is not None or trace_node.kind != OP:
        return
    traces: list[Node] = []
    for node in trace_node.nodes:
        for trace in _needed_traces(node) if node.op.bodies else ():
            trace.annotations = {SAVED: True}
            traces.append(node.graph.copied(trace, node.outputs[:1], (), trace.type))
    if trace_node.traces is None:  # else another thread that runs such a trace was faster
        trace_node.traces = traces


def _needed_traces(node: Node) -> list[Node]:
    """The traces that gradients of a control node take, of any order: of a copy of the node.

    Custom gradients may capture tensors and variables of eager code, which a function's graph can.
    """
    graph = FunctionGraph(EAGER, "gradients")
    with graph.as_default():
        inputs = [graph.argument(tensor.dtype, tensor.shape, "input") for tensor in node.inputs]
        copy = graph.copied(node, tuple(inputs), (), node.type)
        traces: list[Node] = []
        ends = [tensor for tensor in copy.outputs if is_differentiable(tensor)]
        while ends:
            _differentiate(ends, [tensor for tensor in inputs if is_differentiable(tensor)])
            consumers = graph.consumers(copy.outputs[0])
            new = [n for n in consumers if isinstance(n.op, Trace) and n not in traces]
            traces += new
            ends = [n.outputs[0] for n in new if any(map(is_differentiable, traced_tensors(n)))]
    return traces


def _differentiate(ys: Sequence[Tensor], xs: Sequence[Tensor]) -> None:
    """Add the gradients of ys to their graph, as far as they have any."""
    seeds = [zeros(y) if y.dtype.base_dtype is variant else filling.ones_like(y) for y in ys]
    try:
        gradients(ys, xs, seeds)
    except Exception:  # whoever takes that gradient sees the error
        for y in ys if len(ys) > 1 else ():
            _differentiate([y], xs)


class BackwardStage:
    """The spans of a tape in one lazy trace, as nodes to differentiate.

    Pending nodes are differentiated themselves. Nodes that ran get proxies, whose outputs take the
    saved values.
    """

    def __init__(self, lazy_trace: LazyTrace, spans: Sequence[TraceSpan]) -> None:
        self.lazy_trace = lazy_trace
        self.is_open = lazy_trace is EAGER.lazy_trace and not lazy_trace.done
        self._spans = spans
        self._nodes: list[Node] = []  # that take a watched tensor: the tape records no others
        path = spans[-1].end.path()
        self._count = spans[-1].end.count  # of positions; tensors may enter after the last span
        values = [trace_node.outputs[0] for trace_node in path if trace_node.kind == VALUE]
        references = [trace_node.outputs[0] for trace_node in path if trace_node.kind == REFERENCE]
        cells = dict(zip(references, lazy_trace.references, strict=False))
        self._leaves: dict[Tensor, Any] = dict(zip(values, lazy_trace.values, strict=False))
        saved = {t: value for span in spans for t, value in span.saved.items()}
        #: What was computed last comes last.
        self._values: dict[Tensor, Any] = {**cells, **self._leaves, **saved}
        self._entered = {lazy_trace.templates[at]: t for t, at in lazy_trace.entered.items()}
        self.seeds: dict[Tensor, list[Any]] = {}
        self._proxies: dict[Tensor, Tensor] = {}
        self.sources: Sequence[Tensor | None] = ()  # of the gradient, None if not in this trace
        self._earlier: Sequence[BackwardStage] = ()
        #: Leaf → the earlier stage that computed its value, and the tensor there.
        self._links: dict[Tensor, tuple[BackwardStage, Tensor]] = {}
        self._watched: set[Tensor] = set()  # watched, or computed from watched tensors
        #: Those that are watched, and the number of the first span that records uses of each.
        self._ends: list[tuple[Tensor, int]] = []

    def differentiable(self, tensor: Tensor) -> Tensor:
        """The tensor to differentiate: a pending one itself, else its proxy."""
        if self.is_open:
            return tensor
        if not self._proxies:
            self._make_proxies()
        return self._proxy(tensor)

    def _make_proxies(self) -> None:
        trace = EAGER.trace
        for node in self._nodes:
            inputs = tuple(self._proxy(t) for t in node.inputs)
            proxy = trace.copied(node, inputs, (), node.type)
            if node.type != "Const":
                proxy.annotations = {**node.annotations, PROXY: True}
            self._proxies.update(zip(node.outputs, proxy.outputs, strict=True))

    def _proxy(self, tensor: Tensor) -> Tensor:
        proxy = self._proxies.get(tensor)
        return self._leaf_proxy(tensor) if proxy is None else proxy

    def _leaf_proxy(self, tensor: Tensor) -> Tensor:
        entered = self._entered.get(tensor)
        if entered is not None:  # the tensor itself, so that outer tapes see it
            proxy = EAGER.template(entered)
        elif tensor.op.type == "Const":
            proxy = EAGER.trace.copied(tensor.op, (), (), "Const").outputs[0]
        else:
            proxy = EAGER.trace.leaf(tensor.dtype, tensor.shape, -1)
            proxy.op.annotations = {PROXY: True}
        self._proxies[tensor] = proxy
        return proxy

    def proxy_values(self) -> dict[Tensor, Any]:
        """The saved values of the proxies; none for those that are other tensors."""
        values = self._values
        return {proxy: values[t] for t, proxy in self._proxies.items() if t in values}

    # Between stages

    def template_of(self, tensor: Any) -> Tensor | None:
        """The tensor of this stage's nodes for an eager tensor; None if it is not in this trace."""
        if not isinstance(tensor, EagerTensor):
            return None
        is_own = tensor._lazy_trace is self.lazy_trace
        position = tensor._position if is_own else self.lazy_trace.entered.get(tensor)
        if position is not None and position < self._count:
            return self.lazy_trace.templates[position]
        held = tensor._array
        return None if held is None else self._tensor_with_value(held)

    def _tensor_with_value(self, held: Any) -> Tensor | None:
        """The tensor with this value: the last one that was computed, else a leaf."""
        values = self._values
        return next((tensor for tensor in reversed(values) if values[tensor] is held), None)

    def link_leaves(self, earlier: Sequence[BackwardStage]) -> None:
        """Link each leaf to the latest earlier stage that computed its value."""
        self._earlier = earlier
        for leaf, value in self._leaves.items():
            for stage in reversed(earlier) if value is not None else ():
                tensor = stage._tensor_with_value(value)
                if tensor is not None:
                    self._links[leaf] = stage, tensor
                    break

    def find_watched(self, watched: Mapping[Tensor, int], variables: Iterable[Variable]) -> None:
        """Find the tensors that are watched or computed from watched ones, and the nodes that take
        one that is watched by then."""
        references = [cast("Any", variable.gradient_source()) for variable in variables]
        cells = {id(reference.held()) for reference in references}
        ends = [(self.template_of(tensor), first) for tensor, first in watched.items()]
        self._ends = [(tensor, first) for tensor, first in ends if tensor is not None]
        found = self._watched
        found |= {tensor for tensor, value in self._values.items() if id(value) in cells}
        found |= {leaf for leaf, (stage, tensor) in self._links.items() if tensor in stage._watched}
        for span in self._spans:
            found |= {tensor for tensor, first in self._ends if first <= span.number}
            for node in span.nodes():
                if any(tensor in found for tensor in node.inputs):
                    found.update(node.outputs)
                    self._nodes.append(node)

    def differentiate(self, summands: Sequence[list[Any]]) -> None:
        """Propagate the seeds to the sources in this stage, and to the seeds of earlier stages."""
        if not self.seeds:
            return
        watched = self._watched.union(tensor for tensor, _ in self._ends)
        sources = {number: x for number, x in enumerate(self.sources) if x in watched}
        produced = {tensor for node in self._nodes for tensor in node.outputs}
        # A leaf that a node of this stage produced as well is differentiated here.
        linked = {leaf: link for leaf, link in self._links.items() if leaf not in produced}
        xs = list(dict.fromkeys([*sources.values(), *linked]))
        results = gradients(
            [self.differentiable(y) for y, seeds in self.seeds.items() for _ in seeds],
            [self.differentiable(x) for x in xs],
            [seed for seeds in self.seeds.values() for seed in seeds],
            stop_gradients=self._stop_gradients({*xs, *self.seeds}, produced),
        )
        of = {x: gradient for x, gradient in zip(xs, results, strict=True) if gradient is not None}
        for leaf, (stage, tensor) in linked.items():
            if leaf in of:
                stage.seeds.setdefault(tensor, []).append(of[leaf])
        for number, x in sources.items():
            # If a source is in an earlier stage too, its gradient is counted there.
            is_earlier = any(stage.sources[number] is not None for stage in self._earlier)
            if x in of and not (x in linked and is_earlier):
                summands[number].append(of[x])

    def _stop_gradients(self, ends: set[Tensor], produced: set[Tensor]) -> list[Tensor]:
        """The tensors computed while the tape did not record, where gradients stop: inputs of its
        nodes, sources and targets."""
        outside = {t for node in self._nodes for t in node.inputs} | ends
        return [self.differentiable(t) for t in outside - produced if t.op.inputs]


@dataclass(frozen=True)
class EagerGradient:
    """One call of `gradient` in eager code."""

    trace_spans: Sequence[TraceSpan]
    watched: Mapping[Tensor, int]  # by the number of the first span that records uses
    variables: Mapping[Variable, None]

    def run(self, targets: list[Any], sources: list[Any], seeds: list[Any]) -> list[Any]:
        """The gradients of the sources, None where there is none."""
        ys = [y if type(y) is EagerTensor else convert_to_tensor(y) for y in targets]
        xs = [self._source(source) for source in sources]
        filled_seeds = [self._seed(y, seed) for y, seed in zip(ys, seeds, strict=True)]
        lazy_trace = EAGER.current()
        key = self._key(lazy_trace, ys, xs, filled_seeds)
        results = EAGER.record_subgraph(lazy_trace, key, lambda: self._build(ys, xs, filled_seeds))
        return self.run(targets, sources, seeds) if results is None else results

    def _source(self, source: Any) -> Any:
        """The tensor of a source; a variable that is not watched as it is."""
        if isinstance(source, Variable):
            return source.gradient_source() if source in self.variables else source
        if not isinstance(source, Tensor):
            raise ValueError(f"Source must be a tensor or a variable, got {source!r}")
        return source

    def _seed(self, y: Tensor, seed: Any) -> Any:
        if seed is None or isinstance(seed, IndexedSlices):
            return seed
        return convert_to_tensor(seed, y.dtype.base_dtype)

    def _key(self, lazy_trace: LazyTrace, ys: list[Any], xs: list[Any], seeds: list[Any]) -> Any:
        """The structure of the gradient as a key; None if it needs nodes that already ran. The
        seeds enter the trace."""
        parts: list[Any] = ["gradient", *self.watched.values()]
        for seed in seeds:
            if type(seed) is EagerTensor:
                lazy_trace.position(seed)
        for span in self.trace_spans:
            if span.lazy_trace is not lazy_trace:
                return None
            parts += span.start, span.end
            if span.end.custom_gradients != span.start.custom_gradients:
                return None  # the gradient function may differ between calls
        references: list[Any] = [variable.gradient_source() for variable in self.variables]
        for group in (ys, xs, seeds, self.watched, references):
            for tensor in group:
                if type(tensor) is EagerTensor and tensor._lazy_trace is lazy_trace:
                    parts.append(tensor._position)
                elif tensor is None or group is not seeds:
                    parts.append(None)  # not in the trace: no gradient
                else:
                    return None
            parts.append("")
        return tuple(parts)

    # Building

    def _build(self, ys: list[Any], xs: list[Any], seeds: list[Any]) -> list[Any]:
        by_trace: dict[LazyTrace, list[TraceSpan]] = {}
        for span in self.trace_spans:
            by_trace.setdefault(span.lazy_trace, []).append(span)
        nodes = EAGER.trace.nodes
        start = len(nodes)
        stages = [BackwardStage(lazy_trace, spans) for lazy_trace, spans in by_trace.items()]
        for number, stage in enumerate(stages):
            stage.link_leaves(stages[:number])
            stage.find_watched(self.watched, self.variables)
        summands: list[list[Any]] = [[] for _ in xs]
        for y, seed in zip(ys, seeds, strict=True):
            if not _seed_stage(stages, y, seed) and y in self.watched:
                own = filling.ones_like(y) if seed is None else seed  # a source of itself alone
                for x, parts in zip(xs, summands, strict=True):
                    if x is y:
                        parts.append(own)
        for stage in stages:
            stage.sources = [stage.template_of(x) for x in xs]
        for stage in reversed(stages):
            stage.differentiate(summands)
        results = [aggregate(parts) if parts else None for parts in summands]
        effects = [n for n in nodes[start:] if PROXY not in n.annotations and has_effect(n)]
        used = [tensor for result in results for tensor in component_tensors(result)]
        _enter_proxy_values(stages, [*used, *(tensor for n in effects for tensor in n.inputs)])
        return results


def _seed_stage(stages: Sequence[BackwardStage], y: Tensor, seed: Any) -> bool:
    """Give the seed of a target to the latest stage that has the target; whether there is one."""
    for stage in reversed(stages):
        target = stage.template_of(y)
        if target is not None:
            stage.seeds.setdefault(target, []).append(seed)
            return True
    return False


def _enter_proxy_values(stages: Sequence[BackwardStage], pending: list[Tensor]) -> None:
    """Enter the saved values of the proxies that the pending tensors depend on."""
    values = {proxy: v for stage in stages for proxy, v in stage.proxy_values().items()}
    if not values:
        return
    lazy_trace = EAGER.lazy_trace
    known = set(lazy_trace.templates)
    while pending:
        tensor = pending.pop()
        if tensor in known:
            continue
        known.add(tensor)
        if PROXY in tensor.op.annotations:
            lazy_trace.enter_saved(tensor, values[tensor])
        else:
            pending += tensor.op.inputs
