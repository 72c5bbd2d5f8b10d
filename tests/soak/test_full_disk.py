"""A disk that fills up while a job saves: a clear error, old checkpoints intact, training goes on.

The calls that write a checkpoint fail one after the other, as they do on a full disk, and once the
system's own limit on the size of files makes them fail.
"""

import contextlib
import os
import resource

import numpy as np
import pytest

import thalweg as tf
from thalweg.summary.writer import FileWriterCache


@pytest.fixture(autouse=True)
def graph():
    with tf.Graph().as_default() as graph:
        yield graph
    FileWriterCache.clear()


def full(*_, **__):
    raise OSError(28, "No space left on device")


@contextlib.contextmanager
def failing(call):
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(os, call, full)
        yield


@contextlib.contextmanager
def limited(size):
    """No file may grow beyond a size: as near to a full disk as one comes without making one."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)


def training(folder):
    """A session that saves every two steps, and its step."""
    step = tf.train.get_or_create_global_step()
    weights = tf.Variable(tf.zeros([1000]), name="weights")
    with tf.control_dependencies([weights.assign_add(tf.ones([1000]))]):
        move = tf.assign_add(step, 1)
    session = tf.train.MonitoredTrainingSession(
        checkpoint_dir=str(folder), save_checkpoint_steps=2, save_summaries_steps=1
    )
    return session, move


def saved(folder):
    """Each readable checkpoint of a folder: its step and its weights."""
    prefixes = [str(path.with_suffix("")) for path in folder.glob("*.index")]
    result = {}
    for prefix in prefixes:
        result[int(tf.train.load_variable(prefix, "global_step"))] = np.unique(
            tf.train.load_variable(prefix, "weights")
        ).tolist()
    return result


def errors_of(caplog):
    return [record.getMessage() for record in caplog.records if record.levelname == "ERROR"]


WAYS = {
    "reserving": lambda: failing("posix_fallocate"),
    "writing": lambda: failing("pwrite"),
    "syncing": lambda: failing("fsync"),
    "renaming": lambda: failing("rename"),
    "limit": lambda: limited(2048),
}


@pytest.mark.parametrize("way", WAYS)
def test_training_goes_on(tmp_path, caplog, way):
    session, move = training(tmp_path)
    with session:
        steps = [int(session.run(move)) for _ in range(4)]
        with WAYS[way]():
            steps += [int(session.run(move)) for _ in range(5)]
            assert set(saved(tmp_path)) >= {0, 2}  # 4 was being written when the disk filled up
        steps += [int(session.run(move)) for _ in range(2)]
    assert steps == list(range(1, 12))
    assert all(weights == [float(step)] for step, weights in saved(tmp_path).items())
    assert tf.train.latest_checkpoint(str(tmp_path)).endswith("-11")
    assert not list(tmp_path.glob("*.partial-*"))
    warned = [text for text in errors_of(caplog) if "checkpoint" in text]
    assert warned and all("training goes on" in text for text in warned)
    reason = "File too large" if way == "limit" else "No space left on device"
    assert all(reason in text and str(tmp_path) in text for text in warned)


def test_the_last_checkpoint_must_be_written(tmp_path):
    session, move = training(tmp_path)
    with (
        pytest.raises(tf.errors.ResourceExhaustedError, match="No space left"),
        failing("fsync"),
        session,
    ):
        session.run(move)
    assert set(saved(tmp_path)) == {0}


def test_the_first_checkpoint_must_be_written(tmp_path):
    with failing("fsync"), pytest.raises(tf.errors.ResourceExhaustedError, match="No space left"):
        session, move = training(tmp_path)
        with session:
            session.run(move)


def test_a_lost_session_comes_back_on_a_full_disk(tmp_path):
    class Lost(tf.train.SessionRunHook):
        left = 3

        def before_run(self, run_context):
            self.left -= 1
            if self.left == 0:
                raise tf.errors.AbortedError(None, None, "lost")

    step = tf.train.get_or_create_global_step()
    move = tf.assign_add(step, 1)
    with tf.train.MonitoredTrainingSession(
        checkpoint_dir=str(tmp_path), save_checkpoint_steps=1, hooks=[Lost()]
    ) as session:
        seen = [int(session.run(move))]
        with failing("fsync"):
            seen += [int(session.run(move)) for _ in range(3)]
    # Step 1 was being written when the disk filled up, so either it or the beginning was left.
    assert seen in ([1, 2, 2, 3], [1, 2, 1, 2])
