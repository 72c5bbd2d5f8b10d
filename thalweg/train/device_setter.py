"""`replica_device_setter`: variables on parameter servers in turn, all else on the worker."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Mapping, Sequence
from typing import Any, cast

from thalweg.graph.device import DeviceSpec
from thalweg.graph.node import Node
from thalweg.public import public

DeviceFunction = Callable[[Node], str]


def _in_turn(tasks: int) -> Callable[[Any], int]:
    numbers = itertools.cycle(range(tasks))
    return lambda _: next(numbers)


@public("train.replica_device_setter")
def replica_device_setter(
    ps_tasks: int = 0,
    ps_device: str = "/job:ps",
    worker_device: str = "/job:worker",
    merge_devices: bool = True,
    cluster: Any = None,
    ps_ops: Sequence[str] | None = None,
    ps_strategy: Callable[[Any], int] | None = None,
) -> DeviceFunction | None:
    """A function for `tf.device` that puts variables on parameter servers, one after the other.

    Args:
        ps_tasks: the number of parameter servers.
        ps_device: the device of variables.
        worker_device: the device of everything else.
        merge_devices: add to the devices of outer scopes instead of replacing them.
        cluster: a description of the cluster to take `ps_tasks` from.
        ps_ops: the types of nodes that are variables.
        ps_strategy: a function from a node to the number of its server; in turn if None.

    Returns:
        A function from nodes to devices; None where there are no parameter servers.

    Example:
        >>> with tf.device(tf.train.replica_device_setter(ps_tasks=2)):
        ...     v, w = tf.Variable(1.0), tf.Variable(2.0)
        >>> v.device, w.device
        ('/job:ps/task:0', '/job:ps/task:1')
    """
    if cluster is not None:
        job = DeviceSpec.from_string(ps_device).job
        ps_tasks = len(_jobs(cluster).get(job or "", ()))
    if ps_tasks == 0:
        return None
    strategy = _in_turn(ps_tasks) if ps_strategy is None else ps_strategy
    if not callable(strategy):
        raise TypeError("ps_strategy must be callable")
    on_servers = frozenset(ps_ops or ("Variable", "VariableV2", "VarHandleOp"))

    def device(node: Node) -> str:
        if node.device and not merge_devices:
            return node.device
        chosen = worker_device or ""
        if ps_device and node.type in on_servers:
            chosen = f"{ps_device}/task:{strategy(node)}"
        return _merged(chosen, node.device) if merge_devices else chosen

    return device


def _merged(chosen: str, asked: str) -> str:
    """The device chosen, as far as the program did not ask for another."""
    spec = DeviceSpec.from_string(chosen)
    spec.merge_from(DeviceSpec.from_string(asked or ""))
    return spec.to_string()


def _jobs(cluster: Any) -> Mapping[str, Any]:
    """The tasks of each job, of a ClusterSpec, a ClusterDef or a dict."""
    as_dict: Callable[[], Mapping[str, Any]] | None = getattr(cluster, "as_dict", None)
    if as_dict is not None:
        return as_dict()
    if isinstance(cluster, Mapping):
        return cast("Mapping[str, Any]", cluster)
    return {job.name: job.tasks for job in cluster.job}
