"""Many processes as one machine: which tasks there are, and how they run a graph together."""

from thalweg.cluster import hash_ring, spec

__all__ = ["hash_ring", "spec"]
