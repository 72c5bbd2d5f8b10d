"""`tf.summary.FileWriter`: summaries, graphs and what else a run tells, as events in a file.

Messages or their bytes come in with a step; each becomes an Event of this moment. The file is
written by the thread of an `EventFileWriter`.
"""

from __future__ import annotations

import os
import threading
import warnings
from contextlib import ExitStack
from typing import TYPE_CHECKING, Any, ClassVar, Self
from weakref import WeakKeyDictionary

from thalweg import protos
from thalweg.graph.context import Runner
from thalweg.graph.graph import Graph, get_default_graph
from thalweg.ops.io.summaries import METADATA, value_tag
from thalweg.platform import tf_logging
from thalweg.platform.compat import as_bytes
from thalweg.platform.described import described
from thalweg.platform.files.wire import bytes_field, fields
from thalweg.public import public
from thalweg.summary import events
from thalweg.summary.event_queue import EventFileWriter
from thalweg.summary.meta_graphs import meta_graph_of

if TYPE_CHECKING:
    from thalweg.runtime.config import RunMetadata

_METADATA_KEY = bytes((METADATA << 3 | 2,))  # what metadata begin with, if there are any


class SummaryToEventTransformer:
    """Makes an event of whatever is added, for anything that has `add_event`."""

    def __init__(
        self,
        event_writer: Any,
        graph: Graph | None = None,
        graph_def: protos.GraphDef | None = None,
    ) -> None:
        self.event_writer = event_writer
        self._session_run_tags: set[str] = set()
        self._seen_summary_tags: set[bytes] = set()
        if graph is None and graph_def is None:
            return
        self.add_graph(graph=graph, graph_def=graph_def)
        self.add_meta_graph(meta_graph_of(_graph_def(graph_def if graph is None else graph)))

    def add_summary(self, summary: bytes | protos.Summary, global_step: Any = None) -> None:
        """Write a summary to the event file.

        Args:
            summary: a `tf.Summary`, or the bytes of one that a session fetched.
            global_step: the step it belongs to.
        """
        if not isinstance(summary, bytes) and not hasattr(summary, "SerializeToString"):
            raise TypeError(f"A summary is a Summary message or its bytes, not {summary!r}")
        content = summary if isinstance(summary, bytes) else summary.SerializeToString()
        self._add(events.SUMMARY, self._without_known_metadata(content), global_step)

    def add_session_log(self, session_log: protos.SessionLog, global_step: Any = None) -> None:
        """Add a SessionLog message."""
        self._add(events.SESSION_LOG, session_log.SerializeToString(), global_step)

    def add_graph(
        self, graph: Graph | None, global_step: Any = None, graph_def: protos.GraphDef | None = None
    ) -> None:
        """Add a graph, which TensorBoard shows with its name scopes and shapes."""
        if graph is not None and graph_def is not None:
            raise ValueError("Please pass only graph, or graph_def (deprecated), but not both.")
        if not isinstance(graph, Graph):
            tf_logging.warning("Passing a `GraphDef` is deprecated: pass a `Graph`.")
        proto = _graph_def(graph_def if graph is None else graph)
        self._add(events.GRAPH, proto.SerializeToString(), global_step)

    def add_meta_graph(self, meta_graph_def: protos.MetaGraphDef, global_step: Any = None) -> None:
        """Add a MetaGraphDef message."""
        if not protos.is_message(meta_graph_def, protos.MetaGraphDef):
            raise TypeError(
                f"meta_graph_def must be type MetaGraphDef, saw type: {type(meta_graph_def)}"
            )
        self._add(events.META_GRAPH, meta_graph_def.SerializeToString(), global_step)

    def add_run_metadata(
        self, run_metadata: RunMetadata, tag: str, global_step: Any = None
    ) -> None:
        """Add the RunMetadata of one step under a tag, which may be used only once."""
        if tag in self._session_run_tags:
            raise ValueError("The provided tag was already used for this event type")
        self._session_run_tags.add(tag)
        content = bytes_field(1, as_bytes(tag)) + bytes_field(2, run_metadata.SerializeToString())
        self._add(events.TAGGED_RUN_METADATA, content, global_step)

    def _without_known_metadata(self, summary: bytes) -> bytes:
        """A file holds the metadata of a tag once, with the first value."""
        if _METADATA_KEY not in summary:
            return summary
        parts: list[bytes] = []
        for field in fields(summary):
            is_value = field.number == 1 and isinstance(field.value, bytes)
            parts.append(bytes_field(1, self._value(field.value)) if is_value else field.raw)
        return b"".join(parts)

    def _value(self, value: Any) -> bytes:
        if _METADATA_KEY not in value:
            return value
        tag = value_tag(value)
        if tag not in self._seen_summary_tags:
            self._seen_summary_tags.add(tag)
            return value
        return b"".join(field.raw for field in fields(value) if field.number != METADATA)

    def _add(self, field: int, content: bytes, step: Any) -> None:
        event = events.event_bytes(field, content, None if step is None else int(step))
        self._add_bytes(event)

    def _add_bytes(self, event: bytes) -> None:
        self.event_writer.add_event(protos.Event.FromString(event))


