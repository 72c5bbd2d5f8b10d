"""Static recurrent networks: sequence lengths, directions, saved states, scopes."""

from typing import Any

import numpy as np
import pytest

import thalweg as tf

R = np.random.default_rng(2)


@pytest.fixture(autouse=True)
def graph() -> Any:
    with tf.Graph().as_default() as graph:
        yield graph


class Plus(tf.nn.rnn_cell.RNNCell):
    """output = input + 1, state = state + 1"""

    state_size = property(lambda self: 2)
    output_size = property(lambda self: 2)

    def __call__(self, inputs: Any, state: Any, scope: Any = None) -> Any:
        return inputs + 1, state + 1


def run(values: Any) -> Any:
    with tf.Session() as session:
        session.run(tf.global_variables_initializer())
        return session.run(values)


def steps(count: int = 3) -> list[Any]:
    return [tf.fill([2, 2], float(10 * i)) for i in range(count)]


def test_outputs_and_state() -> None:
    outputs, state = run(tf.nn.static_rnn(Plus(), steps(), dtype=tf.float32))
    np.testing.assert_array_equal([o[0, 0] for o in outputs], [1, 11, 21])
    np.testing.assert_array_equal(state, np.full((2, 2), 3))


def test_after_its_end_an_example_gives_zeros_and_keeps_its_state() -> None:
    outputs, state = run(
        tf.nn.static_rnn(Plus(), steps(), dtype=tf.float32, sequence_length=[1, 3])
    )
    np.testing.assert_array_equal([o[:, 0] for o in outputs], [[1, 1], [0, 11], [0, 21]])
    np.testing.assert_array_equal(state, [[1, 1], [3, 3]])


def test_unknown_batch_size() -> None:
    x = [tf.placeholder(tf.float32, [None, 2]) for _ in range(2)]
    lengths = tf.placeholder(tf.int64, [None])
    outputs, state = tf.nn.static_rnn(Plus(), x, dtype=tf.float32, sequence_length=lengths)
    feeds = {**dict.fromkeys(x, np.zeros((2, 2))), lengths: [2, 1]}
    with tf.Session() as session:
        values = session.run([*outputs, state], feeds)
    np.testing.assert_array_equal([v[:, 0] for v in values], [[1, 1], [1, 0], [2, 1]])


def test_bidirectional_runs_each_example_from_its_own_end() -> None:
    class Counter(tf.nn.rnn_cell.RNNCell):
        state_size = property(lambda self: 1)
        output_size = property(lambda self: 1)

        def __call__(self, inputs: Any, state: Any, scope: Any = None) -> Any:
            return state + inputs, state + inputs

    x = [tf.ones([2, 1]) for _ in range(3)]
    outputs, fw, bw = run(
        tf.nn.static_bidirectional_rnn(
            Counter(), Counter(), x, dtype=tf.float32, sequence_length=[2, 3]
        )
    )
    ahead, back = np.array(outputs)[:, :, 0].T, np.array(outputs)[:, :, 1].T
    np.testing.assert_array_equal(ahead, [[1, 2, 0], [1, 2, 3]])
    np.testing.assert_array_equal(back, [[2, 1, 0], [3, 2, 1]])
    np.testing.assert_array_equal(fw, [[2], [3]])
    np.testing.assert_array_equal(bw, [[2], [3]])


def test_bidirectional_variable_names() -> None:
    cells = [tf.nn.rnn_cell.BasicLSTMCell(2), tf.nn.rnn_cell.BasicLSTMCell(2)]
    tf.nn.static_bidirectional_rnn(*cells, steps(), dtype=tf.float32)
    assert [v.op.name for v in tf.global_variables()][::2] == [
        "bidirectional_rnn/fw/basic_lstm_cell/kernel",
        "bidirectional_rnn/bw/basic_lstm_cell/kernel",
    ]


def test_variables_lie_below_the_scope() -> None:
    tf.nn.static_rnn(tf.nn.rnn_cell.GRUCell(3), steps(), dtype=tf.float32)
    tf.contrib.rnn.static_rnn(tf.nn.rnn_cell.GRUCell(3), steps(), dtype=tf.float32, scope="mine")
    actual = [v.op.name for v in tf.global_variables()]
    assert actual[0] == "rnn/gru_cell/gates/kernel"
    assert actual[4] == "mine/gru_cell/gates/kernel"
    assert len(actual) == 8


def test_state_saver() -> None:
    class Saver:
        def __init__(self) -> None:
            self.saved: dict[str, Any] = {}

        def state(self, name: str) -> Any:
            return tf.fill([2, 2], 5.0)

        def save_state(self, name: str, value: Any) -> Any:
            self.saved[name] = value
            return tf.no_op()

    saver = Saver()
    _, state = tf.nn.static_state_saving_rnn(Plus(), steps(), saver, "kept")
    np.testing.assert_array_equal(run(saver.saved["kept"]), np.full((2, 2), 8))
    assert saver.saved["kept"] is state
    with pytest.raises(ValueError, match="same type"):
        tf.nn.static_state_saving_rnn(Plus(), steps(), saver, ("a", "b"))


def test_gradients_reach_inputs_and_weights() -> None:
    x = [tf.constant(R.normal(size=(2, 3)).astype(np.float32)) for _ in range(3)]
    cell = tf.nn.rnn_cell.BasicLSTMCell(4)
    outputs, _ = tf.nn.static_rnn(cell, x, dtype=tf.float32, sequence_length=[2, 3])
    grads = run(tf.gradients(tf.add_n(outputs), [*x, *tf.trainable_variables()]))
    assert np.all(grads[2][0] == 0)  # the first example has ended
    assert all(np.any(g != 0) for g in grads)


@pytest.mark.parametrize(
    ("inputs", "options", "error", "message"),
    [
        (None, {"dtype": tf.float32}, TypeError, "must be a sequence"),
        ([], {"dtype": tf.float32}, ValueError, "must not be empty"),
        ([[2, 2]], {}, ValueError, "dtype must be specified"),
        ([[2, None]], {"dtype": tf.float32}, ValueError, "must be accessible"),
    ],
)
def test_bad_calls(inputs: Any, options: Any, error: type, message: str) -> None:
    given = inputs and [tf.placeholder(tf.float32, shape) for shape in inputs]
    with pytest.raises(error, match=message):
        tf.nn.static_rnn(Plus(), given, **options)


def test_sequence_length_must_be_a_vector() -> None:
    with pytest.raises(ValueError, match="must be a vector"):
        tf.nn.static_rnn(Plus(), steps(), dtype=tf.float32, sequence_length=[[1, 2]])


def test_decoder_feeds_outputs_back() -> None:
    start = tf.zeros([2, 2])
    decoder = tf.contrib.legacy_seq2seq.rnn_decoder
    outputs, _ = decoder(steps(), start, Plus(), lambda output, time: output * 2)
    np.testing.assert_array_equal([o[0, 0] for o in run(outputs)], [1, 3, 7])
    outputs, state = decoder(steps(), start, Plus())
    np.testing.assert_array_equal([o[0, 0] for o in run(outputs)], [1, 11, 21])
    np.testing.assert_array_equal(run(state), np.full((2, 2), 3))
