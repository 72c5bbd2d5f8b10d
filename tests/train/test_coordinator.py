"""Threads that end together."""

import sys
import threading

import pytest

import thalweg as tf


def started(*targets):
    threads = [threading.Thread(target=target, daemon=True) for target in targets]
    for thread in threads:
        thread.start()
    return threads


def test_a_stop_is_seen_by_all():
    coord = tf.train.Coordinator()
    assert not coord.should_stop() and not coord.wait_for_stop(0)
    threads = started(coord.wait_for_stop, coord.wait_for_stop)
    coord.request_stop()
    coord.join(threads)
    assert coord.joined and coord.should_stop()
    assert not any(thread.is_alive() for thread in threads)


def test_threads_that_just_end_need_no_stop():
    coord = tf.train.Coordinator()
    coord.join(started(lambda: None, lambda: None))
    assert not coord.should_stop()


def test_registered_threads_are_joined():
    coord = tf.train.Coordinator()
    (thread,) = started(coord.wait_for_stop)
    coord.register_thread(thread)
    coord.request_stop()
    coord.join()
    assert not thread.is_alive()


def test_a_thread_that_was_never_started_has_ended():
    tf.train.Coordinator().join([threading.Thread(target=lambda: None)])


@pytest.mark.parametrize("report", [lambda error: error, lambda error: sys.exc_info()])
def test_the_first_error_is_raised_by_join(report):
    coord = tf.train.Coordinator()

    def fail():
        try:
            raise ValueError("first")
        except ValueError as error:
            coord.request_stop(report(error))

    threads = started(fail)
    coord.wait_for_stop()
    coord.request_stop(ValueError("second"))
    with pytest.raises(ValueError, match="first"):
        coord.join(threads)
    with pytest.raises(ValueError, match="first"):
        coord.raise_requested_exception()


def test_errors_of_a_block_request_a_stop():
    coord = tf.train.Coordinator()
    with coord.stop_on_exception():
        raise KeyError("lost")
    with pytest.raises(KeyError, match="lost"):
        coord.join()


def test_the_end_of_the_data_is_no_error():
    coord = tf.train.Coordinator()
    coord.request_stop(tf.errors.OutOfRangeError(None, None, "the end"))
    coord.join()
    coord = tf.train.Coordinator(clean_stop_exception_types=(StopIteration,))
    coord.request_stop(StopIteration())
    coord.join()


def test_after_the_join_errors_are_raised_at_once():
    coord = tf.train.Coordinator()
    coord.request_stop()
    coord.join()
    with pytest.raises(ValueError, match="late"):
        coord.request_stop(ValueError("late"))
    coord.clear_stop()
    assert not coord.should_stop() and not coord.joined


def test_those_still_alive_after_the_grace_period_are_named():
    coord = tf.train.Coordinator()
    end = threading.Event()
    stubborn = threading.Thread(target=end.wait, name="stubborn", daemon=True)
    stubborn.start()
    coord.request_stop()
    with pytest.raises(RuntimeError, match="still running: stubborn"):
        coord.join([stubborn], stop_grace_period_secs=0.01)
    coord.join([stubborn], stop_grace_period_secs=0.01, ignore_live_threads=True)
    end.set()
    stubborn.join()


def test_a_reason_that_is_none():
    coord = tf.train.Coordinator()
    coord.request_stop("because")
    with pytest.raises(ValueError, match="because"):
        coord.join()


@pytest.mark.parametrize("interval", [None, 0.0])
def test_a_looper_calls_until_the_stop(interval):
    coord = tf.train.Coordinator()
    calls = []

    def call(number, word):
        calls.append((number, word))
        if len(calls) == 3:
            coord.request_stop()

    tf.train.LooperThread.loop(coord, interval, call, args=(1,), kwargs={"word": "a"})
    coord.join()
    assert calls == [(1, "a")] * 3


def test_an_error_of_a_looper_stops_all():
    coord = tf.train.Coordinator()

    class Failing(tf.train.LooperThread):
        def run_loop(self):
            raise ValueError("in the loop")

    Failing(coord, None).start()
    with pytest.raises(ValueError, match="in the loop"):
        coord.join()


def test_arguments_of_a_looper():
    with pytest.raises(ValueError, match="Coordinator"):
        tf.train.LooperThread(None, None)
    with pytest.raises(ValueError, match="target"):
        tf.train.LooperThread(tf.train.Coordinator(), None, args=(1,))
