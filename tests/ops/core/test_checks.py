"""Checks that pass, that fail at graph construction, and that fail the step."""

from typing import Any

import numpy as np
import pytest

import thalweg as tf
from tests.ops.harness import check

HOLDS: dict[str, Any] = {
    "equal": lambda: tf.assert_equal([1, 2], [1, 2]),
    "equal broadcast": lambda: tf.assert_equal([[1, 1]], 1),
    "equal strings": lambda: tf.assert_equal(["a"], tf.constant(["a"])),
    "none equal": lambda: tf.assert_none_equal([1, 2], [2, 1]),
    "less": lambda: tf.assert_less(1.0, [2.0, 3.0]),
    "less_equal": lambda: tf.assert_less_equal(2, [2, 3]),
    "greater": lambda: tf.assert_greater([2, 3], 1),
    "greater_equal": lambda: tf.assert_greater_equal([2, 3], 2),
    "negative": lambda: tf.assert_negative([-1.0]),
    "positive": lambda: tf.assert_positive([1]),
    "non_negative": lambda: tf.assert_non_negative([0, 1]),
    "non_positive": lambda: tf.assert_non_positive([0, -1]),
    "empty": lambda: tf.assert_negative(tf.zeros([0])),
    "near": lambda: tf.assert_near([1.0], [1.0 + 1e-7]),
    "near wide": lambda: tf.assert_near([1.0], [1.05], atol=0.1),
    "Assert": lambda: tf.Assert(tf.constant(True), ["never shown"]),
    "rank": lambda: tf.assert_rank([1, 2], 1),
    "rank later": lambda: tf.assert_rank(tf.placeholder_with_default([1], None), 1),
    "rank at least": lambda: tf.assert_rank_at_least([[1]], 1),
    "rank in": lambda: tf.assert_rank_in(tf.placeholder_with_default([1], None), [0, 1]),
    "integer": lambda: tf.assert_integer([1]),
    "type": lambda: tf.assert_type([1.0], tf.float32),
    "shapes": lambda: tf.debugging.assert_shapes(
        [
            (tf.ones([2, 3]), ("N", 3)),
            (tf.ones([2, 4]), ("N", None)),
            (tf.ones([9, 2]), ("...", "N")),
        ]
    ),
}


@pytest.mark.parametrize("name", HOLDS)
def test_holds(name: str) -> None:
    with tf.Graph().as_default(), tf.Session() as session:
        session.run(HOLDS[name]())


FAILS: dict[str, Any] = {
    "equal": (lambda: tf.assert_equal([1, 2], [1, 3], message="oh no"), r"oh no.*x == y.*\[1 2\]"),
    "less": (lambda: tf.assert_less(tf.constant(2, name="two"), 2), r"x < y.*two:0.*\[2\]"),
    "positive": (lambda: tf.assert_positive(tf.constant([0], name="zero")), r"x > 0.*zero:0"),
    "own data": (lambda: tf.assert_positive([0], data=["mine", [7, 8]]), r"\[mine\] \[7 8\]"),
    "near": (lambda: tf.assert_near(1.0, 2.0), "not equal to tolerance"),
    "Assert": (lambda: tf.Assert(tf.constant(False), ["shown", [1, 2, 3, 4]]), r"\[1 2 3\.\.\.\]"),
    "summarize": (lambda: tf.Assert(tf.constant(False), [[1, 2, 3]], summarize=1), r"\[1\.\.\.\]"),
    "rank": (
        lambda: tf.assert_rank(tf.placeholder_with_default([1], None, name="p"), 2),
        r"Tensor p:0 must have rank.*\[2\]",
    ),
    "rank in": (
        lambda: tf.assert_rank_in(tf.placeholder_with_default([1], None), [0, 2]),
        "must have rank in",
    ),
    "shapes": (
        lambda: tf.debugging.assert_shapes([(tf.ones([2, 3]), ("N", "N"))]),
        "dimension 1 must have size N",
    ),
}


@pytest.mark.parametrize("name", FAILS)
def test_fails_the_step(name: str) -> None:
    build, message = FAILS[name]
    with tf.Graph().as_default(), tf.Session() as session:
        node = build()
        with pytest.raises(tf.errors.InvalidArgumentError, match=message):
            session.run(node)


