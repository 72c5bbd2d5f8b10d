"""Training on Ray: workers train one model, their variables are on a parameter server.

    python examples/on_ray.py --workers 2

uses the Ray cluster of this machine or of RAY_ADDRESS, and starts a local Ray where there is none.
A task that dies is started again, and trains on with the variables of the parameter server.
"""

import argparse

import numpy as np

import thalweg as tf

FEATURES = 20


def regression(seed):
    """The loss of a linear model, on a new batch in every step."""
    truth = np.linspace(-1, 1, FEATURES, dtype=np.float32)[:, np.newaxis]
    x = tf.random_normal([64, FEATURES], seed=seed)
    y = tf.matmul(x, truth) + tf.random_normal([64, 1], stddev=0.1, seed=seed)
    return tf.losses.mean_squared_error(y, tf.layers.dense(x, 1))


def train(server, steps):
    """What every worker does; the loss in its last step."""
    cluster, index = server.server_def.cluster, server.server_def.task_index
    device = f"/job:worker/task:{index}"
    with tf.device(tf.train.replica_device_setter(worker_device=device, cluster=cluster)):
        loss = regression(seed=index)
        step = tf.train.get_or_create_global_step()
        train_step = tf.train.GradientDescentOptimizer(0.02).minimize(loss, global_step=step)
    hooks = [tf.train.StopAtStepHook(last_step=steps)]
    config = tf.ConfigProto(device_filters=["/job:ps", device])
    error = None  # of a worker that came when all was done
    with tf.train.MonitoredTrainingSession(
        server.target, is_chief=index == 0, hooks=hooks, config=config
    ) as session:
        while not session.should_stop():
            error, _ = session.run([loss, train_step])
    return error


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--ps", type=int, default=1)
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--steps", type=int, default=300)
    given = parser.parse_args()
    with tf.cluster.ray({"ps": given.ps, "worker": given.workers}) as cluster:
        print(cluster.spec)
        for index, loss in enumerate(cluster.run(train, given.steps)):
            print(f"worker {index}: loss {loss:.3f}")


if __name__ == "__main__":
    main()
