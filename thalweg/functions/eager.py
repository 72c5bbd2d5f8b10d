"""The eager graph: the graph that records the ops of eager code.

To the library it is a graph like any other. An op applied while it is the current graph is recorded
in a `LazyTrace`. Nodes recorded before are looked up by structure, so recording costs microseconds;
new nodes are built as graph code builds them, with the same errors.
"""

# Eager tensors and lazy traces are one mechanism in several files:
# pyright: reportPrivateUsage=false

from __future__ import annotations

import atexit
import threading
from collections.abc import Callable, Generator, Hashable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from copy import copy
from functools import partial
from types import SimpleNamespace
from typing import Any, ClassVar, NoReturn, cast

import numpy as np

from thalweg.autodiff import registry
from thalweg.autodiff.custom import CustomGradient
from thalweg.functions.devices import eager_devices, generation, resources
from thalweg.functions.lazy_trace import LazyTrace, fast_path_disabled
from thalweg.functions.tensors import EagerTensor, eager_graph, known, literal, value_reads
from thalweg.functions.trace import OP, SAVED, ConcreteValue, Trace, TraceNode, consulted
from thalweg.graph import build
from thalweg.graph import op as ops
from thalweg.graph.collections import GraphKeys
from thalweg.graph.composite import IndexedSlices
from thalweg.graph.device import canonical_name, device_function
from thalweg.graph.graph import Graph, get_default_graph, graphs
from thalweg.graph.likes import DeviceLike, NodeLike, UserObject
from thalweg.graph.node import Node, Tensor, as_node
from thalweg.graph.op import Op
from thalweg.graph.origin import MadeAt, user_frame
from thalweg.graph.subgraph import root
from thalweg.ops.core.basic import Const, Placeholder
from thalweg.ops.core.python_call import PyFunc, functions
from thalweg.ops.random.philox import Stream
from thalweg.ops.random.random import Random
from thalweg.platform.caches import Bounded
from thalweg.runtime.cancellation import Cancellation
from thalweg.runtime.kernels import Context, raise_at

_MAX_RECORDED = 2_000  # pending nodes of a lazy trace, which then runs
_LONG_TRACE = 250  # pending nodes from which a lazy trace runs at the start of an iteration
_MAX_NODES = 20_000  # of a trace tree, which is then dropped
_MAX_STREAMS = 1_000

#: Annotates proxies of nodes that already ran: they are differentiated, never run.
PROXY = "_proxy"


