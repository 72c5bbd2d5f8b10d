"""Files and folders that only this user can have written, and secrets in them.

All is checked on the open file, not on its path, so that nothing can be exchanged in between. What
somebody else owns or may write to raises an `UntrustedError`, which says what it is.
"""

from __future__ import annotations

import errno
import os
import stat
from collections.abc import Callable, Generator
from contextlib import contextmanager, suppress
from pathlib import Path
from secrets import token_bytes, token_hex

_PRIVATE_FOLDER, _PRIVATE_FILE = 0o700, 0o600
_OTHERS_WRITE = stat.S_IWGRP | stat.S_IWOTH
_OTHERS = stat.S_IRWXG | stat.S_IRWXO
#: Links are not followed; a pipe in the place of a file does not block.
_READING = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
_MAKING = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
_Kind = Callable[[int], bool]  # of `stat`


class UntrustedError(Exception):
    """Somebody else owns what lies here or may write to it; the message says what."""


@contextmanager
def opened(name: str, parent: int | None, is_kind: _Kind) -> Generator[tuple[int, os.stat_result]]:
    """Open a file or folder of this user's, which nobody else may write to."""
    try:
        file = os.open(name, _READING, dir_fd=parent)
    except OSError as error:
        if error.errno == errno.ELOOP:
            raise UntrustedError(f"{name} is a symbolic link") from error
        if error.errno == errno.EACCES:
            raise UntrustedError(f"{name} belongs to somebody else") from error
        raise
    try:
        status = os.fstat(file)
        _check(name, status, is_kind)
        yield file, status
    finally:
        os.close(file)


def _check(name: str, status: os.stat_result, is_kind: _Kind) -> None:
    if not is_kind(status.st_mode):
        raise UntrustedError(f"{name} is neither a file nor a folder of the cache")
    if status.st_uid != os.geteuid():
        raise UntrustedError(f"{name} belongs to user {status.st_uid}")
    if status.st_mode & _OTHERS_WRITE:
        raise UntrustedError(f"{name} can be written by others ({_mode(status)})")


def _mode(status: os.stat_result) -> str:
    return f"mode {stat.S_IMODE(status.st_mode):04o}"


@contextmanager
def open_folder(path: str) -> Generator[int]:
    """Open a folder of this user's, which nobody else may write to."""
    with opened(path, None, stat.S_ISDIR) as (folder, _):
        yield folder


def unlinked(path: Path) -> str:
    """Where the user's own link leads; one that somebody else made stays, to be refused."""
    status = os.lstat(path)
    followed = stat.S_ISLNK(status.st_mode) and status.st_uid in (0, os.geteuid())
    return os.path.realpath(path) if followed else str(path)


def make_folder(path: str) -> None:
    """Make a folder, and those around it that are missing, for this user alone."""
    with suppress(FileExistsError):
        try:
            os.mkdir(path, _PRIVATE_FOLDER)
        except FileNotFoundError:
            make_folder(os.path.dirname(path))
            os.mkdir(path, _PRIVATE_FOLDER)


def put(folder: int, name: str, content: bytes, replace: bool = True) -> None:
    """Put a whole file under a name, at once; `replace` one that is there, or leave it."""
    unfinished = f"{token_hex(16)}.tmp"
    try:
        with open(os.open(unfinished, _MAKING, _PRIVATE_FILE, dir_fd=folder), "wb", 0) as file:
            file.write(content)
        if not replace and _linked(unfinished, name, folder):
            remove(unfinished, folder)
        else:
            os.replace(unfinished, name, src_dir_fd=folder, dst_dir_fd=folder)
    except OSError:
        remove(unfinished, folder)
        raise


def _linked(source: str, name: str, folder: int) -> bool:
    """Give a file a name unless another one has it; False where a file cannot have two names."""
    try:
        os.link(source, name, src_dir_fd=folder, dst_dir_fd=folder)
    except FileExistsError:
        pass
    except OSError:
        return False
    return True


def remove(path: str, folder: int | None = None) -> None:
    """Remove a file, if it is there."""
    with suppress(OSError):  # another process was faster
        os.unlink(path, dir_fd=folder)


def read_all(file: int, size: int) -> bytes:
    """The content of an open file of a size."""
    content = os.read(file, size)
    while len(content) < size and (more := os.read(file, size - len(content))):
        content += more
    return content


def read_secret(root: Path, name: str, nbytes: int) -> bytes | None:
    """The secret in a folder, if it has one; the folder is checked on the way."""
    with open_folder(unlinked(root)) as folder:
        return _secret_in(folder, name, nbytes)


def make_secret(root: Path, name: str, nbytes: int) -> bytes:
    """A secret in a folder: of processes that make one at once, all get the same."""
    with open_folder(unlinked(root)) as folder:
        put(folder, name, token_bytes(nbytes), replace=False)
        made = _secret_in(folder, name, nbytes)
    if made is None:
        raise FileNotFoundError(errno.ENOENT, "The secret vanished", str(root))
    return made


def _secret_in(folder: int, name: str, nbytes: int) -> bytes | None:
    with suppress(FileNotFoundError), opened(name, folder, stat.S_ISREG) as (file, status):
        if status.st_mode & _OTHERS:
            raise UntrustedError(f"its secret can be read by others ({_mode(status)})")
        if status.st_size != nbytes:
            raise UntrustedError("its secret is damaged")
        return read_all(file, nbytes)
    return None


def user_folder() -> Path:
    """Where this user's processes keep things: THALWEG_CACHE, else in the user's cache folder."""
    return _own_part(_root())


def _root() -> Path:
    given = os.environ.get("THALWEG_CACHE")
    if given and given != "0":  # which says only that nothing is cached
        return Path(given).expanduser()
    base = os.environ.get("XDG_CACHE_HOME")
    return (Path(base) if base else Path.home() / ".cache") / "thalweg"


def _own_part(root: Path) -> Path:
    """A folder for all, such as /tmp, has one for each user: nobody can remove another's there."""
    try:
        mode = os.stat(root).st_mode
    except OSError:
        return root
    shared = mode & stat.S_ISVTX and mode & _OTHERS_WRITE
    return root / f"thalweg-{os.geteuid()}" if shared else root
