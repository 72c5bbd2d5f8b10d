"""Lazy traces: the ops that eager code recorded and that did not run yet.

A lazy trace is a path in the tree of what was recorded before (`trace`). It knows the values and
variables that came in, and the tensors that went out. Reading one of those runs everything recorded
as one step, and the tensors that are still referenced get their values.
"""

# Eager tensors and lazy traces are one mechanism in several files:
# pyright: reportPrivateUsage=false

from __future__ import annotations

import itertools
import threading
from copy import copy
from sys import getrefcount
from typing import Any, cast

import numpy as np

from thalweg import errors
from thalweg.functions.devices import eager_devices
from thalweg.functions.steps import RecordedStep, record_step
from thalweg.functions.tensors import EagerTensor, Failure, Literal
from thalweg.functions.trace import (
    LITERAL,
    REFERENCE,
    SCOPE,
    VALUE,
    Guard,
    Leaf,
    Trace,
    TraceNode,
    has_effect,
    steps,
)
from thalweg.graph.graph import graphs
from thalweg.graph.node import Node, Tensor
from thalweg.graph.origin import MadeAt
from thalweg.graph.shapes import TensorShape
from thalweg.ops.core.basic import Const
from thalweg.ops.core.buffer import Buffer
from thalweg.ops.core.context import VariableCell
from thalweg.platform.caches import Bounded

_MAX_VALUES = 3  # of a constant at one place, before it is data and no part of the program

#: How many reasons there are to do without the fast path.
fast_path_disabled = [0]

_new = EagerTensor.__new__

_HELD = 3  # references to a tensor that only its lazy trace holds: the list, a loop, the question


