"""Collections of the default graph, and the names of the standard ones."""

from __future__ import annotations

from collections.abc import Hashable
from typing import TYPE_CHECKING, Any

from thalweg.graph.graph import get_default_graph
from thalweg.public import public

if TYPE_CHECKING:
    from thalweg.graph.likes import Collections, UserObject


@public("GraphKeys")
class GraphKeys:
    """Names of the collections that the library fills and reads.

    Example:
        >>> v = tf.Variable(1.0)
        >>> tf.get_collection(tf.GraphKeys.GLOBAL_VARIABLES) == [v]
        True
    """

    GLOBAL_VARIABLES = "variables"
    VARIABLES = "variables"
    LOCAL_VARIABLES = "local_variables"
    MODEL_VARIABLES = "model_variables"
    METRIC_VARIABLES = "metric_variables"
    TRAINABLE_VARIABLES = "trainable_variables"
    MOVING_AVERAGE_VARIABLES = "moving_average_variables"
    CONCATENATED_VARIABLES = "concatenated_variables"
    SUMMARIES = "summaries"
    SUMMARY_OP = "summary_op"
    QUEUE_RUNNERS = "queue_runners"
    TABLE_INITIALIZERS = "table_initializer"
    ASSET_FILEPATHS = "asset_filepaths"
    REGULARIZATION_LOSSES = "regularization_losses"
    LOSSES = "losses"
    WEIGHTS = "weights"
    BIASES = "biases"
    ACTIVATIONS = "activations"
    UPDATE_OPS = "update_ops"
    SAVERS = "savers"
    SAVEABLE_OBJECTS = "saveable_objects"
    INIT_OP = "init_op"
    LOCAL_INIT_OP = "local_init_op"
    READY_OP = "ready_op"
    READY_FOR_LOCAL_INIT_OP = "ready_for_local_init_op"
    GLOBAL_STEP = "global_step"
    TRAIN_OP = "train_op"
    EVAL_STEP = "eval_step"
    RESOURCES = "resources"
    LOCAL_RESOURCES = "local_resources"
    COND_CONTEXT = "cond_context"
    WHILE_CONTEXT = "while_context"


@public("add_to_collection")
def add_to_collection(name: Hashable, value: UserObject) -> None:
    """Append a value to a named list of the default graph.

    Args:
        name: the name of the collection; a new one is created empty.
        value: anything.

    Example:
        >>> tf.add_to_collection("losses", tf.constant(0.5, name="loss"))
        >>> [loss.name for loss in tf.get_collection("losses")]
        ['loss:0']
    """
    get_default_graph().add_to_collection(name, value)


@public("add_to_collections")
def add_to_collections(names: Collections, value: UserObject) -> None:
    """Append to several named lists of the default graph."""
    get_default_graph().add_to_collections(names, value)


@public("get_collection")
def get_collection(key: Hashable, scope: str | None = None) -> list[Any]:
    """A copy of a named list of the default graph.

    Args:
        key: the name of the collection, often one of `tf.GraphKeys`.
        scope: a regular expression; only members whose names it matches from the start.

    Returns:
        A list, in order of addition; empty if there is no such collection.

    Example:
        >>> w = tf.Variable(1.0, name="layer/w")
        >>> tf.get_collection(tf.GraphKeys.TRAINABLE_VARIABLES, scope="layer") == [w]
        True
    """
    return get_default_graph().get_collection(key, scope)


@public("get_collection_ref")
def get_collection_ref(key: Hashable) -> list[Any]:
    """A named list of the default graph, not a copy: changes to it are changes to the graph.

    Args:
        key: the name of the collection.

    Returns:
        The list.

    Example:
        >>> tf.get_collection_ref("kept").append("value")
        >>> tf.get_collection("kept")
        ['value']
    """
    return get_default_graph().get_collection_ref(key)
