"""Creators: which are called, in which order, with what, and what they may change."""

from typing import Any

import pytest

import thalweg as tf


@pytest.fixture(autouse=True)
def graph() -> Any:
    with tf.Graph().as_default() as graph:
        yield graph


def test_the_innermost_is_called_first() -> None:
    seen: list[tuple[str, Any]] = []

    def creator(title: str) -> Any:
        def made(next_creator: Any, **kwargs: Any) -> Any:
            seen.append((title, kwargs["name"]))
            return next_creator(**kwargs)

        return made

    with tf.variable_creator_scope(creator("outer")), tf.variable_creator_scope(creator("inner")):
        tf.Variable(1.0, name="a")
        tf.get_variable("b", [2])
    tf.Variable(1.0, name="c")
    assert seen == [("inner", "a"), ("outer", "a"), ("inner", "b"), ("outer", "b")]


def test_a_creator_may_change_arguments_or_give_another_variable() -> None:
    other = tf.Variable(7.0)

    def renamed(next_creator: Any, **kwargs: Any) -> Any:
        return next_creator(**(kwargs | {"name": "renamed", "trainable": False}))

    with tf.variable_creator_scope(renamed):
        v = tf.Variable(1.0, name="v")
    with tf.variable_creator_scope(lambda next_creator, **kwargs: other):
        assert tf.Variable(2.0) is other
    assert v.op.name == "renamed" and v not in tf.trainable_variables()
