"""Remote files through fsspec: `tf.gfile` and readers of records."""

from __future__ import annotations

import builtins
from typing import Any

import numpy as np
import pytest

import thalweg as tf
from thalweg import errors

pytest.importorskip("fsspec")

ROOT = "memory://thalweg"


@pytest.fixture(autouse=True)
def folder() -> Any:
    yield
    if tf.gfile.Exists(ROOT):
        tf.gfile.DeleteRecursively(ROOT)


def test_files_and_folders():
    tf.gfile.MakeDirs(f"{ROOT}/a")
    with tf.gfile.GFile(f"{ROOT}/a/one.txt", "w") as file:
        file.write("first\nsecond\n")
    assert tf.gfile.GFile(f"{ROOT}/a/one.txt").readlines() == ["first\n", "second\n"]
    assert tf.gfile.IsDirectory(f"{ROOT}/a")
    assert tf.gfile.ListDirectory(f"{ROOT}/a") == ["one.txt"]
    assert tf.gfile.Glob(f"{ROOT}/a/*.txt") == ["memory:///thalweg/a/one.txt"]
    assert tf.gfile.Stat(f"{ROOT}/a/one.txt").length == 13
    tf.gfile.Copy(f"{ROOT}/a/one.txt", f"{ROOT}/a/two.txt")
    tf.gfile.Rename(f"{ROOT}/a/two.txt", f"{ROOT}/b.txt")
    assert not tf.gfile.Exists(f"{ROOT}/a/two.txt")
    (top, *_) = tf.gfile.Walk(ROOT)
    assert top[1:] == (["a"], ["b.txt"])
    tf.gfile.Remove(f"{ROOT}/b.txt")
    with pytest.raises(errors.NotFoundError):
        tf.gfile.Remove(f"{ROOT}/b.txt")
    with pytest.raises(errors.NotFoundError):
        tf.gfile.GFile(f"{ROOT}/none").read()


def test_copies_between_local_and_remote(tmp_path: Any):
    local = str(tmp_path / "local.txt")
    tf.gfile.GFile(local, "w").write("text")
    tf.gfile.Copy(local, f"{ROOT}/far.txt")
    tf.gfile.Copy(f"{ROOT}/far.txt", f"{local}2")
    assert tf.gfile.GFile(f"{local}2").read() == "text"


def test_records(tmp_path: Any):
    local, far = str(tmp_path / "rows"), f"{ROOT}/rows"
    with tf.python_io.TFRecordWriter(local) as writer:
        for k in range(5):
            writer.write(f"row {k}".encode())
    tf.gfile.Copy(local, far)
    assert list(tf.python_io.tf_record_iterator(far)) == [f"row {k}".encode() for k in range(5)]
    with tf.Graph().as_default(), tf.Session() as session:
        rows = tf.data.TFRecordDataset(far).batch(5).make_one_shot_iterator().get_next()
        np.testing.assert_array_equal(session.run(rows)[4], b"row 4")


def test_a_checkpoint():
    with tf.Graph().as_default(), tf.Session() as session:
        v = tf.Variable([1.0, 2.0], name="v")
        saver = tf.train.Saver()
        session.run(v.initializer)
        path = saver.save(session, f"{ROOT}/deep/model", global_step=3)
        assert path == f"{ROOT}/deep/model-3"
        session.run(v.assign([0.0, 0.0]))
        saver.restore(session, path)
        np.testing.assert_array_equal(session.run(v), [1, 2])
        with pytest.raises(errors.NotFoundError):
            saver.restore(session, f"{ROOT}/deep/other")


def test_the_error_without_fsspec_names_the_package(monkeypatch: Any):
    import importlib

    def absent(name: str, *_: Any) -> Any:
        raise ImportError(name)

    monkeypatch.setattr(importlib, "import_module", absent)
    with pytest.raises(ImportError, match=r"pip install 'thalweg\[fsspec\]'"):
        tf.gfile.Exists("s3://bucket/key")
    assert builtins.open is open


def test_an_unknown_scheme_is_an_error():
    with pytest.raises(errors.OpError, match="nothing"):
        tf.gfile.GFile("nothing://x").read()
