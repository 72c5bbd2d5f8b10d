"""Compiles the text of CUDA kernels to PTX and cubins; calls those compiled for the host.

LLVM emits PTX. `ptxas`, if it is installed (from the CUDA toolkit, or the wheel of the extra
`[cuda]`), compiles it to a cubin; without it the driver compiles PTX itself.
"""

from __future__ import annotations

import ctypes
import importlib.util
import os
import re
import shutil
import struct
import subprocess
import tempfile
import threading
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from thalweg.codegen.cuda.emulation import STACK_BYTES, Slot, state_words
from thalweg.codegen.cuda.launch import Extent3
from thalweg.codegen.cuda.target import CudaTarget
from thalweg.codegen.llvm.compile import (
    llvm_lock,
    machine_code,
    parsed_module,
    run_over_module,
    toolchain_for,
)
from thalweg.codegen.machine import llvm
from thalweg.platform.caches import memoized

#: The PTX of negatives and absolute values. On an H200 `abs` changes the least number, and
#: `ptxas` widens what `neg` gives as if it could not overflow, and makes max(-x, -y) -min(x, y).
_NEGATIVE = re.compile(r"neg\.s(16|32)\s+(%\w+), (%\w+);"), r"not.b\1 \2, \3; add.s\1 \2, \2, 1;"
_ABSOLUTE = (
    re.compile(r"abs\.s(16|32)\s+(%\w+), (%\w+);"),
    r"{ .reg .b\1 %n; not.b\1 %n, \3; add.s\1 %n, %n, 1; max.s\1 \2, \3, %n; }",
)
_ELF64 = b"\x7fELF\x02"  # the magic number of a cubin
_TIME_LIMIT = 120  # seconds: `ptxas` took minutes for kernels that were too large


def to_ptx(text: str, target: CudaTarget) -> str:
    """The PTX of a module."""
    with (
        toolchain_for(target) as tools,
        llvm_lock.acquired(),
        parsed_module(text, target.triple, tools.layout) as module,
    ):
        # Created for each module: analyses are cached by a module's address, which may be reused.
        builder, whole = _passes(tools.machine)
        run_over_module(whole, module, builder)
        ptx = machine_code(tools.machine, module, is_object=False).decode()
    for pattern, exact in (_NEGATIVE, _ABSOLUTE):
        ptx = pattern.sub(exact, ptx)
    return ptx


def _passes(machine: Any) -> tuple[Any, Any]:
    """All passes of -O2 except vectorization: kernels are emitted with vectors where these pay."""
    options = llvm().create_pipeline_tuning_options(speed_level=2)
    options.loop_vectorization = options.slp_vectorization = False
    builder = llvm().create_pass_builder(machine, options)
    return builder, builder.getModulePassManager()


# Cubins


class AssemblyError(RuntimeError):
    """PTX that `ptxas` rejects."""


def to_cubin(ptx: str, target: CudaTarget) -> bytes | None:
    """The machine code of a GPU; None without `ptxas`."""
    program = ptxas()
    if program is None:
        return None
    with tempfile.TemporaryDirectory() as folder:
        source, path = Path(folder, "kernel.ptx"), Path(folder, "kernel.cubin")
        source.write_text(ptx)
        ran = subprocess.run(
            [program, f"-arch={target.cpu}", "-o", path, source],
            capture_output=True,
            text=True,
            timeout=_TIME_LIMIT,
            check=False,
        )
        if ran.returncode:
            raise AssemblyError(ran.stderr.strip() or ran.stdout.strip())
        return path.read_bytes()


def instruction_bytes(cubin: bytes) -> int:
    """The bytes of instructions in a cubin, its sections `.text.*`; 0 for other files."""
    if cubin[:5] != _ELF64:
        return 0
    (first,) = struct.unpack_from("<Q", cubin, 40)
    stride, count, names = struct.unpack_from("<HHH", cubin, 58)
    # Of a header: the offset of the name in the string table; the section's offset and size.
    headers = [struct.unpack_from("<I20xQQ", cubin, first + n * stride) for n in range(count)]
    text = headers[names][1]
    return sum(size for name, _, size in headers if cubin.startswith(b".text.", text + name))


@cache
def ptxas() -> str | None:
    """The path of `ptxas`: on the search path, in the CUDA toolkit, or in NVIDIA's wheel."""
    if found := shutil.which("ptxas"):
        return found
    homes = [os.environ.get("CUDA_HOME"), os.environ.get("CUDA_PATH"), "/usr/local/cuda"]
    places = [Path(home, "bin", "ptxas") for home in homes if home]
    wheel = importlib.util.find_spec("nvidia")
    for folder in wheel.submodule_search_locations or () if wheel else ():
        places += sorted(Path(folder).glob("*/bin/ptxas"))
    return next((str(one) for one in places if os.access(one, os.X_OK)), None)


# The host


@dataclass(frozen=True)
class HostKernel:
    """A kernel on the host, called with the address of its argument words and a launch's shape."""

    address: int

    def __call__(self, words: int, grid: Extent3, block: Extent3, shared_bytes: int = 0) -> None:
        """Launch the kernel."""
        threads = block[0]
        if block[1:] != (1, 1):
            raise ValueError(f"blocks are in one dimension, not {block}")
        memory = _memory.of(threads, shared_bytes)
        memory.shared[:] = _GARBAGE  # undefined on a GPU
        state = memory.state
        state[: Slot.THREADS + 1] = *grid, threads
        state[Slot.SHARED], state[Slot.STACKS] = memory.shared.ctypes.data, memory.stacks
        _function(self.address)(words, state.ctypes.data)
        if (memory.redzone != _REDZONE).any():
            memory.redzone[:] = _REDZONE
            raise RuntimeError("A kernel wrote beyond its shared memory.")


_GARBAGE, _REDZONE, _REDZONE_BYTES = 0xFF, 0xA5, 256


@memoized(10_000)
def _function(address: int) -> Callable[[int, int], None]:
    return ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_void_p)(address)


@dataclass(frozen=True)
class _LaunchMemory:
    """The memory of the launches of one thread."""

    state: NDArray[np.int64]
    shared: NDArray[np.uint8]
    redzone: NDArray[np.uint8]
    stack_memory: NDArray[np.uint8]

    @property
    def stacks(self) -> int:
        """The address of the first stack."""
        return -(-self.stack_memory.ctypes.data // 64) * 64


class _Memories(threading.local):
    """The memory of this thread's launches; only written pages become resident."""

    def __init__(self) -> None:
        self._stacks = np.empty(0, np.uint8)
        self._bytes = np.empty(0, np.uint8)

    def of(self, threads: int, shared: int) -> _LaunchMemory:
        wanted = threads * STACK_BYTES + 64
        if len(self._stacks) < wanted:
            self._stacks = np.empty(wanted, np.uint8)
        if len(self._bytes) < shared + _REDZONE_BYTES + 1024:
            self._bytes = np.empty(shared + _REDZONE_BYTES + 1024, np.uint8)
        start = -self._bytes.ctypes.data % 1024
        whole = self._bytes[start : start + shared + _REDZONE_BYTES]
        whole[shared:] = _REDZONE
        state = np.zeros(state_words(threads), np.int64)
        return _LaunchMemory(state, whole[:shared], whole[shared:], self._stacks)


_memory = _Memories()
