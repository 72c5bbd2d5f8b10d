"""Sessions: fetches, feeds, plans, state, partial runs, traces, failures."""

import collections
import json
import threading

import numpy as np
import pytest

import thalweg as tf
from thalweg.inspect.timeline import Timeline
from thalweg.ops.state import state


@pytest.fixture(autouse=True)
def graph():
    with tf.Graph().as_default() as fresh:
        yield fresh


def variable(value, name="v"):
    """A bare variable node and its initializer."""
    array = np.asarray(value, np.float32)
    ref = state.variable_op(tf.TensorShape(array.shape), tf.float32, name=name)
    return ref, state.assign(ref, array)


Pair = collections.namedtuple("Pair", "a b")


def test_fetch_structures():
    a, b = tf.constant(1.0, name="a"), tf.constant([2.0, 3.0], name="b")
    with tf.Session() as session:
        assert session.run(a) == 1.0
        assert session.run("a:0") == 1.0
        assert session.run("a") is None
        assert session.run(a.op) is None
        result = session.run({"x": [a, (b, a)], "y": Pair(a, b)})
        assert isinstance(result["y"], Pair)
        np.testing.assert_array_equal(result["x"][1][0], [2, 3])
        assert session.run([]) == []
        ordered = session.run(collections.OrderedDict([("q", a), ("p", b)]))
        assert list(ordered) == ["q", "p"]
        slices = tf.IndexedSlices(b, tf.constant([0, 1]))
        assert isinstance(session.run(slices), tf.IndexedSlicesValue)


@pytest.mark.parametrize("bad", [None, 3.5, object(), [None]])
def test_bad_fetches(bad):
    tf.constant(1.0)
    with tf.Session() as session, pytest.raises(TypeError, match="invalid type"):
        session.run(bad)


def test_fetch_of_unknown_name_and_other_graph():
    tf.constant(1.0)
    with tf.Graph().as_default():
        stranger = tf.constant(1.0)
    with tf.Session() as session:
        with pytest.raises(ValueError, match="cannot be interpreted as a Tensor"):
            session.run("nowhere:0")
        with pytest.raises(ValueError, match="not an element of this graph"):
            session.run(stranger)


def test_any_tensor_can_be_fed():
    a = tf.constant(2.0)
    b = a + 1.0
    c = b + 10.0
    with tf.Session() as session:
        assert session.run(c) == 13.0
        assert session.run(c, {b: 5.0}) == 15.0
        assert session.run([b, c], {b: 5.0}) == [5.0, 15.0]
        assert session.run(c, {b.name: 6.0}) == 16.0


def test_feed_errors_name_tensor_and_line():
    x = tf.placeholder(tf.float32, [None, 3], name="x")
    y = -x
    with tf.Session() as session:
        with pytest.raises(
            tf.errors.InvalidArgumentError, match=r"placeholder tensor 'x'(.|\n)*test_session\.py"
        ):
            session.run(y)
        with pytest.raises(ValueError, match=r"shape \(2,\) for Tensor 'x:0'.*test_session\.py"):
            session.run(y, {x: [1.0, 2.0]})
        with pytest.raises(TypeError, match=r"cannot be a tf\.Tensor"):
            session.run(y, {x: tf.zeros([1, 3])})
        with pytest.raises(ValueError, match="'x:0'"):
            session.run(y, {x: [["a", "b", "c"]]})
        with pytest.raises(TypeError, match="feed_dict key"):
            session.run(y, {1.5: 2})
        assert session.run(y, {x: np.ones((1, 3))}).tolist() == [[-1, -1, -1]]


def test_fetched_values_belong_to_the_caller():
    ref, init = variable([1.0, 2.0])
    x = tf.placeholder(tf.float32)
    fed = np.ones(2, np.float32)
    with tf.Session() as session:
        session.run(init)
        for fetch in (ref, tf.identity(ref), tf.constant([1.0, 2.0]), tf.identity(x)):
            session.run(fetch, {x: fed})[:] = 9
        assert session.run(ref).tolist() == [1, 2]
        assert fed.tolist() == [1, 1]


def test_state_is_per_session_and_survives_steps():
    ref, init = variable(1.0)
    add = state.assign_add(ref, 2.0)
    with tf.Session() as one, tf.Session() as two:
        one.run(init)
        one.run(add)
        assert one.run(ref) == 3.0
        with pytest.raises(
            tf.errors.FailedPreconditionError, match=r"uninitialized value v(.|\n)*test_session\.py"
        ):
            two.run(tf.identity(ref))
        two.run(init)
        assert two.run(ref) == 1.0


def test_a_value_read_before_an_update_stays():
    ref, init = variable([1.0])
    before = tf.identity(ref)
    with tf.control_dependencies([before]):
        update = state.assign_add(ref, [5.0])
    with tf.control_dependencies([update]):
        after = tf.identity(ref)
    with tf.Session() as session:
        session.run(init)
        one, two = session.run([before, after])
        assert (one.tolist(), two.tolist()) == ([1.0], [6.0])


