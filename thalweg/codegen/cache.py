"""Native kernels by what they are: made and compiled once, kept in memory and on disk.

What comes in are requests: a key, and how to emit the module that it names. What goes out are the
addresses of its functions. A module that is in the cache is not even emitted. Objects on disk are
shared by all processes of the user and by nobody else (`platform/disk_cache.py`); one that is
damaged, or is not such an object as this package makes, counts as not there.

Kernels are made on all processors at once: LLVM runs outside of Python's lock. Making the text of
one is Python, up to a third of the work, which one thread can do at a time: the one that asks does
all of it, a few kernels ahead of the others, and runs LLVM itself when it is ahead far enough.
"""

from __future__ import annotations

import hashlib
import os
import sys
import threading
import time
from collections import deque
from collections.abc import Generator, Iterable, Iterator, Sequence
from concurrent.futures import Future
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from functools import partial
from queue import SimpleQueue

from thalweg.codegen.llvm.compile import object_code, place, release_tools
from thalweg.codegen.llvm.emitted import Emitted, Request
from thalweg.codegen.llvm.object_file import ObjectFile
from thalweg.codegen.machine import CpuTarget, llvm
from thalweg.codegen.progress import progress
from thalweg.platform import tf_logging
from thalweg.platform.caches import Bounded
from thalweg.platform.disk_cache import Disk, disk_of_environment
from thalweg.platform.memory import hand_back_own_heap

_MAX_HELPERS = 3  # a third of the work is Python: more would wait for texts
_SWITCH_INTERVAL = 0.0005  # seconds
_TEXTS_PER_HELPER = 3  # LLVM may take as long for one as for three others


@dataclass(frozen=True)
class Compiled:
    """A kernel as an object file, with the names of its functions and the scratch it needs."""

    code: bytes
    functions: tuple[str, ...]
    scratch: int


#: A job's number and what came of it.
Outcome = tuple[int, Compiled | Exception]


def compile_all(requests: Sequence[Request], target: CpuTarget) -> Iterator[tuple[int, Compiled]]:
    """The kernel of each request, with its number, in the order in which they get ready."""
    llvm()  # is there before threads ask for it
    work = _Work(requests, target)
    try:
        for _ in requests:
            with _short_switch_interval():
                number, result = work.next()
            if isinstance(result, Exception):
                raise requests[number].explain(result) from result
            yield number, result
    finally:
        work.end()
        release_tools(target)


_before: list[float] = []


@contextmanager
def _short_switch_interval() -> Generator[None]:
    """With Python's lock handed on early: a helper that comes back from LLVM wants it for a moment
    only, and would wait longer for it than LLVM took for a small kernel. The last to leave restores
    what was."""
    _before.append(sys.getswitchinterval())
    sys.setswitchinterval(min(_SWITCH_INTERVAL, _before[-1]))
    try:
        yield
    finally:
        longest = max(_before)
        _before.pop()
        if not _before:
            sys.setswitchinterval(longest)


class _Work:
    """Requests on their way: not made yet, made and waiting for a thread, done."""

    def __init__(self, requests: Sequence[Request], target: CpuTarget) -> None:
        self._target = target
        self._requests = requests
        self._unmade = deque(_in_order(requests))
        self._texts: deque[tuple[int, Emitted]] = deque()
        self._outcomes = SimpleQueue[Outcome]()
        self._max_helpers = _helpers(requests)
        self._helpers: list[threading.Thread] = []

    def next(self) -> Outcome:
        """What is ready next: done by a helper or here, in the meantime."""
        while self._outcomes.empty():
            if self._unmade and len(self._texts) <= _TEXTS_PER_HELPER * self._max_helpers:
                number = self._unmade.popleft()
                try:
                    self._texts.append((number, self._requests[number].make()))
                except Exception as error:
                    return number, error
                self._start_helper()
            elif done := self._compiled():
                return done
            else:
                break
        return self._outcomes.get()

    def end(self) -> None:
        """Given up half way, nobody makes what is left."""
        self._texts.clear()

    def _start_helper(self) -> None:
        """Have a thread more do what waits. None of them waits itself, so that none is left behind;
        but a process that ends waits for theirs: LLVM must not be taken apart while one is inside.
        """
        self._helpers = [thread for thread in self._helpers if thread.is_alive()]
        if len(self._helpers) < self._max_helpers:
            self._helpers.append(threading.Thread(target=self._help, name="thalweg-compile"))
            self._helpers[-1].start()

    def _help(self) -> None:
        while done := self._compiled():
            self._outcomes.put(done)
        hand_back_own_heap()

    def _compiled(self) -> Outcome | None:
        """What LLVM makes of the next text, if there is one."""
        try:
            number, module = self._texts.popleft()
        except IndexError:
            return None
        try:
            code = object_code(module.text, self._target, module.passes)
        except Exception as error:
            return number, error
        return number, Compiled(code, module.functions, module.scratch)


def _in_order(requests: Sequence[Request]) -> list[int]:
    """Kernels that want the same of LLVM one after another, as they are made at the same time; the
    costly ones first, so that threads end together."""

    def place(number: int) -> tuple[bool, float]:
        return requests[number].passes != "tiles", -requests[number].cost

    return sorted(range(len(requests)), key=place)


