"""Products of bfloat16 numbers on the matrix unit, mostly in emulation, against a NumPy oracle."""

from dataclasses import replace

import ml_dtypes
import numpy as np
import pytest

from tests.codegen.contraction.contractions import (
    SUM,
    Conv,
    argument,
    at,
    call,
    check_run,
    element,
    matmul,
)
from tests.codegen.contraction.emulated_unit import emulated
from thalweg.codegen.cache import as_request, load_all
from thalweg.codegen.contraction.amx import has_unit
from thalweg.codegen.contraction.kernel import emit_contraction
from thalweg.codegen.contraction.plan import neighbours, schedule, schedules
from thalweg.codegen.llvm.compile import assembly
from thalweg.codegen.machine import host_supports, named
from thalweg.ir.dynamic import dynamic
from thalweg.ir.expr import call as expr
from thalweg.ir.kernel import Access, Store

V4 = replace(named("x86-64-v4"), l1=48 << 10, l2=2 << 20)
UNIT = replace(V4, name="unit", features=f"{V4.features},+amx-tile,+amx-bf16")
BFLOAT = np.dtype(ml_dtypes.bfloat16)


def shortened(kernel, cast=False):
    """The contraction with factors of bfloat16 numbers."""
    arguments = list(kernel.arguments)

    def side(access):
        old, offset = access.value.buffer, access.value.offset
        new = arguments[old.position] = replace(old, dtype=BFLOAT)
        value = element(new, offset)
        return Access(value.cast(np.float32) if cast else value, access.bounds)

    a, b = side(kernel.a), side(kernel.b)
    return replace(kernel, a=a, b=b, arguments=tuple(arguments))


UNITS = ["emulated", "real"] if has_unit(named("native")) else ["emulated"]


@pytest.fixture(params=UNITS)
def check(request):
    """Holds a kernel, run on an emulated unit and on the real one if any, to the oracle."""
    is_real = request.param == "real"
    if not host_supports(V4):
        pytest.skip("this processor has no vectors of 64 bytes")

    def run(kernel, threads=1, made=None, words=()):
        made = made or schedule(kernel, UNIT)
        assert made.matrix
        code = emit_contraction(kernel, UNIT, made)
        target = named("native") if is_real else V4
        code = code if is_real else emulated(code)
        addresses = load_all([as_request(code)], target)[0].functions
        check_run(kernel, lambda arrays: call(code, addresses, arrays, threads, words, not is_real))

    return run


@pytest.mark.parametrize("ta", [False, True])
@pytest.mark.parametrize("tb", [False, True])
@pytest.mark.parametrize(
    "shape", [(32, 32, 32), (64, 96, 128), (33, 37, 61), (16, 50, 64), (5, 100, 90), (70, 9, 95)]
)
def test_matrix_product(check, shape, ta, tb):
    check(shortened(matmul(*shape, ta=ta, tb=tb)), threads=2)


@pytest.mark.parametrize("seed", range(24))
def test_random_matrix_product(check, seed):
    rng = np.random.default_rng(seed)
    m, n, k = (int(2 ** rng.uniform(5, 7.5)) for _ in range(3))
    batch = tuple(int(x) for x in rng.integers(1, 4, rng.integers(0, 3)))
    kernel = matmul(m, n, k, batch, bool(rng.integers(2)), bool(rng.integers(2)))
    check(shortened(kernel, cast=bool(seed % 2)), threads=int(rng.integers(1, 4)))


def test_the_rows_factor_is_read_where_it_lies(check):
    kernel = shortened(matmul(96, 80, 64))
    assert not schedule(kernel, UNIT).copy_a
    check(kernel, threads=20)


@pytest.mark.parametrize("shape", [(2, 9, 8, 33, 20, 3, 3), (1, 14, 14, 64, 48, 1, 1)])
@pytest.mark.parametrize("stride", [1, 2])
@pytest.mark.parametrize("pad", [(0, 0), (1, 1)])
def test_convolution(check, shape, stride, pad):
    conv = Conv(*shape, stride=stride, pad=pad)
    check(shortened(conv.forward()), threads=2)
    check(shortened(conv.filter_gradient()))
    if stride == 1:
        check(shortened(conv.input_gradient()), threads=2)


@pytest.mark.parametrize("m", [0, 1, 17, 32, 65, 200])
def test_rows_known_at_run_time(check, m):
    """One code for any number of rows."""
    kernel = shortened(matmul(m, 70, 90, rows=dynamic(m, 5)))
    made = schedule(shortened(matmul(64, 70, 90, rows=dynamic(64, 5))), UNIT)
    check(kernel, threads=2, made=made, words=(m,))


def test_what_is_done_with_the_sums(check):
    def layer(i, j, outer, shape):
        bias = argument(3, np.float32, (shape[-1],))
        return (SUM + element(bias, at((shape[-1],), j))).max(0.0), [bias]

    kernel = shortened(matmul(40, 70, 90, epilogue=layer))
    check(kernel, threads=2)
    short = replace(kernel.arguments[2], dtype=BFLOAT)
    arguments = (*kernel.arguments[:2], short, *kernel.arguments[3:])
    store = kernel.stores[0]
    rounded = Store(short, store.variables, store.offset, SUM.cast(BFLOAT))
    check(replace(kernel, arguments=arguments, stores=(rounded,)))


def test_factors_that_are_computed(check):
    kernel = shortened(matmul(40, 70, 90))
    a = Access((kernel.a.value.cast(np.float32) * 2.0).max(0.0).cast(BFLOAT))
    b = Access(expr("tanh", kernel.b.value.cast(np.float32)).cast(BFLOAT))
    check(replace(kernel, a=a, b=b), threads=2)


def test_other_schedules(check):
    kernel = shortened(matmul(300, 90, 70))
    likely = replace(schedules(kernel, UNIT)[0], block=64)
    assert likely.matrix
    for made in [likely, *neighbours(kernel, UNIT, likely)]:
        check(kernel, threads=2, made=made)


def test_what_the_unit_does_not_take():
    assert not schedule(matmul(64, 64, 64), UNIT).matrix
    assert not schedule(shortened(matmul(4, 4, 4)), UNIT).matrix
    assert not schedule(shortened(matmul(64, 64, 64)), V4).matrix
    assert not schedule(shortened(matmul(64, 64, dynamic(64, 5))), UNIT).matrix


def test_its_instructions():
    """They are made on any machine."""
    text = assembly(emit_contraction(shortened(matmul(64, 64, 64)), UNIT).text, UNIT)
    for name in ("ldtilecfg", "tileloadd", "tdpbf16ps", "tilestored", "tilerelease"):
        assert name in text
