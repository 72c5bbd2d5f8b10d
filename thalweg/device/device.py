"""Devices: what owns memory and runs programs.

A `Device` has three duties. It allocates buffers in its memory, which can be copied from and to the
host, and issues programs: `load` compiles a lowered region, and calling the program runs it. What
lowering must know about the hardware is its `target`.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from numpy.typing import NDArray

from thalweg.ir.target import Target
from thalweg.lower.specialise import ControlRegion, Region
from thalweg.ops.core.buffer import Buffer

if TYPE_CHECKING:
    from thalweg.device.program import AnyProgram
    from thalweg.lower.control.builder import Lower
    from thalweg.lower.dynamic_shapes import SpecializedKernel
    from thalweg.lower.lowered import Lowered

Array = NDArray[Any]


class Device(ABC):
    """A processor with memory of its own."""

    is_host: bool = True  # its memory is the host's: buffers are arrays
    description: str = ""  # of the hardware, where it has a name
    capability: int = 0  # of a GPU: its compute capability times ten

    def __init__(self, name: str, target: Target) -> None:
        self.name = name  # in full: "/job:localhost/replica:0/task:0/device:CPU:0"
        self.target = target

    @property
    @abstractmethod
    def key(self) -> str:
        """Names everything about the device that its programs depend on."""

    @property
    def is_lost(self) -> bool:
        """Whether an error has closed it."""
        return False

    # Memory

    @property
    def memory_limit(self) -> int:
        """How many bytes it has."""
        return 0

    @abstractmethod
    def allocate(self, shape: tuple[int, ...], dtype: Any) -> Buffer:
        """Memory for an array; what it holds is undefined."""

    @abstractmethod
    def upload(self, value: Array) -> Buffer:
        """A copy of an array of the host in the device's memory."""

    @abstractmethod
    def relieve_by(self, release: Callable[[], None]) -> None:
        """Have `release` called when memory runs out: it drops what is only kept to be used
        again."""

    # Programs

    @abstractmethod
    def load(self, lowered: Lowered, kernels: Sequence[SpecializedKernel]) -> AnyProgram:
        """A lowered region, its kernels compiled or found in the kernel cache."""

    @abstractmethod
    def find_kernels(self, names: Sequence[str]) -> Any:
        """Kernels by their names in the kernel cache, loaded; None unless all are there."""

    @abstractmethod
    def restore(
        self, template: Any, kernels: Any, region: Region, listing: Callable[[], Any]
    ) -> AnyProgram:
        """A program from its template, as the program cache keeps it, and its loaded kernels."""

    @abstractmethod
    def list_launches(
        self, lowered: Lowered, kernels: Sequence[SpecializedKernel], template: Any, loaded: Any
    ) -> Any:
        """What a program from the program cache was made of, for those who print its plan."""

    @abstractmethod
    def load_control(self, unit: ControlRegion, lower: Lower) -> Any:
        """A conditional or a loop: (context, values) -> outputs, or None for the executor. None in
        its place leaves all of them to the executor."""

    def __repr__(self) -> str:
        return f"<{self.name}>"
