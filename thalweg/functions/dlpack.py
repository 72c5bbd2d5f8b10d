"""`tf.from_dlpack`: an array of another library as a tensor."""

from __future__ import annotations

from typing import Any, Protocol

import numpy as np

from thalweg.functions.tensors import known
from thalweg.graph.convert import convert_to_tensor
from thalweg.graph.graph import get_default_graph
from thalweg.graph.node import Tensor
from thalweg.ops.core.buffer import read_only
from thalweg.public import public


class HoldsDLPack(Protocol):
    """An array or tensor of any library that shares its memory by DLPack."""

    def __dlpack__(self, *, stream: None = None) -> Any:
        """A capsule with the memory."""
        ...

    def __dlpack_device__(self) -> tuple[int, int]:
        """The type and the number of its device."""
        ...


@public("from_dlpack", "experimental.dlpack.from_dlpack")
def from_dlpack(value: HoldsDLPack) -> Tensor:
    """A tensor over the memory of another library's array, by DLPack: not copied in eager code.

    The other library must not write to it while the tensor is used. In a graph, the current value
    becomes a constant. Eager tensors are exported the same way: `torch.as_tensor(x)`,
    `np.from_dlpack(x)`.

    Args:
        value: an object with `__dlpack__`: an array of NumPy, a tensor of PyTorch on the CPU.

    Returns:
        A tensor.

    Raises:
        BufferError: if the elements are not on the CPU, or of an unknown dtype.

    Example:
        >>> sess.run(tf.from_dlpack(np.arange(3.0)))
        array([0., 1., 2.])
    """
    array = np.from_dlpack(value)
    if not get_default_graph().is_eager:
        return convert_to_tensor(array)
    return known(read_only(array.view()))
