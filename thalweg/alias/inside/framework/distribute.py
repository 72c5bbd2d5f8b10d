"""`tensorflow.python.distribute`: strategies, of which there is only the one process here."""

from __future__ import annotations

import enum
from typing import Any


class ReduceOp(enum.Enum):
    """How values of replicas are combined."""

    SUM = "SUM"
    MEAN = "MEAN"


def has_strategy() -> bool:
    """False: a program is not copied."""
    return False


def in_cross_replica_context() -> bool:
    """False."""
    return False


def get_strategy() -> None:
    """None."""


def get_loss_reduction() -> ReduceOp:
    """The sum of the losses of one replica."""
    return ReduceOp.SUM


def should_run_distribute_coordinator(config: Any) -> bool:
    """False: `tf.estimator` starts no tasks; `thalweg launch` does."""
    return False


def init_run_config(config: Any, tf_config: Any) -> None:
    """Note that a run has no strategy."""
    config._train_distribute = config._eval_distribute = None
    config._distribute_coordinator_mode = None
