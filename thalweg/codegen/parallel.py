"""Many kernels made at once, on all processors: LLVM runs outside of Python's lock.

What comes in are requests; what goes out are objects, as they get ready. Making the text of a
kernel is Python, up to a third of the work, which one thread can do at a time: the one that asks
does all of it, a few kernels ahead of the others, and runs LLVM itself when it is ahead far enough.
"""

from __future__ import annotations

import os
import sys
import threading
from collections import deque
from collections.abc import Generator, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from queue import SimpleQueue

from thalweg.codegen.llvm.compile import object_code
from thalweg.codegen.llvm.emitted import Emitted, Request
from thalweg.codegen.llvm.threads import release_tools
from thalweg.codegen.machine import CpuTarget, llvm
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
