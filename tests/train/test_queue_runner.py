"""Threads that keep queues filled."""

import pytest

import thalweg as tf
from thalweg.graph import context


@pytest.fixture(autouse=True)
def session():
    with tf.Graph().as_default(), tf.Session() as opened:
        yield opened


def counter(limit):
    return tf.Variable(0, name="counter").count_up_to(limit)


def runner(limit=3, threads=1, **kwargs):
    queue = tf.FIFOQueue(10, tf.int32, [[]])
    return tf.train.QueueRunner(queue, [queue.enqueue(counter(limit))] * threads, **kwargs)


def join(threads):
    for thread in threads:
        thread.join()


@pytest.mark.parametrize("threads", [1, 4])
def test_the_queue_is_closed_when_the_data_ends(session, threads):
    filled = runner(5, threads)
    session.run(tf.global_variables_initializer())
    join(filled.create_threads(session, start=True))
    assert sorted(session.run(filled.queue.dequeue_up_to(99)).tolist()) == [0, 1, 2, 3, 4]
    with pytest.raises(tf.errors.OutOfRangeError):
        session.run(filled.queue.dequeue())
    assert filled.exceptions_raised == []


def test_a_stop_cancels_what_waits(session):
    filled = runner(10**6)
    session.run(tf.global_variables_initializer())
    coord = tf.train.Coordinator()
    threads = filled.create_threads(session, coord=coord, start=True)
    assert len(threads) == 2
    session.run(filled.queue.dequeue_many(25))
    coord.request_stop()
    coord.join(threads)
    with pytest.raises(tf.errors.CancelledError):
        session.run(filled.queue.enqueue(1))


def test_running_threads_are_not_started_twice(session):
    filled = runner(10**6)
    session.run(tf.global_variables_initializer())
    coord = tf.train.Coordinator()
    filled.create_threads(session, coord=coord, start=True)
    assert filled.create_threads(session, coord=coord, start=True) == []
    coord.request_stop()
    coord.join()
    assert filled.create_threads(session)


@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
def test_errors_are_kept_without_a_coordinator(session):
    filled = runner()  # the counter is not initialised
    join(filled.create_threads(session, start=True))
    (error,) = filled.exceptions_raised
    assert isinstance(error, tf.errors.FailedPreconditionError)


def test_errors_are_reported_to_the_coordinator(session):
    filled = runner()
    coord = tf.train.Coordinator()
    filled.create_threads(session, coord=coord, start=True)
    with pytest.raises(tf.errors.FailedPreconditionError):
        coord.join()
    assert filled.exceptions_raised == []


def test_other_errors_may_mean_the_end(session):
    source, sink = tf.FIFOQueue(3, tf.int32, [[]]), tf.FIFOQueue(3, tf.int32, [[]])
    kinds = (tf.errors.OutOfRangeError, tf.errors.CancelledError)
    enqueue = sink.enqueue(source.dequeue())
    between = tf.train.QueueRunner(sink, [enqueue], queue_closed_exception_types=kinds)
    session.run(source.enqueue_many([[1, 2]]))
    session.run(source.close())
    join(between.create_threads(session, start=True))
    assert session.run(sink.dequeue_up_to(9)).tolist() == [1, 2]


def test_arguments():
    queue = tf.FIFOQueue(3, tf.int32)
    with pytest.raises(ValueError, match="queue and enqueue_ops"):
        tf.train.QueueRunner(queue)
    with pytest.raises(TypeError, match="queue_closed_exception_types"):
        tf.train.QueueRunner(queue, [tf.no_op()], queue_closed_exception_types=())
    with pytest.raises(ValueError, match="mutually exclusive"):
        tf.train.QueueRunner(queue, [tf.no_op()], queue_runner_def=object())


def test_collected_runners_are_started_together(session):
    first, second = runner(2), runner(3)
    for filled in (first, second):
        tf.train.add_queue_runner(filled)
    session.run(tf.global_variables_initializer())
    threads = tf.train.start_queue_runners()
    assert len(threads) == 2 and all(thread.daemon for thread in threads)
    join(threads)
    assert session.run([first.queue.size(), second.queue.size()]) == [2, 3]


def test_a_session_is_needed(monkeypatch):
    with pytest.raises(TypeError, match=r"tf\.Session"):
        tf.train.start_queue_runners(sess="session")
    with monkeypatch.context() as patched:
        patched.setattr(context.sessions, "items", [])
        with pytest.raises(ValueError, match="No default session"):
            tf.train.start_queue_runners()


def test_runners_travel_as_protocol_buffers():
    with tf.name_scope("reader"):
        filled = runner(queue_closed_exception_types=(tf.errors.CancelledError,))
    proto = filled.to_proto()
    assert proto.queue_name == "reader/fifo_queue"
    assert list(proto.queue_closed_exception_types) == [1]
    again = tf.train.QueueRunner.from_proto(proto)
    assert again.name == filled.name
    assert again.enqueue_ops == filled.enqueue_ops
    assert (again.close_op, again.cancel_op) == (filled.close_op, filled.cancel_op)
    assert again.queue_closed_exception_types == (tf.errors.CancelledError,)
    assert filled.to_proto(export_scope="elsewhere") is None
    inner = filled.to_proto(export_scope="reader")
    assert inner.queue_name == "fifo_queue"
    assert tf.train.QueueRunner.from_proto(inner, import_scope="reader").name == filled.name
    del proto.queue_closed_exception_types[:]
    assert tf.train.QueueRunner.from_proto(proto).queue_closed_exception_types == (
        tf.errors.OutOfRangeError,
    )


def test_the_bytes_are_those_of_tensorflow():
    queue = tf.FIFOQueue(3, tf.int32, name="q")
    filled = tf.train.QueueRunner(queue, [queue.enqueue(1, name="e")], tf.no_op("c"), tf.no_op("x"))
    assert filled.to_proto().SerializeToString() == b'\n\x01q\x12\x01e\x1a\x01c"\x01x*\x01\x0b'
