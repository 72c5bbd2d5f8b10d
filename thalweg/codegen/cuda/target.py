"""NVIDIA GPUs as targets: what lowering asks of them, and what their code generator must know.

A `CudaTarget` is one GPU. An emulated one is the same but for the machine that its text is made
for: the grid's threads then run on the host, one block after the other.
"""

from __future__ import annotations

import importlib
from dataclasses import dataclass
from functools import cached_property

from thalweg.codegen.machine import CODE_VERSION, llvm
from thalweg.ir.target import LayoutTimes, Target

#: The PTX version that text for a compute capability needs.
_PTX_VERSIONS = {70: 60, 75: 63, 80: 71, 86: 71, 89: 84, 90: 84, 100: 87, 120: 87}
_ROW_VECTOR = 8  # elements
#: The capabilities that have instructions of their own which later ones lack (wgmma, TMA stores).
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
    resident_threads: int = 2048  # of a multiprocessor
    shared_bytes: int = 227 << 10  # that a block may have
    memory_rate: float = 4.8e12  # bytes a second
    launch_time: float = 700.0  # nanoseconds from one kernel of a graph to the next
    deterministic: bool = False  # sums come in one order: no atomic additions of floats
    allow_tf32: bool = False  # products of float32 numbers may lose all but 10 bits of them
    clock: float = 1.75e9  # cycles a second, under load

    alignment: int = 256
    stored_bytes: int = 32
    vector_bytes: int = 16
    registers: int = 255
    l2: int = 50 << 20

    # Every element is far: what matters is how often memory is read and written at all.
    load_cost: float = 4.0
    store_cost: float = 4.0
    far_cost: float = 32.0
    far_bytes: int = 32 << 20

    max_writes: int = 16  # small ones of channels go with the sums that they are made of

    # Kernels are split over the grid when they are emitted, by their own sizes.
    reduction_splits: int = 1
    min_split_elements: int = 1 << 16
    min_shared_results: int = 1
    min_shared_rows: int = 1
    prefers_gathers: bool = True
    prefers_relaxed: bool = True
    shares_reductions: bool = True
    min_nested_rows: int = 128  # fewer leave multiprocessors idle, unless several share each
    min_nested_columns: int = 1 << 14
    max_tile_taps: int = 64
    fuses_rows: bool = True
    max_row_at_hand: int = 1 << 14
    max_shared_row: int = 56 << 10  # elements of a row that shared memory holds, and not registers
    pairs_sums: bool = True
    reads_strided: bool = True
    fuses_attention: bool = True
    layout_times: LayoutTimes | None = None  # not measured: benchmarks/cuda/layouts.py
    min_contraction_rows: int = 2  # a product with a vector reads a matrix once: no tile is shared
    stores_again: bool = False
    widens_freely: bool = True
    channels_read: int = 8

    def keeps_row(self, length: int) -> bool:
        """Whether a row is at hand after a reduction of it, in registers or in shared memory: there
        in whole vectors, without which its elements would go one by one."""
        is_shared = length <= self.max_shared_row and length % _ROW_VECTOR == 0
        return super().keeps_row(length) or is_shared

    @property
    def triple(self) -> str:
        """The machine, as LLVM names it."""
        return "nvptx64-nvidia-cuda"

    @property
    def cpu(self) -> str:
        """The GPU's architecture, as LLVM and `ptxas` name it."""
        own = "a" if self.capability in _OWN_INSTRUCTIONS else ""
        return f"sm_{self.capability}{own}"

    @property
    def features(self) -> str:
        """The PTX version, as LLVM takes it."""
        known = max(c for c in _PTX_VERSIONS if c <= max(self.capability, min(_PTX_VERSIONS)))
        return f"+ptx{_PTX_VERSIONS[known]}"

    @cached_property
    def key(self) -> str:
        """Names everything besides its text that a kernel's code depends on."""
        version = ".".join(map(str, llvm().llvm_version_info))
        lite = importlib.import_module("llvmlite").__version__
        machine = "emulated" if self.is_emulated else f"{self.cpu} {self.features}"
        switches = {"tf32": self.allow_tf32, "deterministic": self.deterministic}
        form = " ".join([str(self.multiprocessors), *(name for name, on in switches.items() if on)])
        return f"{self.triple} {machine} {form} {version} {lite} {CODE_VERSION}"


def emulated(multiprocessors: int = 4, deterministic: bool = False) -> CudaTarget:
    """A small GPU whose grid runs on the host.

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
