"""Which schedules are chosen for contractions on GPUs, and that they can be kept."""

from dataclasses import replace

import ml_dtypes
import numpy as np
import pytest

from tests.codegen.contraction.contractions import Conv, matmul
from tests.codegen.cuda.contraction.emulated_launch import check
from tests.codegen.cuda.contraction.products import (
    narrow,
    narrow_convolutions,
    narrow_product,
    updated,
)
from thalweg.codegen.contraction import tune as kept
from thalweg.codegen.contraction.tune import Winners
from thalweg.codegen.cuda.contraction.kernel import contraction_shapes, emit_contraction
from thalweg.codegen.cuda.contraction.plan import schedule_of, schedules
from thalweg.codegen.cuda.contraction.problem import problem_of
from thalweg.codegen.cuda.contraction.schedule import Schedule
from thalweg.codegen.cuda.contraction.tune import tuned_schedule
from thalweg.codegen.cuda.target import CudaTarget
from thalweg.codegen.kernels import keep_schedule
from thalweg.ir.dynamic import dynamic
from thalweg.ir.expr import Call, Load
from thalweg.platform.disk_cache import Disk

BFLOAT16 = np.dtype(ml_dtypes.bfloat16)
H200, A100, L40 = CudaTarget(), CudaTarget(capability=80), CudaTarget(capability=89)
TF32 = CudaTarget(allow_tf32=True)


def chosen(kernel, target=H200, aligned=True):
    return schedule_of(problem_of(kernel, aligned), target)


def test_units_by_dtype_and_target():
    product = narrow_product(1024, 1024, 1024, BFLOAT16)
    assert chosen(product).unit == "wgmma"
    assert chosen(product, A100).unit == "mma"
    assert chosen(matmul(1024, 1024, 1024)).unit == "cores"
    assert chosen(matmul(1024, 1024, 1024, tb=True), CudaTarget(allow_tf32=True)).unit != "cores"
    assert chosen(matmul(512, 512, 512, dtype=np.float64)).unit == "cores"
    narrowest = narrow_product(1024, 1024, 1024, ml_dtypes.float8_e4m3fn, tb=True)
    assert chosen(narrowest, A100).unit == "cores"
    assert chosen(narrowest, L40).unit == "mma"
    assert chosen(narrowest).unit == "wgmma"


def test_large_products_have_large_tiles():
    made = chosen(narrow_product(4096, 4096, 4096, BFLOAT16))
    assert (made.m, made.n, made.loaders, made.workers) == (128, 256, 1, 0)


def test_few_tiles_of_long_sums_are_split():
    assert chosen(narrow_product(128, 512, 16384, BFLOAT16)).splits > 1
    assert chosen(narrow_product(128, 512, 16384, BFLOAT16), A100).workers
    forward, filters, _ = narrow_convolutions(BFLOAT16, 64, 28, 28, 64, 64, 3, 3, pad=(1, 1))
    assert chosen(filters).splits > 1
    assert chosen(forward).loaders == 1


def test_a_few_tiles_with_a_long_epilogue_are_split():
    """As a gradient of a recurrent cell has it: its code runs once, and took longest of all."""
    kernel = narrow_product(16, 256, 1024, BFLOAT16, tb=True)
    (store,) = kernel.stores
    value, before = store.value, Load(store.buffer, store.offset)
    for _ in range(12):
        value = Call("add", (Call("mul", (value, before)), before))
    made = chosen(replace(kernel, stores=(replace(store, value=value),)))
    assert (made.m, made.n, made.splits > 1) == (64, 64, True)


def test_buffers_that_may_begin_anywhere_are_read_by_threads():
    assert chosen(narrow_product(1024, 1024, 1024, BFLOAT16), aligned=False).loaders != 1


def test_operands_across_the_terms_in_tf32():
    """A filter is transposed before; for its gradient what comes from above, and windows are read
    as fragments. So is a matrix that a few rows are multiplied by."""
    conv = Conv(64, 28, 28, 256, 512, 3, 3, pad=(1, 1))
    gradient = updated(conv.filter_gradient())
    forward, filters, images = (
        chosen(kernel, TF32) for kernel in (conv.forward(), gradient, conv.input_gradient())
    )
    assert (forward.transposed, forward.fragments) == ("b", False)
    assert (filters.transposed, filters.fragments) == ("b", True)
    assert images.transposed == ""
    assert chosen(matmul(128, 4096, 9216), TF32).swapped
    assert chosen(conv.forward(), TF32, aligned=False).transposed == ""
    assert chosen(matmul(512, 512, 512, batch=(4,)), TF32).transposed == ""
    narrow = Conv(64, 112, 112, 64, 64, 3, 3, pad=(1, 1))  # where a copy would take too long
    assert chosen(updated(narrow.filter_gradient()), TF32).rewritten
    worth = [made for made in schedules(problem_of(gradient), TF32, 300) if made.unit == "wgmma"]
    assert {(made.transposed, made.rewritten) for made in worth} == {("b", False), ("", True)}