def test_a_failed_step_leaves_variables_whole_and_the_session_usable():
    ref, init = variable([1.0, 2.0])
    x = tf.placeholder(tf.float32)
    update = state.assign_add(ref, x)
    with tf.Session() as session:
        session.run(init)
        with pytest.raises(tf.errors.InvalidArgumentError, match="AssignAdd"):
            session.run(update, {x: np.ones(3)})
        assert session.run(ref).tolist() == [1, 2]
        assert session.run(update, {x: np.ones(2)}).tolist() == [2, 3]


def test_feeding_a_variable_replaces_its_value_for_the_step():
    ref, init = variable(1.0)
    y = ref + 1.0
    with tf.Session() as session:
        session.run(init)
        assert session.run(y, {ref: 10.0}) == 11.0
        assert session.run(y) == 2.0


def test_only_what_fetches_need_runs():
    x = tf.placeholder(tf.float32)
    used, unused = tf.constant(1.0) + 1.0, -x
    with tf.Session() as session:
        assert session.run(used) == 2.0  # x is not fed
        with pytest.raises(tf.errors.InvalidArgumentError, match="placeholder"):
            session.run(unused)


def test_closed_and_empty_sessions():
    session = tf.Session()
    with pytest.raises(RuntimeError, match="empty"):
        session.run([])
    x = tf.constant(1.0)
    session.close()
    session.close()
    with pytest.raises(RuntimeError, match="closed"):
        session.run(x)


def test_eval_and_run_need_a_session():
    x = tf.constant(3.0)
    with pytest.raises(ValueError, match="no default session"):
        x.eval()
    with tf.Session():
        assert x.eval() == 3.0
        x.op.run()
    with tf.Session(graph=tf.Graph()) as other, pytest.raises(ValueError, match="another graph"):
        x.eval(session=other)


def test_interactive_session():
    session = tf.InteractiveSession()
    try:
        assert tf.constant(2.0).eval() == 2.0
    finally:
        session.close()
    assert tf.get_default_session() is None


def test_make_callable():
    x = tf.placeholder(tf.float32)
    y = x + 1.0
    with tf.Session() as session:
        double = session.make_callable([y, x], [x])
        assert double(2.0) == [3.0, 2.0]
        with pytest.raises(TypeError, match="takes 1 feeds"):
            double()


def test_a_callable_takes_options_as_run_does():
    x = tf.placeholder(tf.float32, name="x")
    options = tf.RunOptions(output_partition_graphs=True, trace_level=tf.RunOptions.FULL_TRACE)
    metadata = tf.RunMetadata()
    with tf.Session() as session:
        negative = session.make_callable(tf.negative(x, name="y"), [x], accept_options=True)
        assert negative(2.0) == -2.0
        assert negative(3.0, options=options, run_metadata=metadata) == -3.0
        with pytest.raises(TypeError, match="takes 1 feeds"):
            negative(options=options)
    (part,) = metadata.partition_graphs
    assert [node.name for node in part.node] == ["x", "y"]
    assert metadata.step_stats.dev_stats


def test_a_callable_fetches_what_it_was_made_for():
    x = tf.placeholder(tf.float32)
    fetches = [x + 1.0]
    with tf.Session() as session:
        run = session.make_callable(fetches, [x], accept_options=True)
        fetches.append(x)
        assert run(1.0) == run(1.0, options=tf.RunOptions()) == [2.0]


def test_partial_run():
    a, b = tf.placeholder(tf.float32, name="a"), tf.placeholder(tf.float32, name="b")
    r1 = a + 1.0
    r2 = r1 * b
    with tf.Session() as session:
        handle = session.partial_run_setup([r1, r2], [a, b])
        assert session.partial_run(handle, r1, {a: 1.0}) == 2.0
        with pytest.raises(tf.errors.InvalidArgumentError, match="already been fed"):
            session.partial_run(handle, r1, {a: 1.0})
        assert session.partial_run(handle, r2, {b: 10.0}) == 20.0
        with pytest.raises(tf.errors.InvalidArgumentError, match="setup"):
            session.partial_run(handle, r2)  # everything was fetched: the step is over
        with pytest.raises(tf.errors.InvalidArgumentError, match="setup"):
            session.partial_run("nonsense", r1)


def test_a_traced_step_names_the_users_lines():
    y = tf.constant(1.0) + 1.0
    metadata = tf.RunMetadata()
    options = tf.RunOptions(trace_level=tf.RunOptions.FULL_TRACE)
    with tf.Session() as session:
        session.run(y, options=options, run_metadata=metadata)
    (device,) = metadata.step_stats.dev_stats
    assert y.op.name in [node.node_name for node in device.node_stats]
    trace = Timeline(metadata.step_stats).generate_chrome_trace_format()
    events = json.loads(trace)["traceEvents"]
    assert any(__file__ in e.get("args", {}).get("line", "") for e in events)


