"""`replica_device_setter`: variables on parameter servers, other nodes on the worker."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Final

from thalweg.cluster.spec import ClusterSpec
from thalweg.graph.device import DeviceSpec
from thalweg.graph.node import Node
from thalweg.platform import tf_logging
from thalweg.public import public
from thalweg.train.replicas.ps_strategies import RoundRobinStrategy, Strategy

DeviceFunction = Callable[[Node], str]

#: The types of nodes with state that workers share.
STANDARD_PS_OPS: Final = (
    "Variable",
    "VariableV2",
    "AutoReloadVariable",
    "MutableHashTable",
    "MutableHashTableV2",
    "MutableHashTableOfTensors",
    "MutableHashTableOfTensorsV2",
    "MutableDenseHashTable",
    "MutableDenseHashTableV2",
    "VarHandleOp",
)


@public("train.replica_device_setter")
def replica_device_setter(
    ps_tasks: int = 0,
    ps_device: str = "/job:ps",
    worker_device: str = "/job:worker",
    merge_devices: bool = True,
    cluster: Any = None,
    ps_ops: Sequence[str] | None = None,
    ps_strategy: Strategy | None = None,
) -> DeviceFunction | None:
    """A function for `tf.device` that distributes variables over parameter servers.

    Requests of an inner `tf.device` are kept and completed. A variable that an inner scope puts
    into another job than that of the servers stays in that job.

    Args:
        ps_tasks: the number of parameter servers.
        ps_device: the device of variables; "" puts them on the worker.
        worker_device: the device of other nodes; "" leaves it unspecified.
        merge_devices: whether to complete the requests of inner scopes; False leaves nodes that
            have a device unchanged.
        cluster: a `tf.train.ClusterSpec`, ClusterDef or dict in which the servers are counted.
        ps_ops: the types of nodes on servers: variables and mutable tables by default.
        ps_strategy: a function from a node to the index of its server, such as
            `tf.train.ConsistentHashStrategy`; round-robin if None.

    Returns:
        A function from nodes to devices; None where there are no parameter servers.

    Raises:
        TypeError: where `cluster` is no cluster, or the strategy no function.

    Example:
        >>> with tf.device(tf.train.replica_device_setter(ps_tasks=2)):
        ...     v, w = tf.Variable(1.0), tf.Variable(2.0)
        >>> v.device, w.device
        ('/job:ps/task:0', '/job:ps/task:1')
    """
    if cluster is not None:
        ps_tasks = _tasks(ClusterSpec(cluster), DeviceSpec.from_string(ps_device).job)
    if ps_tasks == 0:
        return None
    if not merge_devices:
        tf_logging.warning("Set merge_devices=True in replica_device_setter: False is deprecated.")
    strategy = RoundRobinStrategy(ps_tasks) if ps_strategy is None else ps_strategy
    if not callable(strategy):
        raise TypeError("ps_strategy must be callable")
    on_servers = frozenset(STANDARD_PS_OPS if ps_ops is None else ps_ops)

    def device(node: Node) -> str:
        if node.device and not merge_devices:
            return node.device
        requested = DeviceSpec.from_string(node.device or "")
        chosen = DeviceSpec.from_string(worker_device or "")
        if ps_device and node.type in on_servers:
            chosen = DeviceSpec.from_string(ps_device)
            if chosen.job and requested.job in (None, chosen.job):
                chosen.task = strategy(node)
        chosen.merge_from(requested)
        return chosen.to_string()

    return device


def _tasks(cluster: ClusterSpec, job: str | None) -> int:
    return cluster.num_tasks(job) if job in cluster.jobs else 0
