"""`tf.train.Saver`: saves the variables of a graph to checkpoints and restores them.

A saver adds its nodes to the graph when it is made; `save` and `restore` run them in a session.
It keeps the last few checkpoints and deletes older ones. A background save leases the values at
once, without a copy (variables are copied on write), and writes them while training continues.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from functools import partial
from typing import Any

import numpy as np

from thalweg import errors, protos
from thalweg.graph.collections import GraphKeys
from thalweg.graph.context import Runner
from thalweg.graph.graph import get_default_graph
from thalweg.graph.likes import MaybeNone, TensorLike, UserObject
from thalweg.ops.io import saving
from thalweg.platform import tf_logging
from thalweg.platform.compat import as_str
from thalweg.platform.described import described
from thalweg.platform.files import checkpoint_files, gfile, remote
from thalweg.platform.files.durable import replace_file
from thalweg.public import public
from thalweg.saved import checkpoint_state
from thalweg.saved.collection_protos import register_proto_function
from thalweg.saved.meta_graph import (
    add_collection_def,
    as_meta_graph,
    export_meta_graph,
    import_scoped_meta_graph_with_return_elements,
)
from thalweg.saved.saveables import all_saveable_objects
from thalweg.saved.saver_builder import V2, BulkSaverBuilder
from thalweg.saved.staging import local_copy, save_remotely
from thalweg.variables.save_slice import with_scope

Checkpoint = tuple[str, float]  # path and time


@public("train.Saver")
class Saver:
    """Saves variables to checkpoint files and restores them.

    Args:
        var_list: the variables, as a list, or a dict from their names in files; None means all.
        reshape: restore values of another shape with the same number of elements.
        sharded: write a file for each device.
        max_to_keep: how many recent checkpoints stay on disk; 0 or None keeps all.
        keep_checkpoint_every_n_hours: keep one for good each time this many hours went by.
        name: the name of the nodes.
        restore_sequentially: restore one variable after the other.
        saver_def: a SaverDef protobuf: use its nodes, which are in the graph already.
        builder: what makes the nodes, where it is another.
        defer_build: make the nodes when `build` is called or the first checkpoint is written.
        allow_empty: allow a graph without variables.
        write_version: the version of the file format.
        pad_step_number: write step numbers with zeros in front, so that names sort.
        save_relative_paths: keep paths in the `checkpoint` file relative to its folder.
        filename: the default of the file name's placeholder.

    Example:
        >>> v = tf.Variable(3.0, name="v")
        >>> sess.run(v.initializer)
        >>> saver = tf.train.Saver()
        >>> path = saver.save(sess, "./model", global_step=1)
        >>> sess.run(v.assign(0.0))
        np.float32(0.0)
        >>> saver.restore(sess, path)
        >>> path, sess.run(v)
        ('./model-1', np.float32(3.0))
    """

    def __init__(
        self,
        var_list: Mapping[str, Any] | Collection[Any] | None = None,
        reshape: bool = False,
        sharded: bool = False,
        max_to_keep: int | None = 5,
        keep_checkpoint_every_n_hours: float = 10000.0,
        name: str | None = None,
        restore_sequentially: bool = False,
        saver_def: protos.SaverDef | None = None,
        builder: UserObject = None,
        defer_build: bool = False,
        allow_empty: bool = False,
        write_version: int = V2,
        pad_step_number: bool = False,
        save_relative_paths: bool = False,
        filename: str | None = None,
    ) -> None:
        if defer_build and var_list:
            raise ValueError(
                "If `var_list` is provided then build cannot be deferred. Either set "
                "defer_build=False or var_list=None."
            )
        self._var_list = var_list
        self._reshape = reshape
        self._sharded = sharded
        self._max_to_keep = max_to_keep
        self._keep_checkpoint_every_n_hours = keep_checkpoint_every_n_hours
        self._name = name
        self._restore_sequentially = restore_sequentially
        self.saver_def: Any = saver_def
        self._builder = builder
        self._allow_empty = allow_empty
        self._is_built = False
        self._is_empty = False
        self._write_version = write_version
        self._pad_step_number = pad_step_number
        self._save_relative_paths = save_relative_paths
        self._filename = filename
        self._last_checkpoints: list[Checkpoint] = []
        self._next_checkpoint_time = 0.0
        self._last_preserved: float | None = None
        self._meta_graph: tuple[Any, bytes | None] = (None, None)
        self._background = Background()
        if not defer_build:
            self.build()
        if self.saver_def:
            self._check_saver_def()
            self._write_version = self.saver_def.version

    # Its nodes

    def __repr__(self) -> str:
        saved = None if self._var_list is None else len(self._var_list)
        return described(
            self,
            variables="all" if saved is None else saved,
            max_to_keep=self._max_to_keep,
            last_checkpoint=self._last_checkpoints[-1][0] if self._last_checkpoints else None,
        )

    def build(self) -> None:
        """Add the nodes to the graph, if that has not been done."""
        if self._is_built:
            return
        self._is_built = True
        given: Any = self.saver_def
        if given is None and not self._build_nodes():
            return
        if given is not None and self._name:
            self.saver_def = _scoped(given, self._name)
        self._check_saver_def()
        self._next_checkpoint_time = (
            time.time() + self.saver_def.keep_checkpoint_every_n_hours * 3600
        )

    def _build_nodes(self) -> bool:
        variables = all_saveable_objects() if self._var_list is None else self._var_list
        self._var_list = variables
        if not variables:
            if not self._allow_empty:
                raise ValueError("No variables to save")
            self._is_empty = True
            return False
        builder = self._builder or BulkSaverBuilder(self._write_version)
        self.saver_def = builder.build(
            variables,
            reshape=self._reshape,
            sharded=self._sharded,
            max_to_keep=self._max_to_keep,
            keep_checkpoint_every_n_hours=self._keep_checkpoint_every_n_hours,
            name=self._name,
            restore_sequentially=self._restore_sequentially,
            **({"filename": self._filename} if self._filename else {}),
        )
        return True

    def _check_saver_def(self) -> None:
        if not protos.is_message(self.saver_def, protos.SaverDef):
            raise ValueError(f"saver_def must be a saver_pb2.SaverDef: {self.saver_def}")
        for name in ("save_tensor_name", "restore_op_name"):
            if not getattr(self.saver_def, name):
                raise ValueError(f"saver_def must specify the {name}: {self.saver_def}")

    def as_saver_def(self) -> protos.SaverDef:
        """The SaverDef of this saver."""
        return self.saver_def

    def to_proto(self, export_scope: str | None = None) -> protos.SaverDef:
        """The SaverDef of this saver, or None if its nodes are outside `export_scope`."""
        if export_scope is None:
            return self.saver_def
        prefix = f"{export_scope.rstrip('/')}/"
        if not (self._name or "").startswith(prefix.rstrip("/")):
            return None
        return _renamed(self.saver_def, lambda name: name.removeprefix(prefix))

    @staticmethod
    def from_proto(saver_def: protos.SaverDef, import_scope: str | None = None) -> Saver:
        """The saver of a SaverDef, its nodes inside a scope of the default graph."""
        return Saver(saver_def=saver_def, name=import_scope)

    # The checkpoints it keeps

    @property
    def last_checkpoints(self) -> list[str]:
        """The checkpoints that are not deleted yet, the oldest first."""
        return [path for path, _ in self._last_checkpoints]

    def set_last_checkpoints(self, last_checkpoints: list[str]) -> None:
        """Say which checkpoints there are, the oldest first."""
        _check_list(last_checkpoints)
        self._last_checkpoints = [(path, np.inf) for path in last_checkpoints]

    def set_last_checkpoints_with_time(self, last_checkpoints_with_time: list[Checkpoint]) -> None:
        """Say which checkpoints there are and from when, the oldest first."""
        _check_list(last_checkpoints_with_time)
        self._last_checkpoints = last_checkpoints_with_time

    def recover_last_checkpoints(self, checkpoint_paths: Sequence[str]) -> None:
        """Find out again which checkpoints there are, by their files."""
        existing = [p for p in checkpoint_paths if checkpoint_state.checkpoint_exists(p)]
        times = checkpoint_state.get_checkpoint_mtimes(existing)
        self.set_last_checkpoints_with_time(list(zip(existing, times, strict=True)))
        for path in checkpoint_state.orphaned_checkpoints(checkpoint_paths):
            _remove(path, V2, "meta")

    def _keep(self, path: str) -> str | None:
        """Note a new checkpoint; returns the one to delete, if any."""
        if not self.saver_def.max_to_keep:
            return None
        kept = [
            last_checkpoint
            for last_checkpoint in self._last_checkpoints
            if last_checkpoint[0] != path
        ]
        kept.append((path, time.time()))
        surplus = kept.pop(0) if len(kept) > self.saver_def.max_to_keep else None
        self._last_checkpoints = kept
        if surplus is None:
            return None
        if surplus[1] > self._next_checkpoint_time:
            self._last_preserved = surplus[1]
            self._next_checkpoint_time += self.saver_def.keep_checkpoint_every_n_hours * 3600
            return None
        return surplus[0]

    # Saving

    def save(
        self,
        sess: Runner,
        save_path: str,
        global_step: TensorLike | None = None,
        latest_filename: str | None = None,
        meta_graph_suffix: str = "meta",
        write_meta_graph: bool = True,
        write_state: bool = True,
        strip_default_attrs: bool = False,
        save_debug_info: bool = False,
        background: bool = False,
    ) -> str | MaybeNone:
        """Save the variables.

        Args:
            sess: the session that holds them.
            save_path: the prefix of the files.
            global_step: a number, tensor or variable to add to the prefix.
            latest_filename: the name of the file that lists checkpoints; "checkpoint" if None.
            meta_graph_suffix: the end of the file with the graph.
            write_meta_graph: whether that file is written.
            write_state: whether the list of checkpoints is updated.
            strip_default_attrs: leave attributes with default values out of the graph.
            save_debug_info: taken for old programs.
            background: take the values now and write them beside the steps that follow; what goes
                wrong is raised by the next `save` or by `wait`. On a cluster each task writes its
                own values at once.

        Returns:
            The prefix of the checkpoint, which `restore` takes.
        """
        self.wait()
        if remote.is_remote(save_path):
            options = latest_filename, meta_graph_suffix, write_meta_graph, False
            return save_remotely(
                os.fsdecode(save_path), lambda path: self.save(sess, path, global_step, *options)
            )
        state_name = latest_filename or "checkpoint"
        path = self._checked_path(sess, os.fsdecode(save_path), global_step, state_name)
        _make_parent(path)
        meta: tuple[str, bytes] | None = None
        content = self._exported(sess, strip_default_attrs) if write_meta_graph else None
        if content is not None:
            meta = checkpoint_state.meta_graph_filename(path, meta_graph_suffix), content
            if save_debug_info:
                self.export_meta_graph(meta[0], save_debug_info=True)
        if self._is_empty:
            _write_meta_graph(meta)
            return None
        finish = partial(
            self._finish, meta, os.path.dirname(path), state_name, meta_graph_suffix, write_state
        )
        if not background or self._write_version != V2 or getattr(sess, "sess_str", ""):
            saved = self._run_save(sess, path)
            finish(saved)
            return saved
        with saving.deferred(path) as shards:
            saved = self._run_save(sess, path)
        rest = self._background.rest
        self._background.start(lambda: _write_later(path, shards, rest, partial(finish, saved)))
        return saved

    @property
    def is_saving(self) -> bool:
        """Whether a save in the background is under way."""
        return self._background.is_busy

    def wait(self) -> None:
        """Wait for a save in the background; raise what went wrong with it."""
        self._background.wait()

    def _checked_path(self, sess: Any, save_path: str, global_step: Any, state_name: str) -> str:
        if not self._is_built:
            raise RuntimeError("`build()` should be called before save if defer_build==True")
        if os.path.dirname(state_name):
            raise ValueError("'latest_filename' must not contain path components")
        if not (hasattr(sess, "run") and hasattr(sess, "graph")):
            raise TypeError(f"'sess' must be a Session; {sess}")
        if self._write_version != V2:
            tf_logging.warning("Checkpoints of version 1 have no index and are slower: use V2.")
        if global_step is not None:
            step = _step(sess, global_step)
            return f"{save_path}-{step:08d}" if self._pad_step_number else f"{save_path}-{step}"
        if os.path.basename(save_path) == state_name and not self._is_sharded():
            raise ValueError(
                f"'latest_filename' collides with 'save_path': '{state_name}' and '{save_path}'"
            )
        return save_path

    def _is_sharded(self) -> bool:
        return self.saver_def is not None and self.saver_def.sharded

    def _run_save(self, sess: Any, path: str) -> str:
        fed = {self.saver_def.filename_tensor_name: path}
        return as_str(sess.run(self.saver_def.save_tensor_name, fed))

    def _finish(
        self,
        meta: tuple[str, bytes] | None,
        folder: str,
        state_name: str,
        suffix: str,
        write_state: bool,
        saved: str,
    ) -> None:
        """Make a written checkpoint the latest; only then does an older one go."""
        _write_meta_graph(meta)
        if not write_state:
            return
        surplus = self._keep(saved)
        times = [when if np.isfinite(when) else 0.0 for _, when in self._last_checkpoints]
        checkpoint_state.write_state(
            folder,
            saved,
            self.last_checkpoints,
            state_name,
            times,
            self._last_preserved,
            self._save_relative_paths,
            surplus,
        )
        if surplus is not None:
            _remove(surplus, self.saver_def.version, suffix)

    # Its graph

    def _exported(self, sess: Any, strip_default_attrs: bool) -> bytes | None:
        """The MetaGraphDef as bytes; a graph that has not changed is not serialised again.

        None for a graph that has no such form: its variables are worth saving all the same.
        """
        graph = sess.graph
        key = (graph, graph.version, strip_default_attrs, _collection_sizes(graph))
        if self._meta_graph[0] != key:
            self._meta_graph = key, None
            try:
                with graph.as_default():
                    proto = self.export_meta_graph(strip_default_attrs=strip_default_attrs)
                self._meta_graph = key, proto.SerializeToString()
            except (TypeError, ValueError) as error:
                tf_logging.warning("The graph is not saved with its variables: %s", error)
        return self._meta_graph[1]

    def export_meta_graph(
        self,
        filename: str | None = None,
        collection_list: Sequence[Any] | None = None,
        as_text: bool = False,
        export_scope: str | None = None,
        clear_devices: bool = False,
        clear_extraneous_savers: bool = False,
        strip_default_attrs: bool = False,
        save_debug_info: bool = False,
    ) -> protos.MetaGraphDef:
        """The MetaGraphDef of the default graph with this saver; written to a file if named."""
        return export_meta_graph(
            filename=filename,
            graph_def=get_default_graph().as_graph_def(add_shapes=True),
            saver_def=self.saver_def,
            collection_list=collection_list,
            as_text=as_text,
            export_scope=export_scope,
            clear_devices=clear_devices,
            clear_extraneous_savers=clear_extraneous_savers,
            strip_default_attrs=strip_default_attrs,
            save_debug_info=save_debug_info,
        )

    @staticmethod
    def _add_collection_def(meta_graph_def: Any, key: Any, export_scope: str | None = None) -> None:
        add_collection_def(meta_graph_def, key, export_scope=export_scope)

    def _MetaGraphFilename(self, checkpoint_filename: str, meta_graph_suffix: str = "meta") -> str:
        return checkpoint_state.meta_graph_filename(checkpoint_filename, meta_graph_suffix)

    # Restoring

    def restore(self, sess: Runner, save_path: str | None) -> None:
        """Give the variables the values of a checkpoint; they need no initializer then.

        Args:
            sess: the session.
            save_path: the prefix that `save` returned, or `tf.train.latest_checkpoint` found.

        Raises:
            ValueError: where there is no such checkpoint.
            NotFoundError: where it lacks a variable.
        """
        if self._is_empty:
            return
        if save_path is None:
            raise ValueError("Can't load save_path when it is None.")
        self.wait()
        tf_logging.info("Restoring parameters from %s", save_path)
        try:
            with local_copy(os.fsdecode(save_path)) as path:
                fed = {self.saver_def.filename_tensor_name: path}
                sess.run(self.saver_def.restore_op_name, fed)
        except errors.NotFoundError as error:
            if not checkpoint_state.checkpoint_exists(os.fsdecode(save_path)):
                text = f"The passed save_path is not a valid checkpoint: {save_path}"
                raise NoCheckpoint(None, error.op, f"{text}. {error.message}") from error
            raise _explained(
                error,
                "a Variable name or other graph key that is missing from the checkpoint. "
                f"tf.train.list_variables({save_path!r}) says what it has; a Saver of a dict "
                "{name there: variable here} restores by other names",
            ) from error
        except errors.InvalidArgumentError as error:
            raise _explained(
                error,
                "a mismatch between the current graph and the graph from the checkpoint. Please "
                "ensure that you have not altered the graph expected based on the checkpoint "
                "(shapes and dtypes of variables)",
            ) from error


class NoCheckpoint(errors.NotFoundError, ValueError):
    """There is no checkpoint to restore: a ValueError to TensorFlow 1.15, NotFound before."""


_SHARE = 1 / 40  # of one processor, for background work that no thread waits for


class Background:
    """Runs at most one task on a background thread, and keeps its error."""

    def __init__(self) -> None:
        self._thread: threading.Thread | None = None
        self._is_urgent = threading.Event()
        self._used = 0.0  # processor seconds of the task up to its last call of `rest`
        self._error: BaseException | None = None

    @property
    def is_busy(self) -> bool:
        """Whether the task is running."""
        return self._thread is not None and self._thread.is_alive()

    def start(self, work: Callable[[], None]) -> None:
        """Start a task on a non-daemon thread: the process waits for it to end."""

        def run() -> None:
            self._used = time.thread_time()
            try:
                work()
            except BaseException as error:
                self._error = error

        self._is_urgent.clear()
        self._thread = threading.Thread(target=run, name="thalweg-saver")
        self._thread.start()

    def rest(self) -> None:
        """Called by the task: sleep to limit its processor share, unless a thread waits for it."""
        used, self._used = time.thread_time() - self._used, time.thread_time()
        if threading.main_thread().is_alive():
            self._is_urgent.wait(used / _SHARE)

    def wait(self) -> None:
        """Wait for the task, which no longer sleeps; raise its error."""
        self._is_urgent.set()
        if self._thread is not None:
            self._thread.join()
        self._thread = None
        error, self._error = self._error, None
        if error is not None:
            raise error


def _write_later(
    prefix: str, shards: list[Any], rest: Callable[[], None], finish: Callable[[], None]
) -> None:
    # One thread: the others are training.
    checkpoint_files.save(prefix, shards, threads=1, rest=rest)
    shards.clear()  # end the leases: variables can be updated in place again
    finish()


def _write_meta_graph(meta: tuple[str, bytes] | None) -> None:
    if meta is not None:
        replace_file(*meta)


def _remove(path: str, version: int, suffix: str) -> None:
    try:
        checkpoint_state.remove_checkpoint(path, version, suffix)
    except OSError as error:
        tf_logging.warning("An old checkpoint cannot be deleted: %s", error)


def _collection_sizes(graph: Any) -> tuple[Any, ...]:
    return tuple((key, len(graph.get_collection_ref(key))) for key in graph.collections)


def _step(sess: Any, global_step: Any) -> int:
    """A step: a number, or a tensor or variable, or the name of one."""
    is_number = hasattr(global_step, "__index__")
    value = np.asarray(global_step if is_number else sess.run(global_step))
    if value.size != 1:  # some programs have it as a vector of one
        raise ValueError(f"global_step must be one number, not of shape {list(value.shape)}")
    return int(value.item())


def _make_parent(path: str) -> None:
    try:
        gfile.MakeDirs(os.path.dirname(path) or ".")
    except errors.OpError as error:
        raise ValueError(
            f"Parent directory of {path} doesn't exist, can't save. It cannot be made: "
            f"{error.message}"
        ) from error


def _explained(error: errors.OpError, reason: str) -> errors.OpError:
    """The same error, bound to the same node, with what is most likely behind it."""
    text = f"Restoring from checkpoint failed. This is most likely due to {reason}. "
    kind: Any = type(error)
    return kind(None, error.op, f"{text}Original error: {error.message}")


def _check_list(value: Any) -> None:
    if not isinstance(value, list):
        raise AssertionError(f"The checkpoints must be a list, not {type(value)}")


def _scoped(definition: Any, scope: str) -> Any:
    return _renamed(definition, lambda name: with_scope(name, scope))


def _renamed(definition: Any, rename: Callable[[str], str]) -> Any:
    copied = type(definition)()
    copied.CopyFrom(definition)
    for name in ("filename_tensor_name", "save_tensor_name", "restore_op_name"):
        setattr(copied, name, rename(getattr(definition, name)))
    return copied


@public("train.import_meta_graph")
def import_meta_graph(
    meta_graph_or_file: str | protos.MetaGraphDef,
    clear_devices: bool = False,
    import_scope: str | None = None,
    **kwargs: Any,
) -> Saver | None:
    """Add the graph of a `.meta` file, which a Saver wrote, to the default graph.

    Args:
        meta_graph_or_file: the path, or a MetaGraphDef.
        clear_devices: drop the devices that nodes ask for.
        import_scope: a scope to put in front of all names.
        kwargs: as for `tf.import_graph_def`.

    Returns:
        A Saver for its variables; None without variables.

    Example:
        >>> v = tf.Variable(3.0, name="v")
        >>> sess.run(v.initializer)
        >>> path = tf.train.Saver().save(sess, "./model")
        >>> with tf.Graph().as_default(), tf.Session() as session:
        ...     saver = tf.train.import_meta_graph(path + ".meta")
        ...     saver.restore(session, path)
        ...     session.run("v:0")
        np.float32(3.0)
    """
    return import_meta_graph_with_return_elements(
        meta_graph_or_file, clear_devices, import_scope, **kwargs
    )[0]


def import_meta_graph_with_return_elements(
    meta_graph_or_file: Any,
    clear_devices: bool = False,
    import_scope: str | None = None,
    return_elements: Sequence[str] | None = None,
    **kwargs: Any,
) -> tuple[Saver | None, list[Any] | None]:
    """As `import_meta_graph`; also gives the nodes and tensors of some names."""
    proto = as_meta_graph(meta_graph_or_file)
    _, elements = import_scoped_meta_graph_with_return_elements(
        proto,
        clear_devices=clear_devices,
        import_scope=import_scope,
        return_elements=return_elements,
        **kwargs,
    )
    return _saver_of(proto, import_scope, kwargs.get("graph")), elements


def _saver_of(proto: Any, scope: str | None, graph: Any) -> Saver | None:
    if proto.HasField("saver_def"):
        return Saver(saver_def=proto.saver_def, name=scope)
    with (graph or get_default_graph()).as_default():
        if all_saveable_objects(scope):
            return Saver()
    tf_logging.info("Saver not created because there are no variables in the graph to restore")
    return None


register_proto_function(GraphKeys.SAVERS, lambda: protos.SaverDef, Saver.to_proto, Saver.from_proto)
protos.publish("SaverDef", "CheckpointState", below="train")
