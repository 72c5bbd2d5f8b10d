"""The unrolled models, and the loop of TensorFlow 1.0: they learn to copy."""

from typing import Any

import numpy as np
import pytest

import thalweg as tf

legacy, seq2seq = tf.contrib.legacy_seq2seq, tf.contrib.seq2seq
LENGTH, SYMBOLS = 3, 6


@pytest.fixture(autouse=True)
def graph() -> Any:
    with tf.Graph().as_default() as graph:
        tf.set_random_seed(1)
        yield graph


def copies(model: Any) -> float:
    """The share of ids that a model copies, after it was trained to; it feeds itself then."""
    rng = np.random.default_rng(0)
    inputs = [tf.placeholder(tf.int32, [None]) for _ in range(LENGTH)]
    decoded = [tf.ones_like(inputs[0]), *inputs[:-1]]
    feed_previous = tf.placeholder(tf.bool, [])
    outputs, _ = model(inputs, decoded, feed_previous)
    weights = [tf.ones_like(ids, tf.float32) for ids in inputs]
    loss = legacy.sequence_loss(outputs, inputs, weights)
    train = tf.train.AdamOptimizer(0.03).minimize(loss)
    with tf.Session() as session:
        session.run(tf.global_variables_initializer())

        def feed(is_test: bool) -> dict[Any, Any]:
            ids = rng.integers(2, SYMBOLS, size=(LENGTH, 32))
            return dict(zip(inputs, ids, strict=True)) | {feed_previous: is_test}

        for _ in range(150):
            session.run(train, feed(False))
        given = feed(True)
        found = session.run(outputs, given)
    hits = [np.mean(o.argmax(1) == given[x]) for o, x in zip(found, inputs, strict=True)]
    return float(np.mean(hits))


@pytest.mark.parametrize(
    "name", ["embedding_rnn_seq2seq", "embedding_attention_seq2seq", "embedding_tied_rnn_seq2seq"]
)
def test_models_learn_to_copy(name: str) -> None:
    sizes = {"embedding_size": 8} | (
        {"num_symbols": SYMBOLS}
        if "tied" in name
        else {"num_encoder_symbols": SYMBOLS, "num_decoder_symbols": SYMBOLS}
    )

    def model(inputs: Any, decoded: Any, feed_previous: Any) -> Any:
        cell = tf.nn.rnn_cell.GRUCell(24)
        return getattr(legacy, name)(inputs, decoded, cell, **sizes, feed_previous=feed_previous)

    assert copies(model) > 0.9


def test_buckets_share_their_weights() -> None:
    ids, ones = [tf.constant([1, 2])] * 4, [tf.ones([2])] * 4

    def model(encoded: Any, decoded: Any) -> Any:
        return legacy.embedding_rnn_seq2seq(encoded, decoded, tf.nn.rnn_cell.GRUCell(3), 5, 5, 2)

    outputs, losses = legacy.model_with_buckets(ids, ids, ids, ones, [(2, 2), (4, 4)], model)
    assert [len(output) for output in outputs] == [2, 4] and len(losses) == 2
    once = len(tf.trainable_variables())
    with tf.Graph().as_default():
        same = [tf.constant([1, 2])] * 2
        model(same, same)
        assert len(tf.trainable_variables()) == once
    with pytest.raises(ValueError, match="must be at least that of last bucket"):
        legacy.model_with_buckets(ids[:1], ids, ids, ones, [(2, 2)], model)


def test_a_decoder_function_stops_at_its_end() -> None:
    class Next(tf.nn.rnn_cell.RNNCell):
        """Says the id after the one that it reads."""

        state_size = output_size = property(lambda self: SYMBOLS)

        def __call__(self, inputs: Any, state: Any, scope: Any = None) -> Any:
            return tf.manip.roll(inputs, 1, 1), state

    decoder = seq2seq.simple_decoder_fn_inference(
        None, tf.zeros([2, SYMBOLS]), tf.eye(SYMBOLS), 1, 4, 10, SYMBOLS
    )
    outputs, _, _ = seq2seq.dynamic_rnn_decoder(Next(), decoder)
    with tf.Session() as session:
        np.testing.assert_array_equal(session.run(outputs).argmax(-1), [[2, 3, 4]] * 2)


@pytest.mark.parametrize("option", ["luong", "bahdanau"])
def test_attention_of_decoder_functions(option: str) -> None:
    cell = tf.nn.rnn_cell.GRUCell(4)
    state = cell.zero_state(2, tf.float32)
    attention = seq2seq.prepare_attention(tf.ones([2, 6, 4]), option, 4)
    train = seq2seq.attention_decoder_fn_train(state, *attention)
    outputs, final, _ = seq2seq.dynamic_rnn_decoder(
        cell, train, inputs=tf.ones([2, 3, 5]), sequence_length=[3, 2]
    )
    with tf.Session() as session:
        session.run(tf.global_variables_initializer())
        actual, last = session.run([outputs, final])
    assert actual.shape == (2, 3, 4) and last.shape == (2, 4)
    np.testing.assert_array_equal(actual[1, 2], np.zeros(4))
