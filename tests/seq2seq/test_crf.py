"""Conditional random fields, against the sum and the maximum over all sequences of tags."""

import itertools

import numpy as np
import pytest

import thalweg as tf

R = np.random.default_rng(0)
TIME, TAGS, LENGTHS = 4, 3, np.array([4, 2, 1, 3])
INPUTS = R.normal(size=(len(LENGTHS), TIME, TAGS)).astype(np.float32)
TRANSITIONS = R.normal(size=(TAGS, TAGS)).astype(np.float32)
GIVEN = R.integers(0, TAGS, (len(LENGTHS), TIME))


def score(row, tags):
    """The definition."""
    potentials = sum(INPUTS[row, index, tag] for index, tag in enumerate(tags))
    return potentials + sum(TRANSITIONS[pair] for pair in itertools.pairwise(tags))


def sequences(row):
    return list(itertools.product(range(TAGS), repeat=LENGTHS[row]))


@pytest.fixture(params=["known", "unknown"])
def inputs(request):
    """Potentials whose shape is known, or only their rank and tags."""
    with tf.Graph().as_default():
        known = request.param == "known"
        yield tf.placeholder_with_default(INPUTS, INPUTS.shape if known else [None, None, TAGS])


def evaluate(fetches):
    with tf.Session() as session:
        session.run(tf.global_variables_initializer())
        return session.run(fetches)


def test_likelihoods_are_shares_of_all_sequences(inputs):
    found, transitions = tf.contrib.crf.crf_log_likelihood(inputs, GIVEN, LENGTHS, TRANSITIONS)
    assert transitions is TRANSITIONS
    for row, likelihood in enumerate(evaluate(found)):
        total = sum(np.exp(score(row, tags)) for tags in sequences(row))
        expected = score(row, GIVEN[row, : LENGTHS[row]]) - np.log(total)
        assert likelihood == pytest.approx(expected, rel=1e-4)


def test_the_gradient_moves_the_sequence_up(inputs):
    """It is the difference between the given tags and how likely each tag is at its place."""
    found, _ = tf.contrib.crf.crf_log_likelihood(inputs, GIVEN, LENGTHS, TRANSITIONS)
    gradient = evaluate(tf.gradients(found, inputs)[0])
    row = 1
    weights = {tags: np.exp(score(row, tags)) for tags in sequences(row)}
    for place, tag in itertools.product(range(TIME), range(TAGS)):
        if place >= LENGTHS[row]:
            assert gradient[row, place, tag] == 0
            continue
        share = sum(w for tags, w in weights.items() if tags[place] == tag) / sum(weights.values())
        expected = float(GIVEN[row, place] == tag) - share
        assert gradient[row, place, tag] == pytest.approx(expected, abs=1e-5)


def test_decoding_finds_the_best_sequence(inputs):
    tags, best = evaluate(tf.contrib.crf.crf_decode(inputs, TRANSITIONS, LENGTHS))
    for row, length in enumerate(LENGTHS):
        expected = max(sequences(row), key=lambda tags, row=row: score(row, tags))
        assert tags[row].tolist() == [*expected, *[0] * (TIME - length)]
        assert best[row] == pytest.approx(score(row, expected), rel=1e-5)
        numbers = tf.contrib.crf.viterbi_decode(INPUTS[row, :length], TRANSITIONS)
        assert numbers == (list(expected), pytest.approx(best[row], rel=1e-5))


def test_transitions_are_a_variable_where_none_are_given(inputs):
    actual, transitions = tf.contrib.crf.crf_log_likelihood(inputs, GIVEN, LENGTHS)
    assert tf.trainable_variables() == [transitions]
    assert transitions.shape == (TAGS, TAGS)
    assert evaluate(actual).shape == (len(LENGTHS),)


def test_sequences_without_places_count_for_nothing(inputs):
    actual, _ = tf.contrib.crf.crf_log_likelihood(inputs, GIVEN, [0] * 4, TRANSITIONS)
    assert evaluate(actual).tolist() == [0] * 4


def test_places_may_have_several_tags(inputs):
    allowed = R.random(INPUTS.shape) < 0.6
    allowed[..., 0] = True
    found = tf.contrib.crf.crf_multitag_sequence_score(inputs, allowed, LENGTHS, TRANSITIONS)
    for row, total in enumerate(evaluate(found)):
        fits = [s for s in sequences(row) if all(allowed[row, p, tag] for p, tag in enumerate(s))]
        expected = np.log(sum(np.exp(score(row, tags)) for tags in fits))
        assert total == pytest.approx(expected, rel=1e-4)
