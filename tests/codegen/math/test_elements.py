"""Dtypes of expressions, conversions, and how an evaluator goes through an expression."""

from __future__ import annotations

import operator
import sys
from itertools import product
from typing import Any

import numpy as np
import pytest

from tests.codegen.jit import assembly, module_text, run, variable_loads
from thalweg.codegen.llvm.builder import FLOAT, I64, Module, Value
from thalweg.codegen.machine import named
from thalweg.codegen.math.conversion import from_memory, register_type, storage_type, to_memory
from thalweg.codegen.math.elements import Evaluator
from thalweg.ir.expr import (
    Accumulated,
    Call,
    Const,
    Expr,
    Index,
    Load,
    Reduce,
    as_expr,
    call,
    constant,
    select,
)
from thalweg.ir.functions.dtypes import Unsupported
from thalweg.ir.functions.table import FUNCTIONS
from thalweg.ir.index import Affine
from thalweg.ir.kernel import Argument
from thalweg.ir.loop import Variable
from thalweg.ir.philox import philox_words
from thalweg.ir.rewrite import postorder
from thalweg.platform.dtype_traits import TABLE

NARROW = [row.storage for row in TABLE if row.is_narrow_float]
SIZED = [np.dtype(f"{kind}{size}") for kind in "iu" for size in (1, 2, 4, 8)]
NUMBERS = [np.dtype(bool), *SIZED, np.dtype("f4"), np.dtype("f8"), *NARROW]

pytestmark = pytest.mark.filterwarnings("ignore::RuntimeWarning")


def load(dtype: Any) -> Expr:
    return variable_loads(np.zeros(1, dtype))[0]


def one(array: Any) -> Any:
    """An array with its loading expression."""
    return variable_loads(array)[0]


def test_types_in_registers_and_memory() -> None:
    assert str(register_type(np.bool_, 8)) == "<8 x i1>"
    assert str(storage_type(np.bool_, 8)) == "<8 x i8>"
    for dtype in NARROW:
        assert str(register_type(dtype, 4)) == "<4 x float>"
        assert str(storage_type(dtype)) == f"i{8 * dtype.itemsize}"
    assert str(register_type(np.uint64)) == "i64"


@pytest.mark.parametrize("dtype", [np.complex64, np.object_, np.dtype("S3")])
def test_other_types_are_unsupported(dtype: Any) -> None:
    with pytest.raises(Unsupported):
        register_type(dtype)


@pytest.mark.parametrize("x", NUMBERS, ids=str)
@pytest.mark.parametrize("y", NUMBERS, ids=str)
def test_dtypes_promote_as_in_numpy(x: Any, y: Any) -> None:
    a, b = np.ones(1, x), np.ones(1, y)
    assert (load(x) + load(y)).dtype == (a + b).dtype
    assert (load(x) / load(y)).dtype == (a / b).dtype
    assert (load(x) < load(y)).dtype == np.bool_
    try:
        expected = np.where(a, a, b).dtype
    except TypeError:
        with pytest.raises(Unsupported):
            select(load(x), load(x), load(y))
    else:
        assert select(load(x), load(x), load(y)).dtype == expected


@pytest.mark.parametrize("x", NUMBERS, ids=str)
def test_python_numbers_give_way(x: Any) -> None:
    a = np.ones(1, x)
    assert (load(x) + 1).dtype == (a + 1).dtype
    assert (load(x) * 2.0).dtype == (a * 2.0).dtype
    assert (load(x).exp()).dtype == np.exp(a).dtype
    assert (load(x) + np.float64(1)).dtype == (a + np.float64(1)).dtype


def test_dtypes_of_leaves() -> None:
    assert Index(Variable.fresh(3)).dtype == np.int64
    assert Accumulated(np.float64).dtype == np.float64
    assert (Accumulated(np.float32) + load(np.float32)).dtype == np.float32
    assert Reduce("argmax", (), load(np.float32)).dtype == np.int64
    assert Reduce("any", (), load(np.bool_)).dtype == np.bool_
    assert Reduce("sum", (), load(np.int8)).dtype == np.int8
    assert constant(3).dtype == np.int64 and constant(True).dtype == np.bool_


