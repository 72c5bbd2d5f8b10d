"""Eager tensors: tensors with values, which may be computed on first read.

To the library an `EagerTensor` is a `Tensor`; to users it is an array. It has its value or is
pending: an output of a lazy trace, which runs when a value is read.
"""

# Eager tensors and lazy traces are one mechanism in several files:
# pyright: reportPrivateUsage=false

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from sys import getrefcount
from typing import Any, NamedTuple, Protocol, cast

import numpy as np

from thalweg import errors
from thalweg.functions.devices import eager_devices
from thalweg.graph.convert import convert_to_tensor
from thalweg.graph.dtypes import as_dtype
from thalweg.graph.graph import get_default_graph
from thalweg.graph.likes import MaybeNone, TensorLike
from thalweg.graph.node import Node, Tensor, operators
from thalweg.graph.shapes import TensorShape
from thalweg.ops.core.basic import identity
from thalweg.ops.core.buffer import HOST, Buffer, read_only
from thalweg.ops.core.compilable import is_number
from thalweg.ops.core.context import VariableCell
from thalweg.platform.arrays import Array
from thalweg.public import public

_MAX_LITERAL = 16  # elements of a constant that is compiled into steps, not fed
_LITERAL_KINDS = frozenset("biufc")
_DLPACK_CPU = (1, 0)


#: `type`, typed for values of any class: `cast(..., type(x))` would be a call on the fast path.
class_of: Callable[[Any], Any] = type

#: Counts reads of values: Python code after a read may depend on the value.
value_reads = [0]

#: The graph of all eager tensors.
eager_graph: list[Any] = []


class Failure:
    """Takes the place of a value that could not be computed."""

    __slots__ = ("error",)

    def __init__(self, error: BaseException) -> None:
        self.error = error


class Literal(NamedTuple):
    """The key of a constant that is compiled into steps: its dtype, shape and elements."""

    dtype: int
    shape: tuple[int, ...]
    elements: bytes


class _Probe:
    """Counts the references to its object that a method sees."""

    def count(self) -> int:
        return getrefcount(self)


def _temporary_refcount() -> int:
    """The reference count of an object that only the call of its method holds; 0 if this
    interpreter counts no more for one that a variable holds too."""
    referenced = _Probe()
    alone = _Probe().count()
    return alone if referenced.count() > alone else 0


_TEMPORARY_REFCOUNT = _temporary_refcount()


