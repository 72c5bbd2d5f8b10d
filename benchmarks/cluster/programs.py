"""What the workers of a cluster run, written once for both systems.

Each program is given the system's module, Thalweg or `tensorflow.compat.v1`, and the worker's place
in the cluster. It builds the graph of this worker and returns the step. Variables are on the
parameter servers, all else on the worker.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np

MEGABYTE = 1 << 20
ROWS, ROW_SIZE = 32, 256  # that a sparse step reads, and numbers in each
BATCH = 64
VOCABULARY, EMBEDDING, WORDS, SAMPLED = 50_000, 128, 128, 64


@dataclass(frozen=True)
class Place:
    """Which worker of how many this is, and where it connects to."""

    target: str
    index: int
    workers: int
    servers: int

    @property
    def is_chief(self) -> bool:
        return self.index == 0

    @property
    def device(self) -> str:
        return f"/job:worker/task:{self.index}"

    @property
    def server_devices(self) -> list[str]:
        return [f"/job:ps/task:{index}" for index in range(self.servers)]


@dataclass(frozen=True)
class Program:
    """A worker's step, by which it counts, and its end."""

    step: Callable[[], Any]
    close: Callable[[], None]
    is_synchronous: bool = False  # then the step returns how many updates there were


def options(tf: Any, place: Place) -> Any:
    """Workers need not know each other."""
    return tf.ConfigProto(device_filters=["/job:ps", place.device])


def plain(tf: Any, place: Place, fetch: Any, feeds: Mapping[Any, Any] = {}) -> Program:
    """A program whose steps fetch something, by a callable made once."""
    session = tf.Session(place.target, config=options(tf, place))
    if place.is_chief:
        session.run(tf.global_variables_initializer())
    run = session.make_callable(fetch, feed_list=list(feeds))
    return Program(partial(run, *feeds.values()), session.close)


# Steps without work: what the runtime itself costs


def null_step(tf: Any, place: Place, megabytes: int = 0) -> Program:
    """Fetch the values of a variable of each server, and send each a number back."""
    updates = []
    for device in place.server_devices:
        size = megabytes * MEGABYTE // 4 // place.servers or 1
        with tf.device(device):
            name = f"value_{device[-1]}"
            value = tf.get_variable(name, [size], initializer=tf.ones_initializer())
            count = tf.get_variable(f"{name}/count", [1], initializer=tf.zeros_initializer())
        with tf.device(place.device):
            change = tf.cos(value[:1])
        with tf.device(device):
            updates.append(tf.assign_add(count, change).op)
    return plain(tf, place, tf.group(*updates))


