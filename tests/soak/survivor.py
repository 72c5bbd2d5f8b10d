"""A training job that can be killed at any moment: `python survivor.py <folder> <steps> <every>`.

It trains a small net on a shuffled, parallel pipeline, saves a checkpoint every few steps with the
place in the pipeline, and prints each step when it is done. Started again it goes on.
"""

from __future__ import annotations

import sys
from typing import Any

import numpy as np

import thalweg as tf

ROWS, FEATURES, BATCH = 203, 12, 16


def pipeline() -> Any:
    """Batches of a seeded shuffle of the rows, mapped by two workers and read ahead."""
    rng = np.random.default_rng(3)
    x = rng.normal(size=(ROWS, FEATURES)).astype(np.float32)
    y = np.sin(x.sum(axis=1, keepdims=True)).astype(np.float32)
    data = tf.data.Dataset.from_tensor_slices((x, y)).shuffle(64, seed=5).repeat()
    data = data.map(lambda a, b: (a * 2.0 - 1.0, tf.tanh(b)), num_parallel_calls=2)
    return data.batch(BATCH).prefetch(2)


def inputs() -> Any:
    """The next batch; the place in the pipeline is saved and restored with the variables."""
    iterator = tf.data.make_initializable_iterator(pipeline())
    saveable = tf.data.experimental.make_saveable_from_iterator(iterator)
    tf.add_to_collection(tf.GraphKeys.SAVEABLE_OBJECTS, saveable)
    tf.add_to_collection(tf.GraphKeys.TABLE_INITIALIZERS, iterator.initializer)
    return iterator.get_next()


def model(x: Any, y: Any) -> Any:
    """The update of a net with one hidden layer."""
    tf.set_random_seed(11)
    hidden = tf.layers.dense(x, 32, tf.nn.relu, name="hidden")
    loss = tf.reduce_mean(tf.square(tf.layers.dense(hidden, 1, name="out") - y))
    step = tf.train.get_or_create_global_step()
    return tf.train.AdamOptimizer(0.01).minimize(loss, global_step=step)


def say(text: str) -> None:
    """Print a line at once and in one piece."""
    sys.stdout.write(f"{text}\n")
    sys.stdout.flush()


def train(folder: str, steps: int, every: int) -> None:
    """Train up to a step, from wherever the folder says."""
    update, step = model(*inputs()), tf.train.get_global_step()
    session = tf.train.MonitoredTrainingSession(
        checkpoint_dir=folder,
        save_checkpoint_steps=every,
        save_summaries_steps=None,
        hooks=[tf.train.StopAtStepHook(last_step=steps)],
    )
    with session:
        say(f"restored {session.run(step)}")
        while not session.should_stop():
            session.run(update)
            say(f"done {session._tf_sess().run(step)}")


if __name__ == "__main__":
    train(sys.argv[1], int(sys.argv[2]), int(sys.argv[3]))
