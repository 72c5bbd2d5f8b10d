"""Saved models: graphs for several uses, their variables and the files they need, in one folder.

`SavedModelBuilder` writes `saved_model.pb`, `variables/` (a checkpoint) and `assets/`; `load` adds
the graph with the wanted tags to a session and restores it.
"""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from thalweg import protos
from thalweg.graph.collections import GraphKeys
from thalweg.graph.context import Runner
from thalweg.graph.graph import get_default_graph
from thalweg.graph.known import constant_value
from thalweg.graph.node import Node, Tensor
from thalweg.ops.core import basic
from thalweg.platform import tf_logging
from thalweg.platform.compat import as_bytes, as_str
from thalweg.platform.files import gfile
from thalweg.platform.files.durable import replace_file
from thalweg.public import public, publish_value
from thalweg.saved.checkpoint_state import checkpoint_exists
from thalweg.saved.checkpoints import export_tensorflow_checkpoint
from thalweg.saved.meta_graph import read_proto
from thalweg.saved.object_graph import unrestored_variables
from thalweg.saved.portable import make_portable, whole
from thalweg.saved.saver import Saver, import_meta_graph_with_return_elements
from thalweg.saved.signatures import (
    DEFAULT_SERVING_SIGNATURE_DEF_KEY,
    SERVING,
    predict_signature_def,
)
from thalweg.variables.collections import (
    global_variables_initializer,
    local_variables_initializer,
    tables_initializer,
)
from thalweg.variables.save_slice import with_scope

ASSETS_DIRECTORY = "assets"
ASSETS_KEY = "saved_model_assets"
LEGACY_INIT_OP_KEY = "legacy_init_op"
MAIN_OP_KEY = "saved_model_main_op"
INIT_OP_KEY = "__saved_model_init_op"  # a signature whose output is the node to run
TRAIN_OP_KEY = "saved_model_train_op"
SAVED_MODEL_SCHEMA_VERSION = 1
SAVED_MODEL_FILENAME_PB = "saved_model.pb"
SAVED_MODEL_FILENAME_PBTXT = "saved_model.pbtxt"
VARIABLES_DIRECTORY = "variables"
VARIABLES_FILENAME = "variables"

for _name in (
    "ASSETS_DIRECTORY",
    "ASSETS_KEY",
    "LEGACY_INIT_OP_KEY",
    "MAIN_OP_KEY",
    "SAVED_MODEL_SCHEMA_VERSION",
    "SAVED_MODEL_FILENAME_PB",
    "SAVED_MODEL_FILENAME_PBTXT",
    "VARIABLES_DIRECTORY",
    "VARIABLES_FILENAME",
):
    publish_value(f"saved_model.constants.{_name}", globals()[_name])
    publish_value(f"saved_model.{_name}", globals()[_name])