def sparse_step(tf: Any, place: Place, megabytes: int) -> Program:
    """Look up some rows of a table that is sharded over the servers, and send a number back."""
    rows = megabytes * MEGABYTE // 4 // ROW_SIZE
    shards = []
    for device in place.server_devices:
        with tf.device(device):
            full = tf.constant_initializer(0.5)
            shape = [rows // place.servers, ROW_SIZE]
            shards.append(tf.get_variable(f"shard_{device[-1]}", shape, initializer=full))
            count = tf.get_variable(f"count_{device[-1]}", [], initializer=tf.zeros_initializer())
    with tf.device(place.device):
        ids = tf.random_uniform([ROWS], 0, rows, tf.int32)
        found = tf.nn.embedding_lookup(shards, ids)
        change = tf.reduce_mean(found)
    with tf.device(place.server_devices[-1]):
        return plain(tf, place, tf.assign_add(count, change).op)


def step_start(tf: Any, place: Place) -> Program:
    """The seconds until all workers have begun and ended a step of nothing; in every step."""
    nodes = []
    for index in range(place.workers):
        with tf.device(f"/job:worker/task:{index}"):
            nodes.append(tf.no_op())
    session = tf.Session(place.target)
    run = session.make_callable(nodes)

    def step() -> float:
        begun = time.perf_counter()
        run()
        return time.perf_counter() - begun

    return Program(step, session.close)


# Training


def mlp(tf: Any, place: Place, is_synchronous: bool = False) -> Program:
    """A perceptron 784-100-10."""
    generator = np.random.default_rng(place.index)
    images = generator.normal(size=[BATCH, 784]).astype(np.float32)
    labels = generator.integers(0, 10, [BATCH])
    with _on_servers(tf, place):
        x = tf.placeholder(tf.float32, [BATCH, 784])
        y = tf.placeholder(tf.int64, [BATCH])
        hidden = tf.nn.relu(_dense(tf, x, 784, 100, "hidden"))
        logits = _dense(tf, hidden, 100, 10, "logits")
        losses = tf.nn.sparse_softmax_cross_entropy_with_logits(labels=y, logits=logits)
        return _training(tf, place, tf.reduce_mean(losses), {x: images, y: labels}, is_synchronous)


def word2vec(tf: Any, place: Place, is_synchronous: bool = False) -> Program:
    """Embeddings of words by noise-contrastive estimation."""
    generator = np.random.default_rng(place.index)
    words = generator.integers(0, VOCABULARY, [WORDS]).astype(np.int32)
    neighbours = generator.integers(0, VOCABULARY, [WORDS, 1])
    with _on_servers(tf, place):
        x = tf.placeholder(tf.int32, [WORDS])
        y = tf.placeholder(tf.int64, [WORDS, 1])
        shape = [VOCABULARY, EMBEDDING]
        embeddings = tf.get_variable("embeddings", shape, initializer=_noise(tf, 0))
        weights = tf.get_variable("weights", shape, initializer=_noise(tf, 1))
        biases = tf.get_variable("biases", [VOCABULARY], initializer=tf.zeros_initializer())
        found = tf.nn.embedding_lookup(embeddings, x)
        losses = tf.nn.nce_loss(weights, biases, y, found, SAMPLED, VOCABULARY)
        loss = tf.reduce_mean(losses)
        return _training(tf, place, loss, {x: words, y: neighbours}, is_synchronous)


@contextmanager
def _on_servers(tf: Any, place: Place) -> Iterator[None]:
    cluster = {"ps": [""] * place.servers, "worker": [""] * place.workers}
    setter = tf.train.replica_device_setter(worker_device=place.device, cluster=cluster)
    with tf.device(setter):
        yield


def _dense(tf: Any, x: Any, inputs: int, outputs: int, name: str) -> Any:
    with tf.variable_scope(name):
        weights = tf.get_variable("weights", [inputs, outputs], initializer=_noise(tf, 0))
        biases = tf.get_variable("biases", [outputs], initializer=tf.zeros_initializer())
        return tf.matmul(x, weights) + biases


def _noise(tf: Any, seed: int) -> Any:
    return tf.random_normal_initializer(stddev=0.05, seed=seed)


def _training(
    tf: Any, place: Place, loss: Any, feeds: Mapping[Any, Any], is_synchronous: bool
) -> Program:
    optimizer = tf.train.GradientDescentOptimizer(0.01)
    global_step = tf.train.get_or_create_global_step()
    if is_synchronous:
        return _synchronous(tf, place, loss, feeds, optimizer, global_step)
    train = optimizer.minimize(loss, global_step=global_step)
    return plain(tf, place, [loss, train], feeds)


def _synchronous(
    tf: Any, place: Place, loss: Any, feeds: Mapping[Any, Any], optimizer: Any, global_step: Any
) -> Program:
    every = {"replicas_to_aggregate": place.workers, "total_num_replicas": place.workers}
    optimizer = tf.train.SyncReplicasOptimizer(optimizer, **every)
    train = optimizer.minimize(loss, global_step=global_step)
    with tf.control_dependencies([train]), tf.device(global_step.device):
        updates = tf.identity(global_step)
    session = tf.train.MonitoredTrainingSession(
        place.target,
        place.is_chief,
        hooks=[optimizer.make_session_run_hook(place.is_chief)],
        config=options(tf, place),
        stop_grace_period_secs=1,  # TensorFlow's chief waits for its own thread, which waits for us
    )
    return Program(lambda: session.run(updates, feeds), session.close, is_synchronous=True)


PROGRAMS: dict[str, Callable[..., Program]] = {
    each.__name__: each for each in (null_step, sparse_step, step_start, mlp, word2vec)
}
