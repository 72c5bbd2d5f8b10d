"""Iterators: initialization, errors, waiting, cancellation, and the end of their threads."""

from __future__ import annotations

import gc
import threading
from typing import Any

import numpy as np
import pytest

import thalweg as tf
from tests.data.pipelines import Dataset, drained, plain


def _graph():
    return tf.Graph().as_default()


def test_an_iterator_has_to_be_initialized() -> None:
    with _graph(), tf.Session() as session:
        following = Dataset.range(3).make_initializable_iterator().get_next()
        with pytest.raises(tf.errors.FailedPreconditionError, match="has not been initialized"):
            session.run(following)


def test_an_initializer_restarts() -> None:
    with _graph(), tf.Session() as session:
        iterator = tf.data.make_initializable_iterator(Dataset.range(3))
        following = iterator.get_next()
        for _ in range(2):
            session.run(iterator.initializer)
            assert plain(drained(session, following)) == [0, 1, 2]
            with pytest.raises(tf.errors.OutOfRangeError, match="End of sequence"):
                session.run(following)


def test_sessions_do_not_share_iterators() -> None:
    with _graph() as graph:
        following = tf.data.make_one_shot_iterator(Dataset.range(3)).get_next()
    for _ in range(2):
        with tf.Session(graph=graph) as session:
            assert plain(drained(session, following)) == [0, 1, 2]


def test_iterators_of_one_shared_name_are_one_iterator() -> None:
    with _graph(), tf.Session() as session:
        first = Dataset.range(5).make_initializable_iterator("same")
        second = Dataset.range(5).make_initializable_iterator("same")
        session.run(first.initializer)
        assert [session.run(each.get_next()) for each in (first, second, first)] == [0, 1, 2]


def test_one_iterator_for_several_datasets() -> None:
    with _graph(), tf.Session() as session:
        training, testing = Dataset.range(3), Dataset.range(10, 12)
        iterator = tf.data.Iterator.from_structure(training.output_types, training.output_shapes)
        following = iterator.get_next()
        with pytest.raises(ValueError, match="does not have an initializer"):
            iterator.initializer  # the access raises
        for dataset, expected in ((training, [0, 1, 2]), (testing, [10, 11])):
            session.run(iterator.make_initializer(dataset))
            assert plain(drained(session, following)) == expected
        with pytest.raises(TypeError, match="Expected elements"):
            iterator.make_initializer(Dataset.from_tensors(1.0))


def test_a_string_handle_selects_an_iterator() -> None:
    with _graph(), tf.Session() as session:
        handle = tf.placeholder(tf.string, [])
        kinds = Dataset.range(3)
        following = tf.data.Iterator.from_string_handle(
            handle, kinds.output_types, kinds.output_shapes
        ).get_next()
        first = Dataset.range(3).make_one_shot_iterator()
        second = Dataset.range(10, 20).make_initializable_iterator()
        session.run(second.initializer)
        texts = session.run([first.string_handle(), second.string_handle()])
        actual = [session.run(following, {handle: texts[place]}) for place in (0, 1, 1, 0)]
        assert actual == [0, 10, 11, 1]
        with pytest.raises(tf.errors.InvalidArgumentError, match="no handle"):
            session.run(following, {handle: "nonsense"})
        other = Dataset.from_tensors(1.0).make_one_shot_iterator().string_handle()
        with pytest.raises(tf.errors.InvalidArgumentError, match="types"):
            session.run(following, {handle: session.run(other)})


def test_a_one_shot_iterator_captures_no_state() -> None:
    with _graph():
        scale = tf.Variable(2, dtype=tf.int64)
        with pytest.raises(ValueError, match="capture stateful objects"):
            Dataset.range(3).map(lambda x: x * scale).make_one_shot_iterator()
        with pytest.raises(ValueError, match="placeholder"):
            Dataset.from_tensors(tf.placeholder(tf.int32)).make_one_shot_iterator()


def test_consumers_in_one_step_get_the_same_element() -> None:
    with _graph(), tf.Session() as session:
        following = Dataset.range(4).make_one_shot_iterator().get_next()
        assert session.run([following, following + 1]) == [0, 1]
        assert session.run([following * 2, following]) == [2, 1]


