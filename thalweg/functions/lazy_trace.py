"""Lazy traces: ops of eager code that are recorded and have not run yet.

A lazy trace is a path in the trace tree (`trace`), the values and variables it takes, and its
pending tensors. Reading one of these runs the whole trace as one step, which computes the tensors
that are still referenced.
"""

# Eager tensors and lazy traces are one mechanism in several files:
# pyright: reportPrivateUsage=false

from __future__ import annotations

import threading
from copy import copy
from sys import getrefcount
from typing import Any, cast

import numpy as np

from thalweg import errors
from thalweg.functions.devices import eager_devices
from thalweg.functions.steps import RecordedStep, StepBuilder
from thalweg.functions.tensors import EagerTensor, Failure, Literal, set_devices
from thalweg.functions.trace import (
    LITERAL,
    REFERENCE,
    SCOPE,
    VALUE,
    Guard,
    Leaf,
    Trace,
    TraceNode,
    add_reference,
)
from thalweg.graph.graph import graphs
from thalweg.graph.node import Tensor
from thalweg.graph.origin import MadeAt
from thalweg.graph.shapes import TensorShape
from thalweg.graph.subgraph import needed
from thalweg.ops.core.basic import Const
from thalweg.ops.core.buffer import Buffer
from thalweg.ops.core.context import VariableCell
from thalweg.runtime.dataflow.unfold import untaken_value

_MAX_LITERALS = 3  # literals of one dtype and shape at a trace node; further ones enter as values

#: How many open scopes disable the fast path.
fast_path_disabled = [0]

_new = EagerTensor.__new__

_TRACE_REFCOUNT = 3  # of a tensor that only its trace holds: the list, the loop, the call


