"""Sessions that look after themselves: what they are made of, how they end, how they come back."""

import threading

import pytest

import thalweg as tf
from thalweg.summary.writer import FileWriterCache
from thalweg.train.wrapped_sessions import (
    CoordinatedSession,
    HookedSession,
    RecoverableSession,
    WrappedSession,
)


@pytest.fixture(autouse=True)
def graph():
    with tf.Graph().as_default() as graph:
        yield graph
    FileWriterCache.clear()


@pytest.fixture
def counting():
    step = tf.train.get_or_create_global_step()
    return step, tf.assign_add(step, 1)


class Hook(tf.train.SessionRunHook):
    """Notes its calls and asks for what it is told to."""

    def __init__(self, request=None):
        self.request, self.calls, self.values = request, [], []

    def begin(self):
        self.calls.append("begin")

    def after_create_session(self, session, coord):
        self.calls.append("created")

    def before_run(self, run_context):
        self.calls.append("before")
        self.context = run_context
        return self.request

    def after_run(self, run_context, run_values):
        self.calls.append("after")
        self.values.append(run_values)

    def end(self, session):
        self.calls.append("end")


class RaiseOnce(tf.train.SessionRunHook):
    """Raises before the n-th step, once."""

    def __init__(self, n, error):
        self.left, self.error = n, error

    def before_run(self, run_context):
        self.left -= 1
        if self.left == 0:
            raise self.error


# Scaffold


def test_scaffold_makes_what_is_missing(graph):
    tf.Variable(1, name="v")
    tf.Variable(2, name="w", collections=[tf.GraphKeys.LOCAL_VARIABLES])
    scaffold = tf.train.Scaffold()
    assert scaffold.init_op is None and scaffold.saver is None
    assert scaffold.finalize() is scaffold
    with pytest.raises(RuntimeError, match="Graph is finalized"):
        tf.constant(0)
    with tf.Session() as session:
        assert sorted(session.run(scaffold.ready_op)) == [b"v", b"w"]
        assert list(session.run(scaffold.ready_for_local_init_op)) == [b"v"]
        session.run(scaffold.init_op)
        session.run(scaffold.local_init_op)
        assert not session.run(scaffold.ready_op).size
    again = tf.train.Scaffold().finalize()
    assert again.init_op is scaffold.init_op and again.saver is scaffold.saver


def test_scaffold_takes_what_is_given():
    tf.Variable(1)
    calls = []
    saver = tf.train.Saver()
    first = tf.train.Scaffold(
        init_op=2, ready_op=5, saver=saver, init_fn=lambda *given: calls.append(given)
    )
    copied = tf.train.Scaffold(ready_op=6, copy_from_scaffold=first)
    assert (copied.init_op, copied.ready_op, copied.saver) == (2, 6, saver)
    copied.init_fn("session")
    assert calls == [(copied, "session")]
    with pytest.raises(TypeError, match="not a Scaffold"):
        tf.train.Scaffold(copy_from_scaffold=1)


def test_scaffold_wants_no_choice():
    tf.Variable(1)
    for _ in range(2):
        tf.add_to_collection(tf.GraphKeys.SAVERS, tf.train.Saver())
    with pytest.raises(RuntimeError, match="More than one item in the collection"):
        tf.train.Scaffold().finalize()


# Hooked


def test_hooks_fetch_and_feed():
    a, b = tf.placeholder(tf.int32, [], "a"), tf.constant(2, name="b")
    one = Hook(tf.train.SessionRunArgs(b, {a: 5}))
    other = Hook(tf.train.SessionRunArgs({"sum": a + b, "both": (a, [b])}))
    silent = Hook()
    with tf.Session() as session:
        run = HookedSession(session, [one, other, silent])
        assert run.run([a * 10]) == [50]
        assert one.values[-1].results == 2
        assert other.values[-1].results == {"sum": 7, "both": (5, [2])}
        assert silent.values[-1].results is None
        assert silent.context.session is session
        assert silent.context.original_args.fetches[0].op.type == "Mul"
        with pytest.raises(
            RuntimeError, match=r"Same tensor is fed by a SessionRunHook and user.*a:0"
        ):
            run.run(b, {a: 1})


