"""The supervisor: its parts, its sessions, its threads."""

import threading

import pytest

import thalweg as tf


@pytest.fixture(autouse=True)
def graph():
    with tf.Graph().as_default() as graph:
        yield graph


def events(folder):
    (file,) = folder.glob("events*")
    return list(tf.train.summary_iterator(str(file)))


class Saved(tf.train.Saver):
    """A saver that tells when it has saved."""

    def __init__(self):
        super().__init__()
        self.done = threading.Event()

    def save(self, *args, **kwargs):
        try:
            return super().save(*args, **kwargs)
        finally:
            self.done.set()


def test_managed_session(tmp_path):
    v = tf.Variable(3, name="v")
    supervisor = tf.train.Supervisor(logdir=str(tmp_path), save_model_secs=0)
    with supervisor.managed_session() as session:
        assert session.run(v) == 3
        assert not supervisor.should_stop()
    assert supervisor.should_stop()
    with pytest.raises(RuntimeError, match="closed"):
        session.run(v)


def test_errors_pass_but_not_the_end_of_data():
    x = tf.constant(1)
    supervisor = tf.train.Supervisor()
    with pytest.raises(RuntimeError, match="failing here"), supervisor.managed_session():
        raise RuntimeError("failing here")
    with supervisor.managed_session() as session:
        assert session.run(x) == 1
        raise tf.errors.OutOfRangeError(None, None, "all done")
    assert supervisor.should_stop()


def test_error_while_preparing():
    tf.Variable(1, name="v")
    supervisor = tf.train.Supervisor(init_op=None, local_init_op=None)
    with pytest.raises(RuntimeError, match="not initialized"), supervisor.managed_session():
        pytest.fail("there is no session")


def test_services_save_and_count(tmp_path):
    v = tf.Variable(123, name="global_step")
    tf.summary.scalar("twice", v * 2)
    saver = Saved()
    supervisor = tf.train.Supervisor(logdir=str(tmp_path), saver=saver)
    with supervisor.managed_session() as session:
        saver.done.wait()
        assert session.run(supervisor.global_step) == 123
    assert tf.train.latest_checkpoint(str(tmp_path)) == f"{supervisor.save_path}-123"
    found = events(tmp_path)
    tags = {value.tag for event in found for value in event.summary.value}
    assert tags == {"twice", "global_step/sec"}
    statuses = [event.session_log.status for event in found if event.HasField("session_log")]
    log = tf.SessionLog
    assert (statuses[0], statuses[-1]) == (log.START, log.STOP) and log.CHECKPOINT in statuses
    assert found[1].graph_def and found[2].meta_graph_def
    assert (tmp_path / "graph.pbtxt").exists()


def test_a_full_disk_stops_no_training(tmp_path, monkeypatch):
    v = tf.Variable(1, name="v")
    saver = Saved()
    supervisor = tf.train.Supervisor(logdir=str(tmp_path), saver=saver)

    def full(*_, **__):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("thalweg.platform.files.checkpoint_files.save", full)
    with supervisor.managed_session() as session:
        saver.done.wait()
        assert session.run(v) == 1
    assert tf.train.latest_checkpoint(str(tmp_path)) is None


def test_starts_where_it_left_off(tmp_path):
    v = tf.Variable(1, name="v")
    move = v.assign_add(1)
    supervisor = tf.train.Supervisor(logdir=str(tmp_path), save_model_secs=0)
    with supervisor.managed_session() as session:
        session.run(move)
        supervisor.saver.save(session, supervisor.save_path)
    with supervisor.managed_session() as session:
        assert session.run(v) == 2


def test_summaries_of_the_program(tmp_path):
    summary = tf.summary.scalar("a", tf.constant(1.0))
    tf.Variable(7, name="global_step")
    supervisor = tf.train.Supervisor(logdir=str(tmp_path), summary_op=None)
    with supervisor.managed_session(start_standard_services=False) as session:
        supervisor.summary_computed(session, session.run(summary))
    written = [event for event in events(tmp_path) if event.HasField("summary")]
    assert [(event.step, event.summary.value[0].tag) for event in written] == [(7, "a")]
    without = tf.train.Supervisor(logdir=None, summary_op=None)
    with pytest.raises(RuntimeError, match="requires a summary writer"):
        without.summary_computed(None, b"")


