"""Atomic stores: a value is combined with an element that several threads may write.

Sums, and minima and maxima of integers, are an instruction; all other combinations are loops of
compare-and-swap.
"""

from __future__ import annotations

import numpy as np

from thalweg.codegen.cuda.builder import WIDEST, GridBuilder
from thalweg.codegen.cuda.grid import GridModule
from thalweg.codegen.llvm.builder import I1, I32, POINTER, Value
from thalweg.codegen.loops.scope import LaneScope
from thalweg.codegen.math.conversion import from_memory, storage_type, to_memory
from thalweg.codegen.math.elements import combine_elements
from thalweg.codegen.point import Address
from thalweg.ir.functions.reductions import REDUCTIONS, Reduction
from thalweg.ir.kernel import Store
from thalweg.platform.dtype_traits import is_narrow_float

_SCOPE = 'syncscope("device") monotonic'
_HOPPER, _WORDS = 90, 4  # the capability with atomic additions of vectors, of four words
_VECTORS = {"float32": "v4.f32", "bfloat16": "noftz.v4.bf16x2", "float16": "noftz.v4.f16x2"}
#: Narrow floats of LLVM, which GPUs add to atomically.
_ADDED = {"float16": "half", "bfloat16": "bfloat"}


def combine_atomically(
    b: GridBuilder,
    store: Store,
    copy: LaneScope,
    place: Address,
    value: Value,
    mask: Value | None,
) -> None:
    """Combine the lanes of a value with their elements, where a mask is set."""
    row, dtype = REDUCTIONS[store.combine], np.dtype(store.buffer.dtype)
    pointer, scalar = copy.pointer(store.buffer, place), storage_type(dtype).scalar
    is_uniform = mask is None or b.uniform_value(mask) is not None
    if is_uniform and _adds_vectors(b, row, dtype, copy.lanes, place):
        with b.lane(mask, 0):
            b.claim_alignment(storage_type(dtype).of(copy.lanes), pointer, place.aligned)
            if not b.module.checks_alignment:  # the instruction requires alignment
                _add_vector(b, dtype, pointer, b.splat(value, copy.lanes))
        if not b.module.checks_alignment:
            return
    for lane in range(copy.lanes):
        with b.lane(mask, lane):
            one, at = b.extract(value, lane), b.extract(pointer, lane)
            if place.contiguous and lane:
                at = b.element(pointer, scalar, lane)
            _combine(b, row, dtype, at, one)


def _adds_vectors(
    b: GridBuilder, row: Reduction, dtype: np.dtype, lanes: int, place: Address
) -> bool:
    """Whether the GPU has an atomic addition of the whole vector, four words at a time."""
    target = b.module.target if isinstance(b.module, GridModule) else None
    if target is None or target.capability < _HOPPER:
        return False
    is_whole = place.contiguous and place.aligned >= lanes and lanes * dtype.itemsize == WIDEST
    return is_whole and row.name == "sum" and dtype.name in _VECTORS


def _add_vector(b: GridBuilder, dtype: np.dtype, pointer: Value, value: Value) -> None:
    """Add lanes to contiguous elements; each addition is atomic."""
    raw = to_memory(b, value, dtype)
    words = b.emit(I32.of(_WORDS), f"bitcast {raw} to <{_WORDS} x i32>")
    given = [b.extract(words, n) for n in range(_WORDS)]
    far = b.emit(POINTER.like("ptr addrspace(1)"), f"addrspacecast {pointer} to ptr addrspace(1)")
    places = ", ".join(f"${1 + n}" for n in range(_WORDS))
    text = f"red.relaxed.gpu.global.add.{_VECTORS[dtype.name]} [$0], {{{places}}};"
    listed = ", ".join(map(str, [far, *given]))
    constraints = ",".join(["l", *["r"] * _WORDS, "~{memory}"])
    b.line(f'call void asm sideeffect "{text}", "{constraints}"({listed}) nounwind')


def _combine(b: GridBuilder, row: Reduction, dtype: np.dtype, pointer: Value, value: Value) -> None:
    operation = _instruction(row, dtype)
    if operation is None:
        _retry(b, row, dtype, pointer, value)
        return
    raw = value
    if is_narrow_float(dtype):
        if not b.module.native_bf16 or dtype.name not in _ADDED:
            _retry(b, row, dtype, pointer, value)
            return
        raw = b.convert("fptrunc", value, _ADDED[dtype.name])
    align = dtype.itemsize
    b.emit(raw.type, f"atomicrmw {operation} {pointer}, {raw} {_SCOPE}, align {align}")


def _instruction(row: Reduction, dtype: np.dtype) -> str | None:
    """LLVM's atomic instruction for a reduction, if there is one."""
    if row.name == "sum" and dtype.kind != "b":
        return "add" if dtype.kind in "iu" else "fadd"
    if row.name in ("max", "min") and dtype.kind in "iu":
        return row.name if dtype.kind == "i" else f"u{row.name}"
    return None


def _retry(b: GridBuilder, row: Reduction, dtype: np.dtype, pointer: Value, value: Value) -> None:
    bits = storage_type(dtype).like(f"i{8 * dtype.itemsize}")
    stored = storage_type(dtype)
    align = dtype.itemsize
    first = b.emit(bits, f"load atomic {bits}, {pointer} {_SCOPE}, align {align}")
    before, head, done = b.current, b.fresh_label("retry"), b.fresh_label("stored")
    b.jump(head)
    b.label(head)
    old = b.emit(bits, f"phi {bits} [{first.text}, %{before}], [%{head}.seen, %{head}.latch]")
    element = b.convert("bitcast", old, stored.scalar) if stored.is_float else old
    new = to_memory(
        b, combine_elements(b, row, dtype, from_memory(b, element, dtype), value), dtype
    )
    raw = b.convert("bitcast", new, bits.scalar) if stored.is_float else new
    pair = f"{{ {bits}, i1 }}"
    b.line(f"%{head}.pair = cmpxchg {pointer}, {old}, {raw} {_SCOPE} monotonic, align {align}")
    b.line(f"%{head}.seen = extractvalue {pair} %{head}.pair, 0")
    b.line(f"%{head}.good = extractvalue {pair} %{head}.pair, 1")
    b.jump(f"{head}.latch")
    b.label(f"{head}.latch")
    b.branch(Value(I1, f"%{head}.good"), done, head)
    b.label(done)
