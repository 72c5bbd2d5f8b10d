"""`gradients`: flow, seeds, stops, overrides, slices, custom gradients."""

import inspect

import numpy as np
import pytest

import thalweg as tf
from tests.ops.harness import check_lowerings
from thalweg.graph.op import Op


@pytest.fixture(autouse=True)
def session():
    with tf.Graph().as_default(), tf.Session() as opened:
        yield opened


def test_chain_and_fan_out(session):
    x = tf.constant(3.0)
    y = x * x + 2.0 * x
    assert session.run(tf.gradients(y, x)) == [8.0]


def test_unconnected_is_none():
    x, y = tf.constant(1.0), tf.constant(2.0)
    assert tf.gradients(y, x) == [None]
    assert tf.gradients(y * 2.0, [x, y])[0] is None


def test_nothing_flows_from_text():
    assert tf.gradients(tf.constant("text"), tf.constant(1.0)) == [None]


def test_unconnected_may_be_zeros(session):
    x, y = tf.constant([1.0, 2.0]), tf.constant(2.0)
    (g,) = tf.gradients(y, x, unconnected_gradients=tf.UnconnectedGradients.ZERO)
    assert session.run(g).tolist() == [0, 0]
    with pytest.raises(ValueError, match="unconnected_gradients"):
        tf.gradients(y, x, unconnected_gradients="some")


def test_seeds(session):
    x = tf.constant([1.0, 2.0])
    y = x * 3.0
    (g,) = tf.gradients(y, x, grad_ys=[tf.constant([1.0, 10.0])])
    assert session.run(g).tolist() == [3.0, 30.0]
    with pytest.raises(ValueError, match="grad_ys"):
        tf.gradients([y], x, grad_ys=[None, None])
    with pytest.raises(ValueError, match="does not fit"):
        tf.gradients(y, x, grad_ys=[tf.zeros([3])])


def test_several_ys_add_up(session):
    x = tf.constant(2.0)
    assert session.run(tf.gradients([x * x, 3.0 * x], x)) == [7.0]


def test_gradient_of_an_inner_tensor(session):
    x = tf.constant(2.0)
    y = x * x
    z = y * y
    assert session.run(tf.gradients(z, [x, y])) == [32.0, 8.0]


def test_stop_gradients(session):
    x = tf.constant(2.0)
    y = x * x
    z = y + x
    assert session.run(tf.gradients(z, [x], stop_gradients=[y])) == [1.0]
    assert session.run(tf.gradients(tf.stop_gradient(y) + x, x)) == [1.0]


@pytest.mark.parametrize("method", [None, 0, 1, 2])
def test_aggregation_methods(session, method):
    x = tf.constant(2.0)
    y = x * 1.0 + x * 2.0 + x * 3.0
    assert session.run(tf.gradients(y, x, aggregation_method=method)) == [6.0]


def test_bad_aggregation_method():
    x = tf.constant(2.0)
    with pytest.raises(ValueError, match="aggregation_method"):
        tf.gradients(x * x, x, aggregation_method=7)


def test_gate_and_colocate(session):
    x = tf.constant(2.0, name="x")
    with tf.device("/cpu:0"):
        y = x * x
    (g,) = tf.gradients(y, x, gate_gradients=True, colocate_gradients_with_ops=True)
    assert session.run(g) == 4.0
    assert g.device == "/device:CPU:0"


def test_gradients_are_gated_where_an_op_takes_a_variable_itself():
    def gates(x, y):
        before = set(tf.get_default_graph().get_operations())
        tf.gradients(x * y, [x, y], gate_gradients=True)
        made = [node for node in tf.get_default_graph().get_operations() if node not in before]
        return sum(node.type == "NoOp" for node in made)

    v = tf.Variable(3.0)
    assert gates(tf.constant(2.0), v.value()) == 0
    assert gates(tf.constant(2.0), v._ref()) == 1


def test_parts_of_a_gradient_meet_where_they_all_are():
    with tf.device("/gpu:1"):
        w = tf.constant(1.0, name="w")
    a, b = tf.sin(w, name="a"), tf.cos(w, name="b")
    with tf.device("/gpu:2"):
        c = tf.tanh(w, name="c")
    (same,) = tf.gradients(a + b, w, colocate_gradients_with_ops=True)
    (apart,) = tf.gradients(a + c, w, colocate_gradients_with_ops=True)
    assert same.op.colocation_groups() == [b"loc:@a"]
    assert apart.op.colocation_groups() == [b"loc:@w"]


def test_register_gradient_and_override(session):
    @tf.RegisterGradient("TimesTen")
    def times_ten(op, dy):
        return dy * 10.0

    x = tf.constant(2.0)
    with x.graph.gradient_override_map({"Neg": "TimesTen"}):
        y = tf.negative(x)
    assert session.run(tf.gradients(y, x)) == [10.0]
    assert session.run(tf.gradients(tf.negative(x), x)) == [-1.0]
    with pytest.raises(KeyError, match="TimesTen"):
        tf.RegisterGradient("TimesTen")(times_ten)


