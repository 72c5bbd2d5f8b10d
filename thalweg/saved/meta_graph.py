"""Graphs with all that belongs to them, as MetaGraphDefs: nodes, collections, saver, op list.

`export_scoped_meta_graph` writes a graph or the part of it below a name scope, and
`import_scoped_meta_graph` makes it again, below another scope if wanted. Inputs from outside the
exported scope are named `$unbound_inputs_…`, and must be given on import.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, cast

from thalweg import protos
from thalweg.graph.collections import GraphKeys
from thalweg.graph.graph import Graph, get_default_graph
from thalweg.graph.graphdef import versions
from thalweg.graph.graphdef.functional import functions_of
from thalweg.graph.graphdef.importer import import_graph_def
from thalweg.graph.graphdef.serial import op_def
from thalweg.graph.graphdef.util import write_graph
from thalweg.graph.node import reached
from thalweg.graph.op import REGISTRY
from thalweg.platform import tf_logging
from thalweg.platform.compat import as_bytes, as_str
from thalweg.public import public
from thalweg.saved import control_nodes
from thalweg.saved.collection_protos import Conversion, conversion_of
from thalweg.variables.save_slice import strip_scope, with_scope
from thalweg.version import __version__

if TYPE_CHECKING:
    from google.protobuf.message import Message

_UNBOUND = "$unbound_inputs_"
_UNBOUND_COLLECTION = "unbound_inputs"
# Ops of function bodies: they have no definition of their own.
_PLUMBING = frozenset(("_Arg", "_Retval", "_ListToArray", "_ArrayToList"))


def in_scope(name: str, scope: str | None) -> bool:
    """Whether a node or tensor is below a name scope."""
    return not scope or name.startswith(f"{scope.rstrip('/')}/")


# Ops


@public("contrib.util.ops_used_by_graph_def")
def ops_used_by_graph_def(graph_def: protos.GraphDef) -> list[str]:
    """The ops that a GraphDef uses, also inside the functions that it calls."""
    functions = {function.signature.name: function for function in graph_def.library.function}

    def used_by(nodes: Iterable[Any]) -> Iterator[str]:
        return (name for node in nodes for name in functions_of(node))

    def inside(name: str) -> Iterator[str]:
        return used_by(functions[name].node_def if name in functions else ())

    return [name for name in reached(used_by(graph_def.node), inside) if name not in functions]


@public("contrib.util.stripped_op_list_for_graph")
def stripped_op_list_for_graph(graph_def: protos.GraphDef) -> Any:
    """The definitions of the ops that a GraphDef uses, by name."""
    used = sorted(ops_used_by_graph_def(graph_def))
    for name in used:
        if name not in REGISTRY and name not in _PLUMBING:
            raise ValueError(f"Op {name} is used by the graph, but is not registered")
    return protos.OpList(op=[op_def(REGISTRY[n]) for n in used if n in REGISTRY])


def strip_graph_default_valued_attrs(meta_graph_def: Any) -> None:
    """Remove the attributes of nodes that have their op's default value."""
    for node in meta_graph_def.graph_def.node:
        if node.op in REGISTRY:
            for attribute in op_def(REGISTRY[node.op]).attr:
                if (
                    attribute.HasField("default_value")
                    and attribute.name in node.attr
                    and node.attr[attribute.name] == attribute.default_value
                ):
                    del node.attr[attribute.name]
    meta_graph_def.meta_info_def.stripped_default_attrs = True


# Export


@public("train.export_meta_graph")
def export_meta_graph(
    filename: str | None = None,
    meta_info_def: Message | None = None,
    graph_def: protos.GraphDef | None = None,
    saver_def: protos.SaverDef | None = None,
    collection_list: Sequence[Any] | None = None,
    as_text: bool = False,
    graph: Graph | None = None,
    export_scope: str | None = None,
    clear_devices: bool = False,
    clear_extraneous_savers: bool = False,
    strip_default_attrs: bool = False,
    save_debug_info: bool = False,
    **kwargs: Any,
) -> protos.MetaGraphDef:
    """The MetaGraphDef of a graph, or of what is below a scope; written to a file if named.

    Args:
        filename: the file to write; None: none is.
        meta_info_def: what is said of the graph.
        graph_def: the graph as a message, in place of `graph`.
        saver_def: the saver.
        collection_list: which collections; all if None.
        as_text: whether the file is text.
        graph: the graph; the default one if None.
        export_scope: a name scope: only what is below it.
        clear_devices: whether devices are left out.
        clear_extraneous_savers: whether nodes of other savers are left out.
        strip_default_attrs: whether attributes with default values are left out.
        save_debug_info: whether lines of the program are written too.
        kwargs: taken for old programs.

    Returns:
        A `MetaGraphDef`.

    Example:
        >>> x = tf.constant(1.0, name="x")
        >>> [node.name for node in tf.train.export_meta_graph("graph.meta").graph_def.node]
        ['x']
    """
    exported, _ = export_scoped_meta_graph(
        filename=filename,
        graph_def=graph_def,
        graph=graph,
        export_scope=export_scope,
        as_text=as_text,
        clear_devices=clear_devices,
        saver_def=saver_def,
        clear_extraneous_savers=clear_extraneous_savers,
        strip_default_attrs=strip_default_attrs,
        save_debug_info=save_debug_info,
        meta_info_def=meta_info_def,
        collection_list=collection_list,
        **kwargs,
    )
    return exported


