"""Hooks one by one, around a plain session; time is turned by hand."""

import io
import json

import numpy as np
import pytest

import thalweg as tf
from thalweg.summary.writer import FileWriterCache
from thalweg.train.wrapped_sessions import HookedSession


@pytest.fixture(autouse=True)
def graph():
    with tf.Graph().as_default() as graph:
        yield graph
    FileWriterCache.clear()


@pytest.fixture
def counting():
    """The global step and an op that moves it."""
    step = tf.train.get_or_create_global_step()
    return step, tf.assign_add(step, 1)


class Writer:
    """Keeps what would go to an event file."""

    def __init__(self):
        self.summaries, self.logs, self.metadata = {}, [], []
        self.flushed = 0

    def add_summary(self, summary, step):
        proto = tf.Summary.FromString(summary) if isinstance(summary, bytes) else summary
        values = {value.tag: value.simple_value for value in proto.value}
        self.summaries.setdefault(step, {}).update(values)

    def add_session_log(self, log, step=None):
        self.logs.append((log.status, step))

    def flush(self):
        self.flushed += 1


def hooked(session, *hooks):
    """A session with hooks that have begun; the graph may still grow afterwards."""
    for hook in hooks:
        hook.begin()
    session.run(tf.global_variables_initializer())
    for hook in hooks:
        hook.after_create_session(session, None)
    return HookedSession(session, hooks)


def logged(caplog):
    return [record.getMessage() for record in caplog.records]


@pytest.fixture
def caplog_info(caplog):
    before = tf.logging.get_verbosity()
    tf.logging.set_verbosity(tf.logging.INFO)
    yield caplog
    tf.logging.set_verbosity(before)


# When


def test_timer_takes_seconds_or_steps():
    with pytest.raises(ValueError, match="Either every_secs or every_steps"):
        tf.train.SecondOrStepTimer()
    with pytest.raises(ValueError, match="both every_secs and every_steps"):
        tf.train.SecondOrStepTimer(every_secs=1, every_steps=1)


def test_timer_by_steps():
    timer = tf.train.SecondOrStepTimer(every_steps=3)
    assert timer.should_trigger_for_step(1)
    assert timer.update_last_triggered_step(1) == (None, None)
    assert [timer.should_trigger_for_step(step) for step in (1, 2, 3, 4)] == [False] * 3 + [True]
    assert timer.last_triggered_step() == 1
    timer.reset()
    assert timer.should_trigger_for_step(1)


def test_timer_by_seconds(hand_clock):
    timer = tf.train.SecondOrStepTimer(every_secs=1.0)
    timer.update_last_triggered_step(1)
    hand_clock.pass_time(0.5)
    assert not timer.should_trigger_for_step(2)
    hand_clock.pass_time(0.5)
    assert not timer.should_trigger_for_step(1), "a step does not trigger twice"
    assert timer.should_trigger_for_step(2)
    assert timer.update_last_triggered_step(5) == (1.0, 4)


# Stopping


def test_stop_takes_one_of_two():
    with pytest.raises(ValueError, match="One of num_steps or last_step"):
        tf.train.StopAtStepHook()
    with pytest.raises(ValueError, match="Only one of"):
        tf.train.StopAtStepHook(num_steps=1, last_step=2)


def test_hooks_need_a_global_step():
    with pytest.raises(RuntimeError, match="Global step should be created to use StopAtStepHook"):
        tf.train.StopAtStepHook(last_step=1).begin()


@pytest.mark.parametrize("options", [{"last_step": 3}, {"num_steps": 3}])
def test_stop_at_a_step(counting, options):
    with tf.Session() as session:
        run = hooked(session, tf.train.StopAtStepHook(**options))
        seen = []
        while not run.should_stop():
            seen.append(run.run(counting[1]))
        assert seen == [1, 2, 3]
        with pytest.raises(RuntimeError, match="even after should_stop"):
            run.run(counting[1])


def test_num_steps_count_from_where_training_starts(counting):
    step, move = counting
    hook = tf.train.StopAtStepHook(num_steps=2)
    with tf.Session() as session:
        hook.begin()
        session.run(tf.assign(step, 10))
        hook.after_create_session(session, None)
        session.run(tf.assign(step, 11))
        hook.after_create_session(session, None)  # a session that replaces a lost one
        run = HookedSession(session, [hook])
        assert run.run(move) == 12
        assert run.should_stop()


