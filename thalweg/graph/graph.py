"""A graph: nodes by name, the scopes new nodes are made in, and collections.

Scopes (names, devices, control dependencies, colocation, attributes) are stacks that only affect
nodes made while they are open. Nodes are added by `thalweg.graph.build`; nothing here knows ops.
"""

from __future__ import annotations

import re
import threading
from collections import defaultdict
from collections.abc import Callable, Collection, Generator, Hashable, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from types import CodeType
from typing import TYPE_CHECKING, Any, ClassVar, cast

from thalweg.graph import context
from thalweg.graph.device import DeviceFunction, device_function
from thalweg.graph.dtypes import DType
from thalweg.graph.graphdef.versions import Versions
from thalweg.graph.names import NODE_NAME, Names
from thalweg.graph.node import Node, Tensor, as_node, flatten_nodes, operators
from thalweg.graph.op import Op
from thalweg.graph.origin import MadeAt, user_frame
from thalweg.graph.shapes import TensorShape
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


class _Controls:
    """One `control_dependencies` block: what comes first, and the nodes made inside."""

    def __init__(self, nodes: list[Node]) -> None:
        self.nodes = nodes
        self.has_controls = bool(nodes)
        self.seen: set[Node] = set()
        self.reads: dict[Tensor, Tensor] = {}  # of a variable's reference: its value in here


class _NameScope:
    """`with graph.name_scope(name) as prefix`. A class, since generators cost more per op."""

    __slots__ = ("_graph", "_name", "_outer")

    def __init__(self, graph: Graph, name: str | None) -> None:
        self._graph = graph
        self._name = name
        self._outer = ""

    def __enter__(self) -> str:
        self._outer = self._graph.enter_scope(self._name)
        inner = self._graph.get_name_scope()
        return inner + "/" if inner else ""

    def __exit__(self, *_: object) -> None:
        self._graph.leave_scope(self._outer)