def test_what_numpy_refuses_is_unsupported() -> None:
    with pytest.raises(Unsupported):
        load(np.bool_) - load(np.bool_)
    with pytest.raises(Unsupported):
        module_text(call("complex", load(np.float32), load(np.float32)), 2, 16)


def sample(dtype: Any) -> Any:
    rng = np.random.default_rng(0)
    if dtype == np.bool_:
        return rng.integers(0, 2, 500).astype(bool)
    if dtype.itemsize == 1:
        return np.arange(256, dtype=np.uint8).view(dtype)
    bits = rng.integers(0, 256, (500, dtype.itemsize), np.uint8).view(dtype)[:, 0]
    small = rng.integers(0, 100, 500).astype(dtype)
    return np.concatenate([bits, small])


@pytest.mark.parametrize(
    ("old", "new", "cpu"),
    [
        (old, new, cpu)
        for old, new in product(NUMBERS, NUMBERS)
        for cpu in ("native", "x86-64-v2")  # only narrow floats are converted in other ways
        if cpu == "native" or old in NARROW or new in NARROW
    ],
    ids=str,
)
def test_casts(old: Any, new: Any, cpu: str) -> None:
    x = sample(old)
    if new.kind in "iu" and old.kind not in "iub":  # beyond its range a cast is not defined
        limits = np.iinfo(new)
        wide = x.astype(np.float64)
        x = x[(wide > float(limits.min) - 1) & (wide < float(limits.max))]
    got, expected = run(one(x).cast(new), [x], 8, cpu), x.astype(new)
    assert got.dtype == new
    if new.kind not in "iub":
        got, expected = got.astype(np.float64), expected.astype(np.float64)
    np.testing.assert_array_equal(got, expected)


def test_casts_out_of_range_are_the_machines() -> None:
    x = np.array([np.nan, np.inf, -np.inf, 1e10, -1e30, 300.0, -1.0], np.float32)
    np.testing.assert_array_equal(
        run(one(x).cast(np.int32), [x], 1),
        np.array([-(2**31)] * 5 + [300, -1], np.int32),
    )
    np.testing.assert_array_equal(run(one(x).cast(np.uint8), [x], 8)[-2:], [300 % 256, 255])


def codes(dtype: Any, count: int) -> Any:
    """The first codes of a dtype, as its elements."""
    return np.arange(count).astype(f"u{dtype.itemsize}").view(dtype)


def assert_same_codes(got: Any, wanted: Any) -> None:
    """Equal bits; NaN of equal sign, whatever else it carries."""
    bits = f"u{wanted.dtype.itemsize}"
    number = ~np.isnan(wanted)
    np.testing.assert_array_equal(got.view(bits)[number], wanted.view(bits)[number])
    np.testing.assert_array_equal(np.isnan(got), ~number)
    np.testing.assert_array_equal(np.signbit(got), np.signbit(wanted))


@pytest.mark.parametrize("dtype", NARROW, ids=str)
@pytest.mark.parametrize("cpu", ["native", "x86-64-v2"])
def test_narrow_floats_round_trip(dtype: Any, cpu: str) -> None:
    x = codes(dtype, 1 << (8 * dtype.itemsize))
    assert_same_codes(run(one(x), [x], 16, cpu), x)
    assert_same_codes(run(one(x).cast(np.float32), [x], 16, cpu), x.astype(np.float32))


