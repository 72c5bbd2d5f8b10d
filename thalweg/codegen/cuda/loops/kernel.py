"""CUDA kernels for loop kernels.

What comes in is a `Loops` kernel and a target; what goes out is LLVM text with an entry for each
launch, and the grids of the launches.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from thalweg.codegen.cuda.builder import GridBuilder
from thalweg.codegen.cuda.grid import GridModule
from thalweg.codegen.cuda.launch import CudaKernel, LaunchShape
from thalweg.codegen.cuda.loops.combine import shared_bytes
from thalweg.codegen.cuda.loops.emit import EachEmitter
from thalweg.codegen.cuda.loops.mapping import Mapping, block_count, item_count, mapping_of
from thalweg.codegen.cuda.loops.team import TeamEmitter
from thalweg.codegen.cuda.target import CudaTarget
from thalweg.codegen.llvm.builder import I64, POINTER, Type, constant
from thalweg.codegen.loops.simplify import simplest
from thalweg.ir.dynamic import Dynamic, factors_of
from thalweg.ir.expr import Load, Reduce
from thalweg.ir.kernel import Loops
from thalweg.ir.rewrite import postorder


def emit_loops(
    kernel: Loops, target: CudaTarget, guarded: bool = False, aligned: bool = False
) -> CudaKernel:
    """The code of a loop kernel."""
    module = GridModule(target)
    mapping = mapping_of(simplest(kernel), target, aligned)
    _write(module, "kernel", kernel, mapping, guarded, aligned)
    return CudaKernel(module.text, module.entries)


def loops_shapes(
    kernel: Loops, target: CudaTarget, words: Sequence[int], aligned: bool = False
) -> tuple[LaunchShape, ...]:
    """The launches of a loop kernel's entries; `words` are its run-time sizes."""
    mapping = mapping_of(simplest(kernel), target, aligned)
    first = len(kernel.arguments) + 2
    return (_shape(mapping, words, first),)


def _shape(mapping: Mapping, words: Sequence[int], first: int) -> LaunchShape:
    def value(extent: int) -> int:
        factors = factors_of(extent)
        return math.prod(words[f.word - first] if isinstance(f, Dynamic) else f for f in factors)

    items = item_count(mapping, {v: value(v.extent) for v in mapping.items})
    reductions = mapping.form.every(Reduce)
    memory = 0 if mapping.kind == "each" else shared_bytes(mapping, reductions)
    return LaunchShape((block_count(mapping, items), 1, 1), (mapping.threads, 1, 1), memory)


def _write(
    module: GridModule, name: str, kernel: Loops, mapping: Mapping, guarded: bool, aligned: bool
) -> None:
    """Write an entry: a function of the kernel's argument words."""
    count = len(kernel.arguments)
    last = max(kernel.words, default=count + 1)
    kinds: list[Type] = [POINTER] * (count + 2) + [I64] * (last - count - 1)
    b = module.entry(name, kinds, mapping.threads)
    assert isinstance(b, GridBuilder)
    written = {store.buffer.position for store in mapping.form.stores}
    b.marks = {
        2 + argument.position: "noalias" if argument.position in written else "noalias readonly"
        for argument in kernel.arguments
    }
    _, fault, *others = b.parameters
    pointers = {argument: others[argument.position] for argument in mapping.form.arguments}
    words = {word: b.parameters[1 + word] for word in mapping.form.words}
    if guarded or _is_guarded(mapping.form):
        clean = b.load(I64, fault)
        b.fork(b.compare("eq", clean, constant(I64, 0)), "clean", "faulty")
        b.label("faulty")
        b.ret()
        b.label("clean")
    kinds_of = {"each": EachEmitter, "row": TeamEmitter, "column": TeamEmitter}
    kinds_of[mapping.kind](mapping, b, pointers, words, fault, aligned).write()
    b.ret()


def _is_guarded(form: Loops) -> bool:
    """Whether places are computed from data, which an earlier kernel may have found at fault."""
    computed = [part for offset in form.offsets for part in offset.parts]
    return any(isinstance(part, Load) for part in postorder(computed))
