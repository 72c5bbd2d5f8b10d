"""Index arithmetic in normal form against plain evaluation, over all values of the variables."""

from __future__ import annotations

import itertools
import operator
import pickle
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.random_graphs import examples
from thalweg.ir.dynamic import dynamic, times
from thalweg.ir.expr import Call, Const, Expr, Index, Load, as_expr, call
from thalweg.ir.index import Affine, affine, compared, expressed, floor_mod, index_of, number
from thalweg.ir.kernel import Argument
from thalweg.ir.loop import IndexTuple, Variable, ravel, unravel
from thalweg.lower.nests.inline_producers import flat

FUNCTIONS: dict[str, Callable[..., Any]] = {
    "add": operator.add,
    "sub": operator.sub,
    "mul": operator.mul,
    "neg": operator.neg,
    "floor_div": operator.floordiv,
    "remainder": operator.mod,
    "min": np.minimum,
    "max": np.maximum,
}
COMPARISONS: dict[str, Callable[..., Any]] = {
    "lt": operator.lt,
    "le": operator.le,
    "gt": operator.gt,
    "ge": operator.ge,
    "eq": operator.eq,
    "ne": operator.ne,
}


def index(loop: Variable) -> Expr:
    return Index(loop)


def grid(variables: Sequence[Variable]) -> dict[Variable, Any]:
    """All values of the variables together."""
    ranges = [range(v.extent) for v in variables]
    places = np.array(list(itertools.product(*ranges)), np.int64).reshape(-1, len(variables))
    return {v: places[:, i] for i, v in enumerate(variables)}


def plain(part: Any, values: dict[Variable, Any]) -> Any:
    """An index expression by definition."""
    if not isinstance(part, Expr):
        return part
    if isinstance(part, Const):
        return int(part.value)
    if isinstance(part, Index):
        return values[part.variable]
    assert isinstance(part, Call)
    return FUNCTIONS[part.function](*(plain(piece, values) for piece in part.arguments))


@st.composite
def expressions(draw: Any) -> tuple[list[Variable], Any]:
    """Some variables and an index expression over them."""
    variables = [Variable.fresh(draw(st.integers(1, 7))) for _ in range(draw(st.integers(1, 3)))]
    parts: list[Any] = [index(v) for v in variables]
    for _ in range(draw(st.integers(1, 8))):
        one, other = draw(st.sampled_from(parts)), draw(st.sampled_from(parts))
        match draw(st.sampled_from(["sum", "scale", "divide", "extreme", "reshape"])):
            case "sum":
                parts.append(call(draw(st.sampled_from(["add", "sub"])), one, other))
            case "scale":
                parts.append(call("add", call("mul", one, draw(factors)), draw(factors)))
            case "divide":
                function = draw(st.sampled_from(["floor_div", "remainder"]))
                parts.append(call(function, one, draw(st.integers(1, 12))))
            case "extreme":
                function = draw(st.sampled_from(["min", "max"]))
                parts.append(call(function, one, draw(st.one_of(factors, st.just(other)))))
            case _:
                shape = draw(shapes)
                parts += [p for p in unravel(one, shape) if isinstance(p, Expr)]
    return variables, parts[-1]


factors = st.integers(-6, 12)
shapes = st.lists(st.integers(1, 5), min_size=1, max_size=3)


@examples(400)
@given(expressions())
def test_a_normal_form_has_the_values_of_the_expression(case: tuple[list[Variable], Any]) -> None:
    variables, expression = case
    values = grid(variables)
    form = affine(as_expr(expression))
    expected = np.broadcast_to(plain(expression, values), values[variables[0]].shape)
    np.testing.assert_array_equal(
        np.broadcast_to(plain(expressed(form), values), expected.shape), expected
    )
    low, high = form.bounds
    assert low <= expected.min() and expected.max() <= high


@examples(300)
@given(expressions(), st.integers(-3, 20), st.sampled_from(sorted(COMPARISONS)))
def test_a_comparison_that_is_settled_is_settled_rightly(
    case: tuple[list[Variable], Any], limit: int, function: str
) -> None:
    variables, expression = case
    known = compared(function, affine(as_expr(expression)), number(limit))
    if known is not None:
        actual = COMPARISONS[function](plain(expression, grid(variables)), limit)
        assert np.all(actual == known)


@examples(300)
@given(st.lists(shapes, min_size=1, max_size=4), st.data())
def test_a_chain_of_reshapes_back_to_the_start_is_no_arithmetic(
    chain: list[list[int]], data: Any
) -> None:
    size = data.draw(st.sampled_from([1, 12, 24, 30, 36, 60]))
    start = data.draw(st.sampled_from(factorings(size)))
    at = IndexTuple.over(start)
    indices: Sequence[Any] = tuple(at)
    shape: Sequence[int] = start
    for _ in chain:
        through = data.draw(st.sampled_from(factorings(size)))
        indices, shape = unravel(ravel(indices, shape), through), through
    back = [affine(as_expr(i)) for i in unravel(ravel(indices, shape), start)]
    assert back == [index_of(v) for v in at.variables]
    assert flat(back, start) == flat([affine(i) for i in at], start)


