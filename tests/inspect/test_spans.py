"""Traces of what runs beside a step: input stages, queue runners and waits, on the step's clock."""

import inspect
import json
import threading

import pytest

import thalweg as tf
from thalweg.data import watching
from thalweg.inspect.timeline import Timeline
from thalweg.inspect.trace import OTHER_THREADS
from thalweg.ops.state import queue_state
from thalweg.platform import spans

FULL = tf.RunOptions(trace_level=tf.RunOptions.FULL_TRACE)


def traced(session, fetches):
    """The events of a step, by the names of their lanes: its own nodes are in the lane ""."""
    metadata = tf.RunMetadata()
    session.run(fetches, options=FULL, run_metadata=metadata)
    return by_lane(Timeline(metadata.step_stats).generate_chrome_trace_format())


def by_lane(trace):
    events = json.loads(trace)["traceEvents"]
    lanes = {(e["pid"], e["tid"]): e["args"]["name"] for e in events if e["name"] == "thread_name"}
    result = {}
    for event in events:
        if event["ph"] == "X":
            result.setdefault(lanes.get((event["pid"], event["tid"]), ""), []).append(event)
    return result


def line_of(text):
    lines, first = inspect.getsourcelines(inspect.currentframe().f_back)
    return f"{__file__}:{first + next(i for i, line in enumerate(lines) if text in line)}"


def waits(events):
    return [event for event in events if event["name"].startswith("waits")]


@pytest.fixture(autouse=True)
def graph():
    with tf.Graph().as_default():
        yield


@pytest.fixture
def asleep(monkeypatch):
    """Set when a thread blocks until its request to a queue has completed."""
    event, sleep = threading.Event(), queue_state.Sleeper.sleep

    def noted(sleeper, seconds):
        event.set()
        return sleep(sleeper, seconds)

    monkeypatch.setattr(queue_state.Sleeper, "sleep", noted)
    return event


def inside(inner, outer):
    begins = outer["ts"] <= inner["ts"]
    return begins and inner["ts"] + inner["dur"] <= outer["ts"] + outer["dur"] + 2  # rounded


def test_stages_are_nested_in_the_thread_that_runs_them():
    data = tf.data.Dataset.range(8).filter(lambda x: x > 2)
    data = data.batch(2)  # made here
    element = tf.data.make_one_shot_iterator(data).get_next()
    with tf.Session() as session:
        lanes = traced(session, element)
    stages = lanes[threading.current_thread().name]
    by_type = {event["name"]: event for event in stages}
    assert by_type.keys() == {"BatchDatasetV2", "FilterDataset", "RangeDataset"}
    assert inside(by_type["FilterDataset"], by_type["BatchDatasetV2"])
    assert inside(by_type["RangeDataset"], by_type["FilterDataset"])
    assert by_type["BatchDatasetV2"]["args"]["line"].startswith(line_of("data = data.batch(2)"))
    (pull,) = [event for event in lanes[""] if event["name"] == "IteratorGetNext"]
    assert inside(by_type["BatchDatasetV2"], pull)


def test_rows_are_shown_too():
    data = tf.data.Dataset.range(8).map(lambda x: x + 1).batch(4)
    element = tf.data.make_one_shot_iterator(data).get_next()
    with tf.Session() as session:
        stages = traced(session, element)[threading.current_thread().name]
    assert [event["name"] for event in stages] == ["BatchDatasetV2", "MapDataset", "RangeDataset"]


def test_a_step_does_not_wait_for_data_that_is_there():
    is_made = threading.Event()

    def numbers():
        yield from range(3)
        is_made.set()

    data = tf.data.Dataset.from_generator(numbers, tf.int64, []).prefetch(8)
    element = tf.data.make_one_shot_iterator(data).get_next()
    with tf.Session() as session:
        session.run(element)
        is_made.wait()
        while len(makers()) > 0:  # up to the end, which is prefetched as well
            makers()[0].join()
        lanes = traced(session, element)
    assert not waits(lanes[threading.current_thread().name])


def makers():
    return [t for t in threading.enumerate() if t.name.startswith("thalweg-data")]


def test_a_step_that_waits_for_data_says_so(monkeypatch):
    begun, go_on, enter = threading.Event(), threading.Event(), spans.BlockSpan.__enter__

    def numbers():
        yield 1
        begun.set()
        go_on.wait()
        yield 2

    data = tf.data.Dataset.from_generator(numbers, tf.int64, [])
    data = data.prefetch(1)  # ahead
    element = tf.data.make_one_shot_iterator(data).get_next()
    with tf.Session() as session:
        assert session.run(element) == 1
        begun.wait()

        def released(self):
            enter(self)
            go_on.set()

        monkeypatch.setattr(spans.BlockSpan, "__enter__", released)
        lanes = traced(session, element)
    assert waits(lanes[threading.current_thread().name])
    (generator,) = [name for name in lanes if "GeneratorDataset" in name]
    making = lanes[generator][0]
    assert making["name"] == "makes an element"  # begun before the step
    assert making["ts"] <= min(event["ts"] for event in lanes[""]) + 1
    assert making["args"]["line"].startswith(line_of("from_generator"))


