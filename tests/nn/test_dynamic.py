"""Recurrent networks as loops, against the same cells written out in NumPy."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

import thalweg as tf
from tests.ops.harness import check_gradient
from thalweg.runtime.dataflow import control_region

R = np.random.default_rng(4)
TIME, BATCH, DEPTH, UNITS = 5, 3, 2, 4
INPUTS = R.normal(size=(BATCH, TIME, DEPTH))
LENGTHS = np.array([3, 0, 4], np.int32)


@pytest.fixture(autouse=True)
def graph() -> Iterator[None]:
    with tf.Graph().as_default():
        yield


@pytest.fixture(params=[True, False], ids=["native", "executor"])
def lowering(request: Any, monkeypatch: Any) -> None:
    monkeypatch.setattr(control_region, "NATIVE", request.param)


def run(values: Any, feeds: Any = None) -> Any:
    with tf.Session() as session:
        session.run(tf.global_variables_initializer())
        return session.run(values, feeds)


def sigmoid(x: Any) -> Any:
    return 1 / (1 + np.exp(-x))


def unrolled_lstm(inputs: Any, lengths: Any, kernel: Any, bias: Any) -> tuple[Any, Any, Any]:
    """An LSTM over [batch, time, depth], step by step: outputs and the last c and h."""
    c = h = np.zeros((len(inputs), UNITS))
    outputs = np.zeros((*inputs.shape[:2], UNITS))
    for time in range(inputs.shape[1]):
        gates = np.concatenate([inputs[:, time], h], 1) @ kernel + bias
        add, new, keep, show = np.split(gates, 4, 1)
        going = (time < lengths)[:, None]
        memory = sigmoid(keep + 1) * c + sigmoid(add) * np.tanh(new)
        shown = np.tanh(memory) * sigmoid(show)
        outputs[:, time] = np.where(going, shown, 0)
        c, h = np.where(going, memory, c), np.where(going, shown, h)
    return outputs, c, h


def lstm(**options: Any) -> Any:
    return tf.nn.rnn_cell.BasicLSTMCell(UNITS, dtype=tf.float64, **options)


class Plus(tf.nn.rnn_cell.RNNCell):
    """output = input + 1, state = state + 1, each of any structure"""

    def __init__(self, sizes: Any) -> None:
        super().__init__()
        self._sizes = sizes

    state_size = property(lambda self: self._sizes)
    output_size = property(lambda self: self._sizes)

    def call(self, inputs: Any, state: Any) -> Any:
        more = tf.nest.map_structure(lambda x: x + 1, (inputs, state))
        return more[0], more[1]


@pytest.mark.usefixtures("lowering")
class TestDynamic:
    @pytest.mark.parametrize("lengths", [None, LENGTHS])
    @pytest.mark.parametrize("time_major", [False, True])
    def test_as_unrolled(self, lengths: Any, time_major: bool) -> None:
        x = tf.placeholder(tf.float64, [None, None, DEPTH])
        given = None if lengths is None else tf.placeholder(tf.int64, [None])
        outputs, state = tf.nn.dynamic_rnn(
            lstm(), x, given, dtype=tf.float64, time_major=time_major
        )
        kernel, bias = tf.trainable_variables()
        inputs = INPUTS.swapaxes(0, 1) if time_major else INPUTS
        feeds = {x: inputs} | ({} if given is None else {given: lengths})
        found, c, h, *weights = run([outputs, state.c, state.h, kernel, bias], feeds)
        ends = np.full(BATCH, TIME) if lengths is None else lengths
        wanted = unrolled_lstm(INPUTS, ends, *weights)
        found = found.swapaxes(0, 1) if time_major else found
        for one, two in zip((found, c, h), wanted, strict=True):
            np.testing.assert_allclose(one, two, rtol=1e-12, atol=1e-12)

    def test_gradients(self) -> None:
        def build(x: Any, kernel: Any, start: Any) -> Any:
            weights = {"kernel": kernel, "bias": tf.zeros([4 * UNITS], tf.float64)}

            def given(getter: Any, name: str, *args: Any, **kwargs: Any) -> Any:
                return weights[name.rpartition("/")[2]]

            with tf.variable_scope("weights", custom_getter=given):
                first = tf.nn.rnn_cell.LSTMStateTuple(start, start * 2)
                outputs, state = tf.nn.dynamic_rnn(lstm(), x, LENGTHS, first)
            return [outputs, state.c, state.h]

        values = [INPUTS, R.normal(size=(DEPTH + UNITS, 4 * UNITS)), R.normal(size=(BATCH, UNITS))]
        check_gradient(build, values, [0, 1, 2], False, 1e-5, 1e-6)

    def test_as_static(self) -> None:
        cell, steps = lstm(), [tf.constant(INPUTS[:, t]) for t in range(TIME)]
        with tf.variable_scope("shared") as scope:
            written_out, last = tf.nn.static_rnn(
                cell, steps, dtype=tf.float64, sequence_length=LENGTHS, scope=scope
            )
        outputs, state = tf.nn.dynamic_rnn(
            cell, tf.constant(INPUTS), LENGTHS, dtype=tf.float64, scope=scope
        )
        weights = tf.trainable_variables()
        assert len(weights) == 2
        one = [tf.stack(written_out, 1), last, tf.gradients([written_out, last], weights)]
        two = [outputs, state, tf.gradients([outputs, state], weights)]
        flat = tf.nest.flatten(run([one, two]))
        half = len(flat) // 2
        for a, b in zip(flat[:half], flat[half:], strict=True):
            np.testing.assert_allclose(a, b, rtol=1e-10, atol=1e-12)

    def test_structures(self) -> None:
        shape = tf.TensorShape([2, 2])
        x = (tf.constant(INPUTS), tf.zeros([BATCH, TIME, 2, 2], tf.float64))
        outputs, state = tf.nn.dynamic_rnn(Plus((DEPTH, shape)), x, LENGTHS, dtype=tf.float64)
        (flat, deep), (counts, more) = run([outputs, state])
        alive = np.arange(TIME) < LENGTHS[:, None]
        np.testing.assert_allclose(flat, np.where(alive[..., None], INPUTS + 1, 0))
        assert deep.shape == (BATCH, TIME, 2, 2)
        np.testing.assert_array_equal(deep[..., 1, 1], alive)
        np.testing.assert_array_equal(counts[:, 0], LENGTHS)
        np.testing.assert_array_equal(more[:, 1, 0], LENGTHS)

    def test_both_directions(self) -> None:
        x = tf.constant(INPUTS)
        both, states = tf.nn.bidirectional_dynamic_rnn(lstm(), lstm(), x, LENGTHS, dtype=tf.float64)
        names = [v.op.name for v in tf.trainable_variables()]
        assert names[0].startswith("bidirectional_rnn/fw/basic_lstm_cell")
        assert names[2].startswith("bidirectional_rnn/bw/basic_lstm_cell")
        actual, state, weights = run([both, states, tf.trainable_variables()])
        reversed_inputs = INPUTS.copy()
        for row, length in enumerate(LENGTHS):
            reversed_inputs[row, :length] = reversed_inputs[row, :length][::-1]
        ahead, *last = unrolled_lstm(INPUTS, LENGTHS, *weights[:2])
        back, *first = unrolled_lstm(reversed_inputs, LENGTHS, *weights[2:])
        for row, length in enumerate(LENGTHS):
            back[row, :length] = back[row, :length][::-1]
        np.testing.assert_allclose(actual[0], ahead)
        np.testing.assert_allclose(actual[1], back)
        np.testing.assert_allclose(state[0], last)
        np.testing.assert_allclose(state[1], first)

    def test_backwards_without_lengths(self) -> None:
        x = tf.constant(INPUTS.swapaxes(0, 1))
        (_, back), _ = tf.nn.bidirectional_dynamic_rnn(
            lstm(), lstm(), x, dtype=tf.float64, time_major=True
        )
        actual, *weights = run([back, *tf.trainable_variables()[2:]])
        expected, _, _ = unrolled_lstm(INPUTS[:, ::-1], np.full(BATCH, TIME), *weights)
        np.testing.assert_allclose(actual.swapaxes(0, 1), expected[:, ::-1])

    def test_layers_of_both_directions(self) -> None:
        outputs, ahead, back = tf.contrib.rnn.stack_bidirectional_dynamic_rnn(
            [lstm(), lstm()],
            [lstm(), lstm()],
            tf.constant(INPUTS),
            dtype=tf.float64,
            sequence_length=LENGTHS,
        )
        assert outputs.shape.as_list() == [BATCH, TIME, 2 * UNITS]
        assert len(ahead) == len(back) == 2
        assert not run(outputs)[1].any()

    def test_no_steps(self) -> None:
        x = tf.placeholder(tf.float64, [None, BATCH, DEPTH])
        outputs, state = tf.nn.dynamic_rnn(lstm(), x, dtype=tf.float64, time_major=True)
        actual, last = run([outputs, state], {x: np.zeros((0, BATCH, DEPTH))})
        assert actual.shape == (0, BATCH, UNITS)
        assert not last.c.any()

    def test_the_loop_ends_with_the_longest_sequence(self) -> None:
        turns: list[int] = []

        class Counted(Plus):
            def call(self, inputs: Any, state: Any) -> Any:
                note = tf.py_func(lambda: turns.append(1), [], [])
                with tf.control_dependencies([note]):
                    return super().call(tf.identity(inputs), state)

        x = tf.placeholder(tf.float64, [BATCH, None, DEPTH])
        lengths = tf.placeholder(tf.int32, [BATCH])
        outputs, _ = tf.nn.dynamic_rnn(Counted(DEPTH), x, lengths, dtype=tf.float64)
        found = run(outputs, {x: np.zeros((BATCH, 50, DEPTH)), lengths: [2, 3, 1]})
        assert len(turns) == 3
        assert found.shape == (BATCH, 50, DEPTH)
        assert not found[:, 3:].any()


def raw_network(cell: Any, x: Any, lengths: Any) -> tuple[Any, Any, Any]:
    """`dynamic_rnn` by `raw_rnn`: emissions, last state, number of calls as the loop state."""
    rows = tf.TensorArray(tf.float64, TIME).unstack(tf.transpose(x, [1, 0, 2]))

    def step(time: Any, output: Any, state: Any, count: Any) -> Any:
        if output is None:
            state, count = cell.zero_state(BATCH, tf.float64), tf.constant(0)
        finished = time >= lengths
        given = tf.cond(
            tf.reduce_all(finished),
            lambda: tf.zeros([BATCH, DEPTH], tf.float64),
            lambda: rows.read(time),
        )
        return finished, given, state, output, count + 1

    return tf.nn.raw_rnn(cell, step)


@pytest.mark.usefixtures("lowering")
class TestRaw:
    def test_as_unrolled(self) -> None:
        emitted, state, count = raw_network(lstm(), tf.constant(INPUTS), tf.constant(LENGTHS))
        values = [emitted.stack(), state.c, state.h, count, *tf.trainable_variables()]
        actual, c, h, calls, *weights = run(values)
        assert calls == LENGTHS.max() + 1
        expected = unrolled_lstm(INPUTS, LENGTHS, *weights)
        np.testing.assert_allclose(actual.swapaxes(0, 1), expected[0][:, : LENGTHS.max()])
        np.testing.assert_allclose(c, expected[1])
        np.testing.assert_allclose(h, expected[2])

    def test_gradients_are_those_of_the_dynamic_one(self) -> None:
        cell, x = lstm(), tf.constant(INPUTS)
        emitted, state, _ = raw_network(cell, x, tf.constant(LENGTHS))
        outputs, last = tf.nn.dynamic_rnn(cell, x, LENGTHS, dtype=tf.float64)
        sources = [x, *tf.trainable_variables()]
        one = tf.gradients([emitted.stack(), *state], sources)
        two = tf.gradients([outputs, *last], sources)
        for a, b in zip(*run([one, two]), strict=True):
            np.testing.assert_allclose(a, b, rtol=1e-10, atol=1e-12)

    def test_emissions_of_another_form(self) -> None:
        def step(time: Any, output: Any, state: Any, kept: Any) -> Any:
            if output is None:
                kept = tf.TensorArray(tf.int32, 0, dynamic_size=True, clear_after_read=False)
                kept, state = kept.write(0, 1), tf.zeros([2, DEPTH])
                emitted: Any = {"double": tf.zeros([DEPTH]), "time": tf.zeros([], tf.int32)}
            else:
                kept = kept.write(time, kept.read(time - 1) + time)
                emitted = {"double": 2 * output, "time": tf.fill([2], time)}
            return time >= [1, 3], tf.zeros([2, DEPTH]), state, emitted, kept

        emitted, state, kept = tf.nn.raw_rnn(Plus(DEPTH), step)
        actual = run([{k: v.stack() for k, v in emitted.items()}, state, kept.stack()])
        np.testing.assert_array_equal(actual[0]["double"][..., 0], [[2, 2], [0, 2], [0, 2]])
        np.testing.assert_array_equal(actual[0]["time"], [[1, 1], [0, 2], [0, 3]])
        np.testing.assert_array_equal(actual[1][:, 0], [1, 3])
        np.testing.assert_array_equal(actual[2], [1, 2, 4, 7])


def test_variables_and_shapes() -> None:
    x = tf.placeholder(tf.float32, [BATCH, None, DEPTH])
    cell = tf.nn.rnn_cell.MultiRNNCell([tf.nn.rnn_cell.GRUCell(UNITS) for _ in range(2)])
    outputs, state = tf.nn.dynamic_rnn(cell, x, dtype=tf.float32)
    assert tf.trainable_variables()[0].op.name == "rnn/multi_rnn_cell/cell_0/gru_cell/gates/kernel"
    assert outputs.shape.as_list() == [BATCH, None, UNITS]
    assert state[1].shape.as_list() == [BATCH, UNITS]


def test_lengths_must_be_as_many_as_examples() -> None:
    x, lengths = tf.placeholder(tf.float32, [None, 4, 2]), tf.placeholder(tf.int32, [None])
    outputs, _ = tf.nn.dynamic_rnn(Plus(2), x, lengths, dtype=tf.float32)
    with pytest.raises(tf.errors.InvalidArgumentError, match="Expected shape"):
        run(outputs, {x: np.zeros((3, 4, 2)), lengths: [1, 2]})


@pytest.mark.parametrize(
    "call, error, message",
    [
        (lambda x: tf.nn.dynamic_rnn(object(), x), TypeError, "not an RNNCell"),
        (lambda x: tf.nn.dynamic_rnn(Plus(2), x), ValueError, "must give a dtype"),
        (
            lambda x: tf.nn.dynamic_rnn(Plus(2), x, [[1]], dtype=tf.float32),
            ValueError,
            "must be a vector",
        ),
        (
            lambda x: tf.nn.dynamic_rnn(Plus(2), x, [1, 2], dtype=tf.float32),
            ValueError,
            "incompatible",
        ),
        (
            lambda x: tf.nn.dynamic_rnn(Plus((2, 2)), (x, x[:, :2]), dtype=tf.float32),
            ValueError,
            "must be the same for all inputs",
        ),
        (
            lambda x: tf.nn.dynamic_rnn(
                Plus(2), tf.placeholder(tf.float32, [3, 4, None]), dtype=tf.float32
            ),
            ValueError,
            "accessible via shape inference",
        ),
        (
            lambda x: tf.nn.dynamic_rnn(Plus((2, 2)), (x, x), initial_state=mixed()),
            ValueError,
            "different dtypes",
        ),
        (lambda x: tf.nn.raw_rnn(Plus(2), 3), TypeError, "loop_fn must be a callable"),
    ],
)
def test_bad_arguments(call: Any, error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        call(tf.zeros([3, 4, 2]))


def mixed() -> Any:
    return tf.zeros([3, 2]), tf.zeros([3, 2], tf.float64)