@public("saved_model.builder.SavedModelBuilder", "saved_model.Builder")
class SavedModelBuilder:
    """Writes a saved model: a graph with its variables, then graphs for other uses of them.

    Args:
        export_dir: the folder, which must not exist.

    Example:
        >>> x = tf.placeholder(tf.float32, [], name="x")
        >>> y = tf.multiply(x, tf.Variable(2.0), name="y")
        >>> sess.run(tf.global_variables_initializer())
        >>> builder = tf.saved_model.builder.SavedModelBuilder("export")
        >>> builder.add_meta_graph_and_variables(sess, [tf.saved_model.tag_constants.SERVING])
        >>> path = builder.save()
        >>> with tf.Session(graph=tf.Graph()) as session:
        ...     model = tf.saved_model.loader.load(session, ["serve"], "export")
        ...     session.run("y:0", {"x:0": 3.0})
        np.float32(6.0)
    """

    def __init__(self, export_dir: str) -> None:
        self._export_dir = os.fsdecode(export_dir)
        self._saved_model = protos.SavedModel(saved_model_schema_version=SAVED_MODEL_SCHEMA_VERSION)
        if os.path.exists(self._export_dir) and os.listdir(self._export_dir):
            raise AssertionError(
                "Export directory already exists, and isn't empty. Please choose a different "
                f"export directory, or delete all the contents of the specified directory: "
                f"{self._export_dir}"
            )
        gfile.MakeDirs(self._export_dir)
        self._has_saved_variables = False

    def add_meta_graph_and_variables(
        self,
        sess: Runner,
        tags: Iterable[str],
        signature_def_map: Mapping[str, Any] | None = None,
        assets_collection: Sequence[Tensor] | None = None,
        legacy_init_op: Node | None = None,
        clear_devices: bool = False,
        main_op: Node | None = None,
        strip_default_attrs: bool = False,
        saver: Saver | None = None,
        assets_list: Sequence[Tensor] | None = None,
        init_op: Node | None = None,
        train_op: Node | Tensor | None = None,
    ) -> None:
        """Add the default graph under some tags, and save the variables of a session."""
        if self._has_saved_variables:
            raise AssertionError(
                "Graph state including variables and assets has already been saved. Please invoke "
                "`add_meta_graph()` instead."
            )
        _check_signatures(signature_def_map)
        _add_main_op(main_op or init_op, legacy_init_op, train_op)
        self._write_assets(assets_collection or assets_list)
        folder = os.path.join(self._export_dir, VARIABLES_DIRECTORY)
        gfile.MakeDirs(folder)
        saver = saver or _default_saver()
        path = os.path.join(folder, VARIABLES_FILENAME)
        _save_variables(saver, sess, path)
        self._add(saver, tags, signature_def_map, clear_devices, strip_default_attrs)
        self._has_saved_variables = True

    def add_meta_graph(
        self,
        tags: Iterable[str],
        signature_def_map: Mapping[str, Any] | None = None,
        assets_collection: Sequence[Tensor] | None = None,
        legacy_init_op: Node | None = None,
        clear_devices: bool = False,
        main_op: Node | None = None,
        strip_default_attrs: bool = False,
        saver: Saver | None = None,
        assets_list: Sequence[Tensor] | None = None,
        init_op: Node | None = None,
        train_op: Node | Tensor | None = None,
    ) -> None:
        """Add the default graph under other tags; it shares the variables saved before."""
        if not self._has_saved_variables:
            raise AssertionError(
                "Graph state including variables and assets has not been saved yet. Please invoke "
                "`add_meta_graph_and_variables()` first."
            )
        _check_signatures(signature_def_map)
        _add_main_op(main_op or init_op, legacy_init_op, train_op)
        self._write_assets(assets_collection or assets_list)
        saver = saver or _default_saver()
        self._add(saver, tags, signature_def_map, clear_devices, strip_default_attrs)

    def _add(
        self,
        saver: Saver,
        tags: Iterable[str],
        signatures: Mapping[str, Any] | None,
        clear_devices: bool,
        strip_default_attrs: bool,
    ) -> None:
        graph = saver.export_meta_graph(
            clear_devices=clear_devices, strip_default_attrs=strip_default_attrs
        )
        graph.meta_info_def.tags.extend(tags)
        for key, signature in (signatures or {}).items():
            given = protos.as_message(signature, protos.SignatureDef)
            graph.signature_def[key].CopyFrom(given)
        make_portable(graph)
        self._saved_model.meta_graphs.add().CopyFrom(graph)

    def _write_assets(self, tensors: Sequence[Tensor] | None) -> None:
        """Copy the files that constants name; one of the same name is copied once."""
        folder = os.path.join(self._export_dir, ASSETS_DIRECTORY)
        for tensor in tensors or ():
            source = _asset_path(tensor)
            name = os.path.basename(source)
            _add_asset(name, tensor)
            gfile.MakeDirs(folder)
            if not os.path.exists(os.path.join(folder, name)):
                shutil.copyfile(source, os.path.join(folder, name))
        tf_logging.info("%s", f"Assets written to: {folder}" if tensors else "No assets to write.")

    def save(self, as_text: bool = False) -> bytes:
        """Write the saved model; returns the path of its file."""
        name = SAVED_MODEL_FILENAME_PBTXT if as_text else SAVED_MODEL_FILENAME_PB
        path = os.path.join(self._export_dir, name)
        content = str(self._saved_model).encode() if as_text else None
        replace_file(path, self._saved_model.SerializeToString() if content is None else content)
        tf_logging.info("SavedModel written to: %s", path)
        return as_bytes(path)


def _save_variables(saver: Saver, sess: Runner, prefix: str) -> None:
    """Save the variables of a session as TensorFlow does, which reads no other files."""
    with tempfile.TemporaryDirectory(dir=os.path.dirname(prefix)) as beside:
        written = os.path.join(beside, VARIABLES_FILENAME)
        saver.save(sess, written, write_meta_graph=False, write_state=False)
        if checkpoint_exists(written):
            export_tensorflow_checkpoint(written, prefix)


def _default_saver() -> Saver:
    return Saver(sharded=True, allow_empty=True)


def _check_signatures(signatures: Mapping[str, Any] | None) -> None:
    for signature in (signatures or {}).values():
        for info in [*signature.inputs.values(), *signature.outputs.values()]:
            if not info.WhichOneof("encoding"):
                raise AssertionError(
                    "All TensorInfo protos used in the SignatureDefs must have one of the "
                    "'encoding' fields (e.g., name or coo_sparse) set."
                )


