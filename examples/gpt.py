"""A small GPT that learns to write the text of this file, character by character.

    python examples/gpt.py [--steps 200] [--device /gpu:0] [--mixed]

Attention is written out: products of queries and keys, a mask, a softmax, and the product with the
values. On a GPU and in mixed precision the optimizer makes one kernel of it, two of its gradient.
"""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

import numpy as np

import thalweg as tf

LAYERS, WIDTH, HEADS, LENGTH, BATCH = 2, 64, 4, 64, 16


class Text:
    """Characters as numbers, and random pieces of a text."""

    def __init__(self, text: str) -> None:
        self.characters = sorted(set(text))
        self.ids = np.array([self.characters.index(each) for each in text], np.int32)
        self.random = np.random.default_rng(0)

    def batch(self) -> tuple[np.ndarray, np.ndarray]:
        """Pieces of the text, and what comes next at each place."""
        starts = self.random.integers(len(self.ids) - LENGTH, size=BATCH)
        pieces = np.stack([self.ids[start : start + LENGTH + 1] for start in starts])
        return pieces[:, :-1], pieces[:, 1:]


class Gpt:
    """A decoder: what it says of the next character, and how to train it."""

    def __init__(self, vocabulary: int) -> None:
        self.ids = tf.placeholder(tf.int32, [BATCH, LENGTH], name="ids")
        self.labels = tf.placeholder(tf.int32, [BATCH, LENGTH], name="labels")
        tokens = self.variable("tokens", [vocabulary, WIDTH], 0.1)
        x = tf.nn.embedding_lookup(tokens, self.ids)
        x += self.variable("positions", [LENGTH, WIDTH], 0.1)
        for number in range(LAYERS):
            with tf.variable_scope(f"layer{number}"):
                x += self.dense(self.attention(self.norm(x, "before")), "projection", WIDTH)
                hidden = tf.nn.gelu(self.dense(self.norm(x, "between"), "up", 4 * WIDTH))
                x += self.dense(hidden, "down", WIDTH)
        logits = self.dense(self.norm(x, "after"), "logits", vocabulary)
        losses = tf.nn.sparse_softmax_cross_entropy_with_logits(labels=self.labels, logits=logits)
        self.loss = tf.reduce_mean(losses)
        self.step = tf.train.AdamOptimizer(2e-3).minimize(self.loss)

    def variable(self, name: str, shape: list[int], deviation: float) -> Any:
        """A weight, normal with this deviation."""
        initial = tf.random_normal_initializer(stddev=deviation, seed=len(name))
        return tf.get_variable(name, shape, tf.float32, initial)

    def dense(self, x: Any, name: str, units: int) -> Any:
        """A product with a matrix of weights, for each place."""
        inputs = int(x.shape[-1])
        kernel = self.variable(name, [inputs, units], inputs**-0.5)
        product = tf.matmul(tf.reshape(x, [-1, inputs]), kernel)
        return tf.reshape(product, [BATCH, LENGTH, units])

    def norm(self, x: Any, name: str) -> Any:
        """Rows of mean 0 and variance 1, scaled."""
        scale = tf.get_variable(name, [WIDTH], tf.float32, tf.ones_initializer())
        mean, variance = tf.nn.moments(x, [-1], keep_dims=True)
        return (x - mean) * tf.rsqrt(variance + 1e-5) * scale

    def attention(self, x: Any) -> Any:
        """Each place mixes the values of those before it, by how its query fits their keys."""
        size = WIDTH // HEADS
        parts = tf.reshape(self.dense(x, "qkv", 3 * WIDTH), [BATCH, LENGTH, 3, HEADS, size])
        q, k, v = tf.unstack(tf.transpose(parts, [2, 0, 3, 1, 4]))
        future = np.triu(np.full([LENGTH, LENGTH], -1e9, np.float32), 1)
        scores = tf.matmul(q, k, transpose_b=True) * size**-0.5 + future
        mixed = tf.matmul(tf.nn.softmax(scores), v)
        return tf.reshape(tf.transpose(mixed, [0, 2, 1, 3]), [BATCH, LENGTH, WIDTH])


def main() -> None:
    """Train, and say what the loss is on the way."""
    options = argparse.ArgumentParser(description=__doc__)
    options.add_argument("--steps", type=int, default=40)
    options.add_argument("--device", default="", help="where it runs: /cpu:0, /gpu:0")
    options.add_argument("--mixed", action="store_true", help="multiply in bfloat16")
    given = options.parse_args()
    text = Text(Path(__file__).read_text())
    tf.set_random_seed(0)
    with tf.device(given.device):
        model = Gpt(len(text.characters))
    config = tf.ConfigProto()
    config.graph_options.rewrite_options.auto_mixed_precision = int(given.mixed)
    with tf.Session(config=config) as session:
        session.run(tf.global_variables_initializer())
        for number in range(given.steps):
            pieces = dict(zip((model.ids, model.labels), text.batch(), strict=True))
            loss, _ = session.run([model.loss, model.step], pieces)
            if number % max(given.steps // 5, 1) == 0:
                print(f"step {number:4d}  loss {loss:.3f}")
        print(f"step {given.steps:4d}  loss {loss:.3f}")


if __name__ == "__main__":
    main()
