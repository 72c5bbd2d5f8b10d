"""Event files and who writes them: what is added is read back, whatever happens meanwhile."""

import errno
import gc
import os
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import pytest

import thalweg as tf
from thalweg.platform import tf_logging
from thalweg.summary import events, tensorboard_logging
from thalweg.summary.event_queue import EventFileWriter, EventQueue
from thalweg.summary.events import EventsWriter
from thalweg.summary.writer import SummaryToEventTransformer


def files(folder: Path) -> list[Path]:
    return sorted(folder.glob("events.out.tfevents.*"))


def read(folder: Path) -> list[Any]:
    """The events of all files of a folder but the first of each, which tells the version."""
    result: list[Any] = []
    for path in files(folder):
        first, *rest = tf.train.summary_iterator(str(path))
        assert first.file_version == "brain.Event:2"
        result += rest
    return result


def scalar(tag: str, value: float = 1.0) -> Any:
    return tf.Summary(value=[tf.Summary.Value(tag=tag, simple_value=value)])


def steps(folder: Path) -> list[int]:
    return [event.step for event in read(folder)]


def small_graph() -> tf.Graph:
    with tf.Graph().as_default() as graph, tf.name_scope("outer"):
        tf.constant([12], name="douze")
    return graph


# The file


def test_the_name_of_the_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("socket.gethostname", lambda: "host")
    monkeypatch.setattr("time.time", lambda: 7.5)
    writers = [EventsWriter(f"{tmp_path}/events", ".suffix") for _ in range(2)]
    names = [
        "events.out.tfevents.0000000007.host.suffix",
        "events.out.tfevents.0000000008.host.suffix",
    ]
    assert [Path(writer.path).name for writer in writers] == names
    for writer in writers:
        writer.close()


def test_no_folder_is_the_current_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    tf.summary.FileWriter("").close()
    assert len(files(tmp_path)) == 1


def test_events_wait_until_they_are_flushed(tmp_path: Path) -> None:
    writer = EventsWriter(f"{tmp_path}/events")
    writer.write(events.event_bytes(events.SUMMARY, b"", 3))
    assert steps(tmp_path) == []
    writer.flush()
    assert steps(tmp_path) == [3]
    writer.write(events.event_bytes(events.GRAPH, bytes(1 << 16), 4))
    assert steps(tmp_path) == [3, 4]
    writer.close()


def test_a_removed_file_is_begun_anew(tmp_path: Path) -> None:
    writer = EventsWriter(f"{tmp_path}/events")
    os.remove(writer.path)
    writer.write(events.event_bytes(events.SUMMARY, b"", 3))
    writer.close()
    assert steps(tmp_path) == [3]


