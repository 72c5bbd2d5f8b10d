"""Graphs: nodes by name, the open scopes, and collections.

Scopes (names, devices, control dependencies, colocation, attributes) are stacks that affect only
nodes created while they are open. `thalweg.graph.build` adds nodes; this module knows no op.
"""

from __future__ import annotations

import re
import threading
from collections import defaultdict
from collections.abc import Callable, Collection, Generator, Hashable, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from typing import TYPE_CHECKING, Any, ClassVar, cast

from thalweg.graph import context
from thalweg.graph.device import DeviceFunction, device_function
from thalweg.graph.graphdef.versions import Versions
from thalweg.graph.names import NODE_NAME, Names
from thalweg.graph.node import Node, Tensor, TensorType, as_node, operators
from thalweg.graph.op import Op
from thalweg.graph.origin import MadeAt, user_frame
from thalweg.platform.compat import as_text
from thalweg.platform.described import described
from thalweg.public import public

if TYPE_CHECKING:
    from thalweg import protos
    from thalweg.graph.likes import (
        Collections,
        DeviceLike,
        DTypeLike,
        HoldsTensor,
        NodeLike,
        UserObject,
    )

_SCOPE_NAME = re.compile(r"[A-Za-z0-9_.\-/]*")
_NO_ANNOTATIONS: Mapping[str, Any] = {}


class _ControlScope:
    """One `control_dependencies` block: its control inputs, and the nodes created inside."""

    def __init__(self, nodes: list[Node], has_controls: bool) -> None:
        self.nodes = nodes
        #: Inside a sub-graph, all control inputs may be nodes of outer graphs, not in `nodes`.
        self.has_controls = has_controls
        self.members: set[Node] = set()
        self.reads: dict[Tensor, Tensor] = {}  # a variable's reference -> its value read in here


