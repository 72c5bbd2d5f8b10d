"""The variables of a graph by collection, and nodes that initialise or check them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from thalweg.graph.collections import GraphKeys
from thalweg.graph.dtypes import string
from thalweg.graph.graph import get_default_graph
from thalweg.graph.node import Node, Tensor
from thalweg.graph.scopes import name_scope
from thalweg.ops.arrays import indexing, joining
from thalweg.ops.core import basic, choosing, shaping
from thalweg.ops.math import compare
from thalweg.ops.state import state
from thalweg.public import public


@public("global_variables")
def global_variables(scope: str | None = None) -> list[Any]:
    """All variables but local ones: those that are saved and shared.

    Args:
        scope: a regular expression; only variables whose names it matches from the start.

    Returns:
        A list, in order of creation.

    Example:
        >>> w, steps = tf.Variable(1.0, name="w"), tf.Variable(0, trainable=False, name="steps")
        >>> [v.name for v in tf.global_variables()]
        ['w:0', 'steps:0']
    """
    return get_default_graph().get_collection(GraphKeys.GLOBAL_VARIABLES, scope)


@public("local_variables")
def local_variables(scope: str | None = None) -> list[Any]:
    """The variables that are local to this process, such as counters; they are never saved.

    Args:
        scope: a regular expression; only variables whose names it matches from the start.

    Returns:
        A list, in order of creation.

    Example:
        >>> value, update = tf.metrics.mean([1.0])
        >>> [v.op.name for v in tf.local_variables()]
        ['mean/total', 'mean/count']
    """
    return get_default_graph().get_collection(GraphKeys.LOCAL_VARIABLES, scope)


@public("model_variables")
def model_variables(scope: str | None = None) -> list[Any]:
    """The variables that inference needs."""
    return get_default_graph().get_collection(GraphKeys.MODEL_VARIABLES, scope)


@public("trainable_variables")
def trainable_variables(scope: str | None = None) -> list[Any]:
    """The variables that optimizers update by default.

    Args:
        scope: a regular expression; only variables whose names it matches from the start.

    Returns:
        A list, in order of creation.

    Example:
        >>> w, steps = tf.Variable(1.0, name="w"), tf.Variable(0, trainable=False)
        >>> tf.trainable_variables() == [w]
        True
    """
    return get_default_graph().get_collection(GraphKeys.TRAINABLE_VARIABLES, scope)


@public("moving_average_variables")
def moving_average_variables(scope: str | None = None) -> list[Any]:
    """The variables that a `tf.train.ExponentialMovingAverage` keeps averages of.

    Args:
        scope: a regular expression; only variables whose names it matches from the start.

    Returns:
        A list of variables.

    Example:
        >>> v = tf.Variable(1.0)
        >>> update = tf.train.ExponentialMovingAverage(0.9).apply([v])
        >>> tf.moving_average_variables() == [v]
        True
    """
    return get_default_graph().get_collection(GraphKeys.MOVING_AVERAGE_VARIABLES, scope)


@public("all_variables")
def all_variables() -> list[Any]:
    """The old name of `tf.global_variables`.

    Returns:
        A list of variables.

    Example:
        >>> v = tf.Variable(1.0)
        >>> tf.all_variables() == [v]
        True
    """
    return global_variables()


@public("variables_initializer", "initialize_variables", "initializers.variables")
def variables_initializer(var_list: Sequence[Any], name: str = "init") -> Node:
    """A node that initialises some variables.

    Args:
        var_list: the variables.
        name: the name of the node.

    Returns:
        A node to run; it fetches as None.

    Example:
        >>> v, w = tf.Variable(1.0), tf.Variable(2.0)
        >>> sess.run(tf.variables_initializer([w]))
        >>> sess.run(tf.report_uninitialized_variables()).tolist()
        [b'Variable']
    """
    if not var_list:
        return basic.no_op(name=name)
    return basic.group(*[variable.initializer for variable in var_list], name=name)


@public("global_variables_initializer", "initialize_all_variables", "initializers.global_variables")
def global_variables_initializer() -> Node:
    """A node that initialises all global variables.

    Create it after all variables, and run it before any of them is read.

    Returns:
        A node to run; it fetches as None.

    Example:
        >>> v = tf.Variable([1.0, 2.0])
        >>> sess.run(tf.global_variables_initializer())
        >>> sess.run(v)
        array([1., 2.], dtype=float32)
    """
    return variables_initializer(global_variables())


@public("local_variables_initializer", "initialize_local_variables", "initializers.local_variables")
def local_variables_initializer() -> Node:
    """A node that initialises all local variables, such as the counters of metrics.

    Returns:
        A node to run; it fetches as None.

    Example:
        >>> mean, update = tf.metrics.mean([1.0, 3.0])
        >>> sess.run(tf.local_variables_initializer())
        >>> sess.run(update)
        np.float32(2.0)
    """
    return variables_initializer(local_variables())


@public("tables_initializer", "initialize_all_tables", "initializers.tables_initializer")
def tables_initializer(name: str = "init_all_tables") -> Node:
    """A node that initializes all lookup tables.

    Args:
        name: the name of the node.

    Returns:
        A node to run; it fetches as None.

    Example:
        >>> table = tf.contrib.lookup.index_table_from_tensor(tf.constant(["a", "b"]))
        >>> sess.run(tf.tables_initializer())
        >>> sess.run(table.lookup(tf.constant(["b"])))
        array([1])
    """
    initializers = get_default_graph().get_collection(GraphKeys.TABLE_INITIALIZERS)
    return basic.group(*initializers, name=name) if initializers else basic.no_op(name=name)


def _known_variables() -> list[Any]:
    """The variables in collections; in a graph without any, the outputs of variable nodes."""
    collected = global_variables() + local_variables()
    if collected:
        return collected
    return [node.output for node in get_default_graph().nodes if is_buffer(node)]


def is_buffer(node: Node) -> bool:
    """Whether a node owns a variable's buffer."""
    return isinstance(node.op, state.VariableV2)


@public("assert_variables_initialized")
def assert_variables_initialized(var_list: Sequence[Any] | None = None) -> Tensor | None:
    """A tensor whose evaluation fails if a variable is not initialised."""
    variables = _known_variables() if var_list is None else list(var_list)
    if not variables:
        return None
    ranks = [shaping.Rank()(variable) for variable in variables]
    return ranks[0] if len(ranks) == 1 else joining.stack(ranks)


@public("report_uninitialized_variables")
def report_uninitialized_variables(
    var_list: Sequence[Any] | None = None, name: str = "report_uninitialized_variables"
) -> Tensor:
    """The names of the variables that are not initialised.

    Args:
        var_list: the variables to check; all global and local ones if None.
        name: the name of the nodes.

    Returns:
        A vector of strings.

    Example:
        >>> v = tf.Variable(1.0, name="v")
        >>> sess.run(tf.report_uninitialized_variables()).tolist()
        [b'v']
    """
    variables = _known_variables() if var_list is None else list(var_list)
    with name_scope(name):
        names = basic.constant(np.array([v.op.name.encode() for v in variables], object), string)
        if not variables:
            return names
        flags = joining.stack([state.is_variable_initialized(v) for v in variables])
        missing = choosing.where(compare.logical_not(flags))
        return indexing.gather(names, shaping.reshape(missing, [-1]))
