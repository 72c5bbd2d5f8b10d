"""The CUDA driver, libcuda, called through ctypes. No other part of CUDA must be installed."""

from __future__ import annotations

import ctypes
import threading
from collections.abc import Callable, Sequence
from ctypes import POINTER, Structure, byref, c_float, c_int, c_size_t, c_uint, c_uint64, c_void_p
from dataclasses import replace
from functools import cached_property, partial
from typing import Any

from thalweg import errors
from thalweg.codegen.cuda.launch import LaunchShape
from thalweg.codegen.cuda.tensor_map import BYTES, ROUNDED_FLOAT32, TensorMap
from thalweg.device.cuda.driver import (
    Condition,
    Context,
    Driver,
    Graph,
    KernelNode,
    Properties,
)
from thalweg.device.cuda.presence import library
from thalweg.device.cuda.ptx import (
    CONDITION_TEXT,
    COPY,
    COPY_TEXT,
    PIECE,
    SET_CONDITION,
    THREADS,
)

_STATIC_SHARED = 48 << 10  # above this, a function needs permission for its shared memory
_MAX_DYNAMIC_SHARED = 8  # an attribute of functions
_CLUSTER = 4  # an attribute of launches
_HOST, _DEVICE = 1, 2  # kinds of memory
_DEFAULT_RATE = 1e12  # bytes per second, if the driver does not report the memory clock
_NOT_READY = 600
_NON_BLOCKING = 1  # a stream that does not synchronize with the default one
_MAX_KERNEL_COPY = 1 << 16  # bytes up to which a kernel copies to or from the host
_CONDITIONAL, _IF, _WHILE = 13, 0, 1  # a type of nodes, and types of conditions
_CONDITIONALS_SINCE = 12040  # the first driver version that supports them

# Attributes of devices
_THREADS_PER_BLOCK, _MULTIPROCESSORS, _BUS_WIDTH, _L2 = 1, 16, 37, 38
_MEMORY_CLOCK, _MAJOR, _MINOR, _SHARED = 36, 75, 76, 97

#: The codes of dtypes in tensor maps; other types are treated as bytes.
_MAP_DTYPES = {"float16": 6, "float32": 7, "float64": 8, "bfloat16": 9, ROUNDED_FLOAT32: 11}
_MAP_BYTES = 0
_NOT_INTERLEAVED, _L2_256, _ZEROS_OUTSIDE = 0, 3, 0
_SWIZZLES = {32: 1, 64: 2, 128: 3}  # by bytes of a line


class _KernelParameters(Structure):
    _fields_ = (
        ("function", c_void_p),
        *((name, c_uint) for name in ("gx", "gy", "gz", "bx", "by", "bz", "shared")),
        ("parameters", c_void_p),
        ("extra", c_void_p),
        ("kernel", c_void_p),
        ("context", c_void_p),
    )


def _side(name: str) -> list[tuple[str, Any]]:
    offsets = [(f"{name}_{part}", c_size_t) for part in ("x", "y", "z", "level")]
    return [
        *offsets,
        (f"{name}_kind", c_uint),
        (f"{name}_host", c_void_p),
        (f"{name}_device", c_uint64),
        (f"{name}_array", c_void_p),
        (f"{name}_reserved", c_void_p),
        (f"{name}_pitch", c_size_t),
        (f"{name}_height", c_size_t),
    ]


class _Copy(Structure):
    _fields_ = (
        *_side("source"),
        *_side("target"),
        ("width", c_size_t),
        ("height", c_size_t),
        ("depth", c_size_t),
    )


class _ClusterSize(Structure):
    _fields_ = (("x", c_uint), ("y", c_uint), ("z", c_uint), ("rest", ctypes.c_char * 52))


class _ConditionalParameters(Structure):
    """The parameters of a generic node, as far as a conditional node uses them."""

    _fields_ = (
        ("kind", c_int),
        ("reserved", c_int * 3),
        ("handle", c_uint64),
        ("condition", c_int),
        ("size", c_uint),
        ("graphs", POINTER(c_void_p)),
        ("context", c_void_p),
        ("rest", ctypes.c_longlong * 26),
    )


def _described(code: int) -> str:
    name, text = ctypes.c_char_p(), ctypes.c_char_p()
    library().cuGetErrorName(code, byref(name))
    library().cuGetErrorString(code, byref(text))
    parts = [part.value.decode() for part in (name, text) if part.value]
    return ": ".join(parts) or "which the driver does not know"


