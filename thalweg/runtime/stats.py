"""What a step records about itself, in the form of TensorFlow's protobufs but without them.

The executor's timings become `StepStats` inside a `RunMetadata`; real protobufs are made only when
someone asks for their bytes.
"""

from __future__ import annotations

from collections.abc import Iterable
from copy import deepcopy
from dataclasses import dataclass, field
from typing import Any, TypeVar, cast

from thalweg import protos
from thalweg.graph.graphdef.attributes import shape_proto
from thalweg.graph.shapes import TensorShape
from thalweg.public import public

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
        elif isinstance(value, dict):
            getattr(proto, name).update(value)
        elif isinstance(value, TensorShape):
            getattr(proto, name).MergeFromString(shape_proto(value).SerializeToString())
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
    """What ran on one device; of which thread each is, where threads have names."""

    device: str = ""
    node_stats: Repeated[NodeExecStats] = field(default_factory=lambda: Repeated(NodeExecStats))
    thread_names: dict[int, str] = field(default_factory=lambda: dict[int, str]())


@dataclass
class StepStats(Message):
    """What ran in one step, by device."""

    dev_stats: Repeated[DeviceStepStats] = field(default_factory=lambda: Repeated(DeviceStepStats))


@public("RunMetadata")
@dataclass
class RunMetadata(Message):
    """What a traced step tells about itself; filled by `Session.run` where its options ask for it.

    Args:
        step_stats: when each node ran, by device.
        cost_graph: kept for programs that look at it.
        partition_graphs: what each device does, where the options ask for it.

    Example:
        >>> metadata = tf.RunMetadata()
        >>> options = tf.RunOptions(trace_level=tf.RunOptions.FULL_TRACE)
        >>> sess.run(tf.constant(1) + 2, options=options, run_metadata=metadata)
        np.int32(3)
        >>> metadata.step_stats.dev_stats[0].device[-5:]
        'CPU:0'
    """

    step_stats: StepStats = field(default_factory=StepStats)
    cost_graph: Any = None
    partition_graphs: list[Any] = field(default_factory=lambda: list[Any]())

    def SerializeToString(self) -> bytes:
        """The bytes of TensorFlow's RunMetadata, which TensorBoard shows."""
        proto = protos.RunMetadata()
        fill(proto, self)
        return proto.SerializeToString()


def store_stats(metadata: Any, stats: StepStats) -> None:
    """Put the statistics of a step into a RunMetadata, ours or TensorFlow's protobuf."""
    if isinstance(metadata, RunMetadata):
        metadata.step_stats = stats
    else:
        fill(metadata.step_stats, stats)


def store_graphs(metadata: Any, graphs: Iterable[Any]) -> None:
    """Add GraphDefs to a RunMetadata, ours or TensorFlow's protobuf."""
    if isinstance(metadata, RunMetadata):
        metadata.partition_graphs.extend(graphs)
    else:
        for graph in graphs:
            metadata.partition_graphs.add().MergeFromString(graph.SerializeToString())
