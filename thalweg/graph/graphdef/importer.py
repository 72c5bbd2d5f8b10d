"""`tf.import_graph_def`: rebuilds the nodes of a GraphDef in the default graph.

Every node is built by the same call that user code makes, so dtypes and shapes are checked and
inferred again. Nodes may be in any order; a cycle is an error, except for the back edge of a loop
from a `NextIteration` to a `Merge`.
"""

from __future__ import annotations

from collections.abc import Generator, Iterable, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import InitVar, dataclass
from typing import TYPE_CHECKING, Any, cast

from thalweg import protos
from thalweg.graph.build import add_node
from thalweg.graph.convert import convert_to_tensor
from thalweg.graph.dtypes import DType, as_dtype
from thalweg.graph.graph import Graph, get_default_graph
from thalweg.graph.graphdef import attributes, functional, functions, node_defs
from thalweg.graph.graphdef.resource_forms import reference_forms, reference_op
from thalweg.graph.graphdef.versions import Versions
from thalweg.graph.node import Node, Tensor, TensorType, operators
from thalweg.graph.op import REGISTRY, Op
from thalweg.graph.scopes import name_scope
from thalweg.graph.subgraph import Body, SubGraph
from thalweg.platform.compat import as_bytes, as_str
from thalweg.public import public

if TYPE_CHECKING:
    from thalweg.graph.likes import MaybeNone

_COLOCATION = b"loc:@"
_LOOP_STARTS = frozenset({"Merge", "RefMerge"})
_LOOP_ENDS = frozenset({"NextIteration", "RefNextIteration"})
#: What ops raise for impossible attributes, or those that contradict each other.
_FAULTS = (LookupError, AttributeError, ArithmeticError, AssertionError, MemoryError)


@public("import_graph_def", "graph_util.import_graph_def")
def import_graph_def(
    graph_def: protos.GraphDef,
    input_map: Mapping[Any, Any] | None = None,
    return_elements: Sequence[Any] | None = None,
    name: str | None = None,
    op_dict: Mapping[str, Any] | None = None,
    producer_op_list: protos.OpList | None = None,
) -> list[Any] | MaybeNone:
    """Add the nodes of a GraphDef to the default graph.

    Args:
        graph_def: a `tf.GraphDef`.
        input_map: a dict from names in `graph_def` to tensors that replace them.
        return_elements: names of nodes ("y") or tensors ("y:0") to return.
        name: the scope of the new nodes; "import" if None, none if empty.
        op_dict: the op types that may occur; all known ones if None.
        producer_op_list: an OpList: attributes unknown here are dropped where they have the
            default values in it.

    Returns:
        A list with the requested elements, or None.

    Raises:
        ValueError: where a name or an op is unknown.

    Example:
        >>> graph = tf.Graph()
        >>> with graph.as_default():
        ...     y = tf.multiply(tf.placeholder(tf.float32, [], name="x"), 2.0, name="y")
        >>> (y,) = tf.import_graph_def(
        ...     graph.as_graph_def(), {"x:0": tf.constant(21.0)}, ["y:0"], name="copy"
        ... )
        >>> y.name, sess.run(y)
        ('copy/y:0', np.float32(42.0))
    """
    if not protos.is_message(graph_def, protos.GraphDef):
        raise TypeError("graph_def must be a GraphDef proto.")
    proto = protos.as_message(graph_def, protos.GraphDef)
    replacements = _checked_input_map(input_map)
    elements = _checked_elements(return_elements)
    if producer_op_list is not None:
        producer_op_list = protos.as_message(producer_op_list, protos.OpList)
    with name_scope(name, "import", list(replacements.values())) as scope:
        graph = get_default_graph()
        graph.graph_def_versions = Versions.of(proto.versions)
        tensors = _convert_input_map(replacements, scope)
        importer = _Importer(graph, proto.node, tensors, _Library(proto, op_dict, producer_op_list))
        importer.build()
        importer.check_input_map()
        return None if elements is None else [importer.element(element) for element in elements]


