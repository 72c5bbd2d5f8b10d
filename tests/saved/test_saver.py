"""`tf.train.Saver`: what it saves comes back, what it keeps stays, nothing is lost on the way."""

import errno
import os
import threading

import numpy as np
import pytest

import thalweg as tf
from thalweg.platform.files import checkpoint_files, durable
from thalweg.platform.files.safetensors import Piece
from thalweg.saved import saver as saver_module
from thalweg.saved.saver_builder import BaseSaverBuilder


@pytest.fixture(autouse=True)
def graph():
    with tf.Graph().as_default() as graph:
        yield graph


@pytest.fixture
def session(graph):
    with tf.Session() as session:
        yield session


def initialised(session):
    session.run(tf.global_variables_initializer())


def test_values_come_back(session, tmp_path):
    v, w = tf.Variable([1.0, 2.0], name="v"), tf.Variable("text", name="w")
    saver = tf.train.Saver()
    initialised(session)
    path = saver.save(session, str(tmp_path / "model"), global_step=3)
    assert path == str(tmp_path / "model-3")
    session.run([v.assign([0, 0]), w.assign("other")])
    saver.restore(session, path)
    assert session.run(w) == b"text"
    np.testing.assert_array_equal(session.run(v), [1, 2])


@pytest.mark.parametrize(
    "options", [{}, {"sharded": True}, {"write_version": tf.train.SaverDef.V1}]
)
def test_folders_are_made(session, tmp_path, options):
    v = tf.Variable(1.0, name="v")
    initialised(session)
    saver, folder = tf.train.Saver(**options), tmp_path / "new" / "dir"
    path = saver.save(session, str(folder / "model"), global_step=1, latest_filename="latest")
    assert tf.train.latest_checkpoint(str(folder), "latest") == path
    assert (folder / "model-1.meta").exists()
    session.run(v.assign(0))
    saver.restore(session, path)
    assert session.run(v) == 1


def test_folders_that_cannot_be_made(session, tmp_path, monkeypatch):
    tf.Variable(1.0, name="v")
    initialised(session)
    (tmp_path / "file").write_text("kept")
    for place in ("file/model", "file/dir/model"):
        with pytest.raises(ValueError, match=r"can't save.*file is not a directory"):
            tf.train.Saver().save(session, str(tmp_path / place))
    assert (tmp_path / "file").read_text() == "kept"

    def refused(*_, **__):
        raise PermissionError(errno.EACCES, "Permission denied")

    monkeypatch.setattr(os, "makedirs", refused)
    with pytest.raises(ValueError, match=r"can't save.*Permission denied"):
        tf.train.Saver().save(session, str(tmp_path / "closed" / "model"))


def test_refused_saves_make_no_folder(session, tmp_path):
    tf.Variable(1.0, name="v")
    initialised(session)
    with pytest.raises(ValueError, match="path components"):
        tf.train.Saver().save(session, str(tmp_path / "new" / "model"), latest_filename="a/b")
    with pytest.raises(TypeError, match="must be a Session"):
        tf.train.Saver().save(None, str(tmp_path / "new" / "model"))
    assert not (tmp_path / "new").exists()


def test_by_name_into_another_graph(session, tmp_path):
    tf.Variable(1.0, name="old/v")
    initialised(session)
    path = tf.train.Saver().save(session, str(tmp_path / "model"))
    with tf.Graph().as_default(), tf.Session() as other:
        v = tf.Variable(0.0, name="new")
        tf.train.Saver({"old/v": v}).restore(other, path)
        assert other.run(v) == 1


@pytest.mark.parametrize("sequentially", [False, True])
@pytest.mark.parametrize("builder", [None, BaseSaverBuilder()])
@pytest.mark.parametrize("sharded", [False, True])
def test_forms_of_building(session, tmp_path, sequentially, builder, sharded):
    with tf.device("/cpu:0"):
        v = tf.Variable(1.0, name="v")
    with tf.device("/job:localhost"):
        w = tf.Variable([2, 3], name="w")
    saver = tf.train.Saver(
        [v, w], restore_sequentially=sequentially, builder=builder, sharded=sharded
    )
    initialised(session)
    path = saver.save(session, str(tmp_path / "model"))
    session.run([v.assign(0), w.assign([0, 0])])
    saver.restore(session, path)
    np.testing.assert_array_equal(session.run(w), [2, 3])
    data = [name for name in os.listdir(tmp_path) if ".data-" in name]
    assert len(data) == (2 if sharded else 1)