def export_scoped_meta_graph(
    filename: str | None = None,
    graph_def: Any = None,
    graph: Graph | None = None,
    export_scope: str | None = None,
    as_text: bool = False,
    unbound_inputs_col_name: str | None = _UNBOUND_COLLECTION,
    clear_devices: bool = False,
    saver_def: Any = None,
    clear_extraneous_savers: bool = False,
    strip_default_attrs: bool = False,
    save_debug_info: bool = False,
    **kwargs: Any,
) -> tuple[Any, dict[str, Any]]:
    """A MetaGraphDef, and the exported variables by their names inside the scope."""
    graph = graph or get_default_graph()
    extraneous = _other_saver_scopes(graph, saver_def) if clear_extraneous_savers else []
    exported = graph_def
    if export_scope or clear_devices or extraneous:
        exported, unbound = _scoped_graph_def(
            graph_def or graph.as_graph_def(add_shapes=True),
            export_scope,
            clear_devices,
            lambda name: any(in_scope(name, scope) for scope in extraneous),
        )
        if unbound_inputs_col_name:
            graph.clear_collection(unbound_inputs_col_name)
            for name in unbound:
                graph.add_to_collection(unbound_inputs_col_name, name)
    written = create_meta_graph_def(
        graph_def=exported,
        graph=graph,
        export_scope=export_scope,
        saver_def=saver_def,
        clear_extraneous_savers=clear_extraneous_savers,
        strip_default_attrs=strip_default_attrs,
        **kwargs,
    )
    if filename:
        folder, name = os.path.split(filename)
        write_graph(written, folder or ".", name, as_text=as_text)
        if save_debug_info:
            _write_debug_info(graph, folder or ".", name, as_text)
    return written, _variables_below(graph, export_scope)


def _variables_below(graph: Graph, scope: str | None) -> dict[str, Any]:
    found = graph.get_collection(GraphKeys.GLOBAL_VARIABLES)
    return {strip_scope(v.name, scope): v for v in found if in_scope(v.name, scope)}


def _other_saver_scopes(graph: Graph, saver_def: Any) -> list[str]:
    """The scopes of the nodes of savers other than the one that is exported."""
    kept = saver_def.filename_tensor_name.rpartition("/")[0] if saver_def else None
    scopes = {
        saver.as_saver_def().filename_tensor_name.rpartition("/")[0]
        for saver in graph.get_collection(GraphKeys.SAVERS)
    }
    return sorted(scope for scope in scopes if scope and scope != kept)


def _scoped_graph_def(
    graph_def: Any, scope: str | None, clear_devices: bool, is_excluded: Callable[[str], bool]
) -> tuple[Any, list[str]]:
    """The nodes below a scope, their names without it, and the inputs that are left open."""
    part = protos.GraphDef()
    part.versions.CopyFrom(graph_def.versions)
    part.library.CopyFrom(graph_def.library)
    unbound: dict[str, None] = {}
    for node in graph_def.node:
        if in_scope(node.name, scope) and not is_excluded(node.name):
            part.node.append(_scoped_node(node, scope, unbound))
    if clear_devices:
        for node in _all_nodes(part):
            node.device = ""
    return part, list(unbound)


