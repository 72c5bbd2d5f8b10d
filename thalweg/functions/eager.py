"""The eager graph: where ops go that run as they are written.

To the library it is a graph like others. An op that is applied while it is the current one is
recorded (`lazy_trace`): nodes that were made before are found again by their structure, so that
recording costs microseconds; new ones are made exactly as graph code makes them, errors included.
"""

# Eager tensors and lazy traces are one mechanism in several files:
# pyright: reportPrivateUsage=false

from __future__ import annotations

import atexit
import threading
from collections.abc import Callable, Generator, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from copy import copy
from sys import intern
from types import SimpleNamespace
from typing import Any, ClassVar, NoReturn, cast

import numpy as np
from numpy.typing import NDArray

from thalweg.autodiff import registry
from thalweg.autodiff.custom import CustomGradient
from thalweg.functions.bare_graph import BareGraph
from thalweg.functions.devices import eager_devices, generation, resources
from thalweg.functions.lazy_trace import LazyTrace, fast_path_disabled
from thalweg.functions.tensors import EagerTensor, eager_graph, known, literal, value_reads
from thalweg.functions.trace import NO_LEAF, Held, Trace, TraceNode, consulted
from thalweg.graph import build
from thalweg.graph import op as ops
from thalweg.graph.composite import IndexedSlices
from thalweg.graph.device import canonical_name, device_function
from thalweg.graph.graph import Graph, get_default_graph, graphs
from thalweg.graph.likes import DeviceLike, NodeLike
from thalweg.graph.node import Node, Tensor, as_node
from thalweg.graph.op import Op
from thalweg.graph.origin import MadeAt, user_frame
from thalweg.graph.subgraph import root
from thalweg.lower.fingerprint import Unnamed, text_of
from thalweg.ops.core.basic import Const, Placeholder
from thalweg.ops.core.context import VariableCell
from thalweg.ops.core.python_call import PyFunc, functions
from thalweg.ops.random.philox import Stream
from thalweg.ops.random.random import Random
from thalweg.runtime.cancellation import Cancellation
from thalweg.runtime.kernels import Context, raise_at

Array = NDArray[Any]

_MAX_RECORDED = 2_000  # pending nodes of a lazy trace
_LONG = 250  # nodes after which work runs where the loop that records it begins again
_MAX_NODES = 20_000  # of a tree, which is then rebuilt
_MAX_STREAMS = 1_000

#: Marks nodes that stand for work which ran: they are differentiated, never run.
PROXY = "_proxy"


