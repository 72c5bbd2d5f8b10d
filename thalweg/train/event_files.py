"""Records of hooks and supervisors in event files other than summaries: graphs and session logs.

A graph that cannot be exported as a GraphDef can still be trained: a warning says that it is not
written.
"""

from __future__ import annotations

from typing import Any

from thalweg import protos
from thalweg.graph.graph import Graph, get_default_graph
from thalweg.graph.graphdef.util import write_graph
from thalweg.platform import tf_logging
from thalweg.saved.meta_graph import create_meta_graph_def
from thalweg.summary.writer import FileWriterCache


def event_writer(folder: str) -> Any:
    """The writer of a folder, which all hooks share; a new one writes the default graph first."""
    try:
        return FileWriterCache.get(folder)
    except (TypeError, ValueError) as error:
        tf_logging.warning("The graph is not written to %s: %s", folder, error)
        with Graph().as_default():
            return FileWriterCache.get(folder)


def write_graph_files(folder: str | None, writer: Any, saver_def: Any) -> None:
    """Write the default graph to a folder and as an event, for inspection."""
    graph = get_default_graph()
    try:
        graph_def = graph.as_graph_def(add_shapes=True)
        described = create_meta_graph_def(graph_def=graph_def, saver_def=saver_def)
    except (TypeError, ValueError) as error:
        tf_logging.warning("The graph is not written: %s", error)
        return
    if folder:
        write_graph(graph_def, folder, "graph.pbtxt")
    if writer is not None:
        writer.add_graph(graph)
        writer.add_meta_graph(described)


def rate_summary(tag: str, rate: float) -> Any:
    """A Summary message with one number."""
    kind = protos.Summary
    return kind(value=[kind.Value(tag=tag, simple_value=rate)])


def start_log() -> Any:
    """The SessionLog message of a beginning."""
    kind = protos.SessionLog
    return kind(status=kind.START)


def stop_log() -> Any:
    """The SessionLog message of an end."""
    kind = protos.SessionLog
    return kind(status=kind.STOP)


def checkpoint_log(path: str) -> Any:
    """The SessionLog message of a checkpoint."""
    kind = protos.SessionLog
    return kind(status=kind.CHECKPOINT, checkpoint_path=path)