def test_a_step_that_waits_for_a_queue_says_so(asleep):
    queue = tf.FIFOQueue(4, [tf.float32], shapes=[[]])
    fill, take = queue.enqueue(1.0), queue.dequeue()
    with tf.Session() as session:
        filler = threading.Thread(target=lambda: asleep.wait() and session.run(fill), name="filler")
        filler.start()
        lanes = traced(session, take)
        filler.join()
    (wait,) = waits(lanes[threading.current_thread().name])
    assert wait["name"] == "waits for an element"
    assert wait["args"]["line"].startswith(line_of("tf.FIFOQueue"))
    (dequeue,) = [event for event in lanes[""] if event["name"] == "QueueDequeue"]
    assert inside(wait, dequeue)


def test_what_puts_and_takes_elements_in_one_step_is_shown():
    queue = tf.FIFOQueue(4, [tf.float32], shapes=[[]])
    filled, doubled = queue.enqueue(1.0), queue.dequeue() * 2.0
    with tf.Session() as session:
        names = {event["name"] for event in traced(session, [filled, doubled])[""]}
    assert {"QueueEnqueue", "QueueDequeue", "Mul"} <= names


def test_queue_runners_are_on_the_timeline(asleep):
    queue = tf.FIFOQueue(2, [tf.float32], shapes=[[]])
    enqueue = queue.enqueue(tf.constant(1.0))
    tf.train.add_queue_runner(tf.train.QueueRunner(queue, [enqueue]))
    coordinator = tf.train.Coordinator()
    with tf.Session() as session:
        threads = tf.train.start_queue_runners(session, coordinator)
        asleep.wait()  # the queue is full
        asleep.clear()
        taken = tf.py_func(lambda x: asleep.wait() and x, [queue.dequeue()], tf.float32)
        lanes = traced(session, taken)  # which ends when it is full again
        coordinator.request_stop()
        coordinator.join(threads)
    (runner,) = [name for name in lanes if "QueueRunner" in name and "close" not in name]
    first, second, *_ = lanes[runner]  # both begun before
    assert (first["name"], second["name"]) == ("step", "waits for room")
    assert inside(second, first)
    steps = [event for event in lanes[runner] if event["name"] == "step"]
    assert steps
    line = line_of("queue.enqueue")
    assert all(event["args"]["line"].startswith(line) for event in steps)
    starts = [event["ts"] for event in lanes[runner]]
    assert starts == sorted(starts)


def test_nothing_is_recorded_when_no_step_is_traced():
    data = tf.data.Dataset.range(8).filter(lambda x: x > 2).batch(2)
    iterator = tf.data.make_initializable_iterator(data)
    element = iterator.get_next()
    with tf.Session() as session:
        session.run(iterator.initializer)
        traced(session, element)
        assert not spans.is_on()
        (batch,) = [f for f in live_flows() if type(f).__name__ == "BatchFlow"]
        assert not {"next", "rows"} & vars(batch).keys()
        metadata = tf.RunMetadata()
        session.run(element, run_metadata=metadata)
    assert not metadata.HasField("step_stats")


def live_flows():
    return [found for reference in list(watching._live) if (found := reference()) is not None]


def test_a_step_without_input_has_no_row_for_it():
    metadata = tf.RunMetadata()
    with tf.Session() as session:
        session.run(tf.constant(1.0) + 1.0, options=FULL, run_metadata=metadata)
    assert OTHER_THREADS not in [device.device for device in metadata.step_stats.dev_stats]


def test_two_recordings_at_once():
    node = tf.constant(1.0, name="subject").op
    with spans.Recorder() as first:
        with spans.Recorder() as second, spans.BlockSpan("waits", node):
            pass
        spans.record_span("works", node, 0)
    assert [span.what for span in first.spans] == ["works", "waits"]
    assert [span.what for span in second.spans] == ["waits"]
    assert first.spans[0].start > 0  # cut to the recording


def test_what_outlasts_a_recording_is_cut():
    node = tf.constant(1.0).op
    with spans.BlockSpan("waits", node), spans.Recorder() as recorder:
        pass
    (span,) = recorder.spans
    assert recorder.lane(span.thread) == threading.current_thread().name


def test_lanes_are_in_the_protobuf():
    data = tf.data.Dataset.range(8).batch(2)
    element = tf.data.make_one_shot_iterator(data).get_next()
    metadata = tf.RunMetadata()
    with tf.Session() as session:
        session.run(element, options=FULL, run_metadata=metadata)
    protos = pytest.importorskip("tensorboard.compat.proto.config_pb2")
    read = protos.RunMetadata.FromString(metadata.SerializeToString())
    beside = read.step_stats.dev_stats[-1]
    assert beside.device == OTHER_THREADS
    assert dict(beside.thread_names) == {0: threading.current_thread().name}
    ours, theirs = (Timeline(m.step_stats).generate_chrome_trace_format() for m in (metadata, read))
    assert by_lane(ours).keys() == by_lane(theirs).keys()
