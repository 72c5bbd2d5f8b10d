"""The kernels of a GPU program, for plans, profiles and the tuner."""

from __future__ import annotations

from functools import cached_property
from math import prod

from thalweg.codegen.cuda.compile import to_ptx
from thalweg.codegen.cuda.target import CudaTarget
from thalweg.codegen.llvm.compile import assembly
from thalweg.codegen.machine import named as target_named
from thalweg.device.compiled_kernel import CompiledKernel
from thalweg.device.cuda.listing import CudaCall
from thalweg.device.cuda.memory import Memory
from thalweg.device.cuda.peaks import arithmetic_peak, product_peak
from thalweg.device.cuda.tuner import CudaSubject


class GpuKernel(CompiledKernel):
    """A kernel of a GPU program."""

    def __init__(self, call: CudaCall, target: CudaTarget, memory: Memory) -> None:
        super().__init__(call.launch, call.specialized)
        self.call = call
        self._target, self._memory = target, memory
        self.scratch = call.kernel.scratch  # shared by its launches, which are timed together
        self.users = max(prod(shape.grid) * prod(shape.block) for shape in call.shapes)
        # 0 on an emulated GPU; `sass` is 0 if the driver compiles the PTX.
        self.code_sizes = {"ptx": call.kernel.ptx_size, "sass": call.kernel.sass_size}

    @property
    def llvm(self) -> str:
        """The emitted LLVM text."""
        return self.call.emitted(self._target).text

    @cached_property
    def asm(self) -> str:
        """The PTX; on an emulated GPU, the host's assembly."""
        if self._target.is_emulated:
            return assembly(self.llvm, target_named("native"))
        return to_ptx(self.llvm, self._target)

    @property
    def peaks(self) -> str:
        """The peak rates of its memory and arithmetic."""
        rate = f"{self._target.memory_rate / 1e9:.0f} GB/s of its memory"
        products = product_peak(2, self._target) / 1e12
        return f"gpu      {rate}, {products:.0f} TFLOP/s of products of 16 bits"

    def memory_limit(self, touched: int) -> float:
        """The memory bandwidth in bytes per second, which does not depend on `touched`."""
        del touched
        return self._target.memory_rate

    @property
    def arithmetic_limit(self) -> float:
        """The peak operations per second of its cores, or of the tensor cores if it uses them."""
        return arithmetic_peak(self.kernel, self._target)

    @property
    def subject(self) -> CudaSubject:
        """The kernel, a contraction, as one to tune on scratch memory of the GPU."""
        given = self.specialized, self.call.aligned, self._memory, self._target
        return CudaSubject(self.name, *given)
