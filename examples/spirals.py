"""Two spirals told apart by a small network, watched in TensorBoard.

    python examples/spirals.py [--steps N] [--logs FOLDER]
    tensorboard --logdir FOLDER

Two runs with different learning rates write scalars, histograms, pictures of the boundary between
the classes, and the graph. Needs the extras `[board,image]`.
"""

from __future__ import annotations

import argparse
from typing import Any

import numpy as np

import thalweg as tf

WIDTHS = (32, 32, 2)
SIDE = 64  # of the picture of the plane


def spirals(count: int, rng: np.random.Generator) -> tuple[np.ndarray, np.ndarray]:
    """Points of two spirals, and which one each is on."""
    angle = np.sqrt(rng.uniform(size=(count, 1))) * 3 * np.pi
    one = np.concatenate([np.cos(angle), np.sin(angle)], axis=1) * angle / 9
    points = np.concatenate([one, -one]) + rng.normal(scale=0.02, size=(2 * count, 2))
    return points.astype(np.float32), np.repeat([0, 1], count)


class Model:
    """The network, what trains it, and what it tells."""

    def __init__(self, rate: float) -> None:
        self.points = tf.placeholder(tf.float32, [None, 2], name="points")
        self.labels = tf.placeholder(tf.int64, [None], name="labels")
        logits = self.points
        for number, width in enumerate(WIDTHS, 1):
            logits = self.layer(logits, number, width)
        with tf.name_scope("loss"):
            losses = tf.nn.sparse_softmax_cross_entropy_with_logits(
                labels=self.labels, logits=logits
            )
            loss = tf.reduce_mean(losses)
            tf.summary.scalar("cross_entropy", loss)
        with tf.name_scope("accuracy"):
            right = tf.equal(tf.argmax(logits, 1), self.labels)
            self.accuracy = tf.reduce_mean(tf.cast(right, tf.float32))
            tf.summary.scalar("accuracy", self.accuracy)
        with tf.name_scope("train"):
            self.step = tf.train.AdamOptimizer(rate).minimize(loss)
        self.summaries = tf.summary.merge_all()
        with tf.name_scope("pictures"):
            plane = tf.reshape(tf.nn.softmax(logits)[:, 1], [1, SIDE, SIDE, 1])
            self.picture = tf.summary.image("boundary", plane, 1, collections=[])

    def layer(self, inputs: Any, number: int, width: int) -> Any:
        """A dense layer that shows its weights; the last one is linear."""
        with tf.name_scope(f"layer{number}"):
            start = tf.truncated_normal([int(inputs.shape[1]), width], stddev=0.5, seed=number)
            weights, biases = tf.Variable(start, name="w"), tf.Variable(tf.zeros([width]), name="b")
            tf.summary.histogram("weights", weights)
            tf.summary.histogram("biases", biases)
            outputs = tf.nn.bias_add(tf.matmul(inputs, weights), biases)
            if number == len(WIDTHS):
                return outputs
            outputs = tf.nn.relu(outputs)
            tf.summary.histogram("activations", outputs)
            return outputs


def run(rate: float, steps: int, logs: str) -> float:
    """Train one network; the accuracy it ends with."""
    rng = np.random.default_rng(1)
    points, labels = spirals(400, rng)
    line = np.linspace(-1.2, 1.2, SIDE)
    plane = np.stack(np.meshgrid(line, line), -1).reshape(-1, 2)
    with tf.Graph().as_default() as graph, tf.Session() as session:
        model = Model(rate)
        everything = {model.points: points, model.labels: labels}
        session.run(tf.global_variables_initializer())
        with tf.summary.FileWriter(f"{logs}/adam-{rate}", graph) as writer:
            for step in range(steps + 1):
                if step % 10 == 0:
                    writer.add_summary(session.run(model.summaries, everything), step)
                if step % 100 == 0:
                    writer.add_summary(session.run(model.picture, {model.points: plane}), step)
                rows = rng.integers(0, len(points), 128)
                session.run(model.step, {model.points: points[rows], model.labels: labels[rows]})
        return float(session.run(model.accuracy, everything))


def main() -> None:
    parser = argparse.ArgumentParser(description="Two spirals, watched in TensorBoard.")
    parser.add_argument("--steps", type=int, default=600)
    parser.add_argument("--logs", default="spirals")
    options = parser.parse_args()
    for rate in (0.01, 0.001):
        accuracy = run(rate, options.steps, options.logs)
        print(f"learning rate {rate}: accuracy {100 * accuracy:.1f}%")
    print(f"tensorboard --logdir {options.logs}")


if __name__ == "__main__":
    main()
