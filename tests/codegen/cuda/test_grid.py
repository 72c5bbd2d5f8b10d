"""The abstract grid: threads that meet, on the host and as PTX that `ptxas` takes."""

from __future__ import annotations

import re
import threading

import numpy as np
import pytest

from tests.codegen.cuda.host import to_host
from thalweg.codegen.cuda.compile import AssemblyError, instruction_bytes, ptxas, to_cubin, to_ptx
from thalweg.codegen.cuda.emulation import definitions
from thalweg.codegen.cuda.grid import Grid, GridModule
from thalweg.codegen.cuda.target import CudaTarget, emulated
from thalweg.codegen.llvm.builder import (
    DOUBLE,
    FLOAT,
    I32,
    I64,
    POINTER,
    Builder,
    Type,
    Value,
    constant,
)

assembled = pytest.mark.skipif(ptxas() is None, reason="ptxas is not installed")


def number(value: int) -> Value:
    return constant(I32, value)


def place(b: Builder, grid: Grid) -> Value:
    """The number of a thread in its grid."""
    whole = b.binary("add", b.binary("mul", grid.block(), grid.threads()), grid.thread())
    return b.convert("zext", whole, "i64")


def block_sums(target: CudaTarget, kind: Type) -> GridModule:
    """Every thread gets the sum of its block: by lanes, then by shared memory."""
    module = GridModule(target)
    b = module.entry("sums", [POINTER, POINTER], 256)
    grid, (_, source, sink) = Grid.of(b), b.parameters
    thread = grid.thread()
    lane = b.binary("and", thread, number(31))
    total = b.load(kind, b.element(source, kind.scalar, place(b, grid)))
    for mask in (16, 8, 4, 2, 1):
        other = grid.from_lane(total, b.binary("xor", lane, number(mask)))
        total = b.binary("fadd" if kind.is_float else "add", total, other)
    shared = grid.shared()
    with b.when(b.compare("eq", lane, number(0))):
        b.store(total, b.element(shared, kind.scalar, b.binary("lshr", thread, number(5))))
    grid.barrier()
    warps = b.binary("lshr", grid.threads(), number(5))
    start = constant(kind, 0)
    with b.loop(number(0), warps, number(1), [start]) as loop:
        part = b.load(kind, b.element(shared, kind.scalar, loop.index))
        loop.next = [b.binary("fadd" if kind.is_float else "add", loop.carried[0], part)]
    b.store(loop.results[0], b.element(sink, kind.scalar, place(b, grid)))
    b.ret()
    return module


KINDS = {"float": np.float32, "double": np.float64, "i32": np.int32, "i64": np.int64, "i8": np.int8}


@pytest.mark.parametrize("scalar", KINDS)
def test_threads_exchange_and_meet(scalar: str) -> None:
    module = block_sums(emulated(), Type(scalar))
    kernel = to_host(module.text, module.entries)["sums"]
    x = (np.arange(768) % 7).astype(KINDS[scalar])
    y = np.zeros_like(x)
    words = np.array([x.ctypes.data, y.ctypes.data], np.int64)
    kernel(words.ctypes.data, (3, 1, 1), (256, 1, 1), 64)
    expected = x.reshape(3, 256).sum(1, dtype=x.dtype).repeat(256)
    np.testing.assert_array_equal(y, expected)


def test_launches_run_on_several_threads_at_once() -> None:
    module = block_sums(emulated(), FLOAT)
    kernel = to_host(module.text, module.entries)["sums"]
    results = []

    def run(scale: int) -> None:
        x = np.full(512, scale, np.float32)
        y = np.zeros_like(x)
        words = np.array([x.ctypes.data, y.ctypes.data], np.int64)
        for _ in range(20):
            kernel(words.ctypes.data, (4, 1, 1), (128, 1, 1), 64)
        results.append((y == 128 * scale).all())

    threads = [threading.Thread(target=run, args=(n,)) for n in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert results == [True] * 4


def test_a_thread_that_ends_early_is_not_waited_for() -> None:
    module = GridModule(emulated())
    b = module.entry("early", [POINTER], 64)
    grid, (_, sink) = Grid.of(b), b.parameters
    stays = b.compare("ult", grid.thread(), number(40))
    with b.when(stays):
        grid.barrier()
        b.store(grid.blocks("y"), b.element(sink, "i32", place(b, grid)))
    b.ret()
    y = np.zeros(64, np.int32)
    words = np.array([y.ctypes.data], np.int64)
    kernel = to_host(module.text, module.entries)["early"]
    kernel(words.ctypes.data, (1, 7, 1), (64, 1, 1))
    np.testing.assert_array_equal(y, [7] * 40 + [0] * 24)


def test_writing_beyond_shared_memory_is_found() -> None:
    module = GridModule(emulated())
    b = module.entry("beyond", [], 32)
    grid = Grid.of(b)
    b.store(grid.thread(), b.element(grid.shared(), "i32", grid.thread()))
    b.ret()
    kernel = to_host(module.text, module.entries)["beyond"]
    kernel(0, (1, 1, 1), (32, 1, 1), 128)
    with pytest.raises(RuntimeError, match="beyond its shared memory"):
        kernel(0, (1, 1, 1), (32, 1, 1), 124)


def test_ptx_reads_memory_of_a_block_as_shared() -> None:
    ptx = to_ptx(block_sums(CudaTarget(), DOUBLE).text, CudaTarget())
    assert ".visible .entry sums(" in ptx
    assert ".maxntid 256" in ptx
    for instruction in ("ld.global", "st.shared", "bar.sync", "shfl.sync.idx"):
        assert instruction in ptx, instruction


@assembled
@pytest.mark.parametrize("capability", [80, 89, 90])
def test_ptx_is_assembled(capability: int) -> None:
    target = CudaTarget(capability=capability)
    cubin = to_cubin(to_ptx(block_sums(target, I64).text, target), target)
    assert cubin is not None
    assert cubin[:4] == b"\x7fELF"
    instructions, rest = divmod(instruction_bytes(cubin), 16)  # of 16 bytes each
    assert 10 < instructions < 1000 and not rest
    assert instruction_bytes(b"// PTX for the driver") == 0


@assembled
def test_ptx_that_is_none_is_an_error() -> None:
    with pytest.raises(AssemblyError, match="fatal"):
        to_cubin("nonsense", CudaTarget())


def test_functions_of_the_emulated_grid_come_in_one_order() -> None:
    """A text names what is compiled of it: it must not follow the order of a set."""
    axes = [f"grid.{name}.{axis}" for name in ("block", "blocks") for axis in "xyz"]
    names = ["grid.thread", "grid.threads", *axes, "grid.shared"]
    text = definitions(frozenset(names))
    found = re.findall(r"define .*@(grid\.[\w.]+)\(", text)
    assert [name for name in found if name in names] == names
