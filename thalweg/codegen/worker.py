"""Many modules compiled at once, in processes of their own, as LLVM lets in one thread at a time.

What comes in are texts; what goes out are objects, as they get ready. A worker is this Python
running `serve`: it reads requests from its standard input and ends with it. Workers are kept
for the life of the process; where none can be started, the process compiles alone.
"""

from __future__ import annotations

import atexit
import os
import pickle
import signal
import struct
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from queue import Empty, SimpleQueue
from typing import Any

from thalweg.codegen.compile import object_code
from thalweg.codegen.machine import Target, llvm

#: What compiling takes, measured: seconds for each module and for each character of its text.
_SECONDS_PER_MODULE, _SECONDS_PER_CHARACTER = 4e-3, 0.8e-6
_FEW_MODULES = 6
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

Job = tuple[int, str]
#: A job's number and its object, or why there is none (None: the worker is gone).
Outcome = tuple[int, bytes | str | None]


def compile_all(texts: Sequence[str], target: Target) -> Iterator[tuple[int, bytes]]:
    """The object of each text, with its number, in the order in which they get ready."""
    helpers, workers = _worth_starting(texts), _workers
    jobs, outcomes = SimpleQueue[Job](), SimpleQueue[Outcome]()
    for job in sorted(enumerate(texts), key=lambda job: -len(job[1])):
        jobs.put(job)
    for _ in range(helpers):
        _in_background(lambda: _delegate(workers, jobs, outcomes, target))
    try:
        for _ in texts:
            yield _next_object(jobs, outcomes, texts, target)
    finally:
        while _taken(jobs):  # given up half way: nobody compiles what is left
            pass


def seconds_estimated(texts: Sequence[str]) -> float:
    """About what the texts take to compile, one after the other."""
    return _SECONDS_PER_MODULE * len(texts) + _SECONDS_PER_CHARACTER * sum(map(len, texts))


def _worth_starting(texts: Sequence[str]) -> int:
    """How many workers shorten the work."""
    if len(texts) <= _FEW_MODULES:
        return 0
    idle = len(os.sched_getaffinity(0)) - 1
    return min(idle, int(seconds_estimated(texts) / _START_SECONDS))


def _next_object(
    jobs: SimpleQueue[Job],
    outcomes: SimpleQueue[Outcome],
    texts: Sequence[str],
    target: Target,
) -> tuple[int, bytes]:
    """What a worker has ready, else a job done here, else what a worker finishes next."""
    done = _taken(outcomes)
    job = None if done else _taken(jobs)
    if job:
        return job[0], object_code(job[1], target)
    number, code = done or outcomes.get()
    if isinstance(code, str):
        raise RuntimeError(code)
    return number, object_code(texts[number], target) if code is None else code


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
            outcomes.put((job[0], worker.compile(job[1], target)))
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

    def compile(self, text: str, target: Target) -> bytes | str:
        """The object of a text, or why there is none. Raises OSError or EOFError when gone."""
        _send(self._stdin.fileno(), pickle.dumps((text, target)))
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
    _send(answers, b"ready")
    while True:
        try:
            text, target = pickle.loads(_receive(0))
            _send(answers, pickle.dumps(_attempt(text, target)))
        except (EOFError, BrokenPipeError):
            return


def _attempt(text: str, target: Target) -> bytes | str:
    try:
        return object_code(text, target)
    except RuntimeError as error:
        return str(error)


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
