"""`tf.distribute`: strategies, of which there is one replica in a process.

Replicas of a program are processes here (`thalweg launch`, `tf.train.replica_device_setter`); a
strategy runs its functions once, on this process's devices: programs written around one run.
"""

from __future__ import annotations

import contextlib
import json
import os
import threading
from collections.abc import Callable, Generator
from typing import Any

from thalweg.alias import names
from thalweg.alias.inside.framework.distribute import ReduceOp, get_loss_reduction

tf = names.root()

__all__ = ["ReduceOp", "get_loss_reduction"]


class ReplicaContext:
    """What a replica knows of the others: that there are none."""

    num_replicas_in_sync = 1
    replica_id_in_sync_group = 0

    def __init__(self, strategy: Strategy) -> None:
        self.strategy = strategy

    def merge_call(self, merge_fn: Callable[..., Any], args: Any = (), kwargs: Any = None) -> Any:
        """Call a function with the values of all replicas: those of this one."""
        with _cross_replica():
            return merge_fn(self.strategy, *args, **(kwargs or {}))

    def all_reduce(self, reduce_op: Any, value: Any) -> Any:
        """The sum or mean over one replica."""
        return tf.nest.map_structure(tf.identity, value)

    @property
    def devices(self) -> tuple[str, ...]:
        """The device of this replica."""
        return (self.strategy.device,)


class _Extended:
    """The parts of a strategy that libraries call."""

    def __init__(self, strategy: Strategy) -> None:
        self._strategy = strategy

    def call_for_each_replica(
        self, fn: Callable[..., Any], args: Any = (), kwargs: Any = None
    ) -> Any:
        """Call a function, once."""
        return self._strategy.run(fn, args, kwargs)

    def reduce_to(self, reduce_op: Any, value: Any, destinations: Any) -> Any:
        """A value of one replica."""
        return value

    def update(
        self,
        var: Any,
        fn: Callable[..., Any],
        args: Any = (),
        kwargs: Any = None,
        group: bool = True,
    ) -> Any:
        """Update a variable by a function."""
        return fn(var, *args, **(kwargs or {}))

    def colocate_vars_with(self, colocate_with_variable: Any) -> Any:
        """Make variables where another one is."""
        return tf.colocate_with(colocate_with_variable)


class Strategy:
    """One replica on this process's devices."""

    num_replicas_in_sync = 1
    device = ""

    def __init__(self) -> None:
        self.extended = _Extended(self)

    @contextlib.contextmanager
    def scope(self) -> Generator[Strategy]:
        """Make variables and models of this strategy inside."""
        before, _state.strategy = _state.strategy, self
        try:
            with _cross_replica(), tf.device(self.device or None):
                yield self
        finally:
            _state.strategy = before

    def run(self, fn: Callable[..., Any], args: Any = (), kwargs: Any = None) -> Any:
        """Call a function in the replica."""
        before, _state.is_cross = _state.is_cross, False
        try:
            with tf.device(self.device or None):
                return fn(*args, **(kwargs or {}))
        finally:
            _state.is_cross = before

    experimental_run_v2 = run

    def reduce(self, reduce_op: Any, value: Any, axis: int | None = None) -> Any:
        """A value of one replica, summed or averaged along an axis."""
        if axis is None:
            return value
        is_mean = reduce_op in (ReduceOp.MEAN, "MEAN", "mean")
        return (tf.reduce_mean if is_mean else tf.reduce_sum)(value, axis)

    def experimental_distribute_dataset(self, dataset: Any) -> Any:
        """A dataset for one replica."""
        return dataset

    def make_dataset_iterator(self, dataset: Any) -> Any:
        """An iterator for one replica."""
        return tf.data.make_initializable_iterator(dataset)

    def experimental_local_results(self, value: Any) -> tuple[Any, ...]:
        """The values of all replicas."""
        return (value,)

    unwrap = experimental_local_results

    def group(self, value: Any, name: str | None = None) -> Any:
        """An op that does what a value says."""
        return tf.group(value, name=name)


class OneDeviceStrategy(Strategy):
    """One replica on one device."""

    def __init__(self, device: str) -> None:
        super().__init__()
        self.device = device


class MirroredStrategy(Strategy):
    """A replica on each device of a list, of which there may be one."""

    def __init__(
        self, devices: Any = None, cross_device_ops: Any = None, num_gpus: int | None = None
    ) -> None:
        super().__init__()
        listed = [devices] if isinstance(devices, str) else list(devices or ())
        if len(listed) > 1 or (num_gpus or 0) > 1:
            raise ValueError(
                "A strategy has one replica here. For more, start more workers: "
                "tf.train.SyncReplicasOptimizer with tf.train.replica_device_setter."
            )
        self.device = listed[0] if listed else ""


class MultiWorkerMirroredStrategy(MirroredStrategy):
    """A replica in each worker that `TF_CONFIG` lists: this process, where it lists no other."""

    def __init__(self, communication: Any = None, cluster_resolver: Any = None) -> None:
        super().__init__()
        cluster = json.loads(os.environ.get("TF_CONFIG") or "{}").get("cluster", {})
        tasks = [task for job in ("chief", "worker") for task in cluster.get(job, ())]
        if len(tasks) > 1:
            raise ValueError(
                f"TF_CONFIG lists {len(tasks)} workers, and a strategy has one replica here. Train "
                "with tf.train.SyncReplicasOptimizer and tf.train.replica_device_setter."
            )


class _State(threading.local):
    strategy: Strategy | None = None
    is_cross = False


_state = _State()
_default = Strategy()


@contextlib.contextmanager
def _cross_replica() -> Generator[None]:
    before, _state.is_cross = _state.is_cross, True
    try:
        yield
    finally:
        _state.is_cross = before


def get_strategy() -> Strategy:
    """The strategy whose scope is open, or the one that does nothing."""
    return _state.strategy or _default


def has_strategy() -> bool:
    """Whether the scope of a strategy is open."""
    return _state.strategy is not None


def in_cross_replica_context() -> bool:
    """Whether code runs for all replicas: in the scope of a strategy, outside of `run`."""
    return _state.is_cross


def get_replica_context() -> ReplicaContext | None:
    """What a replica knows, None outside of one."""
    return None if _state.is_cross else ReplicaContext(get_strategy())


def __getattr__(name: str) -> Any:
    if name == "Server":
        return tf.train.Server
    if name == "cluster_resolver":
        return tf.contrib.cluster_resolver
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
