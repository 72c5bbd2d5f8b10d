"""`tf.gfile`: files and folders, local or on a remote file system (`remote.py`).

A `GFile` opens its file on the first read or write, reads text unless its mode has a "b", and has
separate positions for reading and writing. Errors of the operating system become `tf.errors`.
"""

import errno
import glob
import os
import shutil
from collections.abc import Callable, Generator, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import IO, Any, Final, Self

from thalweg import errors
from thalweg.platform.compat import as_bytes, as_str_any, as_text
from thalweg.platform.files import remote
from thalweg.public import public

Path = str | bytes | os.PathLike[str]

_MODES: Final = ("r", "w", "a", "r+", "w+", "a+")

ErrorClasses = dict[int | None, Callable[[None, None, str], errors.OpError]]
#: The errors of reads and writes by number.
ERROR_CLASSES: Final[ErrorClasses] = {
    errno.ENOENT: errors.NotFoundError,
    errno.EACCES: errors.PermissionDeniedError,
    errno.EPERM: errors.PermissionDeniedError,
    errno.EROFS: errors.PermissionDeniedError,
    errno.ENOTDIR: errors.FailedPreconditionError,
    errno.EISDIR: errors.FailedPreconditionError,
    errno.ENOSPC: errors.ResourceExhaustedError,
    errno.EMFILE: errors.ResourceExhaustedError,
}
_ERROR_CLASSES: Final[ErrorClasses] = {
    **ERROR_CLASSES,
    errno.EEXIST: errors.AlreadyExistsError,
    errno.ENOTEMPTY: errors.FailedPreconditionError,
    errno.EINVAL: errors.InvalidArgumentError,
}


@dataclass(frozen=True)
class FileStatistics:
    """The size in bytes, the modification time, and whether the path is a folder."""

    length: int
    mtime_nsec: int
    is_directory: bool


@public("gfile.GFile", "gfile.Open")
class GFile:
    r"""A file that is opened on first use.

    Args:
        name: the path.
        mode: "r", "w" or "a", with "+" to read and write, with "b" for bytes instead of text.

    Raises:
        NotFoundError: from the first use, where there is no such file to read.

    Example:
        >>> with tf.gfile.GFile("notes.txt", "w") as f:
        ...     f.write("one\ntwo\n")
        >>> tf.gfile.GFile("notes.txt").readlines()
        ['one\n', 'two\n']
    """

    def __init__(self, name: Path, mode: str = "r") -> None:
        self._binary = "b" in mode
        self._mode = mode.replace("b", "")
        if self._mode not in _MODES:
            raise errors.invalid(f"mode {mode!r} is not one of {_MODES}")
        self._name = name
        self._reader: IO[bytes] | None = None
        self._writer: IO[bytes] | None = None

    @property
    def name(self) -> Path:
        """The name that the file was created with."""
        return self._name

    @property
    def mode(self) -> str:
        """The mode without its "b"."""
        return self._mode

    def size(self) -> int:
        """The size of the file in bytes."""
        return Stat(self._name).length

    def read(self, n: int = -1) -> Any:
        """`n` bytes, or all that is left: bytes where the mode has a "b", else text."""
        return self._decode(self._open_reader().read(n))

    def readline(self) -> Any:
        """The next line with its line end; empty at the end of the file."""
        return self._decode(self._open_reader().readline())

    def readlines(self) -> list[Any]:
        """All lines that are left."""
        return list(self)

    def write(self, file_content: str | bytes) -> None:
        """Append text or bytes to what was written."""
        content = as_bytes(file_content)
        with os_errors(self._name):
            self._open_writer().write(content)

    def seek(self, offset: int | None = None, whence: int = 0, position: int | None = None) -> None:
        """Set the position to `offset` from the start (`whence` 0), here (1) or the end (2)."""
        target = offset if position is None else position
        if target is None:
            raise TypeError("seek() needs an offset.")
        if whence not in (0, 1, 2):
            raise errors.invalid(f"whence must be 0, 1 or 2, not {whence!r}")
        reader = self._open_reader()
        start = (0, reader.tell(), self.size())[whence]
        if start + target < 0:
            raise errors.invalid(f"seek to {start + target}, before 0")
        reader.seek(start + target)

    def seekable(self) -> bool:
        """Whether `seek` works: always."""
        return True

    def tell(self) -> int:
        """The read position."""
        return self._open_reader().tell()

    def flush(self) -> None:
        """Pass written data to the operating system."""
        if self._writer:
            with os_errors(self._name):
                self._writer.flush()

    def close(self) -> None:
        """Flush and close; a later read opens the file again from its start."""
        for stream in filter(None, (self._reader, self._writer)):
            with os_errors(self._name):
                stream.close()
        self._reader = self._writer = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __iter__(self) -> Iterator[Any]:
        return self

    def __next__(self) -> Any:
        line = self.readline()
        if not line:
            raise StopIteration
        return line

    def __del__(self) -> None:
        if hasattr(self, "_writer"):
            self.close()

    def _decode(self, content: bytes) -> Any:
        return content if self._binary else as_text(content)

    def _open_reader(self) -> IO[bytes]:
        self.flush()
        if self._reader is None:
            if self._mode in ("w", "a"):
                raise errors.PermissionDeniedError(None, None, "File isn't open for reading")
            with os_errors(self._name):
                self._reader = opened(self._name, "rb")
        return self._reader

    def _open_writer(self) -> IO[bytes]:
        if self._writer is None:
            if self._mode == "r":
                raise errors.PermissionDeniedError(None, None, "File isn't open for writing")
            mode = "ab" if self._mode.startswith("a") else "wb"
            self._writer = opened(self._name, mode)
        return self._writer


