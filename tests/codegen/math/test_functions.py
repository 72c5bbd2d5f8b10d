"""Functions of elements against NumPy: every dtype, one lane and many, several processors."""

from __future__ import annotations

import re
from typing import Any

import ml_dtypes
import numpy as np
import pytest

from tests.codegen.jit import add_function, assembly, run, variable_loads
from thalweg.codegen.llvm.builder import Module
from thalweg.ir.expr import call
from thalweg.ir.functions.table import FUNCTIONS

BFLOAT16 = np.dtype(ml_dtypes.bfloat16)
FLOATS = [np.dtype(np.float32), np.dtype(np.float64)]
NARROW_FLOATS = [np.dtype(np.float16), BFLOAT16]
INTEGERS = [np.dtype(f"{sign}{size}") for sign in "iu" for size in (1, 2, 4, 8)]
TARGETS = [("native", 16), ("native", 1), ("x86-64-v3", 8), ("x86-64-v2", 4)]
EXTREMES = [("native", 16), ("x86-64-v2", 1)]
CPUS = ["native", "x86-64-v3", "x86-64-v2", "aarch64"]

ARITHMETIC = ["add", "sub", "mul", "div", "max", "min"]
DIVISIONS = ["floor_div", "remainder", "truncated_remainder"]
COMPARISONS = ["lt", "le", "gt", "ge", "eq", "ne"]
LOGICAL = ["and", "or", "xor"]
BITWISE = ["bit_and", "bit_or", "bit_xor", "shift_left", "shift_right"]
ROUNDINGS = ["floor", "ceil", "rint", "trunc"]
CLASSES = ["is_nan", "is_inf", "is_finite", "not"]
#: The functions of one number that are not exact.
ROUNDED = [row.name for row in FUNCTIONS.values() if row.ulps and getattr(row.numpy, "nin", 1) == 1]

#: A call or jump to a symbol; labels begin with a dot.
OUTSIDE = re.compile(r"\t(?:callq?|jmpq?|bl|b)\t[a-zA-Z_].*")
#: Where a function begins.
LABEL = re.compile(r"^(\w+):", re.MULTILINE)

pytestmark = pytest.mark.filterwarnings("ignore::RuntimeWarning")


def special(dtype: Any) -> Any:
    """Numbers where functions of a float dtype change their ways."""
    limits = ml_dtypes.finfo(dtype)
    ends = [limits.max, limits.tiny, limits.smallest_subnormal, limits.eps, 1 + limits.eps]
    plain = [0.0, 0.5, 1, 1.5, 2, 2.5, 3, 7, 100, np.inf, np.nan]
    positive = np.array([float(end) for end in ends] + plain).astype(dtype)
    return np.concatenate([positive, -positive])


def sample(dtype: Any, seed: int = 0, size: int = 2000) -> Any:
    """Random numbers of a dtype: all bit patterns, and many of moderate size."""
    rng = np.random.default_rng(seed)
    if dtype == np.bool_:
        return rng.integers(0, 2, size).astype(bool)
    bits = rng.integers(0, 256, (size, dtype.itemsize), np.uint8).view(dtype)[:, 0]
    if dtype.kind in "iu":
        small = rng.integers(0, 20, size).astype(dtype) - (
            dtype.type(10) if dtype.kind == "i" else 0
        )
        limits = np.iinfo(dtype)
        ends = np.array([limits.min, limits.max, 0, 1], dtype)
        return np.concatenate([bits, small.astype(dtype), ends])
    moderate = [rng.normal(size=size), rng.normal(size=size) * 50, np.linspace(-1, 1, size)]
    return np.concatenate([special(dtype), bits, *(part.astype(dtype) for part in moderate)])


def pairs(dtype: Any) -> tuple[Any, Any]:
    """Two arrays of a dtype: samples, and all pairs of special numbers."""
    first, second = sample(dtype), sample(dtype, 1)
    if dtype.kind in "iub":
        return first, second
    edges = special(dtype)
    return (
        np.concatenate([first, np.repeat(edges, edges.size)]),
        np.concatenate([second, np.tile(edges, edges.size)]),
    )