class LazyTrace:
    """What one thread recorded since values were looked at."""

    __slots__ = (
        "_catalogued",
        "_templates",
        "cells",
        "closed",
        "done",
        "end",
        "entered",
        "graphs",
        "leaves",
        "lines",
        "lock",
        "reads",
        "spans",
        "streams",
        "tensors",
        "trace",
        "values",
    )

    def __init__(self, trace: Trace) -> None:
        self.trace = trace
        self.end = trace.root  # the trace node that was reached
        self._catalogued: TraceNode | None = None  # up to where templates were listed
        self._templates: list[Tensor] = []
        self.tensors: list[EagerTensor] = []  # the pending ones
        self.values: list[Any] = []
        self.leaves: list[Any] = []  # the ops of the values' nodes
        self.cells: list[Any] = []
        self.lines: dict[TraceNode, MadeAt] = {}  # of ops that did not come by a shortcut
        self.streams: list[Any] = []
        self.entered: dict[EagerTensor, int] = {}
        self.reads: dict[Any, EagerTensor] = {}  # variables that were read and not written since
        self.spans: list[Any] = []  # of tapes, which keep what the gradient will need
        self.closed = False  # what comes next belongs to another lazy trace
        self.done = False
        self.lock = threading.RLock()
        self.graphs = graphs.items  # of this thread

    @property
    def templates(self) -> list[Tensor]:
        """Nodes' outputs, by position: listed for who asks, which work found again does not."""
        if self._catalogued is not self.end:
            for trace_node in self.end.path(self._catalogued):
                self._templates += trace_node.outputs
            self._catalogued = self.end
        return self._templates

    def line(self, trace_node: TraceNode | None) -> MadeAt | None:
        """Where in the user's code the op of a trace node was recorded."""
        return None if trace_node is None else self.lines.get(trace_node, trace_node.line)

    # What comes in

    def position(self, tensor: EagerTensor) -> int:
        """The number of a tensor here; one from outside becomes a leaf."""
        if tensor._lazy_trace is self:
            return tensor._position
        found = self.entered.get(tensor)
        if found is not None:
            return found
        position = self.end.count
        self._enter(tensor, tensor.held())
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
        kind = tensor._kind
        if kind is None:
            kind = tensor._kind = _kind(tensor, held)
        child = trace_node.children.get(kind)
        if child is None:
            child = self._new_leaf(tensor, held, kind)
        if child.leaf == REFERENCE:
            self.cells.append(held)
        else:
            self.values.append(held)
            self.leaves.append(child.nodes[0].op)
        self.end = child

    def _new_literal(self, tensor: EagerTensor, value: Any, key: Literal) -> TraceNode | None:
        """A constant as part of the program; None once it had too many values here."""
        trace_node, kind = self.end, key[:2]
        seen = [k for k in trace_node.children if type(k) is Literal and k[:2] == kind]
        if len(seen) >= _MAX_VALUES:
            trace_node.generic.add(kind)
            return None
        op = Const(value=value, dtype=tensor.dtype)
        node = self.trace.add(op, (), [tensor.dtype], [TensorShape.of(value.shape)], "Const")
        child = trace_node.children[key] = TraceNode(trace_node, (node,), node.outputs, LITERAL)
        return child

    def _new_leaf(self, tensor: EagerTensor, held: Any, kind: int) -> TraceNode:
        if tensor.dtype.is_ref_dtype:
            template = self.trace.reference(tensor.dtype, tensor.shape, _device_of(held))
            leaf = REFERENCE
        else:
            template, leaf = self.trace.leaf(tensor.dtype, tensor.shape, len(self.values)), VALUE
        child = self.end.children[kind] = TraceNode(self.end, (template.op,), (template,), leaf)
        return child

    def mark(self, device: str) -> None:
        """Note that what comes next asks for a device: it leads elsewhere in the tree."""
        key = ("device", device)
        child = self.end.children.get(key)
        if child is None:
            child = self.end.children[key] = TraceNode(self.end, (), (), SCOPE)
        self.end = child

    def enter_as(self, template: Tensor, value: Any, key: Any) -> None:
        """Have a value stand for a node's output that was computed in an earlier span."""
        child = self.end.children.get(key)
        if child is None:
            child = self.end.children[key] = TraceNode(self.end, (), (template,), VALUE)
        self.values.append(value)
        self.leaves.append(None)
        self.end = child

    def leaf_value(self, leaf: Leaf) -> Any:
        """The value of a leaf, if it is one of this lazy trace."""
        number = leaf.number
        is_mine = number < len(self.leaves) and self.leaves[number] is leaf
        return self.values[number] if is_mine else None

    # What goes out

    def advance(self, child: TraceNode, origin: MadeAt) -> list[EagerTensor]:
        """Take a step down the tree; the new tensors."""
        position = self.end.count
        self.end = child
        self.lines[child] = origin
        made = [
            self.tensor(template, position + number)
            for number, template in enumerate(child.outputs)
        ]
        self.tensors += made
        return made

    def tensor(self, template: Tensor, position: int) -> EagerTensor:
        """A tensor for a node's output, pending."""
        tensor = _new(EagerTensor)
        tensor.dtype = template.dtype
        tensor._shape = template._shape
        tensor._array = tensor._literal = tensor._kind = None
        tensor._position = position
        tensor._lazy_trace = self
        return tensor

    def take(self, child: TraceNode, line: MadeAt | None = None) -> EagerTensor:
        """As `advance`, for a trace node with a single tensor; without a line, by a shortcut."""
        if line is not None:
            self.lines[child] = line
        tensor = self.tensor(child.outputs[0], child.count - 1)
        self.tensors.append(tensor)
        self.end = child
        return tensor

    def shortcut(self) -> TraceNode:
        """The trace node that was reached, for who finds it again without saying a line."""
        trace_node = self.end
        if trace_node.line is None:
            trace_node.line = self.lines.get(trace_node)
        return trace_node

    def child(self, key: Any) -> TraceNode | None:
        """The trace node that a key leads to from here, if it was taken before."""
        found = self.end.children.get(key)
        if type(found) is Guard:
            return found.cases.get(found.key(self.values))
        return found

    def keep(self, key: Any, child: TraceNode, consulted: set[int]) -> None:
        """Cache where a key leads: always, or for the values that were consulted."""
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
        """Run what was recorded; other threads wait meanwhile."""
        with self.lock:
            if not self.done:
                self.closed = self.done = True
                self._run()

    def __del__(self) -> None:
        if not self.done and self.end.effects:  # of a thread that ended
            self.finish()

    def _run(self) -> None:
        self.reads.clear()
        count = self.end.count
        live = [t for t in self.tensors if getrefcount(t) > _HELD and t._position < count]
        spans = self.spans and [span for made in self.spans if (span := made()) is not None]
        if live or self.end.effects or spans:
            try:
                self._compute(live, spans)
            except BaseException as error:  # an interrupted step has no values either
                self._fail(error, live)
                raise
        self.tensors = []
        if not spans:
            self._forget()

    def _forget(self) -> None:
        """Release everything: constants and the like know this lazy trace until their next use."""
        self.entered = {}
        self.values, self.cells, self.leaves = [], [], []
        self.streams = []
        self._templates, self._catalogued, self.lines = [], None, {}

    def _compute(self, live: list[EagerTensor], spans: list[Any]) -> None:
        key: Any = tuple([t._position for t in live])
        if spans:
            key = (key, *[span.key for span in spans])
        step: RecordedStep | None = self.end.plans.get(key)
        if step is None:
            wanted = [self.templates[t._position] for t in live]
            for span in spans:
                wanted += span.wanted()
            step = self.end.plans[key] = record_step(self.end, wanted, self.values)
        try:
            results = step.run(self.values, self.cells, self.streams)
        except errors.OpError as error:
            raise self._located(error, step) from error
        for tensor, result in zip(live, results, strict=False):
            tensor.resolve(result if type(result) is np.ndarray else _as_array(result))
        devices = step.devices
        if devices is not None:
            for tensor, device in zip(live, devices, strict=False):
                tensor._device = device
        if spans:
            _share_out(spans, results[len(live) :])

    def _located(self, error: errors.OpError, step: RecordedStep) -> errors.OpError:
        """An error at the line of this run, not of the first one that recorded the same."""
        node = error.op
        number = step.origins.get(node)
        if number is None:
            return error
        line = self.line(next(itertools.islice(steps(self.end.path()), number, None)))
        return error if line is None else error.at(_made_at(node, line))

    def _fail(self, error: BaseException, live: list[EagerTensor]) -> None:
        """What failed takes with it what needs it; the rest gets its values after all, unless
        somebody wants no more of them: an interrupt is no reason to begin again."""
        is_interrupted = not isinstance(error, Exception)
        failure = Failure(_interrupted() if is_interrupted else error)
        for tensor in live:
            if tensor._array is not None:
                continue
            if is_interrupted:
                tensor.resolve(failure)
            else:
                self._compute_alone(tensor, failure)

    def _compute_alone(self, tensor: EagerTensor, failure: Failure) -> None:
        template = self.templates[tensor._position]
        if self._is_pure(template):
            trace_node = _without_effects(self.end)
            try:
                step = record_step(trace_node, [template], self.values)
                (result,) = step.run(self.values, self.cells, self.streams)
            except Exception as error:  # its own, which may be another one
                failure = Failure(error)
            else:
                tensor.resolve(_as_array(result))
                return
        tensor.resolve(failure)

    def _is_pure(self, template: Tensor) -> bool:
        """Whether a tensor depends on values alone: then it is the same at any time."""
        pending, seen = [template.op], set[Node]()
        while pending:
            node = pending.pop()
            if node in seen:
                continue
            seen.add(node)
            if node.op.stateful and not isinstance(node.op, Leaf):
                return False
            pending += [tensor.op for tensor in node.inputs]
        return True