def _fast_function(name: str, pointers: int) -> Any:
    """A function with `pointers` pointer arguments, declared so that ctypes converts them fast."""
    function = getattr(library(), name)
    function.argtypes = [c_void_p] * pointers
    return function


class LibcudaDriver(Driver):
    """The driver of this machine."""

    @classmethod
    def find(cls) -> LibcudaDriver | None:
        """The driver; None if it cannot use a GPU."""
        return cls() if library().cuInit(0) == 0 else None

    def count(self) -> int:
        found = c_int()
        self._call("cuDeviceGetCount", byref(found))
        return found.value

    def properties(self, index: int) -> Properties:
        device = self._device(index)

        def number(attribute: int) -> int:
            found = c_int()
            self._call("cuDeviceGetAttribute", byref(found), attribute, device)
            return found.value

        name, bus = ctypes.create_string_buffer(256), ctypes.create_string_buffer(64)
        memory = c_size_t()
        self._call("cuDeviceGetName", name, 256, device)
        self._call("cuDeviceGetPCIBusId", bus, 64, device)
        self._call("cuDeviceTotalMem_v2", byref(memory), device)
        # Two transfers per cycle of the memory clock, which is in kHz, or 0 if not reported.
        rate = 2e3 * number(_MEMORY_CLOCK) * number(_BUS_WIDTH) / 8 or _DEFAULT_RATE
        return Properties(
            name.value.decode(),
            10 * number(_MAJOR) + number(_MINOR),
            memory.value,
            number(_MULTIPROCESSORS),
            number(_THREADS_PER_BLOCK),
            number(_SHARED),
            number(_L2),
            rate,
            bus.value.decode(),
        )

    def open(self, index: int, name: str) -> LibcudaContext:
        return LibcudaContext(self._device(index), name)

    def _device(self, index: int) -> c_int:
        device = c_int()
        self._call("cuDeviceGet", byref(device), index)
        return device

    def _call(self, function: str, *arguments: Any) -> None:
        code = getattr(library(), function)(*arguments)
        if code:
            message = f"{function} failed with CUDA error {code}, {_described(code)}"
            raise errors.InternalError(None, None, message)