@pytest.mark.parametrize("form", [lambda x: x, lambda x: [x, x], lambda x: (x,), lambda x: "x:0"])
def test_fetches_keep_their_form(form):
    x = tf.constant(3, name="x")
    hook = Hook(tf.train.SessionRunArgs([x]))
    with tf.Session() as session:
        actual = HookedSession(session, [hook]).run(form(x))
        assert actual == session.run(form(x)) and type(actual) is type(session.run(form(x)))
        assert hook.values[0].results == [3]


def test_two_hooks_may_not_feed_the_same():
    a = tf.placeholder(tf.int32, [])
    hooks = [Hook(tf.train.SessionRunArgs(None, {a: 1})) for _ in range(2)]
    with tf.Session() as session, pytest.raises(RuntimeError, match="fed by two hooks"):
        HookedSession(session, hooks).run(a)


def test_options_may_be_those_of_another_package():
    from tensorboard.compat.proto import config_pb2

    options = config_pb2.RunOptions(trace_level=config_pb2.RunOptions.FULL_TRACE)
    hook = Hook(tf.train.SessionRunArgs(None, options=options))
    with tf.Session() as session:
        HookedSession(session, [hook]).run(tf.constant(1) + 2)
    (seen,) = hook.values
    read = config_pb2.RunMetadata.FromString(seen.run_metadata.SerializeToString())
    assert len(read.step_stats.dev_stats) == len(seen.run_metadata.step_stats.dev_stats) > 0


def test_options_are_merged():
    x = tf.constant(1) + 2
    full = tf.RunOptions(trace_level=tf.RunOptions.FULL_TRACE)
    hooks = [Hook(tf.train.SessionRunArgs(None, options=full)), Hook()]
    with tf.Session() as session:
        run = HookedSession(session, hooks)
        mine = tf.RunOptions(timeout_in_ms=60000)
        run.run(x, options=mine)
        assert mine == tf.RunOptions(timeout_in_ms=60000), "what the caller gave stays as it is"
        seen = hooks[1].values[0]
        assert seen.options == tf.RunOptions(trace_level=3, timeout_in_ms=60000)
        assert seen.run_metadata.step_stats.dev_stats
        hooks[0].request = None
        run.run(x)
        assert hooks[1].values[1].options == tf.RunOptions()
        assert not hooks[1].values[1].run_metadata.step_stats.dev_stats


# Wrapped, coordinated, recoverable


def test_wrapped_session_passes_on():
    x = tf.constant(1)
    inner = tf.Session()
    wrapped = WrappedSession(WrappedSession(inner))
    assert wrapped.graph is inner.graph and wrapped.sess_str == inner.sess_str
    assert wrapped.run(x) == 1 and not wrapped.should_stop()
    wrapped.close()
    wrapped.close()
    assert wrapped.should_stop()


def test_coordinated_session_ends_with_its_threads():
    coord = tf.train.Coordinator()
    thread = threading.Thread(target=coord.wait_for_stop)
    coord.register_thread(thread)
    thread.start()
    session = CoordinatedSession(tf.Session(), coord)
    assert not session.should_stop()
    session.close()
    assert not thread.is_alive() and session.should_stop()


def test_a_lost_thread_is_why_the_step_failed():
    coord = tf.train.Coordinator()
    session = CoordinatedSession(tf.Session(), coord)
    tf.constant(1)
    coord.request_stop(tf.errors.UnavailableError(None, None, "gone"))
    with pytest.raises(tf.errors.UnavailableError, match="gone"):
        session.run("no such tensor")


class Mortal:
    """A session that is lost after some steps."""

    def __init__(self, steps):
        self.steps = steps

    def run(self, fetches):
        self.steps -= 1
        if self.steps < 0:
            raise tf.errors.AbortedError(None, None, "lost")
        return fetches

    def close(self):
        raise tf.errors.UnavailableError(None, None, "gone already")


