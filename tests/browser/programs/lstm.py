"""A language model of stacked LSTMs, unrolled: `lstm.py STEPS LAYERS`."""

import sys

import numpy as np

import thalweg as tf

STEPS, LAYERS = map(int, sys.argv[1:])
BATCH, WORDS, SIZE = 16, 500, 64

words = tf.placeholder(tf.int32, [BATCH, STEPS], name="words")
targets = tf.placeholder(tf.int32, [BATCH, STEPS], name="targets")
with tf.variable_scope("embedding"):
    table = tf.get_variable("table", [WORDS, SIZE])
    inputs = tf.nn.embedding_lookup(table, words)
cells = [tf.nn.rnn_cell.BasicLSTMCell(SIZE) for _ in range(LAYERS)]
cell = tf.nn.rnn_cell.MultiRNNCell(cells)
outputs, _ = tf.nn.static_rnn(cell, tf.unstack(inputs, axis=1), dtype=tf.float32)
with tf.variable_scope("softmax"):
    logits = tf.layers.dense(tf.reshape(tf.stack(outputs, 1), [-1, SIZE]), WORDS)
    losses = tf.nn.sparse_softmax_cross_entropy_with_logits(
        labels=tf.reshape(targets, [-1]), logits=logits
    )
    loss = tf.reduce_mean(losses)
with tf.name_scope("train"):
    descent = tf.train.GradientDescentOptimizer(1.0)
    slopes, variables = zip(*descent.compute_gradients(loss), strict=True)
    clipped, _ = tf.clip_by_global_norm(slopes, 5.0)
    train = descent.apply_gradients(zip(clipped, variables, strict=True))

with tf.Session() as session:
    session.run(tf.global_variables_initializer())
    batch = np.random.default_rng(0).integers(WORDS, size=(BATCH, STEPS + 1))
    session.run([train, loss], {words: batch[:, :-1], targets: batch[:, 1:]})
