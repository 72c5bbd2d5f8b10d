"""Two products on two devices."""

import numpy as np

import thalweg as tf

x = tf.placeholder(tf.float32, [8, 8], name="x")
with tf.device("/cpu:0"), tf.name_scope("first"):
    y = tf.matmul(x, x, name="product")
with tf.device("/cpu:1"), tf.name_scope("second"):
    z = tf.matmul(y, y, name="product")

with tf.Session(config=tf.ConfigProto(device_count={"CPU": 2})) as session:
    session.run(z, {x: np.eye(8)})
