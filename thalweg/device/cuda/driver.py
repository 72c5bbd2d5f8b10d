"""The interface of a CUDA driver: memory, copies, streams, events, modules and graphs.

A `Driver` finds GPUs, a `Context` is an opened GPU. There are two implementations: libcuda
(`libcuda.py`), and an emulation in which device memory is host memory and kernels are compiled for
the host (`emulated.py`). Addresses and handles are integers. Failures raise errors of
`thalweg.errors`; a sticky one closes the context, not the process.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass

from thalweg import errors
from thalweg.codegen.cuda.launch import LaunchShape
from thalweg.codegen.cuda.tensor_map import TensorMap

OUT_OF_MEMORY = 2
#: Sticky errors, which all later calls of a context return, too: illegal addresses and
#: instructions, failed launches and assertions, memory errors, a lost GPU.
STICKY = frozenset({46, 214, 220, 221, 226, 700, 702, 709, 710, 714, 715, 716, 717, 718, 719, 999})


@dataclass(frozen=True)
class Properties:
    """The properties of a GPU, from its driver."""

    name: str
    capability: int  # compute capability times ten
    memory: int  # bytes
    multiprocessors: int
    threads_per_block: int
    shared_bytes: int  # the maximum of a block
    l2: int
    memory_rate: float  # bytes per second
    bus_id: str


@dataclass(frozen=True)
class KernelNode:
    """A kernel of a graph with its launch parameters. `words` is the address of its parameters of
    64 bits, `maps` that of the tensor maps that follow them."""

    function: int
    shape: LaunchShape
    words: int
    word_count: int
    maps: int = 0
    map_count: int = 0


@dataclass(frozen=True)
class Condition:
    """The condition of a conditional graph: the addresses that it is read from."""

    truth: int  # a byte of the device, 0 or 1
    fault: int  # the fault word: if it is set, the condition is false
    stop: int  # a byte of pinned memory, which the host sets to the same effect
    negated: bool = False  # the truth must be 0


class Driver(ABC):
    """Finds the GPUs of this machine."""

    @abstractmethod
    def count(self) -> int:
        """The number of GPUs that are visible to this process."""

    @abstractmethod
    def properties(self, index: int) -> Properties:
        """The properties of a GPU; uses none of its memory."""

    @abstractmethod
    def open(self, index: int, name: str) -> Context:
        """Open a GPU under the name of its device."""


class Graph(ABC):
    """Kernels and copies with dependencies, launched together."""

    @abstractmethod
    def add_kernel(self, kernel: KernelNode, after: Sequence[int]) -> int:
        """Add a kernel; returns the number of its node."""

    @abstractmethod
    def add_upload(self, target: int, source: int, size: int, after: Sequence[int]) -> int:
        """Add a copy from pinned memory."""

    @abstractmethod
    def add_download(self, target: int, source: int, size: int, after: Sequence[int]) -> int:
        """Add a copy to pinned memory."""

    @abstractmethod
    def add_event(self, event: int, after: Sequence[int]) -> int:
        """Add the recording of an event."""

    @abstractmethod
    def add_conditional(
        self, condition: Condition, repeats: bool, after: Sequence[int]
    ) -> tuple[int, Graph]:
        """Add a graph that runs if a condition holds or, with `repeats`, while it holds. Returns
        the number of its node and the graph, which must be finished before this one."""

    @abstractmethod
    def finish(self) -> None:
        """Complete the graph for launches; no more nodes may be added."""

    @abstractmethod
    def update(self, node: int, kernel: KernelNode) -> None:
        """Change the parameters of a kernel for the next launches."""

    @abstractmethod
    def launch(self, stream: int) -> None:
        """Enqueue the graph on a stream; returns without waiting."""

    @abstractmethod
    def close(self) -> None:
        """Free the graph. It must not be running."""


class Context(ABC):
    """An opened GPU. Thread-safe."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.lost: errors.OpError | None = None  # the sticky error that closed it

    def failure(self, code: int, call: str, described: str) -> errors.OpError:
        """The error for a result code of the driver. A sticky one closes this context."""
        if code == OUT_OF_MEMORY:
            return errors.ResourceExhaustedError(None, None, f"{self.name}: out of memory ({call})")
        message = f"{self.name}: {call} failed with CUDA error {code}, {described}"
        if code in STICKY:
            self.lost = self.lost or errors.InternalError(
                None,
                None,
                f"{message}. The device is closed and what it held is lost; other devices of this "
                "process work on, and a new session leaves it out",
            )
            return self.lost
        return errors.InternalError(None, None, message)

    # Memory

    @abstractmethod
    def memory(self) -> tuple[int, int]:
        """(free bytes, total bytes)."""

    @abstractmethod
    def allocate(self, size: int) -> int:
        """Allocate device memory, aligned to 256 bytes; returns its address."""

    @abstractmethod
    def free(self, address: int) -> None:
        """Free device memory; does nothing on a lost context."""

    @abstractmethod
    def pin(self, size: int) -> int:
        """Allocate pinned host memory; returns its address."""

    @abstractmethod
    def unpin(self, address: int) -> None:
        """Free pinned memory."""

    # Operations, which are executed in the order of their stream

    @abstractmethod
    def upload(self, target: int, source: int, size: int, stream: int) -> None:
        """Copy from the host. Memory that is not pinned is read before this returns."""

    @abstractmethod
    def download(self, target: int, source: int, size: int, stream: int) -> None:
        """Copy to the host."""

    @abstractmethod
    def copy(self, target: int, source: int, size: int, stream: int) -> None:
        """Copy within the device."""

    @abstractmethod
    def clear(self, target: int, size: int, stream: int) -> None:
        """Fill device memory with zeros."""

    @abstractmethod
    def stream(self) -> int:
        """Create a stream."""

    @abstractmethod
    def wait(self, stream: int) -> None:
        """Wait until all operations of a stream are done; releases the GIL."""

    @abstractmethod
    def is_done(self, stream: int) -> bool:
        """Whether all operations of a stream are done."""

    @abstractmethod
    def event(self) -> int:
        """Create an event, which stores the time of its recording."""

    @abstractmethod
    def elapsed(self, first: int, second: int) -> float:
        """The seconds between two recorded events."""

    # Code

    @abstractmethod
    def load(self, image: bytes, entries: Sequence[str]) -> tuple[int, ...]:
        """Load a module (PTX, a cubin, or a host object if emulated); returns its entries."""

    @abstractmethod
    def allow_shared(self, function: int, size: int) -> None:
        """Allow launches of a function to use this much dynamic shared memory."""

    @abstractmethod
    def encode(self, tensor_map: TensorMap, target: int) -> None:
        """Encode a tensor map at an address of the host."""

    @abstractmethod
    def graph(self) -> Graph:
        """Create a graph."""

    @property
    @abstractmethod
    def has_conditionals(self) -> bool:
        """Whether conditional graphs are supported."""
