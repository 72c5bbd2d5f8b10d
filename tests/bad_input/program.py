"""A small model to do wrong things to, and things to do them with."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

import thalweg as tf

Build = Callable[["Program"], Any]


class Program:
    """A small model in a session of its own, to do wrong things to."""

    def __init__(self) -> None:
        self.graph = tf.Graph()
        with self.graph.as_default():
            self.x = tf.placeholder(tf.float32, [None, 3], name="x")
            self.whole = tf.placeholder(tf.int32, [None], name="whole")
            self.text = tf.placeholder(tf.string, [None], name="text")
            self.weights = tf.Variable([1.0, 2.0, 3.0], name="weights")
            self.rows = tf.Variable(np.arange(6.0).reshape(3, 2), name="rows")
            self.blank = tf.Variable([0.0], name="blank")
            self.y = tf.reduce_sum(self.x * self.weights, name="y")
        self.session = tf.Session(graph=self.graph)
        self.session.run([self.weights.initializer, self.rows.initializer])

    def check_whole(self) -> None:
        """The session still runs and every variable has its first value."""
        assert self.session.run(self.y, {self.x: [[1, 1, 1]]}) == 6
        np.testing.assert_array_equal(self.session.run(self.weights), [1, 2, 3])
        np.testing.assert_array_equal(self.session.run(self.rows), np.arange(6.0).reshape(3, 2))


def later(value: Any) -> tf.Tensor:
    """A value that is not known before the step runs, nor is its shape."""
    return tf.placeholder_with_default(value, None)


def no_floats() -> tf.Tensor:
    return tf.zeros([2], tf.int32)


def size(value: int) -> tf.Tensor:
    """A number that is not known before the step runs."""
    return tf.placeholder_with_default(value, [])


def stranger() -> tf.Tensor:
    """A tensor of another graph."""
    with tf.Graph().as_default():
        return tf.constant(1.0, name="stranger")