def _scoped_node(node: Any, scope: str | None, unbound: dict[str, None]) -> Any:
    copied = type(node)()
    copied.CopyFrom(node)
    copied.name = strip_scope(node.name, scope)
    for index, source in enumerate(node.input):
        control, name = ("^", source[1:]) if source.startswith("^") else ("", source)
        if in_scope(name, scope):
            copied.input[index] = control + strip_scope(name, scope)
        else:
            copied.input[index] = f"{control}{_UNBOUND}{name}"
            unbound[copied.input[index]] = None
    if scope and "_class" in node.attr:
        groups = [as_str(group).removeprefix("loc:@") for group in node.attr["_class"].list.s]
        kept = [f"loc:@{strip_scope(g, scope)}".encode() for g in groups if in_scope(g, scope)]
        copied.attr["_class"].list.s[:] = kept
    return copied


def create_meta_graph_def(
    meta_info_def: Any = None,
    graph_def: Any = None,
    saver_def: Any = None,
    collection_list: Iterable[Any] | None = None,
    graph: Graph | None = None,
    export_scope: str | None = None,
    exclude_nodes: Any = None,
    clear_extraneous_savers: bool = False,
    strip_default_attrs: bool = False,
) -> Any:
    """A MetaGraphDef of a graph, its collections and its saver."""
    if graph is not None and not isinstance(graph, Graph):  # pyright: ignore[reportUnnecessaryIsInstance] - user input
        raise TypeError(f"graph must be of type Graph, not {type(graph)}")
    graph = graph or get_default_graph()
    created = protos.MetaGraphDef()
    _merge_given(created, "meta_info_def", meta_info_def)
    _merge_given(created, "graph_def", graph_def)
    _merge_given(created, "saver_def", saver_def)
    created.meta_info_def.tensorflow_version = __version__
    created.meta_info_def.tensorflow_git_version = versions.GIT_VERSION
    if graph_def is None:
        created.graph_def.MergeFrom(graph.as_graph_def(add_shapes=True))
    if not created.meta_info_def.stripped_op_list.op:
        created.meta_info_def.stripped_op_list.MergeFrom(
            stripped_op_list_for_graph(created.graph_def)
        )
    if strip_default_attrs:
        strip_graph_default_valued_attrs(created)
    named = [key for key in graph.get_all_collection_keys() if isinstance(key, str | bytes)]
    for key in collection_list or named:
        if clear_extraneous_savers and key == GraphKeys.SAVERS:
            continue
        add_collection_def(created, key, graph=graph, export_scope=export_scope)
    if not export_scope:
        _describe_control_nodes(created, graph)
    return created


def _describe_control_nodes(created: Any, graph: Graph) -> None:
    found = control_nodes.described(graph, created.graph_def)
    if found:
        created.collection_def[control_nodes.COLLECTION].bytes_list.value.extend(found)


def _merge_given(created: Any, name: str, given: Any) -> None:
    """Put what a caller gave, if anything, into the field of that name."""
    if given is None:
        return
    field = getattr(created, name)
    if not protos.is_message(given, type(field)):
        raise TypeError(f"{name} must be of type {type(field).__name__}, not {type(given)}")
    field.MergeFrom(protos.as_message(given, type(field)))


def _write_debug_info(graph: Graph, folder: str, name: str, as_text: bool) -> None:
    """Where the user's code made each node, beside the graph: `debug/<stem>.debug` as TF has it."""
    info = protos.GraphDebugInfo()
    places: dict[str, int] = {}
    for node in graph.nodes:
        (file, line, _, _), *_ = node.traceback
        index = places.setdefault(file, len(places))
        info.traces[f"{node.name}@"].file_line_cols.add(file_index=index, line=line)
    info.files.extend(places)
    write_graph(info, os.path.join(folder, "debug"), f"{name}.debug", as_text=as_text)


# Collections


def add_collection_def(
    meta_graph_def: Any, key: Any, graph: Graph | None = None, export_scope: str | None = None
) -> None:
    """Write a collection to a MetaGraphDef; one that cannot be written is left out."""
    if graph is not None and not isinstance(graph, Graph):  # pyright: ignore[reportUnnecessaryIsInstance] - user input
        raise TypeError(f"graph must be of type Graph, not {type(graph)}")
    if not isinstance(key, str | bytes):
        tf_logging.warning(
            "Only collections with string type keys will be serialized. This key is %s", key
        )
        return
    name = as_str(key)
    items = (graph or get_default_graph()).get_collection(key)
    items = [item for item in items if _is_exported(item, export_scope)]
    if not items:
        return
    try:
        conversion = conversion_of(name)
        written = protos.CollectionDef()
        if conversion is not None and conversion.to_proto is not None:
            _write_protos(written, items, conversion, export_scope)
        else:
            _write_items(written, items, export_scope)
        meta_graph_def.collection_def[name].CopyFrom(written)
    except (AttributeError, TypeError, ValueError, AssertionError) as error:
        tf_logging.warning(
            "The collection %s cannot be written: its items are of no one kind that a "
            "CollectionDef has (%s)",
            name,
            error,
        )


