"""What all optimizers share: gradients, gating, slots, the training op, and its errors."""

import numpy as np
import pytest

import thalweg as tf


@pytest.fixture(autouse=True)
def session():
    with tf.Graph().as_default(), tf.Session() as session:
        yield session


def descent(rate=0.5):
    return tf.train.GradientDescentOptimizer(rate)


@pytest.mark.parametrize("gate", [0, 1, 2])
def test_minimize(session, gate):
    a, b = tf.Variable(3.0), tf.Variable([1.0, 2.0])
    loss = a * a + tf.reduce_sum(a * b)
    update = descent().minimize(loss, gate_gradients=gate)
    session.run(tf.global_variables_initializer())
    session.run(update)
    assert session.run(a) == 3 - 0.5 * (6 + 3)
    assert session.run(b).tolist() == [1 - 1.5, 2 - 1.5]


def test_training_counts_after_it_updates(session):
    w = tf.Variable(1.0)
    step = tf.train.create_global_step()
    update = descent().minimize(w, step, name="train")
    assert update.name == "train"
    assert tf.get_collection(tf.GraphKeys.TRAIN_OP) == [update]
    session.run(tf.global_variables_initializer())
    session.run(update)
    assert session.run(step) == 1


def test_compute_gradients(session):
    a, b, c = tf.Variable(3.0), tf.Variable(2.0), tf.Variable(1.0)
    loss = a * b
    pairs = descent().compute_gradients(loss, [a, c], grad_loss=tf.constant(10.0))
    assert [variable for _, variable in pairs] == [a, c]
    assert pairs[1][0] is None
    session.run(tf.global_variables_initializer())
    assert session.run(pairs[0][0]) == 20.0
    again = descent().compute_gradients(lambda: loss * 2.0, var_list=(a,))
    assert session.run(again[0][0]) == 4.0


def test_apply_skips_what_has_no_gradient(session):
    a, b = tf.Variable(1.0), tf.Variable(1.0)
    update = descent().apply_gradients([(None, a), (2.0, b)])
    session.run(tf.global_variables_initializer())
    session.run(update)
    assert session.run([a, b]) == [1.0, 0.0]


def test_sparse_gradients_come_from_gathers(session):
    w = tf.Variable(tf.ones([4, 2]))
    update = tf.train.AdagradOptimizer(0.5).minimize(tf.reduce_sum(tf.gather(w, [1, 1, 3])))
    session.run(tf.global_variables_initializer())
    session.run(update)
    changed = session.run(w)
    np.testing.assert_array_equal(changed[[0, 2]], 1.0)
    np.testing.assert_allclose(changed[1], 1 - 0.5 * 2 / np.sqrt(4.1), rtol=1e-6)
    np.testing.assert_allclose(changed[3], 1 - 0.5 / np.sqrt(1.1), rtol=1e-6)


def test_partitioned_variables_train(session):
    w = tf.get_variable("w", initializer=tf.ones([4]), partitioner=tf.fixed_size_partitioner(2))
    loss = tf.reduce_sum(w.as_tensor() * [1.0, 2.0, 3.0, 4.0])
    momentum = tf.train.MomentumOptimizer(0.5, 0.9)
    update = momentum.minimize(loss, var_list=w)
    slot = momentum.get_slot(list(w)[1], "momentum")
    assert slot.op.name == "w/part_1/Momentum"
    assert slot.save_slice_info.full_name == "w/Momentum"
    session.run(tf.global_variables_initializer())
    session.run(update)
    assert session.run(w.as_tensor()).tolist() == [0.5, 0, -0.5, -1]


def test_constraints(session):
    w = tf.Variable([1.0, -1.0], constraint=lambda v: tf.maximum(v, 0.0))
    update = descent().minimize(tf.reduce_sum(w))
    session.run(tf.global_variables_initializer())
    session.run(update)
    assert session.run(w).tolist() == [0.5, 0.0]
    rows = tf.IndexedSlices(tf.constant([1.0]), tf.constant([0]))
    with pytest.raises(RuntimeError, match="constraint"):
        descent().apply_gradients([(rows, w)])


def test_slots():
    w, other = tf.Variable(1.0), tf.Variable(1.0)
    adam = tf.train.AdamOptimizer(name="Mine")
    assert adam.get_name() == "Mine"
    adam.minimize(w, var_list=[w])
    assert adam.get_slot_names() == ["m", "v"]
    assert adam.get_slot(w, "m").op.name == "Variable/Mine"
    assert adam.get_slot(other, "m") is None
    assert adam.get_slot(w, "nothing") is None