class EagerTensor(Tensor):
    """A tensor with a value, or a pending one."""

    __slots__ = ("_array", "_device", "_lazy_trace", "_leaf_key", "_literal", "_position")

    _array: Any  # the value, a variable's cell, a Failure, or None while it is pending
    _device: str  # where it was computed; not set without GPUs
    _leaf_key: Any  # its key as a leaf of a trace, once it was one
    _literal: Literal | None  # of a small constant
    _position: int  # its index among the tensors of the lazy trace
    _lazy_trace: Any  # the lazy trace that the position is of
    slice_of: tuple[Any, Any]  # the variable and the index, if it is `variable[index]`

    @property
    def op(self) -> Node:  # pyright: ignore[reportIncompatibleVariableOverride] - made on demand
        """A node with this tensor as an output; made on demand."""
        return eager_graph[0].node_of(self)

    @property
    def value_index(self) -> int:  # pyright: ignore[reportIncompatibleVariableOverride] - as above
        """Its index among the outputs of its node."""
        return eager_graph[0].node_of(self).outputs.index(self)

    @property
    def graph(self) -> Any:
        """The eager graph, or the graph inside it that is being built."""
        return eager_graph[0].innermost_graph()

    @property
    def device(self) -> str:
        """The device of the value."""
        if not eager_devices().has_accelerators:
            return HOST
        held = self.held()
        if isinstance(held, VariableCell):
            held = held.buffer
        return held.device if isinstance(held, Buffer) else getattr(self, "_device", "") or HOST

    @property
    def shape(self) -> TensorShape:
        """The static shape; the value is computed if it is not fully known."""
        sizes = self._shape.sizes
        if sizes is None or None in sizes:
            value_reads[0] += 1
            self.held()
        return self._shape

    def set_shape(self, shape: Any) -> None:
        """Check the shape."""
        if not self.shape.is_compatible_with(shape):
            raise ValueError(f"Tensor's shape {self.shape} is not compatible with {shape}")

    @property
    def ndim(self) -> int:
        """The number of dimensions."""
        return len(self.shape.sizes or ())

    # The value

    def resolve(self, array: Any) -> None:
        """Set the value of a pending tensor."""
        self._array = array
        self._lazy_trace = None
        sizes = self._shape.sizes
        if (sizes is None or None in sizes) and isinstance(array, np.ndarray | Buffer):
            self._shape = TensorShape.of(cast("Any", array).shape)

    def held(self) -> Any:
        """The value, computed if it is pending: an array, a device buffer, a variable's cell or a
        handle."""
        if self._array is None:
            lazy_trace = self._lazy_trace
            if lazy_trace is not None:  # else another thread has run it by now
                lazy_trace.finish()
        array = self._array
        if type(array) is Failure:
            raise array.error
        return array

    def value(self) -> Any:
        """The value on the host: an array that must not be written to."""
        value_reads[0] += 1
        held = self.held()
        if type(held) is np.ndarray:
            return held
        if type(held) is not VariableCell:
            return held.lease() if isinstance(held, Buffer) else held
        return self.cell().read()

    def cell(self) -> VariableCell:
        """The variable that this tensor refers to, after all pending ops, which may write it."""
        value_reads[0] += 1
        lazy_trace = self._lazy_trace
        if lazy_trace is not None:
            lazy_trace.finish()
        held, lazy_trace = self.held(), eager_graph[0].lazy_trace
        if held in lazy_trace.references:  # by another tensor that refers to it
            lazy_trace.finish()
        return held

    def device_value(self) -> Any:
        """The value on its device: an array or a device buffer."""
        held = self.held()
        return self.value() if type(held) is VariableCell else held

    def numpy(self) -> MaybeNone:
        """The value as a new NumPy array, or a NumPy scalar."""
        value = self.value() if getrefcount(self) > _TEMPORARY_REFCOUNT else self._last_value()
        if not isinstance(value, np.ndarray):
            return value
        array = cast("Array", value)
        if not array.ndim:
            return array[()]
        # No copy if only this tensor refers to the array, and nothing to the tensor after the call.
        is_last = getrefcount(self) <= _TEMPORARY_REFCOUNT and getrefcount(array) <= 4
        return array if is_last and array.flags.owndata and array.flags.writeable else array.copy()

    def _last_value(self) -> Any:
        """The value of a tensor that dies with this call: a device buffer is copied to the host
        without a shared copy."""
        held = self.held()
        if type(held) is not np.ndarray and isinstance(held, Buffer):
            return held.snapshot()
        return self.value()

    def eval(self, feed_dict: Any = None, session: Any = None) -> Any:
        """The value, as `numpy()`; takes no feeds and no session."""
        if feed_dict or session is not None:
            raise ValueError("eval() takes no feeds and no session when eager execution is on.")
        return self.numpy()

    def item(self) -> Any:
        """The single element, as a Python object."""
        return self.value().item()

    def cpu(self) -> Tensor:
        """This tensor, or a copy of it, on the CPU."""
        return self if self.device == HOST else self._copied_to(HOST)

    def gpu(self, gpu_index: int = 0) -> Tensor:
        """This tensor, or a copy of it, on a GPU; an error if there is no such GPU."""
        request = f"/device:GPU:{gpu_index}"
        if not eager_devices().has_accelerators:
            raise errors.invalid(f"No device matches '{request}': this process has no GPU")
        eager_devices().check(request)
        if not is_number(self.dtype.base_dtype):
            raise errors.invalid(f"A GPU has no values of the dtype {self.dtype.name}")
        return self if self.device.endswith(request) else self._copied_to(request)

    def _copied_to(self, device: str) -> Tensor:
        graph = eager_graph[0]
        with graph.as_default(), graph.device(device):
            return identity(self)

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> Array:
        value: Array = np.asarray(self.value())
        wanted = value.dtype if dtype is None else np.dtype(dtype)
        if copy or wanted != value.dtype:
            if copy is False:
                raise ValueError(f"{value.dtype} cannot be {wanted} without a copy")
            return value.astype(wanted)
        return read_only(value.view())

    def __dlpack__(self, *, max_version: tuple[int, int] | None = None, **options: Any) -> Any:
        """The value for another library: read-only and not copied. A library whose DLPack has no
        read-only flag gets a copy. The options are those of NumPy's arrays."""
        array: Any = self.__array__()
        if max_version is None or max_version < (1, 0):
            return array.copy().__dlpack__(**options)
        return array.__dlpack__(max_version=max_version, **options)

    def __dlpack_device__(self) -> tuple[int, int]:
        """The device of the value: the CPU."""
        return _DLPACK_CPU

    def __bool__(self) -> bool:  # pyright: ignore[reportIncompatibleMethodOverride] - here is a value
        return bool(self.value())

    __nonzero__ = __bool__  # pyright: ignore[reportAssignmentType] - as above

    def __float__(self) -> float:
        return float(self.value())

    def __int__(self) -> int:
        return int(self.value())

    def __complex__(self) -> complex:
        return complex(self.value())

    def __index__(self) -> int:
        value = self.value()
        if value.dtype.kind not in "iu" or value.ndim:
            raise TypeError(f"only an integer scalar can be an index, not {self!r}")
        return int(value)

    def __len__(self) -> int:  # pyright: ignore[reportIncompatibleMethodOverride] - here is a value
        sizes = self.shape.sizes
        if not sizes:
            raise TypeError("Scalar tensor has no `len()`")
        return cast("int", sizes[0])

    def __iter__(self) -> Iterator[Any]:  # pyright: ignore[reportIncompatibleMethodOverride] - as above
        if not self.shape.rank:
            raise TypeError("Cannot iterate over a scalar tensor.")
        if not eager_graph[0].tapes:
            self.value()  # indexing an array is cheaper than a step per row
        return (self[row] for row in range(len(self)))

    def __getitem__(self, key: Any) -> Tensor:
        array = self._array
        if type(array) is not np.ndarray:
            array = array.host_copy if isinstance(array, Buffer) else None
        if array is not None and _is_basic_index(key) and not eager_graph[0].tapes:
            try:
                return known(np.asarray(array[key]))
            except IndexError:
                pass  # the op raises a better error
        return operators["getitem"](self, key)

    def assign(self, value: TensorLike, name: str | None = None) -> Tensor:
        """Assign to the slice of a variable that this tensor is: `variable[1:3].assign(value)`."""
        if not hasattr(self, "slice_of"):
            return super().assign(value, name)
        variable, key = self.slice_of
        return operators["assign_at"](variable.gradient_source(), key, value, name)

    def __deepcopy__(self, memo: Any) -> EagerTensor:
        return self

    def __reduce__(self) -> tuple[Callable[..., Any], tuple[Any, ...]]:
        return _unpickled, (self.numpy(), self.dtype.base_dtype.name)

    def __format__(self, spec: str) -> str:
        return format(self.numpy() if self.ndim == 0 else str(self), spec)

    def __repr__(self) -> str:
        return f"<tf.Tensor: {self._summary()}, numpy={_value_text(self, repr)}>"

    def __str__(self) -> str:
        return f"tf.Tensor({_value_text(self, str)}, {self._summary()})"

    def _summary(self) -> str:
        sizes = ", ".join(map(str, self.shape.sizes or ()))
        comma = "," if self.ndim == 1 else ""
        return f"shape=({sizes}{comma}), dtype={self.dtype.base_dtype.name}"


