"""Functions by instructions of GPUs that come close: no more than rounding hides."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
import pytest

from tests.codegen.cuda.emulated import assemble, run
from tests.codegen.math.test_functions import error
from thalweg.codegen.cuda.approximations import approximations
from thalweg.codegen.cuda.compile import to_ptx
from thalweg.codegen.cuda.kernel import emit
from thalweg.codegen.cuda.target import CudaTarget
from thalweg.ir.expr import Call, Cast, Index, Load, Variable
from thalweg.ir.functions.table import FUNCTIONS
from thalweg.ir.index import affine
from thalweg.ir.kernel import Argument, Loops, Store

BFLOAT16, FLOAT16 = np.dtype(ml_dtypes.bfloat16), np.dtype(np.float16)
NARROW = [row.name for row in FUNCTIONS.values() if row.narrow]

pytestmark = pytest.mark.filterwarnings("ignore::RuntimeWarning")


def kernel_of(function: str, dtype: Any, size: int, inputs: int) -> Loops:
    """A function of each element of some arrays."""
    i = Variable(size, "i")
    at = affine(Index(i))
    arguments = [Argument(n, dtype, size) for n in range(inputs)]
    output = Argument(inputs, dtype, size, True)
    value = Cast(Call(function, tuple(Load(argument, at) for argument in arguments)), dtype)
    return Loops((*arguments, output), (i,), (Store(output, (i,), at, value),))


def every(dtype: Any) -> np.ndarray:
    """All numbers of two bytes."""
    return np.arange(1 << 16).astype(np.uint16).view(dtype)


def computed(function: str, *inputs: np.ndarray) -> np.ndarray:
    result = np.zeros_like(inputs[0])
    kernel = kernel_of(function, result.dtype, result.size, len(inputs))
    run(kernel, [*inputs, result], aligned=False)
    return result


@pytest.mark.parametrize("dtype", [BFLOAT16, FLOAT16], ids=str)
@pytest.mark.parametrize("function", [name for name in NARROW if name != "div"])
def test_every_number(function: str, dtype: Any) -> None:
    """What a GPU promises of its instructions moves a result over the middle of two at most."""
    x = every(dtype)
    wanted = FUNCTIONS[function].numpy(x.astype(np.float64))
    assert error(computed(function, x), wanted) < (0.501 if function == "sqrt" else 0.65)


def test_quotients_have_every_bit() -> None:
    rng = np.random.default_rng(0)
    x, y = (every(BFLOAT16)[rng.permutation(1 << 16)] for _ in range(2))
    actual, expected = computed("div", x, y), x / y
    np.testing.assert_array_equal(actual.astype(np.float32), expected.astype(np.float32))


def test_exponentials_of_float32() -> None:
    draw = np.random.default_rng(1)
    edges = [0.0, -0.0, np.inf, -np.inf, np.nan, 88.72, 88.8, -87.4, -103.9, -105.0, 1e38, -1e38]
    x = np.array([*edges, *draw.uniform(-104, 89, 20_000), *draw.normal(size=5_000)], np.float32)
    assert error(computed("exp", x), np.exp(x.astype(np.longdouble))) < 4


@pytest.mark.parametrize("function", NARROW)
def test_the_instructions_are_used(function: str) -> None:
    inputs = FUNCTIONS[function].numpy.nin
    text = assemble(kernel_of(function, BFLOAT16, 64, inputs))
    names = {"div": "div.full.f32", "sqrt": "sqrt.approx.f32", "exp": "ex2.approx.f32"}
    assert names.get(function, f"{function}.approx.f32") in text


def test_older_gpus_have_fewer() -> None:
    target = CudaTarget(capability=70)
    assert "tanh" not in approximations(target)
    text = emit(kernel_of("tanh", BFLOAT16, 64, 1), target).text
    assert "tanh" not in to_ptx(text, target)


def test_products_and_sums_of_narrow_floats_are_one_instruction() -> None:
    i = Variable(64, "i")
    at = affine(Index(i))
    for dtype, is_one in ((BFLOAT16, True), (np.dtype(np.float32), False)):
        a, b = (Argument(n, dtype, 64, n == 1) for n in range(2))
        x = Load(a, at)
        value = Call("add", (Call("mul", (x, x)), x))
        loops = Loops((a, b), (i,), (Store(b, (i,), at, value),))
        assert ("fma.rn.f32" in assemble(loops)) is is_one


def rounded_kernel(function: str, keeps_all: bool) -> Loops:
    """A function of float32 numbers that bfloat16 numbers are, rounded to one; and perhaps stored
    with all its bits as well."""
    i = Variable(1 << 16, "i")
    at = affine(Index(i))
    x, out = Argument(0, BFLOAT16, 1 << 16), Argument(1, BFLOAT16, 1 << 16, True)
    whole = Argument(2, np.dtype(np.float32), 1 << 16, True)
    wide = Cast(Load(x, at), np.float32)
    value = Call(function, (wide, wide) if FUNCTIONS[function].numpy.nin == 2 else (wide,))
    scaled = Call("add", (Call("mul", (value, wide)), wide))
    stores = [Store(out, (i,), at, Cast(scaled, BFLOAT16))]
    stores += [Store(whole, (i,), at, scaled)] if keeps_all else []
    return Loops((x, out, whole), (i,), tuple(stores))


@pytest.mark.parametrize(("function", "instruction"), [("exp", "ex2.approx.f32"),
                                                       ("sqrt", "sqrt.approx.f32"),
                                                       ("div", "div.full.f32")])  # fmt: skip
def test_float32_numbers_that_end_as_narrow_ones(function: str, instruction: str) -> None:
    """Rounding hides the error of an instruction there, unless something else sees it."""
    hidden, seen = (assemble(rounded_kernel(function, keeps)) for keeps in (False, True))
    assert instruction in hidden
    assert "fma.rn.f32" in hidden
    assert instruction not in seen
    x = every(BFLOAT16)
    found = [x, np.zeros_like(x), np.zeros(x.size, np.float32)]
    run(rounded_kernel(function, False), found, aligned=True)
    wide = x.astype(np.float64)
    inputs = (wide, wide) if FUNCTIONS[function].numpy.nin == 2 else (wide,)
    wanted = FUNCTIONS[function].numpy(*inputs) * wide + wide
    usual = np.isfinite(wanted) & (np.abs(wide) < 80)
    assert error(found[1][usual], wanted[usual].astype(np.longdouble)) < 0.65


def test_tanh_keeps_its_bits_where_a_sum_may_cancel() -> None:
    assert "tanh.approx.f32" not in assemble(rounded_kernel("tanh", False))