@public("Graph")
class Graph:
    """A dataflow graph under construction, or one that is finalized and only run.

    Nodes go to the default graph: a global one, or the one whose `as_default()` block is open.

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

    is_eager: ClassVar[bool] = False  # its ops run as they are written

    def __init__(self) -> None:
        self._lock = threading.RLock()
        self._nodes: dict[str, Node] = {}
        self._order: list[Node] = []
        self._names = Names()
        self._scope = ""
        self._devices: list[DeviceFunction | None] = []
        self._controls: list[_Controls] = []
        self._colocation: list[Node] = []
        self._annotations: dict[str, Any] = {}
        self._gradient_overrides: dict[str, str] = {}
        self._collections: dict[Any, list[Any]] = {}
        self._line: MadeAt | None = None
        self._finalized = False
        self._unfeedable: set[Tensor] = set()
        self._unfetchable: set[Node] = set()
        self._consumers: tuple[int, dict[Tensor, list[Node]]] = (0, {})
        self.container_name = ""
        self.seed: int | None = None
        self.graph_def_versions = Versions()

    def __repr__(self) -> str:
        finalized = True if self._finalized else None
        return described(self, nodes=len(self._order), finalized=finalized)

    # Nodes

    @property
    def version(self) -> int:
        """A number that grows with every node."""
        return len(self._order)

    @property
    def nodes(self) -> list[Node]:
        """The nodes in the order they were made."""
        return self._order

    def get_operations(self) -> list[Node]:
        """The nodes in the order they were made, as a fresh list."""
        return list(self._order)

    def add(
        self,
        op: Op,
        inputs: tuple[Tensor, ...],
        dtypes: list[DType],
        shapes: list[TensorShape],
        name: str,
        annotations: Mapping[str, Any] | None = None,
        made_at: tuple[CodeType, int] | None = None,
    ) -> Node:
        """Make a node inside the open scopes. The lowest level: inputs are checked already."""
        if self._finalized:
            raise RuntimeError(
                f"Graph is finalized and cannot be modified: no {op.type_name} can be added. "
                "Build the whole graph before finalize() or before the training session starts."
            )
        controls = self._control_inputs(inputs) if self._controls else ()
        annotated = self._annotate(annotations)
        line = made_at or self._line or user_frame()
        return self._add(op, inputs, controls, dtypes, shapes, name, annotated, line)

    def copied(
        self, node: Node, inputs: tuple[Tensor, ...], controls: tuple[Node, ...], name: str
    ) -> Node:
        """A node like one of another graph, for the same device and made at the same line."""
        dtypes = [tensor.dtype for tensor in node.outputs]
        shapes = [tensor.shape for tensor in node.outputs]
        found = {**dict.fromkeys(self._control_inputs(inputs)), **dict.fromkeys(controls)}
        kept = node.annotations, node.made_at, node.device
        return self._add(node.op, inputs, tuple(found), dtypes, shapes, name, *kept)

    def original(self, node: Node) -> Node:
        """The node of the user's graph that a node stands for: itself, unless rewritten."""
        return node

    def _add(
        self,
        op: Op,
        inputs: tuple[Tensor, ...],
        controls: tuple[Node, ...],
        dtypes: list[DType],
        shapes: list[TensorShape],
        name: str,
        annotations: Mapping[str, Any],
        made_at: tuple[CodeType, int],
        device: str = "",
    ) -> Node:
        name = as_text(name)
        with self._lock:
            full_name = name[:-1] if name.endswith("/") else self.unique_name(name)
            place = len(self._order)
            node = Node(self, op, full_name, inputs, controls, device, annotations, *made_at, place)
            if len(dtypes) == 1:  # most nodes; there are many
                node.outputs = (Tensor(node, 0, dtypes[0], shapes[0]),)
            else:
                kinds = zip(dtypes, shapes, strict=True)
                node.outputs = tuple([Tensor(node, n, *kind) for n, kind in enumerate(kinds)])
            if self._devices or self._colocation:
                self._place(node)
            self._nodes[full_name] = node
            self._names.add(full_name)
            self._order.append(node)
        for block in self._controls:
            block.seen.add(node)
        return node

    def _annotate(self, given: Mapping[str, Any] | None) -> Mapping[str, Any]:
        if not (given or self._annotations or self._colocation):
            return _NO_ANNOTATIONS
        annotations = {**self._annotations, **(given or {})}
        if self._colocation:
            groups = {g for node in self._colocation for g in node.colocation_groups()}
            # Beside a peer, a node is in the peer's group whatever group a scope asks for.
            annotations["_class"] = sorted(groups | set((given or {}).get("_class", ())))
        return {name: value for name, value in annotations.items() if value is not None}

    def _place(self, node: Node) -> None:
        """Ask the device scopes, innermost first; a colocated node goes where its peer is."""
        for choose in reversed(self._devices):
            if choose is None:
                break
            node.device = choose(node)
        for peer in self._colocation:
            node.device = peer.device

    def _apply_device_functions(self, op: Any) -> None:
        """Tell an object with `device` and `_set_device` where a node would go that is made now."""
        for choose in reversed(self._devices):
            if choose is None:
                break
            op._set_device(choose(op))

    def _control_inputs(self, inputs: tuple[Tensor, ...]) -> tuple[Node, ...]:
        """The open control dependencies, less those an input already waits for."""
        found: dict[Node, None] = {}
        for controls in self._controls:
            if not any(tensor.op in controls.seen for tensor in inputs):
                found.update(dict.fromkeys(controls.nodes))
        return tuple(found)

    def reconnect(self, node: Node, inputs: tuple[Tensor, ...]) -> None:
        """Give a node other inputs, which may have been made after it."""
        self._check_not_finalized()
        with self._lock:
            node.inputs = inputs
            self._consumers = (0, {})

    def move_before(self, node: Node, other: Node) -> None:
        """Have a node stand before one that was made earlier."""
        with self._lock:
            self._order.remove(node)
            first = other.index
            self._order.insert(first, node)
            for index, each in enumerate(self._order[first:], first):
                each.index = index
            self._consumers = (0, {})

    def consumers(self, tensor: Tensor) -> list[Node]:
        """The nodes that take a tensor."""
        seen, index = self._consumers
        if seen != len(self._order):
            index = defaultdict(list, index)
            for node in self._order[seen:]:
                for source in dict.fromkeys(node.inputs):
                    index[source].append(node)
            self._consumers = (len(self._order), index)
        return list(index.get(tensor, ()))

    # Names

    def unique_name(self, name: str, mark_as_used: bool = True) -> str:
        """`name` inside the current scope, with `_1`, `_2`, … where it is taken, in any case."""
        return self._names.unique(f"{self._scope}/{name}" if self._scope else name, mark_as_used)

    def imported_names(self, names: Collection[str]) -> dict[str, str]:
        """The names that nodes of a GraphDef get in the current scope."""
        return self._names.imported(f"{self._scope}/" if self._scope else "", names)

    def name_scope(self, name: str | None) -> AbstractContextManager[str]:
        """Prefix new names. `"scope/"` re-enters a scope exactly; None or "" goes to the root."""
        return _NameScope(self, name)

    def enter_scope(self, name: str | None) -> str:
        """Open a name scope without a `with`; returns the outer one, for `leave_scope`."""
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
        """Go back to the scope that `enter_scope` returned."""
        self._scope = outer

    def get_name_scope(self) -> str:
        """The current name scope."""
        return self._scope

    # Other scopes

    @contextmanager
    def device(self, device_name_or_function: DeviceLike) -> Generator[None]:
        """Ask for a device for new nodes: a string, a DeviceSpec, a function of a node, or None."""
        with self._having(_devices=[*self._devices, device_function(device_name_or_function)]):
            yield

    @contextmanager
    def control_dependencies(self, control_inputs: Iterable[Any] | None) -> Generator[None]:
        """New nodes run after `control_inputs`; None forgets the outer dependencies."""
        given = () if control_inputs is None else tuple(flatten_control_inputs(control_inputs))
        outer = [] if control_inputs is None else self._controls
        block = _Controls(self._graph_nodes(given))
        block.has_controls = bool(given)  # inside a sub-graph, perhaps for nodes around it alone
        with self._having(_controls=[*outer, block]):
            yield

    def reads_here(self) -> dict[Tensor, Tensor] | None:
        """The values of variables that were read inside the open control dependencies; None where
        there are none."""
        return self._controls[-1].reads if any(b.has_controls for b in self._controls) else None

    @contextmanager
    def without_scopes(self) -> Generator[None]:
        """New nodes come after nothing, beside nothing, and anywhere."""
        with self._having(_devices=[], _colocation=[]), self.control_dependencies(None):
            yield

    @contextmanager
    def _having(self, **state: Any) -> Generator[None]:
        """Attributes of the graph have other values inside the block."""
        saved = [(name, getattr(self, name)) for name in state]
        for name, value in state.items():
            setattr(self, name, value)
        try:
            yield
        finally:
            for name, value in saved:
                setattr(self, name, value)

    def _graph_nodes(self, values: Iterable[Any]) -> list[Node]:
        elements = [self.as_graph_element(v) for v in flatten_control_inputs(values)]
        return list(dict.fromkeys(flatten_nodes(elements)))

    @contextmanager
    def colocate_with(self, op: NodeLike | None, ignore_existing: bool = False) -> Generator[None]:
        """New nodes share the device of `op`."""
        devices = self._devices if op is None else []
        peers = [] if ignore_existing or op is None else self._colocation
        beside = [] if op is None else [as_node(op)]
        with self._having(_devices=devices, _colocation=[*peers, *beside]):
            yield

    @contextmanager
    def attr_scope(self, annotations: Mapping[str, Any]) -> Generator[None]:
        """Attach annotations to new nodes; None removes an outer one."""
        with self._having(_annotations={**self._annotations, **annotations}):
            yield

    @contextmanager
    def gradient_override_map(self, op_type_map: Mapping[str, str]) -> Generator[None]:
        """Nodes made inside use the registered gradient `op_type_map[type]` for their op type."""
        with self._having(_gradient_overrides={**self._gradient_overrides, **op_type_map}):
            yield

    def gradient_override(self, type_name: str) -> str | None:
        """The registered gradient that new nodes of this type use instead of the op's own."""
        return self._gradient_overrides.get(type_name)

    @contextmanager
    def at_line(self, line: MadeAt | None) -> Generator[None]:
        """All nodes made inside are made at this line of the user's; None: each at its own."""
        with self._having(_line=line):
            yield

    @contextmanager
    def container(self, container_name: str) -> Generator[str]:
        """Stateful nodes made inside keep their state in this container."""
        with self._having(container_name=container_name):
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
        """The tensor or node of this graph that `obj` is, names, or converts to."""
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
        return self._node_by_name(name, name)

    def _node_by_name(self, name: str, asked: str) -> Node:
        node = self._nodes.get(name)
        if node is None:
            if asked == name:
                raise KeyError(f"The name {name!r} refers to an Operation not in the graph.")
            raise KeyError(
                f"The name {asked!r} refers to a Tensor which does not exist. The operation, "
                f"{name!r}, does not exist in the graph."
            )
        return node

    def _tensor_by_name(self, name: str) -> Tensor:
        node_name, _, index = name.partition(":")
        if not index.isdigit():
            raise ValueError(
                f"The name {name!r} looks like a Tensor name, but is not of the form "
                "'<op_name>:<output_index>'."
            )
        node = self._node_by_name(node_name, name)
        if int(index) >= len(node.outputs):
            raise KeyError(
                f"The name {name!r} refers to a Tensor which does not exist: the operation "
                f"{node_name!r} has only {len(node.outputs)} outputs."
            )
        return node.outputs[int(index)]

    def get_operation_by_name(self, name: str) -> Node:
        """The node of a name.

        Args:
            name: such as "layer/add".

        Raises:
            KeyError: where there is none.
        """
        if not isinstance(cast(Any, name), str):
            raise TypeError(f"Operation names are strings (or similar), not {type(name).__name__}.")
        return self.as_graph_element(name, allow_tensor=False)

    def get_tensor_by_name(self, name: str) -> Tensor:
        """The tensor of a name.

        Args:
            name: the name of the node, a colon and the number of the output, such as "layer/add:0".

        Raises:
            KeyError: where there is none.
        """
        if not isinstance(cast(Any, name), str):
            raise TypeError(f"Tensor names are strings (or similar), not {type(name).__name__}.")
        return self.as_graph_element(name, allow_operation=False)

    # Graphs around this one

    def sees(self, graph: Graph) -> bool:
        """Whether tensors of a graph can be used in this one."""
        return graph is self

    @property
    def around_control_flow(self) -> Graph:
        """The graph that holds the conditionals and loops which this one is a part of."""
        return self

    @contextmanager
    def with_scopes_of(self, inner: Graph) -> Generator[None]:
        """New nodes are named and placed as those of a graph inside this one, after nothing."""
        scopes = {"_scope": inner._scope, "_devices": inner._devices}
        with self._having(**scopes), self.control_dependencies(None):
            yield

    # What a session may do

    def outside(self, inner: Tensor) -> Tensor | None:
        """The tensor of a graph around this one that `inner` stands for, if there is one."""
        return None

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
            from_version: only the nodes that were made since the graph had this `version`.
            add_shapes: write static shapes along.

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
        """Add a node by the name of its op; dtypes, shapes and device follow from the op."""
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

    def __enter__(self) -> Graph:
        graphs.items.append(self)
        return self

    def __exit__(self, *_: object) -> None:
        graphs.items.pop()


def flatten_control_inputs(values: Iterable[Any]) -> Iterable[Any]:
    """Control inputs, with the parts of IndexedSlices and SparseTensors in their place."""
    for value in values:
        parts: Callable[[], list[Tensor]] | None = getattr(value, "components", None)
        if parts is None:
            yield value
        else:
            yield from parts()


graphs: context.ThreadStack[Graph] = context.ThreadStack()
#: The graph that is the default where none is pushed; None until somebody asks for it.
global_graph: list[Graph | None] = [None]
#: What makes it.
default_graph: list[Callable[[], Graph]] = [Graph]


@public("get_default_graph")
def get_default_graph() -> Graph:
    """The graph that new nodes go to in this thread.

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
    """Throw the global default graph away; the next node starts a new one.

    Tensors, variables and sessions made before belong to the old graph and cannot be mixed with
    what is made afterwards.

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
    """Let the next question for the global default graph make a new one."""
    global_graph[0] = None
