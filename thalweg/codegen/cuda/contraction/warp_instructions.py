"""Instructions of a warp: matrices from shared memory (ldmatrix), products of them (mma.sync), and
asynchronous copies to shared memory (cp.async).

On an emulated grid each is a function with the same meaning: lanes store their operands in exchange
memory, the warp synchronizes, and each lane computes its result.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from thalweg.codegen.cuda.contraction.frame import GridFrame
from thalweg.codegen.cuda.contraction.helpers import (
    Helpers,
    global_address,
    inline,
    packed,
    shared_address,
    struct,
    unpacked,
)
from thalweg.codegen.cuda.contraction.problem import FLOAT32
from thalweg.codegen.cuda.contraction.tf32 import seen
from thalweg.codegen.cuda.grid import Grid
from thalweg.codegen.llvm.builder import (
    FLOAT,
    I8,
    I16,
    I32,
    POINTER,
    VOID,
    Builder,
    Type,
    Value,
    constant,
)
from thalweg.codegen.math.conversion import from_memory
from thalweg.platform.dtype_traits import FloatFormat, float_format, is_float

#: PTX's names of the floats that tensor cores multiply.
_MMA_NAMES = {
    FloatFormat(8, 7): "bf16",
    FloatFormat(5, 10): "f16",
    FloatFormat(8, 23): "tf32",
    FloatFormat(4, 3, has_infinity=False): "e4m3",
    FloatFormat(5, 2): "e5m2",
}
STEP_BYTES = 32  # of the terms of a product, for all dtypes
EXCHANGE = 32  # bytes of a lane's exchange memory


def mma_name(dtype: Any) -> str | None:
    """PTX's name of a dtype, if tensor cores multiply it."""
    return _MMA_NAMES.get(float_format(dtype)) if is_float(dtype) else None


def exchange_bytes(is_emulated: bool, threads: int) -> int:
    """The shared memory for the instructions of emulated warps."""
    return threads * EXCHANGE if is_emulated else 0


class WarpInstructions:
    """The warp instructions of an entry; `exchange` is the exchange memory of the emulation."""

    def __init__(self, frame: GridFrame, exchange: Value) -> None:
        self.frame, self._exchange = frame, exchange
        self._helpers = Helpers(frame)
        self._emulated = frame.target.is_emulated

    # Matrices

    def load_matrices(self, address: Value, is_transposed: bool) -> list[Value]:
        """Load four matrices of 8 lines of 16 bytes; lane n provides the address of line n of all.

        Of each, lane n gets 4 bytes at 4 · (n % 4) of line n / 4; of transposed ones, two elements
        of 2 bytes: number n / 4 of the lines 2 · (n % 4) and the next.
        """
        b, four = self.frame.b, struct(I32, 4)
        if self._emulated:
            write = _write_transposed_load if is_transposed else _write_load
            name = f"emulated.ldmatrix{'.trans' if is_transposed else ''}"
            found = self._helpers.call(name, four, [self._exchange, address], write)
        else:
            way = ".trans" if is_transposed else ""
            text = f"ldmatrix.sync.aligned.m8n8.x4{way}.shared.b16 {{$0, $1, $2, $3}}, [$4];"
            given = [shared_address(b, address)]
            found = inline(b, four, text, "=r,=r,=r,=r,r,~{memory}", given)
        return unpacked(b, found, I32, 4)

    def multiply(
        self, dtype: Any, a: Sequence[Value], b: Sequence[Value], sums: Sequence[Value]
    ) -> list[Value]:
        """16 by 8 sums and the products of 32 bytes of terms of each row and column.

        With g = lane / 4, t = lane % 4: sums 0 and 1 are columns 2t and 2t + 1 of row g, sums 2 and
        3 those of row g + 8. Registers 0 and 1 of `a` are bytes 4t… of rows g and g + 8, 2 and 3
        the same 16 bytes further on; registers 0 and 1 of `b` are those bytes of column g.
        """
        name, builder, four = mma_name(dtype), self.frame.b, struct(FLOAT, 4)
        if self._emulated:
            given = [self._exchange, *a, *b, *sums]
            found = self._helpers.call(
                f"emulated.mma.{name}", four, given, lambda f: _write_multiply(f, np.dtype(dtype))
            )
            return unpacked(builder, found, FLOAT, 4)
        terms = STEP_BYTES // np.dtype(dtype).itemsize
        text = (
            f"mma.sync.aligned.m16n8k{terms}.row.col.f32.{name}.{name}.f32 {{$0, $1, $2, $3}}, "
            "{$4, $5, $6, $7}, {$8, $9}, {$10, $11, $12, $13};"
        )
        constraints = ",".join(["=f"] * 4 + ["r"] * 6 + ["f"] * 4)
        return unpacked(
            builder, inline(builder, four, text, constraints, [*a, *b, *sums]), FLOAT, 4
        )

    # Copies

    def copy(self, destination: Value, source: Value, size: int, inside: Value) -> None:
        """Begin to copy 4, 8 or 16 bytes to shared memory; zeros where `inside` is false."""
        b = self.frame.b
        if self._emulated:
            given = [destination, source, inside]
            self._helpers.call(
                f"emulated.cp.async.{size}", VOID, given, lambda f: _write_copy(f, size)
            )
            return
        way = "cg" if size == 16 else "ca"
        count = b.select(inside, constant(I32, size), 0)
        text = f"cp.async.{way}.shared.global [$0], [$1], {size}, $2;"
        given = [shared_address(b, destination), global_address(b, source), count]
        inline(b, VOID, text, "r,l,r,~{memory}", given)

    def commit(self) -> None:
        """Commit the copies since the last commit as a group."""
        if not self._emulated:
            inline(self.frame.b, VOID, "cp.async.commit_group;", "~{memory}")

    def wait(self, groups: int) -> None:
        """Wait for all groups of this thread's copies but the last `groups`."""
        if not self._emulated:
            inline(self.frame.b, VOID, f"cp.async.wait_group {groups};", "~{memory}")


