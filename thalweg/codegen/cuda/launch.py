"""What a device needs to run a kernel of the IR on a GPU: its text, and its launches' grids."""

from __future__ import annotations

from dataclasses import dataclass

Extent3 = tuple[int, int, int]


@dataclass(frozen=True)
class LaunchShape:
    """The grid of one launch. Blocks are in one dimension: (threads, 1, 1)."""

    grid: Extent3
    block: Extent3
    shared_bytes: int = 0  # dynamic shared memory
    cluster: Extent3 = (1, 1, 1)


@dataclass(frozen=True)
class TensorMapSpec:
    """A TMA descriptor that a kernel takes besides its argument words."""

    argument: int  # the word that holds the address of the tensor
    dtype: str
    extents: tuple[int, ...]
    strides: tuple[int, ...]  # in bytes, of all axes but the innermost
    box: tuple[int, ...]
    swizzle: int = 0  # bytes


@dataclass(frozen=True)
class CudaKernel:
    """A kernel as LLVM text for the target's machine.

    The entries are launched one after the other. Each takes the argument words of the CPU's
    kernels (the fault word's address, buffers, scratch, run-time sizes), a parameter of 64 bits
    for each. `scratch` is the memory in bytes that the launches share.
    """

    text: str
    entries: tuple[str, ...]
    scratch: int = 0
    tensor_maps: tuple[TensorMapSpec, ...] = ()
