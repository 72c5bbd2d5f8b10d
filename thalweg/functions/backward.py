"""The backward pass of recorded work: what a tape saw, as nodes that can be differentiated.

Comes in: the spans of recorded work (`TraceSpan`) that a tape saw, targets and sources. Goes out:
gradients, which are recorded too. Work that is pending is differentiated in place; work that ran
gets proxies, nodes like it whose outputs have the values that were computed then.
"""

# Eager tensors and lazy traces are one mechanism in several files:
# pyright: reportPrivateUsage=false

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, cast

from thalweg.autodiff.gradients import aggregate, gradients
from thalweg.functions.eager import EAGER, PROXY, parts_of
from thalweg.functions.lazy_trace import LazyTrace
from thalweg.functions.tensors import EagerTensor
from thalweg.functions.trace import NO_LEAF, REFERENCE, VALUE, TraceNode
from thalweg.graph.composite import IndexedSlices
from thalweg.graph.convert import convert_to_tensor
from thalweg.graph.node import Node, Tensor
from thalweg.ops.core import filling
from thalweg.variables.variable import Variable


class TraceSpan:
    """A stretch of recorded work that a tape saw: from one trace_node in the tree to another."""

    def __init__(self, lazy_trace: LazyTrace) -> None:
        self.lazy_trace = lazy_trace
        self.start = lazy_trace.end
        self._end: TraceNode | None = None
        self.saved: dict[Tensor, Any] = {}

    def close(self) -> None:
        """What is recorded from now on is none of it."""
        if self._end is None:
            self._end = self.lazy_trace.end

    @property
    def end(self) -> TraceNode:
        """The last trace_node."""
        return self.lazy_trace.end if self._end is None else self._end

    @property
    def key(self) -> tuple[TraceNode, TraceNode]:
        """What tells spans apart."""
        return self.start, self.end

    def trace_nodes(self) -> list[TraceNode]:
        """Where ops were recorded."""
        return [each for each in self.end.path(self.start) if each.leaf == NO_LEAF]

    def nodes(self) -> list[Node]:
        """The nodes that were recorded, without those that only hold values."""
        return [node for trace_node in self.trace_nodes() for node in trace_node.nodes]

    def wanted(self) -> list[Tensor]:
        """What a gradient may need once the work ran: what it took and gave, and is no leaf."""
        nodes = self.nodes()
        taken = [t for node in nodes for t in (*node.inputs, *node.outputs)]
        leaves = {t for each in self.end.path() if each.leaf != NO_LEAF for t in each.outputs}
        found = [t for t in taken if t not in leaves and t.op.type != "Const"]
        return [t for t in dict.fromkeys(found) if not t.dtype.is_ref_dtype]

    def save(self, values: Sequence[Any]) -> None:
        """Keep what the work computed."""
        self.close()
        self.saved = dict(zip(self.wanted(), values, strict=True))