@pytest.mark.parametrize("target", [H200, A100, L40, TF32])
def test_all_candidates_fit_the_target(target):
    kernels = [
        narrow_product(1000, 1000, 1000, BFLOAT16),
        narrow_product(333, 77, 129, np.float16),
        matmul(300, 200, 100),
        Conv(8, 14, 14, 48, 64, 3, 3, pad=(1, 1)).filter_gradient(),
        *narrow_convolutions(BFLOAT16, 8, 14, 14, 48, 64, 3, 3, pad=(1, 1)),
    ]
    for kernel in kernels:
        for made in schedules(problem_of(kernel), target, 100):
            shapes = contraction_shapes(kernel, target, (), True, made)
            assert all(shape.shared_bytes <= target.shared_bytes for shape in shapes)
            assert all(shape.block[0] <= target.max_threads for shape in shapes)


def test_a_schedule_does_not_depend_on_the_hints_of_sizes():
    """Code that was made for one size runs for all: grids must be those of its schedule."""
    small, large = (matmul(dynamic(m, 5), 256, 64) for m in (3, 30_000))
    assert chosen(small) == chosen(large)
    (few,), (many,) = (contraction_shapes(small, H200, (m,)) for m in (3, 30_000))
    assert few.grid[0] < many.grid[0]


def test_schedules_are_kept(monkeypatch, tmp_path):
    monkeypatch.setitem(kept._process, "winners", Winners(Disk(tmp_path)))
    kernel = matmul(64, 64, 64)
    assert tuned_schedule(kernel, H200) is None
    schedule = Schedule("cores", 32, 32, 16, 2, 1, workers=3)
    keep_schedule(kernel, H200, schedule)
    monkeypatch.setitem(kept._process, "winners", Winners(Disk(tmp_path)))
    assert tuned_schedule(kernel, H200) == schedule
    assert tuned_schedule(kernel, A100) is None
    assert emit_contraction(kernel, H200).entries == ("multiply", "add_parts")


@pytest.mark.parametrize(
    "kernel",
    [
        narrow_product(100, 90, 700, BFLOAT16),
        narrow_product(40, 300, 24, np.float16, tb=True),
        matmul(70, 130, 50),
        matmul(20, 30, 40, (3,), dtype=np.float64),
        narrow(Conv(2, 8, 8, 16, 24, 3, 3, pad=(1, 1), dtype=BFLOAT16).forward()),
    ],
)
@pytest.mark.parametrize("is_aligned", [True, False])
def test_what_is_chosen_is_right(kernel, is_aligned):
    check(kernel, tolerance=1e-1, is_aligned=is_aligned)


#: What took least on an H200, of several schedules: unit, tile, and whether sums are split.
MEASURED = {
    "a filter": (("tn", 1728, 384, 21632), ("wgmma", 128, 128, True)),
    "pointwise, filter": (("tn", 256, 64, 1605632), ("wgmma", 64, 64, True)),
    "many waves of small tiles": (("tn", 9216, 1024, 18432), ("wgmma", 128, 128, False)),
    "two waves": (("tn", 4608, 1024, 18432), ("wgmma", 128, 192, False)),
    "long sums": (("nn", 18432, 1024, 9216), ("wgmma", 128, 256, False)),
    "few rows": (("nn", 128, 4096, 9216), ("wgmma", 128, 128, True)),
    "a weight matrix": (("tn", 9216, 4096, 128), ("wgmma", 128, 256, False)),
    "few columns": (("nn", 401408, 64, 1728), ("wgmma", 128, 64, False)),
}


@pytest.mark.parametrize("name", MEASURED)
def test_the_cost_model_chooses_what_was_measured_to_be_best(name):
    (form, *shape), best = MEASURED[name]
    kernel = narrow_product(*shape, BFLOAT16, ta=form == "tn", out=BFLOAT16)
    made = chosen(updated(kernel) if form == "tn" else kernel)
    assert (made.unit, made.m, made.n, made.splits > 1) == best
