"""Dimensions and shapes, known and unknown."""

import operator
import pickle
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from thalweg.graph import dtypes, shapes
from thalweg.graph.shapes import (
    Dimension,
    TensorShape,
    as_dimension,
    as_shape,
    broadcast_shapes,
    unknown_shape,
)

UNKNOWN = Dimension(None)
SYMBOLS = ["+", "-", "*", "//", "%", "<", "<=", ">", ">=", "==", "!="]

sizes = st.none() | st.lists(st.none() | st.integers(0, 3), max_size=3).map(tuple)
full_sizes = st.lists(st.integers(0, 3), max_size=3).map(tuple)


def evaluate(symbol: str, left: Any, right: Any) -> Any:
    return eval(f"left {symbol} right", {"left": left, "right": right})


@pytest.mark.parametrize("symbol", SYMBOLS)
def test_known_dimensions_count_as_integers(symbol: str) -> None:
    expected = evaluate(symbol, 13, 5)
    for left, right in [(Dimension(13), Dimension(5)), (Dimension(13), 5), (13, Dimension(5))]:
        result = evaluate(symbol, left, right)
        assert getattr(result, "value", result) == expected


@pytest.mark.parametrize("symbol", SYMBOLS)
def test_unknown_dimensions_spread(symbol: str) -> None:
    for left, right in [(UNKNOWN, UNKNOWN), (UNKNOWN, 5), (Dimension(5), None), (5, UNKNOWN)]:
        result = evaluate(symbol, left, right)
        assert getattr(result, "value", result) is None


@pytest.mark.parametrize(
    ("dimension", "other", "equal"),
    [(12, 12, True), (12, "12", True), (12, 12.0, True), (12, 13, False), (12, "_", False),
     (12, 12.99, False), (12, (12,), False), (None, 12.99, False), (None, "13", None)],
)  # fmt: skip
def test_dimension_equality(dimension: Any, other: Any, equal: bool | None) -> None:
    assert (Dimension(dimension) == other) is equal
    assert (Dimension(dimension) != other) is (None if equal is None else not equal)


@pytest.mark.parametrize(
    ("value", "error"),
    [(-1, ValueError), (2.5, ValueError), ("x", ValueError), (dtypes.int32, TypeError)],
)
def test_invalid_dimensions(value: Any, error: type[Exception]) -> None:
    with pytest.raises(error):
        as_dimension(value)


def test_dimension_conversions() -> None:
    seven = Dimension(7)
    assert as_dimension(seven) is seven
    assert Dimension(seven).value == Dimension(np.int64(7)).value == int(seven) == 7
    assert list(range(9))[seven] == 7
    assert (repr(seven), str(seven)) == ("Dimension(7)", "7")
    assert (repr(UNKNOWN), str(UNKNOWN)) == ("Dimension(None)", "?")
    assert hash(seven) == hash(Dimension(7))
    with pytest.raises(TypeError, match="unknown Dimension"):
        int(UNKNOWN)
    with pytest.raises(TypeError, match="unsupported operand type"):
        UNKNOWN / UNKNOWN  # pyright: ignore[reportOperatorIssue] - the error is the point
    with pytest.raises(ValueError, match="must be >= 0"):
        Dimension(3) - 5


def test_dimension_merge() -> None:
    assert Dimension(12).merge_with(UNKNOWN).value == UNKNOWN.merge_with(12).value == 12
    assert UNKNOWN.merge_with(None).value is None
    with pytest.raises(ValueError, match="Dimensions 12 and 13 are not compatible"):
        Dimension(12).merge_with(13)


@pytest.mark.parametrize(
    ("dims", "expected"),
    [(None, None), ([], ()), (3, (3,)), (Dimension(3), (3,)), ((2, None), (2, None)),
     (np.array([4, 5]), (4, 5)), (["3", 4.0, UNKNOWN], (3, 4, None)),
     (TensorShape([1]), (1,)), ((n for n in (1, 2)), (1, 2))],
)  # fmt: skip
def test_construction(dims: Any, expected: Any) -> None:
    assert TensorShape(dims).sizes == expected


@pytest.mark.parametrize(
    ("dims", "error"),
    [("347", TypeError), ([2, -1], ValueError), ([1.5], ValueError), ([[2]], TypeError)],
)
def test_invalid_shapes(dims: Any, error: type[Exception]) -> None:
    with pytest.raises(error):
        TensorShape(dims)


def test_known_shape() -> None:
    shape = TensorShape([3, 4, 7])
    assert (shape.rank, shape.ndims, len(shape), bool(shape)) == (3, 3, 3, True)
    assert shape.dims == [Dimension(3), Dimension(4), Dimension(7)] == list(shape)
    assert shape[-1] == 7 and isinstance(shape[0], Dimension)
    assert shape[1:].sizes == (4, 7) and shape[::-2].sizes == (7, 3)
    assert shape.as_list() == [3, 4, 7] and shape.num_elements() == 84
    shape.assert_is_fully_defined()
    assert shape.whole == shape.sizes
    with pytest.raises(IndexError):
        shape[3]


def test_partly_known_shape() -> None:
    shape = TensorShape([3, None])
    assert shape.as_list() == [3, None] and shape.num_elements() is None
    assert shape[1].value is None and not shape.is_fully_defined()
    assert shape.whole is None
    with pytest.raises(ValueError, match=r"\(3, \?\) is not fully defined"):
        shape.assert_is_fully_defined()