class EagerGraph(threading.local, Graph):
    """The graph of eager code, which holds no nodes. Its state is per thread.

    Name scopes only prefix names, which need not be unique. Ops run in program order. Collections
    hold the library's own entries and the global step.
    """

    is_eager: ClassVar[bool] = True
    sync: ClassVar[bool] = False  # run op by op
    #: The first entries of the library's own collections.
    collection_factories: ClassVar[dict[Any, Callable[[], Any]]] = {}

    def __init__(self) -> None:
        super().__init__()
        self.trace = Trace(self)
        self.lazy_trace = LazyTrace(self.trace)
        self.tapes: list[Any] = []
        self.device_name = ""  # requested by the open device scopes
        self._unseeded = Stream(0, 0)

    # A graph without nodes

    def enter_scope(self, name: str | None) -> str:
        """Set the prefix of new variables' names."""
        outer = self._scope
        if not name:
            self._scope = ""
        elif name[-1] == "/":
            self._scope = name[:-1]
        else:
            self._scope = f"{outer}/{name}" if outer else name
        return outer

    def unique_name(self, name: str, mark_as_used: bool = True) -> str:
        """The name in the current scope; names need not be unique."""
        return f"{self._scope}/{name}" if self._scope else name

    def control_dependencies(self, control_inputs: Any) -> AbstractContextManager[None]:
        """Nothing to do: effects happen in program order."""
        return nullcontext()

    def add_to_collection(self, name: Hashable, value: UserObject) -> None:
        """Keep the global step; nothing else is collected."""
        if name == GraphKeys.GLOBAL_STEP:
            super().add_to_collection(name, value)

    def get_collection_ref(self, name: Hashable) -> list[Any]:
        """The named list; for other names than the library's own, a new empty one."""
        if name != GraphKeys.GLOBAL_STEP and not isinstance(cast("Any", name), tuple):
            return []
        collection = super().get_collection_ref(name)
        if not collection and name in self.collection_factories:
            collection.append(self.collection_factories[name]())
        return collection

    def prevent_feeding(self, tensor: Tensor) -> None:
        """Nothing to do: eager code feeds nothing."""

    def prevent_fetching(self, node: Node) -> None:
        """Nothing to do: eager code fetches nothing."""

    def add(self, *arguments: Any, **named: Any) -> Node:
        """Raise: ops are recorded, not added as nodes."""
        raise RuntimeError("Eager code has no graph to add nodes to: apply the op.")

    # Recording

    def record(
        self,
        op: Op,
        arguments: Sequence[Any],
        name: str | None,
        attributes: Iterable[Any] | None = None,
    ) -> Any:
        """Record an op and return its outputs as the op's function does. The key has all attributes
        of the op, or those given.

        The fast path takes a plain child that was recorded here before.
        """
        lazy_trace: LazyTrace = self.lazy_trace
        if lazy_trace.closed:
            lazy_trace = self.start_lazy_trace()
        parts: list[Any] = [type(op), *(op.__dict__.values() if attributes is None else attributes)]
        for argument in arguments:
            if type(argument) is not EagerTensor:
                positions = _list_positions(lazy_trace, argument)
                if positions is None:
                    return self._convert(op, arguments, name, attributes)
                parts.append(positions)
            elif argument._lazy_trace is lazy_trace:
                parts.append(argument._position)
            else:
                parts.append(lazy_trace.position(argument))
        origin = user_frame(3)
        try:
            child = lazy_trace.end.children.get(tuple(parts))
        except TypeError:  # an attribute is unhashable
            child = None
        if type(child) is TraceNode and child.is_plain and not fast_path_disabled[0]:
            tensor = lazy_trace.advance_single(child, origin)
            if not lazy_trace.closed:
                return tensor
        with lazy_trace.lock:
            if lazy_trace.closed:  # another thread ran it, perhaps without this op
                return self.record(op, arguments, name, attributes)
            child = self._find_or_build(lazy_trace, op, parts, len(arguments), name)
            outputs = self._advance(lazy_trace, child, origin)
        self.flush_if_long(lazy_trace, child, origin)
        return outputs[0] if child.pack is None else child.pack(outputs)

    def _find_or_build(
        self, lazy_trace: LazyTrace, op: Op, parts: list[Any], count: int, name: str | None
    ) -> TraceNode:
        """The child of the current trace node for an op, built on first use. The last `count` parts
        of the key are the positions of its arguments."""
        start = len(parts) - count
        positions = parts[start:]
        if self._gradient_overrides:
            parts.append(self._gradient_key(op))
        key: Any = tuple(parts)
        try:
            child = lazy_trace.child(key)
        except TypeError:  # an attribute is unhashable, of an op that is not
            key = op, *parts[start:]
            child = lazy_trace.child(key)
        if child is not None:
            return child

        def make() -> tuple[Sequence[Tensor], Any]:
            inputs = tuple(_templates(lazy_trace, position) for position in positions)
            node = build.add_node(lazy_trace.trace, op, inputs, _node_name(name))
            return node.outputs, _output_packer(node)

        return self._build_child(lazy_trace, key, make)

    def _gradient_key(self, op: Op) -> str | None:
        """The gradient override of an op as part of a key; the same for all `CustomGradient`s."""
        override = self.gradient_override(op.type_name)
        return "" if override is not None and isinstance(op, CustomGradient) else override

    def _advance(
        self, lazy_trace: LazyTrace, child: TraceNode, origin: MadeAt
    ) -> list[EagerTensor]:
        """Descend to a child, and update per-call state for random ops, variable writes and custom
        gradients."""
        outputs = lazy_trace.advance(child, origin)
        if not child.is_special:
            return outputs
        for node in child.randoms:
            lazy_trace.streams.append(self.stream(node.op))
        if child.writes:
            lazy_trace.variable_reads.clear()
        for node in child.nodes:
            if isinstance(node.op, CustomGradient):
                self._update_custom_gradient(node)
        return outputs

    def _update_custom_gradient(self, node: Node) -> None:
        """Have a cached node use the gradient function of this call."""
        name = self.gradient_override(node.type)
        before = node.annotations.get("_gradient_op_type")
        if name is not None and name != before:
            node.annotations = {**node.annotations, "_gradient_op_type": name}
            registry.forget(str(before))

    def flush_if_long(self, lazy_trace: LazyTrace, child: TraceNode, origin: MadeAt) -> None:
        """Run a long trace whose values are not read, at the start of a loop iteration: then the
        next trace has the same structure."""
        if child.size < _LONG_TRACE and not EagerGraph.sync:
            return
        is_loop_start = origin == lazy_trace.line(child.first_op)
        if EagerGraph.sync or child.size >= _MAX_RECORDED or is_loop_start:
            lazy_trace.finish()

    def _build_child(
        self, lazy_trace: LazyTrace, key: Any, make: Callable[[], tuple[Sequence[Tensor], Any]]
    ) -> TraceNode:
        """A new trace node of the nodes that `make` builds in the hidden graph, cached by the key;
        `make` returns the outputs, and how to pack them."""
        start = len(lazy_trace.trace.nodes)
        before = lazy_trace.end
        with graphs.pushed(lazy_trace.trace), consulted.pushed(set()) as leaves:
            results, pack = make()
            outputs = tuple(map(lazy_trace.trace.capture, results))  # some are eager tensors
        entered = {node for trace_node in lazy_trace.end.path(before) for node in trace_node.nodes}
        new_nodes = [node for node in lazy_trace.trace.nodes[start:] if node not in entered]
        nodes = tuple(n for n in new_nodes if not n.annotations.keys() & {PROXY, SAVED})
        child = TraceNode(lazy_trace.end, nodes, outputs, OP, pack=pack)
        is_short = child.size < _LONG_TRACE
        child.is_plain = pack is None and is_short and not child.is_special
        if key is not None and lazy_trace.end is before:
            lazy_trace.cache_child(key, child, leaves)
        return child

    def _convert(
        self,
        op: Op,
        arguments: Sequence[Any],
        name: str | None,
        attributes: Iterable[Any] | None,
    ) -> Any:
        """Convert arguments and record an op; a symbolic argument moves the op to its graph."""
        for argument in _leaves(arguments):
            if isinstance(argument, Tensor) and type(argument) is not EagerTensor:
                with argument.graph.as_default():
                    return apply(op, tuple(arguments), name)
        grouped = build.convert_inputs(op, tuple(arguments), name or op.type_name)[1]
        return self.record(op, grouped, name, attributes)

    def _eager_tensor(self, template: Tensor) -> EagerTensor | None:
        """The eager tensor of the current lazy trace for a tensor of the hidden graph."""
        lazy_trace = self.lazy_trace
        position = next((i for i, t in enumerate(lazy_trace.templates) if t is template), None)
        for tensor in (*lazy_trace.entered, *lazy_trace.tensors):
            if tensor._lazy_trace is lazy_trace and tensor._position == position:
                return tensor
        op = template.op.op  # shortcuts pass constants without a tensor for them
        return literal(op.value, op.dtype) if isinstance(op, Const) else None

    def node_of(self, tensor: EagerTensor) -> Node:
        """The node of a tensor: its op and inputs while it is pending, then only its value."""
        lazy_trace = tensor._lazy_trace
        if tensor._array is not None or lazy_trace is not self.lazy_trace:
            return self._value_node(tensor)
        template: Node = lazy_trace.templates[tensor._position].op
        inputs = [self._eager_tensor(t) for t in template.inputs]
        if any(t is None for t in inputs):
            return self._value_node(tensor)
        node = copy(template)
        node.graph, node.device, node.controls = self, "", ()
        node.inputs = tuple(cast("list[Tensor]", inputs))
        pairs = [(self._eager_tensor(t), t) for t in template.outputs]
        node.outputs = tuple(t if eager is None else eager for eager, t in pairs)
        return node

    def _value_node(self, tensor: EagerTensor) -> Node:
        held, shape = tensor._array, tensor._shape
        if tensor._literal is not None:
            op: Op = Const(value=held, dtype=tensor.dtype)
        else:
            value_reads[0] += 1
            op = ConcreteValue(dtype=tensor.dtype, given_shape=shape, value=held)
        node = Node(self, op, "EagerTensor", (), (), "", {}, user_frame(1), 0)
        node.outputs = (tensor,)
        return node

    def innermost_graph(self) -> Graph:
        """The graph that is being built inside eager code, or this one."""
        items = graphs.items
        if not items or items[-1] is self:
            return self
        return items[-1] if root(items[-1]) is self else self

    # Ops that are not recorded as nodes, or only in part

    def _reject_placeholder(self, *_: Any) -> NoReturn:
        raise RuntimeError(
            "tf.placeholder() is not compatible with eager execution: use the value itself, "
            "or build a graph inside `with tf.Graph().as_default()`."
        )

    def _record_resource(self, op: Op, arguments: Sequence[Any], name: str | None) -> Any:
        """Record an op that creates a named resource, and run it."""
        if not op.__dict__["shared_name"]:
            self._counter += 1
            shared_name = f"eager_{threading.get_ident()}_{self._counter}_{id(op)}"
            op = type(op)(**{**op.attributes, "shared_name": shared_name})
        result = self.record(op, arguments, name)
        self.lazy_trace.finish()
        return result

    def _constant(self, op: Const, *_: Any) -> EagerTensor:
        """A constant is a tensor with a value: nothing is recorded."""
        tensor = literal(op.value, op.dtype)
        devices = eager_devices()
        if devices.has_accelerators:
            tensor._device = devices.device_for(self.device_name, tensor.dtype, tensor._shape).name
        return tensor

    # Devices

    def device(self, device_name_or_function: DeviceLike) -> AbstractContextManager[None]:
        """Request a device for the ops recorded inside; without GPUs there is only the CPU."""
        if not eager_devices().has_accelerators or callable(device_name_or_function):
            return nullcontext()
        return self._on_device(device_name_or_function)

    @contextmanager
    def _on_device(self, device: Any) -> Generator[None]:
        if device is not None:
            eager_devices().check(canonical_name(device))
        outer = self._devices
        self._set_device_scopes([*outer, device_function(device)])
        try:
            yield
        finally:
            self._set_device_scopes(outer)

    def _set_device_scopes(self, scopes: list[Any]) -> None:
        """Set the open device scopes, those of the hidden graph too."""
        self._devices = self.trace._devices = scopes
        self.device_name = requested_device(self)
        lazy_trace = self.lazy_trace
        with lazy_trace.lock:
            if not lazy_trace.closed:
                lazy_trace.enter_device_scope(self.device_name)

    def colocate_with(
        self, op: NodeLike | None, ignore_existing: bool = False
    ) -> AbstractContextManager[None]:
        """Request the device of a node, if it has one."""
        if op is None or not eager_devices().has_accelerators:
            return nullcontext()
        return self.device(as_node(op).device)

    # The current lazy trace

    def start_lazy_trace(self) -> LazyTrace:
        """Start a new lazy trace; the previous one runs first if it is closed."""
        previous: LazyTrace = self.lazy_trace
        if previous.closed:
            previous.finish()
        trace = self.trace
        if len(trace.nodes) > _MAX_NODES or trace.generation != generation[0]:
            trace = self.trace = Trace(self)
            trace._devices = self._devices
        self.lazy_trace = lazy_trace = LazyTrace(trace)
        if self._devices:
            lazy_trace.enter_device_scope(self.device_name)
        for tape in self.tapes:
            tape.follow(lazy_trace)
        return lazy_trace

    def current(self) -> LazyTrace:
        """The lazy trace to record in."""
        lazy_trace: LazyTrace = self.lazy_trace
        return self.start_lazy_trace() if lazy_trace.closed else lazy_trace

    def flush(self) -> None:
        """Run all pending ops of this thread."""
        self.lazy_trace.finish()

    def template(self, tensor: EagerTensor) -> Tensor:
        """The tensor of the hidden graph for a tensor, in the current lazy trace."""
        position = self.position(tensor)
        return self.lazy_trace.templates[position]

    def position(self, tensor: EagerTensor) -> int:
        """The position of a tensor in the current lazy trace."""
        return self.current().position(tensor)

    # Subgraphs recorded as one op: gradients, updates, calls

    def record_subgraph(
        self, lazy_trace: LazyTrace, key: Any, make: Callable[[], Sequence[Any]]
    ) -> list[Any] | None:
        """Record the nodes that `make` builds as graph code; cached by the key.

        `make` returns tensors, IndexedSlices or None. Eager tensors that it uses become leaves, so
        the key must contain their positions in the trace. Nothing is cached if the key is None. The
        result is None if another thread has run the trace meanwhile: they have other positions now.
        """
        with lazy_trace.lock:
            if lazy_trace.closed:
                return None
            child = lazy_trace.child(key)
            if child is None:
                child = self._build_child(lazy_trace, key, lambda: _results_outputs(make()))
            outputs = self._advance(lazy_trace, child, user_frame(1))
        if EagerGraph.sync:
            lazy_trace.finish()
        return child.pack(outputs)

    # Random numbers

    @property
    def seed(self) -> int | None:  # pyright: ignore[reportIncompatibleVariableOverride] - setting it starts again
        """The seed of all random ops."""
        return self._seed

    @seed.setter
    def seed(self, value: int | None) -> None:  # pyright: ignore[reportIncompatibleVariableOverride] - as above
        self._seed, self._counter = value, 0
        self._streams = Bounded[tuple[int, int], Stream]("random streams", _MAX_STREAMS)

    @property
    def version(self) -> int:
        """A counter that increases with each read, so that each random op gets another seed."""
        self._counter += 1
        return self._counter

    def _record_random(self, op: Random, arguments: Sequence[Any], name: str | None) -> Any:
        """Record a random op without its seeds in the key: each call continues its stream."""
        attributes = tuple([v for k, v in op.__dict__.items() if k not in ("seed", "seed2")])
        self._requested_seeds = (op.seed, op.seed2)
        return self.record(op, arguments, name, attributes)

    def stream(self, op: Any) -> Stream:
        """The random stream that this call of an op draws from."""
        seed, seed2 = self.__dict__.pop("_requested_seeds", (op.seed, op.seed2))
        if not seed and not seed2:
            return self._unseeded
        if seed2 == self._counter:  # the seed was made for this call
            return Stream(seed, seed2)
        stream = self._streams.get((seed, seed2))
        if stream is None:
            stream = self._streams[seed, seed2] = Stream(seed, seed2)
        return stream

    @contextmanager
    def gradient_override_map(self, op_type_map: Mapping[str, str]) -> Generator[None]:
        """Ops recorded inside use the registered gradient `op_type_map[type]` for their type."""
        fast_path_disabled[0] += 1
        try:
            with super().gradient_override_map(op_type_map):
                yield
        finally:
            fast_path_disabled[0] -= 1

    # Python functions

    def _call_python(self, op: PyFunc, arguments: Sequence[Any], _: str | None) -> list[Any]:
        """Call the function now, after all pending ops."""
        tensors = build.convert_inputs(op, tuple(arguments), op.type_name)[0]
        self.flush()
        values = [cast("EagerTensor", tensor).value() for tensor in tensors]
        node = Node(self, op, op.type_name, (), (), "", {}, user_frame(1), 0)
        try:
            results = op.kernel(Context(node, resources, Cancellation()), values)
        except Exception as error:
            raise_at(error, node)
        finally:
            functions.forget(op.token)
        return [known(np.asarray(r), d) for r, d in zip(results, op.Tout, strict=True)]