class EagerGraph(threading.local, BareGraph):
    """The graph of eager code. What it knows of a thread's work, only that thread sees."""

    is_eager: ClassVar[bool] = True
    sync: ClassVar[bool] = False  # run op by op

    def __init__(self) -> None:
        super().__init__()
        self.trace = Trace(self)
        self.lazy_trace = LazyTrace(self.trace)
        self.tapes: list[Any] = []
        self.device_name = ""  # what the open device scopes ask for
        self._counter = 0
        self._seed: int | None = None
        self._unseeded = Stream(0, 0)
        self._streams: dict[tuple[int, int], Stream] = {}

    # Recording

    def record(
        self,
        op: Op,
        attributes: Iterable[Any],
        arguments: Sequence[Any],
        name: str | None,
        depth: int = 1,
    ) -> Any:
        """Apply an op; its outputs as a user wants them. The user's frame is `depth` or more up."""
        lazy_trace = self.current()
        key: Any = [type(op), *attributes]
        for argument in arguments:
            position = self._entered(lazy_trace, argument)
            if position is None:
                return self._convert(op, attributes, arguments, name)
            key.append(position)
        with lazy_trace.lock:
            if lazy_trace.closed:  # another thread wanted a value
                return self.record(op, attributes, arguments, name)
            child = self._child(lazy_trace, op, key, arguments, name)
            origin = user_frame(depth)
            made = lazy_trace.advance(child, origin)
            if child.is_special:
                self._follow_up(lazy_trace, child)
        self.run_if_long(lazy_trace, child, origin)
        if child.result is None:
            return made[0]
        return child.result(made)

    def _entered(self, lazy_trace: LazyTrace, argument: Any) -> Any:
        """The number of an argument from outside, or numbers; None if it is no tensor yet."""
        if type(argument) is EagerTensor:
            return self.enter(lazy_trace, argument)
        if type(argument) is not list:
            return None
        values = cast("list[Any]", argument)
        if any(type(value) is not EagerTensor for value in values):
            return None
        return tuple([self.enter(lazy_trace, value) for value in values])

    def _child(
        self,
        lazy_trace: LazyTrace,
        op: Op,
        parts: list[Any],
        arguments: Sequence[Any],
        name: str | None,
    ) -> TraceNode:
        """Where an op leads: to a trace node that is known, or to a new one."""
        if self._gradient_overrides:
            parts.append(self._override(op))
        key: Any = tuple(parts)
        try:
            child = lazy_trace.child(key)
        except TypeError:  # an attribute is a list or the like
            key = _as_text(key)
            child = lazy_trace.child(key)
        return self._new(lazy_trace, op, arguments, name, key) if child is None else child

    def _override(self, op: Op) -> str | None:
        """Which gradient of a user's own an op has: functions' own are all the same here."""
        override = self.gradient_override(op.type_name)
        return "" if override is not None and isinstance(op, CustomGradient) else override

    def _follow_up(self, lazy_trace: LazyTrace, child: TraceNode) -> None:
        """What only some ops need."""
        for node in child.randoms:
            lazy_trace.streams.append(self._stream(node.op))
        if child.writes:
            lazy_trace.reads.clear()
        for node in child.nodes:
            if isinstance(node.op, CustomGradient):
                self._renew(node)

    def _renew(self, node: Node) -> None:
        """Give a node that was found the gradient function of this call."""
        name = self.gradient_override(node.type)
        before = node.annotations.get("_gradient_op_type")
        if name is not None and name != before:
            node.annotations = {**node.annotations, "_gradient_op_type": name}
            registry.forget(str(before))

    def enter(self, lazy_trace: LazyTrace, tensor: EagerTensor) -> int:
        """The number of a tensor in a lazy trace: other threads' work on it comes first."""
        other: LazyTrace | None = tensor._lazy_trace
        if other is None or other is lazy_trace or other.done:
            return lazy_trace.position(tensor)
        if tensor._array is None or type(tensor._array) is VariableCell:
            other.finish()
        return lazy_trace.position(tensor)

    def run_if_long(self, lazy_trace: LazyTrace, child: TraceNode, origin: MadeAt) -> None:
        """Run work whose values nobody reads, where its loop begins again: the next span is then
        like this one."""
        if child.size < _LONG and not EagerGraph.sync:
            return
        if EagerGraph.sync or child.size >= _MAX_RECORDED or origin == lazy_trace.line(child.first):
            lazy_trace.finish()

    def _new(
        self, lazy_trace: LazyTrace, op: Op, arguments: Sequence[Any], name: str | None, key: Any
    ) -> TraceNode:
        """Make the node of an op that was not recorded here before."""
        start = len(lazy_trace.trace.nodes)
        with graphs.pushed(lazy_trace.trace), consulted.pushed(set()) as leaves:
            given = tuple(_templates(lazy_trace, argument) for argument in arguments)
            node = build.add_node(lazy_trace.trace, op, given, _node_name(name))
        nodes = tuple(lazy_trace.trace.nodes[start:])
        child = TraceNode(lazy_trace.end, nodes, node.outputs, NO_LEAF)
        child.result = _result(node)
        child.is_plain = (
            child.result is None
            and child.size < _LONG
            and not (child.is_special or child.has_effects)
        )
        lazy_trace.keep(key, child, leaves)
        return child

    def _convert(
        self, op: Op, attributes: Iterable[Any], arguments: Sequence[Any], name: str | None
    ) -> Any:
        """Record an op on values that are no tensors yet; symbolic ones take it to their graph."""
        symbolic = _symbolic(arguments)
        if symbolic is not None and self._own(symbolic) is None:
            with symbolic.graph.as_default():
                return apply(op, tuple(arguments), name)
        arguments = [self._eager(argument) for argument in arguments]
        grouped = build.convert_inputs(op, tuple(arguments), name or op.type_name)[1]
        grouped = [self._eager(argument) for argument in grouped]
        return self.record(op, attributes, grouped, name)

    def _eager(self, value: Any) -> Any:
        """An argument whose nodes of the hidden graph are eager tensors again."""
        if type(value) is Tensor:
            own = self._own(value)
            return value if own is None else own
        if isinstance(value, list | tuple):
            return [self._eager(item) for item in cast("Sequence[Any]", value)]
        return value

    def _own(self, template: Tensor) -> EagerTensor | None:
        """The eager tensor that a node's output stands for in what is recorded now."""
        lazy_trace = self.lazy_trace
        position = next((i for i, t in enumerate(lazy_trace.templates) if t is template), None)
        for tensor in (*lazy_trace.entered, *lazy_trace.tensors):
            if tensor._lazy_trace is lazy_trace and tensor._position == position:
                return tensor
        return None

    def node_of(self, tensor: EagerTensor) -> Node:
        """A node that stands for where a tensor came from: its op and inputs while it is pending,
        then only its value."""
        lazy_trace = tensor._lazy_trace
        if tensor._array is not None or lazy_trace is not self.lazy_trace:
            return self._holder(tensor)
        made: Node = lazy_trace.templates[tensor._position].op
        inputs = [self._own(template) for template in made.inputs]
        if any(found is None for found in inputs):
            return self._holder(tensor)
        node = copy(made)
        node.graph, node.device, node.controls = self, "", ()
        node.inputs = tuple(cast("list[Tensor]", inputs))
        own = [self._own(template) for template in made.outputs]
        pairs = zip(own, made.outputs, strict=True)
        node.outputs = tuple(template if mine is None else mine for mine, template in pairs)
        return node

    def _holder(self, tensor: EagerTensor) -> Node:
        held, shape = tensor._array, tensor._shape
        if tensor._literal is not None:
            op: Op = Const(value=held, dtype=tensor.dtype)
        else:
            value_reads[0] += 1
            op = Held(dtype=tensor.dtype, given_shape=shape, value=held)
        node = Node(self, op, "EagerTensor", (), (), "", {}, *user_frame(1), 0)
        node.outputs = (tensor,)
        return node

    def inner(self) -> Graph:
        """The graph that is being built in eager code, or this one."""
        items = graphs.items
        if not items or items[-1] is self:
            return self
        return items[-1] if root(items[-1]) is self else self

    # Ops that are more than work

    @staticmethod
    def recorder(op: type[Op]) -> Callable[..., Any] | None:
        """What records an op of a class; None where that is nothing particular."""
        if issubclass(op, Const):
            return EagerGraph._constant
        if issubclass(op, Random):
            return EagerGraph._record_random
        if issubclass(op, PyFunc):
            return EagerGraph._call_python
        if issubclass(op, Placeholder):
            return EagerGraph._refuse
        is_named = not op.parsed.inputs and op.stateful and "shared_name" in op.fields
        return EagerGraph._record_named if is_named else None

    def _refuse(self, *_: Any) -> NoReturn:
        raise RuntimeError(
            "tf.placeholder() is not compatible with eager execution: use the value itself, "
            "or build a graph inside `with tf.Graph().as_default()`."
        )

    def _record_named(self, op: Op, arguments: Sequence[Any], name: str | None) -> Any:
        """Record what makes something that has a name."""
        if not op.__dict__["shared_name"]:
            self._counter += 1
            named = f"eager_{threading.get_ident()}_{self._counter}_{id(op)}"
            op = type(op)(**{**op.attributes, "shared_name": named})
        made = self.record(op, op.__dict__.values(), arguments, name)
        self.lazy_trace.finish()
        return made

    def _constant(self, op: Const, *_: Any) -> EagerTensor:
        """A value, not work."""
        made = literal(op.value, op.dtype)
        devices = eager_devices()
        if devices.has_gpus:
            made._device = devices.home(self.device_name, made.dtype, made._shape).name
        return made

    # Devices

    def device(self, device_name_or_function: DeviceLike) -> AbstractContextManager[None]:
        """Ask for a device for what is recorded: without GPUs, everything is in one place."""
        if not eager_devices().has_gpus or callable(device_name_or_function):
            return nullcontext()
        return self._on_device(device_name_or_function)

    @contextmanager
    def _on_device(self, device: Any) -> Generator[None]:
        if device is not None:
            eager_devices().check(canonical_name(device))
        outer = self._devices
        self._scoped([*outer, device_function(device)])
        try:
            yield
        finally:
            self._scoped(outer)

    def _scoped(self, scopes: list[Any]) -> None:
        """Have these device scopes open, for the nodes of the hidden graph too."""
        self._devices = self.trace._devices = scopes
        self.device_name = intern(requested_device(self))  # calls compare identities
        lazy_trace = self.lazy_trace
        with lazy_trace.lock:
            if not lazy_trace.closed:
                lazy_trace.mark(self.device_name)

    def colocate_with(
        self, op: NodeLike | None, ignore_existing: bool = False
    ) -> AbstractContextManager[None]:
        """Ask for the device of a node, where it has one."""
        if op is None or not eager_devices().has_gpus:
            return nullcontext()
        return self.device(as_node(op).device)

    # What comes from the span that is recorded

    def begin(self) -> LazyTrace:
        """Start a new lazy trace."""
        before: LazyTrace = self.lazy_trace
        if before.closed:
            before.finish()
        trace = self.trace
        if len(trace.nodes) > _MAX_NODES or trace.generation != generation[0]:
            trace = self.trace = Trace(self)
            trace._devices = self._devices
        self.lazy_trace = lazy_trace = LazyTrace(trace)
        if self._devices:
            lazy_trace.mark(self.device_name)
        for tape in self.tapes:
            tape.follow(lazy_trace)
        return lazy_trace

    def current(self) -> LazyTrace:
        """The lazy trace that is recorded now."""
        lazy_trace: LazyTrace = self.lazy_trace
        return self.begin() if lazy_trace.closed else lazy_trace

    def flush(self) -> None:
        """Run what was recorded."""
        self.lazy_trace.finish()

    def template(self, tensor: EagerTensor) -> Tensor:
        """What stands for a tensor in the span that is recorded now."""
        position = self.position(tensor)
        return self.lazy_trace.templates[position]

    def position(self, tensor: EagerTensor) -> int:
        """The number of a tensor in the span that is recorded now."""
        lazy_trace = self.lazy_trace
        if tensor._lazy_trace is lazy_trace and not lazy_trace.closed:
            return tensor._position
        lazy_trace = self.current()
        if tensor._array is None and tensor._lazy_trace is not lazy_trace:
            tensor.held()
            lazy_trace = self.current()
        return self.enter(lazy_trace, tensor)

    def captured(self, tensor: Tensor) -> Tensor:
        """What stands for a tensor in nodes that are made in the hidden graph."""
        if type(tensor) is not EagerTensor:
            raise ValueError(f"{tensor!r} is of another graph: eager code cannot know its value.")
        return self.template(tensor)

    # Spans made as a whole: gradients, updates

    def macro(self, key: Any, make: Callable[[], Sequence[Any]]) -> list[Any]:
        """Record nodes that `make` builds as graph code; found again by the key.

        `make` returns tensors (or None); eager tensors that it uses become leaves, so the key must
        name them, or none must be used.
        """
        lazy_trace = self.current()
        with lazy_trace.lock:
            child = lazy_trace.child(key)
            if child is None:
                child = self.built(lazy_trace, key, make)
            made = lazy_trace.advance(child, user_frame(1))
            if child.is_special:
                self._follow_up(lazy_trace, child)
        if EagerGraph.sync:
            lazy_trace.finish()
        return child.result(made)

    def built(
        self, lazy_trace: LazyTrace, key: Any, make: Callable[[], Sequence[Any]]
    ) -> TraceNode:
        """Build nodes in the hidden graph, and keep them under a key."""
        start = len(lazy_trace.trace.nodes)
        before = lazy_trace.end
        with graphs.pushed(lazy_trace.trace), consulted.pushed(set()) as leaves:
            results = make()
        entered = {node for trace_node in lazy_trace.end.path(before) for node in trace_node.nodes}
        made = [node for node in lazy_trace.trace.nodes[start:] if node not in entered]
        nodes = tuple(node for node in made if PROXY not in node.annotations)
        outputs = [tensor for result in results for tensor in parts_of(result)]
        child = TraceNode(lazy_trace.end, nodes, tuple(outputs), NO_LEAF)
        child.result = _layout(results)
        if key is not None and lazy_trace.end is before:
            lazy_trace.keep(key, child, leaves)
        return child

    # Random numbers

    @property
    def seed(self) -> int | None:  # pyright: ignore[reportIncompatibleVariableOverride] - setting it starts again
        """The seed of all random ops."""
        return self._seed

    @seed.setter
    def seed(self, value: int | None) -> None:  # pyright: ignore[reportIncompatibleVariableOverride] - as above
        self._seed, self._counter = value, 0
        self._streams = {}

    @property
    def version(self) -> int:
        """A number that grows whenever it is asked for: each random op has a seed of its own."""
        self._counter += 1
        return self._counter

    def _record_random(self, op: Random, arguments: Sequence[Any], name: str | None) -> Any:
        """Seeds are no part of the program: each call takes the next numbers of its stream."""
        attributes = tuple([v for k, v in op.__dict__.items() if k not in ("seed", "seed2")])
        self._asked = (op.seed, op.seed2)
        return self.record(op, attributes, arguments, name)

    def _stream(self, op: Any) -> Stream:
        seed, seed2 = self.__dict__.pop("_asked", (op.seed, op.seed2))
        if not seed and not seed2:
            return self._unseeded
        if seed2 == self._counter:  # drawn for this call alone
            return Stream(seed, seed2)
        found = self._streams.get((seed, seed2))
        if found is None:
            if len(self._streams) >= _MAX_STREAMS:
                del self._streams[next(iter(self._streams))]
            found = self._streams[seed, seed2] = Stream(seed, seed2)
        return found

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
        """Call a function now, after all that came before it."""
        tensors = build.convert_inputs(op, tuple(arguments), op.type_name)[0]
        self.flush()
        values = [cast("EagerTensor", tensor).value() for tensor in tensors]
        node = Node(self, op, op.type_name, (), (), "", {}, *user_frame(1), 0)
        try:
            results = op.kernel(Context(node, resources, Cancellation()), values)
        except Exception as error:
            raise_at(error, node)
        finally:
            functions.forget(op.token)
        return [known(np.asarray(r), d) for r, d in zip(results, op.Tout, strict=True)]


