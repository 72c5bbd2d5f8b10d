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
_LIMIT, _MAX_LIMIT_BYTES = "limit", 32  # a file with the number of bytes to keep
_HOUR = 3600.0
_DEFAULT_LIMIT = 4 << 30
_HEX = frozenset("0123456789abcdef")
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
        except UntrustedError as reason:
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
        except UntrustedError as reason:
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
                remove(entry.path)
                total -= entry.size

    def usage(self) -> Usage:
        """How many entries there are, and how large they are together."""
        entries = list(self._entries())
        return Usage(len(entries), sum(entry.size for entry in entries))

    def clear(self) -> Usage:
        """Remove all entries; returns what was removed."""
        used = self.usage()
        for entry in list(self._entries()):
            remove(entry.path)
        return used

    def problem(self) -> str | None:
        """Why entries here would not be believed; None if they are, or if there is no folder."""
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
        """Have this and later processes keep so many bytes; sweeps at once."""
        make_folder(str(self._root))
        with open_folder(unlinked(self._root)) as root:
            put(root, _LIMIT, str(limit).encode())
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
            open_folder(f"{self._root}/{name[:2]}") as folder,
            opened(_file_of(name), folder, stat.S_ISREG) as (file, status),
        ):
            content = _verified(read_all(file, status.st_size), name, secret)
            if content is None:
                remove(_file_of(name), folder)
            elif time.time() - status.st_mtime > _HOUR:  # that it is used is noted once an hour
                os.utime(file)
        return content

    def _write(self, name: str, content: bytes) -> None:
        make_folder(str(self._root))
        # Read again each time: somebody may have emptied the folder, and another process may have
        # put another secret there.
        self._secret = self._read_secret() or make_secret(self._root, _SECRET, _SECRET_BYTES)
        folder = f"{self._root}/{name[:2]}"
        make_folder(folder)
        with open_folder(folder) as opened_folder:
            put(opened_folder, _file_of(name), _signed(content, name, self._secret))
        self._writes += 1
        if self._writes >= self._until:
            self.sweep()

    def _read_secret(self) -> bytes | None:
        """The secret of this folder, if it has one; the folder is checked on the way."""
        self._secret = read_secret(self._root, _SECRET, _SECRET_BYTES)
        return self._secret

    def _refuse(self, reason: UntrustedError) -> None:
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


_refused: dict[Path, UntrustedError] = {}


class Usage(NamedTuple):
    """What is on a disk."""

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


# Where it is


def disk_of_environment() -> Disk | None:
    """Where THALWEG_CACHE says, else in the user's cache folder; None where that is off."""
    if os.environ.get("THALWEG_CACHE") == "0":
        return None
    try:
        root = user_folder()
        return Disk(root, _limit(root))
    except RuntimeError as error:  # there is no home
        tf_logging.info("Kernels are not kept on disk: %s", error)
        return None


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
