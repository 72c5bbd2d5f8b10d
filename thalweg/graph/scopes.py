"""`tf.name_scope`, `tf.device` and friends: scopes on the default or the given values' graph."""

from __future__ import annotations

import operator
from collections.abc import Generator, Iterable, Sequence
from contextlib import AbstractContextManager, ContextDecorator, contextmanager
from typing import TYPE_CHECKING, Any

from thalweg.graph.build import graph_of
from thalweg.graph.graph import Graph, get_default_graph, graphs
from thalweg.platform.described import described
from thalweg.public import public

if TYPE_CHECKING:
    from thalweg.graph.likes import DeviceLike, NodeLike


class NameScope(ContextDecorator):
    """Prefix the names of the nodes that are made inside; the context's value is the prefix.

    Args:
        name: the prefix, made unique; one that ends in "/" is taken as it is. None: see next.
        default_name: the prefix where `name` is None.
        values: tensors that the code inside takes; their graph becomes the default one.

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
        self._graph = graph = current if current.is_eager else graph_of(self._values)
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
    """The old order of `name_scope`'s arguments.

    Args:
        values: the tensors that the nodes of the scope use.
        name: the name of the scope.
        default_name: its name where `name` is None.

    Returns:
        A context manager that gives the scope's name.

    Example:
        >>> with tf.op_scope([tf.constant(1.0)], None, "scaled") as scope:
        ...     print(scope)
        scaled/
    """
    return NameScope(name, default_name, values)


@public("control_dependencies")
def control_dependencies(control_inputs: Iterable[Any] | None) -> AbstractContextManager[None]:
    """Let the nodes that are made inside run after others.

    A tensor that was made outside does not wait: make the node inside, by `tf.identity` if need be.

    Args:
        control_inputs: nodes, tensors or variables; None drops those of outer blocks, and makes the
            nodes outside of the conditionals and loops around: they run once for all iterations.

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
    if control_inputs is None and graph.around_control_flow is not graph:
        return _outside_of_control_flow(graph)
    return graph.control_dependencies(control_inputs)


@contextmanager
def _outside_of_control_flow(inner: Graph) -> Generator[None]:
    outer = inner.around_control_flow
    with graphs.pushed(outer), outer.with_scopes_of(inner):
        yield


@public("device")
def device(device_name_or_function: DeviceLike) -> AbstractContextManager[None]:
    """Ask for a device for the nodes that are made inside.

    Args:
        device_name_or_function: a name such as "/cpu:0", whose parts add to those of outer scopes;
            None, which drops these; or a function from a node to a name.

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
    """Let the nodes that are made inside share the device of another.

    Args:
        op: a node, tensor or variable.
        ignore_existing: forget the requests of outer scopes.

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
    """Stateful nodes made inside keep their state in this container.

    Args:
        container_name: the name; `tf.Session.reset` empties it.

    Returns:
        A context manager.

    Example:
        >>> with tf.container("experiment"):
        ...     v = tf.Variable(1.0)
        >>> v.op.get_attr("container")
        b'experiment'
    """
    return get_default_graph().container(container_name)


#: What TensorFlow uses when only the op is seeded: the same programs give the same numbers.
DEFAULT_GRAPH_SEED = 87654321
_LARGEST_SEED = (1 << 31) - 1


@public("get_seed", "random.get_seed")
def get_seed(op_seed: int | None) -> tuple[int | None, int | None]:
    """The (graph seed, op seed) pair that a random op made now uses.

    Args:
        op_seed: the seed that the op was given, or None.

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
    """Seed the random ops that are made from now on in the default graph.

    A program then draws the same numbers each time it runs. An op with a `seed` of its own combines
    both.

    Args:
        seed: an integer; None makes every session differ again.

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
