"""`tf.import_graph_def`: the nodes of a GraphDef, rebuilt in the default graph.

Every node is built by the same call that user code makes, so dtypes and shapes are checked and
inferred again. Nodes may come in any order; a cycle is an error, but for the way from a
`NextIteration` back to the `Merge` that its loop begins with.
"""

from __future__ import annotations

import re
from collections.abc import Generator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from typing import TYPE_CHECKING, Any, cast

from thalweg import protos
from thalweg.graph import dtypes
from thalweg.graph.build import add_node
from thalweg.graph.convert import convert_to_tensor
from thalweg.graph.graph import Graph, get_default_graph
from thalweg.graph.graphdef import attributes
from thalweg.graph.graphdef.attributes import FunctionName
from thalweg.graph.graphdef.functional import branching, functional_kind, loop
from thalweg.graph.graphdef.functions import (
    Lambda,
    Made,
    body_fields,
    called,
    function_of,
    output_starts,
    traced_fields,
    traced_tensor,
)
from thalweg.graph.graphdef.input_types import check_inputs, invalid
from thalweg.graph.graphdef.library import MAX_DEPTH, called_function, check_expansion
from thalweg.graph.graphdef.resource_forms import current_forms, reference_op
from thalweg.graph.graphdef.versions import Versions
from thalweg.graph.node import Node, Tensor, operators
from thalweg.graph.op import REGISTRY, Op
from thalweg.graph.scopes import name_scope
from thalweg.graph.shapes import TensorShape
from thalweg.graph.subgraph import Body
from thalweg.platform.compat import as_str
from thalweg.public import public

if TYPE_CHECKING:
    from thalweg.graph.likes import MaybeNone

_COLOCATION = b"loc:@"
_LOOP_STARTS = frozenset({"Merge", "RefMerge"})
_LOOP_ENDS = frozenset({"NextIteration", "RefNextIteration"})


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
        input_map: a dict from names in `graph_def` to tensors that stand for them.
        return_elements: names of nodes ("y") or tensors ("y:0") to return.
        name: the scope of the new nodes; "import" if None, none if empty.
        op_dict: the op types that may occur; any that is known if None.
        producer_op_list: an OpList: attributes unknown here are dropped where they have the
            defaults that it tells.

    Returns:
        A list with the elements asked for, or None.

    Raises:
        ValueError: where a name or an op is not known.

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
    proto = _checked_graph_def(graph_def)
    replaced = _checked_input_map(input_map)
    wanted = _checked_elements(return_elements)
    if producer_op_list is not None:
        producer_op_list = protos.as_message(producer_op_list, protos.OpList)
    with name_scope(name, "import", list(replaced.values())) as scope:
        graph = get_default_graph()
        graph.graph_def_versions = Versions(
            proto.versions.producer,
            proto.versions.min_consumer,
            list(proto.versions.bad_consumers),
        )
        given = _converted(replaced, scope)
        library = _Library(proto, op_dict, producer_op_list)
        importer = _Importer(graph, proto, given, op_dict, producer_op_list, library)
        importer.run()
        return None if wanted is None else [importer.element(element) for element in wanted]


def _checked_graph_def(graph_def: Any) -> Any:
    if not protos.is_message(graph_def, protos.GraphDef):
        raise TypeError("graph_def must be a GraphDef proto.")
    return protos.as_message(graph_def, protos.GraphDef)


def _checked_input_map(input_map: Any) -> dict[str, Any]:
    if input_map is None:
        return {}
    given = cast("Mapping[Any, Any]", input_map if isinstance(input_map, Mapping) else {None: None})
    if not all(isinstance(key, str | bytes) for key in given):
        raise TypeError("input_map must be a dictionary mapping strings to Tensor objects.")
    return {_canonical(as_str(key)): value for key, value in given.items()}


def _checked_elements(return_elements: Any) -> list[str] | None:
    if return_elements is None:
        return None
    elements = list(return_elements)
    if not all(isinstance(element, str | bytes) for element in elements):
        raise TypeError("return_elements must be a list of strings.")
    return [as_str(element) for element in elements]


def _converted(replaced: Mapping[str, Any], scope: str) -> dict[str, Tensor]:
    if not replaced:
        return {}
    if not scope:
        raise ValueError(
            "tf.import_graph_def() requires a non-empty `name` if `input_map` is used."
        )
    with name_scope("_inputs"):
        return {key: convert_to_tensor(value) for key, value in replaced.items()}


