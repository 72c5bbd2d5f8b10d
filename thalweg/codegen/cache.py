"""Native kernels by what they are: made and compiled once, kept in memory and on disk.

What comes in are requests: a key, and how to emit the module that it names. What goes out are the
addresses of its functions. A module that is in the cache is not even emitted. An object on disk is
shared by all processes of the user, and one that is damaged counts as not there.
"""

from __future__ import annotations

import hashlib
import os
import threading
import time
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

from thalweg.codegen.compile import place
from thalweg.codegen.emitted import Emitted, Request
from thalweg.codegen.machine import Target
from thalweg.codegen.parallel import Compiled, compile_all
from thalweg.codegen.progress import progress
from thalweg.platform import tf_logging
from thalweg.platform.caches import Bounded

_MAGIC = b"thalweg object 2"
_HASH_BYTES = 32
_HOUR = 3600.0
_DEFAULT_LIMIT = 1 << 30
#: What compiling takes, measured: seconds for each module and for each character of its text.
_SECONDS_PER_MODULE, _SECONDS_PER_CHARACTER = 4e-3, 0.5e-6

Addresses = tuple[int, ...]


@dataclass(frozen=True)
class Statistics:
    """What the cache did in this process so far."""

    memory_hits: int = 0
    disk_hits: int = 0
    misses: int = 0  # kernels that were compiled
    compile_seconds: float = 0.0
    code_bytes: int = 0  # of all objects in memory

    @property
    def hits(self) -> int:
        """Kernels that did not have to be compiled."""
        return self.memory_hits + self.disk_hits


@dataclass(frozen=True)
class Loaded:
    """A kernel in memory: the addresses of its functions, and the scratch memory a call needs."""

    functions: Addresses
    scratch: int


def load(modules: Sequence[Emitted], target: Target) -> list[Addresses]:
    """The native addresses of the functions of each module, which stay valid for good."""
    return [kernel.functions for kernel in load_all([as_request(m) for m in modules], target)]


def load_all(requests: Sequence[Request], target: Target) -> list[Loaded]:
    """The kernels asked for, which stay in memory for good."""
    return _shared().load(requests, target)


def find_all(names: Sequence[str], target: Target) -> list[Loaded] | None:
    """The kernels of these names, if all of them are in the cache."""
    return _shared().find(names, target)


def shared_disk() -> Disk | None:
    """Where this process keeps what later ones may use."""
    return _shared().disk


def as_request(module: Emitted) -> Request:
    """A module that is there already, named by its text."""
    key = "\0".join((*module.functions, str(module.scratch), module.passes, module.text))
    cost = _SECONDS_PER_MODULE + _SECONDS_PER_CHARACTER * len(module.text)
    return Request(key, partial(_itself, module), cost, module.passes)


def _itself(module: Emitted) -> Emitted:
    return module


def statistics() -> Statistics:
    """What the cache did in this process so far."""
    return _shared().statistics


