"""Recurrent cells against their formulas in NumPy, and the names of their variables."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import thalweg as tf

cells = tf.nn.rnn_cell
R = np.random.default_rng(1)
X = R.normal(size=(4, 3)).astype(np.float32)


@pytest.fixture(autouse=True)
def graph() -> Any:
    with tf.Graph().as_default() as graph:
        tf.set_random_seed(1)  # the same weights in every run
        yield graph


def sigmoid(x: Any) -> Any:
    return 1 / (1 + np.exp(-x))


def names() -> list[str]:
    return [v.op.name for v in tf.global_variables()]


def step(cell: Any, state: Any) -> tuple[Any, Any, dict[str, Any]]:
    """Output, state and variables (by last name) of one step on X."""
    given = tf.contrib.framework.nest.map_structure(tf.constant, state)
    output, new_state = cell(tf.constant(X), given)
    with tf.Session() as session:
        session.run(tf.global_variables_initializer())
        values = {v.op.name.split("/", 1)[1]: v for v in tf.global_variables()}
        return session.run([output, new_state, values])


def normal(*shape: int) -> Any:
    return R.normal(size=shape).astype(np.float32)


def test_basic_rnn() -> None:
    h = normal(4, 5)
    output, state, w = step(cells.BasicRNNCell(5), h)
    expected = np.tanh(np.concatenate([X, h], 1) @ w["kernel"] + w["bias"])
    np.testing.assert_allclose(output, expected, rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(state, expected, rtol=1e-5, atol=1e-6)
    assert names() == ["basic_rnn_cell/kernel", "basic_rnn_cell/bias"]


def test_gru() -> None:
    h = normal(4, 5)
    output, _, w = step(cells.GRUCell(5), h)
    gates = sigmoid(np.concatenate([X, h], 1) @ w["gates/kernel"] + w["gates/bias"])
    r, u = np.split(gates, 2, 1)
    c = np.tanh(np.concatenate([X, r * h], 1) @ w["candidate/kernel"] + w["candidate/bias"])
    np.testing.assert_allclose(output, u * h + (1 - u) * c, rtol=1e-4, atol=1e-6)
    np.testing.assert_array_equal(w["gates/bias"], np.ones(10))


@pytest.mark.parametrize("make", [cells.BasicLSTMCell, cells.LSTMCell])
def test_lstm(make: Callable[..., Any]) -> None:
    c, h = normal(4, 5), normal(4, 5)
    output, state, w = step(make(5, forget_bias=0.5), cells.LSTMStateTuple(c, h))
    i, j, f, o = np.split(np.concatenate([X, h], 1) @ w["kernel"] + w["bias"], 4, 1)
    memory = sigmoid(f + 0.5) * c + sigmoid(i) * np.tanh(j)
    np.testing.assert_allclose(state.c, memory, rtol=1e-4, atol=1e-6)
    np.testing.assert_allclose(output, sigmoid(o) * np.tanh(memory), rtol=1e-4, atol=1e-6)
    np.testing.assert_array_equal(state.h, output)


def test_lstm_with_peepholes_clipping_and_projection() -> None:
    c, h = normal(4, 5), normal(4, 2)
    ones = tf.ones_initializer()
    cell = cells.LSTMCell(5, True, 0.3, ones, num_proj=2, proj_clip=0.7)
    output, state, w = step(cell, cells.LSTMStateTuple(c, h))
    i, j, f, o = np.split(np.concatenate([X, h], 1) @ w["kernel"] + w["bias"], 4, 1)
    memory = sigmoid(f + 1 + c) * c + sigmoid(i + c) * np.tanh(j)
    memory = np.clip(memory, -0.3, 0.3)
    shown = sigmoid(o + memory) * np.tanh(memory) @ w["projection/kernel"]
    np.testing.assert_allclose(state.c, memory, rtol=1e-4, atol=1e-6)
    np.testing.assert_allclose(output, np.clip(shown, -0.7, 0.7), rtol=1e-4, atol=1e-6)
    assert cell.state_size == (5, 2)
    assert cell.output_size == 2


def test_lstm_state_as_one_tensor_and_shards() -> None:
    cell = cells.LSTMCell(4, num_proj=2, state_is_tuple=False, num_unit_shards=2)
    output, state = cell(tf.constant(X), cell.zero_state(4, tf.float32))
    assert cell.state_size == 6
    assert state.shape.as_list() == [4, 6]
    assert output.shape.as_list() == [4, 2]
    assert names()[:2] == ["lstm_cell/kernel/part_0", "lstm_cell/kernel/part_1"]


def test_stack_of_cells() -> None:
    cell = cells.MultiRNNCell([cells.BasicLSTMCell(5), cells.GRUCell(6)])
    output, state = cell(tf.constant(X), cell.zero_state(4, tf.float32))
    assert output.shape.as_list() == [4, 6]
    assert isinstance(state[0], cells.LSTMStateTuple)
    assert names()[0] == "multi_rnn_cell/cell_0/basic_lstm_cell/kernel"
    assert [v.op.name for v in cell.trainable_variables] == names()
    with pytest.raises(ValueError, match="state_is_tuple"):
        cells.MultiRNNCell([cells.BasicLSTMCell(5)], state_is_tuple=False)
    with pytest.raises(ValueError, match="at least one cell"):
        cells.MultiRNNCell([])


def test_a_cell_shares_its_variables_between_calls() -> None:
    cell = cells.BasicRNNCell(5)
    state = cell.zero_state(4, tf.float32)
    for _ in range(3):
        _, state = cell(tf.constant(X), state)
    assert len(tf.global_variables()) == 2
    other = cells.BasicRNNCell(5)
    other(tf.constant(X), state)
    assert names()[2] == "basic_rnn_cell_1/kernel"
    shared = cells.BasicRNNCell(5, reuse=True)
    shared(tf.constant(X), state)
    assert len(tf.global_variables()) == 4


def test_a_users_cell_by_get_variable() -> None:
    class Cell(cells.RNNCell):
        state_size = property(lambda self: 3)
        output_size = property(lambda self: 3)

        def call(self, inputs: Any, state: Any) -> Any:
            w = tf.get_variable("w", [3, 3])
            state = tf.matmul(inputs, w) + state
            return state, state

    cell = Cell()
    _, state = cell(tf.constant(X), tf.zeros([4, 3]))
    cell(tf.constant(X), state)
    assert names() == ["cell/w"]
    assert cell.trainable_variables == tf.global_variables()


def test_zero_states() -> None:
    cell = cells.BasicLSTMCell(5)
    static = cell.zero_state(4, tf.float64)
    assert static.c.shape.as_list() == [4, 5]
    assert static.dtype == tf.float64
    dynamic = cell.get_initial_state(tf.placeholder(tf.float32, [None, 3]))
    assert dynamic.h.shape.as_list() == [None, 5]
    with pytest.raises(ValueError, match="batch_size and dtype"):
        cell.get_initial_state()


def test_unknown_depth_is_refused() -> None:
    with pytest.raises(ValueError, match=r"inputs.shape\[-1\] to be known"):
        cells.GRUCell(5)(tf.placeholder(tf.float32, [4, None]), tf.zeros([4, 5]))


def test_dropout_of_inputs_outputs_and_states() -> None:
    cell = cells.DropoutWrapper(cells.BasicLSTMCell(50), 0.5, 0.5, 0.5, seed=3)
    output, state, _ = step(cell, cells.LSTMStateTuple(normal(4, 50), normal(4, 50)))
    assert 0.2 < np.mean(output == 0) < 0.8
    assert 0.2 < np.mean(state.h == 0) < 0.8
    assert not np.any(state.c == 0)  # memory is kept


def test_variational_dropout_drops_the_same_at_every_step() -> None:
    cell = cells.DropoutWrapper(
        cells.GRUCell(40),
        output_keep_prob=0.5,
        variational_recurrent=True,
        input_size=3,
        dtype=tf.float32,
    )
    outputs, _ = tf.nn.static_rnn(cell, [tf.constant(X)] * 2, dtype=tf.float32)
    with tf.Session() as session:
        session.run(tf.global_variables_initializer())
        first, second = session.run(outputs)
    np.testing.assert_array_equal(first == 0, second == 0)
    assert np.all((first == 0) == (first[:1] == 0))
    assert 0 < np.mean(first == 0) < 1


def test_dropout_probabilities_are_checked() -> None:
    with pytest.raises(ValueError, match="between 0 and 1"):
        cells.DropoutWrapper(cells.GRUCell(2), input_keep_prob=1.5)
    with pytest.raises(ValueError, match="dtype must be provided"):
        cells.DropoutWrapper(cells.GRUCell(2), variational_recurrent=True)
    with pytest.raises(TypeError, match="not an RNNCell"):
        cells.DropoutWrapper(object())


def test_residual_adds_the_inputs() -> None:
    inner = cells.BasicRNNCell(3)
    plain, _ = inner(tf.constant(X), tf.zeros([4, 3]))
    added, _ = cells.ResidualWrapper(inner)(tf.constant(X), tf.zeros([4, 3]))
    with tf.Session() as session:
        session.run(tf.global_variables_initializer())
        one, two = session.run([plain, added])
    np.testing.assert_allclose(one + X, two, rtol=1e-6)


def test_device_wrapper_places_the_cell() -> None:
    cell = cells.DeviceWrapper(cells.BasicRNNCell(3), "/cpu:0")
    output, _ = cell(tf.constant(X), cell.zero_state(4, tf.float32))
    assert "CPU:0" in output.device.upper()


def test_projections_and_embedding() -> None:
    cell = tf.contrib.rnn.OutputProjectionWrapper(cells.GRUCell(5), 2)
    output, _ = cell(tf.constant(X), tf.zeros([4, 5]))
    assert output.shape.as_list() == [4, 2]
    assert "output_projection_wrapper/kernel" in names()
    cell = tf.contrib.rnn.InputProjectionWrapper(cells.GRUCell(5), 7)
    cell(tf.constant(X), tf.zeros([4, 5]))
    assert "input_projection_wrapper/gru_cell/gates/kernel" in names()
    cell = tf.contrib.rnn.EmbeddingWrapper(cells.GRUCell(5), 10, 6)
    output, _ = cell(tf.constant([[1], [2], [3], [9]]), tf.zeros([4, 5]))
    assert output.shape.as_list() == [4, 5]
    assert "embedding_wrapper/embedding" in names()