def test_nan_fails_or_stops():
    loss = tf.placeholder(tf.float32, [])
    with tf.Session() as session:
        run = HookedSession(session, [tf.train.NanTensorHook(loss)])
        same = tf.identity(loss)
        assert run.run(same, {loss: 1.0}) == 1.0
        with pytest.raises(tf.train.NanLossDuringTrainingError, match="NaN loss"):
            run.run(same, {loss: np.nan})
        run = HookedSession(session, [tf.train.NanTensorHook(loss, fail_on_nan_loss=False)])
        run.run(same, {loss: np.nan})
        assert run.should_stop()


def test_wait_for_a_step(counting, hand_clock, monkeypatch):
    step, move = counting
    with tf.Session() as session:
        run = hooked(session, tf.train.GlobalStepWaiterHook(wait_until_step=3))
        waits = []

        def wait(seconds):  # others train meanwhile
            waits.append(seconds)
            session.run(move)

        monkeypatch.setattr("thalweg.train.clock.wait", wait)
        assert run.run(step) == 3
        assert waits == [0.5] * 3
        run.run(move)
        assert len(waits) == 3


def test_no_wait_for_step_zero(counting):
    hook = tf.train.GlobalStepWaiterHook(wait_until_step=0)
    hook.begin()
    with tf.Session() as session:  # the step is not even initialised
        assert hook.before_run(tf.train.SessionRunContext(None, session)) is None


# Looking


def test_logging_takes_one_of_two():
    for options in ({}, {"every_n_iter": 1, "every_n_secs": 1}):
        with pytest.raises(ValueError, match="exactly one of"):
            tf.train.LoggingTensorHook(["t"], **options)
    with pytest.raises(ValueError, match="invalid every_n_iter=0"):
        tf.train.LoggingTensorHook(["t"], every_n_iter=0)


def test_logging_by_steps(caplog_info, hand_clock):
    t = tf.constant(42.0, name="foo")
    hook = tf.train.LoggingTensorHook({"value": t}, every_n_iter=2)
    with tf.Session() as session:
        run = hooked(session, hook)
        for _ in range(3):
            run.run(t)
            hand_clock.pass_time(0.25)
    assert logged(caplog_info) == ["value = 42.0", "value = 42.0 (0.500 sec)"]


def test_logging_by_names_and_format(caplog_info):
    tf.constant(1.0, name="foo")
    hook = tf.train.LoggingTensorHook(
        ["foo:0"], at_end=True, formatter=lambda values: f"<{values['foo:0']}>"
    )
    with tf.Session() as session:
        run = hooked(session, hook)
        run.run("foo:0")
        assert logged(caplog_info) == []
        hook.end(session)
    assert logged(caplog_info) == ["<1.0>"]


def test_logging_a_tensor_of_another_graph():
    with tf.Graph().as_default():
        other = tf.constant(1.0)
    with pytest.raises(ValueError, match="graph"):
        tf.train.LoggingTensorHook([other], every_n_iter=1).begin()


def test_step_counter(counting, hand_clock):
    writer = Writer()
    hook = tf.train.StepCounterHook(every_n_steps=10, summary_writer=writer)
    with tf.Session() as session:
        run = hooked(session, hook)
        for _ in range(21):
            hand_clock.pass_time(0.5)
            run.run(counting[1])
    assert writer.summaries == {11: {"global_step/sec": 2.0}, 21: {"global_step/sec": 2.0}}


def test_step_counter_warns_of_a_step_that_stands(counting, caplog_info):
    with tf.Session() as session:
        run = hooked(session, tf.train.StepCounterHook(every_n_secs=9, every_n_steps=None))
        for _ in range(10):
            run.run(counting[0])
    warnings = [text for text in logged(caplog_info) if "has not moved" in text]
    assert len(warnings) == 5


def test_feeds_from_a_function():
    x = tf.placeholder(tf.float32, [])
    values = iter([1.0, 2.0])
    with tf.Session() as session:
        run = HookedSession(session, [tf.train.FeedFnHook(lambda: {x: next(values)})])
        assert [run.run(x * 2), run.run(x * 2)] == [2.0, 4.0]


def test_final_ops(counting):
    x = tf.placeholder(tf.int64, [])
    hook = tf.train.FinalOpsHook([counting[0] + x], {x: 5})
    with tf.Session() as session:
        hooked(session, hook).run(counting[1])
        hook.end(session)
    assert hook.final_ops_values == [6]


# Writing


