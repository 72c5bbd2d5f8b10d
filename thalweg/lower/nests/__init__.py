"""From the nodes of a region to loop nests, and from loop nests to kernels."""
