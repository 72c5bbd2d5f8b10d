"""A private cache on disk: what a process of a user keeps for later ones and nobody can forge.

What comes in is an entry, a name of hexadecimal digits and its bytes; what goes out, in this
process or a later one, are those bytes, or None. Kernels, programs, lowerings and measured
schedules are all kept here. As what is read becomes machine code, an entry is believed only where

- the folders belong to this user, and nobody else may write to them: they are made so;
- so does its file, which is no link;
- its digest is right for name and content, under a secret that only this user can read.

Where one of the first two does not hold, somebody else can have been there: one warning says so,
and the process goes on without a disk. A wrong digest (a torn write, a flipped bit, the entry of
another name or version) counts as not there. All is checked on the open file, not on its path, so
that nothing can be exchanged in between, and before anybody sees a byte of the content.
"""

from __future__ import annotations

import errno
import hmac
import os
import stat
import time
from collections.abc import Callable, Generator, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from secrets import token_bytes, token_hex
from typing import NamedTuple

from thalweg.platform import tf_logging

_MAGIC = b"thalweg object 3"
_DIGEST_BYTES = 32
_START = len(_MAGIC) + _DIGEST_BYTES
_SECRET, _SECRET_BYTES = "secret", 32
_LIMIT, _MAX_LIMIT_BYTES = "limit", 32  # a file with the number of bytes to keep
_HOUR = 3600.0
_DEFAULT_LIMIT = 4 << 30
_PRIVATE_FOLDER, _PRIVATE_FILE = 0o700, 0o600
_OTHERS_WRITE = stat.S_IWGRP | stat.S_IWOTH
_OTHERS = stat.S_IRWXG | stat.S_IRWXO
#: Links are not followed; a pipe in the place of a file does not block.
_READING = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
_MAKING = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
_HEX = frozenset("0123456789abcdef")
_Kind = Callable[[int], bool]  # of `stat`
_FOLDERS = 256  # that entries are spread over evenly, by the first byte of their names
_FIRST_FOLDER = "00"