def _checked_input_map(input_map: Any) -> dict[str, Any]:
    if input_map is None:
        return {}
    items = cast("Mapping[Any, Any]", input_map if isinstance(input_map, Mapping) else {None: None})
    if not all(isinstance(key, str | bytes) for key in items):
        raise TypeError("input_map must be a dictionary mapping strings to Tensor objects.")
    return {_canonical(as_str(key)): value for key, value in items.items()}


def _checked_elements(return_elements: Any) -> list[str] | None:
    if return_elements is None:
        return None
    elements = list(return_elements)
    if not all(isinstance(element, str | bytes) for element in elements):
        raise TypeError("return_elements must be a list of strings.")
    return [as_str(element) for element in elements]


def _convert_input_map(replacements: Mapping[str, Any], scope: str) -> dict[str, Tensor]:
    if not replacements:
        return {}
    if not scope:
        raise ValueError(
            "tf.import_graph_def() requires a non-empty `name` if `input_map` is used."
        )
    with name_scope("_inputs"):
        return {key: convert_to_tensor(value) for key, value in replacements.items()}


def _canonical(name: str) -> str:
    """`node` as `node:0`; control inputs unchanged."""
    if name.startswith("^"):
        return name
    node, colon, index = name.partition(":")
    if colon and not index.isdigit():
        raise ValueError(f"Cannot convert {name!r} to a tensor name.")
    return f"{node}:{int(index or 0)}"


