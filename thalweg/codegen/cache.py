"""The cache of native kernels, in memory and on disk: each is compiled once.

Requests come in: a key, and how to emit the module that it names. Addresses of functions go out. A
hit emits nothing. Objects on disk are shared by all processes of one user and by nobody else
(`platform/disk_cache.py`); a damaged one is a miss.

Misses compile in parallel, since LLVM runs without the GIL. Emitting text, up to a third of the
work, needs the GIL: the requesting thread emits all of it, a bounded number of modules ahead of
the worker threads, and compiles itself once it is that far ahead.
"""

from __future__ import annotations

import hashlib
import os
import sys
import threading
from collections import deque
from collections.abc import Generator, Iterator, Sequence
from concurrent.futures import Future
from contextlib import contextmanager
from dataclasses import dataclass, replace
from queue import SimpleQueue
from typing import Any

from thalweg.codegen.llvm.compile import object_code, place, release_toolchains
from thalweg.codegen.llvm.emitted import Emitted, Request
from thalweg.codegen.machine import CpuTarget, llvm
from thalweg.codegen.progress import progress
from thalweg.platform import tf_logging
from thalweg.platform.caches import Bounded
from thalweg.platform.disk_cache import Disk, disk_of_environment
from thalweg.platform.memory import trim_thread_heap

_MAX_WORKERS = 3  # a third of the work holds the GIL: more workers would starve
_SWITCH_INTERVAL = 0.0005  # seconds
_QUEUED_PER_WORKER = 3  # one module may take LLVM as long as three others


@dataclass(frozen=True)
class Compiled:
    """A kernel's object file, the names of its entry points, and its scratch size in bytes."""

    code: bytes
    functions: tuple[str, ...]
    scratch: int


#: The number of a request, and its kernel or error.
CompileResult = tuple[int, Compiled | Exception]


def compile_all(requests: Sequence[Request], target: CpuTarget) -> Iterator[tuple[int, Compiled]]:
    """Compile all requests; yields (request number, kernel) in order of completion."""
    llvm()  # imported before worker threads need it
    queue = _CompileQueue(requests, target)
    try:
        for _ in requests:
            with _short_switch_interval():
                number, result = queue.next()
            if isinstance(result, Exception):
                raise requests[number].explain(result) from result
            yield number, result
    finally:
        queue.cancel()
        release_toolchains(target)


_saved_intervals: list[float] = []


@contextmanager
def _short_switch_interval() -> Generator[None]:
    """Shorten the interpreter's switch interval: a worker that returns from LLVM needs the GIL for
    a moment only, and would wait longer for it than LLVM took for a small kernel. Nests, and may
    be entered by several threads; the last to leave restores the longest interval."""
    _saved_intervals.append(sys.getswitchinterval())
    sys.setswitchinterval(min(_SWITCH_INTERVAL, _saved_intervals[-1]))
    try:
        yield
    finally:
        longest = max(_saved_intervals)
        _saved_intervals.pop()
        if not _saved_intervals:
            sys.setswitchinterval(longest)


class _CompileQueue:
    """Requests in flight: to be emitted, emitted and waiting for a thread, compiled."""

    def __init__(self, requests: Sequence[Request], target: CpuTarget) -> None:
        self._target = target
        self._requests = requests
        self._requested = deque(_compile_order(requests))
        self._emitted: deque[tuple[int, Emitted]] = deque()
        self._results = SimpleQueue[CompileResult]()
        self._max_workers = _worker_limit(requests)
        self._workers: list[threading.Thread] = []

    def next(self) -> CompileResult:
        """The next finished result. This thread emits and compiles while none is ready."""
        while self._results.empty():
            if self._requested and len(self._emitted) <= _QUEUED_PER_WORKER * self._max_workers:
                number = self._requested.popleft()
                try:
                    self._emitted.append((number, self._requests[number].make()))
                except Exception as error:
                    return number, error
                self._start_worker()
            elif result := self._compile_next():
                return result
            else:
                break
        return self._results.get()

    def cancel(self) -> None:
        """Drop what is not compiled yet."""
        self._emitted.clear()

    def _start_worker(self) -> None:
        """Start another worker unless enough run. A worker ends when the queue is empty; none is a
        daemon, so that the interpreter joins them before LLVM is torn down."""
        self._workers = [thread for thread in self._workers if thread.is_alive()]
        if len(self._workers) < self._max_workers:
            self._workers.append(threading.Thread(target=self._run_worker, name="thalweg-compile"))
            self._workers[-1].start()

    def _run_worker(self) -> None:
        while result := self._compile_next():
            self._results.put(result)
        trim_thread_heap()

    def _compile_next(self) -> CompileResult | None:
        """Compile the next emitted module; None if there is none."""
        try:
            number, module = self._emitted.popleft()
        except IndexError:
            return None
        try:
            code = object_code(module.text, self._target, module.passes)
        except Exception as error:
            return number, error
        return number, Compiled(code, module.functions, module.scratch)


