"""One training loop written three ways gives the same weights, bit for bit."""

import numpy as np
import pytest

import thalweg as tf

STEPS = 20
SEED = np.random.RandomState(0)
INPUTS = SEED.randn(STEPS, 16, 5).astype(np.float32)
LABELS = SEED.randn(STEPS, 16, 2).astype(np.float32)
STARTS = [SEED.randn(*shape).astype(np.float32) for shape in ((5, 8), (8,), (8, 2), (2,))]

OPTIMIZERS = {
    "descent": lambda: tf.train.GradientDescentOptimizer(0.05),
    "momentum": lambda: tf.train.MomentumOptimizer(0.05, 0.9),
    "adam": lambda: tf.train.AdamOptimizer(0.01),
}


def loss_of(weights, x, y):
    first, first_bias, second, second_bias = weights
    hidden = tf.tanh(tf.matmul(x, first) + first_bias)
    return tf.reduce_mean(tf.square(tf.matmul(hidden, second) + second_bias - y))


def by_session(make):
    with tf.Graph().as_default(), tf.Session() as session:
        weights = [tf.Variable(start) for start in STARTS]
        x, y = tf.placeholder(tf.float32, [16, 5]), tf.placeholder(tf.float32, [16, 2])
        train = make().minimize(loss_of(weights, x, y))
        session.run(tf.global_variables_initializer())
        for inputs, labels in zip(INPUTS, LABELS, strict=True):
            session.run(train, {x: inputs, y: labels})
        return session.run(weights)


def by_function(make):
    with tf.eager_mode():
        weights = [tf.Variable(start) for start in STARTS]
        optimizer = make()

        @tf.function
        def train(x, y):
            found = tf.gradients(loss_of(weights, x, y), weights)
            optimizer.apply_gradients(zip(found, weights, strict=True))

        for inputs, labels in zip(INPUTS, LABELS, strict=True):
            train(inputs, labels)
        return [weight.numpy() for weight in weights]


def by_eager_code(make):
    with tf.eager_mode():
        weights = [tf.Variable(start) for start in STARTS]
        optimizer = make()
        for inputs, labels in zip(INPUTS, LABELS, strict=True):
            with tf.GradientTape() as tape:
                loss = loss_of(weights, tf.constant(inputs), tf.constant(labels))
            found = tape.gradient(loss, weights)
            optimizer.apply_gradients(zip(found, weights, strict=True))
        return [weight.numpy() for weight in weights]


@pytest.mark.parametrize("optimizer", OPTIMIZERS)
def test_session_function_and_eager_code_train_alike(optimizer):
    make = OPTIMIZERS[optimizer]
    session, function, eager = by_session(make), by_function(make), by_eager_code(make)
    for one, two, three in zip(session, function, eager, strict=True):
        assert one.tobytes() == two.tobytes() == three.tobytes()
