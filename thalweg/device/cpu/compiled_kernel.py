"""The compiled kernels of a CPU's programs: code, peak rates, tuning."""

from __future__ import annotations

from functools import cached_property

import numpy as np

from thalweg.codegen.contraction.amx import on_matrix_unit
from thalweg.codegen.kernels import request
from thalweg.codegen.llvm.compile import assembly, optimised
from thalweg.codegen.llvm.emitted import Emitted
from thalweg.codegen.machine import host
from thalweg.device.compiled_kernel import CompiledKernel
from thalweg.device.cpu.listing import Call
from thalweg.device.cpu.peaks import arithmetic_peak, copy_peak, matrix_peak
from thalweg.device.cpu.pool import Pool
from thalweg.device.cpu.tuner import CpuSubject
from thalweg.ir.kernel import Contraction


class CpuKernel(CompiledKernel):
    """A kernel that the threads of a pool run."""

    def __init__(self, call: Call, pool: Pool, threads: int) -> None:
        super().__init__(call.launch, call.specialized)
        self._pool, self._threads = pool, threads
        self.scratch, self.phases = call.code.scratch, len(call.code.functions)
        self.users = 1 if call.entry.thread >= 0 else threads
        self.barriers = call.entry.barrier + self.phases - 1 if threads > 1 else 0

    @cached_property
    def emitted(self) -> Emitted:
        """Its code as generated, before LLVM's passes."""
        return request(self.specialized.kernel, self._pool.target).make()

    @cached_property
    def llvm(self) -> str:
        """Its code as LLVM IR, after LLVM's passes."""
        return optimised(self.emitted.text, self._pool.target, self.emitted.passes)

    @cached_property
    def asm(self) -> str:
        """Its code as assembly."""
        return assembly(self.emitted.text, self._pool.target, self.emitted.passes)

    @property
    def peaks(self) -> str:
        """The peak rates of arithmetic and of copies on all threads of the program."""
        return (
            f"machine  {arithmetic_peak(self._threads) / 1e9:.0f} GFLOP/s of float32 in registers, "
            f"{copy_peak(1 << 26, self._threads) / 1e9:.1f} GB/s of copies from memory to memory"
        )

    def memory_limit(self, touched: int) -> float:
        """The rate of a plain copy that accesses as many bytes."""
        return copy_peak(touched, self.users)

    @property
    def arithmetic_limit(self) -> float:
        """The peak rate of multiply-adds in registers, or of the matrix unit if it uses that."""
        kernel = self.kernel
        if not isinstance(kernel, Contraction):
            return arithmetic_peak(self.users)
        if on_matrix_unit(kernel, host()):
            return matrix_peak(self.users)
        return arithmetic_peak(self.users, np.dtype(kernel.dtype))

    @property
    def subject(self) -> CpuSubject:
        """The kernel, a contraction, as one to tune on the threads of the pool."""
        return CpuSubject(self.name, self.specialized, self._pool, self.users)
