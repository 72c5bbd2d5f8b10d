"""`GradientTape`: gradients of what was computed inside `with tf.GradientTape() as tape:`.

In eager code a tape notes which stretches of recorded work are its own; `gradient` builds the
backward pass for them as graph code does, once for each structure. Where the work of a tape ran in
several steps, it keeps what they computed, and the backward pass goes through them last to first.
In graph code a tape notes which nodes were made inside.
"""

from __future__ import annotations

import weakref
from collections.abc import Generator, Iterable, Sequence
from contextlib import contextmanager
from typing import Any, cast

from thalweg.autodiff.gradients import gradients
from thalweg.functions.backward import EagerGradient, TraceSpan
from thalweg.functions.eager import EAGER
from thalweg.functions.lazy_trace import LazyTrace
from thalweg.functions.tensors import EagerTensor
from thalweg.functions.traced.function_graph import FunctionGraph
from thalweg.graph import nest
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
    """Records what is computed inside its block, to differentiate it.

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
        self._forget()

    def __repr__(self) -> str:
        state = "recording" if self._recording else "stopped"
        watched = len(self._watched) + len(self._variables)
        return described(self, watched=watched, persistent=self._persistent, state=state)

    def _forget(self) -> None:
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
        lazy_trace.reads.clear()  # a variable that is read from now on is read inside
        EAGER.tapes.append(self)
        self.follow(lazy_trace)

    def _stop(self) -> None:
        if not self._recording:
            raise ValueError("Tape is not recording.")
        self._recording = False
        if self in EAGER.tapes:
            EAGER.tapes.remove(self)
            self._trace_spans[-1].close()
        else:
            self._graph_spans[-1].close()

    def follow(self, lazy_trace: LazyTrace) -> None:
        """Go on in another lazy trace."""
        span = TraceSpan(lazy_trace)
        self._trace_spans.append(span)
        lazy_trace.spans.append(weakref.ref(span))

    def accessed(self, variable: Variable) -> None:
        """Note that a variable is read."""
        if self._watches_variables and variable.trainable:
            self._variables[variable] = None

    def watch(self, tensor: TensorStructure) -> None:
        """Have gradients of a tensor, a variable, or all in a structure of them."""
        for item in nest.flatten(tensor):
            if isinstance(item, Variable):
                self._variables[item] = None
            elif isinstance(item, Tensor):
                self._watch(item)
            else:
                raise ValueError(
                    f"Passed in object of type {type(item).__name__}, expected a tensor or variable"
                )

    def _watch(self, tensor: Tensor) -> None:
        self._watched[tensor] = None
        if isinstance(tensor, EagerTensor):
            EAGER.template(tensor)  # it is part of the span from here on

    def watched_variables(self) -> tuple[Variable, ...]:
        """The variables that were read or watched, in that order."""
        for span in self._graph_spans:
            if self._watches_variables:
                self._variables.update(dict.fromkeys(span.read_variables()))
        return tuple(self._variables)

    @contextmanager
    def stop_recording(self) -> Generator[None]:
        """Leave out what is computed inside the block."""
        self._stop()
        try:
            yield
        finally:
            self._start()

    def reset(self) -> None:
        """Forget everything, as if the tape began here."""
        was_recording = self._recording
        if was_recording:
            self._stop()
        self._forget()
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
        """The derivatives of what was computed inside the block.

        Args:
            target: a tensor, or a structure of tensors, whose sum is differentiated.
            sources: tensors or variables, in any structure.
            output_gradients: what flows into each target; ones if None.
            unconnected_gradients: "none" or "zero": what a source gets that the target does not
                depend on, or that was not watched.

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
        targets, wanted = _flat(target), _flat(sources)
        seeds = None if output_gradients is None else _flat_like(target, output_gradients)
        found = self._gradients(targets, wanted, seeds, unconnected_gradients == "zero")
        if not self._persistent:
            self._forget()
        return found if wanted is sources else nest.pack_sequence_as(sources, found)

    def _gradients(
        self, targets: list[Any], sources: list[Any], seeds: list[Any] | None, is_zero: bool
    ) -> list[Any]:
        given = [None] * len(targets) if seeds is None else seeds
        if get_default_graph() is EAGER and not self._graph_spans:
            call = EagerGradient(self._trace_spans, self._watched, self._variables)
            return call.run(targets, sources, given, is_zero)
        return self._graph_gradients(targets, sources, given, is_zero)

    def _graph_gradients(
        self, targets: list[Any], sources: list[Any], seeds: list[Any], is_zero: bool
    ) -> list[Any]:
        variables = set(self.watched_variables())
        inside = {node for span in self._graph_spans for node in span.nodes()}
        allowed = _derived(inside, self._watched, variables)
        known = [_is_allowed(source, allowed, variables) for source in sources]
        xs = [source for source, there in zip(sources, known, strict=True) if there]
        stops = [t for n in inside for t in n.inputs if t.op not in inside and not _is_read(t.op)]
        stops = [t for t in stops if t not in self._watched and t not in xs]
        given = None if all(seed is None for seed in seeds) else seeds
        found = iter(gradients(targets, xs, given, stop_gradients=stops) if xs else [])
        results = [next(found) if there else None for there in known]
        if not is_zero:
            return results
        pairs = zip(sources, results, strict=True)
        return [filling.zeros_like(s) if g is None else g for s, g in pairs]

    def jacobian(
        self,
        target: Any,
        sources: TensorStructure,
        unconnected_gradients: str = "none",
        parallel_iterations: int | None = None,
        experimental_use_pfor: bool = True,
    ) -> Structure:
        """The gradient of each element of `target`: of shape target.shape + source.shape."""
        self._check_repeatable("jacobian")
        tensor, wanted = convert_to_tensor(target), nest.flatten(sources)
        with self._watched_inside():
            flat = shaping.reshape(tensor, [-1])
            elements = [flat[i] for i in range(tensor.shape.num_elements() or 0)]
        rows = [
            nest.flatten(self.gradient(element, wanted, None, unconnected_gradients))
            for element in elements
        ]
        found = [_stacked(tensor, column) for column in zip(*rows, strict=True)]
        return nest.pack_sequence_as(sources, found)

    def batch_jacobian(
        self,
        target: TensorLike,
        source: Tensor | Variable,
        unconnected_gradients: str = "none",
        parallel_iterations: int | None = None,
        experimental_use_pfor: bool = True,
    ) -> Any:
        """The Jacobian of each member of a batch, members being independent of each other: of
        shape [batch] + target.shape[1:] + source.shape[1:]."""
        self._check_repeatable("batch_jacobian")
        tensor = convert_to_tensor(target)
        batch = tensor.shape[0].value
        if batch is None or source.shape[0].value != batch:
            raise ValueError("Need first dimension of target shape and source shape to match.")
        with self._watched_inside():
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

    @contextmanager
    def _watched_inside(self) -> Generator[None]:
        """Record what follows, whether the block is still open or not."""
        was_recording = self._recording
        if not was_recording:
            self._start()
        try:
            yield
        finally:
            if not was_recording:
                self._stop()


