"""Files and folders that only this user can write, and secrets in them.

All checks are done on the open file, not on its path, against races. A file or folder that another
user owns or may write raises an `UntrustedError`.
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
#: Links are not followed; opening a pipe does not block.
_READ_FLAGS = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
_CREATE_FLAGS = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
_ModeTest = Callable[[int], bool]  # such as `stat.S_ISREG`


class UntrustedError(Exception):
    """Another user owns a file or folder or may write it."""


@contextmanager
def opened(
    name: str, parent: int | None, is_kind: _ModeTest
) -> Generator[tuple[int, os.stat_result]]:
    """Open a file or folder that this user owns and nobody else may write."""
    try:
        file = os.open(name, _READ_FLAGS, dir_fd=parent)
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


def _check(name: str, status: os.stat_result, is_kind: _ModeTest) -> None:
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
    """Open a folder that this user owns and nobody else may write."""
    with opened(path, None, stat.S_ISDIR) as (folder, _):
        yield folder


def unlinked(path: Path) -> str:
    """The target of a link that this user or root owns; other paths unchanged, so that opening
    another user's link fails."""
    status = os.lstat(path)
    is_own_link = stat.S_ISLNK(status.st_mode) and status.st_uid in (0, os.geteuid())
    return os.path.realpath(path) if is_own_link else str(path)


def make_folder(path: str) -> None:
    """Create a folder and its missing parents, accessible only to this user."""
    with suppress(FileExistsError):
        try:
            os.mkdir(path, _PRIVATE_FOLDER)
        except FileNotFoundError:
            make_folder(os.path.dirname(path))
            os.mkdir(path, _PRIVATE_FOLDER)


def put(folder: int, name: str, content: bytes, replace: bool = True) -> None:
    """Write a file atomically; an existing one is replaced or, without `replace`, kept."""
    partial = f"{token_hex(16)}.tmp"
    try:
        with open(os.open(partial, _CREATE_FLAGS, _PRIVATE_FILE, dir_fd=folder), "wb", 0) as file:
            file.write(content)
        if not replace and _link(partial, name, folder):
            remove(partial, folder)
        else:
            os.replace(partial, name, src_dir_fd=folder, dst_dir_fd=folder)
    except OSError:
        remove(partial, folder)
        raise


def _link(source: str, name: str, folder: int) -> bool:
    """Hard-link a file to a name unless the name exists; False if links are not supported."""
    try:
        os.link(source, name, src_dir_fd=folder, dst_dir_fd=folder)
    except FileExistsError:
        pass
    except OSError:
        return False
    return True


def remove(path: str, folder: int | None = None) -> None:
    """Remove a file, if it exists."""
    with suppress(OSError):  # another process may have removed it
        os.unlink(path, dir_fd=folder)


def read_all(file: int, size: int) -> bytes:
    """The content of an open file with a known size."""
    content = os.read(file, size)
    while len(content) < size and (more := os.read(file, size - len(content))):
        content += more
    return content


def read_secret(root: Path, name: str, nbytes: int) -> bytes | None:
    """The secret in a folder, if there is one; an error if the folder is not trusted."""
    with open_folder(unlinked(root)) as folder:
        return _secret_in(folder, name, nbytes)


def make_secret(root: Path, name: str, nbytes: int) -> bytes:
    """Create a secret in a folder; concurrent processes all get the same one."""
    with open_folder(unlinked(root)) as folder:
        put(folder, name, token_bytes(nbytes), replace=False)
        secret = _secret_in(folder, name, nbytes)
    if secret is None:
        raise FileNotFoundError(errno.ENOENT, "The secret vanished", str(root))
    return secret


def _secret_in(folder: int, name: str, nbytes: int) -> bytes | None:
    with suppress(FileNotFoundError), opened(name, folder, stat.S_ISREG) as (file, status):
        if status.st_mode & _OTHERS:
            raise UntrustedError(f"its secret can be read by others ({_mode(status)})")
        if status.st_size != nbytes:
            raise UntrustedError("its secret is damaged")
        return read_all(file, nbytes)
    return None


def user_folder() -> Path:
    """The folder for this user's files: THALWEG_CACHE, else in the user's cache folder."""
    return _user_part(_root())


def _root() -> Path:
    folder = os.environ.get("THALWEG_CACHE")
    if folder and folder != "0":  # which only disables the cache
        return Path(folder).expanduser()
    base = os.environ.get("XDG_CACHE_HOME")
    return (Path(base) if base else Path.home() / ".cache") / "thalweg"


def _user_part(root: Path) -> Path:
    """The user's own folder inside a shared, sticky one such as /tmp; other folders unchanged."""
    try:
        mode = os.stat(root).st_mode
    except OSError:
        return root
    shared = mode & stat.S_ISVTX and mode & _OTHERS_WRITE
    return root / f"thalweg-{os.geteuid()}" if shared else root
