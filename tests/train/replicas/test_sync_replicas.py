"""Synchronous training: means of gradients, stale ones dropped, backups, tokens; one process.

Workers are optimizers of one graph that share accumulators and tokens by name. The chief's op is
run by the test itself where the order of things matters.
"""

import threading

import numpy as np
import pytest

import thalweg as tf
from thalweg.train.replicas.sync_runner import ChiefQueueRunner
from thalweg.train.update_lock import between_updates, guard_updates, update_lock


@pytest.fixture(autouse=True)
def graph():
    with tf.Graph().as_default() as graph:
        yield graph


class Workers:
    """Some workers with gradients of their own, initialised as the hooks would."""

    def __init__(self, total, aggregate=None):
        self.step = tf.train.create_global_step()
        self.dense = tf.Variable(0.0, name="dense")
        self.sparse = tf.Variable([[3.0], [4.0]], name="sparse")
        made = [self._worker(i, aggregate or total, total) for i in range(total)]
        self.optimizers, self.train = zip(*made, strict=True)
        self.local_steps = tf.local_variables()
        self.chief = self.optimizers[0]
        self.update = self.chief.get_chief_queue_runner().enqueue_ops[0]
        begin = [self.chief.chief_init_op, *(o.local_step_init_op for o in self.optimizers)]
        tokens = self.chief.get_init_tokens_op(total)
        self.session = tf.Session()
        self.session.run(tf.global_variables_initializer())
        assert not self.session.run(self.chief.ready_for_local_init_op).size
        self.session.run(begin)
        self.session.run(tokens)

    def _worker(self, index, aggregate, total):
        optimizer = tf.train.SyncReplicasOptimizer(
            tf.train.GradientDescentOptimizer(2.0), aggregate, total
        )
        gradient = tf.constant(0.1 + 0.2 * index)
        rows = tf.IndexedSlices(tf.reshape(gradient, [1, 1]), tf.constant([1]), [2, 1])
        pairs = [(gradient, self.dense), (None, tf.Variable(1.0)), (rows, self.sparse)]
        return optimizer, optimizer.apply_gradients(pairs, global_step=self.step)

    def run(self, *indices):
        for index in indices:
            self.session.run(self.train[index])

    def values(self):
        return self.session.run([self.step, self.dense, self.sparse])

    def local(self):
        return self.session.run(self.local_steps)


def expect(workers, step, dense):
    found = workers.values()
    assert found[0] == step
    np.testing.assert_allclose(found[1], dense, rtol=1e-6)
    np.testing.assert_allclose(found[2], [[3.0], [4.0 + dense]], rtol=1e-6)


def test_an_update_is_the_mean_of_all_workers():
    workers = Workers(2)
    workers.run(0, 1)
    expect(workers, 0, 0.0)  # nothing before the chief's turn
    workers.session.run(workers.update)
    expect(workers, 1, -0.4)


def test_gradients_of_an_earlier_step_are_dropped():
    workers = Workers(2)
    workers.run(0, 1)
    workers.session.run(workers.update)
    assert workers.local() == [0, 0]  # the first tokens say so
    workers.run(0, 1)  # these are of step 0: too late
    assert workers.local() == [1, 1]
    expect(workers, 1, -0.4)
    threads = [threading.Thread(target=workers.run, args=(index,)) for index in (0, 1)]
    for thread in threads:
        thread.start()
    workers.session.run(workers.update)
    for thread in threads:
        thread.join()
    expect(workers, 2, -0.8)
    assert workers.local() == [2, 2]


def test_the_first_workers_are_enough():
    workers = Workers(3, aggregate=2)
    workers.run(0, 2)
    workers.session.run(workers.update)
    expect(workers, 1, -0.6)
    workers.run(1)  # the backup's gradient is stale
    expect(workers, 1, -0.6)
    assert workers.local() == [0, 0, 0]


def test_fewer_workers_than_gradients():
    workers = Workers(1, aggregate=2)
    with pytest.raises(ValueError, match=r"Too few tokens .* 0 \(given\) vs 1"):
        workers.chief.get_init_tokens_op(0)
    workers.session.run(workers.chief.get_init_tokens_op(1))
    workers.run(0, 0)
    workers.session.run(workers.update)
    expect(workers, 1, -0.2)