def _canonical(name: str) -> str:
    """`node` as `node:0`; control inputs as they are."""
    if name.startswith("^"):
        return name
    node, index = _parsed(name)
    return f"{node}:{index}"


def _parsed(name: str) -> tuple[str, int]:
    node, colon, index = name.partition(":")
    if colon and not index.isdigit():
        raise ValueError(f"Cannot convert {name!r} to a tensor name.")
    return node, int(index or 0)


class _Importer:
    """One import: what is to be made, and what is made already."""

    def __init__(
        self,
        graph: Graph,
        proto: Any,
        input_map: dict[str, Tensor],
        op_dict: Mapping[str, Any] | None,
        producer_op_list: Any,
        library: _Library,
    ) -> None:
        self.graph = graph
        self.is_body = False  # whether the nodes are those of a function
        self.protos: dict[str, Any] = {
            form.name: form for node in proto.node for form in current_forms(node)
        }
        self.input_map = input_map
        self.used: set[str] = set()
        self.op_dict = op_dict
        self.producer = {op.name: op for op in producer_op_list.op} if producer_op_list else {}
        # All names are taken first: nodes name each other before they exist.
        self.names = graph.imported_names(self.protos)
        self.made: dict[str, Node] = {}
        #: what stands for the outputs of a node, where it is not the node's own
        self.outputs: dict[str, Sequence[Tensor]] = {}
        self.library = library

    def run(self) -> None:
        """Make all nodes; an error if something was to be replaced that is not there."""
        self.make_all()
        unused = sorted(self.input_map.keys() - self.used)
        unused = [key for key in unused if not self._has_output(key)]
        if unused:
            raise ValueError(
                f"Attempted to map inputs that were not found in graph_def: [{', '.join(unused)}]"
            )

    def make_all(self) -> Made:
        """Make all nodes."""
        for name in self.protos:
            self._make_with_inputs(name)
        self._close_loops()
        own = {name: node.outputs for name, node in self.made.items()}
        return Made(self.made, own | self.outputs)

    def _outputs(self, name: str) -> Sequence[Tensor]:
        return self.outputs[name] if name in self.outputs else self.made[name].outputs

    def _has_output(self, name: str) -> bool:
        node, index = _parsed(name)
        return node in self.made and index < len(self._outputs(node))

    def element(self, name: str) -> Any:
        """The node or tensor of a name in the GraphDef."""
        node, colon, index = name.partition(":")
        found = self.made.get(node)
        outputs = () if found is None else found.outputs
        if not colon and found is not None:
            return found
        if colon and index.isdigit() and int(index) < len(outputs):
            return outputs[int(index)]
        raise ValueError(f"Requested return_element {name!r} not found in graph_def.")

    # In order

    def _make_with_inputs(self, name: str) -> None:
        """Make a node after those it needs, without recursion: graphs are deep."""
        pending = [name]
        waiting: set[str] = set()
        while pending:
            current = pending[-1]
            missing = [] if current in self.made else self._missing(current)
            if missing and current in waiting:
                raise ValueError(
                    f"The GraphDef has a cycle through node {current!r}: only what goes from a "
                    "NextIteration to a Merge may close one."
                )
            if missing:
                waiting.add(current)
                pending += missing
                continue
            if current not in self.made:
                self.made[current] = self._made(self.protos[current])
            pending.pop()

    def _missing(self, name: str) -> list[str]:
        proto = self.protos[name]
        needed = [
            _canonical(source).lstrip("^").partition(":")[0]
            for source in proto.input
            if _canonical(source) not in self.input_map and not self._goes_back(proto, source)
        ]
        return [node for node in needed if node in self.protos and node not in self.made]

    # Loops

    def _goes_back(self, proto: Any, source: str) -> bool:
        """Whether an input of a node closes a loop."""
        if proto.op not in _LOOP_STARTS or source[0] == "^":
            return False
        found = self.protos.get(_parsed(source)[0])
        is_end = found is not None and found.op in _LOOP_ENDS
        return is_end and _canonical(source) not in self.input_map

    def _forward_sources(self, proto: Any, sources: list[str]) -> list[str]:
        """The inputs of a node; for those that are not made yet, another one for the time being."""
        ready = [s for s in sources if not self._goes_back(proto, s)]
        if len(ready) < len(sources) and not ready:
            raise invalid(proto, "A Merge needs an input that is not a NextIteration.")
        return [ready[0] if self._goes_back(proto, source) else source for source in sources]

    def _close_loops(self) -> None:
        """Give merges the inputs that were made after them."""
        for name, proto in self.protos.items():
            for place, source in enumerate(proto.input):
                if self._goes_back(proto, source):
                    _, tensor = self._tensor(proto, _canonical(source))
                    operators["update_input"](self.made[name], place, tensor)

    # One node

    def _made(self, proto: Any) -> Node:
        try:
            return self._make(proto)
        except (ValueError, TypeError) as error:
            if f"{proto.name}'" in str(error):
                raise
            kind = TypeError if isinstance(error, TypeError) else ValueError
            raise kind(f"{error} (in node {proto.name!r})") from error
        except (LookupError, AttributeError, ArithmeticError, MemoryError) as error:
            # What no producer writes: an attribute of another kind, or missing.
            raise invalid(proto, f"{type(error).__name__}: {error}") from error

    def _make(self, proto: Any) -> Node:
        sources = [_canonical(source) for source in proto.input]
        forward = self._forward_sources(proto, _current_order(proto, sources))
        inputs = [self._tensor(proto, source) for source in forward]
        controls = [self._control(proto, s) for s in sources if s.startswith("^")]
        if self.library.callee(proto) is not None or functional_kind(proto) is not None:
            return self._make_composite(proto, [tensor for _, tensor in inputs], controls)
        takes_reference = any(tensor.dtype.is_ref_dtype for _, tensor in inputs)
        named = reference_op(proto, takes_reference)
        block = _block(proto, self.op_dict, named)
        values = dict(proto.attr)
        passes_handle = named != proto.op
        if passes_handle:
            values.pop("T", None)
        self._drop_newer_defaults(proto, block, values)
        op = self._op(proto, block, values, [tensor for _, tensor in inputs])
        counts = check_inputs(proto, block, values, inputs)
        with ExitStack() as scopes:
            scopes.enter_context(self.graph.control_dependencies(controls))
            scopes.enter_context(self.graph.attr_scope(self._annotations(proto, block, values)))
            if proto.device:
                scopes.enter_context(self.graph.device(proto.device))
            grouped = op.parsed.group([tensor for _, tensor in inputs], counts)
            name = f"{self.names[proto.name]}/"
            node = add_node(self.graph, op, tuple(grouped), name, is_imported=True)
        if not passes_handle:
            _narrow_shapes(proto, node)
        return node

    # What stands for several nodes, or has tensors of others among its outputs

    def _make_composite(self, proto: Any, inputs: list[Tensor], controls: list[Node]) -> Node:
        """A call, whose function is made in its place; or a conditional or loop."""
        name = f"{self.names[proto.name]}/"
        with ExitStack() as scopes:
            scopes.enter_context(self.graph.control_dependencies(controls))
            scopes.enter_context(self.graph.name_scope(name))
            if proto.device:
                scopes.enter_context(self.graph.device(proto.device))
            return self._composite(proto, name, inputs)

    def _composite(self, proto: Any, name: str, inputs: list[Tensor]) -> Node:
        callee = self.library.callee(proto)
        if callee is not None:
            outputs, ends = self.library.call(callee, self.graph, inputs)
            return self._gathered(proto, name, outputs, ends)
        if functional_kind(proto) == "While":
            function = self.library.proto(proto.attr["body"].func.name)
            control = loop(proto, function, inputs, self.library.body)
        else:
            control = branching(proto, inputs, self.library.body)
        if not control.passed:
            return add_node(self.graph, control.op, control.inputs, name, is_imported=True)
        node = add_node(self.graph, control.op, control.inputs, "loop", is_imported=True)
        rest = iter(node.outputs)
        places = range(len(node.outputs) + len(control.passed))
        outputs = [control.passed[p] if p in control.passed else next(rest) for p in places]
        return self._gathered(proto, name, outputs, [node])

    def _gathered(
        self, proto: Any, name: str, outputs: Sequence[Tensor], ends: Sequence[Node]
    ) -> Node:
        """A node of the name, which comes after all of what stands for it, with the outputs as its
        own. References are given on as they are: in the node, nothing stands for them."""
        is_reference = [tensor.dtype.is_ref_dtype for tensor in outputs]
        with self.graph.control_dependencies(ends):
            if not outputs:
                return add_node(self.graph, REGISTRY["NoOp"](), (), name, is_imported=True)
            values = [
                convert_to_tensor(0, name="handle") if is_handle else tensor
                for tensor, is_handle in zip(outputs, is_reference, strict=True)
            ]
            op = REGISTRY["IdentityN"]()
            node = add_node(self.graph, op, (values,), name, is_imported=True)
        self.outputs[proto.name] = [
            tensor if is_handle else value
            for tensor, value, is_handle in zip(outputs, node.outputs, is_reference, strict=True)
        ]
        _narrow_shapes(proto, node)
        return node

    def _drop_newer_defaults(self, proto: Any, block: type[Op], values: dict[str, Any]) -> None:
        """Attributes that only the producer knows may go where they say what is usual there."""
        if proto.op not in self.producer:
            return
        known = _attribute_names(block)
        for attribute in self.producer[proto.op].attr:
            given = values.get(attribute.name)
            is_default = attribute.HasField("default_value") and given == attribute.default_value
            if is_default and attribute.name not in known:
                del values[attribute.name]

    def _op(
        self, proto: Any, block: type[Op], values: Mapping[str, Any], inputs: Sequence[Tensor]
    ) -> Op:
        fields = {
            field: self._field(proto, block, field, values[name])
            for field in block.fields
            if (name := block.graphdef_names.get(field, field)) in values
        }
        for field in traced_fields(block):
            fields[field] = traced_tensor(inputs[0].op, as_str(fields[field]))
        try:
            return block(**fields)
        except TypeError as error:
            raise invalid(proto, str(error)) from None

    def _field(self, proto: Any, block: type[Op], field: str, value: Any) -> Any:
        found = attributes.decode(value, attributes.kinds(block).get(field))
        is_held = field in body_fields(block)
        return self._bodies(proto, found) if is_held else self.library.resolved(found)

    def _bodies(self, proto: Any, names: Any) -> Any:
        """The body of a function, or those of several."""
        if isinstance(names, tuple):
            return tuple(self._bodies(proto, name) for name in cast("tuple[Any, ...]", names))
        if not isinstance(names, FunctionName):
            raise invalid(proto, f"Expected the name of a function, not {names!r}.")
        return self.library.function(names).body

    def _annotations(
        self, proto: Any, block: type[Op], values: Mapping[str, Any]
    ) -> dict[str, Any]:
        known = _attribute_names(block) | {"_output_shapes"}
        found = {name: attributes.decode(values[name]) for name in values if name not in known}
        if "_class" in values:
            found["_class"] = self._groups(proto, values["_class"].list.s)
        return found

    def _groups(self, proto: Any, groups: Sequence[bytes]) -> list[bytes]:
        """Colocation groups, by the names that the nodes have now."""
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

    def _tensor(self, proto: Any, source: str) -> tuple[str, Tensor]:
        if source in self.input_map:
            self.used.add(source)
            return source, self.input_map[source]
        name, index = _parsed(source)
        if not self._has_output(source):
            raise invalid(proto, f"Input tensor {source!r} not found in graph_def.")
        return source, self._outputs(name)[index]

    def _control(self, proto: Any, source: str) -> Node:
        node = self.made.get(source[1:])
        if node is None:
            raise invalid(proto, f"Control input {source!r} not found in graph_def.")
        return node


