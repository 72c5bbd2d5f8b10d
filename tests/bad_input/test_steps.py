"""Whatever a user gets wrong in a step: the error's class is TensorFlow's, its text names the op
and the line that made it, and afterwards the session works and no variable has changed.
"""

from __future__ import annotations

import linecache
from typing import Any

import numpy as np
import pytest

import thalweg as tf
from tests.bad_input.program import Build, Program, later, no_floats, size, stranger
from thalweg import errors

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
    "folder read as a file": (
        lambda p: tf.read_file("/", name="bad"),
        errors.FailedPreconditionError,
        "Is a directory",
    ),
    "file in a folder that cannot be": (
        lambda p: tf.write_file("/proc/no/file", "text", name="bad"),
        errors.NotFoundError,
        "/proc/no/file",
    ),
    "split: along an axis there is not": (
        lambda p: tf.split(p.weights, 3, size(4), name="bad")[0],
        errors.InvalidArgumentError,
        r"axis 4 is not in the range \[-1, 1\)",
    ),
    "reshape: two sizes left open": (
        lambda p: tf.reshape(p.weights, later([-1, -1]), name="bad"),
        errors.InvalidArgumentError,
        r"Only one size may be -1, got \[-1, -1\]",
    ),
    "reshape: negative size": (
        lambda p: tf.reshape(p.weights, later([-2]), name="bad"),
        errors.InvalidArgumentError,
        r"must not be negative .*got \[-2\]",
    ),
    "reshape: vector of another length": (
        lambda p: tf.reshape(p.weights, later([7]), name="bad"),
        errors.InvalidArgumentError,
        r"3 values, but the requested shape \[7\]",
    ),
    "reshape: one size of another length": (
        lambda p: tf.reshape(p.weights, [1, size(7)], name="bad"),
        errors.InvalidArgumentError,
        r"3 values, but the requested shape \[1, 7\]",
    ),
    "reshape: shape that is a matrix": (
        lambda p: tf.reshape(p.weights, later([[1, 3]]), name="bad"),
        errors.InvalidArgumentError,
        r"must be a vector, got \[\[1, 3\]\]",
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


#: Steps that cannot be: what is fetched or fed is wrong.
STEPS: dict[str, tuple[Build, type[Exception], str]] = {
    "placeholder without a feed": (
        lambda p: p.session.run(p.y),
        errors.InvalidArgumentError,
        r"placeholder tensor 'x' with dtype float and shape \[\?,3\][\s\S]*program.py:\d+",
    ),
    "feed of the wrong shape": (
        lambda p: p.session.run(p.y, {p.x: np.ones((2, 4))}),
        ValueError,
        r"shape \(2, 4\) for Tensor 'x:0', which has shape '\(\?, 3\)'.*program.py:\d+",
    ),
    "feed of the wrong rank": (
        lambda p: p.session.run(p.y, {p.x: [1.0, 2.0, 3.0]}),
        ValueError,
        r"shape \(3,\) for Tensor 'x:0'",
    ),
    "feed of text": (
        lambda p: p.session.run(p.y, {p.x: [["a", "b", "c"]]}),
        ValueError,
        "'x:0' of dtype float32.*program.py",
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
    "feed of None": (
        lambda p: p.session.run(p.y, {p.x: None}),
        TypeError,
        r"Cannot feed None to Tensor 'x:0' \(made at .*program.py:\d+\)",
    ),
    "feed of an integer too large": (
        lambda p: p.session.run(p.whole, {p.whole: [2**70]}),
        TypeError,
        r"Tensor 'whole:0' of dtype int32: .*program.py:\d+",
    ),
    "feed of a number as text": (
        lambda p: p.session.run(p.text, {p.text: [1]}),
        TypeError,
        r"Tensor 'text:0' of dtype string: Expected string.*program.py:\d+",
    ),
    "feed of one value to two tensors": (
        lambda p: p.session.run(p.y, {(p.x, p.text): 1}),
        ValueError,
        "takes 2 values, got 1",
    ),
    "feeds that are no dict": (
        lambda p: p.session.run(p.y, [p.x]),
        TypeError,
        "feed_dict must be a dict",
    ),
    "options of another kind": (
        lambda p: p.session.run(p.weights, options=3),
        TypeError,
        "options must be a tf.RunOptions, not 3",
    ),
    "metadata of another kind": (
        lambda p: p.session.run(p.weights, run_metadata=3),
        TypeError,
        "run_metadata must be a tf.RunMetadata, not 3",
    ),
    "uninitialised variable": (
        lambda p: p.session.run(p.blank),
        errors.FailedPreconditionError,
        r"uninitialized value blank[\s\S]*program.py:\d+",
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


def test_a_failing_step_may_be_repeated_and_then_succeed(program: Program) -> None:
    index = tf.placeholder(tf.int32, [])
    update = tf.scatter_add(program.weights, [0, index], [1.0, 1.0])
    for _ in range(3):
        with pytest.raises(errors.InvalidArgumentError):
            program.session.run(update, {index: 3})
    program.check_whole()
    np.testing.assert_array_equal(program.session.run(update, {index: 2}), [2, 2, 4])
