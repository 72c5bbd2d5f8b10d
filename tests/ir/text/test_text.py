"""The text of kernels: its form, that all parts of a kernel have one, and what is refused."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
import pytest

from tests.ir.text.test_round_trip import assert_reads_back
from thalweg.ir.dynamic import dynamic
from thalweg.ir.expr import (
    Bitcast,
    Call,
    Const,
    Expr,
    Index,
    Load,
    Reduce,
    Scan,
    Word,
    call,
    constant,
    select,
)
from thalweg.ir.index import Affine
from thalweg.ir.kernel import Argument, Check, Loops, Store
from thalweg.ir.loop import Variable
from thalweg.ir.text.parse_expr import ParseError
from thalweg.ir.text.parser import parse_kernel
from thalweg.ir.text.printer import kernel_text

SOFTMAX = """\
loops(x0: f32[4096], out y1: f32[4096]):
  for i < 64:
    t0 = max[r < 64](x0[64*i + r])
    t1 = sum[r < 64](exp(x0[64*i + r] - t0))
    for j < 64:
      y1[64*i + j] = exp(x0[64*i + j] - t0) / t1
"""
VARIANCE = """\
loops(x0: f32[4096], out y1: f32[64]):
  for i < 64:
    t1 = sum[r < 64]:
      t0 = x0[64*i + r] - x0[64*i]
      yield t0 * t0
    y1[i] = sqrt(t1)
"""
SCATTER = """\
loops(x0: i32[w0~8], x1: f32[512], out y2: f32[6400]):
  for i < w0~8:
    check 1: x0[i] < 100_i32
    for j < 64:
      y2[64*i64(x0[i]) + j] += x1[64*i + j] if x0[i] >= 0_i32 distinct j
"""
SCAN = """\
loops(x0: f32[320], out y1: f32[320]):
  for i < 5, serial j < 64:
    y1[64*i - j + 63] = scan_sum[j, exclusive, reverse](x0[64*i + j])
"""
CONVOLUTION = """\
contraction f32(x0: f32[1024], x1: f32[144], x2: f32[16], out y3: f32[16384]):
  for rows i < 32, rows j < 32, columns k < 16, reduced r < 3, reduced s < 3:
    left = x0[32*i + 32*r + j + s - 33] where 0 <= i + r - 1 < 32, 0 <= j + s - 1 < 32
    right = x1[48*r + 16*s + k]
    y3[512*i + 16*j + k] = max(acc + x2[k], 0.0)
"""
NESTED = """\
loops(x0: f32[60], out y1: f32[3]):
  for i < 3:
    t2 = max[s < 4]:
      t1 = sum[r < 5]:
        t0 = exp(x0[20*i + 5*s + r])
        yield t0 * t0
      yield t1 + 1.0 / t1
    t3 = sum[s < 4, r < 5]:
      t0 = exp(x0[20*i + 5*s + r])
      yield t0
    y1[i] = t2 / t3
"""
OTHER_STORES = """\
loops(x0: f32[8], out y1: f32[8], out y2: f32[1]):
  y2[0] = 0.0
  for i < 8:
    y1[i] max= x0[i]
  y2[0] *= 2.0
