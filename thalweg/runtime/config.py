"""How a session is configured: the options of TensorFlow's protos that mean something here.

Unknown options are an error; options of other machines (GPU memory, say) are kept and ignored.
"""

from __future__ import annotations

from copy import deepcopy
from dataclasses import dataclass, field
from typing import Any, TypeVar, cast

from thalweg.graph import protos
from thalweg.graph.attributes import shape_proto
from thalweg.graph.shapes import TensorShape
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
    """How graphs are prepared."""

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


Item = TypeVar("Item")


class Repeated(list[Item]):
    """A list of messages that makes its own items, as protobufs do."""

    def __init__(self, kind: type[Item]) -> None:
        super().__init__()
        self._kind = kind

    def add(self, **fields: Any) -> Item:
        """Append a new message and return it."""
        self.append(self._kind(**fields))
        return self[-1]


class Message:
    """What the records of a step share with the protobufs that they are named after."""

    def HasField(self, name: str) -> bool:
        """Whether a field was ever set."""
        return getattr(self, name) != getattr(type(self)(), name)

    def CopyFrom(self, other: Any) -> None:
        """Become equal to another message."""
        fields: dict[str, Any] = deepcopy(other.__dict__)
        self.__dict__.update(fields)


def fill(proto: Any, message: Message) -> None:
    """Copy into a protobuf the fields of a message that it knows."""
    known = {descriptor.name for descriptor in proto.DESCRIPTOR.fields}
    for name, value in vars(message).items():
        if name not in known or value is None:
            continue
        if isinstance(value, Message):
            fill(getattr(proto, name), value)
        elif isinstance(value, Repeated):
            for item in cast("Repeated[Message]", value):
                fill(getattr(proto, name).add(), item)
        elif isinstance(value, list):
            getattr(proto, name).extend(value)
        elif isinstance(value, TensorShape):
            getattr(proto, name).CopyFrom(shape_proto(value))
        else:
            setattr(proto, name, value)


@dataclass
class AllocationDescription(Message):
    """The memory of a tensor."""

    requested_bytes: int = 0
    allocated_bytes: int = 0
    allocator_name: str = ""
    allocation_id: int = 0


@dataclass
class TensorDescription(Message):
    """What is known of a value when the step is over."""

    dtype: int = 0
    shape: TensorShape = field(default_factory=lambda: TensorShape.of(()))
    allocation_description: AllocationDescription = field(default_factory=AllocationDescription)


@dataclass
class NodeOutput(Message):
    """One value that a node gave."""

    slot: int = 0
    tensor_description: TensorDescription = field(default_factory=TensorDescription)


@dataclass
class NodeExecStats(Message):
    """When one node ran, in microseconds, and what it gave."""

    node_name: str = ""
    all_start_micros: int = 0
    op_start_rel_micros: int = 0
    op_end_rel_micros: int = 0
    all_end_rel_micros: int = 0
    timeline_label: str = ""
    scheduled_micros: int = 0
    thread_id: int = 0
    op_type: str = ""
    origin: str = ""
    output: Repeated[NodeOutput] = field(default_factory=lambda: Repeated(NodeOutput))


@dataclass
class DeviceStepStats(Message):
    """What ran on one device."""

    device: str = ""
    node_stats: Repeated[NodeExecStats] = field(default_factory=lambda: Repeated(NodeExecStats))


@dataclass
class StepStats(Message):
    """What ran in one step, by device."""

    dev_stats: Repeated[DeviceStepStats] = field(default_factory=lambda: Repeated(DeviceStepStats))


@public("RunMetadata")
@dataclass
class RunMetadata(Message):
    """What a traced step tells about itself."""

    step_stats: StepStats = field(default_factory=StepStats)
    cost_graph: Any = None
    partition_graphs: list[Any] = field(default_factory=lambda: list[Any]())

    def SerializeToString(self) -> bytes:
        """The bytes of TensorFlow's RunMetadata, which TensorBoard shows."""
        proto = protos.message("config", "RunMetadata")()
        fill(proto, self)
        return proto.SerializeToString()
