"""`tf.contrib.cluster_resolver`: where a cluster is."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Any

from thalweg.alias import names

tf = names.root()


class ClusterResolver(ABC):
    """The base of resolvers: `cluster_spec` says which tasks there are, `master` which to ask."""

    task_type: str | None = None
    task_id: int | None = None

    @abstractmethod
    def cluster_spec(self) -> Any:
        """The `tf.train.ClusterSpec`."""

    @abstractmethod
    def master(self, task_type: Any = None, task_id: Any = None, rpc_layer: Any = None) -> str:
        """The target of a session."""


class SimpleClusterResolver(ClusterResolver):
    """A cluster that is known."""

    def __init__(
        self,
        cluster_spec: Any,
        master: str = "",
        task_type: str | None = None,
        task_id: int | None = None,
        environment: str = "",
        num_accelerators: Any = None,
        rpc_layer: str | None = None,
    ) -> None:
        if not isinstance(cluster_spec, tf.train.ClusterSpec):
            raise TypeError("cluster_spec must be a ClusterSpec.")
        self._cluster_spec, self._master = cluster_spec, master
        self.task_type, self.task_id, self.environment = task_type, task_id, environment

    def cluster_spec(self) -> Any:
        """The spec that was given."""
        return self._cluster_spec

    def master(self, task_type: Any = None, task_id: Any = None, rpc_layer: Any = None) -> str:
        """The target that was given, or that of a task."""
        if task_type is None or task_id is None:
            return self._master
        return f"grpc://{self._cluster_spec.task_address(task_type, task_id)}"


class TPUClusterResolver(ClusterResolver):
    """Finds a TPU by name. There is none: `""` and `"local"` mean this process."""

    def __init__(self, tpu: str | None = None, *_: Any, **options: Any) -> None:
        if tpu not in ("", "local"):
            raise ValueError(
                f"There is no TPU here, and none is named {tpu!r}: leave it out, or give tpu='' "
                "for this process."
            )
        self._options = options

    def cluster_spec(self) -> Any:
        """None: this process alone."""
        return None

    def master(self, task_type: Any = None, task_id: Any = None, rpc_layer: Any = None) -> str:
        """The target of this process."""
        return ""

    def get_master(self) -> str:
        """The target of this process."""
        return ""