def _compile_order(requests: Sequence[Request]) -> list[int]:
    """The order of compilation: modules of the same passes together, since threads with different
    LLVM options exclude each other, and costly ones first, so that threads end together."""
    keys = [(request.passes != "tiles", -request.cost) for request in requests]
    return sorted(range(len(requests)), key=keys.__getitem__)


def _worker_limit(requests: Sequence[Request]) -> int:
    """How many threads may compile besides the one that requests."""
    idle = len(os.sched_getaffinity(0)) - 1
    return max(min(idle, len(requests) - 1, _MAX_WORKERS), 0)


#: Compile time, measured: seconds per module and per character of its text.
_SECONDS_PER_MODULE, _SECONDS_PER_CHARACTER = 4e-3, 0.5e-6


@dataclass(frozen=True)
class Statistics:
    """Counters of the cache since the process started."""

    memory_hits: int = 0
    disk_hits: int = 0
    misses: int = 0  # compiled kernels
    code_bytes: int = 0  # of all objects in memory


@dataclass(frozen=True)
class Loaded:
    """A kernel in memory: the addresses of its functions, valid until the process ends, and the
    scratch bytes of a call."""

    functions: tuple[int, ...]
    scratch: int


_Futures = dict[str, Future[Loaded]]  # by the names of kernels


def load_all(requests: Sequence[Request], target: CpuTarget) -> list[Loaded]:
    """The requested kernels; they are never unloaded."""
    return _shared().load(requests, target)


def find_all(names: Sequence[str], target: CpuTarget) -> list[Loaded] | None:
    """The kernels of these names; None unless all of them are cached."""
    return _shared().find(names, target)


def shared_disk() -> Disk | None:
    """The disk cache of this process; None where it is off."""
    return _shared().disk


def as_request(module: Emitted) -> Request:
    """A request for an emitted module, keyed by its text."""
    key = "\0".join((*module.functions, str(module.scratch), module.passes, module.text))
    cost = _SECONDS_PER_MODULE + _SECONDS_PER_CHARACTER * len(module.text)
    return Request(key, lambda: module, cost, module.passes)


def statistics() -> Statistics:
    """The counters of this process's cache."""
    return _shared().statistics


def note(**more: int) -> None:
    """Add to the counters on behalf of another device's cache."""
    _shared().count(**more)


