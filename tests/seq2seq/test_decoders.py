"""Decoders: the loop against `dynamic_rnn`, helpers, beam search against all sequences."""

import itertools
from typing import Any

import numpy as np
import pytest

import thalweg as tf

seq2seq = tf.contrib.seq2seq
R = np.random.default_rng(4)


@pytest.fixture(autouse=True)
def graph() -> Any:
    with tf.Graph().as_default() as graph:
        yield graph


def run(values: Any) -> Any:
    with tf.Session() as session:
        session.run(tf.global_variables_initializer())
        return session.run(values)


@pytest.mark.parametrize("time_major", [False, True])
def test_training_is_dynamic_rnn(time_major: bool) -> None:
    x = R.normal(size=(3, 5, 2)).astype(np.float32)
    given = x.swapaxes(0, 1) if time_major else x
    lengths = [5, 2, 4]
    cell = tf.nn.rnn_cell.LSTMCell(4)
    start = cell.zero_state(3, tf.float32)
    helper = seq2seq.TrainingHelper(given, lengths, time_major=time_major)
    decoder = seq2seq.BasicDecoder(cell, helper, start)
    outputs, state, found = seq2seq.dynamic_decode(
        decoder, output_time_major=time_major, impute_finished=True, scope="shared"
    )
    with tf.variable_scope("shared", reuse=True) as scope:
        expected = tf.nn.dynamic_rnn(
            cell, given, lengths, dtype=tf.float32, time_major=time_major, scope=scope
        )
    (mine, ids, mine_state, counts), (theirs, their_state) = run(
        [(outputs.rnn_output, outputs.sample_id, state, found), expected]
    )
    np.testing.assert_allclose(mine, theirs, 1e-5, 1e-6)
    np.testing.assert_allclose(mine_state, their_state, 1e-5, 1e-6)
    np.testing.assert_array_equal(counts, lengths)
    assert ids.dtype == np.int32


class Successor(tf.nn.rnn_cell.RNNCell):
    """Says the id after the one that it reads: a counter."""

    state_size = output_size = property(lambda self: 6)

    def __call__(self, inputs: Any, state: Any, scope: Any = None) -> Any:
        return tf.manip.roll(inputs, 1, 1) * 9, state


@pytest.mark.parametrize("kind", ["GreedyEmbeddingHelper", "SampleEmbeddingHelper"])
def test_ids_are_fed_back_until_the_end(kind: str) -> None:
    options = {"softmax_temperature": 0.01, "seed": 1} if kind.startswith("Sample") else {}
    helper = getattr(seq2seq, kind)(tf.eye(6), [1, 3], 5, **options)
    decoder = seq2seq.BasicDecoder(Successor(), helper, tf.zeros([2, 6]))
    outputs, _, lengths = seq2seq.dynamic_decode(decoder, maximum_iterations=10)
    ids, counts = run([outputs.sample_id, lengths])
    np.testing.assert_array_equal(counts, [4, 2])
    np.testing.assert_array_equal(ids[0], [2, 3, 4, 5])
    np.testing.assert_array_equal(ids[1, :2], [4, 5])


def test_a_maximum_of_steps() -> None:
    helper = seq2seq.GreedyEmbeddingHelper(tf.eye(6), [0, 0], 5)
    decoder = seq2seq.BasicDecoder(Successor(), helper, tf.zeros([2, 6]))
    for limit in (0, 3):
        outputs, _, lengths = seq2seq.dynamic_decode(decoder, maximum_iterations=limit)
        ids, counts = run([outputs.sample_id, lengths])
        assert ids.shape == (2, limit)
        np.testing.assert_array_equal(counts, [limit, limit])


@pytest.mark.parametrize("probability", [0.0, 1.0])
def test_scheduled_sampling_reads_its_own_ids(probability: float) -> None:
    given = np.eye(6, dtype=np.float32)[[[0, 3, 3, 3]] * 2]
    helper = seq2seq.ScheduledEmbeddingTrainingHelper(given, [4, 4], tf.eye(6), probability, seed=3)
    decoder = seq2seq.BasicDecoder(Successor(), helper, tf.zeros([2, 6]))
    outputs, _, _ = seq2seq.dynamic_decode(decoder)
    shown = run(outputs.rnn_output).argmax(-1)
    np.testing.assert_array_equal(shown, [[1, 2, 3, 4] if probability else [1, 4, 4, 4]] * 2)


def test_scheduled_outputs_with_auxiliary_inputs() -> None:
    class Double(tf.nn.rnn_cell.RNNCell):
        state_size = output_size = property(lambda self: 1)

        def __call__(self, inputs: Any, state: Any, scope: Any = None) -> Any:
            return inputs[:, :1] * 2 + inputs[:, 1:], state

    given, extra = tf.ones([1, 3, 1]), tf.constant([[[0.0], [10.0], [100.0]]])
    helper = seq2seq.ScheduledOutputTrainingHelper(given, [3], 1.0, auxiliary_inputs=extra)
    decoder = seq2seq.BasicDecoder(Double(), helper, tf.zeros([1, 1]))
    outputs, _, _ = seq2seq.dynamic_decode(decoder)
    np.testing.assert_array_equal(run(outputs.rnn_output).ravel(), [2, 14, 128])


