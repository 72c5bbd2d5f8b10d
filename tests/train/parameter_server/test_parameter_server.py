"""Parameter servers on several devices of one process: pulls, pushes, consistency and load."""

import threading

import numpy as np
import pytest

import thalweg as tf
from thalweg.cluster.hash_ring import HashRing
from thalweg.train.parameter_server.key_ranges import KeyRanges

DEVICES = ["/cpu:1", "/cpu:2", "/cpu:3"]
CONFIG = tf.ConfigProto(device_count={"CPU": 4})
KEYS = 50


@pytest.fixture(autouse=True)
def graph():
    with tf.Graph().as_default() as graph, tf.device("/cpu:0"):
        yield graph


def session():
    made = tf.Session(config=CONFIG)
    made.run(tf.global_variables_initializer())
    return made


def distinct_rows(shape, dtype=None, partition_info=None):
    """Initial values by which rows can be told apart."""
    return tf.reshape(tf.range(np.prod(shape), dtype=tf.float32), shape)


def keys_of(ranges, owner):
    """The keys of a server, in the order of its rows."""
    return [key for each in ranges if each.owner == owner for key in range(*each[:2])]


def test_every_key_has_a_row_of_its_own():
    ranges = KeyRanges(HashRing(DEVICES, 8), KEYS)
    route = ranges.route(tf.constant(np.arange(KEYS)))
    with tf.Session(config=CONFIG) as sess:
        shards, rows = sess.run(route)
    for number, owner in enumerate(ranges.owners):
        assert np.flatnonzero(shards == number).tolist() == keys_of(ranges.ranges, owner)
        assert rows[shards == number].tolist() == list(range(ranges.sizes[owner]))


def test_pulls_give_rows_of_the_shards_in_the_shape_of_the_keys():
    servers = tf.train.ParameterServer(DEVICES)
    table = servers.table("t", KEYS, [2], initializer=distinct_rows)
    keys = np.random.RandomState(0).randint(0, KEYS, (3, 4))
    pulled = table.pull(keys)
    assert pulled.shape.as_list() == [3, 4, 2]
    with session() as sess:
        values = dict(zip(DEVICES, sess.run(table.shards), strict=True))
        row_of = {
            key: values[owner][row]
            for owner in values
            for row, key in enumerate(keys_of(table.key_ranges, owner))
        }
        np.testing.assert_array_equal(
            sess.run(pulled), [[row_of[key] for key in line] for line in keys.tolist()]
        )
    assert [shard.device for shard in table.shards] == [f"/device:CPU:{i}" for i in (1, 2, 3)]


@pytest.mark.parametrize("max_delay", [None, 0, 2])
def test_a_worker_alone_trains_as_if_there_were_no_servers(max_delay):
    servers = tf.train.ParameterServer(DEVICES, max_delay=max_delay)
    table = servers.table("t", KEYS, [3], optimizer=tf.train.AdagradOptimizer(0.5))
    variable = tf.Variable(tf.zeros([KEYS, 3]))
    keys = tf.placeholder(tf.int64, [None])
    gradients = tf.placeholder(tf.float32, [None, 3])
    slices = tf.IndexedSlices(gradients, keys)
    plain = tf.train.AdagradOptimizer(0.5).apply_gradients([(slices, variable)])
    step = servers.end_step(table.push(keys, gradients))
    everything = table.pull(tf.range(KEYS))
    hooks = [servers.make_session_run_hook(is_chief=True)]
    random = np.random.RandomState(1)
    with tf.train.MonitoredTrainingSession(config=CONFIG, hooks=hooks) as sess:
        for _ in range(4):
            feeds = {keys: random.randint(0, KEYS, 9), gradients: random.randn(9, 3)}
            sess.run([step, plain], feeds)
        np.testing.assert_allclose(*sess.run([everything, variable]), rtol=1e-5)


def test_sequential_pulls_see_all_steps_before_and_no_other():
    """Each worker pushes 1 to the key: at step t all of them pull workers * t."""
    workers, steps = 3, 5
    programs = []
    descent = tf.train.GradientDescentOptimizer(-1.0)
    for index in range(workers):
        servers = tf.train.ParameterServer(DEVICES, workers, index, max_delay=0)
        table = servers.table("t", KEYS, optimizer=descent)
        before = table.pull(7)
        with tf.control_dependencies([before]):
            push = table.push([7], [1.0])
        programs.append((before, servers.end_step(push), servers))
    update = programs[0][2]._delay.get_chief_queue_runner().enqueue_ops[0]
    seen = [[] for _ in range(workers)]
    with session() as sess:

        def work(index):
            before, step, _ = programs[index]
            for _ in range(steps):
                seen[index].append(float(sess.run([before, step])[0]))

        threads = [threading.Thread(target=work, args=(index,)) for index in range(workers)]
        for thread in threads:
            thread.start()
        for _ in range(steps):
            sess.run(update)
        for thread in threads:
            thread.join()
    assert seen == [[float(workers * step) for step in range(steps)]] * workers


def test_eventual_pushes_are_there_at_once():
    programs = []
    descent = tf.train.GradientDescentOptimizer(-1.0)
    for index in range(2):
        servers = tf.train.ParameterServer(DEVICES, 2, index)
        table = servers.table("t", KEYS, optimizer=descent)
        programs.append((table.pull([7, 8]), servers.end_step(table.push([7, 7], [1.0, 2.0]))))
    with session() as sess:
        for _ in range(3):
            sess.run(programs[0][1])  # alone: nobody waits
        assert sess.run(programs[1][0]).tolist() == [9.0, 0.0]


def test_load_by_server():
    servers = tf.train.ParameterServer(DEVICES)
    first, second = servers.table("a", KEYS, [4]), servers.table("b", 10)
    pull, push = first.pull([1, 2, 3]), first.push([4, 4], tf.ones([2, 4]))
    with session() as sess:
        sess.run([pull, push])
        sess.run(pull)
        loads = servers.load(sess)
        text = servers.load_table(sess)
    assert [load.device for load in loads] == DEVICES
    assert sum(load.keys for load in loads) == KEYS + 10
    assert sum(load.bytes for load in loads) == 4 * (KEYS * 4 + 10)
    assert sum(load.pulled for load in loads) == 6
    owner = next(
        key_range.owner for key_range in first.key_ranges if key_range.start <= 4 < key_range.stop
    )
    assert {load.device: load.pushed for load in loads} == {
        device: 2 * (device == owner) for device in DEVICES
    }
    assert text.splitlines()[0].split() == ["server", "keys", "bytes", "pulled", "pushed"]
    assert f"{loads[0].keys:,}" in text.splitlines()[1]
    assert second.held("/cpu:7") == (0, 0)


def test_tables_that_nobody_pushes_to_hold_nobody_up():
    servers = tf.train.ParameterServer(DEVICES, max_delay=0)
    read, written = servers.table("read", KEYS), servers.table("written", KEYS)
    step = servers.end_step(written.push([1], read.pull([1]) - 100.0))
    hooks = [servers.make_session_run_hook(is_chief=True)]
    with tf.train.MonitoredTrainingSession(config=CONFIG, hooks=hooks) as sess:
        for _ in range(2):
            sess.run(step)
        shards = sess.run(written.shards)
    assert sum(shard.sum() for shard in shards) == 2.0


@pytest.mark.parametrize("key", [-1, KEYS])
def test_there_are_no_other_keys(key):
    table = tf.train.ParameterServer(DEVICES).table("t", KEYS)
    with session() as sess, pytest.raises(tf.errors.InvalidArgumentError):
        sess.run(table.pull([key]))