@public("gfile.FastGFile")
class FastGFile(GFile):
    """The same as `tf.gfile.GFile`: files here take no locks in either case.

    Args:
        name: the path.
        mode: as for GFile.

    Example:
        >>> with tf.gfile.FastGFile("model.pb", "wb") as f:
        ...     f.write(b"graph")
        >>> tf.gfile.FastGFile("model.pb", "rb").read()
        b'graph'
    """


Open = GFile


@public("gfile.Exists")
def Exists(path: Path) -> bool:
    """Whether a file or folder exists.

    Args:
        path: the path.

    Returns:
        True or False.

    Example:
        >>> tf.gfile.Exists("missing.txt")
        False
    """
    return remote.exists(path) if remote.is_remote(path) else os.path.exists(path)


@public("gfile.IsDirectory")
def IsDirectory(dirname: Path) -> bool:
    """Whether a folder exists.

    Args:
        dirname: the path.

    Returns:
        True or False; False for a file.

    Example:
        >>> tf.gfile.IsDirectory(".")
        True
    """
    return remote.is_folder(dirname) if remote.is_remote(dirname) else os.path.isdir(dirname)


@public("gfile.Glob")
def Glob(filename: Path | list[Path] | tuple[Path, ...]) -> list[str]:
    """The paths that match a pattern, or any of a list of patterns, sorted.

    Args:
        filename: a pattern with `*`, `?` and `[...]`, or a list of them.

    Returns:
        A list of paths.

    Example:
        >>> for name in ("b.txt", "a.txt", "c.csv"):
        ...     tf.gfile.GFile(name, "w").write("")
        >>> tf.gfile.Glob("*.txt")
        ['a.txt', 'b.txt']
    """
    patterns = filename if isinstance(filename, list | tuple) else [filename]
    matches = (
        remote.matching(pattern) if remote.is_remote(pattern) else glob.glob(_text(pattern))
        for pattern in patterns
    )
    return sorted(path for paths in matches for path in paths)


@public("gfile.ListDirectory")
def ListDirectory(dirname: Path) -> list[str]:
    """The names of the files and folders in a folder.

    Args:
        dirname: the path.

    Returns:
        A list of names.

    Example:
        >>> tf.gfile.MkDir("logs")
        >>> tf.gfile.ListDirectory(".")
        ['logs']
    """
    if not IsDirectory(dirname):
        raise errors.NotFoundError(None, None, f"Could not find directory {_text(dirname)}")
    with os_errors(dirname):
        if remote.is_remote(dirname):
            return remote.names_in(dirname)
        return sorted(os.listdir(_text(dirname)))


@public("gfile.MkDir")
def MkDir(dirname: Path) -> None:
    """Create a folder whose parent exists.

    Args:
        dirname: the path.

    Example:
        >>> tf.gfile.MkDir("logs")
        >>> tf.gfile.IsDirectory("logs")
        True
    """
    with os_errors(dirname):
        if remote.is_remote(dirname):
            remote.make_folders(dirname)
        else:
            os.mkdir(dirname)


@public("gfile.MakeDirs")
def MakeDirs(dirname: Path) -> None:
    """Create a folder and all its parents; does nothing if it exists.

    Args:
        dirname: the path.

    Raises:
        FailedPreconditionError: where a file has that name.

    Example:
        >>> tf.gfile.MakeDirs("logs/train")
        >>> tf.gfile.IsDirectory("logs/train")
        True
    """
    with os_errors(dirname):
        if remote.is_remote(dirname):
            remote.make_folders(dirname)
            return
        try:
            os.makedirs(dirname, exist_ok=True)
        except (FileExistsError, NotADirectoryError) as error:
            blocking = _file_among_parents(_text(dirname))
            raise errors.FailedPreconditionError(
                None, None, f"{blocking} is not a directory"
            ) from error