def test_devices_are_checked_unless_placement_is_soft():
    with tf.device("/cpu:7"):
        x = tf.constant(1.0) + 1.0
    with (
        tf.Session() as session,
        pytest.raises(
            tf.errors.InvalidArgumentError, match=r"Cannot assign a device(.|\n)*test_session\.py"
        ),
    ):
        session.run(x)
    with tf.Session(config=tf.ConfigProto(allow_soft_placement=True)) as session:
        assert session.run(x) == 2.0


def test_a_task_that_is_not_here_is_an_error_whatever_its_device():
    with tf.device("/job:ps/task:0/gpu:0"):
        x = tf.constant(1.0) + 1.0
    with (
        tf.Session() as session,
        pytest.raises(tf.errors.InvalidArgumentError, match="Cannot assign a device to node"),
    ):
        session.run(x)


def test_the_graph_of_a_step_can_be_had():
    x, _ = tf.constant(1.0, name="x"), tf.constant(2.0, name="unused")
    options, metadata = tf.RunOptions(output_partition_graphs=True), tf.RunMetadata()
    with tf.Session() as session:
        session.run(tf.negative(x, name="y"), options=options, run_metadata=metadata)
    (part,) = metadata.partition_graphs
    assert {node.name for node in part.node} == {"x", "y"}


def test_a_kind_of_device_that_is_not_here_falls_back_with_a_warning(capsys):
    with tf.device("/gpu:3"):
        x = tf.constant(1.0) + 1.0
    with tf.Session() as session:
        assert session.run(x) == 2.0
    printed = capsys.readouterr().err
    assert printed.count("GPU:3") == 1
    assert "test_session.py" in printed


def test_a_step_that_takes_too_long_is_stopped():
    x = tf.placeholder(tf.float32)
    y = x
    for _ in range(100):
        y = tf.sin(y + x)
    config = tf.ConfigProto(operation_timeout_in_ms=1)
    with tf.Session(config=config) as session:
        step = session.make_callable(y, [x])
        with pytest.raises(tf.errors.DeadlineExceededError, match="1 ms"):
            for _ in range(1000):
                step(np.ones(100_000))
        with pytest.raises(tf.errors.DeadlineExceededError):
            step(np.ones(1_000_000))


def test_many_threads_share_one_session():
    ref, init = variable(np.zeros(100))
    x = tf.placeholder(tf.float32)
    update = state.assign_add(ref, x)
    with tf.Session() as session:
        session.run(init)

        def work():
            for _ in range(50):
                session.run(update.op, {x: np.ones(100)})

        threads = [threading.Thread(target=work) for _ in range(8)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert session.run(ref).tolist() == [400.0] * 100


def test_containers_and_reset():
    with tf.container("box"):
        ref, init = variable(1.0)
    session = tf.Session()
    session.run(init)
    tf.Session.reset("", ["box"])
    with pytest.raises(RuntimeError, match="closed"):
        session.run(ref)


def test_a_deep_graph_runs():
    x = tf.placeholder(tf.float32)
    y = x
    for _ in range(3000):
        y = y + 1.0
    (dx,) = tf.gradients(y, x)
    with tf.Session() as session:
        assert session.run([y, dx], {x: 1.0}) == [3001.0, 1.0]


def test_options_must_exist():
    with pytest.raises(ValueError, match="no_such_option"):
        tf.ConfigProto(no_such_option=1)
    with pytest.raises(TypeError, match="ConfigProto"):
        tf.Session(config="fast")
    with pytest.raises(TypeError, match=r"tf\.Graph"):
        tf.Session(graph="graph")


def test_what_the_reference_kernels_meet_on_the_way_to_an_error_is_no_warning() -> None:
    x, i = tf.placeholder(tf.float32, [3]), tf.placeholder(tf.int32, [1])
    y = tf.reciprocal(x) + tf.gather(x, i)
    zeros, outside = np.zeros(3, np.float32), np.array([7], np.int32)
    with tf.Session() as session:
        call = session.make_callable(y, [x, i])
        np.testing.assert_array_equal(call(zeros, np.array([1], np.int32)), [np.inf] * 3)
        with pytest.raises(tf.errors.InvalidArgumentError, match=r"indices\[0\] = 7"):
            call(zeros, outside)
        with pytest.raises(tf.errors.InvalidArgumentError, match=r"indices\[0\] = 7"):
            session.run(y, {x: zeros, i: outside})


def test_metadata_is_that_of_the_last_step() -> None:
    options, metadata = tf.RunOptions(output_partition_graphs=True), tf.RunMetadata()
    with tf.Graph().as_default(), tf.Session() as session:
        y = tf.negative(tf.placeholder_with_default(1.0, []))
        session.run(y, options=options, run_metadata=metadata)
        assert len(metadata.partition_graphs) == 1
        session.run(y, run_metadata=metadata)
        assert not metadata.partition_graphs
