"""Variables: their nodes and names, values, changes, and standing for tensors."""

import numpy as np
import pytest

import thalweg as tf


@pytest.fixture(autouse=True)
def session():
    with tf.Graph().as_default(), tf.Session() as session:
        yield session


def initialize():
    tf.get_default_session().run(
        [tf.global_variables_initializer(), tf.local_variables_initializer()]
    )


def test_nodes_and_names():
    w = tf.Variable([1.0, 2.0], name="w")
    names = [node.name for node in tf.get_default_graph().get_operations()]
    assert names == ["w/initial_value", "w", "w/Assign", "w/read"]
    assert w.name == "w:0"
    assert w.op.name == "w"
    assert w.dtype == tf.float32_ref
    assert w.shape.as_list() == [2]
    assert w.initializer.name == "w/Assign"
    assert tf.Variable(0, name="w").name == "w_1:0"
    assert repr(w) == "<tf.Variable 'w:0' shape=(2,) dtype=float32_ref>"


def test_callable_initial_value_is_made_inside_the_scope_and_without_dependencies():
    with tf.control_dependencies([tf.no_op()]), tf.name_scope("outer"):
        w = tf.Variable(lambda: tf.constant(3.0), name="w")
    assert w.initial_value.op.name == "outer/w/Initializer/Const"
    assert not w.initial_value.op.control_inputs
    assert not w.initializer.control_inputs
    assert w.initial_value.op.colocation_groups() == [b"loc:@outer/w"]
    initialize()
    assert w.eval() == 3.0


@pytest.mark.parametrize(
    "dependency",
    [
        lambda x, v: tf.no_op(),
        lambda x, v: tf.Assert(x > 0, [x]),
        lambda x, v: tf.Print(x, [x]),
        lambda x, v: tf.assign_add(v, x),
    ],
)
def test_initial_value_of_a_body_is_recomputed_without_dependencies(dependency):
    v = tf.Variable(0.0)

    def body(x):
        with tf.control_dependencies([dependency(x, v)]):
            value = tf.fill([2], 3.0)
        return x + tf.reduce_sum(tf.Variable(value))

    y = tf.cond(tf.placeholder_with_default(True, []), lambda: body(tf.ones([])), lambda: 0.0)
    z = tf.while_loop(lambda x: x < 10.0, body, [1.0])
    assert {op.type for op in tf.get_default_graph().get_operations()} >= {"Assign", "Fill"}
    assert "AssignAdd" not in {op.type for op in tf.get_default_graph().get_operations()}
    initialize()
    assert (y.eval(), z.eval()) == (7.0, 13.0)


def test_collections_and_trainable():
    a = tf.Variable(1.0)
    b = tf.Variable(1.0, trainable=False)
    c = tf.Variable(1.0, collections=[tf.GraphKeys.LOCAL_VARIABLES], trainable=False)
    assert tf.global_variables() == [a, b]
    assert tf.all_variables() == [a, b]
    assert tf.trainable_variables() == [a]
    assert tf.local_variables() == [c]
    assert tf.global_variables("Variable_1") == [b]
    with pytest.raises(ValueError, match="must be a list, tuple, or set"):
        tf.Variable(1.0, collections="variables")


def test_bad_initial_values():
    with pytest.raises(ValueError, match="initial_value must be specified"):
        tf.Variable()
    unknown = tf.placeholder(tf.float32)
    with pytest.raises(ValueError, match="must have a shape specified"):
        tf.Variable(unknown)
    assert tf.Variable(unknown, validate_shape=False).shape.rank is None


def test_uninitialized_use_names_the_variable():
    w = tf.Variable(1.0, name="lonely")
    with pytest.raises(tf.errors.FailedPreconditionError, match="lonely"):
        w.eval()


def test_changes_read_back():
    w = tf.Variable([1.0, 2.0])
    initialize()
    assert w.assign([5.0, 6.0]).eval().tolist() == [5, 6]
    assert w.assign_add([1.0, 1.0]).eval().tolist() == [6, 7]
    assert w.assign_sub([2.0, 0.0]).eval().tolist() == [4, 7]
    assert w.assign_add([1.0, 1.0], read_value=False).type == "AssignAdd"
    rows = tf.IndexedSlices(tf.constant([10.0]), tf.constant([1]))
    assert w.scatter_add(rows).eval().tolist() == [4, 17]
    assert w.scatter_sub(rows).eval().tolist() == [4, 7]
    assert w.scatter_mul(rows).eval().tolist() == [4, 70]
    assert w.scatter_div(rows).eval().tolist() == [4, 7]
    assert w.scatter_max(rows).eval().tolist() == [4, 10]
    assert w.scatter_min(rows).eval().tolist() == [4, 10]
    assert w.scatter_update(rows).eval().tolist() == [4, 10]
    assert w.scatter_nd_add([[0]], [1.0]).eval().tolist() == [5, 10]
    assert w.sparse_read([1, 1, 0]).eval().tolist() == [10, 10, 5]
    with pytest.raises(ValueError, match="not IndexedSlices"):
        w.scatter_add(3.0)
    w.load([0.5, 0.25])
    assert w.eval().tolist() == [0.5, 0.25]


