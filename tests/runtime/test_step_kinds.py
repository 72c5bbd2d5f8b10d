"""Plans printed and measured for steps of every kind: neither fails, neither changes anything."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import thalweg as tf
from thalweg.runtime import engine

pytestmark = pytest.mark.skipif(not engine.COMPILES, reason="nothing is compiled")

ROWS = np.linspace(-1, 1, 15, dtype=np.float32).reshape(5, 3)

Made = tuple[Any, dict[Any, Any]]
KINDS: dict[str, Callable[[], Made]] = {}


def kind(make: Callable[[], Made]) -> Callable[[], Made]:
    """Have the step that a function makes, (fetches, feeds), tested under the function's name."""
    KINDS[make.__name__] = make
    return make


@pytest.fixture(autouse=True)
def graph():
    with tf.Graph().as_default() as fresh:
        yield fresh


def rows() -> Any:
    return tf.placeholder(tf.float32, [None, 3], name="rows")


def doubling(x: Any) -> Any:
    """A loop that holds nothing but arithmetic."""
    return tf.while_loop(
        lambda i, a: i < 3, lambda i, a: [i + 1, a * 2.0], [tf.constant(0), x], name="doubling"
    )[1]


def with_gradient(y: Any, x: Any) -> Any:
    return [y, tf.gradients(y, x)[0]]


@kind
def empty():
    return [], {}


@kind
def nothing_but_a_feed():
    x = rows()
    return x, {x: ROWS}


@kind
def nothing_but_a_constant():
    return tf.constant([1.0, 2.0]), {}


@kind
def no_operation():
    return tf.no_op(), {}


@kind
def one_region():
    x = rows()
    return with_gradient(tf.reduce_sum(tf.tanh(tf.matmul(x, tf.ones([3, 4])))), x), {x: ROWS}


@kind
def initialisation():
    tf.Variable(tf.random_normal([4]), name="drawn")
    return tf.global_variables_initializer(), {}


@kind
def regions_around_host_ops():
    x = rows()
    square = tf.matmul(x, x, transpose_a=True) + tf.eye(3)
    return tf.matrix_inverse(square) * 2.0, {x: ROWS}


@kind
def conditional():
    x = rows()
    y = tf.cond(tf.reduce_sum(x) > 0, lambda: x * 2.0, lambda: x - 1.0)
    return with_gradient(y, x), {x: ROWS}


@kind
def case():
    x = rows()
    total = tf.reduce_sum(x)
    y = tf.case([(total > 1, lambda: x), (total > 0, lambda: -x)], default=lambda: x * 3.0)
    return y, {x: ROWS}


@kind
def loop():
    x = rows()
    return with_gradient(doubling(x), x), {x: ROWS}


@kind
def loop_that_assigns():
    total = tf.Variable(0.0, name="total")
    count = tf.while_loop(
        lambda i: i < 3, lambda i: tf.tuple([i + 1], control_inputs=[total.assign_add(1.0)])[0], [0]
    )
    return count, {}


@kind
def loop_of_growing_values():
    x = rows()
    grown = tf.while_loop(
        lambda a: tf.shape(a)[0] < 12,
        lambda a: tf.concat([a, a], 0),
        [x],
        shape_invariants=[tf.TensorShape([None, 3])],
    )
    return grown, {x: ROWS}


@kind
def scan():
    x = rows()
    return with_gradient(tf.scan(lambda a, b: a + b, x), x), {x: ROWS}


@kind
def mapping():
    x = rows()
    return with_gradient(tf.map_fn(lambda row: row * row, x), x), {x: ROWS}


@kind
def folding():
    x = rows()
    return tf.foldl(lambda a, b: a + b, x), {x: ROWS}


@kind
def tensor_array():
    x = rows()
    array = tf.TensorArray(tf.float32, 5, clear_after_read=False).unstack(x)
    again = tf.TensorArray(tf.float32, 2).write(0, array.read(1) * 2.0).write(1, array.read(0))
    return with_gradient(again.stack(), x), {x: ROWS}


@kind
def tensor_array_pieces():
    x = rows()
    array = tf.TensorArray(tf.float32, 2).split(x, [2, 3])
    return [array.size(), array.concat()], {x: ROWS}


@kind
def recurrent():
    x = tf.placeholder(tf.float32, [2, None, 3])
    cell = tf.nn.rnn_cell.BasicLSTMCell(4)
    outputs, _ = tf.nn.dynamic_rnn(cell, x, sequence_length=[5, 2], dtype=tf.float32)
    return with_gradient(tf.reduce_sum(outputs), x), {x: np.stack([ROWS, ROWS])}


@kind
def function():
    x = rows()
    called = tf.function(lambda a: tf.reduce_sum(tf.exp(a)))
    return with_gradient(called(x), x), {x: ROWS}


