"""The protobuf messages of sessions and steps: their options, and the metadata of traced steps.

The messages themselves reject unknown options. Known options without a meaning here are accepted
and ignored.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any, TypeAlias

from thalweg import protos
from thalweg.device.gpu_options import GpuOptions
from thalweg.optimize.options import DEFAULT, SWITCHES, OptimizerSwitches, Toggle

protos.publish("ConfigProto", "GPUOptions", "OptimizerOptions", "GraphOptions")
protos.publish("RunOptions", "RunMetadata")

#: A `protos.RunMetadata`, or TensorFlow's message of that name, which takes ours as bytes only.
RunMetadata: TypeAlias = Any


@dataclass(frozen=True)
class SessionOptions:
    """The options of a ConfigProto that have an effect here."""

    device_count: Mapping[str, int] = field(default_factory=lambda: dict[str, int]())
    threads: int = 0
    allow_soft_placement: bool = False
    log_device_placement: bool = False
    timeout_in_ms: int = 0
    device_filters: tuple[str, ...] = ()
    gpus: GpuOptions = field(default_factory=GpuOptions)
    optimizer: OptimizerSwitches = DEFAULT


def session_options(config: Any) -> SessionOptions:
    """The options of a ConfigProto; the defaults for None."""
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
        _gpu_options(config.gpu_options) if config.HasField("gpu_options") else GpuOptions(),
        _switches(config.graph_options) if config.HasField("graph_options") else DEFAULT,
    )


def _gpu_options(given: Any) -> GpuOptions:
    """Memory is allocated on demand, unless a fraction is requested without growth."""
    fraction = given.per_process_gpu_memory_fraction
    return GpuOptions(fraction, given.allow_growth or not fraction, given.visible_device_list)


def _switches(options: Any) -> OptimizerSwitches:
    """Which passes of the optimiser run, by the names of TensorFlow's switches."""
    rewrite = options.rewrite_options
    is_off = rewrite.disable_meta_optimizer or options.optimizer_options.opt_level == _L0
    toggles = {name: Toggle(getattr(rewrite, name)) for name in SWITCHES}
    named = {name: toggle for name, toggle in toggles.items() if toggle is not Toggle.DEFAULT}
    return replace(DEFAULT, enabled=DEFAULT.enabled and not is_off, toggles=named)


_L0 = -1  # no optimisation
