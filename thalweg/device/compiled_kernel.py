"""The kernels of a program as its device has them, for those who print, profile and tune them."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Self

from thalweg.device.tuning import Tuned
from thalweg.ir.kernel import Kernel

if TYPE_CHECKING:
    from thalweg.lower.dynamic_shapes import SpecializedKernel
    from thalweg.lower.nests.bufferize import Launch


class CompiledKernel(ABC):
    """A launch of a program with its code, on the device that it was compiled for."""

    launch: Launch
    specialized: SpecializedKernel

    @property
    def kernel(self) -> Kernel:
        """What the code was made from: loops or a contraction over flat buffers."""
        return self.launch.kernel

    @property
    @abstractmethod
    def scratch(self) -> int:
        """Memory of its own that a call needs: packed operands and the like."""

    @property
    @abstractmethod
    def phases(self) -> int:
        """How many functions it runs one after the other, each with times of its own."""

    @property
    @abstractmethod
    def barriers(self) -> int:
        """At how many barriers its threads meet: before it, and between its phases."""

    @property
    @abstractmethod
    def users(self) -> int:
        """On how many threads it runs."""

    @property
    def code_sizes(self) -> Mapping[str, int]:
        """The bytes of its code by what it is written in, for devices whose programs load kernels
        one by one."""
        return {}

    @property
    @abstractmethod
    def llvm(self) -> str:
        """Its code as LLVM has it."""

    @property
    @abstractmethod
    def asm(self) -> str:
        """Its code as the processor's instructions."""

    # What the device can do

    @property
    @abstractmethod
    def peaks(self) -> str:
        """The rates that its device reaches at best, as a line for readers."""

    @abstractmethod
    def memory_limit(self, touched: int) -> float:
        """Bytes per second that it could read and write of so many, were that all it did."""

    @property
    @abstractmethod
    def arithmetic_limit(self) -> float:
        """Operations per second of what multiplies in it, were that all it did; 0 where nobody has
        measured it."""

    @classmethod
    @abstractmethod
    def tune(cls, named: Sequence[tuple[str, Self]], budget: float) -> list[Tuned]:
        """Measure schedules for contractions of this device, so many seconds long, and keep the
        best."""