def same(got: Any, wanted: Any) -> None:
    """Equal in value, dtype, NaN and the sign of zero."""
    assert got.dtype == wanted.dtype
    if got.dtype.kind == "f" or got.dtype == BFLOAT16:
        number = ~np.isnan(wanted)
        zeros = number & (wanted == 0)
        np.testing.assert_array_equal(np.signbit(got[zeros]), np.signbit(wanted[zeros]))
        got, wanted = got.astype(np.float64), wanted.astype(np.float64)
    np.testing.assert_array_equal(got, wanted)


def error(got: Any, exact: Any) -> float:
    """The largest error in units of the last place; infinite where it is not even close."""
    rounded = exact.astype(got.dtype)
    finite = np.isfinite(rounded)
    others = (array[~finite].astype(np.longdouble) for array in (got, rounded))
    np.testing.assert_array_equal(*others)
    zeros = (rounded == 0) & (got == 0)
    np.testing.assert_array_equal(np.signbit(got[zeros]), np.signbit(rounded[zeros]))
    unit = np.spacing(np.abs(rounded[finite])).astype(np.longdouble)
    return float(np.max(np.abs(got[finite].astype(np.longdouble) - exact[finite]) / unit))


def assert_within_ulps(function: str, got: Any, exact: Any) -> None:
    """The error of a function is at most what its row says."""
    allowed = FUNCTIONS[function].ulps
    assert allowed is not None
    assert error(got, exact) <= allowed


def unary(function: str, x: Any, lanes: int, cpu: str) -> Any:
    (a,) = variable_loads(x)
    return run(call(function, a), [x], lanes, cpu)


def binary(function: str, x: Any, y: Any, lanes: int, cpu: str) -> Any:
    a, b = variable_loads(x, y)
    return run(call(function, a, b), [x, y], lanes, cpu)


@pytest.mark.parametrize(("cpu", "lanes"), EXTREMES)
@pytest.mark.parametrize("dtype", [*FLOATS, *NARROW_FLOATS, *INTEGERS], ids=str)
@pytest.mark.parametrize("function", ARITHMETIC + COMPARISONS + LOGICAL)
def test_arithmetic_is_numpys(function: str, dtype: Any, cpu: str, lanes: int) -> None:
    x, y = pairs(dtype)
    expected = FUNCTIONS[function].numpy(x, y)
    got = binary(function, x, y, lanes, cpu)
    if function in ("max", "min"):  # of zeros of either sign, any will do
        expected, got = (array + array.dtype.type(0) for array in (expected, got))
    same(got, expected)


@pytest.mark.parametrize("function", ["add", "mul", "max", "min", "bit_and", "pow", "shift_left"])
def test_booleans(function: str) -> None:
    x, y = sample(np.dtype(bool)), sample(np.dtype(bool), 1)
    same(binary(function, x, y, 16, "native"), FUNCTIONS[function].numpy(x, y))


@pytest.mark.parametrize(("cpu", "lanes"), TARGETS)
@pytest.mark.parametrize("dtype", [*FLOATS, np.dtype(np.float16)], ids=str)
@pytest.mark.parametrize("function", DIVISIONS)
def test_divisions_of_floats(function: str, dtype: Any, cpu: str, lanes: int) -> None:
    x, y = pairs(dtype)
    same(binary(function, x, y, lanes, cpu), FUNCTIONS[function].numpy(x, y))


@pytest.mark.parametrize(("cpu", "lanes"), EXTREMES)
@pytest.mark.parametrize("dtype", INTEGERS, ids=str)
@pytest.mark.parametrize("function", DIVISIONS)
def test_divisions_of_integers(function: str, dtype: Any, cpu: str, lanes: int) -> None:
    x, y = pairs(dtype)
    x, y = x[y != 0], y[y != 0]
    same(binary(function, x, y, lanes, cpu), FUNCTIONS[function].numpy(x, y))