@public("Graph")
class Graph:
    """A dataflow graph, to which nodes are added until it is finalized.

    New nodes go to the default graph: the one whose `as_default()` block is open, else a global
    one.

    Example:
        >>> graph = tf.Graph()
        >>> with graph.as_default():
        ...     y = tf.add(1, 2, name="y")
        >>> [node.name for node in graph.get_operations()]
        ['y/x', 'y/y', 'y']
        >>> with tf.Session(graph=graph) as session:
        ...     session.run("y:0")
        np.int32(3)
    """

    is_eager: ClassVar[bool] = False  # whether its ops run when they are called

    def __init__(self) -> None:
        self._lock = threading.RLock()
        self._nodes: dict[str, Node] = {}
        self.nodes: list[Node] = []  # in order of creation
        self._names = Names()
        self._scope = ""
        self._devices: list[DeviceFunction | None] = []
        self._controls: list[_ControlScope] = []
        self._colocation: list[Node] = []
        self._annotations: dict[str, Any] = {}
        self._gradient_overrides: dict[str, str] = {}
        self._collections: dict[Any, list[Any]] = {}
        self._line: MadeAt | None = None
        self._finalized = False
        self._unfeedable: set[Tensor] = set()
        self._unfetchable: set[Node] = set()
        self._consumers: tuple[int, dict[Tensor | Node, list[Node]]] = (0, {})
        self.container_name = ""
        self.seed: int | None = None
        self.graph_def_versions = Versions()

    def __repr__(self) -> str:
        return described(self, nodes=len(self.nodes), finalized=self._finalized or None)

    # Nodes

    @property
    def version(self) -> int:
        """A number that increases with every node."""
        return len(self.nodes)

    def get_operations(self) -> list[Node]:
        """The nodes in order of creation, as a new list."""
        return list(self.nodes)

    def add(
        self,
        op: Op,
        inputs: tuple[Tensor, ...],
        types: Sequence[TensorType],
        name: str,
        annotations: Mapping[str, Any] | None = None,
        made_at: MadeAt | None = None,
    ) -> Node:
        """Create a node inside the open scopes, from inputs that the caller has checked."""
        if self._finalized:
            raise RuntimeError(
                f"Graph is finalized and cannot be modified: no {op.type_name} can be added. "
                "Build the whole graph before finalize() or before the training session starts."
            )
        controls = self._control_inputs(inputs) if self._controls else ()
        merged = self._merge_annotations(annotations)
        line = made_at or self._line or user_frame()
        return self._add(op, inputs, controls, types, name, merged, line)

    def copied(
        self, node: Node, inputs: tuple[Tensor, ...], controls: tuple[Node, ...], name: str
    ) -> Node:
        """A copy of a node of another graph, with its annotations, device and origin."""
        types = [(tensor.dtype, tensor.shape) for tensor in node.outputs]
        merged = {**dict.fromkeys(self._control_inputs(inputs)), **dict.fromkeys(controls)}
        kept = node.annotations, node.made_at, node.device
        return self._add(node.op, inputs, tuple(merged), types, name, *kept)

    def _add(
        self,
        op: Op,
        inputs: tuple[Tensor, ...],
        controls: tuple[Node, ...],
        types: Sequence[TensorType],
        name: str,
        annotations: Mapping[str, Any],
        made_at: MadeAt,
        device: str = "",
    ) -> Node:
        name = as_text(name)
        with self._lock:
            full_name = name[:-1] if name.endswith("/") else self.unique_name(name)
            index = len(self.nodes)
            node = Node(self, op, full_name, inputs, controls, device, annotations, made_at, index)
            if len(types) == 1:  # the fast path for most nodes
                node.outputs = (Tensor(node, 0, *types[0]),)
            else:
                node.outputs = tuple([Tensor(node, n, *pair) for n, pair in enumerate(types)])
            if self._devices or self._colocation:
                self._place(node)
            self._nodes[full_name] = node
            self._names.add(full_name)
            self.nodes.append(node)
        for scope in self._controls:
            scope.members.add(node)
        return node

    def _merge_annotations(self, own: Mapping[str, Any] | None) -> Mapping[str, Any]:
        """The annotations of a new node: its own over those of the open scopes."""
        if not (own or self._annotations or self._colocation):
            return _NO_ANNOTATIONS
        annotations = {**self._annotations, **(own or {})}
        if self._colocation:
            groups = {g for node in self._colocation for g in node.colocation_groups()}
            # A colocated node is in its peer's group, whatever group an attribute scope says.
            annotations["_class"] = sorted(groups | set((own or {}).get("_class", ())))
        return {name: value for name, value in annotations.items() if value is not None}

    def _place(self, node: Node) -> None:
        """Apply the device scopes; a colocated node takes its peer's device."""
        for choose in self._device_functions():
            node.device = choose(node)
        for peer in self._colocation:
            node.device = peer.device

    def _apply_device_functions(self, op: Any) -> None:
        """Apply the device scopes to what libraries have in place of a node: it has `device`, which
        only `_set_device` sets."""
        for choose in self._device_functions():
            op._set_device(choose(op))

    def _device_functions(self) -> Generator[DeviceFunction]:
        """The open device scopes, innermost first, inside one that ignores the outer ones."""
        for choose in reversed(self._devices):
            if choose is None:
                return
            yield choose

    def _control_inputs(self, inputs: tuple[Tensor, ...]) -> tuple[Node, ...]:
        """The open control dependencies, less those that an input already has."""
        nodes: dict[Node, None] = {}
        for scope in self._controls:
            if not any(tensor.op in scope.members for tensor in inputs):
                nodes.update(dict.fromkeys(scope.nodes))
        return tuple(nodes)

    def reconnect(self, node: Node, inputs: tuple[Tensor, ...]) -> None:
        """Replace the inputs of a node; they may have been created after it."""
        self._check_not_finalized()
        with self._lock:
            node.inputs = inputs
            self._consumers = (0, {})

    def move_before(self, node: Node, other: Node) -> None:
        """Move a node before one that was created earlier, in the order of creation."""
        with self._lock:
            self.nodes.remove(node)
            first = other.index
            self.nodes.insert(first, node)
            for index, moved in enumerate(self.nodes[first:], first):
                moved.index = index
            self._consumers = (0, {})

    def consumers(self, source: Tensor | Node) -> list[Node]:
        """The nodes that have a tensor as an input, or a node as a control input."""
        indexed, consumers = self._consumers
        if indexed != len(self.nodes):
            consumers = defaultdict(list, consumers)
            for node in self.nodes[indexed:]:
                for used in dict.fromkeys((*node.inputs, *node.controls)):
                    consumers[used].append(node)
            self._consumers = (len(self.nodes), consumers)
        return list(consumers.get(source, ()))

    # Names

    def unique_name(self, name: str, mark_as_used: bool = True) -> str:
        """`name` inside the current scope, with a suffix `_1`, `_2`, … if it is taken in any case.

        With `mark_as_used` the result is taken from now on.
        """
        return self._names.unique(f"{self._scope}/{name}" if self._scope else name, mark_as_used)

    def imported_names(self, names: Collection[str]) -> dict[str, str]:
        """New names in the current scope for the nodes of a GraphDef."""
        return self._names.imported(f"{self._scope}/" if self._scope else "", names)

    @contextmanager
    def name_scope(self, name: str | None) -> Generator[str]:
        """Prefix new names. `"scope/"` re-enters that scope; None or "" goes to the root."""
        outer = self.enter_scope(name)
        try:
            yield f"{self._scope}/" if self._scope else ""
        finally:
            self.leave_scope(outer)

    def enter_scope(self, name: str | None) -> str:
        """Open a name scope; returns the outer one, for `leave_scope`."""
        outer = self._scope
        if not name:
            self._scope = ""
        elif not isinstance(cast(Any, name), str):
            raise TypeError(f"The name of a scope must be a string, not {name!r}")
        elif name[-1] == "/":
            self._scope = name[:-1]
        else:
            if not _SCOPE_NAME.fullmatch(name) or not (outer or NODE_NAME.fullmatch(name)):
                raise ValueError(f"'{name}' is not a valid scope name")
            self._scope = self.unique_name(name)
        return outer

    def leave_scope(self, outer: str) -> None:
        """Restore the scope that `enter_scope` returned."""
        self._scope = outer

    def get_name_scope(self) -> str:
        """The current name scope."""
        return self._scope

    # Other scopes

    @contextmanager
    def device(self, device_name_or_function: DeviceLike) -> Generator[None]:
        """Request a device for new nodes: a name, a DeviceSpec, a function of a node, or None."""
        with self._override(_devices=[*self._devices, device_function(device_name_or_function)]):
            yield

    @contextmanager
    def control_dependencies(self, control_inputs: Iterable[Any] | None) -> Generator[None]:
        """New nodes run after `control_inputs`; None drops the outer dependencies."""
        values: list[Any] = []  # a composite such as a SparseTensor stands for its tensors
        for value in () if control_inputs is None else control_inputs:
            values += value.components() if hasattr(value, "components") else [value]
        outer = [] if control_inputs is None else self._controls
        scope = _ControlScope(self._graph_nodes(values), bool(values))
        with self._override(_controls=[*outer, scope]):
            yield

    def reads_here(self) -> dict[Tensor, Tensor] | None:
        """The reads of variables in the innermost control scope, by reference; None if no control
        dependency is open."""
        return self._controls[-1].reads if any(s.has_controls for s in self._controls) else None

    @contextmanager
    def without_scopes(self) -> Generator[None]:
        """New nodes have no control inputs, no colocation and no device request."""
        with self._override(_devices=[], _colocation=[]), self.control_dependencies(None):
            yield

    @contextmanager
    def _override(self, **state: Any) -> Generator[None]:
        """Set attributes of the graph inside the block."""
        saved = [(name, getattr(self, name)) for name in state]
        for name, value in state.items():
            setattr(self, name, value)
        try:
            yield
        finally:
            for name, value in saved:
                setattr(self, name, value)

    def _graph_nodes(self, values: Iterable[Any]) -> list[Node]:
        """Control inputs as nodes of this graph."""
        return list(dict.fromkeys(as_node(self.as_graph_element(value)) for value in values))

    @contextmanager
    def colocate_with(self, op: NodeLike | None, ignore_existing: bool = False) -> Generator[None]:
        """New nodes are placed on the device of `op`."""
        devices = self._devices if op is None else []
        outer = [] if ignore_existing or op is None else self._colocation
        peers = outer if op is None else [*outer, as_node(op)]
        with self._override(_devices=devices, _colocation=peers):
            yield

    @contextmanager
    def attr_scope(self, annotations: Mapping[str, Any]) -> Generator[None]:
        """Attach annotations to new nodes; None removes an outer one."""
        with self._override(_annotations={**self._annotations, **annotations}):
            yield

    @contextmanager
    def gradient_override_map(self, op_type_map: Mapping[str, str]) -> Generator[None]:
        """New nodes use the registered gradient `op_type_map[type]` for their op type."""
        with self._override(_gradient_overrides={**self._gradient_overrides, **op_type_map}):
            yield

    def gradient_override(self, type_name: str) -> str | None:
        """The registered gradient that new nodes of this type use instead of the op's own."""
        return self._gradient_overrides.get(type_name)

    def at_line(self, line: MadeAt | None) -> AbstractContextManager[None]:
        """New nodes have this line of the user's as their origin; None: each its own."""
        return self._override(_line=line)

    @contextmanager
    def container(self, container_name: str) -> Generator[str]:
        """New stateful nodes keep their state in this container."""
        with self._override(container_name=container_name):
            yield container_name

    # Collections

    def add_to_collection(self, name: Hashable, value: UserObject) -> None:
        """Append to a named list."""
        self._check_not_finalized()
        self._collections.setdefault(name, []).append(value)

    def add_to_collections(self, names: Collections, value: UserObject) -> None:
        """Append to several named lists, once each."""
        single = isinstance(names, str | bytes)
        for name in {names} if single else dict.fromkeys(cast("Iterable[Any]", names)):
            self.add_to_collection(name, value)

    def get_collection_ref(self, name: Hashable) -> list[Any]:
        """The named list itself: changes to it are changes to the graph."""
        return self._collections.setdefault(name, [])

    def get_collection(self, name: Hashable, scope: str | None = None) -> list[Any]:
        """A copy of the named list, or its items whose name matches the regex `scope`."""
        items = self._collections.get(name, [])
        if scope is None:
            return list(items)
        match = re.compile(scope).match
        return [item for item in items if hasattr(item, "name") and match(item.name)]

    def get_all_collection_keys(self) -> list[Any]:
        """The names of all non-empty collections."""
        return [key for key, items in self._collections.items() if items]

    def clear_collection(self, name: Hashable) -> None:
        """Empty a collection."""
        self._check_not_finalized()
        self._collections.pop(name, None)

    @property
    def collections(self) -> list[str]:
        """The names of all collections."""
        return list(self._collections)

    # Looking things up

    def as_graph_element(
        self,
        obj: Tensor | Node | HoldsTensor | str,
        allow_tensor: bool = True,
        allow_operation: bool = True,
    ) -> Any:
        """The tensor or node of this graph that `obj` is, that it names, or that it converts to."""
        if not (allow_tensor or allow_operation):
            raise ValueError("allow_tensor and allow_operation can't both be False.")
        kinds = " or ".join(["Tensor"] * allow_tensor + ["Operation"] * allow_operation)
        convert: Callable[[], Any] | None = getattr(obj, "_as_graph_element", None)
        if convert is not None:
            obj = convert()
        if isinstance(obj, bytes):
            obj = obj.decode()
        if isinstance(obj, str):
            return self._by_name(obj, allow_tensor, allow_operation)
        if isinstance(obj, Tensor) and allow_tensor:
            is_element = self.sees(obj.graph)
        elif isinstance(obj, Node) and allow_operation:
            is_element = obj.graph is self
        else:
            raise TypeError(f"Can not convert a {type(obj).__name__} into a {kinds}.")
        if not is_element:
            raise ValueError(f"{kinds} {obj!r} is not an element of this graph.")
        return obj

    def _by_name(self, name: str, allow_tensor: bool, allow_operation: bool) -> Any:
        if ":" in name:
            if not allow_tensor:
                raise ValueError(f"Name {name!r} appears to refer to a Tensor, not an Operation.")
            return self._tensor_by_name(name)
        if not allow_operation:
            hint = "is" if name not in self._nodes else "names an Operation, which is"
            raise ValueError(
                f"The name {name!r} {hint} not a Tensor name: those are of the form "
                f"'<op_name>:<output_index>'."
            )
        if name not in self._nodes:
            raise KeyError(f"The name {name!r} refers to an Operation not in the graph.")
        return self._nodes[name]

    def _tensor_by_name(self, name: str) -> Tensor:
        node_name, _, index = name.partition(":")
        if not index.isdigit():
            raise ValueError(
                f"The name {name!r} looks like a Tensor name, but is not of the form "
                "'<op_name>:<output_index>'."
            )
        node = self._nodes.get(node_name)
        if node is None:
            raise KeyError(
                f"The name {name!r} refers to a Tensor which does not exist. The operation, "
                f"{node_name!r}, does not exist in the graph."
            )
        if int(index) >= len(node.outputs):
            raise KeyError(
                f"The name {name!r} refers to a Tensor which does not exist: the operation "
                f"{node_name!r} has only {len(node.outputs)} outputs."
            )
        return node.outputs[int(index)]

    def get_operation_by_name(self, name: str) -> Node:
        """The node with a name.

        Args:
            name: such as "layer/add".

        Raises:
            KeyError: where no node has it.
        """
        if not isinstance(cast(Any, name), str):
            raise TypeError(f"Operation names are strings (or similar), not {type(name).__name__}.")
        return self.as_graph_element(name, allow_tensor=False)

    def get_tensor_by_name(self, name: str) -> Tensor:
        """The tensor with a name.

        Args:
            name: the name of the node, a colon and the index of the output, such as "layer/add:0".

        Raises:
            KeyError: where no tensor has it.
        """
        if not isinstance(cast(Any, name), str):
            raise TypeError(f"Tensor names are strings (or similar), not {type(name).__name__}.")
        return self.as_graph_element(name, allow_operation=False)

    # Outer graphs

    def sees(self, graph: Graph) -> bool:
        """Whether nodes of this graph can use tensors of another graph."""
        return graph is self

    @property
    def outside_control_flow(self) -> Graph:
        """The innermost graph around this one that is no part of a conditional or loop."""
        return self

    @contextmanager
    def with_scopes_of(self, inner: Graph) -> Generator[None]:
        """Make this the default graph. New nodes get the name scope and devices of an inner graph,
        and no control inputs."""
        scopes = {"_scope": inner._scope, "_devices": inner._devices}
        with self.as_default(), self._override(**scopes), self.control_dependencies(None):
            yield

    def capture(self, tensor: Tensor) -> Tensor:
        """The tensor of this graph with the value of a tensor; a ValueError if there is none."""
        if tensor.op.graph is self:
            return tensor
        raise ValueError(
            f"{tensor!r} (made at {tensor.op.origin}) must be from the same graph as the other "
            "inputs, or from one around it. Build both under one `with graph.as_default()`"
        )

    def outside(self, inner: Tensor) -> Tensor | None:
        """The tensor of the outer graph that `inner` captures, if it is a capture."""
        return None

    # Permissions of sessions, export and finalization

    def prevent_feeding(self, tensor: Tensor) -> None:
        """Make a tensor unfeedable."""
        self._unfeedable.add(tensor)

    def is_feedable(self, tensor: Tensor) -> bool:
        """Whether a session may feed this tensor."""
        return tensor not in self._unfeedable

    def prevent_fetching(self, node: Node) -> None:
        """Make a node unfetchable."""
        self._unfetchable.add(node)

    def is_fetchable(self, value: Tensor | Node) -> bool:
        """Whether a session may fetch this tensor or node."""
        return as_node(value) not in self._unfetchable

    def as_graph_def(
        self, from_version: int | None = None, add_shapes: bool = False
    ) -> protos.GraphDef:
        """The graph as a protocol buffer.

        Args:
            from_version: only the nodes that were added since the graph had this `version`.
            add_shapes: also write static shapes.

        Returns:
            A `tf.GraphDef`.
        """
        return operators["graph_def"](self, from_version, add_shapes)

    def create_op(
        self,
        op_type: str,
        inputs: Sequence[Any],
        dtypes: Iterable[DTypeLike] | None = None,
        input_types: Iterable[DTypeLike] | None = None,
        name: str | None = None,
        attrs: Mapping[str, Any] | None = None,
        op_def: protos.OpDef | None = None,
        compute_shapes: bool = True,
        compute_device: bool = True,
    ) -> Node:
        """Add a node, given the name of its op, which determines dtypes, shapes and device."""
        return operators["create_op"](self, op_type, inputs, name, attrs)

    def finalize(self) -> None:
        """Forbid new nodes."""
        self._finalized = True

    @property
    def finalized(self) -> bool:
        """Whether the graph can no longer change."""
        return self._finalized

    def _check_not_finalized(self) -> None:
        if self._finalized:
            raise RuntimeError("Graph is finalized and cannot be modified.")

    def as_default(self) -> AbstractContextManager[Graph]:
        """Make this the default graph of this thread inside a `with` block."""
        return graphs.pushed(self)


