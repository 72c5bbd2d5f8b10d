"""Errors as message fields: a status code, a text, the node's name and the failing task.

The client binds an error to its own node of that name, so that the text names the user's line.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from thalweg import errors
from thalweg.cluster.wire import Kind, Message
from thalweg.graph.graph import Graph
from thalweg.graph.node import Node


def encode(error: BaseException, task: str) -> dict[str, Any]:
    """An error as the fields of a message."""
    if not isinstance(error, errors.OpError):
        error = errors.InternalError(None, None, f"{type(error).__name__}: {error}")
    return {
        "code": error.error_code,
        "text": error.message,
        "node": getattr(error.op, "name", ""),
        "task": task,
    }


def decode(fields: Mapping[str, Any], graph: Graph | None = None) -> errors.OpError:
    """The error in a message, bound to the node of the graph that it names."""
    text = fields["text"]
    if fields["task"] and fields["task"] not in text:
        text = f"{text} [on {fields['task']}]"
    return errors.of_code(fields["code"], _node(graph, fields["node"]), text)


def answered(reply: Message | None, error: Exception | None, graph: Graph | None = None) -> Message:
    """The reply of a task; raises what kept the task from replying, or the error in its reply."""
    if reply is None:
        raise error or errors.UnavailableError(None, None, "A task did not answer")
    if reply.kind is Kind.FAILED:
        raise decode(reply.fields, graph)
    return reply


def _node(graph: Graph | None, name: str) -> Node | None:
    """The user's node of a name. A node added by partitioning has its user node's as a prefix."""
    while graph is not None and name:
        try:
            return graph.get_operation_by_name(name)
        except KeyError:
            name = name.rpartition("/")[0]
    return None
