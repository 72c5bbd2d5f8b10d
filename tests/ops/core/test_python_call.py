"""Python functions in steps."""

import gc
from typing import Any

import numpy as np
import pytest

import thalweg as tf
from thalweg.ops.core.python_call import functions


def call(function: Any, inputs: list[Any], kinds: Any, **options: Any) -> Any:
    with tf.Graph().as_default(), tf.Session() as session:
        return session.run(tf.py_func(function, inputs, kinds, **options))


def test_arguments_and_results_are_arrays() -> None:
    result = call(lambda x, y: np.sinh(x) + y, [[1.0, 2.0], 1.0], tf.float32)
    np.testing.assert_allclose(result, np.sinh([1, 2]) + 1, 1e-5)
    assert call(lambda x: (x, x + 1), [1], [tf.int32, tf.int32]) == [1, 2]
    assert call(lambda: "é", [], tf.string) == "é".encode()
    assert call(lambda x: [b"a\x00", x], ["b"], [tf.string] * 2) == [b"a\x00", b"b"]
    assert call(lambda: [[b"x", b"longer"]], [], [tf.string])[0].tolist() == [b"x", b"longer"]


def test_writing_into_an_argument_changes_nothing() -> None:
    def spoil(x: Any) -> Any:
        x[0] = 9.0
        return x

    with tf.Graph().as_default(), tf.Session() as session:
        x = tf.constant([1.0, 2.0])
        assert session.run([tf.py_func(spoil, [x], tf.float32), x])[1].tolist() == [1, 2]


def test_only_stateful_functions_are_called_every_time() -> None:
    with tf.Graph().as_default(), tf.Session() as session:
        for stateful, expected in ((True, [0, 1]), (False, [0, 0])):
            numbers = iter(range(5))
            node = tf.py_func(lambda n=numbers: next(n), [], tf.int64, stateful=stateful)
            assert [session.run(node), session.run(node)] == expected
        assert session.run(tf.numpy_function(lambda: 1.5, [], tf.float64)) == 1.5


def raising(error: Exception) -> Any:
    def function() -> None:
        raise error

    return function


@pytest.mark.parametrize(
    ("function", "kind", "error", "message"),
    [
        (raising(ValueError("a")), tf.int64, tf.errors.InvalidArgumentError, "ValueError: a"),
        (raising(TypeError("b")), tf.int64, tf.errors.InvalidArgumentError, "TypeError: b"),
        (raising(StopIteration("c")), tf.int64, tf.errors.OutOfRangeError, "c"),
        (raising(NotImplementedError("d")), tf.int64, tf.errors.UnimplementedError, "d"),
        (raising(KeyError("e")), tf.int64, tf.errors.UnknownError, "KeyError"),
        (raising(tf.errors.AbortedError(None, None, "f")), tf.int64, tf.errors.AbortedError, "f"),
        (lambda: 1.0, tf.float32, tf.errors.InvalidArgumentError, "is float64.*expects float32"),
        (lambda: (1, 2), tf.int64, tf.errors.InvalidArgumentError, "returns 2 values.*see 1"),
        (lambda: object(), tf.int64, tf.errors.UnimplementedError, "Unsupported object type"),
        (
            lambda: np.zeros(1, [("a", int)]),
            tf.int64,
            tf.errors.UnimplementedError,
            "Unsupported numpy type",
        ),
    ],
)
def test_errors(function: Any, kind: Any, error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        call(function, [], kind)


def test_gradient_by_override() -> None:
    name = "PyFuncTestSquare"

    @tf.RegisterGradient(name)
    def gradient(node: Any, dy: Any) -> Any:
        return dy * 2.0 * node.inputs[0]

    with tf.Graph().as_default() as graph, tf.Session() as session:
        x = tf.constant(3.0)
        with graph.gradient_override_map({"PyFunc": name}):
            y = tf.py_func(np.square, [x], tf.float32)
        plain = tf.py_func(np.square, [x], tf.float32)
        assert session.run(tf.gradients(y, x)) == [6.0]
        assert tf.gradients(plain, x) == [None]


def test_functions_live_as_long_as_their_graph() -> None:
    gc.collect()
    before = functions.size()
    graph = tf.Graph()
    with graph.as_default():
        tf.py_func(lambda: 1, [], tf.int64)
    assert functions.size() == before + 1
    del graph
    gc.collect()
    assert functions.size() == before