# Emulation


def _lane_memory(b: Builder, exchange: Value, thread: Value) -> tuple[Value, Value]:
    """The exchange memory of a warp's first lane, and this thread's lane."""
    warp = b.binary("and", thread, -32)
    base = b.element(exchange, "i8", b.binary("mul", warp, EXCHANGE))
    return base, b.binary("and", thread, 31)


def _of_lane(b: Builder, base: Value, lane: Value, offset: int = 0) -> Value:
    place = b.binary("add", b.binary("mul", lane, EXCHANGE), offset)
    return b.element(base, "i8", place)


def _exchange(b: Builder, values: Sequence[Value]) -> tuple[Value, Value, Grid]:
    """Store values in a lane's memory; returns the warp's memory, the lane, and the grid."""
    grid = Grid(b, b.parameters[0])
    base, lane = _lane_memory(b, b.parameters[1], grid.thread())
    offset = 0
    for value in values:
        b.store(value, _of_lane(b, base, lane, offset))
        offset += value.type.bits // 8
    grid.warp_barrier()
    return base, lane, grid


def _line_address(b: Builder, base: Value, matrix: int, line: Value) -> Value:
    """The address that the lane of a matrix line provided."""
    return b.load(POINTER, _of_lane(b, base, b.binary("add", line, 8 * matrix)))


def _write_load(b: Builder) -> None:
    base, lane, grid = _exchange(b, [b.parameters[2]])
    line, word = (b.binary(o, lane, 4) for o in ("udiv", "urem"))
    place = b.binary("mul", word, 4)
    found = [
        b.load(I32, b.element(_line_address(b, base, matrix, line), "i8", place))
        for matrix in range(4)
    ]
    grid.warp_barrier()
    b.ret(packed(b, found))


def _write_transposed_load(b: Builder) -> None:
    base, lane, grid = _exchange(b, [b.parameters[2]])
    column, pair = (b.binary(o, lane, 4) for o in ("udiv", "urem"))
    found: list[Value] = []
    for matrix in range(4):
        halves: list[Value] = []
        for number in range(2):
            line = b.binary("add", b.binary("mul", pair, 2), number)
            address = b.element(_line_address(b, base, matrix, line), "i16", column)
            halves.append(b.convert("zext", b.load(I16, address), "i32"))
        high = b.binary("shl", halves[1], 16)
        found.append(b.binary("or", halves[0], high))
    grid.warp_barrier()
    b.ret(packed(b, found))


def _write_multiply(b: Builder, dtype: np.dtype[Any]) -> None:
    _, _, *given = b.parameters
    base, lane, grid = _exchange(b, given[:6])
    row, pair = (b.binary(o, lane, 4) for o in ("udiv", "urem"))
    sums = list(given[6:])
    for quarter in range(4):  # the lanes of a row or column, with 4 bytes of terms each
        for half in range(2):
            lanes = [_lane_of(b, row, quarter)] * 2
            rows = [
                _register(b, base, source, 2 * half + i, dtype) for i, source in enumerate(lanes)
            ]
            columns: list[list[Value]] = []
            for number in range(2):
                column = b.binary("mul", pair, 2)
                column = b.binary("add", column, number)
                source = _lane_of(b, column, quarter)
                columns.append(_register(b, base, source, 4 + half, dtype))
            for at in range(4):
                for x, y in zip(rows[at // 2], columns[at % 2], strict=True):
                    sums[at] = b.binary("fadd", sums[at], b.binary("fmul", x, y))
    grid.warp_barrier()
    b.ret(packed(b, sums))


def _lane_of(b: Builder, line: Value, quarter: int) -> Value:
    return b.binary("add", b.binary("mul", line, 4), quarter)


def _register(
    b: Builder, base: Value, lane: Value, number: int, dtype: np.dtype[Any]
) -> list[Value]:
    """The elements in a register of another lane, as float32 numbers."""
    address = _of_lane(b, base, lane, 4 * number)
    return elements(b, address, dtype, 4 // dtype.itemsize)


def elements(b: Builder, address: Value, dtype: np.dtype[Any], count: int) -> list[Value]:
    """Load contiguous elements, truncated as by tensor cores."""
    if dtype == FLOAT32:
        bits = [b.load(I32, b.element(address, "i32", n)) for n in range(count)]
        return [b.convert("bitcast", seen(b, one), "float") for one in bits]
    kind: Type = I8 if dtype.itemsize == 1 else I16
    raw = [b.load(kind, b.element(address, kind.scalar, n)) for n in range(count)]
    return [from_memory(b, one, dtype) for one in raw]


def _write_copy(b: Builder, size: int) -> None:
    _, destination, source, inside = b.parameters
    kind = I32.of(size // 4)
    zero = Value(kind, "zeroinitializer" if kind.lanes > 1 else "0")
    found = b.choose(
        inside, lambda: b.emit(kind, f"load {kind}, {source}, align {size}"), lambda: zero
    )
    b.line(f"store {found}, {destination}, align {size}")
