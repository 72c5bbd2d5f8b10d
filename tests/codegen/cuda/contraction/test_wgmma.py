"""Products by wgmma on an emulated GPU: descriptors, boxes, windows and pipelines against NumPy."""

from dataclasses import replace

import ml_dtypes
import numpy as np
import pytest

from tests.codegen.contraction.contractions import Conv, Oracle, matmul, random_arrays
from tests.codegen.cuda.contraction.emulated_launch import aligned, check, launch
from tests.codegen.cuda.contraction.products import (
    narrow,
    narrow_convolutions,
    narrow_product,
    updated,
)
from thalweg.codegen.cuda.contraction.schedule import Schedule
from thalweg.ir.dynamic import dynamic
from thalweg.ir.index import number
from thalweg.ir.kernel import Access

BFLOAT16 = np.dtype(ml_dtypes.bfloat16)
COPIED = Schedule("wgmma", 128, 64, 64, 8, 1, stages=4, loaders=1)
THREADS = Schedule("wgmma", 128, 64, 64, 8, 1, stages=4, loaders=4)


@pytest.mark.parametrize("ta", [False, True])
@pytest.mark.parametrize("tb", [False, True])
@pytest.mark.parametrize("shape", [(200, 136, 200), (8, 72, 40)])
def test_boxes(shape, ta, tb):
    made = check(narrow_product(*shape, BFLOAT16, ta, tb), COPIED, tolerance=1e-4)
    assert len(made.tensor_maps) == 2


@pytest.mark.parametrize("ta", [False, True])
@pytest.mark.parametrize("tb", [False, True])
def test_rows_that_the_copy_engine_cannot_read(ta, tb):
    made = check(narrow_product(130, 70, 333, BFLOAT16, ta, tb), THREADS, tolerance=1e-4)
    assert not made.tensor_maps


def test_one_operand_by_the_copy_engine():
    made = check(narrow_product(132, 72, 331, BFLOAT16, tb=False), THREADS, tolerance=1e-4)
    assert len(made.tensor_maps) == 1


@pytest.mark.parametrize(
    "made",
    [
        Schedule("wgmma", 128, 256, 64, 8, 1, stages=4, loaders=1),
        Schedule("wgmma", 64, 128, 64, 4, 1, stages=2, loaders=1),
        Schedule("wgmma", 128, 32, 64, 8, 1, stages=2, loaders=1, buffers=2),
        Schedule("wgmma", 128, 64, 64, 8, 1, stages=4, loaders=1, workers=5),
        Schedule("wgmma", 128, 64, 64, 8, 1, stages=4, loaders=1, splits=3),
        Schedule("wgmma", 64, 64, 64, 4, 1, stages=2, loaders=1, splits=2),
    ],
)
def test_schedules(made):
    kernel = narrow_product(300, 264, 192, BFLOAT16, out=BFLOAT16)
    check(kernel, made, tolerance=0.3)


@pytest.mark.parametrize("dtype", [np.float16, ml_dtypes.float8_e4m3fn, ml_dtypes.float8_e5m2])
@pytest.mark.parametrize("ta", [False, True])
def test_other_narrow_floats(dtype, ta):
    terms = 64 if np.dtype(dtype).itemsize == 2 else 128
    schedule = Schedule("wgmma", 64, 64, terms, 4, 1, stages=2, loaders=4)
    check(narrow_product(48, 96, 160, dtype, ta, not ta), schedule, tolerance=1e-4)


@pytest.mark.parametrize("tb", [False, True])
def test_tf32(tb):
    schedule = Schedule("wgmma", 64, 64, 32, 4, 1, stages=4, loaders=4)
    check(matmul(70, 68, 72, tb=tb), schedule, tolerance=3e-2)


TF32 = Schedule("wgmma", 64, 64, 32, 4, 1, stages=4, loaders=1)
FRAGMENTS = replace(TF32, transposed="b", fragments=True)
SWAPPED = replace(TF32, fragments=True, swapped=True)
REWRITTEN = replace(TF32, loaders=4, rewritten=True)


@pytest.mark.parametrize("ta, tb, transposed", [(0, 0, "b"), (1, 0, "ab"), (1, 1, "a")])
@pytest.mark.parametrize("shape", [(70, 67, 73), (132, 68, 36)])
def test_transposed_operands(shape, ta, tb, transposed):
    """Copies along the terms are made of any matrix; the copy engine reads those."""
    m, n, k = shape
    shape = (m, n, k if ta and not tb else 4 * k)  # what is not copied has whole accesses
    kernel = matmul(*shape, ta=ta, tb=tb)
    made = check(kernel, replace(TF32, transposed=transposed), is_tf32=True)
    assert made.entries == (*(f"transpose_{name}" for name in transposed), "multiply")
    assert len(made.tensor_maps) == 2