class LibcudaContext(Context):
    """The primary context of a GPU."""

    def __init__(self, device: c_int, name: str) -> None:
        super().__init__(name)
        self._handle = c_void_p()
        self._current = threading.local()
        self._synchronize = _fast_function("cuStreamSynchronize", 1)
        self._query = _fast_function("cuStreamQuery", 1)
        code = library().cuDevicePrimaryCtxRetain(byref(self._handle), device)
        if code:
            raise self.failure(code, "cuDevicePrimaryCtxRetain", _described(code))

    def call(self, function: str, *arguments: Any) -> None:
        """Call the driver with this context."""
        self.enter()
        code = getattr(library(), function)(*arguments)
        if code:
            raise self.failure(code, function, _described(code))

    def release(self, function: str, handle: Any) -> None:
        """Free a handle. The result is ignored: finalizers may run after the driver has shut
        down."""
        if self.lost is None:
            self.enter()
            getattr(library(), function)(handle)

    def enter(self) -> None:
        """Make this context the current one of this thread."""
        try:
            return self._current.entered  # None; the fast path, taken twice in every step
        except AttributeError:
            pass
        code = library().cuCtxSetCurrent(self._handle)
        if code:
            raise self.failure(code, "cuCtxSetCurrent", _described(code))
        self._current.entered = None

    # Memory

    def memory(self) -> tuple[int, int]:
        free, total = c_size_t(), c_size_t()
        self.call("cuMemGetInfo_v2", byref(free), byref(total))
        return free.value, total.value

    def allocate(self, size: int) -> int:
        address = c_uint64()
        self.call("cuMemAlloc_v2", byref(address), c_size_t(size))
        return address.value

    def free(self, address: int) -> None:
        self.release("cuMemFree_v2", c_uint64(address))

    def pin(self, size: int) -> int:
        address = c_void_p()
        self.call("cuMemHostAlloc", byref(address), c_size_t(size), 0)
        return address.value or 0

    def unpin(self, address: int) -> None:
        self.release("cuMemFreeHost", c_void_p(address))

    # Work

    def upload(self, target: int, source: int, size: int, stream: int) -> None:
        arguments = c_uint64(target), c_void_p(source), c_size_t(size), c_void_p(stream)
        self.call("cuMemcpyHtoDAsync_v2", *arguments)

    def download(self, target: int, source: int, size: int, stream: int) -> None:
        arguments = c_void_p(target), c_uint64(source), c_size_t(size), c_void_p(stream)
        self.call("cuMemcpyDtoHAsync_v2", *arguments)

    def copy(self, target: int, source: int, size: int, stream: int) -> None:
        arguments = c_uint64(target), c_uint64(source), c_size_t(size), c_void_p(stream)
        self.call("cuMemcpyDtoDAsync_v2", *arguments)

    def clear(self, target: int, size: int, stream: int) -> None:
        arguments = c_uint64(target), ctypes.c_ubyte(0), c_size_t(size), c_void_p(stream)
        self.call("cuMemsetD8Async", *arguments)

    def stream(self) -> int:
        handle = c_void_p()
        self.call("cuStreamCreate", byref(handle), _NON_BLOCKING)
        return handle.value or 0

    def wait(self, stream: int) -> None:
        self.enter()
        code = self._synchronize(stream)
        if code:
            raise self.failure(code, "cuStreamSynchronize", _described(code))

    def is_done(self, stream: int) -> bool:
        self.enter()
        code = self._query(stream)
        if code not in (0, _NOT_READY):
            raise self.failure(code, "cuStreamQuery", _described(code))
        return not code

    def event(self) -> int:
        handle = c_void_p()
        self.call("cuEventCreate", byref(handle), 0)
        return handle.value or 0

    def elapsed(self, first: int, second: int) -> float:
        milliseconds = c_float()
        arguments = byref(milliseconds), c_void_p(first), c_void_p(second)
        self.call("cuEventElapsedTime", *arguments)
        return milliseconds.value * 1e-3

    # Code

    def load(self, image: bytes, entries: Sequence[str]) -> tuple[int, ...]:
        module, log = c_void_p(), ctypes.create_string_buffer(8192)
        options = (c_int * 2)(5, 6)  # the buffer of the error log, and its size
        values = (c_void_p * 2)(ctypes.cast(log, c_void_p), len(log))
        self.enter()
        code = library().cuModuleLoadDataEx(byref(module), image, 2, options, values)
        if code:
            described = f"{_described(code)}\n{log.value.decode(errors='replace')}".strip()
            raise self.failure(code, "cuModuleLoadDataEx", described)
        result: list[int] = []
        for name in entries:
            function = c_void_p()
            self.call("cuModuleGetFunction", byref(function), module, name.encode())
            result.append(function.value or 0)
        return tuple(result)

    def allow_shared(self, function: int, size: int) -> None:
        if size > _STATIC_SHARED:
            self.call("cuFuncSetAttribute", c_void_p(function), _MAX_DYNAMIC_SHARED, c_int(size))

    def encode(self, tensor_map: TensorMap, target: int) -> None:
        rank = len(tensor_map.extents)
        about = (
            c_void_p(target),
            c_int(_MAP_DTYPES.get(tensor_map.dtype, _MAP_BYTES)),
            c_uint(rank),
            c_void_p(tensor_map.address),
            (c_uint64 * rank)(*tensor_map.extents),
            (c_uint64 * max(rank - 1, 1))(*tensor_map.strides),
        )
        steps = (c_uint * rank)(*tensor_map.steps)
        swizzle = _SWIZZLES[tensor_map.line_bytes]
        rest = steps, _NOT_INTERLEAVED, swizzle, _L2_256, _ZEROS_OUTSIDE
        windows = tensor_map.windows
        if windows is None:
            box = (c_uint * rank)(*tensor_map.box)
            self.call("cuTensorMapEncodeTiled", *about, box, *rest)
            return
        corners = (c_int * 2)(*windows.lower), (c_int * 2)(*windows.upper)
        sizes = c_uint(windows.channels), c_uint(windows.pixels)
        self.call("cuTensorMapEncodeIm2col", *about, *corners, *sizes, *rest)

    def graph(self) -> LibcudaGraph:
        handle = c_void_p()
        self.call("cuGraphCreate", byref(handle), 0)
        return LibcudaGraph(self, self._handle, handle)

    @cached_property
    def has_conditionals(self) -> bool:  # pyright: ignore[reportIncompatibleVariableOverride] -- computed once
        version = c_int()
        self.call("cuDriverGetVersion", byref(version))
        return version.value >= _CONDITIONALS_SINCE and self._can_build_conditionals()

    def _can_build_conditionals(self) -> bool:
        """Whether a graph with a conditional node can be built; it is not launched."""
        graph = self.graph()
        try:
            _, body = graph.add_conditional(Condition(0, 0, 0), True, ())
            body.finish()
            graph.finish()
        except (errors.OpError, AttributeError):
            return False
        finally:
            graph.close()
        return True

    @cached_property
    def copier(self) -> int:
        """The kernel of small copies."""
        return self.load(COPY_TEXT.encode() + b"\0", [COPY])[0]

    @cached_property
    def condition_setter(self) -> int:
        """The kernel that sets the conditions of graphs."""
        return self.load(CONDITION_TEXT.encode() + b"\0", [SET_CONDITION])[0]


