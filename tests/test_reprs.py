"""What objects say of themselves: one line that tells them apart."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

import thalweg as tf
from thalweg.functions import mode


@pytest.fixture(autouse=True)
def graph() -> Iterator[tf.Graph]:
    with tf.Graph().as_default() as graph:
        yield graph


def built() -> Any:
    layer = tf.layers.Dense(5)
    layer(tf.zeros([1, 3]))
    return layer


def closed() -> tf.Session:
    session = tf.Session()
    session.close()
    return session


def restored() -> Any:
    tf.Variable(1.0)
    saver = tf.train.Saver(max_to_keep=3)
    saver.set_last_checkpoints(["/tmp/model-7"])
    return saver


def table() -> Any:
    initializer = tf.contrib.lookup.KeyValueTensorInitializer(["a"], [1])
    return tf.contrib.lookup.HashTable(initializer, -1)


CASES: list[tuple[Callable[[], Any], str]] = [
    (tf.Session, "<tf.Session nodes=0 devices=1 state=open>"),
    (closed, "<tf.Session nodes=0 devices=1 state=closed>"),
    (tf.Graph, "<tf.Graph nodes=0>"),
    (lambda: tf.layers.Dense(3, name="d"), "<tf.layers.Dense 'd' units=3>"),
    (built, "<tf.layers.Dense 'dense' units=5 weights=[(3, 5), (5,)]>"),
    (
        lambda: tf.layers.Conv2D(4, 3),
        "<tf.layers.Conv2D 'conv2d' filters=4 kernel_size=(3, 3) strides=(1, 1)>",
    ),
    (lambda: tf.layers.Dropout(0.3), "<tf.layers.Dropout 'dropout' rate=0.3>"),
    (
        lambda: tf.nn.rnn_cell.LSTMCell(3),
        "<tf.nn.rnn_cell.LSTMCell 'lstm_cell' num_units=3>",
    ),
    (
        lambda: tf.train.AdamOptimizer(0.1),
        "<tf.train.AdamOptimizer 'Adam' learning_rate=0.1>",
    ),
    (
        lambda: tf.train.MomentumOptimizer(tf.constant(0.5, name="rate"), 0.9),
        "<tf.train.MomentumOptimizer 'Momentum' "
        'learning_rate=Tensor("rate:0", shape=(), dtype=float32)>',
    ),
    (restored, "<tf.train.Saver variables=1 max_to_keep=3 last_checkpoint=/tmp/model-7>"),
    (lambda: tf.Variable(1.0, name="v"), "<tf.Variable 'v:0' shape=() dtype=float32_ref>"),
    (
        lambda: tf.data.Dataset.range(3),
        "<tf.data.Dataset element_spec=TensorSpec(shape=(), dtype=tf.int64, name=None)>",
    ),
    (
        lambda: tf.data.Dataset.range(3).make_one_shot_iterator(),
        "<tf.data.Iterator 'OneShotIterator' "
        "element_spec=TensorSpec(shape=(), dtype=tf.int64, name=None)>",
    ),
    (
        lambda: tf.FIFOQueue(3, [tf.float32], shapes=[[2]]),
        "<tf.FIFOQueue 'fifo_queue' dtypes=[float32] shapes=[(2,)]>",
    ),
    (
        lambda: tf.ConditionalAccumulator(tf.float32, [2]),
        "<tf.ConditionalAccumulator 'conditional_accumulator' shape=(2,) dtype=float32>",
    ),
    (tf.TextLineReader, "<tf.TextLineReader 'TextLineReader'>"),
    (tf.get_variable_scope, "<tf.VariableScope '' reuse=False>"),
    (lambda: tf.variable_scope("b", reuse=True), "<tf.variable_scope 'b' reuse=True>"),
    (lambda: tf.name_scope("a"), "<tf.name_scope 'a'>"),
    (
        lambda: tf.truncated_normal_initializer(stddev=0.1),
        "<tf.truncated_normal_initializer mean=0.0 stddev=0.1 dtype=float32>",
    ),
    (
        lambda: tf.train.ExponentialMovingAverage(0.9, name="mean"),
        "<tf.train.ExponentialMovingAverage 'mean' decay=0.9 averages=0>",
    ),
    (tf.train.Coordinator, "<tf.train.Coordinator threads=0 state=running>"),
    (table, "<tf.contrib.lookup.HashTable 'hash_table' keys=string values=int32>"),
    (
        lambda: tf.SparseTensor([[0]], [1.0], [2]),
        "<tf.SparseTensor 'SparseTensor/values:0' shape=(2,) dtype=float32>",
    ),
    (tf.GradientTape, "<tf.GradientTape watched=0 persistent=False state=stopped>"),
]


@pytest.mark.parametrize(("make", "text"), CASES)
def test_reprs(make: Callable[[], Any], text: str) -> None:
    assert repr(make()) == text


def test_a_finalized_graph_says_so(graph: tf.Graph) -> None:
    tf.constant(1.0)
    graph.finalize()
    assert repr(graph) == "<tf.Graph nodes=1 finalized=True>"


def test_writers_and_monitored_sessions_say_whether_they_are_open(tmp_path: Path) -> None:
    writer = tf.summary.FileWriter(tmp_path)
    assert repr(writer) == f"<tf.summary.FileWriter '{tmp_path}' state=open>"
    writer.close()
    assert repr(writer).endswith(" state=closed>")
    tf.constant(1.0)
    with tf.train.MonitoredSession() as session:
        assert repr(session) == "<tf.train.MonitoredSession hooks=0 state=open>"
    assert repr(session).endswith(" state=closed>")


def test_classes_of_users_go_by_their_own_name() -> None:
    class Squared(tf.layers.Layer):
        """A layer of a program."""

    assert re.search(r"Squared 'squared'>$", repr(Squared()))


def test_eager_values_fit_on_the_line() -> None:
    with mode.eager_mode():
        rate = tf.constant([[0.1, 0.2], [0.3, 0.4]])
        found = repr(tf.train.GradientDescentOptimizer(rate))
        assert found.startswith("<tf.train.GradientDescentOptimizer 'GradientDescent' ")
        assert "\n" not in found
        assert "shape=(2,)" in repr(tf.SparseTensor([[0]], [1.0], [2]))
