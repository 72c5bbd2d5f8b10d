"""The peak rates of this machine, measured: multiply-adds in registers, and plain copies.

Profiles compare kernels with them. Each is measured once per process and number of threads, with
generated code; the copy is a kernel as those of programs.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from thalweg.codegen.cache import as_request, load_all
from thalweg.codegen.contraction.amx import DEPTH, SIDE, configure, instruct
from thalweg.codegen.kernels import request
from thalweg.codegen.llvm.builder import (
    DOUBLE,
    FLOAT,
    I64,
    POINTER,
    Module,
    Type,
    constant,
)
from thalweg.codegen.llvm.emitted import Emitted, Request
from thalweg.codegen.machine import CpuTarget, host
from thalweg.device.cpu.pool import Entry, StepTable, default_pool
from thalweg.ir.expr import Load, Variable
from thalweg.ir.index import index_of
from thalweg.ir.kernel import Argument, Loops, Store
from thalweg.platform.caches import memoized

_CHAINS = 12  # independent accumulators: latency × units, within 16 registers
_TILES = 4  # independent accumulator tiles
_ITERATIONS = 40_000
_ROUNDS = 7
_MIN_COPIED, _MAX_COPIED = 1 << 12, 1 << 26


@memoized(64)
def arithmetic_peak(threads: int, dtype: Any = np.float32) -> float:
    """Floating-point operations per second of multiply-adds in registers."""
    target = host()
    scalar = DOUBLE if np.dtype(dtype).itemsize == 8 else FLOAT
    kind = scalar.of(target.vector_bytes * 8 // scalar.bits)
    memory = np.full(16 * threads + 2, 0.5, np.float64)
    operations = 2.0 * _CHAINS * kind.lanes * _ITERATIONS * threads
    return operations / _seconds(emit_arithmetic(kind, target), [memory.ctypes.data], threads)


@memoized(64)
def matrix_peak(threads: int) -> float:
    """Floating-point operations per second of the matrix unit on tiles in its registers."""
    operations = 2.0 * _TILES * SIDE * SIDE * DEPTH * _ITERATIONS * threads
    return operations / _seconds(emit_tiles(), [], threads)


def copy_peak(size: int, threads: int) -> float:
    """Bytes per second, reads and writes together, of a plain copy that accesses about `size`
    bytes."""
    rounded = 1 << max(size - 1, 1).bit_length()
    return _copy_peak(min(max(rounded, _MIN_COPIED), _MAX_COPIED), threads)


@memoized(64)
def _copy_peak(size: int, threads: int) -> float:
    source, sink = np.ones(size // 8, np.float32), np.ones(size // 8, np.float32)
    words = [source.ctypes.data, sink.ctypes.data, 0]
    code = request(_copy(source.size), host())
    return (source.nbytes + sink.nbytes) / _seconds(code, words, threads)


def _seconds(code: Request, words: list[int], threads: int) -> float:
    """The best time of a few calls on the slowest thread, from its own begin."""
    (function,) = load_all([code], host())[0].functions
    pool, fault = default_pool(), np.zeros(1, np.int64)
    arguments = np.array([fault.ctypes.data, *words], np.int64)
    entry = Entry(function, arguments.ctypes.data)
    table = StepTable(pool, [entry, entry], fault.ctypes.data, threads)
    # The first call of a round wakes the threads and fills the caches.
    rounds = [table.measure()[1] for _ in range(_ROUNDS)]
    # A round counts if no other step occupied a thread; if none does, the peak is zero.
    times = [float((each[:, 1] - each[:, 0]).max()) for each in rounds if each.all()]
    return max(min(times, default=np.inf), 1.0) / 1e9


def emit_arithmetic(kind: Type, target: CpuTarget) -> Request:
    """x ← x · a + a on many registers; word 1 is the address of a and of the results."""
    module = Module(fma=target.fma)
    b = module.function("multiply_add", [POINTER, I64, I64])
    memory = b.load(POINTER, b.element(b.parameters[0], "i64", 1))
    scale = b.splat(b.load(kind.of(1), memory), kind.lanes)
    sums = [b.splat(constant(kind.of(1), 1.0 + i), kind.lanes) for i in range(_CHAINS)]
    with b.loop(0, _ITERATIONS, carried=sums) as loop:
        loop.next = [b.multiply_add(value, scale, scale) for value in loop.carried]
    total = loop.results[0]
    for value in loop.results[1:]:
        total = b.binary("fadd", total, value)
    own = b.binary("mul", b.binary("add", b.parameters[1], 1), 128)
    b.store(b.extract(total, 0), b.element(memory, "i8", own))
    return as_request(Emitted(("multiply_add",), module.text))


def emit_tiles() -> Request:
    """c ← c + a · b on the tiles of the matrix unit."""
    module = Module()
    b = module.function("multiply_tiles", [POINTER, I64, I64])
    configure(b)
    for tile in range(8):
        instruct(b, "tilezero", tile)
    with b.loop(0, _ITERATIONS):
        for tile in range(_TILES):
            instruct(b, "tdpbf16ps", tile, 4 + tile // 2, 6 + tile % 2)
    instruct(b, "tilerelease")
    return as_request(Emitted(("multiply_tiles",), module.text))


def _copy(size: int) -> Loops:
    """A copy of so many elements."""
    index, kind = Variable.fresh(size), np.dtype(np.float32)
    source, sink = Argument(0, kind, size), Argument(1, kind, size, written=True)
    at = index_of(index)
    return Loops((source, sink), (index,), (Store(sink, (index,), at, Load(source, at)),))
