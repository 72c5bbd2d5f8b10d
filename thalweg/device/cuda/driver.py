"""What this package asks of a CUDA driver: memory, copies, streams, events, modules and graphs.

A `Driver` finds GPUs, a `Context` is one of them in use. There are two of each: that of libcuda
(`libcuda.py`), and an emulation in which device memory is memory of the host and kernels are built
for it (`emulated.py`). Addresses and handles are integers. What fails is an error of
`thalweg.errors`; one after which CUDA answers nothing else closes the context, not the process.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass

from thalweg import errors
from thalweg.codegen.cuda.launch import LaunchShape
from thalweg.codegen.cuda.tensor_map import TensorMap

OUT_OF_MEMORY = 2
#: Results that a context gives for every call after the one that caused them: illegal addresses
#: and instructions, failed launches and assertions, memory errors, a GPU that is gone.
STICKY = frozenset({46, 214, 220, 221, 226, 700, 702, 709, 710, 714, 715, 716, 717, 718, 719, 999})


@dataclass(frozen=True)
class Properties:
    """A GPU, as its driver describes it."""

    name: str
    capability: int  # compute capability times ten
    memory: int  # bytes
    multiprocessors: int
    threads_per_block: int
    threads_per_multiprocessor: int
    shared_bytes: int  # that a block may ask for
    l2: int
    memory_rate: float  # bytes a second
    bus_id: str


@dataclass(frozen=True)
class KernelNode:
    """A kernel of a graph: what it is launched with. `words` is the address of its parameters of
    64 bits, `maps` that of the tensor maps that follow them."""

    function: int
    shape: LaunchShape
    words: int
    word_count: int
    maps: int = 0
    map_count: int = 0


@dataclass(frozen=True)
class Condition:
    """Whether a graph runs: what is at some addresses."""

    truth: int  # a byte of the device, 0 or 1
    fault: int  # the fault word: nothing more runs once it is set
    stop: int  # a byte of pinned memory, by which the host does the same
    negated: bool = False  # the truth is to be 0


class Driver(ABC):
    """Finds the GPUs of this machine."""

    @abstractmethod
    def count(self) -> int:
        """How many GPUs this process may see."""

    @abstractmethod
    def properties(self, index: int) -> Properties:
        """What one of them is; this takes no memory of it."""

    @abstractmethod
    def open(self, index: int, name: str) -> Context:
        """One of them, to be used under the name of its device."""


class Graph(ABC):
    """Kernels and copies with the order between them, launched as one."""

    @abstractmethod
    def add_kernel(self, kernel: KernelNode, after: Sequence[int]) -> int:
        """Add a kernel; the number of its node."""

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
        """Add a graph that runs if a condition holds, and again as long as it does if it repeats;
        the number of its node, and the graph, which is to be filled and finished before this."""

    @abstractmethod
    def finish(self) -> None:
        """No more is added: it may be launched."""

    @abstractmethod
    def update(self, node: int, kernel: KernelNode) -> None:
        """Give a kernel other parameters, from the next launch on."""

    @abstractmethod
    def launch(self, stream: int) -> None:
        """Run it after what the stream has, and return at once."""

    @abstractmethod
    def close(self) -> None:
        """Free it. It must not be running."""


class Context(ABC):
    """A GPU in use. Any number of threads may call it at once."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.lost: errors.OpError | None = None  # why it can be used no more

    def failure(self, code: int, call: str, described: str) -> errors.OpError:
        """The error for a result of the driver. A sticky one closes this context."""
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
        """Bytes that are free, and all there are."""

    @abstractmethod
    def allocate(self, size: int) -> int:
        """The address of new memory of the device, aligned to 256 bytes."""

    @abstractmethod
    def free(self, address: int) -> None:
        """Free memory of the device; of a context that is lost, nothing happens."""

    @abstractmethod
    def pin(self, size: int) -> int:
        """The address of new memory of the host that copies reach directly."""

    @abstractmethod
    def unpin(self, address: int) -> None:
        """Free pinned memory."""

    # Work, in the order in which a stream is given it

    @abstractmethod
    def upload(self, target: int, source: int, size: int, stream: int) -> None:
        """Copy from the host. From memory that is not pinned it is read before this returns."""

    @abstractmethod
    def download(self, target: int, source: int, size: int, stream: int) -> None:
        """Copy to the host."""

    @abstractmethod
    def copy(self, target: int, source: int, size: int, stream: int) -> None:
        """Copy between two places of the device."""

    @abstractmethod
    def clear(self, target: int, size: int, stream: int) -> None:
        """Have zeros at an address of the device."""

    @abstractmethod
    def stream(self) -> int:
        """A new stream."""

    @abstractmethod
    def wait(self, stream: int) -> None:
        """Return when all that a stream was given is done; other threads run meanwhile."""

    @abstractmethod
    def is_done(self, stream: int) -> bool:
        """Whether all that a stream was given is done."""

    @abstractmethod
    def event(self) -> int:
        """A new event, which notes the time when it is recorded."""

    @abstractmethod
    def elapsed(self, first: int, second: int) -> float:
        """Seconds between two events that have been recorded."""

    # Code

    @abstractmethod
    def load(self, image: bytes, entries: Sequence[str]) -> tuple[int, ...]:
        """The entries of a module: PTX, a cubin, or an object of the host where it is emulated."""

    @abstractmethod
    def allow_shared(self, function: int, size: int) -> None:
        """Let launches of a function have so much dynamic shared memory."""

    @abstractmethod
    def encode(self, tensor_map: TensorMap, target: int) -> None:
        """Write a tensor map as kernels take it to an address of the host."""

    @abstractmethod
    def graph(self) -> Graph:
        """A new graph."""

    @property
    @abstractmethod
    def has_conditionals(self) -> bool:
        """Whether graphs may have conditional ones inside."""