class Creator(tf.train.SessionCreator):
    def __init__(self, *sessions):
        self.sessions = list(sessions)

    def create_session(self):
        result = self.sessions.pop(0)
        if isinstance(result, Exception):
            raise result
        return result


def test_recoverable_session_is_made_anew():
    down = tf.errors.UnavailableError(None, None, "still down")
    session = RecoverableSession(Creator(down, Mortal(1), down, Mortal(2)))
    assert [session.run(n) for n in range(3)] == [0, 1, 2]
    with pytest.raises(IndexError):
        session.run(3)


def test_creator_must_create():
    with pytest.raises(TypeError, match="does not say how"):
        tf.train.SessionCreator().create_session()


# Monitored


def test_calls_of_a_hook(counting):
    hook = Hook()
    with tf.train.MonitoredSession(hooks=[hook]) as session:
        session.run(counting[1])
    assert hook.calls == ["begin", "created", "before", "after", "end"]


def test_graph_is_closed_only_meanwhile(graph):
    v = tf.Variable(0)
    with tf.train.MonitoredSession() as session:
        assert session.run(v) == 0 and graph.finalized and session.graph is graph
    assert not graph.finalized and session.graph is None
    assert session.should_stop()
    for call in (lambda: session.run(v), session.close):
        with pytest.raises(RuntimeError, match="closed"):
            call()


@pytest.mark.parametrize("kind", [tf.train.MonitoredSession, tf.train.SingularMonitoredSession])
@pytest.mark.parametrize("error", [tf.errors.OutOfRangeError(None, None, "end"), StopIteration()])
def test_end_of_data_is_a_clean_end(counting, kind, error):
    hooks = [RaiseOnce(2, error), Hook()]
    with kind(hooks=hooks) as session:
        session.run(counting[1])
        session.run(counting[1])
        pytest.fail("the second step ends the block")
    assert hooks[1].calls[-1] == "end"


def test_errors_pass_and_end_no_hook(counting):
    hook = Hook()
    session = tf.train.MonitoredSession(hooks=[hook, RaiseOnce(2, RuntimeError("broken"))])
    with pytest.raises(RuntimeError, match="broken"), session:
        session.run(counting[1])
        session.run(counting[1])
    assert "end" not in hook.calls and session.should_stop()


def test_error_of_a_thread_comes_out_at_the_end(counting):
    session = tf.train.MonitoredSession()
    with pytest.raises(RuntimeError, match="a thread is broken"), session:
        session._coordinated_creator.coord.request_stop(RuntimeError("a thread is broken"))
        assert session.should_stop()


def test_queue_runners_run():
    queue = tf.FIFOQueue(10, tf.int32)
    tf.train.add_queue_runner(tf.train.QueueRunner(queue, [queue.enqueue(7)]))
    taken = queue.dequeue()
    with tf.train.MonitoredSession() as session:
        assert [session.run(taken) for _ in range(3)] == [7, 7, 7]


def test_lost_session_starts_from_the_beginning_without_checkpoints(counting):
    lost = RaiseOnce(3, tf.errors.AbortedError(None, None, "lost"))
    with tf.train.MonitoredSession(hooks=[lost]) as session:
        assert [session.run(counting[1]) for _ in range(4)] == [1, 2, 1, 2]


def test_lost_session_goes_on_from_the_checkpoint(counting, tmp_path):
    lost = RaiseOnce(3, tf.errors.UnavailableError(None, None, "lost"))
    with tf.train.MonitoredTrainingSession(
        checkpoint_dir=str(tmp_path), save_checkpoint_steps=1, hooks=[lost]
    ) as session:
        assert [session.run(counting[1]) for _ in range(4)] == [1, 2, 3, 4]


def test_singular_session_is_not_made_anew(counting):
    lost = RaiseOnce(1, tf.errors.AbortedError(None, None, "lost"))
    with tf.train.SingularMonitoredSession(hooks=[lost]) as session:
        with pytest.raises(tf.errors.AbortedError):
            session.run(counting[1])
        assert isinstance(session.raw_session(), tf.Session)
    assert session.raw_session() is None


