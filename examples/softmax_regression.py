"""Softmax regression on two blobs of points, with the cross entropy written out."""

import numpy as np

import thalweg as tf

rng = np.random.default_rng(0)
classes = rng.integers(0, 2, 400)
points = (rng.normal(size=(400, 2)) + 3.0 * classes[:, None]).astype(np.float32)

data = tf.placeholder(tf.float32, [None, 2])
label = tf.placeholder(tf.float32, [None, 2])
W = tf.Variable(tf.zeros([2, 2]))
b = tf.Variable(tf.zeros([2]))
prediction = tf.nn.softmax(tf.matmul(data, W) + b)
cross_entropy = -tf.reduce_sum(label * tf.log(prediction))
train_step = tf.train.GradientDescentOptimizer(0.5).minimize(cross_entropy / 400.0)
correct = tf.equal(tf.argmax(prediction, 1), tf.argmax(label, 1))
accuracy = tf.reduce_mean(tf.cast(correct, tf.float32))

with tf.Session() as session:
    session.run(tf.global_variables_initializer())
    feed = {data: points, label: np.eye(2, dtype=np.float32)[classes]}
    for _ in range(200):
        session.run(train_step, feed)
    print(
        f"accuracy {session.run(accuracy, feed):.2%}, loss {session.run(cross_entropy, feed):.2f}"
    )