def _graph_def(graph: Any) -> Any:
    if isinstance(graph, Graph):
        return graph.as_graph_def(add_shapes=True)
    if hasattr(graph, "SerializeToString") and hasattr(graph, "node"):
        return graph
    raise TypeError("The passed graph must be an instance of `Graph` or the deprecated `GraphDef`")


@public("summary.FileWriter")
class FileWriter(SummaryToEventTransformer):
    """Writes summaries, graphs and run metadata to an event file that TensorBoard shows.

    Args:
        logdir: the folder; the file in it gets a name with the time and the host.
        graph: a graph to write at once, for the graph view.
        max_queue: how many events may wait before a call that adds one blocks.
        flush_secs: how often, in seconds, what waits is written.
        graph_def: the same as `graph`, as a GraphDef; for old programs.
        filename_suffix: an ending for the name of the file.
        session: a session, all whose writers for one folder share a file.

    Example:
        >>> tf.summary.scalar("loss", 0.5)
        <tf.Tensor 'loss:0' shape=() dtype=string>
        >>> with tf.summary.FileWriter("logs") as writer:
        ...     writer.add_summary(sess.run(tf.summary.merge_all()), global_step=1)
        >>> len(tf.gfile.Glob("logs/events.out.tfevents.*"))
        1
    """

    event_writer: EventFileWriter

    def __init__(
        self,
        logdir: str | os.PathLike[str],
        graph: Graph | None = None,
        max_queue: int = 10,
        flush_secs: float = 120,
        graph_def: protos.GraphDef | None = None,
        filename_suffix: str | None = None,
        session: Runner | None = None,
    ) -> None:
        self._closed = False
        options = (logdir, max_queue, flush_secs, filename_suffix)
        writer = EventFileWriter(*options) if session is None else _shared(session, *options)
        super().__init__(writer, graph, graph_def)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __repr__(self) -> str:
        return described(self, self.get_logdir(), state="closed" if self._closed else "open")

    def get_logdir(self) -> str:
        """The folder of the event file."""
        return self.event_writer.get_logdir()

    def add_event(self, event: protos.Event) -> None:
        """Add an Event message."""
        self._add_bytes(event.SerializeToString())

    def flush(self) -> None:
        """Wait until all events are in the file."""
        self._warn_if_closed()
        self.event_writer.flush()

    def close(self) -> None:
        """Flush and close the file; what is added later is dropped with a warning."""
        self._closed = True
        self.event_writer.close()

    def reopen(self) -> None:
        """Go on in a new file after `close`; nothing happens if it was not closed."""
        if self._closed:
            self._seen_summary_tags.clear()  # each file tells the metadata itself
        self._closed = False
        self.event_writer.reopen()

    def _add_bytes(self, event: bytes) -> None:
        self._warn_if_closed()
        self.event_writer.add_bytes(event)

    def _warn_if_closed(self) -> None:
        if self._closed:
            warnings.warn(
                "Attempting to use a closed FileWriter. The operation will be a noop unless the "
                "FileWriter is explicitly reopened.",
                stacklevel=4,
            )


_of_sessions: WeakKeyDictionary[Any, dict[Any, EventFileWriter]] = WeakKeyDictionary()


def _shared(session: Any, logdir: Any, *options: Any) -> EventFileWriter:
    """The writer of a session for a folder: all its FileWriters write to one file."""
    writers = _of_sessions.setdefault(session, {})
    key = str(logdir), options[-1]
    if key not in writers:
        writers[key] = EventFileWriter(logdir, *options)
    return writers[key]


@public("summary.FileWriterCache", "train.SummaryWriterCache")
class FileWriterCache:
    """One FileWriter for each folder."""

    _cache: ClassVar[dict[str, FileWriter]] = {}
    _lock: ClassVar = threading.RLock()

    @staticmethod
    def get(logdir: str) -> FileWriter:
        """The FileWriter of a folder; a new one writes the default graph first."""
        with FileWriterCache._lock:
            cache = FileWriterCache._cache
            if logdir not in cache:
                cache[logdir] = FileWriter(logdir, graph=get_default_graph())
            return cache[logdir]

    @staticmethod
    def clear() -> None:
        """Close and forget all writers."""
        with FileWriterCache._lock:
            writers = list(FileWriterCache._cache.values())
            FileWriterCache._cache.clear()
            with ExitStack() as all_of_them:  # one that cannot be closed keeps no other open
                for writer in writers:
                    all_of_them.callback(writer.close)


@public("train.SummaryWriter")
class SummaryWriter(FileWriter):
    """The name that `tf.summary.FileWriter` had before TensorFlow 1.0.

    Args:
        logdir, graph, max_queue, flush_secs, graph_def, filename_suffix, session: as there.

    Example:
        >>> writer = tf.train.SummaryWriter("logs")
        >>> writer.close()
        >>> len(tf.gfile.Glob("logs/events.out.tfevents.*"))
        1
    """