@pytest.mark.parametrize("divisor", [1, -1, 2, -2, 3, 7, 8, -7, 1 << 20])
@pytest.mark.parametrize("function", DIVISIONS)
def test_divisions_by_constants(function: str, divisor: int) -> None:
    x = sample(np.dtype(np.int32))
    (a,) = variable_loads(x)
    same(run(call(function, a, divisor), [x]), FUNCTIONS[function].numpy(x, divisor))


@pytest.mark.parametrize("dtype", INTEGERS, ids=str)
def test_powers_of_integers(dtype: Any) -> None:
    x, y = sample(dtype), sample(dtype, 1)
    y = np.where(y < 0, dtype.type(3), y).astype(dtype)
    for cpu, lanes in EXTREMES:
        same(binary("pow", x, y, lanes, cpu), np.power(x, y))


@pytest.mark.parametrize("dtype", INTEGERS, ids=str)
@pytest.mark.parametrize("function", BITWISE)
def test_bits(function: str, dtype: Any) -> None:
    x, y = sample(dtype), sample(dtype, 1)
    for cpu, lanes in EXTREMES:
        same(binary(function, x, y, lanes, cpu), FUNCTIONS[function].numpy(x, y))


@pytest.mark.parametrize("dtype", [*FLOATS, *NARROW_FLOATS, *INTEGERS], ids=str)
@pytest.mark.parametrize("function", ["neg", "abs", "sign", *ROUNDINGS, *CLASSES, "conj", "real"])
def test_simple_functions(function: str, dtype: Any) -> None:
    x = sample(dtype)
    expected = np.asarray(FUNCTIONS[function].numpy(x))
    for cpu, lanes in EXTREMES:
        got = unary(function, x, lanes, cpu)
        if dtype == BFLOAT16 and function == "sign":  # its NumPy loop keeps the sign of zero
            got, expected = got + got.dtype.type(0), expected + expected.dtype.type(0)
        same(got, expected)


@pytest.mark.parametrize("dtype", [np.dtype(bool), *INTEGERS], ids=str)
def test_inversion(dtype: Any) -> None:
    x = sample(dtype)
    same(unary("bit_not", x, 16, "native"), np.invert(x))


@pytest.mark.parametrize(("cpu", "lanes"), TARGETS)
@pytest.mark.parametrize("dtype", FLOATS, ids=str)
@pytest.mark.parametrize("function", ROUNDED)
def test_errors_in_the_last_place(function: str, dtype: Any, cpu: str, lanes: int) -> None:
    x = np.concatenate([sample(dtype, size=20000), np.geomspace(1e-6, 1e6, 20000).astype(dtype)])
    if function in ("sin", "cos", "tan"):
        far = 1e9 if dtype.itemsize == 4 else 1e15
        x = x[~(np.abs(x) > far)]
    exact = FUNCTIONS[function].numpy(x.astype(np.longdouble))
    assert_within_ulps(function, unary(function, x, lanes, cpu), exact)


@pytest.mark.parametrize("dtype", FLOATS, ids=str)
@pytest.mark.parametrize("function", ["sin", "cos"])
def test_angles_of_any_size_have_a_sine(function: str, dtype: Any) -> None:
    x = np.concatenate([sample(dtype, 3), np.geomspace(1, 1e38, 1000).astype(dtype)])
    got = unary(function, x, 16, "native")
    assert np.all(np.abs(got[np.isfinite(x)]) <= 1)
    assert np.all(np.isnan(got[~np.isfinite(x)]))