def requested_device(graph: Any) -> str:
    """What the open device scopes of a graph ask for, and nodes to be beside."""
    request: Any = SimpleNamespace(device="")
    Graph._place(graph, request)
    return request.device


def _node_name(name: str | None) -> str | None:
    """A name for a node in the hidden graph, where there are no scopes: only errors show it."""
    own = (name or "").rstrip("/").rpartition("/")[2]
    return own if own[:1].isalnum() else None


def _as_text(key: Sequence[Any]) -> Any:
    """A key whose attributes cannot be hashed."""
    op, *parts = key
    try:
        return (op, *map(text_of, parts))
    except Unnamed:
        return object()  # nothing is known to be the same


def _templates(lazy_trace: LazyTrace, argument: Any) -> Any:
    """What stands for an argument, or for a list of them."""
    if isinstance(argument, list):
        return [_templates(lazy_trace, part) for part in cast("list[Any]", argument)]
    return lazy_trace.templates[lazy_trace.position(argument)]


def _symbolic(arguments: Sequence[Any]) -> Tensor | None:
    """The first tensor that is of a graph and has no value."""
    for argument in arguments:
        if isinstance(argument, list | tuple):
            found = _symbolic(cast("Sequence[Any]", argument))
            if found is not None:
                return found
        elif isinstance(argument, Tensor) and type(argument) is not EagerTensor:
            return argument
    return None