def test_partitioned_variables(session, tmp_path):
    values = np.arange(12.0, dtype=np.float32).reshape(4, 3)
    tf.get_variable("p", [4, 3], initializer=values, partitioner=tf.fixed_size_partitioner(2))
    initialised(session)
    path = tf.train.Saver().save(session, str(tmp_path / "model"))
    assert tf.train.list_variables(path) == [("p", [4, 3])]
    np.testing.assert_array_equal(tf.train.load_variable(path, "p"), values)
    with tf.Graph().as_default(), tf.Session() as other:
        whole = tf.get_variable("p", [4, 3])
        tf.train.Saver().restore(other, path)
        np.testing.assert_array_equal(other.run(whole), values)


def test_the_step_may_be_a_variable_a_name_or_padded(session, tmp_path):
    step = tf.Variable(5, name="step")
    saver = tf.train.Saver(pad_step_number=True)
    initialised(session)
    for given in (step, "step:0", 5, np.int64(5), np.array([5]), tf.reshape(step, [1])):
        path = saver.save(session, str(tmp_path / "m"), global_step=given)
        assert path == str(tmp_path / "m-00000005")


def test_a_step_is_one_number(session, tmp_path):
    tf.Variable(1.0)
    saver = tf.train.Saver()
    initialised(session)
    with pytest.raises(ValueError, match=r"one number, not of shape \[2\]"):
        saver.save(session, str(tmp_path / "m"), global_step=tf.constant([1, 2]))


def test_relative_paths_in_the_state(session, tmp_path, monkeypatch):
    tf.Variable(1.0)
    initialised(session)
    monkeypatch.chdir(tmp_path)
    os.mkdir("train")
    tf.train.Saver(save_relative_paths=True).save(session, "train/model")
    assert 'model_checkpoint_path: "model"' in (tmp_path / "train/checkpoint").read_text()
    os.rename("train", "moved")
    assert tf.train.latest_checkpoint("moved") == "moved/model"


def test_only_the_last_are_kept(session, tmp_path):
    tf.Variable(1.0)
    saver = tf.train.Saver(max_to_keep=2)
    initialised(session)
    paths = [saver.save(session, str(tmp_path / "m"), global_step=i) for i in range(5)]
    assert saver.last_checkpoints == paths[-2:]
    assert [tf.train.checkpoint_exists(path) for path in paths] == [False] * 3 + [True] * 2
    assert len(os.listdir(tmp_path)) == 2 * 3 + 1
    fresh = tf.train.Saver(saver_def=saver.as_saver_def())
    fresh.recover_last_checkpoints(
        tf.train.get_checkpoint_state(tmp_path).all_model_checkpoint_paths
    )
    assert fresh.last_checkpoints == paths[-2:]


def test_one_in_n_hours_is_kept(session, tmp_path, monkeypatch):
    tf.Variable(1.0)
    now = [1000.0]
    monkeypatch.setattr("thalweg.saved.saver.time.time", lambda: now[0])
    saver = tf.train.Saver(max_to_keep=1, keep_checkpoint_every_n_hours=1)
    initialised(session)
    for hour in range(4):
        now[0] += 1800
        saver.save(session, str(tmp_path / "m"), global_step=hour)
    kept = [step for step in range(4) if tf.train.checkpoint_exists(str(tmp_path / f"m-{step}"))]
    assert kept == [2, 3]


@pytest.fixture
def killed(session, tmp_path, monkeypatch):
    """Two checkpoints where one is kept: the program was killed before it deleted the older."""
    tf.Variable(1.0)
    saver = tf.train.Saver(max_to_keep=1)
    initialised(session)
    first = saver.save(session, str(tmp_path / "m"), global_step=1)
    with monkeypatch.context() as patch:
        patch.setattr("thalweg.saved.saver._remove", lambda *_: None)
        last = saver.save(session, str(tmp_path / "m"), global_step=2)
    assert tf.train.checkpoint_exists(first)
    return first, last


def recovered(folder):
    saver = tf.train.Saver(max_to_keep=1)
    paths = tf.train.get_checkpoint_state(folder).all_model_checkpoint_paths
    saver.recover_last_checkpoints(paths)
    return saver.last_checkpoints


def test_what_a_killed_program_was_about_to_delete_goes_on_restart(killed, tmp_path):
    first, last = killed
    assert recovered(str(tmp_path)) == [last]
    assert not tf.train.checkpoint_exists(first)
    assert sorted({name.split(".")[0] for name in os.listdir(tmp_path)}) == ["checkpoint", "m-2"]
    assert recovered(str(tmp_path)) == [last]


