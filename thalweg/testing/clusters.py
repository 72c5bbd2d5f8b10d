"""`tf.test.create_local_cluster`: servers of several tasks in this process, for tests."""

from __future__ import annotations

from thalweg import protos
from thalweg.cluster.addresses import free_ports
from thalweg.cluster.server import Server
from thalweg.public import public


@public("test.create_local_cluster")
def create_local_cluster(
    num_workers: int,
    num_ps: int,
    protocol: str = "grpc",
    worker_config: protos.ConfigProto | None = None,
    ps_config: protos.ConfigProto | None = None,
) -> tuple[list[Server], list[Server]]:
    """Start the servers of a small cluster in this process, at ports that are free.

    Args:
        num_workers: how many tasks the job "worker" has.
        num_ps: how many tasks the job "ps" has.
        protocol: any name.
        worker_config: a `tf.ConfigProto` for the workers.
        ps_config: a `tf.ConfigProto` for the parameter servers.

    Returns:
        The servers of the workers and those of the parameter servers.

    Example:
        >>> workers, servers = tf.test.create_local_cluster(1, 1)
        >>> with tf.device("/job:ps/task:0"):
        ...     v = tf.Variable(20.0)
        >>> with tf.device("/job:worker/task:0"):
        ...     y = v + 1
        >>> with tf.Session(workers[0].target) as session:
        ...     session.run(v.initializer)
        ...     session.run(y)
        np.float32(21.0)
    """
    ports = free_ports(num_workers + num_ps)
    addresses = [f"localhost:{port}" for port in ports]
    cluster = {"worker": addresses[:num_workers], "ps": addresses[num_workers:]}
    cluster = {job: tasks for job, tasks in cluster.items() if tasks}
    workers = [
        Server(cluster, "worker", index, protocol, worker_config) for index in range(num_workers)
    ]
    return workers, [Server(cluster, "ps", index, protocol, ps_config) for index in range(num_ps)]