def _is_exported(item: Any, scope: str | None) -> bool:
    name = item if isinstance(item, str) else getattr(item, "name", None)
    if not isinstance(name, str) or name.startswith((_UNBOUND, f"^{_UNBOUND}")):
        return True
    return in_scope(name, scope)


def _write_protos(
    written: Any, items: Sequence[Any], conversion: Conversion, scope: str | None
) -> None:
    to_proto = cast("Callable[..., Any]", conversion.to_proto)
    for item in items:
        proto = to_proto(item, export_scope=scope)
        if proto is not None:
            written.bytes_list.value.append(proto.SerializeToString())


def _write_items(written: Any, items: Sequence[Any], scope: str | None) -> None:
    kind = _kind(items[0])
    if kind == "any_list":  # of protobuf's own class, which is not that of our pool
        for item in items:
            written.any_list.value.add(type_url=item.type_url, value=item.value)
        return
    values: list[Any] = list(items)
    if kind == "node_list":
        values = [strip_scope(item.name, scope) for item in items]
    elif kind == "bytes_list":
        values = [as_bytes(item) for item in items]
    getattr(written, kind).value.extend(values)


def _kind(item: Any) -> str:
    """The field of a CollectionDef for items like this one."""
    if isinstance(item, str | bytes):
        return "bytes_list"
    if isinstance(item, int):
        return "int64_list"
    if isinstance(item, float):
        return "float_list"
    descriptor: Any = getattr(item, "DESCRIPTOR", None)
    return "any_list" if getattr(descriptor, "name", "") == "Any" else "node_list"


def _restore_collection(graph: Graph, key: str, stored: Any, scope: str | None) -> None:
    kind = stored.WhichOneof("kind")
    if kind is None:
        tf_logging.error("Cannot identify data type for collection %s. Skipping.", key)
        return
    conversion = conversion_of(key)
    from_proto = None if conversion is None else conversion.from_proto
    values = getattr(stored, kind).value
    for value in values:
        if conversion is not None and from_proto is not None and kind == "bytes_list":
            proto = _decoded(conversion.message(), value, key)
            graph.add_to_collection(key, from_proto(proto, import_scope=scope))
        elif kind == "node_list":
            graph.add_to_collection(key, graph.as_graph_element(with_scope(value, scope)))
        else:
            graph.add_to_collection(key, value)


def _decoded(proto: Any, content: bytes, key: str) -> Any:
    from google.protobuf.message import DecodeError

    try:
        proto.ParseFromString(content)
    except DecodeError as error:
        raise ValueError(f"The collection {key} of the MetaGraphDef is damaged: {error}") from error
    return proto


# Import


def read_meta_graph_file(filename: str) -> Any:
    """The MetaGraphDef in a file, binary or text."""
    return read_proto(os.fsdecode(filename), protos.MetaGraphDef)


def as_meta_graph(meta_graph_or_file: Any) -> Any:
    """A MetaGraphDef, given as it is or by the name of its file."""
    if protos.is_message(meta_graph_or_file, protos.MetaGraphDef):
        return protos.as_message(meta_graph_or_file, protos.MetaGraphDef)
    return read_meta_graph_file(meta_graph_or_file)


def read_proto(filename: str, kind: Any) -> Any:
    """A message from a file, binary or text; an IOError if it is neither."""
    from google.protobuf import message as messages
    from google.protobuf import text_format

    if not os.path.isfile(filename):
        raise OSError(f"File {filename} does not exist.")
    with open(filename, "rb") as file:
        content = file.read()
    try:
        return kind.FromString(content)
    except messages.DecodeError:
        pass
    try:
        return text_format.Parse(content.decode(), kind())
    except (text_format.ParseError, UnicodeDecodeError) as error:
        name = kind.DESCRIPTOR.name
        raise OSError(
            f"Cannot parse file {filename}: neither the bytes nor the text of a {name} ({error})."
        ) from error