def test_a_checkpoint_that_was_written_since_stays(killed, session, tmp_path):
    first, last = killed
    when = os.stat(tmp_path / "checkpoint").st_mtime + 100
    os.utime(f"{first}.index", (when, when))
    assert recovered(str(tmp_path)) == [last]
    assert tf.train.checkpoint_exists(first)


def test_a_restarted_session_keeps_no_more_than_it_should(killed, tmp_path):
    first, last = killed
    manager = tf.train.SessionManager()
    with manager.prepare_session(
        "", saver=tf.train.Saver(max_to_keep=1), checkpoint_dir=str(tmp_path)
    ):
        pass
    assert not tf.train.checkpoint_exists(first) and tf.train.checkpoint_exists(last)


def test_an_older_checkpoint_goes_only_after_the_state_names_the_new(
    session, tmp_path, monkeypatch
):
    tf.Variable(1.0)
    saver = tf.train.Saver(max_to_keep=1)
    initialised(session)
    first = saver.save(session, str(tmp_path / "m"), global_step=1)

    def stopped(*_):
        raise OSError(errno.EIO, "stopped")

    monkeypatch.setattr("thalweg.saved.checkpoint_state.replace_file", stopped)
    with pytest.raises(OSError, match="stopped"):
        saver.save(session, str(tmp_path / "m"), global_step=2)
    assert tf.train.latest_checkpoint(str(tmp_path)) == first


def test_a_full_disk_is_an_error_and_training_goes_on(session, tmp_path, monkeypatch):
    v = tf.Variable(1.0)
    saver = tf.train.Saver()
    initialised(session)
    first = saver.save(session, str(tmp_path / "m"), global_step=1)

    def full(*_):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    with monkeypatch.context() as patch:
        patch.setattr(os, "pwrite", full)
        with pytest.raises(tf.errors.ResourceExhaustedError, match="No space left"):
            saver.save(session, str(tmp_path / "m"), global_step=2)
    assert session.run(v.assign_add(1.0)) == 2
    assert tf.train.latest_checkpoint(str(tmp_path)) == first
    assert saver.save(session, str(tmp_path / "m"), global_step=3)
    assert not [name for name in os.listdir(tmp_path) if "m-2" in name]


def test_a_graph_without_a_form_on_disk_loses_only_that(session, tmp_path, monkeypatch):
    v = tf.Variable(1.0)
    saver = tf.train.Saver()
    initialised(session)

    def cannot(*_, **__):
        raise TypeError("it cannot be written to a GraphDef")

    monkeypatch.setattr("thalweg.saved.saver.export_meta_graph", cannot)
    path = saver.save(session, str(tmp_path / "m"))
    assert not os.path.exists(f"{path}.meta")
    session.run(v.assign(0))
    saver.restore(session, path)
    assert session.run(v) == 1


# In the background


def test_the_values_are_those_of_the_call(session, tmp_path, monkeypatch):
    """Steps that run while the thread waits to write do not change what it writes."""
    v = tf.Variable(tf.ones([300, 300]), name="v")
    more = v.assign_add(tf.ones([300, 300]))
    saver = tf.train.Saver()
    initialised(session)
    go, plain = threading.Event(), durable.write_stream

    def waiting(*arguments):
        go.wait()
        return plain(*arguments)

    monkeypatch.setattr(durable, "write_stream", waiting)
    path = saver.save(session, str(tmp_path / "m"), global_step=1, background=True)
    for _ in range(3):
        session.run(more)
    assert tf.train.latest_checkpoint(str(tmp_path)) is None
    go.set()
    saver.wait()
    assert tf.train.latest_checkpoint(str(tmp_path)) == path
    assert tf.train.load_variable(path, "v").max() == 1
    assert session.run(v).min() == 4


def test_sharded_in_the_background(session, tmp_path):
    with tf.device("/cpu:0"):
        v = tf.Variable(1.0, name="v")
    w = tf.Variable(2.0, name="w")
    saver = tf.train.Saver(sharded=True)
    initialised(session)
    path = saver.save(session, str(tmp_path / "m"), background=True)
    session.run([v.assign(0), w.assign(0)])
    saver.restore(session, path)  # waits
    assert session.run([v, w]) == [1, 2]
    assert not [name for name in os.listdir(tmp_path) if "_temp" in name]


def test_the_tasks_of_a_cluster_write_at_once(session, tmp_path, monkeypatch):
    """What other processes hold cannot be written later by this one."""
    tf.Variable(1.0, name="v")
    saver = tf.train.Saver(sharded=True)
    initialised(session)
    monkeypatch.setattr(type(session), "sess_str", "thalweg://localhost:2222")
    path = saver.save(session, str(tmp_path / "m"), background=True)
    assert not saver.is_saving
    assert tf.train.latest_checkpoint(str(tmp_path)) == path
    assert tf.train.load_variable(path, "v") == 1


