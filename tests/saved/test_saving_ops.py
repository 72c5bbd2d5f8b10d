"""The ops of savers, run one by one."""

import numpy as np
import pytest

import thalweg as tf
from thalweg.ops.io import saving


def run(*fetches):
    with tf.Session() as session:
        return session.run(list(fetches))


@pytest.fixture(autouse=True)
def graph():
    with tf.Graph().as_default() as graph:
        yield graph


def test_save_and_restore(tmp_path):
    path = str(tmp_path / "model")
    run(saving.save_v2(path, ["a", "b"], ["", ""], [[1.0, 2.0], tf.constant("x")]))
    a, b = saving.restore_v2(path, ["a", "b"], ["", ""], [tf.float32, tf.string])
    values = run(a, b)
    np.testing.assert_array_equal(values[0], [1, 2])
    assert values[1] == b"x"


def test_slices(tmp_path):
    path = str(tmp_path / "model")
    parts = [[[1.0, 2.0]], [[3.0, 4.0]]]
    run(saving.save_v2(path, ["w", "w"], ["2 2 0,1:-", "2 2 1,1:0,2"], parts))
    whole, column = saving.restore_v2(path, ["w", "w"], ["", "2 2 -:1,1"], [tf.float32, tf.float32])
    assert whole.shape.ndims is None
    assert column.shape == [2, 1]
    values = run(whole, column)
    np.testing.assert_array_equal(values[0], [[1, 2], [3, 4]])
    np.testing.assert_array_equal(values[1], [[2], [4]])


def test_slices_must_fit(tmp_path):
    save = saving.save_v2(str(tmp_path / "model"), ["w"], ["2 2 0,1:-"], [[1.0, 2.0]])
    with pytest.raises(tf.errors.InvalidArgumentError, match="does not match the shape"):
        run(save)


def test_names_must_be_as_many_as_tensors(tmp_path):
    with pytest.raises(ValueError):
        saving.save_v2(str(tmp_path / "model"), ["a", "b"], ["", ""], [1.0])


def test_dtypes_must_be_as_saved(tmp_path):
    path = str(tmp_path / "model")
    run(saving.save_v2(path, ["a"], [""], [1.0]))
    with pytest.raises(tf.errors.InvalidArgumentError, match="has dtype float32"):
        run(*saving.restore_v2(path, ["a"], [""], [tf.int32]))


def test_merge(tmp_path):
    parts = [str(tmp_path / f"temp/part-{i}") for i in range(2)]
    saves = [saving.save_v2(part, [f"v{i}"], [""], [float(i)]) for i, part in enumerate(parts)]
    run(*saves)
    run(saving.merge_v2_checkpoints(parts, str(tmp_path / "model")))
    assert not (tmp_path / "temp").exists()
    assert tf.train.list_variables(str(tmp_path / "model")) == [("v0", []), ("v1", [])]


def test_merge_may_leave_the_folders(tmp_path):
    part = str(tmp_path / "temp/part")
    run(saving.save_v2(part, ["v"], [""], [1.0]))
    run(saving.merge_v2_checkpoints([part], str(tmp_path / "model"), delete_old_dirs=False))
    assert (tmp_path / "temp").is_dir()


def test_names_of_parts():
    name, spec = run(saving.sharded_filename("foo", 4, 100), saving.sharded_filespec("foo", 100))
    assert (name, spec) == (b"foo-00004-of-00100", b"foo-?????-of-00100")


def test_kinds_of_paths():
    match = saving.StaticRegexFullMatch(pattern="^s3://.*")(["s3://bucket", "/tmp/model"])
    assert run(match)[0].tolist() == [True, False]


def test_single_files(tmp_path):
    path = str(tmp_path / "alone")
    run(saving.Save()(path, ["a", "b"], [[1, 2], 3.0]))
    restored = saving.Restore(dt=tf.int32)(path, "a")
    part = saving.RestoreSlice(dt=tf.int32)(path, "a", "2 1,1")
    assert part.shape == [1]
    values = run(restored, part)
    np.testing.assert_array_equal(values[0], [1, 2])
    np.testing.assert_array_equal(values[1], [2])


def test_single_files_with_slices(tmp_path):
    for shard in range(2):
        path = str(tmp_path / f"alone-0000{shard}-of-00002")
        run(saving.save_slices(path, ["w"], [f"4 {2 * shard},2"], [[shard, shard]]))
    whole = saving.Restore(dt=tf.int32)(str(tmp_path / "alone-?????-of-00002"), "w")
    np.testing.assert_array_equal(run(whole)[0], [0, 0, 1, 1])
