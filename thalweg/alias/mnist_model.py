"""The network of TensorFlow's MNIST tutorial, `tensorflow.examples.tutorials.mnist.mnist`.

Two hidden layers of ReLUs and a linear one, under the names that programs restore variables by.
"""

from __future__ import annotations

import math
from typing import Any

from thalweg.alias import names

tf = names.root()

NUM_CLASSES = 10
IMAGE_SIZE = 28
IMAGE_PIXELS = IMAGE_SIZE * IMAGE_SIZE


def inference(images: Any, hidden1_units: int, hidden2_units: int) -> Any:
    """The logits of a batch of flat images."""
    hidden = tf.nn.relu(_linear(images, "hidden1", IMAGE_PIXELS, hidden1_units))
    hidden = tf.nn.relu(_linear(hidden, "hidden2", hidden1_units, hidden2_units))
    return _linear(hidden, "softmax_linear", hidden2_units, NUM_CLASSES)


def _linear(x: Any, scope: str, inputs: int, outputs: int) -> Any:
    with tf.name_scope(scope):
        spread = 1.0 / math.sqrt(float(inputs))
        weights = tf.Variable(tf.truncated_normal([inputs, outputs], stddev=spread), name="weights")
        biases = tf.Variable(tf.zeros([outputs]), name="biases")
        return tf.matmul(x, weights) + biases


def loss(logits: Any, labels: Any) -> Any:
    """The mean cross-entropy of logits and class numbers."""
    return tf.losses.sparse_softmax_cross_entropy(labels=tf.to_int64(labels), logits=logits)


def training(loss: Any, learning_rate: float) -> Any:
    """The op that makes one step of gradient descent; a summary follows the loss."""
    tf.summary.scalar("loss", loss)
    step = tf.Variable(0, name="global_step", trainable=False)
    return tf.train.GradientDescentOptimizer(learning_rate).minimize(loss, global_step=step)


def evaluation(logits: Any, labels: Any) -> Any:
    """How many of a batch have the right class on top."""
    return tf.reduce_sum(tf.cast(tf.nn.in_top_k(logits, labels, 1), tf.int32))
