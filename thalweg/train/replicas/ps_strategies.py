"""Strategies that assign variables to parameter servers: round-robin, by load, at random, by hash.

A strategy is a function from a node to the index of a task. Workers that build the same graph must
agree on it, so a strategy gives the same result in every process.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable

from thalweg.cluster.hash_ring import HashRing
from thalweg.graph.node import Node
from thalweg.graph.shapes import as_shape
from thalweg.platform.described import described
from thalweg.public import public

Strategy = Callable[[Node], int]


class RoundRobinStrategy:
    """Chooses servers in turn."""

    def __init__(self, num_tasks: int) -> None:
        self._num_tasks = num_tasks
        self._next_task = 0

    def __call__(self, op: Node) -> int:
        task = self._next_task
        self._next_task = (task + 1) % self._num_tasks
        return task


@public("contrib.training.GreedyLoadBalancingStrategy")
class GreedyLoadBalancingStrategy:
    """Chooses the server with the least load so far, for `tf.train.replica_device_setter`.

    Args:
        num_tasks: the number of parameter servers.
        load_fn: a function from a node to a number; `tf.contrib.training.byte_size_load_fn`
            counts bytes.

    Example:
        >>> by_bytes = tf.contrib.training.GreedyLoadBalancingStrategy(
        ...     2, tf.contrib.training.byte_size_load_fn
        ... )
        >>> with tf.device(tf.train.replica_device_setter(ps_tasks=2, ps_strategy=by_bytes)):
        ...     large, small, other = [tf.Variable(tf.zeros([n])) for n in (100, 10, 10)]
        >>> large.device, small.device, other.device
        ('/job:ps/task:0', '/job:ps/task:1', '/job:ps/task:1')
    """

    def __init__(self, num_tasks: int, load_fn: Callable[[Node], float]) -> None:
        self._load_fn = load_fn
        self._loads = [0.0] * num_tasks

    def __repr__(self) -> str:
        return described(self, loads=self._loads)

    def __call__(self, op: Node) -> int:
        task = self._loads.index(min(self._loads))
        self._loads[task] += self._load_fn(op)
        return task


@public("contrib.training.byte_size_load_fn")
def byte_size_load_fn(op: Node) -> int:
    """The bytes of a variable, or of the output of another node.

    Args:
        op: the node.

    Returns:
        The number of bytes.

    Raises:
        ValueError: where the node has more than one output, or its shape is unknown.

    Example:
        >>> tf.contrib.training.byte_size_load_fn(tf.Variable(tf.zeros([2, 5])).op)
        40
    """
    if len(op.outputs) != 1:
        raise ValueError(f"Op {op.name} must have a single output")
    (output,) = op.outputs
    shape = as_shape(output.shape)
    shape.assert_is_fully_defined()
    return (shape.num_elements() or 0) * output.dtype.size


@public("contrib.training.RandomStrategy")
class RandomStrategy:
    """Chooses a server pseudo-randomly, by the name of the variable: the same in every process.

    Args:
        num_ps: the number of parameter servers.
        seed: the seed of the choice.

    Raises:
        ValueError: where there are no servers.

    Example:
        >>> at_random = tf.contrib.training.RandomStrategy(4)
        >>> with tf.device(tf.train.replica_device_setter(ps_tasks=4, ps_strategy=at_random)):
        ...     tf.get_variable("v", []).device
        '/job:ps/task:3'
    """

    def __init__(self, num_ps: int, seed: int = 0) -> None:
        if num_ps <= 0:
            raise ValueError("Must have at least one parameter server.")
        self._num_ps = num_ps
        self._seed = seed

    def __repr__(self) -> str:
        return described(self, num_ps=self._num_ps, seed=self._seed)

    def __call__(self, op: Node) -> int:
        digest = hashlib.md5(f"{op.name}_{self._seed}".encode(), usedforsecurity=False)
        return int(digest.hexdigest(), 16) % self._num_ps


@public("train.ConsistentHashStrategy")
class ConsistentHashStrategy:
    """Chooses a server by consistent hashing of the variable's name.

    When a server is added, one in n variables moves to it and none moves between the others.

    Args:
        num_tasks: the number of parameter servers.
        virtual_nodes: the number of points of each on the hash ring; more balance the load better.

    Example:
        >>> def placed(servers):
        ...     by_hash = tf.train.ConsistentHashStrategy(servers)
        ...     setter = tf.train.replica_device_setter(ps_tasks=servers, ps_strategy=by_hash)
        ...     with tf.Graph().as_default(), tf.device(setter):
        ...         return [tf.get_variable(f"v{i}", []).device for i in range(8)]
        >>> {after for before, after in zip(placed(3), placed(4)) if before != after}
        {'/job:ps/task:3'}
    """

    def __init__(self, num_tasks: int, virtual_nodes: int = 128) -> None:
        self._ring = HashRing(range(num_tasks), virtual_nodes)

    def __repr__(self) -> str:
        return described(self, num_tasks=len(self._ring.members))

    def __call__(self, op: Node) -> int:
        return self._ring.owner(op.name)
