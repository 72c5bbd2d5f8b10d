"""How a session is configured: the options of TensorFlow's protos that mean something here.

Unknown options are an error; options of other machines (GPU memory, say) are kept and ignored.
"""

from __future__ import annotations

from dataclasses import dataclass, field, fields
from typing import Any

from thalweg.public import public


@public("GPUOptions")
@dataclass
class GPUOptions:
    """Options of GPU devices."""

    per_process_gpu_memory_fraction: float = 0.0
    allow_growth: bool = False
    allocator_type: str = ""
    deferred_deletion_bytes: int = 0
    visible_device_list: str = ""
    force_gpu_compatible: bool = False


@public("OptimizerOptions")
@dataclass
class OptimizerOptions:
    """How far the graph is optimised before it runs."""

    L0 = -1
    L1 = 0
    DEFAULT = 0
    OFF = 0
    ON_1 = 1
    ON_2 = 2
    do_common_subexpression_elimination: bool = False
    do_constant_folding: bool = False
    do_function_inlining: bool = False
    max_folded_constant_in_bytes: int = 0
    opt_level: int = 0
    global_jit_level: int = 0


@public("GraphOptions")
@dataclass
class GraphOptions:
    """How graphs are built and optimised."""

    enable_recv_scheduling: bool = False
    optimizer_options: OptimizerOptions = field(default_factory=OptimizerOptions)
    build_cost_model: int = 0
    build_cost_model_after: int = 0
    infer_shapes: bool = False
    place_pruned_graph: bool = False
    enable_bfloat16_sendrecv: bool = False
    timeline_step: int = 0
    rewrite_options: Any = None


@public("ConfigProto")
@dataclass
class ConfigProto:
    """The configuration of a session."""

    device_count: dict[str, int] = field(default_factory=lambda: dict[str, int]())
    intra_op_parallelism_threads: int = 0
    inter_op_parallelism_threads: int = 0
    use_per_session_threads: bool = False
    session_inter_op_thread_pool: list[Any] = field(default_factory=lambda: list[Any]())
    placement_period: int = 0
    device_filters: list[str] = field(default_factory=lambda: list[str]())
    gpu_options: GPUOptions = field(default_factory=GPUOptions)
    allow_soft_placement: bool = False
    log_device_placement: bool = False
    graph_options: GraphOptions = field(default_factory=GraphOptions)
    operation_timeout_in_ms: int = 0
    rpc_options: Any = None
    cluster_def: Any = None
    isolate_session_state: bool = False


@public("RunOptions")
@dataclass
class RunOptions:
    """The options of one step."""

    NO_TRACE = 0
    SOFTWARE_TRACE = 1
    HARDWARE_TRACE = 2
    FULL_TRACE = 3
    trace_level: int = 0
    timeout_in_ms: int = 0
    inter_op_thread_pool: int = 0
    output_partition_graphs: bool = False
    debug_options: Any = None
    report_tensor_allocations_upon_oom: bool = False


def as_config(config: Any) -> ConfigProto:
    """The configuration a user gave: ours, or TensorFlow's protobuf of the same name."""
    if isinstance(config, ConfigProto):
        return config
    descriptor = getattr(config, "DESCRIPTOR", None)
    if getattr(descriptor, "name", "") != "ConfigProto":
        raise TypeError(f"config must be a tf.ConfigProto, but got {type(config)}")
    scalars = {f.name: getattr(config, f.name) for f in fields(ConfigProto) if f.type in _SCALARS}
    return ConfigProto(**scalars, device_count=dict(config.device_count))


_SCALARS = ("int", "bool")
