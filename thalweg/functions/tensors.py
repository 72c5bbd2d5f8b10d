"""Eager tensors: tensors with a value, now or as soon as it is read.

To the library an `EagerTensor` is a `Tensor`; to users it is an array. It is either known (it has
an array) or pending: an output of a span of recorded work, which runs when the value is wanted.
"""

# Eager tensors and lazy traces are one mechanism in several files:
# pyright: reportPrivateUsage=false

from __future__ import annotations

from collections.abc import Callable, Iterator
from sys import getrefcount
from typing import Any, NamedTuple, cast

import numpy as np
from numpy.typing import NDArray

from thalweg import errors
from thalweg.functions.devices import eager_devices
from thalweg.graph.dtypes import as_dtype
from thalweg.graph.likes import MaybeNone
from thalweg.graph.node import Node, Tensor, operators
from thalweg.graph.shapes import TensorShape
from thalweg.ops.core.basic import identity
from thalweg.ops.core.buffer import HOST, Buffer
from thalweg.ops.core.compilable import is_number
from thalweg.ops.core.context import VariableCell

Array = NDArray[Any]

_MAX_LITERAL = 16  # elements of a constant that is part of the program, not of its data
_LITERAL_KINDS = frozenset("biufc")
_DLPACK_CPU = (1, 0)


#: `type`, of values that may be anything: a cast of what it gives would be a call on the fast path.
class_of: Callable[[Any], Any] = type

#: How often a value was read: what was done next may depend on it.
value_reads = [0]

#: The eager graph, which all eager tensors belong to.
eager_graph: list[Any] = []


class Failure:
    """In the place of a value: why there is none."""

    __slots__ = ("error",)

    def __init__(self, error: BaseException) -> None:
        self.error = error


class Literal(NamedTuple):
    """A constant that is part of the program: its dtype, its shape and its elements."""

    dtype: int
    shape: tuple[int, ...]
    elements: bytes


class _Probe:
    """Tells how many references a method sees to its own object."""

    def count(self) -> int:
        return getrefcount(self)


def _temporary() -> int:
    """How many references there are to an object that only the call of its method holds; 0 where
    that cannot be distinguished from one that a variable holds as well."""
    held = _Probe()
    alone = _Probe().count()
    return alone if held.count() > alone else 0


_TEMPORARY = _temporary()


