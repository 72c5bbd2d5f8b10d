"""CUDA kernels and launches: the output of code generation."""

from __future__ import annotations

from dataclasses import dataclass

from thalweg.codegen.cuda.tensor_map import TensorMapSpec

Extent3 = tuple[int, int, int]


@dataclass(frozen=True)
class LaunchShape:
    """The grid of one launch. Blocks are one-dimensional: (threads, 1, 1)."""

    grid: Extent3
    block: Extent3
    shared_bytes: int = 0  # dynamic shared memory
    cluster: Extent3 = (1, 1, 1)


@dataclass(frozen=True)
class CudaKernel:
    """A kernel as LLVM text for a target.

    The entries are launched in sequence. Each takes the argument words of the CPU's
    kernels (the fault word's address, buffers, scratch, run-time sizes), a parameter of 64 bits
    for each, and after them its encoded tensor maps by value. `scratch` is the memory in
    bytes that the launches share.
    """

    text: str
    entries: tuple[str, ...]
    scratch: int = 0
    tensor_maps: tuple[TensorMapSpec, ...] = ()