def _add_main_op(main_op: Any, legacy_init_op: Any, train_op: Any) -> None:
    graph = get_default_graph()
    if train_op is not None:
        if not isinstance(train_op, Node | Tensor):
            raise TypeError(f"train_op needs to be a Tensor or Op: {train_op!r}")
        graph.add_to_collection(TRAIN_OP_KEY, train_op)
    for name, key, node in (
        ("main_op", MAIN_OP_KEY, main_op),
        ("legacy_init_op", LEGACY_INIT_OP_KEY, legacy_init_op if main_op is None else None),
    ):
        if node is None:
            continue
        if not isinstance(node, Node):
            raise TypeError(f"{name} needs to be an Operation: {node!r}")
        if graph.get_collection(key):
            raise ValueError(f"graph already contains one or more ops under the collection {key}.")
        graph.add_to_collection(key, node)


def _asset_path(tensor: Any) -> str:
    if not isinstance(tensor, Tensor):
        raise TypeError(f"Asset path tensor must be a Tensor: {tensor!r}")
    if tensor.op.type != "Const":
        raise TypeError(f"Asset path tensor must be of type constant: {tensor!r}")
    if tensor.dtype.base_dtype.name != "string":
        raise TypeError(f"Asset path tensor must be of dtype string: {tensor!r}")
    value = constant_value(tensor)
    if value is None or value.size != 1:
        raise TypeError(f"Asset path tensor must be a scalar: {tensor!r}")
    path = as_str(value.item())
    if not path:
        raise ValueError(f"Invalid asset filepath tensor: {tensor!r}")
    return path


def _add_asset(filename: str, tensor: Tensor) -> None:
    from google.protobuf.any_pb2 import Any as AnyMessage

    asset = protos.AssetFileDef(filename=filename)
    asset.tensor_info.name = tensor.name
    packed = AnyMessage()
    packed.Pack(asset)
    get_default_graph().add_to_collection(ASSETS_KEY, packed)


@public("saved_model.simple_save")
def simple_save(
    session: Runner,
    export_dir: str,
    inputs: Mapping[str, Any],
    outputs: Mapping[str, Any],
    legacy_init_op: Node | None = None,
) -> None:
    """Save a graph for serving, with one signature.

    Args:
        session: the session with the values of the variables.
        export_dir: the folder, which must not exist.
        inputs: a dict from names to the tensors to feed.
        outputs: a dict from names to the tensors to fetch.
        legacy_init_op: a node to run when the model is loaded.

    Example:
        >>> x = tf.placeholder(tf.float32, [None, 2])
        >>> y = tf.layers.dense(x, 1)
        >>> sess.run(tf.global_variables_initializer())
        >>> tf.saved_model.simple_save(sess, "export", inputs={"x": x}, outputs={"y": y})
        >>> sorted(tf.gfile.ListDirectory("export"))
        ['saved_model.pb', 'variables']
    """
    signature = predict_signature_def(inputs, outputs)
    builder = SavedModelBuilder(export_dir)
    builder.add_meta_graph_and_variables(
        session,
        tags=[SERVING],
        signature_def_map={DEFAULT_SERVING_SIGNATURE_DEF_KEY: signature},
        assets_collection=get_default_graph().get_collection(GraphKeys.ASSET_FILEPATHS),
        main_op=legacy_init_op,
        clear_devices=True,
    )
    builder.save()


# Loading


@public(
    "saved_model.loader.maybe_saved_model_directory",
    "saved_model.maybe_saved_model_directory",
    "saved_model.contains_saved_model",
)
def maybe_saved_model_directory(export_dir: str) -> bool:
    """Whether a folder has the file of a saved model."""
    names = (SAVED_MODEL_FILENAME_PBTXT, SAVED_MODEL_FILENAME_PB)
    return any(os.path.exists(os.path.join(os.fsdecode(export_dir), name)) for name in names)


def read_saved_model(export_dir: str) -> Any:
    """The SavedModel message of a folder."""
    path = saved_model_file(export_dir)
    model = read_proto(path, protos.SavedModel)
    if model.saved_model_schema_version > SAVED_MODEL_SCHEMA_VERSION:
        raise ValueError(
            f"{path} has the schema version {model.saved_model_schema_version}; known are those up "
            f"to {SAVED_MODEL_SCHEMA_VERSION}"
        )
    return model


def saved_model_file(export_dir: str) -> str:
    """The file of a saved model that a folder has."""
    for name in (SAVED_MODEL_FILENAME_PB, SAVED_MODEL_FILENAME_PBTXT):
        path = os.path.join(export_dir, name)
        if os.path.exists(path):
            return path
    raise OSError(
        f"SavedModel file does not exist at: {export_dir}/"
        f"{{{SAVED_MODEL_FILENAME_PBTXT}|{SAVED_MODEL_FILENAME_PB}}}"
    )


