"""Datasets as arguments and results of functions, and what the functions of datasets take."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest

import thalweg as tf
from tests.data.pipelines import Dataset, drained, experimental


@pytest.fixture
def eager() -> Iterator[None]:
    with tf.eager_mode():
        yield


def listed(dataset: Any) -> list[Any]:
    return [element.numpy().tolist() for element in dataset]


def ten_times(dataset: Any) -> Any:
    return dataset.map(lambda i: i * 10)


# Arguments and results of traced functions, branches and loops


def test_a_function_returns_a_dataset_that_it_made_of_a_captured_one(eager: None) -> None:
    numbers = Dataset.range(3)
    function = tf.function(lambda: {"all": [ten_times(numbers), numbers.batch(2)], "count": 3})
    for _ in range(2):
        result = function()
        assert [listed(dataset) for dataset in result["all"]] == [[0, 10, 20], [[0, 1], [2]]]
        assert result["count"] == 3


def test_a_function_is_traced_for_the_spec_of_a_dataset(eager: None) -> None:
    function = tf.function(lambda dataset, size: dataset.batch(size))
    assert listed(function(Dataset.range(3), 2)) == [[0, 1], [2]]
    assert listed(function(Dataset.range(5), 2)) == [[0, 1], [2, 3], [4]]
    assert function.experimental_get_tracing_count() == 1
    assert listed(function(Dataset.from_tensor_slices([0.5, 1.5]), 2)) == [[0.5, 1.5]]
    assert function.experimental_get_tracing_count() == 2
    assert "int64" in str(function.explain()) and "float32" in str(function.explain())


def test_a_dataset_of_a_function_reads_variables_when_it_is_iterated(eager: None) -> None:
    factor = tf.Variable(2, dtype=tf.int64)
    dataset = tf.function(lambda: Dataset.range(3).map(lambda i: i * factor))()
    assert listed(dataset) == [0, 2, 4]
    factor.assign(5)
    assert listed(dataset) == [0, 5, 10]


def test_a_function_of_a_graph_returns_a_dataset() -> None:
    with tf.Graph().as_default(), tf.Session() as session:
        numbers = Dataset.range(3)
        iterator = tf.function(lambda: ten_times(numbers))().make_initializable_iterator()
        session.run(iterator.initializer)
        assert drained(session, iterator.get_next()) == [0, 10, 20]


def test_a_traced_function_makes_the_datasets_of_flat_map(eager: None) -> None:
    inner = tf.function(lambda i: Dataset.range(i + 1))
    assert listed(Dataset.range(3).flat_map(inner)) == [0, 0, 1, 0, 1, 2]


def test_branches_and_loops_have_datasets() -> None:
    with tf.Graph().as_default(), tf.Session() as session:
        numbers, is_first = Dataset.range(5), tf.placeholder(tf.bool)
        either = tf.cond(is_first, lambda: numbers.take(1), lambda: numbers.skip(3))
        _, rest = tf.while_loop(lambda i, _: i < 2, lambda i, d: (i + 1, d.skip(1)), [0, either])
        iterators = [either.make_initializable_iterator(), rest.make_initializable_iterator()]
        values: list[Any] = []
        for value in (True, False):
            session.run([each.initializer for each in iterators], {is_first: value})
            values.append([drained(session, each.get_next()) for each in iterators])
        assert values == [[[0], []], [[3, 4], []]]
        with pytest.raises(ValueError, match="element_spec"):
            tf.cond(is_first, lambda: numbers, lambda: numbers.batch(2))
        with pytest.raises(ValueError, match="element_spec"):
            tf.while_loop(lambda i, _: i < 2, lambda i, d: (i + 1, d.batch(2)), [0, numbers])


def test_an_iterator_of_eager_code_gives_no_element_to_a_trace(eager: None) -> None:
    iterator = iter(Dataset.range(3))
    with pytest.raises(RuntimeError, match=r"no next element .* \(at .*test_functions.py:"):
        tf.function(lambda: next(iterator))()
    assert int(next(iterator)) == 0


# What the functions of datasets take from outside

QUEUES: dict[str, Callable[[], Callable[[], Any]]] = {
    "dequeue": lambda: tf.FIFOQueue(1, tf.int64, [[]]).dequeue,
    "size": lambda: tf.FIFOQueue(1, tf.int64, [[]]).size,
    "in a function": lambda: tf.function(tf.FIFOQueue(1, tf.int64, [[]]).size),
    "accumulator": lambda: tf.ConditionalAccumulator(tf.float32, shape=[]).num_accumulated,
    "assignment": lambda: _assignment(tf.Variable(1.0)),
    "scatter": lambda: _scatter(tf.Variable([1.0])),
}
HOLDERS: dict[str, Callable[[Any, Any], Any]] = {
    "Dataset.map": lambda d, use: d.map(lambda i: use()),
    "Dataset.filter": lambda d, use: d.filter(lambda i: tf.cast(use(), tf.bool)),
    "Dataset.flat_map": lambda d, use: d.flat_map(lambda i: Dataset.from_tensors(use())),
    "scan": lambda d, use: d.apply(experimental.scan(0, lambda state, i: (state, use()))),
    "map in a branch": lambda d, use: d.map(
        lambda i: tf.cond(i > 1, lambda: tf.cast(use(), tf.int64), lambda: i)
    ),
}


def _assignment(variable: Any) -> Callable[[], Any]:
    return lambda: tf.reshape(tf.assign_add(variable, 1.0), [])


def _scatter(variable: Any) -> Callable[[], Any]:
    return lambda: tf.reduce_sum(tf.scatter_add(variable, [0], [1.0]))


@pytest.mark.parametrize("mode", ["graph", "eager"])
@pytest.mark.parametrize("holder", HOLDERS)
@pytest.mark.parametrize("queue", QUEUES)
def test_functions_take_no_references(queue: str, holder: str, mode: str) -> None:
    with tf.eager_mode() if mode == "eager" else tf.Graph().as_default():
        use = QUEUES[queue]()
        wanted = rf"{holder.partition(' ')[0]}.* runs '.*' \(.*, made at .*test_functions.py:\d+\)"
        with pytest.raises(ValueError, match=wanted):
            HOLDERS[holder](Dataset.range(3), use)


def test_an_assignment_that_does_not_run_does_no_harm(eager: None) -> None:
    variable = tf.Variable(2, dtype=tf.int64)

    def scaled(i: Any) -> Any:
        variable.assign_add(i)
        return i * variable

    assert listed(Dataset.range(3).map(scaled)) == [0, 2, 4]
    assert variable.numpy() == 2


def test_functions_read_references_and_have_queues_of_their_own() -> None:
    with tf.Graph().as_default(), tf.Session() as session:
        changed = tf.assign(tf.Variable(3, dtype=tf.int64), 5)
        table = tf.contrib.lookup.HashTable(
            tf.contrib.lookup.KeyValueTensorInitializer(np.arange(3), np.arange(3) * 100), -1
        )

        def function(i: Any) -> Any:
            queue = tf.FIFOQueue(1, tf.int64, [[]])
            with tf.control_dependencies([queue.enqueue(i)]):
                return queue.dequeue() * changed + table.lookup(i)

        iterator = Dataset.range(3).map(function).make_initializable_iterator()
        session.run([tf.global_variables_initializer(), tf.tables_initializer()])
        session.run(iterator.initializer)
        assert drained(session, iterator.get_next()) == [0, 105, 210]
