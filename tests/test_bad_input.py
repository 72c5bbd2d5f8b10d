"""Whatever a user gets wrong: the error's class is TensorFlow's, its text names the op and the
line here that made it, and afterwards the session works and no variable has changed.
"""

from __future__ import annotations

import linecache
import re
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest

import thalweg as tf
from thalweg import errors
from thalweg.graph.op import Op

Build = Callable[["Program"], Any]


class Program:
    """A small model in a session of its own, to do wrong things to."""

    def __init__(self) -> None:
        self.graph = tf.Graph()
        with self.graph.as_default():
            self.x = tf.placeholder(tf.float32, [None, 3], name="x")
            self.weights = tf.Variable([1.0, 2.0, 3.0], name="weights")
            self.rows = tf.Variable(np.arange(6.0).reshape(3, 2), name="rows")
            self.blank = tf.Variable([0.0], name="blank")
            self.y = tf.reduce_sum(self.x * self.weights, name="y")
        self.session = tf.Session(graph=self.graph)
        self.session.run([self.weights.initializer, self.rows.initializer])

    def check_whole(self) -> None:
        """The session still runs and every variable has its first value."""
        assert self.session.run(self.y, {self.x: [[1, 1, 1]]}) == 6
        np.testing.assert_array_equal(self.session.run(self.weights), [1, 2, 3])
        np.testing.assert_array_equal(self.session.run(self.rows), np.arange(6.0).reshape(3, 2))


@pytest.fixture
def program() -> Iterator[Program]:
    made = Program()
    with made.graph.as_default():
        yield made
    made.session.close()


def later(value: Any) -> tf.Tensor:
    """A value that is not known before the step runs, nor is its shape."""
    return tf.placeholder_with_default(value, None)


def no_floats() -> tf.Tensor:
    return tf.zeros([2], tf.int32)


#: A node called "bad" that fails when it runs, the error, and what the text must say.
RUN_TIME: dict[str, tuple[Build, type[Exception], str]] = {
    "add: shapes that do not broadcast": (
        lambda p: tf.add(later([1.0, 2.0]), tf.zeros([3]), name="bad"),
        errors.InvalidArgumentError,
        r"\(2,\) \(3,\)",
    ),
    "matmul: inner sizes that differ": (
        lambda p: tf.matmul(later([[1.0, 2.0]]), tf.zeros([3, 1]), name="bad"),
        errors.InvalidArgumentError,
        r"\(1, 2\).*\(3, 1\)",
    ),
    "reshape: another number of values": (
        lambda p: tf.reshape(later([1.0, 2.0]), [3], name="bad"),
        errors.InvalidArgumentError,
        r"2 values.*\[3\]",
    ),
    "concat: other sizes": (
        lambda p: tf.concat([later([[1.0, 2.0]]), tf.zeros([2, 1])], 1, name="bad"),
        errors.InvalidArgumentError,
        "size 1 .* size 2",
    ),
    "assign: another shape": (
        lambda p: tf.assign(p.weights, later([1.0]), name="bad"),
        errors.InvalidArgumentError,
        r"weights has \(3,\), the value \(1,\)",
    ),
    "assign_add: another shape": (
        lambda p: tf.assign_add(p.weights, later([1.0]), name="bad"),
        errors.InvalidArgumentError,
        r"\(3,\).*\(1,\)",
    ),
    "read before initialisation": (
        lambda p: tf.assign_add(p.blank, [1.0], name="bad"),
        errors.FailedPreconditionError,
        "uninitialized value blank",
    ),
    "gather: index too large": (
        lambda p: tf.gather(p.weights, [0, 3], name="bad"),
        errors.InvalidArgumentError,
        r"indices\[1\] = 3 is not in \[0, 3\)",
    ),
    "gather: negative index": (
        lambda p: tf.gather(p.weights, [[-1]], name="bad"),
        errors.InvalidArgumentError,
        r"= -1 is not in \[0, 3\)",
    ),
    "gather_nd: index too large": (
        lambda p: tf.gather_nd(p.rows, [[2, 2]], name="bad"),
        errors.InvalidArgumentError,
        r"\[2, 2\]|\[2,2\]",
    ),
    "scatter_update: second index too large": (
        lambda p: tf.scatter_update(p.weights, [0, 3], [9.0, 9.0], name="bad"),
        errors.InvalidArgumentError,
        r"indices\[1\] = 3 is not in \[0, 3\)",
    ),
    "scatter_add: second index negative": (
        lambda p: tf.scatter_add(p.rows, [0, -1], np.ones((2, 2)), name="bad"),
        errors.InvalidArgumentError,
        r"indices\[1\] = -1 is not in \[0, 3\)",
    ),
    "scatter_nd_update: second index too large": (
        lambda p: tf.scatter_nd_update(p.rows, [[0, 0], [3, 0]], [9.0, 9.0], name="bad"),
        errors.InvalidArgumentError,
        r"\[3, 0\]|\[3,0\]",
    ),
    "slice: past the end": (
        lambda p: tf.slice(p.weights, later([2]), [2], name="bad"),
        errors.InvalidArgumentError,
        r"\[0, 1\].* 2",
    ),
    "index: past the end": (
        lambda p: tf.strided_slice(p.weights, later([3]), [4], shrink_axis_mask=1, name="bad"),
        errors.InvalidArgumentError,
        "index 3 of dimension 0 out of bounds",
    ),
    "slice assignment: past the end": (
        lambda p: tf.identity(p.weights[later(3)].assign(1.0), name="bad"),
        errors.InvalidArgumentError,
        "index 3 of dimension 0 out of bounds",
    ),
    "division of integers by zero": (
        lambda p: tf.floordiv(no_floats(), later([1, 0]), name="bad"),
        errors.InvalidArgumentError,
        "Integer division by zero",
    ),
    "remainder of integers by zero": (
        lambda p: tf.floormod(no_floats(), later([1, 0]), name="bad"),
        errors.InvalidArgumentError,
        "Integer division by zero",
    ),
    "truncated division of integers by zero": (
        lambda p: tf.truncatediv(no_floats(), later([1, 0]), name="bad"),
        errors.InvalidArgumentError,
        "Integer division by zero",
    ),
    "not a number": (
        lambda p: tf.check_numerics(later([np.nan]), "found some", name="bad"),
        errors.InvalidArgumentError,
        "found some",
    ),
    "singular matrix": (
        lambda p: tf.matrix_inverse(later([[0.0]]), name="bad"),
        errors.InvalidArgumentError,
        "not invertible",
    ),
    "Python function that raises": (
        lambda p: tf.py_func(lambda: 1 / 0, [], tf.int64, name="bad"),
        errors.UnknownError,
        "division by zero",
    ),
    "no such device": (
        lambda p: on_missing_device(),
        errors.InvalidArgumentError,
        "CPU:7",
    ),
    "file that does not exist": (
        lambda p: tf.read_file("no/such/file", name="bad"),
        errors.NotFoundError,
        "no/such/file",
    ),
}