"""


@pytest.mark.parametrize("text", [SOFTMAX, VARIANCE, SCATTER, SCAN, CONVOLUTION, OTHER_STORES])
def test_text_stays_as_it_is(text: str) -> None:
    kernel = parse_kernel(text)
    assert kernel_text(kernel) == text
    assert_reads_back(kernel)


def test_arguments_have_names_of_their_own() -> None:
    text = kernel_text(parse_kernel(SOFTMAX), ["logits", "shares"])
    assert text.startswith("loops(logits: f32[4096], out shares: f32[4096]):\n")
    assert kernel_text(parse_kernel(text)) == SOFTMAX


def stored(*values: Expr, variables: tuple[Variable, ...] = ()) -> Loops:
    """A kernel that stores values."""
    out = Argument(0, np.dtype(np.float64), len(values), True)
    stores = [Store(out, variables, Affine(n), value) for n, value in enumerate(values)]
    return Loops((out,), variables, tuple(stores))


DTYPES = [
    *(np.dtype(f"{kind}{size}") for kind in "iu" for size in (1, 2, 4, 8)),
    *(np.dtype(f"f{size}") for size in (2, 4, 8)),
    np.dtype(ml_dtypes.bfloat16),
]


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_numbers_keep_their_bits(dtype: Any) -> None:
    numbers = np.random.default_rng(0).integers(0, 256, (200, dtype.itemsize), np.uint8)
    values = [*numbers.view(dtype)[:, 0], *np.asarray([0, 1, 3]).astype(dtype)]
    if dtype.kind not in "iu":
        values += [*np.asarray([-0.0, np.inf, -np.inf, np.nan, -1.5, 1e-5]).astype(dtype)]
    assert_reads_back(stored(*map(Const, values)))


def test_short_numbers_have_no_dtype() -> None:
    values = [1.0, -0.5, 3, True], [2.0, np.float64(0.1), np.uint8(7), np.float16(1.5)]
    (plain, typed) = (stored(*map(constant, given)) for given in values)
    texts = [
        [line.split("= ")[1] for line in kernel_text(kernel).splitlines()[1:]]
        for kernel in (plain, typed)
    ]
    assert texts[0] == ["1.0_f64", "-0.5_f64", "3", "true"]
    assert texts[1] == ["2.0_f64", "0.1_f64", "7_u8", "1.5_f16"]


def test_a_negated_number_is_not_a_negative_one() -> None:
    one = Const(np.float32(1.0))
    assert_reads_back(stored(Call("neg", (one,)), Const(np.float32(-1.0)), -Call("neg", (one,))))


def test_terms_of_an_offset_may_be_anything() -> None:
    i = Variable.fresh(9)
    source, out = Argument(0, np.dtype(np.int64), 99), Argument(1, np.dtype(np.int64), 99, True)
    inner = Load(source, Affine(0, {i: 1}))
    terms = {
        i: 2,
        Index(i): -1,
        constant(3): 1,
        inner: dynamic(-4, 5),
        Index(i) + 1: -7,
        Word(dynamic(2, 8)): 1,
    }
    for constant_part in (0, 5, -5, dynamic(0, 6), dynamic(-2, 7)):
        value = Load(source, Affine(constant_part, terms))
        store = Store(out, (i,), Affine(0, {i: 1}), value)
        assert_reads_back(Loops((source, out), (i,), (store,)))


def test_operators_bind_as_they_are_written() -> None:
    """Random trees of all operators over two loads."""
    random = np.random.default_rng(1)
    i = Variable.fresh(4)
    arguments = [Argument(n, np.dtype(np.int64), 4, n == 2) for n in range(3)]
    loads = [Load(a, Affine(0, {i: 1})) for a in arguments[:2]]
    whole = ["add", "sub", "mul", "floor_div", "remainder", "bit_and", "bit_or", "bit_xor"]
    whole += ["shift_left", "shift_right", "max", "min"]
    compared = ["lt", "le", "gt", "ge", "eq", "ne"]

    def condition(depth: int) -> Expr:
        if depth == 0 or random.random() < 0.4:
            return call(str(random.choice(compared)), number(depth), number(depth))
        if random.random() < 0.2:
            return ~condition(depth - 1)
        function = str(random.choice(["and", "or", "xor", "eq", "lt"]))
        return call(function, condition(depth - 1), condition(depth - 1))

    def number(depth: int) -> Expr:
        if depth <= 0 or random.random() < 0.1:
            return loads[int(random.integers(2))] if random.random() < 0.8 else constant(3)
        choice = random.random()
        if choice < 0.1:
            return -number(depth - 1)
        if choice < 0.2:
            return select(condition(depth - 1), number(depth - 1), number(depth - 1))
        if choice < 0.3:
            return Bitcast(call("cast", number(depth - 1), np.float64), np.int64)
        return call(str(random.choice(whole)), number(depth - 1), number(depth - 1))

    for _ in range(200):
        store = Store(arguments[2], (i,), Affine(0, {i: 1}), number(4), inside=condition(2))
        check = Check((i,), condition(3), 2)
        assert_reads_back(Loops(tuple(arguments), (i,), (store,), (check,)))


def test_reductions_inside_of_reductions() -> None:
    i, j, k = (Variable.fresh(extent) for extent in (3, 4, 5))
    source, out = Argument(0, np.dtype(np.float32), 60), Argument(1, np.dtype(np.float32), 3, True)
    element = Load(source, Affine(0, {i: 20, j: 5, k: 1}))
    shared = call("exp", element)
    inner = Reduce("sum", (k,), shared * shared)
    outer = Reduce("max", (j,), inner + 1.0 / inner)
    again = Reduce("sum", (j, k), shared)
    store = Store(out, (i,), Affine(0, {i: 1}), outer / again)
    kernel = Loops((source, out), (i,), (store,))
    assert_reads_back(kernel)
    assert kernel_text(kernel) == NESTED


def test_scans_inside_of_serial_loops() -> None:
    i = Variable.fresh(9)
    source, out = Argument(0, np.dtype(np.float32), 9), Argument(1, np.dtype(np.float32), 9, True)
    scan = Scan("sum", i, Load(source, Affine(0, {i: 1})), False, True)
    store = Store(out, (i,), Affine(0, {i: 1}), scan * scan)
    assert_reads_back(Loops((source, out), (i,), (store,), serial=frozenset([i])))


def test_loops_without_stores_are_loops() -> None:
    i, j = Variable.fresh(3), Variable.fresh(4)
    assert_reads_back(Loops((), (i, j), ()))
    assert_reads_back(Loops((), (), ()))


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("", "a kernel has lines"),
        ("loop():", "expected 'contraction'"),
        ("loops(x0: f33[1]):", "there is no dtype 'f33'"),
        ("loops(out y0: f32[1]):\n  y0[0] = x1[0]", "no buffer or reduction 'x1'"),
        ("loops(out y0: f32[1]):\n  y1[0] = 1.0", "there is no argument 'y1'"),
        ("loops(out y0: f32[1]):\n  y0[0] = gamma(1.0)", "no function 'gamma' of 1 numbers"),
        ("loops(out y0: f32[1]):\n  y0[0] = 1.0 1.0", "is no expression"),
        ("loops(out y0: f32[1]):\n  y0[0] = 1.0 +", "'1.0 +' is no expression"),
        ("loops(out y0: f32[1]):\n  y0[0] ? 1.0", "expected a store or a name"),
        ("loops(out y0: f32[9]):\n  for i < 3, i < 4:\n    y0[i] = 1.0", "extents 3 and 4"),
        ("loops(out y0: f32[9]):\n  t0 = sum[r < 4]:\n    t1 = 1.0 + 1.0", "with a yield"),
        ("contraction f32(out y0: f32[9]):\n  for rows i < 3:\n    y0[i] = acc", "left and right"),
    ],
)
def test_what_is_no_kernel_is_refused_with_its_line(text: str, reason: str) -> None:
    with pytest.raises(ParseError) as error:
        parse_kernel(text)
    assert reason in str(error.value)
    assert "line " in str(error.value)
