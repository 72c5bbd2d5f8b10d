"""The kernels of a program that a GPU runs, for readers and tuners."""

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
    """A kernel that a GPU runs."""

    def __init__(self, call: CudaCall, target: CudaTarget, memory: Memory) -> None:
        super().__init__(call.launch, call.specialized)
        self.call = call
        self._target, self._memory = target, memory
        self.scratch = call.kernel.scratch  # which its launches share; these are timed together
        self.users = max(prod(shape.grid) * prod(shape.block) for shape in call.shapes)
        # 0 of an emulated GPU, and of the machine code where the driver makes it.
        self.code_sizes = {"ptx": call.kernel.ptx_size, "sass": call.kernel.sass_size}

    @property
    def llvm(self) -> str:
        """Its code as Thalweg wrote it."""
        return self.call.emitted(self._target).text

    @cached_property
    def asm(self) -> str:
        """Its PTX; of an emulated GPU, the processor's instructions."""
        if self._target.is_emulated:
            return assembly(self.llvm, target_named("native"))
        return to_ptx(self.llvm, self._target)

    @property
    def peaks(self) -> str:
        """What its memory and its arithmetic reach at best."""
        rate = f"{self._target.memory_rate / 1e9:.0f} GB/s of its memory"
        products = product_peak(2, self._target) / 1e12
        return f"gpu      {rate}, {products:.0f} TFLOP/s of products of 16 bits"

    def memory_limit(self, touched: int) -> float:
        """Bytes per second of its memory, whatever their number."""
        del touched
        return self._target.memory_rate

    @property
    def arithmetic_limit(self) -> float:
        """Operations per second of its cores, or of the tensor cores where these multiply."""
        return arithmetic_peak(self.kernel, self._target)

    @property
    def subject(self) -> CudaSubject:
        """The kernel, a contraction, as one to tune on scratch memory of the GPU."""
        given = self.specialized, self.call.aligned, self._memory, self._target
        return CudaSubject(self.name, *given)