def test_summaries_by_steps(counting):
    writer = Writer()
    value = tf.assign_add(tf.Variable(0.0), 1.0)
    ops = [tf.summary.scalar("a", value), tf.summary.scalar("b", value * 2)]
    hook = tf.train.SummarySaverHook(save_steps=8, summary_writer=writer, summary_op=ops)
    with tf.Session() as session:
        run = hooked(session, hook)
        for _ in range(18):
            run.run(counting[1])
        hook.end(session)
    assert writer.summaries == {step: {"a": n, "b": 2 * n} for step, n in ((1, 1), (9, 2), (17, 3))}
    assert writer.logs == [(tf.SessionLog.START, 1)]
    assert writer.flushed == 1


def test_summaries_by_seconds(counting, hand_clock):
    writer = Writer()
    summary = tf.summary.scalar("a", tf.constant(1.0))
    hook = tf.train.SummarySaverHook(save_secs=1, summary_writer=writer, summary_op=summary)
    with tf.Session() as session:
        run = hooked(session, hook)
        for _ in range(6):
            run.run(counting[1])
            hand_clock.pass_time(0.5)
    assert list(writer.summaries) == [1, 3, 5]


def test_summaries_need_an_op_or_a_scaffold():
    for options in ({}, {"summary_op": 1, "scaffold": tf.train.Scaffold()}):
        with pytest.raises(ValueError, match="Exactly one of scaffold or summary_op"):
            tf.train.SummarySaverHook(save_steps=1, **options)


def test_summaries_on_a_full_disk(counting, caplog_info):
    writer = Writer()

    def fail(*_):
        raise OSError(28, "No space left on device")

    writer.add_summary = fail
    summary = tf.summary.scalar("a", tf.constant(1.0))
    hooks = [
        tf.train.SummarySaverHook(save_steps=1, summary_writer=writer, summary_op=summary),
        tf.train.StepCounterHook(every_n_steps=1, summary_writer=writer),
    ]
    with tf.Session() as session:
        run = hooked(session, *hooks)
        assert [run.run(counting[1]) for _ in range(3)] == [1, 2, 3]
    assert sum("training goes on" in text for text in logged(caplog_info)) == 5


class Listener(tf.train.CheckpointSaverListener):
    def __init__(self, stop_at=None):
        self.calls, self.stop_at = [], stop_at

    def begin(self):
        self.calls.append("begin")

    def before_save(self, session, global_step_value):
        self.calls.append(("before", global_step_value))

    def after_save(self, session, global_step_value):
        self.calls.append(("after", global_step_value))
        return global_step_value == self.stop_at

    def end(self, session, global_step_value):
        self.calls.append(("end", global_step_value))


def saved_steps(folder):
    return sorted(int(path.stem.rpartition("-")[2]) for path in folder.glob("*.index"))


def checkpointing(session, hook):
    """A session with a saver hook, and the scaffold closed, as monitored sessions do it."""
    hook.begin()
    scaffold = tf.train.Scaffold().finalize()
    session.run(scaffold.init_op)
    hook.after_create_session(session, None)
    return HookedSession(session, [hook])


@pytest.mark.parametrize("background", [False, True])
def test_checkpoints_by_steps(counting, tmp_path, background):
    hook = tf.train.CheckpointSaverHook(str(tmp_path), save_steps=2, background=background)
    with tf.Session() as session:
        run = checkpointing(session, hook)
        for _ in range(5):
            run.run(counting[1])
        hook.end(session)
    assert saved_steps(tmp_path) == [0, 2, 4, 5]
    assert tf.train.load_variable(str(tmp_path), "global_step") == 5
    assert (tmp_path / "graph.pbtxt").exists()


def test_checkpoints_by_seconds(counting, tmp_path, hand_clock):
    hook = tf.train.CheckpointSaverHook(str(tmp_path), save_secs=10)
    with tf.Session() as session:
        run = checkpointing(session, hook)
        for _ in range(4):
            hand_clock.pass_time(5)
            run.run(counting[1])
        hook.end(session)
    assert saved_steps(tmp_path) == [0, 2, 4]


def test_listeners_hear_of_checkpoints_and_may_stop(counting, tmp_path):
    listener = Listener(stop_at=2)
    hook = tf.train.CheckpointSaverHook(
        str(tmp_path), save_steps=2, listeners=[listener], background=True
    )
    with tf.Session() as session:
        run = checkpointing(session, hook)
        while not run.should_stop():
            run.run(counting[1])
        hook.end(session)
    around = [("before", 0), ("after", 0), ("before", 2), ("after", 2)]
    assert listener.calls == ["begin", *around, ("end", 2)]


