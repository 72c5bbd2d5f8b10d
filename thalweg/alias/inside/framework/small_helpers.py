"""Small private helpers of `tensorflow.python` that programs and tests reach for."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from thalweg import protos
from thalweg.alias import names
from thalweg.summary import events

tf = names.root()


def grad_source(op_or_tensor: Any) -> str:
    """The name of the call of `tf.gradients` that made an op: its scope, the innermost one."""
    parts: list[str] = op_or_tensor.name.split("/")
    found = [index for index, part in enumerate(parts) if part.startswith("gradients")]
    if not found:
        raise ValueError(
            f"{op_or_tensor.name} is in no scope of tf.gradients: none begins with 'gradients'."
        )
    return "/".join(parts[: found[-1] + 1])


def skip_common_stack_elements(stacktrace: Sequence[Any], base_case: Sequence[Any]) -> Any:
    """What a stack has after its common beginning with another; its last element if all is."""
    pairs = enumerate(zip(stacktrace, base_case, strict=False))
    differs = (place for place, (one, other) in pairs if one != other)
    return stacktrace[next(differs, -1) :]


def shape_equals(tensor_proto: Any, shape: Any) -> bool:
    """Whether a TensorProto has a shape, which is a sequence of sizes or a TensorShapeProto."""
    if not isinstance(tensor_proto, protos.TensorProto):
        raise TypeError(f"Expected a TensorProto, got {type(tensor_proto).__name__}")
    sizes = [dim.size for dim in shape.dim] if hasattr(shape, "dim") else list(shape)
    return [dim.size for dim in tensor_proto.tensor_shape.dim] == sizes


def random_walk(
    shape: Sequence[int],
    nonlinearity: Any,
    dtype: Any = tf.float32,
    seed: int | None = None,
    name: str = "random_walk",
) -> Any:
    """Normal weights of a layer by which gradients neither vanish nor grow, on the average."""
    if len(shape) != 2:
        raise ValueError(f"Weights of a random walk are a matrix, not of the shape {list(shape)}")
    inputs = shape[0]
    gains = {
        tf.tanh: 1.13,
        tf.identity: math.exp(1 / (2 * inputs)),
        tf.nn.relu: math.sqrt(2) * math.exp(1.2 / (max(inputs, 6) - 2.4)),
    }
    if nonlinearity not in gains:
        raise ValueError(f"No gain of a random walk is known for {nonlinearity!r}")
    stddev = gains[nonlinearity] / math.sqrt(inputs)
    return tf.random_normal(shape, stddev=stddev, dtype=dtype, seed=seed, name=name)


def tensor_array_read(
    handle: Any, index: Any, flow_in: Any, dtype: Any, name: str | None = None
) -> Any:
    """The entry of a TensorArray at an index, read as `dtype`."""
    return tf.TensorArray(dtype, handle=handle, flow=flow_in).read(index, name=name)


class EventsWriter(events.EventsWriter):
    """A file of events, as `pywrap_tensorflow` writes it.

    Args:
        prefix: the beginning of the file's name.
    """

    def __init__(self, prefix: str | bytes) -> None:
        super().__init__(prefix.decode() if isinstance(prefix, bytes) else prefix)

    def WriteEvent(self, event: Any) -> None:
        """Append an `Event` message."""
        self.write(event.SerializeToString())

    def FileName(self) -> str:
        """The file that is written."""
        return self.path

    def Flush(self) -> bool:
        """Hand all events to the operating system."""
        self.flush()
        return True

    def Close(self) -> bool:
        """Flush and close."""
        self.close()
        return True


def resource_scatter_add(resource: Any, indices: Any, updates: Any, name: Any = None) -> Any:
    """Add to rows of the variable that a handle names."""
    return tf.scatter_add(resource, indices, updates, name=name).op
