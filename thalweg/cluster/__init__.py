"""Distributed execution: tasks run partitions of steps, a master drives them over a transport.

The implementation is imported by the first use of a public name or the first session with a
target; ZeroMQ, an optional dependency, by the first server or client.
"""

from thalweg.cluster import hash_ring, spec
from thalweg.public import publish_from

publish_from("thalweg.cluster.server", "train.Server")
publish_from("thalweg.cluster.transport.security", "cluster.new_key")
publish_from("thalweg.cluster.launch.ray", "cluster.ray", "cluster.RayCluster")

__all__ = ["hash_ring", "spec"]
