"""Files and folders: reading and writing, the folder functions, and the class of each error."""

import os

import pytest

from thalweg import errors
from thalweg.platform.files import gfile


@pytest.fixture
def path(tmp_path):
    return str(tmp_path / "file.txt")


def write(path, content="testing"):
    with gfile.GFile(path, "w") as file:
        file.write(content)


def test_text_and_bytes(path):
    write(path, "één\n")
    assert gfile.GFile(path).read() == "één\n"
    assert gfile.Open(path, "rb").read() == "één\n".encode()
    assert gfile.FastGFile(path, "rb").read(2) == "é".encode()


def test_modes_append_and_truncate(path):
    write(path, "begin\n")
    with gfile.GFile(path, "a") as file:
        file.write("more")
        file.write(b"\nbytes")
    assert gfile.GFile(path).read() == "begin\nmore\nbytes"
    write(path, "new")
    assert gfile.GFile(path).size() == 3


def test_lines(path):
    lines = ["one\n", "two\n", "\n", "three"]
    write(path, "".join(lines))
    assert list(gfile.GFile(path)) == gfile.GFile(path).readlines() == lines
    file = gfile.GFile(path)
    assert (file.readline(), file.tell()) == ("one\n", 4)
    assert gfile.GFile(path, "rb").readline() == b"one\n"


def test_seek(path):
    write(path, "0123456789")
    file = gfile.GFile(path)
    file.seek(4)
    assert file.read(2) == "45"
    file.seek(1, whence=1)
    assert file.read(1) == "7"
    file.seek(-1, whence=2)
    assert file.read() == "9"
    file.seek(position=2)
    assert file.tell() == 2
    with pytest.raises(errors.InvalidArgumentError):
        file.seek(-1)
    with pytest.raises(errors.InvalidArgumentError):
        file.seek(0, whence=3)
    with pytest.raises(TypeError):
        file.seek()


def test_written_data_can_be_read_through_the_same_file(path):
    file = gfile.GFile(path, "w+")
    file.write("testing")
    assert file.read() == "testing"
    assert file.read() == ""
    file.close()
    assert file.read() == "testing"
    assert (file.name, file.mode) == (path, "w+")


def test_modes_are_enforced(path):
    with pytest.raises(errors.PermissionDeniedError):
        gfile.GFile(path, "r").write("a")
    with pytest.raises(errors.PermissionDeniedError):
        gfile.GFile(path, "w").read()
    with pytest.raises(errors.InvalidArgumentError):
        gfile.GFile(path, "x")


def test_opening_is_lazy_and_a_missing_file_is_not_found(path):
    file = gfile.GFile(path)
    with pytest.raises(errors.NotFoundError, match=r"file\.txt; No such file"):
        file.read()


def test_copy_and_rename(tmp_path, path):
    other = str(tmp_path / "other")
    write(path)
    gfile.Copy(path, other)
    with pytest.raises(errors.AlreadyExistsError):
        gfile.Copy(path, other)
    with pytest.raises(errors.AlreadyExistsError):
        gfile.Rename(path, other)
    write(path, "changed")
    gfile.Copy(path, other, overwrite=True)
    assert gfile.GFile(other).read() == "changed"
    gfile.Rename(path, other, overwrite=True)
    assert gfile.Exists(other) and not gfile.Exists(path)
    with pytest.raises(errors.NotFoundError):
        gfile.Copy(path, other, overwrite=True)


def test_folders(tmp_path):
    deep = str(tmp_path / "a" / "b")
    with pytest.raises(errors.NotFoundError):
        gfile.MkDir(deep)
    gfile.MakeDirs(deep)
    gfile.MakeDirs(deep)
    with pytest.raises(errors.AlreadyExistsError):
        gfile.MkDir(deep)
    write(os.path.join(deep, "f"))
    for folder in ("f", "f/g", "f/g/h"):
        with pytest.raises(errors.FailedPreconditionError, match="b/f is not a directory"):
            gfile.MakeDirs(os.path.join(deep, folder))
    assert gfile.IsDirectory(deep) and not gfile.IsDirectory(os.path.join(deep, "f"))
    assert gfile.ListDirectory(str(tmp_path / "a")) == ["b"]
    with pytest.raises(errors.FailedPreconditionError):
        gfile.GFile(deep).read()
    gfile.DeleteRecursively(str(tmp_path / "a"))
    assert not gfile.Exists(deep)
    for missing in (gfile.ListDirectory, gfile.DeleteRecursively, gfile.Remove, gfile.Stat):
        with pytest.raises(errors.NotFoundError):
            missing(deep)


def test_glob_takes_one_or_many_patterns(tmp_path):
    for name in ("b1", "a2", "a1"):
        write(str(tmp_path / name))
    pattern = str(tmp_path / "a*")
    assert gfile.Glob(pattern) == [str(tmp_path / "a1"), str(tmp_path / "a2")]
    assert len(gfile.Glob([pattern, str(tmp_path / "b*")])) == 3
    assert gfile.Glob(str(tmp_path / "none*")) == []


def test_walk_in_both_orders(tmp_path):
    gfile.MakeDirs(str(tmp_path / "a" / "b"))
    write(str(tmp_path / "a" / "f"))
    top, a, b = str(tmp_path), str(tmp_path / "a"), str(tmp_path / "a" / "b")
    rows = [(top, ["a"], []), (a, ["b"], ["f"]), (b, [], [])]
    assert list(gfile.Walk(top)) == rows
    assert list(gfile.Walk(top, in_order=False)) == rows[::-1]
    assert list(gfile.Walk(str(tmp_path / "none"))) == []


def test_stat(tmp_path, path):
    write(path)
    actual = gfile.Stat(path)
    assert (actual.length, actual.is_directory) == (7, False)
    assert actual.mtime_nsec == os.stat(path).st_mtime_ns
    assert gfile.Stat(str(tmp_path)).is_directory


def test_paths_may_be_path_objects_or_bytes(tmp_path):
    write(tmp_path / "p", "a")
    assert gfile.GFile(os.fsencode(tmp_path / "p")).read() == "a"
    gfile.Remove(tmp_path / "p")
    assert gfile.ListDirectory(tmp_path) == []
