"""Constants, placeholders, identities and grouping."""

from typing import Any

import numpy as np
import pytest

import thalweg as tf
from tests.ops.harness import check
from thalweg.ops.core import basic

X = np.array([[1.5, -2.0], [0.5, 3.0]])


@pytest.mark.parametrize(
    "identity",
    [
        tf.identity,
        lambda x: tf.identity_n([x, x]),
        lambda x: tf.placeholder_with_default(x, [2, 2]),
    ],
)
def test_identities(identity: Any) -> None:
    check(identity, X)


def test_identity_n_mixes_dtypes() -> None:
    with tf.Session() as session:
        number, word = session.run(tf.identity_n([1, "a"]))
    assert (number, word) == (1, b"a")


@pytest.mark.parametrize("stop", [tf.stop_gradient, tf.guarantee_const])
def test_ops_without_a_gradient(stop: Any) -> None:
    x = tf.constant(X)
    assert tf.gradients(stop(x), x) == [None]


def test_prevented_gradient() -> None:
    x = tf.constant(X)
    y = basic.PreventGradient(message="not smooth")(x)
    with pytest.raises(LookupError, match="not smooth"):
        tf.gradients(y, x)


def test_constant() -> None:
    with tf.Session() as session:
        assert session.run(tf.constant([1, 2], shape=[2, 2])).tolist() == [[1, 2], [2, 2]]
        assert session.run(tf.constant(7, shape=[0, 3])).shape == (0, 3)
    with pytest.raises(TypeError, match="Expected Tensor's shape"):
        tf.constant([1, 2], shape=[2, 1], verify_shape=True)


def test_a_constant_is_an_immutable_copy() -> None:
    with tf.Session() as session:
        value = session.run(tf.constant(X))
        value[0, 0] = 100
        assert session.run(tf.constant(X))[0, 0] == 1.5


def test_placeholder_must_be_fed() -> None:
    x = tf.placeholder(tf.float32, [None, 2])
    message = rf"placeholder tensor '{x.op.name}' with dtype float and shape \[\?,2\]"
    with tf.Session() as session, pytest.raises(tf.errors.InvalidArgumentError, match=message):
        session.run(x)


def test_placeholder_with_default() -> None:
    x = tf.placeholder_with_default([1, 2], [None])
    with tf.Session() as session:
        assert session.run(x).tolist() == [1, 2]
        assert session.run(x, {x: [3]}).tolist() == [3]
    with pytest.raises(ValueError, match="incompatible"):
        tf.placeholder_with_default([1, 2], [3])


def test_sizes_convert_to_tensors() -> None:
    shape = tf.TensorShape([2, 3])
    assert tf.convert_to_tensor(shape).dtype == tf.int32
    assert tf.convert_to_tensor(shape[1], tf.int64).dtype == tf.int64
    assert tf.convert_to_tensor(tf.TensorShape([])).shape.as_list() == [0]
    assert tf.convert_to_tensor(tf.TensorShape([2**40])).dtype == tf.int64
    with pytest.raises(ValueError, match="partially known TensorShape"):
        tf.convert_to_tensor(tf.TensorShape([None]))
    with pytest.raises(ValueError, match="unknown Dimension"):
        tf.convert_to_tensor(tf.Dimension(None))
    with pytest.raises(TypeError, match="int32 or int64"):
        tf.convert_to_tensor(shape, tf.float32)


def test_group_and_tuple_wait_for_all() -> None:
    with tf.Session() as session:
        counter = tf.Variable(0)
        session.run(counter.initializer)
        once = tf.assign_add(counter, 1)
        assert session.run(tf.group(once, [once.op])) is None
        assert session.run(counter) == 1
        first, nothing = tf.tuple([tf.constant(5), None], control_inputs=[once])
        assert nothing is None
        assert session.run(first) == 5
        assert session.run(counter) == 2


def test_group_and_tuple_inside_a_branch_capture_outer_tensors() -> None:
    with tf.Graph().as_default(), tf.Session() as session:
        counter, x = tf.Variable(0), tf.constant(3.0)

        def grouped() -> Any:
            with tf.control_dependencies([tf.group(x, tf.assign_add(counter, 1))]):
                return tf.identity(x)

        def joined() -> Any:
            return tf.tuple([x, tf.assign_add(counter, 10)])[0]

        def awaited() -> Any:
            return basic.with_dependencies([tf.assign_add(counter, 100)], x)

        session.run(counter.initializer)
        for function in (grouped, joined, awaited):
            assert session.run(tf.cond(x > 2.0, function, lambda: -x)) == 3.0
        assert session.run(counter) == 111


def test_a_group_has_a_node_per_device() -> None:
    with tf.Graph().as_default() as graph:
        with tf.device("/job:a"):
            a = tf.constant(0)
        with tf.device("/job:b"):
            b, c = tf.constant(1), tf.constant(2)
        assert tf.group(b, c).device == b.device
        with tf.device("/job:c"):
            root = tf.group(a, b, c, name="root")
        assert "job:c" in root.device
        assert [(n.name, n.device) for n in root.control_inputs] == [
            ("root/NoOp", a.device),
            ("root/NoOp_1", b.device),
        ]
        assert graph.get_operation_by_name("root") is root
        after = basic.with_dependencies([root], a)
        assert after.device == a.device


def test_no_op() -> None:
    with tf.Session() as session:
        assert session.run(tf.no_op()) is None


@pytest.mark.parametrize("stop", [tf.stop_gradient, basic.PreventGradient()])
def test_stopped_gradients(stop: Any) -> None:
    check(stop, X, expect=X, gradient=False)


def test_a_guaranteed_constant_has_no_gradient() -> None:
    check(tf.guarantee_const, X, expect=X, gradient=False)
    with tf.Graph().as_default():
        x = tf.constant(X)
        assert tf.gradients(tf.guarantee_const(x), x) == [None]


def test_a_constant_too_large_for_a_graph_def() -> None:
    large = np.broadcast_to(np.float32(1), [1 << 29])  # takes no memory
    with tf.Graph().as_default(), pytest.raises(ValueError, match=rf"2GB.*'Const'.*{__file__}:\d+"):
        tf.constant(large)
    with tf.Graph().as_default(), pytest.raises(ValueError, match="2GB"):
        tf.reduce_sum(large)
