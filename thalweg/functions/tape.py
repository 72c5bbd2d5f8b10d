"""`GradientTape`: gradients of what was computed inside `with tf.GradientTape() as tape:`.

In eager code a tape keeps the spans of lazy traces recorded inside the block. `gradient` builds
their backward pass as graph code does, once per structure. If the ops of a tape ran in several
steps, it keeps their values, and the backward pass goes through the steps in reverse. In graph code
a tape keeps the ranges of nodes made inside.
"""

from __future__ import annotations

import itertools
import weakref
from collections.abc import Generator, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any, cast

from thalweg.autodiff.gradients import gradients
from thalweg.functions.backward import EagerGradient, TraceSpan
from thalweg.functions.eager import EAGER
from thalweg.functions.lazy_trace import LazyTrace
from thalweg.functions.tensors import EagerTensor
from thalweg.graph import nest
from thalweg.graph.analysis.node_effects import is_read
from thalweg.graph.convert import convert_to_tensor
from thalweg.graph.graph import Graph, get_default_graph
from thalweg.graph.likes import Structure, TensorLike, TensorStructure
from thalweg.graph.node import Node, Tensor
from thalweg.graph.subgraph import SubGraph, enclosing_graphs
from thalweg.ops.arrays import joining
from thalweg.ops.core import filling, shaping
from thalweg.platform.described import described
from thalweg.public import public
from thalweg.variables.variable import Variable, variable_of


