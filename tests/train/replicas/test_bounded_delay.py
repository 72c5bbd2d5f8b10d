"""Bounded delay: who may take a step is who is at most τ ahead of the slowest, and nobody else."""

import threading

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import thalweg as tf


@pytest.fixture(autouse=True)
def graph():
    with tf.Graph().as_default() as graph:
        yield graph


class Workers:
    """Workers of one graph that count their steps; the chief's op is run by the test."""

    def __init__(self, count, max_delay):
        self.delays = [tf.train.BoundedDelay(max_delay, count, i) for i in range(count)]
        self.steps = [tf.Variable(0, use_resource=True) for _ in range(count)]
        self.train = [
            delay.after(tf.assign_add(step, 1))
            for delay, step in zip(self.delays, self.steps, strict=True)
        ]
        self.round = self.delays[0].get_chief_queue_runner().enqueue_ops[0]
        first = self.delays[0].get_init_permits_op()
        self.permits = [
            tf.FIFOQueue(-1, tf.int32, shapes=[()], shared_name=f"bounded_delay/permits_{i}").size()
            for i in range(count)
        ]
        self.session = tf.Session()
        self.session.run(tf.global_variables_initializer())
        self.session.run(first)

    def counts(self):
        return self.session.run(self.steps)


@settings(max_examples=20, deadline=None)
@given(st.integers(1, 4), st.integers(0, 3), st.randoms(use_true_random=False))
def test_a_worker_may_go_on_until_it_is_ahead_by_the_bound(count, max_delay, random):
    with tf.Graph().as_default():
        workers = Workers(count, max_delay)
        done, rounds = [0] * count, 0
        for _ in range(20):
            permits = workers.session.run(workers.permits)
            assert permits == [max_delay + rounds - steps for steps in done]
            able = [i for i, each in enumerate(permits) if each]
            if not able:
                break  # the next step of any worker would wait for the others'
            chosen = random.choice(able)
            workers.session.run(workers.train[chosen])
            done[chosen] += 1
            if min(done) > rounds:
                workers.session.run(workers.round)
                rounds += 1
        assert workers.counts() == done


def test_a_fast_worker_waits_for_the_slow_one():
    workers = Workers(2, max_delay=2)
    fast = threading.Thread(
        target=lambda: [workers.session.run(workers.train[0]) for _ in range(4)]
    )
    fast.start()
    workers.session.run([workers.train[1]])  # a permit is there
    workers.session.run(workers.round)  # waits for one step of each
    assert workers.counts()[0] <= 4
    workers.session.run([workers.train[1]])
    workers.session.run(workers.round)
    fast.join()
    assert workers.counts() == [4, 2]
    assert workers.session.run(workers.permits) == [0, 2]


def test_no_delay_is_a_barrier():
    workers = Workers(3, max_delay=0)
    for step in range(1, 4):
        threads = [
            threading.Thread(target=workers.session.run, args=(train,)) for train in workers.train
        ]
        for thread in threads:
            thread.start()
        workers.session.run(workers.round)
        assert workers.counts() == [step] * 3  # a step of each was made before the round ended
        for thread in threads:
            thread.join()


def test_the_chief_may_work_between_the_steps():
    delay = tf.train.BoundedDelay(0, 1, 0)
    v, doubled = tf.Variable(1), tf.Variable(0)
    step = delay.after(tf.assign_add(v, 1))
    delay.at_round_end(lambda: tf.assign(doubled, 2 * v.read_value()))
    hook = delay.make_session_run_hook(is_chief=True)
    with tf.train.MonitoredTrainingSession(hooks=[hook]) as session:
        for expected in (4, 6, 8):
            session.run(step)
            assert session.run(doubled) == expected
    with pytest.raises(RuntimeError, match="built already"):
        delay.at_round_end(tf.no_op)


def test_another_chief_gives_no_more_first_permits():
    delay = tf.train.BoundedDelay(3, 1, 0)
    hook = delay.make_session_run_hook(is_chief=True)
    hook.begin()
    permits = tf.FIFOQueue(-1, tf.int32, shapes=[()], shared_name="bounded_delay/permits_0").size()
    with tf.Session() as session:
        for _ in range(2):
            hook.after_create_session(session, tf.train.Coordinator())
            assert session.run(permits) == 3


def test_other_workers_have_nothing_to_begin_with():
    delay = tf.train.BoundedDelay(3, 2, 1)
    hook = delay.make_session_run_hook(is_chief=False)
    hook.begin()
    assert "Enqueue" not in " ".join(n.type for n in tf.get_default_graph().get_operations())


def test_wrong_workers():
    with pytest.raises(ValueError, match="-1 steps ahead"):
        tf.train.BoundedDelay(-1, 1, 0)
    with pytest.raises(ValueError, match="no worker 2 of 2"):
        tf.train.BoundedDelay(0, 2, 2)