def test_gradients_flow_through_the_loop() -> None:
    x = tf.constant(R.normal(size=(2, 3, 4)).astype(np.float32))
    cell = tf.nn.rnn_cell.GRUCell(4)
    helper = seq2seq.TrainingHelper(x, [3, 2])
    decoder = seq2seq.BasicDecoder(cell, helper, cell.zero_state(2, tf.float32), tf.layers.Dense(5))
    outputs, _, _ = seq2seq.dynamic_decode(decoder, impute_finished=True)
    gradient = run(tf.gradients(tf.reduce_sum(outputs.rnn_output**2), x)[0])
    assert np.abs(gradient[0]).min() > 0
    np.testing.assert_array_equal(gradient[1, 2], np.zeros(4))


VOCABULARY, END, STEPS = 4, 0, 3
TABLE = R.normal(size=(VOCABULARY, VOCABULARY)).astype(np.float32)


class Bigrams(tf.nn.rnn_cell.RNNCell):
    """The logits of the next id are a row of a table."""

    state_size = property(lambda self: 1)
    output_size = property(lambda self: VOCABULARY)

    def __call__(self, inputs: Any, state: Any, scope: Any = None) -> Any:
        return tf.matmul(inputs, TABLE), state


def best_sequences(start: int, count: int) -> list[tuple[int, ...]]:
    logs = TABLE - np.log(np.exp(TABLE).sum(1, keepdims=True))
    found: dict[tuple[int, ...], float] = {}
    for ids in itertools.product(range(VOCABULARY), repeat=STEPS):
        cut = ids[: ids.index(END) + 1] if END in ids else ids
        pairs = zip((start, *cut), cut, strict=False)
        found[cut + (END,) * (STEPS - len(cut))] = sum(logs[pair] for pair in pairs)
    return sorted(found, key=lambda ids: -found[ids])[:count]


def test_wide_beams_find_the_best_sequences() -> None:
    width = VOCABULARY**STEPS  # nothing is lost
    decoder = seq2seq.BeamSearchDecoder(
        Bigrams(), tf.eye(VOCABULARY), [1, 2], END, tf.zeros([2 * width, 1]), width
    )
    outputs, state, _ = seq2seq.dynamic_decode(decoder, maximum_iterations=STEPS)
    ids, lengths = run([outputs.predicted_ids, state.lengths])
    for row, start in enumerate((1, 2)):
        expected = best_sequences(start, 10)
        assert [tuple(column) for column in ids[row].T[:10]] == expected
        ends = [ids.index(END) if END in ids else STEPS for ids in expected]
        np.testing.assert_array_less(lengths[row, :10], np.array(ends) + 2)


def test_gather_tree_walks_back_to_the_first_step() -> None:
    ids = np.array([[1, 2, 3], [4, 5, 6], [7, 8, 9]])[:, None]
    parents = np.array([[0, 0, 0], [0, 1, 1], [2, 1, 2]])[:, None]
    actual = run(seq2seq.gather_tree(ids, parents, [3], 10))
    np.testing.assert_array_equal(actual[:, 0], [[2, 2, 2], [6, 5, 6], [7, 8, 9]])
    short = run(seq2seq.gather_tree(ids, parents, [2], 10))
    np.testing.assert_array_equal(short[2, 0], [10, 10, 10])


def test_beams_keep_the_history_in_order() -> None:
    memory = R.normal(size=(2, 4, 3)).astype(np.float32)
    width = 2
    attention = seq2seq.LuongAttention(VOCABULARY, seq2seq.tile_batch(memory, width))
    cell = seq2seq.AttentionWrapper(
        Bigrams(),
        attention,
        alignment_history=True,
        cell_input_fn=lambda x, _: x,
        output_attention=False,
    )
    decoder = seq2seq.BeamSearchDecoder(
        cell,
        tf.eye(VOCABULARY),
        [1, 2],
        END,
        cell.zero_state(2 * width, tf.float32),
        width,
        length_penalty_weight=0.6,
        coverage_penalty_weight=0.2,
    )
    outputs, state, _ = seq2seq.dynamic_decode(decoder, maximum_iterations=STEPS)
    history, ids = run([state.cell_state.alignment_history, outputs.predicted_ids])
    assert history.shape == (ids.shape[1], 2 * width, 4)
    np.testing.assert_allclose(history.sum(-1), np.ones(history.shape[:2]), 1e-5)


def test_a_state_for_another_batch_is_an_error() -> None:
    with pytest.raises(ValueError, match="Perhaps you forgot"):
        seq2seq.BeamSearchDecoder(
            Bigrams(), tf.eye(VOCABULARY), [1, 2], END, tf.zeros([2, 1]), beam_width=3
        )


def test_wrong_arguments_are_errors() -> None:
    cell = tf.nn.rnn_cell.GRUCell(3)
    with pytest.raises(TypeError, match="helper must be a Helper"):
        seq2seq.BasicDecoder(cell, object(), tf.zeros([1, 3]))
    with pytest.raises(TypeError, match="type Decoder"):
        seq2seq.dynamic_decode(object())
    with pytest.raises(ValueError, match="start_tokens must be a vector"):
        seq2seq.GreedyEmbeddingHelper(tf.eye(3), 1, 0)
    with pytest.raises(ValueError, match="sequence_length to be a vector"):
        seq2seq.TrainingHelper(tf.ones([1, 2, 3]), 2)