def import_scoped_meta_graph(
    meta_graph_or_file: Any,
    clear_devices: bool = False,
    graph: Graph | None = None,
    import_scope: str | None = None,
    input_map: Mapping[str, Any] | None = None,
    unbound_inputs_col_name: str | None = _UNBOUND_COLLECTION,
    restore_collections_predicate: Callable[[str], bool] = lambda key: True,
) -> dict[str, Any]:
    """Add the graph and the collections of a MetaGraphDef; returns the variables by name."""
    variables, _ = import_scoped_meta_graph_with_return_elements(
        meta_graph_or_file,
        clear_devices,
        graph,
        import_scope,
        input_map,
        unbound_inputs_col_name,
        restore_collections_predicate,
    )
    return variables


def import_scoped_meta_graph_with_return_elements(
    meta_graph_or_file: Any,
    clear_devices: bool = False,
    graph: Graph | None = None,
    import_scope: str | None = None,
    input_map: Mapping[str, Any] | None = None,
    unbound_inputs_col_name: str | None = _UNBOUND_COLLECTION,
    restore_collections_predicate: Callable[[str], bool] = lambda key: True,
    return_elements: Sequence[str] | None = None,
) -> tuple[dict[str, Any], list[Any] | None]:
    """As `import_scoped_meta_graph`; also gives the nodes and tensors of some names."""
    proto = as_meta_graph(meta_graph_or_file)
    if unbound_inputs_col_name:
        _check_bound(proto, unbound_inputs_col_name, input_map or {})
    graph = graph or get_default_graph()
    with graph.as_default():
        elements = _import_nodes(proto, clear_devices, import_scope, input_map, return_elements)
        scope = _entered_scope(graph, import_scope)
        for key, stored in sorted(proto.collection_def.items()):
            is_own = key in (unbound_inputs_col_name, control_nodes.COLLECTION)
            if not is_own and restore_collections_predicate(key):
                _restore_collection(graph, key, stored, scope)
    return _variables_below(graph, scope), elements


def _import_nodes(
    proto: Any,
    clear_devices: bool,
    scope: str | None,
    input_map: Mapping[str, Any] | None,
    wanted: Sequence[str] | None,
) -> list[Any] | None:
    graph_def = _with_control_nodes(proto, [*(input_map or ()), *(wanted or ())])
    if clear_devices:
        for node in _all_nodes(graph_def):
            node.device = ""
    has_ops = proto.meta_info_def.HasField("stripped_op_list")
    ops = proto.meta_info_def.stripped_op_list if has_ops else None
    return import_graph_def(
        graph_def,
        name=scope or "",
        input_map=input_map,
        producer_op_list=ops,
        return_elements=wanted,
    )


def _with_control_nodes(proto: Any, named: Iterable[str]) -> Any:
    if control_nodes.COLLECTION not in proto.collection_def:
        return proto.graph_def
    described = proto.collection_def[control_nodes.COLLECTION].bytes_list.value
    names = {as_str(name).removeprefix("^").partition(":")[0] for name in named}
    return control_nodes.rebuild_control_nodes(proto.graph_def, described, names)


def _all_nodes(graph_def: Any) -> Iterator[Any]:
    """The nodes of a GraphDef, and those of its functions."""
    yield from graph_def.node
    for function in graph_def.library.function:
        yield from function.node_def


def _entered_scope(graph: Graph, scope: str | None) -> str | None:
    """The scope as the nodes have it: inside the one that is open."""
    outer = graph.get_name_scope()
    return f"{outer}/{scope}" if outer and scope else scope or outer or None


def _check_bound(proto: Any, collection: str, input_map: Mapping[str, Any]) -> None:
    if collection not in proto.collection_def:
        return
    stored = proto.collection_def[collection]
    names = [as_str(value) for value in getattr(stored, stored.WhichOneof("kind")).value]
    if names and sorted(names) != sorted(input_map):
        raise ValueError(
            f"Graph contains unbound inputs: {','.join(names)}. Must provide these inputs through "
            "input_map."
        )


def copy_scoped_meta_graph(
    from_scope: str,
    to_scope: str,
    from_graph: Graph | None = None,
    to_graph: Graph | None = None,
) -> dict[str, Any]:
    """Copy what is below a scope to another scope or graph; returns the new variables by name."""
    from_graph, to_graph = from_graph or get_default_graph(), to_graph or get_default_graph()
    if from_graph is to_graph and from_scope == to_scope:
        raise ValueError(
            "'from_scope' and 'to_scope' need to be different when performing copy in the same "
            "graph."
        )
    exported, _ = export_scoped_meta_graph(export_scope=from_scope, graph=from_graph)
    return import_scoped_meta_graph(exported, graph=to_graph, import_scope=to_scope)