@kind
def function_with_loop():
    x = rows()
    return tf.function(doubling)(x), {x: ROWS}


@kind
def python_function():
    x = rows()
    given = tf.py_func(_never, [x], tf.float32)
    given.set_shape([5, 3])
    return given * 2.0, {x: ROWS}


@kind
def python_function_in_loop():
    x = rows()

    def body(i: Any, a: Any) -> Any:
        given = tf.py_func(_never, [a], tf.float32)
        given.set_shape(a.shape)
        return [i + 1, given]

    return tf.while_loop(lambda i, a: i < 2, body, [tf.constant(0), x])[1] + 1.0, {x: ROWS}


@kind
def python_function_of_unlikely_zeros():
    given = tf.py_func(_never, [], tf.int32)
    given.set_shape([])
    return tf.matrix_inverse(tf.zeros([2, 2]) + tf.cast(7 // given, tf.float32)), {}


@kind
def queue():
    taken = tf.FIFOQueue(3, tf.float32, [[3]])
    return [taken.dequeue() * 2.0, taken.size()], {}


@kind
def queue_in_loop():
    taken = tf.FIFOQueue(3, tf.float32, [[]])
    return tf.while_loop(lambda a: a < 3.0, lambda a: a + taken.dequeue(), [0.0]) * 2.0, {}


@kind
def strings():
    x = rows()
    words = tf.string_join([tf.as_string(x), tf.constant("!")])
    return [words, tf.string_to_hash_bucket_fast(words, 7) + 1], {x: ROWS}


@kind
def strings_of_a_queue():
    taken = tf.FIFOQueue(3, tf.string, [[]])
    return tf.decode_raw(taken.dequeue(), tf.uint8) * 2, {}


@kind
def files():
    return tf.read_file("no such file"), {}


@kind
def dataset():
    data = tf.data.Dataset.range(10).map(lambda i: i * 2).batch(2)
    return tf.data.make_one_shot_iterator(data).get_next() + 1, {}


@kind
def summaries():
    x = rows()
    tf.summary.scalar("total", tf.reduce_sum(x))
    tf.summary.histogram("rows", x)
    return tf.summary.merge_all(), {x: ROWS}


@kind
def sparse():
    x = rows()
    table = tf.SparseTensor([[0, 1], [2, 0]], [1.0, 2.0], [3, 3])
    return tf.sparse_tensor_dense_matmul(table, x, adjoint_b=True), {x: ROWS}


@kind
def sizes_that_change_from_run_to_run():
    drawn = tf.random_uniform([1000])
    return tf.reduce_sum(tf.boolean_mask(drawn, drawn > 0.5) * 2.0), {}


@kind
def primitives():
    x = rows()
    weight = tf.Variable(2.0, name="weight")
    no, yes = tf.control.switch(x, tf.reduce_sum(x) > 0)
    taken = tf.control.merge([no * weight, yes - 1.0]).output
    with tf.control_dependencies([taken]):
        return [taken, weight.assign_add(1.0)], {x: ROWS}


def _never(*_: Any) -> Any:
    raise AssertionError("a profile leaves out what may have effects")


def held(session: Any) -> list[Any]:
    initialised = session.run([tf.is_variable_initialized(v) for v in tf.global_variables()])
    pairs = zip(tf.global_variables(), initialised, strict=True)
    return session.run([variable for variable, has_value in pairs if has_value])


@pytest.mark.parametrize("name", KINDS)
def test_every_kind_of_step_is_printed_and_measured(name: str):
    fetches, feeds = KINDS[name]()
    with tf.Session() as session:
        if name != "initialisation":
            session.run(tf.global_variables_initializer())
        before = held(session)
        plan = session.plan(fetches, feeds)
        assert str(plan).startswith("step ")
        for kernel in plan.kernels:
            assert all(f in kernel.llvm and f in kernel.asm for f in kernel.emitted.functions)
        profile = plan.profile(3)
        assert len(profile.runs) == 3
        assert sum(row.share for row in profile.rows) <= 1 + 1e-9
        assert "profile  3 runs" in str(profile)
        np.testing.assert_equal(held(session), before)


@pytest.mark.parametrize("name", ["conditional", "loop", "scan", "mapping", "recurrent"])
def test_control_flow_is_a_row_of_its_own(name: str):
    fetches, feeds = KINDS[name]()
    with tf.Session() as session:
        session.run(tf.global_variables_initializer())
        expected = session.run(fetches, feeds)
        plan = session.plan(fetches, feeds)
        measured = {op for row in plan.profile(2).rows for op in row.ops}
        assert {part.unit.node.name for part in plan.controls} <= measured
        np.testing.assert_equal(session.run(fetches, feeds), expected)