class Kernels:
    """The kernels of a process, in memory, before those on disk."""

    def __init__(self, disk: Disk | None) -> None:
        self.disk = disk
        self._known = Bounded[str, Future[Loaded]]("kernels in memory", 1 << 13)
        self._lock = threading.Lock()
        self.statistics = Statistics()

    def load(self, requests: Sequence[Request], target: Target) -> list[Loaded]:
        """The kernels asked for; each is compiled only once."""
        keys = [name_of(request, target) for request in requests]
        wanted = dict(zip(keys, requests, strict=True))
        futures, mine = self._claim(wanted)
        try:
            self._fulfil(mine, futures, target)
        except BaseException as error:
            self._give_up(mine, futures, error)
            raise
        return [futures[key].result() for key in keys]

    def find(self, names: Sequence[str], target: Target) -> list[Loaded] | None:
        """The kernels of these names, if none of them has to be compiled."""
        found: list[Loaded] = []
        for name in names:
            kernel = self._found(name, target)
            if kernel is None:
                return None
            found.append(kernel)
        return found

    def _found(self, name: str, target: Target) -> Loaded | None:
        future = self._known.get(name)
        if future is not None:
            self._count(memory_hits=1)
            return future.result() if future.done() else None
        kernel = self._from_disk(name, target)
        if kernel is not None:
            made = Future[Loaded]()
            made.set_result(kernel)
            with self._lock:
                self._known.setdefault(name, made)
        return kernel

    def forget_unfinished(self) -> None:
        """After a fork: what another thread of the parent was compiling will not come."""
        self._lock = threading.Lock()
        self._known = {key: future for key, future in self._known.items() if future.done()}

    def _claim(
        self, wanted: dict[str, Request]
    ) -> tuple[dict[str, Future[Loaded]], dict[str, Request]]:
        """The futures of all kernels wanted, and those that this thread has to fulfil itself."""
        with self._lock:
            mine = {key: request for key, request in wanted.items() if key not in self._known}
            self._known.update({key: Future() for key in mine})
            futures = {key: self._known[key] for key in wanted}
        self._count(memory_hits=len(wanted) - len(mine))
        return futures, mine

    def _fulfil(
        self, mine: dict[str, Request], futures: dict[str, Future[Loaded]], target: Target
    ) -> None:
        missing: dict[str, Request] = {}
        for key, request in mine.items():
            found = self._from_disk(key, target)
            if found is None:
                missing[key] = request
            else:
                futures[key].set_result(found)
        for key, kernel in self._compiled(missing, target):
            futures[key].set_result(kernel)

    def _give_up(
        self, mine: Iterable[str], futures: dict[str, Future[Loaded]], error: BaseException
    ) -> None:
        """Whoever waits for what was not made hears why; the next one to ask tries again."""
        for key in (key for key in mine if not futures[key].done()):
            with self._lock:
                self._known.pop(key, None)
            futures[key].set_exception(error)

    def _from_disk(self, key: str, target: Target) -> Loaded | None:
        content = self.disk.read(key) if self.disk else None
        if content is None:
            return None
        try:
            made = _kernel_in(content)
            kernel = _placed(made, target)
        except (RuntimeError, ValueError):
            tf_logging.info("The cached kernel %s does not link; it is compiled again.", key)
            return None
        self._count(disk_hits=1, code_bytes=len(made.code))
        return kernel

    def _compiled(
        self, missing: dict[str, Request], target: Target
    ) -> Iterator[tuple[str, Loaded]]:
        keys, start = list(missing), time.perf_counter()
        for number, made in progress(compile_all(list(missing.values()), target), len(keys)):
            if self.disk:
                self.disk.write(keys[number], _entry(made))
            kernel = _placed(made, target)
            now = time.perf_counter()
            self._count(misses=1, compile_seconds=now - start, code_bytes=len(made.code))
            start = now
            yield keys[number], kernel

    def _count(self, **more: float) -> None:
        with self._lock:
            old = self.statistics
            sums = {name: getattr(old, name) + n for name, n in more.items()}
            self.statistics = replace(old, **sums)


