"""Many threads train, count, read, queue and save on one session: exact counts, whole values.

With THALWEG_SOAK=1 each case goes on for a minute, ten in all.
"""

from __future__ import annotations

import random
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import thalweg as tf
from tests.soak import SOAKING

pytestmark = pytest.mark.timeout(1200)

SECONDS = 60.0 if SOAKING else 0.5
SIZE = 50_000
MODES = {"plain": (False, False), "locking": (True, False), "resource": (False, True)}


class Job:
    """A model, its counters, a queue and a saver, and how often each was used."""

    def __init__(self, folder: Path, mode: str) -> None:
        self.locking, resource = MODES[mode]
        self.is_exact = mode != "plain"
        self.folder, self.counts, self._lock = folder, dict[str, int](), threading.Lock()
        zeros = tf.zeros_initializer()

        def variable(name: str, shape: Any) -> Any:
            return tf.get_variable(name, shape, initializer=zeros, use_resource=resource)

        self.x = tf.placeholder(tf.float32, [64, 64])
        self.w, self.large = variable("w", [256]), variable("large", [SIZE])
        self.rows, self.count = variable("rows", [40, 8]), variable("count", [])
        self.step = tf.train.get_or_create_global_step()
        product = tf.matmul(tf.matmul(self.x, self.x), self.x)
        loss = tf.reduce_sum(self.w) + 0 * tf.reduce_sum(product)
        optimizer = tf.train.GradientDescentOptimizer(-1.0, use_locking=self.locking)
        self.train = optimizer.minimize(loss, global_step=self.step)
        self.grow = tf.assign_add(self.large, tf.ones([SIZE]), use_locking=self.locking).op
        self.add = tf.assign_add(self.count, 1.0, use_locking=self.locking).op
        self.scatter = tf.scatter_add(
            self.rows, tf.range(40), tf.ones([40, 8]), use_locking=self.locking
        ).op
        self.queue = tf.FIFOQueue(1000, [tf.float32], [[]])
        self.put, self.take = self.queue.enqueue(1.0), self.queue.dequeue()
        # What is read on the host, in a region, after an update, and through a host op.
        with tf.control_dependencies([self.grow]):
            after = self.large * 1.0
        self.reads = [self.large, self.large * 1.0, tf.py_func(np.copy, [self.large], tf.float32)]
        self.grown = after
        self.saver = tf.train.Saver(max_to_keep=2)
        self.session = tf.Session()
        self.session.run(tf.global_variables_initializer())
        self._array = np.full([64, 64], 0.01, np.float32)

    def counted(self, name: str) -> None:
        with self._lock:
            self.counts[name] = self.counts.get(name, 0) + 1

    def work(self, seed: int, until: float) -> None:
        chance = random.Random(seed)
        while time.monotonic() < until:
            name = chance.choice(["train", "train", "grow", "add", "scatter", "queue", "read"])
            getattr(self, f"do_{name}")(chance)
            self.counted(name)
            if seed == 0 and chance.random() < 0.02:
                self.save()

    def do_train(self, _: random.Random) -> None:
        self.session.run(self.train, {self.x: self._array})

    def do_grow(self, chance: random.Random) -> None:
        if chance.random() < 0.5:
            self.session.run(self.grow)
        else:
            self.whole(self.session.run(self.grown))

    def do_add(self, _: random.Random) -> None:
        self.session.run(self.add)

    def do_scatter(self, _: random.Random) -> None:
        self.session.run(self.scatter)

    def do_queue(self, _: random.Random) -> None:
        self.session.run(self.put)
        assert self.session.run(self.take) == 1.0

    def do_read(self, chance: random.Random) -> None:
        self.whole(self.session.run(chance.choice(self.reads)))

    def whole(self, found: Any) -> None:
        """With locking, all elements were updated equally often."""
        assert not self.is_exact or found.min() == found.max()

    def save(self) -> None:
        path = self.saver.save(self.session, str(self.folder / "model"), self.counts.get("add", 0))
        saved = tf.train.load_checkpoint(path)
        self.whole(saved.get_tensor("large"))
        self.whole(saved.get_tensor("rows"))

    def check(self) -> None:
        counts = self.counts
        found = self.session.run([self.step, self.count, self.queue.size()])
        assert found == [counts.get("train", 0), counts.get("add", 0), 0]
        if not self.is_exact:
            return
        for variable, name in ((self.w, "train"), (self.large, "grow"), (self.rows, "scatter")):
            value = self.session.run(variable)
            np.testing.assert_array_equal(value, np.full(value.shape, counts.get(name, 0)))


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("threads", [2, 5, 16])
def test_nothing_is_lost_and_nothing_is_torn(tmp_path: Path, mode: str, threads: int) -> None:
    with tf.Graph().as_default(), ThreadPoolExecutor(threads) as pool:
        job = Job(tmp_path, mode)
        until = time.monotonic() + SECONDS
        for done in [pool.submit(job.work, seed, until) for seed in range(threads)]:
            done.result()
        job.check()
        assert sum(job.counts.values()) >= threads