@pytest.mark.parametrize("dtype", NARROW, ids=str)
@pytest.mark.parametrize("cpu", ["native", "x86-64-v2"])
def test_narrow_floats_round_to_even(dtype: Any, cpu: str) -> None:
    rng = np.random.default_rng(0)
    edges = codes(dtype, 1 << (8 * dtype.itemsize - 1)).astype(np.float32)
    middles = (edges[:-1] + edges[1:]) / 2
    any_bits = rng.integers(0, 1 << 32, 99_999, np.uint32).view(np.float32)
    near = [middles, np.nextafter(middles, 0), np.nextafter(middles, np.inf)]
    x = np.concatenate([*near, -middles, rng.normal(size=999), any_bits]).astype(np.float32)
    assert_same_codes(run(one(x).cast(dtype), [x], cpu=cpu), x.astype(dtype))


def test_bitcasts() -> None:
    x = np.random.default_rng(0).normal(size=33).astype(np.float32)
    np.testing.assert_array_equal(run(one(x).bitcast(np.uint32), [x]), x.view(np.uint32))
    half = x.astype(np.float16)
    np.testing.assert_array_equal(run(one(half).bitcast(np.int16), [half]), half.view(np.int16))
    with pytest.raises(Unsupported):
        run(one(x).bitcast(np.uint64), [x])


@pytest.mark.parametrize("number", [1 << 63, (1 << 64) - 1, 7])
def test_large_constants(number: int) -> None:
    x = np.arange(20, dtype=np.uint64)
    np.testing.assert_array_equal(run(one(x).bit_xor(number), [x]), x ^ np.uint64(number))


@pytest.mark.parametrize("number", [-1, 0, 255, 256, 1 << 70, -(1 << 70)])
@pytest.mark.parametrize("comparison", ["lt", "le", "gt", "ge", "eq", "ne"])
def test_comparisons_with_numbers_out_of_range(comparison: str, number: int) -> None:
    x = np.arange(256).astype(np.uint8)
    expected = [getattr(operator, comparison)(int(element), number) for element in x]
    np.testing.assert_array_equal(run(call(comparison, one(x), number), [x]), expected)


@pytest.mark.parametrize("comparison", ["lt", "le", "gt", "ge", "eq", "ne"])
def test_comparisons_of_signed_with_unsigned(comparison: str) -> None:
    ends = [0, 1, (1 << 63) - 1]
    signed = np.repeat(np.array([*ends, -1, -(1 << 63)], np.int64), 5)
    unsigned = np.tile(np.array([*ends, 1 << 63, (1 << 64) - 1], np.uint64), 5)
    for x, y in ((signed, unsigned), (unsigned, signed)):
        got = run(call(comparison, *variable_loads(x, y)), [x, y])
        np.testing.assert_array_equal(got, FUNCTIONS[comparison].numpy(x, y))


def test_numbers_meet_elements() -> None:
    x = np.linspace(-2, 2, 37).astype(np.float32)
    a = one(x)
    np.testing.assert_array_equal(run(1 - a * 2, [x]), 1 - x * 2)
    np.testing.assert_array_equal(run(a.max(True), [x]), np.maximum(x, True))
    np.testing.assert_array_equal(run(a + np.float64(0.1), [x]), x + np.float64(0.1))
    np.testing.assert_array_equal(run(select(a > 0, 1, 0), [x]), np.where(x > 0, 1, 0))
    np.testing.assert_array_equal(run(select(True, a, 0.5), [x]), x)


