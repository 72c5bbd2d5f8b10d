"""The peak rates of this machine, measured: multiply-adds in registers, and plain copies.

Profiles compare kernels with them. Each is measured once per process and number of threads, with
generated code.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from thalweg.codegen.cache import load
from thalweg.codegen.contraction.amx import DEPTH, SIDE, configure, instruct
from thalweg.codegen.llvm.builder import (
    DOUBLE,
    FLOAT,
    I64,
    POINTER,
    Builder,
    Module,
    Type,
    Value,
    constant,
)
from thalweg.codegen.llvm.emitted import Emitted
from thalweg.codegen.machine import CpuTarget, host
from thalweg.device.cpu.pool import Entry, StepTable, default_pool
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
    kind = _vector(target, DOUBLE if np.dtype(dtype).itemsize == 8 else FLOAT)
    memory = np.full(16 * threads + 2, 0.5, np.float64)
    operations = 2.0 * _CHAINS * kind.lanes * _ITERATIONS * threads
    return operations / _seconds(emit_arithmetic(kind, target), [memory.ctypes.data, 0], threads)


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
    code = emit_copy(_vector(host(), FLOAT))
    source, sink = np.ones(size // 8, np.float32), np.ones(size // 8, np.float32)
    words = [source.ctypes.data, sink.ctypes.data, source.size]
    return (source.nbytes + sink.nbytes) / _seconds(code, words, threads)


def _vector(target: CpuTarget, kind: Type) -> Type:
    return kind.of(target.vector_bytes * 8 // kind.bits)


def _seconds(code: Emitted, words: list[int], threads: int) -> float:
    """The best time of a few calls on the slowest thread, from its own begin."""
    (function,) = load([code], host())[0]
    pool, fault = default_pool(), np.zeros(1, np.int64)
    arguments = np.array([fault.ctypes.data, *words], np.int64)
    entry = Entry(function, arguments.ctypes.data)
    table = StepTable(pool, [entry, entry], fault.ctypes.data, threads)
    best = np.inf  # if no round counts, the peak is zero
    for _ in range(_ROUNDS):
        times = pool.timed(table)[1]  # the first call wakes the threads and fills the caches
        if times.all():  # no other step occupied a thread
            best = min(best, float((times[:, 1] - times[:, 0]).max()))
    return max(best, 1.0) / 1e9


def emit_arithmetic(kind: Type, target: CpuTarget) -> Emitted:
    """x ← x · a + a on many registers; word 1 is the address of a and of the results."""
    module = Module(fma=target.fma)
    b = module.function("multiply_add", [POINTER, I64, I64])
    memory = _word(b, POINTER, 1)
    scale = b.splat(b.load(kind.of(1), memory), kind.lanes)
    sums = [b.splat(constant(kind.of(1), 1.0 + i), kind.lanes) for i in range(_CHAINS)]
    with b.loop(0, _ITERATIONS, carried=sums) as loop:
        loop.next = [b.multiply_add(value, scale, scale) for value in loop.carried]
    total = loop.results[0]
    for value in loop.results[1:]:
        total = b.binary("fadd", total, value)
    own = b.binary("mul", b.binary("add", b.parameters[1], 1), 128)
    b.store(b.extract(total, 0), b.element(memory, "i8", own))
    b.ret()
    return Emitted(("multiply_add",), module.text)


def emit_tiles() -> Emitted:
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
    b.ret()
    return Emitted(("multiply_tiles",), module.text)


def emit_copy(kind: Type) -> Emitted:
    """Words 1 and 2 are source and sink, word 3 the number of elements; a tail shorter than a
    vector is not copied."""
    module = Module()
    b = module.function("copy", [POINTER, I64, I64])
    thread, threads = b.parameters[1:]
    source, sink = _word(b, POINTER, 1), _word(b, POINTER, 2)
    vectors = b.binary("udiv", _word(b, I64, 3), kind.lanes)
    begin, end = (
        b.binary("udiv", b.binary("mul", vectors, number), threads)
        for number in (thread, b.binary("add", thread, 1))
    )
    with b.loop(begin, end) as loop:
        at = b.binary("mul", loop.index, kind.lanes)
        value = b.load(kind, b.element(source, kind.scalar, at))
        b.store(value, b.element(sink, kind.scalar, at))
    b.ret()
    return Emitted(("copy",), module.text)


def _word(b: Builder, kind: Type, number: int) -> Value:
    return b.load(kind, b.element(b.parameters[0], "i64", number))
