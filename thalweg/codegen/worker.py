"""Many kernels made at once, in processes of their own, as Python and LLVM use one thread each.

What comes in are requests; what goes out are objects, as they get ready. A worker is this Python
running `serve`: it reads requests from its standard input and ends with it. Workers are kept
for the life of the process; where none can be started, the process makes all kernels alone.
"""

from __future__ import annotations

import atexit
import importlib
import os
import pickle
import signal
import struct
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from queue import Empty, SimpleQueue
from typing import Any

from thalweg.codegen.compile import object_code
from thalweg.codegen.emitted import Emitted, Request
from thalweg.codegen.machine import Target, llvm

_FEW = 6  # kernels
_START_SECONDS = 0.3  # what a worker takes to be ready

#: A worker imports this file and those it needs, not the whole package.
_BOOT = """
import sys, types
sys.path[:] = sys.argv[2:]
sys.modules["thalweg"] = package = types.ModuleType("thalweg")
package.__path__ = [sys.argv[1]]
from thalweg.codegen.worker import serve
serve()
"""
_PACKAGE = Path(__file__).parent.parent
_LENGTH = struct.Struct("<Q")

Make = Callable[[], Emitted]
Job = tuple[int, Request]


@dataclass(frozen=True)
class Compiled:
    """A kernel as an object file, with the names of its functions and the scratch it needs."""

    code: bytes
    functions: tuple[str, ...]
    scratch: int


#: A job's number and what came of it (None: the worker could not take it, or is gone).
Outcome = tuple[int, Compiled | Exception | None]


def compile_all(requests: Sequence[Request], target: Target) -> Iterator[tuple[int, Compiled]]:
    """The kernel of each request, with its number, in the order in which they get ready."""
    helpers, workers = _worth_starting(requests), _workers
    jobs, outcomes = SimpleQueue[Job](), SimpleQueue[Outcome]()
    for job in sorted(enumerate(requests), key=lambda job: -job[1].cost):
        jobs.put(job)
    for _ in range(helpers):
        _in_background(lambda: _delegate(workers, jobs, outcomes, target))
    try:
        for _ in requests:
            yield _next_kernel(jobs, outcomes, requests, target)
    finally:
        while _taken(jobs):  # given up half way: nobody makes what is left
            pass


def _worth_starting(requests: Sequence[Request]) -> int:
    """How many workers shorten the work."""
    if len(requests) <= _FEW:
        return 0
    idle = len(os.sched_getaffinity(0)) - 1
    return min(idle, int(sum(request.cost for request in requests) / _START_SECONDS))


def _next_kernel(
    jobs: SimpleQueue[Job],
    outcomes: SimpleQueue[Outcome],
    requests: Sequence[Request],
    target: Target,
) -> tuple[int, Compiled]:
    """What a worker has ready, else a job done here, else what a worker finishes next."""
    done = _taken(outcomes)
    job = None if done else _taken(jobs)
    number, result = (job[0], None) if job else done or outcomes.get()
    if result is None:
        result = _attempt(requests[number].make, target)
    if isinstance(result, Exception):
        raise requests[number].explain(result) from result
    return number, result


def _taken(queue: SimpleQueue[Any]) -> Any:
    try:
        return queue.get_nowait()
    except Empty:
        return None


def _in_background(work: Callable[[], None]) -> None:
    threading.Thread(target=work, name="thalweg-compile", daemon=True).start()


def _delegate(
    workers: Workers, jobs: SimpleQueue[Job], outcomes: SimpleQueue[Outcome], target: Target
) -> None:
    """Have a worker do jobs until none is left; a job is taken only once the worker is ready."""
    worker = workers.take()
    if worker is None:
        return
    while job := _taken(jobs):
        try:
            outcomes.put((job[0], worker.compile(job[1].make, target)))
        except (OSError, EOFError):
            worker.close()
            outcomes.put((job[0], None))
            return
    workers.give(worker)


