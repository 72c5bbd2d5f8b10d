"""Whatever a user gets wrong while a graph is built: the error's class is TensorFlow's, its text
names the op or the argument, its traceback has the user's line, and no node is left behind.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

import thalweg as tf
from tests.bad_input.program import Build, Program, no_floats, stranger
from thalweg import errors
from thalweg.graph.op import Op

#: Mistakes that show when the graph is built. The traceback has the line; the text has the op.
BUILD_TIME: dict[str, tuple[Build, type[Exception], str]] = {
    "add: shapes that do not broadcast": (
        lambda p: tf.add(tf.zeros([2]), tf.zeros([3]), name="bad"),
        ValueError,
        r"'bad' \(op: 'Add'\) with input shapes: \(2,\), \(3,\)",
    ),
    "matmul: inner sizes that differ": (
        lambda p: tf.matmul(tf.zeros([2, 3]), tf.zeros([2, 3]), name="bad"),
        ValueError,
        r"3 and 2 for 'bad' \(op: 'MatMul'\) with input shapes: \(2, 3\), \(2, 3\)",
    ),
    "reshape: another number of values": (
        lambda p: tf.reshape(tf.zeros([4]), [3], name="bad"),
        ValueError,
        r"'bad' \(op: 'Reshape'\)",
    ),
    "assign: another shape": (
        lambda p: tf.assign(p.weights, [1.0], name="bad"),
        ValueError,
        r"'bad' \(op: 'Assign'\) with input shapes: \(3,\), \(1,\)",
    ),
    "slice: past the end": (
        lambda p: tf.slice(tf.zeros([3]), [2], [2], name="bad"),
        ValueError,
        r"'bad' \(op: 'Slice'\)",
    ),
    "index: past the end": (
        lambda p: tf.zeros([3])[3],
        ValueError,
        r"index 3 of dimension 0 out of bounds.*'strided_slice' \(op: 'StridedSlice'\)",
    ),
    "two dtypes": (
        lambda p: tf.add(tf.zeros([2]), no_floats(), name="bad"),
        TypeError,
        r"'y' of 'Add' Op has type int32 .* type float32 of argument 'x'.*program.py:\d+, "
        "for the node 'bad'",
    ),
    "dtype an op does not take": (
        lambda p: tf.matmul([["a"]], [["b"]], name="bad"),
        TypeError,
        "DataType string for attr 'T' of 'MatMul' op 'bad' is not in",
    ),
    "Python value of another dtype": (
        lambda p: tf.add(no_floats(), 1.5, name="bad"),
        TypeError,
        "'y' of 'Add' Op has type float that does not match type int32 of argument 'x'",
    ),
    "slices of an unknown shape": (
        lambda p: tf.add(p.x, tf.IndexedSlices(tf.zeros([1, 3]), tf.constant([0])), name="bad"),
        ValueError,
        "'y' of 'Add' Op cannot be a tensor: .* without dense_shape",
    ),
    "reference where there is none": (
        lambda p: tf.assign(tf.zeros([2]), [1.0, 2.0], name="bad"),
        TypeError,
        "'Assign' Op requires that input 'ref' be a mutable tensor",
    ),
    "bool of a tensor": (
        lambda p: bool(p.x),
        TypeError,
        r"x:0 \(made at .*program.py:\d+\)[\s\S]*test_graphs.py:\d+",
    ),
    "if on a comparison": (
        lambda p: 1 if p.y > 0 else 2,
        TypeError,
        r"Using a tf.Tensor as a Python bool is not allowed: Greater",
    ),
    "loop over a tensor": (lambda p: list(p.x), TypeError, "x:0"),
    "len of a tensor": (lambda p: len(p.x), TypeError, "x:0"),
    "tensor of another graph": (
        lambda p: tf.add(p.x, stranger(), name="bad"),
        ValueError,
        r"'stranger:0'.*\(made at .*program.py:\d+\) must be from the same graph",
    ),
    "gradient that nobody defined": (
        lambda p: tf.gradients(Untold()(p.x, name="bad"), p.x),
        LookupError,
        r"'bad' \(op type: .*\), made at .*test_graphs.py:\d+",
    ),
    "variable made twice": (
        lambda p: [tf.get_variable("twice", [2]) for _ in range(2)],
        ValueError,
        r"Variable twice already exists[\s\S]*test_graphs.py:\d+",
    ),
    "reuse of what is not there": (
        lambda p: reused("absent", [2]),
        ValueError,
        "Variable absent does not exist",
    ),
    "reuse with another shape": (
        lambda p: [tf.get_variable("pair", [2]), reused("pair", [3])],
        ValueError,
        r"pair.* shape \(3,\) and found shape \(2,\)",
    ),
    "reuse with another dtype": (
        lambda p: [tf.get_variable("pair", [2]), reused("pair", [2], tf.int32)],
        ValueError,
        "pair.* dtype int32 and found dtype float32",
    ),
    "None as an input": (
        lambda p: tf.add(None, 1.0, name="bad"),
        ValueError,
        r"Input 'x' of 'Add' Op .*None values not supported.*test_graphs.py:\d+",
    ),
    "None as an input of a fixed type": (
        lambda p: tf.one_hot([1], None),
        ValueError,
        r"Input 'depth' of 'OneHot' Op .*NoneType.*int32",
    ),
    "None in a list of inputs": (
        lambda p: tf.summary.merge([None]),
        ValueError,
        r"Input 'inputs' of 'MergeSummary' Op .*None values not supported",
    ),
    "None as a named argument": (
        lambda p: tf.convert_to_tensor(None, name="rate"),
        ValueError,
        "None values not supported: 'rate' is None",
    ),
    "no inputs at all": (
        lambda p: tf.concat([], 0),
        ValueError,
        r"'values' of 'ConcatV2' Op must not be empty.*test_graphs.py:\d+",
    ),
    "integer beyond 64 bits": (
        lambda p: tf.constant(2**70),
        ValueError,
        "1180591620717411303424 does not fit",
    ),
    "size that is no number": (
        lambda p: tf.placeholder(tf.float32, [float("nan")]),
        ValueError,
        "Ambiguous dimension: nan",
    ),
    "reshape: two sizes left open": (
        lambda p: tf.reshape(p.weights, [-1, -1], name="bad"),
        ValueError,
        r"Only one size may be -1, got \[-1, -1\] for 'bad' \(op: 'Reshape'\)",
    ),
    "reshape: negative size": (
        lambda p: tf.reshape(p.weights, [-3], name="bad"),
        ValueError,
        r"must not be negative .*got \[-3\] for 'bad'",
    ),
    "split: into no pieces": (
        lambda p: tf.split(p.weights, 0, name="bad"),
        ValueError,
        r"num_split must be at least 1, got 0 for 'bad' \(op: 'Split'\)",
    ),
    "index: some object": (lambda p: p.x[object()], TypeError, "cannot index a tensor"),
    "cast: text to a number": (
        lambda p: tf.cast("a", tf.float32),
        errors.UnimplementedError,
        r"Cast string to float32 is not supported \(at .*test_graphs.py:\d+\)",
    ),
    "einsum: no equation": (
        lambda p: tf.einsum(None, p.x),
        TypeError,
        "equation of einsum must be a string, not None",
    ),
    "seed that is no integer": (
        lambda p: tf.random_normal([1], seed=1.5),
        TypeError,
        "seed must be an integer, not 1.5",
    ),
    "seed of a graph that is no integer": (
        lambda p: tf.set_random_seed("a"),
        TypeError,
        "seed must be an integer, not 'a'",
    ),
    "conv2d: no strides": (
        lambda p: tf.nn.conv2d(tf.zeros([1, 4, 4, 2]), tf.zeros([3, 3, 2, 1]), None, "SAME"),
        TypeError,
        "strides must be integers, not None",
    ),
    "max_pool: no window": (
        lambda p: tf.nn.max_pool(tf.zeros([1, 4, 4, 2]), None, [1, 1, 1, 1], "SAME"),
        TypeError,
        "ksize must be integers, not None",
    ),
    "layer: None": (
        lambda p: tf.layers.dense(None, 3),
        ValueError,
        "Input 0 of layer dense .* it is None",
    ),
    "layer: window of no size": (
        lambda p: tf.layers.conv2d(tf.zeros([1, 4, 4, 2]), 3, 0),
        ValueError,
        "`kernel_size` argument must be a tuple of 2 integers above 0. Received: 0",
    ),
    "dynamic_rnn: no depth": (
        lambda p: tf.nn.dynamic_rnn(tf.nn.rnn_cell.GRUCell(2), p.x, dtype=tf.float32),
        ValueError,
        "rank at least 3 .*shape",
    ),
    "loss: no such reduction": (
        lambda p: tf.losses.absolute_difference([1.0], [1.0], reduction="x"),
        ValueError,
        "Invalid Reduction Key x: it must be one of none, weighted_sum,",
    ),
    "learning rate: None": (
        lambda p: tf.train.GradientDescentOptimizer(None).minimize(loss_of(p)),
        ValueError,
        "'learning_rate' is None",
    ),
    "learning rate: several": (
        lambda p: tf.train.GradientDescentOptimizer([1.0, 1.0, 1.0]).minimize(loss_of(p)),
        ValueError,
        r"learning_rate of GradientDescent must be a scalar, not \(3,\)",
    ),
    "apply_gradients: nothing": (
        lambda p: tf.train.AdamOptimizer().apply_gradients(None),
        TypeError,
        "must be pairs of a gradient and its variable, not None",
    ),
    "apply_gradients: triples": (
        lambda p: tf.train.AdamOptimizer().apply_gradients([(1.0, p.weights, 2.0)]),
        TypeError,
        "must be pairs of a gradient and its variable",
    ),
    "global_step: a number": (
        lambda p: tf.train.AdamOptimizer().minimize(loss_of(p), global_step=5),
        TypeError,
        "global_step must be a tf.Variable, not 5",
    ),
    "name scope that is a number": (
        lambda p: tf.name_scope(3).__enter__(),
        TypeError,
        "name of a scope must be a string, not 3",
    ),
    "device that is a number": (
        lambda p: tf.device(3).__enter__(),
        TypeError,
        "A device is a name.*: 3",
    ),
    "control input that is a tensor": (
        lambda p: after(p.x),
        TypeError,
        r"x:0[\s\S]*test_graphs.py:\d+:  with tf.control_dependencies\(first\)",
    ),
    "shuffle_batch: no room to shuffle": (
        lambda p: tf.train.shuffle_batch([p.weights], 2, 5, 5),
        ValueError,
        "capacity 5 must be bigger than min_after_dequeue 5",
    ),
    "reader of a file name": (
        lambda p: tf.TFRecordReader().read("file"),
        TypeError,
        "queue of file names, not from 'file'",
    ),
    "dataset: no function": (
        lambda p: tf.data.Dataset.range(3).map(None),
        TypeError,
        "a function of elements is needed, not None",
    ),
    "variable without a shape": (
        lambda p: tf.get_variable("shapeless"),
        ValueError,
        r"\(shapeless\) must be fully defined",
    ),
}


def loss_of(program: Program) -> tf.Tensor:
    return tf.reduce_sum(program.weights * program.weights)


def after(first: Any) -> tf.Tensor:
    with tf.control_dependencies(first):
        return tf.constant(1.0)


class Untold(Op):
    """A smooth function whose block says nothing of gradients."""

    signature = "x: T -> y: T; T: floating"

    def shape(self, x: tf.Tensor) -> tf.TensorShape:
        return x.shape

    def numpy(self, x: Any) -> Any:
        return x


def reused(name: str, shape: list[int], dtype: Any = tf.float32) -> Any:
    with tf.variable_scope(tf.get_variable_scope(), reuse=True):
        return tf.get_variable(name, shape, dtype)


@pytest.mark.parametrize("name", BUILD_TIME)
def test_a_mistake_in_a_graph_fails_on_its_line(program: Program, name: str) -> None:
    build, kind, text = BUILD_TIME[name]
    with pytest.raises(kind, match=text) as caught:
        build(program)
    assert any(str(entry.path) == __file__ for entry in caught.traceback[1:])
    program.check_whole()


def test_a_finalised_graph_takes_no_nodes_and_still_runs(program: Program) -> None:
    program.graph.finalize()
    count = len(program.graph.nodes)
    with pytest.raises(RuntimeError, match="finalized and cannot be modified"):
        tf.add(program.x, program.x)
    assert len(program.graph.nodes) == count
    program.check_whole()


def test_a_failed_construction_leaves_no_node_of_its_name(program: Program) -> None:
    with pytest.raises(ValueError, match="'bad'"):
        tf.add(tf.zeros([2]), tf.zeros([3]), name="bad")
    assert not [node.name for node in program.graph.nodes if re.match("bad", node.name)]
    assert tf.add(1.0, 2.0, name="bad").op.name == "bad"


def test_a_writer_takes_summaries_only(tmp_path: Path) -> None:
    refused = pytest.raises(TypeError, match="A summary is a Summary message or its bytes, not 3")
    with tf.summary.FileWriter(str(tmp_path)) as writer, refused:
        writer.add_summary(3)
