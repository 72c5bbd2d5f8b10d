"""Meta graphs that TensorFlow loads: without ops that only this library has.

Lists become TensorFlow's own lists (`TensorList…`). Ops of this library that only training needs
(those of some gradients) are removed with all nodes that depend on them. A separate collection
stores the original nodes, from which `whole` restores the graph.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

from thalweg import protos
from thalweg.graph.dtypes import int32
from thalweg.graph.graphdef import attributes
from thalweg.graph.graphdef.node_defs import node_name
from thalweg.graph.graphdef.tensor_proto import make_tensor_proto
from thalweg.graph.node import reached
from thalweg.graph.op import REGISTRY
from thalweg.platform import tf_logging
from thalweg.public import public

COLLECTION = "thalweg_nodes"


def make_portable(meta: Any) -> None:
    """Rewrite a MetaGraphDef so that TensorFlow loads it; warn where nodes that a reader looks for
    need others that cannot be rewritten."""
    graph = meta.graph_def
    if not any(_is_private(node.op) for node in graph.node):
        return
    before = protos.GraphDef()
    before.CopyFrom(graph)
    made = [node for original in graph.node for node in _rewritten(original)]
    gone = _left_out(made, set(_pinned(meta)))
    del graph.node[:]
    graph.node.extend(node for node in made if node.name not in gone)
    kept = protos.MetaGraphDef()
    kept.graph_def.node.extend(before.node)
    for key in [*meta.collection_def]:
        nodes = meta.collection_def[key].node_list.value
        present = [name for name in nodes if name.partition(":")[0] not in gone]
        if len(present) < len(nodes):
            kept.collection_def[key].CopyFrom(meta.collection_def[key])
            del nodes[:]
            nodes.extend(present)
    meta.collection_def[COLLECTION].bytes_list.value.append(kept.SerializeToString())


@public("graph_util.portable")
def portable(graph_def: protos.GraphDef) -> protos.GraphDef:
    """A GraphDef without ops that only this library has: TensorFlow and its tools can load it.

    What `tf.graph_util.freeze` and `convert_variables_to_constants` give has conditionals and loops
    as TensorFlow 1 has them; this turns the lists in them into TensorFlow's too.

    Args:
        graph_def: a `tf.GraphDef`.

    Returns:
        Another `tf.GraphDef`.

    Raises:
        ValueError: where a node is of an op that cannot be written otherwise.

    Example:
        >>> rows = tf.map_fn(lambda row: row * 2.0, tf.ones([3, 2]))
        >>> graph_def = tf.graph_util.portable(tf.get_default_graph().as_graph_def())
        >>> any(node.op == "TensorListReserve" for node in graph_def.node)
        True
    """
    given = protos.as_message(graph_def, protos.GraphDef)
    made = protos.GraphDef(versions=given.versions, library=given.library)
    made.node.extend(node for original in given.node for node in _rewritten(original))
    private = [node for node in made.node if _is_private(node.op)]
    if private:
        shown = ", ".join(f"{node.name} ({node.op})" for node in private[:5])
        raise ValueError(f"{len(private)} nodes are of ops that only Thalweg has: {shown}")
    return made


def whole(meta: Any) -> Any:
    """A MetaGraphDef as it was before `make_portable`."""
    if COLLECTION not in meta.collection_def:
        return meta
    from google.protobuf.message import DecodeError

    try:
        kept = protos.MetaGraphDef.FromString(
            b"".join(meta.collection_def[COLLECTION].bytes_list.value)
        )
    except DecodeError:
        return meta
    meta_graph_def = protos.MetaGraphDef()
    meta_graph_def.CopyFrom(meta)
    del meta_graph_def.collection_def[COLLECTION]
    del meta_graph_def.graph_def.node[:]
    meta_graph_def.graph_def.node.extend(kept.graph_def.node)
    for key in kept.collection_def:
        meta_graph_def.collection_def[key].CopyFrom(kept.collection_def[key])
    return meta_graph_def


def _is_private(op: str) -> bool:
    block = REGISTRY.get(op)
    return block is not None and block.private


def _pinned(meta: Any) -> Iterator[str]:
    """The nodes that readers refer to: those of savers, signatures, variables, main ops."""
    saver = meta.saver_def
    yield from (saver.filename_tensor_name, saver.save_tensor_name, saver.restore_op_name)
    for signature in meta.signature_def.values():
        for info in [*signature.inputs.values(), *signature.outputs.values()]:
            yield info.name
    for key, collection in meta.collection_def.items():
        if "variables" in key:
            for content in collection.bytes_list.value:
                variable = protos.VariableDef.FromString(content)
                yield from (variable.variable_name, variable.initializer_name)
                yield variable.snapshot_name
        if key in ("saved_model_main_op", "legacy_init_op"):
            yield from collection.node_list.value


def _left_out(nodes: list[Any], needed: set[str]) -> set[str]:
    """Nodes of private ops with all that depends on them, unless something needed does."""
    sources = {node.name: [node_name(source) for source in node.input] for node in nodes}
    users: defaultdict[str, list[str]] = defaultdict(list)
    for name, names in sources.items():
        for source in names:
            users[source].append(name)
    wanted = reached(map(node_name, needed), lambda name: sources.get(name, ()))
    private = {node.name: node.op for node in nodes if _is_private(node.op)}
    kept = {name: op for name, op in private.items() if name in wanted}
    if kept:
        shown = ", ".join(f"{name} ({op})" for name, op in list(kept.items())[:5])
        tf_logging.warning(
            "TensorFlow will not load this graph: %d nodes are of ops that it lacks: %s",
            len(kept),
            shown,
        )
    return reached(private.keys() - kept.keys(), users.__getitem__)


# Lists


class _AuxiliaryNodes:
    """Constants that a rewritten node needs, in the frame of the node's first input."""

    def __init__(self, node: Any) -> None:
        self._node = node
        self.made: list[Any] = []

    def constant(self, name: str, value: Any) -> str:
        """A constant; its name."""
        made = protos.NodeDef(name=f"{self._node.name}/{name}", op="Const")
        made.device = self._node.device
        made.input.append(f"^{self._node.input[0].lstrip('^').partition(':')[0]}")
        tensor = make_tensor_proto(value)
        made.attr["dtype"].type = tensor.dtype
        made.attr["value"].tensor.CopyFrom(tensor)
        self.made.append(made)
        return made.name

    def shape(self) -> str:
        """The shape of the list's elements, as far as the node knows it."""
        stated = self._node.attr["element_shape"].shape
        if "element_shape" not in self._node.attr or stated.unknown_rank:
            return self.constant("element_shape", np.int32(-1))
        sizes = np.array([max(-1, dim.size) for dim in stated.dim], np.int32)
        return self.constant("element_shape", sizes)

    def node(self, name: str, op: str, inputs: list[str], **attrs: Any) -> Any:
        """A node in the place of the list's."""
        node_def = protos.NodeDef(name=name, op=op, device=self._node.device)
        controls = [source for source in self._node.input if source.startswith("^")]
        node_def.input.extend([*inputs, *controls])
        for key in ("_class", "_output_shapes"):
            if key in self._node.attr and name == self._node.name:
                node_def.attr[key].CopyFrom(self._node.attr[key])
        if op != "TensorListLength":
            node_def.attr["element_dtype"].CopyFrom(self._node.attr["dtype"])
        for key, value in attrs.items():
            node_def.attr[key].CopyFrom(attributes.encode(value))
        self.made.append(node_def)
        return node_def


