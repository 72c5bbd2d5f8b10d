"""A convolutional classifier of real handwritten digits, trained in seconds.

    python examples/digits.py [--epochs N] [--curve FILE]

The 1,797 8x8 images come with scikit-learn. Prints loss and test accuracy, and saves the loss
curve as a PNG. Needs the extra `[demo]`.
"""

from __future__ import annotations

import argparse
import time
from typing import Any

import numpy as np

import thalweg as tf

try:
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot
    from sklearn.datasets import load_digits
    from tqdm import tqdm
except ImportError as error:
    raise SystemExit(f"{error}. Install the demo's needs: pip install 'thalweg[demo]'") from error

BATCH = 64


def load() -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    """Images in [0, 1] and labels, shuffled, the last fifth kept for testing."""
    digits = load_digits()
    images = (digits.images / 16.0).astype(np.float32)[..., np.newaxis]
    labels = digits.target.astype(np.int64)
    order = np.random.default_rng(0).permutation(len(images))
    images, labels = images[order], labels[order]
    split = len(images) * 4 // 5
    return images[:split], labels[:split], images[split:], labels[split:]


class Model:
    """Two convolutions, a dense layer, and the ops to train and to judge them."""

    def __init__(self) -> None:
        self.images = tf.placeholder(tf.float32, [None, 8, 8, 1], name="images")
        self.labels = tf.placeholder(tf.int64, [None], name="labels")
        self.keep = tf.placeholder_with_default(1.0, [], name="keep")
        logits = self.network(self.images)
        losses = tf.nn.sparse_softmax_cross_entropy_with_logits(labels=self.labels, logits=logits)
        self.loss = tf.reduce_mean(losses, name="loss")
        right = tf.equal(tf.argmax(logits, 1), self.labels)
        self.accuracy = tf.reduce_mean(tf.cast(right, tf.float32), name="accuracy")
        self.step = tf.train.AdamOptimizer(2e-3).minimize(self.loss)

    def network(self, images: Any) -> Any:
        """Class scores for a batch of images."""
        net = tf.layers.conv2d(images, 32, 3, padding="same", activation=tf.nn.relu)
        net = tf.layers.conv2d(net, 32, 3, padding="same", activation=tf.nn.relu)
        net = tf.layers.max_pooling2d(net, 2, 2)
        net = tf.layers.flatten(net)
        net = tf.layers.dense(net, 64, activation=tf.nn.relu)
        net = tf.nn.dropout(net, keep_prob=self.keep)
        return tf.layers.dense(net, 10)


def train(model: Model, session: tf.Session, epochs: int) -> list[float]:
    """Train on shuffled batches; return the loss of every step."""
    images, labels, test_images, test_labels = load()
    rng = np.random.default_rng(1)
    curve: list[float] = []
    with tqdm(total=epochs * (len(images) // BATCH), unit="step") as progress:
        for epoch in range(epochs):
            order = rng.permutation(len(images))
            for start in range(0, len(images) - BATCH + 1, BATCH):
                rows = order[start : start + BATCH]
                feed = {model.images: images[rows], model.labels: labels[rows], model.keep: 0.75}
                loss, _ = session.run([model.loss, model.step], feed)
                curve.append(float(loss))
                progress.set_postfix(epoch=epoch + 1, loss=f"{loss:.3f}", refresh=False)
                progress.update()
    test = {model.images: test_images, model.labels: test_labels}
    loss, accuracy = session.run([model.loss, model.accuracy], test)
    print(f"test loss {loss:.4f}, test accuracy {accuracy:.2%} on {len(test_labels)} digits")
    return curve


def plot(curve: list[float], path: str) -> None:
    """Save the loss curve."""
    figure, axes = pyplot.subplots(figsize=(7, 4))
    axes.semilogy(curve, linewidth=0.7, alpha=0.4, color="tab:blue", label="each step")
    window = np.ones(20) / 20
    smooth = np.convolve(curve, window, mode="valid")
    axes.semilogy(np.arange(len(smooth)) + 19, smooth, color="tab:blue", label="mean of 20 steps")
    axes.set(xlabel="step", ylabel="cross entropy", title="Handwritten digits, training loss")
    axes.legend()
    axes.grid(alpha=0.3)
    figure.tight_layout()
    figure.savefig(path, dpi=120)


def main() -> None:
    """Train, report, plot."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--epochs", type=int, default=12)
    parser.add_argument("--curve", default="digits_loss.png", help="where the loss curve goes")
    arguments = parser.parse_args()
    started = time.perf_counter()
    tf.set_random_seed(7)
    model = Model()
    with tf.Session() as session:
        session.run(tf.global_variables_initializer())
        curve = train(model, session, arguments.epochs)
    plot(curve, arguments.curve)
    print(f"loss curve in {arguments.curve}; {time.perf_counter() - started:.0f} s in all")


if __name__ == "__main__":
    main()
