"""Every optimizer against its formula in NumPy: dense, sparse, and sparse with repeated indices."""

import numpy as np
import pytest

import thalweg as tf

GRADIENTS = [
    np.array([[0.1, -0.2], [0.0, 0.3], [0.5, 0.4]]),
    np.array([[1.0, 0.5], [0.2, -0.1], [0.0, 2.0]]),
]
CLOSE = (1e-5, 1e-6)  # hyperparameters are float32, whatever the variables are
START = np.array([[1.0, 2.0], [-3.0, 0.5], [0.25, -1.0]])


def shrink(x, by):
    return np.sign(x) * np.maximum(np.abs(x) - by, 0)


def gradient_descent(w, s, g, t):
    return w - 0.3 * g


def momentum(w, s, g, t):
    s["a"] = s.get("a", 0) * 0.9 + g
    return w - 0.3 * s["a"]


def nesterov(w, s, g, t):
    s["a"] = s.get("a", 0) * 0.9 + g
    return w - 0.3 * (g + 0.9 * s["a"])


def adagrad(w, s, g, t):
    s["a"] = s.get("a", 0.1) + g**2
    return w - 0.3 * g / np.sqrt(s["a"])


def adagrad_da(w, s, g, t):
    s["g"] = s.get("g", 0) + g
    s["q"] = s.get("q", 0.1) + g**2
    return -0.3 * shrink(s["g"], 0.01 * t) / (0.02 * t * 0.3 + np.sqrt(s["q"]))


def adadelta(w, s, g, t):
    s["a"] = 0.9 * s.get("a", 0) + 0.1 * g**2
    u = np.sqrt(s.get("d", 0) + 1e-6) / np.sqrt(s["a"] + 1e-6) * g
    s["d"] = 0.9 * s.get("d", 0) + 0.1 * u**2
    return w - 0.3 * u


def rmsprop(w, s, g, t):
    s["r"] = 0.9 * s.get("r", 1) + 0.1 * g**2
    s["m"] = 0.5 * s.get("m", 0) + 0.3 * g / np.sqrt(s["r"] + 1e-3)
    return w - s["m"]


def centered_rmsprop(w, s, g, t):
    s["r"] = 0.9 * s.get("r", 1) + 0.1 * g**2
    s["c"] = 0.9 * s.get("c", 0) + 0.1 * g
    s["m"] = 0.5 * s.get("m", 0) + 0.3 * g / np.sqrt(s["r"] - s["c"] ** 2 + 1e-3)
    return w - s["m"]


def adam(w, s, g, t):
    s["m"] = 0.9 * s.get("m", 0) + 0.1 * g
    s["v"] = 0.99 * s.get("v", 0) + 0.01 * g**2
    rate = 0.3 * np.sqrt(1 - 0.99**t) / (1 - 0.9**t)
    return w - rate * s["m"] / (np.sqrt(s["v"]) + 1e-6)


def ftrl(power=0.5, l1=0.0, l2=0.0, shrinkage=0.0):
    def step(w, s, g, t):
        old = s.get("n", 0.1)
        new = s["n"] = old + g**2
        s["z"] = s.get("z", 0) + g + 2 * shrinkage * w - (new**power - old**power) / 0.3 * w
        return -shrink(s["z"], l1) / (new**power / 0.3 + 2 * l2)

    return step


def proximal_descent(w, s, g, t):
    return shrink(w - 0.3 * g, 0.3 * 0.01) / (1 + 0.3 * 0.02)


def proximal_adagrad(w, s, g, t):
    s["a"] = s.get("a", 0.1) + g**2
    rate = 0.3 / np.sqrt(s["a"])
    return shrink(w - rate * g, rate * 0.01) / (1 + rate * 0.02)