def test_an_op_without_gradient_says_so():
    class Opaque(Op):
        """A test op without a gradient."""

        signature = "x: T -> y: T"

        def shape(self, x):
            return x.shape

        def numpy(self, x):
            return x

    x = tf.constant(2.0)
    y = Opaque()(x)
    with pytest.raises(LookupError, match=r"No gradient defined.*Opaque.*test_gradients\.py"):
        tf.gradients(y, x)


def test_slices_stay_slices_until_needed(session):
    x = tf.constant(np.arange(6.0, dtype=np.float32).reshape(3, 2))
    rows = tf.gather(x, [0, 2, 0])
    (g,) = tf.gradients(rows, x)
    assert isinstance(g, tf.IndexedSlices)
    assert session.run(tf.convert_to_tensor(g)).tolist() == [[2, 2], [0, 0], [1, 1]]
    (h,) = tf.gradients(tf.gather(tf.identity(x), [1]), x)
    assert isinstance(h, tf.IndexedSlices)
    (both,) = tf.gradients([rows, x * 1.0], x)
    assert session.run(both).tolist() == [[3, 3], [1, 1], [2, 2]]


def test_hessians(session):
    x = tf.constant([1.0, 2.0])
    y = tf.reduce_sum(x * x * x)
    assert session.run(tf.hessians(y, x)[0]).tolist() == [[6, 0], [0, 12]]


@pytest.mark.parametrize("known", ["all", "rank", "nothing"])
@pytest.mark.parametrize("shape", [(), (1,), (3,), (2, 2)])
def test_hessians_whatever_is_known_of_the_shape(session, shape, known):
    """Of the sum of cubes plus the square of the sum: 6x on the diagonal, 2 everywhere."""
    value = np.random.default_rng(4).normal(size=shape)
    static_shape = {"all": shape, "rank": [None] * len(shape), "nothing": None}[known]
    x = tf.placeholder(tf.float64, static_shape)
    (result,) = tf.hessians(tf.reduce_sum(x**3) + tf.reduce_sum(x) ** 2, x)
    expected = 2 + np.diag(6 * value.ravel())
    np.testing.assert_allclose(session.run(result, {x: value}), expected.reshape(shape * 2))
    (third,) = tf.gradients(result, x)
    np.testing.assert_allclose(session.run(third, {x: value}), np.full(shape, 6.0))


def test_custom_gradient(session):
    @tf.custom_gradient
    def clipped(x, y):
        def grad(dz):
            return dz * 100.0, None

        return x * y, grad

    x, y = tf.constant(2.0), tf.constant(5.0)
    z = clipped(x, y) * 3.0
    assert session.run(z) == 30.0
    gx, gy = tf.gradients(z, [x, y])
    assert session.run(gx) == 300.0
    assert gy is None
    check_lowerings(clipped, [np.array([1.0, 2.0]), np.array([3.0, 4.0])])


def test_a_wrong_gradient_shape_is_caught():
    @tf.RegisterGradient("WrongShape")
    def wrong(op, dy):
        return tf.zeros([5])

    x = tf.constant([1.0, 2.0])
    with x.graph.gradient_override_map({"Neg": "WrongShape"}):
        y = tf.negative(x)
    with pytest.raises(
        ValueError, match=rf"Incompatible shapes.*\(made at {__file__}:{_line_of(x.op)}\)"
    ):
        tf.gradients(y, x)


def _line_of(node):
    file, _, line = node.origin.rpartition(":")
    assert file == __file__
    return int(line)


def test_gradients_are_made_where_they_were_asked_for_but_those_of_a_users_function_in_it():
    lines = []

    @tf.custom_gradient
    def doubled(x):
        def grad(dy):
            lines.append(inspect.currentframe().f_lineno + 1)
            return dy * 2.0

        return x * 2.0, grad

    x = tf.placeholder(tf.float32, [3])
    y = tf.tanh(doubled(tf.sin(x)))
    first = len(y.graph.get_operations())
    here = inspect.currentframe().f_lineno + 1
    tf.gradients(y, x)
    made = y.graph.get_operations()[first:]
    inside = [node for node in made if _line_of(node) == lines[0]]
    assert {node.type for node in inside} == {"Mul", "Const"}
    assert {_line_of(node) for node in made if node not in inside} == {here}
    assert {"TanhGrad", "Cos"} <= {node.type for node in made if node not in inside}


def test_rows_taken_by_indices_of_two_dtypes(session):
    x = tf.Variable(np.arange(8.0).reshape(4, 2))
    one, other = (tf.gather(x, tf.constant([1, 3], dtype)) for dtype in (tf.int32, tf.int64))
    (dx,) = tf.gradients([one, other * 2.0], x)
    assert dx.indices.dtype == tf.int64
    session.run(tf.global_variables_initializer())
    assert session.run(tf.convert_to_tensor(dx)).tolist() == [[0, 0], [3, 3], [0, 0], [3, 3]]


def test_a_custom_gradient_may_be_nested(session):
    @tf.custom_gradient
    def doubled(x, y):
        return [x * 2, y * 2], lambda dx, dy: ([dx * 3, dy * 4], [])

    x, y = tf.constant(1.0), tf.constant(1.0)
    first, second = doubled(x, y)
    assert session.run(tf.gradients(first + second, [x, y])) == [3.0, 4.0]
