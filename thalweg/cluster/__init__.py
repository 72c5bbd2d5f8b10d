"""Many processes: tasks that run partitions, the master that cuts steps for them, the transport.

Importing this package registers its public names; ZeroMQ, an extra, is imported by the first server
or the first session with a target.
"""

from thalweg.cluster import hash_ring, server, spec
from thalweg.cluster.launch import ray as ray_launcher

__all__ = ["hash_ring", "ray_launcher", "server", "spec"]
