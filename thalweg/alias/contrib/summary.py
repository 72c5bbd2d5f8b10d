"""`tf.contrib.summary`: summaries that write themselves, in graphs and in eager code.

A summary op writes to the writer that was the default where it was made, for steps at which
`should_record_summaries` holds there. Graphs run them by `all_summary_ops`.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Generator
from typing import Any

import numpy as np

from thalweg.alias import names

tf = names.root()

_COLLECTION = "_SUMMARY_V2"
_WRITERS = "_SUMMARY_WRITERS"


class _Defaults(threading.local):
    """The writer, and when it records: a bool, a tensor or a function that gives one."""

    writer: SummaryWriter | None = None
    should_record: Any = False


_defaults = _Defaults()


class SummaryWriter:
    """Writes event files; the file is made with the first event.

    Args:
        logdir: the folder.
        options: what `tf.summary.FileWriter` takes besides.
    """

    def __init__(self, logdir: str, options: dict[str, Any]) -> None:
        self._logdir, self._options = logdir, options
        self._lock = threading.Lock()
        self._file: Any = None
        self._is_closed = False

    @property
    def file(self) -> Any:
        """The `tf.summary.FileWriter`."""
        with self._lock:
            if self._is_closed:
                raise RuntimeError(f"The summary writer of {self._logdir} is closed.")
            if self._file is None:
                self._file = tf.summary.FileWriter(self._logdir, **self._options)
            return self._file

    def set_as_default(self) -> None:
        """Let summaries made from now on write here."""
        _defaults.writer = self

    @contextlib.contextmanager
    def as_default(self) -> Generator[SummaryWriter]:
        """Let summaries made inside write here; in eager code, what is written is on disk then."""
        before, _defaults.writer = _defaults.writer, self
        try:
            yield self
            if tf.executing_eagerly():
                self.file.flush()
        finally:
            _defaults.writer = before

    def init(self) -> Any:
        """Make the file; in a graph, an op that does."""
        return _effect(lambda: self.file)

    def flush(self) -> Any:
        """Write what is pending; in a graph, an op that does."""
        return _effect(lambda: self.file.flush())

    def close(self) -> Any:
        """Write what is pending and end; in a graph, an op that does."""

        def closed() -> None:
            self.file.close()
            self._is_closed = True

        return _effect(closed)


class _NoWriter(SummaryWriter):
    """Drops what is written, for a folder that is None."""

    def __init__(self) -> None:
        super().__init__("", {})

    @property
    def file(self) -> Any:
        """Nothing is written to it."""
        return _Nowhere()


class _Nowhere:
    """Takes events and keeps none."""

    def add_summary(self, *_: Any) -> None:
        """Drop it."""

    def add_graph(self, *_: Any) -> None:
        """Drop it."""

    def flush(self) -> None:
        """There is nothing to write."""

    def close(self) -> None:
        """There is nothing to end."""


def _effect(function: Callable[[], Any]) -> Any:
    """Call a function now in eager code, else give an op that does."""
    if tf.executing_eagerly():
        function()
        return None

    def called() -> None:
        function()

    return tf.group(tf.py_func(called, [], []))


def create_file_writer(
    logdir: str | None,
    max_queue: int | None = None,
    flush_millis: int | None = None,
    filename_suffix: str | None = None,
    name: str | None = None,
) -> SummaryWriter:
    """A writer of event files in a folder; of nothing, if that is None."""
    if logdir is None:
        return _NoWriter()
    options: dict[str, Any] = {
        "max_queue": max_queue or 10,
        "flush_secs": (flush_millis or 120_000) / 1000,
        "filename_suffix": filename_suffix,
    }
    writer = SummaryWriter(logdir, options)
    if not tf.executing_eagerly():
        tf.add_to_collection(_WRITERS, writer)
    return writer


create_summary_file_writer = create_file_writer


def initialize(graph: Any = None, session: Any = None) -> None:
    """Make the file of the default writer of this thread, and write a graph to it."""
    if tf.executing_eagerly() or _defaults.writer is None:
        return
    if session is None and tf.get_default_session() is None:
        raise ValueError("session must be passed if no default session exists")
    file = _defaults.writer.file
    if graph is not None:
        file.add_graph(graph)
        file.flush()


def summary_writer_initializer_op() -> list[Any]:
    """Ops that make the files of all writers of the graph."""
    return [writer.init() for writer in tf.get_collection(_WRITERS)]


def all_summary_ops() -> list[Any] | None:
    """The summary ops of the graph; None in eager code, where they have run."""
    return None if tf.executing_eagerly() else tf.get_collection(_COLLECTION)


def should_record_summaries() -> Any:
    """Whether summaries made now are written: a bool, or a tensor that says."""
    decided = _defaults.should_record
    return decided() if callable(decided) else decided


@contextlib.contextmanager
def _recording(decided: Any) -> Generator[None]:
    before, _defaults.should_record = _defaults.should_record, decided
    try:
        yield
    finally:
        _defaults.should_record = before


def always_record_summaries() -> Any:
    """Write the summaries that are made inside."""
    return _recording(True)


def never_record_summaries() -> Any:
    """Do not write the summaries that are made inside."""
    return _recording(False)


def record_summaries_every_n_global_steps(n: int, global_step: Any = None) -> Any:
    """Write the summaries that are made inside, whenever the step is a multiple of `n`."""
    step = tf.train.get_or_create_global_step() if global_step is None else global_step
    if tf.executing_eagerly():
        return _recording(lambda: int(step.numpy()) % n == 0)
    return _recording(lambda: tf.equal(tf.cast(step, tf.int64) % n, 0))


def _written(kind: Callable[..., Any], name: str, tensor: Any, step: Any, **options: Any) -> Any:
    """An op that writes a summary; in eager code it has been written then."""
    writer, decided = _defaults.writer, should_record_summaries()
    if writer is None or decided is False:
        return tf.no_op()
    at = tf.train.get_or_create_global_step() if step is None else step

    # A tag has the scope of the caller, not that of the conditional.
    scope = "" if tf.executing_eagerly() else tf.get_default_graph().get_name_scope()

    def record() -> Any:
        with tf.name_scope(f"{scope}/" if scope else None):
            text = kind(name, tensor, collections=[], **options)
        written = tf.py_func(_adder(writer), [text, tf.cast(at, tf.int64)], tf.bool)
        return written if tf.executing_eagerly() else tf.identity(written)

    if tf.executing_eagerly():
        return record() if bool(decided) else None
    op = record() if decided is True else tf.cond(decided, record, lambda: tf.constant(False))
    tf.add_to_collection(_COLLECTION, op.op)
    return op.op


def _adder(writer: SummaryWriter) -> Callable[..., Any]:
    def add(text: Any, step: Any) -> Any:
        writer.file.add_summary(np.asarray(text).item(), int(step))
        return True

    return add


def scalar(name: str, tensor: Any, family: str | None = None, step: Any = None) -> Any:
    """Write a number."""
    return _written(tf.summary.scalar, name, tensor, step, family=family)


def histogram(name: str, tensor: Any, family: str | None = None, step: Any = None) -> Any:
    """Write how values are distributed."""
    return _written(tf.summary.histogram, name, tensor, step, family=family)


def image(
    name: str,
    tensor: Any,
    bad_color: Any = None,
    max_images: int = 3,
    family: str | None = None,
    step: Any = None,
) -> Any:
    """Write images [batch, height, width, channels]."""
    return _written(tf.summary.image, name, tensor, step, max_outputs=max_images, family=family)


def audio(
    name: str,
    tensor: Any,
    sample_rate: Any,
    max_outputs: int,
    family: str | None = None,
    step: Any = None,
) -> Any:
    """Write sounds [batch, frames] or [batch, frames, channels]."""
    return _written(
        tf.summary.audio,
        name,
        tensor,
        step,
        sample_rate=sample_rate,
        max_outputs=max_outputs,
        family=family,
    )


def generic(
    name: str, tensor: Any, metadata: Any = None, family: str | None = None, step: Any = None
) -> Any:
    """Write a tensor."""
    return _written(
        tf.summary.tensor_summary, name, tensor, step, summary_metadata=metadata, family=family
    )


def flush(writer: SummaryWriter | None = None, name: str | None = None) -> Any:
    """Write what is pending in a writer, the default one if None."""
    chosen = _defaults.writer if writer is None else writer
    return tf.no_op() if chosen is None else chosen.flush()


def eval_dir(model_dir: str, name: str | None = None) -> str:
    """The folder for what an evaluation writes."""
    return f"{model_dir}/{'eval' if not name else f'eval_{name}'}"
