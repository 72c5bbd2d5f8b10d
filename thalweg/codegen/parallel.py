"""Many kernels made at once, on all processors: LLVM runs outside of Python's lock.

What comes in are requests; what goes out are objects, as they get ready. Making the text of a
kernel is Python, up to a third of the work, which one thread does at a time.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from queue import Empty, SimpleQueue
from typing import Any

from thalweg.codegen.compile import object_code
from thalweg.codegen.emitted import Request
from thalweg.codegen.llvm_threads import release_machines
from thalweg.codegen.machine import Target, llvm

_MOST_HELPERS = 3  # a third of the work is Python: that of more would be to wait for it

Job = tuple[int, Request]


@dataclass(frozen=True)
class Compiled:
    """A kernel as an object file, with the names of its functions and the scratch it needs."""

    code: bytes
    functions: tuple[str, ...]
    scratch: int


#: A job's number and what came of it.
Outcome = tuple[int, Compiled | Exception]


def compile_all(requests: Sequence[Request], target: Target) -> Iterator[tuple[int, Compiled]]:
    """The kernel of each request, with its number, in the order in which they get ready."""
    jobs, outcomes = SimpleQueue[Job](), SimpleQueue[Outcome]()
    for job in _in_order(requests):
        jobs.put(job)
    llvm()  # is there before threads ask for it
    for _ in range(_helpers(requests)):
        _in_background(jobs, outcomes, target)
    try:
        for _ in requests:
            yield _next_kernel(jobs, outcomes, requests, target)
    finally:
        while _taken(jobs):  # given up half way: nobody makes what is left
            pass
        release_machines(target)


def _in_order(requests: Sequence[Request]) -> list[Job]:
    """Kernels that want the same of LLVM one after another, as they are made at the same time; the
    costly ones first, so that threads end together."""
    return sorted(enumerate(requests), key=lambda job: (job[1].passes != "tiles", -job[1].cost))


def _helpers(requests: Sequence[Request]) -> int:
    """How many threads there are for the work, besides the one that asks for it."""
    idle = len(os.sched_getaffinity(0)) - 1
    return max(min(idle, len(requests) - 1, _MOST_HELPERS), 0)


def _in_background(jobs: SimpleQueue[Job], outcomes: SimpleQueue[Outcome], target: Target) -> None:
    """Have a thread do jobs until none is left. A process that ends waits for the job at hand: LLVM
    must not be taken apart while a thread is inside."""

    def work() -> None:
        while job := _taken(jobs):
            outcomes.put((job[0], _attempt(job[1], target)))

    threading.Thread(target=work, name="thalweg-compile").start()


def _next_kernel(
    jobs: SimpleQueue[Job],
    outcomes: SimpleQueue[Outcome],
    requests: Sequence[Request],
    target: Target,
) -> tuple[int, Compiled]:
    """What a helper has ready, else a job done here, else what a helper finishes next."""
    done: Outcome | None = _taken(outcomes)
    if done is None:
        job: Job | None = _taken(jobs)
        done = (job[0], _attempt(job[1], target)) if job else outcomes.get()
    number, result = done
    if isinstance(result, Exception):
        raise requests[number].explain(result) from result
    return number, result


def _taken(queue: SimpleQueue[Any]) -> Any:
    try:
        return queue.get_nowait()
    except Empty:
        return None


def _attempt(request: Request, target: Target) -> Compiled | Exception:
    try:
        module = request.make()
        code = object_code(module.text, target, module.passes)
    except Exception as error:
        return error
    return Compiled(code, module.functions, module.scratch)
