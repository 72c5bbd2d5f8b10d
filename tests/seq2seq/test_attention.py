"""Attention: scores and alignments against NumPy, masks, the state of the wrapper."""

from typing import Any

import numpy as np
import pytest

import thalweg as tf

seq2seq = tf.contrib.seq2seq
R = np.random.default_rng(3)
MEMORY = R.normal(size=(2, 5, 4)).astype(np.float32)
QUERY = R.normal(size=(2, 3)).astype(np.float32)
LENGTHS = np.array([5, 2])


@pytest.fixture(autouse=True)
def graph() -> Any:
    with tf.Graph().as_default() as graph:
        yield graph


def run(values: Any) -> Any:
    with tf.Session() as session:
        session.run(tf.global_variables_initializer())
        return session.run(values)


def softmax_within(scores: Any) -> Any:
    scores = np.where(np.arange(5) < LENGTHS[:, None], scores, -np.inf)
    powers = np.exp(scores - scores.max(1, keepdims=True))
    return powers / powers.sum(1, keepdims=True)


def test_luong_scores_are_products() -> None:
    attention = seq2seq.LuongAttention(3, MEMORY, LENGTHS, scale=True)
    alignments, state = attention(QUERY, attention.initial_state(2, tf.float32))
    keys, actual, kept = run([attention.keys, alignments, state])
    np.testing.assert_allclose(actual, softmax_within(np.einsum("btd,bd->bt", keys, QUERY)), 1e-5)
    np.testing.assert_array_equal(actual, kept)


@pytest.mark.parametrize("normalize", [False, True])
def test_bahdanau_scores_are_a_network(normalize: bool) -> None:
    attention = seq2seq.BahdanauAttention(6, MEMORY, LENGTHS, normalize=normalize)
    alignments, _ = attention(QUERY, attention.initial_state(2, tf.float32))
    weights = {v.op.name.rpartition("/")[2]: v for v in tf.global_variables()}
    layers = {v.op.name.split("/")[-2]: v for v in tf.global_variables()}
    keys, actual, v, query_kernel = run(
        [attention.keys, alignments, weights["attention_v"], layers["query_layer"]]
    )
    if normalize:
        v = v * np.sqrt(1 / 6) / np.linalg.norm(v)
    scores = (v * np.tanh(keys + (QUERY @ query_kernel)[:, None])).sum(2)
    np.testing.assert_allclose(actual, softmax_within(scores), 1e-4)


def test_a_memory_without_places_is_an_error() -> None:
    attention = seq2seq.LuongAttention(3, MEMORY, [5, 0])
    alignments, _ = attention(QUERY, attention.initial_state(2, tf.float32))
    with pytest.raises(tf.errors.InvalidArgumentError, match="greater than zero"):
        run(alignments)


@pytest.mark.parametrize("mode", ["recursive", "parallel"])
def test_monotonic_attention_never_moves_back(mode: str) -> None:
    stop = R.uniform(0.1, 0.9, size=(2, 6)).astype(np.float32)
    before = np.eye(6, dtype=np.float32)[[0, 3]]
    actual = run(seq2seq.monotonic_attention(stop, before, mode))
    expected = np.zeros((2, 6))
    for row in range(2):
        reached = 0.0
        for index in range(6):
            passed = 1 - stop[row, index - 1] if index else 1.0
            reached = passed * reached + before[row, index]
            expected[row, index] = stop[row, index] * reached
    np.testing.assert_allclose(actual, expected, 1e-4, 1e-6)
    assert not actual[1, :3].any()


def test_an_unknown_mode_is_an_error() -> None:
    with pytest.raises(ValueError, match="'recursive', 'parallel', or 'hard'"):
        seq2seq.monotonic_attention([[0.5]], [[1.0]], "soft")


@pytest.mark.parametrize("kind", ["LuongMonotonicAttention", "BahdanauMonotonicAttention"])
def test_monotonic_mechanisms_begin_at_the_first_place(kind: str) -> None:
    attention = getattr(seq2seq, kind)(3, MEMORY, mode="hard", score_bias_init=-99.0)
    start = attention.initial_state(2, tf.float32)
    alignments, _ = attention(QUERY, start)
    first, actual = run([start, alignments])
    np.testing.assert_array_equal(first[:, 0], [1, 1])
    np.testing.assert_array_equal(actual, np.zeros((2, 5)))  # nothing stops the search


def wrapper(**options: Any) -> Any:
    mechanisms = [seq2seq.LuongAttention(3, MEMORY), seq2seq.BahdanauAttention(3, MEMORY)]
    return seq2seq.AttentionWrapper(tf.nn.rnn_cell.GRUCell(3), mechanisms, **options)


def test_two_mechanisms_and_their_history() -> None:
    cell = wrapper(attention_layer_size=[4, 5], alignment_history=True, output_attention=False)
    state = cell.zero_state(2, tf.float32)
    for _ in range(2):
        output, state = cell(QUERY, state)
    assert cell.output_size == 3 and cell.state_size.attention == 9
    shown, last, history, time = run(
        [output, state.alignments[1], state.alignment_history[1].stack(), state.time]
    )
    assert shown.shape == (2, 3) and time == 2
    np.testing.assert_array_equal(history[1], last)


def test_variables_have_the_names_of_checkpoints() -> None:
    helper = seq2seq.TrainingHelper(tf.ones([2, 3, 4]), [3, 3])
    attention = seq2seq.BahdanauAttention(3, MEMORY)
    cell = seq2seq.AttentionWrapper(tf.nn.rnn_cell.GRUCell(3), attention, attention_layer_size=4)
    decoder = seq2seq.BasicDecoder(cell, helper, cell.zero_state(2, tf.float32))
    seq2seq.dynamic_decode(decoder)
    inside = "decoder/attention_wrapper"
    assert {v.op.name for v in tf.global_variables()} == {
        "memory_layer/kernel",
        *(
            f"{inside}/gru_cell/{part}/{v}"
            for part in ("gates", "candidate")
            for v in ("kernel", "bias")
        ),
        f"{inside}/bahdanau_attention/query_layer/kernel",
        f"{inside}/bahdanau_attention/attention_v",
        f"{inside}/attention_layer/kernel",
    }


def test_another_batch_than_the_memory_is_an_error() -> None:
    with pytest.raises((ValueError, tf.errors.InvalidArgumentError), match="tile_batch"):
        run(wrapper().zero_state(3, tf.float32).cell_state)


def test_a_mechanism_is_asked_for() -> None:
    with pytest.raises(TypeError, match="must be an AttentionMechanism"):
        seq2seq.AttentionWrapper(tf.nn.rnn_cell.GRUCell(3), object())


def test_a_query_of_another_size_is_an_error() -> None:
    attention = seq2seq.LuongAttention(4, MEMORY)
    with pytest.raises(ValueError, match="Perhaps you need to set num_units"):
        attention(QUERY, attention.initial_state(2, tf.float32))
