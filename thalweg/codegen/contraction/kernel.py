"""Contractions as machine code: matrix products, convolutions and their gradients.

What comes in is a `Contraction` and the target; what goes out is LLVM text. A phase that packs the
columns' factor, where that pays, comes first; then every thread multiplies its pieces of the
result. Convolutions that Winograd's algorithm makes faster go another way, and so do products of
bfloat16 numbers where the processor has a unit for them.
"""

from __future__ import annotations

from math import ceil

from thalweg.codegen.contraction.amx import emit_matrix
from thalweg.codegen.contraction.form import form_of
from thalweg.codegen.contraction.gemm import GemmEmitter
from thalweg.codegen.contraction.packing import Packing, Span
from thalweg.codegen.contraction.plan import best, check
from thalweg.codegen.contraction.schedule import SLOTS, Schedule, Setting
from thalweg.codegen.contraction.scratch import Scratch
from thalweg.codegen.frame import Frame
from thalweg.codegen.llvm.builder import Module
from thalweg.codegen.llvm.emitted import Emitted
from thalweg.codegen.machine import CpuTarget
from thalweg.codegen.winograd.kernel import emit_winograd
from thalweg.codegen.winograd.plan import filtered
from thalweg.ir.kernel import Contraction
from thalweg.ir.loop import Variable


def emit_contraction(
    kernel: Contraction, target: CpuTarget, schedule: Schedule | None = None
) -> Emitted:
    """The code of a contraction, by the given schedule or the one the cost model likes best.

    Raises `NotContraction` where copies would have several extents that are not known.
    """
    made = schedule or filtered(kernel, target)
    if made and made.outputs:
        return emit_winograd(kernel, target, made)
    setting = Setting(form_of(kernel), target)
    made = made or best(setting)
    if made.matrix:
        return emit_matrix(setting, made)
    check(setting.form, made)
    return _emitted(Scratch(setting, made))


def _emitted(scratch: Scratch) -> Emitted:
    target, names, kernel = scratch.setting.target, ["multiply"], scratch.form.kernel
    module = Module(target.native_fp16, target.fma)
    if scratch.made.copy_b == "shared":
        names.insert(0, "pack")
        _pack(scratch, Frame(module, "pack", kernel, True))
    GemmEmitter(scratch, Frame(module, "multiply", kernel, scratch.size > 0)).emit()
    return Emitted(tuple(names), module.text, scratch.size, "tiles")


_MIN_PANELS = 8  # fewer than these threads cannot share evenly


def _pack(scratch: Scratch, frame: Frame) -> None:
    """The phase that packs the columns' factor for all threads.

    They share its slices: of the first reduced variable where columns lie side by side, so that
    memory is read in order, or are few; else of the columns.
    """
    packing, spans, outer = scratch.packed_b, scratch.spans_b, scratch.outer
    assert packing
    variable, length, count = _slices(scratch, packing)
    extents = [frame.integer(extent) for extent in (*(v.extent for v in outer), count)]
    with frame.shared(extents, SLOTS) as (*places, part):
        at = dict(zip(outer, places, strict=True))
        span = Span(frame.multiply(part, length), length)
        box = {v: Span(frame.integer(0), length) for v, length in spans.items()}
        place = frame.multiply(span.start, packing.factors(spans)[variable])
        base = frame.b.element(scratch.panels_at(frame, at), scratch.scalar, place)
        scratch.copy(frame, packing, {**box, variable: span}, at, base, spans)
    frame.b.ret()


def _slices(scratch: Scratch, packing: Packing) -> tuple[Variable, int, int]:
    """The variable that is cut, the length of a slice, and how many there are."""
    first, panels = packing.axes[1].coordinate, scratch.setting.panels(scratch.made)
    alone = first is packing.axes[-1].coordinate
    if alone or not (packing.along or (panels < _MIN_PANELS and first.extent > 64 * _MIN_PANELS)):
        return scratch.form.lane, scratch.width, panels
    step = 1 if packing.along else 16  # whole lines of what is transposed
    length = ceil(first.extent / 16 / step) * step
    return first, length, ceil(first.extent / max(length, 1))
