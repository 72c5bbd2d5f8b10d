"""Helpers from inside TensorFlow that libraries call."""

import functools

import numpy as np
import pytest

import thalweg as tf
from thalweg.alias import learn
from thalweg.alias.inside.framework import debug, ops, small_helpers
from thalweg.alias.inside.util import (
    deprecation,
    function_utils,
    object_identity,
    tf_decorator,
    tf_inspect,
)
from thalweg.alias.libraries import edward
from thalweg.runtime import fetches
from thalweg.runtime.fetches import register_session_run_conversion_functions


def test_programs_attach_what_they_like():
    tensor = tf.constant(1.0)
    tensor._keras_shape = (None, 3)
    tensor.op.note = "mine"
    assert (tensor._keras_shape, tensor.op.note) == ((None, 3), "mine")


def test_devices_of_a_session_have_names_and_types():
    (device,) = tf.Session(graph=tf.Graph()).list_devices()
    assert device.device_type == "CPU"
    assert device.name == device


def test_types_can_be_fetched_and_fed():
    class Pair:
        def __init__(self, first, second):
            self.parts = [first, second]

    register_session_run_conversion_functions(
        Pair, lambda p: (p.parts, sum), lambda p, value: [(p.parts[0], value)]
    )
    x = tf.placeholder(tf.float32, [])
    pair = Pair(x, x * 2)
    with tf.Session() as session:
        assert session.run({"pair": pair}, {pair: 3.0}) == {"pair": 9.0}


def test_a_type_is_registered_once_and_before_the_types_it_extends(monkeypatch):
    class Indices(tf.SparseTensor):
        pass

    monkeypatch.setattr(fetches, "_conversions", [*fetches._conversions])
    register_session_run_conversion_functions(Indices, lambda s: ([s.indices], list))
    for kind in (Indices, tf.SparseTensor, tf.IndexedSlices, object):
        with pytest.raises(ValueError, match="has already been registered"):
            register_session_run_conversion_functions(kind, lambda s: ([s.values], list))
    sparse = Indices([[2]], [1.0], [3])
    with tf.Session() as session:
        assert session.run(sparse) == [[[2]]]


def test_parameters_of_our_functions_are_those_of_tensorflow():
    assert tf_inspect.getfullargspec(tf.cast)[:4] == (["x", "dtype", "name"], None, None, (None,))
    assert tf_inspect.getfullargspec(tf.cast).annotations == {}


def test_events_are_written_as_libraries_do(tmp_path):
    writer = small_helpers.EventsWriter(str(tmp_path / "events").encode())
    writer.WriteEvent(tf.Event(step=7))
    assert writer.Flush() and writer.Close()
    assert [event.step for event in tf.train.summary_iterator(writer.FileName())] == [0, 7]


def test_rows_of_a_handle_are_added_to():
    with tf.Graph().as_default(), tf.Session() as session:
        rows = tf.get_variable("rows", [3], use_resource=True)
        session.run(rows.assign(tf.zeros([3])))
        session.run(small_helpers.resource_scatter_add(rows.handle, [1], [2.0]))
        assert session.run(rows).tolist() == [0, 2, 0]


def test_debuggers_say_what_is_there_instead():
    with pytest.raises(NotImplementedError, match=r"LocalCLIDebugHook is not here: see tf\.Print"):
        debug.LocalCLIDebugHook()
    assert debug.has_inf_or_nan(None, np.array([1.0, np.nan]))
    assert not debug.has_inf_or_nan(None, np.array([1, 2]))


def test_operations_are_copied_for_edward():
    with tf.Graph().as_default(), tf.Session() as session:
        tf.set_random_seed(1)
        x, noise = tf.constant(2.0, name="x"), tf.random_normal([2], name="noise")
        y = tf.add_n([x * noise, noise], name="y")
        other = tf.constant(5.0)
        made = {}

        def copied(one):
            if one is x:
                return other
            node = one.op if isinstance(one, tf.Tensor) else one
            if node not in made:
                made[node] = edward.copied_operation(node, f"copied/{node.name}", copied)
            return made[node] if node is one else made[node].outputs[one.value_index]

        copy = copied(y)
        assert copy.op.name == "copied/y"
        first, drawn, second = session.run([noise, made[noise.op].outputs[0], copy])
        assert not np.array_equal(first, drawn)
        np.testing.assert_allclose(second, 6 * drawn, rtol=1e-6)


def test_decorators_are_seen_through():
    def target(a, b=1):
        return a + b

    def wrapper(*args):
        return target(*args)

    made = tf_decorator.make_decorator(target, wrapper)
    assert tf_decorator.unwrap(made)[1] is target
    assert tf_inspect.getargspec(made).args == ["a", "b"]
    assert tf_inspect.getcallargs(made, 1) == {"a": 1, "b": 1}


def test_arguments_of_functions_methods_and_partials():
    class Model:
        def __call__(self, features, mode):
            return features

    def function(a, b, **options):
        return a

    assert function_utils.fn_args(Model()) == ("features", "mode")
    assert function_utils.fn_args(functools.partial(function, 1)) == ("b",)
    assert function_utils.has_kwargs(function)


