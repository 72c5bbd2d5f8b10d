"""Sessions that are restored, initialised or waited for; time is turned by hand."""

import os

import pytest

import thalweg as tf


@pytest.fixture(autouse=True)
def graph():
    with tf.Graph().as_default() as graph:
        yield graph


def manager(**options):
    return tf.train.SessionManager(ready_op=tf.report_uninitialized_variables(), **options)


def checkpoint(folder, value):
    """Save a variable `v` of this value in a folder."""
    with tf.Graph().as_default(), tf.Session() as session:
        v = tf.Variable(value, name="v")
        session.run(v.initializer)
        return tf.train.Saver([v]).save(session, os.path.join(folder, "model"), global_step=7)


def local(initial):
    return tf.Variable(initial, collections=[tf.GraphKeys.LOCAL_VARIABLES], name="w")


def test_prepare_by_op_feed_and_function():
    p = tf.placeholder(tf.float32, [])
    v, w = tf.Variable(p, name="v"), tf.Variable(2.0, name="w")
    session = manager().prepare_session(
        "",
        init_op=v.initializer,
        init_feed_dict={p: 1.0},
        init_fn=lambda session: session.run(w.initializer),
    )
    assert session.run([v, w]) == [1.0, 2.0]


def test_prepare_from_a_checkpoint(tmp_path):
    checkpoint(tmp_path, 5)
    v = tf.Variable(1, name="v")
    saver = tf.train.Saver([v])
    session = manager().prepare_session("", saver=saver, checkpoint_dir=str(tmp_path))
    assert session.run(v) == 5
    assert saver.last_checkpoints == [str(tmp_path / "model-7")]


def test_prepare_from_a_file(tmp_path):
    path = checkpoint(tmp_path, 5)
    v = tf.Variable(1, name="v")
    session = manager().prepare_session(
        "", saver=tf.train.Saver([v]), checkpoint_filename_with_path=path
    )
    assert session.run(v) == 5


def test_folder_or_file_not_both(tmp_path):
    tf.Variable(1)
    with pytest.raises(ValueError, match="both checkpoint_dir and"):
        manager().prepare_session(
            "", saver=tf.train.Saver(), checkpoint_dir="a", checkpoint_filename_with_path="b"
        )


def test_prepare_waits_for_a_checkpoint(tmp_path, hand_clock, monkeypatch):
    v = tf.Variable(1, name="v")
    saver, made = tf.train.Saver([v]), manager(recovery_wait_secs=30)
    folder = str(tmp_path)
    with pytest.raises(RuntimeError, match="no init_op or init_fn or local_init_op was given"):
        made.prepare_session(
            "", saver=saver, checkpoint_dir=folder, wait_for_checkpoint=True, max_wait_secs=70
        )
    assert hand_clock.waits == [30, 30, 10]
    monkeypatch.setattr("thalweg.train.clock.wait", lambda _: checkpoint(tmp_path, 5))
    session = made.prepare_session(
        "", saver=saver, checkpoint_dir=folder, wait_for_checkpoint=True, max_wait_secs=70
    )
    assert session.run(v) == 5


def test_prepare_names_what_is_missing():
    v = tf.Variable(1, name="v")
    local(2)
    with pytest.raises(RuntimeError, match=r"did not make model ready.*not initialized: w"):
        manager().prepare_session("", init_op=v.initializer)


def test_local_init_waits_for_the_rest():
    v = tf.Variable(1, name="v")
    w = local(v)
    ready = tf.report_uninitialized_variables(tf.global_variables())
    made = manager(ready_for_local_init_op=ready, local_init_op=w.initializer)
    with pytest.raises(RuntimeError, match=r"ready for local_init.*not initialized: v"):
        made.prepare_session("", init_op=None)
    assert made.prepare_session("", init_op=v.initializer).run(w) == 1


def test_local_init_is_fed():
    p = tf.placeholder(tf.int32, [])
    w = local(p)
    made = manager(local_init_op=w.initializer, local_init_feed_dict={p: 4})
    assert made.prepare_session("").run(w) == 4


def test_local_init_op_must_be_there():
    with pytest.raises(ValueError, match="you must also pass a local_init_op"):
        tf.train.SessionManager(ready_for_local_init_op=tf.constant(1))


def test_recover(tmp_path):
    v = tf.Variable(1, name="v")
    saver, made = tf.train.Saver([v]), manager()
    session, is_ready = made.recover_session("", saver=saver, checkpoint_dir=str(tmp_path))
    assert not is_ready
    session.close()
    checkpoint(tmp_path, 5)
    session, is_ready = made.recover_session("", saver=saver, checkpoint_dir=str(tmp_path))
    assert is_ready and session.run(v) == 5


def test_recover_tells_what_a_checkpoint_leaves_out(tmp_path):
    checkpoint(tmp_path, 5)
    v = tf.Variable(1, name="v")
    local(2)
    session, is_ready = manager().recover_session(
        "", saver=tf.train.Saver([v]), checkpoint_dir=str(tmp_path)
    )
    assert not is_ready and session.run(v) == 5


def test_wait_for_a_session_until_time_is_up(hand_clock):
    tf.Variable(1, name="v")
    made = manager(recovery_wait_secs=1)
    with pytest.raises(
        tf.errors.DeadlineExceededError, match=r"after waiting 3 secs.*initialized: v"
    ):
        made.wait_for_session("", max_wait_secs=3)
    assert hand_clock.waits == [0.25, 0.5, 1, 1, 0.25]


def test_wait_for_a_session_that_is_ready():
    w = local(3)
    made = manager(local_init_op=w.initializer)
    assert made.wait_for_session("", max_wait_secs=None).run(w) == 3


def test_ready_op_that_gives_no_names():
    v = tf.Variable(1, name="v")
    session_manager = tf.train.SessionManager(ready_op=tf.assert_variables_initialized())
    assert session_manager.prepare_session("", init_op=v.initializer).run(v) == 1
    with pytest.raises(RuntimeError, match=r"Model not ready.*uninitialized value v"):
        session_manager.prepare_session("", init_fn=lambda session: None)


def test_ready_op_that_fails_otherwise():
    v = tf.Variable(1, name="v")

    def fail(*_):
        raise tf.errors.FailedPreconditionError(None, None, "the moon is full")

    session_manager = tf.train.SessionManager(ready_op=tf.py_func(fail, [v], tf.int32))
    with pytest.raises(tf.errors.OpError, match="the moon is full"):
        session_manager.prepare_session("", init_op=v.initializer)
