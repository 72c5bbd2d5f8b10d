"""Contractions on the emulated grid: run one, and hold it to the oracle of the CPU's tests."""

import ctypes

import numpy as np

from tests.codegen.contraction.contractions import Oracle, random_arrays
from tests.codegen.cuda.host import to_host
from thalweg.codegen.cuda.contraction.kernel import contraction_shapes, emit_contraction
from thalweg.codegen.cuda.target import emulated

TARGET = emulated()
_GUARD = 0x7F
_TF32_MASK = -(1 << 13)


def aligned(array, beyond=0):
    """A copy between guards that begins at a multiple of 256 bytes, as buffers of devices do, or
    some bytes beyond."""
    array = np.ascontiguousarray(array)
    whole = np.full(array.nbytes + 1024, _GUARD, np.uint8)
    start = 256 + (-whole.ctypes.data) % 256 + beyond
    inner = whole[start : start + array.nbytes].view(array.dtype)
    inner[:] = array.reshape(-1)
    return whole, start, inner


def launch(
    kernel, arrays, schedule=None, words=(), target=TARGET, guarded=False, fault=0, is_aligned=True
):
    """Run all entries on aligned arrays."""
    result = emit_contraction(kernel, target, guarded, is_aligned, schedule)
    module = to_host(result.text, result.entries)
    scratch, start, _ = aligned(np.full(max(result.scratch, 8), 0xFF, np.uint8))
    faults = np.full(1, fault, np.int64)
    addresses = [faults, *arrays]
    table = [a.ctypes.data for a in addresses] + [scratch.ctypes.data + start, *words]
    maps = [_encoded(spec, table) for spec in result.tensor_maps]
    table += [encoded.ctypes.data + at for encoded, at, _ in maps]
    packed = (ctypes.c_int64 * len(table))(*table)
    shapes = contraction_shapes(kernel, target, words, is_aligned, schedule)
    for name, shape in zip(result.entries, shapes, strict=True):
        module[name](ctypes.addressof(packed), shape.grid, shape.block, shape.shared_bytes)
    assert (scratch[start + max(result.scratch, 8) :] == _GUARD).all()
    return result


def _encoded(spec, table):
    return aligned(np.frombuffer(spec.emulated(table), np.uint8))


def check(
    kernel,
    schedule=None,
    seed=0,
    words=(),
    tolerance=None,
    target=TARGET,
    is_aligned=True,
    is_tf32=False,
):
    """Run a contraction and hold it to the oracle; gives what was emitted. `is_tf32` is whether
    tensor cores see all of the float32 numbers that it is given."""
    rng = np.random.default_rng(seed)
    given = random_arrays(kernel, rng)
    if is_tf32:
        given = [(array.view(np.int32) & _TF32_MASK).view(np.float32) for array in given]
    expected = [array.copy() for array in given]
    with np.errstate(all="ignore"):
        Oracle(kernel, expected).run()
    copies = [aligned(a, 0 if is_aligned else a.dtype.itemsize) for a in given]
    result = launch(
        kernel, [inner for *_, inner in copies], schedule, words, target, is_aligned=is_aligned
    )
    depth = max(1, int(np.prod([int(v.extent) for v in kernel.reduced])))
    limit = tolerance or (3e-6 if kernel.dtype == np.float32 else 1e-13) * np.sqrt(depth) * 4
    for argument, (whole, start, inner), want in zip(
        kernel.arguments, copies, expected, strict=True
    ):
        got = inner.astype(np.float64)
        np.testing.assert_allclose(got, want.astype(np.float64), rtol=limit * 10, atol=limit)
        end = start + want.nbytes
        assert (whole[:start] == _GUARD).all() and (whole[end:] == _GUARD).all(), argument.position
    return result