@public("GradientTape", "contrib.eager.GradientTape")
class GradientTape:
    """Records the ops inside its block, to differentiate them.

    ```
    with tf.GradientTape() as tape:
        loss = tf.reduce_sum((tf.matmul(x, w) - y) ** 2)
    dw = tape.gradient(loss, w)
    ```
    """

    def __init__(self, persistent: bool = False, watch_accessed_variables: bool = True) -> None:
        self._persistent = persistent
        self._watches_variables = watch_accessed_variables
        self._recording = False
        self._used = False
        self._clear()

    def __repr__(self) -> str:
        state = "recording" if self._recording else "stopped"
        watched = len(self._watched) + len(self._variables)
        return described(self, watched=watched, persistent=self._persistent, state=state)

    def _clear(self) -> None:
        self._watched: dict[Tensor, int] = {}  # the number of the first span that records uses
        self._variables: dict[Variable, None] = {}
        self._trace_spans: list[TraceSpan] = []
        self._graph_spans: list[GraphSpan] = []

    # Recording

    def __enter__(self) -> GradientTape:
        self._start()
        return self

    def __exit__(self, *_: object) -> None:
        if self._recording:
            self._stop()

    def _start(self) -> None:
        if self._recording:
            raise ValueError("Tape is already recording.")
        self._recording = True
        graph = get_default_graph()
        if graph is not EAGER:
            self._graph_spans.append(GraphSpan(graph))
            return
        lazy_trace = EAGER.current()
        lazy_trace.variable_reads.clear()  # reads from now on are recorded inside
        EAGER.tapes.append(self)
        self.follow(lazy_trace)

    def _stop(self) -> None:
        if not self._recording:
            raise ValueError("Tape is not recording.")
        self._recording = False
        if self in EAGER.tapes:
            EAGER.tapes.remove(self)
            for span in self._trace_spans[-1:]:
                span.close()
        else:
            self._graph_spans[-1].close()

    def follow(self, lazy_trace: LazyTrace) -> None:
        """Continue in another lazy trace, unless another thread runs it: then in the next one."""
        with lazy_trace.lock:
            if not lazy_trace.closed:
                span = TraceSpan(lazy_trace, len(self._trace_spans))
                self._trace_spans.append(span)
                lazy_trace.spans.append(weakref.ref(span))

    def accessed(self, variable: Variable) -> None:
        """Watch a trainable variable that is read, unless that is switched off."""
        if self._watches_variables and variable.trainable:
            self._variables[variable] = None

    def watch(self, tensor: TensorStructure) -> None:
        """Watch a tensor, a variable, or all in a structure, so that they have gradients."""
        for item in nest.flatten(tensor):
            if isinstance(item, Variable):
                self._variables[item] = None
            elif isinstance(item, Tensor):
                if isinstance(item, EagerTensor):
                    EAGER.position(item)  # enters it into the span
                self._watched.setdefault(item, self._next_span())
            else:
                raise ValueError(
                    f"Passed in object of type {type(item).__name__}, expected a tensor or variable"
                )

    def _next_span(self) -> int:
        """The number of a span that begins here: what was recorded before is in earlier ones."""
        spans = self._graph_spans or self._trace_spans
        if not self._recording or not spans:
            return len(spans)
        if spans[-1].nodes():
            spans[-1].close()
            if self._graph_spans:
                self._graph_spans.append(GraphSpan(self._graph_spans[-1].graph))
            else:
                self.follow(EAGER.current())
        return len(spans) - 1

    def watched_variables(self) -> tuple[Variable, ...]:
        """The variables that were read or watched, in order of first use."""
        captured = _captured(self._graph_spans)
        for span in self._graph_spans if self._watches_variables else ():
            for node in span.nodes():
                read = [variable_of(_origin(tensor, captured)) for tensor in node.inputs]
                self._variables.update({v: None for v in read if v is not None and v.trainable})
        return tuple(self._variables)

    @contextmanager
    def stop_recording(self) -> Generator[None]:
        """Stop recording inside the block."""
        self._stop()
        try:
            yield
        finally:
            self._start()

    def reset(self) -> None:
        """Clear the tape; one that records starts again here."""
        was_recording = self._recording
        if was_recording:
            self._stop()
        self._clear()
        self._used = False
        if was_recording:
            self._start()

    # Differentiating

    def gradient(
        self,
        target: TensorStructure,
        sources: TensorStructure,
        output_gradients: TensorStructure | None = None,
        unconnected_gradients: str = "none",
    ) -> Structure:
        """The gradients of what was computed inside the block.

        Args:
            target: a tensor, or a structure of tensors, whose sum is differentiated.
            sources: tensors or variables, in any structure.
            output_gradients: the gradient of each target; ones if None.
            unconnected_gradients: "none" or "zero": the gradient of a source that the target does
                not depend on, or that was not watched.

        Returns:
            The structure of `sources`, with gradients.

        Example:
            >>> with tf.eager_mode():
            ...     x = tf.constant(3.0)
            ...     with tf.GradientTape() as tape:
            ...         tape.watch(x)
            ...         y = x**2
            ...     print(tape.gradient(y, x).numpy())
            6.0
        """
        if unconnected_gradients not in ("none", "zero"):
            raise ValueError(f"Unknown value for unconnected_gradients: {unconnected_gradients!r}")
        if self._used and not self._persistent:
            raise RuntimeError(
                "GradientTape.gradient can only be called once on non-persistent tapes: make it "
                "with persistent=True."
            )
        if self._recording and not self._persistent:
            self._stop()
        self._used = True
        targets, flat_sources = _flatten(target), _flatten(sources)
        seeds: list[Any] = [None] * len(targets)
        if output_gradients is not None:
            seeds = nest.flatten_up_to(target, output_gradients)  # they may be lists themselves
        if get_default_graph() is EAGER and not self._graph_spans:
            call = EagerGradient(self._trace_spans, self._watched, self._variables)
            results = call.run(targets, flat_sources, seeds)
        else:
            results = self._graph_gradients(targets, flat_sources, seeds)
        if unconnected_gradients == "zero":
            pairs = zip(flat_sources, results, strict=True)
            results = [_zeros_like(x) if g is None else g for x, g in pairs]
        if not self._persistent:
            self._clear()
        return results if flat_sources is sources else nest.pack_sequence_as(sources, results)

    def _graph_gradients(self, ys: list[Any], sources: list[Any], seeds: list[Any]) -> list[Any]:
        recorded = _Recorded(self._graph_spans, self._watched, self.watched_variables())
        is_watched = [source in self._variables or recorded.watches(source) for source in sources]
        xs = list(itertools.compress(sources, is_watched))
        stops = recorded.stops((*self._watched, *xs, *ys))
        found = iter(gradients(ys, xs, seeds, stop_gradients=stops) if xs else [])
        return [next(found) if watched else None for watched in is_watched]

    def jacobian(
        self,
        target: Any,
        sources: TensorStructure,
        unconnected_gradients: str = "none",
        parallel_iterations: int | None = None,
        experimental_use_pfor: bool = True,
    ) -> Structure:
        """The gradient of each element of `target`, of shape target.shape + source.shape."""
        self._check_repeatable("jacobian")
        tensor, flat_sources = convert_to_tensor(target), nest.flatten(sources)
        with self._recording_again():
            flat = shaping.reshape(tensor, [-1])
            elements = [flat[i] for i in range(tensor.shape.num_elements() or 0)]
        rows = [
            nest.flatten(self.gradient(element, flat_sources, None, unconnected_gradients))
            for element in elements
        ]
        jacobians = [_stack_rows(tensor, column) for column in zip(*rows, strict=True)]
        return nest.pack_sequence_as(sources, jacobians)

    def batch_jacobian(
        self,
        target: TensorLike,
        source: Tensor | Variable,
        unconnected_gradients: str = "none",
        parallel_iterations: int | None = None,
        experimental_use_pfor: bool = True,
    ) -> Any:
        """The Jacobian of each example of a batch, of shape [batch] + target.shape[1:] +
        source.shape[1:]. The target of an example must depend on its own source alone."""
        self._check_repeatable("batch_jacobian")
        tensor = convert_to_tensor(target)
        batch = tensor.shape[0].value
        if batch is None or source.shape[0].value != batch:
            raise ValueError("Need first dimension of target shape and source shape to match.")
        with self._recording_again():
            flat = shaping.reshape(tensor, [batch, -1])
            columns = [flat[:, i] for i in range(flat.shape[1].value or 0)]
        rows = [self.gradient(column, source, None, unconnected_gradients) for column in columns]
        if any(row is None for row in rows):
            return None
        sizes = [*tensor.shape.as_list(), *source.shape.as_list()[1:]]
        return shaping.reshape(joining.stack(rows, axis=1), sizes)

    def _check_repeatable(self, call: str) -> None:
        if not self._persistent:
            raise RuntimeError(
                f"GradientTape.{call} needs a tape made with persistent=True: it takes the "
                "gradient of each element."
            )

    def _recording_again(self) -> AbstractContextManager[Any]:
        """Record inside the block, also after the tape's own block has ended."""
        return nullcontext() if self._recording else self


