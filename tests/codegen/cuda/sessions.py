"""Sessions whose compiled kernels are CUDA kernels on an emulated grid.

The CPU's device runs the step as ever; what it calls for each kernel is the launches of that
kernel's CUDA form, all on its first thread. Regions are lowered for a GPU.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np
import pytest

import thalweg as tf
from tests.codegen.cuda.host import HostModule, host_code, load_host, to_host
from thalweg.codegen.cache import Loaded
from thalweg.codegen.cuda.emulation import STACK_BYTES, Slot, state_words
from thalweg.codegen.cuda.kernel import emit, launch_shapes
from thalweg.codegen.cuda.launch import LaunchShape
from thalweg.codegen.cuda.target import CudaTarget, emulated
from thalweg.codegen.llvm.emitted import Request
from thalweg.device import local
from thalweg.device.cpu import loading
from thalweg.ir.dynamic import Dynamic
from thalweg.ir.fingerprint import summary
from thalweg.ir.kernel import Kernel
from thalweg.runtime import compiled

_THREADS, _SHARED = 1024, 1 << 18


class Machine:
    """Memory for launches, and the kernels that were made for it."""

    def __init__(self, target: CudaTarget) -> None:
        self.target = target
        self.state = np.zeros(state_words(_THREADS), np.int64)
        self.stacks = np.empty(_THREADS * STACK_BYTES + 64, np.uint8)
        self.shared = np.full(_SHARED + 1024, 0xFF, np.uint8)
        self.kernels: dict[str, Loaded] = {}
        self.ran: list[Kernel] = []

    def load_all(self, requests: Sequence[Request], _: Any) -> list[Loaded]:
        """The kernels asked for, as functions that the CPU's device can call; equal ones of a step
        are one function."""
        loaded = {request.key: self._loaded(request) for request in requests}
        return [loaded[request.key] for request in requests]

    def _loaded(self, request: Request) -> Loaded:
        kernel = request.make.args[0]  # type: ignore[attr-defined]
        shapes = launch_shapes(kernel, self.target, hints(kernel))
        key = f"{request.key} {shapes}"  # run-time sizes determine the grid, but not the kernel
        if key not in self.kernels:
            self.ran.append(kernel)
            made = emit(kernel, self.target)
            code = host_code(self._launches(to_host(made.text, made.entries), shapes))
            launches = load_host(code, ["launches"])["launches"]
            self.kernels[key] = Loaded((launches.address,), made.scratch)
        return self.kernels[key]

    def _launches(self, made: HostModule, shapes: Sequence[LaunchShape]) -> str:
        """A function with the CPU's signature that launches a kernel's entries. Their text has no
        addresses: it is the same in every process."""
        lines = [
            "define void @launches(ptr %words, i64 %thread, i64 %threads) nounwind {",
            "  %first = icmp eq i64 %thread, 0",
            "  br i1 %first, label %run, label %done",
            "run:",
        ]
        aligned = [array.ctypes.data + -array.ctypes.data % 1024 for array in (self.shared,)]
        stacks = self.stacks.ctypes.data + -self.stacks.ctypes.data % 64
        state = self.state.ctypes.data
        for entry, shape in zip(made.values(), shapes, strict=True):
            values = dict(zip(Slot, (*shape.grid, shape.block[0], *aligned, stacks), strict=False))
            lines += [
                f"  store i64 {value}, ptr inttoptr (i64 {state + 8 * slot} to ptr)"
                for slot, value in values.items()
            ]
            called = f"inttoptr (i64 {entry.address} to ptr)"
            lines.append(f"  call void {called}(ptr %words, ptr inttoptr (i64 {state} to ptr))")
        return "\n".join([*lines, "  br label %done", "done:", "  ret void", "}", ""])


def hints(kernel: Kernel) -> list[int]:
    """Run-time sizes as those of the call that a kernel was made for."""
    found = {n.word: int(n) for n in summary(kernel).integers if isinstance(n, Dynamic)}
    first = len(kernel.arguments) + 2
    return [found.get(word, 1) for word in range(first, max(found, default=first - 1) + 1)]


@contextmanager
def emulated_kernels(target: CudaTarget | None = None) -> Iterator[Machine]:
    """While open, steps that are compiled anew run on an emulated GPU. Sessions place them on the
    CPU, also where the machine has a GPU."""
    machine = Machine(target or emulated())
    lower = compiled.lower
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(local, "driver_kind", lambda: "")
        patch.setattr(loading, "load_all", machine.load_all)
        patch.setattr(compiled.ProgramCache, "find", lambda *_: None)
        patch.setattr(compiled.ProgramCache, "store", lambda *_: None)
        patch.setattr(compiled.ProgramCache, "store_failure", lambda *_: None)
        patch.setattr(compiled, "lower", lambda *given: lower(*given[:2], machine.target))
        yield machine


def run(fetches: Any, feeds: Any) -> Any:
    """Run a step on one thread."""
    config = tf.ConfigProto(intra_op_parallelism_threads=1, inter_op_parallelism_threads=1)
    with tf.Session(config=config) as session:
        session.run(tf.global_variables_initializer())
        return session.run(fetches, feeds)
