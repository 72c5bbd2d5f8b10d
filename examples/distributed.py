"""Several workers train one model at once; its variables are on parameter servers.

    thalweg launch --ps 1 --workers 2 examples/distributed.py
    thalweg launch --ps 2 --workers 3 examples/distributed.py --sync

Every process runs this program and finds out from TF_CONFIG which task it is. Without it,
`python examples/distributed.py` is a cluster of one. Asynchronously, each worker applies its
gradients when it has them; with --sync, a step applies the mean of one gradient of each worker.
"""

import argparse
import json
import os

import numpy as np

import thalweg as tf

FEATURES = 20


def my_task():
    """The cluster, and which of its tasks this process is."""
    config = json.loads(os.environ.get("TF_CONFIG", "{}"))
    cluster = tf.train.ClusterSpec(config.get("cluster", {"worker": ["localhost:0"]}))
    task = config.get("task", {"type": "worker", "index": 0})
    return cluster, task["type"], task["index"]


def regression(seed):
    """The loss of a linear model, on a new batch in every step."""
    truth = np.linspace(-1, 1, FEATURES, dtype=np.float32)[:, np.newaxis]
    x = tf.random_normal([64, FEATURES], seed=seed)
    y = tf.matmul(x, truth) + tf.random_normal([64, 1], stddev=0.1, seed=seed)
    return tf.losses.mean_squared_error(y, tf.layers.dense(x, 1))


def train(server, cluster, index, steps, is_sync):
    workers, is_chief = cluster.num_tasks("worker"), index == 0
    device = f"/job:worker/task:{index}"
    with tf.device(tf.train.replica_device_setter(worker_device=device, cluster=cluster)):
        loss = regression(seed=index)
        optimizer = tf.train.GradientDescentOptimizer(0.02)
        if is_sync:
            optimizer = tf.train.SyncReplicasOptimizer(optimizer, workers, workers)
        step = tf.train.get_or_create_global_step()
        train_step = optimizer.minimize(loss, global_step=step)
    hooks = [tf.train.StopAtStepHook(last_step=steps)]
    if is_sync:
        hooks.append(optimizer.make_session_run_hook(is_chief))
    config = tf.ConfigProto(device_filters=["/job:ps", device])  # other workers may come and go
    with tf.train.MonitoredTrainingSession(
        server.target, is_chief, hooks=hooks, config=config
    ) as session:
        while not session.should_stop():
            error, at, _ = session.run([loss, step, train_step])
    print(f"step {at}: loss {error:.3f}")


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--steps", type=int, default=300)
    parser.add_argument("--sync", action="store_true", help="average the workers' gradients")
    given = parser.parse_args()
    cluster, job, index = my_task()
    server = tf.train.Server(cluster, job, index)
    if job == "ps":
        server.join()
    else:
        train(server, cluster, index, given.steps, given.sync)


if __name__ == "__main__":
    main()