def test_a_relative_file_stays_where_it_is_when_the_program_moves(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    writer = EventsWriter("events")
    other = tmp_path / "other"
    other.mkdir()
    monkeypatch.chdir(other)
    writer.write(events.event_bytes(events.SUMMARY, b"", 3))
    writer.close()
    assert (steps(tmp_path), files(other)) == ([3], [])


def full_after(monkeypatch: pytest.MonkeyPatch, room: int) -> None:
    """A disk with so much room: the write that does not fit is cut, and the next one fails."""
    write, left = os.write, [room]

    def limited(file: int, data: Any) -> int:
        if not left[0]:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        written = write(file, data[: left[0]])
        left[0] -= written
        return written

    monkeypatch.setattr(os, "write", limited)


def test_a_full_disk_leaves_whole_records(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    writer = EventsWriter(f"{tmp_path}/events")
    with monkeypatch.context() as patched:
        full_after(patched, 10)
        writer.write(events.event_bytes(events.SUMMARY, b"", 1))
        with pytest.raises(tf.errors.DataLossError, match="1 events could not be written at byte"):
            writer.flush()
    writer.write(events.event_bytes(events.SUMMARY, b"", 2))
    writer.close()
    assert steps(tmp_path) == [2]


def test_a_record_that_is_no_event(tmp_path: Path) -> None:
    writer = EventsWriter(f"{tmp_path}/events")
    writer.write(b"\xff\xff")
    writer.close()
    with pytest.raises(tf.errors.DataLossError, match=r"tfevents.*no Event"):
        list(tf.train.summary_iterator(writer.path))


def test_a_file_cut_short_gives_what_is_whole(tmp_path: Path) -> None:
    writer = EventsWriter(f"{tmp_path}/events")
    for step in (1, 2):
        writer.write(events.event_bytes(events.SUMMARY, b"", step))
    writer.close()
    os.truncate(writer.path, os.path.getsize(writer.path) - 1)
    found = tf.train.summary_iterator(writer.path)
    assert [next(found).step for _ in range(2)] == [0, 1]
    with pytest.raises(tf.errors.DataLossError, match="tfevents"):
        next(found)


# The queue


class Held:
    """A writer that waits for leave, and can be told to fail."""

    def __init__(self) -> None:
        self.leave = threading.Event()
        self.taken = threading.Event()
        self.written: list[bytes] = []
        self.failure: Exception | None = None

    def write(self, event: bytes) -> None:
        self.taken.set()
        self.leave.wait()
        if self.failure is not None:
            raise self.failure
        self.written.append(event)

    def flush(self) -> None:
        pass

    def close(self) -> None:
        pass


def queue_of(writer: Any, limit: int) -> EventQueue:
    return EventQueue(writer, limit, flush_seconds=0)


def test_adding_waits_for_a_full_queue_only() -> None:
    writer = Held()
    queue = queue_of(writer, 2)
    queue.put(b"0")
    writer.taken.wait()
    queue.put(b"1")
    queue.put(b"2")
    late = threading.Thread(target=lambda: queue.put(b"3"))
    late.start()
    assert writer.written == []
    assert late.is_alive()
    writer.leave.set()
    late.join()
    queue.close()
    assert writer.written == [b"0", b"1", b"2", b"3"]


def test_a_queue_without_a_limit() -> None:
    writer = Held()
    queue = queue_of(writer, 0)
    for _ in range(100):
        queue.put(b"")
    writer.leave.set()
    queue.flush()
    assert len(writer.written) == 100
    queue.close()


def test_an_error_of_the_thread_is_raised_at_the_next_call_and_once() -> None:
    writer = Held()
    queue = queue_of(writer, 2)
    queue.put(b"0")
    writer.failure = RuntimeError("broken")
    writer.leave.set()
    with pytest.raises(RuntimeError, match="broken"):
        queue.flush()
    writer.failure = None
    queue.put(b"1")
    queue.close()
    assert writer.written == [b"1"]


def test_an_error_frees_those_that_wait() -> None:
    writer = Held()
    queue = queue_of(writer, 1)
    queue.put(b"0")
    writer.taken.wait()
    queue.put(b"1")
    writer.failure = RuntimeError("broken")
    writer.leave.set()
    with pytest.raises(RuntimeError, match="broken"):
        for _ in range(100):
            queue.put(b"2")
    writer.failure = None
    queue.close()


def test_many_threads_lose_nothing(tmp_path: Path) -> None:
    with tf.summary.FileWriter(tmp_path, max_queue=3) as writer:
        write = [
            threading.Thread(
                target=lambda i=i: [writer.add_summary(b"", i * 100 + j) for j in range(100)]
            )
            for i in range(8)
        ]
        for thread in write:
            thread.start()
        for thread in write:
            thread.join()
    assert sorted(steps(tmp_path)) == list(range(800))


# FileWriter


def test_everything_is_added(tmp_path: Path) -> None:
    graph = small_graph()
    writer = tf.summary.FileWriter(tmp_path)
    writer.add_session_log(tf.SessionLog(status=tf.SessionLog.START), 1)
    writer.add_summary(scalar("mee", 10.0), 10)
    writer.add_summary(scalar("boo", 20.0).SerializeToString(), 20)
    writer.add_graph(graph, global_step=30)
    writer.add_run_metadata(tf.RunMetadata(), "run", global_step=40)
    writer.add_meta_graph(tf.MetaGraphDef(), 50)
    writer.add_event(tf.Event(step=60, wall_time=1.0))
    writer.close()
    log, first, second, with_graph, metadata, meta_graph, event = read(tmp_path)
    assert log.session_log.status == tf.SessionLog.START
    assert first.summary == scalar("mee", 10.0)
    assert second.summary == scalar("boo", 20.0)
    assert tf.GraphDef.FromString(with_graph.graph_def) == graph.as_graph_def(add_shapes=True)
    assert metadata.tagged_run_metadata.tag == "run"
    assert meta_graph.WhichOneof("what") == "meta_graph_def"
    assert event.wall_time == 1
    assert [e.step for e in read(tmp_path)] == [1, 10, 20, 30, 40, 50, 60]


def test_the_graph_of_the_constructor(tmp_path: Path) -> None:
    graph = small_graph()
    written = graph.as_graph_def(add_shapes=True)
    for number, argument in enumerate((graph, written)):
        folder = tmp_path / str(number)
        tf.summary.FileWriter(str(folder), argument).close()
        first, second = read(folder)
        assert tf.GraphDef.FromString(first.graph_def) == written
        meta_graph = tf.MetaGraphDef.FromString(second.meta_graph_def)
        assert meta_graph.graph_def == written
        assert [op.name for op in meta_graph.meta_info_def.stripped_op_list.op] == ["Const"]


def test_graph_def_by_name(tmp_path: Path) -> None:
    written = small_graph().as_graph_def()
    tf.summary.FileWriter(tmp_path, graph_def=written).close()
    assert tf.GraphDef.FromString(read(tmp_path)[0].graph_def) == written


def test_one_graph_and_nothing_else(tmp_path: Path) -> None:
    graph = small_graph()
    with pytest.raises(ValueError, match="not both"):
        tf.summary.FileWriter(tmp_path, graph=graph, graph_def=graph.as_graph_def())
    with pytest.raises(TypeError, match="must be an instance of `Graph`"):
        tf.summary.FileWriter(tmp_path, "no graph")
    with pytest.raises(TypeError, match="must be type MetaGraphDef"):
        tf.summary.FileWriter(tmp_path).add_meta_graph(graph)


def test_a_tag_of_run_metadata_is_used_once(tmp_path: Path) -> None:
    with tf.summary.FileWriter(tmp_path) as writer:
        writer.add_run_metadata(tf.RunMetadata(), "t")
        with pytest.raises(ValueError, match="already used"):
            writer.add_run_metadata(tf.RunMetadata(), "t")


def test_metadata_are_written_once_for_a_tag_in_a_file(tmp_path: Path) -> None:
    with tf.Graph().as_default(), tf.Session() as session:
        text = session.run(tf.summary.merge([tf.summary.text("t", tf.constant("JJ"))]))
    writer = tf.summary.FileWriter(tmp_path)
    for _ in range(2):
        writer.add_summary(text)
    writer.close()
    writer.reopen()
    writer.add_summary(text)
    writer.close()
    found = [event.summary.value[0] for event in read(tmp_path)]
    assert [value.metadata.plugin_data.plugin_name for value in found] == ["text", "", "text"]
    assert {value.tensor.string_val[0] for value in found} == {b"JJ"}


def test_close_and_reopen(tmp_path: Path) -> None:
    writer = tf.summary.FileWriter(tmp_path, filename_suffix=".mine")
    writer.add_summary(b"", 1)
    writer.close()
    writer.close()
    writer.reopen()
    writer.reopen()
    writer.add_summary(b"", 2)
    writer.flush()
    assert len(files(tmp_path)) == 2
    assert all(path.name.endswith(".mine") for path in files(tmp_path))
    assert steps(tmp_path) == [1, 2]
    writer.close()
    assert writer.get_logdir() == str(tmp_path)


def test_a_closed_writer_warns_and_does_nothing(tmp_path: Path) -> None:
    writer = tf.summary.FileWriter(tmp_path)
    writer.close()
    for use in (lambda: writer.add_summary(b"", 1), writer.flush):
        with pytest.warns(UserWarning, match="closed FileWriter"):
            use()
    assert read(tmp_path) == []


def test_the_first_event_is_flushed_at_once_and_later_ones_are_not(tmp_path: Path) -> None:
    writer = EventFileWriter(tmp_path, flush_secs=1000)
    writer.add_event(tf.Event(step=1))
    queue: Any = writer._queue  # pyright: ignore[reportPrivateUsage] - its thread is waited for
    with queue._changed:
        queue._changed.wait_for(lambda: not (queue._waiting or queue._is_writing))
    assert steps(tmp_path) == [1]
    writer.add_event(tf.Event(step=2))
    with queue._changed:
        queue._changed.wait_for(lambda: not (queue._waiting or queue._is_writing))
    assert steps(tmp_path) == [1]
    writer.flush()
    assert steps(tmp_path) == [1, 2]
    writer.close()


def test_a_full_disk_is_told_by_the_next_call(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    writer = tf.summary.FileWriter(tmp_path)
    with monkeypatch.context() as patched:
        full_after(patched, 10)
        writer.add_summary(b"", 1)
        with pytest.raises(tf.errors.DataLossError, match="No space left"):
            writer.flush()
    writer.add_summary(b"", 2)
    writer.close()
    assert steps(tmp_path) == [2]


def test_what_nobody_closes_is_written(tmp_path: Path) -> None:
    writer = tf.summary.FileWriter(tmp_path, flush_secs=1000)
    for step in range(5):
        writer.add_summary(b"", step)
    del writer
    gc.collect()
    assert steps(tmp_path) == list(range(5))


PROGRAM = """
import os, sys, thalweg as tf
writer = tf.summary.FileWriter(sys.argv[1], flush_secs=1000)
for step in range(5):
    writer.add_summary(b"", step)
if sys.argv[2] == "fork" and os.fork() == 0:
    writer.add_summary(b"", 100)
    writer.close()
    os._exit(0)
if sys.argv[2] == "fork":
    os.wait()
"""


@pytest.mark.parametrize(("how", "expected"), [("plain", []), ("fork", [100])])
def test_the_end_of_a_program(tmp_path: Path, how: str, expected: list[int]) -> None:
    subprocess.run([sys.executable, "-c", PROGRAM, str(tmp_path), how], check=True)
    assert sorted(steps(tmp_path)) == [*range(5), *expected]


def test_the_writers_of_a_session_share_a_file(tmp_path: Path) -> None:
    with tf.Session(graph=tf.Graph()) as session:
        first, second = (tf.summary.FileWriter(tmp_path, session=session) for _ in range(2))
        first.add_summary(b"", 1)
        second.add_summary(b"", 2)
        first.flush()
        assert len(files(tmp_path)) == 1
        assert steps(tmp_path) == [1, 2]
        first.close()


def test_any_writer_of_events_gets_messages() -> None:
    class Kept:
        def __init__(self) -> None:
            self.events: list[Any] = []

        def add_event(self, event: Any) -> None:
            self.events.append(event)

    kept = Kept()
    SummaryToEventTransformer(kept).add_summary(scalar("a"), 3)
    assert (kept.events[0].summary, kept.events[0].step) == (scalar("a"), 3)


def test_old_writer(tmp_path: Path) -> None:
    writer = tf.train.SummaryWriter(str(tmp_path), small_graph())
    writer.close()
    assert len(read(tmp_path)) == 2


def test_cache(tmp_path: Path) -> None:
    get = tf.summary.FileWriterCache.get
    with small_graph().as_default():
        first, other, again = (get(str(tmp_path / name)) for name in "aba")
    assert first is again
    assert first is not other
    tf.summary.FileWriterCache.clear()
    assert len(read(tmp_path / "a")) == 2
    assert get(str(tmp_path / "a")) is not first
    tf.summary.FileWriterCache.clear()


# Messages in event files


@pytest.fixture
def logged(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    result: list[Any] = []
    monkeypatch.setattr(tf_logging, "log", lambda *arguments: result.append(arguments))
    monkeypatch.setattr(tensorboard_logging._Settings, "verbosity", tensorboard_logging.WARN)  # pyright: ignore[reportPrivateUsage] - put back afterwards
    monkeypatch.setattr(tensorboard_logging._Settings, "is_set", False)  # pyright: ignore[reportPrivateUsage] - put back afterwards
    monkeypatch.setattr(tensorboard_logging._Settings, "writer", None)  # pyright: ignore[reportPrivateUsage] - put back afterwards
    return result


def test_messages_go_to_the_log_and_the_file(tmp_path: Path, logged: list[Any]) -> None:
    with tf.summary.FileWriter(tmp_path) as writer:
        tensorboard_logging.set_summary_writer(writer)
        tensorboard_logging.error("for%s", "mat")
        tensorboard_logging.info("not in the file")
        tensorboard_logging.set_verbosity(tensorboard_logging.DEBUG)
        for write in ("debug", "info", "warn", "fatal"):
            getattr(tensorboard_logging, write)(write)
    messages = [event.log_message.message for event in read(tmp_path)]
    assert messages == ["format", "debug", "info", "warn", "fatal"]
    assert read(tmp_path)[0].log_message.level == tf.LogMessage.ERROR
    assert len(logged) == 6
    assert tensorboard_logging.get_verbosity() == "DEBUG"


def test_messages_need_a_writer_or_none(logged: list[Any]) -> None:
    with pytest.raises(RuntimeError, match="Must call set_summary_writer"):
        tensorboard_logging.warn("lost")
    tensorboard_logging.set_summary_writer(None)
    tensorboard_logging.warn("logged")
    assert len(logged) == 1
    for use in (
        tensorboard_logging.set_verbosity,
        lambda level: tensorboard_logging.log(level, ""),
    ):
        with pytest.raises(ValueError, match="not a valid tensorboard_logging level"):
            use("failure")


def test_embeddings(tmp_path: Path) -> None:
    projector = tf.contrib.tensorboard.plugins.projector
    config = projector.ProjectorConfig()
    config.embeddings.add(tensor_name="words", metadata_path="words.tsv")
    with tf.summary.FileWriter(tmp_path) as writer:
        projector.visualize_embeddings(writer, config)
    assert 'tensor_name: "words"' in (tmp_path / "projector_config.pbtxt").read_text()


def test_a_writer_that_cannot_be_closed_keeps_no_other_open(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    first, second = (tf.summary.FileWriterCache.get(f"{tmp_path}/{name}") for name in "ab")
    closed: list[str] = []

    def failing(name: str) -> None:
        closed.append(name)
        raise OSError(name)

    monkeypatch.setattr(first, "close", lambda: failing("a"))
    monkeypatch.setattr(second, "close", lambda: failing("b"))
    with pytest.raises(OSError, match="a"):
        tf.summary.FileWriterCache.clear()
    assert sorted(closed) == ["a", "b"]
    assert tf.summary.FileWriterCache.get(f"{tmp_path}/a") is not first
    tf.summary.FileWriterCache.clear()


def test_the_graph_of_an_event_file_says_its_ops_and_version(tmp_path: Path) -> None:
    with tf.Graph().as_default() as graph:
        tf.data.Dataset.range(2).map(lambda x: -x).make_initializable_iterator()
        tf.summary.FileWriter(tmp_path, graph).close()
    (path,) = tmp_path.iterdir()
    (content,) = (
        e.meta_graph_def for e in tf.train.summary_iterator(str(path)) if e.meta_graph_def
    )
    info = tf.MetaGraphDef.FromString(content).meta_info_def
    assert info.tensorflow_version == tf.__version__
    assert {op.name for op in info.stripped_op_list.op} >= {"MapDataset", "Neg"}
