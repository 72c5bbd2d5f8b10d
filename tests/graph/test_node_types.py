"""What dtypes a node takes its inputs as."""

import thalweg as tf


def test_references_are_taken_where_they_are_written():
    with tf.Graph().as_default():
        v = tf.Variable([1.0])
        assert v.assign([2.0]).op._input_types == [v._ref().dtype, tf.float32]
        assert tf.identity(v).op._input_types == [tf.float32]
        assert tf.add_n([v, v]).op._input_dtypes == [tf.float32, tf.float32]


def test_a_class_of_a_library_can_borrow_the_operators_of_tensors():
    class Wrapped:
        def __init__(self, value):
            self.value = value

    for name in tf.Tensor.OVERLOADABLE_OPERATORS:
        method = getattr(tf.Tensor, name)
        setattr(Wrapped, name, lambda self, *args, method=method: method(self.value, *args))
    with tf.Graph().as_default(), tf.Session() as session:
        x = Wrapped(tf.constant([1.0, 2.0]))
        assert session.run((-x * 2 + 1)[1]) == -3
        assert session.run((1 - x) < 0).tolist() == [False, True]