class Stage:
    """The spans of a tape in one lazy trace, as nodes that can be differentiated.

    Work that did not run yet is differentiated where it stands. Work that ran gets proxies: nodes
    like it, whose outputs get the values that were computed then.
    """

    def __init__(self, lazy_trace: LazyTrace, spans: Sequence[TraceSpan]) -> None:
        self.lazy_trace = lazy_trace
        self.is_open = lazy_trace is EAGER.lazy_trace and not lazy_trace.done
        self.nodes = [node for span in spans for node in span.nodes()]
        path = spans[-1].end.path() if spans else []
        values = [trace_node.outputs[0] for trace_node in path if trace_node.leaf == VALUE]
        references = [trace_node.outputs[0] for trace_node in path if trace_node.leaf == REFERENCE]
        self.leaves: dict[Tensor, Any] = dict(zip(values, lazy_trace.values, strict=False))
        self.cells: dict[Tensor, Any] = dict(zip(references, lazy_trace.cells, strict=False))
        self._entered = {lazy_trace.templates[at]: t for t, at in lazy_trace.entered.items()}
        self.saved = {t: value for span in spans for t, value in span.saved.items()}
        self.seeds: dict[Tensor, list[Any]] = {}
        self._proxies: dict[Tensor, Tensor] = {}
        self.sources: Sequence[Tensor | None] = ()  # those of the gradient, as far as they are here
        self._earlier: Sequence[Stage] = ()
        #: leaves that earlier stages computed: of which one, and which tensor there
        self._links: dict[Tensor, tuple[Stage, Tensor]] = {}
        self._allowed: set[Tensor] = set()  # what is watched, or was computed from it

    def stand_in(self, tensor: Tensor) -> Tensor:
        """The node's output to differentiate: the tensor itself, or its proxy."""
        if self.is_open:
            return tensor
        if not self._proxies:
            self._make_proxies()
        return self._input(tensor)

    def _make_proxies(self) -> None:
        trace = EAGER.trace
        for node in self.nodes:
            inputs = tuple(self._input(t) for t in node.inputs)
            again = trace.copied(node, inputs, (), node.type)
            if node.type != "Const":
                again.annotations = {**node.annotations, PROXY: True}
            self._proxies.update(zip(node.outputs, again.outputs, strict=True))

    def _input(self, tensor: Tensor) -> Tensor:
        found = self._proxies.get(tensor)
        return self._outside(tensor) if found is None else found

    def _outside(self, tensor: Tensor) -> Tensor:
        entered = self._entered.get(tensor)
        if entered is not None:  # it is what it was then, to outer tapes too
            made = EAGER.template(entered)
        elif tensor.op.type == "Const":
            made = EAGER.trace.copied(tensor.op, (), (), "Const").outputs[0]
        else:
            made = EAGER.trace.leaf(tensor.dtype, tensor.shape, -1)
            made.op.annotations = {PROXY: True}
        self._proxies[tensor] = made
        return made

    def value_of(self, proxy: Tensor) -> Any:
        """What was computed for the tensor that a proxy stands for."""
        for tensor, stand_in in self._proxies.items():
            if stand_in is proxy:
                return self.saved[tensor] if tensor in self.saved else self.leaves[tensor]
        return None

    # Between stages

    def place(self, tensor: Any) -> Tensor | None:
        """What stands here for an eager tensor, if it takes part."""
        if not isinstance(tensor, EagerTensor):
            return None
        if tensor._lazy_trace is self.lazy_trace:
            return self.lazy_trace.templates[tensor._position]
        position = self.lazy_trace.entered.get(tensor)
        if position is not None:
            return self.lazy_trace.templates[position]
        held = tensor._array
        return None if held is None else self._find(held)

    def _find(self, held: Any) -> Tensor | None:
        """The tensor that has a value: the last one that was computed, or one that came in."""
        for found in (self.saved, self.leaves, self.cells):
            for tensor in reversed(found):
                if found[tensor] is held:
                    return tensor
        return None

    def link(self, earlier: Sequence[Stage]) -> None:
        """Find the leaves that earlier stages computed."""
        self._earlier = earlier
        for leaf, value in self.leaves.items():
            for stage in reversed(earlier):
                made = stage._find(value)
                if made is not None:
                    self._links[leaf] = stage, made
                    break

    def allow(self, watched: Iterable[Tensor], variables: Iterable[Variable]) -> None:
        """Find what is watched or was computed from it."""
        references = [cast("Any", variable.gradient_source()) for variable in variables]
        cells = {id(reference.held()) for reference in references}
        mine = self._allowed
        mine |= {tensor for tensor, cell in self.cells.items() if id(cell) in cells}
        mine |= {place for place in map(self.place, watched) if place is not None}
        mine |= {leaf for leaf, (stage, made) in self._links.items() if made in stage._allowed}
        for node in self.nodes:
            if any(tensor in mine for tensor in node.inputs):
                mine.update(node.outputs)

    def differentiate(self, parts: Sequence[list[Any]]) -> None:
        """From the seeds to the sources that take part here, and to the seeds of earlier stages."""
        if not self.seeds:
            return
        sources = {number: x for number, x in enumerate(self.sources) if x in self._allowed}
        produced = {tensor for node in self.nodes for tensor in node.outputs}
        # A source that a later stage takes as a leaf is reached here only where it was computed.
        linked = {leaf: at for leaf, at in self._links.items() if leaf not in produced}
        xs = list(dict.fromkeys([*sources.values(), *linked]))
        found = gradients(
            [self.stand_in(y) for y, seeds in self.seeds.items() for _ in seeds],
            [self.stand_in(x) for x in xs],
            [seed for given in self.seeds.values() for seed in given],
            stop_gradients=self._stops(produced | set(xs)),
        )
        of = {x: gradient for x, gradient in zip(xs, found, strict=True) if gradient is not None}
        for leaf, (stage, made) in linked.items():
            if leaf in of:
                stage.seeds.setdefault(made, []).append(of[leaf])
        for number, x in sources.items():
            # An earlier stage counts the gradient of a source that flows on to it.
            is_earlier = any(stage.sources[number] is not None for stage in self._earlier)
            if x in of and not (x in linked and is_earlier):
                parts[number].append(of[x])

    def _stops(self, inside: set[Tensor]) -> list[Tensor]:
        """What was computed before the tape began: gradients go no further."""
        outside = {t for node in self.nodes for t in node.inputs if t not in inside}
        return [self.stand_in(tensor) for tensor in outside if tensor.op.inputs]