T = tf.train
OPTIMIZERS = {
    "descent": (lambda _: T.GradientDescentOptimizer(0.3), gradient_descent),
    "momentum": (lambda _: T.MomentumOptimizer(0.3, 0.9), momentum),
    "nesterov": (lambda _: T.MomentumOptimizer(0.3, 0.9, use_nesterov=True), nesterov),
    "adagrad": (lambda _: T.AdagradOptimizer(0.3), adagrad),
    "adagrad_da": (
        lambda step: T.AdagradDAOptimizer(
            0.3, step, l1_regularization_strength=0.01, l2_regularization_strength=0.02
        ),
        adagrad_da,
    ),
    "adadelta": (lambda _: T.AdadeltaOptimizer(0.3, 0.9, 1e-6), adadelta),
    "rmsprop": (lambda _: T.RMSPropOptimizer(0.3, 0.9, 0.5, 1e-3), rmsprop),
    "centered": (
        lambda _: T.RMSPropOptimizer(0.3, 0.9, 0.5, 1e-3, centered=True),
        centered_rmsprop,
    ),
    "adam": (lambda _: T.AdamOptimizer(0.3, 0.9, 0.99, 1e-6), adam),
    "ftrl": (lambda _: T.FtrlOptimizer(0.3), ftrl()),
    "ftrl_regular": (
        lambda _: T.FtrlOptimizer(
            0.3, l1_regularization_strength=0.01, l2_regularization_strength=0.02
        ),
        ftrl(l1=0.01, l2=0.02),
    ),
    "ftrl_power": (lambda _: T.FtrlOptimizer(0.3, learning_rate_power=-0.7), ftrl(0.7)),
    "ftrl_shrinkage": (
        lambda _: T.FtrlOptimizer(0.3, l2_shrinkage_regularization_strength=0.1),
        ftrl(shrinkage=0.1),
    ),
    "proximal_descent": (
        lambda _: T.ProximalGradientDescentOptimizer(0.3, 0.01, 0.02),
        proximal_descent,
    ),
    "proximal_adagrad": (
        lambda _: T.ProximalAdagradOptimizer(0.3, 0.1, 0.01, 0.02),
        proximal_adagrad,
    ),
}


def train(make, gradient_of, steps, dtype=tf.float64):
    """The variable after some steps with the gradient that `gradient_of(placeholder)` makes."""
    with tf.Graph().as_default(), tf.Session() as session:
        step = tf.train.get_or_create_global_step()
        w = tf.Variable(START, dtype=dtype)
        fed = tf.placeholder(dtype, [3, 2])
        update = make(step).apply_gradients([(gradient_of(fed), w)], step)
        session.run(tf.global_variables_initializer())
        for index in range(steps):
            session.run(update, {fed: GRADIENTS[index % 2]})
        assert session.run(step) == steps
        return session.run(w)


def expected(rule, gradients, steps):
    w, slots = START.copy(), {}
    for index in range(steps):
        w = rule(w, slots, gradients[index % 2], index + 1)
    return w


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_dense(name):
    make, rule = OPTIMIZERS[name]
    np.testing.assert_allclose(train(make, lambda g: g, 5), expected(rule, GRADIENTS, 5), *CLOSE)


@pytest.mark.parametrize("name", OPTIMIZERS)
@pytest.mark.parametrize("dtype", [tf.float16, tf.bfloat16, tf.float32])
def test_dtypes(name, dtype):
    make, rule = OPTIMIZERS[name]
    result = train(make, lambda g: g, 2, dtype)
    tolerance = {tf.float16: 2e-2, tf.bfloat16: 1e-1, tf.float32: 1e-5}[dtype]
    wanted = expected(rule, GRADIENTS, 2)
    np.testing.assert_allclose(result.astype(float), wanted, rtol=tolerance, atol=tolerance)


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_sparse_rows_with_repeats(name):
    """Row 2's gradient comes in two halves, row 0's whole, row 1's not at all."""
    make, rule = OPTIMIZERS[name]

    def slices(g):
        values = tf.gather(g * [[1.0], [0.0], [0.5]], [2, 0, 2])
        return tf.IndexedSlices(values, tf.constant([2, 0, 2]), tf.constant([3, 2]))

    masked = [g * [[1.0], [0.0], [1.0]] for g in GRADIENTS]
    wanted = expected(rule, masked, 4)
    touched = wanted.copy()
    touched[1] = START[1]  # a row that no index names is left alone
    np.testing.assert_allclose(train(make, slices, 4), touched, *CLOSE)


def test_adam_moves_rows_that_had_gradients_before():
    with tf.Graph().as_default(), tf.Session() as session:
        w = tf.Variable([[1.0], [1.0]])
        optimizer = tf.train.AdamOptimizer(0.1)
        first, second = (
            optimizer.apply_gradients(
                [(tf.IndexedSlices(tf.ones([1, 1]), tf.constant([i]), tf.constant([2, 1])), w)]
            )
            for i in range(2)
        )
        session.run(tf.global_variables_initializer())
        session.run(first)
        once = session.run(w)[0]
        session.run(second)
        assert session.run(w)[0] < once


