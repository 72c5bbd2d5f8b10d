"""float32 factors on an emulated GPU whose tensor cores cut off what they do not see: every way to
bring them there rounds them before, to the nearest number."""

from dataclasses import replace

import numpy as np
import pytest

from tests.codegen.contraction.contractions import Conv, Oracle, matmul
from tests.codegen.cuda.contraction.emulated_launch import aligned, launch
from thalweg.codegen.cuda.contraction.plan import schedules
from thalweg.codegen.cuda.contraction.problem import problem_of
from thalweg.codegen.cuda.contraction.schedule import Schedule
from thalweg.codegen.cuda.target import emulated
from thalweg.ir.expr import Call
from thalweg.ir.kernel import Access

TARGET = replace(emulated(), allow_tf32=True)
CONV = Conv(1, 9, 8, 64, 72, 3, 3, pad=(1, 1))
KERNELS = {
    "product": matmul(70, 68, 64),
    "first transposed": matmul(72, 68, 64, ta=True),
    "second transposed": matmul(70, 68, 64, tb=True),
    "both transposed": matmul(72, 68, 64, ta=True, tb=True),
    "lines of 8 bytes": matmul(66, 70, 62, tb=True),
    "single elements": matmul(65, 67, 63, tb=True),
    "windows": CONV.forward(),
    "gradient of windows": CONV.input_gradient(),
    "gradient of filters": CONV.filter_gradient(),
}
UNBIASED = 4e-5  # of what each element is rounded by, the mean: ten times what it is by chance
MMA = Schedule("mma", 64, 64, 32, 4, 2, stages=3)
THREADS = Schedule("wgmma", 64, 64, 32, 4, 1, stages=3, loaders=4)
BOXES = replace(THREADS, loaders=1)


def run(kernel, given, schedule):
    """The products of two arrays, and the sums that a CPU has of them."""
    arrays = [*given, np.zeros(kernel.arguments[2].size, np.float32)]
    wanted = [array.astype(np.float64) for array in arrays]
    Oracle(replace(kernel, dtype=np.dtype(np.float64)), wanted).run()
    copies = [aligned(array) for array in arrays]
    made = launch(kernel, [inner for *_, inner in copies], schedule, target=TARGET)
    return copies[2][2].astype(np.float64), wanted[2], made


def ways(kernel):
    """One schedule of each kind that the cost model chooses from, the smallest tile of it."""
    found = {}
    worth = schedules(problem_of(kernel), TARGET, 1000)
    for made in sorted(worth, key=lambda one: (one.m * one.n, one.stages, one.splits, one.workers)):
        kind = made.unit, made.transposed, made.fragments, made.swapped, made.rewritten
        found.setdefault((*kind, made.loaders > 1), made)
    return list(found.values())


def positive(kernel, seed=3):
    """Factors whose low bits are random, none of which cancels another."""
    rng = np.random.default_rng(seed)
    return [
        rng.uniform(1, 8, argument.size).astype(np.float32) for argument in kernel.arguments[:2]
    ]


@pytest.mark.parametrize("name", KERNELS)
def test_factors_are_as_often_rounded_up_as_down(name):
    kernel = KERNELS[name]
    given = positive(kernel)
    for made in ways(kernel):
        found, wanted, _ = run(kernel, given, made)
        assert abs(np.sum(found - wanted) / np.sum(wanted)) < UNBIASED, made
        assert np.abs(found / wanted - 1).max() < 1e-3, made


@pytest.mark.parametrize("name", KERNELS)
def test_numbers_that_tensor_cores_see_are_exact(name):
    kernel = KERNELS[name]
    rng = np.random.default_rng(4)
    given = [
        rng.integers(-120, 121, argument.size).astype(np.float32)
        for argument in kernel.arguments[:2]
    ]
    for made in ways(kernel):
        actual, expected, _ = run(kernel, given, made)
        np.testing.assert_array_equal(actual, expected, str(made))


def test_all_kinds_of_schedules_are_among_those():
    found = [made for kernel in KERNELS.values() for made in ways(kernel)]
    assert {made.unit for made in found} == {"mma", "wgmma"}
    assert {made.transposed for made in found} >= {"", "a", "b"}
    for kind in ("fragments", "swapped", "rewritten"):
        assert any(getattr(made, kind) for made in found), kind


@pytest.mark.parametrize("made", [MMA, THREADS, replace(THREADS, splits=2)])
def test_factors_that_are_computed_on_the_way(made):
    kernel = matmul(66, 68, 130, tb=True)
    roots = [Access(Call("sqrt", (side.value,)), side.bounds) for side in (kernel.a, kernel.b)]
    kernel = replace(kernel, a=roots[0], b=roots[1])
    found, wanted, emitted = run(kernel, positive(kernel), made)
    assert abs(np.sum(found - wanted) / np.sum(wanted)) < UNBIASED
    assert not emitted.tensor_maps


@pytest.mark.parametrize("made, k", [(MMA, 64), (THREADS, 62), (THREADS, 63), (BOXES, 64)])
def test_what_is_not_finite_stays_so(made, k):
    """The usual NaN of GPUs, all of whose bits are set, becomes no other number by carries."""
    kernel = matmul(4, 64, k, tb=True)
    rows = np.ones((4, k), np.float32)
    rows[0, 5] = np.uint32(0x7FFFFFFF).view(np.float32)
    rows[1, 6], rows[2, 7] = np.inf, -np.inf
    given = [rows.reshape(-1), np.ones(64 * k, np.float32)]
    actual, _, _ = run(kernel, given, made)
    actual = actual.reshape(4, 64)
    assert np.isnan(actual[0]).all() and (actual[3] == k).all()
    assert (actual[1] == np.inf).all() and (actual[2] == -np.inf).all()


def test_halves_go_to_even_numbers_by_the_copy_engine_and_up_by_threads():
    last = 2.0**-10  # the last bit that is seen of numbers from 1 to 2
    values = np.float32([1 + last / 2, 1 + 3 * last / 2, 1 + 0.49 * last, 1 + 0.51 * last])
    rows = np.zeros((4, 64), np.float32)
    rows[:, 3] = values
    kernel = matmul(4, 64, 64, tb=True)
    given = [rows.reshape(-1), np.ones(64 * 64, np.float32)]
    to_even = run(kernel, given, BOXES)[0].reshape(4, 64)[:, 0]
    np.testing.assert_array_equal((to_even - 1) / last, [0, 2, 0, 1])
    for made in (MMA, THREADS):
        up = run(matmul(4, 64, 62, tb=True), _cut(given), made)[0].reshape(4, 64)[:, 0]
        np.testing.assert_array_equal((up - 1) / last, [1, 2, 0, 1])


def _cut(given):
    """The same with fewer terms, whose lines the copy engine does not read."""
    return [np.ascontiguousarray(array.reshape(-1, 64)[:, :62]).reshape(-1) for array in given]