class LazyTrace:
    """The ops that one thread recorded since a value was read."""

    def __init__(self, trace: Trace) -> None:
        self.trace = trace
        self.end = trace.root  # the last trace node
        self._listed_until: TraceNode | None = None  # the end of `_templates`
        self._templates: list[Tensor] = []
        self.tensors: list[EagerTensor] = []  # pending
        self.values: list[Any] = []
        self.leaves: list[Any] = []  # the `Leaf` ops of the values
        self.references: dict[Any, int] = {}  # a cell, or a queue and the like → position
        self.lines: dict[TraceNode, MadeAt] = {}  # of ops not recorded by a shortcut
        self.streams: list[Any] = []
        self.entered: dict[EagerTensor, int] = {}
        self.variable_reads: dict[Any, EagerTensor] = {}  # not written since
        self.spans: list[Any] = []  # weak references to spans of tapes
        self.closed = False  # nothing more is recorded
        self.done = False
        self.lock = threading.RLock()
        self.graphs = graphs.items  # this thread's graph stack

    @property
    def templates(self) -> list[Tensor]:
        """The tensors of the hidden graph by position, listed on demand."""
        end = self.end  # read once: its thread may record while another one runs the trace
        if self._listed_until is not end:
            for trace_node in end.path(self._listed_until):
                self._templates += trace_node.outputs
            self._listed_until = end
        return self._templates

    def line(self, trace_node: TraceNode | None) -> MadeAt | None:
        """The user's line that recorded the op of a trace node."""
        return None if trace_node is None else self.lines.get(trace_node, trace_node.line)

    # Inputs

    def position(self, tensor: EagerTensor) -> int:
        """The position of a tensor in this trace; one from outside becomes a leaf, and is computed
        if it is pending elsewhere."""
        other: LazyTrace | None = tensor._lazy_trace
        if other is self:
            return tensor._position
        if other is not None and not other.done and type(tensor._array) is VariableCell:
            other.finish()  # it may write the variable
        position = self.entered.get(tensor)
        if position is not None:
            return position
        held = tensor.held()
        position = count = self.end.count
        if tensor.dtype.is_ref_dtype:  # it may be here: updates return other tensors of it
            position = self.references.setdefault(held, count)
        if position == count:
            self._enter(tensor, held)
        self.entered[tensor] = position
        tensor._lazy_trace = self
        tensor._position = position
        return position

    def _enter(self, tensor: EagerTensor, held: Any) -> None:
        trace_node, literal = self.end, tensor._literal
        if literal is not None:
            child = trace_node.children.get(literal)
            if child is None and literal[:2] not in trace_node.generic:
                child = self._new_literal(tensor, held, literal)
            if child is not None:
                self.end = child
                return
        key = tensor._leaf_key
        if key is None:
            key = tensor._leaf_key = _leaf_key(tensor, held)
        child = trace_node.children.get(key)
        if child is None:
            child = self._new_leaf(tensor, held, key)
        if child.kind == VALUE:
            self.values.append(held)
            self.leaves.append(child.nodes[0].op)
        self.end = child

    def _new_literal(self, tensor: EagerTensor, value: Any, key: Literal) -> TraceNode | None:
        """A new trace node for a constant; None if there are too many of its dtype and shape."""
        trace_node, dtype_shape = self.end, key[:2]
        seen = [k for k in trace_node.children if type(k) is Literal and k[:2] == dtype_shape]
        if len(seen) >= _MAX_LITERALS:
            trace_node.generic.add(dtype_shape)
            return None
        op = Const(value=value, dtype=tensor.dtype)
        types = [(tensor.dtype, TensorShape.of(value.shape))]
        node = self.trace.add(op, (), types, "Const")
        child = trace_node.children[key] = TraceNode(trace_node, (node,), node.outputs, LITERAL)
        return child

    def _new_leaf(self, tensor: EagerTensor, held: Any, key: Any) -> TraceNode:
        if tensor.dtype.is_ref_dtype:
            device = _device_of(held)
            template = add_reference(self.trace, tensor.dtype, tensor.shape, device)
            kind = REFERENCE
        else:
            template, kind = self.trace.leaf(tensor.dtype, tensor.shape, len(self.values)), VALUE
        child = self.end.children[key] = TraceNode(self.end, (template.op,), (template,), kind)
        return child

    def enter_device_scope(self, device: str) -> None:
        """Record that the ops that follow request a device."""
        self._enter_child(("device", device), (), SCOPE)

    def enter_saved(self, template: Tensor, value: Any) -> None:
        """Enter a value that an earlier trace computed for a tensor of the hidden graph."""
        self._enter_child(template, (template,), VALUE)
        self.values.append(value)
        self.leaves.append(None)

    def _enter_child(self, key: Any, outputs: tuple[Tensor, ...], kind: int) -> None:
        child = self.end.children.get(key)
        if child is None:
            child = self.end.children[key] = TraceNode(self.end, (), outputs, kind)
        self.end = child

    def leaf_value(self, leaf: Leaf) -> Any:
        """The value of a leaf; None if it is not a leaf of this trace."""
        number = leaf.number
        is_own = 0 <= number < len(self.leaves) and self.leaves[number] is leaf
        return self.values[number] if is_own else None

    # Recording

    def advance(self, child: TraceNode, origin: MadeAt) -> list[EagerTensor]:
        """Descend to a child; its outputs as pending tensors."""
        position = self.end.count
        self.end = child
        self.lines[child] = origin
        outputs = [
            self.tensor(template, position + number)
            for number, template in enumerate(child.outputs)
        ]
        self.tensors += outputs
        return outputs

    def tensor(self, template: Tensor, position: int) -> EagerTensor:
        """A pending tensor for a tensor of the hidden graph."""
        tensor = _new(EagerTensor)
        tensor.dtype = template.dtype
        tensor._shape = template._shape
        tensor._array = tensor._literal = tensor._leaf_key = None
        tensor._position = position
        tensor._lazy_trace = self
        return tensor

    def advance_single(self, child: TraceNode, line: MadeAt | None = None) -> EagerTensor:
        """As `advance`, for a child with a single output; without a line for a shortcut."""
        if line is not None:
            self.lines[child] = line
        tensor = self.tensor(child.outputs[0], child.count - 1)
        self.tensors.append(tensor)
        self.end = child
        return tensor

    def cache_shortcut(self, key: Any, start: TraceNode, output: Any) -> None:
        """Cache the last trace node, which recorded the output, as a child of `start`, past a
        literal between them; with its line, which later uses do not record."""
        end = self.end
        before = end.parent
        if before is not start and before is not None and before.kind == LITERAL:
            before = before.parent
        if before is start and end.is_plain and output._lazy_trace is self:
            end.line = end.line or self.lines.get(end)
            start.children[key] = end

    def child(self, key: Any) -> TraceNode | None:
        """The child of the last trace node for a key, if it was recorded before."""
        child = self.end.children.get(key)
        if type(child) is Guard:
            return child.cases.get(child.key(self.values))
        return child

    def cache_child(self, key: Any, child: TraceNode, consulted: set[int]) -> None:
        """Cache the child for a key, guarded by the values of the leaves that were consulted."""
        children = self.end.children
        before = children.get(key)
        if type(before) is Guard:
            consulted = consulted | set(before.leaves)
        if not consulted:
            children[key] = child
            return
        leaves = tuple(sorted(consulted))
        guard = before if type(before) is Guard and before.leaves == leaves else Guard(leaves)
        children[key] = guard
        child.consulted = leaves
        guard.cases[guard.key(self.values)] = child

    # Running

    def finish(self) -> None:
        """Run the trace once; other threads wait for it."""
        with self.lock:
            if not self.done:
                self.closed = self.done = True
                self._run()

    def __del__(self) -> None:
        if not self.done and self.end.path_has_effects:  # its thread ended
            self.finish()

    def _run(self) -> None:
        """Run the ops up to here. If this is another thread, the trace's own may be recording one
        more: it records it again, in a new trace."""
        self.variable_reads.clear()
        end = self.end
        count = end.count
        live = [t for t in self.tensors if getrefcount(t) > _TRACE_REFCOUNT and t._position < count]
        spans = [span for ref in self.spans if (span := ref()) is not None] if self.spans else []
        for span in spans:
            span.close(end)
        if live or end.path_has_effects or spans:
            try:
                self._compute(end, live, spans)
            except BaseException as error:  # also an interrupt: the tensors have no values
                self._fail(end, error, live)
                raise
        self.tensors = []
        if not spans:
            self._release()

    def _release(self) -> None:
        """Drop all data: constants refer to this trace until their next use."""
        self.entered = {}
        self.values, self.leaves, self.references = [], [], {}
        self.streams = []
        self._templates, self._listed_until, self.lines = [], None, {}

    def _compute(self, end: TraceNode, live: list[EagerTensor], spans: list[Any]) -> None:
        key: Any = tuple([t._position for t in live])
        if spans:
            key = (key, *[(span.start, span.end) for span in spans])
        step: RecordedStep | None = end.plans.get(key)
        if step is None:
            wanted = [self.templates[t._position] for t in live]
            for span in spans:
                wanted += span.wanted()
            if not wanted and not end.path_has_effects:
                return
            step = end.plans[key] = StepBuilder(end, self.values).build(wanted)
        try:
            results = step.run(self.values, [*self.references], self.streams)
        except errors.OpError as error:
            raise self._located(end, error, step) from error
        if spans:  # a tensor has one array: tapes find tensors by their values
            pairs = zip(step.wanted, results, strict=True)  # traces of branches not taken are None
            values = {t: untaken_value(t) if r is None else as_array(r) for t, r in pairs}
            results = [values[template] for template in step.wanted]
            for span in spans:
                span.save(values)
        for tensor, result in zip(live, results, strict=False):
            tensor.resolve(result if type(result) is np.ndarray else as_array(result))
        if step.step.devices is not None:
            set_devices(live, step.step.devices)

    def _located(self, end: TraceNode, error: errors.OpError, step: RecordedStep) -> errors.OpError:
        """An error at the line that recorded the op in this trace, not in the first one like it."""
        node = error.op
        original = step.originals.get(node)
        line = self.line(next((p for p in end.path() if original in p.nodes), None))
        if line is None:
            return error
        located = copy(node)
        located.made_at = line
        return error.at(located)

    def _fail(self, end: TraceNode, error: BaseException, live: list[EagerTensor]) -> None:
        """Compute each tensor alone, so that only those which depend on the failed op fail. After
        an interrupt all of them fail."""
        pending = [tensor for tensor in live if tensor._array is None]
        if isinstance(error, Exception):
            for tensor in pending:
                tensor.resolve(self._compute_alone(end, tensor, error))
            return
        message = "The step that was to compute this value was interrupted; compute it again."
        for tensor in pending:
            tensor.resolve(Failure(errors.CancelledError(None, None, message)))

    def _compute_alone(self, end: TraceNode, tensor: EagerTensor, error: Exception) -> Any:
        """The value of a tensor, or the failure; `error` is that of the whole step."""
        template = self.templates[tensor._position]
        nodes = needed([template], (), {})
        if any(node.op.stateful and not isinstance(node.op, Leaf) for node in nodes):
            return Failure(error)  # it cannot be computed at any time
        try:
            step = StepBuilder(end, self.values).build([template], runs_effects=False)
            (result,) = step.run(self.values, [*self.references], self.streams)
            return as_array(result)
        except Exception as own_error:  # perhaps not the one that stopped the step
            return Failure(own_error)


def _leaf_key(tensor: EagerTensor, held: Any) -> tuple[Any, ...]:
    """The key of a leaf in the trace tree: its dtype and shape, and a variable's device."""
    dtype = tensor.dtype.as_datatype_enum
    if type(held) is np.ndarray or isinstance(held, Buffer):
        return dtype, held.shape
    return dtype, tensor.shape.sizes, _device_of(held)


def _device_of(held: Any) -> str:
    """The device of a variable; "" for other values, and without GPUs."""
    buffer = held.buffer if isinstance(held, VariableCell) else None
    return "" if buffer is None or not eager_devices().has_accelerators else buffer.device


def as_array(result: Any) -> Any:
    """A result as tensors hold it: scalars as arrays."""
    if isinstance(result, np.generic):
        return np.asarray(cast("Any", result))
    if isinstance(result, bytes | str):
        return np.array(result, dtype=object)
    return np.asarray(result) if isinstance(result, bool | int | float) else result
