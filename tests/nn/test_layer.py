"""The base of layers: names, scopes, sharing, losses, updates, demands on inputs."""

import copy
from typing import Any

import numpy as np
import pytest

import thalweg as tf
from thalweg.graph.node import reached


@pytest.fixture(autouse=True)
def graph() -> Any:
    with tf.Graph().as_default() as graph:
        yield graph


class Scale(tf.layers.Layer):
    """inputs · w"""

    def build(self, input_shape: Any) -> None:
        self.w = self.add_weight("w", input_shape[-1:], initializer=tf.ones_initializer())
        self.built = True

    def call(self, inputs: Any) -> Any:
        return inputs * self.w


def names() -> list[str]:
    return [v.op.name for v in tf.global_variables()]


def test_names_are_unique_and_shared_between_calls() -> None:
    x = tf.ones([2, 3])
    layer = Scale()
    assert (layer.name, layer.built) == ("scale", False)
    one, two = layer(x), layer(x)
    Scale()(x)
    Scale(name="other")(x)
    assert names() == ["scale/w", "scale_1/w", "other/w"]
    assert one.op.name == "scale/mul"
    assert two.op.name == "scale/mul_1"
    assert layer.scope_name == "scale"


def test_the_scope_of_the_first_call_counts() -> None:
    layer = Scale()
    with tf.variable_scope("outer"):
        layer(tf.ones([2, 3]))
    with tf.variable_scope("elsewhere"):
        layer(tf.ones([2, 3]))
    assert names() == ["outer/scale/w"]


def test_reuse() -> None:
    x = tf.ones([2, 3])
    Scale(name="shared")(x)
    Scale(name="shared", _reuse=True)(x)
    with tf.variable_scope("a"):
        Scale(name="b", _scope="b")(x)
    with tf.variable_scope("a", reuse=True):
        Scale(name="b", _scope="b")(x)
    assert names() == ["shared/w", "a/b/w"]


def test_variables_by_kind() -> None:
    layer = Scale()
    extra = layer.add_weight("extra", [2], trainable=False)
    layer(tf.ones([2, 3]))
    assert layer.trainable_variables == [layer.w]
    assert layer.non_trainable_variables == [extra]
    assert layer.weights == [layer.w, extra]
    assert layer.count_params() == 5
    layer.trainable = False
    assert layer.trainable_variables == []
    assert tf.trainable_variables() == [layer.w]


def test_dtype_follows_the_first_input() -> None:
    layer = Scale()
    layer(tf.ones([2, 3], tf.float64))
    assert layer.dtype == "float64"
    assert layer.w.dtype.base_dtype == tf.float64


def test_regularizers_add_losses_once() -> None:
    class Regular(tf.layers.Layer):
        def build(self, input_shape: Any) -> None:
            self.add_weight("w", [2], regularizer=lambda w: tf.reduce_sum(w))

    layer = Regular(name="r", activity_regularizer=tf.reduce_mean)
    layer(tf.ones([2]))
    Regular(name="r", _reuse=True)(tf.ones([2]))
    assert len(layer.losses) == 2
    assert tf.losses.get_regularization_losses() == layer.losses


def test_losses_and_updates_by_input() -> None:
    layer = Scale()
    x, y = tf.ones([2, 3]), tf.ones([4, 3])
    one = tf.reduce_sum(layer(x))
    layer(y)
    layer.add_loss(one, inputs=x)
    free = tf.constant(1.0)
    layer.add_loss(free)
    update = tf.assign(layer.w, tf.reduce_sum(y, 0))
    layer.add_update(update)
    assert layer.get_losses_for(x) == [one]
    assert layer.get_losses_for(None) == [free]
    assert layer.get_updates_for(y) == [update]
    assert tf.get_collection(tf.GraphKeys.UPDATE_OPS) == [update]


def test_what_depends_on_inputs_is_found_without_a_walk_behind_them() -> None:
    x = tf.ones([2, 3])
    for _ in range(50):
        x = x + 1.0
    layer = Scale()
    update = layer(x) * 2.0
    layer.add_update(update)
    found: list[int] = []

    def walk(starts: Any, sources: Any) -> Any:
        nodes = reached(starts, sources)
        found.append(len(nodes))
        return nodes

    with pytest.MonkeyPatch.context() as patched:
        patched.setattr("thalweg.nn.layer.reached", walk)
        assert layer.get_updates_for(x) == [update]
        assert layer.get_updates_for(None) == []
    assert max(found) < 10


def test_input_and_output() -> None:
    layer = Scale()
    x = tf.ones([2, 3])
    y = layer(x)
    assert (layer.input, layer.output) == (x, y)
    assert (layer.input_shape, layer.output_shape) == ((2, 3), (2, 3))
    layer(x)
    with pytest.raises(AttributeError, match="called 2 times"):
        _ = layer.output


@pytest.mark.parametrize(
    ("spec", "shape", "message"),
    [
        ({"ndim": 2}, [2, 3, 4], "expected ndim=2"),
        ({"min_ndim": 2}, [2], "min_ndim=2"),
        ({"max_ndim": 2}, [2, 3, 4], "max_ndim=2"),
        ({"axes": {-1: 5}}, [2, 3], "axis -1 of size 5"),
        ({"shape": [2, 4]}, [2, 3], "expected shape"),
        ({"ndim": 2}, None, "rank is undefined"),
        ({"dtype": tf.int32}, [2], "expected dtype"),
    ],
)
def test_demands_on_inputs(spec: Any, shape: Any, message: str) -> None:
    layer = tf.layers.Layer()
    layer.input_spec = tf.layers.InputSpec(**spec)
    with pytest.raises(ValueError, match=message):
        layer(tf.placeholder(tf.float32, shape))


def test_unknown_arguments_and_activations() -> None:
    with pytest.raises(TypeError, match="not understood"):
        tf.layers.Layer(colour="red")
    with pytest.raises(ValueError, match="Unknown activation"):
        tf.layers.dense(tf.ones([1, 1]), 1, activation="nothing")


def test_a_scope_given_to_call() -> None:
    class Scoped(tf.layers.Layer):
        def call(self, inputs: Any, scope: Any = None) -> Any:
            return inputs * tf.get_variable("v", [1])

    layer = Scoped()
    layer(tf.ones([1]))
    layer(tf.ones([1]))
    assert names() == ["scoped/v"]


def test_values() -> None:
    y = Scale()(tf.constant([[1.0, 2.0]]))
    with tf.Session() as session:
        session.run(tf.global_variables_initializer())
        np.testing.assert_array_equal(session.run(y), [[1, 2]])


def test_a_copy_has_variables_of_its_own_from_then_on() -> None:
    cell = tf.nn.rnn_cell.GRUCell(3)
    twin = copy.deepcopy(cell)
    for scope, each in (("a", cell), ("b", twin)):
        with tf.variable_scope(scope):
            each(tf.ones([1, 2]), each.zero_state(1, tf.float32))
    assert len(cell.variables) == len(twin.variables) == 4
    assert not {id(v) for v in cell.variables} & {id(v) for v in twin.variables}
    built = copy.deepcopy(cell)
    assert built.variables == cell.variables
