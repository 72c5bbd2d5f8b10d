"""The works with loops in the TensorFlow 1.x API: a counter, a recurrence, an LSTM.

Thalweg and TensorFlow's graph mode share these lines: `tf` is the one package or the other.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

from works import Work

from systems.step import Step, planned


def count(tf: Any, limit: Any) -> Any:
    """Count up to a limit, one by one."""
    (last,) = tf.nest.flatten(tf.while_loop(lambda i: i < limit, lambda i: i + 1, [0]))
    return last


def counter_step(tf: Any, work: Work, config: Any) -> Step:
    """The counter, through a callable of a session."""
    start = time.perf_counter()
    limit = tf.placeholder(tf.int32, [])
    last = count(tf, limit)
    session = tf.Session(config=config)
    building = time.perf_counter() - start
    call, planning = planned(session, last, [limit])
    ((most,),) = work.batches()
    taken = building + planning
    plan = partial(session.plan, last, {limit: most})
    return Step(lambda i: call(most), taken, plan=plan, session=session)


def recurrence_loss(tf: Any, variables: Mapping[str, Any], batch: Sequence[Any]) -> Any:
    """The mean square of h = tanh(decay h + x) over all steps."""
    (x,) = batch
    decay = tf.convert_to_tensor(variables["decay"])
    states = tf.scan(lambda h, row: tf.tanh(decay * h + row), x, tf.zeros(x.shape[1:]))
    return tf.reduce_mean(tf.square(states))


class Cell:
    """An LSTM with weights from outside."""

    def __init__(self, tf: Any, kernel: Any, bias: Any, units: int) -> None:
        self.tf, self.kernel, self.bias = tf, kernel, bias
        self.output_size, self.state_size = units, (units, units)

    def zero_state(self, batch: Any, dtype: Any) -> Any:
        return tuple(self.tf.zeros([batch, size], dtype) for size in self.state_size)

    def __call__(self, x: Any, state: Any, scope: Any = None) -> Any:
        tf, (c, h) = self.tf, state
        gates = tf.matmul(tf.concat([x, h], 1), self.kernel) + self.bias
        i, j, f, o = tf.split(gates, 4, 1)
        c = tf.sigmoid(f + 1.0) * c + tf.sigmoid(i) * tf.tanh(j)
        h = tf.tanh(c) * tf.sigmoid(o)
        return h, (c, h)


def sequence_loss(tf: Any, variables: Mapping[str, Any], batch: Sequence[Any]) -> Any:
    """The mean loss of the steps that sequences of different lengths have."""
    x, lengths, labels = batch
    weights = [tf.convert_to_tensor(variables[f"lstm/{part}"]) for part in ("kernel", "bias")]
    units = int(weights[1].shape[0]) // 4
    cell = Cell(tf, *weights, units)
    outputs, _ = tf.nn.dynamic_rnn(cell, x, lengths, dtype=tf.float32, time_major=True)
    logits = tf.matmul(tf.reshape(outputs, [-1, units]), variables["logits/kernel"])
    losses = tf.nn.sparse_softmax_cross_entropy_with_logits(
        labels=tf.reshape(labels, [-1]), logits=logits + variables["logits/bias"]
    )
    there = tf.transpose(tf.sequence_mask(lengths, x.shape[0], tf.float32))
    return tf.reduce_sum(losses * tf.reshape(there, [-1])) / tf.reduce_sum(there)


LOSSES: dict[str, Callable[..., Any]] = {"recurrence": recurrence_loss, "sequences": sequence_loss}