class Disk:
    """Entries in files, at most `limit` bytes of them: those not used for long go first."""

    #: Every so many writes the size is looked at; where there are many entries, which takes a
    #: while, less often.
    SWEEP_EVERY = 64

    def __init__(self, root: Path, limit: int = _DEFAULT_LIMIT) -> None:
        self._root, self._limit = root, limit
        self._readable = self._writable = True
        self._secret: bytes | None = None  # not read yet, or there is none
        self._until = self._patience(_FOLDERS * len(_names_in(root / _FIRST_FOLDER)))
        # Short processes together look as often as a long one does.
        self._writes = int.from_bytes(os.urandom(3)) % self._until

    @property
    def root(self) -> Path:
        """The folder that all entries are below."""
        return self._root

    @property
    def limit(self) -> int:
        """Bytes that entries may take."""
        return self._limit

    def read(self, name: str) -> bytes | None:
        """The content of an entry, or None; a damaged one is removed."""
        if not self._readable:
            return None
        try:
            return self._read(name)
        except _UntrustedError as reason:
            self._refuse(reason)
        except OSError:  # most often: there is no such entry
            pass
        return None

    def write(self, name: str, content: bytes) -> None:
        """Keep an entry; other processes see all of it or nothing."""
        if not self._writable:
            return
        try:
            self._write(name, content)
        except _UntrustedError as reason:
            self._refuse(reason)
        except OSError as error:
            self._writable = False
            tf_logging.info("Kernels are not kept on disk: %s", error)

    def sweep(self) -> None:
        """Remove what writers that died left, and the oldest entries above the limit."""
        entries = sorted(self._entries(), key=lambda entry: entry.used)
        self._writes, self._until = 0, self._patience(len(entries))
        now, total = time.time(), sum(entry.size for entry in entries)
        for entry in entries:
            abandoned = entry.path.endswith(".tmp") and now - entry.used > _HOUR
            if abandoned or total > self._limit:
                _remove(entry.path)
                total -= entry.size

    def usage(self) -> Usage:
        """How many entries there are, and how large they are together."""
        entries = list(self._entries())
        return Usage(len(entries), sum(entry.size for entry in entries))

    def clear(self) -> Usage:
        """Remove all entries; returns what was removed."""
        used = self.usage()
        for entry in list(self._entries()):
            _remove(entry.path)
        return used

    def problem(self) -> str | None:
        """Why entries here would not be believed; None if they are, or if there is no folder."""
        try:
            self._read_secret()
        except _UntrustedError as reason:
            return str(reason)
        except FileNotFoundError:
            return None
        except OSError as error:
            return f"{self._root}: {error.strerror}"
        return None

    def keep_limit(self, limit: int) -> None:
        """Have this and later processes keep so many bytes; sweeps at once."""
        _make_folder(str(self._root))
        with _folder(_unlinked(self._root)) as root:
            _put(root, _LIMIT, str(limit).encode())
        self._limit = limit
        self.sweep()

    def _patience(self, count: int) -> int:
        """How many writes there are between two looks at so many entries."""
        return max(self.SWEEP_EVERY, count // 4)

    def _path(self, name: str) -> Path:
        return self._root / name[:2] / _file_of(name)

    def _read(self, name: str) -> bytes | None:
        secret = self._secret or self._read_secret()
        if secret is None:
            return None
        with (
            _folder(f"{self._root}/{name[:2]}") as folder,
            _opened(_file_of(name), folder, stat.S_ISREG) as (file, status),
        ):
            content = _verified(_all_of(file, status.st_size), name, secret)
            if content is None:
                _remove(_file_of(name), folder)
            elif time.time() - status.st_mtime > _HOUR:  # that it is used is noted once an hour
                os.utime(file)
        return content

    def _write(self, name: str, content: bytes) -> None:
        _make_folder(str(self._root))
        # Read again each time: somebody may have emptied the folder, and another process may have
        # put another secret there.
        self._secret = self._read_secret() or self._make_secret()
        folder = f"{self._root}/{name[:2]}"
        _make_folder(folder)
        with _folder(folder) as open_folder:
            _put(open_folder, _file_of(name), _signed(content, name, self._secret))
        self._writes += 1
        if self._writes >= self._until:
            self.sweep()

    def _read_secret(self) -> bytes | None:
        """The secret of this folder, if it has one; the folder is checked on the way."""
        with _folder(_unlinked(self._root)) as root:
            self._secret = _secret_in(root)
        return self._secret

    def _make_secret(self) -> bytes:
        """A secret for this folder: of processes that make one at once, all get the same."""
        with _folder(_unlinked(self._root)) as root:
            _put(root, _SECRET, token_bytes(_SECRET_BYTES), replace=False)
            made = _secret_in(root)
        if made is None:
            raise FileNotFoundError(errno.ENOENT, "The secret vanished", str(self._root))
        return made

    def _refuse(self, reason: _UntrustedError) -> None:
        """Do without a disk from now on; the first of all that use a folder says why."""
        self._readable = self._writable = False
        if _refused.setdefault(self._root, reason) is reason:
            tf_logging.warning(
                "The cache in %s is not used, and what it would have kept is rebuilt in every "
                "process: %s. Remove that, or have THALWEG_CACHE name a folder of your own.",
                self._root,
                reason,
            )

    def _entries(self) -> Iterator[_Entry]:
        """All files that this class makes, and nothing else that may lie here."""
        for folder in _scan(str(self._root)):
            if len(folder.name) == 2 and _HEX.issuperset(folder.name):
                yield from self._entries_in(folder)

    def _entries_in(self, folder: os.DirEntry[str]) -> Iterator[_Entry]:
        if not folder.is_dir(follow_symlinks=False):
            return
        for file in _scan(folder.path):
            with suppress(OSError):  # another process removed it
                status = file.stat(follow_symlinks=False)
                if _is_entry(file.name) and stat.S_ISREG(status.st_mode):
                    yield _Entry(file.path, status.st_size, status.st_mtime)


def _is_entry(name: str) -> bool:
    """Whether a file can be one of ours: nothing else in the folder is ever touched."""
    stem, dot, kind = name.rpartition(".")
    return bool(dot) and kind in ("o", "tmp") and bool(stem) and _HEX.issuperset(stem)


_refused: dict[Path, _UntrustedError] = {}


class Usage(NamedTuple):
    """What is on a disk."""

    entries: int
    bytes: int


@dataclass(frozen=True)
class _Entry:
    path: str
    size: int
    used: float


class _UntrustedError(Exception):
    """Somebody else owns what lies here or may write to it; the message says what."""


# Files and folders that only this user can have written


@contextmanager
def _opened(name: str, parent: int | None, is_kind: _Kind) -> Generator[tuple[int, os.stat_result]]:
    """Open a file or folder of this user's, which nobody else may write to."""
    try:
        file = os.open(name, _READING, dir_fd=parent)
    except OSError as error:
        if error.errno == errno.ELOOP:
            raise _UntrustedError(f"{name} is a symbolic link") from error
        if error.errno == errno.EACCES:
            raise _UntrustedError(f"{name} belongs to somebody else") from error
        raise
    try:
        status = os.fstat(file)
        _check(name, status, is_kind)
        yield file, status
    finally:
        os.close(file)


def _check(name: str, status: os.stat_result, is_kind: _Kind) -> None:
    if not is_kind(status.st_mode):
        raise _UntrustedError(f"{name} is neither a file nor a folder of the cache")
    if status.st_uid != os.geteuid():
        raise _UntrustedError(f"{name} belongs to user {status.st_uid}")
    if status.st_mode & _OTHERS_WRITE:
        raise _UntrustedError(f"{name} can be written by others ({_mode(status)})")


def _mode(status: os.stat_result) -> str:
    return f"mode {stat.S_IMODE(status.st_mode):04o}"


@contextmanager
def _folder(path: str) -> Generator[int]:
    with _opened(path, None, stat.S_ISDIR) as (folder, _):
        yield folder


def _unlinked(path: Path) -> str:
    """Where the user's own link leads; one that somebody else made stays, to be refused."""
    status = os.lstat(path)
    followed = stat.S_ISLNK(status.st_mode) and status.st_uid in (0, os.geteuid())
    return os.path.realpath(path) if followed else str(path)


def _make_folder(path: str) -> None:
    """Make a folder, and those around it that are missing, for this user alone."""
    with suppress(FileExistsError):
        try:
            os.mkdir(path, _PRIVATE_FOLDER)
        except FileNotFoundError:
            _make_folder(os.path.dirname(path))
            os.mkdir(path, _PRIVATE_FOLDER)


def _put(folder: int, name: str, content: bytes, replace: bool = True) -> None:
    """Put a whole file under a name, at once; `replace` one that is there, or leave it."""
    unfinished = f"{token_hex(16)}.tmp"
    try:
        with open(os.open(unfinished, _MAKING, _PRIVATE_FILE, dir_fd=folder), "wb", 0) as file:
            file.write(content)
        if not replace and _linked(unfinished, name, folder):
            _remove(unfinished, folder)
        else:
            os.replace(unfinished, name, src_dir_fd=folder, dst_dir_fd=folder)
    except OSError:
        _remove(unfinished, folder)
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


def _remove(path: str, folder: int | None = None) -> None:
    with suppress(OSError):  # another process was faster
        os.unlink(path, dir_fd=folder)


def _all_of(file: int, size: int) -> bytes:
    content = os.read(file, size)
    while len(content) < size and (more := os.read(file, size - len(content))):
        content += more
    return content


def _scan(folder: str) -> list[os.DirEntry[str]]:
    try:
        with os.scandir(folder) as entries:
            return list(entries)
    except OSError:
        return []


def _names_in(folder: Path) -> list[str]:
    try:
        return os.listdir(folder)
    except OSError:
        return []


# Entries: a word for the format, the digest, the name, the content


def _file_of(name: str) -> str:
    return f"{name[2:]}.o"


def _signed(content: bytes, name: str, secret: bytes) -> bytes:
    told = name.encode() + b"\n" + content
    return _MAGIC + hmac.digest(secret, told, "sha256") + told


def _verified(entry: bytes, name: str, secret: bytes) -> bytes | None:
    """The content of an entry, if somebody who knows the secret wrote it under this name."""
    told = memoryview(entry)[_START:]
    expected = _MAGIC + hmac.digest(secret, told, "sha256")
    head = name.encode() + b"\n"
    sound = hmac.compare_digest(entry[:_START], expected) and entry.startswith(head, _START)
    return entry[_START + len(head) :] if sound else None


def _secret_in(root: int) -> bytes | None:
    with suppress(FileNotFoundError), _opened(_SECRET, root, stat.S_ISREG) as (file, status):
        if status.st_mode & _OTHERS:
            raise _UntrustedError(f"its secret can be read by others ({_mode(status)})")
        if status.st_size != _SECRET_BYTES:
            raise _UntrustedError("its secret is damaged")
        return _all_of(file, _SECRET_BYTES)
    return None


# Where it is


def disk_of_environment() -> Disk | None:
    """Where THALWEG_CACHE says, else in the user's cache folder; None where that is off."""
    if os.environ.get("THALWEG_CACHE") == "0":
        return None
    try:
        root = _own_part(_root())
        return Disk(root, _limit(root))
    except RuntimeError as error:  # there is no home
        tf_logging.info("Kernels are not kept on disk: %s", error)
        return None


def _root() -> Path:
    given = os.environ.get("THALWEG_CACHE")
    if given:
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


def _limit(root: Path) -> int:
    """What THALWEG_CACHE_LIMIT says, else what was kept in the folder."""
    given = os.environ.get("THALWEG_CACHE_LIMIT")
    if given and not given.isdecimal():
        raise ValueError(f"THALWEG_CACHE_LIMIT is a number of bytes, not {given!r}.")
    return int(given) if given else _kept_limit(root)


def _kept_limit(root: Path) -> int:
    with suppress(OSError, ValueError), open(root / _LIMIT, "rb") as file:
        return max(0, int(file.read(_MAX_LIMIT_BYTES)))
    return _DEFAULT_LIMIT
