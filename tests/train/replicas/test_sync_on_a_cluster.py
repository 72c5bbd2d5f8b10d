"""Synchronous training on a cluster: workers that stop at the same update never wait for ever.

Every worker has a graph, a session and a server; variables are on two parameter servers. The
gradient is the same everywhere, so the variables count the updates, whoever's gradients they took.
"""

import threading

import pytest

import thalweg as tf
from thalweg.train.update_lock import between_updates, guard_updates

pytest.importorskip("zmq")

WORKERS, SERVERS = 3, 2
ROUNDS = (3, 5)  # the updates at which all workers pause


@pytest.fixture(scope="module")
def cluster():
    workers, servers = tf.test.create_local_cluster(WORKERS, SERVERS)
    yield [worker.target for worker in workers]
    del servers


def program(index, aggregate, total, name):
    """The optimizer of a worker, what counts its steps, and what all count together."""
    setter = tf.train.replica_device_setter(SERVERS, worker_device=f"/job:worker/task:{index}")
    guard_updates(tf.get_default_graph())  # what they count together is read between updates
    with tf.device(setter), tf.variable_scope(name):
        step = tf.train.create_global_step()
        counts = [
            tf.get_variable(f"count_{i}", [], initializer=tf.zeros_initializer) for i in (0, 1)
        ]
        one = tf.placeholder_with_default(1.0, [])
        optimizer = tf.train.SyncReplicasOptimizer(
            tf.train.GradientDescentOptimizer(-1.0), aggregate, total, name=name
        )
        train = optimizer.apply_gradients([(one, count) for count in counts], step)
        with tf.control_dependencies([train]), tf.device(step.device):
            return optimizer, tf.identity(step), [step, *counts]


def at_once(work, count):
    """Run a function on some threads; what they return, in order."""
    result, failures = [None] * count, []

    def run(index):
        try:
            with tf.Graph().as_default():
                result[index] = work(index)
        except BaseException as error:
            failures.append(error)

    threads = [threading.Thread(target=run, args=(index,)) for index in range(count)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if failures:
        raise failures[0]
    return result


def check(found):
    """What the chief saw."""
    step, *counts = found[0]
    assert [step] * len(counts) == counts
    assert step >= ROUNDS[-1]


@pytest.mark.parametrize(
    ("workers", "aggregate", "tokens"),
    [(3, 3, -1), (3, 3, 0), (3, 2, -1), (3, 2, 0), (3, 1, -1), (2, 4, -1), (2, 4, 2), (1, 1, 0)],
)
def test_workers_that_stop_at_one_update_pause_and_go_on(cluster, workers, aggregate, tokens):
    """With init tokens and without, with backups, with more gradients than workers."""
    name = f"rounds_{workers}_{aggregate}_{tokens + 1}"
    together = threading.Barrier(workers)

    def work(index):
        optimizer, step, counts = program(index, aggregate, workers, name)
        hook = optimizer.make_session_run_hook(index == 0, tokens)
        with tf.train.MonitoredTrainingSession(
            cluster[index], index == 0, hooks=[hook], max_wait_secs=60
        ) as session:
            for last in ROUNDS:
                while session.run(step) < last:
                    pass
                together.wait()
            with between_updates(tf.get_default_graph()):  # of which the chief may begin one more
                result = session.run_step_fn(lambda context: context.session.run(counts))
            together.wait()  # nobody takes the chief's thread away from the others
            return result

    check(at_once(work, workers))


@pytest.mark.parametrize("tokens", [-1, 0])
def test_a_program_without_hooks_starts_the_chiefs_thread_itself(cluster, tokens):
    """As programs did before there were hooks: a queue runner, a coordinator, plain sessions."""
    name = f"plain_{tokens + 1}"
    together, begun = threading.Barrier(WORKERS), threading.Event()

    def work(index):
        optimizer, step, counts = program(index, WORKERS, WORKERS, name)
        coordinator = tf.train.Coordinator()
        if index == 0:
            runner, tokens_op = (
                optimizer.get_chief_queue_runner(),
                optimizer.get_init_tokens_op(tokens),
            )
        with tf.Session(cluster[index]) as session:
            if index == 0:
                session.run(tf.global_variables_initializer())
                session.run(tf.local_variables_initializer())
                session.run(optimizer.chief_init_op)
                session.run(tokens_op)
                runner.create_threads(session, coordinator, daemon=True, start=True)
                begun.set()
            else:
                begun.wait()
                session.run(optimizer.local_step_init_op)
            while session.run(step) < ROUNDS[-1]:
                pass
            together.wait()
            with between_updates(tf.get_default_graph()):
                result = session.run(counts)
            together.wait()
            return result

    check(at_once(work, WORKERS))