class Kernels:
    """The in-memory cache of a process, in front of the disk cache."""

    def __init__(self, disk: Disk | None) -> None:
        self.disk = disk
        self._futures = Bounded[str, Future[Loaded]]("kernels in memory", 1 << 13)
        self._lock = threading.Lock()
        self.statistics = Statistics()

    def load(self, requests: Sequence[Request], target: CpuTarget) -> list[Loaded]:
        """The requested kernels. Concurrent requests for one key compile it once."""
        keys = [name_of(request, target) for request in requests]
        wanted = dict(zip(keys, requests, strict=True))
        with self._lock:
            known = {key: self._futures[key] for key in wanted if key in self._futures}
            own = {key: Future[Loaded]() for key in wanted if key not in known}
            self._futures.update(own)
        self.count(memory_hits=len(known))
        try:
            self._fulfil(own, wanted, target)
        except BaseException as error:
            self._fail(own, error)
            raise
        futures = known | own
        return [futures[key].result() for key in keys]

    def find(self, names: Sequence[str], target: CpuTarget) -> list[Loaded] | None:
        """The kernels of these names; None if any would have to be compiled."""
        result: list[Loaded] = []
        for name in names:
            kernel = self._find_one(name, target)
            if kernel is None:
                return None
            result.append(kernel)
        return result

    def _find_one(self, name: str, target: CpuTarget) -> Loaded | None:
        future = self._futures.get(name)
        if future is not None:
            self.count(memory_hits=1)
            return future.result() if future.done() else None
        kernel = self._from_disk(name, target)
        if kernel is not None:
            ready = Future[Loaded]()
            ready.set_result(kernel)
            with self._lock:
                self._futures.setdefault(name, ready)
        return kernel

    def forget_unfinished(self) -> None:
        """In a forked child: drop what threads of the parent were compiling."""
        self._lock = threading.Lock()
        for key in [key for key, future in self._futures.items() if not future.done()]:
            del self._futures[key]

    def _fulfil(self, own: _Futures, wanted: dict[str, Request], target: CpuTarget) -> None:
        """Find or compile the kernels of this thread's own futures."""
        missing: dict[str, Request] = {}
        for key, future in own.items():
            found = self._from_disk(key, target)
            if found is None:
                missing[key] = wanted[key]
            else:
                future.set_result(found)
        for key, kernel in self._compile(missing, target) if missing else ():
            own[key].set_result(kernel)

    def _fail(self, own: _Futures, error: BaseException) -> None:
        """Raise the error in threads that wait for unfinished keys; a later request retries."""
        for key, future in own.items():
            if not future.done():
                with self._lock:
                    self._futures.pop(key, None)
                future.set_exception(error)

    def _from_disk(self, key: str, target: CpuTarget) -> Loaded | None:
        content = self.disk.read(key) if self.disk else None
        if content is None:
            return None
        try:
            compiled = _decode(content)
            kernel = _loaded(compiled, target)
        except (RuntimeError, ValueError):
            tf_logging.info("The cached kernel %s does not link; it is compiled again.", key)
            return None
        self.count(disk_hits=1, code_bytes=len(compiled.code))
        return kernel

    def _compile(
        self, missing: dict[str, Request], target: CpuTarget
    ) -> Iterator[tuple[str, Loaded]]:
        keys = list(missing)
        for number, compiled in progress(compile_all(list(missing.values()), target), len(keys)):
            if self.disk:
                self.disk.write(keys[number], _encode(compiled))
            kernel = _loaded(compiled, target)
            self.count(misses=1, code_bytes=len(compiled.code))
            yield keys[number], kernel

    def count(self, **more: int) -> None:
        """Add to the counters."""
        with self._lock:
            sums: Any = {name: getattr(self.statistics, name) + n for name, n in more.items()}
            self.statistics = replace(self.statistics, **sums)


def _loaded(compiled: Compiled, target: CpuTarget) -> Loaded:
    return Loaded(place(compiled.code, compiled.functions, target), compiled.scratch)


def _encode(compiled: Compiled) -> bytes:
    """A disk entry: a line with the scratch size and the functions, then the object."""
    head = " ".join((str(compiled.scratch), *compiled.functions))
    return head.encode() + b"\n" + compiled.code


def _decode(entry: bytes) -> Compiled:
    head, _, code = entry.partition(b"\n")
    scratch, *functions = head.decode().split()
    return Compiled(code, tuple(functions), int(scratch))


def name_of(request: Request, target: CpuTarget) -> str:
    """The name of a request's kernel in the cache."""
    return hashlib.sha256(f"{target.key}\0{request.key}".encode()).hexdigest()


def _shared() -> Kernels:
    """The cache of this process; threads that create it at once all get the same one."""
    return _process.get("kernels") or _process.setdefault("kernels", Kernels(disk_of_environment()))


def _after_fork() -> None:
    for kernels in _process.values():
        kernels.forget_unfinished()


_process: dict[str, Kernels] = {}
os.register_at_fork(after_in_child=_after_fork)
