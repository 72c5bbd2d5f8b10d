"""Beam search in the graph, on the model of `reverse_strings.py` before it has learnt all.

    python examples/beam_search.py [--steps N] [--width N]

A loop keeps the likeliest few beginnings of each answer; each iteration extends them by a symbol.
Two lists hold the symbols and which beginning each one extends. A second loop goes back through the
lists and reads off the answers. Needs the extra `[demo]`.
"""

from __future__ import annotations

import argparse
from typing import Any

import numpy as np
from reverse_strings import END, LONGEST, SYMBOLS, Model, make_batch, text, train

import thalweg as tf

IMPOSSIBLE = -1e9


class Beams:
    """The likeliest answers, [batch, beam, step], and their log probabilities, [batch, beam]."""

    def __init__(self, model: Model, width: int) -> None:
        self.model, self.width = model, width
        self.cell = model.cell.repeated(width)
        self.count = model.batch * width
        with tf.variable_scope("decoder/rnn", reuse=True):
            steps, symbols, parents, self.scores = self.search()
        self.answers = self.trace(steps, symbols, parents)

    def picked(self, values: Any, beams: Any) -> Any:
        """Of values for each beam, those of other beams of the same example: [batch, beam]."""
        first = tf.range(self.model.batch)[:, tf.newaxis] * self.width
        rows = tf.gather(tf.reshape(values, [self.count, -1]), tf.reshape(first + beams, [-1]))
        return tf.reshape(rows, tf.shape(values))

    def search(self) -> Any:
        """Extend all beams until they have ended: (length, symbols, parents, scores)."""
        batch, width = self.model.batch, self.width
        symbols = tf.fill([batch, width], END)
        # All beams begin equal: only the first may be extended, or they would stay equal.
        scores = tf.one_hot(tf.zeros([batch], tf.int32), width, 0.0, IMPOSSIBLE)
        ended = tf.fill([batch, width], False)
        state = self.cell.zero_state(self.count, tf.float32)
        lists = [tf.TensorArray(tf.int32, 0, dynamic_size=True) for _ in range(2)]

        def goes_on(step: Any, symbols: Any, scores: Any, ended: Any, *_: Any) -> Any:
            return tf.logical_and(step <= LONGEST, tf.logical_not(tf.reduce_all(ended)))

        def extend(
            step: Any, symbols: Any, scores: Any, ended: Any, state: Any, kept: Any, parents: Any
        ) -> Any:
            inputs = self.model.embed(tf.reshape(symbols, [-1]))
            output, state = self.cell(inputs, state)
            scores, beams, symbols = self.best(scores, ended, self.model.scores(output))
            state = tf.nest.map_structure(lambda part: self.picked_rows(part, beams), state)
            ended = tf.logical_or(self.picked(ended, beams), tf.equal(symbols, END))
            kept, parents = kept.write(step, symbols), parents.write(step, beams)
            return step + 1, symbols, scores, ended, state, kept, parents

        length, _, scores, _, _, kept, parents = tf.while_loop(
            goes_on, extend, (0, symbols, scores, ended, state, *lists), back_prop=False
        )
        return length, kept.stack(), parents.stack(), scores

    def picked_rows(self, part: Any, beams: Any) -> Any:
        """The part of a state that belongs to other beams."""
        depth = int(part.shape[1])
        rows = tf.reshape(part, [self.model.batch, self.width, depth])
        return tf.reshape(self.picked(rows, beams), [self.count, depth])

    def best(self, scores: Any, ended: Any, logits: Any) -> Any:
        """The likeliest extensions: their scores, the beams they extend, their symbols."""
        batch, width = self.model.batch, self.width
        likely = tf.reshape(tf.nn.log_softmax(logits), [batch, width, SYMBOLS])
        stays = tf.one_hot(tf.fill([batch, width], END), SYMBOLS, 0.0, IMPOSSIBLE)
        over = tf.tile(ended[:, :, tf.newaxis], [1, 1, SYMBOLS])
        totals = scores[:, :, tf.newaxis] + tf.where(over, stays, likely)
        found, places = tf.nn.top_k(tf.reshape(totals, [batch, width * SYMBOLS]), width)
        return found, places // SYMBOLS, places % SYMBOLS

    def trace(self, length: Any, symbols: Any, parents: Any) -> Any:
        """Answers from their ends: [batch, beam, step]."""
        beams = tf.tile(tf.range(self.width)[tf.newaxis], [self.model.batch, 1])
        answers = tf.TensorArray(tf.int32, length)

        def back(step: Any, beams: Any, answers: Any) -> Any:
            answers = answers.write(step, self.picked(symbols[step], beams))
            return step - 1, self.picked(parents[step], beams), answers

        _, _, answers = tf.while_loop(
            lambda step, *_: step >= 0, back, (length - 1, beams, answers), back_prop=False
        )
        return tf.transpose(answers.stack(), [1, 2, 0])


def report(model: Model, beams: Beams, session: tf.Session, count: int) -> None:
    """Compare with the greedy answers, and show some of the beams."""
    strings, lengths, targets = make_batch(np.random.default_rng(2), count)
    greedy, answers, scores = session.run(
        [model.decoded, beams.answers, beams.scores],
        {model.strings: strings, model.lengths: lengths},
    )
    wanted = [text(row) for row in targets]
    found = [[text(row) for row in rows] for rows in answers]
    for string, answer, score in list(zip(strings, found, scores, strict=True))[:3]:
        several = ", ".join(f"{a} {np.exp(s):.0%}" for a, s in zip(answer, score, strict=True))
        print(f"{text(string)} → {several}")
    pairs = list(zip(found, wanted, strict=True))
    right = np.mean([text(row) == want for row, want in zip(greedy, wanted, strict=True)])
    first, among = (np.mean([want in rows[:n] for rows, want in pairs]) for n in (1, None))
    print(f"exact match: greedy {right:.2%}, beam {first:.2%}, among the beams {among:.2%}")


def main() -> None:
    """Train a little, then search."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--steps", type=int, default=100)
    parser.add_argument("--width", type=int, default=4)
    arguments = parser.parse_args()
    tf.set_random_seed(7)
    model = Model()
    beams = Beams(model, arguments.width)
    with tf.Session() as session:
        session.run(tf.global_variables_initializer())
        train(model, session, arguments.steps)
        report(model, beams, session, 1000)


if __name__ == "__main__":
    main()
