"""Which checkpoints a folder has: the file `checkpoint`, and what it says of the latest."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from thalweg import protos
from thalweg.graph.likes import MaybeNone
from thalweg.platform import tf_logging
from thalweg.platform.files import checkpoint_files, gfile
from thalweg.platform.files.durable import replace_file
from thalweg.public import public

_DEFAULT_NAME = "checkpoint"
_SURPLUS = "# to be deleted: "  # a comment to whoever parses the file


@public("train.generate_checkpoint_state_proto")
def generate_checkpoint_state_proto(
    save_dir: str,
    model_checkpoint_path: str,
    all_model_checkpoint_paths: list[str] | None = None,
    all_model_checkpoint_timestamps: Sequence[float] | None = None,
    last_preserved_timestamp: float | None = None,
) -> Any:
    """A CheckpointState; paths are absolute, or relative to a folder that is relative itself."""
    paths = [] if all_model_checkpoint_paths is None else all_model_checkpoint_paths
    times = list(all_model_checkpoint_timestamps or ())
    if times and len(times) != len(paths):
        raise ValueError(
            "Checkpoint timestamps, if provided, must match checkpoint paths (got paths "
            f"{paths} and timestamps {times})"
        )
    if not paths or paths[-1] != model_checkpoint_path:
        tf_logging.info(
            "%s is not in all_model_checkpoint_paths. Manually adding it.", model_checkpoint_path
        )
        paths.append(model_checkpoint_path)  # also for the caller, as ever
        times = [*times, time.time()] if times else []
    latest = model_checkpoint_path
    if not os.path.isabs(save_dir):
        latest = _relative(latest, save_dir)
        paths = [_relative(path, save_dir) for path in paths]
    return protos.CheckpointState(
        model_checkpoint_path=latest,
        all_model_checkpoint_paths=paths,
        all_model_checkpoint_timestamps=times,
        last_preserved_timestamp=last_preserved_timestamp or 0.0,
    )


def _relative(path: str, folder: str) -> str:
    return path if os.path.isabs(path) else os.path.relpath(path, folder)


@public("train.update_checkpoint_state")
def update_checkpoint_state(
    save_dir: str,
    model_checkpoint_path: str,
    all_model_checkpoint_paths: Sequence[str] | None = None,
    latest_filename: str | None = None,
    all_model_checkpoint_timestamps: Sequence[float] | None = None,
    last_preserved_timestamp: float | None = None,
    save_relative_paths: bool = False,
) -> None:
    """Write the file `checkpoint` of a folder: whole or not at all."""
    write_state(
        save_dir,
        model_checkpoint_path,
        all_model_checkpoint_paths,
        latest_filename,
        all_model_checkpoint_timestamps,
        last_preserved_timestamp,
        save_relative_paths,
    )


def write_state(
    save_dir: str,
    model_checkpoint_path: str,
    all_model_checkpoint_paths: Sequence[str] | None,
    latest_filename: str | None,
    all_model_checkpoint_timestamps: Sequence[float] | None,
    last_preserved_timestamp: float | None,
    save_relative_paths: bool,
    surplus: str | None = None,
) -> None:
    """As `update_checkpoint_state`; also notes a checkpoint that is about to be deleted."""
    from google.protobuf import text_format

    path = _state_path(save_dir, latest_filename)
    paths = list(all_model_checkpoint_paths or ())
    latest = model_checkpoint_path
    if save_relative_paths:
        latest = _inside(latest, save_dir)
        paths = [_inside(each, save_dir) for each in paths]
    state = generate_checkpoint_state_proto(
        save_dir,
        latest,
        paths,
        all_model_checkpoint_timestamps,
        last_preserved_timestamp,
    )
    if path == state.model_checkpoint_path:
        raise RuntimeError(
            f"Save path '{model_checkpoint_path}' conflicts with path used for checkpoint state.  "
            "Please use a different save path."
        )
    note = f"{_SURPLUS}{json.dumps(os.path.relpath(surplus, save_dir or '.'))}\n" if surplus else ""
    replace_file(path, (text_format.MessageToString(state) + note).encode())


def orphaned_checkpoints(checkpoint_paths: Sequence[str]) -> list[str]:
    """Checkpoints that were to be deleted when their program was killed.

    The folders' state files name them. One that was written again since then stays.
    """
    found = (_noted(folder) for folder in dict.fromkeys(map(os.path.dirname, checkpoint_paths)))
    return [path for path in found if path is not None and path not in checkpoint_paths]


def _noted(folder: str) -> str | None:
    state = _state_path(folder, None)
    try:
        with open(state, encoding="utf-8") as file:
            notes = [line.removeprefix(_SURPLUS) for line in file if line.startswith(_SURPLUS)]
        path = os.path.join(folder, json.loads(notes[0])) if notes else None
    except (OSError, ValueError):
        return None  # what cannot be read deletes nothing
    if path is None or not checkpoint_exists(path):
        return None
    return path if get_checkpoint_mtimes([path])[0] <= os.stat(state).st_mtime else None


def _inside(path: str, folder: str) -> str:
    """An absolute path as seen from a folder; relative ones become so with the state."""
    return os.path.relpath(path, folder) if os.path.isabs(path) else path


def _state_path(folder: str, latest_filename: str | None) -> str:
    return os.path.join(folder, latest_filename or _DEFAULT_NAME)


@public("train.get_checkpoint_state")
def get_checkpoint_state(
    checkpoint_dir: str, latest_filename: str | None = None
) -> protos.CheckpointState | MaybeNone:
    """What the file `checkpoint` of a folder says.

    Args:
        checkpoint_dir: the folder.
        latest_filename: the name of the file, where it is another.

    Returns:
        An object with `model_checkpoint_path` and `all_model_checkpoint_paths`, or None.

    Example:
        >>> v = tf.Variable(1.0)
        >>> sess.run(v.initializer)
        >>> path = tf.train.Saver().save(sess, "./model")
        >>> tf.train.get_checkpoint_state(".").model_checkpoint_path
        './model'
    """
    folder = os.fsdecode(checkpoint_dir)
    path = _state_path(folder, latest_filename)
    if not os.path.exists(path):
        return None
    try:
        state = read_state(path)
    except OSError as error:
        tf_logging.warning("%s: Checkpoint ignored", error)
        return None
    if not state.model_checkpoint_path:
        raise ValueError(f"Invalid checkpoint state loaded from {folder}")
    # An absolute path stays: os.path.join starts again there.
    state.model_checkpoint_path = os.path.join(folder, state.model_checkpoint_path)
    paths = [
        os.path.join(folder, all_model_checkpoint_path)
        for all_model_checkpoint_path in state.all_model_checkpoint_paths
    ]
    state.all_model_checkpoint_paths[:] = paths
    return state


def read_state(path: str) -> Any:
    """The CheckpointState in a file, as it stands there; an OSError if there is none."""
    from google.protobuf import text_format

    try:
        with open(path, encoding="utf-8") as file:
            return text_format.Parse(file.read(), protos.CheckpointState())
    except (UnicodeDecodeError, text_format.ParseError) as error:
        raise OSError(f"{path}: {error}") from error


@public("train.latest_checkpoint", "contrib.framework.latest_checkpoint")
def latest_checkpoint(checkpoint_dir: str, latest_filename: str | None = None) -> str | None:
    """The prefix of the last checkpoint of a folder, for `Saver.restore`.

    Args:
        checkpoint_dir: the folder.
        latest_filename: the name of the file `checkpoint`, where it is another.

    Returns:
        A path, or None where there is no checkpoint.

    Example:
        >>> v = tf.Variable(1.0)
        >>> sess.run(v.initializer)
        >>> saver = tf.train.Saver()
        >>> paths = [saver.save(sess, "./model", global_step=step) for step in (1, 2)]
        >>> tf.train.latest_checkpoint(".")
        './model-2'
    """
    state = get_checkpoint_state(checkpoint_dir, latest_filename)
    if state is None:
        return None
    if checkpoint_exists(state.model_checkpoint_path):
        return state.model_checkpoint_path
    tf_logging.error("Couldn't match files for checkpoint %s", state.model_checkpoint_path)
    return None


@public("train.checkpoint_exists")
def checkpoint_exists(checkpoint_prefix: str) -> bool:
    """Whether there is a checkpoint of a prefix, whatever its format.

    Args:
        checkpoint_prefix: what `Saver.save` returned.

    Returns:
        True or False.

    Example:
        >>> tf.train.checkpoint_exists("./model")
        False
    """
    return checkpoint_files.exists(os.fsdecode(checkpoint_prefix))


@public("train.get_checkpoint_mtimes")
def get_checkpoint_mtimes(checkpoint_prefixes: Sequence[str]) -> list[float]:
    """When the checkpoints that exist were written, in seconds."""
    result: list[float] = []
    for prefix in checkpoint_prefixes:
        index = checkpoint_files.index_path(prefix)
        names = [index] if os.path.exists(index) else gfile.Glob(prefix)
        result += [os.stat(name).st_mtime_ns / 1e9 for name in names[:1]]
    return result


@public("train.remove_checkpoint")
def remove_checkpoint(
    checkpoint_prefix: str, checkpoint_format_version: int = 2, meta_graph_suffix: str = "meta"
) -> None:
    """Delete the files of a checkpoint. The index goes first: half a checkpoint is none."""
    names = [meta_graph_filename(checkpoint_prefix, meta_graph_suffix)]
    if checkpoint_format_version == 2:
        names.insert(0, checkpoint_files.index_path(checkpoint_prefix))
        names += gfile.Glob(checkpoint_files.data_pattern(checkpoint_prefix))
    else:
        names += gfile.Glob(checkpoint_prefix)
    for name in names:
        if os.path.exists(name):
            os.remove(name)


def meta_graph_filename(checkpoint_filename: str, meta_graph_suffix: str = "meta") -> str:
    """The file of the graph that goes with a checkpoint, sharded or not."""
    head, _, count = checkpoint_filename.rpartition("-of-")
    base, _, shard = head.rpartition("-")
    if count.isdigit() and shard and not shard.strip("0123456789?"):
        checkpoint_filename = base
    return f"{checkpoint_filename}.{meta_graph_suffix}"


@public("contrib.training.wait_for_new_checkpoint")
def wait_for_new_checkpoint(
    checkpoint_dir: str,
    last_checkpoint: str | None = None,
    seconds_to_sleep: float = 1,
    timeout: float | None = None,
) -> str | None:
    """Wait until a folder has a checkpoint other than the last one; None after the timeout."""
    stop = None if timeout is None else time.monotonic() + timeout
    while True:
        path = latest_checkpoint(checkpoint_dir)
        if path is not None and path != last_checkpoint:
            return path
        if stop is not None and time.monotonic() + seconds_to_sleep > stop:
            return None
        time.sleep(seconds_to_sleep)


@public("train.checkpoints_iterator", "contrib.training.checkpoints_iterator")
def checkpoints_iterator(
    checkpoint_dir: str,
    min_interval_secs: float = 0,
    timeout: float | None = None,
    timeout_fn: Callable[[], bool] | None = None,
) -> Iterator[str]:
    """New checkpoints of a folder as they come, until the timeout (and `timeout_fn` agrees)."""
    path: str | None = None
    while True:
        new = wait_for_new_checkpoint(checkpoint_dir, path, timeout=timeout)
        if new is None:
            if timeout_fn is None or timeout_fn():
                return
            continue
        path = new
        start = time.monotonic()
        yield path
        rest = start + min_interval_secs - time.monotonic()
        if rest > 0:
            time.sleep(rest)