def test_a_save_that_nobody_waits_for_leaves_time_to_others(session, tmp_path, monkeypatch):
    """Between blocks it rests, here for ever; whoever waits for it has it hurry."""
    monkeypatch.setattr(saver_module, "_SHARE", 1e-9)
    rests, wait = threading.Event(), threading.Event.wait

    def noted(event, seconds=None):
        if event is not rests and seconds is not None:
            rests.set()
        return wait(event, seconds)

    tf.Variable(tf.zeros([3 * durable.BLOCK // 4]), name="v")
    saver = tf.train.Saver()
    initialised(session)
    monkeypatch.setattr(threading.Event, "wait", noted)
    path = saver.save(session, str(tmp_path / "m"), background=True)
    rests.wait()
    assert saver.is_saving
    assert tf.train.latest_checkpoint(str(tmp_path)) is None
    saver.wait()
    assert not saver.is_saving
    assert tf.train.latest_checkpoint(str(tmp_path)) == path


def test_what_goes_wrong_is_raised_by_the_next_call(session, tmp_path, monkeypatch):
    tf.Variable(1.0)
    saver = tf.train.Saver()
    initialised(session)

    def full(*_):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    with monkeypatch.context() as patch:
        patch.setattr(os, "pwrite", full)
        saver.save(session, str(tmp_path / "m"), background=True)
        with pytest.raises(tf.errors.ResourceExhaustedError):
            saver.wait()
    saver.wait()
    assert saver.save(session, str(tmp_path / "m"))


# Errors


def test_nothing_to_save(session, tmp_path):
    with pytest.raises(ValueError, match="No variables to save"):
        tf.train.Saver()
    tf.constant(1)
    empty = tf.train.Saver(allow_empty=True)
    assert empty.save(session, str(tmp_path / "m")) is None
    empty.restore(session, str(tmp_path / "m"))


@pytest.mark.parametrize("error", [ValueError, tf.errors.NotFoundError])
def test_a_checkpoint_that_is_not_there(session, tmp_path, error):
    """TensorFlow 1.15 raises the one, 0.12 raised the other."""
    tf.Variable(1.0)
    with pytest.raises(error, match=r"not a valid checkpoint.*nowhere.*any matching files"):
        tf.train.Saver().restore(session, str(tmp_path / "nowhere"))


def test_arguments_are_checked(session, tmp_path):
    v = tf.Variable(1.0)
    saver = tf.train.Saver()
    with pytest.raises(TypeError, match="'sess' must be a Session"):
        saver.save(None, str(tmp_path / "m"))
    with pytest.raises(ValueError, match="path components"):
        saver.save(session, str(tmp_path / "m"), latest_filename="a/b")
    with pytest.raises(ValueError, match="None"):
        saver.restore(session, None)
    with pytest.raises(TypeError, match="not a Variable"):
        tf.train.Saver([tf.constant(1.0)])
    with pytest.raises(TypeError, match="not a string"):
        tf.train.Saver({1: v})
    with pytest.raises(TypeError, match="dict or a list"):
        tf.train.Saver("v")


def test_a_variable_of_another_shape(session, tmp_path):
    tf.Variable([1.0, 2.0], name="v")
    initialised(session)
    path = tf.train.Saver().save(session, str(tmp_path / "m"))
    with tf.Graph().as_default(), tf.Session() as other:
        v = tf.Variable([[0.0], [0.0]], name="v")
        with pytest.raises(tf.errors.InvalidArgumentError, match="shapes of both tensors"):
            tf.train.Saver().restore(other, path)
        tf.train.Saver(reshape=True).restore(other, path)
        np.testing.assert_array_equal(other.run(v), [[1], [2]])


def test_saver_defs(session, tmp_path):
    v = tf.Variable(1.0)
    saver = tf.train.Saver(max_to_keep=7, filename="here")
    assert saver.as_saver_def().max_to_keep == 7
    copied = tf.train.Saver.from_proto(saver.to_proto())
    initialised(session)
    path = copied.save(session, str(tmp_path / "m"))
    session.run(v.assign(0))
    saver.restore(session, path)
    assert session.run(v) == 1


# Readers


def test_readers(session, tmp_path):
    tf.Variable([[1, 2, 3]], name="v")
    tf.Variable(np.float64(1), name="w")
    initialised(session)
    path = tf.train.Saver().save(session, str(tmp_path / "m"))
    reader = tf.train.NewCheckpointReader(path)
    assert reader.get_variable_to_shape_map() == {"v": [1, 3], "w": []}
    assert reader.get_variable_to_dtype_map() == {"v": tf.int32, "w": tf.float64}
    assert reader.debug_string() == b"v (DT_INT32) [1,3]\nw (DT_DOUBLE) []"
    assert reader.has_tensor("v")
    assert not reader.has_tensor("nobody")
    assert tf.train.list_variables(str(tmp_path)) == [("v", [1, 3]), ("w", [])]
    assert tf.train.load_variable(str(tmp_path), "w:0") == 1
    value = reader.get_tensor("v")
    value[0, 0] = 9  # its own copy


def test_new_checkpoints_as_they_come(tmp_path):
    for step in range(2):
        prefix = str(tmp_path / f"m-{step}")
        checkpoint_files.save(prefix, [[Piece("v", np.ones(1))]])
        tf.train.update_checkpoint_state(str(tmp_path), prefix)
    assert list(tf.train.checkpoints_iterator(str(tmp_path), timeout=0)) == [prefix]


# Variables that start from a checkpoint


@pytest.fixture
def source(session, tmp_path):
    with tf.variable_scope("old"):
        tf.get_variable("a", initializer=[1.0, 2.0])
        tf.get_variable("b", initializer=3.0)
    initialised(session)
    path = tf.train.Saver().save(session, str(tmp_path / "m"))
    with tf.Graph().as_default():
        yield path


def test_from_a_scope(source):
    with tf.variable_scope("new"):
        a, b = tf.get_variable("a", [2]), tf.get_variable("b", [])
    tf.train.init_from_checkpoint(source, {"old/": "new/"})
    with tf.Session() as session:
        initialised(session)
        np.testing.assert_array_equal(session.run(a), [1, 2])
        assert session.run(b) == 3


def test_from_names_to_variables_and_parts(source):
    b = tf.get_variable("other", [])
    parts = tf.get_variable("parts", [2], partitioner=tf.fixed_size_partitioner(2))
    tf.train.init_from_checkpoint(source, {"old/b": b, "old/a": parts})
    with tf.Session() as session:
        initialised(session)
        assert session.run(b) == 3
        np.testing.assert_array_equal(session.run(parts.as_tensor()), [1, 2])


def test_what_does_not_fit(source):
    a = tf.get_variable("a", [3])
    with pytest.raises(ValueError, match="doesn't match with shape"):
        tf.train.init_from_checkpoint(source, {"old/a": a})
    with pytest.raises(ValueError, match="is not found in"):
        tf.train.init_from_checkpoint(source, {"nobody": a})
    with pytest.raises(ValueError, match="no variable"):
        tf.train.init_from_checkpoint(source, {"old/a": "nobody"})


def test_what_cannot_be_restored_says_what_to_do(session, tmp_path):
    tf.Variable([1.0, 2.0], name="v")
    initialised(session)
    path = tf.train.Saver().save(session, str(tmp_path / "model"))
    for value, name, kind, message in (
        ([1.0], "other", tf.errors.NotFoundError, r"list_variables(.|\n)*Key other not found"),
        ([1.0], "v", tf.errors.InvalidArgumentError, r"mismatch(.|\n)*v has \(1,\)"),
        ([1, 2], "v", tf.errors.InvalidArgumentError, r"mismatch(.|\n)*float32"),
    ):
        with tf.Graph().as_default(), tf.Session() as other:
            tf.Variable(value, name=name)
            with pytest.raises(kind, match=f"(?s)Restoring.*{message}.*test_saver.py") as raised:
                tf.train.Saver().restore(other, path)
            assert raised.value.op is not None


def test_a_meta_graph_that_is_none(tmp_path):
    path = tmp_path / "bad.meta"
    path.write_bytes(b"\xff\xferubbish")
    with pytest.raises(OSError, match="neither the bytes nor the text of a MetaGraphDef"):
        tf.train.import_meta_graph(str(path))


def test_threads_that_save_to_one_path(session, tmp_path):
    v = tf.Variable(np.arange(100.0))
    saver = tf.train.Saver(max_to_keep=1)
    initialised(session)

    def work():
        for _ in range(10):
            saver.save(session, str(tmp_path / "m"), write_meta_graph=False)

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    saver.restore(session, str(tmp_path / "m"))
    np.testing.assert_array_equal(session.run(v), np.arange(100.0))
    assert len(os.listdir(tmp_path)) == 3