def test_unknown_rank() -> None:
    shape = unknown_shape()
    assert shape is unknown_shape() is TensorShape.of(None) is pickle.loads(pickle.dumps(shape))
    assert shape.rank is shape.dims is shape.sizes is shape.num_elements() is None
    assert not shape and not shape.is_fully_defined()
    assert shape.whole is None
    assert shape[2].value is None
    assert shape[1:4].sizes == (None, None, None)
    assert shape[1:].sizes is shape[:-1].sizes is shape[-2:3].sizes is None
    for fails in (len, iter, TensorShape.as_list, lambda unknown: unknown[::2]):
        with pytest.raises(ValueError, match="unknown"):
            fails(shape)


@pytest.mark.parametrize(
    ("dims", "text"),
    [(None, "<unknown>"), ([], "()"), ([None], "(?,)"), ([3, 8], "(3, 8)"),
     ([32, None, 1], "(32, ?, 1)")],
)  # fmt: skip
def test_text(dims: Any, text: str) -> None:
    shape = TensorShape(dims)
    assert str(shape) == text
    assert eval(repr(shape), {"TensorShape": TensorShape, "Dimension": Dimension}).sizes == (
        shape.sizes
    )


def test_equality() -> None:
    shape, partial, unknown = TensorShape([3, 4]), TensorShape([3, None]), unknown_shape()
    assert shape == TensorShape((3, 4)) == [3, 4] and shape == ["3", "4"]
    assert hash(shape) == hash(as_shape([3, 4]))
    assert not operator.ne(shape, [3, 4])
    assert shape != partial and shape != [3] and shape != "34" and shape != ["x"]
    assert partial == partial
    assert partial != TensorShape([3, None]), "unknown sizes are not known to be equal"
    assert unknown == TensorShape(None) and not operator.eq(unknown, shape)
    for left, right in [(unknown, shape), (shape, unknown), (unknown, unknown)]:
        with pytest.raises(ValueError, match="inequality of unknown"):
            operator.ne(left, right)


@pytest.mark.parametrize(
    ("left", "right", "merged", "common"),
    [
        ((3, None), (None, 4), (3, 4), (None, None)),
        (None, (3, None), (3, None), None),
        ((3, 4), None, (3, 4), None),
        ((3, 4), (3, 4), (3, 4), (3, 4)),
        (None, None, None, None),
    ],
)
def test_merge_and_generalize(left: Any, right: Any, merged: Any, common: Any) -> None:
    assert TensorShape(left).merge_with(right).sizes == merged
    assert TensorShape(left).most_specific_compatible_shape(right).sizes == common


@pytest.mark.parametrize("other", [[6, 4], [3], [3, 4, 1], []])
def test_incompatible_shapes(other: list[int]) -> None:
    shape = TensorShape([3, 4])
    assert not shape.is_compatible_with(other)
    with pytest.raises(ValueError, match="are not compatible"):
        shape.merge_with(other)
    with pytest.raises(ValueError, match="are incompatible"):
        shape.assert_is_compatible_with(other)


def test_concatenate() -> None:
    assert TensorShape([1, None]).concatenate(Dimension(3)).sizes == (1, None, 3)
    assert (
        TensorShape([1]).concatenate(None).sizes is unknown_shape().concatenate([1]).sizes is None
    )


def test_ranks() -> None:
    shape, unknown = TensorShape([3, 4]), unknown_shape()
    assert shape.with_rank(2) is shape.with_rank_at_least(2) is shape.with_rank_at_most(2) is shape
    assert unknown.with_rank(2).sizes == (None, None)
    assert unknown.with_rank_at_least(2) is unknown.with_rank_at_most(0) is unknown
    shape.assert_same_rank([None, None])
    shape.assert_same_rank(None)
    unknown.assert_has_rank(5)
    for method, argument, text in [
        ("with_rank", 3, "must have rank 3"),
        ("assert_has_rank", 1, "must have rank 1"),
        ("with_rank_at_least", 3, "at least 3"),
        ("with_rank_at_most", 1, "at most 1"),
        ("assert_same_rank", [1], "must have the same rank"),
    ]:
        with pytest.raises(ValueError, match=text):
            getattr(shape, method)(argument)


def test_makers() -> None:
    assert shapes.scalar().sizes == ()
    assert shapes.vector(7).sizes == (7,)
    assert shapes.matrix(Dimension(3), None).sizes == (3, None)
    assert unknown_shape(2).sizes == (None, None)


@pytest.mark.parametrize(
    ("operands", "expected"),
    [
        ([], ()),
        ([(2, 3)], (2, 3)),
        ([(3, 1), (4,), ()], (3, 4)),
        ([(None, 3), (5, 1)], (5, 3)),
        ([(None,), (1,)], (None,)),
        ([(None,), (None,)], (None,)),
        ([(None,), (0,)], (0,)),
        ([(2, 3), None], None),
    ],
)
def test_broadcast(operands: list[Any], expected: Any) -> None:
    assert broadcast_shapes(*map(TensorShape, operands)).sizes == expected


@given(full_sizes, full_sizes)
def test_broadcast_agrees_with_numpy(left: tuple[int, ...], right: tuple[int, ...]) -> None:
    operands = TensorShape.of(left), TensorShape.of(right)
    try:
        expected = np.broadcast_shapes(left, right)
    except ValueError:
        with pytest.raises(ValueError, match=r"Dimensions must be equal .* and "):
            broadcast_shapes(*operands)
    else:
        assert broadcast_shapes(*operands).sizes == expected


@given(sizes, sizes)
def test_shape_relations_are_symmetric(left: Any, right: Any) -> None:
    x, y = TensorShape(left), TensorShape(right)
    assert x.is_compatible_with(y) == y.is_compatible_with(x)
    assert x.most_specific_compatible_shape(y).sizes == y.most_specific_compatible_shape(x).sizes
    if x.is_compatible_with(y):
        merged = x.merge_with(y)
        assert merged.sizes == y.merge_with(x).sizes
        assert merged.is_compatible_with(x) and merged.is_compatible_with(y)
