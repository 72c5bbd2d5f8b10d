"""A private, authenticated cache on disk, shared by the processes of one user.

An entry is a name of hexadecimal digits and its content: kernels, programs, lowerings and measured
schedules. Since content becomes machine code, an entry is trusted only if

- its folders belong to this user and are writable by nobody else, as they are created;
- so is its file, which is no link;
- its HMAC of name and content is right, under a secret that only this user can read.

If one of the first two fails, another user may have tampered with the cache: the process logs one
warning and goes on without the disk. An entry with a wrong HMAC (a torn write, a flipped bit,
another name or version) is treated as missing. All checks are done on the open file, not on its
path, against races, and before any content is returned.
"""

from __future__ import annotations

import hmac
import os
import stat
import time
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from thalweg.platform import tf_logging
from thalweg.platform.private_files import (
    UntrustedError,
    make_folder,
    make_secret,
    open_folder,
    opened,
    put,
    read_all,
    read_secret,
    remove,
    unlinked,
    user_folder,
)

_MAGIC = b"thalweg object 3"
_DIGEST_BYTES = 32
_START = len(_MAGIC) + _DIGEST_BYTES
_SECRET, _SECRET_BYTES = "secret", 32
_LIMIT, _MAX_LIMIT_BYTES = "limit", 32  # a file with the size limit
_HOUR = 3600.0
_DEFAULT_LIMIT = 4 << 30
_HEX = frozenset("0123456789abcdef")
_FOLDERS = 256  # one for each first byte of names, over which entries are evenly distributed
_FIRST_FOLDER = "00"


