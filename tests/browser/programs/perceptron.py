"""A perceptron trained by the loss of a first tutorial, written out."""

import numpy as np

import thalweg as tf

images = tf.placeholder(tf.float32, [64, 784], name="images")
labels = tf.placeholder(tf.float32, [64, 10], name="labels")


def dense(name, x, size):
    with tf.variable_scope(name):
        weights = tf.get_variable("weights", [x.shape[1], size])
        biases = tf.get_variable("biases", [size])
        return tf.matmul(x, weights) + biases


hidden = tf.nn.relu(dense("hidden", images, 128))
logits = dense("logits", hidden, 10)
with tf.name_scope("loss"):
    loss = -tf.reduce_sum(labels * tf.log(tf.nn.softmax(logits))) / 64 * 1
train = tf.train.AdamOptimizer(1e-3).minimize(loss)

with tf.Session() as session:
    session.run(tf.global_variables_initializer())
    rng = np.random.default_rng(0)
    feeds = {images: rng.random((64, 784)), labels: np.eye(10)[rng.integers(10, size=64)]}
    for _ in range(3):
        session.run([train, loss], feeds)
