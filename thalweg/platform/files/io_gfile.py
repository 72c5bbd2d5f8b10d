"""`tf.io.gfile`: `tf.gfile` with the names of TensorFlow 2 and the parameters of Python's `os`."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator

from thalweg.platform.compat import as_str_any
from thalweg.platform.files import gfile
from thalweg.platform.files.gfile import FileStatistics, GFile, Path
from thalweg.public import public, publish_value

publish_value("io.gfile.GFile", GFile)


@public("io.gfile.exists")
def exists(path: Path) -> bool:
    """Whether `path` is a file or a folder.

    Args:
        path: a path.

    Returns:
        A bool.

    Example:
        >>> tf.io.gfile.exists("nothing.txt")
        False
    """
    return gfile.Exists(path)


@public("io.gfile.isdir")
def isdir(path: Path) -> bool:
    """Whether `path` is a folder."""
    return gfile.IsDirectory(path)


@public("io.gfile.glob")
def glob(pattern: Path | list[Path] | tuple[Path, ...]) -> list[str]:
    """The paths that match a pattern, or any of a list of patterns, sorted."""
    return gfile.Glob(pattern)


@public("io.gfile.listdir")
def listdir(path: Path) -> list[str]:
    """The names of the files and folders inside a folder."""
    return gfile.ListDirectory(path)


@public("io.gfile.mkdir")
def mkdir(path: Path) -> None:
    """Create a folder whose parent exists."""
    gfile.MkDir(path)


@public("io.gfile.makedirs")
def makedirs(path: Path) -> None:
    """Create a folder and all its parents; does nothing if it exists.

    Args:
        path: the path.

    Example:
        >>> tf.io.gfile.makedirs("logs/train")
        >>> tf.io.gfile.isdir("logs")
        True
    """
    gfile.MakeDirs(path)


@public("io.gfile.remove")
def remove(path: Path) -> None:
    """Delete a file.

    Args:
        path: the path of a file.

    Example:
        >>> open("old.txt", "w").close()
        >>> tf.io.gfile.remove("old.txt")
        >>> tf.io.gfile.exists("old.txt")
        False
    """
    gfile.Remove(path)


@public("io.gfile.rmtree")
def rmtree(path: Path) -> None:
    """Delete a folder with its content."""
    gfile.DeleteRecursively(path)


@public("io.gfile.copy")
def copy(src: Path, dst: Path, overwrite: bool = False) -> None:
    """Copy the content of a file; an existing target is an error unless `overwrite`."""
    gfile.Copy(src, dst, overwrite)


@public("io.gfile.rename")
def rename(src: Path, dst: Path, overwrite: bool = False) -> None:
    """Move a file or folder; an existing target is an error unless `overwrite`."""
    gfile.Rename(src, dst, overwrite)


@public("io.gfile.stat")
def stat(path: Path) -> FileStatistics:
    """The size, modification time and kind of a file or folder."""
    return gfile.Stat(path)


@public("io.gfile.walk")
def walk(
    top: Path, topdown: bool = True, onerror: Callable[[OSError], object] | None = None
) -> Iterator[tuple[str, list[str], list[str]]]:
    """(folder, names of its folders, names of its files) for `top` and each folder below it."""
    for folder, folders, files in os.walk(as_str_any(os.fspath(top)), topdown, onerror):
        folders.sort()
        yield folder, folders, sorted(files)