class Disk:
    """Entries in files, of at most `limit` bytes in all: the least recently used are evicted."""

    #: The minimum number of writes between two sweeps; larger caches are swept less often.
    SWEEP_EVERY = 64

    def __init__(self, root: Path, limit: int = _DEFAULT_LIMIT) -> None:
        self._root, self._limit = root, limit
        self._readable = self._writable = True
        self._secret: bytes | None = None  # not read yet, or missing
        self._sweep_after = self._interval(_FOLDERS * len(_scan(str(root / _FIRST_FOLDER))))
        # A random start, so that many short processes sweep as often as one long one.
        self._writes = int.from_bytes(os.urandom(3)) % self._sweep_after

    @property
    def root(self) -> Path:
        """The folder of the cache."""
        return self._root

    @property
    def limit(self) -> int:
        """The maximum number of bytes of all entries."""
        return self._limit

    def read(self, name: str) -> bytes | None:
        """The content of an entry, or None; a damaged one is removed."""
        if not self._readable:
            return None
        try:
            return self._read(name)
        except UntrustedError as reason:
            self._refuse(reason)
        except OSError:  # usually there is no such entry
            pass
        return None

    def write(self, name: str, content: bytes) -> None:
        """Store an entry, atomically."""
        if not self._writable:
            return
        try:
            self._write(name, content)
        except UntrustedError as reason:
            self._refuse(reason)
        except OSError as error:
            self._writable = False
            tf_logging.info("Kernels are not kept on disk: %s", error)

    def sweep(self) -> None:
        """Remove files of dead writers, and the least recently used entries above the limit."""
        entries = sorted(self._entries(), key=lambda entry: entry.used)
        self._writes, self._sweep_after = 0, self._interval(len(entries))
        now, total = time.time(), sum(entry.size for entry in entries)
        for entry in entries:
            abandoned = entry.path.endswith(".tmp") and now - entry.used > _HOUR
            if abandoned or total > self._limit:
                remove(entry.path)
                total -= entry.size

    def usage(self) -> Usage:
        """The number of entries and their total size."""
        entries = list(self._entries())
        return Usage(len(entries), sum(entry.size for entry in entries))

    def clear(self) -> Usage:
        """Remove all entries; returns what was removed."""
        used = self.usage()
        for entry in list(self._entries()):
            remove(entry.path)
        return used

    def problem(self) -> str | None:
        """Why entries are not trusted; None if they are, or if there is no folder."""
        try:
            self._read_secret()
        except UntrustedError as reason:
            return str(reason)
        except FileNotFoundError:
            return None
        except OSError as error:
            return f"{self._root}: {error.strerror}"
        return None

    def keep_limit(self, limit: int) -> None:
        """Set the size limit of this and later processes, and sweep."""
        make_folder(str(self._root))
        with open_folder(unlinked(self._root)) as root:
            put(root, _LIMIT, str(limit).encode())
        self._limit = limit
        self.sweep()

    def _interval(self, count: int) -> int:
        """The number of writes between two sweeps of a cache of `count` entries."""
        return max(self.SWEEP_EVERY, count // 4)

    def _path(self, name: str) -> Path:
        return self._root / name[:2] / _file_of(name)

    def _read(self, name: str) -> bytes | None:
        secret = self._secret or self._read_secret()
        if secret is None:
            return None
        with (
            open_folder(f"{self._root}/{name[:2]}") as folder,
            opened(_file_of(name), folder, stat.S_ISREG) as (file, status),
        ):
            content = _verified(read_all(file, status.st_size), name, secret)
            if content is None:
                remove(_file_of(name), folder)
            elif time.time() - status.st_mtime > _HOUR:  # the time of use is updated once an hour
                os.utime(file)
        return content

    def _write(self, name: str, content: bytes) -> None:
        make_folder(str(self._root))
        # Read again each time: the folder may have been cleared, and another process may have
        # created another secret.
        self._secret = self._read_secret() or make_secret(self._root, _SECRET, _SECRET_BYTES)
        folder = f"{self._root}/{name[:2]}"
        make_folder(folder)
        with open_folder(folder) as opened_folder:
            put(opened_folder, _file_of(name), _signed(content, name, self._secret))
        self._writes += 1
        if self._writes >= self._sweep_after:
            self.sweep()

    def _read_secret(self) -> bytes | None:
        """The secret of this folder, if there is one; an error if the folder is not trusted."""
        self._secret = read_secret(self._root, _SECRET, _SECRET_BYTES)
        return self._secret

    def _refuse(self, reason: UntrustedError) -> None:
        """Disable the disk; the first refusal of a folder in this process logs why."""
        self._readable = self._writable = False
        if _refused.setdefault(self._root, reason) is reason:
            tf_logging.warning(
                "The cache in %s is not used, and what it would have kept is rebuilt in every "
                "process: %s. Remove that, or have THALWEG_CACHE name a folder of your own.",
                self._root,
                reason,
            )

    def _entries(self) -> Iterator[_Entry]:
        """The files that this class creates; others in the folder are ignored."""
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
    """Whether a name is that of an entry or of a partial file."""
    stem, _, extension = name.rpartition(".")
    return extension in ("o", "tmp") and bool(stem) and _HEX.issuperset(stem)


_refused: dict[Path, UntrustedError] = {}


class Usage(NamedTuple):
    """The number of entries of a disk and their bytes."""

    entries: int
    bytes: int


@dataclass(frozen=True)
class _Entry:
    path: str
    size: int
    used: float


def _scan(folder: str) -> list[os.DirEntry[str]]:
    try:
        with os.scandir(folder) as entries:
            return list(entries)
    except OSError:
        return []


# Entries: a magic number, the HMAC, the name, the content


def _file_of(name: str) -> str:
    return f"{name[2:]}.o"


def _signed(content: bytes, name: str, secret: bytes) -> bytes:
    message = name.encode() + b"\n" + content
    return _MAGIC + hmac.digest(secret, message, "sha256") + message


def _verified(entry: bytes, name: str, secret: bytes) -> bytes | None:
    """The content of an entry, if its HMAC and name are right."""
    message = memoryview(entry)[_START:]
    expected = _MAGIC + hmac.digest(secret, message, "sha256")
    head = name.encode() + b"\n"
    is_valid = hmac.compare_digest(entry[:_START], expected) and entry.startswith(head, _START)
    return entry[_START + len(head) :] if is_valid else None


# Configuration


def disk_of_environment() -> Disk | None:
    """The disk in the folder THALWEG_CACHE, else in the user's cache folder; None if it is off."""
    if os.environ.get("THALWEG_CACHE") == "0":
        return None
    try:
        root = user_folder()
        return Disk(root, _limit(root))
    except RuntimeError as error:  # there is no home
        tf_logging.info("Kernels are not kept on disk: %s", error)
        return None


def _limit(root: Path) -> int:
    """The limit of THALWEG_CACHE_LIMIT, else the one stored in the folder."""
    limit = os.environ.get("THALWEG_CACHE_LIMIT")
    if limit and not limit.isdecimal():
        raise ValueError(f"THALWEG_CACHE_LIMIT is a number of bytes, not {limit!r}.")
    return int(limit) if limit else _stored_limit(root)


def _stored_limit(root: Path) -> int:
    with suppress(OSError, ValueError), open(root / _LIMIT, "rb") as file:
        return max(0, int(file.read(_MAX_LIMIT_BYTES)))
    return _DEFAULT_LIMIT