@pytest.mark.parametrize(
    ("make", "names"),
    [
        (lambda: T.AdamOptimizer(), ["beta1_power", "beta2_power", "w/Adam", "w/Adam_1"]),
        (lambda: T.RMSPropOptimizer(0.1), ["w/RMSProp", "w/RMSProp_1"]),
        (lambda: T.MomentumOptimizer(0.1, 0.9), ["w/Momentum"]),
        (lambda: T.AdagradOptimizer(0.1), ["w/Adagrad"]),
        (lambda: T.AdadeltaOptimizer(), ["w/Adadelta", "w/Adadelta_1"]),
        (lambda: T.FtrlOptimizer(0.1, accum_name="n"), ["w/Ftrl", "w/n"]),
        (lambda: T.GradientDescentOptimizer(0.1), []),
    ],
)
def test_slot_names(make, names):
    with tf.Graph().as_default():
        w = tf.Variable(1.0, name="w")
        optimizer = make()
        optimizer.minimize(w * w)
        assert sorted(v.op.name for v in tf.global_variables()[1:]) == names
        assert [v.op.name for v in optimizer.variables()] == names
        assert tf.trainable_variables() == [w]


def test_bad_parameters():
    with pytest.raises(ValueError, match="positive"):
        T.AdagradOptimizer(0.1, initial_accumulator_value=0.0)
    with pytest.raises(ValueError, match="learning_rate_power"):
        T.FtrlOptimizer(0.1, learning_rate_power=0.1)
    with pytest.raises(ValueError, match="l1_regularization_strength"):
        T.FtrlOptimizer(0.1, l1_regularization_strength=-1.0)


@pytest.mark.parametrize("rate", [0.5, lambda: 0.5, np.float32(0.5)])
def test_hyperparameters_may_be_functions(rate):
    with tf.Graph().as_default(), tf.Session() as session:
        w = tf.Variable(1.0)
        update = T.GradientDescentOptimizer(rate).minimize(w)
        session.run(tf.global_variables_initializer())
        session.run(update)
        assert session.run(w) == 0.5


def test_hyperparameters_may_be_tensors():
    with tf.Graph().as_default(), tf.Session() as session:
        rate = tf.placeholder(tf.float32, [])
        w = tf.Variable(1.0)
        update = T.MomentumOptimizer(rate, 0.0).minimize(w)
        session.run(tf.global_variables_initializer())
        session.run(update, {rate: 0.25})
        assert session.run(w) == 0.75


def test_lazy_adam_leaves_other_rows_alone():
    with tf.Graph().as_default(), tf.Session() as session:
        w = tf.Variable([[1.0], [1.0]])
        optimizer = tf.contrib.opt.LazyAdamOptimizer(0.1)
        slices = [
            tf.IndexedSlices(tf.ones([1, 1]), tf.constant([i]), tf.constant([2, 1]))
            for i in range(2)
        ]
        first, second = (optimizer.apply_gradients([(rows, w)]) for rows in slices)
        session.run(tf.global_variables_initializer())
        session.run(first)
        once = session.run(w)[0]
        session.run(second)
        assert session.run(w)[0] == once


@pytest.mark.parametrize("sparse", [False, True])
def test_nadam_looks_one_step_ahead(sparse):
    rate, beta1, beta2, epsilon = 0.1, 0.9, 0.99, 1e-8
    w, m, v = np.array([1.0, -2.0]), np.zeros(2), np.zeros(2)
    slopes = np.array([[0.5, -1.0], [-0.25, 3.0], [1.0, 1.0]])
    if sparse:
        slopes[:, 0] = 0
    with tf.Graph().as_default(), tf.Session() as session:
        ours = tf.Variable(w)
        grad = tf.placeholder(tf.float64, [2])
        optimizer = tf.contrib.opt.NadamOptimizer(rate, beta1, beta2, epsilon)
        rows = tf.IndexedSlices(grad[1:], tf.constant([1]), tf.constant([2])) if sparse else grad
        update = optimizer.apply_gradients([(rows, ours)])
        session.run(tf.global_variables_initializer())
        for step, g in enumerate(slopes, 1):
            m, v = beta1 * m + (1 - beta1) * g, beta2 * v + (1 - beta2) * g * g
            scale = rate * np.sqrt(1 - beta2**step) / (1 - beta1**step)
            change = scale * (beta1 * m + (1 - beta1) * g) / (np.sqrt(v) + epsilon)
            w = w - np.where([not sparse, True], change, 0)
            session.run(update, {grad: g})
            np.testing.assert_allclose(session.run(ours), w, rtol=1e-6)
