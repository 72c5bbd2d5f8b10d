"""Random pipelines match a model in plain Python, and continue exactly after a restore."""

from __future__ import annotations

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import thalweg as tf
from tests.data.pipelines import RANDOM_STEPS, STEPS, Step, built, drained, modelled, pipelines

_settings = settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.too_slow])


@pytest.mark.parametrize("step", STEPS, ids=lambda step: step.name)
@pytest.mark.parametrize("count", [0, 1, 7])
def test_a_stage_matches_its_model(step: Step, count: int) -> None:
    """Each stage alone."""
    with tf.Graph().as_default(), tf.Session() as session:
        following = built([step], count).make_one_shot_iterator().get_next()
        found = drained(session, following, 200)
    assert [int(value) for value in found] == modelled([step], count)


@_settings
@given(pipelines(STEPS), st.integers(0, 9))
def test_a_pipeline_matches_its_model(steps: list[Step], count: int) -> None:
    expected = modelled(steps, count)[:200]
    with tf.Graph().as_default(), tf.Session() as session:
        following = built(steps, count).make_one_shot_iterator().get_next()
        found = drained(session, following, 200)
    assert [int(value) for value in found] == expected


@_settings
@given(pipelines(STEPS), st.integers(0, 9), st.integers(1, 4))
def test_a_batched_pipeline_matches_its_model(steps: list[Step], count: int, size: int) -> None:
    expected = modelled(steps, count)[:200]
    with tf.Graph().as_default(), tf.Session() as session:
        following = built(steps, count).batch(size).prefetch(1).make_one_shot_iterator().get_next()
        found = drained(session, following, 200)
    assert all(len(batch) == size for batch in found[:-1])
    assert [int(value) for batch in found for value in batch][:200] == expected


@_settings
@given(pipelines(STEPS + RANDOM_STEPS, 3), st.integers(1, 7), st.booleans())
def test_a_restored_pipeline_continues_exactly(
    steps: list[Step], count: int, is_batched: bool
) -> None:
    with tf.Graph().as_default() as graph:
        dataset = built(steps, count)
        dataset = dataset.batch(3).prefetch(2) if is_batched else dataset
        iterator = dataset.make_initializable_iterator()
        following, state = iterator.get_next(), iterator.save_state()
        given_state = tf.placeholder(tf.string, [])
        restore = iterator.restore_state(given_state)
    found, states = [], []
    with tf.Session(graph=graph) as session:
        session.run(iterator.initializer)
        states.append(session.run(state))
        for _ in range(40):
            try:
                found.append(session.run(following).tolist())
            except tf.errors.OutOfRangeError:
                break
            states.append(session.run(state))
    for index, saved in enumerate(states):
        with tf.Session(graph=graph) as session:
            if index % 2:  # a state may be restored before the initializer runs or after
                session.run(iterator.initializer)
            session.run(restore, {given_state: saved})
            if not index % 2:
                session.run(iterator.initializer)
            rest = [value.tolist() for value in drained(session, following, len(found) - index)]
        assert rest == found[index:]
