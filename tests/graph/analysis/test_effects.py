"""What ops and nodes read and write."""

from __future__ import annotations

from typing import Any

import pytest

import thalweg as tf
from thalweg.graph.analysis.effects import Resource, reads, writes
from thalweg.graph.analysis.node_effects import (
    accesses,
    is_sequential,
    is_visible,
    written_variables,
)
from thalweg.graph.node import as_node
from thalweg.graph.op import REGISTRY, Op
from thalweg.graph.shapes import scalar


@pytest.fixture(autouse=True)
def graph() -> Any:
    with tf.Graph().as_default():
        yield


def found(value: Any) -> set[tuple[Resource, bool]]:
    return {(access.resource, access.writes) for access in accesses(as_node(value))}


def variable() -> Any:
    return tf.Variable([1.0, 2.0], use_resource=False)


def test_a_stateful_op_must_say_what_it_touches() -> None:
    with pytest.raises(TypeError, match="must declare its effects"):

        class Nameless(Op):
            signature = "x: T -> y: T"
            stateful = True

            def shape(self, x: Any) -> Any:
                return scalar()

            def numpy(self, x: Any) -> Any:
                return x

        del Nameless


def test_what_is_declared_names_inputs_that_name_state() -> None:
    with pytest.raises(AssertionError, match="names no state"):

        class Wrong(Op):
            signature = "x: float32 ->"
            stateful = True
            effects = (reads("x"), writes(Resource.CONSOLE))

            def shape(self, x: Any) -> Any:
                return []

            def numpy(self, x: Any) -> Any:
                return []

        del Wrong


def test_every_op_that_takes_a_reference_or_a_handle_says_what_it_does_with_it() -> None:
    silent = [
        name
        for name, op in REGISTRY.items()
        if op.parsed.references and not op.footprint and op.effects is None
    ]
    assert not silent


def test_the_value_of_a_variable_is_a_read_and_an_update_a_write() -> None:
    v = variable()
    assert found(v.read_value()) == {(Resource.VARIABLE, False)}
    assert found(tf.assign(v, [0.0, 0.0])) == {(Resource.VARIABLE, True)}
    assert found(tf.is_variable_initialized(v)) == {(Resource.VARIABLE, False)}
    assert not found(tf.exp(v.read_value()))


def test_handles_files_streams_and_the_console() -> None:
    queue = tf.FIFOQueue(3, tf.float32, [])
    assert found(queue.enqueue(1.0)) == {(Resource.HANDLE, True)}
    assert found(queue.size()) == {(Resource.HANDLE, False)}
    assert found(tf.Print(1.0, [1.0])) == {(Resource.CONSOLE, True)}
    assert found(tf.read_file("name")) == {(Resource.FILES, False)}
    drawn = tf.random_uniform([2], 0, 9, tf.int32)
    assert found(drawn) == {(Resource.STREAM, True)}


def test_a_conditional_does_what_its_branches_do() -> None:
    v, w = variable(), variable()

    def branch() -> Any:
        return tf.Print(tf.assign_add(v, w.read_value()), [w])

    node = as_node(tf.cond(tf.constant(True), branch, lambda: w * 1.0))
    holder = node.inputs[0].op if node.type == "Identity" else node
    assert {(Resource.VARIABLE, True), (Resource.CONSOLE, True)} <= found(holder)
    assert written_variables(holder) == {v.op.outputs[0]}
    assert is_visible(holder)


def test_the_iterations_of_a_loop_follow_one_another_where_they_leave_something() -> None:
    v = variable()

    def loop(body: Any) -> Any:
        made = tf.while_loop(lambda i: i < 3, lambda i: body(i) + 1, [0])
        return next(node for node in made.graph.nodes[::-1] if node.type == "While")

    def updated(i: Any) -> Any:
        with tf.control_dependencies([tf.assign_add(v, [1.0, 1.0])]):
            return tf.identity(i)

    assert not is_sequential(loop(lambda i: i * 1))
    assert not is_sequential(loop(lambda i: i + tf.cast(v[0], tf.int32)))
    assert is_sequential(loop(updated))
    assert is_sequential(loop(lambda i: tf.Print(i, [i])))
    assert is_sequential(loop(lambda i: i + tf.random_uniform([], 0, 2, tf.int32)))