class _Library:
    """The functions of a GraphDef: made where a node calls one, or as a body that it holds."""

    def __init__(self, proto: Any, op_dict: Any, producer_op_list: Any) -> None:
        self._protos = {function.signature.name: function for function in proto.library.function}
        self._made: dict[str, Lambda] = {}
        self._open: set[str] = set()  # functions in the making
        self._op_dict, self._producer = op_dict, producer_op_list
        if self._protos:
            check_expansion(proto.node, self._protos)

    def resolved(self, value: Any) -> Any:
        """An attribute, functions in the place of their names."""
        if isinstance(value, FunctionName):
            return self.function(value)
        if not isinstance(value, tuple):
            return value
        return tuple(map(self.resolved, cast("tuple[Any, ...]", value)))

    def proto(self, name: str) -> Any:
        """The FunctionDef of a name."""
        if name not in self._protos:
            raise ValueError(f"graph_def is invalid: its library has no function {name!r}.")
        return self._protos[name]

    def callee(self, node: Any) -> str | None:
        """The function that a node calls, None where it is no call."""
        return called_function(node, self._protos)

    def function(self, name: str) -> Lambda:
        """The function of a name, as an op holds it."""
        if name not in self._made:
            with self._opened(name):
                self._made[name] = function_of(self.proto(name), self._make, self._starts)
        return self._made[name]

    def body(self, name: str, inputs: Sequence[Tensor], shapes: Sequence[TensorShape]) -> Body:
        """A function as the body of a control node, for inputs of such dtypes."""
        with self._opened(name):
            made = function_of(self.proto(name), self._make, self._starts, inputs, shapes)
        return made.body

    def call(
        self, name: str, graph: Graph, inputs: Sequence[Tensor]
    ) -> tuple[list[Tensor], list[Node]]:
        """The nodes of a function, made in a graph: its outputs, and what runs besides."""
        with self._opened(name):
            return called(self.proto(name), graph, inputs, self._make, self._starts)

    @contextmanager
    def _opened(self, name: str) -> Generator[None]:
        if name in self._open:
            raise ValueError(f"graph_def is invalid: the function {name!r} contains itself.")
        if len(self._open) >= MAX_DEPTH:
            raise ValueError(f"graph_def has functions nested more than {MAX_DEPTH} deep: {name!r}")
        self._open.add(name)
        try:
            yield
        finally:
            self._open.discard(name)

    def _starts(self, node: Any) -> dict[str, int]:
        if self.callee(node) is not None or functional_kind(node) is not None:
            return {"output": 0}
        (*_, form) = current_forms(node)
        return output_starts(form, _block(form, self._op_dict))

    def _make(self, graph: Graph, nodes: Sequence[Any], given: Mapping[str, Tensor]) -> Made:
        part = protos.GraphDef(node=nodes)
        importer = _Importer(graph, part, dict(given), self._op_dict, self._producer, self)
        importer.is_body = True
        return importer.make_all()