def _result(node: Node) -> Callable[[list[Any]], Any] | None:
    """How the outputs of a node are given back; None for a single tensor."""
    arguments = node.op.parsed.outputs
    if len(arguments) == 1 and not arguments[0].is_list:
        return None
    if any(argument.is_list for argument in arguments) or not arguments:
        return lambda made: build.results(node, made)
    pack = node.op.result
    return lambda made: pack(*made)


def parts_of(result: Any) -> list[Tensor]:
    """The tensors of a result: of nothing none, of slices their parts."""
    if result is None:
        return []
    return result.components() if isinstance(result, IndexedSlices) else [result]


def _layout(results: Sequence[Any]) -> Callable[[list[Any]], list[Any]]:
    """How tensors are put in the place of those that were built."""
    if all(isinstance(result, Tensor) for result in results):
        return lambda tensors: tensors
    layout = [(len(parts_of(result)), isinstance(result, IndexedSlices)) for result in results]

    def lay_out(tensors: list[Any]) -> list[Any]:
        rest = iter(tensors)
        found: list[Any] = []
        for count, is_slices in layout:
            parts = [next(rest) for _ in range(count)]
            found.append(IndexedSlices(*parts) if is_slices else parts[0] if parts else None)
        return found

    return lay_out


class _Recorders(dict[type[Op], "Callable[..., Any] | None"]):
    """How ops are recorded, of those that were asked for."""

    def __missing__(self, op: type[Op]) -> Callable[..., Any] | None:
        found = self[op] = EagerGraph.recorder(op)
        return found