def test_no_update_is_lost_or_doubled_between_threads():
    """The mean of equal gradients is known, whichever workers it is of."""
    step, v = tf.train.create_global_step(), tf.Variable(0.0)
    one = tf.constant(1.0)
    optimizers = [
        tf.train.SyncReplicasOptimizer(tf.train.GradientDescentOptimizer(1.0), 3, 4)
        for _ in range(4)
    ]
    trains = [optimizer.apply_gradients([(one, v)], step) for optimizer in optimizers]
    update = optimizers[0].get_chief_queue_runner().enqueue_ops[0]
    tokens = optimizers[0].get_init_tokens_op()
    session = tf.Session()
    session.run(tf.global_variables_initializer())
    session.run([optimizers[0].chief_init_op, *(o.local_step_init_op for o in optimizers)])
    session.run(tokens)

    def work(train):
        with pytest.raises((tf.errors.CancelledError, RuntimeError)):
            while True:
                session.run(train)

    threads = [threading.Thread(target=work, args=(train,)) for train in trains]
    for thread in threads:
        thread.start()
    for count in range(1, 30):
        session.run(update)
        assert session.run([step, v]) == [count, -count]
    session.close()
    for thread in threads:
        thread.join()


def test_averages_follow_the_updates():
    step, v = tf.train.create_global_step(), tf.Variable(0.0, name="v")
    average = tf.train.ExponentialMovingAverage(0.5)
    optimizer = tf.train.SyncReplicasOptimizer(
        tf.train.GradientDescentOptimizer(1.0),
        1,
        variable_averages=average,
        variables_to_average=[v],
    )
    train = optimizer.apply_gradients([(tf.constant(-8.0), v)], step)
    tokens = optimizer.get_init_tokens_op()
    with tf.Session() as session:
        session.run(tf.global_variables_initializer())
        session.run(optimizer.chief_init_op)
        session.run(tokens)
        session.run(train)
        session.run(optimizer.get_chief_queue_runner().enqueue_ops)
        assert session.run([v, average.average(v)]) == [8.0, 4.0]


def test_slots_are_those_of_the_optimizer_inside():
    step, v = tf.train.create_global_step(), tf.Variable(0.0, name="v")
    momentum = tf.train.MomentumOptimizer(1.0, 0.9)
    optimizer = tf.train.SyncReplicasOptimizer(momentum, 1)
    optimizer.minimize(tf.square(v), global_step=step)
    assert optimizer.get_slot_names() == ["momentum"]
    assert optimizer.get_slot(v, "momentum") is momentum.get_slot(v, "momentum")
    assert optimizer.variables() == momentum.variables()


def test_a_monitored_session_trains_and_ends_at_once():
    step, v = tf.train.create_global_step(), tf.Variable(0.0)
    optimizer = tf.train.SyncReplicasOptimizer(tf.train.GradientDescentOptimizer(1.0), 1)
    train = optimizer.apply_gradients([(tf.constant(1.0), v)], step)
    hooks = [optimizer.make_session_run_hook(is_chief=True), tf.train.StopAtStepHook(last_step=5)]
    with tf.train.MonitoredTrainingSession(hooks=hooks) as session:
        while not session.should_stop():
            session.run(train)
        assert session.run_step_fn(lambda context: context.session.run([step, v])) == [5, -5]


@pytest.mark.parametrize("is_joined", [False, True])
def test_a_chief_tells_of_errors_while_somebody_listens(is_joined):
    wrong = tf.Assert(tf.constant(False), ["lost"])
    coord, runner = tf.train.Coordinator(), ChiefQueueRunner(wrong, "chief")
    if is_joined:
        coord.request_stop()
        coord.join()
        coord._stop_event.clear()  # the thread is in the middle of a step
    with tf.Session() as session:
        threads = runner.create_threads(session, coord, daemon=True, start=True)
        threads[0].join()
        if is_joined:
            coord.raise_requested_exception()
            coord.request_stop()
        else:
            with pytest.raises(tf.errors.InvalidArgumentError, match="lost"):
                coord.join()
        threads[1].join()


def test_another_worker_waits_for_a_model_that_is_initialised():
    step, v = tf.train.create_global_step(), tf.Variable(0.0)
    optimizer = tf.train.SyncReplicasOptimizer(tf.train.GradientDescentOptimizer(1.0), 1)
    optimizer.apply_gradients([(tf.constant(1.0), v)], step)
    hook = optimizer.make_session_run_hook(is_chief=False)
    hook.begin()
    with tf.Session() as session:
        with pytest.raises(RuntimeError, match=r"did not make model ready .*: .*global_step"):
            hook.after_create_session(session, tf.train.Coordinator())
        session.run(tf.global_variables_initializer())
        hook.after_create_session(session, tf.train.Coordinator())
        assert session.run(tf.local_variables()) == [0]