def factorings(size: int) -> list[tuple[int, ...]]:
    """Shapes of one size."""
    pairs = [(n, size // n) for n in range(1, size + 1) if size % n == 0]
    triples = [(a, b, c) for a, rest in pairs for b, c in factor_pairs(rest)]
    return [(size,), *pairs, *triples]


def factor_pairs(size: int) -> list[tuple[int, int]]:
    return [(n, size // n) for n in range(1, size + 1) if size % n == 0]


i, j = Variable.fresh(6), Variable.fresh(4)
one = Variable.fresh(1)

SIMPLER: dict[str, tuple[Any, Any]] = {
    "a variable of one value is 0": (index(one) + index(i), index(i)),
    "digits join": ((index(i) // 3) * 3 + index(i) % 3, index(i)),
    "a row and a column": ((index(i) * 4 + index(j)) // 4, index(i)),
    "the column": ((index(i) * 4 + index(j)) % 4, index(j)),
    "multiples come out": ((index(i) * 8 + index(j)) // 4, index(i) * 2),
    "what cancels is gone": (index(i) - index(i), 0),
    "a quotient of a quotient": ((index(i) * 5 // 2) // 3, index(i) * 5 // 6),
    "a range within the modulus": (index(i) % 6, index(i)),
    "an offset beyond the modulus": ((index(i) + 6) % 6, index(i)),
    "minimum beyond reach": (index(i).min(5), index(i)),
    "maximum that always wins": (index(i).max(7), 7),
    "a cast of an index": (index(i).cast(np.int32), index(i)),
    "a product by nothing": (index(i) * 0, 0),
}


@pytest.mark.parametrize("case", SIMPLER)
def test_it_becomes_simpler(case: str) -> None:
    long, short = SIMPLER[case]
    assert affine(as_expr(long)) == affine(as_expr(short))


def test_what_is_not_settled_stays_open() -> None:
    assert compared("lt", index_of(i), number(3)) is None
    assert compared("lt", index_of(i), number(6)) is True
    assert compared("ge", index_of(i), number(6)) is False
    assert compared("eq", index_of(i), index_of(i)) is True


def test_an_index_from_memory_may_be_anything_until_it_is_clamped() -> None:
    loaded = Load(Argument(0, np.dtype(np.int64), 1), number(0))
    assert affine(loaded).bounds == (-np.inf, np.inf)
    assert affine(loaded.max(0).min(9)).bounds == (0, 9)
    assert not (loaded + index(i)).is_index


def test_sums_are_values() -> None:
    once, again = affine(index(i) * 4 + index(j)), affine(index(j) + index(i) * 4)
    assert once == again and hash(once) == hash(again) and once is not again
    assert once != affine(index(i) * 4)
    assert floor_mod(once, 4, 0) == index_of(i)


def test_integers_of_run_time_are_never_added_up() -> None:
    size, stride = dynamic(5, 1), dynamic(4, 2)
    assert index_of(i).scaled(stride) == Affine(0, {i: stride})
    summed = index_of(i).scaled(stride) + index_of(i).scaled(3) + Affine(size) + number(7)
    assert summed == Affine(size, {i: stride, index(i) * 3: 1, as_expr(7): 1})
    assert summed.bounds == (-np.inf, np.inf)
    assert affine(index(i) * 2 + 1).scaled(stride) == Affine(0, {index(i) * 2 + 1: stride})
    assert index_of(Variable(size, "n")).bounds == (0, np.inf)


def test_digits_join_only_where_strides_of_run_time_are_known_to_match() -> None:
    tens, ones = affine(index(i) // 2), affine(index(i) % 2)
    stride = dynamic(4, 1)
    assert tens.scaled(times(stride, 2)) + ones.scaled(stride) == index_of(i).scaled(stride)
    other = dynamic(8, 2)  # twice the stride in this call only
    (low,), (high,) = ones.terms, tens.terms
    assert tens.scaled(other) + ones.scaled(stride) == Affine(0, {high: other, low: stride})


def test_arithmetic_that_wraps_is_opaque() -> None:
    byte = Load(Argument(0, np.dtype(np.uint8), 1), number(0))
    assert affine(byte + as_expr(np.uint8(255))).constant == 0
    assert affine(index(j).cast(np.int8)) != index_of(j)


def test_divisions_become_expressions_of_kernels() -> None:
    place = affine(index(i) // 2 * 8 + index(j))
    assert place.with_opaque_divisions() == Affine(0, {index(i) // 2: 8, j: 1})
    assert place.with_opaque_divisions().computed == place.computed


def test_a_sum_is_written_as_what_makes_it() -> None:
    i = Variable("i", 8)
    terms = affine(index(i) * 2 + 1)
    assert hash(terms)  # what follows from the sum is no part of it
    assert terms.__reduce__() == (Affine, (terms.constant, terms.terms))
    assert pickle.loads(pickle.dumps(Affine(3))) == Affine(3)
