"""`tensorflow.python.ops.clustering_ops`: the words of k-means, which itself is not here."""

from __future__ import annotations

from typing import Any

SQUARED_EUCLIDEAN_DISTANCE = "squared_euclidean"
COSINE_DISTANCE = "cosine"
RANDOM_INIT = "random"
KMEANS_PLUS_PLUS_INIT = "kmeans_plus_plus"
KMC2_INIT = "kmc2"
CLUSTERS_VAR_NAME = "clusters"


class KMeans:
    """Says that k-means is not here."""

    def __init__(self, *_: Any, **__: Any) -> None:
        raise NotImplementedError("Thalweg has no ops for k-means.")