def test_where_things_are():
    """Accumulators beside their variables, tokens beside the step, the local step on the worker."""
    setter = tf.train.replica_device_setter(ps_tasks=2, worker_device="/job:worker/task:3")
    with tf.device(setter):
        step, v = tf.train.create_global_step(), tf.Variable(0.0)
        optimizer = tf.train.SyncReplicasOptimizer(tf.train.GradientDescentOptimizer(1.0), 1)
        optimizer.apply_gradients([(tf.constant(1.0), v)], step)
    (local,) = tf.local_variables()
    assert local.name == "sync_rep_local_step:0"
    assert local.device == "/job:worker/task:3"
    beside = {
        node.type: node.colocation_groups()
        for node in tf.get_default_graph().get_operations()
        if node.type in ("ConditionalAccumulator", "QueueDequeue")
    }
    assert beside["ConditionalAccumulator"] == [b"loc:@Variable"]
    assert beside["QueueDequeue"] == [b"loc:@global_step"]


def test_what_is_missing():
    optimizer = tf.train.SyncReplicasOptimizer(tf.train.GradientDescentOptimizer(1.0), 1)
    v = tf.Variable(1.0)
    with pytest.raises(ValueError, match="at least one variable"):
        optimizer.apply_gradients([])
    with pytest.raises(ValueError, match="Global step is required"):
        optimizer.apply_gradients([(tf.constant(1.0), v)])
    with pytest.raises(ValueError, match="after apply_gradients"):
        optimizer.get_chief_queue_runner()
    with pytest.raises(ValueError, match="after apply_gradients"):
        optimizer.get_init_tokens_op()
    with pytest.raises(ValueError, match="after apply_gradients"):
        optimizer.make_session_run_hook(is_chief=True).begin()
    with pytest.raises(ValueError, match="Unknown grad type"):
        optimizer.apply_gradients([("x", v)], tf.train.create_global_step())


def test_no_update_is_applied_while_a_checkpoint_is_written():
    """Of many tasks some would be saved before the update, and some after it."""
    with tf.Graph().as_default() as graph:
        w, step = tf.Variable(0.0), tf.train.create_global_step()
        optimizer = tf.train.SyncReplicasOptimizer(tf.train.GradientDescentOptimizer(1.0), 1, 1)
        optimizer.minimize(w, global_step=step)
        runner = optimizer.get_chief_queue_runner()
        push = next(n for n in graph.get_operations() if n.name.endswith("/push"))
        tokens = optimizer._token_queue.size()
        with tf.Session() as session:
            session.run([tf.global_variables_initializer(), tf.local_variables_initializer()])
            guard_updates(graph)
            with between_updates(graph):
                runner.create_threads(session, daemon=True, start=True)
                session.run(push)
                session.run(runner._enough)  # the chief has what it waits for
                assert session.run([w, step, tokens]) == [0, 0, 0]
            session.run(optimizer._token_queue.dequeue())
            assert session.run([w, step]) == [-1, 1]


def test_updates_are_guarded_where_checkpoints_are_saved(tmp_path):
    """Without checkpoints, the chief waits for gradients and applies them in one step."""
    for folder in (tmp_path, None):
        with tf.Graph().as_default() as graph:
            w, step = tf.Variable(0.0), tf.train.create_global_step()
            optimizer = tf.train.SyncReplicasOptimizer(tf.train.GradientDescentOptimizer(1.0), 1, 1)
            train = optimizer.minimize(w, global_step=step)
            hook = optimizer.make_session_run_hook(is_chief=True, num_tokens=0)
            with tf.train.MonitoredTrainingSession(hooks=[hook], checkpoint_dir=folder) as session:
                assert (update_lock(graph) is not None) == (folder is not None)
                for _ in range(3):
                    session.run(train)
                assert session.run([w, step]) == [-3, 3]


class UnpreparedSaver(tf.train.CheckpointSaverHook):
    """A user's hook that does not call the `begin` of its base, which guards updates."""

    def begin(self):
        self._summary_writer = tf.summary.FileWriterCache.get(self._checkpoint_dir)
        self._global_step_tensor = tf.train.get_global_step()


def test_a_hook_saves_though_nothing_was_guarded(tmp_path):
    w, step = tf.Variable(0.0), tf.train.create_global_step()
    train = tf.train.GradientDescentOptimizer(1.0).minimize(w, global_step=step)
    saver = UnpreparedSaver(str(tmp_path), save_steps=1, saver=tf.train.Saver())
    with tf.train.MonitoredSession(hooks=[saver]) as session:
        session.run(train)
    assert tf.train.latest_checkpoint(str(tmp_path)).endswith("-1")