@dataclass(eq=False)
class _Importer:
    """The import of the nodes of a GraphDef or of a function into a graph."""

    graph: Graph
    definitions: InitVar[Iterable[Any]]  # the NodeDefs
    input_map: dict[str, Tensor]
    library: _Library
    is_body: bool = False  # whether the nodes are those of a function

    def __post_init__(self, definitions: Iterable[Any]) -> None:
        forms = [form for node in definitions for form in reference_forms(node)]
        self.protos: dict[str, Any] = {form.name: form for form in forms}
        self.sources: dict[str, list[str]] = {
            name: list(proto.input if self.is_body else map(_canonical, proto.input))
            for name, proto in self.protos.items()
        }
        self.used: set[str] = set()  # keys of the input map
        # All names are chosen first: colocation groups refer to nodes that do not exist yet.
        self.names = self.graph.imported_names(self.protos)
        self.nodes: dict[str, Node] = {}
        #: the tensors to use as the outputs of a node, usually its own
        self.outputs: dict[str, Sequence[Tensor]] = {}
        #: of loops: the node, its input, the source
        self.back_edges: list[tuple[Any, int, str]] = []
        for proto in self.protos.values():
            if proto.op in _LOOP_STARTS:
                self._cut_back_edges(proto)

    def check_input_map(self) -> None:
        """Raise a ValueError if the input map has names that the GraphDef has not."""
        unmapped = self.input_map.keys() - self.used
        unused = sorted(key for key in unmapped if self.output(key) is None)
        if unused:
            raise ValueError(
                f"Attempted to map inputs that were not found in graph_def: [{', '.join(unused)}]"
            )

    def element(self, name: str) -> Any:
        """The node or tensor with a name in the GraphDef."""
        element = self.output(name) if ":" in name else self.nodes.get(name)
        if element is None:
            raise ValueError(f"Requested return_element {name!r} not found in graph_def.")
        return element

    def output(self, name: str) -> Tensor | None:
        """The output `node:index`, or as named in functions, if there is one."""
        node_name, _, place = name.partition(":")
        node = self.nodes.get(node_name)
        index = functions.output_index(node, place) if node and self.is_body else place
        outputs = self.outputs.get(node_name, ())
        return outputs[int(index)] if index.isdecimal() and int(index) < len(outputs) else None

    # Topological order

    def build(self) -> None:
        """Create all nodes, each after those it depends on. No recursion: graphs are deep."""
        pending = [*reversed(self.protos)]
        waiting: set[str] = set()
        while pending:
            current = pending[-1]
            missing = [] if current in self.nodes else self._missing(current)
            if missing and current in waiting:
                raise ValueError(
                    f"The GraphDef has a cycle through node {current!r}: only what goes from a "
                    "NextIteration to a Merge may close one."
                )
            if missing:
                waiting.add(current)
                pending += missing
                continue
            if current not in self.nodes:
                node = self.nodes[current] = self._build(self.protos[current])
                self.outputs.setdefault(current, node.outputs)
            pending.pop()
        for proto, index, source in self.back_edges:
            operators["update_input"](self.nodes[proto.name], index, self.tensor(proto, source))

    def _missing(self, name: str) -> list[str]:
        sources = [source for source in self.sources[name] if source not in self.input_map]
        needed = map(node_defs.node_name, sources)
        return [node for node in needed if node in self.protos and node not in self.nodes]

    # Loops

    def _cut_back_edges(self, proto: Any) -> None:
        """Replace the inputs of a Merge that close loops, for now, by another input."""
        sources = self.sources[proto.name]
        data = [source for source in sources if not source.startswith("^")]
        forward = [source for source in data if not self._ends_loop(source)]
        if data and not forward:
            raise node_defs.invalid(proto, "A Merge needs an input that is not a NextIteration.")
        for index, source in enumerate(data):
            if self._ends_loop(source):
                self.back_edges.append((proto, index, source))
                sources[index] = forward[0]

    def _ends_loop(self, source: str) -> bool:
        node = self.protos.get(source.partition(":")[0])
        return source not in self.input_map and node is not None and node.op in _LOOP_ENDS

    # One node

    def _build(self, proto: Any) -> Node:
        """Create a node; errors name it."""
        try:
            return self._create(proto)
        except (ValueError, TypeError) as error:
            if f"{proto.name}'" in str(error):
                raise
            error_class = TypeError if isinstance(error, TypeError) else ValueError
            raise error_class(f"{error} (in node {proto.name!r})") from error
        except _FAULTS as error:
            raise node_defs.invalid(proto, f"{type(error).__name__}: {error}") from error

    def _create(self, proto: Any) -> Node:
        sources = self.sources[proto.name]
        data = node_defs.current_input_order(proto, sources)
        inputs = [self.tensor(proto, source) for source in data]
        controls = [self.control(proto, s) for s in sources if s.startswith("^")]
        callee = functional.called_function(proto, self.library.protos)
        if callee is not None or functional.functional_kind(proto) is not None:
            return self._create_composite(proto, inputs, controls, callee)
        takes_reference = any(tensor.dtype.is_ref_dtype for tensor in inputs)
        op_name = reference_op(proto, takes_reference)
        block = node_defs.block_of(proto, self.library.op_dict, op_name)
        values, others = self._attributes(proto, block)
        passes_handle = op_name != proto.op
        if passes_handle:
            values.pop("T", None)
        op = self._op(proto, block, values, inputs)
        counts = node_defs.check_inputs(proto, block, values, data, inputs)
        with self._scopes(proto, controls), self.graph.attr_scope(others):
            node = self._add(op, op.parsed.group(inputs, counts), f"{self.names[proto.name]}/")
        if not passes_handle:
            node_defs.merge_output_shapes(proto, node)
        return node

    @contextmanager
    def _scopes(self, proto: Any, controls: list[Node]) -> Generator[None]:
        with self.graph.control_dependencies(controls), self.graph.device(proto.device):
            yield

    def _add(self, op: Op, inputs: Sequence[Any], name: str) -> Node:
        return add_node(self.graph, op, tuple(inputs), name, is_imported=True)

    # NodeDefs that become several nodes

    def _create_composite(
        self, proto: Any, inputs: list[Tensor], controls: list[Node], callee: str | None
    ) -> Node:
        """The node of a call, whose function is inlined, or of a conditional or loop."""
        name = f"{self.names[proto.name]}/"
        with self._scopes(proto, controls), self.graph.name_scope(name):
            if callee is not None:
                outputs, targets = self.library.call(callee, self.graph, inputs)
                return self._alias_outputs(proto, name, outputs, targets)
            if functional.functional_kind(proto) == "While":
                function = self.library.proto(proto.attr["body"].func.name)
                control = functional.while_loop(proto, function, inputs, self.library.body)
            else:
                control = functional.conditional(proto, inputs, self.library.body)
            if not control.invariants:
                return self._add(control.op, control.inputs, name)
            node = self._add(control.op, control.inputs, "loop")
            outputs = list(node.outputs)
            for index, tensor in control.invariants.items():
                outputs.insert(index, tensor)
            return self._alias_outputs(proto, name, outputs, [node])

    def _alias_outputs(
        self, proto: Any, name: str, outputs: Sequence[Tensor], controls: Sequence[Node]
    ) -> Node:
        """The node with the name of a NodeDef that became several nodes: an identity of the
        outputs, after `controls`. It has placeholders for references, which consumers take
        directly."""
        is_reference = [tensor.dtype.is_ref_dtype for tensor in outputs]
        with self.graph.control_dependencies(controls):
            if not outputs:
                return self._add(REGISTRY["NoOp"](), (), name)
            values = [
                convert_to_tensor(0, name="handle") if is_handle else tensor
                for tensor, is_handle in zip(outputs, is_reference, strict=True)
            ]
            node = self._add(REGISTRY["IdentityN"](), (values,), name)
        self.outputs[proto.name] = [
            tensor if is_handle else value
            for tensor, value, is_handle in zip(outputs, node.outputs, is_reference, strict=True)
        ]
        node_defs.merge_output_shapes(proto, node)
        return node

    def _op(
        self, proto: Any, block: type[Op], values: Mapping[str, Any], inputs: Sequence[Tensor]
    ) -> Op:
        kinds = attributes.kinds(block)
        fields: dict[str, Any] = {}
        for field in [field for field in block.fields if field in values]:
            type_name = kinds[field].type_name if field in kinds else ""
            if type_name == "Tensor":
                fields[field] = functions.traced_tensor(inputs[0].op, values[field])
            else:
                fields[field] = self._resolved(proto, values[field], type_name)
        try:
            return block(**fields)
        except TypeError as error:
            raise node_defs.invalid(proto, str(error)) from None

    def _resolved(self, proto: Any, value: Any, type_name: str) -> Any:
        """An attribute of an annotated type, with functions, or their bodies, in place of their
        names."""
        if isinstance(value, tuple):
            items = cast("tuple[Any, ...]", value)
            return tuple(self._resolved(proto, item, type_name) for item in items)
        if isinstance(value, attributes.FunctionName):
            function = self.library.function(value)
            return function.body if type_name == "Body" else function
        if type_name == "Body":
            raise node_defs.invalid(proto, f"Expected the name of a function, not {value!r}.")
        return as_bytes(value) if type_name == "bytes" else value

    def _attributes(self, proto: Any, block: type[Op]) -> tuple[dict[str, Any], dict[str, Any]]:
        """The attributes that an op has of its own, and the others: annotations. Those that only
        the producer knows and that have its default values are left out."""
        own, kinds = node_defs.own_attributes(block), attributes.kinds(block)
        defaults = self.library.defaults.get(proto.op, {})
        values: dict[str, Any] = {}
        others: dict[str, Any] = {}
        for name, value in proto.attr.items():
            if value.WhichOneof("value") is None:
                continue
            if name in own:
                node_defs.check_kind(proto, name, value, kinds.get(own[name]))
                values[own[name]] = attributes.decode(value)
            elif name == "_class":
                others[name] = self._renamed_groups(proto, value.list.s)
            elif name != "_output_shapes" and value != defaults.get(name):
                others[name] = attributes.decode(value)
        return values, others

    def _renamed_groups(self, proto: Any, groups: Sequence[bytes]) -> list[bytes]:
        """Colocation groups with the new names of nodes."""
        renamed: list[bytes] = []
        for group in groups:
            if not group.startswith(_COLOCATION):
                renamed.append(group)
                continue
            peer = group.removeprefix(_COLOCATION).decode()
            if peer not in self.names and self.is_body:
                continue  # outside of the function
            if peer not in self.names:
                raise ValueError(
                    "Specified colocation to an op that does not exist during import: "
                    f"{peer} in {proto.name}"
                )
            renamed.append(_COLOCATION + self.names[peer].encode())
        return renamed

    def tensor(self, proto: Any, source: str) -> Tensor:
        """The tensor that a node takes as an input."""
        if source in self.input_map:
            self.used.add(source)
            return self.input_map[source]
        tensor = self.output(source)
        if tensor is None:
            raise self._missing_name(proto, "Input tensor", source)
        return tensor

    def control(self, proto: Any, source: str) -> Node:
        """The node that a node runs after."""
        node = self.nodes.get(source[1:])
        if node is None:
            raise self._missing_name(proto, "Control input", source)
        return node

    def _missing_name(self, proto: Any, what: str, name: str) -> ValueError:
        if self.is_body:
            return ValueError(f"graph_def is invalid: a function uses {name!r}, which it lacks.")
        return node_defs.invalid(proto, f"{what} {name!r} not found in graph_def.")


