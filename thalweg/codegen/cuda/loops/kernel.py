"""CUDA kernels for loop kernels.

Given a `Loops` kernel and a target, it returns LLVM text with an entry for each launch, and the
grids of the launches.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from thalweg.codegen.cuda.builder import WIDEST, GridBuilder
from thalweg.codegen.cuda.grid import GridModule
from thalweg.codegen.cuda.launch import CudaKernel, LaunchShape
from thalweg.codegen.cuda.loops import online
from thalweg.codegen.cuda.loops.combine import shared_bytes
from thalweg.codegen.cuda.loops.emit import EachEmitter, GridEmitter
from thalweg.codegen.cuda.loops.mapping import (
    Kind,
    Mapping,
    block_count,
    item_count,
    mapping_of,
    typical,
)
from thalweg.codegen.cuda.loops.rows import rows_bytes
from thalweg.codegen.cuda.loops.scan import ScanEmitter, scan_bytes
from thalweg.codegen.cuda.loops.split import COLUMN_BLOCKS, Phase, Split, combining, split_of
from thalweg.codegen.cuda.loops.team import TeamEmitter
from thalweg.codegen.cuda.loops.transpose import TransposeEmitter, transpose_bytes
from thalweg.codegen.cuda.target import CudaTarget
from thalweg.codegen.llvm.builder import I64, POINTER, Type, Value
from thalweg.codegen.loops.simplify import canonicalize
from thalweg.ir.dynamic import Dynamic, factors_of
from thalweg.ir.expr import Load, Reduce
from thalweg.ir.kernel import Loops
from thalweg.ir.rewrite import postorder

#: The words of kept rows per thread from which registers are limited so that this many blocks are
#: resident: fewer threads do not hide the latency of memory.
_MANY_WORDS, _ROW_BLOCKS = 48, 4


def emit_loops(
    kernel: Loops, target: CudaTarget, guarded: bool = False, aligned: bool = False
) -> CudaKernel:
    """The code of a loop kernel."""
    module = GridModule(target)
    mapping = mapping_of(canonicalize(kernel), target, aligned)
    split = split_of(mapping)
    if mapping.kind == "column":
        module.min_blocks = COLUMN_BLOCKS
    elif online.sums_of_powers(mapping):
        module.min_blocks = online.BLOCKS
    elif _kept_words(mapping) > _MANY_WORDS:
        module.min_blocks = _ROW_BLOCKS
    writing = _Writing(module, kernel, guarded, aligned)
    if split is None:
        writing.entry("kernel", mapping)
        return CudaKernel(module.text, module.entries)
    writing.entry("parts", mapping, split, is_first=True)
    writing.entry("kernel", combining(mapping, split), split)
    return CudaKernel(module.text, module.entries, split.scratch)


def loops_shapes(
    kernel: Loops, target: CudaTarget, words: Sequence[int], aligned: bool = False
) -> tuple[LaunchShape, ...]:
    """The launches of a loop kernel's entries; `words` are its run-time sizes."""
    mapping = mapping_of(canonicalize(kernel), target, aligned)
    first = len(kernel.arguments) + 2
    whole = _shape(mapping, words, first)
    split = split_of(mapping)
    if split is None:
        return (whole,)
    parts = replace(whole, grid=(whole.grid[0], split.parts, 1))
    return parts, _shape(combining(mapping, split), words, first)


def _shape(mapping: Mapping, words: Sequence[int], first: int) -> LaunchShape:
    def value(extent: int) -> int:
        factors = factors_of(extent)
        return math.prod(words[f.word - first] if isinstance(f, Dynamic) else f for f in factors)

    items = item_count(mapping, {v: value(v.extent) for v in mapping.items})
    grid = block_count(mapping, items), 1, 1
    return LaunchShape(grid, (mapping.threads, 1, 1), _shared_bytes(mapping))


def _kept_words(mapping: Mapping) -> float:
    """The words of rows that a thread of a team within a warp keeps in registers."""
    if mapping.kind != "row" or mapping.reduced is None or mapping.team > mapping.target.warp:
        return 0
    along = {mapping.reduced, *mapping.rest}
    loads = {e for e in mapping.form.every(Load) if not along.isdisjoint(e.offset.variables)}
    buffers = {load.buffer for load in loads}
    count = typical(mapping.reduced.extent) / mapping.team
    return sum(count * np.dtype(buffer.dtype).itemsize / 4 for buffer in buffers)


def _shared_bytes(mapping: Mapping) -> int:
    if mapping.kind == "transpose":
        return transpose_bytes(mapping)
    if mapping.kind == "scan":
        return scan_bytes(mapping)
    if mapping.kind == "each":
        return 0
    return rows_bytes(mapping) or shared_bytes(mapping, mapping.form.every(Reduce))


_EMITTERS: dict[Kind, type[GridEmitter]] = {
    "each": EachEmitter,
    "row": TeamEmitter,
    "column": TeamEmitter,
    "transpose": TransposeEmitter,
    "scan": ScanEmitter,
}


@dataclass(frozen=True)
class _Writing:
    """Emits the entries of a kernel, functions of its argument words."""

    module: GridModule
    kernel: Loops
    guarded: bool
    aligned: bool

    def entry(
        self, name: str, mapping: Mapping, split: Split | None = None, is_first: bool = False
    ) -> None:
        """Emit an entry."""
        form, count = mapping.form, len(self.kernel.arguments)
        last = max(self.kernel.words, default=count + 1)
        kinds: list[Type] = [POINTER] * (count + 2) + [I64] * (last - count - 1)
        b = self.module.entry(name, kinds, mapping.threads)
        b.parameter_attributes = self._marks(form)
        _, fault, *others = b.parameters
        pointers = {argument: others[argument.position] for argument in form.arguments}
        words = {word: b.parameters[1 + word] for word in form.words}
        if self.guarded or _is_guarded(form):
            _stop_at_fault(b, fault)
        emitter = _EMITTERS[mapping.kind](mapping, b, pointers, words, fault, self.aligned)
        if split is not None and isinstance(emitter, TeamEmitter):
            emitter.phase = Phase(split, is_first, others[count])
        emitter.write()

    def _marks(self, form: Loops) -> dict[int, str]:
        """Alignment and aliasing attributes of the buffers, after the grid and the fault word."""
        written = {store.buffer.position for store in form.stores}
        aligned = f" align {WIDEST}" if self.aligned else ""
        return {
            2 + argument.position: "noalias"
            + ("" if argument.position in written else " readonly")
            + aligned
            for argument in self.kernel.arguments
        }


def _stop_at_fault(b: GridBuilder, fault: Value) -> None:
    found = b.load(I64, fault)
    b.branch(b.compare("eq", found, 0), "clean", "faulty")
    b.label("faulty")
    b.ret()
    b.label("clean")


def _is_guarded(form: Loops) -> bool:
    """Whether indices are computed from data, which the check of an earlier kernel may reject."""
    computed = [part for offset in form.offsets for part in offset.parts]
    return any(isinstance(part, Load) for part in postorder(computed))
