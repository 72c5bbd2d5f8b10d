"""Fused training ops do what the optimizers made of plain ops do."""

import numpy as np
import pytest

import thalweg as tf
from tests.ops.harness import check_loop
from thalweg.graph.op import REGISTRY

T = tf.train
L1, L2 = 0.01, 0.02
START = np.array([[1.0, 2.0], [-3.0, 0.5], [0.25, -1.0]])
GRADIENT = np.array([[0.1, -0.2], [0.7, 0.3], [0.5, 0.4]])


def regular(make):
    return lambda: make(0.3, l1_regularization_strength=L1, l2_regularization_strength=L2)


#: op: (optimizer, initial slots, hyperparameters before the gradient, and after it)
CASES = {
    "GradientDescent": (lambda: T.GradientDescentOptimizer(0.3), [], [0.3], []),
    "ProximalGradientDescent": (
        regular(T.ProximalGradientDescentOptimizer),
        [],
        [0.3, L1, L2],
        [],
    ),
    "Adagrad": (lambda: T.AdagradOptimizer(0.3), [0.1], [0.3], []),
    "ProximalAdagrad": (regular(T.ProximalAdagradOptimizer), [0.1], [0.3, L1, L2], []),
    "AdagradDA": (
        lambda: T.AdagradDAOptimizer(
            0.3,
            tf.constant(0, tf.int64),
            l1_regularization_strength=L1,
            l2_regularization_strength=L2,
        ),
        [0.0, 0.1],
        [],
        [0.3, L1, L2, np.int64(1)],
    ),
    "Adadelta": (lambda: T.AdadeltaOptimizer(0.3, 0.9, 1e-6), [0, 0], [0.3, 0.9, 1e-6], []),
    "Momentum": (lambda: T.MomentumOptimizer(0.3, 0.9), [0], [0.3], [0.9]),
    "RMSProp": (
        lambda: T.RMSPropOptimizer(0.3, 0.9, 0.5, 1e-3),
        [1, 0],
        [0.3, 0.9, 0.5, 1e-3],
        [],
    ),
    "CenteredRMSProp": (
        lambda: T.RMSPropOptimizer(0.3, 0.9, 0.5, 1e-3, centered=True),
        [0, 1, 0],
        [0.3, 0.9, 0.5, 1e-3],
        [],
    ),
    "Adam": (
        lambda: T.AdamOptimizer(0.3, 0.9, 0.99, 1e-6),
        [0, 0],
        [0.9, 0.99, 0.3, 0.9, 0.99, 1e-6],
        [],
    ),
    "Ftrl": (regular(T.FtrlOptimizer), [0.1, 0], [], [0.3, L1, L2, -0.5]),
}


@pytest.fixture(autouse=True)
def session():
    with tf.Graph().as_default(), tf.Session() as session:
        yield session


def double(values):
    return [v if isinstance(v, np.int64) else np.float64(v) for v in values]


@pytest.mark.parametrize("name", CASES)
def test_dense(name, session):
    make, slots, before, after = CASES[name]
    reference = tf.Variable(START)
    update = make().apply_gradients([(tf.constant(GRADIENT), reference)])
    cells = [tf.Variable(START), *(tf.Variable(np.full_like(START, s)) for s in slots)]
    fused = REGISTRY[f"Apply{name}"]()(*cells, *double(before), GRADIENT, *double(after))
    session.run(tf.global_variables_initializer())
    session.run(update)
    np.testing.assert_allclose(session.run(fused), session.run(reference), 1e-5, 1e-7)
    assert fused.shape.as_list() == [3, 2]


@pytest.mark.parametrize("name", CASES)
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_loops_give_all_new_values(name, dtype, session):
    _, slots, before, after = CASES[name]
    starts = [START, *(np.full_like(START, s) + 0.1 for s in slots)]
    others = [*double(before), GRADIENT, *double(after)]
    starts, others = (
        [v if v.dtype == np.int64 else v.astype(dtype) for v in values]
        for values in (starts, others)
    )
    kind = REGISTRY[f"Apply{name}"]
    for op in (kind(), kind(use_nesterov=True)) if "use_nesterov" in kind.fields else (kind(),):
        cells = [tf.Variable(start) for start in starts]
        fused = op(*cells, *others)
        session.run(tf.global_variables_initializer())
        session.run(fused)
        check_loop(fused.op, [*starts, *others], session.run(cells))


@pytest.mark.parametrize("name", [n for n in CASES if f"SparseApply{n}" in REGISTRY])
def test_sparse(name, session):
    make, slots, before, after = CASES[name]
    reference = tf.Variable(START)
    rows = tf.constant(GRADIENT[:2]), tf.constant([2, 0])
    update = make().apply_gradients([(tf.IndexedSlices(*rows), reference)])
    cells = [tf.Variable(START), *(tf.Variable(np.full_like(START, s)) for s in slots)]
    op = REGISTRY[f"SparseApply{name}"]()
    fused = op(*cells, *double(before), *rows, *double(after))
    session.run(tf.global_variables_initializer())
    session.run(update)
    np.testing.assert_allclose(session.run(fused), session.run(reference), 1e-5, 1e-7)


def test_repeated_rows_are_applied_one_after_the_other(session):
    w, accum = tf.Variable([0.0]), tf.Variable([1.0])
    op = REGISTRY["SparseApplyAdagrad"]()
    fused = op(w, accum, 1.0, [1.0, 1.0], [0, 0])
    session.run(tf.global_variables_initializer())
    np.testing.assert_allclose(session.run(fused), [-(2**-0.5) - 3**-0.5], rtol=1e-6)


def test_errors_change_nothing(session):
    w, accum = tf.Variable([1.0, 2.0]), tf.Variable([1.0, 1.0])
    fed = tf.placeholder(tf.float32)
    dense, sparse = REGISTRY["ApplyAdagrad"](), REGISTRY["SparseApplyAdagrad"]()
    session.run(tf.global_variables_initializer())
    with pytest.raises(tf.errors.InvalidArgumentError):
        session.run(dense(w, accum, 1.0, fed), {fed: np.ones(3)})
    with pytest.raises(tf.errors.InvalidArgumentError, match="not in"):
        session.run(sparse(w, accum, 1.0, [1.0], [2]))
    with pytest.raises(tf.errors.InvalidArgumentError, match="grad must have shape"):
        session.run(sparse(w, accum, 1.0, fed, [1]), {fed: np.ones(2)})
    with pytest.raises(ValueError, match="compatible"):
        dense(w, accum, [1.0], [1.0, 1.0])
    assert session.run([w, accum])[1].tolist() == [1, 1]
