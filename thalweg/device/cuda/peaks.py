"""What a GPU computes at best, by its architecture: rates that no kernel exceeds."""

from __future__ import annotations

import numpy as np

from thalweg.codegen.contraction.form import NotContraction
from thalweg.codegen.cuda.contraction.plan import has_tensor_cores
from thalweg.codegen.cuda.contraction.problem import problem_of
from thalweg.codegen.cuda.target import CudaTarget
from thalweg.ir.kernel import Contraction, Kernel

#: Operations of a multiprocessor in a cycle, by compute capability: those of its tensor cores on
#: operands of two bytes (of one byte twice as many, of four bytes half as many), and of its cores
#: on numbers of four and eight bytes.
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
    """Operations a second of what multiplies in a kernel, were that all it did."""
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
    """Operations a second of the tensor cores on operands of so many bytes."""
    return _rates(target)[0] * 2 / size * target.multiprocessors * target.clock


def _rates(target: CudaTarget) -> tuple[int, int, int]:
    known = max((c for c in _RATES if c <= target.capability), default=min(_RATES))
    return _RATES[known]


def _tensor_core_bytes(kernel: Contraction, target: CudaTarget) -> int:
    """The bytes of an operand where tensor cores multiply; 0 where they do not."""
    try:
        problem = problem_of(kernel)
    except NotContraction:
        return 0
    return problem.a.dtype.itemsize if has_tensor_cores(problem, target) else 0