def _interrupted() -> errors.OpError:
    message = "The step that was to compute this value was interrupted; compute it again."
    return errors.CancelledError(None, None, message)


_kinds = Bounded[Any, int]("kinds of tensors in eager code", 10_000)
_numbers = itertools.count()


def _kind(tensor: EagerTensor, held: Any) -> int:
    """A number for what leaves must have in common: dtype and shape, and of variables the
    device."""
    if type(held) is np.ndarray or isinstance(held, Buffer):
        key: Any = tensor.dtype, held.shape
    else:
        key = tensor.dtype, tensor.shape, _device_of(held)
    return _kinds.setdefault(key, next(_numbers))


def _device_of(held: Any) -> str:
    """The device that a variable is bound to; "" where there is one alone."""
    buffer = held.buffer if isinstance(held, VariableCell) else None
    return "" if buffer is None or not eager_devices().has_gpus else buffer.device


def _without_effects(trace_node: TraceNode) -> TraceNode:
    """The same work, of which only what is asked for runs."""
    top: TraceNode | None = None
    for step in trace_node.path():
        nodes = tuple(node for node in step.nodes if not has_effect(node))
        again = TraceNode(top, nodes, step.outputs, step.leaf)
        again.consulted = step.consulted
        top = again
    return trace_node if top is None else top


def _share_out(spans: list[Any], results: list[Any]) -> None:
    """Give tapes what they wanted."""
    for span in spans:
        count = len(span.wanted())
        span.save([_as_array(result) for result in results[:count]])
        results = results[count:]


def _made_at(node: Node, origin: MadeAt) -> Node:
    again = copy(node)
    again.code, again.lasti = origin
    return again


def _as_array(result: Any) -> Any:
    """A result as tensors hold it: a scalar is an array too."""
    if isinstance(result, np.generic):
        return np.asarray(cast("Any", result))
    if isinstance(result, bytes | str):
        return np.array(result, dtype=object)
    return np.asarray(result) if isinstance(result, bool | int | float) else result