def test_many_threads_share_the_elements() -> None:
    with _graph(), tf.Session() as session:
        dataset = Dataset.range(400).map(lambda x: x * 2, num_parallel_calls=2).prefetch(3)
        following = dataset.make_one_shot_iterator().get_next()
        actual: list[int] = []
        threads = [
            threading.Thread(target=lambda: actual.extend(plain(drained(session, following))))
            for _ in range(8)
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert sorted(actual) == list(range(0, 800, 2))


# Waiting


class Gate:
    """A generator that yields the items of a queue and blocks while it is empty."""

    def __init__(self) -> None:
        self.opened = threading.Semaphore(0)
        self.asked = threading.Semaphore(0)

    def __call__(self):
        number = 0
        while True:
            self.asked.release()
            self.opened.acquire()
            yield number
            number += 1


@pytest.mark.parametrize("is_ahead", [True, False])
def test_a_cancelled_step_loses_no_elements(is_ahead: bool) -> None:
    gate = Gate()
    with _graph(), tf.Session() as session:
        dataset = Dataset.from_generator(gate, tf.int64, []).batch(2)
        dataset = dataset.prefetch(1) if is_ahead else dataset
        following = dataset.make_one_shot_iterator().get_next()
        gate.opened.release()
        for _ in range(2):
            with pytest.raises(tf.errors.DeadlineExceededError):
                session.run(following, options=tf.RunOptions(timeout_in_ms=20))
        for _ in range(3):
            gate.opened.release()
        assert session.run(following).tolist() == [0, 1]
        assert session.run(following).tolist() == [2, 3]
        gate.opened.release(64)


def test_closing_the_session_cancels_waiting_steps() -> None:
    gate = Gate()
    caught: list[Exception] = []
    with _graph() as graph:
        following = Dataset.from_generator(gate, tf.int64, []).make_one_shot_iterator().get_next()
    session = tf.Session(graph=graph)

    def take() -> None:
        try:
            session.run(following)
        except Exception as error:
            caught.append(error)

    threads = [threading.Thread(target=take) for _ in range(3)]
    for thread in threads:
        thread.start()
    gate.asked.acquire()
    session.close()
    for thread in threads:
        thread.join()
    assert len(caught) == 3
    gate.opened.release(64)


def _makers() -> set[threading.Thread]:
    return {thread for thread in threading.enumerate() if thread.name.startswith("thalweg-data")}


@pytest.mark.parametrize("how", ["close", "initialize", "end"])
def test_threads_end_with_their_iterator(how: str) -> None:
    before = _makers()

    def python(x):
        return tf.py_func(lambda value: value, [x], tf.int64)

    with _graph() as graph:
        dataset = Dataset.from_generator(lambda: iter(range(100)), tf.int64, []).prefetch(2)
        dataset = dataset.map(python, num_parallel_calls=3).interleave(
            lambda x: Dataset.range(2), 2, num_parallel_calls=2
        )
        iterator = dataset.prefetch(1).make_initializable_iterator()
        following = iterator.get_next()
    session = tf.Session(graph=graph)
    session.run(iterator.initializer)
    for _ in range(5):
        session.run(following)
    threads = _makers() - before
    assert threads
    if how == "initialize":
        session.run(iterator.initializer)
    elif how == "end":
        drained(session, following)
    session.close()
    del session
    gc.collect()
    for thread in threads | (_makers() - before):
        thread.join(timeout=30)
        assert not thread.is_alive()


# Eager code


def test_eager_loops() -> None:
    with tf.eager_mode():
        dataset = Dataset.from_tensor_slices({"a": [1, 2, 3], "b": ["x", "y", "z"]}).batch(2)
        actual = [
            (element["a"].numpy().tolist(), element["b"].numpy().tolist()) for element in dataset
        ]
        assert actual == [([1, 2], [b"x", b"y"]), ([3], [b"z"])]
        assert [int(x) for x in Dataset.range(3).map(lambda x: x + 1)] == [1, 2, 3]
        windows = [[int(x) for x in window] for window in Dataset.range(4).window(2)]
        assert windows == [[0, 1], [2, 3]]
        iterator = Dataset.range(2).make_one_shot_iterator()
        assert int(iterator.get_next()) == 0
        assert int(next(iterator)) == 1
        with pytest.raises(tf.errors.OutOfRangeError):
            iterator.get_next()


def test_eager_variables_are_read_at_each_call() -> None:
    with tf.eager_mode():
        offset = tf.Variable(np.int64(10))
        iterator = iter(Dataset.range(5).map(lambda x: x + offset))
        assert int(next(iterator)) == 10
        offset.assign(np.int64(20))
        assert int(next(iterator)) == 21


def test_datasets_of_graphs_cannot_be_iterated() -> None:
    with _graph(), pytest.raises(RuntimeError, match="eager"):
        iter(Dataset.range(3))


def test_a_graph_with_datasets_can_be_exported_and_imported() -> None:
    with _graph() as graph:
        dataset = Dataset.from_generator(lambda: iter([1, 2, 3]), tf.int64, []).batch(2)
        dataset.map(lambda x: x * 2).make_one_shot_iterator().get_next(name="following")
        proto = graph.as_graph_def()
    with _graph() as again, tf.Session(graph=again) as session:
        (following,) = tf.import_graph_def(proto, return_elements=["following:0"])
        assert [value.tolist() for value in drained(session, following)] == [[2, 4], [6]]


@pytest.mark.parametrize("wrap", ["plain", "cond"])
@pytest.mark.parametrize("with_python", [True, False])
def test_an_error_of_an_element_leaves_later_elements_alone(wrap: str, with_python: bool) -> None:
    """Also where the function is a step with control flow, or with calls on other threads."""

    def number(s: Any) -> Any:
        parsed = tf.string_to_number(tf.string_join([s, ""]))
        return parsed + tf.py_func(np.float32, [s], tf.float32) if with_python else parsed

    def function(s: Any) -> Any:
        return (
            number(s)
            if wrap == "plain"
            else tf.cond(tf.not_equal(s, ""), lambda: number(s), lambda: 0.0)
        )

    with tf.Graph().as_default(), tf.Session() as session:
        data = tf.data.Dataset.from_tensor_slices(["1", "bad", "2", "bad", "4"]).map(function)
        following = data.make_one_shot_iterator().get_next()
        results: list[float] = []
        for _ in range(5):
            try:
                results.append(float(session.run(following)))
            except tf.errors.OpError:
                results.append(-1.0)
        scale = 2.0 if with_python else 1.0
        assert results == [scale, -1.0, 2 * scale, -1.0, 4 * scale]