def test_old_arguments_are_warned_of_once(caplog):
    @deprecation.deprecated_args(None, "Use b.", "a")
    def function(a=None, b=None):
        return a

    with caplog.at_level("WARNING", logger="tensorflow"):
        assert [function(a=1), function(a=2), function(b=3)] == [1, 2, None]
    assert len([r for r in caplog.records if "Use b." in r.getMessage()]) <= 1
    assert deprecation.deprecated_argument_lookup("b", None, "a", 5) == 5


def test_defined_functions_may_have_their_own_gradient():
    @ops.Defun(tf.float32, python_grad_func=lambda op, dy: dy * 10 * op.inputs[0])
    def square(x):
        return x * x

    x = tf.constant(3.0)
    y = square(x)
    with tf.Session() as session:
        assert session.run([y, tf.gradients(y, x)[0]]) == [9.0, 30.0]


def test_identity_collections_tell_equal_objects_apart():
    first, second = [1], [1]
    found = object_identity.ObjectIdentitySet([first])
    assert first in found
    assert second not in found


def test_texts_become_rows_of_word_numbers():
    processor = learn.VocabularyProcessor(4)
    rows = np.array(list(processor.fit_transform(["a b a", "b c"])))
    np.testing.assert_array_equal(rows, [[1, 2, 1, 0], [2, 3, 0, 0]])
    assert list(processor.reverse(rows[1:])) == ["b c <UNK> <UNK>"]


def test_hyperparameters_keep_their_types():
    hparams = tf.contrib.training.HParams(rate=0.1, units=[8, 8], name="net")
    assert hparams.parse("rate=1,units[1]=16,name=other").values() == {
        "rate": 1.0,
        "units": [8, 16],
        "name": "other",
    }
    assert hparams.parse_json(hparams.to_json()).units == [8, 16]
    for text in ("rate=x", "unknown=1", "rate=1,rate=2", "=3"):
        with pytest.raises(ValueError, match=r"."):
            hparams.parse(text)
    with pytest.raises(ValueError, match="cast"):
        hparams.set_hparam("rate", "fast")


def test_modules_find_their_variables_and_modules():
    class Inner(tf.Module):
        def __init__(self):
            super().__init__()
            self.weight = tf.Variable(1.0, trainable=False)

    class Outer(tf.Module):
        def __init__(self):
            super().__init__(name="outer")
            self.parts = [Inner(), Inner()]
            self.bias = tf.Variable(0.0)

        @tf.Module.with_name_scope
        def scale(self, x):
            return tf.multiply(x, 2.0, name="scaled")

    outer = Outer()
    assert len(outer.variables) == 3
    assert outer.trainable_variables == (outer.bias,)
    assert outer.submodules == tuple(outer.parts)
    assert outer.scale(1.0).op.name == "outer/scaled"


def test_block_cells_compute_what_plain_cells_do():
    x = tf.constant(np.random.default_rng(0).random((2, 3)), tf.float32)
    block, plain = tf.contrib.rnn.LSTMBlockCell(4), tf.nn.rnn_cell.BasicLSTMCell(4)
    first, _ = block(x, block.zero_state(2, tf.float32))
    second, _ = plain(x, plain.zero_state(2, tf.float32))
    copy = [tf.assign(b, a) for a, b in zip(block.variables, plain.variables, strict=True)]
    with tf.Session() as session:
        session.run(tf.global_variables_initializer())
        session.run(copy)
        np.testing.assert_allclose(*session.run([first, second]), rtol=1e-5, atol=1e-6)


def test_small_helpers():
    assert small_helpers.grad_source(tf.constant(0, name="a/gradients_1/b")) == "a/gradients_1"
    with pytest.raises(ValueError, match="in no scope of"):
        small_helpers.grad_source(tf.constant(0, name="a"))
    assert small_helpers.skip_common_stack_elements([1, 2, 3], [1, 5, 6]) == [2, 3]
    assert small_helpers.skip_common_stack_elements([1, 2], [1, 2]) == [2]
    assert small_helpers.random_walk([8, 2], tf.nn.relu).shape == [8, 2]
    with pytest.raises(ValueError, match="No gain"):
        small_helpers.random_walk([8, 2], tf.nn.elu)


def test_shapes_of_messages():
    message = tf.make_tensor_proto([[1, 2], [3, 4]])
    assert small_helpers.shape_equals(message, (2, 2))
    assert small_helpers.shape_equals(message, tf.TensorShape([2, 2]).as_proto())
    assert not small_helpers.shape_equals(message, [4])
    assert tf.TensorShape(tf.TensorShape([None, 3]).as_proto()).as_list() == [None, 3]
    assert tf.TensorShape(tf.TensorShape(None).as_proto()).ndims is None


def test_a_tensor_array_is_read_by_its_handle():
    array = tf.TensorArray(tf.float32, size=1).write(0, 2.0)
    read = small_helpers.tensor_array_read(array.handle, 0, array.flow, tf.float64)
    with tf.Session() as session, pytest.raises(tf.errors.InvalidArgumentError, match="dtype"):
        session.run(read)