def test_writer_may_stay_open(tmp_path):
    tf.constant(1)
    supervisor = tf.train.Supervisor(logdir=str(tmp_path))
    for _ in range(2):
        with supervisor.managed_session(close_summary_writer=False):
            pass
    supervisor.summary_writer.close()
    assert [bool(event.graph_def) for event in events(tmp_path)] == [False, True, False]


def test_parts_from_collections():
    v = tf.Variable(1, name="v")
    tf.add_to_collection(tf.GraphKeys.INIT_OP, v.initializer)
    supervisor = tf.train.Supervisor()
    assert supervisor.init_op is v.initializer
    assert supervisor.saver in tf.get_collection(tf.GraphKeys.SAVERS)
    assert supervisor.ready_op in tf.get_collection(tf.GraphKeys.READY_OP)
    assert supervisor.ready_for_local_init_op is None
    assert supervisor.summary_op is None and supervisor.global_step is None


def test_parts_given(graph):
    p = tf.placeholder(tf.int32, [])
    v = tf.Variable(p, name="v")
    w = tf.Variable(2, name="w")
    other = tf.Graph()
    with other.as_default():
        supervisor = tf.train.Supervisor(
            graph=graph,
            init_op=v.initializer,
            init_feed_dict={p: 4},
            init_fn=lambda session: session.run(w.initializer),
            local_init_op=None,
        )
        assert supervisor.prepare_or_wait_for_session("").run(v) == 4
        supervisor.stop()
    assert graph.finalized and not other.finalized


def test_global_step_must_be_an_integer():
    tf.Variable(1.5, name="global_step")
    assert tf.train.Supervisor().global_step is None


def test_only_the_chief_writes():
    tf.constant(1)
    supervisor = tf.train.Supervisor(is_chief=False, logdir="unused")
    assert supervisor.save_path is None and supervisor.summary_writer is None
    session = supervisor.prepare_or_wait_for_session()
    with pytest.raises(RuntimeError, match="Only chief"):
        supervisor.start_standard_services(session)
    with pytest.raises(RuntimeError, match="requires a summary writer"):
        supervisor.summary_computed(session, b"")
    supervisor.stop()


def test_replicas_place_their_variables():
    with tf.device("/job:ps"):
        tf.Variable(1, name="placed")
    tf.train.Supervisor(is_chief=False)
    with tf.Graph().as_default():
        tf.Variable(1, name="v")
        with pytest.raises(ValueError, match="must have their device set"):
            tf.train.Supervisor(is_chief=False)


def test_queue_runners_and_loops():
    queue = tf.FIFOQueue(10, tf.int32)
    tf.train.add_queue_runner(tf.train.QueueRunner(queue, [queue.enqueue(7)]))
    taken = queue.dequeue()
    rounds = []
    supervisor = tf.train.Supervisor()

    def one_round(session, more):
        rounds.append(session.run(taken) + more)
        if len(rounds) == 3:
            supervisor.request_stop()

    with supervisor.managed_session() as session:
        supervisor.loop(None, one_round, args=(session,), kwargs={"more": 1})
        supervisor.wait_for_stop()
    assert rounds == [8, 8, 8]


def test_error_of_a_loop_comes_out():
    tf.constant(1)
    supervisor = tf.train.Supervisor()

    def fail():
        raise ValueError("a loop is broken")

    with pytest.raises(ValueError, match="a loop is broken"), supervisor.managed_session():
        supervisor.Loop(None, fail)
        supervisor.WaitForStop()


def test_basic_train_loop_starts_again_when_aborted():
    v = tf.Variable(0)
    move = v.assign_add(1)
    supervisor = tf.train.Supervisor()
    seen = []

    def step(session, lost_at, stop_at):
        seen.append(int(session.run(move)))
        if len(seen) == lost_at:
            raise tf.errors.AbortedError(None, None, "lost")
        if len(seen) == stop_at:
            supervisor.request_stop()

    tf.train.basic_train_loop(supervisor, step, args=(2,), kwargs={"stop_at": 4})
    assert seen == [1, 2, 1, 2]