class _Library:
    """The function library of a GraphDef: a function is inlined at a call, or built as a body."""

    def __init__(self, proto: Any, op_dict: Any, producer_op_list: Any) -> None:
        self.protos = {function.signature.name: function for function in proto.library.function}
        self._functions: dict[str, functions.Lambda] = {}
        self.op_dict: Mapping[str, Any] | None = op_dict
        #: the default values of attributes in the producer's version of each op
        self.defaults: dict[str, dict[str, Any]] = {
            op.name: {a.name: a.default_value for a in op.attr if a.HasField("default_value")}
            for op in (producer_op_list.op if producer_op_list else ())
        }
        if self.protos:
            functional.check_expansion(proto.node, self.protos)

    def proto(self, name: str) -> Any:
        """The FunctionDef with a name."""
        if name not in self.protos:
            raise ValueError(f"graph_def is invalid: its library has no function {name!r}.")
        return self.protos[name]

    def function(self, name: str) -> functions.Lambda:
        """The function with a name, as an attribute of ops."""
        if name not in self._functions:
            proto = self.proto(name)
            types = [
                (_argument_dtype(argument), functional.declared_shape(proto, index))
                for index, argument in enumerate(proto.signature.input_arg)
            ]
            sparse = attributes.decode(proto.attr[functions.SPARSE]) or ()
            body = self.body(name, types)
            self._functions[name] = functions.Lambda(body, tuple(map(bool, sparse)))
        return self._functions[name]

    def body(self, name: str, types: Iterable[TensorType]) -> Body:
        """A function as a sub-graph of the default graph, for these argument types."""
        proto = self.proto(name)
        graph = SubGraph(get_default_graph(), f"the function {proto.signature.name}")
        with graph.as_default():
            arguments = tuple(
                graph.argument(dtype, shape, argument.name)
                for argument, (dtype, shape) in zip(proto.signature.input_arg, types, strict=True)
            )
            outputs, targets = self.call(name, graph, arguments)
        return Body(graph, arguments, tuple(outputs), tuple(targets))

    def call(
        self, name: str, graph: Graph, inputs: Sequence[Tensor]
    ) -> tuple[list[Tensor], list[Node]]:
        """Inline a function into a graph; returns its outputs, and the nodes that run besides."""
        proto = self.proto(name)
        signature = proto.signature
        if len(signature.input_arg) != len(inputs):
            raise ValueError(
                f"the function {name!r} takes {len(signature.input_arg)} inputs, not {len(inputs)}."
            )
        names = (argument.name for argument in signature.input_arg)
        arguments = dict(zip(names, inputs, strict=True))
        importer = _Importer(graph, proto.node_def, arguments, self, is_body=True)
        importer.build()
        outputs = [importer.tensor(proto, proto.ret[out.name]) for out in signature.output_arg]
        controls = (f"^{proto.control_ret[output]}" for output in signature.control_output)
        return outputs, [importer.control(proto, source) for source in controls]


def _argument_dtype(argument: Any) -> DType:
    """The dtype of an argument of a FunctionDef."""
    dtype = as_dtype(argument.type)
    return dtype.as_ref if argument.is_ref else dtype