def on_missing_device() -> tf.Tensor:
    with tf.device("/cpu:7"):
        return tf.identity([1.0], name="bad")


@pytest.mark.parametrize("name", RUN_TIME)
def test_a_failing_node_names_itself_and_its_line(program: Program, name: str) -> None:
    build, kind, text = RUN_TIME[name]
    bad = build(program)
    with pytest.raises(kind, match=text) as caught:
        program.session.run(bad)
    assert type(caught.value) is kind
    check_location(caught.value)
    program.check_whole()


def check_location(error: Any) -> None:
    """The error is bound to an op, and its text says which, and which line of this file made it."""
    file, _, line = error.op.origin.rpartition(":")
    assert file == __file__
    assert "bad" in linecache.getline(file, int(line))
    assert f"in op '{error.op.name}' ({error.op.type}), created at {error.op.origin}" in str(error)


@pytest.mark.parametrize("name", RUN_TIME)
def test_what_waits_for_a_failing_node_does_not_happen(program: Program, name: str) -> None:
    build, kind, _ = RUN_TIME[name]
    with tf.control_dependencies([build(program)]):
        update = program.rows.assign_add(np.ones((3, 2)))
    with pytest.raises(kind):
        program.session.run([update, program.y], {program.x: np.ones((2, 3))})
    program.check_whole()


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
        r"'y' of 'Add' Op has type int32 .* type float32 of argument 'x'.*test_bad_input.py:\d+, "
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
    "reference where there is none": (
        lambda p: tf.assign(tf.zeros([2]), [1.0, 2.0], name="bad"),
        TypeError,
        "'Assign' Op requires that input 'ref' be a mutable tensor",
    ),
    "bool of a tensor": (
        lambda p: bool(p.x),
        TypeError,
        r"x:0 \(made at .*test_bad_input.py:\d+\)",
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
        r"'stranger:0'.*\(made at .*test_bad_input.py:\d+\) must be from the same graph",
    ),
    "gradient that nobody defined": (
        lambda p: tf.gradients(Untold()(p.x, name="bad"), p.x),
        LookupError,
        r"'bad' \(op type: .*\), made at .*test_bad_input.py:\d+",
    ),
    "variable made twice": (
        lambda p: [tf.get_variable("twice", [2]) for _ in range(2)],
        ValueError,
        r"Variable twice already exists[\s\S]*test_bad_input.py:\d+",
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
    "variable without a shape": (
        lambda p: tf.get_variable("shapeless"),
        ValueError,
        r"\(shapeless\) must be fully defined",
    ),
}


