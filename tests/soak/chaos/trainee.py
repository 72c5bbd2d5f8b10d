"""A task of a synchronous training job: `python trainee.py <folder>`, which one by TF_CONFIG.

Parameter servers hold a small net and, on each of them, a counter whose gradient is such that every
update adds exactly 1: lost and doubled updates show as a counter that differs from the global step.
The job ends at the step in `<folder>/last_step`, which may be written at any time.
"""

from __future__ import annotations

import faulthandler
import json
import os
import signal
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np

import thalweg as tf

FEATURES, HIDDEN, BATCH = 8, 16, 32
LEARNING_RATE = 2.0**-3  # so that a counter's update is exact
CHECKPOINT_STEPS = 10
PACE = 0.02  # seconds a step takes at least: a cluster on few cores shall not be busy all the time


def data(seed: int, rows: int) -> tuple[Any, Any]:
    """Inputs, and outputs with some noise."""
    rng = np.random.default_rng(seed)
    x = rng.normal(size=(rows, FEATURES)).astype(np.float32)
    y = np.tanh(x.sum(axis=1, keepdims=True)) + rng.normal(scale=0.1, size=(rows, 1))
    return x, y.astype(np.float32)


def model(x: Any, y: Any) -> Any:
    """The loss of a net with one hidden layer."""
    hidden = tf.layers.dense(x, HIDDEN, tf.nn.tanh, name="hidden")
    return tf.losses.mean_squared_error(y, tf.layers.dense(hidden, 1, name="out"))


def counters(servers: int) -> list[Any]:
    """A counter on each parameter server."""
    result: list[Any] = []
    for index in range(servers):
        with tf.device(f"/job:ps/task:{index}"):
            zero = tf.zeros_initializer()
            result.append(tf.get_variable(f"updates_{index}", [], tf.float64, zero))
    return result


class StopWhenTold(tf.train.SessionRunHook):
    """Ends the job at the step that a file names, once there is one."""

    def __init__(self, file: Path) -> None:
        self._file = file

    def begin(self) -> None:
        self._step = tf.train.get_global_step()

    def before_run(self, run_context: Any) -> Any:
        return tf.train.SessionRunArgs(self._step)

    def after_run(self, run_context: Any, run_values: Any) -> None:
        if self._file.exists() and run_context.session.run(self._step) >= int(
            self._file.read_text()
        ):
            run_context.request_stop()


def train(server: Any, cluster: Any, index: int, folder: Path) -> None:
    """Train as one of the workers, until told to stop."""
    workers, servers = cluster.num_tasks("worker"), cluster.num_tasks("ps")
    is_chief, device = index == 0, f"/job:worker/task:{index}"
    tf.set_random_seed(7)
    with tf.device(tf.train.replica_device_setter(worker_device=device, cluster=cluster)):
        x = tf.placeholder(tf.float32, [None, FEATURES])
        y = tf.placeholder(tf.float32, [None, 1])
        loss, counted = model(x, y), counters(servers)
        step = tf.train.get_or_create_global_step()
        descent = tf.train.GradientDescentOptimizer(LEARNING_RATE)
        optimizer = tf.train.SyncReplicasOptimizer(descent, workers, workers)
        pairs = optimizer.compute_gradients(loss, tf.trainable_variables("(hidden|out)"))
        one = tf.constant(-1 / LEARNING_RATE, tf.float64)
        update = optimizer.apply_gradients([*pairs, *((one, each) for each in counted)], step)
    saver = tf.train.Saver(sharded=True, max_to_keep=0)
    session = tf.train.MonitoredTrainingSession(
        server.target,
        is_chief,
        checkpoint_dir=str(folder / "checkpoints"),
        scaffold=tf.train.Scaffold(saver=saver),
        hooks=[optimizer.make_session_run_hook(is_chief), StopWhenTold(folder / "last_step")],
        save_checkpoint_steps=CHECKPOINT_STEPS,
        save_summaries_steps=None,
        log_step_count_steps=0,
        config=tf.ConfigProto(device_filters=["/job:ps", device]),
    )
    examples, targets = data(seed=0, rows=2000)
    rng = np.random.default_rng(os.getpid())
    with session:
        while not session.should_stop():
            rows = rng.integers(len(examples), size=BATCH)
            feeds = {x: examples[rows], y: targets[rows]}
            at, _ = session.run([step, update], feeds)
            print(f"step {at}", flush=True)
            time.sleep(PACE)


def main() -> None:
    """Serve, and train where this is a worker."""
    faulthandler.register(signal.SIGUSR1)  # where it hangs, if it does
    config = json.loads(os.environ["TF_CONFIG"])
    cluster = tf.train.ClusterSpec(config["cluster"])
    task = config["task"]
    server = tf.train.Server(cluster, task["type"], task["index"])
    print("up", flush=True)
    if task["type"] == "ps":
        server.join()
    else:
        train(server, cluster, task["index"], Path(sys.argv[1]))


if __name__ == "__main__":
    main()
