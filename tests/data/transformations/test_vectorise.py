"""Vectorized functions: results equal those of single elements; others are not vectorized."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import thalweg as tf
from tests.data.pipelines import Dataset, assert_batches_hold_the_elements, elements, pairs
from thalweg.data.functions import Function, TracedFunction
from thalweg.data.transformations.vectorise import vectorised

FUNCTIONS = {
    "scale": lambda x, y: (x * 2.0 - 1.0, y),
    "broadcast": lambda x, y: (x * tf.cast(y, tf.float32), y + 1),
    "maths": lambda x, y: (tf.exp(x) + tf.tanh(x) * tf.log1p(tf.abs(x)), tf.square(y)),
    "root": lambda x, y: (tf.sqrt(tf.abs(x)) / 3.0, y % 3),
    "one hot": lambda x, y: (tf.sigmoid(x), tf.one_hot(y % 5, 5)),
    "reshape": lambda x, y: (tf.reshape(x, [3, 1]) + 1.0, tf.expand_dims(y, 0)),
    "constant beside": lambda x, y: (x + tf.constant([1.0, 2.0, 3.0]), tf.where(y > 2, y, -y)),
    "texts": lambda x, y: (x, tf.string_to_number(tf.as_string(y), tf.int64)),
}


@pytest.mark.parametrize("name", FUNCTIONS)
@settings(max_examples=5, deadline=None)
@given(count=st.integers(1, 40), size=st.integers(1, 17), seed=st.integers(0, 9))
def test_rows_equal_the_elements(name: str, count: int, size: int, seed: int) -> None:
    assert_batches_hold_the_elements(FUNCTIONS[name], pairs(count, seed), size)


def _is_vectorised(function) -> bool:
    with tf.Graph().as_default():
        dataset = Dataset.from_tensor_slices(pairs(4))
        traced = TracedFunction(function, "a test", dataset.element_spec)
        made = Function(traced.function, [None] * len(traced.captured))
        return vectorised(made, dataset.variant.op.op) is not None


@pytest.mark.parametrize("name", FUNCTIONS)
def test_vectorized_functions(name: str) -> None:
    assert _is_vectorised(FUNCTIONS[name])


@pytest.mark.parametrize(
    "function",
    [
        lambda x, y: tf.reduce_sum(x),
        lambda x, y: x + tf.random_uniform([]),
        lambda x, y: tf.py_func(lambda v: v, [x], tf.float32),
        lambda x, y: tf.constant(1),
        lambda x, y: tf.reverse(x, [0]),
        lambda x, y: tf.one_hot(y, 5, axis=0),
    ],
)
def test_functions_that_are_not_vectorized(function) -> None:
    assert not _is_vectorised(function)


def test_raw_bytes_of_different_lengths() -> None:
    texts = [b"abcd", b"abcdefgh", b"efgh"]

    def make():
        dataset = Dataset.from_tensor_slices(texts)
        dataset = dataset.map(lambda t: tf.reshape(tf.decode_raw(t, tf.uint8), [4])).batch(1)
        return dataset.apply(tf.data.experimental.ignore_errors())

    assert [batch.tolist() for batch in elements(make)] == [[list(b"abcd")], [list(b"efgh")]]
