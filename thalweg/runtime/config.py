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
    """Options of GPUs in `tf.ConfigProto`: kept, so that programs run unchanged, and ignored.

    Args:
        per_process_gpu_memory_fraction, allow_growth, allocator_type, deferred_deletion_bytes,
            visible_device_list, force_gpu_compatible: as TensorFlow has them.

    Example:
        >>> options = tf.GPUOptions(allow_growth=True)
        >>> tf.ConfigProto(gpu_options=options).gpu_options.allow_growth
        True
    """

    per_process_gpu_memory_fraction: float = 0.0
    allow_growth: bool = False
    allocator_type: str = ""
    deferred_deletion_bytes: int = 0
    visible_device_list: str = ""
    force_gpu_compatible: bool = False


@public("OptimizerOptions")
@dataclass
class OptimizerOptions:
    """How far graphs are optimized: kept, so that programs run unchanged, and ignored.

    Args:
        do_common_subexpression_elimination, do_constant_folding, do_function_inlining,
            max_folded_constant_in_bytes, opt_level, global_jit_level: as TensorFlow has them.

    Example:
        >>> tf.OptimizerOptions(opt_level=tf.OptimizerOptions.L0).opt_level
        -1
    """

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
    """How graphs are prepared: kept, so that programs run unchanged, and ignored.

    Args:
        optimizer_options: a `tf.OptimizerOptions`.
        enable_recv_scheduling, build_cost_model, build_cost_model_after, infer_shapes,
            place_pruned_graph, enable_bfloat16_sendrecv, timeline_step, rewrite_options: as
            TensorFlow has them.

    Example:
        >>> options = tf.GraphOptions(optimizer_options=tf.OptimizerOptions(opt_level=1))
        >>> config = tf.ConfigProto(graph_options=options)
    """

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
    """How a session runs its steps.

    Args:
        device_count: how many devices of a kind there are: `{"CPU": 2}`.
        intra_op_parallelism_threads: the threads that run a step; 0 takes one per core.
        allow_soft_placement: run nodes on another device where the one asked for cannot.
        log_device_placement: print the device of each node when a step is planned.
        operation_timeout_in_ms: a limit for every step, after which it fails.
        gpu_options, graph_options: options of other machines, kept and ignored.
        inter_op_parallelism_threads, use_per_session_threads, session_inter_op_thread_pool,
            placement_period, device_filters, rpc_options, cluster_def,
            isolate_session_state: likewise.

    Example:
        >>> config = tf.ConfigProto(intra_op_parallelism_threads=1, device_count={"CPU": 2})
        >>> with tf.Session(config=config) as session:
        ...     [name.rpartition("/")[2] for name in session.list_devices()]
        ['device:CPU:0', 'device:CPU:1']
    """

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
    """The options of one step, for `Session.run`.

    Args:
        trace_level: `tf.RunOptions.FULL_TRACE` records the step in the `run_metadata` given.
        timeout_in_ms: a limit after which the step fails with `DeadlineExceededError`; 0: none.
        output_partition_graphs: put what each device does, as GraphDefs, into `run_metadata`.
        inter_op_thread_pool, debug_options, report_tensor_allocations_upon_oom: kept and ignored.

    Example:
        >>> options = tf.RunOptions(trace_level=tf.RunOptions.FULL_TRACE)
        >>> metadata = tf.RunMetadata()
        >>> sess.run(tf.constant(1) + 2, options=options, run_metadata=metadata)
        np.int32(3)
        >>> len(metadata.step_stats.dev_stats) > 0
        True
    """

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
