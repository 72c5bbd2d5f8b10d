"""The peak arithmetic rates of GPUs by architecture."""

from __future__ import annotations

import numpy as np

from thalweg.codegen.contraction.form import NotContraction
from thalweg.codegen.cuda.contraction.plan import has_tensor_cores
from thalweg.codegen.cuda.contraction.problem import problem_of
from thalweg.codegen.cuda.target import CudaTarget
from thalweg.ir.kernel import Contraction, Kernel

#: Operations per cycle of a multiprocessor, by compute capability: of its tensor cores on operands
#: of two bytes (twice as many for one byte, half as many for four bytes), and of its cores on
#: numbers of four and eight bytes.
_RATES = {
    70: (1024, 128, 64),
    75: (1024, 128, 4),
    80: (2048, 128, 64),
    86: (1024, 256, 4),
    89: (1024, 256, 4),
    90: (4096, 256, 128),
    100: (8192, 256, 128),
    120: (1024, 256, 4),
}


def arithmetic_peak(kernel: Kernel, target: CudaTarget) -> float:
    """The peak operations per second of the units that multiply in a kernel."""
    _, single, double = _rates(target)
    rate = single
    if isinstance(kernel, Contraction):
        size = _tensor_core_bytes(kernel, target)
        if size:
            return product_peak(size, target)
        if np.dtype(kernel.dtype).itemsize == 8:
            rate = double
    return rate * target.multiprocessors * target.clock


def product_peak(size: int, target: CudaTarget) -> float:
    """The peak operations per second of the tensor cores on operands of `size` bytes."""
    return _rates(target)[0] * 2 / size * target.multiprocessors * target.clock


def _rates(target: CudaTarget) -> tuple[int, int, int]:
    known = max((c for c in _RATES if c <= target.capability), default=min(_RATES))
    return _RATES[known]


def _tensor_core_bytes(kernel: Contraction, target: CudaTarget) -> int:
    """The bytes of an operand of the tensor cores; 0 if a kernel does not use them."""
    try:
        problem = problem_of(kernel)
    except NotContraction:
        return 0
    return problem.a.dtype.itemsize if has_tensor_cores(problem, target) else 0
