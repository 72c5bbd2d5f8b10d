"""The options of sessions and steps: TensorFlow's messages, and those of their fields that matter.

Unknown options are an error of the messages themselves; those of other machines (GPU memory, say)
are kept in them and read by nobody.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from thalweg import protos

protos.publish("ConfigProto", "GPUOptions", "OptimizerOptions", "GraphOptions", "RunOptions")


@dataclass(frozen=True)
class SessionOptions:
    """The options of a ConfigProto that mean something here."""

    device_count: Mapping[str, int] = field(default_factory=lambda: dict[str, int]())
    threads: int = 0
    allow_soft_placement: bool = False
    log_device_placement: bool = False
    timeout_in_ms: int = 0
    device_filters: tuple[str, ...] = ()


def session_options(config: Any) -> SessionOptions:
    """The options in a ConfigProto, or the default ones for None."""
    if config is None:
        return SessionOptions()
    if not protos.is_message(config, protos.ConfigProto):
        raise TypeError(f"config must be a tf.ConfigProto, but got {type(config)}")
    return SessionOptions(
        dict(config.device_count),
        config.intra_op_parallelism_threads,
        config.allow_soft_placement,
        config.log_device_placement,
        config.operation_timeout_in_ms,
        tuple(config.device_filters),
    )