class Worker:
    """A process that compiles; made ready to take requests."""

    def __init__(self) -> None:
        command = [sys.executable, "-I", "-S", "-c", _BOOT, str(_PACKAGE), *sys.path]
        self._process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, bufsize=0
        )
        stdin, stdout = self._process.stdin, self._process.stdout
        assert stdin
        assert stdout
        self._stdin, self._stdout = stdin, stdout
        try:
            _receive(stdout.fileno())  # the greeting
        except EOFError:
            self.close()
            raise

    @property
    def number(self) -> int:
        """The process number."""
        return self._process.pid

    def compile(self, make: Make, target: Target) -> Compiled | Exception | None:
        """The kernel, or why there is none; None where a worker cannot be told what to make.

        Raises OSError or EOFError when it is gone.
        """
        message = _pickled((make, target))
        if message is None:
            return None
        _send(self._stdin.fileno(), message)
        return pickle.loads(_receive(self._stdout.fileno()))

    def close(self) -> None:
        """End the process."""
        self._process.kill()
        self._process.wait()
        self._close_pipes()

    def disown(self) -> None:
        """In a forked child: the worker is the parent's, whose end it must be able to see."""
        self._process.returncode = 0
        self._close_pipes()

    def _close_pipes(self) -> None:
        self._stdin.close()
        self._stdout.close()


class Workers:
    """The workers of this process: those at rest, and all of them."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._all: list[Worker] = []
        self._resting: list[Worker] = []
        self._closed = False

    def take(self) -> Worker | None:
        """A worker at rest, else a new one, else None where none can be started."""
        with self._lock:
            if self._resting:
                return self._resting.pop()
        worker = _started()
        return worker if worker and self._joined(worker) else None

    def give(self, worker: Worker) -> None:
        """Let a worker rest until it is needed again."""
        with self._lock:
            self._resting.append(worker)

    def close(self) -> None:
        """End all workers, for good."""
        with self._lock:
            self._closed = True
            for worker in self._all:
                worker.close()
            self._all, self._resting = [], []

    def disown(self) -> None:
        """In a forked child: begin without workers."""
        self._lock = threading.Lock()  # a thread that is not here may have held the other one
        for worker in self._all:
            worker.disown()
        self._all, self._resting = [], []

    def _joined(self, worker: Worker) -> bool:
        """Whether a new worker is one of ours; it ends at once where all have been ended."""
        with self._lock:
            if self._closed:
                worker.close()
            else:
                self._all.append(worker)
            return not self._closed


def _started() -> Worker | None:
    """A worker; None where the program is not a Python that could be started again."""
    if not Path(sys.executable or "").name.startswith(("python", "pypy")):
        return None
    try:
        return Worker()
    except (OSError, EOFError):
        return None


_workers = Workers()
atexit.register(_workers.close)
os.register_at_fork(after_in_child=_workers.disown)


def serve() -> None:
    """Answer requests until standard input ends: the main function of a worker."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # it is the parent that an interrupt is for
    answers = os.dup(1)
    os.dup2(2, 1)  # whatever prints must not get between the answers
    llvm()
    importlib.import_module("thalweg.codegen.kernels")  # most requests are for those
    _send(answers, b"ready")
    while True:
        try:
            make, target = pickle.loads(_receive(0))
            _send(answers, _pickled(_attempt(make, target)) or pickle.dumps(None))
        except (EOFError, BrokenPipeError):
            return


def _attempt(make: Make, target: Target) -> Compiled | Exception:
    try:
        module = make()
        code = object_code(module.text, target, module.passes)
    except Exception as error:
        return error
    return Compiled(code, module.functions, module.scratch)


def _pickled(thing: object) -> bytes | None:
    """What is sent to another process; None where it cannot be (a function made on the spot)."""
    try:
        return pickle.dumps(thing)
    except (pickle.PicklingError, AttributeError, TypeError, RecursionError):
        return None


def _send(pipe: int, message: bytes) -> None:
    rest = memoryview(_LENGTH.pack(len(message)) + message)
    while rest:
        rest = rest[os.write(pipe, rest) :]


def _receive(pipe: int) -> bytes:
    (length,) = _LENGTH.unpack(_read(pipe, _LENGTH.size))
    return _read(pipe, length)


def _read(pipe: int, length: int) -> bytes:
    """Exactly so many bytes; EOFError where the other side is gone."""
    parts = bytearray()
    while len(parts) < length:
        part = os.read(pipe, min(length - len(parts), 1 << 20))
        if not part:
            raise EOFError
        parts += part
    return bytes(parts)
