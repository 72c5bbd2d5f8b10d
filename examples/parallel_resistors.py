"""The smallest session program: 15·5 / (15 + 5), with named ops."""

import thalweg as tf

a = tf.constant(15, name="a")
b = tf.constant(5, name="b")
product = tf.multiply(a, b, name="product")
total = tf.add(a, b, name="sum")
result = tf.divide(product, total, name="result")

with tf.Session() as session:
    print(session.run(result))  # 3.75