IMPOSSIBLE: dict[str, Any] = {
    "rank": (lambda: tf.assert_rank([1], 2), ValueError, "must have rank 2.*rank 1"),
    "rank at least": (lambda: tf.assert_rank_at_least(1, 1), ValueError, "rank at least 1"),
    "rank vector": (lambda: tf.assert_rank([1], [1]), ValueError, "Rank must be a scalar"),
    "rank float": (lambda: tf.assert_rank([1], 1.0), TypeError, "must be of type"),
    "rank in": (lambda: tf.assert_rank_in(1, [1, 2]), ValueError, r"rank in \(1, 2\)"),
    "scalar": (lambda: tf.assert_scalar([1]), ValueError, "Expected scalar"),
    "integer": (lambda: tf.assert_integer([1.0]), TypeError, "Expected.*integer"),
    "type": (lambda: tf.assert_type([1], tf.float32), TypeError, "must be of type"),
    "iterable": (lambda: tf.assert_proper_iterable("abc"), TypeError, "proper"),
    "no iterable": (lambda: tf.assert_proper_iterable(3), TypeError, "to be iterable"),
    "float dtypes": (
        lambda: tf.assert_same_float_dtype([tf.constant(1.0), tf.constant(1)]),
        ValueError,
        "must all be of type float32",
    ),
    "strings": (lambda: tf.is_non_decreasing(["a"]), TypeError, "numeric"),
}


@pytest.mark.parametrize("name", IMPOSSIBLE)
def test_fails_at_construction(name: str) -> None:
    build, kind, message = IMPOSSIBLE[name]
    with tf.Graph().as_default(), pytest.raises(kind, match=message):
        build()


def test_rank_may_be_a_fed_tensor() -> None:
    with tf.Graph().as_default(), tf.Session() as session:
        rank = tf.placeholder(tf.int32)
        node = tf.assert_rank([1], rank)
        session.run(node, {rank: 1})
        with pytest.raises(tf.errors.InvalidArgumentError, match="Rank must be a scalar"):
            session.run(node, {rank: [1]})


@pytest.mark.parametrize(
    ("values", "non_decreasing", "increasing"),
    [
        ([1, 2, 3], True, True),
        ([1, 1, 3], True, False),
        ([[1, 3], [2, 4]], False, False),
        ([1], True, True),
        ([], True, True),
        ([0, 250], True, True),
    ],
)
def test_order(values: Any, non_decreasing: bool, increasing: bool) -> None:
    array = np.array(values, np.uint8)  # differences would wrap around
    check(tf.is_non_decreasing, array, expect=np.array(non_decreasing), gradient=False)
    check(tf.is_strictly_increasing, array, expect=np.array(increasing), gradient=False)


def test_static_checks() -> None:
    with tf.Graph().as_default():
        assert tf.is_numeric_tensor(tf.constant(1))
        assert not tf.is_numeric_tensor(tf.constant("a"))
        assert not tf.is_numeric_tensor(np.ones(2))
        assert tf.assert_same_float_dtype([tf.constant(1.0)], tf.float32) == tf.float32
        assert tf.assert_same_float_dtype() == tf.float32
        tf.assert_proper_iterable([1, 2])


def test_check_numerics() -> None:
    check(lambda x: tf.check_numerics(x, "m"), np.array([1.0, -2.0]), expect=lambda x: x)
    check(lambda x: tf.verify_tensor_all_finite(x, "m"), np.array([1.0]), expect=lambda x: x)


@pytest.mark.parametrize(
    ("values", "what"),
    [([1.0, np.inf], "Inf values"), ([np.nan], "NaN"), ([np.inf, np.nan], "Inf and NaN")],
)
def test_check_numerics_fails(values: list[float], what: str) -> None:
    with tf.Graph().as_default(), tf.Session() as session:
        for node in (
            tf.check_numerics(tf.constant(values), "mine"),
            tf.verify_tensor_all_finite(tf.constant(values), "mine"),
        ):
            with pytest.raises(tf.errors.InvalidArgumentError, match=f"mine.*{what}"):
                session.run(node)


def test_add_check_numerics_ops_names_the_first_bad_tensor() -> None:
    with tf.Graph().as_default(), tf.Session() as session:
        zero = tf.constant(0.0)
        tf.add(tf.divide(zero, zero, name="bad"), 1.0)
        node = tf.add_check_numerics_ops()
        with pytest.raises(tf.errors.InvalidArgumentError, match="bad:0"):
            session.run(node)
