"""A sequence-to-sequence model with attention that learns to write strings backwards.

    python examples/reverse_strings.py [--steps N]

The strings are made on the way: 3 to 10 letters each. A bidirectional recurrent encoder reads
them; the decoder looks at what the encoder made of each letter and writes the string backwards,
fed with the right letters in training and with its own ones afterwards. Prints how many fresh
strings come out right to the last letter. Needs the extra `[demo]`.
"""

from __future__ import annotations

import argparse
import copy
import string
import time
from typing import Any

import numpy as np

import thalweg as tf

try:
    from tqdm import tqdm
except ImportError as error:
    raise SystemExit(f"{error}. Install the demo's needs: pip install 'thalweg[demo]'") from error

LETTERS = string.ascii_lowercase
END, SYMBOLS = len(LETTERS), len(LETTERS) + 1  # the end is also what a target begins after
SHORTEST, LONGEST = 3, 10
BATCH, UNITS, WIDTH = 128, 64, 32


def make_batch(rng: np.random.Generator, count: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Strings, their lengths, and the strings backwards with an end; padded with ends."""
    lengths = rng.integers(SHORTEST, LONGEST + 1, count, np.int32)
    strings = rng.integers(0, len(LETTERS), (count, LONGEST), np.int32)
    place = np.arange(LONGEST + 1)
    strings = np.where(place[:-1] < lengths[:, None], strings, END)
    turned = np.take_along_axis(strings, np.maximum(lengths[:, None] - 1 - place, 0), 1)
    return strings, lengths, np.where(place < lengths[:, None], turned, END)


def text(symbols: np.ndarray) -> str:
    """The letters of a row up to its end."""
    return "".join(LETTERS[symbol] for symbol in symbols[: [*symbols, END].index(END)])


class AttentionCell(tf.nn.rnn_cell.RNNCell):
    """A GRU that sees, besides its input, what its state asked a memory for.

    The memory is [batch, place, depth]; `mask` tells which places are there.
    """

    def __init__(self, memory: Any, mask: Any) -> None:
        super().__init__(name="attention")
        self.memory = memory
        self.depth = int(memory.shape[2])
        self.penalty = 1e9 * (tf.cast(mask, tf.float32) - 1)
        self.keys = tf.layers.dense(memory, UNITS, use_bias=False, name="keys")
        self.query = tf.layers.Dense(UNITS, name="query")
        self.cell = tf.nn.rnn_cell.GRUCell(UNITS)

    def repeated(self, count: int) -> AttentionCell:
        """The same cell for a batch that has each example so many times, one after the other."""
        again = copy.copy(self)
        for part in ("memory", "penalty", "keys"):
            value = getattr(self, part)
            rows = tf.range(tf.shape(value)[0] * count) // count
            setattr(again, part, tf.gather(value, rows))
        return again

    @property
    def state_size(self) -> tuple[int, int]:
        """Of the GRU's state and of what the memory answered."""
        return UNITS, self.depth

    @property
    def output_size(self) -> int:
        """Both, side by side."""
        return UNITS + self.depth

    def call(self, inputs: Any, state: Any) -> Any:
        """One step."""
        hidden, answer = state
        hidden, _ = self.cell(tf.concat([inputs, answer], 1), hidden)
        scores = tf.reduce_sum(self.keys * tf.expand_dims(self.query(hidden), 1), 2)
        weights = tf.nn.softmax(scores + self.penalty)
        answer = tf.reduce_sum(self.memory * tf.expand_dims(weights, 2), 1)
        return tf.concat([hidden, answer], 1), (hidden, answer)


class Model:
    """Encoder, decoder, and the ops to train them and to decode."""

    def __init__(self) -> None:
        self.strings = tf.placeholder(tf.int32, [None, LONGEST], name="strings")
        self.lengths = tf.placeholder(tf.int32, [None], name="lengths")
        self.targets = tf.placeholder(tf.int32, [None, LONGEST + 1], name="targets")
        self.batch = tf.shape(self.lengths)[0]
        self.table = tf.get_variable("table", [SYMBOLS, WIDTH])
        self.memory = self.encode()
        self.cell = AttentionCell(self.memory, tf.sequence_mask(self.lengths, LONGEST))
        self.scores = tf.layers.Dense(SYMBOLS, name="scores")
        self.loss = self.teach()
        self.step = self.optimize()
        self.decoded = self.decode()

    def embed(self, symbols: Any) -> Any:
        """Vectors for symbols."""
        return tf.nn.embedding_lookup(self.table, symbols)

    def encode(self) -> Any:
        """What the encoder makes of each letter."""
        cells = [tf.nn.rnn_cell.GRUCell(UNITS) for _ in range(2)]
        both, _ = tf.nn.bidirectional_dynamic_rnn(
            *cells, self.embed(self.strings), self.lengths, dtype=tf.float32
        )
        return tf.concat(both, 2)

    def teach(self) -> Any:
        """The mean loss of a symbol where the decoder is told all symbols before it."""
        start = tf.fill([self.batch, 1], END)
        before = tf.concat([start, self.targets[:, :-1]], 1)
        with tf.variable_scope("decoder"):
            outputs, _ = tf.nn.dynamic_rnn(
                self.cell, self.embed(before), self.lengths + 1, dtype=tf.float32
            )
        losses = tf.nn.sparse_softmax_cross_entropy_with_logits(
            labels=self.targets, logits=self.scores(outputs)
        )
        there = tf.sequence_mask(self.lengths + 1, LONGEST + 1, tf.float32)
        return tf.reduce_sum(losses * there) / tf.reduce_sum(there)

    def optimize(self) -> Any:
        """A step of Adam, with gradients cut where they are steep; steps get smaller with time."""
        count = tf.train.get_or_create_global_step()
        optimizer = tf.train.AdamOptimizer(tf.train.exponential_decay(4e-3, count, 500, 0.6))
        gradients, variables = zip(*optimizer.compute_gradients(self.loss), strict=True)
        gradients, _ = tf.clip_by_global_norm(gradients, 1.0)
        return optimizer.apply_gradients(zip(gradients, variables, strict=True), count)

    def decode(self) -> Any:
        """The likeliest symbols, each fed back to find the next: [batch, step]."""

        def choose(step: Any, output: Any, state: Any, _: Any) -> Any:
            if output is None:
                symbols = tf.fill([self.batch], END)
                state = self.cell.zero_state(self.batch, tf.float32)
                return tf.zeros_like(symbols, tf.bool), self.embed(symbols), state, END, None
            symbols = tf.argmax(self.scores(output), 1, output_type=tf.int32)
            finished = tf.logical_or(tf.equal(symbols, END), step > LONGEST)
            return finished, self.embed(symbols), state, symbols, None

        with tf.variable_scope("decoder"):
            emitted, _, _ = tf.nn.raw_rnn(self.cell, choose)
        return tf.transpose(emitted.stack())


def train(model: Model, session: tf.Session, steps: int) -> None:
    """Train on fresh strings."""
    rng = np.random.default_rng(1)
    run = session.make_callable(
        [model.loss, model.step], [model.strings, model.lengths, model.targets]
    )
    with tqdm(range(steps), unit="step") as progress:
        for number in progress:
            loss, _ = run(*make_batch(rng, BATCH))
            if number % 20 == 0:
                progress.set_postfix(loss=f"{loss:.4f}", refresh=False)


def test(model: Model, session: tf.Session, count: int) -> None:
    """Decode fresh strings and count those that are right."""
    strings, lengths, targets = make_batch(np.random.default_rng(2), count)
    found = session.run(model.decoded, {model.strings: strings, model.lengths: lengths})
    pairs = list(zip(map(text, found), map(text, targets), strict=True))
    for given, (answer, _) in list(zip(strings, pairs, strict=True))[:3]:
        print(f"{text(given)} → {answer}")
    right = np.mean([answer == wanted for answer, wanted in pairs])
    print(f"exact match {right:.2%} on {count} fresh strings")


def main() -> None:
    """Train and test."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--steps", type=int, default=1500)
    arguments = parser.parse_args()
    started = time.perf_counter()
    tf.set_random_seed(7)
    model = Model()
    with tf.Session() as session:
        session.run(tf.global_variables_initializer())
        train(model, session, arguments.steps)
        test(model, session, 2000)
    print(f"{time.perf_counter() - started:.0f} s in all")


if __name__ == "__main__":
    main()
