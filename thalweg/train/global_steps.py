"""The global step: the integer variable that counts training steps."""

from __future__ import annotations

import numpy as np

from thalweg.graph import dtypes
from thalweg.graph.collections import GraphKeys
from thalweg.graph.context import Runner
from thalweg.graph.graph import Graph, get_default_graph
from thalweg.graph.likes import MaybeNone
from thalweg.graph.node import Tensor
from thalweg.platform import tf_logging
from thalweg.public import public
from thalweg.variables.initializers import Zeros
from thalweg.variables.scope import get_variable
from thalweg.variables.variable import Variable


@public("train.global_step")
def global_step(sess: Runner, global_step_tensor: Tensor | Variable) -> int:
    """The value of the global step in a session.

    Args:
        sess: the session.
        global_step_tensor: the step, a tensor or variable.

    Returns:
        A Python integer.

    Example:
        >>> step = tf.train.create_global_step()
        >>> sess.run(step.initializer)
        >>> tf.train.global_step(sess, step)
        0
    """
    return int(np.asarray(sess.run(global_step_tensor)).item())


@public(
    "train.get_global_step", "contrib.framework.get_global_step", "contrib.slim.get_global_step"
)
def get_global_step(graph: Graph | None = None) -> Variable | MaybeNone:
    """The global step of a graph, which counts training steps.

    Args:
        graph: the graph; the default one if None.

    Returns:
        The variable in the collection `GLOBAL_STEP`, or named "global_step"; None if there is none.

    Example:
        >>> tf.train.get_global_step() is None
        True
        >>> step = tf.train.create_global_step()
        >>> tf.train.get_global_step() is step
        True
    """
    graph = graph or get_default_graph()
    collected = graph.get_collection(GraphKeys.GLOBAL_STEP)
    if len(collected) > 1:
        tf_logging.error("Multiple tensors in global_step collection.")
        return None
    found = collected[0] if collected else _by_name(graph)
    if found is not None:
        assert_global_step(found)
    return found


def _by_name(graph: Graph) -> Tensor | None:
    try:
        return graph.get_tensor_by_name("global_step:0")
    except KeyError:
        return None


@public(
    "train.create_global_step",
    "contrib.framework.create_global_step",
    "contrib.slim.create_global_step",
)
def create_global_step(graph: Graph | None = None) -> Variable:
    """Make the global step of a graph.

    Args:
        graph: the graph; the default one if None.

    Returns:
        An int64 variable.

    Raises:
        ValueError: where there is one already.

    Example:
        >>> tf.train.create_global_step().name
        'global_step:0'
    """
    graph = graph or get_default_graph()
    if get_global_step(graph) is not None:
        raise ValueError('"global_step" already exists.')
    with graph.as_default(), graph.name_scope(None):
        return get_variable(
            GraphKeys.GLOBAL_STEP,
            shape=[],
            dtype=dtypes.int64,
            initializer=Zeros(),
            trainable=False,
            collections=[GraphKeys.GLOBAL_VARIABLES, GraphKeys.GLOBAL_STEP],
        )


@public(
    "train.get_or_create_global_step",
    "contrib.framework.get_or_create_global_step",
    "contrib.slim.get_or_create_global_step",
)
def get_or_create_global_step(graph: Graph | None = None) -> Variable:
    """The global step of a graph, made if there is none.

    Args:
        graph: the graph; the default one if None.

    Returns:
        An int64 variable that optimizers increment: `minimize(loss, global_step=step)`.

    Example:
        >>> step = tf.train.get_or_create_global_step()
        >>> step.name, tf.train.get_or_create_global_step() is step
        ('global_step:0', True)
    """
    graph = graph or get_default_graph()
    found = get_global_step(graph)
    return create_global_step(graph) if found is None else found


@public(
    "train.assert_global_step",
    "contrib.framework.assert_global_step",
    "contrib.slim.assert_global_step",
)
def assert_global_step(global_step_tensor: Tensor | Variable) -> None:
    """Raise TypeError unless this can be a global step: an integer scalar."""
    if not isinstance(global_step_tensor, Variable | Tensor):  # pyright: ignore[reportUnnecessaryIsInstance] - user input
        raise TypeError(
            f'Existing "global_step" must be a Variable or Tensor: {global_step_tensor}.'
        )
    if not global_step_tensor.dtype.base_dtype.is_integer:
        raise TypeError(
            f'Existing "global_step" does not have integer type: {global_step_tensor.dtype}'
        )
    shape = global_step_tensor.get_shape()
    if shape.rank != 0 and shape.is_fully_defined():
        raise TypeError(f'Existing "global_step" is not scalar: {shape}')