def _helpers(requests: Sequence[Request]) -> int:
    """How many threads there are for the work, besides the one that asks for it."""
    idle = len(os.sched_getaffinity(0)) - 1
    return max(min(idle, len(requests) - 1, _MAX_HELPERS), 0)


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


def load(modules: Sequence[Emitted], target: CpuTarget) -> list[Addresses]:
    """The native addresses of the functions of each module, which stay valid for good."""
    return [kernel.functions for kernel in load_all([as_request(m) for m in modules], target)]


def load_all(requests: Sequence[Request], target: CpuTarget) -> list[Loaded]:
    """The kernels asked for, which stay in memory for good."""
    return _shared().load(requests, target)


def find_all(names: Sequence[str], target: CpuTarget) -> list[Loaded] | None:
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


def note(**more: float) -> None:
    """Count what a cache of another device did as well."""
    _shared().count(**more)


class Kernels:
    """The kernels of a process, in memory, before those on disk."""

    def __init__(self, disk: Disk | None) -> None:
        self.disk = disk
        self._known = Bounded[str, Future[Loaded]]("kernels in memory", 1 << 13)
        self._lock = threading.Lock()
        self._counts = asdict(Statistics())

    @property
    def statistics(self) -> Statistics:
        """What the cache did so far."""
        with self._lock:
            return Statistics(**self._counts)

    def load(self, requests: Sequence[Request], target: CpuTarget) -> list[Loaded]:
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

    def find(self, names: Sequence[str], target: CpuTarget) -> list[Loaded] | None:
        """The kernels of these names, if none of them has to be compiled."""
        found: list[Loaded] = []
        for name in names:
            kernel = self._found(name, target)
            if kernel is None:
                return None
            found.append(kernel)
        return found

    def _found(self, name: str, target: CpuTarget) -> Loaded | None:
        future = self._known.get(name)
        if future is not None:
            self.count(memory_hits=1)
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
        for key in [key for key, future in self._known.items() if not future.done()]:
            del self._known[key]

    def _claim(
        self, wanted: dict[str, Request]
    ) -> tuple[dict[str, Future[Loaded]], dict[str, Request]]:
        """The futures of all kernels wanted, and those that this thread has to fulfil itself."""
        with self._lock:
            known = {key: self._known[key] for key in wanted if key in self._known}
            mine = {key: request for key, request in wanted.items() if key not in known}
            claimed = {key: Future[Loaded]() for key in mine}
            self._known.update(claimed)
        futures = known | claimed
        self.count(memory_hits=len(wanted) - len(mine))
        return futures, mine

    def _fulfil(
        self, mine: dict[str, Request], futures: dict[str, Future[Loaded]], target: CpuTarget
    ) -> None:
        missing: dict[str, Request] = {}
        for key, request in mine.items():
            found = self._from_disk(key, target)
            if found is None:
                missing[key] = request
            else:
                futures[key].set_result(found)
        for key, kernel in self._compiled(missing, target) if missing else ():
            futures[key].set_result(kernel)

    def _give_up(
        self, mine: Iterable[str], futures: dict[str, Future[Loaded]], error: BaseException
    ) -> None:
        """Whoever waits for what was not made hears why; the next one to ask tries again."""
        for key in (key for key in mine if not futures[key].done()):
            with self._lock:
                self._known.pop(key, None)
            futures[key].set_exception(error)

    def _from_disk(self, key: str, target: CpuTarget) -> Loaded | None:
        content = self.disk.read(key) if self.disk else None
        if content is None:
            return None
        try:
            made = _kernel_in(content)
            ObjectFile(made.code).check(made.functions, target.architecture)
            kernel = _placed(made, target)
        except (RuntimeError, ValueError):
            tf_logging.info("The cached kernel %s does not link; it is compiled again.", key)
            return None
        self.count(disk_hits=1, code_bytes=len(made.code))
        return kernel

    def _compiled(
        self, missing: dict[str, Request], target: CpuTarget
    ) -> Iterator[tuple[str, Loaded]]:
        keys, start = list(missing), time.perf_counter()
        for number, made in progress(compile_all(list(missing.values()), target), len(keys)):
            if self.disk:
                self.disk.write(keys[number], _entry(made))
            kernel = _placed(made, target)
            now = time.perf_counter()
            self.count(misses=1, compile_seconds=now - start, code_bytes=len(made.code))
            start = now
            yield keys[number], kernel

    def count(self, **more: float) -> None:
        """Add to the statistics."""
        with self._lock:
            for name, n in more.items():
                self._counts[name] += n


def _placed(made: Compiled, target: CpuTarget) -> Loaded:
    return Loaded(place(made.code, made.functions, target), made.scratch)


def _entry(made: Compiled) -> bytes:
    """A kernel as it is kept: a line with its scratch and functions, and the object."""
    return " ".join((str(made.scratch), *made.functions)).encode() + b"\n" + made.code


def _kernel_in(entry: bytes) -> Compiled:
    head, _, code = entry.partition(b"\n")
    scratch, *functions = head.decode().split()
    return Compiled(code, tuple(functions), int(scratch))


def name_of(request: Request, target: CpuTarget) -> str:
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
