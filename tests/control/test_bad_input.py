"""Invalid arguments of conditionals and loops: errors name the fault and the user's line."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import pytest

import thalweg as tf


def truth() -> Any:
    return tf.constant(1.0) > 0.0


def one() -> Any:
    return tf.constant(1)


def less(i: Any) -> Any:
    return i < 1


def same(i: Any) -> Any:
    return i


CASES: list[tuple[Callable[[], Any], type[Exception], str]] = [
    (lambda: tf.cond("yes", one, one), TypeError, "pred must be a scalar bool, not 'yes'"),
    (lambda: tf.cond(None, one, one), TypeError, "pred must be a scalar bool: None"),
    (lambda: tf.cond(tf.constant(1.0), one, one), TypeError, "pred must be a scalar bool"),
    (lambda: tf.cond(truth(), lambda: None, one), ValueError, "true_fn of tf.cond must have a"),
    (lambda: tf.cond(truth(), one, lambda: [None]), ValueError, "false_fn of tf.cond returns must"),
    (lambda: tf.cond(truth(), 1, one), TypeError, "true_fn must be callable"),
    (lambda: tf.cond(truth(), one), TypeError, "false_fn argument required"),
    (lambda: tf.cond(True, one, one), TypeError, "must not be a Python bool"),
    (lambda: tf.switch_case(None, [one]), TypeError, "branch_index must be a scalar int32"),
    (lambda: tf.switch_case(one(), []), ValueError, "at least one item"),
    (lambda: tf.switch_case(one(), 3), TypeError, "must be a list, tuple, or dict"),
    (lambda: tf.switch_case(one(), [one, 2]), TypeError, "pairs of a number and a function"),
    (lambda: tf.switch_case(one(), {0: one, "a": one}), TypeError, "pairs of a number"),
    (lambda: tf.switch_case(one(), [(0, one, 3)]), TypeError, "pairs of a number"),
    (lambda: tf.switch_case(one(), {0: one, 2: one}), ValueError, "without gaps"),
    (lambda: tf.switch_case(one(), {0: 4}), TypeError, "must be callable, not 4"),
    (lambda: tf.case([1]), TypeError, "must be a 2-tuple, not 1"),
    (lambda: tf.case([(None, one)]), TypeError, "of type bool, not None"),
    (lambda: tf.case([(truth(), 1)]), TypeError, "must be callable"),
    (lambda: tf.case([]), ValueError, "must not be empty"),
    (lambda: tf.while_loop(less, lambda i: None, [0]), ValueError, "body of tf.while_loop returns"),
    (lambda: tf.while_loop(lambda i: None, same, [0]), ValueError, "cond of tf.while_loop must"),
    (lambda: tf.while_loop(less, same, [None]), ValueError, "Loop variables must be tensors"),
    (lambda: tf.while_loop(less, same, []), ValueError, "No loop variables"),
    (lambda: tf.while_loop(less, 1, [0]), TypeError, "body must be callable"),
    (
        lambda: tf.while_loop(less, same, [0], maximum_iterations="a"),
        ValueError,
        "maximum_iterations must be a scalar number, not 'a'",
    ),
    (
        lambda: tf.while_loop(less, same, [0], parallel_iterations=0),
        TypeError,
        "parallel_iterations must be a positive int",
    ),
    (
        lambda: tf.while_loop(less, same, [0], shape_invariants=[]),
        ValueError,
        "shape_invariants must have the structure",
    ),
    (
        lambda: tf.map_fn(same, (tf.constant([1, 2]), tf.constant([1, 2, 3]))),
        ValueError,
        "Dimension 0 of all elems must be the same",
    ),
    (lambda: tf.foldl(lambda a, x: None, tf.constant([1.0, 2.0])), ValueError, "not None"),
]


@pytest.mark.parametrize("case", CASES, ids=lambda case: case[2][:40])
def test_errors_say_what_is_wrong_and_where(case: Any) -> None:
    build, kind, words = case
    with tf.Graph().as_default(), pytest.raises(kind, match=re.escape(words)) as caught:
        build()
    assert f"{__file__}:" in str(caught.value)
