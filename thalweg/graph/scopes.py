"""`tf.name_scope`, `tf.device` and other scopes of the default graph, and random seeds."""

from __future__ import annotations

import operator
from collections.abc import Iterable, Sequence
from contextlib import AbstractContextManager, ContextDecorator
from typing import TYPE_CHECKING, Any

from thalweg.graph.build import graph_of
from thalweg.graph.graph import Graph, get_default_graph, graphs
from thalweg.platform.described import described
from thalweg.public import public

if TYPE_CHECKING:
    from thalweg.graph.likes import DeviceLike, NodeLike


class NameScope(ContextDecorator):
    """Prefix the names of new nodes; the value of the context is the prefix.

    Args:
        name: the prefix, made unique; one that ends in "/" is used unchanged.
        default_name: the prefix where `name` is None.
        values: tensors that the code inside uses; their graph becomes the default graph.

    Example:
        >>> with tf.name_scope("layer") as scope:
        ...     x = tf.constant(1.0, name="x")
        >>> scope, x.name
        ('layer/', 'layer/x:0')
    """

    __slots__ = ("_graph", "_name", "_outer", "_values")

    def __init__(
        self,
        name: str | None,
        default_name: str | None = None,
        values: Sequence[Any] | None = None,
    ) -> None:
        self._name = default_name if name is None else name
        if self._name is None and values is not None:
            raise ValueError(
                f"At least one of name ({name}) and default_name ({default_name}) must be provided."
            )
        self._values = values or ()

    def __repr__(self) -> str:
        return described(self, self._name)

    def __enter__(self) -> str:
        current = get_default_graph()
        self._graph = graph = current if current.is_eager else graph_of(self._values, current)
        self._outer = graph.enter_scope(self._name)
        graphs.items.append(graph)
        inner = graph.get_name_scope()
        return inner + "/" if inner else ""

    def __exit__(self, *_: object) -> None:
        graphs.items.pop()
        self._graph.leave_scope(self._outer)


name_scope = public("name_scope")(NameScope)


@public("op_scope")
def op_scope(values: Sequence[Any], name: str | None, default_name: str | None = None) -> NameScope:
    """`tf.name_scope` with its arguments in the old order.

    Args:
        values: the tensors that the nodes of the scope use.
        name: the name of the scope.
        default_name: its name where `name` is None.

    Returns:
        A context manager whose value is the scope's name.

    Example:
        >>> with tf.op_scope([tf.constant(1.0)], None, "scaled") as scope:
        ...     print(scope)
        scaled/
    """
    return NameScope(name, default_name, values)


@public("control_dependencies")
def control_dependencies(control_inputs: Iterable[Any] | None) -> AbstractContextManager[None]:
    """Make new nodes run after other nodes.

    Only nodes created inside the block wait: wrap an existing tensor in `tf.identity`.

    Args:
        control_inputs: nodes, tensors or variables. None drops those of outer blocks and creates
            nodes outside of all open conditionals and loops: they run once for all iterations.

    Returns:
        A context manager.

    Example:
        >>> v = tf.Variable(1)
        >>> with tf.control_dependencies([v.assign_add(1)]):
        ...     after = tf.identity(v)
        >>> sess.run(v.initializer)
        >>> sess.run(after)
        np.int32(2)
    """
    graph = get_default_graph()
    if control_inputs is None and graph.outside_control_flow is not graph:
        return graph.outside_control_flow.with_scopes_of(graph)
    return graph.control_dependencies(control_inputs)


@public("device")
def device(device_name_or_function: DeviceLike) -> AbstractContextManager[None]:
    """Request a device for new nodes.

    Args:
        device_name_or_function: a name such as "/cpu:0", completed by those of outer scopes; None,
            which drops the outer scopes; or a function from a node to a name.

    Returns:
        A context manager.

    Example:
        >>> with tf.device("/cpu:0"):
        ...     x = tf.constant(1.0)
        >>> x.device
        '/device:CPU:0'
    """
    return get_default_graph().device(device_name_or_function)


@public("colocate_with")
def colocate_with(
    op: NodeLike | None, ignore_existing: bool = False
) -> AbstractContextManager[None]:
    """Place new nodes on the device of another node.

    Args:
        op: a node, tensor or variable.
        ignore_existing: whether to ignore the colocation of outer scopes.

    Returns:
        A context manager.

    Example:
        >>> with tf.device("/cpu:0"):
        ...     v = tf.Variable(1.0)
        >>> with tf.colocate_with(v.op):
        ...     y = tf.constant(2.0)
        >>> y.device == v.device
        True
    """
    return get_default_graph().colocate_with(op, ignore_existing)


@public("container")
def container(container_name: str) -> AbstractContextManager[str]:
    """Keep the state of new stateful nodes in a container.

    Args:
        container_name: the name; `tf.Session.reset` clears the container.

    Returns:
        A context manager.

    Example:
        >>> with tf.container("experiment"):
        ...     v = tf.Variable(1.0)
        >>> v.op.get_attr("container")
        b'experiment'
    """
    return get_default_graph().container(container_name)


#: TensorFlow's graph seed where only the op is seeded, so that programs draw the same numbers.
DEFAULT_GRAPH_SEED = 87654321
_LARGEST_SEED = (1 << 31) - 1


@public("get_seed", "random.get_seed")
def get_seed(op_seed: int | None) -> tuple[int | None, int | None]:
    """The (graph seed, op seed) pair of a random op created now.

    Args:
        op_seed: the op's own seed, or None.

    Returns:
        (graph seed, op seed); (None, None) where neither was set.

    Example:
        >>> tf.get_seed(None)
        (None, None)
        >>> tf.set_random_seed(7)
        >>> tf.get_seed(5)
        (7, 5)
    """
    graph: Graph = get_default_graph()
    if graph.seed is None and op_seed is None:
        return None, None
    first = DEFAULT_GRAPH_SEED if graph.seed is None else _checked_seed(graph.seed)
    second = graph.version if op_seed is None else _checked_seed(op_seed)
    pair = first % _LARGEST_SEED, second % _LARGEST_SEED
    # A pair of zeros would mean "not seeded" to the op.
    return (0, _LARGEST_SEED) if pair == (0, 0) else pair


@public("set_random_seed", "random.set_random_seed")
def set_random_seed(seed: int | None) -> None:
    """Set the seed of the default graph, used by random ops created later.

    A program then draws the same numbers in every run. An op with a `seed` of its own uses both.

    Args:
        seed: an integer; None: every session draws different numbers.

    Example:
        >>> tf.set_random_seed(1)
        >>> x = tf.random_uniform([])
        >>> draws = [tf.Session().run(x) for _ in range(2)]
        >>> draws[0] == draws[1]
        np.True_
    """
    get_default_graph().seed = None if seed is None else _checked_seed(seed)


def _checked_seed(seed: Any) -> int:
    try:
        return operator.index(seed)
    except TypeError:
        raise TypeError(f"A seed must be an integer, not {seed!r}") from None