def requested_device(graph: Any) -> str:
    """The device that the open device and colocation scopes of a graph request."""
    request: Any = SimpleNamespace(device="")
    Graph._place(graph, request)
    return request.device


def _node_name(name: str | None) -> str | None:
    """The name of a node in the hidden graph, without scopes: only errors show it."""
    last = (name or "").rstrip("/").rpartition("/")[2]
    return last if last[:1].isalnum() else None


def _templates(lazy_trace: LazyTrace, position: int | tuple[int, ...]) -> Any:
    """The tensor of the hidden graph at a position; a list of them for several."""
    if isinstance(position, tuple):
        return [lazy_trace.templates[each] for each in position]
    return lazy_trace.templates[position]


def _list_positions(lazy_trace: LazyTrace, argument: Any) -> tuple[int, ...] | None:
    """The positions of a list of tensors; None for an argument that is not eager yet."""
    if type(argument) is not list:
        return None
    values = cast("list[Any]", argument)
    if any(type(value) is not EagerTensor for value in values):
        return None
    return tuple([lazy_trace.position(value) for value in values])


def _output_packer(node: Node) -> Callable[[list[Any]], Any] | None:
    """Packs the outputs of a node as its op returns them; None for a single tensor."""
    arguments = node.op.parsed.outputs
    if len(arguments) == 1 and not arguments[0].is_list:
        return None
    return partial(build.results, node)