def _block(proto: Any, op_dict: Mapping[str, Any] | None, op: str | None = None) -> type[Op]:
    name = _current_name(op or proto.op)
    if name is None or not (op_dict is None or proto.op in op_dict):
        raise ValueError(
            f"No op named {proto.op} in defined operations, which node {proto.name!r} is of."
        )
    return REGISTRY[name]


def _attribute_names(block: type[Op]) -> set[str]:
    """The names a GraphDef has for what the block defines."""
    arguments = block.parsed.inputs + block.parsed.outputs
    own = {*block.fields, *block.parsed.type_names, *(a.count for a in arguments if a.count)}
    return {block.graphdef_names.get(name, name) for name in own}


# Ops of other versions


def _current_name(name: str) -> str | None:
    """The op here: `Variable` is VariableV2, `AddV2` is Add, `BatchMatrixInverse` MatrixInverse."""
    if name in REGISTRY:
        return name
    unversioned = re.sub(r"V\d$", "", name)
    unbatched = unversioned.removeprefix("Batch")
    bases = (unversioned, unbatched, unbatched.removeprefix("Matrix"))
    candidates = (f"{base}{version}" for base in bases for version in ("V2", "V3", ""))
    return next((other for other in candidates if other in REGISTRY), None)


def _current_order(proto: Any, sources: list[str]) -> list[str]:
    """The data inputs as the current op takes them: the axis of `Concat` now comes last."""
    data = [source for source in sources if not source.startswith("^")]
    if proto.op == "Concat" and "Concat" not in REGISTRY:
        return data[1:] + data[:1]
    return data


def _narrow_shapes(proto: Any, node: Node) -> None:
    """Add what the producer knew of the outputs' shapes."""
    if "_output_shapes" not in proto.attr:
        return
    shapes = proto.attr["_output_shapes"].list.shape
    for tensor, shape in zip(node.outputs, shapes, strict=False):
        # What older libraries wrote as the shape of a handle says nothing of a value.
        if not _is_handle(tensor):
            tensor.set_shape(attributes.shape_from_proto(shape))


def _is_handle(tensor: Tensor) -> bool:
    is_text_reference = tensor.dtype.is_ref_dtype and tensor.dtype.base_dtype is dtypes.string
    return tensor.dtype is dtypes.resource or is_text_reference