def test_a_checkpoint_is_named_by_the_step_that_it_has(counting, tmp_path):
    """Other workers, or the chief's own thread, may update after it was due and before it is."""

    class Others(Listener):
        def before_save(self, session, global_step_value):
            super().before_save(session, global_step_value)
            session.run(counting[1])

    listener = Others()
    hook = tf.train.CheckpointSaverHook(str(tmp_path), save_steps=2, listeners=[listener])
    with tf.Session() as session:
        run = checkpointing(session, hook)
        run.run(counting[1])
    named = {
        int(p.stem.rpartition("-")[2]): str(p.with_suffix("")) for p in tmp_path.glob("*.index")
    }
    assert {step: tf.train.load_variable(p, "global_step") for step, p in named.items()} == {
        1: 1,
        3: 3,
    }
    assert listener.calls[1:] == [("before", 0), ("after", 1), ("before", 2), ("after", 3)]


def test_saver_of_the_program(counting, tmp_path):
    """A saver that knows no background is not asked to use one."""
    saves = []

    class Own(tf.train.Saver):
        def save(self, sess, save_path, global_step=None):
            saves.append(global_step)
            return super().save(sess, save_path, global_step)

    step, move = counting
    hook = tf.train.CheckpointSaverHook(
        str(tmp_path), save_steps=1, saver=Own([step]), background=True
    )
    with tf.Session() as session:
        checkpointing(session, hook).run(move)
        hook.end(session)
    assert saves == [0, 1]


def test_savers_in_the_collection(counting, tmp_path):
    hook = tf.train.CheckpointSaverHook(str(tmp_path), save_steps=1)
    hook.begin()
    with tf.Session() as session:
        session.run(tf.global_variables_initializer())
        with pytest.raises(RuntimeError, match="No items in collection"):
            hook.after_create_session(session, None)
        for _ in range(2):
            tf.add_to_collection(tf.GraphKeys.SAVERS, tf.train.Saver())
        with pytest.raises(RuntimeError, match="More than one item"):
            hook.after_create_session(session, None)


# Profiling and progress


def test_profiler_writes_chrome_traces(counting, tmp_path):
    x = tf.Variable(tf.ones([4, 4]))
    loss = tf.reduce_sum(tf.matmul(x, x), name="the_loss")
    hook = tf.train.ProfilerHook(save_steps=2, output_dir=str(tmp_path), show_memory=True)
    with tf.Session() as session:
        run = hooked(session, hook)
        for _ in range(5):
            run.run([counting[1], loss])
    assert sorted(path.name for path in tmp_path.glob("*.json")) == [
        "timeline-3.json",
        "timeline-5.json",
    ]
    events = json.loads((tmp_path / "timeline-3.json").read_text())["traceEvents"]
    by_name = {event["args"]["name"]: event["args"] for event in events if event["ph"] == "X"}
    assert "test_hooks.py" in by_name["the_loss"]["line"]
    FileWriterCache.get(str(tmp_path)).flush()
    (file,) = tmp_path.glob("events*")
    tags = [e.tagged_run_metadata.tag for e in tf.train.summary_iterator(str(file))]
    assert [tag for tag in tags if tag] == ["step_3", "step_5"]


def test_progress_shows_step_loss_and_time_left(counting, hand_clock):
    shown = io.StringIO()
    loss = tf.identity(tf.cast(counting[1], tf.float32) / 8)
    hook = tf.train.ProgressHook(loss, last_step=4, every_n_secs=1, file=shown, mininterval=0)
    with tf.Session() as session:
        run = hooked(session, hook)
        for _ in range(4):
            run.run(loss)
            hand_clock.pass_time(0.5)
        hook.end(session)
    text = shown.getvalue()
    assert "0/4" in text and "3/4" in text and "4/4" in text
    assert "2/4" not in text, "it is shown once a second"
    assert "loss=0.375" in text and "step/s" in text


def test_progress_goes_back_with_the_session(counting):
    step, move = counting
    shown = io.StringIO()
    hook = tf.train.ProgressHook(file=shown, every_n_secs=0, mininterval=0)
    back = tf.assign(step, 1)
    with tf.Session() as session:
        run = hooked(session, hook)
        for _ in range(3):
            run.run(move)
        session.run(back)
        hook.after_create_session(session, None)
        assert "1step" in shown.getvalue().rpartition("\r")[2]
        hook.end(session)
