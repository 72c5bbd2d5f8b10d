"""Loop kernels on an emulated GPU, held to what they mean."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from tests.codegen.cuda.host import to_host
from tests.codegen.oracle import Oracle, close, guarded
from thalweg.codegen.cuda.compile import ptxas, to_cubin, to_ptx
from thalweg.codegen.cuda.kernel import emit, launch_shapes
from thalweg.codegen.cuda.target import CudaTarget, emulated
from thalweg.ir.kernel import Kernel, Loops

TARGETS = (emulated(), emulated(multiprocessors=1, deterministic=True))


def run(
    kernel: Kernel,
    arrays: Sequence[np.ndarray],
    words: Sequence[int] = (),
    target: CudaTarget = TARGETS[0],
    aligned: bool = False,
    fault: int = 0,
    guarded: bool = False,
) -> int:
    """Run a kernel; what is in the fault word after it. `words` are those behind the scratch."""
    made = emit(kernel, target, guarded, aligned)
    entries = to_host(made.text, made.entries)
    scratch, fault_word = np.full(made.scratch + 256, 0xFF, np.uint8), np.array([fault])
    start = scratch.ctypes.data + -scratch.ctypes.data % 256
    given = [fault_word.ctypes.data, *(array.ctypes.data for array in arrays), start, *words]
    held = np.array(given, np.int64)
    shapes = launch_shapes(kernel, target, words, aligned)
    for name, shape in zip(made.entries, shapes, strict=True):
        entries[name](held.ctypes.data, shape.grid, shape.block, shape.shared_bytes)
    return int(fault_word[0])


def at_16_bytes(arrays: Sequence[np.ndarray]) -> tuple[list[np.ndarray], list[np.ndarray]]:
    """Copies of arrays that begin at multiples of 16 bytes and no more, and guards around them."""
    copies, guards = [], []
    for array in arrays:
        memory = np.full(array.nbytes + 192, 0xA5, np.uint8)
        start = 64 + (16 - memory.ctypes.data) % 64
        inner = memory[start : start + array.nbytes].view(array.dtype).reshape(array.shape)
        inner[...] = array
        copies.append(inner)
        guards += [memory[:start], memory[start + array.nbytes :]]
    return copies, guards


def agree(
    kernel: Loops,
    arrays: Sequence[np.ndarray],
    targets: Sequence[str] = (),
    words: Sequence[int] = (),
    tolerance: float = 2e-5,
) -> int:
    """Hold an emulated GPU to the oracle: aligned and misaligned buffers, in any order or one."""
    expected = [array.copy() for array in arrays]
    fault = Oracle(kernel, expected).run()
    for target, aligned in zip((*TARGETS, TARGETS[0]), (True, True, False), strict=True):
        found, guards = (at_16_bytes if aligned else guarded)(arrays)
        got = run(kernel, found, words, target, aligned)
        assert bool(got) == bool(fault), f"fault {got}, expected {fault}"
        for guard in guards:
            assert (guard == 0xA5).all(), "written outside a buffer"
        # After a fault a step's results count for nothing: kernels may stop halfway.
        for one, other in zip(found, expected, strict=True) if not fault else ():
            close(one, other, tolerance, target.name)
    return fault


def assemble(kernel: Kernel, aligned: bool = True, capability: int = 90) -> str:
    """The PTX of a kernel, which `ptxas` takes where there is one."""
    target = CudaTarget(capability=capability)
    ptx = to_ptx(emit(kernel, target, aligned=aligned).text, target)
    if ptxas() is not None:
        assert to_cubin(ptx, target)
    return ptx