def test_zero_divisors_fault_only_where_they_count() -> None:
    x, y = np.arange(40, dtype=np.int32), np.arange(40, dtype=np.int32) % 5
    a, b = variable_loads(x, y)
    _, faulted = run(a // b, [x, y], faults=True)
    assert faulted
    guarded = select(b.ne(0), a // b, -1)
    for lanes in (1, 8):
        got, faulted = run(guarded, [x, y], lanes, faults=True)
        np.testing.assert_array_equal(got, np.where(y != 0, x // np.maximum(y, 1), -1))
        assert not faulted


def masks_of(expr: Expr, lanes: int = 8) -> list[tuple[Expr, Value | None]]:
    """What an evaluator asks of its leaves."""
    b = Module().function("f", [register_type(np.float32, lanes)])
    asked: list[tuple[Expr, Value | None]] = []

    def leaf(found: Expr, mask: Value | None) -> Value:
        asked.append((found, mask))
        return b.parameters[0]

    Evaluator(b, lanes, leaf).value(expr)
    return asked


def test_branches_of_a_select_are_masked() -> None:
    a, b, c = load(np.float32), load(np.float32), load(np.float32)
    asked = dict(masks_of(select(a > 0, b, c)))
    assert asked[a] is None
    yes, no = asked[b], asked[c]
    assert yes is not None and no is not None and yes.text != no.text
    assert yes.type.lanes == no.type.lanes == 8


def test_what_is_known_without_a_mask_is_not_asked_again() -> None:
    a, b = load(np.float32), load(np.float32)
    asked = masks_of(select(a > 0, select(b > 0, a, b), a + 1))
    assert [leaf for leaf, _ in asked].count(a) == 1
    assert [leaf for leaf, _ in asked].count(b) == 1


def test_fixed_places_need_no_mask() -> None:
    place = Load(Argument(0, np.dtype(np.float32), 4), Affine(3))
    asked = dict(masks_of(select(load(np.float32) > 0, place, 0)))
    assert asked[place] is None


def test_scalars_stay_scalar() -> None:
    x, scale = np.linspace(-1, 1, 50).astype(np.float32), np.array([2.5] * 50, np.float32)
    fixed = Load(Argument(1, np.dtype(np.float32), 50), Affine(0))
    expr = one(x) * (fixed.exp() + 1)
    assert "fmul float" in module_text(expr, 2, 16)
    np.testing.assert_allclose(run(expr, [x, scale]), x * (np.exp(scale) + 1), rtol=1e-6)


def test_random_words_in_linear_code() -> None:
    x = np.arange(64, dtype=np.uint64)
    a = one(x)
    words = philox_words((a, 7), (a, a + 1, a + 2, a + 3))
    expr = select(a.bit_and(1).eq(0), words[0], words[2]) + words[1] * words[3]
    assert module_text(expr, 1, 8).count("\n") < 800
    expected = _reference(expr, {a: x})
    np.testing.assert_array_equal(run(expr, [x], 8), expected)


def _reference(root: Expr, known: dict[Expr, Any]) -> Any:
    for expr in postorder([root], known):
        parts = [known[part] for part in expr.parts]
        if isinstance(expr, Const):
            known[expr] = expr.value
        else:
            known[expr] = FUNCTIONS[expr.function if isinstance(expr, Call) else "select"].numpy(
                *parts
            )
    return known[root]


def test_deep_expressions() -> None:
    x = np.zeros(16, np.int32)
    expr = one(x)
    depth = 3 * sys.getrecursionlimit()
    for _ in range(depth):
        expr = expr + 1
    np.testing.assert_array_equal(run(expr, [x]), x + depth)


def test_values_as_a_dtype() -> None:
    module = Module()
    b = module.function("f", [FLOAT])
    evaluator = Evaluator(b, 4, lambda expr, mask: b.parameters[0])
    assert str(evaluator.value_as(as_expr(3), np.float32).type) == "<4 x float>"
    assert evaluator.value_as(load(np.float32), np.int64).type == I64.of(4)
    raw = to_memory(b, evaluator.value(load(np.float32)), np.float32)
    assert from_memory(b, raw, np.float32) == raw


def test_processors_convert_fp16_themselves_where_they_can() -> None:
    x = np.zeros(16, np.float16)
    texts = [
        assembly(module_text(call("sin", one(x)), 1, 16, fp16=named(cpu).native_fp16), cpu)
        for cpu in ("x86-64-v3", "x86-64-v2", "aarch64")
    ]
    assert ["vcvtph2ps" in texts[0], "fcvtl" in texts[2]] == [True, True]
    assert not any("__extendhfsf2" in text or "__truncsfhf2" in text for text in texts)