@pytest.mark.parametrize(("cpu", "lanes"), TARGETS)
@pytest.mark.parametrize("dtype", FLOATS, ids=str)
def test_powers_of_floats(dtype: Any, cpu: str, lanes: int) -> None:
    rng = np.random.default_rng(0)
    x, y = pairs(dtype)
    base = np.exp(rng.uniform(-80, 80, 20000))
    range_of_results = rng.uniform(-80, 80, 20000) * (1 if dtype.itemsize == 4 else 8)
    x = np.concatenate([x, base.astype(dtype)])
    y = np.concatenate([y, (range_of_results / np.log(base)).astype(dtype)])
    exact = np.power(x.astype(np.longdouble), y.astype(np.longdouble))
    assert_within_ulps("pow", binary("pow", x, y, lanes, cpu), exact)


@pytest.mark.parametrize("exponent", [-1, 0, 0.5, 1, 2, 3, -0.75])
def test_powers_by_constants(exponent: float) -> None:
    x = sample(np.dtype(np.float32))
    (a,) = variable_loads(x)
    exact = np.power(x.astype(np.longdouble), exponent)
    assert error(run(call("pow", a, exponent), [x]), exact) < 1.6


@pytest.mark.parametrize(("cpu", "lanes"), TARGETS)
@pytest.mark.parametrize("dtype", FLOATS, ids=str)
def test_angles_of_points(dtype: Any, cpu: str, lanes: int) -> None:
    y, x = pairs(dtype)
    exact = np.arctan2(y.astype(np.longdouble), x.astype(np.longdouble))
    assert_within_ulps("atan2", binary("atan2", y, x, lanes, cpu), exact)


@pytest.mark.parametrize("dtype", NARROW_FLOATS, ids=str)
@pytest.mark.parametrize("function", ["exp", "log", "tanh", "sin", "sqrt"])
def test_narrow_floats_compute_in_float32(function: str, dtype: Any) -> None:
    x = sample(dtype)
    x = x[~(np.abs(x) > 1e4)]
    expected = FUNCTIONS[function].numpy(x.astype(np.float64)).astype(np.float32).astype(dtype)
    got = unary(function, x, 16, "x86-64-v2").astype(np.float64)
    np.testing.assert_allclose(
        got, expected.astype(np.float64), rtol=float(ml_dtypes.finfo(dtype).eps)
    )


@pytest.mark.parametrize("cpu", ["native", "x86-64-v2", "aarch64"])  # v3 lies between two
@pytest.mark.parametrize("dtype", [*FLOATS, np.dtype(np.float16), BFLOAT16], ids=str)
def test_nothing_outside_is_called(dtype: Any, cpu: str) -> None:
    two = {*ARITHMETIC, *DIVISIONS, *COMPARISONS, "pow", "atan2"}
    one = {*ROUNDED, *ROUNDINGS, *CLASSES, "neg", "abs", "sign"}
    assert not outside_calls(two, one, dtype, (1, 16), cpu)


@pytest.mark.parametrize("cpu", CPUS)
@pytest.mark.parametrize("dtype", INTEGERS, ids=str)
def test_integers_call_nothing(dtype: Any, cpu: str) -> None:
    assert not outside_calls({*ARITHMETIC, *DIVISIONS, *BITWISE, "pow"}, set(), dtype, (8,), cpu)


def outside_calls(
    two: set[str], one: set[str], dtype: Any, lanes: tuple[int, ...], cpu: str
) -> list[str]:
    """What the code of functions of two numbers and of one calls, each with the one that does."""
    x = np.ones(16, dtype)
    a, b = variable_loads(x, x)
    module = Module()  # one for all: LLVM sets itself up for each
    for function in sorted(two | one):
        expr = call(function, a, b) if function in two else call(function, a)
        for lane in lanes:
            add_function(module, f"{function}_{lane}", expr, 2, lane)
    *bodies, _ = assembly(module.text, cpu).split("\n.Lfunc_end")
    assert len(bodies) == len(two | one) * len(lanes)
    return [
        f"{LABEL.findall(body)[-1]}:{instruction}"
        for body in bodies
        for instruction in OUTSIDE.findall(body)
    ]


def test_every_function_has_code() -> None:
    special_forms = {"select", "cast", "bitcast", "complex"}
    assert {row.name for row in FUNCTIONS.values() if row.emit is None} == special_forms