def _new(node: Any, beside: _AuxiliaryNodes) -> None:
    inputs = [beside.shape(), node.input[0]]
    beside.node(node.name, "TensorListReserve", inputs, shape_type=int32)


def _write(node: Any, beside: _AuxiliaryNodes) -> None:
    beside.node(
        node.name,
        "TensorListSetItem",
        list(node.input[:3]),
        resize_if_index_out_of_bounds=True,
    )


def _read(node: Any, beside: _AuxiliaryNodes) -> None:
    beside.node(node.name, "TensorListGetItem", [*node.input[:2], beside.shape()])


def _gather(node: Any, beside: _AuxiliaryNodes) -> None:
    beside.node(node.name, "TensorListGather", [*node.input[:2], beside.shape()])


def _scatter(node: Any, beside: _AuxiliaryNodes) -> None:
    entries, indices, value = node.input[:3]
    beside.node(node.name, "TensorListScatterIntoExistingList", [entries, value, indices])


def _stack(node: Any, beside: _AuxiliaryNodes) -> None:
    cut = protos.NodeDef(name=f"{node.name}/first", op="TensorListResize", device=node.device)
    cut.input.extend(node.input[:2])
    beside.made.append(cut)
    beside.node(node.name, "TensorListStack", [cut.name, beside.shape()], num_elements=-1)


def _unstack(node: Any, beside: _AuxiliaryNodes) -> None:
    inputs = [node.input[1], beside.constant("element_shape", np.int32(-1))]
    beside.node(node.name, "TensorListFromTensor", inputs, shape_type=int32)


def _concat(node: Any, beside: _AuxiliaryNodes) -> None:
    lengths = beside.constant("leading_dims", np.zeros(0, np.int64))
    beside.node(
        node.name, "TensorListConcatV2", [node.input[0], beside.shape(), lengths], shape_type=int32
    )


def _split(node: Any, beside: _AuxiliaryNodes) -> None:
    shape = beside.constant("element_shape", np.int32(-1))
    inputs = [node.input[1], shape, node.input[2]]
    beside.node(node.name, "TensorListSplit", inputs, shape_type=int32)


def _size(node: Any, beside: _AuxiliaryNodes) -> None:
    beside.node(node.name, "TensorListLength", [node.input[0]])


_LISTS: dict[str, Callable[[Any, _AuxiliaryNodes], None]] = {
    "TensorArrayNew": _new,
    "TensorArrayWrite": _write,
    "TensorArrayRead": _read,
    "TensorArrayGather": _gather,
    "TensorArrayScatter": _scatter,
    "TensorArrayStack": _stack,
    "TensorArrayUnstack": _unstack,
    "TensorArrayConcat": _concat,
    "TensorArraySplit": _split,
    "TensorArraySize": _size,
}


def _rewritten(node: Any) -> list[Any]:
    rewrite = _LISTS.get(node.op)
    if rewrite is None:
        return [node]
    beside = _AuxiliaryNodes(node)
    rewrite(node, beside)
    return beside.made