graphs: context.ThreadStack[Graph] = context.ThreadStack()
#: The default graph while none is pushed; None until it is first requested.
global_graph: list[Graph | None] = [None]
#: The function that creates it.
default_graph: list[Callable[[], Graph]] = [Graph]


@public("get_default_graph")
def get_default_graph() -> Graph:
    """The graph to which this thread adds new nodes.

    Returns:
        The `tf.Graph` whose `as_default()` block is innermost, else the global one.

    Example:
        >>> x = tf.constant(1.0)
        >>> tf.get_default_graph() is x.graph
        True
    """
    current = (graphs.items or global_graph)[-1]
    if current is None:
        current = global_graph[0] = default_graph[0]()
    return current


@public("reset_default_graph")
def reset_default_graph() -> None:
    """Discard the global default graph; the next node starts a new one.

    Existing tensors, variables and sessions belong to the old graph and cannot be combined with
    those of the new one.

    Raises:
        AssertionError: inside the `as_default()` block of a graph.

    Example:
        >>> x = tf.constant(1.0)
        >>> tf.reset_default_graph()
        >>> len(tf.get_default_graph().get_operations())
        0
    """
    if graphs.items:
        raise AssertionError("Do not use tf.reset_default_graph() inside `with graph.as_default()`")
    forget_default_graph()


def has_default_nodes() -> bool:
    """Whether the global default graph is in use."""
    graph = global_graph[0]
    return graph is not None and not graph.is_eager and bool(graph.nodes)


def forget_default_graph() -> None:
    """Discard the global default graph; the next request creates a new one."""
    global_graph[0] = None