@pytest.mark.parametrize(
    "made",
    [
        FRAGMENTS,
        replace(FRAGMENTS, splits=3),
        replace(FRAGMENTS, m=128, n=256, warps=8, loaders=4),
        replace(FRAGMENTS, m=128, warps=8, buffers=2, stages=2),
        replace(REWRITTEN, fragments=True),
        replace(REWRITTEN, fragments=True, m=128, n=256, warps=8, splits=2),
        replace(REWRITTEN, fragments=True, m=128, n=96, warps=8, stages=3),
        replace(REWRITTEN, fragments=True, n=32),
        replace(REWRITTEN, fragments=True, m=192, n=128, warps=12, splits=2),
    ],
)
@pytest.mark.parametrize("shape", [(64, 64, 32), (140, 76, 133), (12, 264, 17)])
def test_fragments_of_rows(made, shape):
    check(updated(matmul(*shape, ta=True)), made, is_tf32=True)


@pytest.mark.parametrize("made", [SWAPPED, replace(SWAPPED, m=128, n=32, warps=8, splits=2)])
@pytest.mark.parametrize("shape", [(70, 200, 100), (3, 68, 36)])
def test_rows_that_are_columns(made, shape):
    """A few rows by a matrix whose columns are read as fragments."""
    check(updated(matmul(*shape)), made, is_tf32=True)


@pytest.mark.parametrize(
    "sizes, more",
    [
        ((1, 6, 7, 64, 56, 3, 3), {"pad": (1, 1)}),
        ((1, 7, 6, 48, 64, 3, 2), {"pad": (0, 0)}),
        ((2, 5, 5, 16, 24, 3, 3), {"pad": (1, 1)}),
        ((1, 6, 7, 8, 72, 5, 5), {"pad": (2, 2)}),
        ((1, 7, 6, 32, 64, 3, 3), {"pad": (2, 1), "dilation": 2}),
        ((2, 7, 9, 32, 40, 3, 3), {"pad": (1, 1), "stride": 2}),
        ((2, 5, 5, 40, 60, 1, 1), {}),
    ],
)
def test_windows_in_tf32(sizes, more):
    """Of a convolution the filter is transposed, in memory or shared memory; of its gradient what
    comes from above, and windows are rows that are read as fragments."""
    conv = Conv(*sizes, **more)
    cases = [
        (conv.forward(), replace(TF32, transposed="b")),
        (conv.filter_gradient(), FRAGMENTS),
        (conv.filter_gradient(), replace(FRAGMENTS, m=128, warps=8, splits=2)),
        (conv.forward(), REWRITTEN),
        (conv.filter_gradient(), replace(REWRITTEN, fragments=True, m=128, warps=8, splits=2)),
    ]
    for kernel, made in cases:
        assert len(check(kernel, made, is_tf32=True).tensor_maps) == 2


def test_batches():
    kernel = narrow_product(72, 64, 64, BFLOAT16, batch=(2, 2), tb=True)
    made = check(kernel, COPIED, tolerance=1e-4)
    assert len(made.tensor_maps) == 2


@pytest.mark.parametrize(
    "sizes, more",
    [
        ((2, 9, 10, 64, 56, 3, 3), {"pad": (1, 1)}),
        ((2, 12, 11, 48, 64, 3, 2), {"pad": (0, 0)}),
        ((1, 9, 9, 128, 64, 3, 3), {"pad": (2, 1), "dilation": 2}),
        ((3, 11, 13, 64, 64, 3, 3), {"pad": (1, 1), "stride": 2}),
    ],
)
def test_windows(sizes, more):
    """Convolutions and their gradients: one operand is read as windows of images."""
    for kernel in narrow_convolutions(BFLOAT16, *sizes, **more):
        made = check(kernel, COPIED, tolerance=0.2)
        assert len(made.tensor_maps) == 2
        assert any(spec.map.windows for spec in made.tensor_maps)


@pytest.mark.parametrize("channels", [3, 8, 24])
def test_few_channels(channels):
    for kernel in narrow_convolutions(BFLOAT16, 2, 9, 9, channels, 64, 3, 3, pad=(1, 1)):
        check(kernel, THREADS, tolerance=0.2)