@dataclass(frozen=True)
class EagerGradient:
    """One call of `gradient` in eager code."""

    trace_spans: Sequence[TraceSpan]
    watched: Mapping[Tensor, None]
    variables: Mapping[Variable, None]

    def run(
        self, targets: list[Any], sources: list[Any], seeds: list[Any], is_zero: bool
    ) -> list[Any]:
        """The gradients of the sources."""
        ys = [y if type(y) is EagerTensor else convert_to_tensor(y) for y in targets]
        xs = [self._source(source) for source in sources]
        given = [self._seed(y, seed) for y, seed in zip(ys, seeds, strict=True)]
        key = self._key(EAGER.current(), ys, xs, given, is_zero)
        return EAGER.macro(key, lambda: self._build(ys, xs, given, is_zero))

    def _source(self, source: Any) -> Any:
        """The tensor of a source; of a variable that is not watched, nothing."""
        if isinstance(source, Variable):
            return source.gradient_source() if source in self.variables else _Unwatched(source)
        if not isinstance(source, Tensor):
            raise ValueError(f"Source must be a tensor or a variable, got {source!r}")
        return source

    def _seed(self, y: Tensor, seed: Any) -> Any:
        if seed is None or isinstance(seed, IndexedSlices):
            return seed
        tensor = convert_to_tensor(seed, y.dtype.base_dtype)
        EAGER.template(cast("EagerTensor", tensor))  # part of the span from here on
        return tensor

    def _key(
        self, lazy_trace: LazyTrace, ys: list[Any], xs: list[Any], seeds: list[Any], is_zero: bool
    ) -> Any:
        """The structure of the question; None if it reaches into work that ran."""
        parts: list[Any] = ["gradient", is_zero]
        for span in self.trace_spans:
            if span.lazy_trace is not lazy_trace:
                return None
            parts += span.key
            if span.end.customs != span.start.customs:
                return None  # gradients flow as a function says that may be another the next time
        for group in (ys, xs, seeds, self.watched):
            for tensor in group:
                if type(tensor) is EagerTensor and tensor._lazy_trace is lazy_trace:
                    parts.append(tensor._position)
                elif tensor is None or (group is not seeds and not is_zero):
                    parts.append(None)  # it takes no part
                else:
                    return None
            parts.append("")
        for variable in self.variables:
            reference: Any = variable._variable
            parts.append(reference._position if reference._lazy_trace is lazy_trace else None)
        return tuple(parts)

    # Building

    def _build(self, ys: list[Any], xs: list[Any], seeds: list[Any], is_zero: bool) -> list[Any]:
        by_trace: dict[LazyTrace, list[TraceSpan]] = {}
        for span in self.trace_spans:
            by_trace.setdefault(span.lazy_trace, []).append(span)
        stages = [Stage(lazy_trace, spans) for lazy_trace, spans in by_trace.items()]
        for number, stage in enumerate(stages):
            stage.link(stages[:number])
            stage.allow(self.watched, self.variables)
        for y, seed in zip(ys, seeds, strict=True):
            places = [(stage, stage.place(y)) for stage in reversed(stages)]
            found = next(((stage, place) for stage, place in places if place is not None), None)
            if found is not None:
                found[0].seeds.setdefault(found[1], []).append(seed)
        for stage in stages:
            stage.sources = [stage.place(x) for x in xs]
        parts: list[list[Any]] = [[] for _ in xs]
        for stage in reversed(stages):
            stage.differentiate(parts)
        results = [aggregate(found) if found else None for found in parts]
        _enter_proxies(stages, results)
        if is_zero:
            pairs = zip(xs, results, strict=True)
            results = [filling.zeros_like(x.value()) if g is None else g for x, g in pairs]
        return results


class _Unwatched:
    """In the place of a source that nobody watched."""

    def __init__(self, variable: Variable) -> None:
        self.value = variable.value


def _enter_proxies(stages: Sequence[Stage], results: Sequence[Any]) -> None:
    """Have the values of work that ran come in, as far as the backward pass uses them."""
    closed = [stage for stage in stages if not stage.is_open]
    if not closed:
        return
    lazy_trace = EAGER.lazy_trace
    known = set(lazy_trace.templates)
    pending = [tensor for result in results if result is not None for tensor in parts_of(result)]
    while pending:
        tensor = pending.pop()
        if tensor in known:
            continue
        known.add(tensor)
        if PROXY in tensor.op.annotations:
            value = next(v for s in closed if (v := s.value_of(tensor)) is not None)
            lazy_trace.enter_as(tensor, value, tensor)
        else:
            pending += tensor.op.inputs