def test_count_up_to():
    counter = tf.Variable(0)
    initialize()
    step = counter.count_up_to(2)
    assert [step.eval(), step.eval()] == [0, 1]
    with pytest.raises(tf.errors.OutOfRangeError, match="Reached limit of 2"):
        step.eval()
    assert counter.eval() == 2


def test_assign_validates_shapes():
    w = tf.Variable([1.0, 2.0])
    initialize()
    with pytest.raises(ValueError, match="Assign"):
        w.assign([1.0, 2.0, 3.0])
    fed = tf.placeholder(tf.float32)
    with pytest.raises(tf.errors.InvalidArgumentError, match="shapes"):
        w.assign(fed).eval({fed: np.zeros(3)})
    assert tf.assign(w, [1.0, 2.0, 3.0], validate_shape=False).eval().tolist() == [1, 2, 3]


def test_initialized_value_depends_on_nothing_else(session):
    w = tf.Variable(tf.random_uniform([3]))
    copy = tf.Variable(w.initialized_value() * 2.0)
    session.run([w.initializer, copy.initializer])
    np.testing.assert_allclose(copy.eval(), 2 * w.eval())
    w.load([1.0, 2.0, 3.0])
    session.run(copy.initializer)
    assert copy.eval().tolist() == [2, 4, 6]


def test_operators_are_those_of_the_value():
    w = tf.Variable([4.0, 9.0])
    flags = tf.Variable([True, False])
    initialize()
    results = {
        "add": (w + 1, [5, 10]),
        "radd": (1 + w, [5, 10]),
        "rsub": (1 - w, [-3, -8]),
        "rmul": (np.float32(2) * w, [8, 18]),
        "truediv": (w / 2, [2, 4.5]),
        "floordiv": (w // 2, [2, 4]),
        "mod": (w % 4, [0, 1]),
        "pow": (w**0.5, [2, 3]),
        "neg": (-w, [-4, -9]),
        "abs": (abs(-w), [4, 9]),
        "less": (w < 5, [True, False]),
        "invert": (~flags, [False, True]),
        "and": (flags & [True, True], [True, False]),
        "item": (w[1:], [9]),
    }
    for name, (tensor, expected) in results.items():
        assert tensor.eval().tolist() == expected, name
    with pytest.raises(TypeError, match="not iterable"):
        list(w)


def test_conversion_takes_the_reference_only_where_it_is_asked_for():
    w = tf.Variable([1.0])
    assert tf.convert_to_tensor(w) is w.value()
    assert tf.convert_to_tensor(w, as_ref=True).op is w.op
    with pytest.raises(ValueError, match="Incompatible type conversion"):
        tf.convert_to_tensor(w, tf.int32)
    with pytest.raises(TypeError, match="mutable"):
        tf.assign(tf.constant(1.0), 2.0)


def test_gradients_reach_variables_through_any_read():
    w = tf.Variable(3.0)
    loss = w * w + w.read_value()
    (gradient,) = tf.gradients(loss, w)
    initialize()
    assert gradient.eval() == 7.0


def test_fetch_feed_and_control_dependencies(session):
    w = tf.Variable(3.0)
    initialize()
    assert session.run(w) == 3.0
    assert session.run(w * 2, {w.value(): 10.0}) == 20.0
    with tf.control_dependencies([w.assign(4.0)]):
        after = w.read_value()
    assert after.eval() == 4.0


def test_reports(session):
    a = tf.Variable(1.0, name="a")
    tf.Variable(1.0, name="b")
    report = tf.report_uninitialized_variables()
    assert session.run(report).tolist() == [b"a", b"b"]
    check = tf.assert_variables_initialized()
    with pytest.raises(tf.errors.FailedPreconditionError):
        session.run(check)
    session.run(a.initializer)
    assert session.run(report).tolist() == [b"b"]
    assert session.run([tf.is_variable_initialized(v) for v in tf.global_variables()]) == [
        True,
        False,
    ]
    initialize()
    assert session.run(report).size == 0
    session.run(check)


def test_empty_variables_need_no_initializer(session):
    empty = tf.Variable(tf.zeros([0, 2]))
    assert session.run(empty).shape == (0, 2)


def test_protos_round_trip():
    with tf.name_scope("scope"):
        w = tf.Variable(1.0, name="w")
    again = tf.Variable.from_proto(w.to_proto())
    assert again.op is w.op
    assert again.initializer is w.initializer
    assert again.initial_value is w.initial_value
    assert w.to_proto(export_scope="other") is None
    assert w.to_proto(export_scope="scope").variable_name == "w:0"


def test_caching_device_and_constraint():
    w = tf.Variable(1.0, caching_device="/job:w", constraint=abs)
    assert w.value().device == "/job:w"
    assert w.constraint is abs
    with pytest.raises(ValueError, match="callable"):
        tf.Variable(1.0, constraint=3)


def test_a_value_once_read_never_changes(session):
    w = tf.Variable([1.0, 2.0])
    initialize()
    before = session.run(w)
    session.run(w.assign_add([1.0, 1.0]))
    assert before.tolist() == [1, 2]
