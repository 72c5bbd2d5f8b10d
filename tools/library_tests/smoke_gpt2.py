"""A program that trains and samples a small GPT-2: the library has no tests of its own."""

import model
import numpy as np
import sample
import tensorflow as tf

SMALL = {"n_vocab": 50, "n_ctx": 16, "n_embd": 32, "n_head": 4, "n_layer": 2}


def hparams():
    """The default hyperparameters, made small."""
    result = model.default_hparams()
    result.override_from_dict(SMALL)
    return result


def test_logits_have_the_shape_of_the_vocabulary():
    with tf.Graph().as_default(), tf.Session() as session:
        tokens = tf.placeholder(tf.int32, [2, None])
        output = model.model(hparams=hparams(), X=tokens)
        session.run(tf.global_variables_initializer())
        assert session.run(output["logits"], {tokens: np.ones([2, 5])}).shape == (2, 5, 50)


def test_the_past_gives_what_the_whole_gives():
    with tf.Graph().as_default(), tf.Session() as session:
        tokens = np.arange(8).reshape(1, 8)
        whole = model.model(hparams=hparams(), X=tf.constant(tokens))
        first = model.model(hparams=hparams(), X=tf.constant(tokens[:, :5]), reuse=True)
        rest = model.model(
            hparams=hparams(), X=tf.constant(tokens[:, 5:]), past=first["present"], reuse=True
        )
        session.run(tf.global_variables_initializer())
        expected, found = session.run([whole["logits"][:, 5:], rest["logits"]])
        np.testing.assert_allclose(found, expected, rtol=1e-3, atol=1e-4)


def test_it_learns_a_sequence():
    with tf.Graph().as_default(), tf.Session() as session:
        tokens = tf.constant(np.tile(np.arange(8), (4, 2)).astype(np.int32))
        logits = model.model(hparams=hparams(), X=tokens)["logits"]
        loss = tf.reduce_mean(
            tf.nn.sparse_softmax_cross_entropy_with_logits(
                labels=tokens[:, 1:], logits=logits[:, :-1]
            )
        )
        train = tf.train.AdamOptimizer(0.01).minimize(loss)
        session.run(tf.global_variables_initializer())
        losses = [session.run([loss, train])[0] for _ in range(30)]
        assert losses[-1] < losses[0] / 4


def test_it_samples_with_top_k():
    with tf.Graph().as_default(), tf.Session() as session:
        sampled = sample.sample_sequence(
            hparams=hparams(), length=6, start_token=1, batch_size=1, temperature=0.7, top_k=5
        )
        session.run(tf.global_variables_initializer())
        found = session.run(sampled)
        assert found.shape == (1, 7)
        assert (found[:, 0] == 1).all()
        assert (found < 50).all()