_recorders = _Recorders()

EAGER = EagerGraph()
eager_graph.append(EAGER)


def apply(op: Op, arguments: tuple[Any, ...], name: str | None) -> Any:
    """Record an op in eager code; elsewhere add a node, to which eager tensors are constants."""
    if get_default_graph() is EAGER:
        return recorded(op, arguments, name, 3)
    return build.apply(op, arguments, name)


def recorded(op: Op, arguments: tuple[Any, ...], name: str | None, depth: int) -> Any:
    """Record an op. What was recorded before, in the same place, takes the fast path."""
    kind = type(op)
    special = _recorders[kind]
    if special is not None:
        return special(EAGER, op, arguments, name)
    lazy_trace: LazyTrace = EAGER.lazy_trace
    if lazy_trace.closed:
        lazy_trace = EAGER.begin()
    attributes = op.__dict__
    key: Any = [kind, *attributes.values()] if attributes else [kind]
    for argument in arguments:
        if type(argument) is not EagerTensor:
            return EAGER.record(op, attributes.values(), arguments, name, depth)
        if argument._lazy_trace is lazy_trace:
            key.append(argument._position)
        else:
            key.append(EAGER.enter(lazy_trace, argument))
    try:
        child = lazy_trace.end.children.get(tuple(key))
    except TypeError:
        child = None
    if type(child) is not TraceNode or not child.is_plain or fast_path_disabled[0]:
        return EAGER.record(op, attributes.values(), arguments, name, depth)
    tensor = lazy_trace.take(child, user_frame(depth))
    if lazy_trace.closed:  # another thread wanted a value meanwhile, perhaps without this one
        return EAGER.record(op, attributes.values(), arguments, name, depth)
    return tensor


ops.applier[:] = [apply]
atexit.register(EAGER.flush)  # what a program recorded last may be seen outside
