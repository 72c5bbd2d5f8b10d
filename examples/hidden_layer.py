"""One layer: `h = relu(x W + b)`."""

import numpy as np

import thalweg as tf

x = tf.placeholder(tf.float32, [None, 3], name="x")
W = tf.Variable(np.eye(3, 2, dtype=np.float32), name="W")
b = tf.Variable(tf.zeros([2]), name="b")
h = tf.nn.relu(tf.matmul(x, W) + b)

with tf.Session() as session:
    session.run(tf.global_variables_initializer())
    print(session.run(h, {x: [[1.0, -2.0, 3.0], [-1.0, 5.0, 0.0]]}))  # [[1. 0.] [0. 5.]]
