"""Emits CUDA kernels for any kernel of the IR, and computes their launches."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress

from thalweg.codegen.contraction.form import NotContraction
from thalweg.codegen.cuda.attention.form import NotAttention
from thalweg.codegen.cuda.attention.kernel import attention_shapes, emit_attention
from thalweg.codegen.cuda.contraction.kernel import contraction_shapes, emit_contraction
from thalweg.codegen.cuda.launch import CudaKernel, LaunchShape, TensorMapSpec
from thalweg.codegen.cuda.loops.kernel import emit_loops, loops_shapes
from thalweg.codegen.cuda.target import CudaTarget
from thalweg.codegen.emit import as_loops
from thalweg.ir.kernel import Contraction, Kernel, Loops

__all__ = ["CudaKernel", "LaunchShape", "TensorMapSpec", "emit", "launch_shapes"]


def emit(
    kernel: Kernel, target: CudaTarget, guarded: bool = False, aligned: bool = False
) -> CudaKernel:
    """A kernel as LLVM text for a target.

    A `guarded` one, which writes a variable, does nothing if the fault word is set when it begins.
    The buffers of an `aligned` one all begin at multiples of 16 bytes.
    """
    if isinstance(kernel, Contraction):
        with suppress(NotContraction):
            return emit_contraction(kernel, target, guarded, aligned)
    else:
        with suppress(NotAttention):
            return emit_attention(kernel, target, guarded, aligned)
    return emit_loops(_loops(kernel), target, guarded, aligned)


def launch_shapes(
    kernel: Kernel, target: CudaTarget, words: Sequence[int] = (), aligned: bool = False
) -> tuple[LaunchShape, ...]:
    """The launches of a kernel's entries; `words` are its run-time sizes."""
    if isinstance(kernel, Contraction):
        with suppress(NotContraction):
            return contraction_shapes(kernel, target, words, aligned)
    else:
        with suppress(NotAttention):
            return attention_shapes(kernel, target, words)
    return loops_shapes(_loops(kernel), target, words, aligned)


def _loops(kernel: Kernel) -> Loops:
    return as_loops(kernel) if isinstance(kernel, Contraction) else kernel