def _file_among_parents(path: str) -> str:
    while not os.path.lexists(path) and os.path.dirname(path) != path:
        path = os.path.dirname(path)
    return path


@public("gfile.Remove")
def Remove(filename: Path) -> None:
    """Delete a file.

    Args:
        filename: the path.

    Raises:
        NotFoundError: where there is no such file.

    Example:
        >>> tf.gfile.GFile("a.txt", "w").write("a")
        >>> tf.gfile.Remove("a.txt")
        >>> tf.gfile.Exists("a.txt")
        False
    """
    with os_errors(filename):
        if remote.is_remote(filename):
            remote.remove(filename)
        else:
            os.remove(filename)


@public("gfile.DeleteRecursively")
def DeleteRecursively(dirname: Path) -> None:
    """Delete a folder with its content, or a file.

    Args:
        dirname: the path.

    Raises:
        NotFoundError: where there is no such file or folder.

    Example:
        >>> tf.gfile.MakeDirs("logs/train")
        >>> tf.gfile.DeleteRecursively("logs")
        >>> tf.gfile.Exists("logs")
        False
    """
    with os_errors(dirname):
        if remote.is_remote(dirname):
            remote.remove(dirname, recursive=True)
        elif IsDirectory(dirname):
            shutil.rmtree(dirname)
        else:
            os.remove(dirname)


@public("gfile.Copy")
def Copy(oldpath: Path, newpath: Path, overwrite: bool = False) -> None:
    """Copy the content of a file.

    Args:
        oldpath: the file.
        newpath: the copy.
        overwrite: whether an existing copy is replaced.

    Raises:
        AlreadyExistsError: where it exists and may not be.

    Example:
        >>> tf.gfile.GFile("a.txt", "w").write("a")
        >>> tf.gfile.Copy("a.txt", "b.txt")
        >>> tf.gfile.GFile("b.txt").read()
        'a'
    """
    _refuse_existing(newpath, overwrite)
    with os_errors(oldpath):
        if remote.is_remote(oldpath) or remote.is_remote(newpath):
            remote.copy(oldpath, newpath)
        else:
            shutil.copyfile(_text(oldpath), _text(newpath))


@public("gfile.Rename")
def Rename(oldname: Path, newname: Path, overwrite: bool = False) -> None:
    """Move a file or folder.

    Args:
        oldname: its path.
        newname: the new one.
        overwrite: whether an existing file there is replaced.

    Raises:
        AlreadyExistsError: where it exists and may not be.

    Example:
        >>> tf.gfile.GFile("a.txt", "w").write("a")
        >>> tf.gfile.Rename("a.txt", "b.txt")
        >>> tf.gfile.Glob("*.txt")
        ['b.txt']
    """
    _refuse_existing(newname, overwrite)
    with os_errors(oldname):
        if remote.is_remote(oldname) or remote.is_remote(newname):
            remote.copy(oldname, newname)
            Remove(oldname)
        else:
            os.replace(_text(oldname), _text(newname))


@public("gfile.Stat")
def Stat(filename: Path) -> FileStatistics:
    """The size, modification time and kind of a file or folder."""
    with os_errors(filename):
        if remote.is_remote(filename):
            return FileStatistics(*remote.statistics(filename))
        status = os.stat(filename)
    return FileStatistics(status.st_size, status.st_mtime_ns, IsDirectory(filename))


@public("gfile.Walk")
def Walk(top: Path, in_order: bool = True) -> Iterator[tuple[str, list[str], list[str]]]:
    """(folder, names of its folders, names of its files) for `top` and each folder below it."""
    if remote.is_remote(top):
        folders = list(remote.walk(top))
        yield from folders if in_order else reversed(folders)
        return
    for folder, folders, files in os.walk(_text(top), topdown=in_order):
        folders.sort()
        yield folder, folders, sorted(files)


def opened(path: Path, mode: str) -> IO[bytes]:
    """A binary file, local or remote, which the caller closes."""
    if remote.is_remote(path):
        return remote.open_remote(path, mode)
    return open(os.fspath(path), mode)


def _text(path: Path) -> str:
    return as_str_any(os.fspath(path))


def _refuse_existing(path: Path, overwrite: bool) -> None:
    if not overwrite and Exists(path):
        raise errors.AlreadyExistsError(None, None, f"file already exists: {_text(path)}")


@contextmanager
def os_errors(
    path: Path, classes: ErrorClasses = _ERROR_CLASSES, separator: str = "; "
) -> Generator[None]:
    """Convert an OSError inside the block to the class of `tf.errors` for its number."""
    try:
        yield
    except OSError as error:
        missing = errno.ENOENT if isinstance(error, FileNotFoundError) else None
        error_class = classes.get(error.errno or missing, errors.UnknownError)
        message = f"{_text(path)}{separator}{error.strerror or error}"
        raise error_class(None, None, message) from error
