"""The programs for many workers on a cluster: each with a graph, a session and a server."""

import threading

import pytest

import thalweg as tf

pytest.importorskip("zmq")

WORKERS, SERVERS, STEPS = 3, ["/job:ps/task:0", "/job:ps/task:1"], 6


@pytest.fixture(scope="module")
def targets():
    workers, servers = tf.test.create_local_cluster(WORKERS, len(SERVERS))
    yield [worker.target for worker in workers]
    del servers


def trained(targets, build, limit=STEPS):
    """What every step of each worker gives, and what the chief reads last."""
    seen, last = [[] for _ in targets], []

    def work(index):
        is_chief = index == 0
        with tf.Graph().as_default():
            with tf.device(f"/job:worker/task:{index}"):
                fetches, hooks, at_end = build(index, is_chief)
            with tf.train.MonitoredTrainingSession(
                targets[index], is_chief, hooks=hooks, max_wait_secs=60
            ) as session:
                while len(seen[index]) < limit and not session.should_stop():
                    seen[index].append(session.run(fetches))
                if is_chief:
                    last.append(session.run_step_fn(lambda c: c.session.run(at_end)))

    threads = [threading.Thread(target=work, args=(index,)) for index in range(len(targets))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return seen, last[0]


def test_sequential_pulls_do_not_depend_on_who_is_fast(targets):
    def build(index, is_chief):
        servers = tf.train.ParameterServer(SERVERS, WORKERS, index, max_delay=0, name="sequential")
        table = servers.table("t", 100, optimizer=tf.train.GradientDescentOptimizer(-1.0))
        pulled = table.pull(7)
        with tf.control_dependencies([pulled]):
            step = servers.end_step(table.push([7, 60], [1.0, 2.0]))
        hooks = [servers.make_session_run_hook(is_chief)]
        return [pulled, step], hooks, table.pull([7, 60])

    seen, last = trained(targets, build)
    expected = [float(WORKERS * step) for step in range(STEPS)]
    assert [[float(pulled) for pulled, _ in steps] for steps in seen] == [expected] * WORKERS
    assert last.tolist() == [WORKERS * STEPS, 2 * WORKERS * STEPS]


def test_a_bounded_delay_loses_no_step(targets):
    def build(index, is_chief):
        with tf.device(SERVERS[1]):
            count = tf.get_variable("bounded_count", [], initializer=tf.zeros_initializer())
        delay = tf.train.BoundedDelay(2, WORKERS, index, SERVERS[0], name="bounded")
        step = delay.after(tf.assign_add(count, 1.0, use_locking=True))
        return step, [delay.make_session_run_hook(is_chief)], count

    _, last = trained(targets, build)
    assert WORKERS * (STEPS - 2) <= last <= WORKERS * STEPS  # the others may be two steps behind


def test_synchronous_updates_are_counted_by_the_global_step(targets):
    """Each update adds 1: the mean of the gradients of two workers, whichever came first."""

    def build(index, is_chief):
        with tf.device(tf.train.replica_device_setter(ps_tasks=2, worker_device="")):
            step = tf.train.create_global_step()
            count = tf.get_variable("sync_count", [], initializer=tf.zeros_initializer())
        optimizer = tf.train.SyncReplicasOptimizer(
            tf.train.GradientDescentOptimizer(-1.0), WORKERS - 1, WORKERS
        )
        train = optimizer.apply_gradients([(tf.constant(1.0), count)], step)
        stop = tf.train.StopAtStepHook(last_step=STEPS // 2)
        return train, [optimizer.make_session_run_hook(is_chief), stop], [step, count]

    seen, (step, count) = trained(targets, build, limit=100)
    assert STEPS // 2 <= step == count
    assert all(tokens == sorted(tokens) for tokens in seen)