class LibcudaGraph(Graph):
    """A CUDA graph."""

    def __init__(self, context: LibcudaContext, handle: c_void_p, graph: c_void_p) -> None:
        self._context, self._context_handle = context, handle
        self._graph, self._runnable = graph, c_void_p()
        self._nodes: list[c_void_p] = []
        self._leaves: set[int] = set()  # nodes without successors
        self._condition: Sequence[int] | None = None  # of a graph that repeats
        self._root = self  # the outermost graph, which is launched
        self._first: _Launch | None = None  # the first kernel
        self._start: Callable[[int], int] | None = None  # launches the graph on a stream

    @property
    def _is_one_kernel(self) -> bool:
        return len(self._nodes) == 1 and self._first is not None

    def add_kernel(self, kernel: KernelNode, after: Sequence[int]) -> int:
        given = _parameters(kernel, self._context_handle)
        if not self._nodes and kernel.shape.cluster == (1, 1, 1):
            self._first = _Launch(kernel)
        number = self._add("cuGraphAddKernelNode_v2", after, byref(given[0]))
        cluster = kernel.shape.cluster
        if cluster != (1, 1, 1):
            size = _ClusterSize(*cluster)
            arguments = self._nodes[number], _CLUSTER, byref(size)
            self._context.call("cuGraphKernelNodeSetAttribute", *arguments)
        return number

    def add_upload(self, target: int, source: int, size: int, after: Sequence[int]) -> int:
        copy = _Copy(source_kind=_HOST, source_host=source)
        copy.target_kind, copy.target_device = _DEVICE, target
        return self._add_copy(copy, target, source, size, after)

    def add_download(self, target: int, source: int, size: int, after: Sequence[int]) -> int:
        copy = _Copy(source_kind=_DEVICE, source_device=source)
        copy.target_kind, copy.target_host = _HOST, target
        return self._add_copy(copy, target, source, size, after)

    def _add_copy(
        self, copy: _Copy, target: int, source: int, size: int, after: Sequence[int]
    ) -> int:
        """Add a copy: a small one by a kernel."""
        if size <= _MAX_KERNEL_COPY and not (target | source | size) % PIECE:
            pieces, copier = size // PIECE, self._context.copier
            shape = LaunchShape((-(-pieces // THREADS), 1, 1), (THREADS, 1, 1))
            return self._add_internal_kernel(copier, shape, (target, source, pieces), after)
        copy.source_pitch = copy.target_pitch = copy.width = size
        copy.source_height = copy.target_height = copy.height = copy.depth = 1
        return self._add("cuGraphAddMemcpyNode", after, byref(copy), self._context_handle)

    def _add_internal_kernel(
        self, function: int, shape: LaunchShape, values: Sequence[int], after: Sequence[int]
    ) -> int:
        """Add one of the driver's own kernels; the node copies the values."""
        words = (c_uint64 * len(values))(*values)
        return self.add_kernel(
            KernelNode(function, shape, ctypes.addressof(words), len(values)), after
        )

    def add_conditional(
        self, condition: Condition, repeats: bool, after: Sequence[int]
    ) -> tuple[int, LibcudaGraph]:
        handle = c_uint64()
        arguments = self._graph, self._context_handle, c_uint(0), c_uint(0)
        self._context.call("cuGraphConditionalHandleCreate", byref(handle), *arguments)
        decides = condition.truth, condition.fault, condition.stop, condition.negated
        words = handle.value, *decides
        decided = self._add_condition(words, after)
        given = _ConditionalParameters(_CONDITIONAL, handle=handle.value, size=1)
        given.condition, given.context = (_WHILE if repeats else _IF), self._context_handle
        number = self._add("cuGraphAddNode", [decided], byref(given))
        body = LibcudaGraph(self._context, self._context_handle, c_void_p(given.graphs[0]))
        body._root, body._condition = self._root, words if repeats else None
        return number, body

    def _add_condition(self, condition: Sequence[int], after: Sequence[int]) -> int:
        shape = LaunchShape((1, 1, 1), (1, 1, 1))
        return self._add_internal_kernel(self._context.condition_setter, shape, condition, after)

    def add_event(self, event: int, after: Sequence[int]) -> int:
        return self._add("cuGraphAddEventRecordNode", after, c_void_p(event))

    def _add(self, function: str, after: Sequence[int], *arguments: Any) -> int:
        node = c_void_p()
        before = (c_void_p * len(after))(*[self._nodes[number].value for number in after])
        self._context.call(
            function, byref(node), self._graph, before, c_size_t(len(after)), *arguments
        )
        self._nodes.append(node)
        self._leaves.difference_update(after)
        self._leaves.add(len(self._nodes) - 1)
        return len(self._nodes) - 1

    def finish(self) -> None:
        if self._is_one_kernel and self._root is self:
            self._start = self._first  # launched without a graph
            return
        if self._condition is not None:  # decide whether there is another iteration
            self._add_condition(self._condition, sorted(self._leaves))
        if self._root is not self:
            return
        arguments = byref(self._runnable), self._graph, ctypes.c_ulonglong(0)
        self._context.call("cuGraphInstantiateWithFlags", *arguments)
        self._start = partial(_fast_function("cuGraphLaunch", 2), self._runnable)

    def update(self, node: int, kernel: KernelNode) -> None:
        if self._is_one_kernel and self._root is self:
            self._start = self._first = _Launch(kernel)
            return
        given = _parameters(kernel, self._context_handle)
        arguments = self._root._runnable, self._nodes[node], byref(given[0])
        self._context.call("cuGraphExecKernelNodeSetParams_v2", *arguments)

    def launch(self, stream: int) -> None:
        assert self._start is not None  # it is finished
        self._context.enter()
        if code := self._start(stream):
            raise self._context.failure(code, "cuGraphLaunch", _described(code))

    def close(self) -> None:
        if self._root is not self:
            return
        if self._runnable:
            self._context.release("cuGraphExecDestroy", self._runnable)
        self._context.release("cuGraphDestroy", self._graph)
        self._runnable = c_void_p()


class _Launch:
    """The direct launch of a kernel, which is faster than a graph of one node."""

    def __init__(self, kernel: KernelNode) -> None:
        # Parameters are copied, as they are by a node.
        self._words = ctypes.create_string_buffer(
            ctypes.string_at(kernel.words, 8 * kernel.word_count)
        )
        size = BYTES * kernel.map_count
        self._maps = (ctypes.c_char * (size + 64))()
        maps = -(-ctypes.addressof(self._maps) // 64) * 64
        ctypes.memmove(maps, kernel.maps, size)
        own = replace(kernel, words=ctypes.addressof(self._words), maps=maps)
        given, self._held = _parameters(own, c_void_p())
        sizes = [c_uint(n) for n in (*kernel.shape.grid, *kernel.shape.block)]
        shared = c_uint(kernel.shape.shared_bytes)
        self._before = c_void_p(kernel.function), *sizes, shared
        self._after = c_void_p(given.parameters), None
        self._function = library().cuLaunchKernel
        self._stream, self._arguments = -1, self._before

    def __call__(self, stream: int) -> int:
        if stream != self._stream:  # each invocation has one
            self._stream = stream
            self._arguments = *self._before, c_void_p(stream), *self._after
        return self._function(*self._arguments)


def _parameters(kernel: KernelNode, context: c_void_p) -> tuple[_KernelParameters, Any]:
    """The parameters of a kernel node, and the memory that must live until they are copied."""
    addresses = [kernel.words + 8 * n for n in range(kernel.word_count)]
    addresses += [kernel.maps + BYTES * n for n in range(kernel.map_count)]
    array = (c_void_p * len(addresses))(*addresses)
    shape = kernel.shape
    sizes = *shape.grid, *shape.block, shape.shared_bytes
    parameters = ctypes.cast(array, POINTER(c_void_p))
    made = _KernelParameters(
        kernel.function, *sizes, ctypes.cast(parameters, c_void_p), None, None, context
    )
    return made, array
