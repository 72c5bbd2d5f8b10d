"""Single names of `tf` and `tf.contrib` that are another spelling of what is here."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Generator
from typing import Any

import numpy as np

from thalweg.alias import names
from thalweg.alias.inside.keras.tf_utils import constant_value, smart_cond
from thalweg.graph import nest

tf = names.root()

__all__ = ["smart_cond"]  # found by name, as all others

#: Where they were before 1.0.
SequenceExample = tf.train.SequenceExample
SyncReplicasOptimizer = tf.train.SyncReplicasOptimizer


def timestamp(name: str | None = None) -> Any:
    """The seconds since 1970, when the op runs."""

    def now() -> Any:
        return np.float64(time.time())

    stamp = tf.py_func(now, [], tf.float64, name=name)
    stamp.set_shape([])
    return stamp


def enable_control_flow_v2() -> None:
    """There is one kind of control flow: conditionals and loops are nodes that hold graphs."""


def disable_control_flow_v2() -> None:
    """There is one kind of control flow: conditionals and loops are nodes that hold graphs."""


def control_flow_v2_enabled() -> bool:
    """True: conditionals and loops are nodes that hold graphs."""
    return True


def compile(computation: Callable[..., Any], inputs: Any = None) -> list[Any]:
    """What a computation gives for some inputs: every step is compiled."""
    found = computation(*(tf.convert_to_tensor(value) for value in inputs or ()))
    return [tf.identity(value) for value in nest.as_list(found) if value is not None]


@contextlib.contextmanager
def experimental_jit_scope(
    compile_ops: Any = True, separate_compiled_gradients: bool = False
) -> Generator[None]:
    """A scope that is compiled, as all are."""
    yield


jit_scope = experimental_jit_scope


def smart_constant_value(pred: Any) -> bool | None:
    """The value of a condition if it is known before the step, else None."""
    return constant_value(pred)


def list_devices() -> list[str]:
    """The names of the devices of this process."""
    return [device.name for device in tf.python.client.device_lib.list_local_devices()]


def deprecated_flipped_softmax_cross_entropy_with_logits(
    logits: Any, labels: Any, dim: int = -1, name: str | None = None
) -> Any:
    """`tf.nn.softmax_cross_entropy_with_logits`, with the logits first."""
    return tf.nn.softmax_cross_entropy_with_logits(labels=labels, logits=logits, dim=dim, name=name)


def deprecated_flipped_sparse_softmax_cross_entropy_with_logits(
    logits: Any, labels: Any, name: str | None = None
) -> Any:
    """`tf.nn.sparse_softmax_cross_entropy_with_logits`, with the logits first."""
    return tf.nn.sparse_softmax_cross_entropy_with_logits(labels=labels, logits=logits, name=name)


def deprecated_flipped_sigmoid_cross_entropy_with_logits(
    logits: Any, targets: Any, name: str | None = None
) -> Any:
    """`tf.nn.sigmoid_cross_entropy_with_logits`, with the logits first."""
    return tf.nn.sigmoid_cross_entropy_with_logits(labels=targets, logits=logits, name=name)


def all_sum(tensors: Any) -> list[Any]:
    """The sum of tensors on some devices, on each of them."""
    if not tensors:
        raise ValueError("Must pass >0 tensors to all reduce operations")
    total = tf.add_n(list(tensors))
    result: list[Any] = []
    for tensor in tensors:
        with tf.device(tensor.device or None):
            result.append(tf.identity(total))
    return result


class StagingArea:
    """Holds values from one step for a later one: `put` in a step, `get` in another.

    Args:
        dtypes: the dtypes of an element.
        shapes: their shapes.
        names: their names, if elements are dicts.
        shared_name: under which name other sessions find it.
        capacity: how many elements it holds; without limit if 0.
        memory_limit: taken for old programs.
    """

    def __init__(
        self,
        dtypes: Any,
        shapes: Any = None,
        names: Any = None,
        shared_name: str | None = None,
        capacity: int = 0,
        memory_limit: int = 0,
    ) -> None:
        if capacity < 0 or memory_limit < 0:
            raise ValueError("'capacity' and 'memory_limit' must be >= 0")
        self._queue = tf.FIFOQueue(
            capacity or 2**31 - 1,
            dtypes,
            shapes=shapes,
            names=names,
            shared_name=shared_name,
            name="StagingArea",
        )
        self.dtypes, self.shapes, self.names = self._queue.dtypes, self._queue.shapes, names
        self.name, self.capacity, self.memory_limit = self._queue.name, capacity, memory_limit

    def put(self, values: Any, name: str | None = None) -> Any:
        """An op that puts an element in."""
        return self._queue.enqueue(values, name=name)

    def get(self, name: str | None = None) -> Any:
        """The oldest element, as a list or a dict; waits for one."""
        found = self._queue.dequeue(name=name)
        return found if self.names else nest.as_list(found)

    def size(self, name: str | None = None) -> Any:
        """How many elements are in."""
        return self._queue.size(name=name)

    def clear(self, name: str | None = None) -> Any:
        """An op that drops all elements."""
        count = self._queue.size()
        return tf.group(self._queue.dequeue_many(count), name=name)


def get_name_scope() -> str:
    """The name scope that is open."""
    return tf.get_default_graph().get_name_scope()