def test_pointwise_convolutions_are_products():
    made = check(
        narrow(Conv(2, 9, 9, 64, 72, 1, 1, dtype=BFLOAT16).forward()), COPIED, tolerance=0.1
    )
    assert not any(spec.map.windows for spec in made.tensor_maps)


@pytest.mark.parametrize("made", [replace(COPIED, splits=2), replace(THREADS, splits=5)])
def test_filters_of_convolutions_in_parts(made):
    _, filters, _ = narrow_convolutions(BFLOAT16, 2, 14, 12, 64, 64, 3, 3, pad=(1, 1))
    check(filters, made, tolerance=0.2)


def test_lowered_convolutions_are_read_by_the_copy_engine():
    """Bounds come in any form: what counts is where they begin."""
    conv = Conv(2, 9, 7, 64, 64, 3, 3, pad=(1, 1), dtype=BFLOAT16)
    for kernel in (conv.forward(), conv.filter_gradient(), conv.input_gradient()):
        moved = replace(kernel, a=_from(kernel.a, 5), b=_from(kernel.b, 5))
        made = check(narrow(moved), COPIED, tolerance=0.2)
        assert any(spec.map.windows for spec in made.tensor_maps)
        assert len(made.tensor_maps) == 2


def _from(access: Access, start: int) -> Access:
    """An operand whose bounds do not begin at 0."""
    bounds = tuple(
        (low + start, place + number(start), high + start) for low, place, high in access.bounds
    )
    return replace(access, bounds=bounds)


@pytest.mark.parametrize("rows", [1, 64, 130, 300])
@pytest.mark.parametrize("made", [COPIED, THREADS, Schedule("mma", 64, 64, 64, 4, 2, stages=3)])
def test_rows_known_at_run_time(rows, made):
    kernel = narrow_product(dynamic(rows, 5), 72, 136, BFLOAT16)
    check(kernel, made, words=(rows,), tolerance=1e-4)


@pytest.mark.parametrize("made", [COPIED, replace(COPIED, workers=7)])
def test_terms_known_at_run_time(made):
    """The gradient of weights for a batch of any size."""
    for batch in (0, 5, 200):
        kernel = narrow_product(72, 136, dynamic(batch, 5), BFLOAT16, ta=True)
        check(kernel, made, words=(batch,), tolerance=1e-4)


def test_images_known_at_run_time():
    conv = Conv(dynamic(3, 5), 7, 6, 64, 64, 3, 3, pad=(1, 1), dtype=BFLOAT16)
    for kernel in (conv.forward(), conv.filter_gradient(), conv.input_gradient()):
        found = check(narrow(kernel), COPIED, words=(3,), tolerance=0.2)
        assert any(spec.varying for spec in found.tensor_maps)


@pytest.mark.parametrize("channels, line", [(16, 32), (32, 64), (96, 64)])
def test_short_lines(channels, line):
    """Images whose channels are no whole lines of 128 bytes, as rows, terms or both."""
    sizes = 2, 9, 8, channels, channels, 3, 3
    actual: list[int] = []
    for kernel in narrow_convolutions(BFLOAT16, *sizes, pad=(1, 1)):
        made = check(kernel, COPIED, tolerance=0.2)
        assert len(made.tensor_maps) == 2
        actual.append(min(spec.map.line_bytes for spec in made.tensor_maps))
    assert actual[:2] == [line, line]  # the third may rather have zeros: it would be both operands


def test_terms_behind_the_last_are_zeros():
    """The windows of the last block of terms end before it does; what lies there is no number."""
    forward, _, gradient = narrow_convolutions(BFLOAT16, 1, 7, 7, 16, 16, 3, 3, pad=(0, 0))
    for kernel in (forward, gradient):
        rng = np.random.default_rng(0)
        arrays = random_arrays(kernel, rng)
        first = arrays[0].reshape(-1, 16)
        first[-1] = np.inf
        expected = [array.copy() for array in arrays]
        with np.errstate(all="ignore"):
            Oracle(kernel, expected).run()
        copies = [aligned(array) for array in arrays]
        launch(kernel, [inner for *_, inner in copies], COPIED)
        wanted, got = (np.isfinite(a.astype(float)) for a in (expected[2], copies[2][2]))
        assert wanted.any() and (got == wanted.reshape(-1)).all()
