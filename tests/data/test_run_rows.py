"""Functions called row by row give exactly the results of calls for single elements."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import thalweg as tf
from tests.data.pipelines import Dataset, assert_batches_hold_the_elements, elements, pairs
from thalweg.device.cpu.program import Program

TABLE = np.arange(12, dtype=np.float32).reshape(6, 2)
FUNCTIONS = {
    "normalised": lambda x, y: (x / tf.reduce_sum(tf.abs(x)), y),
    "one number": lambda x, y: (tf.reduce_max(x), tf.reduce_sum(x * x)),
    "product": lambda x, y: (tf.matmul(tf.reshape(x, [1, 3]), tf.ones([3, 4])), y * y),
    "looked up": lambda x, y: (tf.gather(tf.constant(TABLE), y % 6), tf.cumsum(x)),
    "larger": lambda x, y: (tf.tile(x, [5]), tf.range(4) + tf.cast(tf.reduce_max(y), tf.int32)),
    "only part": lambda x, y: (tf.reverse(x, [0]), y),
}


@pytest.fixture
def counted(monkeypatch):
    """The number of rows that `run_rows` has processed."""
    counts, run_rows = [], Program.run_rows

    def noted(self, values, is_row, count):
        counts.append(count)
        return run_rows(self, values, is_row, count)

    monkeypatch.setattr(Program, "run_rows", noted)
    return counts


@pytest.mark.parametrize("name", FUNCTIONS)
@settings(max_examples=4, deadline=None)
@given(count=st.integers(1, 40), size=st.integers(1, 17), seed=st.integers(0, 9))
def test_rows_equal_the_elements(name: str, count: int, size: int, seed: int) -> None:
    assert_batches_hold_the_elements(FUNCTIONS[name], pairs(count, seed), size)


@pytest.mark.parametrize("name", FUNCTIONS)
def test_batches_use_run_rows(name: str, counted: list[int]) -> None:
    elements(lambda: Dataset.from_tensor_slices(pairs(10)).map(FUNCTIONS[name]).batch(4))
    assert counted == [4, 4, 2]


def test_captured_values_are_shared_by_all_rows(counted: list[int]) -> None:
    def made() -> Dataset:
        offset = tf.constant([1.0, 2.0, 3.0]) * 2.0
        data = Dataset.from_tensor_slices(pairs(5))
        return data.map(lambda x, y: tf.reduce_max(x + offset)).batch(5)

    (actual,) = elements(made)
    assert counted == [5]
    assert actual.tolist() == (pairs(5)[0] + np.float32([2, 4, 6])).max(1).tolist()


def test_an_error_is_attributed_to_its_element(counted: list[int]) -> None:
    """The elements before it are returned first; the error names the op and the line."""
    with tf.Graph().as_default(), tf.Session() as session:
        places = np.array([0, 1, 9, 2])
        data = Dataset.from_tensor_slices(places).map(lambda i: tf.gather(tf.constant(TABLE), i))
        element = tf.data.make_one_shot_iterator(data.batch(2)).get_next()
        assert session.run(element).tolist() == TABLE[:2].tolist()
        with pytest.raises(tf.errors.InvalidArgumentError, match=r"(?s)Gather.*test_run_rows\.py"):
            session.run(element)
    assert counted == [2, 2]


def test_random_functions_are_called_for_single_elements(counted: list[int]) -> None:
    def draw(i: tf.Tensor) -> tf.Tensor:
        return tf.reduce_sum(tf.random_uniform([3], seed=1)) + tf.cast(i, tf.float32) * 0

    def batched() -> Dataset:
        return Dataset.range(6).map(draw).batch(3)

    assert len(set(np.concatenate(elements(batched)).tolist())) == 6
    assert not counted


def test_variables_are_read_for_each_element(counted: list[int]) -> None:
    with tf.Graph().as_default(), tf.Session() as session:
        variable = tf.Variable([1.0, 2.0], use_resource=False)
        data = Dataset.range(4).map(lambda i: tf.reduce_sum(variable) + tf.cast(i, tf.float32))
        iterator = tf.data.make_initializable_iterator(data.batch(2))
        session.run([variable.initializer])
        session.run(iterator.initializer)
        assert session.run(iterator.get_next()).tolist() == [3, 4]
    assert not counted


def test_parallel_maps_do_not_use_run_rows(counted: list[int]) -> None:
    def made() -> Dataset:
        return Dataset.range(6).map(lambda i: tf.cumsum([i, i]), num_parallel_calls=2).batch(3)

    assert np.concatenate(elements(made))[:, 1].tolist() == [0, 2, 4, 6, 8, 10]
    assert not counted