class EagerTensor(Tensor):
    """A tensor that has a value."""

    __slots__ = ("_array", "_device", "_kind", "_lazy_trace", "_literal", "_position")

    _array: Any  # the value, a variable's cell, a Failure, or None while it is pending
    _device: str  # where it was computed: not set in a process without GPUs
    _kind: int | None  # a number for its dtype and shape, once it has one
    _literal: Literal | None  # for a small constant
    _position: int  # its number in the lazy trace
    _lazy_trace: Any  # the lazy trace where it has that number

    @property
    def op(self) -> Node:  # pyright: ignore[reportIncompatibleVariableOverride] - made on demand
        """A node that stands for where this tensor came from."""
        return eager_graph[0].node_of(self)

    @property
    def value_index(self) -> int:  # pyright: ignore[reportIncompatibleVariableOverride] - as above
        """Which output of its node it is."""
        return eager_graph[0].node_of(self).outputs.index(self)

    @property
    def graph(self) -> Any:
        """The eager graph, or the one inside it that is being built."""
        return eager_graph[0].inner()

    @property
    def device(self) -> str:
        """Where the value is."""
        if not eager_devices().has_gpus:
            return HOST
        held = self.held()
        if isinstance(held, VariableCell):
            held = held.buffer
        return held.device if isinstance(held, Buffer) else getattr(self, "_device", "") or HOST

    @property
    def shape(self) -> TensorShape:
        """The shape: known in full, if need be by computing the value."""
        sizes = self._shape.sizes
        if sizes is None or None in sizes:
            value_reads[0] += 1
            self.held()
        return self._shape

    def get_shape(self) -> TensorShape:
        """The shape."""
        return self.shape

    def set_shape(self, shape: Any) -> None:
        """Check the shape."""
        if not self.shape.is_compatible_with(shape):
            raise ValueError(f"Tensor's shape {self.shape} is not compatible with {shape}")

    @property
    def rank(self) -> int | None:
        """The number of dimensions."""
        return self.shape.rank

    @property
    def ndim(self) -> int:
        """The number of dimensions."""
        return len(self.shape.sizes or ())

    # The value

    def resolve(self, array: Any) -> None:
        """Have a value."""
        self._array = array
        self._lazy_trace = None
        sizes = self._shape.sizes
        if (sizes is None or None in sizes) and isinstance(array, np.ndarray | Buffer):
            self._shape = TensorShape.of(cast("Any", array).shape)

    def held(self) -> Any:
        """What this tensor holds, computed if need be: an array, a buffer of a device, a variable's
        cell, a handle."""
        if self._array is None:
            self._lazy_trace.finish()
        array = self._array
        if type(array) is Failure:
            raise array.error
        return array

    def value(self) -> Any:
        """The value as the library has it: an array nobody may write to."""
        value_reads[0] += 1
        held = self.held()
        if type(held) is np.ndarray:
            return held
        if type(held) is not VariableCell:
            return held.lease() if isinstance(held, Buffer) else held
        return self.cell().read()

    def cell(self) -> VariableCell:
        """The variable that this tensor refers to, after all that was recorded: that may change
        it."""
        value_reads[0] += 1
        if self._lazy_trace is not None:
            self._lazy_trace.finish()
        return self.held()

    def located(self) -> Any:
        """The value where it is: an array, or a buffer of a device."""
        held = self.held()
        return self.value() if type(held) is VariableCell else held

    def numpy(self) -> MaybeNone:
        """The value as a NumPy array of its own, or a NumPy scalar."""
        value = self.value() if getrefcount(self) > _TEMPORARY else self._last_value()
        if not isinstance(value, np.ndarray):
            return value
        array = cast("Array", value)
        if not array.ndim:
            return array[()]
        # Where nobody but this tensor holds the array, and nobody the tensor when the call returns:
        is_last = getrefcount(self) <= _TEMPORARY and getrefcount(array) <= 4
        return array if is_last and array.flags.owndata and array.flags.writeable else array.copy()

    def _last_value(self) -> Any:
        """The value, of a tensor that nobody holds: what is on a device is copied for the caller
        alone."""
        held = self.held()
        if type(held) is not np.ndarray and isinstance(held, Buffer):
            return held.snapshot()
        return self.value()

    def eval(self, feed_dict: Any = None, session: Any = None) -> Any:
        """The value; there is nothing to feed and no session to run."""
        if feed_dict or session is not None:
            raise ValueError("eval() takes no feeds and no session when eager execution is on.")
        return self.numpy()

    def item(self) -> Any:
        """The only element, as a Python object."""
        return self.value().item()

    def cpu(self) -> Tensor:
        """The value on the CPU: itself, if it is there."""
        return self if self.device == HOST else self._copied(HOST)

    def gpu(self, gpu_index: int = 0) -> Tensor:
        """The value on a GPU: itself, if it is there. An error where there is no such GPU."""
        request = f"/device:GPU:{gpu_index}"
        if not eager_devices().has_gpus:
            raise errors.InvalidArgumentError(
                None, None, f"No device matches '{request}': this process has no GPU"
            )
        eager_devices().check(request)
        if not is_number(self.dtype.base_dtype):
            raise errors.InvalidArgumentError(
                None, None, f"A GPU has no values of the dtype {self.dtype.name}"
            )
        return self if self.device.endswith(request) else self._copied(request)

    def _copied(self, device: str) -> Tensor:
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
        view = value.view()
        view.flags.writeable = False
        return view

    def __dlpack__(
        self,
        *,
        stream: Any = None,
        max_version: tuple[int, int] | None = None,
        dl_device: Any = None,
        copy: bool | None = None,
    ) -> Any:
        """The value for another library, without a copy: it may be read, not written to. A library
        that cannot be told so gets one of its own."""
        array: Any = self.__array__(copy=copy)
        if max_version is None or max_version < (1, 0):
            return array.copy().__dlpack__(stream=stream)
        return array.__dlpack__(stream=stream, max_version=max_version, dl_device=dl_device)

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
            self.value()  # rows of an array are cheaper than steps that compute them
        return (self[row] for row in range(len(self)))

    def __getitem__(self, key: Any) -> Tensor:
        array = self._array
        if type(array) is not np.ndarray:
            array = array.host_copy if isinstance(array, Buffer) else None
        if array is not None and _is_plain(key) and not eager_graph[0].tapes:
            try:
                return known(np.asarray(array[key]))
            except IndexError:
                pass  # the op says it in words
        return operators["getitem"](self, key)

    def __copy__(self) -> EagerTensor:
        return self

    def __deepcopy__(self, memo: Any) -> EagerTensor:
        return self

    def __reduce__(self) -> tuple[Callable[..., Any], tuple[Any, ...]]:
        return _unpickled, (self.numpy(), self.dtype.base_dtype.name)

    def __format__(self, spec: str) -> str:
        return format(self.numpy() if self.ndim == 0 else str(self), spec)

    def __repr__(self) -> str:
        return f"<tf.Tensor: {self._described()}, numpy={_printed(self, repr)}>"

    def __str__(self) -> str:
        return f"tf.Tensor({_printed(self, str)}, {self._described()})"

    def _described(self) -> str:
        sizes = ", ".join(map(str, self.shape.sizes or ()))
        comma = "," if self.ndim == 1 else ""
        return f"shape=({sizes}{comma}), dtype={self.dtype.base_dtype.name}"


def _printed(tensor: EagerTensor, write: Callable[[Any], str]) -> str:
    try:
        return write(tensor.numpy())
    except Exception as error:  # a debugger prints tensors that failed, too
        return f"<{type(error).__name__}: {error}>"


def _is_plain(key: Any) -> bool:
    """Whether NumPy and TensorFlow read an index the same way."""
    kind = cast("Any", type(key))
    return kind is int or (kind is slice and all(_is_bound(b) for b in (key.start, key.stop)))


def _is_bound(bound: Any) -> bool:
    return bound is None or type(bound) is int


def known(array: Any, dtype: Any = None, shape: TensorShape | None = None) -> EagerTensor:
    """A tensor whose value is an array (or a handle, whose dtype and shape must be given)."""
    tensor = EagerTensor.__new__(EagerTensor)
    tensor.dtype = as_dtype(array.dtype) if dtype is None else dtype
    tensor._shape = TensorShape.of(array.shape) if shape is None else shape
    tensor._array = array
    tensor._lazy_trace = None
    tensor._position = -1
    tensor._literal = None
    tensor._kind = None
    return tensor


def literal(array: Array, dtype: Any) -> EagerTensor:
    """A constant: a small one is part of the program it is used in."""
    tensor = known(array, dtype)
    if array.size <= _MAX_LITERAL and array.dtype.kind in _LITERAL_KINDS:
        tensor._literal = Literal(tensor.dtype.as_datatype_enum, array.shape, array.tobytes())
    return tensor


def _unpickled(value: Any, dtype: str) -> EagerTensor:
    return known(np.asarray(value), as_dtype(dtype))