def _flat(structure: Any) -> list[Any]:
    """The leaves of a structure; a plain list of them is that list."""
    if type(structure) is list:
        items = cast("list[Any]", structure)
        if all(isinstance(item, Variable | Tensor) for item in items):
            return items
    return [structure] if isinstance(structure, Tensor) else nest.flatten(structure)


def _flat_like(structure: Any, values: Any) -> list[Any]:
    """What stands for each leaf of a structure, which may be a list itself."""
    if not nest.is_sequence(structure):
        return [values]
    return nest.flatten_up_to(structure, values)


def _stacked(target: Tensor, rows: Sequence[Any]) -> Any:
    if any(row is None for row in rows):
        return None
    dense = [convert_to_tensor(row) for row in rows]
    return shaping.reshape(joining.stack(dense), target.shape.as_list() + dense[0].shape.as_list())


# Graph code


class GraphSpan:
    """The nodes that were made in a graph while a tape recorded."""

    def __init__(self, graph: Graph) -> None:
        self._graph = graph
        self._start = len(graph.nodes)
        self._end: int | None = None

    def close(self) -> None:
        """Nodes made from now on are none of it."""
        self._end = len(self._graph.nodes)

    def nodes(self) -> list[Node]:
        """The nodes."""
        return self._graph.nodes[self._start : self._end]

    def read_variables(self) -> list[Variable]:
        """The trainable variables that the nodes read."""
        if isinstance(self._graph, FunctionGraph):
            return [v for v in self._graph.read_variables(self.nodes()) if v.trainable]
        sources = {t.op for node in self.nodes() for t in node.inputs}
        sources |= {t.op for node in sources if _is_read(node) for t in node.inputs}
        found = self._graph.get_collection("trainable_variables")
        return [variable for variable in found if variable.op in sources]


def _is_read(node: Node) -> bool:
    """Whether a node is the value of a variable, which is made with the variable."""
    return node.type == "Identity" and node.inputs[0].dtype.is_ref_dtype


def _is_allowed(source: Any, allowed: set[Tensor], variables: set[Variable]) -> bool:
    return source in variables if isinstance(source, Variable) else source in allowed


def _derived(
    inside: Iterable[Node], watched: Iterable[Tensor], variables: Iterable[Variable]
) -> set[Tensor]:
    """What is watched, or was computed from it."""
    found = set(watched) | {variable.gradient_source() for variable in variables}
    for node in sorted(inside, key=lambda node: node.index):
        if any(t in found or (_is_read(t.op) and t.op.inputs[0] in found) for t in node.inputs):
            found.update(node.outputs)
    return found