def test_step_functions(counting):
    move = counting[1]
    hook = Hook()

    def twice(step_context):
        step_context.session.run(move)
        return step_context.run_with_hooks(move)

    def stop(step_context):
        step_context.request_stop()

    with tf.train.MonitoredSession(hooks=[hook]) as session:
        assert session.run_step_fn(twice) == 2
        with pytest.raises(ValueError, match="`step_fn` may either have one"):
            session.run_step_fn(lambda: None)
        session.run_step_fn(stop)
        pytest.fail("a stop leaves the block")
    assert hook.calls.count("before") == 1


def test_step_function_again_in_a_new_session(counting):
    lost = RaiseOnce(2, tf.errors.AbortedError(None, None, "lost"))
    sessions = []

    def step(step_context):
        sessions.append(step_context.session)
        return step_context.run_with_hooks(counting[1])

    with tf.train.MonitoredSession(hooks=[lost]) as session:
        assert [session.run_step_fn(step) for _ in range(2)] == [1, 1]
    assert len(sessions) == 3 and sessions[1] is not sessions[2]


# For training


def test_training_starts_where_it_left_off(counting, tmp_path):
    step, move = counting
    for expected in ([1, 2], [3, 4]):
        with tf.train.MonitoredTrainingSession(checkpoint_dir=str(tmp_path)) as session:
            assert [session.run(move) for _ in range(2)] == expected
    with tf.train.SingularMonitoredSession(checkpoint_dir=str(tmp_path)) as session:
        assert session.run(step) == 4
    first = str(tmp_path / "model.ckpt-2")
    creator = tf.train.ChiefSessionCreator(checkpoint_filename_with_path=first)
    with tf.train.MonitoredSession(creator) as session:
        assert session.run(step) == 2


def test_training_writes_summaries(counting, tmp_path):
    move = counting[1]
    tf.summary.scalar("twice", move * 2)
    with tf.train.MonitoredTrainingSession(
        checkpoint_dir=str(tmp_path / "model"),
        summary_dir=str(tmp_path / "board"),
        save_summaries_steps=2,
        log_step_count_steps=2,
    ) as session:
        for _ in range(3):
            session.run(move)
    (file,) = (tmp_path / "board").glob("events*")
    actual = [
        (event.step, value.tag)
        for event in tf.train.summary_iterator(str(file))
        for value in event.summary.value
    ]
    assert actual == [(1, "twice"), (3, "global_step/sec"), (3, "twice")]


def test_training_without_checkpoints(counting, tmp_path):
    move = counting[1]
    with tf.train.MonitoredTrainingSession(
        checkpoint_dir=str(tmp_path), save_checkpoint_secs=0
    ) as session:
        session.run(move)
    assert tf.train.latest_checkpoint(str(tmp_path)) is None


def test_worker_waits_for_the_chief(hand_clock):
    tf.Variable(1, name="v")
    with pytest.raises(tf.errors.DeadlineExceededError, match="initialized: v"):
        tf.train.MonitoredTrainingSession(is_chief=False, max_wait_secs=60)
    assert hand_clock.waits[:6] == [0.25, 0.5, 1, 2, 2, 2] and sum(hand_clock.waits) == 60


def test_worker_of_a_ready_model():
    v = tf.Variable(1, collections=[tf.GraphKeys.LOCAL_VARIABLES])
    with tf.train.MonitoredTrainingSession(is_chief=False) as session:
        assert session.run(v) == 1


def test_session_config(counting):
    config = tf.ConfigProto(device_count={"CPU": 2})
    with tf.train.MonitoredTrainingSession(config=config) as session:
        assert session.run(counting[1]) == 1
        assert any("CPU:1" in device for device in session._tf_sess().list_devices())


@pytest.mark.parametrize("hook", ["text", tf.train.SessionRunHook])
def test_a_hook_that_is_none(hook):
    with pytest.raises(TypeError, match="must be a SessionRunHook object, not"):
        tf.train.MonitoredSession(hooks=[hook])
