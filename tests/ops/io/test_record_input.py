"""RecordInput: records read by background threads."""

import threading

import pytest

import thalweg as tf
from thalweg.ops.io.record_input import Buffer, RecordInput
from thalweg.platform.files.records import TFRecordWriter


@pytest.fixture(autouse=True)
def session():
    with tf.Graph().as_default(), tf.Session() as opened:
        yield opened


def write(folder, files, each, compression=None):
    names = []
    for file in range(files):
        with TFRecordWriter(str(folder / f"part-{file}"), compression) as writer:
            for record in range(each):
                names.append(f"{file}:{record}".encode())
                writer.write(names[-1])
    return sorted(names)


@pytest.mark.parametrize("parallelism", [1, 3])
def test_every_epoch_has_each_record_once(session, tmp_path, parallelism):
    records = write(tmp_path, files=3, each=4)
    batch = RecordInput(
        str(tmp_path / "part-*"), batch_size=4, buffer_size=5, parallelism=parallelism, seed=7
    ).get_yield_op()
    assert batch.shape == [4]
    for _ in range(3):
        epoch = [name for _ in range(3) for name in session.run(batch).tolist()]
        assert sorted(epoch) == records


def test_several_batches(session, tmp_path):
    records = write(tmp_path, files=1, each=6)
    lists = RecordInput(str(tmp_path / "part-0"), batch_size=2, batches=3).get_yield_op()
    assert [len(tensors) for tensors in lists] == [2, 2, 2]
    values = session.run(lists)
    assert sorted(name for batch in values for name in batch) == records


def test_compressed_files(session, tmp_path):
    records = write(tmp_path, files=1, each=3, compression="GZIP")
    given = RecordInput(str(tmp_path / "part-0"), batch_size=3, compression_type="GZIP")
    assert sorted(session.run(given.get_yield_op()).tolist()) == records


def test_no_files(session, tmp_path):
    batch = RecordInput(str(tmp_path / "none*")).get_yield_op()
    for _ in range(2):
        with pytest.raises(tf.errors.NotFoundError, match="Found no files"):
            session.run(batch)


def test_no_records(session, tmp_path):
    write(tmp_path, files=1, each=0)
    with pytest.raises(tf.errors.NotFoundError, match="Found no records"):
        session.run(RecordInput(str(tmp_path / "part-0")).get_yield_op())


def test_damaged_files(session, tmp_path):
    write(tmp_path, files=1, each=3)
    path = tmp_path / "part-0"
    path.write_bytes(path.read_bytes()[:-1])
    with pytest.raises(tf.errors.DataLossError, match="part-0"):
        session.run(RecordInput(str(path), batch_size=3).get_yield_op())


def test_readers_end_with_their_session(tmp_path):
    write(tmp_path, files=2, each=50)
    with tf.Graph().as_default(), tf.Session() as session:
        given = RecordInput(str(tmp_path / "part-*"), parallelism=2, name="dropped")
        session.run(given.get_yield_op())
        (reader,) = (t for t in threading.enumerate() if t.name == "RecordInput-dropped")
    del session
    reader.join()


def test_the_end_of_an_epoch_wakes_a_step_that_waits(session, tmp_path, monkeypatch):
    """The step asks for more records than the buffer gives away before the end of the epoch."""
    finish = Buffer.finish_epoch

    def finish_late(self):
        while not self._takes and not self.is_closed:
            threading.Event().wait(0.001)
        finish(self)

    monkeypatch.setattr(Buffer, "finish_epoch", finish_late)
    records = write(tmp_path, files=1, each=10)
    batch = RecordInput(str(tmp_path / "part-*"), batch_size=4, buffer_size=100).get_yield_op()
    options = tf.RunOptions(timeout_in_ms=60_000)
    found = [name for _ in range(2) for name in session.run(batch, options=options).tolist()]
    assert set(found) < set(records) and len(set(found)) == 8