class Disk:
    """Objects in files, at most `limit` bytes of them: those not used for long go first."""

    #: Every so many writes the size is looked at; where there are many objects, which takes a
    #: while, less often.
    SWEEP_EVERY = 64

    def __init__(self, root: Path, limit: int = _DEFAULT_LIMIT) -> None:
        self._root, self._limit = root, limit
        self._writable = True
        self._until = self._patience(_FOLDERS * len(_names_in(root / _FIRST_FOLDER)))
        # Short processes together look as often as a long one does.
        self._writes = int.from_bytes(os.urandom(3)) % self._until

    def read(self, key: str) -> bytes | None:
        """The object of a key, or None; a damaged one is removed."""
        path = self._path(key)
        try:
            content = path.read_bytes()
        except OSError:
            return None
        code = _unwrapped(content)
        if code is None:
            path.unlink(missing_ok=True)
            return None
        _touch(path)
        return code

    def write(self, key: str, code: bytes) -> None:
        """Keep an object; other processes see all of it or nothing."""
        if not self._writable:
            return
        try:
            self._write(self._path(key), _wrapped(code))
        except OSError as error:
            self._writable = False
            tf_logging.info("Kernels are not kept on disk: %s", error)

    def _patience(self, count: int) -> int:
        """How many writes there are between two looks at so many objects."""
        return max(self.SWEEP_EVERY, count // 4)

    def sweep(self) -> None:
        """Remove what writers that died left, and the oldest objects above the limit."""
        entries = sorted(self._entries(), key=lambda entry: entry.used)
        self._writes, self._until = 0, self._patience(len(entries))
        now, total = time.time(), sum(entry.size for entry in entries)
        for entry in entries:
            abandoned = entry.path.suffix == ".tmp" and now - entry.used > _HOUR
            if abandoned or total > self._limit:
                entry.path.unlink(missing_ok=True)
                total -= entry.size

    def _path(self, key: str) -> Path:
        return self._root / key[:2] / f"{key[2:]}.o"

    def _write(self, path: Path, content: bytes) -> None:
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        unfinished = path.with_name(f"{path.stem}-{os.getpid()}-{threading.get_ident()}.tmp")
        try:
            unfinished.write_bytes(content)
            os.replace(unfinished, path)
        except OSError:
            unfinished.unlink(missing_ok=True)
            raise
        self._writes += 1
        if self._writes >= self._until:
            self.sweep()

    def _entries(self) -> Iterator[_Entry]:
        for path in self._root.glob("??/*"):
            try:
                status = path.stat()
            except OSError:  # another process removed it
                continue
            yield _Entry(path, status.st_size, status.st_mtime)


_FOLDERS = 256  # that objects are spread over evenly, by the first byte of their keys
_FIRST_FOLDER = "00"


def _names_in(folder: Path) -> list[str]:
    try:
        return os.listdir(folder)
    except OSError:
        return []


@dataclass(frozen=True)
class _Entry:
    path: Path
    size: int
    used: float


def _placed(made: Compiled, target: Target) -> Loaded:
    return Loaded(place(made.code, made.functions, target), made.scratch)


def _entry(made: Compiled) -> bytes:
    """A kernel as it is kept: a line with its scratch and functions, and the object."""
    return " ".join((str(made.scratch), *made.functions)).encode() + b"\n" + made.code


def _kernel_in(entry: bytes) -> Compiled:
    head, _, code = entry.partition(b"\n")
    scratch, *functions = head.decode().split()
    return Compiled(code, tuple(functions), int(scratch))


def _wrapped(code: bytes) -> bytes:
    return _MAGIC + hashlib.sha256(code).digest() + code


def _unwrapped(content: bytes) -> bytes | None:
    """The object in the content of a file, if it is whole."""
    start = len(_MAGIC) + _HASH_BYTES
    code = content[start:]
    sound = content[:start] == _MAGIC + hashlib.sha256(code).digest()
    return code if sound else None


def _touch(path: Path) -> None:
    """Note that an object was used, at most once an hour."""
    try:
        if time.time() - path.stat().st_mtime > _HOUR:
            os.utime(path)
    except OSError:  # removed meanwhile, or not ours to change
        return


def name_of(request: Request, target: Target) -> str:
    """What a kernel is called in the cache."""
    return hashlib.sha256(f"{target.key}\0{request.key}".encode()).hexdigest()


def _shared() -> Kernels:
    """The kernels of this process; where threads make them at once, all get the same ones."""
    return _process.get("kernels") or _process.setdefault("kernels", Kernels(disk_of_environment()))


def _after_fork() -> None:
    for kernels in _process.values():
        kernels.forget_unfinished()


_process: dict[str, Kernels] = {}
os.register_at_fork(after_in_child=_after_fork)


def disk_of_environment() -> Disk | None:
    """Where THALWEG_CACHE says, else in the user's cache folder; None where that is off."""
    if os.environ.get("THALWEG_CACHE") == "0":
        return None
    try:
        return Disk(_folder(), _limit())
    except RuntimeError as error:  # there is no home
        tf_logging.info("Kernels are not kept on disk: %s", error)
        return None


def _folder() -> Path:
    given = os.environ.get("THALWEG_CACHE")
    if given:
        return Path(given).expanduser()
    base = os.environ.get("XDG_CACHE_HOME")
    return (Path(base) if base else Path.home() / ".cache") / "thalweg"


def _limit() -> int:
    given = os.environ.get("THALWEG_CACHE_LIMIT") or str(_DEFAULT_LIMIT)
    if not given.isdecimal():
        raise ValueError(f"THALWEG_CACHE_LIMIT is a number of bytes, not {given!r}.")
    return int(given)