@public("saved_model.loader.load", "saved_model.load")
def load(
    sess: Runner,
    tags: Iterable[str],
    export_dir: str,
    import_scope: str | None = None,
    **saver_kwargs: Any,
) -> protos.MetaGraphDef:
    """Add the graph with just these tags to a session's graph, and restore it there.

    Args:
        sess: the session.
        tags: a list of tags, such as `[tf.saved_model.tag_constants.SERVING]`.
        export_dir: the folder of the saved model.
        import_scope: a scope to put in front of all names.
        saver_kwargs: as for `tf.train.import_meta_graph`.

    Returns:
        The MetaGraphDef, with the signatures.

    Example:
        >>> x = tf.placeholder(tf.float32, [], name="x")
        >>> y = tf.multiply(x, tf.Variable(2.0), name="y")
        >>> sess.run(tf.global_variables_initializer())
        >>> tf.saved_model.simple_save(sess, "export", {"x": x}, {"y": y})
        >>> with tf.Session(graph=tf.Graph()) as session:
        ...     model = tf.saved_model.load(session, ["serve"], "export")
        ...     session.run("y:0", {"x:0": 3.0})
        np.float32(6.0)
    """
    folder = os.fsdecode(export_dir)
    proto = _with_tags(read_saved_model(folder), set(tags))
    with sess.graph.as_default():
        saver, _ = import_meta_graph_with_return_elements(
            whole(proto), import_scope=import_scope, **saver_kwargs
        )
        path = os.path.join(folder, VARIABLES_DIRECTORY, VARIABLES_FILENAME)
        if saver is not None:
            saver.restore(sess, path)
            others = unrestored_variables(proto, path, sess.graph, import_scope)
            if others:
                Saver(others, name="restored_objects").restore(sess, path)
        main_op = _main_op(proto, import_scope)
        if main_op is not None:
            sess.run([main_op], feed_dict=_assets(folder, proto, import_scope))
    return proto


def _with_tags(model: Any, tags: set[str]) -> Any:
    for graph in model.meta_graphs:
        if set(graph.meta_info_def.tags) == tags:
            return graph
    known = [sorted(graph.meta_info_def.tags) for graph in model.meta_graphs]
    raise RuntimeError(
        f"MetaGraphDef associated with tags {sorted(tags)} could not be found in SavedModel: it "
        f"has {known}. `thalweg inspect` shows what is in it."
    )


def _main_op(proto: Any, scope: str | None) -> Any:
    for key in (MAIN_OP_KEY, LEGACY_INIT_OP_KEY):
        if key in proto.collection_def:
            names = proto.collection_def[key].node_list.value
            if len(names) != 1:
                raise RuntimeError(f"Expected exactly one SavedModel op in {key}, got {names}")
            return get_default_graph().as_graph_element(with_scope(names[0], scope))
    if INIT_OP_KEY in proto.signature_def:  # as TensorFlow 2 writes it
        name = proto.signature_def[INIT_OP_KEY].outputs[INIT_OP_KEY].name
        return get_default_graph().as_graph_element(with_scope(name, scope))
    return None


def _assets(folder: str, proto: Any, scope: str | None) -> dict[str, str]:
    """What the constants that name files are fed with: where the files are now."""
    result: dict[str, str] = {}
    assets = list(proto.asset_file_def)
    if ASSETS_KEY in proto.collection_def:
        packed = proto.collection_def[ASSETS_KEY].any_list.value
        assets = [protos.AssetFileDef.FromString(each.value) for each in packed]
    root = os.path.join(folder, ASSETS_DIRECTORY)
    for asset in assets:
        path = os.path.join(root, asset.filename)
        if os.path.isabs(asset.filename) or os.path.relpath(path, root).startswith(os.pardir):
            raise ValueError(f"The asset {asset.filename!r} is outside of the saved model {folder}")
        result[with_scope(asset.tensor_info.name, scope)] = path
    return result


# What runs after loading


@public("saved_model.main_op.main_op")
def main_op() -> Node:
    """A node that initialises all variables and tables."""
    return basic.group(
        global_variables_initializer(), local_variables_initializer(), tables_initializer()
    )


@public("saved_model.main_op.main_op_with_restore", "saved_model.main_op_with_restore")
def main_op_with_restore(restore_op_name: str) -> Node:
    """A node that initialises all variables and tables, then restores them."""
    graph = get_default_graph()
    with graph.control_dependencies([main_op()]):
        return basic.group(graph.as_graph_element(restore_op_name))
