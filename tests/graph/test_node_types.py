"""What dtypes a node takes its inputs as."""

import thalweg as tf


def test_references_are_taken_where_they_are_written():
    with tf.Graph().as_default():
        v = tf.Variable([1.0])
        assert v.assign([2.0]).op._input_types == [v._ref().dtype, tf.float32]
        assert tf.identity(v).op._input_types == [tf.float32]
        assert tf.add_n([v, v]).op._input_dtypes == [tf.float32, tf.float32]