def component_tensors(result: Any) -> list[Tensor]:
    """The tensors of a result: a tensor, IndexedSlices or None."""
    if result is None:
        return []
    return result.components() if isinstance(result, IndexedSlices) else [result]


def _results_outputs(results: Sequence[Any]) -> tuple[list[Tensor], Any]:
    """The tensors of results, and a function that packs others in their structure."""
    outputs = [tensor for result in results for tensor in component_tensors(result)]
    if all(isinstance(result, Tensor) for result in results):
        return outputs, list
    layout = [(len(component_tensors(r)), isinstance(r, IndexedSlices)) for r in results]

    def pack(tensors: list[Any]) -> list[Any]:
        rest = iter(tensors)
        packed: list[Any] = []
        for count, is_slices in layout:
            parts = [next(rest) for _ in range(count)]
            packed.append(IndexedSlices(*parts) if is_slices else parts[0] if parts else None)
        return packed

    return outputs, pack


_SPECIAL_RECORDERS = (
    (Const, EagerGraph._constant),
    (Random, EagerGraph._record_random),
    (PyFunc, EagerGraph._call_python),
    (Placeholder, EagerGraph._reject_placeholder),
)


class _RecorderTable(dict[type[Op], Callable[..., Any]]):
    """The method that records ops of a class."""

    def __missing__(self, op: type[Op]) -> Callable[..., Any]:
        is_named = not op.parsed.inputs and op.stateful and "shared_name" in op.fields
        general = EagerGraph._record_resource if is_named else EagerGraph.record
        special = (recorder for kind, recorder in _SPECIAL_RECORDERS if issubclass(op, kind))
        self[op] = next(special, general)
        return self[op]


_recorders = _RecorderTable()

EAGER = EagerGraph()
eager_graph.append(EAGER)


def apply(op: Op, arguments: tuple[Any, ...], name: str | None) -> Any:
    """Record an op in eager code; in a graph add a node, to which eager tensors are constants."""
    if get_default_graph() is EAGER:
        return _recorders[type(op)](EAGER, op, arguments, name)
    return build.apply(op, arguments, name)


def _leaves(arguments: Iterable[Any]) -> Iterator[Any]:
    """The arguments of an op, and those in lists and tuples."""
    for argument in arguments:
        if isinstance(argument, list | tuple):
            yield from _leaves(cast("Iterable[Any]", argument))
        else:
            yield argument


ops.applier[:] = [apply]
atexit.register(EAGER.flush)  # pending ops may have visible effects
