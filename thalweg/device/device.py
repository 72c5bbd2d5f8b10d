"""Devices own memory and run programs.

A `Device` allocates buffers in its memory, copies them from and to the host, and loads programs:
`load` compiles a lowered region, and calling the program runs it. Its `target` describes the
hardware to the lowering.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from thalweg.device.program_template import KernelLayout
from thalweg.ir.target import Target
from thalweg.lower.specialise import Region
from thalweg.ops.core.buffer import Buffer
from thalweg.platform.arrays import Array

if TYPE_CHECKING:
    from thalweg.device.control import AnyControlStep
    from thalweg.device.program import AnyProgram
    from thalweg.lower.control.program import ControlProgram
    from thalweg.lower.dynamic_shapes import SpecializedKernel
    from thalweg.lower.lowered import Lowered


class Device(ABC):
    """A processor with memory of its own."""

    is_host: bool = True  # its memory is the host's: buffers are NumPy arrays
    description: str = ""  # the name of the hardware, if it has one
    capability: int = 0  # a GPU's compute capability times ten
    memory_limit: int  # bytes of its memory that this process may use

    def __init__(self, name: str, target: Target) -> None:
        self.name = name  # fully qualified: "/job:localhost/replica:0/task:0/device:CPU:0"
        self.target = target

    @property
    @abstractmethod
    def key(self) -> str:
        """Identifies everything about the device that compiled programs depend on."""

    @property
    def is_lost(self) -> bool:
        """Whether an error has made the device unusable."""
        return False

    # Memory

    @abstractmethod
    def allocate(self, shape: tuple[int, ...], dtype: Any) -> Buffer:
        """An uninitialised buffer for an array."""

    @abstractmethod
    def upload(self, value: Array) -> Buffer:
        """A copy of a host array in the device's memory."""

    @abstractmethod
    def relieve_by(self, release: Callable[[], None]) -> None:
        """Register `release`, which drops cached buffers, to be called when memory runs out."""

    # Programs

    @abstractmethod
    def load(self, lowered: Lowered, kernels: Sequence[SpecializedKernel]) -> AnyProgram:
        """The program of a lowered region; kernels not in the kernel cache are compiled."""

    def find_kernels(self, layouts: Sequence[KernelLayout]) -> Any:
        """Load the kernels of a template from the kernel cache; None if any is missing, or has
        another layout: with it, the template's program would write out of bounds."""
        kernels = self._find_named([layout.name for layout in layouts])
        pairs = zip(layouts, kernels or (), strict=False)
        fits = all(KernelLayout.of(layout.name, kernel) == layout for layout, kernel in pairs)
        return kernels if fits else None

    @abstractmethod
    def _find_named(self, names: Sequence[str]) -> Any:
        """Load kernels by their names in the kernel cache; None if any is missing."""

    @abstractmethod
    def restore(
        self, template: Any, kernels: Any, region: Region, listing: Callable[[], Any]
    ) -> AnyProgram:
        """The program of a template from the program cache, with its loaded kernels."""

    @property
    def runs_control(self) -> bool:
        """Whether it runs conditionals and loops natively."""
        return True

    @abstractmethod
    def load_control(
        self, program: ControlProgram, kernels: Sequence[SpecializedKernel]
    ) -> AnyControlStep:
        """The native program of a conditional or a loop. `kernels`: those of the launches of all
        its parts, in order."""

    def restore_control(self, template: Any, kernels: Any) -> AnyControlStep:
        """The native program of a template from the program cache, with its loaded kernels."""
        raise NotImplementedError(f"The control programs of {self.name} have no templates.")

    def __repr__(self) -> str:
        return f"<{self.name}>"
