"""TensorArray in the graph: values, static shapes, gradients of both orders, errors."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import thalweg as tf
from tests.ops.harness import check_gradient
from thalweg.graph import nest


@pytest.fixture(autouse=True)
def session():
    with tf.Graph().as_default(), tf.Session() as session:
        yield session


def matrix(rows, columns=2):
    return np.random.RandomState(rows).uniform(0.5, 2, (rows, columns))


def reusable_array(size, dtype=tf.float64, **options):
    return tf.TensorArray(dtype, size, clear_after_read=False, **options)


# Values and static shapes


def test_write_read_stack(session):
    array = tf.TensorArray(tf.float32, 3, clear_after_read=False)
    for index in range(3):
        array = array.write(index, [float(index), 1.0])
    assert array.read(1).shape.as_list() == [2]
    assert array.stack().shape.as_list() == [3, 2]
    assert array.concat().shape.as_list() == [None]
    assert array.gather([2, 0]).shape.as_list() == [2, 2]
    values = session.run([array.read(1), array.stack(), array.gather([2, 0]), array.concat()])
    assert values[0].tolist() == [1, 1]
    assert values[1].tolist() == [[0, 1], [1, 1], [2, 1]]
    assert values[2].tolist() == [[2, 1], [0, 1]]
    assert values[3].tolist() == [0, 1, 1, 1, 2, 1]
    assert session.run(array.size()) == 3


def test_the_value_of_a_stack_is_the_callers(session):
    array = tf.TensorArray(tf.float32, 2, clear_after_read=False).unstack([1.0, 2.0])
    first, second = session.run([array.stack(), array.stack()])
    first[0] = 7
    assert second.tolist() == [1, 2]


def test_dynamic_size(session):
    array = tf.TensorArray(tf.int32, 0, dynamic_size=True, clear_after_read=False)
    array = array.scatter([4, 1], [[1], [2]]).write(0, [3]).write(2, [4]).write(3, [5])
    assert array.dynamic_size
    assert array.stack().shape.as_list() == [None, 1]
    assert session.run(array.stack()).tolist() == [[3], [2], [4], [5], [1]]
    assert session.run(array.size()) == 5


def test_split_and_ragged_entries(session):
    array = tf.TensorArray(tf.float32, 3, infer_shape=False, clear_after_read=False)
    array = array.split([[1.0], [2.0], [3.0]], [2, 0, 1])
    assert array.read(0).shape.rank is None
    assert session.run(array.read(0)).tolist() == [[1], [2]]
    assert session.run(array.read(1)).shape == (0, 1)
    assert session.run(array.concat()).tolist() == [[1], [2], [3]]
    equal = tf.TensorArray(tf.float32, 3).split([1.0, 2.0, 3.0], [1, 1, 1])
    assert equal.element_shape.as_list() == [1]


def test_a_python_value_takes_the_dtype_of_the_array(session):
    array = tf.TensorArray(tf.float64, 1, clear_after_read=False).write(0, 3)
    assert session.run(array.read(0)).dtype == np.float64


def test_the_size_may_come_from_the_step(session):
    size = tf.placeholder(tf.int32, [])
    array = tf.TensorArray(tf.float32, size, element_shape=[2])
    assert array.stack().shape.as_list() == [None, 2]
    assert session.run(array.size(), {size: 5}) == 5
    assert session.run(array.stack(), {size: 0}).shape == (0, 2)


def test_every_step_has_a_list_of_its_own(session):
    array = tf.TensorArray(tf.float32, 1).write(0, 1.0)
    entry = array.read(0)
    assert [session.run(entry), session.run(entry)] == [1, 1]


def test_entries_without_a_number(session):
    names = tf.TensorArray(tf.string, 2).unstack(["a", "b"])
    assert session.run(names.stack()).tolist() == [b"a", b"b"]
    truths = tf.TensorArray(tf.bool, 2).write(0, True).write(1, False)
    assert session.run(truths.stack()).tolist() == [True, False]


def test_wrapping_a_handle(session):
    array = tf.TensorArray(tf.float32, 1).write(0, 1.0)
    again = tf.TensorArray(tf.float32, handle=array.handle, flow=array.flow)
    assert session.run(again.read(0)) == 1
    assert session.run(tf.TensorArray(tf.float32, handle=array.flow).size()) == 1


def test_the_parts_of_an_array(session):
    array = tf.TensorArray(tf.float32, 1, element_shape=[2])
    later = array.write(0, [1.0, 2.0])
    assert nest.flatten(later, expand_composites=True) == [later.flow]
    again = array.with_components(later.components())
    assert again.flow is later.flow
    assert again.read(0).shape.as_list() == [2]
    assert array.with_flow(later.flow).dtype is tf.float32
    assert "float32" in repr(again)


def test_shapes_are_learnt_by_all_that_share_a_list():
    array = tf.TensorArray(tf.float32, 2)
    array.write(0, tf.placeholder(tf.float32, [None, 3]))
    assert array.element_shape.as_list() == [None, 3]
    array.write(1, tf.placeholder(tf.float32, [2, None]))
    assert array.element_shape.as_list() == [2, 3]
    with pytest.raises(ValueError, match="Inconsistent shapes"):
        array.write(1, [1.0])
    loose = tf.TensorArray(tf.float32, 2, infer_shape=False)
    loose.write(0, [1.0]).write(1, 2.0)
    assert loose.element_shape.rank is None


def test_a_graph_with_lists_is_saved_and_comes_back():
    array = tf.TensorArray(tf.float32, 2, element_shape=[2]).write(0, [1.0, 2.0])
    x = tf.constant([3.0, 4.0])
    array = array.write(1, x)
    tf.gradients(array.stack(name="rows"), x, name="back")
    saved = tf.get_default_graph().as_graph_def()
    with tf.Graph().as_default() as graph, tf.Session() as session:
        tf.import_graph_def(saved, name="")
        assert graph.get_tensor_by_name("rows:0").shape.as_list() == [2, 2]
        assert session.run("rows:0").tolist() == [[1, 2], [3, 4]]


def test_identity_and_control_dependencies(session):
    array = tf.TensorArray(tf.float32, 2, clear_after_read=False).write(0, 1.0)
    with tf.control_dependencies([array.write(1, 2.0).flow]):
        after = array.identity()
    assert session.run(after.stack()).tolist() == [1, 2]


def test_the_device_of_the_first_write():
    with tf.device("/cpu:1"):
        array = tf.TensorArray(tf.float32, 2)
        fixed = tf.TensorArray(tf.float32, 2, colocate_with_first_write_call=False)
    assert array.flow.device == ""
    assert fixed.flow.device.lower().endswith("cpu:1")
    with tf.device("/cpu:0"):
        later = array.write(0, 1.0)
    assert later.flow.device == array.flow.device
    assert array.flow.device.lower().endswith("cpu:0")


# Errors


@pytest.mark.parametrize(
    "build, message",
    [
        (lambda a: a.write(3, 1.0).flow, "index 3 but array is not resizeable and size is: 3"),
        (lambda a: a.write(-1, 1.0).flow, "index -1 but array is not resizeable"),
        (lambda a: a.read(3), "Tried to read from index 3 but array size is: 3"),
        (lambda a: a.read(0), "index 0 because it has not yet been written to"),
        (lambda a: a.write(1, 1.0).write(1, 2.0).flow, "index 1 because it has already been"),
        (lambda a: a.write(0, 1.0).stack(), "index 1 because it has not yet been written"),
        (lambda a: a.unstack([1.0] * 3).concat(), "scalar shape at index 0"),
        (lambda a: a.unstack([1.0] * 4).flow, "write to index 3"),
        (lambda a: a.split([1.0], [1]).flow, r"\(3 vs. 1\)"),
        (lambda a: a.split([1.0], [2]).flow, "sum of lengths is 2"),
        (lambda a: tf.TensorArray(tf.int32, handle=a.flow).read(0), "requested dtype int32"),
    ],
)
def test_bad_uses(session, build, message):
    array = tf.TensorArray(tf.float32, 3, tensor_array_name="mine", infer_shape=False)
    value = build(array)
    with pytest.raises(tf.errors.InvalidArgumentError, match=message):
        session.run(value)


def test_reading_twice(session):
    array = tf.TensorArray(tf.float32, 1, tensor_array_name="mine").write(0, 1.0)
    first = array.read(0)
    with tf.control_dependencies([first]):
        second = array.read(0)
    with pytest.raises(tf.errors.InvalidArgumentError, match=r"mine_.*read index 0 twice"):
        session.run(second)


def test_a_wrong_dtype_fails_at_once():
    array = tf.TensorArray(tf.float32, 1)
    with pytest.raises(tf.errors.InvalidArgumentError, match=r"write dtype int32.*test_tensor_arr"):
        array.write(0, tf.constant(1))


def test_an_inferred_shape_that_is_wrong(session):
    array = tf.TensorArray(tf.float32, 2, clear_after_read=False)
    value = tf.placeholder(tf.float32)
    array = array.write(0, [1.0, 2.0]).write(1, value)
    for read in (array.read(1), array.gather([1])):
        with pytest.raises(tf.errors.InvalidArgumentError, match="infer_shape = false"):
            session.run(read, {value: [1.0]})


def test_bad_arguments():
    array = tf.TensorArray(tf.float32, 1)
    with pytest.raises(ValueError, match="Size must be provided"):
        tf.TensorArray(tf.float32)
    with pytest.raises(ValueError, match="both a handle and size"):
        tf.TensorArray(tf.float32, size=1, handle=array.handle)
    with pytest.raises(TypeError, match="must be a Tensor"):
        tf.TensorArray(tf.float32, handle="name")


def test_closing(session):
    array = tf.TensorArray(tf.float32, 1)
    session.run(array.close())
    with tf.control_dependencies([array.close()]):
        size = array.size()
    with pytest.raises(tf.errors.InvalidArgumentError, match="closed"):
        session.run(size)


# Gradients


def reads(x):
    array = reusable_array(3).unstack(x)
    return array.read(0) * array.read(2) * array.read(0)


def writes(x):
    array = reusable_array(3)
    for index in range(3):
        array = array.write(index, x[index] * x[0])
    return array.read(1) * array.read(2)


def stacked(x):
    array = reusable_array(3).write(1, x[0]).write(0, x[1] * x[2]).write(2, x[0])
    return array.stack() ** 3


def gathered(x):
    array = reusable_array(0, dynamic_size=True).scatter([4, 1, 3], x)
    return array.gather([1, 4, 1]) ** 2 * array.read(3)


def concatenated(x):
    array = reusable_array(2, infer_shape=False).split(x, [1, 2])
    return tf.reshape(array.concat(), [3, 2]) ** 2 * tf.reshape(array.read(1), [2, 2])[:1]


def grown(x):
    array = reusable_array(3, dynamic_size=True).unstack(x)
    array = array.write(3, x[0] * x[1])
    return tf.reshape(array.stack(), [4, 2]) ** 2


def split_and_grown(x):
    array = reusable_array(3, dynamic_size=True, infer_shape=False).split(x, [1, 1, 1])
    array = array.write(3, x[:2])
    return tf.reshape(array.concat(), [5, 2]) ** 2


def chained(x):
    array = reusable_array(4).write(0, x[0])
    for index in range(1, 4):
        array = array.write(index, array.read(index - 1) * x[index % 3])
    return array.stack()


def forked(x):
    start = reusable_array(3).write(0, x[0])
    left, right = start.write(1, x[1] ** 2), start.write(2, x[2] ** 2)
    return left.read(1) * left.read(0) * right.read(2) * right.read(0)


def through_identity(x):
    array = reusable_array(3).unstack(x).identity()
    return array.read(1) ** 2 * array.stack()


@pytest.mark.parametrize(
    "build",
    [
        reads,
        writes,
        stacked,
        gathered,
        concatenated,
        grown,
        split_and_grown,
        chained,
        forked,
        through_identity,
    ],
)
def test_gradients_of_both_orders(build):
    check_gradient(build, [matrix(3)], [0], True, 1e-6, 1e-6)


def test_ops_on_lists_of_gradients_are_differentiable():
    def merged(x):
        array = reusable_array(3).unstack(x)
        entry = array.read(0) * array.read(1)
        return tf.gradients(entry**2, x)[0] * tf.gradients(forked(x) ** 2, x)[0]

    check_gradient(merged, [matrix(3)], [0], True, 1e-5, 1e-5)


def test_two_gradients_of_one_list(session):
    x = tf.constant([1.0, 2.0, 3.0])
    array = tf.TensorArray(tf.float32, 3, clear_after_read=False).unstack(x)
    one = tf.gradients(array.read(0) * 2, x)[0]
    two = tf.gradients(array.read(0) * 3 + array.read(1), x)[0]
    assert [g.tolist() for g in session.run([one, two])] == [[2, 0, 0], [3, 1, 0]]


def test_nothing_flows_to_what_is_not_read(session):
    x, y = tf.constant(1.0), tf.constant(2.0)
    array = tf.TensorArray(tf.float32, 2, clear_after_read=False).write(0, x).write(1, y)
    assert session.run(tf.gradients(array.read(0), [x, y])) == [1, 0]
    counts = tf.TensorArray(tf.int32, 1).write(0, 1)
    assert tf.gradients(tf.cast(counts.read(0), tf.float32) * x, [x])[0] is not None


def test_gradients_with_gates_and_colocation(session):
    x = tf.constant([[1.0, 2.0], [3.0, 4.0]])
    array = tf.TensorArray(tf.float32, 2, clear_after_read=False).write(0, x[0]).write(1, x[1])
    product = array.read(0) * array.read(1)
    gradient = tf.gradients(
        product, x, gate_gradients=True, colocate_gradients_with_ops=True, aggregation_method=1
    )[0]
    assert session.run(tf.convert_to_tensor(gradient)).tolist() == [[3, 4], [1, 2]]


def test_a_named_source_has_one_list_of_gradients(session):
    array = tf.TensorArray(tf.float32, 2)
    one, two = array.grad("mine"), array.grad("mine")
    with tf.control_dependencies([one.write(0, 2.0).write(0, 3.0).flow]):
        total = two.read(0)
        other = array.grad("other").write(0, 1.0).read(0)
    assert session.run([total, other]) == [5, 1]


@settings(max_examples=25, deadline=None)
@given(
    st.lists(st.tuples(st.integers(0, 3), st.integers(-3, 3)), min_size=1, max_size=8),
    st.booleans(),
)
def test_gradients_of_random_reads(reads, at_once):
    """The gradient of a weighted sum of entries is the weights, wherever they are read."""
    with tf.Graph().as_default(), tf.Session() as session:
        x = tf.constant(np.ones(4))
        array = tf.TensorArray(tf.float64, 4, clear_after_read=False)
        if at_once:
            array = array.unstack(x)
        else:
            for index in range(4):
                array = array.write(index, x[index])
        total = tf.add_n([array.read(index) * float(weight) for index, weight in reads])
        expected = np.zeros(4)
        for index, weight in reads:
            expected[index] += weight
        gradient = tf.convert_to_tensor(tf.gradients(total, x)[0])
        np.testing.assert_allclose(session.run(gradient), expected)