def _value_text(tensor: EagerTensor, write: Callable[[Any], str]) -> str:
    try:
        return write(tensor.numpy())
    except Exception as error:  # repr of a failed tensor must not raise
        return f"<{type(error).__name__}: {error}>"


def _is_basic_index(key: Any) -> bool:
    """Whether an index means the same to NumPy and to TensorFlow."""
    if class_of(key) is slice:
        return all(bound is None or type(bound) is int for bound in (key.start, key.stop))
    return class_of(key) is int


def known(array: Any, dtype: Any = None, shape: TensorShape | None = None) -> EagerTensor:
    """A tensor with a value: an array, or a handle with its dtype and shape."""
    tensor = EagerTensor.__new__(EagerTensor)
    tensor.dtype = as_dtype(array.dtype) if dtype is None else dtype
    tensor._shape = TensorShape.of(array.shape) if shape is None else shape
    tensor._array = array
    tensor._lazy_trace = None
    tensor._position = -1
    tensor._literal = None
    tensor._leaf_key = None
    return tensor


def literal(array: Array, dtype: Any) -> EagerTensor:
    """A constant; a small one is compiled into the steps that use it."""
    tensor = known(array, dtype)
    if array.size <= _MAX_LITERAL and array.dtype.kind in _LITERAL_KINDS:
        tensor._literal = Literal(tensor.dtype.as_datatype_enum, array.shape, array.tobytes())
    return tensor


def set_devices(tensors: Iterable[EagerTensor], devices: Iterable[str] | None) -> None:
    """Set where tensors were computed; nothing without GPUs."""
    for tensor, device in zip(tensors, devices or (), strict=False):
        tensor._device = device


def _unpickled(value: Any, dtype: str) -> EagerTensor:
    return known(np.asarray(value), as_dtype(dtype))


# Arrays of other libraries


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
