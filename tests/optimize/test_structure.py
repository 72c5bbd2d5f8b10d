"""Passes that change the structure of a step, as text."""

from __future__ import annotations

import numpy as np
import pytest

import thalweg as tf
from tests.optimize.steps import after, changes, step, text
from thalweg.optimize.passes.fold_constants import MAX_BYTES, fold_constants
from thalweg.optimize.passes.merge_duplicates import merge_duplicates
from thalweg.optimize.passes.strip_identities import strip_identities


@pytest.fixture(autouse=True)
def graph():
    with tf.Graph().as_default() as graph:
        yield graph


def x(*shape: int | None) -> tf.Tensor:
    return tf.placeholder(tf.float32, shape, name="x")


def test_equal_nodes_are_merged() -> None:
    a, b = x(2, 2), tf.placeholder(tf.float32, [2, 2], name="b")
    y = tf.add(tf.matmul(a, b, name="m"), tf.matmul(a, b, name="n"), name="y")
    assert after(merge_duplicates, step([y], feeds=[a, b])) == text("""
        m = MatMul(x, b)
        y = Add(m, m)
        return y:0
        """)


def test_other_attributes_are_other_nodes() -> None:
    a = x(2, 2)
    y = tf.add(tf.matmul(a, a, name="m"), tf.matmul(a, a, transpose_a=True, name="n"), name="y")
    before = step([y], feeds=[a])
    assert not changes(merge_duplicates, before)


def test_operands_of_a_commutative_op_are_in_any_order() -> None:
    a, b = x(2), tf.placeholder(tf.float32, [2], name="b")
    y = tf.subtract(tf.add(a, b, name="p"), tf.add(b, a, name="q"), name="y")
    assert after(merge_duplicates, step([y], feeds=[a, b])) == text("""
        p = Add(x, b)
        y = Sub(p, p)
        return y:0
        """)


def test_random_numbers_and_reads_stay_apart() -> None:
    v = tf.Variable(1.0, name="v")
    read = v.read_value()
    with tf.control_dependencies([read.op]):
        write = v.assign_add(1.0)
    with tf.control_dependencies([write.op]):
        again = v.read_value()
    y = [tf.random_uniform([]), tf.random_uniform([]), read, again]
    before = step(y)
    after(merge_duplicates, before)
    assert not any("Random" in name or "Identity" in name for name in before.fired)


def test_what_is_fed_is_not_what_it_was() -> None:
    a = x(2)
    fed = tf.negative(a, name="fed")
    y = tf.add(fed, tf.negative(a, name="own"), name="y")
    before = step([y], feeds=[a, fed])
    assert not changes(merge_duplicates, before)


def test_constants_are_folded() -> None:
    y = tf.add(tf.constant([1.0, 2.0], name="c") * 3, x(2), name="y")
    assert after(fold_constants, step([y], feeds=[y.op.inputs[1]])) == text("""
        mul/folded = Const() [3.0, 6.0]
        y = Add(mul/folded, x)
        return y:0
        """)


def test_static_shapes_are_folded() -> None:
    a = x(2, 3)
    y = tf.reshape(a, tf.shape(a, name="s")[::-1], name="y")
    lines = after(fold_constants, step([y], feeds=[a])).splitlines()
    assert [line.partition(" = ")[2] for line in lines[:-1]] == [
        "Const() [3, 2]",
        f"Reshape(x, {y.op.inputs[1].op.name}/folded)",
    ]


def test_what_may_be_fed_or_vary_is_not_folded() -> None:
    a, c = x(None, 3), tf.constant(2.0, name="c")
    before = step([tf.shape(a), c * 2], feeds=[a, c])
    assert not changes(fold_constants, before)


def test_what_fails_is_not_folded() -> None:
    before = step([tf.gather(tf.constant([1, 2]), tf.constant(5))])
    assert "GatherV2" in after(fold_constants, before)


def test_folding_makes_no_large_constants() -> None:
    before = step([tf.zeros([MAX_BYTES]) + tf.fill([MAX_BYTES], 1.0)])
    fold_constants(before)
    made = [n for n in before.nodes if n.type == "Const"]
    assert all(np.asarray(node.op.value).nbytes <= MAX_BYTES for node in made)


def test_identities_are_stripped() -> None:
    a = x(2)
    y = tf.negative(tf.stop_gradient(tf.identity(a, name="i"), name="s"), name="y")
    assert after(strip_identities, step([y], feeds=[a])) == text("""
        y = Neg(x)
        return y:0
        """)


def test_an_identity_that_waits_stays() -> None:
    a, v = x(), tf.Variable(1.0, name="v")
    with tf.control_dependencies([v.assign(a)]):
        y = tf.identity(a, name="y")
    before = step([y], feeds=[a])
    assert not changes(strip_identities, before)


def test_what_others_wait_for_stays() -> None:
    a = x(2)
    first = tf.identity(a, name="first")
    with tf.control_dependencies([first]):
        y = tf.negative(tf.identity(first, name="second"), name="y")
    assert after(strip_identities, step([y], feeds=[a])) == text("""
        first = Identity(x)
        second = Identity(x, ^first)
        y = Neg(second)
        return y:0
        """)


def test_a_shape_that_is_known_does_not_hide_what_fails() -> None:
    """Neither a variable without a value nor an assertion that others come after."""
    v = tf.Variable(tf.ones([2, 3]))
    with tf.control_dependencies([tf.Assert(tf.less(tf.placeholder_with_default(2, []), 1), [1])]):
        guarded = tf.identity(tf.ones([4]))
    with tf.Session() as session:
        with pytest.raises(tf.errors.FailedPreconditionError):
            session.run(tf.rank(v))
        with pytest.raises(tf.errors.InvalidArgumentError):
            session.run(tf.shape(guarded))
        session.run(v.initializer)
        assert session.run(tf.rank(v)) == 2


def test_a_merged_node_that_is_gone_stands_for_nothing() -> None:
    """Of three equal chains, what the second one takes goes with it."""
    a = x(2)
    ends = [tf.exp(tf.sin(a)) for _ in range(3)]
    y = tf.subtract(tf.add_n(ends), tf.sin(a), name="y")
    lines = after(merge_duplicates, step([y], feeds=[a])).splitlines()
    assert [line.partition(" = ")[2].partition("(")[0] for line in lines[:-1]] == [
        "Sin",
        "Exp",
        "AddN",
        "Sub",
    ]


def test_a_node_of_many_inputs_follows_them() -> None:
    a = x(2)
    y = tf.add_n([tf.identity(tf.sin(a + float(n))) for n in range(40)], name="y")
    graph = step([y, tf.identity(y)], feeds=[a])
    assert "Identity" not in after(strip_identities, graph).replace("Identity_40", "")


def test_variables_and_what_eager_code_computed_stay_the_nodes_they_are() -> None:
    v = tf.Variable([1.0, 2.0])
    graph = step([(v.read_value() + 0.0) * 1])
    before = {node for node in graph.nodes if not node.inputs}
    assert all(node.graph is v.graph for node in before)
