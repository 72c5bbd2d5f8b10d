"""`GradientTape`: gradients of what was computed inside `with tf.GradientTape() as tape:`.

In eager code a tape keeps the spans of lazy traces recorded inside the block. `gradient` builds
their backward pass as graph code does, once per structure. If the ops of a tape ran in several
steps, it keeps their values, and the backward pass goes through the steps in reverse. In graph code
a tape keeps the ranges of nodes made inside.
"""

from __future__ import annotations

import itertools
import weakref
from collections.abc import Generator, Iterable, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any, cast

from thalweg.autodiff.gradients import gradients
from thalweg.functions.backward import EagerGradient, TraceSpan
from thalweg.functions.eager import EAGER
from thalweg.functions.lazy_trace import LazyTrace
from thalweg.functions.tensors import EagerTensor
from thalweg.functions.traced.function_graph import FunctionGraph
from thalweg.graph import nest
from thalweg.graph.analysis.node_effects import is_read
from thalweg.graph.convert import convert_to_tensor
from thalweg.graph.graph import Graph, get_default_graph
from thalweg.graph.likes import Structure, TensorLike, TensorStructure
from thalweg.graph.node import Node, Tensor
from thalweg.ops.arrays import joining
from thalweg.ops.core import filling, shaping
from thalweg.platform.described import described
from thalweg.public import public
from thalweg.variables.variable import Variable


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
        self._watched: dict[Tensor, None] = {}
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
                span = TraceSpan(lazy_trace)
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
                self._watched[item] = None
                if isinstance(item, EagerTensor):
                    EAGER.position(item)  # enters it into the span
            else:
                raise ValueError(
                    f"Passed in object of type {type(item).__name__}, expected a tensor or variable"
                )

    def watched_variables(self) -> tuple[Variable, ...]:
        """The variables that were read or watched, in order of first use."""
        for span in self._graph_spans:
            if self._watches_variables:
                self._variables.update(dict.fromkeys(span.read_variables()))
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
        variables = set(self.watched_variables())
        inside = {node for span in self._graph_spans for node in span.nodes()}
        watched_tensors = _watched_tensors(inside, self._watched, variables)
        is_watched = [source in watched_tensors or source in variables for source in sources]
        xs = list(itertools.compress(sources, is_watched))
        used = {t for node in inside for t in node.inputs} - {*self._watched, *xs}
        ends = {t for t in (*self._watched, *xs, *ys) if type(t) is Tensor and t.op.inputs}
        stops = [t for t in used | ends if t.op not in inside and not is_read(t.op)]
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
        self._graph = graph
        self._start = len(graph.nodes)
        self._end: int | None = None

    def close(self) -> None:
        """End the span: later nodes are not part of it."""
        self._end = len(self._graph.nodes)

    def nodes(self) -> list[Node]:
        """The nodes of the span."""
        return self._graph.nodes[self._start : self._end]

    def read_variables(self) -> list[Variable]:
        """The trainable variables that the nodes read."""
        if isinstance(self._graph, FunctionGraph):
            return [v for v in self._graph.read_variables(self.nodes()) if v.trainable]
        sources = {t.op for node in self.nodes() for t in node.inputs}
        sources |= {t.op for node in sources if is_read(node) for t in node.inputs}
        trainable = self._graph.get_collection("trainable_variables")
        return [variable for variable in trainable if variable.op in sources]


def _watched_tensors(
    inside: Iterable[Node], watched: Iterable[Tensor], variables: Iterable[Variable]
) -> set[Tensor]:
    """The tensors that are watched or computed from watched ones."""
    result = set(watched) | {variable.gradient_source() for variable in variables}
    for node in sorted(inside, key=lambda node: node.index):
        if any(t in result or (is_read(t.op) and t.op.inputs[0] in result) for t in node.inputs):
            result.update(node.outputs)
    return result