def test_slots_of_variables_of_unknown_shape(session):
    fed = tf.placeholder_with_default([1.0, 2.0], None)
    w = tf.Variable(fed, validate_shape=False)
    update = tf.train.RMSPropOptimizer(0.1).minimize(tf.reduce_sum(w))
    session.run(tf.global_variables_initializer())
    session.run(update)
    assert session.run(w).shape == (2,)


def test_errors():
    constant = tf.constant(1.0)
    with pytest.raises(ValueError, match="No variables to optimize"):
        descent().minimize(constant)
    w = tf.Variable(1.0)
    with pytest.raises(ValueError, match="No gradients provided for any variable"):
        descent().minimize(constant)
    with pytest.raises(ValueError, match="No variables provided"):
        descent().apply_gradients([])
    with pytest.raises(ValueError, match="No gradients provided"):
        descent().apply_gradients([(None, w)])
    with pytest.raises(ValueError, match="gate_gradients must be one of"):
        descent().compute_gradients(w * 1.0, gate_gradients=7)
    with pytest.raises(TypeError, match=r"not a tf\.Variable"):
        descent().compute_gradients(w * 1.0, var_list=["w"])
    with pytest.raises(TypeError, match=r"must be a tf\.Variable"):
        descent().apply_gradients([(constant, constant)])
    with pytest.raises(ValueError, match="Invalid type"):
        descent().compute_gradients(tf.constant(1))
    with pytest.raises(ValueError, match="name"):
        tf.train.Optimizer(False, "")


def test_a_new_optimizer_is_one_formula(session):
    class SignDescent(tf.train.Optimizer):
        def _step(self, grad, part):
            part.subtract(part.var, 0.25 * tf.sign(grad))

    w = tf.Variable([1.0, 1.0])
    update = SignDescent(False, "SignDescent").minimize(tf.reduce_sum(w * [3.0, -5.0]))
    session.run(tf.global_variables_initializer())
    session.run(update)
    assert session.run(w).tolist() == [0.75, 1.25]


def test_optimizers_can_be_changed_in_tensorflows_way(session):
    """Libraries look for the direct subclasses, and override what TensorFlow calls."""

    class Halved(tf.train.MomentumOptimizer):
        def _resource_apply_dense(self, grad, var):
            return super()._resource_apply_dense(grad / 2, var)

        def _resource_apply_sparse(self, grad, var, indices):
            return super()._resource_apply_sparse(grad / 4, var, indices)

    dense, table = tf.Variable([8.0]), tf.Variable([[8.0], [8.0]])
    loss = tf.reduce_sum(dense) + tf.reduce_sum(tf.gather(table, [1]))
    update = Halved(4.0, 0.0).minimize(loss)
    session.run(tf.global_variables_initializer())
    session.run(update)
    assert session.run(dense).tolist() == [6.0]
    assert session.run(table).tolist() == [[8.0], [7.0]]
    public = [getattr(tf.train, name) for name in dir(tf.train) if name.endswith("Optimizer")]
    assert {kind.__base__ for kind in public if kind is not tf.train.Optimizer} == {
        tf.train.Optimizer
    }


def test_tensorflow_style_optimizers_work(session):
    class Plain(tf.train.Optimizer):
        def __init__(self):
            super().__init__(False, "Plain")

        def _resource_apply_dense(self, grad, var):
            return var.assign_sub(grad)

        def _resource_apply_sparse(self, grad, var, indices):
            return tf.scatter_sub(var, indices, grad)

    w = tf.Variable([1.0, 2.0])
    loss = tf.reduce_sum(w)
    rows = tf.reduce_sum(tf.gather(w, [1, 1]))
    update, sparse = Plain().minimize(loss), Plain().minimize(rows)
    session.run(tf.global_variables_initializer())
    session.run(update)
    session.run(sparse)
    assert session.run(w).tolist() == [0, -1]


def test_variables_may_come_as_the_values_of_a_dict(session):
    weights = {"a": tf.Variable(1.0), "b": tf.Variable(2.0)}
    loss = weights["a"] * weights["b"]
    step = tf.train.GradientDescentOptimizer(0.5).minimize(loss, var_list=weights.values())
    session.run(tf.global_variables_initializer())
    session.run(step)
    assert session.run(list(weights.values())) == [0.0, 1.5]
