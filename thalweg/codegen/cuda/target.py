"""NVIDIA GPUs as targets of lowering and code generation.

A `CudaTarget` is one GPU. An emulated one differs only in the machine that code is generated for:
the threads of the grid run on the host, block by block.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

from thalweg.codegen.machine import compiler_version
from thalweg.ir.target import LayoutTimes, Target

#: The PTX version for each compute capability.
_PTX_VERSIONS = {70: 60, 75: 63, 80: 71, 86: 71, 89: 84, 90: 84, 100: 87, 120: 87}
_ROW_VECTOR = 8  # elements
#: The capabilities with instructions that later ones lack (wgmma, TMA stores).
_OWN_INSTRUCTIONS = frozenset({90, 100})


@dataclass(frozen=True, kw_only=True)
class CudaTarget(Target):
    """A GPU that kernels are generated for; the defaults are those of an H200."""

    name: str = "cuda"
    is_emulated: bool = False
    capability: int = 90  # compute capability times ten

    multiprocessors: int = 132
    warp: int = 32
    max_threads: int = 1024  # of a block
    shared_bytes: int = 227 << 10  # the maximum of a block
    memory_rate: float = 4.8e12  # bytes per second
    launch_time: float = 700.0  # nanoseconds from one kernel of a graph to the next
    deterministic: bool = False  # sums have a fixed order: no atomic additions of floats
    allow_tf32: bool = False  # products of float32 numbers may be rounded to 10 bits
    clock: float = 1.75e9  # cycles per second, under load

    alignment: int = 256
    stored_bytes: int = 32
    vector_bytes: int = 16
    registers: int = 255
    l2: int = 50 << 20

    # All accesses are expensive: their number determines the cost.
    load_cost: float = 4.0
    store_cost: float = 4.0
    far_cost: float = 32.0
    far_bytes: int = 32 << 20

    max_writes: int = 16  # small writes of channels are fused with the sums that they depend on

    # Kernels are split over the grid when they are emitted, according to their sizes.
    reduction_splits: int = 1
    min_split_elements: int = 1 << 16
    min_shared_results: int = 1
    min_shared_rows: int = 1
    prefers_relaxed: bool = True
    shares_reductions: bool = True
    min_nested_rows: int = 128  # fewer leave multiprocessors idle, unless several teams share a row
    min_nested_columns: int = 1 << 14
    max_tile_taps: int = 64
    fuses_rows: bool = True
    max_row_at_hand: int = 1 << 14
    max_shared_row: int = 56 << 10  # elements of a row that fits in shared memory, not in registers
    pairs_sums: bool = True
    reads_strided: bool = True
    fuses_attention: bool = True
    layout_times: LayoutTimes | None = None  # not measured: benchmarks/cuda/layouts.py
    min_contraction_rows: int = 2  # a product with a vector reads a matrix once: no tile is shared
    stores_again: bool = False
    widens_freely: bool = True
    channels_read: int = 8

    def keeps_row(self, length: int) -> bool:
        """Whether a row is kept after its reduction, in registers or in shared memory; the latter
        only in whole vectors, since single elements are slow."""
        is_shared = length <= self.max_shared_row and length % _ROW_VECTOR == 0
        return super().keeps_row(length) or is_shared

    @property
    def triple(self) -> str:
        """LLVM's target triple."""
        return "nvptx64-nvidia-cuda"

    @property
    def cpu(self) -> str:
        """The GPU's architecture for LLVM and `ptxas`."""
        own = "a" if self.capability in _OWN_INSTRUCTIONS else ""
        return f"sm_{self.capability}{own}"

    @property
    def features(self) -> str:
        """The PTX version as an LLVM feature."""
        known = max(c for c in _PTX_VERSIONS if c <= max(self.capability, min(_PTX_VERSIONS)))
        return f"+ptx{_PTX_VERSIONS[known]}"

    @cached_property
    def key(self) -> str:
        """The cache key of all that a kernel's code depends on besides its text."""
        machine = "emulated" if self.is_emulated else f"{self.cpu} {self.features}"
        switches = {"tf32": self.allow_tf32, "deterministic": self.deterministic}
        form = " ".join([str(self.multiprocessors), *(name for name, on in switches.items() if on)])
        return f"{self.triple} {machine} {form} {compiler_version()}"


def emulated(multiprocessors: int = 4, deterministic: bool = False) -> CudaTarget:
    """The target of a small emulated GPU.

    It has few multiprocessors, so that grids are small and threads have several iterations each,
    and packs and tiles images of any size.
    """
    return CudaTarget(
        name="cuda emulated",
        is_emulated=True,
        multiprocessors=multiprocessors,
        deterministic=deterministic,
        min_packed_elements=1,
        min_tiled_elements=1,
    )
