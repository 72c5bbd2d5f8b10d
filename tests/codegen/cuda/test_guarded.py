"""CUDA kernels on buffers between pages that nobody may touch, and what faults leave alone."""

from __future__ import annotations

import numpy as np
import pytest

from tests.codegen.cuda.emulated import run
from tests.codegen.guarded import Guarded
from tests.codegen.loops.test_random_loops import Maker
from tests.codegen.oracle import Oracle, at, close, index, numbers, place
from thalweg.ir.expr import select
from thalweg.ir.index import Affine
from thalweg.ir.kernel import Argument, Check, Loops, Store
from thalweg.ir.loop import Variable

PLACES = {"end": Guarded(), "start": Guarded(at_end=False), "shifted": Guarded(shift=3)}


@pytest.mark.parametrize("where", PLACES)
@pytest.mark.parametrize("seed", range(100, 108))
def test_kernels_stay_inside_their_buffers(seed: int, where: str) -> None:
    maker = Maker(seed)
    kernel = maker.kernel()
    expected = [array.copy() for array in maker.arrays]
    Oracle(kernel, expected).run()
    found = [PLACES[where].copy(array) for array in maker.arrays]
    run(kernel, found)
    for one, other in zip(found, expected, strict=True):
        close(one, other, 1e-4, where)


def test_wide_accesses_stay_inside_their_buffers() -> None:
    """A buffer that begins at a page is aligned; it ends before the next one."""
    size = 4 * 1024
    x, out = Argument(0, np.float32, size), Argument(1, np.float32, size, True)
    i = Variable.fresh(size)
    value = select(index(i) < size - 8, at(x, (1, i)) * 2, 0)
    kernel = Loops((x, out), (i,), (Store(out, (i,), Affine(0, {i: 1}), value),))
    memory = Guarded(at_end=False)
    actual = [memory.copy(numbers(size, np.float32)), memory.copy(np.zeros(size, np.float32))]
    run(kernel, actual, aligned=True)
    close(actual[1][:-8], actual[0][:-8] * 2, 0, "doubled")


def gather(rows: int, places: int) -> Loops:
    x, where = Argument(0, np.float32, places), Argument(1, np.int32, rows)
    out = Argument(2, np.float32, rows, True)
    i = Variable.fresh(rows)
    return Loops(
        (x, where, out), (i,), (Store(out, (i,), place((1, i)), at(x, (1, at(where, (1, i))))),)
    )


def test_after_a_fault_no_place_is_computed_from_data() -> None:
    """The kernel before found an index out of range: nothing may be read there."""
    memory = Guarded()
    where = memory.copy(np.full(40, 1 << 29, np.int32))
    found = [memory.copy(numbers(8, np.float32)), where, memory.copy(np.zeros(40, np.float32))]
    assert run(gather(40, 8), found, fault=3) == 3
    assert not found[2].any()


@pytest.mark.parametrize("fault", [0, 7])
def test_a_guarded_kernel_writes_nothing_after_a_fault(fault: int) -> None:
    x, out = Argument(0, np.float32, 100), Argument(1, np.float32, 100, True)
    i = Variable.fresh(100)
    kernel = Loops((x, out), (i,), (Store(out, (i,), place((1, i)), at(x, (1, i))),))
    actual = [np.ones(100, np.float32), np.zeros(100, np.float32)]
    assert run(kernel, actual, fault=fault, guarded=True) == fault
    assert actual[1].any() == (not fault)


def test_the_highest_of_several_faults_is_told() -> None:
    x = Argument(0, np.int32, 300)
    i = Variable.fresh(300)
    checks = tuple(Check((i,), at(x, (1, i)) < limit, fault) for limit, fault in ((9, 2), (5, 6)))
    kernel = Loops((x,), (i,), (), checks)
    values = np.zeros(300, np.int32)
    assert run(kernel, [values]) == 0
    values[200] = 7
    assert run(kernel, [values]) == 6
    values[100] = 30
    assert run(kernel, [values]) == 6