def stranger() -> tf.Tensor:
    with tf.Graph().as_default():
        return tf.constant(1.0, name="stranger")


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


#: Steps that cannot be: what is fetched or fed is wrong.
STEPS: dict[str, tuple[Build, type[Exception], str]] = {
    "placeholder without a feed": (
        lambda p: p.session.run(p.y),
        errors.InvalidArgumentError,
        r"placeholder tensor 'x' with dtype float and shape \[\?,3\][\s\S]*test_bad_input.py:\d+",
    ),
    "feed of the wrong shape": (
        lambda p: p.session.run(p.y, {p.x: np.ones((2, 4))}),
        ValueError,
        r"shape \(2, 4\) for Tensor 'x:0', which has shape '\(\?, 3\)'.*test_bad_input.py:\d+",
    ),
    "feed of the wrong rank": (
        lambda p: p.session.run(p.y, {p.x: [1.0, 2.0, 3.0]}),
        ValueError,
        r"shape \(3,\) for Tensor 'x:0'",
    ),
    "feed of text": (
        lambda p: p.session.run(p.y, {p.x: [["a", "b", "c"]]}),
        ValueError,
        "'x:0' of dtype float32.*test_bad_input.py",
    ),
    "feed of a tensor": (
        lambda p: p.session.run(p.y, {p.x: tf.zeros([1, 3])}),
        TypeError,
        "value of a feed cannot be a tf.Tensor.*x:0",
    ),
    "feed of a stranger": (
        lambda p: p.session.run(p.y, {stranger(): 1.0}),
        TypeError,
        "'stranger:0'.* is not an element of this graph",
    ),
    "feed of an unknown name": (
        lambda p: p.session.run(p.y, {"nobody:0": 1.0}),
        TypeError,
        "'nobody:0' refers to",
    ),
    "uninitialised variable": (
        lambda p: p.session.run(p.blank),
        errors.FailedPreconditionError,
        r"uninitialized value blank[\s\S]*test_bad_input.py:\d+",
    ),
    "fetch of a stranger": (
        lambda p: p.session.run(stranger()),
        ValueError,
        "'stranger:0'.* is not an element of this graph",
    ),
    "fetch of None": (lambda p: p.session.run(None), TypeError, "None"),
    "fetch of None inside": (lambda p: p.session.run([p.weights, None]), TypeError, "None"),
    "fetch of a number": (lambda p: p.session.run(3), TypeError, "Fetch argument 3"),
    "fetch of an unknown tensor": (
        lambda p: p.session.run("nobody:0"),
        ValueError,
        "Fetch argument 'nobody:0'",
    ),
    "fetch of an output too many": (
        lambda p: p.session.run("y:1"),
        ValueError,
        "Fetch argument 'y:1'",
    ),
    "eval without a session": (lambda p: p.weights.eval(), ValueError, "no default session"),
    "eval in the session of another graph": (
        lambda p: stranger().eval(session=p.session),
        ValueError,
        "graph",
    ),
}


@pytest.mark.parametrize("name", STEPS)
def test_a_step_that_cannot_be(program: Program, name: str) -> None:
    step, kind, text = STEPS[name]
    with pytest.raises(kind, match=text):
        step(program)
    program.check_whole()


def test_a_closed_session_runs_nothing(program: Program) -> None:
    program.session.close()
    with pytest.raises(RuntimeError, match="closed Session"):
        program.session.run(program.weights)
    program.session.close()


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


def test_a_failing_step_may_be_repeated_and_then_succeed(program: Program) -> None:
    index = tf.placeholder(tf.int32, [])
    update = tf.scatter_add(program.weights, [0, index], [1.0, 1.0])
    for _ in range(3):
        with pytest.raises(errors.InvalidArgumentError):
            program.session.run(update, {index: 3})
    program.check_whole()
    np.testing.assert_array_equal(program.session.run(update, {index: 2}), [2, 2, 4])
