"""Switches of a session, and rules and passes of the user."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

import thalweg as tf
from thalweg.optimize.options import DEFAULT, SWITCHES
from thalweg.optimize.pipeline import PASSES
from thalweg.runtime.config import session_options
from thalweg.runtime.plan import Plan, Step

ON, OFF, AGGRESSIVE = 1, 2, 3


@pytest.fixture(autouse=True)
def graph():
    with tf.Graph().as_default() as graph:
        yield graph


def planned(y: tf.Tensor, x: tf.Tensor, config: Any = None) -> Plan:
    with tf.Session(config=config) as session:
        return session._engine.plan(Step((y,), (), (x,)))


def test_by_default_all_is_on() -> None:
    assert session_options(tf.ConfigProto()).optimizer is DEFAULT


def test_a_switch_turns_its_passes_off() -> None:
    x = tf.placeholder(tf.float32, [2])
    config = tf.ConfigProto()
    config.graph_options.rewrite_options.constant_folding = OFF
    names = [report.name for report in planned(x * 1, x, config).passes]
    assert "neutral_elements" not in names
    assert "merge_duplicates" in names


@pytest.mark.parametrize("level", ["meta optimizer", "L0"])
def test_all_can_be_turned_off(level: str) -> None:
    x = tf.placeholder(tf.float32, [2])
    config = tf.ConfigProto()
    if level == "L0":
        config.graph_options.optimizer_options.opt_level = -1
    else:
        config.graph_options.rewrite_options.disable_meta_optimizer = True
    assert planned(x * 1, x, config).passes == ()


@pytest.mark.parametrize("state", [0, ON, AGGRESSIVE])
def test_relaxed_rules_need_an_aggressive_switch(state: int) -> None:
    x = tf.placeholder(tf.float32, [2])
    config = tf.ConfigProto()
    config.graph_options.rewrite_options.arithmetic_optimization = state
    done = planned(tf.exp(tf.log(x)) + x * 0, x, config)
    fired = {name: report.fired for report in done.passes for name in [report.name]}
    assert ("relaxed_arithmetic" in fired) == (state == AGGRESSIVE)
    assert bool(fired.get("relaxed_arithmetic")) == (state == AGGRESSIVE)


def test_every_pass_has_a_switch() -> None:
    assert {each.switch for each in PASSES} <= {*SWITCHES, "custom_optimizers"}


@pytest.fixture
def registered() -> Iterator[list[str]]:
    names: list[str] = []
    yield names
    for name in names:
        tf.optimize.unregister(name)


def test_a_rule_of_the_user_takes_part(registered: list[str]) -> None:
    op = tf.optimize.op
    registered.append("tanh of zero distance")
    tf.optimize.register_rule(
        "tanh of zero distance", lambda x: op.Tanh(x - x), lambda x: tf.zeros_like(x)
    )
    x = tf.placeholder(tf.float32, [2])
    reports = planned(tf.tanh(x - x), x).passes
    fired = {report.name: report.fired for report in reports}
    assert fired["custom_rules"] == {"tanh of zero distance": 1}


def test_a_pass_of_the_user_takes_part(registered: list[str]) -> None:
    seen: list[int] = []

    def watch(step: Any) -> None:
        seen.append(len(step.nodes))

    registered.append("watch")
    tf.optimize.register_pass("watch", watch)
    x = tf.placeholder(tf.float32, [2])
    with tf.Session() as session:
        np.testing.assert_array_equal(session.run(tf.negative(x), {x: [1, 2]}), [-1, -2])
    assert seen == [1]


def test_a_pass_of_the_user_changes_the_step(registered: list[str]) -> None:
    def doubled(step: Any) -> None:
        for node in [node for node in step.nodes if node.type == "Neg"]:
            step.replace(node.output, step.build(node, lambda node=node: node.inputs[0] * 2))

    registered.append("doubled")
    tf.optimize.register_pass("doubled", doubled)
    x = tf.placeholder(tf.float32, [2])
    with tf.Session() as session:
        np.testing.assert_array_equal(session.run(tf.negative(x), {x: [1, 2]}), [2, 4])


def test_a_pass_must_not_return_another_step(registered: list[str]) -> None:
    registered.append("other")
    tf.optimize.register_pass("other", lambda step: "another")
    x = tf.placeholder(tf.float32, [2])
    with tf.Session() as session, pytest.raises(TypeError, match="'other' must change"):
        session.run(tf.negative(x), {x: [1, 2]})