def _zeros_like(source: Any) -> Tensor:
    """Zeros like a source of a gradient. A variable is not read: an outer tape would watch it."""
    is_variable = isinstance(source, Variable)
    return filling.zeros_like(source.gradient_source() if is_variable else source)


def _flatten(structure: Any) -> list[Any]:
    """The leaves of a structure; a list of leaves is returned itself."""
    if type(structure) is list:
        items = cast("list[Any]", structure)
        if all(isinstance(item, Variable | Tensor) for item in items):
            return items
    return [structure] if isinstance(structure, Tensor) else nest.flatten(structure)


def _stack_rows(target: Tensor, rows: Sequence[Any]) -> Any:
    if any(row is None for row in rows):
        return None
    dense = [convert_to_tensor(row) for row in rows]
    return shaping.reshape(joining.stack(dense), target.shape.as_list() + dense[0].shape.as_list())


# Graph code


class GraphSpan:
    """The nodes that were added to a graph while a tape recorded."""

    def __init__(self, graph: Graph) -> None:
        self.graph = graph
        self._start = len(graph.nodes)
        self._end: int | None = None

    def close(self) -> None:
        """End the span: later nodes are not part of it."""
        self._end = len(self.graph.nodes)

    def nodes(self) -> list[Node]:
        """The nodes of the span."""
        return self.graph.nodes[self._start : self._end]


class _Recorded:
    """What a tape has recorded in graphs: nodes that take a tensor which is watched by then, or
    computed from one."""

    def __init__(
        self,
        spans: Sequence[GraphSpan],
        watched: Mapping[Tensor, int],
        variables: Iterable[Variable],
    ) -> None:
        self._captured = _captured(spans)
        self._watched = {variable.gradient_source() for variable in variables}
        self._nodes: set[Node] = set()
        for number, span in enumerate(spans):
            self._watched |= {tensor for tensor, first in watched.items() if first <= number}
            for node in span.nodes():
                if any(map(self.watches, node.inputs)):
                    self._watched.update(node.outputs)
                    self._nodes.add(node)
        self._watched |= set(watched)

    def watches(self, tensor: Tensor) -> bool:
        """Whether a tensor is watched or computed from one that is."""
        return tensor in self._watched or _origin(tensor, self._captured) in self._watched

    def stops(self, ends: Iterable[Any]) -> list[Tensor]:
        """Where gradients stop: at what the nodes take besides, and at those of some tensors that
        the tape did not record."""
        inputs = {tensor for node in self._nodes for tensor in node.inputs}
        outside = {t for t in ends if type(t) is Tensor and t.op.inputs and not is_read(t.op)}
        stops = [t for t in outside if t.op not in self._nodes]
        return stops + [t for t in inputs if not self.watches(t)]


def _captured(spans: Iterable[GraphSpan]) -> dict[Tensor, Tensor]:
    """What the arguments of the spans' graphs, and of those around them, have captured."""
    graphs = {graph for span in spans for graph in enclosing_graphs(span.graph)}
    inner = [graph for graph in graphs if isinstance(graph, SubGraph)]
    return {inner: outer for graph in inner for outer, inner in graph.captures.items()}


def _origin(tensor: Tensor, captured: Mapping[Tensor, Tensor]) -> Tensor:
    """The tensor that an argument has captured, the reference that a read is of, or the tensor."""
    while type(tensor) is Tensor and (tensor in captured or is_read(tensor.op)):
        tensor = captured[tensor] if tensor in captured else tensor.op.inputs[0]
    return tensor
