"""`tf.io.gfile`: the later names of file functions."""

import pytest

import thalweg as tf

files = tf.io.gfile


def test_files_and_folders(tmp_path):
    top = str(tmp_path / "a")
    files.mkdir(top)
    files.makedirs(f"{top}/b/c")
    files.makedirs(f"{top}/b/c")
    with files.GFile(f"{top}/one.txt", "w") as file:
        file.write("text")
    files.copy(f"{top}/one.txt", f"{top}/two.txt")
    with pytest.raises(tf.errors.AlreadyExistsError):
        files.copy(f"{top}/one.txt", f"{top}/two.txt")
    files.rename(f"{top}/two.txt", f"{top}/b/two.txt")
    assert files.listdir(top) == ["b", "one.txt"]
    assert files.glob(f"{top}/*.txt") == [f"{top}/one.txt"]
    assert files.stat(f"{top}/one.txt").length == 4
    assert files.isdir(f"{top}/b") and not files.isdir(f"{top}/one.txt")
    rows = [(top, ["b"], ["one.txt"]), (f"{top}/b", ["c"], ["two.txt"]), (f"{top}/b/c", [], [])]
    assert list(files.walk(top)) == rows
    assert list(files.walk(top, topdown=False)) == rows[::-1]
    files.remove(f"{top}/one.txt")
    assert not files.exists(f"{top}/one.txt")
    files.rmtree(top)
    assert not files.exists(top)


def test_a_folder_that_cannot_be_read(tmp_path):
    seen = []
    assert list(files.walk(tmp_path / "none", onerror=seen.append)) == []
    assert [type(error) for error in seen] == [FileNotFoundError]
